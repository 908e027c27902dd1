"""An operator of ai.onnx.ml -> a node of it on features at the edges of their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import forests
import numpy as np
from onnx import numpy_helper
from op_nodes import Case, pick
from op_values import Array, mild, plain, special

ML = "ai.onnx.ml"
NUMBERS = (np.float32, np.float64, np.int64, np.int32)
AFTER = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def _features(rng: np.random.Generator, columns: int, types: tuple[Any, ...] = NUMBERS) -> Array:
    dtype, count = pick(rng, types), int(rng.integers(0, 9))
    return mild(rng, plain(rng, dtype, (count, columns)))


def _node(op: str, *arrays: Array, outputs: int = 1, version: int = 3, **attrs: Any) -> Case:
    return Case(op, arrays, attrs, outputs, domain=ML, version=version, atol=2e-5, rtol=1e-4)


def _floats(rng: np.random.Generator, count: int) -> list[float]:
    return [float(v) for v in rng.normal(size=count)]


def _binarizer(rng: np.random.Generator, op: str) -> Case:
    x, threshold = special(rng, pick(rng, NUMBERS), (3, 7)), (0, 1, 2.5, -1, 3e9, -1e30, np.inf, np.nan)
    return _node(op, x, threshold=float(pick(rng, threshold)))


def _extractor(rng: np.random.Generator, op: str) -> Case:
    own = special(rng, pick(rng, NUMBERS), (4, 6))
    return _node(op, own, rng.integers(0, 6, int(rng.integers(1, 5))))


def _vectorizer(rng: np.random.Generator, op: str) -> Case:
    widths = [int(n) for n in rng.integers(1, 5, int(rng.integers(1, 4)))]
    dtype = pick(rng, NUMBERS)
    return _node(op, *(special(rng, dtype, (3, n)) for n in widths), inputdimensions=widths)


def _imputer(rng: np.random.Generator, op: str) -> Case:
    x, count = special(rng, pick(rng, (np.float32, np.int64)), (5, 4)), pick(rng, (1, 4))
    if x.dtype == np.int64:
        values = [int(v) for v in rng.integers(-5, 5, count)]
        return _node(op, x, imputed_value_int64s=values, replaced_value_int64=int(pick(rng, (0, 1, -1))))
    replaced = float(pick(rng, (np.nan, 0, 1)))
    return _node(op, x, imputed_value_floats=_floats(rng, count), replaced_value_float=replaced)


def _encoder(rng: np.random.Generator, op: str) -> Case:
    """By equal keys; the last of the floats' is NaN, which is equal to itself here."""
    if rng.random() < 0.5:
        keys = {"keys_int64s": [int(k) for k in rng.permutation(12)[:6]]}
        return _node(
            op, rng.integers(-2, 14, (4, 5)), **keys, values_floats=_floats(rng, 6), default_float=-7.0
        )
    keys_f = {"keys_floats": [1.0, 0.5, -1.0, 2.5, float("inf"), float("nan")]}
    values = {"values_int64s": [int(v) for v in rng.integers(-9, 9, 6)], "default_int64": -1}
    return _node(op, special(rng, np.float32, (4, 9)), **keys_f, **values)


def _linear_regressor(rng: np.random.Generator, op: str) -> Case:
    x, targets = _features(rng, 4, (np.float32,)), int(rng.integers(1, 4))
    own = {"coefficients": _floats(rng, 4 * targets), "intercepts": _floats(rng, targets)}
    return _node(op, x, **own, targets=targets, post_transform=pick(rng, AFTER[:3]))


def _linear_classifier(rng: np.random.Generator, op: str) -> Case:
    classes = int(rng.integers(3, 5))
    own = {"coefficients": _floats(rng, 4 * classes), "intercepts": _floats(rng, classes)}
    labels = {"classlabels_ints": [int(k) for k in rng.permutation(9)[:classes]]}
    return _node(op, _features(rng, 4), outputs=2, **own, **labels, post_transform=pick(rng, AFTER))


def _normalizer(rng: np.random.Generator, op: str) -> Case:
    return _node(op, _features(rng, 5), norm=pick(rng, ("MAX", "L1", "L2")))


def _one_hot(rng: np.random.Generator, op: str) -> Case:
    cats = [int(k) for k in rng.permutation(9)[:5]]
    return _node(op, rng.integers(0, 9, (3, 4)), cats_int64s=cats, zeros=1)


