"""Bindings of classical models' features: scaling, filling gaps, picking, joining, encoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.core.dim import dmin, product, to_dim
from smelt.core.dtype import f32, f64, i64
from smelt.core.ir.graph import Ref
from smelt.core.ops.table import Array
from smelt.importer.attributes import integers, tensor, texts
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.ml_scores import ML, constant
from smelt.importer.call import Build, Call, OnnxOp


def _array_features(c: Call) -> Ref:
    """Columns of the last axis by index."""
    b, rank = c.builder, c.type(0).rank
    if rank == 0:
        raise c.fail("input has rank 0, wanted at least 1")
    at = b.reshape(c.cast(c.x(1), i64), (c.engine.simplify(product(c.shape(1))),))
    x = b.reshape(c.x(0), (1, c.shape(0)[0])) if rank == 1 else c.x(0)
    inside(c, at, c.shape(0)[-1], "index of the last axis", wraps=False)
    return c.emit("gather", x, at, axis=max(rank, 2) - 1)


def _binarizer(c: Call) -> Ref:
    x = c.x()
    return c.cast(c.emit("greater", x, c.scalar(c.number("threshold", 0.0), x)), c.type().dtype)


def _per_feature(c: Call, name: str, values: Array, x: Ref, alone: bool = False) -> Ref:
    """One value for all features, or one for each; `alone`: else the first for all."""
    shape = c.builder.type_of(x).shape
    if not len(shape):
        raise c.fail("input has rank 0, wanted at least 1")
    features = shape[0] if len(shape) == 1 else shape[1]
    if len(values) == 1:
        return c.scalar(values[0], x)
    if alone and c.builder.compare_dims(features, to_dim(len(values))) is False:
        return c.scalar(values[0], x)
    c.engine.same(f"features and {name}", features, to_dim(len(values)))
    return constant(c, values.reshape(-1, *[1] * max(len(shape) - 2, 0)), x)


def _scaler(c: Call) -> Ref:
    """(x - offset) * scale, per feature."""
    x = c.cast(c.x(), f64 if c.type().dtype == f64 else f32)
    for name, op in (("offset", "sub"), ("scale", "mul")):
        values = np.array(c.floats(name, ()), np.float32)
        if len(values):
            x = c.emit(op, x, _per_feature(c, name, values, x))
    return c.cast(x, f32)


def _normalizer(c: Call) -> Ref:
    """Rows divided by their norm; those of norm 0 stay."""
    x, norm = c.cast(c.x(), f32), c.text("norm", "MAX")
    ops = {"MAX": "reduce_max", "L1": "reduce_l1", "L2": "reduce_l2"}
    if norm not in ops:
        raise c.fail(f"norm '{norm}' is none of MAX, L1, L2")
    if c.type().rank not in (1, 2):
        raise c.fail(f"input has rank {c.type().rank}, wanted 1 or 2")
    size = c.emit(ops[norm], x, axes=(c.type().rank - 1,), keepdims=True)
    none = c.emit("equal", size, c.scalar(0, size))
    return c.emit("div", x, c.emit("where", none, c.scalar(1, size), size))


def _imputer(c: Call) -> Ref:
    """What equals replaced_value (NaN too) becomes the feature's value."""
    x, dtype = c.x(), c.type().dtype
    floats = np.array(c.floats("imputed_value_floats", ()), np.float32)
    values = floats if dtype.is_float else integers(c, "imputed_value_int64s")
    if not len(values):
        raise c.fail(f"there are no imputed values of a type that fits {dtype}")
    if dtype.is_float:
        old: float = c.number("replaced_value_float", 0.0)
        gone = c.emit("isnan", x) if np.isnan(old) else c.emit("equal", x, c.scalar(np.float32(old), x))
    else:
        gone = c.emit("equal", x, c.scalar(c.integer("replaced_value_int64", 0), x))
    return c.emit("where", gone, _per_feature(c, "imputed values", values, x, alone=True), x)


