"""A random graph under construction in, one more step out: ops that few models have, sizes data decides."""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz_graph import Graph, Value
from fuzz_steps import Step, broadcastable, partner, result_of


def _odd(x: Value) -> bool:
    return x.kind == "f" and x.dtype.itemsize >= 4


# ---------------------------------------------------------------- elementwise


def trigonometry(g: Graph, x: Value) -> list[Value]:
    """Functions of -1..1 behind a Tanh that is kept off the ends, and others."""
    if not _odd(x):
        return []
    op = g.pick(("Acos", "Asin", "Atanh", "Tan", "Swish", "Shrink", "MeanVarianceNormalization", "QuickGelu"))
    if op == "Swish":
        return g.add(g.node(op, x, alpha=g.pick((1.0, 0.5))))
    if op == "QuickGelu":
        return g.add(g.node(op, x, alpha=1.702, domain="com.microsoft"))
    if op == "Shrink":
        return g.add(g.node(op, x, lambd=0.375, bias=0.25), exact=x.exact) if x.exact else []
    if op == "MeanVarianceNormalization":
        return g.add(g.node(op, x, axes=[a for a in range(x.rank) if a != 1])) if x.rank >= 3 else []
    a = g.node("Tanh", x)
    b = g.node("Mul", result_of(a, x), g.constant(np.asarray(0.9, x.dtype)))
    return g.add(a, b, g.node(op, result_of(b, x)))


def bits(g: Graph, x: Value) -> list[Value]:
    """Integers as bits."""
    if x.kind != "i":
        return []
    y = partner(g, x)
    op = g.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"))
    if op == "BitwiseNot":
        return g.add(g.node(op, x), exact=True)
    if op == "BitShift":
        by = g.constant(np.asarray(g.number(0, 3), x.dtype))
        return g.add(g.node(op, x, by, direction=g.pick(("LEFT", "RIGHT"))), exact=True)
    return g.add(g.node(op, x, y), exact=True)


def special(g: Graph, x: Value) -> list[Value]:
    """Infinities and NaN, asked about and replaced."""
    if not _odd(x) or not x.exact:
        return []
    z = g.constant(np.asarray(0, x.dtype))
    a = g.node("Div", x, z)  # infinite, or NaN
    b = g.node(g.pick(("IsInf", "IsNaN")), result_of(a, x))
    if g.chance(0.5):
        return g.add(a, b, exact=True)
    return g.add(a, b, g.node("Where", result_of(b, x), x, z), exact=True)


def variadic(g: Graph, x: Value) -> list[Value]:
    """Dropout outside of training, CastLike, Sum of one, ReduceLogSum, CumProd, Constant."""
    op = g.pick(("Dropout", "CastLike", "Sum", "ReduceLogSum", "CumProd", "Constant"))
    if op == "Constant":
        from onnx import numpy_helper

        if x.kind == "b":
            return []
        tensor = numpy_helper.from_array(np.asarray(g.pick((1, 2)), x.dtype))
        c = g.node(op, value=tensor)
        return g.add(c, g.node("Add", x, result_of(c, x)), exact=x.exact)
    if op == "CastLike":
        other = g.pick(g.values)
        return g.add(g.node(op, x, other), exact=x.exact) if x.exact and other.kind == "f" else []
    if op == "Sum" and x.kind == "f":
        return g.add(g.node(op, x), exact=x.exact)
    if op == "Dropout" and x.kind == "f":
        return g.add(g.node(op, x), exact=x.exact)
    if op == "CumProd" and x.rank and _odd(x):
        return g.add(g.node(op, x, g.constant(np.asarray(g.axis(x), np.int64)), reverse=int(g.chance(0.4))))
    if op == "ReduceLogSum" and _odd(x) and x.rank:
        a = g.node("Exp", x)
        axis = g.axis(x)
        if 0 in x.extent(axis):
            return []
        inner = result_of(a, x)
        last = g.node(op, inner, g.ints(axis)) if g.opset >= 18 else g.node(op, inner, axes=[axis])
        return g.add(a, last)
    return []


