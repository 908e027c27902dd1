"""Integers of 64 bits as pairs of 32 in, the same out: arithmetic for devices without shaderInt64.

All of it wraps, as 64-bit integers do. `signed` says how the bits are read where that matters.
"""

from __future__ import annotations

from smelt.targets.vulkan.code import V


def extend(a: V, signed: bool) -> V:
    """32 bits as 64."""
    c = a.code
    return c.wide(a, c.pure("ShiftRightArithmetic", "u", a, c.u(31)) if signed else c.u(0))


def add(a: V, b: V) -> V:
    low = a.low + b.low
    return a.code.wide(low, a.high + b.high + carry(low.below(a.low)))


def carry(condition: V) -> V:
    return condition.code.select(condition, condition.code.u(1), 0)


def sub(a: V, b: V) -> V:
    return a.code.wide(a.low - b.low, a.high - b.high - carry(a.low.below(b.low)))


def neg(a: V) -> V:
    return sub(a.like(0), a)


def product(a: V, b: V) -> V:
    """The 64 bits of the product of two numbers of 32 bits without sign."""
    both = a.code.pure("UMulExtended", "p", a, b)
    return a.code.wide(both.low, both.high)


def mul(a: V, b: V) -> V:
    whole = product(a.low, b.low)
    return a.code.wide(whole.low, whole.high + a.low * b.high + a.high * b.low)


def equals(a: V, b: V) -> V:
    return a.low.equals(b.low) & a.high.equals(b.high)


def less(a: V, b: V, signed: bool) -> V:
    first = a.high < b.high if signed else a.high.below(b.high)
    return first | (a.high.equals(b.high) & a.low.below(b.low))


def is_zero(a: V) -> V:
    return (a.low | a.high).equals(0)


def is_negative(a: V) -> V:
    return a.high < 0


