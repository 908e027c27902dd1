"""The core op that evaluates decision forests, given as constant tables, for each row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.core.dim import ONE, TWO, ZERO, Dim, ceildiv, dmin, to_dim
from smelt.core.dtype import Array, bool_, i64
from smelt.core.ir.graph import Attr, TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import Trace, call, cast, const, index, select

MODES: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "leq": ("le", operator.le),
    "lt": ("lt", operator.lt),
    "gte": ("ge", operator.ge),
    "gt": ("gt", operator.gt),
    "eq": ("eq", operator.eq),
    "neq": ("ne", operator.ne),
}
"""The comparisons of nodes: name, intrinsic, NumPy function."""
MEMBER = "member"
BLOCK = 16
"""How many rows walk a tree before the next tree."""
START: Mapping[str, float] = {"add": 0.0, "min": float("inf"), "max": float("-inf")}
"""How leaves are joined, and the value of none."""


# ---------------------------------------------------------------- forest


def _infer_forest(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, threshold, weight = args[0], args[4], args[6]
    assert x and threshold and weight
    if x.rank != 2:
        raise c.fail(f"features have rank {x.rank}, wanted 2")
    if x.dtype != threshold.dtype:
        raise c.fail(f"features are {x.dtype}, thresholds {threshold.dtype}")
    c.at_most("features", to_dim(attrs["features"]), x.shape[1])  # type: ignore[arg-type]
    return (TensorType(weight.dtype, (x.shape[0], to_dim(attrs["targets"]))),)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Walk:
    """The tables of a forest as buffers, and the cell in which a row keeps the node where it stands."""

    trace: Trace
    attrs: Attrs
    x: Buffer
    root: Buffer
    depth: Buffer
    feature: Buffer
    threshold: Buffer
    child: Buffer
    weight: Buffer
    first: Buffer | None
    target: Buffer | None
    mode: Buffer | None
    missing: Buffer | None
    begin: Buffer | None
    members: Buffer | None
    cell: Buffer
    y: Buffer

    @property
    def nodes(self) -> Dim:
        return self.feature.shape[0]

    @property
    def leaves(self) -> Dim:
        return self.weight.shape[0] if self.first is None else self.first.shape[0] - 1

    def at(self, b: Buffer, *i: Dim) -> Load:
        return Load(b.name, i, b.dtype)

    def asks(self, node: Dim, value: Expr) -> Expr:
        """Whether the node sends the value to its first child."""
        threshold = self.at(self.threshold, node)
        answer: Expr | None = None
        for code, name in enumerate(str(self.attrs["modes"]).split()):
            one = self.member(node, value) if name == MEMBER else call(MODES[name][0], value, threshold)
            if answer is None:
                answer = one
            else:
                assert self.mode
                mode = self.at(self.mode, node)
                answer = select(call("eq", mode, const(code, mode.dtype)), one, answer)
        assert answer is not None
        if self.missing is not None:
            answer = call("or", answer, call("and", self.at(self.missing, node), call("isnan", value)))
        return answer

    def member(self, node: Dim, value: Expr) -> Expr:
        """Whether the node's set has the value."""
        begin, members = self.begin, self.members
        assert begin and members
        size = members.shape[0]

        def among(low: Dim, high: Dim) -> Expr:
            return self.trace.reduce(
                "any", (high - low,), lambda k: call("eq", self.at(members, low + k), value), bool_
            )

        low, high = (cast(self.at(begin, node + k), i64) for k in (ZERO, ONE))
        return self.trace.let(low, 0, size, lambda a: self.trace.let(high, a, size, lambda b: among(a, b)))

    def step(self, n: Dim) -> Stmt:
        """A step from an inner node to a child, without a branch; a leaf stays."""
        node, feature, side = (self.trace.fresh("g") for _ in range(3))
        at, inner = dmin(node, self.nodes - 1), call("lt", index(node), index(self.nodes))
        asks = call("not", self.asks(at, self.at(self.x, n, feature)))
        after = select(inner, cast(self.at(self.child, at, side), i64), index(node))
        walk = Block(
            (Store(self.cell.name, (n, ZERO), after),),
            let=(
                (str(feature), cast(self.at(self.feature, at), i64), ZERO, self.x.shape[1] - 1),
                (str(side), cast(asks, i64), ZERO, ONE),
            ),
        )
        here = (str(node), self.at(self.cell, n, ZERO), ZERO, self.nodes + self.leaves - 1)
        return Block((walk,), let=(here,))

    def unless_leaf(self, n: Dim, then: Stmt) -> Stmt:
        """The statement for a row that stands at an inner node."""
        node = self.trace.fresh("g")
        here = (str(node), self.at(self.cell, n, ZERO), ZERO, self.nodes + self.leaves - 1)
        return Block((Block((then,), guard=(Bound(ZERO, node, self.nodes),)),), let=(here,))

    def reap(self, n: Dim) -> Stmt:
        """Join what the leaf holds into the row's targets."""
        leaf, low, high, k = *(self.trace.fresh("g") for _ in range(3)), self.trace.fresh("i")
        held = call("sub", self.at(self.cell, n, ZERO), index(self.nodes))
        here = (str(leaf), held, ZERO, self.leaves - 1)
        if self.first is None:
            return Block(self.entry(n, leaf), let=(here,))
        entries, first = self.weight.shape[0], self.first
        return Block(
            (Loop("serial", str(k), high - low, self.entry(n, low + k)),),
            let=(
                here,
                (str(low), cast(self.at(first, leaf), i64), ZERO, entries),
                (str(high), cast(self.at(first, leaf + 1), i64), low, entries),
            ),
        )

    def entry(self, n: Dim, k: Dim) -> tuple[Stmt, ...]:
        weight, join = self.at(self.weight, k), str(self.attrs["join"])
        if self.target is None:
            return (Store(self.y.name, (n, ZERO), weight, join),)
        target = self.trace.fresh("g")
        to = (str(target), cast(self.at(self.target, k), i64), ZERO, self.y.shape[1] - 1)
        return (Block((Store(self.y.name, (n, target), weight, join),), let=(to,)),)

    def block(self, first: Dim, count: Dim) -> Loop:
        """Some rows, tree by tree: what a tree needs stays in the nearest cache for all of them. They go down
        together: a row's loads wait for each other and overlap with those of other rows."""
        c, tree, depth, enter, leave = (self.trace.fresh("i") for _ in range(5))
        start = const(START[str(self.attrs["join"])], self.y.dtype)

        def rows(row: Dim, *body: Stmt) -> Loop:
            return Loop("serial", str(row), count, body)

        s, row, deep, late = (self.trace.fresh("i") for _ in range(4))
        sure = dmin(depth, to_dim(self.attrs["sure"]))  # type: ignore[arg-type]
        clear = Loop("serial", str(c), self.y.shape[1], (Store(self.y.name, (first + enter, c), start),))
        root = Store(self.cell.name, (first + enter, ZERO), cast(self.at(self.root, tree), i64))
        one = self.unless_leaf(first + late, self.step(first + late))
        rest = Loop("serial", str(deep), depth - sure, (one,))  # few rows come so far
        walk = (
            rows(enter, Block((clear,), guard=(Bound(ZERO, tree, ONE),)), root),
            Loop("serial", str(s), sure, (rows(row, self.step(first + row)),)),
            rows(late, self.unless_leaf(first + late, rest)),
            rows(leave, self.reap(first + leave)),
        )
        height = (str(depth), cast(self.at(self.depth, tree), i64), ZERO, self.nodes)
        return Loop("serial", str(tree), self.root.shape[0], (Block(walk, let=(height,)),))


