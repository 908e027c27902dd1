"""A random graph under construction in, one more step out: elementwise, reducing and contracting ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzz_graph import Graph, Value

Step = Callable[[Graph, Value], "list[Value]"]

# Ops that give the same bits in any order when their inputs are exact
EXACT_UNARY = ("Neg", "Abs", "Relu", "Floor", "Ceil", "Round", "Sign", "Identity")
SMOOTH_UNARY = (
    "Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Atan", "Softplus", "Softsign", "Exp", "Elu", "Selu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Celu", "ThresholdedRelu", "Mish", "Gelu", "Asinh", "Sinh",
    "Cosh",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSumExp",
)  # fmt: skip


def unary(g: Graph, x: Value) -> list[Value]:
    if x.kind == "b":
        return g.add(g.node("Not", x), exact=True)
    if x.kind == "i":
        return g.add(g.node(g.pick(("Neg", "Abs", "Sign", "Identity")), x), exact=True)
    op = g.pick(EXACT_UNARY if g.chance(0.3) else SMOOTH_UNARY)
    if op in ("Floor", "Ceil", "Round", "Sign") and not x.exact:
        return []
    attributes: dict[str, Any] = {}
    if op in ("Elu", "LeakyRelu", "Celu", "HardSigmoid") and g.chance(0.5):
        attributes["alpha"] = float(g.pick((0.25, 0.5, 1.5)))
    if op == "Gelu":
        attributes["approximate"] = g.pick(("none", "tanh"))
    if op == "ThresholdedRelu":
        if not x.exact:
            return []
        attributes["alpha"] = 0.375
    return g.add(g.node(op, x, **attributes), exact=x.exact and op in EXACT_UNARY)


def positive(g: Graph, x: Value) -> list[Value]:
    """Ops of a restricted domain behind something that brings values into it."""
    if x.kind != "f":
        return []
    half = g.constant(np.asarray(0.5, x.dtype))
    a = g.node("Abs", x)
    b = g.node("Add", result_of(a, x), half)
    op = g.pick(("Sqrt", "Log", "Reciprocal", "Acosh", "Pow", "Div"))
    if op == "Acosh":
        b = g.node("Add", result_of(a, x), g.constant(np.asarray(1.5, x.dtype)))
    last = result_of(b, x)
    c = {
        "Pow": lambda: g.node("Pow", last, g.constant(np.asarray(g.pick((2, 0.5, -1, 3)), x.dtype))),
        "Div": lambda: g.node("Div", x, last),
    }.get(op, lambda: g.node(op, last))()
    return g.add(a, b, c)


def result_of(n: Any, like: Value) -> Value:
    """A node's output as an operand with the shapes of another; what is in it is not known yet."""
    return Value(n.output[0], like.arrays, like.exact)


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a == b or set(a) == {1} or set(b) == {1}


def broadcastable(x: Value, y: Value) -> bool:
    """Equal extents or a static 1, aligned at the right."""
    pairs = zip(reversed(x.shape()), reversed(y.shape()), strict=False)
    return all(_fits(a, b) for a, b in pairs)


def partner(g: Graph, x: Value) -> Value:
    """A value of the same dtype that broadcasts against x: another one, a constant, x itself."""
    alike = [v for v in g.values if v.dtype == x.dtype and v is not x and broadcastable(x, v)]
    if alike and g.chance(0.6):
        chosen: Value = g.pick(alike)
        return chosen
    if g.chance(0.8):
        shape = [1 if g.chance(0.4) else x.static(a) or 1 for a in range(x.rank)]
        return g.weight(x, *shape[g.number(0, x.rank) :])
    return x


