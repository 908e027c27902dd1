"""Bindings of classical models' ops: n-gram counts, feature extraction, thresholds, linear models."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from smelt.core.dim import dmax, product
from smelt.core.dtype import f32, i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import inside
from smelt.importer.call import Build, Call, OnnxOp

ML = "ai.onnx.ml"


def _tf_idf(c: Call) -> Ref:
    """How often each n-gram of the pool occurs, with up to max_skip_count elements between its members."""
    b = c.builder
    if c.given("pool_strings"):
        raise c.unsupported("a pool of strings")
    pool, starts = c.ints("pool_int64s"), [*c.ints("ngram_counts"), len(c.ints("pool_int64s"))]
    places = c.ints("ngram_indexes")
    shape = c.shape()
    if len(shape) not in (1, 2):
        raise c.fail(f"input has rank {len(shape)}, wanted 1 or 2")
    x = c.cast(b.reshape(c.x(), (1, shape[0])) if len(shape) == 1 else c.x(), i64)
    first, counted = 0, []
    for size, (start, end) in enumerate(itertools.pairwise(starts), 1):
        grams = np.array(pool[start:end], np.int64).reshape(-1, size)
        own, first = places[first : first + len(grams)], first + len(grams)
        if len(grams) and c.integer("min_gram_length") <= size <= c.integer("max_gram_length"):
            counted.append((own, _occurrences(c, x, grams)))
    total = max(places, default=-1) + 1
    order = [p for own, _ in counted for p in own]
    spread = np.zeros((len(order), total), np.float32)
    spread[np.arange(len(order)), order] = 1.0
    if not counted:
        return b.broadcast_to(b.constant(np.array(0, np.float32)), (*shape[:-1], total))
    found = c.emit("concat", *(n for _, n in counted), axis=1) if len(counted) > 1 else counted[0][1]
    y = c.emit("matmul", found, b.constant(spread))
    mode = c.text("mode")
    if mode in ("IDF", "TFIDF"):
        given = c.floats("weights", (1.0,) * total)
        weights = np.ones(total, np.float32)
        weights[list(places)] = [given[k] for k in range(len(places))]
        base = c.emit("min", y, c.scalar(1, y)) if mode == "IDF" else y
        y = c.emit("mul", base, b.constant(weights))
    return b.reshape(y, (*shape[:-1], total))


def _occurrences(c: Call, x: Ref, grams: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Ref:
    """f32[batch, grams]."""
    b = c.builder
    batch, n = b.type_of(x).shape
    count, size = grams.shape
    total = ""
    for skip in range(c.integer("max_skip_count") + 1 if size > 1 else 1):
        pace = skip + 1
        windows = c.engine.simplify(dmax(n - (size - 1) * pace, 0))
        hits = ""
        for k in range(size):
            part = b.slice_axis(x, 1, c.engine.simplify(n - dmax(n - k * pace, 0)), n)
            part = b.slice_axis(part, 1, 0, windows)
            same = c.emit(
                "equal", b.reshape(part, (batch, 1, windows)), b.constant(grams[:, k].reshape(1, count, 1))
            )
            hits = c.emit("and", hits, same) if hits else same
        found = c.emit("reduce_sum", b.cast(hits, f32), axes=(2,), keepdims=False)
        total = c.emit("add", total, found) if total else found
    return total


def _array_features(c: Call) -> Ref:
    """Columns of the last axis by index."""
    b, rank = c.builder, c.type(0).rank
    at = b.reshape(c.cast(c.x(1), i64), (c.engine.simplify(product(c.shape(1))),))
    x = b.reshape(c.x(0), (1, c.shape(0)[0])) if rank == 1 else c.x(0)
    inside(c, at, c.shape(0)[-1], "index of the last axis", wraps=False)
    return c.emit("gather", x, at, axis=max(rank, 2) - 1)


def _binarizer(c: Call) -> Ref:
    x = c.x()
    return c.cast(c.emit("greater", x, c.scalar(c.number("threshold", 0.0), x)), c.type().dtype)


def _scaler(c: Call) -> Ref:
    """(x - offset) * scale, per feature."""
    x = c.cast(c.x(), f32)
    for name, op in (("offset", "sub"), ("scale", "mul")):
        values = c.floats(name, ())
        if values:
            array = np.array(values, np.float32)
            x = c.emit(op, x, c.builder.constant(array if array.size > 1 else array.reshape(())))
    return x


def _normalizer(c: Call) -> Ref:
    x, norm = c.cast(c.x(), f32), c.text("norm", "MAX")
    ops = {"MAX": "reduce_max", "L1": "reduce_l1", "L2": "reduce_l2"}
    if norm not in ops:
        raise c.fail(f"norm '{norm}' is none of MAX, L1, L2")
    return c.emit("div", x, c.emit(ops[norm], x, axes=(c.type().rank - 1,), keepdims=True))


POST: dict[str, str] = {"NONE": "", "LOGISTIC": "sigmoid"}


def _linear_regressor(c: Call) -> Ref:
    b = c.builder
    targets = c.integer("targets", 1)
    weights = np.array(c.floats("coefficients"), np.float32).reshape(targets, -1)
    y = c.emit("matmul", c.cast(c.x(), f32), b.constant(np.ascontiguousarray(weights.T)))
    if c.given("intercepts"):
        y = c.emit("add", y, b.constant(np.array(c.floats("intercepts"), np.float32)))
    after = c.text("post_transform", "NONE")
    if after == "SOFTMAX":
        return c.emit("softmax", y, axis=1)
    if after not in POST:
        raise c.unsupported(f"post_transform '{after}'")
    return c.emit(POST[after], y) if POST[after] else y


KEYS: dict[str, Any] = {"keys_int64s": np.int64, "keys_floats": np.float32}
VALUES: dict[str, tuple[Any, str, float]] = {
    "values_int64s": (np.dtype(np.int64), "default_int64", -1),
    "values_floats": (np.dtype(np.float32), "default_float", -0.0),
}


def _label_encoder(c: Call) -> Ref:
    """A table from numbers to numbers, looked up by comparing with every key."""
    b = c.builder
    keys = next((k for k in KEYS if c.given(k)), None)
    values = next((v for v in VALUES if c.given(v)), None)
    if keys is None or values is None:
        raise c.unsupported("tables with strings, or in tensors")
    dtype, name, missing = VALUES[values]
    of = np.array(c.ints(keys) if keys.endswith("int64s") else c.floats(keys), KEYS[keys])
    to = np.array(c.ints(values) if values.endswith("int64s") else c.floats(values), dtype)
    default = c.integer(name, int(missing)) if name.endswith("int64") else c.number(name, float(missing))
    shape, n = c.shape(), len(of)
    wide = b.reshape(c.x(), (*shape, 1))
    hit = c.emit("equal", wide, b.constant(of))
    if of.dtype.kind == "f":  # NaN is a key like others
        hit = c.emit("or", hit, c.emit("and", c.emit("isnan", wide), b.constant(np.isnan(of))))
    order = b.constant(np.arange(n, dtype=np.int64))
    first = c.emit("where", hit, order, c.scalar(n, order))
    at = c.emit("reduce_min", first, axes=(len(shape),), keepdims=False)
    return c.emit("gather", b.constant(np.concatenate([to, np.array([default], dtype)])), at, axis=0)


def _ml(name: str, build: Build) -> OnnxOp:
    return OnnxOp(name, 1, build, ML)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("TfIdfVectorizer", 9, _tf_idf),
    _ml("ArrayFeatureExtractor", _array_features),
    _ml("Binarizer", _binarizer),
    _ml("Scaler", _scaler),
    _ml("Normalizer", _normalizer),
    _ml("LinearRegressor", _linear_regressor),
    OnnxOp("LabelEncoder", 2, _label_encoder, ML),
)
