"""ONNX models with quantise-dequantise pairs, built node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from smelt.core.ir.graph import Module
from smelt.core.ir.verify import verify
from smelt.core.machine import Machine
from smelt.core.passes.context import Context
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.importer import import_model

Array = np.ndarray[Any, Any]
CONTEXT = Context(Machine("test", 512, 32))
UPTO = next(i for i, p in enumerate(PIPELINE) if p.name == "fuse")


def optimised(model: onnx.ModelProto, context: Context = CONTEXT) -> Module:
    """The model up to fusion."""
    module = run_pipeline(import_model(model), PIPELINE[:UPTO], context)
    verify(module)
    return module


class Net:
    """A graph under construction: QDQ pairs around float nodes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def const(self, a: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = a
        return name

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attrs))
        return name

    def qdq(self, x: str, scale: float, zero: int, dtype: Any = np.uint8) -> str:
        params = [self.const(np.array(scale, np.float32)), self.const(np.array(zero, dtype))]
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *params), *params)

    def weight(self, w: Array, scale: Array, zero: Array, axis: int = 0) -> str:
        parts = [self.const(a) for a in (w, scale, zero)]
        return self.op("DequantizeLinear", *parts, axis=axis)

    def blocks(self, w: Array, scale: Array, zero: Array | None, axis: int, size: int) -> str:
        parts = [self.const(a) for a in (w, scale, zero) if a is not None]
        return self.op("DequantizeLinear", *parts, axis=axis, block_size=size)

    def model(self, result: str, **inputs: list[int | str]) -> onnx.ModelProto:
        f32 = onnx.TensorProto.FLOAT
        g = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, f32, d) for n, d in inputs.items()],
            [helper.make_tensor_value_info(result, f32, None)],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        return helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