def _scaler(rng: np.random.Generator, op: str) -> Case:
    count = pick(rng, (1, 5))
    return _node(op, _features(rng, 5), offset=_floats(rng, count), scale=_floats(rng, count))


def _kernel(rng: np.random.Generator, vectors: int) -> Mapping[str, Any]:
    own = {"support_vectors": _floats(rng, vectors * 4), "kernel_params": [0.4, 0.3, 2.0]}
    return {**own, "kernel_type": pick(rng, ("LINEAR", "POLY", "RBF", "SIGMOID"))}


def _svm_regressor(rng: np.random.Generator, op: str) -> Case:
    own = {"coefficients": _floats(rng, 3), "rho": _floats(rng, 1), "n_supports": 3}
    return _node(op, _features(rng, 4, (np.float32,)), **own, **_kernel(rng, 3), post_transform="NONE")


def _svm_classifier(rng: np.random.Generator, op: str) -> Case:
    per_class = [2, 3, 2]
    vectors = sum(per_class)
    own = {"coefficients": _floats(rng, 2 * vectors), "rho": _floats(rng, 3), "vectors_per_class": per_class}
    x = _features(rng, 4)
    return _node(op, x, outputs=2, **own, **_kernel(rng, vectors), classlabels_ints=[4, 2, 7])


def _rows(rng: np.random.Generator, types: tuple[Any, ...] = NUMBERS) -> Array:
    dtype = np.dtype(pick(rng, types))
    return np.asarray(forests.rows(rng, int(rng.integers(0, 12)), 4, dtype.kind == "f")).astype(dtype)


def _forest(rng: np.random.Generator, kind: str, count: int) -> dict[str, Any]:
    modes = forests.MODES if rng.random() < 0.5 else ("BRANCH_LEQ",)
    own = forests.nodes(rng, int(rng.integers(1, 6)), 4, 4, modes)
    form = pick(rng, ("first", "all", "tree", "some"))
    return {**own, **forests.leaves(rng, own, kind, count, form), **forests.missing(rng, own)}


def _tree_regressor(rng: np.random.Generator, op: str) -> Case:
    targets = int(rng.integers(1, 4))
    how = {"aggregate_function": pick(rng, ("SUM", "AVERAGE", "MIN", "MAX")), "n_targets": targets}
    return _node(op, _rows(rng), **_forest(rng, "target", targets), **how, post_transform=pick(rng, AFTER))


def _tree_classifier(rng: np.random.Generator, op: str) -> Case:
    classes = int(rng.integers(3, 5))
    own = _forest(rng, "class", classes) | {"classlabels_int64s": [3, 7, 5, 9][:classes]}
    return _node(op, _rows(rng), outputs=2, **own, post_transform=pick(rng, AFTER))


def _tree_ensemble(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, (np.float32, np.float64))
    tensor = numpy_helper.from_array
    modes = np.array([int(m) for m in rng.integers(0, 6, 3)], np.uint8)
    own = {
        "tree_roots": [0, 2], "nodes_featureids": [0, 2, 1], "leaf_targetids": [0, 1, 0, 1, 1],
        "nodes_modes": tensor(modes), "nodes_splits": tensor(np.array([0.5, 1.0, 0.0], dtype)),
        "leaf_weights": tensor(rng.normal(size=5).astype(dtype)), "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1], "nodes_falsenodeids": [2, 1, 4], "nodes_falseleafs": [1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 1], "n_targets": 2,
        "aggregate_function": int(rng.integers(4)), "post_transform": int(pick(rng, (0, 3))),
    }  # fmt: skip
    return _node(op, _rows(rng, (dtype,)), version=5, **own)


CLASSICAL: dict[str, Callable[[np.random.Generator, str], Case]] = {
    "ArrayFeatureExtractor": _extractor, "Binarizer": _binarizer, "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer, "LabelEncoder": _encoder, "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor, "Normalizer": _normalizer, "OneHotEncoder": _one_hot,
    "SVMClassifier": _svm_classifier, "SVMRegressor": _svm_regressor, "Scaler": _scaler,
    "TreeEnsemble": _tree_ensemble, "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}  # fmt: skip
"""A draw for each operator on numbers."""


def draw(rng: np.random.Generator, op: str) -> Case:
    """A node of that operator."""
    return CLASSICAL[op](rng, op)