# ---------------------------------------------------------------- sizes that data decides


def unique(g: Graph, x: Value) -> list[Value]:
    if not x.exact or x.rank > 3 or x.kind == "b" or x.dtype == np.float16:
        return []
    axis = {"axis": g.number(0, x.rank - 1)} if x.rank and g.chance(0.4) else {}
    count = g.number(1, 4)
    return g.add(g.node("Unique", x, outputs=count, sorted=int(g.chance(0.7)), **axis), exact=True)


def compress(g: Graph, x: Value) -> list[Value]:
    """By a mask that the graph computed."""
    masks = [v for v in g.values if v.kind == "b" and v.rank == 1]
    if not x.rank or not masks:
        return []
    mask, axis = g.pick(masks), g.number(0, x.rank - 1)
    if any(m > n for m, n in zip(mask.extent(0), x.extent(axis), strict=True)):
        return []
    return g.add(g.node("Compress", x, mask, axis=axis), exact=x.exact)


def late_shape(g: Graph, x: Value) -> list[Value]:
    """Reshape, Expand, ConstantOfShape, Range, Pad, OneHot of operands that only a run knows."""
    op = g.pick(("Reshape", "Expand", "ConstantOfShape", "Range", "Pad", "OneHot", "Resize"))
    if op == "Reshape" and x.rank and not any(0 in e for e in x.shape()):
        shapes = [np.array([*a.shape[:-2], int(np.prod(a.shape[-2:]))]) for a in x.arrays]
        return g.add(g.node(op, x, g.given(shapes, [len(shapes[0])])), exact=x.exact)
    if op == "Expand" and x.rank <= 4:
        more = g.number(1, 3)
        return g.add(g.node(op, x, g.given([np.array([more, *a.shape]) for a in x.arrays], [x.rank + 1])),
                     exact=x.exact)  # fmt: skip
    if op == "ConstantOfShape":
        rank = g.number(1, 3)
        return g.add(g.node(op, g.given(g.rng.integers(0, 5, (3, rank)), [rank])), exact=True)
    if op == "Range":
        ends = [np.array(g.number(-2, 9)) for _ in range(3)]
        ends[0] = np.array(5)
        start, step = g.constant(np.array(g.number(-1, 1))), g.constant(np.array(g.pick((1, 2))))
        return g.add(g.node(op, start, g.given(ends, []), step), exact=True)
    if op == "Pad" and x.rank and x.kind != "b" and g.opset >= 11:
        pads = [g.rng.integers(0, 3, 2 * x.rank) for _ in range(3)]
        return g.add(g.node(op, x, g.given(pads, [2 * x.rank])), exact=x.exact)
    if op == "OneHot" and x.dtype == np.int64 and x.rank <= 2:
        depth = g.given([np.array(g.number(1, 5)) for _ in range(3)], [])
        return g.add(g.node(op, x, depth, g.constant(np.array([0, 1], np.float32))), exact=True)
    if op == "Resize" and x.rank == 4 and x.dtype == np.float32 and g.opset >= 13 and x.size():
        if any(0 in e for e in x.shape()):
            return []
        sizes = [np.array([*a.shape[:2], g.number(1, 9), g.number(1, 9)]) for a in x.arrays]
        flags = {"coordinate_transformation_mode": g.pick(("asymmetric", "half_pixel")),
                 "mode": g.pick(("nearest", "linear"))}  # fmt: skip
        exact = x.exact and flags["mode"] == "nearest"
        return g.add(g.node(op, x, None, None, g.given(sizes, [4]), **flags), exact=exact)
    return []


