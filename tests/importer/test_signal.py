"""STFT of real and complex signals, of which a run tells, against ONNX Runtime as native code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx_models import model
from oracle import plain_session

import smelt
from smelt.compiler import compile_here
from smelt.driver import Request

WAYS = {
    "constants": ({"step": np.array(3), "window": np.hanning(8).astype(np.float32)}, {}),
    "a step of the run": ({"window": np.hanning(8).astype(np.float32)}, {"step": np.array(3)}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", ["p", 1, 2])
@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(way: str, parts: str | int, onesided: int, tmp_path: Path) -> None:
    constants, more = WAYS[way]
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], onesided=onesided)
    inputs = {"x": ("f32", ["b", "n", parts]), **{k: ("i64", []) for k in more}}
    m = model([node], inputs, {"y": "f32"}, constants)
    path = tmp_path / "model.onnx"
    path.write_bytes(m.SerializeToString())
    made = compile_here(Request(source=str(path), output=str(tmp_path / "bundle")))
    found, wanted = smelt.load(made, threads=1), plain_session(m)
    for p in {"p": (1, 2), 1: (1,), 2: (2,)}[parts]:
        x = np.random.default_rng(p).standard_normal((2, 20, p)).astype(np.float32)
        feeds = {"x": x, **more}
        (a,), (b,) = found.run(None, feeds), wanted.run(None, feeds)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
