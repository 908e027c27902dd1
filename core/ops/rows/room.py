"""Tensors with room behind the rows of an axis: how a state lies that grows where it lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Buffer, Expr, Load, Stmt, Store
from smelt.core.ops.attrs import axis_of
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, const


def _rows(attrs: Attrs, name: str) -> Dim:
    rows = attrs[name]
    assert isinstance(rows, Dim)
    return rows


def _resized(c: Infer, x: Arg, attrs: Attrs) -> tuple[TensorType, ...]:
    axis = axis_of(attrs)
    return (TensorType(x.dtype, (*x.shape[:axis], _rows(attrs, "rows"), *x.shape[axis + 1 :])),)


def _infer_room(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    c.at_most("rows and the room for them", x.shape[axis_of(attrs)], _rows(attrs, "rows"))
    return _resized(c, x, attrs)


def _infer_held(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    c.at_most("rows and the room for them", _rows(attrs, "rows"), x.shape[axis_of(attrs)])
    return _resized(c, x, attrs)


def _infer_put(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, new = args
    assert x and new
    axis = axis_of(attrs)
    if x.dtype != new.dtype or x.rank != new.rank:
        raise c.fail(f"the rows are {new.type}, what they are put into is {x.type}")
    for a, (n, d) in enumerate(zip(new.shape, x.shape, strict=True)):
        if a != axis:
            c.same(f"axis {a} of the rows", n, d)
    c.at_most("rows and the room for them", _rows(attrs, "at") + new.shape[axis], x.shape[axis])
    return (x.type,)


def _moved(
    t: Trace,
    shape: Sequence[Dim],
    y: Buffer,
    to: Callable[[DimIndex], DimIndex],
    value: Callable[[DimIndex], Expr],
) -> tuple[Stmt, ...]:
    return nest_over(t, shape, lambda i: (Store(y.name, to(i), value(i)),))


def _held(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    (x,), (y,) = inputs, outputs
    assert x
    return Nest(_moved(t, y.shape, y, lambda i: i, lambda i: Load(x.name, i, x.dtype)))


def _room(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    (x,), (y,) = inputs, outputs
    assert x
    nothing = _moved(t, y.shape, y, lambda i: i, lambda i: const(0, y.dtype))
    return Nest((*nothing, *_moved(t, x.shape, y, lambda i: i, lambda i: Load(x.name, i, x.dtype))))


def _put(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """A statement that copies, which the planner leaves out where x is what y is, and one for the rows."""
    (x, new), (y,) = inputs, outputs
    assert x and new
    axis, at = axis_of(attrs), _rows(attrs, "at")
    before = _moved(t, y.shape, y, lambda i: i, lambda i: Load(x.name, i, x.dtype))
    rows = _moved(
        t,
        new.shape,
        y,
        lambda i: (*i[:axis], i[axis] + at, *i[axis + 1 :]),
        lambda i: Load(new.name, i, new.dtype),
    )
    return Nest((*before, *rows))


def _ref_room(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    y = np.zeros([d.const for d in types[0].shape], x.dtype)
    y[tuple(map(slice, x.shape))] = x
    return (y,)


def _ref_held(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return (x[tuple(slice(d.const) for d in types[0].shape)],)


def _ref_put(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, new = arrays
    assert x is not None and new is not None
    axis, at = axis_of(attrs), _rows(attrs, "at").const
    y = x.copy()
    y[(slice(None),) * axis + (slice(at, at + new.shape[axis]),)] = new
    return (y,)


ROWS: tuple[Op, ...] = (
    Op(
        "room",
        "x",
        _infer_room,
        _ref_room,
        (Case(("f32[2, 3, N]",), attrs={"axis": 1, "rows": to_dim(5)}),),
        nest=_room,
        view=True,
    ),
    Op(
        "held",
        "x",
        _infer_held,
        _ref_held,
        (Case(("f32[2, 5, N]",), attrs={"axis": 1, "rows": to_dim(3)}),),
        nest=_held,
        view=True,
    ),
    Op(
        "put_rows",
        "x rows",
        _infer_put,
        _ref_put,
        (
            Case(("f32[2, 6, N]", "f32[2, 3, N]"), attrs={"axis": 1, "at": to_dim(2)}),
            Case(("i64[4, N]", "i64[0, N]"), attrs={"axis": 0, "at": to_dim(4)}),
        ),
        nest=_put,
    ),
)

__all__ = ["ROWS"]
