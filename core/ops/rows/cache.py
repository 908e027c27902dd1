"""Rows appended to a cache whose fill differs by batch, as a tensor of their own or where the cache lies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, to_dim
from smelt.core.dtype import Array, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Stmt, Store
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select


def _length(attrs: Attrs) -> Dim:
    length = attrs["length"]
    assert isinstance(length, Dim)
    return length


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[B, G, P, D], [B, G, S, D], [B] -> [B, G, length, D]"""
    past, new, fill = args
    assert past and new and fill
    if past.dtype != new.dtype:
        raise c.fail(f"the cache is {past.dtype}, the new rows are {new.dtype}")
    if past.rank != 4 or new.rank != 4 or fill.rank != 1 or not fill.dtype.is_int:
        found = f"{past.type}, {new.type} and {fill.type}"
        raise c.fail(f"found {found}, wanted two tensors of rank 4 and integers of rank 1")
    for a, what in ((0, "batch"), (1, "heads"), (3, "head size")):
        c.same(f"{what} of the cache", past.shape[a], new.shape[a])
    c.same("batch of the cache's fill", past.shape[0], fill.shape[0])
    return (TensorType(past.dtype, (*past.shape[:2], c.simplify(_length(attrs)), past.shape[3])),)


def _append(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, past: Operand, new: Operand, fill: Operand
) -> Expr:
    """past[t] for t < fill, new[t - fill] for the rows after, 0 for the rest"""
    b, g, at, d = i
    zero = const(0, past.dtype)

    def placed(n: Dim) -> Expr:
        old = past.guarded(i, (Bound(ZERO, at, n), Bound(ZERO, at, past.shape[2])), zero)
        fresh = new.guarded((b, g, at - n, d), (Bound(ZERO, at - n, new.shape[2]),), zero)
        return select(call("lt", index(at), index(n)), old, fresh)

    return t.let(fill[b], ZERO, past.shape[2], placed)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    past, new, fill = (np.asarray(a) for a in arrays)
    length = types[0].shape[2].const
    y = np.zeros((*past.shape[:2], length, past.shape[3]), past.dtype)
    for b, n in enumerate(int(f) for f in fill):
        n = max(0, min(n, past.shape[2]))
        y[b, :, :n] = past[b, :, :n][:, :length]
        rows = max(0, min(new.shape[2], length - n))
        y[b, :, n : n + rows] = new[b, :, :rows]
    return (y,)


# ---------------------------------------------------------------- where it lies


def _held(attrs: Attrs) -> Dim:
    held = attrs["held"]
    assert isinstance(held, Dim)
    return held


def _infer_put(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[B, G, R, D], [B, G, S, D], [B] -> [B, G, R, D]: a cache with room for R rows, of which it has `held`
    before and `length` after."""
    room = args[0]
    (longer,) = _infer(c, args, attrs)
    assert room
    c.at_most("rows that the cache had and has", _held(attrs), longer.shape[2])
    c.at_most("rows of the cache and the room for them", longer.shape[2], room.shape[2])
    return (room.type,)


def _put(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """A statement that copies, which the planner leaves out where x is what y is, and one for the rows from
    the fill on: new[t - fill], 0 for the rest."""
    (x, new, fill), (y,) = inputs, outputs
    assert x and new and fill
    rows, n = new.shape[2], t.fresh("n")
    before = nest_over(t, y.shape, lambda i: (Store(y.name, i, Load(x.name, i, x.dtype)),))

    def batch(b: Dim) -> tuple[Stmt, ...]:
        def store(i: DimIndex) -> tuple[Stmt, ...]:
            g, at, d = i
            fresh = (Bound(ZERO, at - n, rows),)
            value = Load(new.name, (b, g, at - n, d), y.dtype, fresh, const(0, y.dtype))
            return (Store(y.name, (b, *i), value, guard=(Bound(n, at, _length(attrs)),)),)

        body = nest_over(t, (y.shape[1], _length(attrs), y.shape[3]), store)
        first = cast(Load(fill.name, (b,), fill.dtype), i64)
        return (Block(body, let=((str(n), first, ZERO, _held(attrs)),)),)

    return Nest((*before, *nest_over(t, y.shape[:1], lambda i: batch(i[0]))))


def _ref_put(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, new, fill = (np.asarray(a) for a in arrays)
    held, length, y = _held(attrs).const, _length(attrs).const, x.copy()
    for b, n in enumerate(int(f) for f in fill):
        n = max(0, min(n, held))
        rows = max(0, min(new.shape[2], length - n))
        y[b, :, n:length] = 0
        y[b, :, n : n + rows] = new[b, :, :rows]
    return (y,)


ROWS: tuple[Op, ...] = (
    Op(
        "put_rows_after",
        "x new fill",
        _infer_put,
        _ref_put,
        (
            Case(
                ("f32[2, 3, 9, M]", "f32[2, 3, N, M]", np.array([4, 1], np.int64)),
                attrs={"held": to_dim(4), "length": to_dim(8)},
            ),
            Case(
                ("f32[2, 2, 7, 5]", "f32[2, 2, N, 5]", np.array([0, 9], np.int32)),
                attrs={"held": to_dim(3), "length": to_dim(7)},
            ),
        ),
        nest=_put,
    ),
    Op(
        "append_rows",
        "past new fill",
        _infer,
        _ref,
        (
            Case(
                ("f32[2, 3, 4, M]", "f32[2, 3, N, M]", np.array([4, 1], np.int64)),
                attrs={"length": to_dim(8)},
            ),
            Case(
                ("f32[1, 2, 0, 5]", "f32[1, 2, N, 5]", np.array([0], np.int64)), attrs={"length": to_dim(7)}
            ),
        ),
        compute=_append,
    ),
)
