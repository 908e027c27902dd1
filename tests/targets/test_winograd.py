"""Convolutions by transformed tiles on a processor, and on devices whose machine says what they cost:
compiled once, as ONNX Runtime at extents that fill tiles and that do not."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from onnx import helper
from onnx_models import model
from oracle import plain_session

import smelt
from smelt.compiler import compile_here
from smelt.driver import Request

RNG = np.random.default_rng(0)
SIZES = ((1, 8, 8), (2, 7, 9), (1, 1, 1), (3, 2, 5), (1, 4, 3), (0, 5, 5), (1, 33, 18))


def chain(kernel: tuple[int, ...], channels: int, once: bool = False, **attrs: Any) -> onnx.ModelProto:
    """A convolution with a bias, one without that reads it, their sum. once: the first alone."""
    shape = (channels, channels, *kernel)
    held: dict[str, np.ndarray[Any, Any]] = {
        n: (RNG.standard_normal(shape) / 20).astype(np.float32) for n in ("w", "v")
    }
    held["b"] = RNG.standard_normal(channels).astype(np.float32)
    pads = {"pads": [k // 2 for k in kernel] * 2, **attrs}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **pads),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[k // 2 for k in kernel] * 2),
        helper.make_node("Add", ["d", "r"], ["y"]),
    ]
    dims = ["n", channels, *("h", "w")[: len(kernel)]]
    if once:
        del nodes[2:], held["v"]
    return model(nodes, {"x": ("f32", dims)}, {"r" if once else "y": "f32"}, held)


MODELS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "image": ((3, 3), 48, {}),
    "uneven pads": ((3, 3), 48, {"pads": [0, 2, 3, 1]}),
    "channels that fill no vector": ((3, 3), 37, {}),
    "tiles of two": ((3, 3), 288, {}),
    "line": ((3,), 112, {}),
    "five taps": ((5, 5), 48, {}),
    "a line of five taps": ((5,), 160, {}),
    "three taps beside five": ((3, 5), 48, {}),
    "a tap on one axis": ((1, 3), 112, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_as_onnxruntime(name: str, tmp_path: Path) -> None:
    kernel, channels, attrs = MODELS[name]
    m = chain(kernel, channels, **attrs)
    onnx.save(m, tmp_path / "m.onnx")
    bundle = compile_here(Request(str(tmp_path / "m.onnx"), output=tmp_path / "out", runner=False))
    assert any("winograd" in k["name"] for k in bundle.manifest["kernels"])
    reference = plain_session(m)
    for threads in (1, 3):
        session = smelt.load(bundle, threads=threads)
        for n, *extents in SIZES:
            x = RNG.standard_normal((n, channels, *extents[: len(kernel)])).astype(np.float32)
            (wanted,), (found,) = reference.run(None, {"x": x}), session.run(None, {"x": x})
            assert found.shape == wanted.shape
            scale = np.abs(wanted).max(initial=1e-30)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("device", [
    pytest.param("opencl", marks=needs_opencl), pytest.param("vulkan", marks=needs_vulkan),
])  # fmt: skip
def test_on_lanes(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = importlib.import_module(f"smelt.targets.{device}.target")
    monkeypatch.setattr(target, "MACHINE", replace(target.MACHINE, transforms=(20, 35)))
    m = chain((3, 3), 37, once=True)  # devices compile a kernel for seconds
    onnx.save(m, tmp_path / "m.onnx")
    request = Request(str(tmp_path / "m.onnx"), output=tmp_path / "out", runner=False, target=f"x86+{device}")
    bundle = compile_here(request)
    assert any("winograd" in k["name"] and k["unit"] == device for k in bundle.manifest["kernels"])
    session, reference = smelt.load(bundle), plain_session(m)
    for n, *extents in ((1, 8, 8), (2, 7, 9), (1, 1, 1), (0, 5, 5)):
        x = RNG.standard_normal((n, 37, *extents)).astype(np.float32)
        (wanted,), (found,) = reference.run(None, {"x": x}), session.run(None, {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max(initial=1e-30))


@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("kernel", [(3, 3), (3,)])
def test_bytes_are_exact(kernel: tuple[int, ...], left: Any, tmp_path: Path) -> None:
    """Of the largest numbers that there are, around a zero point that is none of the ends."""
    channels, rank = 64, len(kernel)
    ends = np.array([np.iinfo(left).min, np.iinfo(left).max, 5], left)
    w = RNG.choice(np.array([-128, 127], np.int8), (channels, channels, *kernel))
    held = {"w": w, "zero": np.array(3, left)}
    node = helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], pads=[1] * (2 * rank))
    dims = ["n", channels, *("h", "w")[:rank]]
    kind = "u8" if left == np.uint8 else "i8"
    onnx.save(model([node], {"x": (kind, dims)}, {"y": "i32"}, held), tmp_path / "m")
    bundle = compile_here(Request(
        str(tmp_path / "m"), output=tmp_path / "out", runner=False, target="x86_64-linux:x86-64-v3"
    ))  # fmt: skip
    assert any("winograd" in k["name"] for k in bundle.manifest["kernels"])
    session = smelt.load(bundle)
    for n, *extents in SIZES:
        x = RNG.choice(ends, (n, channels, *extents[:rank]))
        (found,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(found, _convolved(x.astype(np.int64) - 3, w.astype(np.int64)))


def _convolved(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """x * w with pads of 1, channels first."""
    rank = w.ndim - 2
    wide = np.pad(x, [(0, 0), (0, 0), *[(1, 1)] * rank])
    cut = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], tuple(range(2, 2 + rank)))
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    return np.moveaxis(np.tensordot(cut, w, ((1, *axes), (1, *range(2, 2 + rank)))), -1, 1)
