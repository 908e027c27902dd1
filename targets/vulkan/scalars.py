"""Intrinsics of the closed set on values in, values with exactly their NumPy meaning out.

Elements of f16 and bf16 are computed in 32 bits, integers of 8 and 16 bits in 32, kept within their range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from smelt.core.dtype import DTYPES, DType, bf16, bool_, f16
from smelt.targets.vulkan import half, wide
from smelt.targets.vulkan.code import Code, V
from smelt.targets.vulkan.math import MATH, absolute, is_nan, power, scaled, with_sign


def kind_of(d: DType) -> str:
    """The kind that values of a dtype are computed in."""
    if d == bool_:
        return "b"
    if d.is_float:
        return "d" if d.bits == 64 else "f"
    return "w" if d.bits == 64 else "u"


def literal(code: Code, value: bool | int | float, d: DType) -> V:
    """A constant of the dtype, rounded to it."""
    if d.is_float:
        with np.errstate(over="ignore"):
            return code.constant(kind_of(d), float(d.numpy.type(value)))
    return code.constant(kind_of(d), int(value))


def is_signed(d: DType) -> bool:
    return d.category == "int"


def wrapped(v: V, d: DType) -> V:
    """32 bits of which the dtype keeps the lowest."""
    if d.bits >= 32 or v.kind != "u":
        return v
    if is_signed(d):
        return v.code.pure("BitFieldSExtract", "u", v, v.code.u(0), v.code.u(d.bits))
    return v & ((1 << d.bits) - 1)


# ---------------------------------------------------------------- conversions


def cast(v: V, source: DType, target: DType) -> V:
    """ONNX's Cast: to bool is != 0, float to integer truncates (saturating, NaN is 0), integers wrap."""
    if source == target:
        return v
    if target == bool_:
        return ~wide.is_zero(v) if v.kind == "w" else v.differs(0)
    if target.is_float:
        value = _to_float(v, source, kind_of(target))
        if target.bits == 16:
            value = half.from_bits(half.to_bits(value, target), target)
        return value
    if source.is_float:
        return _from_float(v, target)
    if source == bool_:
        number = v.code.select(v, v.code.u(1), 0)
        return wide.extend(number, False) if target.bits == 64 else number
    if target.bits == 64:
        return v if source.bits == 64 else wide.extend(v, is_signed(source))
    return wrapped(v.low if v.kind == "w" else v, target)


def _to_float(v: V, source: DType, kind: str) -> V:
    c = v.code
    if source.is_float:
        return v if v.kind == kind else c.pure("FConvert", kind, v)
    if v.kind == "b":
        return c.select(v, c.constant(kind, 1.0), 0.0)
    if v.kind == "w":
        return wide.to_float(v, kind, is_signed(source))
    return c.pure("ConvertSToF" if is_signed(source) else "ConvertUToF", kind, v)


def _from_float(v: V, target: DType) -> V:
    """Towards 0, saturating, NaN is 0."""
    c = v.code
    if target.bits == 64:
        return wide.from_float(v, is_signed(target))
    low, high = target.limits
    inside = c.select((v > float(low)) & (v < float(high)), v, 0.0)
    value = c.pure("ConvertFToS" if is_signed(target) else "ConvertFToU", "u", inside)
    value = c.select(v <= float(low), low, c.select(v >= float(high), high, value))
    return c.select(is_nan(v), 0, value)


def bitcast(v: V, source: DType, target: DType) -> V:
    """The same bits as another dtype of the same width."""
    if source == bool_ or target == bool_:
        return cast(v, source, target)
    if source in (f16, bf16):
        v, source = half.to_bits(v, source), DTYPES["u16"]
    if target in (f16, bf16):
        return half.from_bits(v & 0xFFFF, target)
    if source.is_float:
        v = v.bits()
    return (v.as_float() if kind_of(target) in "fd" else wrapped(v, target)) if v.kind in "uw" else v


# ---------------------------------------------------------------- integers