def _feature_vectorizer(c: Call) -> Ref:
    """The inputs' features side by side, each cut or filled up with zeros to its own count."""
    wanted, b = c.ints("inputdimensions"), c.builder
    if len(wanted) != len(c.inputs):
        raise c.fail(f"{len(c.inputs)} inputs, inputdimensions has {len(wanted)} elements")
    parts = []
    for i, count in enumerate(wanted):
        shape = c.shape(i)
        flat = (to_dim(1), *shape) if len(shape) == 1 else (shape[0], product(shape[1:]))
        if len(shape) == 0:
            raise c.fail(f"input {i} has rank 0, wanted at least 1")
        x = b.reshape(c.cast(c.x(i), f32), flat)
        size = b.type_of(x).shape[1]
        keep = c.engine.simplify(dmin(size, count))
        x = b.slice_axis(x, 1, 0, keep)
        if keep != to_dim(count):
            before, after = (to_dim(0), to_dim(0)), (to_dim(0), count - keep)
            x = c.emit("pad", x, c.scalar(0, x), before=before, after=after, mode="constant")
        parts.append(x)
    return c.emit("concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def _one_hot(c: Call) -> Ref:
    """1 at the place of the element's category; nothing for others, unless `zeros` is 0."""
    if texts(c, "cats_strings"):
        raise c.unsupported("categories that are strings")
    values, b, shape = integers(c, "cats_int64s"), c.builder, c.shape()
    if not len(values):
        raise c.fail("there are no categories")
    last = {int(v): k for k, v in enumerate(values)}
    hits = c.emit("equal", b.reshape(c.cast(c.x(), i64), (*shape, 1)), b.constant(values))
    if len(last) < len(values):  # the last of equal categories
        hits = c.emit("and", hits, b.constant(np.array([last[int(v)] == k for k, v in enumerate(values)])))
    y = c.cast(hits, f32)
    if not c.integer("zeros", 1):
        unknown = c.emit("sub", c.scalar(1, y), c.emit("reduce_sum", y, axes=(len(shape),), keepdims=False))
        total = c.emit("reduce_sum", c.cast(unknown, i64), axes=tuple(range(len(shape))), keepdims=False)
        b.dims_of(total, "elements of no category", 0, to_dim(0))
    return y


KEYS: dict[str, Any] = {"keys_int64s": np.int64, "keys_floats": np.float32}
VALUES: dict[str, tuple[Any, str, float]] = {
    "values_int64s": (np.int64, "default_int64", -1),
    "values_floats": (np.float32, "default_float", -0.0),
}


def _table(c: Call) -> tuple[Array, Array, Any]:
    """Keys, values and the default of a label encoder between numbers."""
    if any(c.given(k) for k in ("keys_strings", "values_strings", "classes_strings")):
        raise c.unsupported("tables with strings")
    keys, values = tensor(c, "keys_tensor"), tensor(c, "values_tensor")
    for name, kind in KEYS.items():
        if c.given(name):
            keys = np.array(c.ints(name) if kind is np.int64 else c.floats(name), kind)
    default = tensor(c, "default_tensor")
    for name, (kind, other, missing) in VALUES.items():
        if not c.given(name):
            continue
        ints = kind is np.int64
        values = np.array(c.ints(name) if ints else c.floats(name), kind)
        default = np.array(c.integer(other, int(missing)) if ints else c.number(other, missing), kind)
    if keys is None or values is None or keys.size != values.size:
        raise c.fail("wanted as many keys as values")
    if default is None:
        default = np.array(-1 if values.dtype.kind in "iu" else -0.0)
    if keys.dtype == object or values.dtype == object:
        raise c.unsupported("tables with strings")
    return keys.reshape(-1), values.reshape(-1), default.reshape(-1)[:1].astype(values.dtype)


def _label_encoder(c: Call) -> Ref:
    """A table from numbers to numbers, looked up by comparing with every key."""
    b, (of, to, default) = c.builder, _table(c)
    shape, n = c.shape(), len(of)
    wide = b.reshape(c.cast(c.x(), b.type_of(b.constant(of)).dtype), (*shape, 1))
    hit = c.emit("equal", wide, b.constant(of))
    if of.dtype.kind == "f" and c.opset >= 4:  # NaN is a key like others
        hit = c.emit("or", hit, c.emit("and", c.emit("isnan", wide), b.constant(np.isnan(of))))
    order = b.constant(np.arange(n, dtype=np.int64))
    first = c.emit("where", hit, order, c.scalar(n, order))
    at = c.emit("reduce_min", first, axes=(len(shape),), keepdims=False)
    return c.emit("gather", b.constant(np.concatenate([to, default])), at, axis=0)


def _no_maps(c: Call) -> Ref:
    raise c.unsupported("maps from keys to values", try_="an export without maps (zipmap=False)")


def _ml(name: str, build: Build, since: int = 1) -> OnnxOp:
    return OnnxOp(name, since, build, ML)


ROWS: tuple[OnnxOp, ...] = (
    _ml("ArrayFeatureExtractor", _array_features),
    _ml("Binarizer", _binarizer),
    _ml("Scaler", _scaler),
    _ml("Normalizer", _normalizer),
    _ml("Imputer", _imputer),
    _ml("FeatureVectorizer", _feature_vectorizer),
    _ml("OneHotEncoder", _one_hot),
    _ml("LabelEncoder", _label_encoder),
    _ml("ZipMap", _no_maps),
    _ml("CastMap", _no_maps),
    _ml("DictVectorizer", _no_maps),
)

__all__ = ["ROWS"]
