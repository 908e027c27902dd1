"""cuda_driver.c over a libcuda.so.1 without a GPU (fake_cuda.c): what it asks for, and what it says when that
fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from boards import need_emulator
from crossing_models import ASIDE
from cuda_sources import cuda_checkout, fake_libcuda
from onnx import TensorProto, helper

import smelt
from smelt.cli.report import report_text
from smelt.core.diag import SmeltError
from smelt.devicefarm.verdict import Verdict
from smelt.report import make_report
from smelt.running import running
from smelt.targets.cuda.images import CUBIN, PTX, Image, packed
from smelt.targets.cuda.ptx import ptxas

RUN = """
import sys, numpy as np, smelt
session = smelt.load(sys.argv[1])
for n in map(int, sys.argv[2].split(",")):
    x = np.linspace(-1, 1, n * 8, dtype=np.float32).reshape(n, 8)
    try:
        y, z = session.run(None, {"x": x, "at": np.arange(n)})
    except Exception as e:
        print(type(e).__name__, e)
        continue
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    w = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    np.testing.assert_allclose(y, x * (p @ w), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(z, x[::-1])
    print("agrees", n)
del session
"""


PROFILE = """
import sys, numpy as np, smelt
session = smelt.load(sys.argv[1])
feed = {"x": np.ones((3, 8), np.float32), "at": np.arange(3)}
plain = session.run(None, feed)
session.profile()
for turn in range(2):
    timed = session.run(None, feed)
    assert all(np.array_equal(a, b) for a, b in zip(plain, timed))
host, own = session.kernel_times(), session.device_times()
session.profile(False)
session.run(None, feed)
assert session.device_times() == own != {}, "a run that nobody asked about adds nothing"
for name, (ns, launches) in own.items():
    assert launches == host[name][1] > 0 and 0 <= ns <= host[name][0]
print(sum(launches for _, launches in own.values()))
del session
"""


def model() -> onnx.ModelProto:
    """y = x * (softmax(x) @ w), in two kernels, and the rows of x last to first."""
    x, y, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xyz")
    at = helper.make_tensor_value_info("at", TensorProto.INT64, ["n"])
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("MatMul", ["p", "w"], ["q"]),
        helper.make_node("Mul", ["x", "q"], ["y"]),
        helper.make_node("Neg", ["at"], ["back"]),
        helper.make_node("Sub", ["back", "one"], ["last"]),
        helper.make_node("Gather", ["x", "last"], ["z"]),
    ]
    weights = [
        onnx.numpy_helper.from_array(np.arange(64, dtype=np.float32).reshape(8, 8) / 64, "w"),
        onnx.numpy_helper.from_array(np.array(1), "one"),
    ]
    graph = helper.make_graph(nodes, "g", [x, at], [y, z], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle in out/, whose kernels are also in kernels.so."""
    made = tmp_path_factory.mktemp("cuda")
    copy = cuda_checkout(made / "copy")
    onnx.save(model(), str(made / "model.onnx"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CUDA_KEEP", str(made / "kernels.so"))
        patch.setenv("SMELT_COMPILE_CONFINE", "0")  # which writes this file beside the bundle
        words = ("compile", str(made / "model.onnx"), "--target", "x86+cuda", "-o", str(made / "out"))
        done = copy.python("-m", "smelt.cli", *words)
    assert done.returncode == 0, done.stderr
    return made


def run(folder: Path, sizes: str = "3,1,40", **settings: object) -> str:
    """What RUN says. settings: of fake_cuda.c, without FAKE_CUDA_, or other variables as they are."""
    named = {k if k.isupper() else f"FAKE_CUDA_{k.upper()}": str(v) for k, v in settings.items()}
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_libcuda()), **named}
    done = subprocess.run([sys.executable, "-c", RUN, folder / "out", sizes], env=env, capture_output=True,
                          text=True, check=False, timeout=300)  # fmt: skip
    assert "fake CUDA" not in done.stderr, done.stderr
    return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]


