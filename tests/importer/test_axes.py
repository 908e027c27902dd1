"""Axes, steps and scales that are inputs of the model, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from tests.support.onnx_models import agree, imported, model, types_of

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceLogSumExp"])
@pytest.mark.parametrize("axes", [[1], [-1, 0], [0, 1, 2]])
def test_reductions_that_keep_axes(op: str, axes: list[int]) -> None:
    nodes = [helper.make_node(op, ["x", "axes"], ["y"])]
    m = model(nodes, {"x": ("f32", ["a", 3, "b"]), "axes": ("i64", ["n"])}, {"y": "f32"}, opset=18)
    agree(m, {"x": X, "axes": np.array(axes)})


def test_reductions_without_axes_of_a_run() -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"])]
    m = model(nodes, {"x": ("f32", ["a", 3, "b"]), "axes": ("i64", ["n"])}, {"y": "f32"})
    agree(m, {"x": X, "axes": np.zeros(0, np.int64)})


def test_reductions_that_drop_axes() -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    m = model(nodes, {"x": ("f32", ["a", "b", "c"]), "axes": ("i64", [2])}, {"y": "f32"})
    assert types_of(imported(m))[0].startswith("f32[")
    for axes in ([0, 2], [1, -1], [0, 1]):
        agree(m, {"x": X, "axes": np.array(axes)})


def test_squeeze_and_unsqueeze() -> None:
    nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["u"]), helper.make_node("Relu", ["u"], ["y"])]
    m = model(nodes, {"x": ("f32", ["a", "b"]), "axes": ("i64", [2])}, {"y": "f32"})
    for axes in ([0, 1], [3, 1], [-1, 0]):
        agree(m, {"x": X[0], "axes": np.array(axes)})
    nodes = [helper.make_node("Squeeze", ["x", "axes"], ["s"]), helper.make_node("Neg", ["s"], ["y"])]
    m = model(nodes, {"x": ("f32", ["a", "b", "c"]), "axes": ("i64", [1])}, {"y": "f32"})
    agree(m, {"x": X[:, :1], "axes": np.array([1])})
    agree(m, {"x": X[:1], "axes": np.array([-3])})


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([0, 1], [2, 10**9], [1, 2], [1, 2]),
        ([-1], [-(10**9)], [-1], [-1]),
        ([5, 2], [0, 0], [2, 0], [-2, -1]),
        ([3], [1], [1], [1]),
    ],
)
def test_slices(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    names = ["starts", "ends", "axes", "steps"]
    nodes = [helper.make_node("Slice", ["x", *names], ["y"])]
    m = model(nodes, {"x": ("f32", ["a", "b", 4]), **{n: ("i64", ["k"]) for n in names}}, {"y": "f32"})
    feeds = dict(zip(names, map(np.array, (starts, ends, axes, steps)), strict=True))
    agree(m, {"x": X, **feeds})


def test_pads_of_axes() -> None:
    nodes = [helper.make_node("Pad", ["x", "pads", "", "axes"], ["y"])]
    types = {"x": ("f32", ["a", "b", 4]), "pads": ("i64", [4]), "axes": ("i64", [2])}
    m = model(nodes, types, {"y": "f32"}, opset=18)
    agree(m, {"x": X, "pads": np.array([1, 2, 0, -1]), "axes": np.array([2, 0])})


def test_axes_that_do_not_fit_are_refused() -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"])]
    m = model(nodes, {"x": ("f32", ["a", 3]), "axes": ("i64", [2])}, {"y": "f32"})
    for axes in ([0, 2], [1, -1], [-3, 0]):
        with pytest.raises(SmeltError):
            run_module(imported(m), {"x": X[0], "axes": np.array(axes)}, OPS)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_of_a_run(mode: str) -> None:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)]
    m = model(nodes, {"x": ("f32", [1, 1, "h", "w"]), "scales": ("f32", [4])}, {"y": "f32"})
    for scales in ([1, 1, 2, 1.5], [1, 1, 0.6, 0.8]):
        feeds = {"x": X[None, :1], "scales": np.array(scales, np.float32)}
        agree(m, feeds, 1e-4)
