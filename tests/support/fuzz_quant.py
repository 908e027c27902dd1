"""A random graph under construction in, one more step out: quantised tensors, QDQ, QLinear, contrib."""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz_graph import Graph, Value
from fuzz_steps import Step

MS: dict[str, Any] = {"domain": "com.microsoft"}
SCALES = (0.0625, 0.125, 0.03, 0.11, 0.25)


def _of(n: Any, dtype: str, like: Value) -> Value:
    return Value(n.output[0], tuple(a.astype(dtype) for a in like.arrays), like.exact)


def _pair(g: Graph, dtype: str) -> tuple[Value, Value]:
    """A scale and a zero point."""
    point = g.number(100, 140) if dtype == "uint8" else g.number(-9, 9)
    return g.constant(np.float32(g.pick(SCALES)), exact=False), g.constant(np.array(point, dtype))


def _whole(g: Graph, dtype: str, *shape: int) -> Value:
    """Quantised weights."""
    low, high = (0, 256) if dtype == "uint8" else (-127, 128)
    if g.chance(0.5):  # sums that stay small
        low, high = low // 16, high // 16
    return g.constant(g.rng.integers(low, high, shape).astype(dtype))


def _float(x: Value) -> bool:
    return x.dtype == np.float32 and x.rank >= 1


def around(g: Graph, x: Value) -> list[Value]:
    """Quantise and dequantise: what training leaves behind, and what compilers make integers of."""
    if not _float(x) or g.opset < 10:
        return []
    dtype = g.pick(("uint8", "int8"))
    pair: tuple[Value, ...] = _pair(g, dtype)
    axis: dict[str, Any] = {}
    c = x.static(1) if x.rank >= 2 else None
    if c and g.chance(0.25) and g.opset >= 13:
        scales = g.constant(g.rng.choice(SCALES, c).astype(np.float32), exact=False)
        pair, axis = (scales, g.constant(np.full(c, 3, dtype))), {"axis": 1}
    q = g.node("QuantizeLinear", x, *pair, **axis)
    return g.add(q, g.node("DequantizeLinear", _of(q, dtype, x), *pair, **axis))


def quantise(g: Graph, x: Value) -> list[Value]:
    """To bytes only, so that integer ops may follow."""
    if not _float(x) or g.opset < 10:
        return []
    if g.chance(0.3) and g.opset >= 11 and x.size():
        d = g.node("DynamicQuantizeLinear", x, outputs=3)
        like = _of(d, "uint8", x)
        s, z = Value(d.output[1], x.arrays, False), Value(d.output[2], x.arrays, False)
        return g.add(d, g.node("DequantizeLinear", like, s, z))
    return g.add(g.node("QuantizeLinear", x, *_pair(g, g.pick(("uint8", "int8")))))


def dequantise(g: Graph, x: Value) -> list[Value]:
    if x.dtype not in (np.uint8, np.int8) or g.opset < 10:
        return []
    return g.add(g.node("DequantizeLinear", x, *_pair(g, str(x.dtype))))


def qdq_product(g: Graph, x: Value) -> list[Value]:
    """A Conv, Gemm, MatMul or Add between dequantised operands, quantised again behind."""
    if not _float(x) or x.rank < 2 or g.opset < 13:
        return []
    dtype, wide = g.pick(("uint8", "int8")), np.float32
    pair, weights, last = _pair(g, dtype), _pair(g, "int8"), _pair(g, dtype)
    q = g.node("QuantizeLinear", x, *pair)
    d = g.node("DequantizeLinear", _of(q, dtype, x), *pair)
    a = _of(d, "float32", x)
    k = x.static(x.rank - 1)
    if x.rank == 4 and x.static(1):
        w = _whole(g, "int8", g.pick((1, 4, 9)), x.static(1) or 1, g.pick((1, 3)), 3)
        e = g.node("DequantizeLinear", w, *weights)
        pads = {"pads": [1, 1, 1, 1], "strides": [g.number(1, 2)] * 2}
        y = g.node("Conv", a, _of(e, "float32", w), **pads)
        middle = [e, y]
    elif k and g.chance(0.7):
        w = _whole(g, "int8", k, g.pick((1, 5, 16)))
        e = g.node("DequantizeLinear", w, *weights)
        y = g.node("MatMul", a, _of(e, "float32", w))
        middle = [e, y]
    else:
        y = g.node(g.pick(("Add", "Mul")), a, a)
        middle = [y]
    if g.chance(0.4):
        y = g.node("Relu", Value(y.output[0], (np.zeros(1, wide),), False))
        middle.append(y)
    r = g.node("QuantizeLinear", Value(y.output[0], (np.zeros(1, wide),), False), *last)
    return g.add(q, d, *middle, r, g.node("DequantizeLinear", _of(r, dtype, x), *last))


