"""exp, log, tanh, erf, sin, acos ... on float vectors as polynomials; the rest by libm, lane by lane.

The coefficients are minimax fits (iteratively reweighted least squares at 40 digits) made for this file; the
bound beside each is the fit's error before rounding. Everything is exact at infinities and NaN is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from smelt.targets.llvm.builder import Value, float_text
from smelt.targets.llvm.scalar import Scalars

LOG2E = 1.4426950408889634
LN2_HIGH = 0.693359375  # 10 bits, so that n * LN2_HIGH is exact for |n| < 2^14
LN2_LOW = -2.1219444005469057e-4
ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits

# exp(r) = 1 + r + r^2 * sum, |r| <= ln2/2: 3.2e-9
_EXP = (0.5, 0.1666651815, 0.04166620597, 0.008368954062, 0.001395059982)
# log(1+f) = f - f^2/2 + f^3 * sum, 1+f in [sqrt(1/2), sqrt(2)]: 5.9e-9 * f
_LOG = (
    0.3333331645, -0.2500081062, 0.2000229508, -0.1662449837,
    0.1418096125, -0.1312911361, 0.1288347095, -0.0786087364,
)  # fmt: skip
# tanh(x) = x * sum(x^2) / sum(x^2), |x| <= 8, where it never exceeds 1: 2.9e-7 relative in floats
_TANH_P = (1.0, 0.1368088722, 0.00386954681, 2.803207462e-05, 3.064427645e-08, -1.224745132e-11)
_TANH_Q = (1.0, 0.4701421857, 0.02725029923, 0.0003940781171, 1.289087322e-06)
# erf(x) = x * sum(x^2) / sum(x^2), |x| <= 3.9: at most 3.56e-7 off in floats
# (all of 0.25..4.2 compared); from 3.92 to 4.1 it is above 1
_ERF_P = (1.128379107, 0.1896494776, 0.05266584828, 0.003737627529, 0.0002850501915, 2.066652996e-06)
_ERF_Q = (1.0, 0.5014052391, 0.1138118431, 0.01491282322, 0.001157210558, 3.827127875e-05)
# erf(i/4 + u) = sum of row[i] * u^n over the rows, 0 <= u <= 1/4: 6e-9, relative 4e-8 below 1/4
_ERF_ROWS = (
    (0, 0.276326388, 0.520499885, 0.711155653, 0.842700779, 0.92290014, 0.966105163, 0.986671686,
     0.995322287, 0.998537302, 0.999593019, 0.999899387, 0.999977887, 0.999995708, 0.999999285, 0.999999881),
    (1.12837911, 1.06001246, 0.87878114, 0.642930686, 0.415107995, 0.236521885, 0.118930794, 0.0527751446,
     0.0206669271, 0.00714221271, 0.00217820611, 0.000586237176, 0.000139236989, 2.91837787e-05,
     5.39799703e-06, 8.81102949e-07),
    (6.95516064e-06, -0.264924794, -0.439323574, -0.482178956, -0.415130645, -0.295686811, -0.178419337,
     -0.0923636109, -0.0413314067, -0.0160652548, -0.00544201909, -0.00161035277, -0.000416989351,
     -9.46115179e-05, -1.88287831e-05, -3.28936039e-06),
    (-0.376331359, -0.310502708, -0.147638604, 0.0264294762, 0.13874723, 0.168140709, 0.13916944,
     0.0902910903, 0.0481826589, 0.0216398779, 0.00828604959, 0.00272692763, 0.00077550736,
     0.000191315441, 4.10575958e-05, 7.68158679e-06),
    (0.00201812922, 0.137098417, 0.192357183, 0.153801873, 0.0664746314, -0.0108273206, -0.0479268283,
     -0.0492311791, -0.0341759697, -0.0184315685, -0.0081163412, -0.00298964209, -0.000934038369,
     -0.0002497065, -5.7468711e-05, -1.14353952e-05),
    (0.105959758, 0.0453048944, -0.0269813295, -0.0666377991, -0.0610239096, -0.0306492317, -0.00232717837,
     0.0113088842, 0.0124369506, 0.00836101267, 0.00423905021, 0.00172976882, 0.000585306378,
     0.000166982092, 4.05841965e-05, 8.46234161e-06),
)  # fmt: skip
# sin(r) = r + r^3 * sum(r^2), cos(r) = 1 - r^2/2 + r^4 * sum(r^2), |r| <= pi/4
_SIN = (-0.1666665524, 0.008332174271, -0.0001951680752)  # 3.6e-9 relative
_COS = (0.04166664556, -0.001388736302, 2.44378989e-05)  # 9.6e-11
# atan(t) = t + t^3 * sum(t^2), |t| <= tan(pi/8): 6.6e-10 relative
_ATAN = (-0.3333331549, 0.1999848877, -0.1424383568, 0.1059590167, -0.06083191738)
# asin(r) = r + r^3 * sum(r^2), |r| <= 1/2: 5e-9 relative
_ASIN = (0.1666675393, 0.07495241804, 0.04547709131, 0.02414764731, 0.04221847918)
PIO2_LOW = -4.371139000186241e-08
"""What pi/2 is beyond the float nearest to it."""


def polynomial(s: Scalars, x: Value, coefficients: Sequence[float]) -> Value:
    """sum of coefficients[i] * x**i by Horner's rule."""
    acc = s.like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        acc = s.fma(acc, x, s.like(x, c))
    return acc


