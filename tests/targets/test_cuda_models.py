"""Whole models for x86+cuda, their kernels and cuda_driver.c run on this machine, agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from cuda_conformance import conformance
from cuda_sources import cuda_checkout, fake_libcuda
from sample_models import model_named

from smelt.compiler import lower
from smelt.driver import Request
from smelt.targets.registry import cpu_target, devices

MIXED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, h, w] x, float[5, 3, 3, 3] k, float16[n, 4] f, double[n, 4] d, int8[n, 4] c)
  => (float[n, 5] y, float16[n, 4] g, double[n, 4] e, int64[n] a, bool[n, 4] b)
{
  v = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, k)
  r = Relu (v)
  p = GlobalAveragePool (r)
  q = Flatten (p)
  y = Softmax (q)
  g = Tanh (f)
  e = Sigmoid (d)
  a = ArgMax <axis = 1, keepdims = 0> (d)
  b = Less (c, s)
}
"""


GROUPED = """
<ir_version: 11, opset_import: ["" : 23]>
net (float16[b, 8, t, 64] q, float16[b, 2, s, 64] k, float16[b, 2, s, 64] v) => (float16[b, 8, t, 64] y)
{
  y = Attention (q, k, v)
}
"""


def agrees(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, *shapes: str, place: str = ""
) -> None:
    """Compile in a copy of the sources whose CUDA runs here, and validate. shapes: for --shape."""
    copy = cuda_checkout(folder / "copy")
    out = str(folder / "out")
    words = ["compile", str(model), "--target", "x86+cuda", "-o", out, *(["--place", place] if place else [])]
    done = copy.python("-m", "smelt.cli", *words)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_libcuda()))
    asked = [word for shape in shapes for word in ("--shape", shape)]
    done = copy.python("-m", "smelt.cli", "validate", out, "--model", str(model), *asked, timeout=900)
    n = len(shapes) or 3
    assert done.returncode == 0 and f"pass: {n} of {n} shapes agree" in done.stdout, done.stdout + done.stderr
    assert "fake CUDA" not in done.stderr, done.stderr


def mixed(folder: Path) -> Path:
    model = onnx.parser.parse_model(MIXED)
    model.graph.initializer.append(onnx.helper.make_tensor("s", onnx.TensorProto.INT8, [1], [3]))
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def test_types_and_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(tmp_path, mixed(tmp_path), monkeypatch)


@pytest.mark.parametrize("integrated", ["0", "1"])
def test_with_the_cpu_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, integrated: str) -> None:
    """Three values cross, on a GPU with memory of its own and on one that shares the host's."""
    monkeypatch.setenv("FAKE_CUDA_INTEGRATED", integrated)
    agrees(tmp_path, mixed(tmp_path), monkeypatch, place="*conv*=cpu,*softmax*=cpu")


def test_attention_of_grouped_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over caches of one part and of several, a short prompt, and one that is made in blocks."""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(GROUPED), str(path))
    sizes = (2, 1, 9), (1, 1, 1030), (1, 3, 5), (1, 37, 70)
    shapes = [f"q:{b}x8x{t}x64,k:{b}x2x{s}x64,v:{b}x2x{s}x64" for b, t, s in sizes]
    agrees(tmp_path, path, monkeypatch, *shapes)


def test_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(tmp_path, model_named("ppocrv4_rec").path().absolute(), monkeypatch, "x:1x3x64x64", "x:2x3x48x40")


def test_backend_cases(tmp_path: Path) -> None:
    """One in a hundred of ONNX's cases with dynamic sizes; `--sample 10 --form static` by hand is a tenth."""
    words = ("--sample", "1", "--form", "dynamic", "--jobs", "2", "--limit", "300")
    done = conformance(tmp_path, words, capture_output=True)
    assert done.returncode == 0 and "| x86+cuda, dynamic |" in done.stdout, done.stdout + done.stderr


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    lowered = lower(Request(source=str(mixed(tmp_path)), target="x86+cuda:sm_72:sm_87"))
    first, again = (
        cpu_target().emit(
            lowered.linked, lowered.spec, name="m", prefix="m", threads=0,
            weights_sha256=bytes(32), devices=devices(lowered.spec),
        )
        for _ in range(2)
    )  # fmt: skip
    assert first.object == again.object and b"SMELTCU1" in first.object
    assert list(first.dumps) == ["model.cuda.ll", "model.ptx", "model.ll", "model.o"]
    source = first.dumps["model.ptx"]()
    assert isinstance(source, str) and source.count(".visible .entry") == len(lowered.program.entries)
