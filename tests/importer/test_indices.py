"""Indices outside their axis: an error that names node, index and bound, or a proof that there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_vulkan
from onnx import helper
from onnx_models import imported, model
from opencl_run import context

import smelt
from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request

node = helper.make_node
X = np.arange(20, dtype=np.float32).reshape(5, 4)
LEAST, GREATEST = -(2**63), 2**63 - 1


def graph(n: onnx.NodeProto, index: Sequence[Any], dtype: str = "i64", updates: Sequence[Any] = ()) -> Any:
    """One node on x[N, 4], indices i, and updates u."""
    inputs = {"x": ("f32", ["N", 4]), "i": (dtype, index)}
    if updates:
        inputs["u"] = ("f32", updates)
    return model([n], inputs, {"y": "f32"}, {})


GATHER = graph(node("Gather", ["x", "i"], ["y"]), ["K"])
ONE = graph(node("Gather", ["x", "i"], ["y"], axis=1), [])
NARROW = graph(node("Gather", ["x", "i"], ["y"], axis=1), ["K", 2], "i32")
ELEMENTS = graph(node("GatherElements", ["x", "i"], ["y"], axis=1), ["N", "K"])
TUPLES = graph(node("GatherND", ["x", "i"], ["y"]), ["K", 2])
TUPLE = graph(node("GatherND", ["x", "i"], ["y"]), [2])
ADD = graph(node("ScatterElements", ["x", "i", "u"], ["y"], reduction="add"), ["K", 4], "i64", ["K", 4])
ROWS = graph(node("ScatterND", ["x", "i", "u"], ["y"]), ["K", 1], "i64", ["K", 4])

CASES: Mapping[str, tuple[onnx.ModelProto, Sequence[Any], Mapping[Any, str]]] = {
    "gather": (
        GATHER,
        ([0, -5, 4], [], [2]),
        {
            (1, 5, 0): "axis 0 is 5, expected at most 4",
            (-6, 1): "axis 0 is -6, expected at least -5",
            (0, LEAST, 1): "expected at least -5",
            (GREATEST, 0): "expected at most 4",
            (2**62, 0, 0): "expected at most 4",
            (0, 0, -(2**62) - 1): "expected at least -5",
            (2**32, 0, 0): f"axis 0 is {2**32}, expected at most 4",
        },
    ),
    "one": (ONE, (0, -4, 3), {4: "axis 1 is 4", -5: "is -5, expected at least -4", LEAST: str(LEAST)}),
    "narrow": (
        NARROW,
        ([[0, -4]], np.zeros((0, 2))),
        {((4, 0),): "is 4", ((-(2**31), 0), (0, 0)): f"is {-(2**31)}", ((2**31 - 1, 0),): f"is {2**31 - 1}"},
    ),
    "elements": (ELEMENTS, (np.full((5, 3), -4),), {((0, 1, 4),) * 5: "is 4, expected at most 3"}),
    "tuples": (
        TUPLES,
        ([[0, -4], [4, 3], [-5, 0]], np.zeros((0, 2))),
        {((5, 0), (0, 0), (0, 0)): "axis 0 is 5", ((0, 3), (4, -5), (0, 0)): "axis 1 is -5"},
    ),
    "tuple": (TUPLE, ([4, 3], [-5, -4]), {(0, 4): "axis 1 is 4", (LEAST, 0): "axis 0 is"}),
    "add": (ADD, (np.full((2, 4), -5),), {((0, 0, 5, 0), (0, 0, 0, 0)): "axis 0 is 5"}),
    "rows": (ROWS, ([[4]], [[-5]]), {((GREATEST,), (0,), (0,)): "axis 0 is"}),
}


@pytest.mark.parametrize(
    "target", ["host", "host+opencl", pytest.param("host+vulkan", marks=needs_vulkan)]
)
@pytest.mark.parametrize("name", sorted(CASES))
def test_run_time_indices(name: str, target: str, tmp_path: Path, device: Any) -> None:
    m, good, bad = CASES[name]
    session = compiled(m, target, tmp_path)
    dtype = np.int32 if name == "narrow" else np.int64

    def run(index: Any) -> Any:
        i = np.asarray(index, dtype)
        u = np.ones((len(i), 4) if i.ndim else (), np.float32)
        feeds = {"x": X, "i": i, "u": u}
        return session.run(None, {k: feeds[k] for k in [v.name for v in m.graph.input]})

    for index in good:
        run(index)
    for index, text in bad.items():
        with pytest.raises(SmeltError, match=r"node 'y' \(\w+\): index of " + ".*" + text) as e:
            run(index)
        assert e.value.kind == "shape"
    run(good[0])


def compiled(m: onnx.ModelProto, target: str, folder: Path) -> smelt.Session:
    onnx.save(m, folder / "m.onnx")
    made = compile_here(
        Request(source=str(folder / "m.onnx"), target=target, output=str(folder / "out"), runner=False)
    )
    return smelt.load(made)


@pytest.fixture
def device(target: str) -> None:
    if "opencl" in target:
        context()  # skips where there is no device


def test_in_each_round_of_a_loop(tmp_path: Path) -> None:
    scalar = [helper.make_tensor_value_info("k", 7, []), helper.make_tensor_value_info("go", 9, [])]
    results = [helper.make_tensor_value_info("more", 9, []), helper.make_tensor_value_info("r", 1, None)]
    nodes = [node("Gather", ["x", "k"], ["r"]), node("Identity", ["go"], ["more"])]
    body = helper.make_graph(nodes, "body", scalar, results)
    inputs = {"x": ("f32", ["N", 4]), "n": ("i64", [])}
    m = model([node("Loop", ["n", ""], ["y"], body=body)], inputs, {"y": "f32"}, {})
    session = compiled(m, "host", tmp_path)
    np.testing.assert_array_equal(session.run(None, {"x": X, "n": np.array(5)})[0], X)
    assert session.run(None, {"x": X, "n": np.array(0)})[0].shape == (0, 4)
    with pytest.raises(SmeltError, match=r"node 'r' \(Gather\): index of axis 0 is 5, expected at most 4"):
        session.run(None, {"x": X, "n": np.array(6)})


def test_sequence_lengths(tmp_path: Path) -> None:
    reverse = node("ReverseSequence", ["x", "i"], ["y"])
    session = compiled(
        model([reverse], {"x": ("f32", ["T", "B"]), "i": ("i64", ["B"])}, {"y": "f32"}), "host", tmp_path
    )
    (y,) = session.run(None, {"x": X, "i": np.array([5, 2, 1, 3])})
    np.testing.assert_array_equal(y[:, 0], X[::-1, 0])
    far = ((6, "at most 5"), (GREATEST, "at most 5"), (-1, "at least 0"), (LEAST, "at least 0"))
    for length, bound in far:
        text = f"is {length if abs(length) < 9 else '.*'}, expected {bound}"
        with pytest.raises(SmeltError, match=f"sequence length {text}"):
            session.run(None, {"x": X, "i": np.array([5, 2, length, 3])})


def test_one_hot_has_no_outside(tmp_path: Path) -> None:
    constants = {"depth": np.array(3), "values": np.array([0.5, 2], np.float32)}
    one_hot = node("OneHot", ["i", "depth", "values"], ["y"])
    m = model([one_hot], {"i": ("i64", ["K"])}, {"y": "f32"}, constants)
    (y,) = compiled(m, "host", tmp_path).run(None, {"i": np.array([0, -1, 3, -4, LEAST, GREATEST])})
    np.testing.assert_array_equal(y[:2], [[2, 0.5, 0.5], [0.5, 0.5, 2]])
    assert (y[2:] == 0.5).all()


# ---------------------------------------------------------------- what needs no check


def binds(nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Any] | None = None, **dims: Any) -> int:
    """How many indices are looked at while the model runs."""
    arrays = {k: np.asarray(v) for k, v in (constants or {}).items()}
    inputs = {"x": ("f32", ["N", 4]), **{k: ("i64", d) for k, d in dims.items()}}
    module = imported(model(nodes, inputs, {"y": "f32"}, arrays))
    return sum(n.op == "bind" and str(n.attrs["symbol"]).startswith("index") for n in module.main.walk())


def test_positions_need_no_check() -> None:
    best = node("ArgMax", ["x"], ["i"], axis=1, keepdims=1)
    assert not binds([best, node("GatherElements", ["x", "i"], ["y"], axis=1)])
    top = node("TopK", ["x", "k"], ["v", "i"], axis=1)
    narrowed = node("Cast", ["i"], ["j"], to=6)
    assert not binds([top, narrowed, node("GatherElements", ["x", "j"], ["y"], axis=1)], {"k": [2]})
    assert binds([top, node("GatherElements", ["x", "i"], ["y"], axis=0)], {"k": [2]})
    found = node("NonZero", ["x"], ["i"])
    turned = node("Transpose", ["i"], ["t"], perm=[1, 0])
    assert not binds([found, turned, node("GatherND", ["x", "t"], ["y"])])


def test_numbers_that_are_held_inside_need_no_check() -> None:
    gather = node("Gather", ["x", "j"], ["y"], axis=1)
    assert binds([node("Identity", ["i"], ["j"]), gather], i=["K"])
    clip = [node("Clip", ["i", "low", "high"], ["j"]), gather]
    assert not binds(clip, {"low": 0, "high": 3}, i=["K"])
    assert not binds(clip, {"low": -4, "high": 3}, i=["K"])
    assert binds(clip, {"low": 0, "high": 4}, i=["K"])
    assert binds([node("Clip", ["i", "", "high"], ["j"]), gather], {"high": 3}, i=["K"])
    assert not binds([node("Mod", ["i", "four"], ["j"]), gather], {"four": 4}, i=["K"])
    assert binds([node("Mod", ["i", "minus"], ["j"]), gather], {"minus": -5}, i=["K"])
    remainder = [node("Mod", ["i", "four"], ["m"]), node("Add", ["m", "one"], ["j"]), gather]
    assert binds(remainder, {"four": 4, "one": 1}, i=["K"])
    assert not binds(remainder, {"four": 3, "one": 1}, i=["K"])
    count = [node("Shape", ["x"], ["s"]), node("Squeeze", ["n"], ["end"])]
    ends = [*count, node("Slice", ["s", "zero1", "one1"], ["n"])]
    steps = [ends[0], ends[2], ends[1], node("Range", ["zero", "end", "one"], ["j"])]
    constants = {"zero": 0, "one": 1, "zero1": [0], "one1": [1]}
    assert not binds([*steps, node("Gather", ["x", "j"], ["y"], axis=0)], constants)


def test_constants_are_settled_before_a_run(tmp_path: Path) -> None:
    gather = node("GatherND", ["x", "i"], ["y"])
    m = model([gather], {"x": ("f32", ["N", 4])}, {"y": "f32"}, {"i": np.array([[3, 1], [-4, 2]])})
    session = compiled(m, "host", tmp_path)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X[[3, -4], [1, 2]])
    with pytest.raises(SmeltError, match="input 'x' axis 0: N is 3, below"):
        session.run(None, {"x": X[:3]})
    m = model([gather], {"x": ("f32", ["N", 4])}, {"y": "f32"}, {"i": np.array([[0, 4]])})
    with pytest.raises(SmeltError, match="index of axis 1: the indices reach from 4 to 4") as e:
        compiled(m, "host", tmp_path)
    assert e.value.kind == "invalid"
    body = node("ScatterElements", ["x", "i", "u"], ["y"], axis=1)
    u = np.zeros((1, 1), np.float32)
    m = model([body], {"x": ("f32", ["N", 4])}, {"y": "f32"}, {"i": np.array([[-5]]), "u": u})
    with pytest.raises(SmeltError, match="index of axis 1: the indices reach from -5 to -5"):
        compiled(m, "host", tmp_path)


@pytest.mark.parametrize(("op", "inputs"), [("GatherND", "xi"), ("ScatterND", "xiu")])
def test_indices_without_axes(op: str, inputs: str) -> None:
    n = node(op, list(inputs), ["y"])
    with pytest.raises(SmeltError, match=r"wanted (rank )?1 or more") as e:
        imported(graph(n, [], updates=["N", 4] if "u" in inputs else ()))
    assert e.value.kind == "invalid"


@pytest.mark.parametrize("batch", [-2, -1, 2, 2**40])
def test_batch_axes_that_there_are_not(batch: int) -> None:
    with pytest.raises(SmeltError, match=f"batch_dims is {batch}, wanted 0 to 1") as e:
        imported(graph(node("GatherND", ["x", "i"], ["y"], batch_dims=batch), ["K", 2]))
    assert e.value.kind == "invalid"
