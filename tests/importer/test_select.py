"""Choices and suppressions as native code against ONNX Runtime: ties, NaN, none, many, along every axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx_models import Array, model
from oracle import plain_session

import smelt
from smelt.compiler import compile_here
from smelt.driver import Request

Run = Callable[[Mapping[str, Array]], list[Array]]


def compiled(m: ModelProto, scratch: Path) -> Run:
    """The model as native code."""
    path = scratch / "model.onnx"
    path.write_bytes(m.SerializeToString())
    made = compile_here(Request(source=str(path), output=str(scratch / "bundle"), runner=False))
    session = smelt.load(made, threads=2)
    return lambda feeds: session.run(None, feeds)


def boxes(rng: np.random.Generator, *shape: int) -> Array:
    """Boxes, of which about one in three meets some other."""
    start = rng.uniform(0, np.sqrt(shape[-1]) * 9, (*shape, 2))
    return np.concatenate([start, start + rng.uniform(1, 9, start.shape)], -1).astype(np.float32)


SCORES: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "random": lambda rng, shape: rng.uniform(0, 1, shape),
    "signed": lambda rng, shape: rng.normal(0, 10, shape),
    "few values": lambda rng, shape: rng.integers(0, 3, shape) / 2,
    "equal": lambda rng, shape: np.full(shape, 0.5),
    "rising": lambda rng, shape: np.sort(rng.uniform(0, 1, shape)),
    "of all sizes": lambda rng, shape: 10.0 ** rng.uniform(-30, 30, shape),
}


LIMITS = ((5, 0.3, 0.0), (700, 0.5, -1e9), (10**9, 0.2, 0.4), (3, 0.0, 1e35), (0, 0.5, 0))
"""Most boxes that stay, the overlap and the score from which they do not."""


@pytest.mark.parametrize("centred", [0, 1])
def test_suppression(centred: int, tmp_path: Path) -> None:
    """The result is exact: the same boxes in the same order, equal scores in the order of the boxes."""
    inputs = {"x": ("f32", ["b", "n", 4]), "s": ("f32", ["b", "c", "n"]),
              "most": ("i64", []), "overlap": ("f32", []), "least": ("f32", [])}  # fmt: skip
    node = helper.make_node("NonMaxSuppression", [*inputs], ["y"], center_point_box=centred)
    m = model([node], inputs, {"y": "i64"})
    run, wanted = compiled(m, tmp_path), plain_session(m)
    rng = np.random.default_rng(centred)
    for scores in SCORES.values():
        for b, c, n in ((1, 1, 1), (2, 3, 40), (1, 2, 700)):
            for most, overlap, least in LIMITS:
                feeds = {
                    "x": boxes(rng, b, n),
                    "s": scores(rng, (b, c, n)).astype(np.float32),
                    "most": np.array(most),
                    "overlap": np.array(overlap, np.float32),
                    "least": np.array(least, np.float32),
                }
                (y,), (z,) = run(feeds), wanted.run(None, feeds)
                np.testing.assert_array_equal(y, z)


def test_scores_that_are_no_numbers_suppress_nothing(tmp_path: Path) -> None:
    """A box whose score is NaN is not above any score."""
    inputs = {"x": ("f32", ["b", "n", 4]), "s": ("f32", ["b", "c", "n"])}
    floats = {"overlap": np.array(0.5, np.float32), "least": np.array(0, np.float32)}
    constants = {"most": np.array(100), **floats}
    node = helper.make_node("NonMaxSuppression", ["x", "s", *constants], ["y"])
    run = compiled(model([node], inputs, {"y": "i64"}, constants), tmp_path)
    same = np.tile(np.array([0, 0, 1, 1], np.float32), (1, 3, 1))
    (y,) = run({"x": same, "s": np.array([[[np.nan, 0.1, 0.2]]], np.float32)})
    np.testing.assert_array_equal(y, [[0, 0, 2]])


@pytest.mark.table(2)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("largest", [0, 1])
def test_first_of_an_axis(axis: int, largest: int, tmp_path: Path) -> None:
    inputs = {"x": ("f32", ["a", "b", "c"]), "k": ("i64", [1])}
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=largest)
    m = model([node], inputs, {"y": "f32", "i": "i64"})
    run, wanted = compiled(m, tmp_path), plain_session(m)
    rng = np.random.default_rng(axis)
    for scores in SCORES.values():
        for shape in ((1, 1, 1), (3, 130, 5), (120, 2, 140), (0, 2, 3)):
            x = scores(rng, shape).astype(np.float32)
            for k in {0, min(1, shape[axis]), shape[axis] // 2, shape[axis]}:
                feeds = {"x": x, "k": np.array([k])}
                for found, right in zip(run(feeds), wanted.run(None, feeds), strict=True):
                    np.testing.assert_array_equal(found, right)