Emit: TypeAlias = Callable[..., V]
"""(dtype of the operands, *operands) -> value."""


def intrinsic(fn: str, d: DType, *args: V) -> V:
    """fn on operands of a dtype; neither cast nor bitcast nor select, which know more than one."""
    return TABLE[fn](d, *args)


def _arithmetic(fn: str) -> Emit:
    def emit(d: DType, a: V, b: V) -> V:
        if a.kind == "w":
            return {"add": wide.add, "sub": wide.sub, "mul": wide.mul}[fn](a, b)
        return wrapped(a.code.binary(fn, a, b), d)

    return emit


def _is_zero(b: V) -> V:
    return wide.is_zero(b) if b.kind == "w" else b.equals(0)


def _nonzero(b: V) -> V:
    return b.code.select(_is_zero(b), 1, b)


def _quotient(d: DType, a: V, b: V) -> V:
    """Truncating; the lowest value by -1 wraps instead of being undefined."""
    c = a.code
    if a.kind == "w":
        return wide.sdiv(a, b) if is_signed(d) else wide.udiv(a, b)
    if not is_signed(d):
        return c.pure("UDiv", "u", a, b)
    minus = b.equals(-1)
    return c.select(minus, 0 - a, c.pure("SDiv", "u", a, c.select(minus, 1, b)))


def _rest(d: DType, a: V, b: V) -> V:
    """C's remainder."""
    c = a.code
    if a.kind == "w":
        return wide.srem(a, b) if is_signed(d) else wide.umod(a, b)
    if not is_signed(d):
        return c.pure("UMod", "u", a, b)
    # SRem of negative operands is undefined in Vulkan
    return a - _quotient(d, a, b) * b


def _div(d: DType, a: V, b: V) -> V:
    if a.kind in "fd":
        return a / b
    return a.code.select(_is_zero(b), 0, wrapped(_quotient(d, a, _nonzero(b)), d))


def _fmod(d: DType, a: V, b: V) -> V:
    if a.kind in "fd":
        return a.code.call("fmod", a.kind, _float_rest, a, b)
    return a.code.select(_is_zero(b), 0, wrapped(_rest(d, a, _nonzero(b)), d))


def _mod(d: DType, a: V, b: V) -> V:
    """The sign of the divisor."""
    c = a.code
    r = _fmod(d, a, b)
    if a.kind in "fd":
        zero = with_sign(c.constant(a.kind, 0.0), b)
        return c.select(r.equals(0.0), zero, c.select((r < 0.0) ^ (b < 0.0), r + b, r))
    if not is_signed(d):
        return r
    if a.kind == "w":
        off = ~wide.is_zero(r) & wide.is_negative(wide.bits("xor", r, b))
        return c.select(off, wide.add(r, b), r)
    return c.select(r.differs(0) & ((r ^ b) < 0), r + b, r)


def _float_rest(a: V, b: V) -> V:
    """C's fmod, exact: the mantissas' remainder, a few bits of the quotient at a time."""
    c = a.code
    x, y = absolute(a), absolute(b)
    m, e = _whole(x)
    n, f = _whole(y)
    # 24 + 8 bits fit 32, and 53 + 11 fit 64
    chunk = 8 if a.kind == "f" else 11
    rest, left = c.variable(m.kind, _remainder(m, n)), c.variable("u", e - f)
    # differences of exponents are below 280, and below 2100; a remainder of 64 bits has a loop of its own
    rounds = 40 if a.kind == "f" else 200 * 18
    with c.loop(lambda: left.get() > 0, lambda: None, rounds=rounds):
        todo = left.get()
        now = c.select(todo > chunk, chunk, todo)
        moved = rest.get() << now if m.kind == "u" else wide.shift("shl", rest.get(), now)
        rest.set(_remainder(moved, n))
        left.set(todo - now)
    r = rest.get()
    size = c.pure("ConvertUToF", "f", r) if r.kind == "u" else wide.to_float(r, "d", False)
    value = c.select(x < y, x, scaled(size, f))
    bad = is_nan(a) | is_nan(b) | x.equals(math.inf) | y.equals(0.0)
    return c.select(bad, math.nan, c.select(y.equals(math.inf), a, with_sign(value, a)))


