"""exp, log, tanh, erf, sin, cos, pow ... on float vectors as polynomials; the rest by libm, lane by lane.

The coefficients are minimax fits (iteratively reweighted least squares at 40 digits) made for this file; the
bound beside each is the fit's error before rounding. Everything is exact at infinities and NaN is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from smelt.targets.llvm.builder import Value
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
# tanh(x) = x + x^3 * sum(x^2), |x| <= 0.625: 4.5e-9 relative
_TANH = (-0.3333328068, 0.1333138347, -0.0537340045, 0.02061813325, -0.005679315887)
# erf(x) = x * sum(x^2), |x| <= 1: 1.2e-9
_ERF = (
    1.128379107, -0.3761262596, 0.1128360033, -0.02685444802,
    0.005189542193, -0.0008020895184, 7.889285189e-05,
)  # fmt: skip
# erfc(t) = exp(-t * sum(t)), 1 <= t <= 4.05: 2.6e-9
_ERFC = (
    1.128486276, 0.6358116865, 0.1051405817, -0.0228132233, 0.003191300901, -0.0002111450303,
)  # fmt: skip
# sin(r) = r + r^3 * sum(r^2), cos(r) = 1 - r^2/2 + r^4 * sum(r^2), |r| <= pi/4
_SIN = (-0.1666665524, 0.008332174271, -0.0001951680752)  # 3.6e-9 relative
_COS = (0.04166664556, -0.001388736302, 2.44378989e-05)  # 9.6e-11


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


def exp_bounded(s: Scalars, x: Value) -> Value:
    """exp(x) for |x| <= 80, where no scaling can overflow or lose bits."""
    p, n = exp_parts(s, x)
    raised = s.binary("add", s.bits(p), s.binary("shl", n, s.like(n, 23)))
    return s.from_bits(raised)


def exp(s: Scalars, x: Value) -> Value:
    """exp for all floats: 1 ulp, subnormal results included."""
    if x.elem != "float":
        return libm("exp")(s, x)
    # beyond these the result is infinite, or below half of the least subnormal
    x = _at_least(s, _at_most(s, x, 89.0), -104.0)
    if s.cpu.machine.vector_bits == 512 and x.lanes == 16:
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


def tanh(s: Scalars, x: Value) -> Value:
    """tanh: relative error 2e-7, a polynomial near zero."""
    if x.elem != "float":
        return libm("tanh")(s, x)
    size = s.unary("fabs", x)
    capped = _at_most(s, size, 10.0)
    e = exp_bounded(s, s.add(capped, capped))
    one = s.like(x, 1.0)
    large = s.sub(one, s.binary("fdiv", s.like(x, 2.0), s.add(e, one)))
    z = s.mul(x, x)
    small = s.fma(s.mul(size, z), polynomial(s, z, _TANH), size)
    return s.copysign(s.select(s.compare("fcmp olt", size, s.like(x, 0.625)), small, large), x)


def erf(s: Scalars, x: Value) -> Value:
    """The error function: absolute error 6e-8, relative 2e-7 near zero."""
    if x.elem != "float":
        return libm("erf")(s, x)
    size = s.unary("fabs", x)
    t = _at_most(s, size, 4.05)
    exponent = s.mul(s.binary("fsub", s.like(x, 0.0), t), polynomial(s, t, _ERFC))
    large = s.sub(s.like(x, 1.0), exp_bounded(s, exponent))
    small = s.mul(t, polynomial(s, s.mul(t, t), _ERF))
    return s.copysign(s.select(s.compare("fcmp olt", size, s.like(x, 1.0)), small, large), x)


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


def power(s: Scalars, a: Value, b: Value) -> Value:
    """a**b: small constant exponents by multiplication, the rest by libm."""
    exponent = b.const
    if exponent is None or exponent not in _POWERS:
        return libm("pow")(s, a, b)
    return _POWERS[float(exponent)](s, a)


def _square(s: Scalars, a: Value) -> Value:
    return s.mul(a, a)


def _cube(s: Scalars, a: Value) -> Value:
    return s.mul(s.mul(a, a), a)


def _root(s: Scalars, a: Value) -> Value:
    # pow(-inf, 0.5) is +inf and pow(-0.0, 0.5) is +0, unlike sqrt
    root = s.unary("sqrt", s.add(a, s.like(a, 0.0)))
    infinite = s.like(a, math.inf)
    return s.select(s.compare("fcmp oeq", a, s.like(a, -math.inf)), infinite, root)


_POWERS: dict[float, Callable[[Scalars, Value], Value]] = {
    0.0: lambda s, a: s.like(a, 1.0),
    1.0: lambda s, a: a,
    2.0: _square,
    3.0: _cube,
    -1.0: lambda s, a: s.binary("fdiv", s.like(a, 1.0), a),
    0.5: _root,
}

TRANSCENDENTAL: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "sqrt": lambda s, x: s.unary("sqrt", x),
    **{
        name: libm(name)
        for name in (
            "log1p", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
        )
    },
}  # fmt: skip
