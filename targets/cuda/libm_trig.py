"""sin, cos and tan of a double as LLVM IR: the argument is reduced exactly, whatever its size."""

from __future__ import annotations

import math
from typing import TypeAlias

from smelt.targets.llvm.builder import Value
from smelt.targets.llvm.math import polynomial
from smelt.targets.llvm.scalar import Scalars

# pi/2 in three parts; the first two have 33 bits, so that their products with n < 2^20 are exact
_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_PIO2_HIGH, _PIO2_LOW = 1.5707963267948966, 6.123233995736766e-17
_LARGE = 2.0**19
"""From here on the argument is multiplied by as many bits of 2/pi as matter."""
# sin(r) = r + r^3 * sum(r^2), cos(r) = 1 - r^2/2 + r^4 * sum(r^2), |r| <= pi/4: 1e-20, 7e-22
_SIN = (
    -0.16666666666666666, 0.008333333333333331, -0.0001984126984126506, 2.7557319219335453e-06,
    -2.5052106231157904e-08, 1.605853141458901e-10, -7.586685070091267e-13,
)  # fmt: skip
_COS = (
    0.041666666666666664, -0.0013888888888888887, 2.4801587301584645e-05, -2.755731922140076e-07,
    2.0876755790363397e-09, -1.1470460773969325e-11, 4.7458652037874553e-14,
)  # fmt: skip
# 64 zeros, then the bits of 2/pi
_TWO_OVER_PI = (
    0x0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0,
    0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4,
    0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
    0xA9E391615EE61B08,
)  # fmt: skip
_TABLE = "smelt.two_over_pi"

Reduced: TypeAlias = tuple[Value, Value, Value]
"""(n, r, rest): x = n*pi/2 + r + rest, |r| <= pi/4 or a little more; n an i64, of which two bits matter."""


def _reduce(s: Scalars, x: Value) -> Reduced:
    large = s.compare("fcmp uge", s.unary("fabs", x), s.like(x, _LARGE))
    n, r, rest = s.b.branch(large, lambda: list(_exact(s, x)), lambda: list(_near(s, x)))
    return n, r, rest


def _near(s: Scalars, x: Value) -> Reduced:
    k = s.unary("roundeven", s.mul(x, s.like(x, 2.0 / math.pi)))
    t = s.sub(x, s.mul(k, s.like(x, _PARTS[0])))
    w = s.mul(k, s.like(x, _PARTS[1]))
    high = s.sub(t, w)
    back = s.add(high, w)
    lost = s.add(s.sub(t, back), s.sub(s.sub(back, high), w))
    low = s.fma(k, s.like(x, -_PARTS[2]), lost)
    r = s.add(high, low)
    return s.convert("fptosi", k, "i64"), r, s.add(s.sub(high, r), low)


def _exact(s: Scalars, x: Value) -> Reduced:
    """x = m * 2^e; m times 192 bits of 2/pi, from those on that are worth less than 4 turns of pi/2."""
    s.b.declared.setdefault(
        _TABLE,
        f"@{_TABLE} = internal addrspace(1) constant [{len(_TWO_OVER_PI)} x i64] "
        f"[{', '.join(f'i64 {w}' for w in _TWO_OVER_PI)}], align 16",
    )
    raw = s.bits(s.unary("fabs", x))
    e = s.binary("lshr", raw, s.b.integer(52))
    m = s.binary("or", s.binary("and", raw, s.b.integer((1 << 52) - 1)), s.b.integer(1 << 52))
    at = s.binary("sub", e, s.b.integer(1075 + 2 - 64))  # the first bit in the table
    at = s.b.intrinsic("smin", "i64", 0, at, s.b.integer(1040))  # infinities and NaN
    word, shift = s.binary("lshr", at, s.b.integer(6)), s.binary("and", at, s.b.integer(63))
    words = [_word(s, s.binary("add", word, s.b.integer(i))) for i in range(4)]
    a, b, c = (s.b.intrinsic("fshl", "i64", 0, words[i], words[i + 1], shift) for i in range(3))
    low = _wide_product(s, m, c)
    middle = s.binary("add", _wide_product(s, m, b), s.binary("lshr", low, _wide(s, 64)))
    carry = s.convert("trunc", s.binary("lshr", middle, _wide(s, 64)), "i64")
    top = s.binary("add", carry, s.binary("mul", m, a))
    return _angle(s, x, top, s.convert("trunc", middle, "i64"), s.convert("trunc", low, "i64"))


def _wide(s: Scalars, n: int) -> Value:
    return s.b.integer(n, "i128")


def _wide_product(s: Scalars, a: Value, b: Value) -> Value:
    return s.binary("mul", s.convert("zext", a, "i128"), s.convert("zext", b, "i128"))


def _word(s: Scalars, i: Value) -> Value:
    place = s.b.pure(f"getelementptr i64, ptr addrspace(1) @{_TABLE}, {i.typed}", "ptr", 0, i)
    return s.b.pure(f"load i64, ptr addrspace(1) {place.text}, align 8", "i64", 0, place)


