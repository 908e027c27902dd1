"""The C runtime over a hand-written model: under sanitizers, without memory, on OpenCL, with a host BLAS."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

import pytest
from boards import HAS_OPENCL, NO_OPENCL, needs_opencl
from installed import library_name, program_path
from made_once import made_once, program_and_age

from smelt.targets.platform import DRIVERS
from smelt.targets.toolchain import runtime_dir

HERE = Path(__file__).resolve().parent / "runtime_c"
GCC = program_path("gcc")
pytestmark = pytest.mark.skipif(GCC is None, reason="no gcc for sanitizer builds: apt install gcc libc6-dev")

WEIGHTS = struct.pack("<4f", 1, -2, 3, -4)
# without optimisation gcc takes a third of the time and checks more; what is not checked is optimised
ADDRESS = ("-g1", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DSMELT_TEST_ALLOC")
THREAD = ("-g1", "-O0", "-fsanitize=thread", "-DNO_FORK")  # tsan does not follow a fork of threads
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Werror")
COMPILER = (str(GCC), "-std=gnu11", *WARNINGS, "-DSMELT_STATIC", f"-I{runtime_dir()}")
SOURCES = sorted({runtime_dir(), *(driver.parent for driver in DRIVERS.values())})
OF_RUNTIME = ("-DSMELT_TEST_ALLOC", "-DSMELT_TEST_CLOCK")
BLAS = "libnot-there.so;libopenblas.so.0;libblas.so.3"
needs_blas = pytest.mark.skipif(
    library_name("openblas") is None and library_name("blas") is None,
    reason="no BLAS: apt install libopenblas0-pthread",
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "model.weights").write_bytes(WEIGHTS + bytes(32))
    return tmp_path


def build(folder: Path, *flags: str, parts: tuple[str, ...] = ("model.c", "probe.c")) -> Path:
    """The runtime, model.c and probe.c (or other parts) as one program of the host compiler. flags: those of
    the compiler (-O, -g, -f) are the runtime's as well, names that they define are of the parts."""
    both = tuple(f for f in flags if f.startswith("-") and (not f.startswith("-D") or f in OF_RUNTIME))
    command = [*COMPILER, *flags, *(str(HERE / part) for part in parts), *runtime_objects(both)]
    command += ["-o", "probe", "-ldl", "-lpthread", "-lm"]
    made = made_once(
        lambda folder: subprocess.run(command, check=True, cwd=folder),
        *command, program_and_age(GCC), HERE, *SOURCES, *(Path(f) for f in flags if f.startswith("/")),
    )  # fmt: skip
    return Path(shutil.copy(made / "probe", folder))


@cache
def runtime_objects(flags: tuple[str, ...]) -> list[str]:
    """The object files of the runtime and its drivers, made once per set of flags. A name that flags define
    is of the sources that have it: the others are shared with programs that do not define it."""
    plain = tuple(flag for flag in flags if flag not in OF_RUNTIME)
    sources = [p for p in runtime_dir().glob("*.c") if p.stem != "crt" and not p.stem.startswith("runner")]
    groups: dict[tuple[str, ...], list[Path]] = {}
    for source in sorted((*sources, *DRIVERS.values())):
        text = source.read_text("utf-8")
        groups.setdefault(tuple(name for name in OF_RUNTIME if name[2:] in text), []).append(source)
    return [
        made
        for names, group in groups.items()
        for made in _objects((*plain, *(name for name in names if name in flags)), group)
    ]


def _objects(flags: tuple[str, ...], sources: list[Path]) -> list[str]:
    command = [*COMPILER, *flags, "-c", *map(str, sources)]
    made = made_once(
        lambda folder: subprocess.run(command, check=True, cwd=folder),
        *command, program_and_age(GCC), *SOURCES,
    )  # fmt: skip
    return sorted(map(str, made.glob("*.o")))


