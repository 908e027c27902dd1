"""Whole models for x86+cuda, their kernels and cuda_driver.c run on this machine, agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from checkouts import Checkout
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


COMPILED = """
import sys
from smelt.cli.main import main
model, out, place, *words = sys.argv[1:]
compiled(model, "x86+cuda", out, dict(p.split("=") for p in place.split(",") if p))
sys.exit(main(["validate", out, "--model", model, *words]))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A copy of the sources whose CUDA runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(fake_libcuda()))
        yield cuda_checkout(tmp_path_factory.mktemp("cuda") / "copy")


def agrees(copy: Checkout, folder: Path, model: Path, *shapes: str, place: str = "", **more: str) -> None:
    """Compile in the copy, and validate. shapes: for --shape. more: of the environment."""
    asked = [word for shape in shapes for word in ("--shape", shape)]
    done = copy.script(COMPILED, str(model), str(folder / "out"), place, *asked, **more)
    n = len(shapes) or 3
    assert done.returncode == 0 and f"pass: {n} of {n} shapes agree" in done.stderr, done.stderr
    assert "fake CUDA" not in done.stderr, done.stderr


def mixed(folder: Path) -> Path:
    model = onnx.parser.parse_model(MIXED)
    model.graph.initializer.append(onnx.helper.make_tensor("s", onnx.TensorProto.INT8, [1], [3]))
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def test_types_and_windows(sources: Checkout, tmp_path: Path) -> None:
    agrees(sources, tmp_path, mixed(tmp_path))


@pytest.mark.parametrize("integrated", ["0", "1"])
def test_with_the_cpu_between(sources: Checkout, tmp_path: Path, integrated: str) -> None:
    """Three values cross, on a GPU with memory of its own and on one that shares the host's."""
    place = "*conv*=cpu,*softmax*=cpu"
    agrees(sources, tmp_path, mixed(tmp_path), place=place, FAKE_CUDA_INTEGRATED=integrated)


def test_attention_of_grouped_heads(sources: Checkout, tmp_path: Path) -> None:
    """A step over caches of one part and of several, a short prompt, and one that is made in blocks."""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(GROUPED), str(path))
    sizes = (2, 1, 9), (1, 1, 1030), (1, 3, 5), (1, 37, 70)
    shapes = [f"q:{b}x8x{t}x64,k:{b}x2x{s}x64,v:{b}x2x{s}x64" for b, t, s in sizes]
    agrees(sources, tmp_path, path, *shapes)


def test_a_real_model(sources: Checkout, tmp_path: Path) -> None:
    agrees(sources, tmp_path, model_named("ppocrv4_rec").path().absolute(), "x:1x3x64x64", "x:2x3x48x40")


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
