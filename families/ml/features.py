"""Bindings of ai.onnx.ml's feature ops: scaling, imputation, selection, concatenation, encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.core.dim import Dim, dmin, product, to_dim
from smelt.core.dtype import Array, f32, f64, i64
from smelt.core.ir.graph import Ref
from smelt.families.ml.scores import constant, rows
from smelt.importer import sequences as sq
from smelt.importer import strings as st
from smelt.importer.attributes import integers, tensor, text, texts
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.standard.select import sorted_by
from smelt.importer.bindings.text.strings import aware
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.domains import ML


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
    """1 above the threshold. Of integers: x > t is x > floor(t), and t may lie beyond them all."""
    x, threshold, dtype = c.x(), c.number("threshold", 0.0), c.type().dtype
    if dtype.is_float:
        return c.cast(c.emit("greater", x, c.scalar(threshold, x)), dtype)
    low, high = dtype.limits
    if threshold < low:
        return c.cast(c.emit("greater_equal", x, c.scalar(low, x)), dtype)
    whole = math.floor(threshold) if threshold < high else high
    return c.cast(c.emit("greater", x, c.scalar(whole, x)), dtype)


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
    """x with elements equal to replaced_value (NaN too) replaced by the feature's imputed value."""
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
    """1 at the place of the element's category, the last of equal ones. Others have none, which is an error
    where `zeros` is 0."""
    strings, values, b = texts(c, "cats_strings"), integers(c, "cats_int64s"), c.builder
    count = len(strings) or len(values)
    if not count:
        raise c.fail("there are no categories")
    if strings:
        at, place = st.found(b, st.text(c), strings), np.array([strings.index(s) for s in strings])
        wide, wanted = at, place
    else:
        wide, wanted = c.cast(c.x(), i64), values
    shape = b.type_of(wide).shape
    hits = c.emit("equal", b.reshape(wide, (*shape, 1)), b.constant(wanted))
    last = {int(v): k for k, v in enumerate(wanted)}
    if len(last) < count:
        hits = c.emit("and", hits, b.constant(np.array([last[int(v)] == k for k, v in enumerate(wanted)])))
    y = c.cast(hits, f32)
    if not c.flag("zeros", 1):
        unknown = c.emit("sub", c.scalar(1, y), c.emit("reduce_sum", y, axes=(len(shape),), keepdims=False))
        total = c.emit("reduce_sum", c.cast(unknown, i64), axes=tuple(range(len(shape))), keepdims=False)
        b.dims_of(total, "elements of no category", 0, to_dim(0))
    return y


# ---------------------------------------------------------------- tables

READERS: dict[str, Callable[[Call, str], Array]] = {
    "strings": lambda c, name: np.array(texts(c, name), object),
    "int64s": integers,
    "floats": lambda c, name: np.array(c.floats(name, ()), np.float32),
}
DEFAULTS: dict[str, Callable[[Call], Any]] = {
    "strings": lambda c: text(c, "default_string", "_Unused"),
    "int64s": lambda c: c.integer("default_int64", -1),
    "floats": lambda c: c.number("default_float", -0.0),
}
NO_DEFAULT: dict[str, Any] = {"O": "_Unused", "i": -1, "u": 0, "f": -0.0}


def _side(c: Call, side: str) -> tuple[Array, str]:
    """The keys or values of a label encoder, and in which attribute they are ('tensor', 'strings', ...)."""
    own = tensor(c, f"{side}_tensor")
    if own is not None:
        return own.reshape(-1), "tensor"
    for kind, read in READERS.items():
        if c.given(f"{side}_{kind}"):
            return read(c, f"{side}_{kind}"), kind
    raise c.fail(f"there are no {side}")


