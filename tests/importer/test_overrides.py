"""Names that are given twice: functions called as standard operators or subgraphs' values as outer ones.
What smelt does, and what ONNX Runtime does where that differs (docs/differences.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import plain_session

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

X = np.array([1, -2, 3], np.float32)
SEVEN = numpy_helper.from_array(np.float32([7]), "v")


def value(name: str, shape: Sequence[Any] = ("n",), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def model(
    nodes: Sequence[onnx.NodeProto], *inputs: onnx.ValueInfoProto, functions: Sequence[Any] = ()
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x"), *inputs], [value("y", [None])])
    sets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=sets, functions=functions, ir_version=9)


def ours(m: onnx.ModelProto, **feed: Any) -> Any:
    return run_module(import_model(m), {"x": X, **feed}, OPS)[0]


def theirs(m: onnx.ModelProto, **feed: Any) -> Any:
    return plain_session(m).run(None, {"x": X, **feed})[0]


def test_a_function_of_the_model_overrides_a_standard_operator() -> None:
    """ONNX Runtime takes its own operator."""
    sets = [helper.make_opsetid("", 17)]
    negates = helper.make_function("", "Relu", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], sets)
    m = model([helper.make_node("Relu", ["x"], ["y"])], functions=[negates])
    np.testing.assert_array_equal(ours(m), -X)
    np.testing.assert_array_equal(theirs(m), np.maximum(X, 0))


def branches(then: Sequence[onnx.NodeProto], held: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    """y = then(v) or -v, where v = sin(x) outside."""
    first = helper.make_graph(then, "then", [], [value("t", [None])], held)
    last = helper.make_graph([helper.make_node("Neg", ["v"], ["e"])], "else", [], [value("e", [None])])
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=first, else_branch=last)
    return model([helper.make_node("Sin", ["x"], ["v"]), chosen], value("c", (), TensorProto.BOOL))


def test_a_value_of_a_branch_hides_the_outer_one_inside_only() -> None:
    """ONNX Runtime refuses such a model: names are to be given once."""
    seven = helper.make_node("Constant", [], ["v"], value=SEVEN)
    m = branches([seven, helper.make_node("Add", ["v", "x"], ["t"])])
    np.testing.assert_array_equal(ours(m, c=np.array(True)), X + 7)
    np.testing.assert_allclose(ours(m, c=np.array(False)), -np.sin(X), 1e-6)
    with pytest.raises(Exception, match="single static assignment"):
        plain_session(m)


def test_an_initialiser_of_a_branch_hides_the_outer_value() -> None:
    """ONNX Runtime reads the outer one."""
    m = branches([helper.make_node("Add", ["v", "x"], ["t"])], [SEVEN])
    np.testing.assert_array_equal(ours(m, c=np.array(True)), X + 7)
    np.testing.assert_allclose(ours(m, c=np.array(False)), -np.sin(X), 1e-6)
    np.testing.assert_allclose(theirs(m, c=np.array(True)), np.sin(X) + X, 1e-6)


def test_an_input_of_a_body_hides_the_outer_value() -> None:
    """In ONNX Runtime too."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "x"], ["w"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("v")],
        [value("on", (), TensorProto.BOOL), value("w")],
    )
    nodes = [
        helper.make_node("Sin", ["x"], ["v"]),
        helper.make_node("Loop", ["k", "", "x"], ["z"], body=body),
        helper.make_node("Add", ["z", "v"], ["y"]),
    ]
    m = model(nodes, value("k", (), TensorProto.INT64))
    np.testing.assert_allclose(ours(m, k=np.array(2)), 3 * X + np.sin(X), 1e-6)
    np.testing.assert_allclose(theirs(m, k=np.array(2)), 3 * X + np.sin(X), 1e-6)
