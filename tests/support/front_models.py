"""Small ONNX models as protos, for the tests of smelt/."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small(opset: int = 17) -> onnx.ModelProto:
    """Conv, Relu, mean, MatMul, Softmax: x [batch, 3, h, w] -> y [batch, 10]."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)),
        "b": rng.standard_normal(8),
        "m": rng.standard_normal((8, 10)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu0"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool0"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat0"),
        helper.make_node("MatMul", ["f", "m"], ["z"], name="mm0"),
        helper.make_node("Softmax", ["z"], ["y"], name="sm0", axis=1),
    ]
    return model(nodes, {"x": ["batch", 3, "h", "w"]}, {"y": ["batch", 10]}, weights, opset)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A float32 model."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def unsupported() -> onnx.ModelProto:
    """Two nodes of ops that do not exist."""
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("Defenestrate", ["b"], ["y"], name="second"),
    ]
    return model(nodes, {"x": ["n"]}, {"y": ["n"]})