def _angle(s: Scalars, x: Value, top: Value, middle: Value, low: Value) -> Reduced:
    """The 192 bits of a number of quarter turns, of which the first two are whole."""
    two = s.b.integer(2)
    turns = s.binary("lshr", top, s.b.integer(62))
    high = s.b.intrinsic("fshl", "i64", 0, top, middle, two)
    rest = s.b.intrinsic("fshl", "i64", 0, middle, low, two)
    # above a half: one turn more, less the difference
    over = s.binary("ashr", high, s.b.integer(63))
    n = s.binary("sub", turns, over)
    high, rest = s.binary("xor", high, over), s.binary("xor", rest, over)
    zeros = s.b.pure(f"call i64 @llvm.ctlz.i64({high.typed}, i1 false)", "i64", 0, high)
    s.b.declare("llvm.ctlz.i64", "i64", ["i64", "i1 immarg"], "nounwind memory(none)")
    h = s.b.intrinsic("fshl", "i64", 0, high, rest, zeros)
    less = s.b.intrinsic("fshl", "i64", 0, rest, s.b.integer(0), zeros)
    first = s.convert("uitofp", s.binary("lshr", h, s.b.integer(11)), "double")
    last = s.binary("or", s.binary("shl", h, s.b.integer(53)), s.binary("lshr", less, s.b.integer(11)))
    scale = s.from_bits(s.binary("shl", s.binary("sub", s.b.integer(1023 - 53), zeros), s.b.integer(52)))
    fine = s.mul(s.convert("uitofp", last, "double"), s.mul(scale, s.like(first, 2.0**-64)))
    coarse = s.mul(first, scale)
    r = s.mul(coarse, s.like(coarse, _PIO2_HIGH))
    lost = s.fma(coarse, s.like(coarse, _PIO2_HIGH), s.b.pure(f"fneg {r.typed}", "double", 0, r))
    tail = s.fma(coarse, s.like(coarse, _PIO2_LOW), s.fma(fine, s.like(fine, _PIO2_HIGH), lost))
    flip = s.binary("xor", over, s.binary("ashr", s.bits(x), s.b.integer(63)))
    sign = s.binary("and", flip, s.b.integer(-(1 << 63)))

    def signed(v: Value) -> Value:
        return s.from_bits(s.binary("xor", s.bits(v), sign))

    turn_back = s.compare("icmp slt", s.bits(x), s.b.integer(0))
    n = s.select(turn_back, s.binary("sub", s.b.integer(0), n), n)
    return n, signed(r), signed(tail)


def _sine(s: Scalars, r: Value, rest: Value) -> Value:
    """sin(r + rest)."""
    z = s.mul(r, r)
    v = s.mul(z, r)
    tail = polynomial(s, z, _SIN[1:])
    inner = s.sub(s.mul(z, s.sub(s.mul(s.like(r, 0.5), rest), s.mul(v, tail))), rest)
    return s.sub(r, s.sub(inner, s.mul(v, s.like(v, _SIN[0]))))


def _cosine(s: Scalars, r: Value, rest: Value) -> Value:
    """cos(r + rest)."""
    z, one = s.mul(r, r), s.like(r, 1.0)
    half = s.mul(s.like(r, 0.5), z)
    w = s.sub(one, half)
    lost = s.sub(s.sub(one, w), half)
    return s.add(w, s.add(lost, s.sub(s.mul(s.mul(z, z), polynomial(s, z, _COS)), s.mul(r, rest))))


def _bit(s: Scalars, n: Value, bit: int) -> Value:
    return s.compare("icmp ne", s.binary("and", n, s.b.integer(bit)), s.b.integer(0))


def _ends(s: Scalars, x: Value, inside: Value) -> Value:
    """NaN for infinities and NaN."""
    far = s.compare("fcmp ueq", s.unary("fabs", x), s.like(x, math.inf))
    return s.select(far, s.like(x, math.nan), inside)


def _quarter(s: Scalars, x: Value, quarters: int) -> Value:
    """sin(x + quarters * pi/2)."""
    n, r, rest = _reduce(s, x)
    n = s.binary("add", n, s.b.integer(quarters))
    made = s.select(_bit(s, n, 1), _cosine(s, r, rest), _sine(s, r, rest))
    made = s.select(_bit(s, n, 2), s.b.pure(f"fneg {made.typed}", "double", 0, made), made)
    return _ends(s, x, made)


def sin(s: Scalars, x: Value) -> Value:
    """sin(x)."""
    return s.select(s.compare("fcmp oeq", x, s.like(x, 0.0)), x, _quarter(s, x, 0))


def cos(s: Scalars, x: Value) -> Value:
    """cos(x)."""
    return _quarter(s, x, 1)


def tan(s: Scalars, x: Value) -> Value:
    """tan(x)."""
    n, r, rest = _reduce(s, x)
    sine, cosine = _sine(s, r, rest), _cosine(s, r, rest)
    odd = _bit(s, n, 1)
    minus = s.b.pure(f"fneg {cosine.typed}", "double", 0, cosine)
    made = s.binary("fdiv", s.select(odd, minus, sine), s.select(odd, sine, cosine))
    return s.select(s.compare("fcmp oeq", x, s.like(x, 0.0)), x, _ends(s, x, made))
