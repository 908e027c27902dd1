"""Binding of Det: expansion along the first row for small matrices, elimination for those of any size."""

from __future__ import annotations

from smelt.core.dim import Dim, product
from smelt.core.dtype import f32, f64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.scan import counted
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp

SMALL = 3
"""Rows of a matrix whose determinant is written out."""


def _det(c: Call) -> Ref:
    shape = c.shape(0)
    if len(shape) < 2:
        raise c.fail(f"input has rank {len(shape)}, wanted square matrices")
    n = c.engine.same("rows and columns", shape[-2], shape[-1])
    return _written_out(c, n.const) if n.is_const and n.const <= SMALL else _eliminated(c, n)


def _written_out(c: Call, n: int) -> Ref:
    """The sum over the first row of elements times the determinants of what is left, signs alternating."""
    b, shape = c.builder, c.shape(0)
    rank = len(shape)

    def element(row: int, column: int) -> Ref:
        part = b.slice_axis(b.slice_axis(c.x(), rank - 2, row, row + 1), rank - 1, column, column + 1)
        return b.reshape(part, shape[:-2])

    def minor(row: int, columns: tuple[int, ...]) -> Ref:
        if not columns:
            return b.broadcast_to(c.scalar(1, c.x()), shape[:-2])
        total = ""
        for k, column in enumerate(columns):
            rest = minor(row + 1, columns[:k] + columns[k + 1 :])
            term = c.emit("mul", element(row, column), rest) if len(columns) > 1 else element(row, column)
            total = term if not total else c.emit("sub" if k % 2 else "add", total, term)
        return total

    return minor(0, tuple(range(n)))


def _eliminated(c: Call, n: Dim) -> Ref:
    """The product of the pivots of Gauss's elimination, each the largest that is left in its column."""
    b, shape, dtype = c.builder, c.shape(0), c.type(0).dtype
    batch = c.engine.simplify(product(shape[:-2]))
    x = b.reshape(b.cast(c.x(), f64 if dtype == f64 else f32), (batch, n, n))
    rows = c.iota(n)
    one = b.broadcast_to(b.scalar(1, x), (batch,))

    def step(r: GraphBuilder, k: Dim | Ref, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        at = k if isinstance(k, str) else r.from_dims([k], ())
        m, found = states
        zero, unit = r.scalar(0, m), r.scalar(1, m)
        column = r.emit("abs", [r.emit("gather", [m, at], {"axis": 2})])
        left = r.emit("where", [r.emit("less", [rows, at]), r.scalar(-1, m), column])
        best = r.emit("argmax", [left], {"axis": 1, "keepdims": False, "last": False})
        m = r.emit("gather_elements", [m, _swapped(r, rows, at, best, batch, n)], {"axis": 1})
        row = r.emit("gather", [m, at], {"axis": 1})
        pivot = r.emit("gather", [row, at], {"axis": 1})
        sign = r.emit("where", [r.emit("equal", [best, at]), unit, r.scalar(-1, m)])
        flat = r.emit("equal", [pivot, zero])
        by = r.reshape(r.emit("where", [flat, unit, pivot]), (batch, 1))
        factor = r.emit("div", [r.emit("gather", [m, at], {"axis": 2}), by])
        below = r.emit("where", [r.emit("greater", [rows, at]), factor, zero])
        part = r.emit("mul", [r.reshape(below, (batch, n, 1)), r.reshape(row, (batch, 1, n))])
        found = r.emit("mul", [r.emit("mul", [found, pivot]), sign])
        return [r.emit("sub", [m, part]), found], []

    (_, found), _ = counted(c, n, [x, one], step)
    return b.cast(b.reshape(found, shape[:-2]), dtype)


def _swapped(r: GraphBuilder, rows: Ref, k: Ref, best: Ref, batch: Dim, n: Dim) -> Ref:
    """i64[batch, n, n]: the row that each row takes when rows k and best[batch] change places."""
    best = r.reshape(best, (batch, 1))
    order = r.emit("where", [r.emit("equal", [rows, best]), k, rows])
    order = r.emit("where", [r.emit("equal", [rows, k]), best, order])
    return r.broadcast_to(r.reshape(order, (batch, n, 1)), (batch, n, n))


ROWS: tuple[OnnxOp, ...] = (OnnxOp("Det", 11, _det),)
