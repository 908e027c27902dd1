"""The machine's own drivers of OpenCL and Vulkan, failing: lost devices, kernels refused, waits that end."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from installed import program_path

from smelt.compiler import compile_here
from smelt.core.bundle import read_bundle
from smelt.driver import Request

SHIM = Path(__file__).parent / "runtime_c" / "failing.c"
GCC = program_path("gcc")
DEVICES = (
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("vulkan", marks=needs_vulkan),
)
pytestmark = pytest.mark.skipif(
    GCC is None or platform.machine() != "x86_64", reason="the failing loader wants gcc on an x86-64"
)

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 16] x) => (float[n, 16] y)
{
  a = MatMul (x, m)
  b = Softmax (a)
  c = MatMul (b, m)
  y = Softmax (c)
}
"""
HALVES = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 16] x) => (float[n, 16] y)
{
  h = Cast <to = 10> (x)
  k = Cast <to = 10> (m)
  a = MatMul (h, k)
  b = Cast <to = 1> (a)
  y = Softmax (b)
}
"""
ENDLESS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1] x, float n) => (float y)
{
  zero = Constant <value_float = 0.0> ()
  one = Constant <value_float = 1.0> ()
  r = Range (zero, n, one)
  s = Add (r, x)
  t = Sin (s)
  y = ReduceSum <keepdims = 0> (t)
}
"""
RUN = """
import os, sys
import numpy as np, smelt
for n in sys.argv[2].split(","):
    x = np.random.default_rng(int(n)).standard_normal((3, 16)).astype(np.float32)
    try:
        if n == "0":
            session = smelt.load(sys.argv[1])
            continue
        feeds = {"x": x} if len(session.get_inputs()) == 1 else {"x": x[0, :1], "n": np.float32(1 << 30)}
        (y,) = session.run(None, feeds)
        np.testing.assert_allclose(y.sum(-1), np.ones(3), rtol=1e-5)
        print("ran on", "the cpu: " + session.fallback if session.fallback else "the device", flush=True)
    except smelt.SmeltError as e:
        print(f"{e.kind}: {e}", flush=True)
        if n == "0":
            break
else:
    session.close()
print("closed", flush=True)
os._exit(0)  # what a driver does at the end of a process is its own
"""


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Device -> the folder of its failing loader, and the path of the real one."""
    made = {}
    for device, soname in (("opencl", "libOpenCL.so.1"), ("vulkan", "libvulkan.so.1")):
        folder = tmp_path_factory.mktemp(device)
        flags = ["-DVULKAN"] if device == "vulkan" else []
        words = [
            str(GCC),
            "-O1",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            *flags,
            str(SHIM),
            "-o",
            str(folder / soname),
            "-ldl",
        ]
        subprocess.run(words, check=True)
        made[device] = folder, path_of(soname)
    return made


def path_of(soname: str) -> str:
    """Where the machine has a library."""
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = [line.rsplit(" ", 1)[1] for line in said.splitlines() if soname in line and "x86-64" in line]
    if not found:
        pytest.skip(f"no {soname}")
    return found[0]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model for each device, with and without code for the CPU, and one that runs for hours."""
    made = tmp_path_factory.mktemp("bundles")
    weight = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    for name, text in (("model", MODEL), ("halves", HALVES)):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "m"))
        onnx.save(model, made / f"{name}.onnx")
    onnx.save(onnx.parser.parse_model(ENDLESS), made / "endless.onnx")
    return made


def bundle(
    made: Path, device: str, fallback: bool = False, name: str = "model",
    place: tuple[tuple[str, str], ...] = (),
) -> Path:  # fmt: skip
    out = made / f"{name}-{device}-{fallback}"
    if not out.exists():
        compile_here(
            Request(
                source=str(made / f"{name}.onnx"), target=f"x86+{device}", output=str(out), fallback=fallback,
                place=place,
            )
        )
    return out


def run(folder: Path, steps: str, shim: tuple[Path, str] | None = None, **env: str) -> list[str]:
    """What RUN says, over the failing loader if there is one."""
    if shim:
        env |= {"LD_LIBRARY_PATH": str(shim[0]), "REAL_LOADER": shim[1]}
    words = [sys.executable, "-c", RUN, str(folder), steps]
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_is_lost(device: str, shims: dict[str, tuple[Path, str]], bundles: Path) -> None:
    """Each run says so until the session is closed, which works."""
    said = run(bundle(bundles, device), "0,1,2,3", shims[device], FAILS_AFTER="2")
    assert said[0] == "ran on the device" and said[-1] == "closed" and len(said) == 4
    assert all(line.startswith("device: ") and "failed with code -" in line for line in said[2:3])


