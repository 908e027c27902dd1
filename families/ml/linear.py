"""Bindings of linear models and support vector machines: products with constant matrices, then votes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.core.dim import to_dim
from smelt.core.dtype import Array, f32, f64, i64
from smelt.core.ir.graph import Ref
from smelt.families.ml.scores import (
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
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import ML

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _floats(c: Call, name: str) -> Array:
    return np.array(c.floats(name, ()), np.float32)


def _matrix(c: Call, name: str, count: int) -> Array:
    """A list of floats as f32[count, features]."""
    values = _floats(c, name)
    if not count or not len(values) or len(values) % count:
        raise c.fail(f"{name} has {len(values)} elements, wanted a multiple of {count}")
    return values.reshape(count, -1)


def _product(c: Call, x: Ref, weights: Array) -> Ref:
    """x times the rows of weights: [rows, len(weights)]."""
    c.engine.same("features", c.builder.type_of(x).shape[1], to_dim(weights.shape[1]))
    return c.emit("matmul", x, constant(c, np.ascontiguousarray(weights.T), x))


# ---------------------------------------------------------------- linear models


def _linear_regressor(c: Call) -> Ref:
    targets, after = c.integer("targets", 1), transform_name(c)
    y = _product(c, rows(c, f32), _matrix(c, "coefficients", targets))
    base = _floats(c, "intercepts")
    if len(base) == targets:
        y = c.emit("add", y, constant(c, base, y))
    if targets == 1:  # as ONNX Runtime: a single target knows no other transform
        return probit(c, y) if after == "PROBIT" else y
    return transformed(c, y, after)


def _linear_classifier(c: Call) -> tuple[Ref, Ref]:
    classes, after, base = class_count(c, "classlabels_ints"), transform_name(c), _floats(c, "intercepts")
    count = len(base) or classes
    y = _product(c, rows(c, f32), _matrix(c, "coefficients", count))
    if len(base):
        y = c.emit("add", y, constant(c, base, y))
    if count > 1:
        if count > classes:
            raise c.fail(f"{count} scores for {classes} classes")
        at = c.emit("argmax", y, axis=1, keepdims=False, last=False)
        return labels(c, at, "classlabels_ints"), transformed(c, y, after)
    at = chosen(c, c.emit("greater", y, c.scalar(0, y)))
    if classes == 2:
        return labels(c, at, "classlabels_ints"), two_columns(c, y, after, share=True)
    if c.given("classlabels_strings"):
        raise c.unsupported("one score and other than two class labels")
    return at, probit(c, y) if after == "PROBIT" else y


# ---------------------------------------------------------------- support vectors


def _kernel(c: Call, x: Ref, vectors: Array) -> Ref:
    """The kernel of every row with every vector: [rows, vectors]."""
    kind, params = c.text("kernel_type", "LINEAR"), (*c.floats("kernel_params", ()), 0.0, 0.0, 0.0)
    gamma, base, degree = params[:3]
    if kind == "RBF":
        b = c.builder
        n, f = b.type_of(x).shape
        c.engine.same("features", f, to_dim(vectors.shape[1]))
        away = c.emit("sub", b.reshape(x, (n, 1, f)), constant(c, vectors, x))
        far = c.emit("reduce_sum", c.emit("mul", away, away), axes=(2,), keepdims=False)
        return c.emit("exp", c.emit("mul", far, c.scalar(-gamma, far)))
    y = _product(c, x, vectors)
    if kind == "LINEAR":
        return y
    if kind not in KERNELS:
        raise c.fail(f"kernel_type '{kind}' is none of {', '.join(KERNELS)}")
    y = c.emit("add", c.emit("mul", y, c.scalar(gamma, y)), c.scalar(base, y))
    if kind == "SIGMOID":
        return c.emit("tanh", y)
    if degree in (2.0, 3.0):
        square = c.emit("mul", y, y)
        return square if degree == 2.0 else c.emit("mul", square, y)
    return c.emit("pow", y, c.scalar(degree, y))


def _svm_regressor(c: Call) -> Ref:
    count, rho, x = c.integer("n_supports", 0), _floats(c, "rho"), rows(c, f32)
    if len(rho) < 1:
        raise c.fail("rho is empty")
    if count > 0:
        near = _kernel(c, x, _matrix(c, "support_vectors", count))
        y = _product(c, near, _matrix(c, "coefficients", 1))
    else:
        y = _product(c, x, _matrix(c, "coefficients", 1))
    y = c.emit("add", y, c.scalar(float(rho[0]), y))
    if c.flag("one_class"):
        one = c.scalar(1, y)
        y = c.emit("where", c.emit("greater", y, c.scalar(0, y)), one, c.emit("neg", one))
    return y


@dataclass(frozen=True)
class _Pairs:
    """The pairs of classes i < j, in order, and the coefficients of each: f64[vectors, pairs]."""

    pairs: tuple[tuple[int, int], ...]
    weights: Array


def _pairs(c: Call, classes: int, per_class: tuple[int, ...]) -> _Pairs:
    count = sum(per_class)
    coefficients = _matrix(c, "coefficients", classes - 1) if classes > 1 else np.zeros((0, count))
    if coefficients.shape[1] != count:
        raise c.fail(f"coefficients has {coefficients.size} elements, wanted {(classes - 1) * count}")
    ends = np.cumsum(per_class)
    spans = [slice(int(e) - n, int(e)) for e, n in zip(ends, per_class, strict=True)]
    pairs = tuple((i, j) for i in range(classes) for j in range(i + 1, classes))
    weights = np.zeros((count, len(pairs)), np.float64)
    for p, (i, j) in enumerate(pairs):
        weights[spans[i], p] = coefficients[j - 1, spans[i]]
        weights[spans[j], p] = coefficients[i, spans[j]]
    return _Pairs(pairs, weights)


def _svm_classifier(c: Call) -> tuple[Ref, Ref]:
    """One score per class (a linear model), or votes of each pair of classes."""
    classes, after, x = class_count(c, "classlabels_ints"), transform_name(c), rows(c, f32)
    per_class, rho = c.ints("vectors_per_class", ()), _floats(c, "rho")
    if not sum(per_class):
        return _svm_linear(c, x, classes, rho, after)
    if len(per_class) != classes or classes < 2:
        raise c.fail(f"vectors_per_class has {len(per_class)} elements for {classes} classes")
    p = _pairs(c, classes, per_class)
    if len(rho) < len(p.pairs):
        raise c.fail(f"rho has {len(rho)} elements, wanted {len(p.pairs)}")
    near = c.cast(_kernel(c, x, _matrix(c, "support_vectors", sum(per_class))), f64)
    sums = c.emit("matmul", near, c.builder.constant(p.weights))
    sums = c.emit("add", sums, constant(c, rho[: len(p.pairs)], sums))
    label = labels(c, _most_votes(c, sums, p, classes), "classlabels_ints")
    scores = c.cast(sums, f32)
    a, b = _floats(c, "prob_a"), _floats(c, "prob_b")
    if len(a) != len(b):
        raise c.fail(f"prob_a has {len(a)} elements, prob_b {len(b)}")
    if len(a):
        if len(a) < len(p.pairs):
            raise c.fail(f"prob_a has {len(a)} elements, wanted {len(p.pairs)}")
        return label, transformed(c, _probabilities(c, scores, p, classes, a, b), after)
    if classes == 2:
        return label, two_columns(c, scores, after, share=after != "NONE")
    return label, transformed(c, scores, after)


def _svm_linear(c: Call, x: Ref, classes: int, rho: Array, after: str) -> tuple[Ref, Ref]:
    weights = _matrix(c, "coefficients", classes)
    if len(rho) < 1:
        raise c.fail("rho is empty")
    y = _product(c, x, weights)
    y = c.emit("add", y, c.scalar(float(rho[0]), y))
    at = c.emit("argmax", y, axis=1, keepdims=False, last=False)
    if classes == 2 and not len(_floats(c, "prob_a")):  # the second class as soon as a score passes a bar
        top = c.emit("reduce_max", y, axes=(1,), keepdims=False)
        positive = bool((weights >= 0).all())
        passed = c.emit("greater_equal" if positive else "greater", top, c.scalar(0.5 * positive, top))
        at = c.emit("where", passed, c.scalar(1, at), at)
    if classes == 1:
        return labels(c, at, "classlabels_ints"), probit(c, y) if after == "PROBIT" else y
    return labels(c, at, "classlabels_ints"), transformed(c, y, after)


def _most_votes(c: Call, sums: Ref, p: _Pairs, classes: int) -> Ref:
    """The first class with the most won pairs: i64[rows]."""
    first, second = np.zeros((2, len(p.pairs), classes), np.float32)
    for k, (i, j) in enumerate(p.pairs):
        first[k, i], second[k, j] = 1, 1
    won = c.cast(c.emit("greater", sums, c.scalar(0, sums)), f32)
    lost = c.emit("sub", c.scalar(1, won), won)
    b = c.builder
    votes = c.emit(
        "add", c.emit("matmul", won, b.constant(first)), c.emit("matmul", lost, b.constant(second))
    )
    return c.cast(c.emit("argmax", votes, axis=1, keepdims=False, last=False), i64)


def _probabilities(c: Call, scores: Ref, p: _Pairs, classes: int, a: Array, b: Array) -> Ref:
    """Probabilities of classes from those of pairs, themselves logistic in the scores."""
    line = c.emit("add", c.emit("mul", scores, constant(c, a[: len(p.pairs)], scores)),
                  constant(c, b[: len(p.pairs)], scores))  # fmt: skip
    one = c.scalar(1, line)
    wins = c.emit("sub", one, c.emit("sigmoid", line))
    wins = c.emit("clip", wins, c.scalar(1e-7, wins), c.scalar(np.float32(1) - np.float32(1e-7), wins))
    loses = c.emit("sub", one, wins)
    nothing = c.emit("mul", column(c, wins, 0), c.scalar(0, wins))
    cells = [nothing] * (classes * classes)
    for k, (i, j) in enumerate(p.pairs):
        cells[i * classes + j], cells[j * classes + i] = column(c, wins, k), column(c, loses, k)
    n = c.builder.type_of(scores).shape[0]
    square = c.builder.reshape(c.emit("concat", *cells, axis=1), (n, classes, classes))
    return c.emit("coupled", square)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("LinearRegressor", 1, _linear_regressor, ML),
    OnnxOp("LinearClassifier", 1, _linear_classifier, ML),
    OnnxOp("SVMRegressor", 1, _svm_regressor, ML),
    OnnxOp("SVMClassifier", 1, _svm_classifier, ML),
)