def late_gather(g: Graph, x: Value) -> list[Value]:
    """Indices from outside, of a size of their own: Gather, GatherElements, GatherND, the scatters."""
    if not x.rank or min(min(x.extent(a)) for a in range(x.rank)) == 0:
        return []
    axis = g.number(0, x.rank - 1)
    op = g.pick(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter"))
    rooms = x.extent(axis)
    sign = g.chance(0.5)

    def draw(room: int, shape: Any) -> Any:
        return g.rng.integers(-room if sign else 0, room, shape)

    def index(shapes: list[Any], dims: list[Any]) -> Value:
        arrays = [draw(r, s).astype(g_dtype) for r, s in zip(rooms, shapes, strict=True)]
        return g.given(arrays, dims)

    g_dtype = g.pick((np.int64, np.int64, np.int32))
    counts = [e["K"] for e in g.environments]
    if op == "Gather":
        return g.add(g.node(op, x, index([(k,) for k in counts], ["K"]), axis=axis), exact=x.exact)
    if op == "GatherElements":
        shapes = [list(a.shape) for a in x.arrays]
        for s in shapes:
            s[axis] = 2
        dims = [2 if a == axis else x.static(a) for a in range(x.rank)]
        return g.add(g.node(op, x, index(shapes, dims), axis=axis), exact=x.exact)
    if x.kind == "b" or g.opset < 11:
        return []
    if op == "GatherND":
        columns = [[draw(min(x.extent(a)), k) for k in counts] for a in range(min(2, x.rank))]
        rows = [np.stack([c[i] for c in columns], -1).astype(np.int64) for i in range(3)]
        return g.add(g.node(op, x, g.given(rows, ["K", len(columns)])), exact=x.exact)
    extra: dict[str, Any] = {}
    if g.chance(0.6) and g.opset >= 18:
        extra["reduction"] = g.pick(("add", "mul", "min", "max"))
    unique_rows = [np.argsort(g.rng.random(n))[: min(2, n)] for n in x.extent(0)]
    if len({len(u) for u in unique_rows}) > 1 or any(x.static(a) is None for a in range(1, x.rank)):
        return []
    count = len(unique_rows[0])
    rest = [x.static(a) or 1 for a in range(1, x.rank)]
    updates = g.weight(x, count, *rest)
    exact = x.exact and not extra
    if op == "ScatterND":
        at = g.given([u.reshape(count, 1) for u in unique_rows], [count, 1])
        return g.add(g.node(op, x, at, updates, **extra), exact=exact)
    spread = [np.broadcast_to(u.reshape(count, *(1,) * len(rest)), (count, *rest)) for u in unique_rows]
    at = g.given([s.copy() for s in spread], [count, *rest])
    return g.add(g.node("ScatterElements", x, at, updates, axis=0, **extra), exact=exact)


def reverse_sequence(g: Graph, x: Value) -> list[Value]:
    if x.rank < 2 or g.opset < 10 or min(*x.extent(0), *x.extent(1)) == 0:
        return []
    time = g.number(0, 1)
    lengths = [g.rng.integers(1, a.shape[time] + 1, a.shape[1 - time]) for a in x.arrays]
    static = x.static(1 - time)
    at = g.given(lengths, [static]) if static else g.given(lengths, [None])
    return g.add(g.node("ReverseSequence", x, at, time_axis=time, batch_axis=1 - time), exact=x.exact)


def boxes(g: Graph, x: Value) -> list[Value]:
    """NonMaxSuppression over a drawn set of boxes."""
    if g.opset < 10:
        return []
    n = [e["N"] for e in g.environments]
    corners = [g.rng.integers(0, 9, (1, k, 4)).astype(np.float32) for k in n]
    scores = [(g.rng.permutation(2 * k).reshape(1, 2, k) / 64).astype(np.float32) for k in n]
    b, s = g.given(corners, [1, "N", 4]), g.given(scores, [1, 2, "N"])
    limits = [
        g.ints(g.number(1, 5)),
        g.constant(np.float32([g.pick((0.3, 0.5))])),
        g.constant(np.float32([0.1])),
    ]
    return g.add(g.node("NonMaxSuppression", b, s, *limits, center_point_box=g.number(0, 1)), exact=True)


# ---------------------------------------------------------------- images and windows


IMAGE = (
    "GridSample", "RoiAlign", "MaxRoiPool", "AffineGrid", "MaxUnpool", "GlobalLpPool", "DeformConv", "Col2Im",
)  # fmt: skip


def image(g: Graph, x: Value) -> list[Value]:
    """GridSample, RoiAlign, MaxRoiPool, Col2Im, AffineGrid, MaxUnpool, DeformConv, GlobalLpPool."""
    if x.rank != 4 or x.dtype != np.float32 or min(min(e) for e in x.shape()) == 0:
        return []
    op = g.pick(IMAGE)
    if op == "MaxRoiPool":
        rois = g.constant(np.float32([[0, 0, 0, 3, 3], [0, 1, 2, 4, 2]]))
        return g.add(g.node(op, x, rois, pooled_shape=[2, 3], spatial_scale=0.5))
    if op == "GlobalLpPool":
        return g.add(g.node(op, x, p=2))
    if op == "MaxUnpool":
        if min(*x.extent(2), *x.extent(3)) < 2:
            return []
        window = {"kernel_shape": [2, 2], "strides": [2, 2]}
        p = g.node("MaxPool", x, outputs=2, **window)
        y, at = result_of(p, x), Value(p.output[1], x.arrays, True)
        return g.add(p, g.node(op, y, at, **window))
    if op == "GridSample" and g.opset >= 16:
        n = x.extent(0)
        grid = g.given(
            [g.rng.uniform(-1.2, 1.2, (k, 3, 4, 2)).astype(np.float32) for k in n], [None, 3, 4, 2]
        )
        modes = ("bilinear", "nearest", "bicubic") if g.opset < 20 else ("linear", "nearest", "cubic")
        flags = {"mode": g.pick(modes), "padding_mode": g.pick(("zeros", "border", "reflection"))}
        return g.add(g.node(op, x, grid, align_corners=g.number(0, 1), **flags))
    if op == "AffineGrid" and g.opset >= 20:
        theta = g.constant(g.rng.uniform(-1, 1, (2, 2, 3)).astype(np.float32), exact=False)
        made = g.node(op, theta, g.ints(2, 1, g.number(1, 4), g.number(1, 4)), align_corners=g.number(0, 1))
        return g.add(made)
    if op == "RoiAlign" and g.opset >= 10:
        rois = g.constant(np.float32([[0, 0, 3, 3], [1, 0.5, 4, 2.25]]))
        flags = {"mode": g.pick(("avg", "max"))}
        if g.opset >= 16:
            flags["coordinate_transformation_mode"] = g.pick(("half_pixel", "output_half_pixel"))
        size = {"output_height": 2, "output_width": 3, "sampling_ratio": g.number(1, 2), "spatial_scale": 0.5}
        return g.add(g.node(op, x, rois, g.ints(0, 0), **size, **flags))
    if op == "Col2Im" and g.opset >= 18:
        a = g.constant(g.contents(np.dtype(np.float32), (1, 8, 9), True))
        return g.add(g.node(op, a, g.ints(4, 4), g.ints(2, 2)), exact=False)
    c = x.static(1)
    if op == "DeformConv" and g.opset >= 19 and c:
        h, w = x.extent(2), x.extent(3)
        if min(*h, *w) < 2:
            return []
        shapes = [(n, 8, i - 1, j - 1) for n, i, j in zip(x.extent(0), h, w, strict=True)]
        offset = g.given([g.rng.uniform(-1, 1, s).astype(np.float32) for s in shapes], [None, 8, None, None])
        return g.add(g.node(op, x, g.weight(x, 3, c, 2, 2), offset, kernel_shape=[2, 2]))
    return []


def signal(g: Graph, x: Value) -> list[Value]:
    """DFT, STFT, windows and the mel matrix."""
    if g.opset < 17:
        return []
    op = g.pick(("DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"))
    if op.endswith("Window"):
        return g.add(g.node(op, g.constant(np.array(g.number(2, 9))), periodic=g.number(0, 1)))
    if op == "MelWeightMatrix":
        scalars = [g.constant(np.array(v)) for v in (4, 16, 8000)]
        return g.add(g.node(op, *scalars, *(g.constant(np.float32(v)) for v in (0, 4000))))
    if op == "STFT":
        t = g.given(
            [g.contents(np.dtype(np.float32), (1, 8 + e["N"]), True) for e in g.environments], [1, None]
        )
        window = g.constant(np.hanning(5).astype(np.float32)[:4], exact=False)
        return g.add(g.node(op, t, g.constant(np.array(2)), window, onesided=1))
    if x.dtype != np.float32 or x.rank != 3 or x.static(2) not in (1, 2) or min(x.extent(1)) == 0:
        return []
    one = {"onesided": 1} if x.static(2) == 1 and g.chance(0.5) else {"inverse": int(g.chance(0.3))}
    if g.opset >= 20:
        return g.add(g.node(op, x, None, g.constant(np.array(1)), **one))
    return g.add(g.node(op, x, axis=1, **one))


def norms(g: Graph, x: Value) -> list[Value]:
    """Norms of newer opsets and of com.microsoft."""
    last = x.static(x.rank - 1) if x.rank >= 2 else None
    if x.dtype != np.float32 or not last or min(min(e) for e in x.shape()) == 0:
        return []
    op = g.pick(("RMSNormalization", "GroupNormalization", "SimplifiedLayerNormalization", "Skip", "SkipRms"))
    if op == "RMSNormalization":
        return g.add(g.node(op, x, g.weight(x, last), axis=-1)) if g.opset >= 23 else []
    if op == "SimplifiedLayerNormalization":
        return g.add(g.node(op, x, g.weight(x, last), axis=-1, epsilon=1e-5))
    if op == "GroupNormalization":
        c = x.static(1)
        if g.opset < 21 or x.rank < 3 or not c:
            return []
        groups = g.pick([d for d in (1, 2, c) if c % d == 0])
        return g.add(g.node(op, x, g.weight(x, c), g.weight(x, c), num_groups=groups))
    if x.rank != 3:
        return []
    gamma, beta = g.weight(x, last), g.weight(x, last)
    ms = {"domain": "com.microsoft", "epsilon": 1e-5}
    if op == "Skip":
        bias = [g.weight(x, last)] if g.chance(0.5) else []
        return g.add(g.node("SkipLayerNormalization", x, x, gamma, beta, *bias, **ms))
    bias = [g.weight(x, last)] if g.chance(0.5) else []
    return g.add(g.node("SkipSimplifiedLayerNormalization", x, x, gamma, *bias, **ms))


def small_products(g: Graph, x: Value) -> list[Value]:
    """Det, and products with fused parts of com.microsoft."""
    if x.dtype != np.float32 or x.rank < 2:
        return []
    k = x.static(x.rank - 1)
    op = g.pick(
        ("Det", "FusedMatMul", "TransposeMatMul", "BiasGelu", "FastGelu", "Gelu", "FusedGemm", "BiasSoftmax")
    )
    if op == "Det":
        return g.add(g.node(op, x)) if k and k == x.static(x.rank - 2) and k <= 3 and g.opset >= 11 else []
    if not k:
        return []
    ms: dict[str, Any] = {"domain": "com.microsoft"}
    if op in ("FusedMatMul", "TransposeMatMul"):
        tb = g.number(0, 1)
        w = g.weight(x, *((7, k) if tb else (k, 7)))
        return g.add(g.node(op, x, w, transB=tb, alpha=0.5, **ms))
    if op == "FusedGemm":
        if x.rank != 2:
            return []
        activation = g.pick(("Relu", "LeakyRelu", "Sigmoid", "Tanh"))
        return g.add(g.node(op, x, g.weight(x, k, 5), g.weight(x, 5), activation=activation, **ms))
    if op == "BiasSoftmax":
        flags = {"axis": x.rank - 1, "is_inner_broadcast": 1}
        return g.add(g.node(op, x, g.weight(x, *((1,) * (x.rank - 1)), k), **flags, **ms))
    if op == "Gelu":
        return g.add(g.node(op, x, **ms))
    return g.add(g.node(op, x, g.weight(x, k), **ms))


def learned(g: Graph, x: Value) -> list[Value]:
    """Ops of ai.onnx.ml on the last axis."""
    if x.dtype != np.float32 or x.rank != 2 or not x.static(1) or min(x.extent(0)) == 0:
        return []
    n = x.static(1) or 1
    ml: dict[str, Any] = {"domain": "ai.onnx.ml"}
    op = g.pick(("Scaler", "Normalizer", "Binarizer", "Imputer", "LinearRegressor", "ArrayFeatureExtractor",
                 "FeatureVectorizer", "TreeEnsembleRegressor"))  # fmt: skip
    some = [float(v) for v in g.rng.uniform(0.5, 2, n)]
    if op == "Scaler":
        return g.add(g.node(op, x, offset=some, scale=some, **ml))
    if op == "Normalizer":
        return g.add(g.node(op, x, norm=g.pick(("MAX", "L1", "L2")), **ml)) if not x.exact else []
    if op == "Binarizer":
        return g.add(g.node(op, x, threshold=0.125, **ml), exact=True) if x.exact else []
    if op == "Imputer":
        return g.add(g.node(op, x, imputed_value_floats=some, replaced_value_float=0.5, **ml))
    if op == "LinearRegressor":
        weights = [float(v) for v in g.rng.uniform(-1, 1, n * 2)]
        return g.add(g.node(op, x, coefficients=weights, intercepts=[0.5, -1.0], targets=2, **ml))
    if op == "ArrayFeatureExtractor":
        return g.add(g.node(op, x, g.ints(0, n - 1), **ml), exact=x.exact)
    if op == "FeatureVectorizer":
        return g.add(g.node(op, x, x, inputdimensions=[n, n], **ml), exact=x.exact)
    if not x.exact:
        return []
    tree: dict[str, Any] = {
        "nodes_treeids": [0] * 5, "nodes_nodeids": list(range(5)),
        "nodes_featureids": [0, n - 1, 0, 0, 0], "nodes_values": [0.125, -0.375, 0.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 2, 0, 0, 0], "nodes_falsenodeids": [4, 3, 0, 0, 0],
        "target_treeids": [0] * 3, "target_nodeids": [2, 3, 4], "target_ids": [0] * 3,
        "target_weights": [1.0, -2.0, 0.5], "n_targets": 1,
    }  # fmt: skip
    if g.chance(0.5):
        tree["nodes_modes"] = ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"]
    return g.add(g.node(op, x, **tree, **ml), exact=True)


def mixed_where(g: Graph, x: Value) -> list[Value]:
    """Where by a broadcast mask that is computed from another value."""
    masks = [v for v in g.values if v.kind == "b" and v.rank and broadcastable(v, x)]
    if not masks or x.kind == "b":
        return []
    return g.add(g.node("Where", g.pick(masks), x, g.constant(np.asarray(1, x.dtype))), exact=x.exact)


RARE: tuple[tuple[int, Step], ...] = (
    (3, trigonometry), (2, bits), (1, special), (2, variadic), (2, unique), (2, compress), (5, late_shape),
    (6, late_gather), (1, reverse_sequence), (1, boxes), (3, image), (1, signal), (3, norms),
    (3, small_products), (2, learned), (2, mixed_where),
)  # fmt: skip