def _label_encoder(c: Call) -> Ref:
    """A table from strings or numbers to strings or numbers."""
    (keys, _), (values, kind) = _side(c, "keys"), _side(c, "values")
    if len(keys) != len(values):
        raise c.fail(f"{len(keys)} keys and {len(values)} values")
    default = tensor(c, "default_tensor")
    if default is not None and (
        default.size != 1 or (default.dtype.kind == "O") != (values.dtype.kind == "O")
    ):
        raise c.fail("default_tensor is not one element of the values' type")
    if kind != "tensor":
        other = DEFAULTS[kind](c)
    else:
        other = NO_DEFAULT[values.dtype.kind] if default is None else default.reshape(-1)[0]
    return _looked_up(c, keys, values, other)


def _looked_up(c: Call, keys: Array, values: Array, default: Any) -> Ref:
    b = c.builder
    at = st.found(b, st.text(c), keys.tolist()) if keys.dtype == object else _position(c, keys)
    if values.dtype == object:
        return st.chosen(b, [*values.tolist(), str(default)], at)
    table = np.concatenate([values, np.array([default]).astype(values.dtype)])
    return c.emit("gather", b.constant(table), at, axis=0)


def _position(c: Call, of: Array) -> Ref:
    """Which key each number is, by comparing with every one; their count for none."""
    b, shape, n = c.builder, c.shape(), len(of)
    keys = b.constant(of)
    wide = b.reshape(c.cast(c.x(), b.type_of(keys).dtype), (*shape, 1))
    hit = c.emit("equal", wide, keys)
    if of.dtype.kind == "f" and c.opset >= 4:  # NaN is a key like others
        hit = c.emit("or", hit, c.emit("and", c.emit("isnan", wide), b.constant(np.isnan(of))))
    order = b.constant(np.arange(n, dtype=np.int64))
    first = c.emit("where", hit, order, c.scalar(n, order))
    return c.emit("reduce_min", first, axes=(len(shape),), keepdims=False) if n else _none(c, shape)


def _none(c: Call, shape: Sequence[Dim]) -> Ref:
    return c.builder.broadcast_to(c.builder.constant(np.array(0, np.int64)), shape)


def _old_label_encoder(c: Call) -> Ref:
    """Between class names and their numbers, whichever the input is."""
    names = np.array(texts(c, "classes_strings"), object)
    return _both_ways(c, names, np.arange(len(names)))


def _category_mapper(c: Call) -> Ref:
    names, numbers = np.array(texts(c, "cats_strings"), object), integers(c, "cats_int64s")
    if len(names) != len(numbers):
        raise c.fail(f"{len(names)} strings and {len(numbers)} integers")
    return _both_ways(c, names, numbers)


def _both_ways(c: Call, names: Array, numbers: Array) -> Ref:
    if st.is_text(c, 0):
        return _looked_up(c, names, numbers, c.integer("default_int64", -1))
    return _looked_up(c, numbers, names, text(c, "default_string", "_Unused"))


# ---------------------------------------------------------------- maps


def _zip_map(c: Call) -> Ref:
    """Rows of scores, each to be a map from the class labels."""
    names, numbers = texts(c, "classlabels_strings"), integers(c, "classlabels_int64s")
    if bool(len(names)) == bool(len(numbers)):
        raise c.fail("wanted one of classlabels_strings and classlabels_int64s")
    keys: tuple[int | str, ...] = names or tuple(numbers.tolist())
    y = rows(c, f32)
    c.engine.same("scores and class labels", c.builder.type_of(y).shape[1], to_dim(len(keys)))
    return sq.register(c.builder.store, sq.Maps(y, keys))


# ---------------------------------------------------------------- maps


def _map(c: Call) -> sq.Map:
    found = sq.compound_of(c.builder.store, c.x())
    if not isinstance(found, sq.Map):
        raise c.fail("input 0 is no map")
    return found