def bits(fn: str, a: V, b: V) -> V:
    """and, or, xor."""
    return a.code.pure({"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}[fn], "w", a, b)


def invert(a: V) -> V:
    return a.code.pure("Not", "w", a)


def _shl(a: V, n: V) -> V:
    """a << n, n from 0 to 63."""
    c, part = a.code, n & 31
    # a shift by 32 has no value: by 1 and then by the rest has
    across = (a.low >> 1) >> (31 - part)
    near = c.wide(a.low << part, (a.high << part) | across)
    return c.select(n.below(32), near, c.wide(c.u(0), a.low << part))


def _shr(a: V, n: V) -> V:
    c, part = a.code, n & 31
    across = (a.high << 1) << (31 - part)
    near = c.wide((a.low >> part) | across, a.high >> part)
    return c.select(n.below(32), near, c.wide(a.high >> part, c.u(0)))


def shift(fn: str, a: V, n: V) -> V:
    """shl or shr by a number of 32 bits; 0 from 64 on."""
    moved = a.code.call(f"wide_{fn}", "w", _shl if fn == "shl" else _shr, a, n)
    return a.code.select(n.below(64), moved, 0)


def leading_zeros(a: V) -> V:
    """Of 32 bits, 32 of 0."""
    return 31 - a.code.glsl("FindUMsb", "u", a)


def _divided(a: V, b: V, quotient: bool) -> V:
    """a / b or a % b without sign; b is not 0."""
    c = a.code
    small = (a.high | b.high).equals(0)

    def short() -> V:
        safe = c.select(b.low.equals(0), 1, b.low)
        return c.wide(c.pure("UDiv" if quotient else "UMod", "u", a.low, safe), c.u(0))

    def long() -> V:
        rest, left, q = c.variable("w", 0), c.variable("w", a), c.variable("w", 0)
        with c.count(0, c.u(16), rounds=17):
            for _ in range(4):  # written out: rounds are dear
                r, top = rest.get(), left.get()
                out = r.high >> 31  # a rest of 65 bits is at least b
                r = c.wide((r.low << 1) | (top.high >> 31), (r.high << 1) | (r.low >> 31))
                left.set(c.wide(top.low << 1, (top.high << 1) | (top.low >> 31)))
                fits = out.differs(0) | ~less(r, b, False)
                rest.set(c.select(fits, sub(r, b), r))
                old = q.get()
                q.set(c.wide((old.low << 1) | carry(fits), (old.high << 1) | (old.low >> 31)))
        return q.get() if quotient else rest.get()

    return c.choose(small, short, long)


def udiv(a: V, b: V) -> V:
    return a.code.call("wide_udiv", "w", lambda x, y: _divided(x, y, True), a, b)


def umod(a: V, b: V) -> V:
    return a.code.call("wide_umod", "w", lambda x, y: _divided(x, y, False), a, b)


def absolute(a: V) -> V:
    return a.code.select(is_negative(a), neg(a), a)


def sdiv(a: V, b: V) -> V:
    """Truncating; b is not 0. The lowest number by -1 wraps."""
    q = udiv(absolute(a), absolute(b))
    return a.code.select((a.high ^ b.high) < 0, neg(q), q)


def srem(a: V, b: V) -> V:
    """The remainder of that."""
    r = umod(absolute(a), absolute(b))
    return a.code.select(is_negative(a), neg(r), r)


def floordiv(a: V, b: V) -> V:
    """Towards minus infinity; of a divisor of 0, anything."""
    c = a.code
    b = c.select(is_zero(b), 1, b)
    q = sdiv(a, b)
    off = ((a.high ^ b.high) < 0) & ~equals(mul(q, b), a)
    return c.select(off, sub(q, a.like(1)), q)


def floormod(a: V, b: V) -> V:
    """The remainder of that."""
    return sub(a, mul(floordiv(a, b), b))


def _to_float(a: V, signed: bool) -> V:
    """The nearest float: all 64 bits shifted to the top, the lower half as one bit that decides ties."""
    c = a.code
    size = absolute(a) if signed else a
    zeros = c.select(size.high.equals(0), leading_zeros(size.low) + 32, leading_zeros(size.high))
    top = shift("shl", size, zeros)
    word = top.high | carry(top.low.differs(0))
    scale = ((127 + 32 - zeros) << 23).as_float()
    value = c.pure("ConvertUToF", "f", word) * scale
    value = c.select(is_zero(size), 0.0, value)
    return c.select(is_negative(a), -value, value) if signed else value


def to_float(a: V, kind: str, signed: bool) -> V:
    c = a.code
    if kind == "f":
        return c.call(f"wide_to_float_{signed}", "f", lambda x: _to_float(x, signed), a)
    high = c.pure("ConvertSToF" if signed else "ConvertUToF", "d", a.high)
    return high * 4294967296.0 + c.pure("ConvertUToF", "d", a.low)


def _from_float(x: V, signed: bool) -> V:
    """Towards 0, saturating, NaN is 0; from the bits."""
    c = x.code
    if x.kind == "f":
        raw = x.bits()
        negative, exponent, point = raw < 0, (raw >> 23) & 0xFF, 127 + 23
        mantissa = extend((raw & 0x7FFFFF) | 0x800000, False)
        nan = (raw & 0x7FFFFFFF) > 0x7F800000
    else:
        pair = x.bits()
        negative, exponent, point = pair.high < 0, (pair.high >> 20) & 0x7FF, 1023 + 52
        mantissa = c.wide(pair.low, (pair.high & 0xFFFFF) | 0x100000)
        nan = ((pair.high & 0x7FFFFFFF) | carry(pair.low.differs(0))) > 0x7FF00000
    up = exponent - point
    bias = 127 if x.kind == "f" else 1023
    left, right = shift("shl", mantissa, up), shift("shr", mantissa, 0 - up)
    size = c.select(up < 0, right, left)
    size = c.select(exponent < bias, 0, size)
    if signed:
        value = c.select(negative, neg(size), size)
        ends = c.select(negative, x.code.constant("w", 1 << 63), (1 << 63) - 1)
        value = c.select(exponent >= bias + 63, ends, value)
    else:
        value = c.select(exponent >= bias + 64, (1 << 64) - 1, size)
        value = c.select(negative, 0, value)
    return c.select(nan, 0, value)


def from_float(x: V, signed: bool) -> V:
    name = f"wide_from_{x.kind}_{signed}"
    return x.code.call(name, "w", lambda v: _from_float(v, signed), x)
