"""Tensors made from sizes (from_dims, iota) and running totals (cumsum)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, dmax, sym, to_dim
from smelt.core.dtype import Array, DType, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import dims
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op, ShapeValue
from smelt.core.ops.trace import DimIndex, Trace, call, const, index, select


def _dtype(attrs: Attrs) -> DType:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    return dtype


def _infer_given(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(_dtype(attrs), dims(attrs, "shape")),)


def _from_dims(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType) -> Expr:
    """values[i]: a chain of selects over the position."""
    values, dtype = dims(attrs, "values"), _dtype(attrs)
    if not values:
        return const(0, dtype)
    y: Expr = index(values[-1], dtype)
    for n, v in reversed(list(enumerate(values[:-1]))):
        y = select(call("eq", index(i[0], i64), const(n, i64)), index(v, dtype), y)
    return y


def _ref_from_dims(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    values = [d.const for d in dims(attrs, "values")]
    shape = [d.const for d in types[0].shape]
    return (np.array(values, types[0].dtype.numpy).reshape(shape),)


def _iota(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType) -> Expr:
    """start + i * step along the only axis."""
    start, step = dims({"d": (attrs["start"], attrs["step"])}, "d")
    return index(start + i[0] * step, _dtype(attrs))


def _ref_iota(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    start, step = (d.const for d in dims({"d": (attrs["start"], attrs["step"])}, "d"))
    n = types[0].shape[0].const
    return ((start + np.arange(n, dtype=np.int64) * step).astype(types[0].dtype.numpy),)


def _infer_cumsum(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, axis = args[0], attrs["axis"]
    assert x is not None and isinstance(axis, int)
    if not 0 <= axis < x.rank:
        raise c.fail(f"axis {axis} does not fit rank {x.rank}")
    return (x.type,)


def _cumulate(
    fn: str, neutral: int, t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]
) -> Nest:
    """y[k] = fn(y[k-1], x[k]) (exclusive: x[k-1]), from the other end when reverse."""
    (x,), (y,), axis = inputs, outputs, attrs["axis"]
    assert x is not None and isinstance(axis, int)
    n = y.shape[axis]
    variables = [t.fresh("i") for _ in y.shape]
    k = variables[axis]
    position = n - 1 - k if attrs["reverse"] else k
    before = position + 1 if attrs["reverse"] else position - 1

    def at(p: Dim) -> DimIndex:
        return tuple(p if a == axis else v for a, v in enumerate(variables))

    first = (Bound(ZERO, before, n),)
    zero = const(neutral, y.dtype)
    running = Load(y.name, at(before), y.dtype, first, zero)
    own: Expr = (
        Load(x.name, at(before), x.dtype, first, zero)
        if attrs["exclusive"]
        else Load(x.name, at(position), x.dtype)
    )
    body: tuple[Stmt, ...] = (Store(y.name, at(position), call(fn, running, own)),)
    order = [a for a in range(len(variables)) if a != axis] + [axis]
    for a in reversed(order):
        body = (Loop("serial", str(variables[a]), y.shape[a], body),)
    return Nest(body)


def _cumsum(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Running sums."""
    return _cumulate("add", 0, t, attrs, inputs, outputs)


def _cumprod(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Running products."""
    return _cumulate("mul", 1, t, attrs, inputs, outputs)


def _ref_cumulate(
    fn: np.ufunc, neutral: int, arrays: Sequence[Array | None], attrs: Attrs
) -> Sequence[Array]:
    """From the neutral element on, as the formula: -0.0 becomes 0.0 in sums. What is left out of an exclusive
    one is not taken off again: infinities would be NaN. Each step is stored, so it is rounded to the type."""
    x, axis = arrays[0], attrs["axis"]
    assert x is not None and isinstance(axis, int)
    with np.errstate(all="ignore"):
        v = np.moveaxis(np.flip(x, axis) if attrs["reverse"] else x, axis, 0)
        start = np.full((1, *v.shape[1:]), neutral, x.dtype)
        y = fn.accumulate(np.concatenate([start, v]), axis=0, dtype=x.dtype)
    y = np.moveaxis(y[:-1] if attrs["exclusive"] else y[1:], 0, axis)
    return (np.ascontiguousarray(np.flip(y, axis) if attrs["reverse"] else y),)


def _ref_cumsum(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    return _ref_cumulate(np.add, 0, arrays, attrs)


def _ref_cumprod(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    return _ref_cumulate(np.multiply, 1, arrays, attrs)


def _value_cumsum(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[ShapeValue | None, ...]:
    """Running sums of sizes."""
    x = args[0]
    if x is None or x.value is None or x.rank != 1:
        return (None,)
    order = x.value[::-1] if attrs["reverse"] else x.value
    sums = tuple(itertools.accumulate(order, initial=ZERO))
    found = sums[:-1] if attrs["exclusive"] else sums[1:]
    return (found[::-1] if attrs["reverse"] else found,)


_SHAPE3 = (to_dim(3),)

ROWS: tuple[Op, ...] = (
    Op(
        "from_dims",
        "",
        _infer_given,
        _ref_from_dims,
        (
            Case(
                (),
                attrs={
                    "values": (to_dim(2), sym("N") * 3, dmax(sym("N"), 4)),
                    "shape": _SHAPE3,
                    "dtype": i64,
                },
            ),
            Case((), attrs={"values": (sym("N"),), "shape": (), "dtype": i64}),
        ),
        compute=_from_dims,
    ),
    Op(
        "iota",
        "",
        _infer_given,
        _ref_iota,
        (
            Case(
                (),
                attrs={"start": to_dim(5), "step": to_dim(-2), "shape": (sym("N"),), "dtype": i64},
            ),
        ),
        compute=_iota,
    ),
    Op(
        "cumsum",
        "x",
        _infer_cumsum,
        _ref_cumsum,
        tuple(
            Case(("f32[N, 4, M]",), attrs={"axis": axis, "exclusive": e, "reverse": r})
            for axis, e, r in (
                (1, False, False),
                (2, True, False),
                (0, False, True),
                (1, True, True),
            )
        ),
        nest=_cumsum,
        value=_value_cumsum,
    ),
    Op(
        "cumprod",
        "x",
        _infer_cumsum,
        _ref_cumprod,
        tuple(
            Case(("f32[N, 4, M]",), attrs={"axis": axis, "exclusive": e, "reverse": r})
            for axis, e, r in ((1, False, False), (2, True, False), (0, False, True), (1, True, True))
        ),
        nest=_cumprod,
    ),
)
