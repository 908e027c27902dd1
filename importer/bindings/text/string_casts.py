"""Casts between strings and numbers: digits by arithmetic, as ONNX Runtime prints and reads them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from smelt.core.dim import ZERO
from smelt.core.dtype import DType, bool_, f64, i64, u8, u64
from smelt.core.ir.graph import Ref
from smelt.importer import strings as st
from smelt.importer.attributes import rounding
from smelt.importer.call import Call
from smelt.importer.coded import CODE_MASKS, encoded
from smelt.importer.weights import dtype_of

PLACES = 8
"""Significant digits of a printed float, of any width."""
LOW, HIGH = -330, 309
"""Powers of ten that doubles are compared with."""
STEP = 300
"""The largest power of ten that a number is multiplied by at once."""


def cast_strings(c: Call) -> Ref:
    """Cast from or to strings."""
    to = c.integer("to")
    if to == TensorProto.STRING:
        return c.x() if st.is_text(c, 0) else _printed(c, c.x())
    return _read(c, st.text(c), dtype_of(to, "attribute 'to'", c.engine.node))


def cast_like(c: Call) -> Ref:
    """Cast from or to strings, to the type of the second input."""
    if st.is_text(c, 1):
        return c.x() if st.is_text(c, 0) else _printed(c, c.x())
    return _read(c, st.text(c), c.type(1).dtype)


# ---------------------------------------------------------------- printing


def _printed(c: Call, x: Ref) -> Ref:
    b, t = c.builder, c.builder.type_of(x)
    if t.dtype.coded:
        x = b.cast(x, f64)
    wide = b.reshape(x, (*t.shape, 1))
    if b.type_of(x).dtype.is_float:
        return st.made(b, _printed_float(c, c.cast(wide, f64)))
    return st.made(b, _printed_int(c, wide))


class _Arithmetic:
    """Shorthands on tensors that broadcast with one column per character."""

    def __init__(self, c: Call, like: Ref) -> None:
        self.c, self.like = c, like

    def k(self, v: float) -> Ref:
        return self.c.scalar(v, self.like)

    def op(self, name: str, a: Ref, b: Ref | float) -> Ref:
        return self.c.emit(name, a, b if isinstance(b, str) else self.c.scalar(b, a))

    def pick(self, *cases: tuple[Ref, Ref | int], other: Ref | int) -> Ref:
        """The value of the first case that holds."""
        y = other if isinstance(other, str) else self.k(other)
        for condition, value in reversed(cases):
            y = self.c.emit("where", condition, value if isinstance(value, str) else self.k(value), y)
        return y

    def both(self, *conditions: Ref) -> Ref:
        y = conditions[0]
        for other in conditions[1:]:
            y = self.c.emit("and", y, other)
        return y

    def sum(self, flags: Ref) -> Ref:
        """How many flags of each row hold."""
        rank = self.c.builder.type_of(flags).rank
        return self.c.emit("reduce_sum", self.c.cast(flags, i64), axes=(rank - 1,), keepdims=True)


def _printed_int(c: Call, x: Ref) -> Ref:
    """x: [*shape, 1]. The decimal digits, with a sign where it is below 0."""
    b, own = c.builder, c.builder.type_of(x).dtype
    if own == bool_:
        return c.cast(c.emit("add", c.cast(x, i64), b.constant(np.array(48))), u8)
    width = {8: 4, 16: 6, 32: 11, 64: 20}[own.bits]
    signed = own.category == "int"
    wide = c.cast(x, i64 if signed else u64)
    negative = c.emit("less", wide, c.scalar(0, wide)) if signed else b.constant(np.array(False))
    size = c.cast(wide, u64)
    if signed:  # in u64, where the least i64 has an opposite as well
        size = c.emit("where", negative, c.emit("add", c.emit("bit_not", size), c.scalar(1, size)), size)
    powers = np.array([10**k for k in range(1, 20)], np.uint64)
    a = _Arithmetic(c, b.constant(np.array(0)))
    digits = a.op("add", a.sum(c.emit("greater_equal", size, b.constant(powers))), 1)
    column = b.constant(np.arange(width))
    start = c.cast(negative, i64)
    place = c.emit("sub", c.emit("sub", digits, c.emit("sub", column, start)), a.k(1))
    inside = a.both(a.op("greater_equal", place, 0), c.emit("less", place, digits))
    power = c.emit("gather", b.constant(np.array([1, *powers], np.uint64)),
                   c.emit("clip", place, a.k(0), a.k(19)), axis=0)  # fmt: skip
    digit = c.emit("mod", c.emit("div", size, power), c.scalar(10, size))
    text = a.pick((inside, a.op("add", c.cast(digit, i64), 48)), other=0)
    sign = a.both(negative, a.op("equal", column, 0))
    return c.cast(a.pick((sign, 45), other=text), u8)


def _printed_float(c: Call, x: Ref) -> Ref:
    """x: f64[*shape, 1]. As C's %.8g: eight significant digits without zeros at the end, an exponent below
    1e-4 and from 1e8 on."""
    b = c.builder
    size = c.emit("abs", x)
    finite = c.emit("and", c.emit("not", c.emit("isnan", x)), c.emit("not", _infinite(c, x)))
    size = c.emit("where", finite, size, c.scalar(1, x))
    mantissa, exponent = _decimal(c, size)
    a = _Arithmetic(c, exponent)
    digits = b.constant(np.array([10**k for k in range(PLACES)]))
    ends = c.emit("mod", mantissa, b.constant(np.array([10**k for k in range(1, PLACES)])))
    zeros = a.sum(a.op("equal", ends, 0))  # at the end of the digits
    shown = c.emit("sub", a.k(PLACES), zeros)
    negative = c.emit("or", c.emit("less", x, c.scalar(0, x)), _minus_zero(c, x))
    column = c.emit("sub", b.constant(np.arange(16)), c.cast(negative, i64))

    def digit(n: Ref) -> Ref:
        place = c.emit("clip", c.emit("sub", a.k(PLACES - 1), n), a.k(0), a.k(PLACES - 1))
        power = c.emit("gather", digits, place, axis=0)
        value = a.op("add", c.emit("mod", c.emit("div", mantissa, power), a.k(10)), 48)
        return a.pick((a.op("less", n, PLACES), value), other=48)

    scientific = c.emit("or", a.op("less", exponent, -4), a.op("greater_equal", exponent, PLACES))
    # 0.00ddd: the first digit stands after 1 - exponent characters
    small = a.both(a.op("less", exponent, 0), c.emit("not", scientific))
    lead = a.pick((small, c.emit("neg", exponent)), other=0)
    whole = a.pick((scientific, 1), (small, 1), other=a.op("add", exponent, 1))  # characters before the point
    behind = a.pick(  # characters after it
        (small, c.emit("add", shown, a.op("sub", lead, 1))), other=c.emit("sub", shown, whole)
    )
    has_point = a.op("greater", behind, 0)
    before = c.emit("less", column, whole)
    number = a.pick((before, column), other=a.op("sub", column, 1))
    length = a.pick((has_point, c.emit("add", a.op("add", whole, 1), behind)), other=whole)
    place = a.pick((small, c.emit("sub", number, lead)), other=number)  # which digit; below 0: a leading zero
    body = a.pick(
        (a.op("less", column, 0), 45),
        (a.both(has_point, c.emit("equal", column, whole)), 46),
        (c.emit("less", column, length), a.pick((a.op("less", place, 0), 48), other=digit(place))),
        other=_exponent(c, a, c.emit("sub", column, length), exponent, scientific),
    )
    return _words(c, x, c.cast(body, u8))


def _exponent(c: Call, a: _Arithmetic, k: Ref, exponent: Ref, scientific: Ref) -> Ref:
    """Character k of 'e+10' or 'e-300'."""
    size = c.emit("abs", exponent)
    three = a.op("greater_equal", size, 100)
    count = a.op("add", c.cast(three, i64), 2)
    place = c.emit("sub", count, a.op("sub", k, 1))  # of the digit, from the end
    power = c.emit("gather", c.builder.constant(np.array([1, 10, 100])),
                   c.emit("clip", place, a.k(0), a.k(2)), axis=0)  # fmt: skip
    digit = a.op("add", c.emit("mod", c.emit("div", size, power), a.k(10)), 48)
    return a.pick(
        (c.emit("not", scientific), 0),
        (a.op("equal", k, 0), 101),
        (a.op("equal", k, 1), a.pick((a.op("less", exponent, 0), 45), other=43)),
        (a.both(a.op("greater_equal", place, 0), c.emit("less", place, count)), digit),
        other=0,
    )


def _decimal(c: Call, size: Ref) -> tuple[Ref, Ref]:
    """Eight digits as an integer (0, or 10^7 and more), and the power of ten of the first one."""
    b = c.builder
    powers = np.array([float(f"1e{k}") for k in range(LOW, HIGH)])
    a = _Arithmetic(c, b.constant(np.array(0)))
    above = a.sum(c.emit("greater_equal", size, b.constant(powers)))
    zero = c.emit("equal", size, c.scalar(0, size))
    exponent = a.pick((zero, 0), other=a.op("add", above, LOW - 1))
    up = c.emit("sub", a.k(PLACES - 1), exponent)
    rounded = c.cast(c.emit("round", _scaled(c, size, up)), i64)
    full = a.op("greater_equal", rounded, 10**PLACES)
    mantissa = a.pick((full, c.emit("div", rounded, a.k(10))), other=rounded)
    return mantissa, c.emit("add", exponent, c.cast(full, i64))


def _scaled(c: Call, y: Ref, up: Ref) -> Ref:
    """y * 10^up, for up in -600 .. 600. A power up to 22 is exact, so is then the only rounding."""
    table = c.builder.constant(np.array([float(f"1e{k}") for k in range(STEP + 1)]))
    rest, down = c.emit("abs", up), c.emit("less", up, c.scalar(0, up))
    for _ in range(2):
        part = c.emit("min", rest, c.scalar(STEP, rest))
        power = c.emit("gather", table, part, axis=0)
        y = c.emit("where", down, c.emit("div", y, power), c.emit("mul", y, power))
        rest = c.emit("sub", rest, part)
    return y


def _infinite(c: Call, x: Ref) -> Ref:
    return c.emit("isinf", x, detect_positive=True, detect_negative=True)


def _minus_zero(c: Call, x: Ref) -> Ref:
    """Whether x is -0: its reciprocal is below 0, though it is not."""
    one = c.emit("div", c.scalar(1, x), x)
    return c.emit("and", c.emit("equal", x, c.scalar(0, x)), c.emit("less", one, c.scalar(0, x)))


def _words(c: Call, x: Ref, body: Ref) -> Ref:
    """NaN, INF and -INF in the place of digits."""
    b = c.builder

    def word(s: str) -> Ref:
        return b.constant(np.frombuffer(s.encode().ljust(16, b"\0"), np.uint8))

    y = c.emit("where", c.emit("isnan", x), word("NaN"), body)
    infinite = _infinite(c, x)
    less = c.emit("less", x, c.scalar(0, x))
    y = c.emit("where", c.emit("and", infinite, less), word("-INF"), y)
    return c.emit("where", c.emit("and", infinite, c.emit("not", less)), word("INF"), y)


# ---------------------------------------------------------------- reading


def _read(c: Call, chars: Ref, to: DType) -> Ref:
    """Numbers at the beginning of strings; a string without one is an error when the model runs."""
    b, shape = c.builder, st.shape_of(c.builder, chars)
    whole = not to.is_float and (not to.coded or to.name in CODE_MASKS)
    digits, scale, kind = c.emit_many("text_number", [st.rows(b, chars)], {"whole": whole})
    a = _Arithmetic(c, digits)
    _refuse(c, a.op("not_equal", kind, 1) if whole else a.op("equal", kind, 0))
    if whole:
        return b.reshape(c.cast(digits, to), shape)
    limited = c.emit("clip", scale, a.k(-400), a.k(400))
    y = _scaled(c, c.cast(digits, f64), limited)
    sign = c.cast(digits, f64)
    y = c.emit("where", a.op("equal", kind, 2), c.emit("mul", sign, c.scalar(np.inf, y)), y)
    y = c.emit("where", a.op("equal", kind, 3), c.scalar(np.nan, y), y)
    if to.coded:
        y = encoded(b, y, to, c.flag("saturate", 1), rounding(c))
    return b.reshape(c.cast(y, to), shape)


def _refuse(c: Call, bad: Ref) -> None:
    """Emit a check that none of the flags [n] holds at run time."""
    total = c.emit("reduce_sum", c.cast(bad, i64), axes=(0,), keepdims=False)
    c.builder.dims_of(total, "strings that are no numbers", 0, ZERO)
