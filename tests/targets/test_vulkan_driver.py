"""The Vulkan driver alone: the order of copies and launches, limits of weak devices, texts of faults."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from device_trees import check_tree
from installed import system_folder
from kernel_data import compare, inputs
from scheduled_trees import TREES
from vulkan_run import Failed, OnVulkan, Session, library

from smelt.core.dim import sym
from smelt.core.dtype import DTYPES, DType, f32, i64, u8
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Buffer, Call, Const, DimParam, Kernel, Load, Loop, Store
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.vulkan.emit import PUSHED_WORDS, emit_parts
from smelt.targets.vulkan.machine import MACHINE

DOUBLE = """
kernel @double(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {
  group i in n { y[i] = x[i] * 2.0: f32 }
}"""
SOON = 2
HERE = Path(__file__).parent
PATH = os.pathsep.join(map(str, (HERE, HERE.parent / "support", *sys.path)))
WEAK = (
    "visible=0", "bindings=4", "groups=3", "range=65536", "controls=0",
    "visible=0,bindings=4,groups=3,controls=0",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _device() -> None:
    library()  # skips where there is none


@pytest.fixture(params=["", "visible=0"])
def double(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A unit with the kernel above, on memory that the host sees, and on memory that it does not."""
    monkeypatch.setenv("SMELT_VULKAN_WEAK", request.param)
    session = Session(list(emit_parts([parse_kernel(DOUBLE)]).values()), [2])
    yield session
    session.close()


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def give_back(session: Session, *memories: ctypes.c_void_p) -> None:
    for memory in memories:
        session.release(memory)


def test_reads_give_what_was_there_when_they_were_asked_for(double: Session) -> None:
    a, b = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16)
    first, second, third = (np.zeros(4, np.float32) for _ in range(3))
    double.launch(0, [a, b], [0, 0], [4], 4)
    double.download(b, first, wait=False)
    double.launch(0, [b, a], [0, 0], [4], 4)
    double.launch(0, [a, b], [0, 0], [4], 4)
    double.download(b, second, wait=False)
    double.upload(b, floats(9, 9, 9, 9))
    double.download(b, third, wait=False)
    double.finish()
    np.testing.assert_array_equal([first[3], second[3], third[3]], [8, 32, 9])


def test_uploads_come_after_the_launches_before_them(double: Session) -> None:
    a, b = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16)
    double.launch(0, [a, b], [0, 0], [4], 4)
    double.upload(a, floats(10), at=4)
    double.launch(0, [a, b], [4, 8], [1], 1)
    got = np.zeros(4, np.float32)
    double.download(b, got)
    np.testing.assert_array_equal(got, [2, 4, 20, 8])


def test_memory_may_be_released_before_its_work_has_ended(double: Session) -> None:
    a, b = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16)
    got = np.zeros(4, np.float32)
    double.launch(0, [a, b], [0, 0], [4], 4)
    double.release(a)
    double.download(b, got, wait=False)
    double.release(b)
    double.finish()
    np.testing.assert_array_equal(got, [2, 4, 6, 8])


def test_reads_come_before_the_uploads_after_them(double: Session) -> None:
    a, got = double.allocate(16, floats(1, 2, 3, 4)), np.zeros(4, np.float32)
    double.finish()
    double.download(a, got, wait=False)
    double.upload(a, floats(5, 6, 7, 8))
    double.finish()
    np.testing.assert_array_equal(got, [1, 2, 3, 4])


def test_work_goes_on_after_a_flush(double: Session) -> None:
    """What was started ends before what is asked for later touches its memory, and gives its own back."""
    a, b = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16)
    first, second = (np.zeros(4, np.float32) for _ in range(2))
    for _ in range(3):
        double.launch(0, [a, b], [0, 0], [4], 4)
        double.flush()
        double.flush()
        double.download(b, first, wait=False)
        double.upload(a, floats(5, 6, 7, 8))
        double.flush()
        double.launch(0, [a, b], [0, 0], [4], 4)
        double.flush()
        double.release(a)
        double.download(b, second, wait=False)
        double.finish()
        np.testing.assert_array_equal(first, [2, 4, 6, 8])
        np.testing.assert_array_equal(second, [10, 12, 14, 16])
        a = double.allocate(16, floats(1, 2, 3, 4))


