"""Broadcasts of sizes that a run decides: either side may be 1; only what other nodes want is assumed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.driver import Request

ort = pytest.importorskip("onnxruntime", reason="install smelt[validate]")
Shape = tuple[int | str, ...]


def model(nodes: list[Any], inputs: dict[str, Shape], outputs: dict[str, int]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * r) for n, r in outputs.items()]
    graph = helper.make_graph(nodes, "g", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def compiled(m: onnx.ModelProto, folder: Path) -> Bundle:
    onnx.save(m, folder / "m.onnx")
    return compile_here(Request(str(folder / "m.onnx"), "host", output=str(folder / "out")))


def random(m: onnx.ModelProto, *shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    pairs = zip(m.graph.input, shapes, strict=True)
    return {i.name: rng.standard_normal(s).astype(np.float32) for i, s in pairs}


def agree(session: smelt.Session, m: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    feeds = random(m, *shapes)
    wanted = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for got, want in zip(session.run(None, feeds), wanted, strict=True):
        assert got.shape == want.shape, shapes
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(shapes))


def test_rank_five(tmp_path: Path) -> None:
    """Every axis of either side is 1 or not, independently; empty ones among them."""
    nodes = [
        helper.make_node("Add", ["x", "y"], ["s"]),
        helper.make_node("Mul", ["s", "z"], ["p"]),
        helper.make_node("Sub", ["p", "x"], ["d"]),
    ]
    inputs: dict[str, Shape] = {"x": tuple("abcde"), "y": tuple("fghij"), "z": ("k", "l", "m")}
    m = model(nodes, inputs, {"d": 5})
    session = smelt.load(compiled(m, tmp_path), threads=1)
    full = (2, 3, 1, 5, 17)
    for mask in itertools.product((False, True), repeat=5):
        x = tuple(n if keep else 1 for n, keep in zip(full, mask, strict=True))
        y = tuple(1 if keep else n for n, keep in zip(full, mask, strict=True))
        agree(session, m, x, y, (1, 5, 1))
        agree(session, m, full, y, full[2:])
    agree(session, m, (2, 0, 1, 1, 3), (1, 1, 4, 1, 1), (1, 1, 3))
    agree(session, m, (1, 1, 1, 1, 1), (1, 1, 0, 1, 1), (1, 1, 1))
    with pytest.raises(smelt.SmeltError, match=r"axis 4 of the broadcast result: \w must be 1 or equal \w"):
        session.run(None, random(m, (1, 1, 1, 1, 3), (1, 1, 1, 1, 2), (1, 1, 1)))


def test_sizes_meet_constants(tmp_path: Path) -> None:
    m = model([helper.make_node("Add", ["x", "c"], ["y"])], {"x": ("n", "k"), "c": (3, 4)}, {"y": 2})
    session = smelt.load(compiled(m, tmp_path), threads=1)
    for x in ((3, 4), (1, 4), (3, 1), (1, 1)):
        agree(session, m, x, (3, 4))
    with pytest.raises(smelt.SmeltError, match="k must be 1 or equal 4"):
        session.run(None, {"x": np.zeros((3, 2), np.float32), "c": np.zeros((3, 4), np.float32)})


def test_batches_of_products_and_selections(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["p"]),
        helper.make_node("Greater", ["p", "t"], ["g"]),
        helper.make_node("Where", ["g", "p", "t"], ["y"]),
    ]
    inputs: dict[str, Shape] = {"a": ("n", "m", "k"), "b": ("o", "k", "w"), "t": ("q", "r", "s")}
    m = model(nodes, inputs, {"y": 3})
    session = smelt.load(compiled(m, tmp_path), threads=1)
    agree(session, m, (3, 4, 5), (1, 5, 9), (1, 4, 1))
    agree(session, m, (1, 4, 5), (3, 5, 9), (3, 1, 9))
    agree(session, m, (3, 1, 5), (3, 5, 1), (1, 6, 7))


def test_a_later_demand_makes_it_plain(tmp_path: Path) -> None:
    """scores + mask where the product behind it wants as many columns as there are keys: only the mask may be
    1, and the formula of memory speaks of inputs alone."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "k"], ["y"]),
    ]
    inputs: dict[str, Shape] = {"q": ("b", "s", 8), "k": ("b", "t", 8), "mask": ("c", 1, "u")}
    m = model(nodes, inputs, {"y": 3})
    bundle = compiled(m, tmp_path)
    session = smelt.load(bundle, threads=1)
    agree(session, m, (2, 3, 8), (2, 7, 8), (2, 1, 7))
    agree(session, m, (2, 3, 8), (2, 7, 8), (1, 1, 7))
    agree(session, m, (2, 3, 8), (2, 7, 8), (1, 1, 1))
    shapes = {"q": (2, 3, 8), "k": (2, 7, 8), "mask": (1, 1, 7)}
    assert bundle.peak_bytes(bundle.bind(shapes)) >= 0
    with pytest.raises(smelt.SmeltError, match="must be 1 or equal t"):
        session.run(None, random(m, (2, 3, 8), (2, 7, 8), (1, 1, 3)))


def test_expand_by_a_shape_of_unknown_length(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", "c"])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    graph = helper.make_graph([helper.make_node("Expand", ["x", "shape"], ["y"])], "g", [x, shape], [y])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = smelt.load(compiled(m, tmp_path), threads=1)
    data = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    for target in ([4, 1], [5, 2], [2, 1, 1], [1], []):
        wanted_shape = np.broadcast_shapes(data.shape if len(target) < 3 else (1, 3, 2), tuple(target))
        given = data if len(target) < 3 else data.reshape(1, 3, 2)
        (got,) = session.run(None, {"x": given, "shape": np.array(target, np.int64)})
        np.testing.assert_array_equal(got, np.broadcast_to(given, wanted_shape))
