"""Linear quantisation: floats to integers and back, with a scale per tensor, per position or per block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ceildiv, to_dim
from smelt.core.dtype import BYTES, Array, DType, f32, i8, i32, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Call, Expr
from smelt.core.ops.attrs import axis_of, integer
from smelt.core.ops.rows.linear import infer_matmul, matmul
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, select

ROUNDER, ROUNDER_BITS = 1.5 * 2.0**23, 0x4B400000
"""A number whose addition rounds, and its bits."""


def _check(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> None:
    """Scale and zero point are scalars, or vectors along the axis."""
    x, scale, zero = (*args, None)[:3]
    assert x and scale
    for what, a in (("scale", scale), ("zero point", zero)):
        if a is None or a.rank == 0:
            continue
        if a.rank != 1 or not 0 <= axis_of(attrs) < x.rank:
            raise c.fail(f"the {what} is {a.type}, wanted a scalar or a vector along axis {attrs['axis']}")
        c.same(f"the {what} and axis {axis_of(attrs)}", a.shape[0], x.shape[axis_of(attrs)])


def _at(p: Operand, i: DimIndex, attrs: Attrs) -> Expr:
    return p[()] if p.rank == 0 else p[(i[axis_of(attrs)],)]


def _spread(p: Array, rank: int, attrs: Attrs) -> Array:
    return p if p.ndim == 0 else p.reshape(-1, *(1,) * (rank - 1 - axis_of(attrs)))


# ---------------------------------------------------------------- quantize
# attribute reciprocal: the scale is given as its reciprocal, a multiplication instead of a division


def _target(attrs: Attrs) -> DType:
    to = attrs["to"]
    assert isinstance(to, DType)
    return to


def _infer_quantize(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    _check(c, args, attrs)
    assert args[0] is not None
    if not args[0].dtype.is_float or not _target(attrs).is_int or _target(attrs).bits > 16:
        raise c.fail(f"cannot quantize {args[0].dtype} to {_target(attrs)}")
    return (TensorType(_target(attrs), args[0].shape),)


def _quantize(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, scale: Operand, zero: Operand | None = None,
) -> Expr:  # fmt: skip
    """saturate(round half to even(x / scale) + zero)

    A float of 1.5 * 2^23 has no bits after the point: adding it rounds, and leaves the integer in the low
    bits. Limits are integers, so that clamping first gives the same; NaN becomes the lowest value."""
    least, most = _target(attrs).limits
    step = cast(_at(scale, i, attrs), f32)
    y: Expr = call("mul" if attrs.get("reciprocal", False) else "div", cast(x[i], f32), step)
    low, high = const(least, f32), const(most, f32)
    moved: Expr = const(-ROUNDER_BITS, i32)
    if zero is not None:
        own = _at(zero, i, attrs)
        low, high = (call("sub", limit, cast(own, f32)) for limit in (low, high))  # type: ignore[assignment]
        moved = call("add", cast(own, i32), moved)
    y = select(call("gt", y, low), y, low)
    y = select(call("lt", y, high), y, high)
    bits = Call("bitcast", (call("add", y, const(ROUNDER, f32)),), i32)
    return cast(call("add", bits, moved), _target(attrs))


def _ref_quantize(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, scale, zero = (*arrays, None)[:3]
    assert x is not None and scale is not None
    to = _target(attrs).numpy
    step = _spread(scale.astype(np.float32), x.ndim, attrs)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        y = np.rint(wide * step if attrs.get("reciprocal", False) else wide / step)
    y = np.where(np.isnan(y), -np.inf, y)
    if zero is not None:
        y = y + _spread(zero.astype(np.float32), x.ndim, attrs)
    return (np.clip(y, np.iinfo(to).min, np.iinfo(to).max).astype(to),)


# ---------------------------------------------------------------- dequantize


def _infer_dequantize(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    _check(c, args, attrs)
    x, scale = args[:2]
    assert x and scale
    if not x.dtype.is_int or not scale.dtype.is_float:
        raise c.fail(f"cannot dequantize {x.dtype} with a scale of {scale.dtype}")
    return (TensorType(scale.dtype, x.shape),)


def _dequantize(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, scale: Operand, zero: Operand | None = None,
) -> Expr:  # fmt: skip
    """(x - zero) * scale"""
    y = cast(x[i], i32)
    if zero is not None:
        y = call("sub", y, cast(_at(zero, i, attrs), i32))
    return call("mul", cast(y, out.dtype), _at(scale, i, attrs))


def _ref_dequantize(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, scale, zero = (*arrays, None)[:3]
    assert x is not None and scale is not None
    y = x.astype(np.int32)
    if zero is not None:
        y = y - _spread(zero.astype(np.int32), x.ndim, attrs)
    return ((y.astype(scale.dtype) * _spread(scale, x.ndim, attrs)).astype(scale.dtype),)


# ---------------------------------------------------------------- in blocks
# attributes axis, block: neighbours along the axis that share a scale and a zero point


def _infer_blocks(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, scale, zero = (*args, None)[:3]
    assert x and scale
    if not x.dtype.is_int or not scale.dtype.is_float:
        raise c.fail(f"cannot dequantize {x.dtype} with a scale of {scale.dtype}")
    axis, block = axis_of(attrs), integer(attrs, "block")
    assert 0 <= axis < x.rank
    for what, a in (("scale", scale), ("zero point", zero)):
        if a is None:
            continue
        if a.rank != x.rank:
            raise c.fail(f"the {what} has rank {a.rank}, the input {x.rank}")
        for k, (own, extent) in enumerate(zip(a.shape, x.shape, strict=True)):
            wanted = ceildiv(extent, to_dim(block)) if k == axis else extent
            c.same(f"the {what} and axis {k}", own, wanted)
    return (TensorType(scale.dtype, x.shape),)


def _blocks(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, scale: Operand, zero: Operand | None = None,
) -> Expr:  # fmt: skip
    """(x - zero) * scale, those of the element's block"""
    axis, block = axis_of(attrs), integer(attrs, "block")
    at = (*i[:axis], i[axis] // block, *i[axis + 1 :])
    y = cast(x[i], i32)
    if zero is not None:
        y = call("sub", y, cast(zero[at], i32))
    return call("mul", cast(y, out.dtype), scale[at])


def _ref_blocks(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, scale, zero = (*arrays, None)[:3]
    assert x is not None and scale is not None
    axis, block = axis_of(attrs), integer(attrs, "block")
    at = np.arange(x.shape[axis]) // block
    y = x.astype(np.int32)
    if zero is not None:
        y = y - zero.astype(np.int32).take(at, axis)
    return ((y.astype(scale.dtype) * scale.take(at, axis)).astype(scale.dtype),)


# ---------------------------------------------------------------- product


def _infer_product(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """As matmul, of bytes. Zero points: of a one or one per row, of b one or one per column."""
    a, b, *zeros = args
    assert a and b
    for what, x in (("left", a), ("right", b)):
        if x.dtype not in BYTES:
            raise c.fail(f"the {what} operand is {x.dtype}, wanted i8 or u8")
    for z, side, extent in zip(zeros, (a, b), (a.shape[-2:-1], b.shape[-1:]), strict=False):
        if z is None or z.rank == 0:
            continue
        if z.rank != 1 or side.rank < 2:
            raise c.fail(f"a zero point is {z.type}, wanted a scalar or one per row of a and column of b")
        c.same("zero points", z.shape[0], extent[0])
    return infer_matmul(c, [a, b], attrs)


def _product(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    a: Operand, b: Operand, za: Operand | None = None, zb: Operand | None = None,
) -> Expr:  # fmt: skip
    """sum over k of (a[.., m, k] - za[m]) * (b[.., k, n] - zb[n])"""

    def moved(x: Operand, zero: Operand | None, axis: int) -> Operand:
        def at(j: DimIndex) -> Expr:
            wide = cast(x[j], i32)
            if zero is None:
                return wide
            return call("sub", wide, cast(zero[(j[axis],)] if zero.rank else zero[()], i32))

        return Operand(i32, x.shape, at)

    return matmul(t, i, attrs, out, moved(a, za, -2), moved(b, zb, -1))


def _ref_product(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    a, b, za, zb = (*arrays, None, None)[:4]
    assert a is not None and b is not None
    x, y = a.astype(np.int32), b.astype(np.int32)
    if za is not None:
        x = x - (za.astype(np.int32)[:, None] if za.ndim else za.astype(np.int32))
    if zb is not None:
        y = y - zb.astype(np.int32)
    return (np.asarray(np.matmul(x, y), np.int32),)


_SCALE, _SCALES = np.float32(0.05), np.array([0.02, 0.5, 0.1], np.float32)
_ZERO, _ZEROS = np.array(100, np.uint8), np.array([0, -3, 5], np.int8)

ROWS: tuple[Op, ...] = (
    Op(
        "quantize",
        "x scale zero?",
        _infer_quantize,
        _ref_quantize,
        (
            Case(("f32[N, 3, M]", np.array(_SCALE), _ZERO), attrs={"axis": -1, "to": u8}),
            Case(("f32[N, 3, M]", _SCALES, _ZEROS), attrs={"axis": 1, "to": i8}, low=-9, high=9),
            Case(("f32[N]", np.array(_SCALE)), attrs={"axis": -1, "to": i8}, low=-9, high=9),
            Case(
                ("f32[N]", np.array(_SCALE)), attrs={"axis": -1, "to": i8, "reciprocal": True}, low=-9, high=9
            ),
        ),
        compute=_quantize,
    ),
    Op(
        "dequantize",
        "x scale zero?",
        _infer_dequantize,
        _ref_dequantize,
        (
            Case(("u8[N, 3, M]", np.array(_SCALE), _ZERO), attrs={"axis": -1}, low=0, high=255),
            Case(("i8[N, 3, M]", _SCALES, _ZEROS), attrs={"axis": 1}, low=-128, high=127),
            Case(("i32[N]", np.array(_SCALE)), attrs={"axis": -1}, low=-9999, high=9999),
        ),
        compute=_dequantize,
    ),
    Op(
        "dequantize_blocks",
        "x scale zero?",
        _infer_blocks,
        _ref_blocks,
        (
            Case(("u8[3, 9, N]", "f32[3, 3, N]", "u8[3, 3, N]"), attrs={"axis": 1, "block": 4}, high=200),
            Case(("i8[N, 8]", "f32[N, 2]"), attrs={"axis": 1, "block": 4}, low=-100, high=100),
            Case(("i32[5, N]", "f32[2, N]"), attrs={"axis": 0, "block": 3}, low=-100, high=100),
        ),
        compute=_blocks,
    ),
    Op(
        "matmul_integer",
        "a b zero_a? zero_b?",
        _infer_product,
        _ref_product,
        (
            Case(("u8[N, 3, 9]", "i8[9, M]", _ZERO), low=-128, high=255),
            Case(("i8[3, 8]", "u8[8, 3]", _ZEROS, np.array([1, 2, 200], np.uint8)), low=-128, high=255),
        ),
        compute=_product,
    ),
)
