"""Max pooling of regions: bins of an image whose rows and columns are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.core.dim import Dim, dmin, to_dim
from smelt.core.dtype import Array, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op, wants_elements
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[N, C, H, W], [R], [R, P, 2], [R, Q, 2] -> [R, C, P, Q]"""
    x, batch, rows, columns = args
    assert x and batch and rows and columns
    if (x.rank, batch.rank, rows.rank, columns.rank) != (4, 1, 3, 3):
        found = f"{x.rank}, {batch.rank}, {rows.rank} and {columns.rank}"
        raise c.fail(f"ranks are {found}, wanted 4, 1, 3 and 3")
    for what, a in (("rows", rows), ("columns", columns)):
        c.same(f"regions and {what}", batch.shape[0], a.shape[0])
        c.same(f"numbers of {what}", a.shape[2], to_dim(2))
    wants_elements(c, "the batch", batch.shape, x.shape[0])
    return (TensorType(x.dtype, (batch.shape[0], x.shape[1], rows.shape[1], columns.shape[1])),)


def _pooled(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, batch: Operand, rows: Operand, columns: Operand,
) -> Expr:  # fmt: skip
    """The maximum of x over a bin's rows and columns, each given as where they start and how many there are;
    0 where there are none."""
    region, channel, p, q = i
    height, width = x.shape[2:]

    def wide(e: Expr) -> Expr:
        return cast(e, i64)

    def within(n: Dim, top: Dim, left: Dim, down: Dim, across: Dim) -> Expr:
        def at(r: Dim, s: Dim) -> Expr:
            return x[n, channel, dmin(top + r, height - 1), dmin(left + s, width - 1)]

        none = call("lt", index(down * across, i64), const(1, i64))
        return select(none, const(0, x.dtype), t.reduce("max", [down, across], at))

    def bounded(a: Operand, k: Dim, extent: Dim, body: Callable[[Dim, Dim], Expr]) -> Expr:
        start, count = (wide(a[region, k, to_dim(n)]) for n in range(2))
        return t.let(start, 0, extent - 1, lambda s: t.let(count, 0, extent, lambda n: body(s, n)))

    def in_batch(n: Dim) -> Expr:
        return bounded(
            rows, p, height,
            lambda top, down: bounded(
                columns, q, width, lambda left, across: within(n, top, left, down, across)
            ),
        )  # fmt: skip

    return t.let(wide(batch[region]), 0, x.shape[0] - 1, in_batch)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, batch, rows, columns = (np.asarray(a) for a in arrays)
    y = np.zeros([d.const for d in types[0].shape], x.dtype)
    for r, p, q in np.ndindex(y.shape[0], *y.shape[2:]):
        (top, down), (left, across) = rows[r, p], columns[r, q]
        part = x[batch[r], :, top : top + down, left : left + across]
        if part.size:
            y[r, :, p, q] = part.max((1, 2))
    return (y,)


_ROWS = np.array([[[0, 2], [1, 4]], [[3, 0], [2, 1]]], np.int64)
_COLUMNS = np.array([[[0, 1], [1, 3], [4, 3]], [[0, 7], [6, 0], [6, 1]]], np.int64)

ROWS: tuple[Op, ...] = (
    Op(
        "max_region_pool",
        "x batch rows columns",
        _infer,
        _ref,
        (
            Case(("f32[2, 3, 6, 7]", np.array([1, 0], np.int64), _ROWS, _COLUMNS)),
            Case(("f32[2, N, 6, 7]", np.array([0, 1], np.int64), _ROWS, _COLUMNS)),
        ),
        compute=_pooled,
    ),
)