def _forest(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Rows walk one tree after the other; the leaf that one reaches adds to its targets."""
    cell = Buffer("cell", i64, (outputs[0].shape[0], ONE))
    given: list[Any] = [*inputs, *[None] * (13 - len(inputs)), cell, outputs[0]]
    walk = _Walk(t, attrs, *given)
    b, rows = t.fresh("i"), cell.shape[0]
    body = walk.block(b * BLOCK, dmin(rows - b * BLOCK, BLOCK))
    return Nest((Loop("serial", str(b), ceildiv(rows, to_dim(BLOCK)), (body,)),), (cell,))


def _ref_forest(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    given = [*arrays, *[None] * (13 - len(arrays))]
    x, root, _, feature, threshold, child, weight, first, target, mode, missing, begin, members = given
    assert x is not None and root is not None and feature is not None and threshold is not None
    assert child is not None and weight is not None
    first = np.arange(len(weight) + 1) if first is None else first
    target = np.zeros(len(weight), np.int64) if target is None else target
    names = str(attrs["modes"]).split()
    join = {"add": np.add, "min": np.minimum, "max": np.maximum}[str(attrs["join"])]
    y = np.full([d.const for d in types[0].shape], START[str(attrs["join"])], types[0].dtype.numpy)

    def asks(node: int, v: Any) -> bool:
        name = names[0 if mode is None else int(mode[node])]
        if missing is not None and missing[node] and np.isnan(v):
            return True
        if name == MEMBER:
            assert begin is not None and members is not None
            return bool((members[begin[node] : begin[node + 1]] == v).any())
        return bool(MODES[name][1](v, threshold[node]))

    for n in range(len(x)):
        for at in root:
            while at < len(feature):
                at = child[at, 0 if asks(at, x[n, feature[at]]) else 1]
            leaf = at - len(feature)
            for k in range(first[leaf], first[leaf + 1]):
                y[n, target[k]] = join(y[n, target[k]], weight[k])
    return (y,)


# ---------------------------------------------------------------- cases


def _case_forest(modes: str, join: str = "add", x: Any = "f32[N, 3]", **more: Any) -> Case:
    """Two trees of two inner nodes each, and one that is a leaf; leaf 2 holds nothing, leaf 3 two entries."""
    size = len(modes.split())
    alone = more.get("alone")
    weight = np.array([0.5, -1, 2, 3, -0.75, 4, 0.125], more.get("dtype", np.float32))
    tables = (
        np.array([0, 2, 4 + 6], np.int32),
        np.array([2, 2, 0], np.int32),
        np.array([0, 2, 1, 0], np.int32),
        np.array([0.5, -0.25, 0, 1], more.get("dtype", np.float32)),
        np.array([[1, 4], [5, 6], [7, 3], [8, 9]], np.int32),
        weight,
    )
    optional = (
        "-" if alone else np.array([0, 1, 2, 2, 4, 5, 6, 7], np.int32),
        "-" if alone else np.array([0, 1, 0, 1, 0, 1, 1], np.int32),
        np.arange(4, dtype=np.uint8) % size if size > 1 else "-",
        np.array([True, False, True, True]) if more.get("missing") else "-",
        np.array([0, 0, 2, 2, 3], np.int32) if MEMBER in modes else "-",
        np.array([1, -1, 2], np.float32) if MEMBER in modes else "-",
    )
    attrs: dict[str, Attr] = {"modes": modes, "join": join, "sure": more.get("sure", 1)}
    return Case((x, *tables, *optional), attrs={**attrs, "targets": TWO, "features": to_dim(3)})


_ODD = np.array([[np.nan, 1, -1], [0.5, np.nan, np.nan], [np.inf, -np.inf, 2]], np.float32)

ROWS: tuple[Op, ...] = (
    Op(
        "forest",
        "x root depth feature threshold child weight first? target? mode? missing? begin? members?",
        _infer_forest,
        _ref_forest,
        (
            _case_forest("leq"),
            _case_forest("leq", alone=True, sure=3),
            _case_forest("gt", "min", sure=0),
            _case_forest("lt gte eq neq", "max", missing=True),
            _case_forest("leq member", x=_ODD),
            _case_forest("neq", x=_ODD, missing=True),
            _case_forest("gte", x="f64[N, 3]", dtype=np.float64),
        ),
        nest=_forest,
    ),
)

__all__ = ["MEMBER", "MODES", "ROWS"]