@pytest.mark.parametrize("settings", [{}, {"order": 1}, {"integrated": 1}, {"arch": 87, "groups": 2**31 - 1}])
def test_runs_agree_and_give_all_back(folder: Path, tmp_path: Path, settings: dict[str, object]) -> None:
    said = run(folder, log=tmp_path / "log", **settings)
    assert said.split() == ["agrees", "3", "agrees", "1", "agrees", "40"]
    calls = (tmp_path / "log").read_text().splitlines()
    left = [line for line in calls if line.startswith("left:")]
    kinds = ("memory", "streams", "modules", "graphs", "events", "contexts", "pushed")
    assert left == [f"left: {what} 0" for what in kinds]
    counts = Counter(line.split()[0] for line in calls)
    assert counts["cuModuleLoadDataEx"] == counts["cuStreamCreate"] == 1
    assert bool(counts["cuStreamAttachMemAsync"]) == ("integrated" in settings)


def test_a_run_that_comes_again_is_one_graph(folder: Path, tmp_path: Path) -> None:
    said = run(folder, "3,3,3,3,5,3", log=tmp_path / "log")
    assert said.splitlines() == [f"agrees {n}" for n in "333353"]
    counts = Counter(line.split()[0] for line in (tmp_path / "log").read_text().splitlines())
    assert counts["cuGraphInstantiateWithFlags"] == 1 and counts["cuGraphLaunch"] >= 3
    assert counts["cuLaunchKernel"] < counts["cuStreamQuery"] * 4