def _at_most(s: Scalars, x: Value, high: float) -> Value:
    """min(x, high) that keeps NaN."""
    k = s.like(x, high)
    return s.select(s.compare("fcmp olt", k, x), k, x)


def _at_least(s: Scalars, x: Value, low: float) -> Value:
    k = s.like(x, low)
    return s.select(s.compare("fcmp ogt", k, x), k, x)


def exp_parts(s: Scalars, x: Value) -> tuple[Value, Value]:
    """(p, n) with exp(x) = p * 2^n; n as an integer vector, 0.7 < p < 1.42; |x| < 2^20."""
    shifted = s.fma(x, s.like(x, LOG2E), s.like(x, ROUND))
    n = s.binary("sub", s.bits(shifted), s.b.integer(0x4B400000, "i32", x.lanes))
    whole = s.sub(shifted, s.like(x, ROUND))
    return _exp_reduced(s, x, whole), n


def _exp_reduced(s: Scalars, x: Value, whole: Value) -> Value:
    """exp(x - whole*ln2)."""
    r = s.fma(whole, s.like(x, -LN2_HIGH), x)
    r = s.fma(whole, s.like(x, -LN2_LOW), r)
    tail = s.fma(s.mul(r, r), polynomial(s, r, _EXP), r)
    return s.add(tail, s.like(x, 1.0))


def exp(s: Scalars, x: Value) -> Value:
    """exp for all floats: 1 ulp, subnormal results included."""
    if x.elem != "float":
        return libm("exp")(s, x)
    # beyond these the result is infinite, or below half of the least subnormal
    x = _at_least(s, _at_most(s, x, 89.0), -104.0)
    if _wide(s, x):
        whole = s.unary("roundeven", s.mul(x, s.like(x, LOG2E)))
        return _scalef(s, _exp_reduced(s, x, whole), whole)
    p, n = exp_parts(s, x)
    half = s.binary("ashr", n, s.like(n, 1))
    return s.mul(s.mul(p, _power_of_two(s, half)), _power_of_two(s, s.binary("sub", n, half)))


def _power_of_two(s: Scalars, n: Value) -> Value:
    biased = s.binary("add", n, s.like(n, 127))
    return s.from_bits(s.binary("shl", biased, s.like(n, 23)))


