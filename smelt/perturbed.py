"""Floats of a feed, of a model's weights and of its sums in; the same, moved by a few roundings, out.

What ONNX Runtime makes of them says how far rounding alone may carry a right result. A sum moves by as much
as another order of its terms would: a variance as E[x²] - E[x]² can lose all but a few bits to it, and moving
the weights would not show that.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.dtype import Array
from smelt.core.lazily import Lazily
from smelt.groups import GroupValue

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

PERTURBATION = 2.0**-20
"""Relative size of a perturbation: the rounding of a float32 sum of some hundred terms, 16 units of 2^-24."""
_NUDGED = {
    "MatMul": (0, 1), "Gemm": (1, 2), "Conv": (1, 2), "ConvTranspose": (1, 2), "MatMulNBits": (2,),
    "QuantizeLinear": (1,), "DequantizeLinear": (1,), "QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6),
    "LayerNormalization": (1, 2), "RMSNormalization": (1,), "BatchNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,), "SkipSimplifiedLayerNormalization": (2,),
    "LSTM": (1, 2, 3), "GRU": (1, 2, 3),
}  # fmt: skip
"""Op -> the inputs whose constants are weights or scales, which may be perturbed. A constant elsewhere may be
an exponent, a bound or a size."""
_SUMS = frozenset({
    "ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "AveragePool", "GlobalAveragePool", "CumSum",
})  # fmt: skip
"""Ops of which each result is a sum of many terms."""
_MOST = 1 << 22
"""Most elements of a constant that is perturbed: more would cost memory, and perturbing the others
suffices."""


def perturbed(rng: np.random.Generator, value: GroupValue) -> GroupValue:
    """The value with each float perturbed at random; other types as they are."""
    if isinstance(value, list):
        return [perturbed(rng, v) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float16, np.float32, np.float64):
        return value
    step = max(PERTURBATION, float(np.finfo(value.dtype).eps))
    with np.errstate(over="ignore", invalid="ignore"):
        moved = value * (1 + step * rng.uniform(-1, 1, value.shape))
    return np.where(np.isfinite(value), moved, value).astype(value.dtype)


def weights(model: Path) -> dict[str, Array]:
    """The float initialisers of the main graph that are weights or scales, by name."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(model), load_external_data=False).graph
    used = {
        node.input[i] for node in graph.node for i in _NUDGED.get(node.op_type, ()) if i < len(node.input)
    } - {i.name for i in graph.input}
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
    return {
        t.name: numpy_helper.to_array(t, str(model.parent))
        for t in graph.initializer
        if t.name in used and t.data_type in floats and np.prod(t.dims) <= _MOST
    }


def move_sums(model: Any, seed: int) -> None:
    """Edit an onnx.ModelProto: each float32 sum of its main graph is multiplied, element by element, by
    numbers near 1. Those of a type that ONNX's inference does not find stay as they are."""
    import onnx

    graph, rng = model.graph, np.random.default_rng(seed)
    types = onnx.shape_inference.infer_shapes(model).graph
    floats = {
        v.name
        for v in (*types.value_info, *types.output)
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    nodes = [m for n in graph.node for m in _moved(n, floats, rng)]
    del graph.node[:]
    graph.node.extend(nodes)


def _moved(node: Any, floats: Container[str], rng: np.random.Generator) -> Iterator[Any]:
    """The node; where it sums, under another name, and what makes its result of that."""
    from onnx import helper

    if node.op_type not in _SUMS or node.domain or node.output[0] not in floats:
        yield node
        return
    name = node.output[0]
    node.output[0] = f"{name}/sum"
    yield node
    low, high = 1 - PERTURBATION, 1 + PERTURBATION
    seed = float(rng.integers(1 << 20))
    yield helper.make_node(
        "RandomUniformLike", [f"{name}/sum"], [f"{name}/factor"], low=low, high=high, seed=seed
    )
    yield helper.make_node("Mul", [f"{name}/sum", f"{name}/factor"], [name])