def test_times_are_those_of_events(folder: Path, tmp_path: Path) -> None:
    """Two around each launch while somebody asks, and none before and after; all are given back."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_libcuda()), "FAKE_CUDA_LOG": str(tmp_path / "log")}
    done = subprocess.run([sys.executable, "-c", PROFILE, folder / "out"], env=env, capture_output=True,
                          text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "log").read_text().splitlines()
    counts = Counter(line.split()[0] for line in calls)
    assert calls.count("cuEventRecord 0") == 2 * int(done.stdout), "other events take no times"
    assert counts["cuEventCreate"] == counts["cuEventDestroy_v2"] > 0 and "left: events 0" in calls


def test_ptx_is_taken_where_no_machine_code_fits(folder: Path) -> None:
    for arch in (53, 72, 86, 121):
        assert run(folder, "3", arch=arch, code=folder / "kernels.so") == "agrees 3\n"


def test_an_image_that_is_refused_is_no_end(folder: Path) -> None:
    """sm_89 takes PTX before the code of an earlier device; that is tried when the driver refuses the PTX."""
    assert run(folder, "3", arch=89) == "agrees 3\n"  # without a library for PTX it is no image


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"devices": 0}, "CUDA: the driver (for CUDA 12.6) is here but no device that works (code 100"),
        ({"init": 999}, "(code 999: an error)"),
        ({"SMELT_CUDA_DEVICE": "7"}, "SMELT_CUDA_DEVICE is '7', wanted a number below 1"),
        ({"SMELT_CUDA_DEVICE": "one"}, "SMELT_CUDA_DEVICE is 'one'"),
        ({"arch": 50}, "of architecture sm_50, the model is compiled for sm_53 and later; compile it with"),
        ({"refuses": 222}, "refused the model's kernels with code 222 (an error): ptxas: line 7: told to"),
        ({"threads": 4}, "wants groups of"),
        ({"memory": 100}, "code 2"),
    ],
)
def test_opening_fails_with_a_reason(folder: Path, settings: dict[str, object], words: str) -> None:
    assert words in run(folder, **settings)


def test_a_second_device_may_be_chosen(folder: Path) -> None:
    said = run(folder, "3", SMELT_CUDA_DEVICE="1", devices=2)
    assert said == "agrees 3\n"


def test_out_of_memory_leaves_a_session_that_works(folder: Path) -> None:
    """Weights and the memory of small shapes fit into 64 KiB, a thousand rows do not."""
    first, failed, again = run(folder, "3,1000,3", memory=60_000).splitlines()
    assert (first, again) == ("agrees 3", "agrees 3")
    assert "bytes and gets none (code 2)" in failed


def test_a_lost_device_says_so_ever_after(folder: Path) -> None:
    lines = run(folder, "3,3,3,3", lost=7).splitlines()
    assert lines[0] == "agrees 3" and len(lines) == 4
    assert all("code 700" in line for line in lines[2:])
    assert "the device is lost to this process" in lines[3] and "compile without +cuda" in lines[3]


def test_a_device_that_does_not_end(folder: Path) -> None:
    """The wait ends, and every later run fails at once; closing waits for nothing."""
    lines = run(folder, "3,3,3,3", hangs=5, SMELT_DEVICE_SECONDS=1).splitlines()
    assert lines[0] == "agrees 3" and len(lines) == 4
    assert all("has not ended within 1 s; close the session, which is lost" in line for line in lines[2:])


def test_without_a_driver(folder: Path, tmp_path: Path) -> None:
    """The fake stands in for a machine that has none: it is not found there."""
    said = run(folder, LD_LIBRARY_PATH=tmp_path)
    assert "CUDA: libcuda.so.1 cannot be loaded" in said and "compile without +cuda" in said


def test_a_driver_that_is_too_old(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned f) { return (int)f; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1"], check=True)
    said = run(folder, LD_LIBRARY_PATH=tmp_path)
    assert "CUDA: the driver has no cuDriverGetVersion, wanted that of CUDA 9 or later; update" in said


def test_images_are_packed_as_the_driver_reads_them() -> None:
    made = packed([Image(0, PTX, "sm_53", b"abc"), Image(1, CUBIN, "sm_110", b"x" * 20)])
    assert made[:16] == b"SMELTCU1" + (2).to_bytes(4, "little") + (2).to_bytes(4, "little")
    rows = np.frombuffer(made[16:80], "<u4").reshape(2, 8)
    assert rows.tolist() == [[0, 1, 53, 0, 80, 0, 4, 0], [1, 2, 110, 0, 96, 0, 20, 0]]
    assert made[80:84] == b"abc\0" and made[96:116] == b"x" * 20 and len(made) == 128


def test_a_board_without_a_driver(tmp_path: Path) -> None:
    """The bundle for a Jetson, under qemu: its host code runs up to the missing driver, which it names."""
    need_emulator("arm64")
    assert ptxas() is not None, "pip install nvidia-cuda-nvcc-cu12==12.6.85"
    bundle = smelt.compile(model().SerializeToString(), target="jetson", output=tmp_path / "out")
    assert bundle.manifest["target"] == "aarch64-linux:cortex-a78ae+cuda:sm_87"
    words = r"libcuda\.so\.1 cannot be loaded .* compile without \+cuda"
    with pytest.raises(SmeltError, match=words), running(bundle):
        pass


def test_the_report_of_a_board_without_a_driver(tmp_path: Path) -> None:
    """The CPU's code of the same bundle, under qemu, and the page says so."""
    need_emulator("arm64")
    onnx.save(model(), str(tmp_path / "model.onnx"))
    made = make_report(tmp_path / "model.onnx", "jetson", tmp_path / "out", count=2)
    assert made.verdict is Verdict.PASS and made.bundle.manifest["options"]["fallback"]
    assert "no cuda there: the CPU ran its own code" in report_text(made, None)


# ---------------------------------------------------------------- what crosses

CROSS = """
import sys, numpy as np, smelt
session = smelt.load(sys.argv[1])
for n in (3, 3, 400):
    x = np.linspace(-1, 1, n * 8, dtype=np.float32).reshape(n, 8)
    y, z = session.run(None, {"x": x, "k": 2 * x})
    w = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    unit = lambda a: a / np.sqrt((a * a).sum(1, keepdims=True))
    soft = lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True)
    np.testing.assert_allclose(y, unit(x @ w) @ w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, soft(2 * x @ w), rtol=1e-5, atol=1e-6)
print("agrees")
del session
"""