def _scalef(s: Scalars, p: Value, n: Value) -> Value:
    """p * 2^n in one instruction of AVX-512."""
    every = s.b.integer(-1, "i16")
    rounding = s.b.integer(4, "i32")  # the current mode
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    kinds = [p.type, p.type, p.type, "i16", "i32 immarg"]
    s.b.declare(name, p.type, kinds, "nounwind memory(none)")
    zero = s.like(p, 0.0)
    args = ", ".join(v.typed for v in (p, n, zero, every, rounding))
    return s.b.pure(f"call {p.type} @{name}({args})", p.elem, p.lanes, p, n)


def log(s: Scalars, x: Value) -> Value:
    """Natural logarithm: log(0) = -inf, NaN below zero, subnormals exact."""
    if x.elem != "float":
        return libm("log")(s, x)
    tiny = s.compare("fcmp olt", x, s.like(x, 2.0**-126))
    scaled = s.select(tiny, s.mul(x, s.like(x, 2.0**23)), x)
    raw = s.bits(scaled)
    # 0x3f3504f3 is sqrt(1/2): the exponent is counted from there
    e = s.binary("ashr", s.binary("sub", raw, s.like(raw, 0x3F3504F3)), s.like(raw, 23))
    m = s.from_bits(s.binary("sub", raw, s.binary("shl", e, s.like(raw, 23))))
    f = s.sub(m, s.like(x, 1.0))
    e = s.select(tiny, s.binary("sub", e, s.like(e, 23)), e)
    n = s.convert("sitofp", e, "float")
    z = s.mul(f, f)
    y = s.mul(s.mul(f, z), polynomial(s, f, _LOG))
    y = s.fma(n, s.like(x, LN2_LOW), y)
    y = s.fma(z, s.like(x, -0.5), y)
    result = s.fma(n, s.like(x, LN2_HIGH), s.add(f, y))
    infinite = s.like(x, math.inf)
    result = s.select(s.compare("fcmp oeq", x, infinite), infinite, result)
    result = s.select(s.compare("fcmp uge", x, s.like(x, 0.0)), result, s.like(x, math.nan))
    result = s.select(s.compare("fcmp oeq", x, s.like(x, 0.0)), s.like(x, -math.inf), result)
    return s.select(s.compare("fcmp uno", x, x), x, result)


def _wide(s: Scalars, x: Value) -> bool:
    """Whether x fills a register of AVX-512, which can look 16 floats up in another register."""
    return s.cpu.machine.vector_bits == 512 and x.lanes == 16


def _odd_ratio(s: Scalars, x: Value, p: Sequence[float], q: Sequence[float]) -> Value:
    """x * p(x^2) / q(x^2)."""
    z = s.mul(x, x)
    return s.binary("fdiv", s.mul(x, polynomial(s, z, p)), polynomial(s, z, q))


def tanh(s: Scalars, x: Value) -> Value:
    """tanh: relative error 3e-7, and 1 itself from 8 on (it is 2.3e-7 less there): 1 - tanh of a large number
    times that number is no small number but 0."""
    if x.elem != "float":
        return libm("tanh")(s, x)
    far = s.compare("fcmp oge", s.unary("fabs", x), s.like(x, 8.0))
    return s.select(far, s.copysign(s.like(x, 1.0), x), _odd_ratio(s, x, _TANH_P, _TANH_Q))


def erf(s: Scalars, x: Value) -> Value:
    """The error function: absolute error 3.6e-7, or 6e-8 from tables on AVX-512; 1 itself far from 0."""
    if x.elem != "float":
        return libm("erf")(s, x)
    if _wide(s, x):
        return _erf_rows(s, x)
    ratio = _odd_ratio(s, _at_least(s, _at_most(s, x, 4.1), -4.1), _ERF_P, _ERF_Q)
    return _at_least(s, _at_most(s, ratio, 1.0), -1.0)


