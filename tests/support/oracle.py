"""An ONNX model in; ONNX Runtime's session of it out, with exact sums of byte products on every processor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIGNED = {
    "MatMulInteger": ((0, 1, 3),), "ConvInteger": ((0, 1, 3),), "QLinearMatMul": ((0, 3, 5),),
    "QLinearConv": ((0, 3, 5),), "QGemm": ((0, 3, 5),), "MatMulIntegerToFloat": ((0, 1, 5),),
    "QAttention": ((0, 1, 7),), "DynamicQuantizeMatMul": ((None, 1, 3),),
    "DynamicQuantizeLSTM": ((None, 1, 9), (None, 2, 11)),
}  # fmt: skip
"""Operators that multiply u8 by i8 in ONNX Runtime: the places of the u8 operand (None: it makes that
itself), of the i8 operand and of its zero point."""


Model: TypeAlias = onnx.ModelProto | bytes | Path


def plain_session(model: Model) -> onnxruntime.InferenceSession:
    """Nothing is rewritten or fused, on one thread; warnings stay silent."""
    return runtime_session(model, plain=True)


def runtime_session(model: Model, *, plain: bool = False) -> onnxruntime.InferenceSession:
    """On one thread; plain: nothing is rewritten or fused; warnings stay silent."""
    options = onnxruntime.SessionOptions()
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # weights of u8 times i8 become u8 where the processor's instruction saturates; its optimiser does that
    options.add_session_config_entry("session.x64quantprecision", "1")
    given: Any = _unsigned(model) if saturates() else model
    if isinstance(given, onnx.ModelProto):
        given = given.SerializeToString()
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


@cache
def saturates() -> bool:
    """Whether ONNX Runtime's sums of two products of u8 and i8 end at 2^15 on this processor: that of
    vpmaddubsw, on x86 without VNNI (onnxruntime.ai, "Quantize ONNX models")."""
    made = [helper.make_tensor_value_info("a", TensorProto.UINT8, [1, 4])]
    made += [helper.make_tensor_value_info("b", TensorProto.INT8, [4, 1])]
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [1, 1])
    g = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "g", made, [y])
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    run = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run
    feed = {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)}
    return int(run(None, feed)[0][0, 0]) != 4 * 255 * 127


def _unsigned(model: Model) -> Model:
    """The model with u8 in the place of i8 operands of these products: b - z --> (b + 128) - (z + 128)."""
    if isinstance(model, Path):
        made = onnx.load(str(model))
    elif isinstance(model, bytes):
        made = onnx.load_from_string(model)
    else:
        made = onnx.ModelProto()
        made.CopyFrom(model)
    if not any(n.op_type in SIGNED for g in _graphs(made.graph) for n in g.node):
        return model
    types = _types(made)
    for g in _graphs(made.graph):
        _convert(g, types)
    return made


def _graphs(g: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield g
    for n in g.node:
        for a in n.attribute:
            for inner in (a.g, *a.graphs):
                if inner.node:
                    yield from _graphs(inner)


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """The element types of values, by name, as far as ONNX's inference knows them."""
    found: dict[str, int] = {}
    for g in _graphs(onnx.shape_inference.infer_shapes(model).graph):
        found.update({t.name: t.data_type for t in g.initializer})
        found.update({v.name: v.type.tensor_type.elem_type for v in (*g.input, *g.value_info, *g.output)})
    return found


def _convert(g: onnx.GraphProto, types: dict[str, int]) -> None:
    held = {t.name: t for t in g.initializer}
    nodes: list[onnx.NodeProto] = []
    for n in g.node:
        for other, operand, zero in SIGNED.get(n.op_type, ()):
            known = [types.get(n.input[k]) for k in (other, operand) if k is not None]
            if known not in ([TensorProto.UINT8, TensorProto.INT8], [TensorProto.INT8]):
                continue
            n.input.extend([""] * (zero + 1 - len(n.input)))
            for k in (operand, zero):
                new = f"{n.input[k]}/{n.output[0]}/{k}"
                t = held.get(n.input[k])
                if t is not None or not n.input[k]:
                    was = numpy_helper.to_array(t) if t is not None else np.int8(0)
                    array = (was.astype(np.int32) + 128).astype(np.uint8)
                    g.initializer.append(numpy_helper.from_array(array, new))
                else:
                    wide, moved, by = (f"{new}/{s}" for s in ("wide", "moved", "by"))
                    g.initializer.append(numpy_helper.from_array(np.array(128, np.int32), by))
                    nodes.append(helper.make_node("Cast", [n.input[k]], [wide], to=TensorProto.INT32))
                    nodes.append(helper.make_node("Add", [wide, by], [moved]))
                    nodes.append(helper.make_node("Cast", [moved], [new], to=TensorProto.UINT8))
                n.input[k] = new
        nodes.append(n)
    del g.node[:]
    g.node.extend(nodes)
