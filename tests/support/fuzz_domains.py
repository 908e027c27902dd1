"""A random graph under construction in, one more step out: rare ops of com.microsoft and ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz_graph import Graph, Value
from fuzz_steps import Step

MS: dict[str, Any] = {"domain": "com.microsoft"}
ML: dict[str, Any] = {"domain": "ai.onnx.ml"}


def _numbers(g: Graph, n: int) -> list[float]:
    return [float(v) for v in g.rng.uniform(-1, 1, n)]


def fused(g: Graph, x: Value) -> list[Value]:
    """A convolution with what follows it."""
    c = x.static(1) if x.rank == 4 else None
    if x.dtype != np.float32 or not c or min(*x.extent(2), *x.extent(3)) < 3:
        return []
    w = g.weight(x, 4, c, 3, 3)
    activation = g.pick(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid"))
    flags: dict[str, Any] = {"activation": activation, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if activation == "LeakyRelu":
        flags["activation_params"] = [0.125]
    if activation in ("Clip", "HardSigmoid"):
        flags["activation_params"] = [0.25, 0.75]
    bias = [g.weight(x, 4)] if g.chance(0.5) else []
    return g.add(g.node("FusedConv", x, w, *bias, **flags, **MS))


def cut_out(g: Graph, x: Value) -> list[Value]:
    """CropAndResize and CenterCropPad."""
    if x.dtype != np.float32 or x.rank != 4 or min(min(e) for e in x.shape()) == 0:
        return []
    if g.chance(0.5) and g.opset >= 18:
        size = g.operand([np.array([g.number(1, 6), g.number(1, 6)]) for _ in range(3)])
        return g.add(g.node("CenterCropPad", x, size, axes=[2, 3]), exact=x.exact)
    rois = g.constant(g.rng.uniform(0, 1, (2, 4)).astype(np.float32), exact=False)
    which = g.constant(np.zeros(2, np.int32))
    size = g.constant(np.array([g.number(1, 4), 3], np.int32))
    return g.add(g.node("CropAndResize", x, rois, which, size, **MS))


def embed(g: Graph, x: Value) -> list[Value]:
    """EmbedLayerNormalization of ids from outside."""
    shapes = [(e["N"] or 1, e["M"] or 1) for e in g.environments]
    if any(m > 40 for _, m in shapes):
        return []
    drawn = [[g.rng.integers(0, n, s).astype(np.int32) for s in shapes] for n in (9, 2)]
    ids, kinds = (g.given(arrays, ["B", "S"]) for arrays in drawn)
    tables = [g.constant(g.rng.uniform(-1, 1, (n, 8)).astype(np.float32), exact=False) for n in (9, 40, 2)]
    ends = [g.constant(g.rng.uniform(-1, 1, 8).astype(np.float32), exact=False) for _ in range(2)]
    return g.add(g.node("EmbedLayerNormalization", ids, kinds, *tables, *ends, outputs=2, epsilon=1e-5, **MS))


def words(g: Graph, x: Value) -> list[Value]:
    """TfIdfVectorizer over whole numbers; BitCast; TensorScatter."""
    op = g.pick(("TfIdfVectorizer", "BitCast", "TensorScatter"))
    if op == "BitCast" and g.opset >= 26 and x.dtype in (np.float32, np.int32):
        return g.add(g.node(op, x, to=6 if x.dtype == np.float32 else 1), exact=True)
    if op == "TensorScatter" and g.opset >= 24 and x.dtype == np.float32 and x.rank == 3 and x.static(2):
        if min(x.extent(1)) < 2:
            return []
        update = [a[:, :1].copy() for a in x.arrays]
        at = g.given([g.rng.integers(0, a.shape[1], a.shape[0]) for a in x.arrays], [None])
        y = g.given(update, [None, 1, x.static(2)])
        return g.add(g.node(op, x, y, at, axis=1, mode=g.pick(("linear", "circular"))), exact=x.exact)
    if op == "TfIdfVectorizer" and g.opset >= 9 and x.dtype in (np.int64, np.int32) and x.rank in (1, 2):
        flags: dict[str, Any] = {
            "mode": g.pick(("TF", "IDF", "TFIDF")), "min_gram_length": 1, "max_gram_length": 2,
            "max_skip_count": g.number(0, 2), "ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2],
            "pool_int64s": [1, 2, 1, 3], "weights": [0.5, 1.0, 2.0],
        }  # fmt: skip
        return g.add(g.node(op, x, **flags))
    return []


def classes(g: Graph, x: Value) -> list[Value]:
    """Classifiers and encoders of ai.onnx.ml."""
    n = x.static(1) if x.rank == 2 else None
    if x.dtype in (np.int64,) and g.chance(0.5):
        keys, values = [0, 1, 2, 5], [float(v) for v in (3, 1, 2, 8)]
        if g.chance(0.5):
            return g.add(g.node("LabelEncoder", x, keys_int64s=keys, values_floats=values, **ML), exact=True)
        return g.add(g.node("OneHotEncoder", x, cats_int64s=keys, zeros=1, **ML), exact=True)
    if x.dtype != np.float32 or not n or min(x.extent(0)) == 0:
        return []
    op = g.pick(("LinearClassifier", "SVMRegressor", "TreeEnsembleClassifier", "SVMClassifier"))
    if op == "LinearClassifier":
        flags: dict[str, Any] = {
            "coefficients": _numbers(g, 3 * n), "intercepts": _numbers(g, 3), "classlabels_ints": [4, 7, 9],
            "post_transform": g.pick(("NONE", "SOFTMAX", "LOGISTIC")),
        }  # fmt: skip
        made = g.node(op, x, outputs=2, **flags, **ML)
        return g.add(made, keep=[made.output[1]])
    if op == "SVMRegressor":
        flags = {
            "kernel_type": g.pick(("RBF", "LINEAR", "POLY", "SIGMOID")), "kernel_params": [0.25, 0.5, 2.0],
            "support_vectors": _numbers(g, 3 * n), "coefficients": _numbers(g, 3), "rho": [0.125],
            "n_supports": 3,
        }  # fmt: skip
        return g.add(g.node(op, x, **flags, **ML))
    if op == "SVMClassifier":
        flags = {
            "kernel_type": "RBF", "kernel_params": [0.25, 0.5, 2.0], "support_vectors": _numbers(g, 4 * n),
            "coefficients": _numbers(g, 4), "rho": [0.125], "vectors_per_class": [2, 2],
            "classlabels_ints": [0, 1], "post_transform": "NONE",
        }  # fmt: skip
        made = g.node(op, x, outputs=2, **flags, **ML)
        return g.add(made, keep=[made.output[1]])
    if not x.exact:
        return []
    tree: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 1], "nodes_nodeids": [0, 1, 2, 0], "nodes_featureids": [n - 1, 0, 0, 0],
        "nodes_values": [0.125, 0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0, 0], "nodes_falsenodeids": [2, 0, 0, 0],
        "class_treeids": [0, 0, 1], "class_nodeids": [1, 2, 0], "class_ids": [0, 1, 2],
        "class_weights": [1.0, 0.5, 0.25], "classlabels_int64s": [3, 4, 5],
        "post_transform": g.pick(("NONE", "SOFTMAX")),
    }  # fmt: skip
    return g.add(g.node(op, x, outputs=2, **tree, **ML))


def whole_products(g: Graph, x: Value) -> list[Value]:
    """MatMulInteger16, NhwcMaxPool, DynamicQuantizeLSTM."""
    if x.dtype == np.int16 and x.rank >= 2 and x.static(x.rank - 1):
        w = g.constant(g.rng.integers(-9, 9, (x.static(x.rank - 1), 3)).astype(np.int16))
        return g.add(g.node("MatMulInteger16", x, w, **MS), exact=True)
    if x.dtype in (np.uint8, np.int8) and x.rank == 4 and min(*x.extent(1), *x.extent(2)) >= 2:
        strides = [g.number(1, 2), 1]
        return g.add(g.node("NhwcMaxPool", x, kernel_shape=[2, 2], strides=strides, **MS), exact=True)
    if x.dtype == np.float32 and x.rank == 3 and x.static(2) and min(min(e) for e in x.shape()):
        n, h = x.static(2) or 1, 4
        w = g.constant(g.rng.integers(-60, 60, (1, n, 4 * h)).astype(np.int8))
        r = g.constant(g.rng.integers(-60, 60, (1, h, 4 * h)).astype(np.int8))
        scale, zero = g.constant(np.float32([0.02]), exact=False), g.constant(np.int8([0]))
        inputs = [x, w, r, *[None] * 5, scale, zero, scale, zero]
        return g.add(g.node("DynamicQuantizeLSTM", *inputs, hidden_size=h, **MS))
    return []


DOMAINS: tuple[tuple[int, Step], ...] = (
    (2, fused), (2, cut_out), (1, embed), (2, words), (4, classes), (2, whole_products),
)  # fmt: skip