def _dict_vectorizer(c: Call) -> Ref:
    """[1, keys of the vocabulary]: the values that the map gives them, 0 for those that it has not."""
    b, m = c.builder, _map(c)
    words, numbers = texts(c, "string_vocabulary"), integers(c, "int64_vocabulary")
    if bool(words) == bool(len(numbers)):
        raise c.fail("wanted one of string_vocabulary and int64_vocabulary")
    chars = st.chars_of(b, m.keys)
    if (chars is not None) != bool(words):
        raise c.fail("the vocabulary is of another type than the map's keys")
    vocabulary: list[int | str] = list(words) or numbers.tolist()
    first = {k: n for n, k in reversed(list(enumerate(vocabulary)))}
    if chars is not None:
        at = st.found(b, chars, list(words))
    else:
        at = _places(c, m.keys, numbers)
    y = _laid_out(c, m.values, at, len(vocabulary))
    again = [first[k] for k in vocabulary]
    if again != sorted(set(again)):  # a key that stands there twice
        y = c.emit("gather", y, b.constant(np.array(again, np.int64)), axis=0)
    return b.reshape(y, (1, len(vocabulary)))


def _places(c: Call, keys: Ref, vocabulary: Array) -> Ref:
    """i64[n]: where each key stands first; the vocabulary's length for none."""
    b, (count,) = c.builder, c.builder.type_of(keys).shape
    same = c.emit("equal", b.reshape(keys, (count, 1)), b.constant(vocabulary.reshape(1, -1)))
    places = b.constant(np.arange(len(vocabulary)).reshape(1, -1))
    at = c.emit("where", same, places, c.scalar(len(vocabulary), places))
    return c.emit("reduce_min", at, axes=(1,), keepdims=False)


def _laid_out(c: Call, values: Ref, at: Ref, count: int) -> Ref:
    """[count]: each value at its place, 0 elsewhere; those at place `count` nowhere."""
    b = c.builder
    room = b.broadcast_to(c.scalar(0, values), (count + 1,))
    y = c.emit("scatter_elements", room, at, values, axis=0, reduction="none")
    return b.slice_axis(y, 0, 0, count)


CASTS = {"TO_FLOAT": f32, "TO_INT64": i64}


def _cast_map(c: Call) -> Ref:
    """[1, n]: the values in the order of their keys; or each at the place that its key says."""
    b, m, to, form = c.builder, _map(c), c.text("cast_to", "TO_FLOAT"), c.text("map_form", "DENSE")
    if to not in CASTS:
        raise c.unsupported(f"cast_to '{to}'", try_="TO_FLOAT or TO_INT64")
    if form not in ("DENSE", "SPARSE"):
        raise c.fail(f"map_form '{form}' is none of DENSE, SPARSE")
    if st.chars_of(b, m.keys) is not None:
        raise c.fail("the map's keys are strings, wanted integers")
    values, (count,) = c.cast(m.values, CASTS[to]), b.type_of(m.keys).shape
    if form == "DENSE":
        _, order = sorted_by(c, m.keys, count)
        return b.reshape(c.emit("gather", values, order, axis=0), (1, count))
    size = c.integer("max_map", 1)
    negative = c.emit("less", m.keys, c.scalar(0, m.keys))
    sq.refuse(b, negative, "negative_keys")
    at = c.emit("min", m.keys, c.scalar(size, m.keys))
    return b.reshape(_laid_out(c, values, at, size), (1, size))


def _ml(name: str, build: Build, since: int = 1) -> OnnxOp:
    return OnnxOp(name, since, build, ML)


ROWS: tuple[OnnxOp, ...] = (
    aware(_ml("ArrayFeatureExtractor", _array_features)),
    _ml("Binarizer", _binarizer),
    _ml("Scaler", _scaler),
    _ml("Normalizer", _normalizer),
    _ml("Imputer", _imputer),
    _ml("FeatureVectorizer", _feature_vectorizer),
    _ml("OneHotEncoder", _one_hot),
    _ml("LabelEncoder", _old_label_encoder),
    _ml("LabelEncoder", _label_encoder, 2),
    _ml("CategoryMapper", _category_mapper),
    _ml("ZipMap", _zip_map),
    _ml("CastMap", _cast_map),
    _ml("DictVectorizer", _dict_vectorizer),
)

__all__ = ["ROWS"]