@pytest.mark.parametrize("device", DEVICES)
def test_a_driver_that_is_lost_in_a_run_falls_back(
    device: str, shims: dict[str, tuple[Path, str]], bundles: Path
) -> None:
    """That run is done again on the CPU, as are those after it."""
    said = run(bundle(bundles, device, True), "0,1,2,3", shims[device], FAILS_AFTER="2")
    assert said[0] == "ran on the device" and said[-1] == "closed"
    assert said[2].startswith("ran on the cpu: ") and "failed with code" in said[2], said


@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_that_a_driver_refuses(
    device: str, shims: dict[str, tuple[Path, str]], bundles: Path, tmp_path: Path
) -> None:
    """The error names it, and where its code and the driver's log are; with a fallback the CPU runs."""
    refused = {"REFUSES": "k_softmax", "SMELT_CACHE": str(tmp_path)}
    said = run(bundle(bundles, device), "0,1", shims[device], **refused)
    assert said[0].startswith("device: ") and "refused kernel" in said[0] and "k_softmax" in said[0], said
    kept = sorted((tmp_path / "refused").iterdir())
    assert [p.suffix for p in kept] == [
        ".cl" if device == "opencl" else ".log",
        ".log" if device == "opencl" else ".spv",
    ]
    assert all(str(p.with_suffix("")) in said[0] and p.stat().st_size for p in kept)
    assert run(bundle(bundles, device, True), "0,1", shims[device], **refused)[0].startswith("ran on the cpu")


@needs_opencl
def test_parts_of_a_chain_that_a_driver_refuses(
    shims: dict[str, tuple[Path, str]], bundles: Path, tmp_path: Path
) -> None:
    """They are launches of their own, also where the program without it comes from the cache."""
    made = bundle(bundles, "opencl")
    assert b"void k_chain(" in (made / read_bundle(made).manifest["library"]["file"]).read_bytes()
    env = {"REFUSES": "k_chain", "SMELT_CACHE": str(tmp_path), "SMELT_OPENCL_BINARIES": "1"}
    for _ in range(2):
        said = run(made, "0,1,2", shims["opencl"], **env)
        assert said == ["ran on the device"] * 2 + ["closed"]
    assert not (tmp_path / "refused").exists()


@needs_opencl
@pytest.mark.parametrize(("lanes", "parts"), [(1, 1), (4, 2), (8, 2), (16, 1)])
def test_tiles_are_made_in_parts_where_vectors_are_half_as_wide(
    lanes: int, parts: int, shims: dict[str, tuple[Path, str]], bundles: Path, tmp_path: Path
) -> None:
    """A GPU says 1, a processor with AVX2 8; what registers hold follows from it."""
    for refused in (1, 2):
        env = {"LANES": str(lanes), "REFUSES_IF": f"TILE_PARTS == {refused}", "SMELT_CACHE": str(tmp_path)}
        said = run(bundle(bundles, "opencl"), "0,1", shims["opencl"], **env)[0]
        assert said.startswith("device: " if parts == refused else "ran on the device"), said


@needs_opencl
def test_groups_are_small_where_the_device_is_a_processor(
    shims: dict[str, tuple[Path, str]], bundles: Path, tmp_path: Path
) -> None:
    env = {"REFUSES_IF": "!defined(SMALL_GROUPS)", "SMELT_CACHE": str(tmp_path)}
    assert run(bundle(bundles, "opencl"), "0,1", shims["opencl"], **env)[0] == "ran on the device"


@needs_vulkan
@pytest.mark.parametrize(("weak", "forms"), [("halves=0", 2), ("halves=0,storage16=0", 1)])
def test_another_form_of_a_kernel_that_a_driver_refuses(
    weak: str, forms: int, shims: dict[str, tuple[Path, str]], bundles: Path, tmp_path: Path
) -> None:
    """The next one that the device has; an error where there is none left."""
    built = bundle(bundles, "vulkan", name="halves")
    env = {"REFUSES": "k_matmul", "SMELT_CACHE": str(tmp_path), "SMELT_VULKAN_WEAK": weak}
    for refusals in (forms - 1, forms):
        said = run(built, "0,1", shims["vulkan"], REFUSALS=str(refusals), **env)[0]
        assert said.startswith("ran on the device" if refusals < forms else "device: "), said


