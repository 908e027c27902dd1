"""Bindings of Det and Inverse: Gaussian elimination, or cofactor expansion of a small determinant."""

from __future__ import annotations

from smelt.core.dim import Dim, product
from smelt.core.dtype import f32, f64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard.scan import counted
from smelt.importer.bindings.wide import wide
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

SMALL_MATRIX = 3
"""Most rows of a matrix whose determinant is expanded by cofactors."""


def _det(c: Call) -> Ref:
    shape = c.shape(0)
    if len(shape) < 2:
        raise c.fail(f"input has rank {len(shape)}, wanted square matrices")
    n = c.engine.same("rows and columns", shape[-2], shape[-1])
    return _written_out(c, n.const) if n.is_const and n.const <= SMALL_MATRIX else _eliminated(c, n)


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
    """The product of the pivots of Gauss's elimination, and of the signs of the exchanges of rows."""
    b, shape, dtype = c.builder, c.shape(0), c.type(0).dtype
    batch = c.engine.simplify(product(shape[:-2]))
    x = b.reshape(b.cast(c.x(), f64 if dtype == f64 else f32), (batch, n, n))
    rows = c.iota(n)
    one = b.broadcast_to(b.scalar(1, x), (batch,))

    def step(r: GraphBuilder, k: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        at, (m, found) = r.from_dims([k], ()), states
        zero, unit = r.scalar(0, m), r.scalar(1, m)
        m, best = _pivoted(r, m, at, rows)
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


def _pivoted(b: GraphBuilder, m: Ref, k: Ref, rows: Ref) -> tuple[Ref, Ref]:
    """m [batch, n, width] with row k and the one that has the largest element left in column k exchanged, and
    where that was: i64[batch]. rows: 0 .. n - 1."""
    batch, n, width = b.type_of(m).shape
    column = b.emit("abs", [b.emit("gather", [m, k], {"axis": 2})])
    left = b.emit("where", [b.emit("less", [rows, k]), b.scalar(-1, column), column])
    best = b.emit("argmax", [left], {"axis": 1, "keepdims": False, "last": False})
    other = b.reshape(best, (batch, 1))
    order = b.emit("where", [b.emit("equal", [rows, other]), k, rows])
    order = b.emit("where", [b.emit("equal", [rows, k]), other, order])
    order = b.broadcast_to(b.reshape(order, (batch, n, 1)), (batch, n, width))
    return b.emit("gather_elements", [m, order], {"axis": 1}), best


# ---------------------------------------------------------------- inverse


def _inverse(c: Call) -> Ref:
    """Gauss-Jordan elimination of [A | 1]."""
    b, dtype, own = c.builder, c.type(0).dtype, c.shape(0)
    if len(own) < 2:
        raise c.fail(f"input has rank {len(own)}, wanted square matrices")
    n = c.engine.same("rows and columns", own[-2], own[-1])
    batch = c.engine.simplify(product(own[:-2]))
    x = b.reshape(c.cast(c.x(0), wide(dtype)), (batch, n, n))
    rows = c.iota(n)
    unit = c.cast(c.emit("equal", b.reshape(rows, (n, 1)), rows), wide(dtype))
    both = c.emit("concat", x, b.broadcast_to(unit, (batch, n, n)), axis=2)

    def step(r: GraphBuilder, k: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        at = r.from_dims([k], ())
        m, _ = _pivoted(r, states[0], at, rows)
        row = r.emit("gather", [m, at], {"axis": 1})
        row = r.emit("div", [row, r.reshape(r.emit("gather", [row, at], {"axis": 1}), (batch, 1))])
        row = r.reshape(row, (batch, 1, n * 2))
        factor = r.reshape(r.emit("gather", [m, at], {"axis": 2}), (batch, n, 1))
        rest = r.emit("sub", [m, r.emit("mul", [factor, row])])
        here = r.reshape(r.emit("equal", [rows, at]), (n, 1))
        return [r.emit("where", [here, row, rest])], []

    (both,), _ = counted(c, n, [both], step)
    return c.cast(b.reshape(b.slice_axis(both, 2, n, n * 2), (*own[:-2], n, n)), dtype)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Det", 11, _det),
    OnnxOp("Inverse", 1, _inverse, MS),
)
