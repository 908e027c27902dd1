"""The name of a function of libm in, its definition in LLVM IR out, for a processor that has no libm.

Everything is computed in double: within 2 ulp of it for double, and rounded once for float. Polynomials are
Chebyshev fits made at 50 digits for this file; the error beside each is the fit's, before rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from smelt.targets.cuda.libm_trig import cos, sin, tan
from smelt.targets.cuda.machine import cpu_for
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.math import polynomial
from smelt.targets.llvm.scalar import Scalars

LN2_HIGH, LN2_LOW = 0.6931471805592082, 7.371002565167799e-13  # 40 bits: n * LN2_HIGH is exact for |n| < 2^13
PIO2_HIGH, PIO2_LOW = 1.5707963267948966, 6.123233995736766e-17
# exp(r) = 1 + r + r^2 * sum, |r| <= ln2/2: 2e-20
_EXP = (
    0.5, 0.16666666666666666, 0.04166666666666668, 0.008333333333333333, 0.0013888888888879004,
    0.00019841269841263252, 2.480158733663095e-05, 2.7557319247344507e-06, 2.755726307730941e-07,
    2.5052070959803662e-08, 2.091821231913398e-09, 1.6086677666787362e-10,
)  # fmt: skip
# log((1+s)/(1-s)) = 2s + s^3 * sum(s^2), |s| <= (sqrt2-1)/(sqrt2+1): 2e-18
_LOG = (
    0.6666666666666666, 0.4000000000000088, 0.2857142857080323, 0.2222222239180047, 0.18181795630884753,
    0.15386240205813478, 0.13268759668560612, 0.13086767009948175,
)  # fmt: skip
# the same from s^7 on: 3e-16
_LOG_TAIL = (
    0.285714285714286, 0.22222222222140664, 0.1818181822608058, 0.15384606389061298, 0.13334202049145272,
    0.11721811990546963, 0.11566360418810438,
)  # fmt: skip
# atan(x) = x + x^3 * sum(x^2), |x| <= tan(pi/8): 2e-21
_ATAN = (
    -0.3333333333333333, 0.19999999999999998, -0.1428571428571415, 0.11111111111090433, -0.09090909089290074,
    0.07692307616211806, -0.06666664343202196, 0.05882304610193147, -0.052624536283402454,
    0.04754618422446524, -0.04294252451442342, 0.037233742339787025, -0.02727353484766671,
    0.011958372270565072,
)  # fmt: skip
# asin(x) = x + x^3 * sum(x^2), |x| <= 1/2: 6e-20
_ASIN = (
    0.16666666666666666, 0.07499999999999991, 0.0446428571428834, 0.030381944441363808, 0.02237215927967998,
    0.017352757477819787, 0.013965009932053607, 0.011549086612987425, 0.009792751320201996,
    0.008135829925501657, 0.00879500607648843, 0.000380853033290726, 0.022553563638202982,
    -0.024020544918554605, 0.030718768995191097,
)  # fmt: skip
# erf(x) = x + x * sum(x^2), |x| <= 1: 3e-23
_ERF = (
    0.1283791670955126, -0.37612638903183754, 0.11283791670955126, -0.026866170645131218,
    0.005223977625441674, -0.0008548327023403001, 0.00012055332978879483, -1.4925650236967501e-05,
    1.6462110782018636e-06, -1.636576864883207e-07, 1.4806027146128752e-08, -1.2277734486795524e-09,
    9.323723518153027e-11, -6.1967364287877e-12, 2.8067128195611264e-13,
)  # fmt: skip
# erfc(x) * exp(x^2) = sum(t), t = (x-2)/(x+2), 1 <= x <= 6: 2e-19
_ERFC = (
    0.25539567631050575, -0.4271858474139584, 0.24165819424246646, -0.07897858101573213,
    0.003732892404327764, 0.006997461739200444, -0.0008471432509203844, -0.000981977026567889,
    4.355560219515472e-05, 0.00017436116545392264, 2.7525480361206068e-05, -2.7579864674305787e-05,
    -1.396807230177146e-05, 1.392621183618803e-06, 3.789215643758464e-06, 1.1780775215625583e-06,
    -5.322696855655786e-07, -4.215301054238321e-07,
)  # fmt: skip

Function: TypeAlias = Callable[..., Value]
DoublePair: TypeAlias = tuple[Value, Value]
"""A number as an unevaluated sum, the second part far below the first."""


class LibmBuilder(FunctionBuilder):
    """A builder whose calls of libm go to definitions, which it puts beside the declarations."""

    def call(self, name: str, elem: str, lanes: int, *args: Value) -> Value:
        if name not in LIBM:
            return super().call(name, elem, lanes, *args)
        ours = f"smelt.{name}"
        if ours not in self.declared:
            self.declared[ours] = ""  # its place, should it call itself
            self.declared[ours] = definition(name, self.declared)
        rhs = f"call {elem} @{ours}({', '.join(a.typed for a in args)})"
        return self.pure(rhs, elem, lanes, *args)


def definition(name: str, declared: dict[str, str]) -> str:
    """`define internal .. @smelt.NAME(..)`; what it needs besides goes into declared."""
    b = LibmBuilder(declared)
    s = Scalars(b, cpu_for("sm_53"))
    make, arguments = LIBM[name]
    single = name not in {plain for plain, _, _ in _DOUBLE}
    elem = "float" if single else "double"
    given = [Value(f"%x{i}", elem, 0, b.root) for i in range(arguments)]
    if single:
        wide = [s.convert("fpext", v, "double") for v in given]
        result = s.convert("fptrunc", b.call(name[:-1], "double", 0, *wide), "float")
    else:
        result = make(s, *given)
    head = f"define internal {elem} @smelt.{name}({', '.join(v.typed for v in given)}) nounwind memory(none)"
    return f"{head} {{\n{b.text(f'ret {elem} {result.text}')}\n}}\n"


# ---------------------------------------------------------------- shorthand


def _least(s: Scalars, x: Value, high: float) -> Value:
    """min(x, high) that keeps NaN."""
    return s.select(s.compare("fcmp ogt", x, s.like(x, high)), s.like(x, high), x)


def _most(s: Scalars, x: Value, low: float) -> Value:
    return s.select(s.compare("fcmp olt", x, s.like(x, low)), s.like(x, low), x)


def _neg(s: Scalars, x: Value) -> Value:
    return s.b.pure(f"fneg {x.typed}", x.elem, 0, x)


def _div(s: Scalars, a: Value, b: Value) -> Value:
    return s.binary("fdiv", a, b)


def _two_sum(s: Scalars, a: Value, b: Value) -> DoublePair:
    """a + b exactly."""
    high = s.add(a, b)
    back = s.sub(high, a)
    return high, s.add(s.sub(a, s.sub(high, back)), s.sub(b, back))


def _fast_two_sum(s: Scalars, a: Value, b: Value) -> DoublePair:
    """a + b exactly, |a| >= |b|."""
    high = s.add(a, b)
    return high, s.sub(b, s.sub(high, a))


def _two_product(s: Scalars, a: DoublePair, b: DoublePair) -> DoublePair:
    """a * b to some 105 bits."""
    high = s.mul(a[0], b[0])
    low = s.fma(a[0], b[0], _neg(s, high))
    return high, s.fma(a[0], b[1], s.fma(a[1], b[0], low))


def _power_of_two(s: Scalars, n: Value) -> Value:
    """2^n, -1022 <= n <= 1023; n an i64."""
    return s.from_bits(s.binary("shl", s.binary("add", n, s.like(n, 1023)), s.like(n, 52)))


def _whole(s: Scalars, x: Value) -> Value:
    """A whole number as an i64."""
    return s.convert("fptosi", x, "i64")


# ---------------------------------------------------------------- exponentials


def _scaled_exp(s: Scalars, high: Value, low: Value) -> Value:
    """exp(high + low), |high| <= 746."""
    k = s.unary("roundeven", s.mul(high, s.like(high, math.log2(math.e))))
    r = s.fma(k, s.like(k, -LN2_HIGH), high)
    r = s.add(r, s.fma(k, s.like(k, -LN2_LOW), low))
    p = s.add(s.fma(s.mul(r, r), polynomial(s, r, _EXP), r), s.like(r, 1.0))
    n = _whole(s, k)
    half = s.binary("ashr", n, s.like(n, 1))
    return s.mul(s.mul(p, _power_of_two(s, half)), _power_of_two(s, s.binary("sub", n, half)))


def _exp(s: Scalars, x: Value) -> Value:
    at = _defined(s, _most(s, _least(s, x, 710.0), -746.0))
    return s.select(s.compare("fcmp uno", x, x), x, _scaled_exp(s, at, s.like(x, 0.0)))


def _defined(s: Scalars, x: Value) -> Value:
    """x, and 0 for NaN, whose conversion to an integer has no value."""
    return s.select(s.compare("fcmp uno", x, x), s.like(x, 0.0), x)


def _expm1(s: Scalars, x: Value) -> Value:
    """exp(x) - 1."""
    at = _defined(s, _most(s, _least(s, x, 710.0), -50.0))
    k = s.unary("roundeven", s.mul(at, s.like(x, math.log2(math.e))))
    high = s.fma(k, s.like(k, -LN2_HIGH), at)
    r, c = _two_sum(s, high, s.mul(k, s.like(k, -LN2_LOW)))
    # exp(r + c) - 1, to first order in c
    em = s.add(s.fma(s.mul(r, r), polynomial(s, r, _EXP), s.fma(c, r, c)), r)
    n = _whole(s, k)
    scale = _power_of_two(s, s.binary("sub", n, s.like(n, 1)))
    made = s.fma(scale, em, s.sub(scale, s.like(x, 0.5)))
    made = s.select(s.compare("icmp eq", n, s.like(n, 0)), em, s.add(made, made))
    return s.select(s.compare("fcmp ueq", x, s.like(x, 0.0)), x, made)


def _sinh(s: Scalars, x: Value) -> Value:
    a, half = s.unary("fabs", x), s.like(x, 0.5)
    t = s.b.call("expm1", "double", 0, a)
    near = s.mul(half, s.add(t, _div(s, t, s.add(t, s.like(t, 1.0)))))
    e = s.b.call("exp", "double", 0, s.mul(a, half))
    far = s.mul(s.mul(half, e), e)
    return s.copysign(s.select(s.compare("fcmp ogt", a, s.like(a, 40.0)), far, near), x)


def _cosh(s: Scalars, x: Value) -> Value:
    a, half = s.unary("fabs", x), s.like(x, 0.5)
    e = s.b.call("exp", "double", 0, a)
    near = s.add(s.mul(half, e), _div(s, half, e))
    root = s.b.call("exp", "double", 0, s.mul(a, half))
    far = s.mul(s.mul(half, root), root)
    return s.select(s.compare("fcmp ogt", a, s.like(a, 40.0)), far, near)


def _tanh(s: Scalars, x: Value) -> Value:
    a, two = s.unary("fabs", x), s.like(x, 2.0)
    t = s.b.call("expm1", "double", 0, s.add(a, a))
    small = _div(s, t, s.add(t, two))
    large = s.sub(s.like(x, 1.0), _div(s, two, s.add(t, two)))
    return s.copysign(s.select(s.compare("fcmp olt", a, s.like(a, 0.55)), small, large), x)


# ---------------------------------------------------------------- logarithms


def _split(s: Scalars, x: Value) -> tuple[Value, Value]:
    """(f, n) with x = (1 + f) * 2^n and 1 + f between sqrt(1/2) and sqrt(2), for positive finite x."""
    tiny = s.compare("fcmp olt", x, s.like(x, 2.0**-1022))
    raw = s.bits(s.select(tiny, s.mul(x, s.like(x, 2.0**54)), x))
    root = 0x3FE6A09E667F3BCD  # sqrt(1/2): the exponent is counted from there
    n = s.binary("ashr", s.binary("sub", raw, s.like(raw, root)), s.like(raw, 52))
    m = s.from_bits(s.binary("sub", raw, s.binary("shl", n, s.like(raw, 52))))
    n = s.select(tiny, s.binary("sub", n, s.like(n, 54)), n)
    return s.sub(m, s.like(x, 1.0)), s.convert("sitofp", n, "double")


def _log_ends(s: Scalars, x: Value, inside: Value) -> Value:
    """The logarithm where x is no positive finite number."""
    made = s.select(s.compare("fcmp olt", x, s.like(x, 0.0)), s.like(x, math.nan), inside)
    made = s.select(s.compare("fcmp oeq", x, s.like(x, 0.0)), s.like(x, -math.inf), made)
    return s.select(s.compare("fcmp ueq", x, s.like(x, math.inf)), x, made)


def _log(s: Scalars, x: Value) -> Value:
    f, k = _split(s, x)
    r = _div(s, f, s.add(f, s.like(f, 2.0)))
    z = s.mul(r, r)
    tail = s.mul(z, polynomial(s, z, _LOG))
    half = s.mul(s.mul(f, f), s.like(f, 0.5))
    low = s.fma(r, s.add(half, tail), s.mul(k, s.like(k, LN2_LOW)))
    inside = s.sub(s.mul(k, s.like(k, LN2_HIGH)), s.sub(s.sub(half, low), f))
    return _log_ends(s, x, inside)


def _log_pair(s: Scalars, x: Value) -> DoublePair:
    """log(x) to some 65 bits, for positive finite x."""
    f, k = _split(s, x)
    below, below_low = _two_sum(s, s.like(f, 2.0), f)
    high = _div(s, f, below)
    rest = s.sub(s.fma(_neg(s, high), below, f), s.mul(high, below_low))
    r = _fast_two_sum(s, high, _div(s, rest, below))
    z = _two_product(s, r, r)
    inner = s.fma(z[0], polynomial(s, z[0], _LOG_TAIL), s.like(f, 0.4))
    product = _two_product(s, z, (inner, s.like(f, 2.220446049250313e-17)))  # 0.4 is that much less
    q = _fast_two_sum(s, s.like(f, 2.0 / 3.0), product[0])
    q = q[0], s.add(q[1], s.add(product[1], s.like(f, 3.700743415417188e-17)))
    cubed = _two_product(s, _two_product(s, r, z), q)
    twice = s.add(r[0], r[0]), s.add(r[1], r[1])
    high, low = _two_sum(s, twice[0], cubed[0])
    low = s.add(low, s.add(twice[1], cubed[1]))
    top, more = _two_sum(s, s.mul(k, s.like(k, LN2_HIGH)), high)
    low = s.add(s.fma(k, s.like(k, LN2_LOW), low), more)
    return _fast_two_sum(s, top, low)


def _log1p(s: Scalars, x: Value) -> Value:
    one = s.like(x, 1.0)
    u = s.add(x, one)
    # what 1 + x lost, to first order
    lost = s.sub(x, s.sub(u, one))
    lost = s.select(s.compare("fcmp ogt", s.unary("fabs", x), s.like(x, 2.0**53)), s.like(x, 0.0), lost)
    made = s.add(s.b.call("log", "double", 0, u), _div(s, lost, u))
    made = s.select(s.compare("fcmp oeq", u, s.like(x, 0.0)), s.like(x, -math.inf), made)
    return s.select(s.compare("fcmp oeq", u, one), x, made)


def _asinh(s: Scalars, x: Value) -> Value:
    a, one = s.unary("fabs", x), s.like(x, 1.0)
    square = s.mul(a, a)
    root = s.unary("sqrt", s.add(square, one))
    near = s.b.call("log1p", "double", 0, s.add(a, _div(s, square, s.add(one, root))))
    middle = s.b.call("log", "double", 0, s.add(s.add(a, a), _div(s, one, s.add(root, a))))
    far = s.add(s.b.call("log", "double", 0, a), s.like(x, math.log(2.0)))
    made = s.select(s.compare("fcmp ogt", a, s.like(a, 2.0)), middle, near)
    return s.copysign(s.select(s.compare("fcmp ogt", a, s.like(a, 2.0**28)), far, made), x)


def _acosh(s: Scalars, x: Value) -> Value:
    one = s.like(x, 1.0)
    t = s.sub(x, one)
    near = s.b.call("log1p", "double", 0, s.add(t, s.unary("sqrt", s.fma(t, t, s.add(t, t)))))
    root = s.unary("sqrt", s.sub(s.mul(x, x), one))
    middle = s.b.call("log", "double", 0, s.sub(s.add(x, x), _div(s, one, s.add(x, root))))
    far = s.add(s.b.call("log", "double", 0, x), s.like(x, math.log(2.0)))
    made = s.select(s.compare("fcmp ogt", x, s.like(x, 2.0)), middle, near)
    return s.select(s.compare("fcmp ogt", x, s.like(x, 2.0**28)), far, made)


def _atanh(s: Scalars, x: Value) -> Value:
    a, one = s.unary("fabs", x), s.like(x, 1.0)
    twice = s.add(a, a)
    near = s.add(twice, _div(s, s.mul(twice, a), s.sub(one, a)))
    far = _div(s, twice, s.sub(one, a))
    t = s.select(s.compare("fcmp olt", a, s.like(a, 0.5)), near, far)
    return s.copysign(s.mul(s.like(x, 0.5), s.b.call("log1p", "double", 0, t)), x)


# ---------------------------------------------------------------- powers


def _pow(s: Scalars, x: Value, y: Value) -> Value:
    zero, one, inf = s.like(x, 0.0), s.like(x, 1.0), s.like(x, math.inf)
    a = s.unary("fabs", x)
    inside = s.both(s.compare("fcmp ogt", a, zero), s.compare("fcmp olt", a, inf))
    high, low = _log_pair(s, s.select(inside, a, one))
    high = s.select(inside, high, s.select(s.compare("fcmp oeq", a, inf), inf, s.like(x, -math.inf)))
    product = s.mul(y, high)
    rest = s.fma(y, low, s.fma(y, high, _neg(s, product)))
    plain = s.compare("fcmp olt", s.unary("fabs", product), s.like(x, 800.0))
    rest = s.select(plain, rest, zero)
    size = _scaled_exp(s, _defined(s, _most(s, _least(s, product, 711.0), -746.0)), rest)
    # 0 ** y, inf ** y and x ** inf are infinite or 0 by the sign of the product, as it is
    return _pow_signs(s, x, y, size, a)


def _pow_signs(s: Scalars, x: Value, y: Value, size: Value, a: Value) -> Value:
    """x ** y of |x| ** y: signs, and what is not a number."""
    zero, one = s.like(x, 0.0), s.like(x, 1.0)
    far = s.compare("fcmp oge", s.unary("fabs", y), s.like(y, 2.0**53))  # even all of them
    low = s.select(far, zero, _defined(s, y))
    whole = s.compare("fcmp oeq", low, s.unary("trunc", low))
    bit = s.binary("and", _whole(s, low), s.b.integer(1, "i64"))
    odd = s.both(whole, s.compare("icmp ne", bit, s.b.integer(0, "i64")))
    sign = s.compare("icmp slt", s.bits(x), s.b.integer(0, "i64"))
    made = s.select(s.both(sign, odd), _neg(s, size), size)
    broken = s.both(s.compare("fcmp olt", x, zero), s.compare("fcmp ogt", x, s.like(x, -math.inf)))
    broken = s.both(broken, s.binary("xor", whole, s.b.integer(1, "i1")))
    made = s.select(broken, s.like(x, math.nan), made)
    made = s.select(s.compare("fcmp uno", x, y), s.like(x, math.nan), made)
    endless = s.compare("fcmp oeq", s.unary("fabs", y), s.like(y, math.inf))
    made = s.select(s.both(s.compare("fcmp oeq", a, one), endless), one, made)
    made = s.select(s.compare("fcmp oeq", x, one), one, made)
    return s.select(s.compare("fcmp oeq", y, zero), one, made)


# ---------------------------------------------------------------- inverses of sin, cos, tan


def _atan(s: Scalars, x: Value) -> Value:
    a, one = s.unary("fabs", x), s.like(x, 1.0)
    far = s.compare("fcmp ogt", a, s.like(a, 1.0 + math.sqrt(2.0)))
    middle = s.compare("fcmp ogt", a, s.like(a, math.sqrt(2.0) - 1.0))
    between = _div(s, s.sub(a, one), s.add(a, one))
    t = s.select(far, _div(s, s.like(a, -1.0), a), s.select(middle, between, a))
    z = s.mul(t, t)

    def base(at_far: float, at_middle: float) -> Value:
        return s.select(far, s.like(a, at_far), s.select(middle, s.like(a, at_middle), s.like(a, 0.0)))

    low = s.fma(s.mul(t, z), polynomial(s, z, _ATAN), base(PIO2_LOW, PIO2_LOW / 2))
    return s.copysign(s.add(base(PIO2_HIGH, PIO2_HIGH / 2), s.add(t, low)), x)


def _asin_parts(s: Scalars, a: Value) -> tuple[Value, Value, Value]:
    """(small, root, low): whether a < 1/2; the root of (1-a)/2; and what asin(r) has beyond r, of r = a where
    it is small, else of the root."""
    small = s.compare("fcmp olt", a, s.like(a, 0.5))
    half = s.mul(s.sub(s.like(a, 1.0), a), s.like(a, 0.5))
    root = s.unary("sqrt", half)
    z = s.select(small, s.mul(a, a), half)
    return small, root, s.mul(s.mul(s.select(small, a, root), z), polynomial(s, z, _ASIN))


def _asin(s: Scalars, x: Value) -> Value:
    a = s.unary("fabs", x)
    small, root, low = _asin_parts(s, a)
    far = s.sub(s.like(a, PIO2_HIGH), s.sub(s.add(s.add(root, root), s.add(low, low)), s.like(a, PIO2_LOW)))
    return s.copysign(s.select(small, s.add(a, low), far), x)


def _acos(s: Scalars, x: Value) -> Value:
    a, zero = s.unary("fabs", x), s.like(x, 0.0)
    small, root, low = _asin_parts(s, a)
    signed = s.copysign(low, x)
    middle = s.sub(s.like(x, PIO2_HIGH), s.add(x, s.sub(signed, s.like(x, PIO2_LOW))))
    # what the root lost, to first order
    half = s.mul(s.sub(s.like(a, 1.0), a), s.like(a, 0.5))
    lost = _div(s, s.fma(_neg(s, root), root, half), s.add(root, root))
    lost = s.select(s.compare("fcmp ogt", root, zero), lost, s.mul(root, zero))
    one = s.add(root, s.add(low, lost))
    twice = s.add(one, one)
    back = s.sub(s.like(x, 2 * PIO2_HIGH), s.sub(twice, s.like(x, 2 * PIO2_LOW)))
    return s.select(small, middle, s.select(s.compare("fcmp olt", x, zero), back, twice))


# ---------------------------------------------------------------- erf and remainders


def _erf(s: Scalars, x: Value) -> Value:
    a, one = s.unary("fabs", x), s.like(x, 1.0)
    z = s.mul(x, x)
    near = s.fma(x, polynomial(s, z, _ERF), x)
    at, two = _least(s, a, 6.0), s.like(x, 2.0)
    t = _div(s, s.sub(at, two), s.add(at, two))
    rest = s.mul(s.b.call("exp", "double", 0, _neg(s, s.mul(at, at))), polynomial(s, t, _ERFC))
    far = s.copysign(s.sub(one, rest), x)
    return s.select(s.compare("fcmp olt", a, one), near, far)


def _fmod(s: Scalars, x: Value, y: Value) -> Value:
    """x - n*y with the sign of x, exact: the mantissa of x, shifted by 11 bits a time, modulo that of y."""
    mask, one = s.b.integer((1 << 52) - 1), s.b.integer(1)

    def parts(v: Value) -> tuple[Value, Value]:
        """(mantissa, exponent from 1 on) of |v|."""
        raw = s.bits(s.unary("fabs", v))
        e, m = s.binary("lshr", raw, s.b.integer(52)), s.binary("and", raw, mask)
        normal = s.compare("icmp ne", e, s.b.integer(0))
        m = s.select(normal, s.binary("or", m, s.b.integer(1 << 52)), m)
        return m, s.select(normal, e, one)

    (mx, ex), (my, ey) = parts(x), parts(y)
    my = s.select(s.compare("icmp eq", my, s.b.integer(0)), one, my)
    gap = s.binary("sub", ex, ey)
    gap = s.select(s.compare("icmp slt", gap, s.b.integer(0)), s.b.integer(0), gap)
    rest = s.binary("urem", mx, my)
    steps, last = s.binary("udiv", gap, s.b.integer(11)), s.binary("urem", gap, s.b.integer(11))

    def step(i: Value, carried: list[Value]) -> list[Value]:
        return [s.binary("urem", s.binary("shl", carried[0], s.b.integer(11)), my)]

    (rest,) = s.b.loop(steps, [rest], step, False)
    rest = s.binary("urem", s.binary("shl", rest, last), my)
    # the rest counts in units of y's last place, 2^(ey - 1075): exact, also where it is subnormal
    half = s.binary("ashr", s.binary("sub", ey, s.b.integer(1075)), one)
    other = s.binary("sub", s.binary("sub", ey, s.b.integer(1075)), half)
    size = s.convert("uitofp", rest, "double")
    size = s.mul(s.mul(size, _power_of_two(s, half)), _power_of_two(s, other))
    made = s.copysign(size, x)
    made = s.select(s.compare("fcmp olt", s.unary("fabs", x), s.unary("fabs", y)), x, made)
    bad = s.binary("or", s.compare("fcmp ueq", s.unary("fabs", x), s.like(x, math.inf)),
                   s.compare("fcmp ueq", y, s.like(y, 0.0)))  # fmt: skip
    return s.select(bad, s.like(x, math.nan), made)


_DOUBLE: Sequence[tuple[str, Function, int]] = (
    ("exp", _exp, 1), ("expm1", _expm1, 1), ("log", _log, 1), ("log1p", _log1p, 1), ("pow", _pow, 2),
    ("sinh", _sinh, 1), ("cosh", _cosh, 1), ("tanh", _tanh, 1), ("asinh", _asinh, 1), ("acosh", _acosh, 1),
    ("atanh", _atanh, 1), ("sin", sin, 1), ("cos", cos, 1), ("tan", tan, 1), ("asin", _asin, 1),
    ("acos", _acos, 1), ("atan", _atan, 1), ("erf", _erf, 1), ("fmod", _fmod, 2),
)  # fmt: skip
LIBM: Mapping[str, tuple[Function, int]] = MappingProxyType(
    {name + suffix: (make, n) for name, make, n in _DOUBLE for suffix in ("", "f")}
)
"""Name -> what makes it for double, and how many arguments it has. NAMEf is the same for float."""