@needs_opencl
def test_a_kernel_that_does_not_end(bundles: Path) -> None:
    """It takes hours: the wait ends, every run fails, and closing waits for nothing."""
    endless = bundle(bundles, "opencl", name="endless")
    said = run(endless, "0,1,2", SMELT_DEVICE_SECONDS="1")
    assert said[-1] == "closed" and len(said) == 3
    assert "has not ended within 1 s" in said[0] and "k_" in said[0], said
    assert said[1].startswith("device: ")
    one = run(endless, "0,1", SMELT_DEVICE_SECONDS="1", SMELT_DEVICE_STEPS="1")
    assert "one of" not in one[0] and "k_" in one[0] and "has not ended" in one[0]


FIRST = """
import os, sys, threading
import numpy as np, smelt
start, x = threading.Barrier(2), np.ones((3, 16), np.float32)
def first():
    start.wait()
    session = smelt.load(sys.argv[1])
    print(session.run(None, {"x": x})[0].shape, flush=True)
    session.close()
threads = [threading.Thread(target=first) for _ in range(2)]
[t.start() for t in threads], [t.join() for t in threads]
child = os.fork()
if not child:
    try:
        smelt.load(sys.argv[1]).run(None, {"x": x})
    except smelt.SmeltError as e:
        print(f"{e.kind}: {e}", flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""


@needs_opencl
def test_the_first_devices_of_two_threads_and_a_child(bundles: Path) -> None:
    """Threads that open a device at once take turns, as PoCL ends the process otherwise; in a child, where
    PoCL's threads are gone and a session would wait for ten minutes, opening is refused."""
    words = [sys.executable, "-c", FIRST, str(bundle(bundles, "opencl"))]
    env = {**os.environ, "SMELT_DEVICE_SECONDS": "20"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    said = done.stdout.splitlines()
    assert done.returncode == 0 and said[:2] == ["(3, 16)"] * 2, done.stderr
    assert len(said) == 3 and said[2].startswith("device: OpenCL: this process is a fork"), said


@needs_opencl
def test_a_hang_falls_back(bundles: Path) -> None:
    """The CPU does the run; what the device may still be reading stays. A long run before it has the host
    sleep until it is told, in place of asking."""
    code = """
import os, sys
import numpy as np, smelt
session = smelt.load(sys.argv[1])
session.run(None, {"x": np.ones(1, np.float32), "n": np.float32(1 << 18)})
session.run(None, {"x": np.ones(1, np.float32), "n": np.float32(1 << 27)})
print(session.fallback, flush=True)
session.close()
os._exit(0)
"""
    folder = bundle(bundles, "opencl", True, "endless")
    env = {**os.environ, "SMELT_DEVICE_SECONDS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=env, capture_output=True, text=True, timeout=600
    )
    assert "has not ended within 1 s" in done.stdout, done.stderr


@needs_vulkan
def test_loops_that_a_driver_would_cut_short(bundles: Path) -> None:
    """llvmpipe stops after 65535 rounds and says nothing: such a launch is refused, or the CPU runs."""
    said = run(bundle(bundles, "vulkan", name="endless"), "0,1")
    if "llvmpipe" not in said[0]:
        pytest.skip("a driver whose loops are whole")
    assert "code -1004" in said[0] and "may have more than 65535 rounds" in said[0]
    assert "--fallback" in said[0] and said[-1] == "closed"


@needs_opencl
def test_an_opencl_device_without_doubles_says_so(tmp_path: Path, bundles: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (double[n, 16] x) => (double[n, 16] y) { y = Exp (x) }'
    )
    onnx.save(model, tmp_path / "double.onnx")
    made = bundle(tmp_path, "opencl", name="double", place=(("*", "opencl"),))
    said = run(made, "0,1", SMELT_OPENCL_WEAK="fp64=0")
    assert (
        said[0].startswith("unsupported: ")
        and "lacks the feature cl_khr_fp64, which kernel 'k_exp' needs" in said[0]
    )