def integer_product(g: Graph, x: Value) -> list[Value]:
    """MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, QGemm, and products of mixed kinds."""
    if x.dtype not in (np.uint8, np.int8) or x.rank < 2 or g.opset < 10:
        return []
    k = x.static(x.rank - 1)
    own = _pair(g, str(x.dtype))
    other, last = _pair(g, "int8"), _pair(g, str(x.dtype))
    if x.rank == 4 and x.static(1) and min(*x.extent(2), *x.extent(3)) >= 3:
        c = x.static(1) or 1
        group = g.pick((1, c))
        w = _whole(g, "int8", group * g.pick((1, 3)), c // group, 3, 3)
        if g.chance(0.4):
            y = g.add(g.node("ConvInteger", x, w, own[1], group=group), exact=True)
            return y
        bias = (
            [g.constant(g.rng.integers(-99, 99, w.arrays[0].shape[0]).astype(np.int32))]
            if g.chance(0.5)
            else []
        )
        return g.add(g.node("QLinearConv", x, *own, w, *other, *last, *bias, group=group, pads=[1, 1, 0, 0]))
    if not k:
        return []
    w = _whole(g, "int8", k, g.pick((1, 4, 17)))
    op = g.pick(("MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat", "QGemm"))
    if op == "MatMulInteger":
        y = g.node(op, x, w, own[1], other[1])
        return g.add(y, g.node("Cast", _of(y, "int32", x), to=1))
    if op == "QLinearMatMul":
        return g.add(g.node(op, x, *own, w, *other, *last))
    if op == "MatMulIntegerToFloat":
        return g.add(g.node(op, x, w, own[0], other[0], own[1], other[1], **MS))
    if x.rank != 2:
        return []
    bias = g.constant(g.rng.integers(-50, 50, w.arrays[0].shape[1]).astype(np.int32))
    return g.add(g.node(op, x, *own, w, *other, bias, *last, **MS))


def dynamic_product(g: Graph, x: Value) -> list[Value]:
    """DynamicQuantizeMatMul and MatMulNBits: float activations, packed weights."""
    k = x.static(x.rank - 1) if x.rank >= 2 else None
    if x.dtype != np.float32 or not k or x.size() == 0:
        return []
    if g.chance(0.5):
        scale, point = _pair(g, "int8")
        return g.add(g.node("DynamicQuantizeMatMul", x, _whole(g, "int8", k, 6), scale, point, **MS))
    n, block = g.pick((1, 5, 8)), 16
    blocks = -(-k // block)
    packed = g.constant(g.rng.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8))
    scales = g.constant(g.rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32), exact=False)
    zero = (
        [g.constant(g.rng.integers(0, 256, (n, -(-blocks // 2))).astype(np.uint8))] if g.chance(0.5) else []
    )
    return g.add(g.node("MatMulNBits", x, packed, scales, *zero, K=k, N=n, bits=4, block_size=block, **MS))


def linear(g: Graph, x: Value) -> list[Value]:
    """QLinear ops of com.microsoft."""
    if x.dtype not in (np.uint8, np.int8) or not x.rank:
        return []
    a, b = _pair(g, str(x.dtype)), _pair(g, str(x.dtype))
    op = g.pick(("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat",
                 "QLinearAveragePool", "QLinearGlobalAveragePool"))  # fmt: skip
    if op in ("QLinearAdd", "QLinearMul"):
        return g.add(g.node(op, x, *a, x, *b, *_pair(g, str(x.dtype)), **MS))
    if op == "QLinearConcat":
        return g.add(g.node(op, *a, x, *b, x, *a, axis=g.number(0, x.rank - 1), **MS))
    if op in ("QLinearAveragePool", "QLinearGlobalAveragePool"):
        if x.rank != 4 or min(min(e) for e in x.shape()) < 2:
            return []
        window = {"kernel_shape": [2, 2]} if op == "QLinearAveragePool" else {}
        return g.add(g.node(op, x, *a, *b, channels_last=0, **window, **MS))
    alpha = {"alpha": 0.25} if op == "QLinearLeakyRelu" else {}
    return g.add(g.node(op, x, *a, *b, **alpha, **MS))


def table_rows(g: Graph, x: Value) -> list[Value]:
    """Rows of a packed table."""
    if x.dtype != np.int64 or x.rank > 2 or not x.size():
        return []
    if any(a.size and (a.min() < 0 or a.max() > 6) for a in x.arrays):
        return []
    table = g.constant(g.rng.integers(0, 256, (7, 16)).astype(np.uint8))
    scales = g.constant(g.rng.uniform(0.01, 0.1, (7, 2)).astype(np.float32), exact=False)
    flags = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4}
    return g.add(g.node("GatherBlockQuantized", table, x, scales, **flags, **MS))


QUANTISED: tuple[tuple[int, Step], ...] = (
    (5, around), (5, quantise), (4, dequantise), (5, qdq_product), (5, integer_product), (2, dynamic_product),
    (4, linear), (1, table_rows),
)  # fmt: skip
