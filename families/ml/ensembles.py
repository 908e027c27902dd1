"""Bindings of tree ensembles: one core op evaluates the forest, others turn its sums into scores and
labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.core.dim import to_dim
from smelt.core.dtype import Array, DType, f32, f64, from_numpy
from smelt.core.ir.graph import Ref
from smelt.families.ml.forest import CODES, Forest, from_leaves, from_nodes
from smelt.families.ml.ops.trees import START
from smelt.families.ml.scores import (
    TRANSFORMS,
    chosen,
    class_count,
    column,
    constant,
    labels,
    probit,
    rows,
    transform_name,
    transformed,
    two_columns,
)
from smelt.importer.attributes import integers, numbers, texts
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import ML

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""TreeEnsemble counts them in this order."""
SPARE = 4
"""Levels below those of a full tree that rows walk without a test for a leaf (benchmarks/results/ops.md)."""
JOIN = {"AVERAGE": "add", "SUM": "add", "MIN": "min", "MAX": "max"}


def _scores(c: Call, x: Ref, f: Forest, targets: int, join: str = "add") -> Ref:
    """What the leaves that each row reaches hold, joined per target: [rows, targets]."""
    b = c.builder
    if len(f.target) and not 0 <= int(f.target.min()) <= int(f.target.max()) < targets:
        raise c.fail(f"a leaf has target {int(f.target.max())} of {targets}")
    if targets == 1:
        f = f.single()
    used = sorted(set(f.mode.tolist()))
    member = len(f.members) > 0 or CODES[used[-1]] == "member"
    alone = bool((np.diff(f.first) == 1).all())  # each leaf has one entry
    full = (len(f.first) // len(f.root)).bit_length()  # levels of a full tree with as many leaves
    tables: list[Array | None] = [
        f.root, f.depth, _small(f.feature), f.threshold, _small(f.child), f.weight,
        None if alone else f.first,
        None if alone and targets == 1 else f.target,
        np.searchsorted(np.array(used), f.mode).astype(np.uint8) if len(used) > 1 else None,
        f.missing if f.missing.any() and f.threshold.dtype.kind == "f" else None,
        f.begin if member else None,
        (f.members if len(f.members) else np.zeros(1, f.threshold.dtype)) if member else None,
    ]  # fmt: skip
    refs = ["" if a is None else b.constant(a) for a in tables]
    return c.emit(
        "forest",
        x,
        *refs,
        modes=" ".join(CODES[k] for k in used),
        join=join,
        targets=to_dim(targets),
        sure=full + SPARE,
        features=to_dim(int(f.feature.max()) + 1),
    )


def _small(a: Array) -> Array:
    """Positions in the smallest unsigned integer type that holds them."""
    return a.astype(np.uint16 if int(a.max(initial=0)) < 2**16 else np.uint32)


def _typed(f: Forest, dtype: DType) -> Forest:
    """The forest with numbers of that type."""
    to = dtype.numpy
    return replace(
        f, threshold=f.threshold.astype(to), weight=f.weight.astype(to), members=f.members.astype(to)
    )


def _prepared(c: Call, f: Forest) -> tuple[Ref, Forest]:
    """Rows and forest of one type: double when the features or the thresholds are."""
    double = f64 in (c.type().dtype, from_numpy(f.threshold.dtype), from_numpy(f.weight.dtype))
    dtype = f64 if double else f32
    return rows(c, dtype), _typed(f, dtype)


# ---------------------------------------------------------------- regressors


def _regressed(c: Call, f: Forest, targets: int, aggregate: str, base: Array, after: str) -> Ref:
    if aggregate not in JOIN:
        raise c.fail(f"aggregate_function '{aggregate}' is none of {', '.join(AGGREGATES)}")
    if len(base) not in (0, targets):
        raise c.fail(f"base_values has {len(base)} elements, wanted {targets}")
    if targets < 1:
        raise c.fail(f"{targets} targets")
    x, f = _prepared(c, f)
    join = JOIN[aggregate]
    y = _scores(c, x, f, targets, join)
    if aggregate == "AVERAGE":
        y = c.emit("div", y, c.scalar(len(f.root), y))
    # a target that no leaf has is 0; more targets than entries need no closer look
    if join != "add" and (targets > len(f.target) or not f.surely(targets).all()):
        y = c.emit("where", c.emit("equal", y, c.scalar(START[join], y)), c.scalar(0, y), y)
    if len(base):
        y = c.emit("add", y, constant(c, base, y))
    if targets == 1:  # as ONNX Runtime: a single target knows no other transform
        return probit(c, y) if after == "PROBIT" else y
    return transformed(c, y, after)


def _regressor(c: Call) -> Ref:
    f = from_nodes(c, "target")
    aggregate, base = c.text("aggregate_function", "SUM"), numbers(c, "base_values")
    y = _regressed(c, f, c.integer("n_targets"), aggregate, base, transform_name(c))
    return c.cast(y, f32)


def _ensemble(c: Call) -> Ref:
    aggregate, after = c.integer("aggregate_function", 1), c.integer("post_transform", 0)
    if not 0 <= aggregate < len(AGGREGATES) or not 0 <= after < len(TRANSFORMS):
        raise c.fail(f"aggregate_function {aggregate} or post_transform {after} is not known")
    none = np.zeros(0, np.float32)
    y = _regressed(
        c, from_leaves(c), c.integer("n_targets"), AGGREGATES[aggregate], none, TRANSFORMS[after]
    )
    return c.cast(y, c.type().dtype)


# ---------------------------------------------------------------- classifiers


@dataclass(frozen=True)
class _Ensemble:
    """A classifier's parts. has: for each class whether every row, no row, or (a ref: bool[rows, 1]) some
    rows get a score."""

    c: Call
    scores: Ref
    has: tuple[bool | Ref, ...]
    base: Array
    after: str
    binary: bool
    positive: bool

    def add(self, y: Ref, k: int) -> Ref:
        return self.c.emit("add", y, constant(self.c, self.base[k], y))

    def masked(self, y: Ref, k: int) -> Ref:
        """A score; 0 where class k has none, whatever its base value."""
        has, zero = self.has[k], self.c.scalar(0, y)
        if isinstance(has, str):
            return self.c.emit("where", has, y, zero)
        return y if has else self.c.emit("mul", y, zero)

    def label(self, score: Ref) -> Ref:
        """Positions i64[rows] of the two classes."""
        c = self.c
        bar = 0.5 if self.binary and self.positive else 0.0
        return chosen(c, c.emit("greater", score, c.scalar(bar, score)))

    def named(self, at: Ref) -> Ref:
        """The labels of positions of two classes, or of one."""
        if self.binary or texts(self.c, "classlabels_strings"):
            return labels(self.c, at, "classlabels_int64s")
        return at  # as ONNX Runtime: 1 and 0, whatever the labels are

    def several(self) -> tuple[Ref, Ref]:
        """More than two classes: the best of those that have a score."""
        c, y = self.c, self.scores
        if len(self.base):
            y = c.emit("add", y, constant(c, self.base, y))
        ranked = y
        if not len(self.base) and not all(h is True for h in self.has):
            none = constant(c, -np.inf, y)
            parts = [
                column(c, y, k) if h is True
                else c.emit("where", h, column(c, y, k), none) if isinstance(h, str)
                else c.builder.broadcast_to(none, (c.builder.type_of(y).shape[0], 1))
                for k, h in enumerate(self.has)
            ]  # fmt: skip
            ranked = c.emit("concat", *parts, axis=1)
        at = c.emit("argmax", ranked, axis=1, keepdims=False, last=False)
        return labels(c, at, "classlabels_int64s"), transformed(c, y, self.after)

    def two(self, second: bool) -> tuple[Ref, Ref]:
        """Positions and scores of two classes, of which the second has a score or not."""
        c, (a, b) = self.c, (column(self.c, self.scores, k) for k in (0, 1))
        count = len(self.base)
        if second and count == 2:
            b = self.add(a, 1)
            a = self.masked(c.emit("neg", b), 0)
        else:
            a = self.masked(self.add(a, 0) if count else a, 0)
        label = self.label(b if second else a)
        if second or count == 2:
            return label, transformed(c, c.emit("concat", a, b, axis=1), self.after)
        if not self.binary and count:  # the second one is left open
            first = probit(c, a) if self.after == "PROBIT" else a
            return label, c.emit("concat", first, c.emit("mul", a, c.scalar(0, a)), axis=1)
        return label, two_columns(c, a, self.after, self.binary and self.positive)

    def one(self) -> tuple[Ref, Ref]:
        """Positions and scores of a single class."""
        if len(self.base) > 1:
            raise self.c.unsupported("two base values for one class")
        y = self.add(self.scores, 0) if len(self.base) else self.scores
        return self.label(y), probit(self.c, y) if self.after == "PROBIT" else y

    def results(self) -> tuple[Ref, Ref]:
        """Labels and scores."""
        if len(self.has) == 1:
            at, scores = self.one()
            return self.named(at), scores
        if len(self.has) > 2:
            return self.several()
        second = self.has[1]
        if isinstance(second, bool):
            at, scores = self.two(second)
            return self.named(at), scores
        with_, without = self.two(True), self.two(False)
        c = self.c
        flat = c.builder.reshape(second, (c.builder.type_of(second).shape[0],))
        # labels last: they may be strings
        at = c.emit("where", flat, with_[0], without[0])
        return self.named(at), c.emit("where", second, with_[1], without[1])


def _has(c: Call, x: Ref, f: Forest, classes: int) -> tuple[bool | Ref, ...]:
    """Whether rows get a score for each class, by the forest alone where that says it."""
    surely, ever = f.surely(classes), np.isin(np.arange(classes), f.target)
    if (surely | ~ever).all():
        return tuple(bool(s) for s in surely)
    count = _scores(c, x, replace(f, weight=np.ones_like(f.weight)), classes)
    found = c.emit("greater", count, c.scalar(0, count))
    return tuple(
        bool(s) if s or not e else column(c, found, k)
        for k, (s, e) in enumerate(zip(surely, ever, strict=True))
    )


def _classifier(c: Call) -> tuple[Ref, Ref]:
    """Labels and scores exactly as ONNX Runtime has them, with its cases for two classes."""
    f = from_nodes(c, "class")
    classes, base = class_count(c, "classlabels_int64s"), numbers(c, "base_values")
    allowed = (0, 1, 2) if classes <= 2 else (0, classes)
    if len(base) not in allowed:
        raise c.fail(f"base_values has {len(base)} elements, wanted {' or '.join(map(str, allowed))}")
    x, f = _prepared(c, f)
    y = _scores(c, x, f, classes)
    ids, weights = integers(c, "class_ids"), numbers(c, "class_weights")
    parts = _Ensemble(
        c,
        y,
        _has(c, x, f, classes),
        base,
        transform_name(c),
        classes == 2 and len(set(ids.tolist())) == 1,
        not (weights < 0).any(),
    )
    label, scores = parts.results()
    return label, c.cast(scores, f32)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("TreeEnsembleRegressor", 1, _regressor, ML),
    OnnxOp("TreeEnsembleClassifier", 1, _classifier, ML),
    OnnxOp("TreeEnsemble", 5, _ensemble, ML),
)
