"""A quantised model compiled: its results, and what inspect says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import plain_session
from qdq_models import Net

import smelt
from smelt.cli.inspect import quantised_text


def test_compiled_bytes_agree_and_are_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    net = Net()
    scales = rng.uniform(0.01, 0.03, 40).astype(np.float32)
    w = net.weight(rng.integers(-127, 128, (40, 6, 3, 3)).astype(np.int8), scales, np.zeros(40, np.int8))
    y = net.op("Relu", net.op("Conv", net.qdq("x", 0.05, 100), w, pads=[1, 1, 1, 1]))
    each = np.full(40, 0.1, np.float32), np.full(40, 3, np.int8)
    odd = net.weight(np.ones((2, 40, 1, 1), np.int8), *each, axis=1)
    m = net.model(net.op("Conv", net.qdq(y, 0.1, 0), odd), x=["n", 6, "h", "w"])
    bundle = smelt.compile(m, output=tmp_path / "out")
    session = smelt.load(bundle)
    oracle = plain_session(m)
    for size in ((1, 6, 5, 7), (3, 6, 16, 9)):
        x = rng.uniform(-5, 6, size).astype(np.float32)
        (want,), (got,) = oracle.run(None, {"x": x}), session.run(None, {"x": x})
        # a sum that falls between two steps may be rounded to either: each is 0.1 * -0.2 in the result
        assert np.abs(got - want).max() <= 0.1 * 0.2 * 4
        assert (np.abs(got - want) > 1e-3).mean() < 0.02
    (text,) = quantised_text(bundle)
    assert "1 of 2 convolutions and products are integer kernels" in text
    assert "the weight has scales along axis 1" in text


SIGNS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


class Integers:
    """Nodes on bytes, each with an input of its own and every byte in its weight."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[Any, list[int | str]]] = {}
        self.outputs: list[tuple[str, int]] = []

    def const(self, a: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(a), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def bytes(self, dtype: Any, *shape: int) -> Any:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def node(self, op: str, left: Any, shape: list[int | str], weight: Any, depth: int, **attrs: Any) -> None:
        x, y = f"x{len(self.inputs)}", f"y{len(self.nodes)}"
        self.inputs[x] = left, shape
        zero = weight.dtype.type(op == "QLinearMatMul")
        w, zx, zw = self.const(weight), self.const(left(7)), self.const(zero)
        out = TensorProto.INT32
        operands = [x, w, zx, zw]
        if op.startswith("QLinear"):
            scales = [self.const(np.float32(s)) for s in (0.02, 0.01, 0.01 * depth**0.5)]
            operands = [x, scales[0], zx, w, scales[1], zw, scales[2], self.const(left(5))]
            out = SIGNS[left]
        self.nodes.append(helper.make_node(op, operands, [y], name=y, **attrs))
        self.outputs.append((y, out))

    def model(self) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(n, SIGNS[t], s) for n, (t, s) in self.inputs.items()]
        outputs = [helper.make_tensor_value_info(n, t, None) for n, t in self.outputs]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def products() -> Integers:
    """K and N that are no multiples of anything, of either sign on either side."""
    g = Integers()
    for k, n in ((30, 100), (3, 5), (129, 33)):
        for left in SIGNS:
            g.node("MatMulInteger", left, ["m", k], g.bytes(np.int8, k, n), k)
            g.node("MatMulInteger", left, ["m", k], g.bytes(np.uint8, k, n), k)
            g.node("QLinearMatMul", left, ["m", k], g.bytes(np.int8, k, n), k)
    return g


def convolutions() -> Integers:
    """Whole, cut, grouped and depthwise channels, with padding and without."""
    g = Integers()
    for c, n, k, group in ((3, 40, 3, 1), (19, 7, 3, 1), (16, 24, 1, 1), (16, 16, 3, 16), (8, 12, 3, 2)):
        attrs = {"pads": [k // 2] * 4, "group": group}
        for left in SIGNS:
            w = g.bytes(np.int8, n, c // group, k, k)
            g.node("QLinearConv", left, ["n", c, "h", "w"], w, w[0].size, **attrs)
        g.node("ConvInteger", np.uint8, ["n", c, "h", "w"], w, w[0].size, **attrs)
    return g


@pytest.mark.parametrize(("make", "sizes"), [
    (products, ({"m": 1}, {"m": 2}, {"m": 13})),
    (convolutions, ({"n": 1, "h": 5, "w": 6}, {"n": 2, "h": 9, "w": 7})),
])  # fmt: skip
def test_integers_are_equal_to_the_last_bit(make: Any, sizes: Any, tmp_path: Path) -> None:
    g = make()
    m = g.model()
    session, oracle = smelt.load(smelt.compile(m, output=tmp_path / "out")), plain_session(m)
    for size in sizes:
        shapes = {n: [size.get(d, d) for d in s] for n, (_, s) in g.inputs.items()}
        feeds = {n: g.bytes(t, *shapes[n]) for n, (t, _) in g.inputs.items()}
        for node, want, got in zip(g.nodes, oracle.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{node.op_type} {node.name} at {size}")
