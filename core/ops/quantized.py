"""Linear quantisation: floats to integers and back, with one scale or one per position of an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dtype import DType, f32, i8, i32, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.table import Arg, Array, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const


def _axis(attrs: Attrs) -> int:
    axis = attrs["axis"]
    assert isinstance(axis, int)
    return axis


def _check(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> None:
    """Scale and zero point are scalars, or vectors along the axis."""
    x, scale, zero = (*args, None)[:3]
    assert x and scale
    for what, a in (("scale", scale), ("zero point", zero)):
        if a is None or a.rank == 0:
            continue
        if a.rank != 1 or not 0 <= _axis(attrs) < x.rank:
            raise c.fail(f"the {what} is {a.type}, wanted a scalar or a vector along axis {attrs['axis']}")
        c.same(f"the {what} and axis {_axis(attrs)}", a.shape[0], x.shape[_axis(attrs)])


def _at(p: Operand, i: DimIndex, attrs: Attrs) -> Expr:
    return p[()] if p.rank == 0 else p[(i[_axis(attrs)],)]


def _spread(p: Array, rank: int, attrs: Attrs) -> Array:
    return p if p.ndim == 0 else p.reshape(-1, *(1,) * (rank - 1 - _axis(attrs)))


# ---------------------------------------------------------------- quantize


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
    """saturate(round half to even(x / scale) + zero)"""
    info = np.iinfo(_target(attrs).numpy)
    y: Expr = call("round", call("div", cast(x[i], f32), cast(_at(scale, i, attrs), f32)))
    if zero is not None:
        y = call("add", y, cast(_at(zero, i, attrs), f32))
    y = call("min", call("max", y, const(info.min, f32)), const(info.max, f32))
    return cast(cast(y, i32), _target(attrs))


def _ref_quantize(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, scale, zero = (*arrays, None)[:3]
    assert x is not None and scale is not None
    to = _target(attrs).numpy
    y = np.rint(x.astype(np.float32) / _spread(scale.astype(np.float32), x.ndim, attrs))
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
)
