"""Boxes and regions of any kind (flat, turned round, outside, tied, not numbers) through NonMaxSuppression,
RoiAlign and MaxRoiPool, built in drawn ways -> the results of ONNX Runtime.

Left out: images without a pixel, which smelt refuses (docs/differences.md).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from attack_convolutions import compared
from campaign import Outcome, main
from drawn_builds import Drawn, Fed, with_build
from onnx import TensorProto, helper, numpy_helper

RUNS = 4
COUNTS = (0, 1, 2, 5, 31, 32, 33, 64, 100, 300)
Array = np.ndarray[Any, Any]
F, I64 = TensorProto.FLOAT, TensorProto.INT64


def _corners(rng: random.Random, draw: np.random.Generator, shape: tuple[int, ...], extent: float) -> Array:
    """Boxes of the kinds that the dice choose."""
    way = rng.randrange(4)
    if way == 0:  # on a grid: equal ones, those without area, those whose overlap is a limit exactly
        found = draw.integers(0, 6, (*shape, 4)) * (extent / 8)
    elif way == 1:
        found = draw.uniform(-extent / 2, extent * 1.5, (*shape, 4))
    else:  # as detectors make them
        at, size = draw.uniform(0, extent, (*shape, 2)), draw.uniform(0, extent / 2, (*shape, 2))
        found = np.concatenate([at, at + size], -1)
    return found.astype(np.float32)


def _scores(rng: random.Random, draw: np.random.Generator, shape: tuple[int, ...]) -> Array:
    way = rng.randrange(4)
    if way == 0:  # many ties
        return (draw.integers(-2, 3, shape) / 4).astype(np.float32)
    found = draw.uniform(-0.2, 1, shape).astype(np.float32)
    if way == 1:  # keys that differ in their last bits
        found = (0.5 + found * np.float32(1e-6)).astype(np.float32)
    if way == 2:
        found[draw.random(shape) < 0.1] = rng.choice((-np.inf, 0.0, -0.0, 1e-40, -1e30, 1e30))
    return found


def _suppression(rng: random.Random, draw: np.random.Generator) -> Fed:
    inputs = {"boxes": (F, ["b", "n", 4]), "scores": (F, ["b", "c", "n"])}
    limits: list[tuple[str, int, Callable[[], Any]]] = [
        ("most", I64, lambda: rng.choice((0, 1, 3, 7, 50, 1000, -1 if rng.random() < 0.1 else 20))),
        ("overlap", F, lambda: rng.choice((0.0, 0.3, 0.5, 0.95, 1.0))),
        ("least", F, lambda: rng.choice((-1.0, 0.0, 0.1, 0.5, 2.0))),
    ]
    given, weights, late = ["boxes", "scores"], [], []
    for name, kind, value in limits[: rng.choice((1, 2, 3, 3, 3))]:
        given.append(name)
        if rng.random() < 0.7:
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            weights.append(numpy_helper.from_array(np.array([value()], dtype), name))
        else:
            inputs[name] = (kind, [1])
            late.append((name, kind, value))
    node = helper.make_node("NonMaxSuppression", given, ["y"], center_point_box=rng.randrange(2))
    feeds = []
    for _ in range(RUNS):
        b, c, n = rng.choice((1, 1, 2)), rng.choice((1, 2, 5)), rng.choice(COUNTS)
        feed = {"boxes": _corners(rng, draw, (b, n), 10), "scores": _scores(rng, draw, (b, c, n))}
        feed |= {k: np.array([v()], helper.tensor_dtype_to_np_dtype(kind)) for k, kind, v in late}
        feeds.append(feed)
    return _model(node, inputs, weights, I64), feeds


def _align(rng: random.Random, draw: np.random.Generator) -> Fed:
    opset = rng.choice((10, 16, 21))
    attrs: dict[str, Any] = {
        "mode": rng.choice(("avg", "avg", "max")), "sampling_ratio": rng.choice((0, 0, 1, 2, 3)),
        "output_height": rng.choice((1, 2, 7)), "output_width": rng.choice((1, 3, 7)),
        "spatial_scale": rng.choice((1.0, 0.25, 2.0)),
    }  # fmt: skip
    if opset >= 16:
        attrs["coordinate_transformation_mode"] = rng.choice(("half_pixel", "output_half_pixel"))
    channels = rng.choice((1, 3, 16, 33))
    inputs = {"x": (F, ["n", channels, "h", "w"]), "rois": (F, ["r", 4]), "of": (I64, ["r"])}
    feeds = []
    for _ in range(RUNS):
        n, h, w, r = (
            rng.choice((1, 2)),
            *(rng.choice((1, 2, 5, 13, 20)) for _ in "hw"),
            rng.choice((0, 1, 2, 9)),
        )
        rois = _corners(rng, draw, (r,), max(h, w) / attrs["spatial_scale"])
        x = draw.standard_normal((n, channels, h, w), np.float32)
        feeds.append({"x": x, "rois": rois, "of": draw.integers(0, n, r)})
    return _model(
        helper.make_node("RoiAlign", ["x", "rois", "of"], ["y"], **attrs), inputs, [], F, opset
    ), feeds


def _region_pool(rng: random.Random, draw: np.random.Generator) -> Fed:
    scale = rng.choice((1.0, 0.5, 0.0625))
    attrs = {"pooled_shape": [rng.choice((1, 2, 7)) for _ in "hw"], "spatial_scale": scale}
    inputs = {"x": (F, ["n", 3, "h", "w"]), "rois": (F, ["r", 5])}
    feeds = []
    for _ in range(RUNS):
        n, h, w, r = rng.choice((1, 2)), *(rng.choice((1, 2, 5, 13, 20)) for _ in "hw"), rng.choice((1, 2, 9))
        rois = np.concatenate([draw.integers(0, n, (r, 1)), _corners(rng, draw, (r,), max(h, w) / scale)], 1)
        feeds.append({"x": draw.standard_normal((n, 3, h, w), np.float32), "rois": rois.astype(np.float32)})
    return _model(helper.make_node("MaxRoiPool", ["x", "rois"], ["y"], **attrs), inputs, [], F), feeds


def _model(
    node: onnx.NodeProto, inputs: dict[str, tuple[int, list[Any]]], weights: list[onnx.TensorProto],
    kind: int, opset: int = 16,
) -> onnx.ModelProto:  # fmt: skip
    made = [helper.make_tensor_value_info(n, k, d) for n, (k, d) in inputs.items()]
    graph = helper.make_graph(
        [node], "regions", made, [helper.make_tensor_value_info("y", kind, None)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


KINDS = (_suppression, _suppression, _align, _align, _region_pool)


def drawn(seed: int) -> Drawn:
    """One model, built in one way, on some sets of boxes."""
    rng = random.Random(seed)
    return with_build(seed, *rng.choice(KINDS)(rng, np.random.default_rng(seed)))


def attack(seed: int) -> Outcome:
    """What comes of it."""
    return compared(drawn(seed), f"seed {seed}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 500))