def _erf_rows(s: Scalars, x: Value) -> Value:
    """One polynomial for each quarter of 0..4; its coefficients are picked by register permutes."""
    size = s.unary("fabs", x)
    t = _at_most(s, size, 3.9999998)
    # floats from 2^21 on are a quarter apart: adding it leaves the number of the quarter in the low bits.
    # 16 quarters more keep the sum above 2^21 when 1/8 is taken off, which makes rounding flooring
    far = 2.0**21 + 4.0
    shifted = s.add(s.sub(t, s.like(t, 0.125)), s.like(t, far))
    u = s.sub(t, s.sub(shifted, s.like(t, far)))
    which = s.bits(shifted)
    acc = _pick(s, _ERF_ROWS[-1], which)
    for row in reversed(_ERF_ROWS[:-1]):
        acc = s.fma(acc, u, _pick(s, row, which))
    return s.copysign(acc, x)


def _pick(s: Scalars, row: Sequence[float], which: Value) -> Value:
    """row[which % 16] for each lane."""
    name = "llvm.x86.avx512.permvar.sf.512"
    text = ", ".join(f"float {float_text(c, 'float')}" for c in row)
    table = Value(f"<{text}>", "float", 16, s.b.root)
    s.b.declare(name, "<16 x float>", ["<16 x float>", "<16 x i32>"], "nounwind memory(none)")
    return s.b.pure(f"call <16 x float> @{name}({table.typed}, {which.typed})", "float", 16, which)


def _sincos(s: Scalars, x: Value, quarter: int, name: str) -> Value:
    """sin(x + quarter*pi/2). The reduction is in f64, exact below 2^27; beyond, libm decides."""
    if x.elem != "float":
        return libm(name)(s, x)
    wide = s.convert("fpext", x, "double")
    shift = 6755399441055744.0  # 1.5 * 2^52
    count = s.fma(wide, s.like(wide, 2.0 / math.pi), s.like(wide, shift))
    n = s.convert("trunc", s.bits(count), "i32")
    whole = s.sub(count, s.like(wide, shift))
    r = s.sub(wide, s.mul(whole, s.like(wide, 1.5707963109016418)))
    r = s.sub(r, s.mul(whole, s.like(wide, 1.5893254712295857e-08)))
    r = s.sub(r, s.mul(whole, s.like(wide, 6.123233995736766e-17)))
    f = s.convert("fptrunc", r, "float")
    z = s.mul(f, f)
    sine = s.fma(s.mul(f, z), polynomial(s, z, _SIN), f)
    half = s.fma(z, s.like(z, -0.5), s.like(z, 1.0))
    cosine = s.fma(s.mul(z, z), polynomial(s, z, _COS), half)
    q = s.binary("add", n, s.like(n, quarter))
    odd = s.compare("icmp ne", s.binary("and", q, s.like(q, 1)), s.like(q, 0))
    sign = s.binary("shl", s.binary("and", q, s.like(q, 2)), s.like(q, 30))
    reduced = s.from_bits(s.binary("xor", s.bits(s.select(odd, cosine, sine)), sign))
    if quarter == 0:  # the polynomial makes 0 of -0
        reduced = s.select(s.compare("fcmp oeq", x, s.like(x, 0.0)), x, reduced)
    # NaN counts as large, so that infinities and NaN are libm's business
    large = s.compare("fcmp uge", s.unary("fabs", x), s.like(x, 2.0**27))
    return s.b.branch(
        any_lane(s, large),
        lambda: [s.select(large, libm(name)(s, x), reduced)],
        lambda: [reduced],
    )[0]


def any_lane(s: Scalars, condition: Value) -> Value:
    """Whether a condition holds in some lane."""
    if not condition.lanes:
        return condition
    packed = f"i{condition.lanes}"
    mask = s.b.pure(f"bitcast {condition.typed} to {packed}", packed, 0, condition)
    return s.b.pure(f"icmp ne {mask.typed}, 0", "i1", 0, mask)


