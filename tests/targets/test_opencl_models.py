"""Whole models for x86+opencl, compiled and run in a session, agree with ONNX Runtime at several shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from opencl_run import context
from oracle import runtime_session

import smelt

Array = np.ndarray[Any, Any]

CONV = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, h, w] x, float[5, 3, 3, 3] k, float[5] b, float[5, 4] m)
  => (float[n, 4] y, float[n, 5, p, q] z)
{
  c = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, k, b)
  z = Relu (c)
  g = GlobalAveragePool (z)
  f = Flatten (g)
  d = MatMul (f, m)
  y = Softmax (d)
}
"""
TYPES = """
<ir_version: 8, opset_import: ["" : 17]>
net (double[n, 3] x, float16[n, 3] h, uint8[n, 3] u)
  => (double[n] a, float16[n, 3] b, int32[n, 3] c, bool[n, 3] d)
{
  a = ReduceSum <keepdims = 0> (x, axis)
  b = Tanh (h)
  c = Cast <to = 6> (x)
  two = Cast <to = 2> (h)
  d = Less (u, two)
}
"""


def build(text: str, **constants: Array) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    keep = [i for i in model.graph.input if i.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(keep)
    onnx.checker.check_model(model)
    return model


def check(
    model: onnx.ModelProto, out: Path, feeds: list[dict[str, Array]], place: dict[str, str] | None = None
) -> None:
    context()  # skips where there is no device
    data = model.SerializeToString()
    session = smelt.load(smelt.compile(data, target="x86+opencl", output=out, place=place))
    oracle = runtime_session(model)
    again = [{n: np.roll(a, k) for n, a in feeds[-1].items()} for k in range(1, 4)]  # as lists, then
    for feed in (*feeds, *again):
        for got, want in zip(session.run(None, feed), oracle.run(None, feed), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            tolerance = 2e-3 if want.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def uniform(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def test_convolution_at_changing_shapes(tmp_path: Path) -> None:
    model = build(CONV, k=uniform(5, 3, 3, 3), b=uniform(5), m=uniform(5, 4))
    sizes = [(1, 8, 8), (2, 7, 13), (1, 1, 1), (3, 30, 5), (1, 8, 8)]
    check(model, tmp_path / "b", [{"x": uniform(n, 3, h, w)} for n, h, w in sizes])


def test_other_types(tmp_path: Path) -> None:
    model = build(TYPES, axis=np.array([1], np.int64))
    feeds = []
    for n in (1, 5, 33):
        x = 100 * uniform(n, 3)
        half, bytes_ = np.abs(x / 50).astype(np.float16), (x > 0).astype(np.uint8)
        feeds.append({"x": x.astype(np.float64), "h": half, "u": bytes_})
    check(model, tmp_path / "b", feeds, {"*": "opencl"})


def test_as_many_inputs_and_outputs_as_a_model_has(tmp_path: Path) -> None:
    """A cache of 70 layers has 140 of each, more than once fitted an address."""
    many = range(140)
    text = f"""
<ir_version: 8, opset_import: ["" : 17]>
net ({", ".join(f"float[n] x{k}" for k in many)}) => ({", ".join(f"float[n] y{k}" for k in many)})
{{
{"".join(f"  y{k} = Add (x{k}, x{(k + 1) % 140})" for k in many)}
}}
"""
    feeds = [{f"x{k}": np.arange(n, dtype=np.float32) + k for k in many} for n in (3, 1, 0, 5)]
    check(build(text), tmp_path / "out", feeds)


def test_source_and_table_agree(tmp_path: Path) -> None:
    """Every kernel of the table is in the source, under C names, all on the device."""
    from smelt.compiler import lower
    from smelt.driver import Request
    from smelt.targets.registry import cpu_target, devices

    path = tmp_path / "m.onnx"
    onnx.save(build(CONV, k=uniform(5, 3, 3, 3), b=uniform(5), m=uniform(5, 4)), path)
    lowered = lower(Request(source=str(path), target="x86+opencl"))
    make = cpu_target().emit
    first, again = (
        make(
            lowered.linked, lowered.spec, name="m", prefix="m", threads=0,
            weights_sha256=bytes(32), devices=devices(lowered.spec),
        )
        for _ in range(2)
    )
    assert first.object == again.object
    source = first.dumps["model.cl"]()
    assert isinstance(source, str)
    assert source.count("__kernel ") == len(lowered.linked.rows)
    assert list(first.dumps) == ["model.cl", "model.ll", "model.o"]


HOSTILE = ("*/ #error /*", '"; }', "a\nb\\", "%s%n", "kernel", "é漢\u202e", "__global", "x" * 300, "0")


def test_names_are_no_code(tmp_path: Path) -> None:
    """Names of values, nodes and sizes that would be code, comments or formats where source is written."""
    context()
    nodes, last = [], "in"
    for k, name in enumerate(HOSTILE):
        op = ("Exp", "Neg", "Softmax")[k % 3]
        nodes.append(onnx.helper.make_node(op, [last], [name], name=f"{name} /* {op}"))
        last = name
    x = onnx.helper.make_tensor_value_info("in", onnx.TensorProto.FLOAT, ['n */ "', "m\n#define x"])
    y = onnx.helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "*/ g", [x], [y])
    sets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8), tmp_path / "m.onnx")
    results = []
    for target in ("host", "x86+opencl"):
        out = tmp_path / target.replace("+", "-")
        session = smelt.load(smelt.compile(tmp_path / "m.onnx", target=target, output=out), threads=1)
        results.append(session.run(None, {"in": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)})[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)