def test_more_submits_than_command_buffers(double: Session) -> None:
    """Each begins while those before it may be under way, and sees what they have made."""
    a, b = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16)
    for i in range(21):
        double.launch(0, [a, b] if i % 2 == 0 else [b, a], [0, 0], [4], 4)
        double.flush()
    last, got = np.zeros(4, np.float32), np.zeros(4, np.float32)
    double.download(b, last, wait=False)
    for _ in range(9):  # the read's own command buffer is used again before anybody waits
        double.launch(0, [a, b], [0, 0], [4], 4)
        double.flush()
    double.download(b, got)
    np.testing.assert_array_equal(last, np.float32([1, 2, 3, 4]) * 2**21)
    np.testing.assert_array_equal(got, last)
    give_back(double, a, b)


def test_a_point_is_reached_with_its_reads(double: Session) -> None:
    """And what was asked for later goes on: it may be under way, or not even submitted."""
    a, b = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16)
    early, late = np.zeros(4, np.float32), np.zeros(4, np.float32)
    for turn in range(40):  # more points than are remembered, more submits than the ring has
        double.launch(0, [a, b], [0, 0], [4], 4)
        double.download(b, early, wait=SOON)
        double.mark(2 * turn + 1)
        double.flush()
        double.launch(0, [b, a], [0, 0], [4], 4)
        double.upload(b, floats(0, 0, 0, 0))
        double.download(a, late, wait=False)
        double.mark(2 * turn + 2)
        double.reach(2 * turn + 1)
        assert early[0] == 2 * 4.0**turn and not late.any(), "what comes last is not there yet"
        if turn % 8 == 7:
            double.finish()
            assert late[3] == 16 * 4.0**turn
            late[:] = 0
    double.reach(1)  # long ago
    give_back(double, a, b)


def test_a_list_is_submitted_while_it_is_under_way(double: Session) -> None:
    a, b, c = double.allocate(16, floats(1, 2, 3, 4)), double.allocate(16), double.allocate(16)
    there, back = double.record(0, [[a, b], [b, a]], [4], 4), double.record(-1, [[c, a]], [], 16)
    seen, got = np.zeros(4, np.float32), np.zeros(4, np.float32)
    for turn in range(11):
        double.submit(there)
        if turn == 4:
            double.download(a, seen, wait=False)
        if turn == 6:
            double.launch(0, [a, b], [0, 0], [4], 4)  # between two of them, without a flush
            double.launch(0, [b, a], [0, 0], [4], 4)
    double.submit(back)
    double.launch(0, [c, b], [0, 0], [4], 4)
    double.download(b, got)
    np.testing.assert_array_equal(seen, np.float32([1, 2, 3, 4]) * 4**5)
    np.testing.assert_array_equal(got, np.float32([1, 2, 3, 4]) * 4**12 * 2)
    double.forget(there)
    double.forget(back)
    give_back(double, a, b, c)


def test_copies_and_maps(double: Session) -> None:
    a, b = double.allocate(32, floats(*range(8))), double.allocate(32, floats(*[0] * 8))
    double.copy(b, 8, a, 4, 12)
    at = double.mapped(b, 32, writes=True)
    seen = np.ctypeslib.as_array((ctypes.c_float * 8).from_address(at))
    np.testing.assert_array_equal(seen, [0, 0, 1, 2, 3, 0, 0, 0])
    seen[7] = 5
    double.unmap(b, at)
    got = np.zeros(8, np.float32)
    double.download(b, got)
    assert got[7] == 5