def sin(s: Scalars, x: Value) -> Value:
    return _sincos(s, x, 0, "sin")


def cos(s: Scalars, x: Value) -> Value:
    return _sincos(s, x, 1, "cos")


def libm(name: str) -> Callable[..., Value]:
    """The function of libm, called for each lane (NAMEf for float)."""

    def emit(s: Scalars, *args: Value) -> Value:
        args = s.same(*args)
        elem, lanes = args[0].elem, args[0].lanes
        full = name + ("f" if elem == "float" else "")
        if not lanes:
            return s.b.call(full, elem, 0, *args)
        parts = [s.b.call(full, elem, 0, *(s.b.lane(a, i) for a in args)) for i in range(lanes)]
        return s.b.vector(parts)

    return emit


# ---------------------------------------------------------------- inverses of sin, cos, tan


def atan(s: Scalars, x: Value) -> Value:
    """The angle of a tangent: 2 ulp. Tangents beyond tan(pi/8) and its reciprocal are moved below it by one
    division."""
    if x.elem != "float":
        return libm("atan")(s, x)
    size, one = s.unary("fabs", x), s.like(x, 1.0)
    far = s.compare("fcmp ogt", size, s.like(x, 1.0 + math.sqrt(2.0)))
    middle = s.compare("fcmp ogt", size, s.like(x, math.sqrt(2.0) - 1.0))
    above = s.select(far, s.like(x, -1.0), s.select(middle, s.sub(size, one), size))
    below = s.select(far, size, s.select(middle, s.add(size, one), one))
    t = s.binary("fdiv", above, below)
    turned = s.select(far, s.like(x, math.pi / 2), s.select(middle, s.like(x, math.pi / 4), s.like(x, 0.0)))
    z = s.mul(t, t)
    return s.copysign(s.add(turned, s.fma(s.mul(t, z), polynomial(s, z, _ATAN), t)), x)


def _asin_parts(s: Scalars, x: Value) -> tuple[Value, Value, Value]:
    """(whether |x| < 1/2, r, what asin(r) has beyond r): r is |x| where it is, else the root of (1-|x|)/2."""
    size, half = s.unary("fabs", x), s.like(x, 0.5)
    small = s.compare("fcmp olt", size, half)
    rest = s.mul(s.sub(s.like(x, 1.0), size), half)
    z = s.select(small, s.mul(size, size), rest)
    r = s.select(small, size, s.unary("sqrt", rest))
    return small, r, s.mul(s.mul(r, z), polynomial(s, z, _ASIN))


def asin(s: Scalars, x: Value) -> Value:
    """The angle of a sine: 2 ulp, NaN beyond 1."""
    if x.elem != "float":
        return libm("asin")(s, x)
    small, r, more = _asin_parts(s, x)
    rest = s.fma(more, s.like(x, -2.0), s.like(x, PIO2_LOW))
    far = s.add(s.fma(r, s.like(x, -2.0), s.like(x, math.pi / 2)), rest)
    return s.copysign(s.select(small, s.add(r, more), far), x)


def acos(s: Scalars, x: Value) -> Value:
    """The angle of a cosine: 2 ulp, NaN beyond 1."""
    if x.elem != "float":
        return libm("acos")(s, x)
    small, r, more = _asin_parts(s, x)
    angle = s.add(r, more)
    twice = s.add(angle, angle)
    behind = s.select(s.compare("fcmp olt", x, s.like(x, 0.0)), s.sub(s.like(x, math.pi), twice), twice)
    middle = s.sub(s.like(x, math.pi / 2), s.sub(s.copysign(angle, x), s.like(x, PIO2_LOW)))
    return s.select(small, middle, behind)


TRANSCENDENTAL: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sqrt": lambda s, x: s.unary("sqrt", x),
    **{
        name: libm(name)
        for name in (
            "log1p", "tan", "sinh", "cosh", "asinh", "acosh", "atanh",
        )
    },
}  # fmt: skip