def binary(g: Graph, x: Value) -> list[Value]:
    y = partner(g, x)
    a, b = (x, y) if g.chance(0.5) else (y, x)
    exact = x.exact and y.exact
    if x.kind == "b":
        return g.add(g.node(g.pick(("And", "Or", "Xor", "Equal")), a, b), exact=True)
    if g.chance(0.2) and exact:
        op = g.pick(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
        return g.add(g.node(op, a, b), exact=True)
    if g.chance(0.15):
        op = g.pick(("Min", "Max", "Sum", "Mean"))
        return g.add(g.node(op, a, b, partner(g, x)), exact=False)
    return g.add(
        g.node(g.pick(("Add", "Sub", "Mul", "Add", "Mul", "Min", "Max")), a, b), exact=exact and _small(x, y)
    )


def _small(*values: Value) -> bool:
    return all(
        not v.size() or all(not a.size or float(np.abs(a).max()) < 64 for a in v.arrays) for v in values
    )


def divide(g: Graph, x: Value) -> list[Value]:
    """Div and Mod with divisors that are nowhere zero."""
    if x.kind == "b":
        return []
    divisor = g.constant(np.asarray(g.pick((2, 3, 4, 5)), x.dtype))
    if x.dtype.kind == "i" and g.chance(0.4):
        divisor = g.constant(np.asarray(-3, x.dtype))
    if x.kind == "f" and (g.chance(0.6) or not x.exact):
        return g.add(g.node("Div", x, divisor))
    op = g.pick(("Div", "Mod"))
    attributes = {"fmod": 1} if op == "Mod" and (x.kind == "f" or g.chance(0.3)) else {}
    return g.add(g.node(op, x, divisor, **attributes), exact=x.kind == "i")


def where(g: Graph, x: Value) -> list[Value]:
    masks = [v for v in g.values if v.kind == "b" and broadcastable(v, x)]
    y = partner(g, x)
    if not masks or not broadcastable(masks[0], y):
        return compare(g, x)
    a, b = (x, y) if g.chance(0.5) else (y, x)
    return g.add(g.node("Where", g.pick(masks), a, b), exact=x.exact and y.exact)


def compare(g: Graph, x: Value) -> list[Value]:
    """x > 0 as a mask, and a choice by it."""
    if x.kind == "b" or not x.exact:
        return []
    n = g.node(g.pick(("Greater", "Less", "Equal")), x, g.constant(np.asarray(0, x.dtype)))
    return g.add(n, exact=True)


def cast(g: Graph, x: Value) -> list[Value]:
    targets = ["float32", "int32", "int64", "bool", "float64", "uint8", "int8", "float16"]
    to = g.pick(targets if x.exact else ["float32", "float64", "float16"])
    if to == "uint8" and any(a.size and a.dtype.kind != "b" and a.min() < 0 for a in x.arrays):
        return []
    from fuzz_graph import element

    return g.add(g.node("Cast", x, to=element(np.dtype(to))), exact=x.exact)


def clip(g: Graph, x: Value) -> list[Value]:
    if x.kind == "b":
        return []
    low, high = (0 if x.dtype.kind == "u" else -1), 2
    if g.opset < 11:
        return g.add(g.node("Clip", x, min=float(low), max=float(high)), exact=x.exact)
    bounds = [g.constant(np.asarray(v, x.dtype)) if g.chance(0.8) else None for v in (low, high)]
    return g.add(g.node("Clip", x, *bounds), exact=x.exact)


def prelu(g: Graph, x: Value) -> list[Value]:
    if x.kind != "f":
        return []
    shape = [x.static(a) or 1 for a in range(x.rank)]
    return g.add(g.node("PRelu", x, g.weight(x, *shape[g.number(0, x.rank) :])))


# ---------------------------------------------------------------- reductions


def axes_of(g: Graph, x: Value) -> list[int]:
    """Some axes, some of them counted from the end."""
    chosen = [a for a in range(x.rank) if g.chance(0.5)]
    return [a - x.rank if g.chance(0.3) else a for a in chosen]


def reduce(g: Graph, x: Value) -> list[Value]:
    if x.kind == "b" or (x.kind == "i" and x.dtype.itemsize < 4):
        return []
    op = g.pick(REDUCTIONS if x.kind == "f" else ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"))
    axes = axes_of(g, x)
    if any(0 in e for e in x.shape()):
        axes = [a % x.rank for a in axes]  # ONNX Runtime gets negative axes of empty tensors wrong
    # the mean of nothing is not defined, nor the maximum of integers
    if op in ("ReduceMax", "ReduceMin", "ReduceMean") and any(
        0 in x.extent(a) for a in (axes or range(x.rank))
    ):
        return []
    # of many factors some partial product overflows, in one order or another, and infinity times 0 is NaN
    if op == "ReduceProd" and x.kind == "f" and x.size() > 64:
        return []
    attributes: dict[str, Any] = {"keepdims": int(g.chance(0.5))}
    inputs: list[Value | None] = [x]
    if g.opset >= 18 or (op == "ReduceSum" and g.opset >= 13):
        inputs += [g.ints(*axes)] if axes or g.chance(0.3) else []
        if g.chance(0.2):
            attributes["noop_with_empty_axes"] = 1
    elif axes:
        attributes["axes"] = axes
    return g.add(g.node(op, *inputs, **attributes), exact=x.exact and op in ("ReduceMax", "ReduceMin"))


def arg(g: Graph, x: Value) -> list[Value]:
    if x.kind == "b" or not x.rank or not x.exact:
        return []
    axis = g.axis(x)
    if 0 in x.extent(axis):
        return []
    attributes = {"axis": axis, "keepdims": int(g.chance(0.5))}
    if g.opset >= 12:
        attributes["select_last_index"] = int(g.chance(0.4))
    return g.add(g.node(g.pick(("ArgMax", "ArgMin")), x, **attributes), exact=True)


def softmax(g: Graph, x: Value) -> list[Value]:
    if x.kind != "f" or not x.rank:
        return []
    op = g.pick(("Softmax", "Softmax", "LogSoftmax", "Hardmax")) if x.exact else "Softmax"
    return g.add(g.node(op, x, axis=g.axis(x)))


def cumsum(g: Graph, x: Value) -> list[Value]:
    if x.kind == "b" or not x.rank or (x.kind == "i" and x.dtype.itemsize < 4):
        return []
    axis = g.constant(np.asarray(g.axis(x), np.int64))
    flags = {"exclusive": int(g.chance(0.4)), "reverse": int(g.chance(0.4))}
    return g.add(g.node("CumSum", x, axis, **flags), exact=x.exact and _small(x))


def topk(g: Graph, x: Value) -> list[Value]:
    if x.kind == "b" or not x.rank or not x.exact:
        return []
    axis = g.axis(x)
    k = g.number(0, max(0, min(x.extent(axis))))
    flags = {"axis": axis, "largest": int(g.chance(0.6)), "sorted": 1}
    if g.opset < 10:
        return g.add(g.node("TopK", x, outputs=2, axis=axis, k=max(k, 1)), exact=True)
    if g.opset == 10:
        flags = {"axis": axis}
    if g.chance(0.3):
        return g.add(g.node("TopK", x, g.operand([np.array([k])] * 3), outputs=2, **flags), exact=True)
    return g.add(g.node("TopK", x, g.ints(k), outputs=2, **flags), exact=True)


def norm(g: Graph, x: Value) -> list[Value]:
    """Normalisations over static axes (scales are constants)."""
    if x.kind != "f" or x.rank < 2:
        return []
    op = g.pick(
        (
            *(("LayerNormalization",) if g.opset >= 17 else ()),
            "LpNormalization",
            "BatchNormalization",
            "InstanceNormalization",
            "LRN",
            "spelt",
        )
    )
    c = x.static(1)
    if op == "spelt":
        return _layer_norm(g, x)
    if op == "LayerNormalization":
        last = x.static(x.rank - 1)
        return g.add(g.node(op, x, g.weight(x, last), g.weight(x, last), axis=-1)) if last else []
    if op == "LpNormalization":
        return g.add(g.node(op, x, axis=g.axis(x), p=g.number(1, 2)))
    if not c or x.rank < 3:
        return []
    if op == "LRN":
        return g.add(g.node(op, x, size=g.pick((1, 3, 5)), alpha=0.01, beta=0.75, bias=1.0))
    rest = [g.weight(x, c), g.weight(x, c)]
    if op == "BatchNormalization":
        var = g.constant(g.rng.uniform(0.5, 2, c).astype(x.dtype), exact=False)
        rest += [g.weight(x, c), var]
    return g.add(g.node(op, x, *rest, epsilon=1e-3))


def _layer_norm(g: Graph, x: Value) -> list[Value]:
    def mean(v: Value) -> Any:
        if g.opset >= 18:
            return g.node("ReduceMean", v, g.ints(-1))
        return g.node("ReduceMean", v, axes=[-1])

    m = mean(x)
    d = g.node("Sub", x, result_of(m, x))
    square = g.node("Pow", result_of(d, x), g.constant(np.asarray(2, x.dtype)))
    v = mean(result_of(square, x))
    e = g.node("Add", result_of(v, x), g.constant(np.asarray(0.01, x.dtype)))
    s = g.node("Sqrt", result_of(e, x))
    y = g.node("Div", result_of(d, x), result_of(s, x))
    return g.add(m, d, square, v, e, s, y)


# ---------------------------------------------------------------- contractions


def matmul(g: Graph, x: Value) -> list[Value]:
    if x.kind != "f" or not x.rank:
        return []
    k = x.static(x.rank - 1)
    mates = [v for v in g.values if v.dtype == x.dtype and _multiplies(x, v)]
    if mates and g.chance(0.6):
        return g.add(g.node("MatMul", x, g.pick(mates)), exact=x.exact and _small(x) and False)
    if k is None:
        return transposed_product(g, x)
    shape = [k] if g.chance(0.15) else [k, g.pick((1, 3, 8, 17, 32))]
    if len(shape) == 2 and g.chance(0.2):
        shape = [2 if x.rank == 2 else 1, *shape]
    y = g.add(g.node("MatMul", x, g.weight(x, *shape)))
    if y and g.chance(0.5) and len(shape) == 2:
        y = g.add(g.node("Add", y[0], g.weight(x, shape[1]))) or y
    return y


def _multiplies(x: Value, y: Value) -> bool:
    if not x.rank or not y.rank:
        return False
    inner = y.extent(-2) if y.rank > 1 else y.extent(0)
    if x.extent(-1) != inner:
        return False
    pairs = zip(reversed(x.shape()[:-2]), reversed(y.shape()[:-2]), strict=False)
    return all(_fits(a, b) for a, b in pairs)


def transposed_product(g: Graph, x: Value) -> list[Value]:
    """x times its own transpose: both extents may be dynamic."""
    if x.kind != "f" or x.rank < 2:
        return []
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    t = g.node("Transpose", x, perm=perm)
    pair = (x, result_of(t, x)) if g.chance(0.5) else (result_of(t, x), x)
    m = g.node("MatMul", *pair)
    s = g.node("Mul", result_of(m, x), g.constant(np.asarray(0.125, x.dtype)))
    return g.add(t, m, s)


def gemm(g: Graph, x: Value) -> list[Value]:
    if x.kind != "f" or x.rank != 2:
        return []
    ta, tb = int(g.chance(0.3)), int(g.chance(0.5))
    k = x.static(0 if ta else 1)
    if not k:
        return []
    n = g.pick((1, 4, 19))
    w = g.weight(x, *((n, k) if tb else (k, n)))
    bias = g.pick((None, g.weight(x, n), g.weight(x, 1, n), g.weight(x)))
    return g.add(
        g.node(
            "Gemm", x, w, *([bias] if bias else []), transA=ta, transB=tb, alpha=0.5, beta=g.pick((1.0, 0.25))
        )
    )


def einsum(g: Graph, x: Value) -> list[Value]:
    if x.kind != "f" or not 1 <= x.rank <= 4:
        return []
    letters = "abcd"[: x.rank]
    keep = [c for c in letters if g.chance(0.6)]
    g.rng.shuffle(keep)
    if g.chance(0.4):
        return g.add(g.node("Einsum", x, equation=f"{letters}->{''.join(keep)}"))
    axis = g.number(0, x.rank - 1)
    k = x.static(axis)
    if not k:
        return g.add(g.node("Einsum", x, x, equation=f"{letters},{letters}->{''.join(keep)}"))
    out = letters.replace(letters[axis], "z")
    return g.add(g.node("Einsum", x, g.weight(x, k, 3), equation=f"{letters},{letters[axis]}z->{out}"))


# ---------------------------------------------------------------- windows


def conv(g: Graph, x: Value) -> list[Value]:
    c = x.static(1) if x.rank >= 3 else None
    if x.kind != "f" or not c or x.rank > 5:
        return []
    spatial = x.rank - 2
    kernel = [g.pick((1, 2, 3, 5)) if spatial < 3 else g.pick((1, 2)) for _ in range(spatial)]
    group = g.pick([d for d in (1, 2, c) if c % d == 0])
    out = group * g.pick((1, 2, 3, 8)) if g.chance(0.7) else group
    attributes = _window(g, kernel)
    attributes.pop("count_include_pad", None)
    attributes["group"] = group
    if not _covers(x, attributes):
        return []
    if g.chance(0.2):
        w = g.weight(x, c, max(1, out // group), *kernel)
        attributes.pop("auto_pad", None)
        return g.add(g.node("ConvTranspose", x, w, **attributes))
    w = g.weight(x, out, c // group, *kernel)
    inputs = [x, w, *([g.weight(x, out)] if g.chance(0.6) else [])]
    y = g.add(g.node("Conv", *inputs, **attributes))
    if y and g.chance(0.5):
        op = g.pick(("Relu", "Sigmoid", "HardSwish", "LeakyRelu"))
        y = g.add(g.node(op, y[0])) or y
    return y


def _covers(x: Value, attributes: dict[str, Any]) -> bool:
    """Every window fits at every size: ONNX Runtime rounds the count of those that do not towards zero."""
    kernel = attributes["kernel_shape"]
    n = len(kernel)
    dilations, pads = attributes.get("dilations", [1] * n), attributes.get("pads", [0] * (2 * n))
    reach = [
        d * (k - 1) + 1 - pads[a] - pads[a + n]
        for a, (k, d) in enumerate(zip(kernel, dilations, strict=True))
    ]
    return all(min(x.extent(a + 2)) >= max(r, 1) for a, r in enumerate(reach))


def _window(g: Graph, kernel: Sequence[int]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"kernel_shape": list(kernel)}
    if g.chance(0.5):
        attributes["strides"] = [g.number(1, 3) for _ in kernel]
    if g.chance(0.3):
        attributes["dilations"] = [g.number(1, 2) for _ in kernel]
    way = g.number(0, 3)
    if way == 0:
        attributes["pads"] = [g.number(0, k // 2) for k in kernel] + [g.number(0, k // 2) for k in kernel]
    if way == 1:
        attributes["pads"] = [k // 2 for k in kernel] * 2
    strides = attributes.get("strides", [1] * len(kernel))
    # below a window of one stride ONNX Runtime pads by negative amounts
    if (
        way == 2
        and "dilations" not in attributes
        and all(k >= s for k, s in zip(kernel, strides, strict=True))
    ):
        attributes["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attributes


def pool(g: Graph, x: Value) -> list[Value]:
    if x.kind != "f" or not 3 <= x.rank <= 5 or not x.static(1):
        return []
    op = g.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"))
    if op.startswith("Global"):
        return g.add(g.node(op, x), exact=x.exact and op == "GlobalMaxPool")
    attributes = _window(g, [g.number(1, 3) for _ in range(x.rank - 2)])
    if not _covers(x, attributes):
        return []
    if op == "LpPool" or (op == "AveragePool" and g.opset < 19):
        attributes.pop("dilations", None)
    if op != "LpPool" and g.chance(0.3) and "auto_pad" not in attributes:
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and g.chance(0.4):
        attributes["count_include_pad"] = 1
    if op == "LpPool":
        attributes["p"] = 2
    return g.add(g.node(op, x, **attributes), exact=x.exact and op == "MaxPool")


STEPS: tuple[tuple[int, Step], ...] = (
    (8, unary), (4, positive), (10, binary), (3, divide), (3, where), (2, compare), (3, cast), (2, clip),
    (1, prelu), (7, reduce), (2, arg), (4, softmax), (2, cumsum), (2, topk), (4, norm), (6, matmul),
    (3, transposed_product),
    (2, gemm), (2, einsum), (7, conv), (4, pool),
)  # fmt: skip