def test_many_launches_without_a_wait(double: Session) -> None:
    """More than one command buffer and one pool of descriptors hold."""
    a, b = double.allocate(4, floats(1)), double.allocate(4)
    for i in range(5000):
        double.launch(0, [a, b] if i % 2 == 0 else [b, a], [0, 0], [1], 1)
        if i % 100 == 99:
            double.upload(a, floats(1))
    got = np.zeros(1, np.float32)
    double.launch(0, [a, b], [0, 0], [1], 1)
    double.download(b, got)
    assert got[0] == 2


def test_memory_that_nobody_has_is_an_error_and_the_session_goes_on(double: Session) -> None:
    with pytest.raises(Failed):
        double.allocate(1 << 46)
    a, b = double.allocate(4, floats(3)), double.allocate(4)
    double.launch(0, [a, b], [0, 0], [1], 1)
    got = np.zeros(1, np.float32)
    double.download(b, got)
    assert got[0] == 6


def test_sizes_that_do_not_fit_are_refused(double: Session) -> None:
    a = double.allocate(4, floats(3))
    for size, code in ((1 << 31, "-1001"), (1 << 62, "-1001"), (1 << 30, "-1002")):
        with pytest.raises(Failed, match=code):
            double.launch(0, [a, a], [0, 0], [size], 1)
    with pytest.raises(Failed, match="-1003"):
        double.launch(0, [a, a], [0, 0], [1], 1 << 31)


SOFTMAX = """
kernel @softmax(d0: dim in 0..*, d1: dim in 0..*, x: f32[d0, d1]) -> (y: f32[d0, d1]) {
  serial i in d0 {
    serial j in d1 {
      y[i, j] = exp(x[i, j] - max k in d1 { x[i, k] })
        / sum t in d1 { exp(x[i, t] - max k in d1 { x[i, k] }) }
    }
  }
}"""


def test_what_bounds_itself_refuses_no_sizes() -> None:
    """A factor of 0 or 1 that says which schedule is for the sizes counts as no more than that."""
    kernel = parse_kernel(SOFTMAX)
    env = {"d0": 3000, "d1": 6}
    (x,) = arrays = inputs(kernel, env)
    powers = np.exp(x - x.max(1, keepdims=True))
    (y,) = OnVulkan(schedule_kernel(kernel, MACHINE))(arrays, env)
    np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weak", WEAK)
