"""Quantised graphs: integer kernels, results within a step of ONNX Runtime's, reasons for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import ops_of
from oracle import plain_session, runtime_session
from qdq_models import Net, optimised

from smelt.core.ir.graph import Module
from smelt.core.ir.interp_graph import run_module
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.passes.context import Context
from smelt.core.passes.quantized.quantize import quantized_products, quantized_summary
from smelt.importer import import_model
from smelt.targets.instructions import arm

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def compare(m: onnx.ModelProto, feeds: dict[str, Array], step: float) -> Module:
    """Both results, at most one step apart, and equal nearly everywhere; the optimised module."""
    session = plain_session(m)
    (want,) = session.run(None, feeds)
    module = optimised(m)
    (got,) = run_module(module, feeds, OPS)
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= step * 1.001
    assert (np.abs(got - want) > step / 2).mean() < 0.01
    return module


def type_of(module: Module, op: str) -> str:
    """The dtype of the only node of that op."""
    (node,) = (n for n in module.main.nodes if n.op == op)
    return node.output.type.dtype.name


def s8(*shape: int) -> Array:
    return RNG.integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_convolution(dtype: Any, channels: int, per_channel: bool) -> None:
    net, zero = Net(), 100 if dtype is np.uint8 else -5
    x = net.qdq("x", 0.05, zero, dtype)
    scale = RNG.uniform(0.01, 0.03, 6).astype(np.float32) if per_channel else np.array(0.02, np.float32)
    zeros = np.zeros(scale.shape, np.int8)
    w = net.weight(s8(6, channels, 3, 3), scale, zeros)
    whole = RNG.integers(-2000, 2000, 6).astype(np.int32)
    own = (np.float32(0.05) * scale).astype(np.float32)
    bias = net.weight(
        whole, np.broadcast_to(own, (6,)).copy() if per_channel else own, np.zeros(scale.shape, np.int32)
    )
    y = net.qdq(net.op("Relu", net.op("Conv", x, w, bias, pads=[1] * 4)), 0.3, zero, dtype)
    m = net.model(y, x=["n", channels, "h", "w"])
    feeds = {"x": RNG.uniform(-5, 6, (2, channels, 7, 5)).astype(np.float32)}
    module = compare(m, feeds, 0.3)
    assert type_of(module, "conv") == "i32"
    assert quantized_summary(quantized_products(import_model(m))) == {"integer": 1, "float": {}}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_the_left_bytes_have_the_sign_that_an_instruction_takes(dtype: Any) -> None:
    """sdot takes signed bytes, udot unsigned ones: the results are those of a machine that takes either."""
    net, zero = Net(), 100 if dtype is np.uint8 else -5
    scale = np.array(0.02, np.float32)
    w = net.weight(s8(6, 3, 3, 3), scale, np.array(0, np.int8))
    bias = net.const(RNG.normal(size=6).astype(np.float32))
    y = net.qdq(net.op("Conv", net.qdq("x", 0.05, zero, dtype), w, bias, pads=[1] * 4), 0.3, zero, dtype)
    flat = net.op("Reshape", y, net.const(np.array([0, -1, 6])))
    last = net.weight(s8(6, 5), scale, np.array(3, np.int8))
    m = net.model(net.op("MatMul", flat, last), x=["n", 3, "h", 4])
    feeds = {"x": RNG.uniform(-5, 6, (2, 3, 6, 4)).astype(np.float32)}
    rows = arm.rows(frozenset({"dotprod"}))
    module = optimised(m, Context(Machine("arm", 128, 32, instructions=rows)))
    for op in ("conv", "matmul"):
        (node,) = (n for n in module.main.nodes if n.op == op)
        types = {v.name: v.type.dtype.name for n in module.main.nodes for v in n.outputs}
        assert types[node.inputs[0]] == "i8"
    (got,), (want,) = run_module(module, feeds, OPS), run_module(optimised(m), feeds, OPS)
    np.testing.assert_array_equal(got, want)


def test_depthwise_convolution() -> None:
    net = Net()
    x = net.qdq("x", 0.05, 128)
    w = net.weight(s8(8, 1, 3, 3), np.full(8, 0.02, np.float32), np.zeros(8, np.int8))
    y = net.qdq(net.op("Conv", x, w, group=8, strides=[2, 2]), 0.3, 128)
    module = compare(
        net.model(y, x=["n", 8, "h", "w"]), {"x": RNG.uniform(-5, 6, (1, 8, 9, 9)).astype(np.float32)}, 0.3
    )
    assert type_of(module, "conv") == "i32"


@pytest.mark.parametrize("kind", ["columns", "zeros", "unsigned", "dynamic"])
def test_product(kind: str) -> None:
    net = Net()
    x = net.qdq("x", 0.05, 90)
    if kind == "dynamic":
        w = net.qdq("w", 0.04, 110)
    elif kind == "unsigned":
        w = net.weight(
            RNG.integers(0, 255, (10, 6)).astype(np.uint8),
            np.array(0.02, np.float32),
            np.array(130, np.uint8),
        )
    else:
        zeros = np.zeros(6, np.int8) if kind == "columns" else np.arange(6, dtype=np.int8)
        w = net.weight(s8(10, 6), RNG.uniform(0.01, 0.03, 6).astype(np.float32), zeros, axis=1)
    y = net.qdq(net.op("MatMul", x, w), 0.2, 120)
    more: dict[str, list[int | str]] = {"w": [10, "k"]} if kind == "dynamic" else {}
    feeds = {"x": RNG.uniform(-5, 6, (2, 3, 10)).astype(np.float32)}
    if more:
        feeds["w"] = RNG.uniform(-4, 5, (10, 7)).astype(np.float32)
    module = compare(net.model(y, x=["n", "m", 10], **more), feeds, 0.2)
    assert type_of(module, "matmul") == "i32"


def test_moves_work_on_bytes() -> None:
    """A pool, a transpose and a concatenation of one scale need no floats at all."""
    net = Net()
    x = net.qdq("x", 0.05, 128)
    pooled = net.qdq(net.op("MaxPool", x, kernel_shape=[2, 2]), 0.05, 128)
    joined = net.qdq(net.op("Concat", pooled, pooled, axis=1), 0.05, 128)
    y = net.qdq(net.op("Transpose", joined, perm=[0, 2, 3, 1]), 0.05, 128)
    m = net.model(y, x=["n", 3, "h", "w"])
    module = compare(m, {"x": RNG.uniform(-5, 6, (2, 3, 6, 6)).astype(np.float32)}, 0.05)
    assert ops_of(module).count("quantize") == 1
    assert ops_of(module).count("dequantize") == 1


@pytest.mark.parametrize("kind", ["resize", "gather"])
def test_ops_move_bytes_by_their_formulas(kind: str) -> None:
    """Nobody lists them: each element of the result is one of the operand (tests/smelt/test_plugin.py has ops
    that are refused)."""
    net = Net()
    x = net.qdq("x", 0.05, 128)
    if kind == "resize":
        sizes = net.const(np.array([1, 1, 2, 1], np.float32))
        y = net.op("Resize", x, "", sizes, mode="nearest", coordinate_transformation_mode="asymmetric")
    else:
        y = net.op("Gather", x, net.const(np.array([2, 0])), axis=1)
    feeds = {"x": RNG.uniform(-5, 6, (2, 3, 6, 6)).astype(np.float32)}
    module = compare(net.model(y, x=["n", 3, "h", "w"]), feeds, 0.05)
    (moved,) = [n for n in module.main.nodes if n.op == kind]
    assert moved.output.type.dtype.name == "u8"


def test_sums_read_and_write_bytes() -> None:
    net = Net()
    total = net.op(
        "Mul", net.qdq("x", 0.05, 128), net.op("Add", net.qdq("x", 0.04, 100), net.qdq("y", 0.03, 90))
    )
    m = net.model(net.qdq(total, 0.2, 128), x=["n", 5], y=["n", 5])
    feeds = {k: RNG.uniform(-3, 3, (4, 5)).astype(np.float32) for k in "xy"}
    compare(m, feeds, 0.2)


def test_what_stays_float_says_why() -> None:
    net = Net()
    w = net.weight(s8(4, 3, 1, 1), np.array(0.1, np.float32), np.array(3, np.int8))
    a = net.op("Conv", net.qdq("x", 0.1, 128), w)
    b = net.op("Conv", a, net.weight(s8(2, 4, 1, 1), np.array(0.1, np.float32), np.array(0, np.int8)))
    found = quantized_products(import_model(net.model(b, x=["n", 3, "h", "w"])))
    reasons = [r.reason for r in found]
    assert reasons == ["", "the left operand is not quantised to 8 bits"]


def test_dynamic_quantisation() -> None:
    """DynamicQuantizeLinear and MatMulInteger, as the dynamic quantiser of ONNX Runtime writes them."""
    net = Net()
    w = [
        net.const(s8(12, 6)),
        net.const(RNG.uniform(0.01, 0.03, 6).astype(np.float32)),
        net.const(np.zeros(6, np.int8)),
    ]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
    acc = net.op("Cast", net.op("MatMulInteger", "q", w[0], "z", w[2]), to=onnx.TensorProto.FLOAT)
    y = net.op("Mul", acc, net.op("Mul", "s", w[1]))
    module = compare(
        net.model(y, x=["n", "m", 12]), {"x": RNG.uniform(-3, 5, (2, 3, 12)).astype(np.float32)}, 1e-3
    )
    assert type_of(module, "matmul") == "i32"


@pytest.mark.parametrize("relu", [False, True])
def test_sums_between_two_steps_are_rounded_as_integer_kernels_round_them(relu: bool) -> None:
    """0.1 * 0.1 / 0.02 is a half but for its rounding: every odd sum is next to the middle of two steps."""
    net = Net()
    x = net.qdq("x", 0.1, 128)
    w = net.weight(s8(8, 4, 3, 3) // 16, np.array(0.1, np.float32), np.array(0, np.int8))
    y = net.op("Conv", x, w, pads=[1] * 4)
    m = net.model(net.qdq(net.op("Relu", y) if relu else y, 0.02, 0 if relu else 128), x=["n", 4, "h", "w"])
    session = runtime_session(m)
    feeds = {"x": RNG.uniform(-0.5, 0.5, (2, 4, 9, 8)).astype(np.float32)}
    module = optimised(m)
    np.testing.assert_array_equal(run_module(module, feeds, OPS)[0], session.run(None, feeds)[0])
    assert not {"relu", "clip"} & set(ops_of(module)) and ops_of(module).count("dequantize") == 1