def _remainder(m: V, n: V) -> V:
    if m.kind == "w":
        return wide.umod(m, _nonzero(n))
    return m.code.pure("UMod", "u", m, _nonzero(n))


def _whole(x: V) -> tuple[V, V]:
    """(m, e) with x = m * 2^e, m an integer; x normal."""
    if x.kind == "f":
        raw = x.bits()
        return (raw & 0x7FFFFF) | 0x800000, ((raw >> 23) & 0xFF) - 150
    pair = x.bits()
    high = (pair.high & 0xFFFFF) | 0x100000
    return x.code.wide(pair.low, high), ((pair.high >> 20) & 0x7FF) - 1075


def _pow(d: DType, a: V, b: V) -> V:
    if a.kind in "fd":
        return power(a, b)
    name = f"pow_{d.name}"
    return wrapped(a.code.call(name, a.kind, lambda x, y: _integer_power(d, x, y), a, b), d)


def _integer_power(d: DType, a: V, b: V) -> V:
    """By squaring; a negative exponent leaves only the powers of 1 and -1."""
    c, pair = a.code, a.kind == "w"
    total, x, left = c.variable(a.kind, 1), c.variable(a.kind, a), c.variable(b.kind, b)

    def times(p: V, q: V) -> V:
        return wide.mul(p, q) if pair else p * q

    def low(v: V) -> V:
        return v.low if pair else v

    def step() -> None:
        x.set(times(x.get(), x.get()))
        left.set(wide.shift("shr", left.get(), c.u(1)) if pair else left.get() >> 1)

    with c.loop(lambda: ~_is_zero(left.get()), step, rounds=65):
        odd = (low(left.get()) & 1).differs(0)
        total.set(c.select(odd, times(total.get(), x.get()), total.get()))
    if not is_signed(d):
        return total.get()
    unit = wide.equals(a, a.like(-1)) if pair else a.equals(-1)
    one = wide.equals(a, a.like(1)) if pair else a.equals(1)
    of_units = c.select((low(b) & 1).differs(0), a.like(-1), 1)
    small = c.select(one, 1, c.select(unit, of_units, a.like(0)))
    return c.select(wide.is_negative(b) if pair else b < 0, small, total.get())


# ---------------------------------------------------------------- the table


def _neg(d: DType, a: V) -> V:
    if a.kind == "w":
        return wide.neg(a)
    return -a if a.kind in "fd" else wrapped(0 - a, d)


def _abs(d: DType, a: V) -> V:
    if a.kind in "fd":
        return absolute(a)
    if not is_signed(d):
        return a
    return wide.absolute(a) if a.kind == "w" else wrapped(a.code.select(a < 0, 0 - a, a), d)


def less(d: DType, a: V, b: V) -> V:
    if a.kind == "b":
        return ~a & b
    if a.kind == "w":
        return wide.less(a, b, is_signed(d))
    return a < b if d.category != "uint" else a.below(b)


def _at_most(d: DType, a: V, b: V) -> V:
    return a <= b if a.kind in "fd" else ~less(d, b, a)


def same(d: DType, a: V, b: V) -> V:
    return wide.equals(a, b) if a.kind == "w" else a.equals(b)


def _different(d: DType, a: V, b: V) -> V:
    return ~wide.equals(a, b) if a.kind == "w" else a.differs(b)


def _extreme(most: bool) -> Emit:
    def emit(d: DType, a: V, b: V) -> V:
        if a.kind == "b":
            return a | b if most else a & b
        first = less(d, b, a) if most else less(d, a, b)
        if a.kind in "fd":
            first = first | is_nan(a)
        return a.code.select(first, a, b)

    return emit