@pytest.mark.parametrize("name", ["mixed-widths", "gather-rows", "lane-sums"])
def test_trees_on_weaker_devices(name: str, weak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VULKAN_WEAK", weak)
    text, sizes = TREES[name]
    check_tree(OnVulkan, parse_kernel(text), sizes)


def test_groups_of_fewer_invocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over any number of instances take as many invocations as there are; those of 64 need 64."""
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "lanes=16")
    text = """
kernel @turns(n: dim in 0..*, m: dim in 1..*, x: f32[n, m]) -> (y: f32[n, m]) {
  group i in n {
    shared total: f32[1]
    lane j in m { y[i, j] = x[i, j] * 2.0: f32 }
    total[0] = 0.0: f32
    serial j in m { total[0] add= y[i, m - 1 - j] }
    lane j in m { y[i, j] = x[i, j] - total[0] }
  }
}"""
    kernel, env = parse_kernel(text), {"n": 3, "m": 150}
    built = OnVulkan(kernel)
    assert built.parts[0].elastic and built.parts[0].lanes == 64
    arrays = inputs(kernel, env)
    compare(built(arrays, env), run_kernel(kernel, env, arrays))
    fixed = text.replace("n, m]", "n, 64]").replace("in m {", "in 64 {")
    with pytest.raises(Failed, match="has groups of 16 invocations, kernel 'k_turns' needs 64"):
        OnVulkan(parse_kernel(fixed.replace("m - 1", "63").replace(", m: dim in 1..*", "")))


def sums_of(count: int, dtype: DType) -> Kernel:
    """y[i] = x0[i] + x1[i] + ..; and z[i] = x0[i]."""
    n = sym("n")
    loads = [Load(f"x{k}", (sym("i"),), dtype) for k in range(count)]
    total = loads[0]
    for x in loads[1:]:
        total = Call("add", (total, x), dtype)  # type: ignore[assignment]
    body = (Store("y", (sym("i"),), total), Store("z", (sym("i"),), loads[0]))
    ins = tuple(Buffer(f"x{k}", dtype, (n,)) for k in range(count))
    outs = (Buffer("y", dtype, (n,)), Buffer("z", dtype, (n,)))
    return Kernel("sums", (DimParam("n"),), ins, outs, (Loop("group", "i", n, body),))


@pytest.mark.parametrize("bindings", ["4", "30", "96"])
@pytest.mark.parametrize("dtype", [f32, u8], ids=str)
def test_more_buffers_than_descriptors(dtype: DType, bindings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VULKAN_WEAK", f"bindings={bindings}")
    kernel = sums_of(40, dtype)  # the parameters do not fit into push constants either
    arrays = inputs(kernel, {"n": 7})
    compare(OnVulkan(kernel)(arrays, {"n": 7}), run_kernel(kernel, {"n": 7}, arrays))


def test_many_buffers_of_one_memory_need_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "bindings=4")
    kernel = sums_of(8, f32)
    session = Session(list(emit_parts([kernel]).values()), [10])
    arena = session.allocate(4 * 30, floats(*range(24), *[0] * 6))
    session.launch(0, [arena] * 10, [12 * k for k in range(10)], [3], 3)
    got = np.zeros(30, np.float32)
    session.download(arena, got)
    np.testing.assert_array_equal(got[24:27], [84, 92, 100])
    np.testing.assert_array_equal(got[27:30], [0, 1, 2])


def test_memory_larger_than_a_descriptor_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of it is bound, from where alignment allows; a tensor that is larger itself is refused."""
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "range=1024")
    session = Session(list(emit_parts([parse_kernel(DOUBLE)]).values()), [2])
    arena = session.allocate(4 * 4096, floats(*range(4096)))
    for first in (1, 1001, 4000):
        session.launch(0, [arena, arena], [4 * first, 8192 if first != 1001 else 8196], [90], 90)
        got = np.zeros(90, np.float32)
        session.download(arena, got, 8192 if first != 1001 else 8196)
        np.testing.assert_array_equal(got, 2 * np.arange(first, first + 90))
    with pytest.raises(Failed, match="-1002"):
        session.launch(0, [arena, arena], [0, 8192], [300], 300)


def test_more_dims_than_push_constants() -> None:
    names = [f"n{k}" for k in range(PUSHED_WORDS + 8)]
    total = sum(sym(n) for n in names) + 0
    store = Store("y", (sym("i"),), Load("x", ((sym("i") + total) % sym("n0"),), f32))
    kernel = Kernel(
        "dims", tuple(DimParam(n, 1) for n in names), (Buffer("x", f32, (sym("n0"),)),),
        (Buffer("y", f32, (sym("n0"),)),), (Loop("group", "i", sym("n0"), (store,)),),
    )  # fmt: skip
    env = {n: 3 + k for k, n in enumerate(names)}
    arrays = inputs(kernel, env)
    built = OnVulkan(kernel)
    assert not built.parts[0].pushed
    compare(built(arrays, env), run_kernel(kernel, env, arrays))


def test_more_groups_than_one_dimension_has() -> None:
    n = sym("n")
    store = Store("y", (sym("i"),), Call("cast", (Const(7, i64),), u8))
    loop = Loop("group", "i", n, (store,))
    kernel = Kernel("many", (DimParam("n"),), (), (Buffer("y", u8, (n,)),), (loop,))
    (got,) = OnVulkan(kernel)([], {"n": 200_001})
    assert (got == 7).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.bits < 32], ids=str)