def run(program: Path, *args: object, **env: str) -> str:
    done = subprocess.run(
        [program, *map(str, args)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stdout  # a sanitizer's report, a signal
    return done.stdout


@pytest.mark.parametrize("flags", [ADDRESS, THREAD, ("-O2",)], ids=["address", "thread", "plain"])
def test_sessions(bundle: Path, flags: tuple[str, ...]) -> None:
    """Shapes that change 200 times, caller's memory, refusals, threads, fork, cancel, denied memory."""
    assert run(build(bundle, *flags), bundle) == "OK\n"


def test_weights_are_checked(bundle: Path) -> None:
    digest = ",".join(f"0x{byte:02x}" for byte in hashlib.sha256(WEIGHTS).digest())
    program = build(bundle, *ADDRESS, f"-DWEIGHTS_SHA={{{digest}}}")
    file, trailer = bundle / "model.weights", hashlib.sha256(WEIGHTS).digest()
    assert "holds the weights of another model than 'probe'" in run(program, bundle, "open")
    file.write_bytes(WEIGHTS + trailer)
    assert run(program, bundle, "verify") == "status 0: \n"
    assert run(program, "ignored", "beside") == "status 0: \n"  # next to the code itself
    file.write_bytes(WEIGHTS[:-1] + b"\1" + trailer)
    assert "their sum differs" in run(program, bundle, "open")
    assert "its SHA-256 is" in run(program, bundle, "verify")
    file.write_bytes(WEIGHTS + trailer[:-1])
    said = run(program, bundle, "open")
    assert said.startswith("status 1: ") and "has 47 bytes, model 'probe' wants 48" in said
    file.unlink()
    said = run(program, bundle, "open")
    assert said.startswith("status 5: ") and "cannot be opened (errno 2)" in said
    assert "too long" in run(program, "d" * 5000, "open")


def test_sha256_of_every_tail_length(tmp_path: Path) -> None:
    """The padding of the hash has two shapes; a length for each side of each border."""
    source = tmp_path / "sha.c"
    source.write_text(
        '#include "weights.c"\n#include <stdio.h>\n'
        "const smelt_model_desc smelt_model;\n"
        "int32_t rt_error(smelt_rt *rt, int32_t s, const char *f, ...) { (void)rt, (void)f; return s; }\n"
        "int main(void) { static uint8_t d[200], h[32];\n"
        "  for (int n = 0; n < 200; n++) { d[n] = (uint8_t)n; sha256_state s; sha256_start(&s);\n"
        "    for (int i = 0; i < n; i += 7) sha256_add(&s, d + i, (uint64_t)(n - i < 7 ? n - i : 7));\n"
        "    sha256_end(&s, h);\n"
        '    for (int i = 0; i < 32; i++) printf("%02x", h[i]);\n    puts(""); }\n  return 0; }\n'
    )
    program = tmp_path / "sha"
    command = [str(GCC), "-std=gnu11", "-O0", "-fsanitize=address,undefined", f"-I{runtime_dir()}"]
    subprocess.run([*command, str(source), "-o", str(program), "-ldl"], check=True)
    got = run(program).split()
    data = bytes(range(200))
    assert got == [hashlib.sha256(data[:n]).hexdigest() for n in range(200)]


def test_model_without_weights_needs_no_bundle(tmp_path: Path) -> None:
    program = build(tmp_path, *ADDRESS, "-DNO_WEIGHTS")
    assert run(program, tmp_path / "nowhere", "open") == "status 0: \n"


@needs_blas
def test_library_call(bundle: Path) -> None:
    assert run(build(bundle, "-O2", f'-DWITH_LIBRARY="{BLAS}"'), bundle, "library") == "OK\n"


def test_missing_library_is_named(bundle: Path) -> None:
    said = run(build(bundle, *ADDRESS, '-DWITH_LIBRARY="libnot-there.so"'), bundle, "library")
    assert said.startswith(
        "status 4: library function 'cblas_sgemm' was not found in any of 'libnot-there.so'"
    )


@needs_opencl
def test_opencl_sessions(bundle: Path) -> None:
    """The same expectations with two kernels on the device and two on the host between them."""
    said = run(build(bundle, "-O2", "-DWITH_OPENCL"), bundle)
    assert said == "OK\n"


@needs_opencl
@needs_blas
def test_library_call_on_device_memory(bundle: Path) -> None:
    program = build(bundle, "-O2", "-DWITH_OPENCL", f'-DWITH_LIBRARY="{BLAS}"')
    assert run(program, bundle, "library") == "OK\n"


@needs_opencl
def test_opencl_failures_say_why(bundle: Path) -> None:
    good, broken = bundle / "good", bundle / "broken"
    good.mkdir()
    broken.mkdir()
    program = build(good, "-O2", "-DWITH_OPENCL")
    assert run(program, bundle, "open") == "status 0: \n"
    assert "SMELT_OPENCL_DEVICE is '77'" in run(program, bundle, "open", SMELT_OPENCL_DEVICE="77")
    assert "no device" in run(program, bundle, "open", SMELT_OPENCL_DEVICE="0:9")
    assert run(program, bundle, "open", SMELT_OPENCL_DEVICE="0:0") == "status 0: \n"
    nothing = {"OCL_ICD_VENDORS": str(bundle / "empty/"), "OPENCL_VENDOR_PATH": str(bundle / "empty/")}
    assert run(program, bundle, "open", **nothing).startswith("status 4: OpenCL: ")
    said = run(build(broken, "-O2", "-DWITH_OPENCL", "-DBROKEN_SOURCE"), bundle, "open")
    assert "status 4: " in said and "refused the model's kernels" in said and "error" in said


def test_missing_driver_says_what_to_install(bundle: Path) -> None:
    """A dlopen that finds nothing stands in for a machine without libOpenCL.so.1."""
    no_driver = bundle / "dlopen.c"
    no_driver.write_text("void *dlopen(const char *f, int m) { (void)f, (void)m; return 0; }\n")
    said = run(build(bundle, "-O2", "-DWITH_OPENCL", str(no_driver)), bundle, "open")
    assert said.startswith("status 4: OpenCL: libOpenCL.so.1 cannot be loaded")
    assert "pocl-opencl-icd" in said


@pytest.mark.parametrize("flags", [ADDRESS, THREAD, ("-O2",)], ids=["address", "thread", "plain"])
def test_state(bundle: Path, flags: tuple[str, ...]) -> None:
    """What runs leave for the next: failures, reset, forks, values from outside, bounds, denied memory."""
    assert run(build(bundle, *flags, parts=("stateful.c",)), bundle) == "OK\n"


@pytest.mark.parametrize("more", [(), ("-DCROSSED",)], ids=["at one unit", "made at another unit"])
def test_state_on_a_device(bundle: Path, more: tuple[str, ...]) -> None:
    """The same where state lies in a device's memory."""
    flags = (*CHECKED, "-DWITH_UNITS", *more)
    assert run(build(bundle, *flags, parts=("stateful.c", "fake_driver.c")), bundle) == "OK\n"


@pytest.mark.parametrize("flags", [ADDRESS, THREAD, ("-O2",)], ids=["address", "thread", "plain"])
def test_streams(bundle: Path, flags: tuple[str, ...]) -> None:
    """Order, overlap, back-pressure, failures of items, refusals, threads, a fork, denied memory."""
    assert run(build(bundle, *flags, parts=("model.c", "streams.c")), bundle) == "OK\n"


def test_a_session_that_is_closed(bundle: Path) -> None:
    """A call after that is an error of the caller's, which is told as long as nobody else has its memory."""
    assert run(build(bundle, "-O2", parts=("model.c", "closed.c")), bundle) == "OK\n"


@pytest.mark.parametrize(
    "flags", [ADDRESS[:-1], ("-O2",), ("-O2", "-DKEEP=1")], ids=["address", "plain", "keep"]
)
def test_mode_of_floats(bundle: Path, flags: tuple[str, ...]) -> None:
    """Kernels compute in the model's mode on every thread; the caller and its probe in the caller's."""
    assert run(build(bundle, *flags, parts=("floats.c",)), bundle) == "OK\n"


@pytest.mark.parametrize("flags", [ADDRESS, ("-O2",)], ids=["address", "plain"])
def test_a_worker_leaves_its_callers_processor(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Where both were on one; which processors a thread may use stays as it was."""
    program, parts = tmp_path / "leaving", (HERE / "leaving.c", runtime_dir() / "pool.c")
    subprocess.run([*COMPILER, *flags, *map(str, parts), "-o", str(program), "-lpthread"], check=True)
    assert run(program) in ("OK\n", "one processor\n")


@pytest.mark.parametrize("flags", [ADDRESS, ("-O2",)], ids=["address", "plain"])
def test_code_that_is_refused_is_kept(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """With what the driver said, and nothing else is made, whatever was on the stack."""
    program = tmp_path / "refused"
    parts = (HERE / "refused.c", runtime_dir() / "faults.c", runtime_dir() / "cache.c")
    subprocess.run([*COMPILER, *flags, *map(str, parts), "-o", str(program)], check=True)
    assert run(program, SMELT_CACHE=str(tmp_path / "cache")) == "OK\n"


@pytest.mark.parametrize("flags", [ADDRESS, THREAD, ("-O2",)], ids=["address", "thread", "plain"])
def test_entries(bundle: Path, flags: tuple[str, ...]) -> None:
    """Three entries over one state: what one leaves for another, failures, forks, threads, denied memory."""
    assert run(build(bundle, *flags, parts=("two_entries.c",)), bundle) == "OK\n"


def test_entries_on_a_device(bundle: Path) -> None:
    """The same where entries use the state at another unit than the one where it lies."""
    flags = (*CHECKED, "-DWITH_UNITS")
    assert run(build(bundle, *flags, parts=("two_entries.c", "fake_driver.c")), bundle) == "OK\n"


# ---------------------------------------------------------------- several units

TWO_UNITS = ("two_units.c", "fake_driver.c")
CHECKED = tuple(flag for flag in ADDRESS if flag != "-DSMELT_TEST_ALLOC")


@pytest.mark.table(2)
@pytest.mark.parametrize("state", [(), ("-DWITH_STATE",)], ids=["plain", "state"])
@pytest.mark.parametrize("flags", [CHECKED, THREAD, ("-O2",)], ids=["address", "thread", "optimised"])
def test_policies_bind_runs(bundle: Path, flags: tuple[str, ...], state: tuple[str, ...]) -> None:
    """Shares of three units that are loaded, hot, or dear on a battery, by a clock that kernels move;
    failures, states, tensors that stay, forks, streams, threads."""
    program = build(bundle, *flags, *state, "-DSMELT_TEST_CLOCK", parts=("policies.c", "fake_driver.c"))
    assert run(program, bundle) == "OK\n"


@pytest.mark.parametrize(
    "flags", [CHECKED, ("-O2",), ("-O2", "-DWITH_OPENCL")], ids=["address", "plain", "opencl"]
)
def test_kernels_alternate_between_units(bundle: Path, flags: tuple[str, ...]) -> None:
    """Two devices, the second one a fake that queues its work, and the CPU: what crosses is counted."""
    if "-DWITH_OPENCL" in flags and not HAS_OPENCL:
        pytest.skip(NO_OPENCL)
    program = build(bundle, *flags, parts=TWO_UNITS)
    assert run(program, bundle) == "OK\n"
    assert run(program, bundle, FAKE_FORGETFUL="1") == "OK\n"  # a device without lists


SEEN = ("seen.c", "fake_driver.c")


@pytest.mark.parametrize("shares", [{}, *({"FAKE_SHARES": how} for how in ("apart", "idle", "not"))], ids=str)
def test_the_host_looks_at_a_units_memory(bundle: Path, shares: dict[str, str]) -> None:
    """It reads and writes what a unit does, in memory that grows, with copies and without; a unit's work on
    what the host looks at ends the program. Where a call of the driver fails, nothing is left behind."""
    program = build(bundle, *CHECKED, parts=SEEN)
    assert run(program, bundle, **shares) == "OK\n"
    said = [run(program, bundle, FAKE_BREAKS=str(k), **shares) for k in range(1, 40)]
    assert sum("failed with code -9" in s for s in said) > 20, said
    wrong = build(bundle, *CHECKED, "-DWRONG_SIDE", parts=SEEN)
    assert "kernel 'triple' of unit 1 gets memory of unit 0" in run(wrong, bundle, **shares)


def test_what_is_bounded_is_reserved_at_units(bundle: Path) -> None:
    """No run asks a driver for memory, nor the system; what a unit does not have is told at open."""
    program = build(bundle, *CHECKED, "-DBOUNDED", parts=TWO_UNITS)
    assert run(program, bundle) == "OK\n"
    said = run(program, bundle, FAKE_ALLOWS="32767")  # enough for x and v and the weights
    assert "fake device 'fake': model 'two' may need 32768 bytes at once" in said
    assert "compile it with lower bounds" in said


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [(("-DWRONG_UNIT",), {}, "kernel 'square' of unit 1 gets memory of unit 2"),
     (("-DWRONG_HOME",), {}, "model 'two' keeps something at unit 7 of 2"),
     ((), {"FAKE_REFUSES": "1"}, "fake: told to refuse")],
)  # fmt: skip
def test_what_units_do_not_accept(
    bundle: Path, flags: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    """A program that forgets a copy, or says where something is that is nowhere, is told; nothing leaks."""
    assert said in run(build(bundle, *CHECKED, *flags, parts=TWO_UNITS), bundle, **env)


def test_what_a_driver_compiles_is_kept(bundle: Path) -> None:
    """Found by the next process, made again where it is damaged; no place for it is no error."""
    program, cache = build(bundle, *CHECKED, parts=TWO_UNITS), bundle / "cache"

    def opened(**where: str) -> str:
        return run(program, bundle, FAKE_COMPILES="1", **({"SMELT_CACHE": str(cache)} | where))

    assert opened() == "0 found, 2 not, OK\n"
    assert opened() == "2 found, 0 not, OK\n"
    kept = sorted((cache / "kernels").iterdir())
    assert [len(k.name) for k in kept] == [64, 64] and {k.stat().st_mode & 0o777 for k in kept} == {0o600}
    whole = kept[0].read_bytes()
    for damage in (whole[:-1], whole + b"1", whole[:30], b"", b"\0" + whole[1:], whole[:-1] + b"?"):
        kept[0].write_bytes(damage)
        assert opened() == "1 found, 1 not, OK\n"
        assert kept[0].read_bytes() == whole
    kept[0].unlink()
    kept[0].mkdir()  # nothing can be read from it, and nothing takes its place
    assert opened() == "1 found, 1 not, OK\n"
    assert sorted((cache / "kernels").iterdir()) == kept
    assert opened(SMELT_CACHE="", XDG_CACHE_HOME=str(bundle / "xdg")) == "0 found, 2 not, OK\n"
    assert opened(SMELT_CACHE="", XDG_CACHE_HOME=str(bundle / "xdg")) == "2 found, 0 not, OK\n"
    (bundle / "file").touch()
    for nowhere in (str(bundle / "file"), "/proc/nothing", "d" * 2000):
        assert opened(SMELT_CACHE=nowhere) == "0 found, 2 not, OK\n"


def test_processes_share_what_they_compile(bundle: Path) -> None:
    """Eight at once on an empty folder: each runs, and what they leave is two whole files."""
    program, cache = build(bundle, "-O2", parts=TWO_UNITS), bundle / "cache"
    env = {**os.environ, "FAKE_COMPILES": "1", "SMELT_CACHE": str(cache)}
    started = [subprocess.Popen([program, bundle], env=env, stdout=subprocess.PIPE) for _ in range(8)]
    said = [p.communicate(timeout=120)[0].decode() for p in started]
    assert all(text.endswith("not, OK\n") for text in said)
    assert len(list((cache / "kernels").iterdir())) == 2
    assert run(program, bundle, FAKE_COMPILES="1", SMELT_CACHE=str(cache)) == "2 found, 0 not, OK\n"


@needs_opencl
def test_opencl_binaries_are_kept(bundle: Path) -> None:
    """Where they are asked for; one that the driver does not take, although it is whole, is made again."""
    program, cache = build(bundle, "-O2", "-DWITH_OPENCL", parts=TWO_UNITS), bundle / "cache"
    env = {"SMELT_CACHE": str(cache), "SMELT_OPENCL_BINARIES": "1", "FAKE_COMPILES": "1"}
    assert run(program, bundle, **env) == "0 found, 2 not, OK\n"
    assert run(program, bundle, **env) == "2 found, 0 not, OK\n"
    kept = max((cache / "kernels").iterdir(), key=lambda path: path.stat().st_size)
    whole, other = kept.read_bytes(), b"no program"
    kept.write_bytes(b"smeltbin" + struct.pack("<Q", len(other)) + hashlib.sha256(other).digest() + other)
    assert run(program, bundle, **env) == "1 found, 1 not, OK\n"
    assert len(kept.read_bytes()) > len(whole) // 2
    assert run(program, bundle, **env) == "2 found, 0 not, OK\n"