def _sign(d: DType, a: V) -> V:
    c = a.code
    if a.kind in "fd":
        value = c.select(a > 0.0, c.constant(a.kind, 1.0), c.select(a < 0.0, a.like(-1.0), 0.0))
        return c.select(is_nan(a), a, value)
    below = less(d, a, a.like(0))
    return c.select(below, a.like(-1), c.select(_is_zero(a), a.like(0), 1))


def _saturate(d: DType, a: V) -> V:
    c = a.code
    clipped = c.select(a < -65504.0, -65504.0, c.select(a > 65504.0, 65504.0, a))
    return c.select(absolute(a) < math.inf, clipped, a)


def _isinf(d: DType, a: V) -> V:
    if a.kind not in "fd":
        return a.code.constant("b", 0)
    # values of f16 have more range than that until they are stored
    return absolute(a) >= (65520.0 if d == f16 else math.inf)


def _isnan(d: DType, a: V) -> V:
    return is_nan(a) if a.kind in "fd" else a.code.constant("b", 0)


def _bits(fn: str) -> Emit:
    def emit(d: DType, a: V, b: V) -> V:
        return wide.bits(fn, a, b) if a.kind == "w" else a.code.binary(fn, a, b)

    return emit


def _not(d: DType, a: V) -> V:
    if a.kind == "w":
        return wide.invert(a)
    return wrapped(~a, d)


def _shift(fn: str) -> Emit:
    def emit(d: DType, a: V, b: V) -> V:
        c = a.code
        if a.kind == "w":
            return c.select(b.high.equals(0), wide.shift(fn, a, b.low), 0)
        inside = b.below(d.bits)
        part = c.select(inside, b, 0)
        if fn == "shr" and is_signed(d):
            moved = c.pure("ShiftRightArithmetic", "u", a, part)
        else:
            moved = a << part if fn == "shl" else a >> part
        return c.select(inside, wrapped(moved, d), 0)

    return emit


def _rounding(name: str) -> Emit:
    def emit(d: DType, a: V) -> V:
        return a.code.glsl(name, a.kind, a) if a.kind in "fd" else a

    return emit


def _round(d: DType, a: V) -> V:
    """To the nearest whole number, of two the even one. lavapipe's own (Mesa 22.3) makes 1 of 1.5 in 64 bits
    on processors whose registers hold fewer than 8 of them."""
    if a.kind != "d":
        return _rounding("RoundEven")(d, a)
    size, whole_from = absolute(a), 2.0**52
    near = size + whole_from - whole_from
    return a.code.select((size > 0.0) & (size < whole_from), a.code.select(a < 0.0, -near, near), a)


def contracted(a: V, b: V, total: V) -> V:
    """a * b + total, in one instruction where the device has one."""
    c = a.code
    product = c.pure("FMul", a.kind, a, b, contract=True)
    return c.pure("FAdd", a.kind, product, total, contract=True)


def _math(name: str) -> Emit:
    return lambda d, a: MATH[name](a)


TABLE: Mapping[str, Emit] = {
    "add": _arithmetic("add"),
    "sub": _arithmetic("sub"),
    "mul": _arithmetic("mul"),
    "div": _div,
    "mod": _mod,
    "fmod": _fmod,
    "fma": lambda d, a, b, c: contracted(a, b, c),
    "min": _extreme(False),
    "max": _extreme(True),
    "neg": _neg,
    "abs": _abs,
    "pow": _pow,
    **{name: _math(name) for name in MATH},
    "floor": _rounding("Floor"),
    "ceil": _rounding("Ceil"),
    "round": _round,
    "trunc": _rounding("Trunc"),
    "sign": _sign,
    "saturate": _saturate,
    "eq": same,
    "ne": _different,
    "lt": less,
    "le": _at_most,
    "gt": lambda d, a, b: less(d, b, a),
    "ge": lambda d, a, b: _at_most(d, b, a),
    "isnan": _isnan,
    "isinf": _isinf,
    "and": _bits("and"),
    "or": _bits("or"),
    "xor": _bits("xor"),
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
}
"""One row per intrinsic; cast, bitcast and select are not of one dtype."""
