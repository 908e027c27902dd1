"""Bundles with units run by arm64 drivers of OpenCL and Vulkan, emulated, and agree with ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import need_qemu
from oracle import runtime_session
from sample_models import check_close, model_named, reference

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.inventory import find_device, open_transport
from smelt.devicefarm.measure import ONCE
from smelt.driver import Request

LIMITS = StepLimits(load=1200, run=3600, silence=120, total=3600)
"""Kernels are compiled by an emulated compiler."""
SMALLEST: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "onnx_asr_nemo128_stft": ({"batch": 1, "samples": 16000}, {"batch": 3, "samples": 997}),
    "silero_vad_v6.2.3": (
        {"batch": 1, "samples": 576, "rate": 16000}, {"batch": 3, "samples": 576, "rate": 16000}),
    "magika_v3_3": ({"batch": 1}, {"batch": 3}),
    "ppocrv4_det": ({"batch": 1, "height": 32, "width": 32}, {"batch": 1, "height": 64, "width": 96}),
}  # fmt: skip
"""The smallest files of the models that packages carry, each at two sizes."""
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
rows (float[n, 16] x) => (float[n, 16] y) { a = MatMul (x, x_t)  y = Softmax (a) }
"""


@pytest.fixture
def drivers(request: pytest.FixtureRequest) -> None:
    need_qemu("qemu-aarch64-static")
    if not request.config.getoption("--every-model"):
        pytest.skip("540 MB of packages, and minutes under emulation: --every-model")


def answers(path: Path, unit: str, folder: Path, feeds: list[dict[str, Any]]) -> list[list[Any]]:
    """The outputs of each run, of kernels at the unit, but for what the host has to know (a branch)."""
    bundle = folder / "bundle"
    made = compile_here(Request(source=str(path), target=f"arm64+{unit}", output=str(bundle)))
    assert {k["unit"] for k in made.manifest["kernels"]} - {"cpu"} == {unit}
    names = [o["name"] for o in made.manifest["outputs"]]
    found = []
    with open_session(open_transport(find_device("arm64-units")), bundle, budget=Budget(LIMITS)) as client:
        for feed in feeds:
            report = client.run(feed, ONCE)
            assert report.emulated and report.facts.arch == "aarch64"
            found.append([report.outputs[n] for n in names])
    return found


@pytest.mark.usefixtures("drivers")
@pytest.mark.parametrize("unit", ["opencl", "vulkan"])
def test_a_model_on_arm64_drivers(unit: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "x_t"))
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": np.linspace(-1, 1, 16 * n, dtype=np.float32).reshape(n, 16)} for n in (3, 5)]
    oracle = runtime_session(model)
    for feed, (got,) in zip(feeds, answers(tmp_path / "m.onnx", unit, tmp_path, feeds), strict=True):
        np.testing.assert_allclose(got, oracle.run(None, feed)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("drivers")
@pytest.mark.parametrize("unit", ["opencl", "vulkan"])
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_models(name: str, unit: str, tmp_path: Path) -> None:
    model = model_named(name)
    feeds = [model.feeds(size) for size in SMALLEST[name]]
    found, ort = answers(model.path(), unit, tmp_path, feeds), reference(model.path())
    for feed, size, got in zip(feeds, SMALLEST[name], found, strict=True):
        check_close(got, ort.run(None, feed), f"{name} at {dict(size)}")


def test_without_qemu_the_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SmeltError, match="qemu-aarch64-static is not installed"):
        open_transport(find_device("arm64-units"))


def test_without_namespaces_the_device_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_qemu("qemu-aarch64-static")
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare: not permitted' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SmeltError, match=r"cannot be made here \(unshare: not"):
        open_transport(find_device("arm64-units"))
