"""The core op for probabilities of classes from those of pairs of classes, by an iteration per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, TWO, ZERO, Dim, to_dim
from smelt.core.dtype import Array, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

ROUNDS = 100
"""Most rounds, and ACCURACY how near to the end the last one must come, as in ONNX Runtime."""
ACCURACY = 0.005
TOTAL, STEP, GOES_ON = range(3)
"""Cells of a row: p' Q p, the step of the class at hand, whether another round is wanted."""


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """r [rows, classes, classes] -> [rows, classes]; r[n, i, j] is the probability of i among i and j."""
    (r,) = args
    assert r
    if r.rank != 3:
        raise c.fail(f"pairwise probabilities have rank {r.rank}, wanted 3")
    c.same("classes", r.shape[1], r.shape[2])
    return (TensorType(r.dtype, r.shape[:2]),)


@dataclass(frozen=True)
class _Row:
    """The iteration for row n. p [rows, classes] are the probabilities, q [rows, classes, classes] the
    quadratic form that they minimise, qp its product with p."""

    trace: Trace
    r: Buffer
    p: Buffer
    q: Buffer
    qp: Buffer
    cells: Buffer
    n: Dim

    @property
    def classes(self) -> Dim:
        return self.r.shape[1]

    def k(self, v: float) -> Expr:
        return const(v, self.r.dtype)

    def at(self, b: Buffer, *i: Dim) -> Load:
        return Load(b.name, (self.n, *i), b.dtype)

    def put(self, b: Buffer, i: tuple[Dim, ...], e: Expr, accumulate: str | None = None) -> Store:
        return Store(b.name, (self.n, *i), e, accumulate)

    def cell(self, c: int) -> Load:
        return self.at(self.cells, to_dim(c))

    def keep(self, c: int, e: Expr) -> Store:
        return self.put(self.cells, (to_dim(c),), e)

    def each(self, n: Dim, body: Callable[[Dim], tuple[Stmt, ...]]) -> Loop:
        v = self.trace.fresh("i")
        return Loop("serial", str(v), n, body(v))

    def when(self, c: int, body: tuple[Stmt, ...]) -> Block:
        """The statements where the cell is 1."""
        on = self.trace.fresh("g")
        guarded = Block(body, guard=(Bound(ONE, on, TWO),))
        return Block((guarded,), let=((str(on), cast(self.cell(c), i64), ZERO, ONE),))

    def prepare(self, i: Dim) -> tuple[Stmt, ...]:
        """Row i of q, and equal probabilities."""
        r = self.r

        def own(j: Dim) -> Expr:
            square = call("mul", self.at(r, j, i), self.at(r, j, i))
            return select(call("eq", index(i), index(j)), self.k(0), square)

        def other(j: Dim) -> tuple[Stmt, ...]:
            return (self.put(self.q, (i, j), call("neg", call("mul", self.at(r, j, i), self.at(r, i, j)))),)

        return (
            self.put(self.p, (i,), call("div", self.k(1), cast(index(self.classes), r.dtype))),
            self.each(self.classes, other),
            self.put(self.q, (i, i), self.trace.sum((self.classes,), own)),
        )

    def shift(self, i: Dim) -> tuple[Stmt, ...]:
        """Class i takes its step; everything is scaled back to a sum of one."""
        p, q, qp, step, total = self.p, self.q, self.qp, self.cell(STEP), self.cell(TOTAL)
        scale = call("add", self.k(1), step)
        grown = call("add", call("mul", step, self.at(q, i, i)), call("mul", self.k(2), self.at(qp, i)))
        moved_total = call("add", total, call("mul", step, grown))

        def scaled(j: Dim) -> tuple[Stmt, ...]:
            moved = call("add", self.at(qp, j), call("mul", step, self.at(q, i, j)))
            return (
                self.put(qp, (j,), call("div", moved, scale)),
                self.put(p, (j,), call("div", self.at(p, j), scale)),
            )

        return (
            self.keep(STEP, call("div", call("sub", total, self.at(qp, i)), self.at(q, i, i))),
            self.put(p, (i,), step, "add"),
            self.keep(TOTAL, call("div", call("div", moved_total, scale), scale)),
            self.each(self.classes, scaled),
        )

    def turn(self) -> tuple[Stmt, ...]:
        """One round: q p anew, and unless that is flat enough a step of every class."""
        p, q, qp, classes, t = self.p, self.q, self.qp, self.classes, self.trace

        def product(i: Dim) -> tuple[Stmt, ...]:
            e = t.sum((classes,), lambda j: call("mul", self.at(q, i, j), self.at(p, j)))
            return (self.put(qp, (i,), e),)

        def away(i: Dim) -> Expr:
            return call("abs", call("sub", self.at(qp, i), self.cell(TOTAL)))

        limit = call("div", self.k(ACCURACY), cast(index(classes), self.r.dtype))
        flat = call("lt", t.reduce("max", (classes,), away), limit)
        return (
            self.each(classes, product),
            self.keep(TOTAL, t.sum((classes,), lambda i: call("mul", self.at(p, i), self.at(qp, i)))),
            self.keep(GOES_ON, select(flat, self.k(0), self.k(1))),
            self.when(GOES_ON, (self.each(classes, self.shift),)),
        )

    def statements(self) -> tuple[Stmt, ...]:
        return (
            self.keep(GOES_ON, self.k(1)),
            self.each(self.classes, self.prepare),
            self.each(to_dim(ROUNDS), lambda _: (self.when(GOES_ON, self.turn()),)),
        )


def _coupled(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """The iteration of Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise
    coupling" (2004), stopped as ONNX Runtime does."""
    (r,), (p,) = inputs, outputs
    assert r
    q, qp = Buffer("q", r.dtype, r.shape), Buffer("qp", r.dtype, p.shape)
    cells = Buffer("cells", r.dtype, (r.shape[0], to_dim(GOES_ON + 1)))

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        return _Row(t, r, p, q, qp, cells, o[0]).statements()

    return Nest(nest_over(t, r.shape[:1], row), (q, qp, cells))


def _ref(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    (r,) = arrays
    assert r is not None
    count = r.shape[1]
    y = np.zeros(r.shape[:2], r.dtype)
    for n, own in enumerate(r):
        q = -(own.T * own)
        np.fill_diagonal(q, (own**2).sum(0) - np.diag(own) ** 2)
        p = np.full(count, 1 / max(count, 1), r.dtype)
        for _ in range(ROUNDS):
            qp = q @ p
            total = p @ qp
            if not count or np.abs(qp - total).max() < r.dtype.type(ACCURACY) / count:
                break
            for i in range(count):
                step = (total - qp[i]) / q[i, i]
                p[i] += step
                total = (total + step * (step * q[i, i] + 2 * qp[i])) / (1 + step) / (1 + step)
                qp = (qp + step * q[i]) / (1 + step)
                p = p / (1 + step)
        y[n] = p
    return (y,)


_PAIRS = np.array(
    [[[0, 0.7, 0.2], [0.3, 0, 0.9], [0.8, 0.1, 0]], [[0, 0.5, 0.6], [0.5, 0, 0.5], [0.4, 0.5, 0]]], np.float32
)

ROWS: tuple[Op, ...] = (Op("coupled", "r", _infer, _ref, (Case((_PAIRS,)),), nest=_coupled),)
