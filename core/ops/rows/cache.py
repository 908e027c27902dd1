"""Rows appended to a cache whose fill differs by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Expr
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, const, index, select


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


ROWS: tuple[Op, ...] = (
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
