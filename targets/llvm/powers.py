"""Bases and exponents in, powers out: small exponents by multiplication, others by a logarithm in f64.

The coefficients are fits as those of math.py, with the bound of the error before rounding beside each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.targets.llvm.builder import Value
from smelt.targets.llvm.math import any_lane, libm, polynomial
from smelt.targets.llvm.scalar import Scalars

# log2((1+t)/(1-t)) = t * sum(t^2), the quotient in [sqrt(1/2), sqrt(2)]: 4.3e-12 relative
_LOG2 = (
    2.8853900817901418, 0.96179667326640547, 0.57708360031163821, 0.41167174676199254, 0.34074896504079798,
)  # fmt: skip
# 2^r = sum(r), |r| <= 1/2: 1.9e-9 relative
_EXP2 = (
    1.0000000005542485, 0.69314720573699144, 0.24022646890025808, 0.05550328777410405,
    0.0096184890229541862, 0.0013399931076232318, 0.00015345794292342801,
)  # fmt: skip
ROUND_DOUBLE = 6755399441055744.0
"""1.5 * 2^52: adding it leaves the nearest integer in the low bits."""
ENDLESS = 1e300
"""For the logarithms of 0 and infinity: times any exponent but 0 still beyond all results."""


def power(s: Scalars, a: Value, b: Value) -> Value:
    """a**b: 1 ulp of floats, libm's of doubles. An exponent that only a run knows may be 2 all over, which
    costs a product."""
    if b.const is not None and b.const in _POWERS:
        return _POWERS[float(b.const)](s, a)
    if a.elem != "float":
        return libm("pow")(s, a, b)
    if b.const is not None:
        return _of_floats(s, a, b)
    other = any_lane(s, s.compare("fcmp une", b, s.like(b, 2.0)))
    return s.b.branch(other, lambda: [_of_floats(s, a, b)], lambda: [_square(s, a)])[0]


def _of_floats(s: Scalars, a: Value, b: Value) -> Value:
    """|a|**b by f64, then the sign and the cases that C names."""
    size, one, zero = s.unary("fabs", a), s.like(a, 1.0), s.like(a, 0.0)
    y = s.convert("fptrunc", _exp2(s, s.mul(_log2(s, size), s.convert("fpext", b, "double"))), "float")
    whole = s.compare("fcmp oeq", s.rounded("floor", b), b)
    half = s.mul(b, s.like(b, 0.5))
    odd = s.both(whole, s.compare("fcmp one", s.rounded("floor", half), half))
    below = s.compare("icmp slt", s.bits(a), s.like(s.bits(a), 0))
    y = s.select(s.both(below, odd), s.copysign(y, a), y)
    # a negative number to the power of a fraction; -0 and -inf have one
    negative = s.both(s.compare("fcmp olt", a, zero), s.compare("fcmp one", size, s.like(a, math.inf)))
    broken = s.both(negative, s.compare("fcmp one", s.rounded("floor", b), b))
    y = s.select(broken, s.like(a, math.nan), y)
    # 1 to any power, anything to the power of 0, and -1 to that of an infinity; NaN included
    y = s.select(s.compare("fcmp oeq", b, zero), one, s.select(s.compare("fcmp oeq", a, one), one, y))
    endless = s.compare("fcmp oeq", s.unary("fabs", b), s.like(b, math.inf))
    return s.select(s.both(s.compare("fcmp oeq", a, s.like(a, -1.0)), endless), one, y)


def _log2(s: Scalars, x: Value) -> Value:
    """The logarithm of floats from 0 on as doubles, relative error 1e-11."""
    tiny = s.compare("fcmp olt", x, s.like(x, 2.0**-126))
    raw = s.bits(s.select(tiny, s.mul(x, s.like(x, 2.0**23)), x))
    # 0x3f3504f3 is sqrt(1/2): the exponent is counted from there
    e = s.binary("ashr", s.binary("sub", raw, s.like(raw, 0x3F3504F3)), s.like(raw, 23))
    m = s.convert("fpext", s.from_bits(s.binary("sub", raw, s.binary("shl", e, s.like(raw, 23)))), "double")
    e = s.select(tiny, s.binary("sub", e, s.like(e, 23)), e)
    one = s.like(m, 1.0)
    t = s.binary("fdiv", s.sub(m, one), s.add(m, one))
    y = s.fma(t, polynomial(s, s.mul(t, t), _LOG2), s.convert("sitofp", e, "double"))
    wide = s.convert("fpext", x, "double")
    y = s.select(s.compare("fcmp oeq", wide, s.like(wide, 0.0)), s.like(y, -ENDLESS), y)
    y = s.select(s.compare("fcmp oeq", wide, s.like(wide, math.inf)), s.like(y, ENDLESS), y)
    return s.select(s.compare("fcmp uno", wide, wide), wide, y)


def _exp2(s: Scalars, t: Value) -> Value:
    """2^t of doubles where that is a float; infinity and 0 beyond floats."""
    low, high = s.like(t, -200.0), s.like(t, 200.0)
    x = s.select(s.compare("fcmp ogt", t, high), high, s.select(s.compare("fcmp olt", t, low), low, t))
    shifted = s.add(x, s.like(x, ROUND_DOUBLE))
    p = polynomial(s, s.sub(x, s.sub(shifted, s.like(x, ROUND_DOUBLE))), _EXP2)
    raw = s.bits(shifted)
    scaled = s.from_bits(s.binary("add", s.bits(p), s.binary("shl", raw, s.like(raw, 52))))
    return s.select(s.compare("fcmp uno", t, t), t, scaled)


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