def test_parts_of_a_word_are_written_by_many_invocations(dtype: DType) -> None:
    """From an odd place on, 64 invocations of many groups at once."""
    text = f"""
kernel @bytes(n: dim in 1..*, x: {dtype}[n, 63]) -> (y: {dtype}[n, 63]) {{
  group i in n {{ lane j in 63 {{ y[i, j] = x[i, 62 - j] }} }}
}}"""
    kernel = parse_kernel(text)
    arrays = inputs(kernel, {"n": 301})
    (got,) = OnVulkan(kernel)(arrays, {"n": 301})
    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(arrays[0][:, ::-1]).view(np.uint8))


def test_doubles_need_their_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "float64=0")
    kernel = parse_kernel(DOUBLE.replace("f32", "f64"))
    with pytest.raises(Failed, match="lacks the feature shaderFloat64, which kernel 'k_double' needs"):
        OnVulkan(kernel)
    OnVulkan(parse_kernel(DOUBLE.replace("f32", "i64").replace("2.0: i64", "2: i64")))


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VULKAN_DEVICE", "77")
    with pytest.raises(Failed, match="SMELT_VULKAN_DEVICE is '77', wanted the number of a device below"):
        OnVulkan(parse_kernel(DOUBLE))


def opened_elsewhere(**env: str) -> str:
    """What opening says in a process with these variables; '' when it succeeds."""
    code = (
        "from test_vulkan_driver import DOUBLE, parse_kernel, OnVulkan, Failed\n"
        "try: OnVulkan(parse_kernel(DOUBLE))\nexcept Failed as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env, "PYTHONPATH": PATH}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_loader_without_a_driver(tmp_path: Path) -> None:
    broken = tmp_path / "icd.json"
    broken.write_text('{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere.so"}}')
    for path in (broken, tmp_path / "absent.json"):
        said = opened_elsewhere(VK_ICD_FILENAMES=str(path), VK_DRIVER_FILES=str(path))
        assert "no driver of Vulkan 1.1" in said or "0 devices" in said, said


def test_validation_layers_find_nothing(tmp_path: Path) -> None:
    if not list(system_folder("/usr/share/vulkan/explicit_layer.d").glob("*validation*.json")):
        pytest.skip("no validation layers: apt install vulkan-validationlayers")
    code = """
import numpy as np
from installed import system_folder
from kernel_data import compare, inputs
from device_trees import check_tree, in_step
from scheduled_trees import TREES
from smelt.core.ir.text import parse_kernel
from vulkan_run import OnVulkan
from test_vulkan_driver import *
from test_vulkan_forms import SHARED
for name in ("mixed-widths", "lane-sums", "halves"):
    text, sizes = TREES[name]
    kernel = parse_kernel(text)
    built = OnVulkan(kernel)
    for env in sizes:
        built(inputs(kernel, env), env)
    built.session.close()
kernel = sums_of(40, u8)
built = OnVulkan(kernel)
built(inputs(kernel, {"n": 7}), {"n": 7})
built.session.close()
for dtype in ("f16", "bf16", "i8", "bool"):
    kernel = parse_kernel(SHARED.format(dtype))
    built = OnVulkan(kernel)
    built(inputs(kernel, {"n": 7}), {"n": 7})
    built.session.close()
check_tree(OnVulkan, *in_step("softmax", MACHINE)).session.close()
session = Session(list(emit_parts([parse_kernel(DOUBLE)]).values()), [2])
test_more_submits_than_command_buffers(session)
test_a_point_is_reached_with_its_reads(session)
test_a_list_is_submitted_while_it_is_under_way(session)
session.close()
print("end")
"""
    for weak in ("", "visible=0,bindings=4,groups=3"):
        env = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation", "PYTHONPATH": PATH}
        env |= {"SMELT_VULKAN_WEAK": weak, "SMELT_VULKAN_TRUST": "halves"}
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
        )
        assert done.stdout.strip() == "end", done.stdout[:3000] + done.stderr[-2000:]
        assert "VUID" not in done.stderr, done.stderr[:3000]