@pytest.fixture(scope="module")
def crossing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, one of whose kernels the CPU has."""
    made = tmp_path_factory.mktemp("crossing")
    proto = onnx.parser.parse_model(ASIDE)
    del proto.graph.initializer[:]
    square = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    proto.graph.initializer.append(onnx.numpy_helper.from_array(square, "v"))
    onnx.save(proto, str(made / "model.onnx"))
    words = ("compile", str(made / "model.onnx"), "--target", "x86+cuda", "--place", "near=cpu")
    done = cuda_checkout(made / "copy").python("-m", "smelt.cli", *words, "-o", str(made / "out"))
    assert done.returncode == 0, done.stderr
    return made / "out"


def crossed(bundle: Path, log: Path, **settings: object) -> list[str]:
    """The calls and the work of CROSS, in order."""
    named = {f"FAKE_CUDA_{k.upper()}": str(v) for k, v in settings.items()}
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_libcuda()), "FAKE_CUDA_LOG": str(log), **named}
    done = subprocess.run(
        [sys.executable, "-c", CROSS, bundle], env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "agrees\n", "")
    return log.read_text().splitlines()


def test_what_crosses_is_in_locked_memory(crossing: Path, tmp_path: Path) -> None:
    """So it is waited for alone, by its event: the product that the host does not read is made after."""
    calls = crossed(crossing, tmp_path / "log")
    names = [line.split()[0] for line in calls]
    first = names.index("cuEventQuery")
    products = [k for k, name in enumerate(names) if name.startswith("k_matmul")]
    assert names[:first].count("cuLaunchKernel") == 2, "both were asked for before the host waited"
    assert products[0] > first and products[1] > names.index("cuMemcpyHtoDAsync_v2", products[0])
    assert names.count("cuMemHostAlloc") == names.count("cuMemFreeHost") > 0
    assert "left: memory 0" in calls and "left: events 0" in calls


def test_where_no_memory_is_locked_copies_wait(crossing: Path, tmp_path: Path) -> None:
    """And the values are the same, also where there was some and there is no more."""
    for most in (0, 8192):
        calls = crossed(crossing, tmp_path / f"log{most}", locked=most)
        names = [line.split()[0] for line in calls]
        assert names.count("cuMemHostAlloc") > names.count("cuMemFreeHost") == (1 if most else 0)
        assert "left: memory 0" in calls


# ---------------------------------------------------------------- other libraries

LENT = """
import gc, sys, numpy as np, smelt
from smelt import capsules
one, two = smelt.load(sys.argv[1]), smelt.load(sys.argv[1])
x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
feed = {"x": x, "at": np.arange(3)}
wanted = one.run(None, feed)
a = one.tensor("x", x)
assert a.__dlpack_device__() == (2, 0)

class Other:
    def __init__(self, device): self.device = device
    def __dlpack_device__(self): return self.device
    def __dlpack__(self):
        return capsules.capsule_of(capsules.DLTensor.from_buffer_copy(self.lent()), a)
    def lent(self):
        t = a.exported()
        t.device = capsules.DLDevice(*self.device)
        return t

try:
    b = two.tensor("x", a)
except Exception as e:
    print(e)
else:
    before = two.memory()
    found = two.run(None, {**feed, "x": b})
    assert all((f == w).all() for f, w in zip(found, wanted))
    assert two.memory().uploads == before.uploads + 1, "the positions alone"
    assert b.__dlpack_device__() == (2, 0)
    b.free()
    assert not capsules._given
    for device in ((2, 5), (4, 0), (13, 0)):
        try:
            two.tensor("x", Other(device)).free()
            print("taken", device)
        except Exception as e:
            print(e)
a.free()
del a, one, two
"""


def lent(folder: Path, **settings: object) -> list[str]:
    named = {f"FAKE_CUDA_{k.upper()}": str(v) for k, v in settings.items()}
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_libcuda()), **named}
    done = subprocess.run(
        [sys.executable, "-c", LENT, folder / "out"], env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_memory_of_the_primary_context_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    """As that of other libraries is; nothing is copied, and each gives back its own alone."""
    other, strange, managed = lent(folder, log=tmp_path / "log")
    assert "memory of DLPack device type 2, device 5, is none that CUDA device 'fake GPU 0' can use" in other
    assert "it is of another GPU; copy it to the host" in other and "it is not CUDA's" in strange
    assert managed == "taken (13, 0)"
    assert (tmp_path / "log").read_text().splitlines().count("left: memory 0") >= 1


def test_memory_of_another_context_is_refused(folder: Path) -> None:
    (said,) = lent(folder, strange=1)
    assert "it is not of the GPU's primary context; copy it to the host" in said
