"""Models that packages carry, and a cache of 65 layers, on OpenCL, on Vulkan, and on CUDA where there is a
GPU, agree with ONNX Runtime.

The small ones run always, the others with --every-model.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import decoder_models as decoders
import numpy as np
import onnx
import pytest
from boards import needs_cuda, needs_opencl, needs_vulkan
from installed import system_folder
from oracle import runtime_session
from rounding import ROUNDED, compiled, differs_by_rounding_alone, other_answers
from sample_models import MODELS, Model, check_close, model_named, reference

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle, read_bundle
from smelt.driver import Request

Sizes = Sequence[Mapping[str, int]]

TARGETS = (
    pytest.param("x86+opencl", marks=needs_opencl),
    pytest.param("x86+vulkan", marks=needs_vulkan),
    pytest.param("x86+cuda", marks=needs_cuda),
)
SMALL = ("silero_vad_v6.2.3", "onnx_asr_nemo128_stft", "magika_v3_3")
SIZES: Mapping[str, Sizes] = {"magika_v3_3": ({"batch": 1}, {"batch": 2})}
"""Sizes of small models, where the first two of their own take long: a row of magika is 3 s of llvmpipe."""
LARGE: Mapping[str, Sequence[int]] = {
    "ppocrv4_rec": (0, 1),
    "ppocrv4_det": (1, 3),
    "nudenet_320n_yolov8": (1, 3),
    "slanet_plus_table": (0, 1),
    "smart_turn_v3.2_int8": (0, 1),
    "resnet18_dyn": (0, 1),
    "minilm_real": (0, 1),
    "whisper_tiny_encoder": (0, 1),
    "smollm_genai_int4": (0, 1),
}
"""Which of the model's sizes, so that an emulated device ends within minutes."""
CACHE_LAYERS = 65


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a model's bundle for a device lies once it was made."""
    return tmp_path_factory.mktemp("bundles")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str, target: str, bundles: Path) -> None:
    agrees(name, target, bundles / target, SIZES.get(name, model_named(name).sizes[:2]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LARGE)
def test_large_models(name: str, target: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--every-model"):
        pytest.skip("takes minutes on an emulated device: --every-model")
    model = model_named(name)
    agrees(name, target, tmp_path, [model.sizes[i] for i in LARGE[name]])


def agrees(name: str, target: str, folder: Path, sizes: Sizes) -> None:
    model = model_named(name)
    path = model.path()
    ort = reference(path)
    session = smelt.load(made(model, folder, target), threads=2)
    if name in ROUNDED:
        differs_by_rounding_alone(
            model, session, ort, reference(other_answers(model, folder), plain=True), sizes
        )
    else:
        least = 1.0 if model in MODELS else 1e-3
        for size in sizes:
            feeds = model.feeds(size)
            check_close(session.run(None, feeds), ort.run(None, feeds), f"{name} at {dict(size)}", least)
    assert session.memory().launches and session.fallback is None
    session.close()


def made(model: Model, folder: Path, target: str) -> Bundle:
    """The model's bundle in a folder, compiled by the first test that wants it."""
    there = folder / model.name
    return read_bundle(there) if there.exists() else compiled(model, folder, target)


def cached_steps(layers: int) -> list[dict[str, Any]]:
    """A prompt of three tokens, then one more after a cache of three."""
    rows = []
    for past, new in ((0, 3), (3, 1)):
        rng = np.random.default_rng(past)
        shape = (1, decoders.GROUPS, past, decoders.SIZE)
        cache = {n: rng.standard_normal(shape).astype(np.float32) / 10 for n in decoders.empty(layers, 1)}
        rows.append({**decoders.step("grouped", 1, past, new), **cache})
    return rows


@pytest.mark.parametrize("target", TARGETS)
def test_a_cache_of_65_layers(target: str, tmp_path: Path) -> None:
    """130 inputs and as many outputs, beside those of the model; each kernel is there once. One layer has
    more than its attention: what grows by layers is the cache."""
    proto = decoders.decoder("grouped", CACHE_LAYERS, products=1)
    onnx.save(proto, tmp_path / "m.onnx")
    request = Request(source=str(tmp_path / "m.onnx"), target=target, output=str(tmp_path / "out"))
    session = smelt.load(compile_here(request))
    oracle = runtime_session(proto)
    for feeds in cached_steps(CACHE_LAYERS):
        got, want = session.run(None, feeds), oracle.run(None, feeds)
        assert len(got) == 1 + 2 * CACHE_LAYERS
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-3, atol=1e-4)
    session.close()


LAYERED = """
import pickle, sys, smelt
session = smelt.load(sys.argv[1])
for feeds in pickle.load(open(sys.argv[2], "rb")):
    session.run(None, feeds)
session.close()
print("end")
"""


@needs_vulkan
@pytest.mark.parametrize("weak", ["", "visible=0,bindings=4,groups=100"])
@pytest.mark.parametrize("name", ["silero_vad_v6.2.3", "decoder"])
def test_validation_layers_find_nothing_over_a_model(
    name: str, weak: str, bundles: Path, tmp_path: Path
) -> None:
    if not list(system_folder("/usr/share/vulkan/explicit_layer.d").glob("*validation*.json")):
        pytest.skip("no validation layers: apt install vulkan-validationlayers")
    if name == "decoder":
        out, feeds = bundles / "decoder", cached_steps(2)
        if not out.exists():
            onnx.save(decoders.decoder("grouped", 2), tmp_path / "m.onnx")
            compile_here(Request(source=str(tmp_path / "m.onnx"), target="x86+vulkan", output=str(out)))
    else:
        model = model_named(name)
        out = made(model, bundles / "x86+vulkan", "x86+vulkan").path
        feeds = [model.feeds(size) for size in model.sizes[:2]]
    (tmp_path / "feeds").write_bytes(pickle.dumps(feeds))
    env = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation", "SMELT_VULKAN_WEAK": weak}
    words = [sys.executable, "-c", LAYERED, str(out), str(tmp_path / "feeds")]
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.stdout.strip() == "end", done.stdout[:3000] + done.stderr[-2000:]
    assert "VUID" not in done.stderr, done.stderr[:3000]