# ---------------------------------------------------------------- what is kept


def test_what_the_driver_has_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is damaged, or whole and of no use to the driver, is made again."""
    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))

    def hits() -> int:
        built = OnVulkan(parse_kernel(DOUBLE))
        x = np.arange(7, dtype=np.float32)
        np.testing.assert_array_equal(built([x], {"n": 7})[0], 2 * x)
        found = built.session.cache_hits
        built.session.close()
        return found

    assert (hits(), hits()) == (0, 1)
    (kept,) = (tmp_path / "kernels").iterdir()
    whole, other = kept.read_bytes(), b"no cache of any driver, as long as a head of one"
    useless = b"smeltbin" + struct.pack("<Q", len(other)) + hashlib.sha256(other).digest() + other
    for damage in (whole[:-1], b"", useless):
        kept.write_bytes(damage)
        assert hits() == 0 and kept.read_bytes() == whole
        assert hits() == 1


def test_processes_share_what_they_compile(tmp_path: Path) -> None:
    """Four at once on an empty folder: each runs, and what they leave is one whole file."""
    env = {**os.environ, "SMELT_CACHE": str(tmp_path), "PYTHONPATH": PATH}
    code = "from test_vulkan_driver import *; print(OnVulkan(parse_kernel(DOUBLE)).session.cache_hits)"
    words = [sys.executable, "-c", code]
    started = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE) for _ in range(4)]
    assert {p.communicate(timeout=300)[0] for p in started} <= {b"0\n", b"1\n"}
    assert len(list((tmp_path / "kernels").iterdir())) == 1
    assert subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True).stdout == b"1\n"


# ---------------------------------------------------------------- devices that fail

NESTED = """
kernel @nested(n: dim in 0..*, m: dim in 0..*, x: f32[1]) -> (y: f32[1]) {
  group i in 1 {
    y[0] = 0.0: f32
    serial j in n { serial k in m { y[0] = y[0] + x[0] } }
  }
}"""


@pytest.mark.parametrize(("n", "m"), [(1, 65530), (65530, 0), (255, 255), (1, 70000), (300, 300), (30000, 2)])
def test_loops_are_whole_or_refused(n: int, m: int) -> None:
    """llvmpipe stops all loops of an invocation after 65535 rounds, and says nothing."""
    built, ones = OnVulkan(parse_kernel(NESTED)), [np.ones(1, np.float32)]
    if "llvmpipe" in built.session.device and n * (m + 2) + 1 > 65535:
        with pytest.raises(Failed, match="-1004"):
            built(ones, {"n": n, "m": m})
    else:
        assert built(ones, {"n": n, "m": m})[0][0] == n * m


ENDLESS = """
kernel @endless(n: dim in 0..*, m: dim in 0..*, x: f32[1]) -> (y: f32[1]) {
  group i in n { serial k in m { y[0] = y[0] * x[0] + 1.0: f32 } }
}"""


def test_a_kernel_that_does_not_end(tmp_path: Path) -> None:
    """The wait ends, every later call fails at once, and the session closes."""
    code = f"""
import os, time
from test_vulkan_driver import *
kernel = parse_kernel({ENDLESS!r})
session = OnVulkan(kernel).session
a, b, got = session.allocate(4, floats(0.5)), session.allocate(4), np.zeros(1, np.float32)
def launch(n):
    session.launch(0, [a, b], [0, 0], [n, 60000], n)
launch(1 << 30)
for call in (session.finish, session.finish, lambda: session.download(b, got), lambda: launch(1)):
    try:
        call()
    except Failed as e:
        print(e)
session.release(b)
session.close()
print("closed", flush=True)
os._exit(0)  # what the driver itself does at the end of a process is not ours
"""
    env = {**os.environ, "SMELT_DEVICE_SECONDS": "1", "PYTHONPATH": PATH, "SMELT_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["-20001"] * 4 + ["closed"], done.stderr
