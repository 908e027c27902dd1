"""Linking for every platform: what comes out is right by its headers, equal byte for byte, and runs."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from boards import need_qemu
from elf_facts import check_elf, read_elf
from installed import program_path, system_folder

from smelt.core.diag import SmeltError
from smelt.core.naming import FUNCTIONS, Names
from smelt.targets import toolchain
from smelt.targets.elf import ObjectFile
from smelt.targets.llvm.machines import machine_for
from smelt.targets.platform import (
    DRIVERS,
    PLATFORMS,
    TargetSpec,
    cpu_names,
    host_platform_name,
    parse_target,
    same_again,
)
from smelt.targets.stubs import libraries
from smelt.targets.toolchain import build_library, build_runner, build_static, runtime_dir

SOURCES = Path(__file__).resolve().parent / "runtime_c"
PROBE = SOURCES / "probe.c"
ARM64_LIBC = system_folder("/usr/aarch64-linux-gnu")
EVERY = tuple(PLATFORMS)
MODEL = Names("model", "0123abcd")


def model_object(name: str) -> bytes:
    """model.c, as a generated object would come."""
    return toolchain._objects(PLATFORMS[name], ("model",), source=SOURCES)[0].read_bytes()


def words_to_run(spec: TargetSpec) -> list[str]:
    """The emulator's words, or none on the machine itself; skips where there is no emulator."""
    if spec.platform.name == host_platform_name():
        return []
    emulator = spec.platform.emulator
    command = emulator.command(spec.cpu, spec.platform.default_cpu) if emulator else ()
    need_qemu(*command[:1])
    return list(command)


EMULATED = {True: ("emulated",), False: ()}
"""Arguments of the probe, by whether an emulator runs it."""


def run(words: list[str], program: Path, *args: object) -> str:
    done = subprocess.run(
        [*words, str(program), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.stdout


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "model.weights").write_bytes(struct.pack("<4f", 1, -2, 3, -4) + bytes(32))
    return tmp_path


# ---- targets ----


@pytest.mark.parametrize(
    ("text", "platform", "cpu", "devices"),
    [
        ("x86", "x86_64-linux", "x86-64-v2", ()),
        ("arm64", "aarch64-linux", "cortex-a53", ()),
        ("armv7", "armv7-linux", "cortex-a7", ()),
        ("android", "aarch64-android", "cortex-a53", ()),
        ("riscv64-linux:spacemit-x60", "riscv64-linux", "spacemit-x60", ()),
        ("aarch64-linux:cortex-a76+opencl", "aarch64-linux", "cortex-a76", ("opencl",)),
        ("x86_64-linux:znver5+opencl+opencl", "x86_64-linux", "znver5", ("opencl",)),
        ("x86+cuda:sm_72:sm_87+opencl", "x86_64-linux", "x86-64-v3", ("cuda", "opencl")),
        ("jetson", "aarch64-linux", "cortex-a78ae", ("cuda",)),
        ("jetson-nano", "aarch64-linux", "cortex-a57", ("cuda",)),
        ("jetson-xavier", "aarch64-linux", "carmel", ("cuda",)),
        ("jetson-thor", "aarch64-linux", "neoverse-v3ae", ("cuda",)),
    ],
)
def test_parse_target(text: str, platform: str, cpu: str, devices: tuple[str, ...]) -> None:
    spec = parse_target(text)
    assert (spec.platform.name, spec.cpu, spec.devices) == (platform, cpu, devices)
    assert parse_target(str(spec)) == spec


def test_a_second_compile_is_for_this_machine_where_the_first_one_was() -> None:
    """With its exact features, which may be fewer than those of its processor's name."""
    own = str(parse_target("host"))
    assert same_again(own) == "host" and same_again(f"{own}+opencl") == "host+opencl"
    for other in ("aarch64-linux:cortex-a55", f"{own}:x86-64-v2", f"{own}x", "any"):
        assert same_again(other) == other


def test_chips_of_a_device() -> None:
    spec = parse_target("x86+cuda:sm_72:sm_87+opencl")
    assert (spec.chips_of("cuda"), spec.chips_of("opencl")) == (("sm_72", "sm_87"), ())
    assert str(spec) == "x86_64-linux+cuda:sm_72:sm_87+opencl"
    assert parse_target("jetson").chips_of("cuda") == ("sm_87",)


def test_host_is_a_platform_with_its_own_features() -> None:
    spec = parse_target("host")
    assert spec.platform.name == host_platform_name() and spec.cpu and "+" in spec.features
    assert parse_target("host+opencl").devices == ("opencl",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jetson-tx9", "there is no platform 'jetson-tx9'"),
        ("", "not of the form"),
        ("arm64 ", None),
        ("x86:i386", "no cpu 'i386'"),  # 32 bit: LLVM would end the process
        ("arm64:cortex-a77x", "cortex-a77,"),
        ("armv7:cortex-m4", "no cpu 'cortex-m4'"),
        ("x86+npu:v2", "no device 'npu', only cuda, opencl"),
        ("x86+cuda:", "not of the form"),
        ("x86:", "not of the form"),
    ],
)
def test_unknown_targets_are_refused_with_what_there_is(text: str, words: str | None) -> None:
    if words is None:
        assert parse_target(text) == parse_target(text.strip())
        return
    with pytest.raises(SmeltError, match=re.escape(words)) as error:
        parse_target(text)
    assert error.value.kind == "unsupported" and error.value.hint


@pytest.mark.parametrize(
    ("cpu", "machine"),
    [("rocketlake", "avx512"), ("znver5", "avx512"), ("haswell", "avx2"), ("nehalem", "sse4.2")],
)
def test_a_processor_is_what_its_features_say(cpu: str, machine: str) -> None:
    """Also one that nobody has thought of: LLVM's tables know it."""
    assert machine_for(PLATFORMS["x86_64-linux"].triple, cpu).name == machine


def test_emulators_follow_the_cpu() -> None:
    row = PLATFORMS["aarch64-linux"]
    assert row.emulator is not None
    for cpu, told in (("cortex-a53", "cortex-a53"), ("cortex-a76", "cortex-a76"), ("cortex-x1", "max")):
        assert row.emulator.command(cpu, row.default_cpu) == ("qemu-aarch64-static", "-cpu", told)


def test_default_cpus_are_known() -> None:
    for row in PLATFORMS.values():
        assert row.default_cpu in cpu_names(row.arch) or row.arch == "x86_64"
    assert "x86-64-v3" in cpu_names("x86_64")


# ---- what is made ----


def test_exports_are_the_public_header() -> None:
    text = (runtime_dir() / "smelt.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"\bsmelt_([a-z_]+)\s*\((?!\*)", text))
    assert declared == set(FUNCTIONS)


@pytest.mark.parametrize("name", EVERY)
def test_runtime_compiles_without_warnings(name: str) -> None:
    """With the compiler and the word size of each platform; users' builds show no warnings."""
    # clang warns before it optimises: without, it takes 40 % of the time
    strict = ("-Wall", "-Wextra", "-Wshadow", "-Werror", "-O0")
    objects = toolchain._objects(PLATFORMS[name], toolchain._RUNTIME, strict)
    assert len(objects) == len(toolchain._RUNTIME)
    for driver in DRIVERS.values():
        assert toolchain._objects(PLATFORMS[name], (driver.stem,), strict, driver.parent)


@pytest.mark.parametrize("name", EVERY)
def test_library(name: str, tmp_path: Path) -> None:
    spec = parse_target(name)
    made = build_library(spec, model_object(name), tmp_path / "a", MODEL)
    elf = check_elf(made, spec.platform)
    assert elf.exports == tuple(sorted((*MODEL.functions, MODEL.opener)))
    assert elf.soname == "libmodel.so" and elf.kind == 3 and elf.relro and elf.binds_now
    assert "memcpy" in " ".join(elf.imports)  # libc's, not one of the builtins'
    again = build_library(spec, model_object(name), tmp_path / "b" / "c", MODEL)
    assert again.read_bytes() == made.read_bytes()
    other = PLATFORMS["riscv64-linux" if name != "riscv64-linux" else "x86_64-linux"]
    with pytest.raises(SmeltError, match="machine"):
        check_elf(made, other)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("device", DRIVERS)
def test_dynamic_runner(name: str, device: str, tmp_path: Path) -> None:
    spec = parse_target(f"{name}+{device}")
    made = build_runner(spec, b"", tmp_path)
    elf = check_elf(made, spec.platform)
    assert elf.interpreter == spec.platform.loader and elf.kind == 3
    assert {"dlopen", "dlsym"} <= set(elf.imports) and not elf.exports


def test_library_runs_under_this_machines_libc(bundle: Path) -> None:
    spec = parse_target("host")
    build_library(spec, model_object(spec.platform.name), bundle, MODEL)
    runner = build_runner(parse_target("host+opencl"), b"", bundle, source=PROBE)
    assert run([], runner, bundle) == "OK\n"
    assert run([], runner, bundle, "beside") == "status 0: \n"  # weights beside the library


def test_library_loads_into_python(bundle: Path) -> None:
    spec = parse_target("host")
    library = ctypes.CDLL(str(build_library(spec, model_object(spec.platform.name), bundle, MODEL)))
    library.model_input_name.restype = ctypes.c_char_p
    library.model_input_count.restype = ctypes.c_size_t
    library.model_error.restype = ctypes.c_char_p
    assert library.model_input_count(None) == 2 and library.model_input_name(None, ctypes.c_size_t(1)) == b"y"
    session = ctypes.c_void_p()
    assert library.model_open(str(bundle / "nowhere").encode(), None, ctypes.byref(session)) == 5
    assert b"model.weights: cannot be opened" in library.model_error(None)
    assert library.model_open(str(bundle).encode(), None, ctypes.byref(session)) == 0
    library.model_close(session)


@pytest.mark.parametrize("name", [name for name in EVERY if PLATFORMS[name].static_zig])
def test_static_runner(name: str, bundle: Path) -> None:
    """One file that needs nothing of the system it runs on, under bare qemu where it is another's."""
    spec = parse_target(name)
    words = words_to_run(spec)
    made = build_runner(spec, model_object(name), bundle, source=PROBE)
    elf = check_elf(made, spec.platform)
    assert elf.kind == 2 and not elf.needed and elf.interpreter is None
    assert run(words, made, bundle, *EMULATED[bool(words)]) == "OK\n"
    assert "static program" in run(words, made, bundle, "beside")
    again = build_runner(spec, model_object(name), bundle / "again", source=PROBE)
    assert again.read_bytes() == made.read_bytes()


def test_android_library_under_glibc(bundle: Path) -> None:
    """Android's library, its three NEEDED names given by arm64 glibc."""
    if not (ARM64_LIBC / "lib" / "libc.so.6").exists():
        pytest.skip("no arm64 glibc: apt install libc6-dev-arm64-cross")
    spec = parse_target("android")
    words = words_to_run(spec)
    build_library(spec, model_object(spec.platform.name), bundle, MODEL)
    runner = toolchain.build_shim_runner(spec, bundle / "smelt_run.shim", source=PROBE)
    shim = bundle / "shim"
    shim.mkdir()
    for theirs, ours in {"libc.so": "libc.so.6", "libm.so": "libm.so.6", "libdl.so": "libdl.so.2"}.items():
        (shim / theirs).symlink_to(ARM64_LIBC / "lib" / ours)
    words += ["-L", str(ARM64_LIBC), "-E", f"LD_LIBRARY_PATH={shim}"]
    assert run(words, runner, bundle, *EMULATED[bool(words)]) == "OK\n"
    assert run(words, runner, bundle, "beside") == "status 0: \n"


@pytest.mark.parametrize(
    ("name", "folder"), [("aarch64-android", "arm64_android"), ("armv7-android", "arm64_android6.0")]
)
def test_android_runner_under_bionic(name: str, folder: str, bundle: Path) -> None:
    root = Path(os.environ.get("SMELT_BIONIC_ROOT", "/nowhere")) / folder
    if not root.is_dir():
        pytest.skip("no bionic: set SMELT_BIONIC_ROOT to a folder with an Android userland")
    spec = parse_target(name)
    words = [*words_to_run(spec), "-L", str(root)]
    build_library(spec, model_object(name), bundle, MODEL)
    runner = build_runner(spec, b"", bundle, source=PROBE)
    assert "OK\n" in run(words, runner, bundle, *EMULATED[bool(words)])


@pytest.mark.parametrize("name", EVERY)
def test_two_models_link_together(name: str, tmp_path: Path) -> None:
    """Whole archives of two models, each with its own copy of the runtime, in one library: no name twice."""
    spec, object_ = parse_target(name), model_object(name)
    names, objects = [Names("det", "0123abcd"), Names("rec", "0123abcd")], []
    for n in names:
        made = toolchain._named(spec, object_, n, hidden=False)
        shown = frozenset().union(*(ObjectFile(o).defined for o in made.values()))
        assert not shown & ObjectFile(object_).defined
        objects += made.values()
    shown = [f for n in names for f in (*n.functions, n.opener)]
    out = toolchain.link_library(spec.platform, objects, tmp_path / "libboth.so", shown)
    elf = check_elf(out, spec.platform)
    assert elf.exports == tuple(sorted(shown))


@pytest.mark.parametrize("name", ["aarch64-linux", "armv7-linux"])
def test_a_static_program_of_two_models(name: str, bundle: Path) -> None:
    """The second of two models under the emulator: its functions are its own, and so are its weights."""
    spec = parse_target(name)
    words = words_to_run(spec)
    defines = ("-DSMELT_STATIC", "-DSMELT_PREFIX=rec")
    objects = [toolchain._objects(spec.platform, ("probe",), defines, source=SOURCES)[0]]
    for n in ("det", "rec"):
        named = toolchain._named(spec, model_object(name), Names(n, "0123abcd"), hidden=True)
        for file, data in named.items():
            (bundle / file).write_bytes(data)
            objects.append(bundle / file)
    libc, program = toolchain._static_libc(spec.platform), bundle / "program"
    command = ["ld.lld", *toolchain._STATIC_FLAGS, "-o", str(program), *objects]
    toolchain._zig([*command, *toolchain._libc_words(libc)], cwd=bundle)
    assert run(words, program, bundle, *EMULATED[bool(words)]) == "OK\n"


@pytest.mark.parametrize("name", [p.name for p in PLATFORMS.values() if p.static_zig])
def test_a_static_libc_has_what_stubs_promise(name: str, tmp_path: Path) -> None:
    """A model's code may call all that a shared library may."""
    platform = PLATFORMS[name]
    wanted = [word for row in libraries(platform).values() for symbol in row for word in ("-u", symbol)]
    libc = toolchain._libc_words(toolchain._static_libc(platform))
    toolchain._zig(["ld.lld", "-static", "-o", "out", "--defsym=main=0", *wanted, *libc], cwd=tmp_path)


def test_a_program_that_calls_more_gets_all_of_musl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, asked = parse_target("host"), list[str]()
    whole = toolchain._static_libc(spec.platform)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "crt1.o").write_bytes((whole / "crt1.o").read_bytes())
    monkeypatch.setattr(toolchain, "_static_libc", lambda platform: tmp_path / "small")
    monkeypatch.setattr(toolchain, "_whole_libc", lambda platform: asked.append(platform.name) or whole)
    made = build_runner(spec, model_object(spec.platform.name), tmp_path, source=PROBE)
    assert asked == [spec.platform.name] and made.is_file()


def test_static_archive(bundle: Path) -> None:
    """libmodel.a in a program of the system's own compiler."""
    gcc = program_path("gcc")
    if gcc is None:
        pytest.skip("no gcc: apt install gcc libc6-dev")
    spec = parse_target("host")
    made = build_static(spec, model_object(spec.platform.name), bundle, MODEL)
    assert [path.name for path in made] == ["model.o", "libmodel.a"]
    program = bundle / "probe"
    command = [gcc, "-DSMELT_STATIC", "-DSMELT_PREFIX=model", f"-I{runtime_dir()}", str(PROBE)]
    command += [str(made[1]), "-o", str(program)]
    subprocess.run([*command, "-ldl", "-lpthread", "-lm"], check=True)
    assert run([], program, bundle) == "OK\n"
    again = build_static(spec, model_object(spec.platform.name), bundle / "again", MODEL)
    assert again[1].read_bytes() == made[1].read_bytes()


# ---- functions that code calls without being told ----


def emit(ir: str, cpu: str, platform: str = "x86_64-linux") -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    row = PLATFORMS[platform]
    machine = llvm.Target.from_triple(row.triple).create_target_machine(
        cpu=cpu, features=row.features, reloc="pic", abiname=row.abi
    )
    return bytes(machine.emit_object(llvm.parse_assembly(f'target triple = "{row.triple}"\n{ir}')))


def test_undefined_functions_are_named(tmp_path: Path) -> None:
    ir = "declare void @no_such_b()\ndeclare void @no_such_a()\n"
    ir += "define void @smelt_run() { call void @no_such_b() call void @no_such_a() ret void }"
    with pytest.raises(SmeltError, match="no_such_a, no_such_b") as error:
        toolchain.link_library(
            PLATFORMS["x86_64-linux"], [emit(ir, "x86-64")], tmp_path / "x.so", ["smelt_run"]
        )
    assert error.value.kind == "internal" and not (tmp_path / "x.so").exists()


def test_objects_of_odd_lengths_are_linked_with_files(tmp_path: Path) -> None:
    """Members of an archive begin at even places. All are linked: none is there to be looked up."""
    codes = [emit(f"define void @f{n}() {{ ret void }}", "x86-64") + b"\0" * n for n in range(4)]
    (tmp_path / "3.o").write_bytes(codes[3])
    objects = [codes[0], codes[1], tmp_path / "3.o", codes[2]]
    names = [f"f{n}" for n in range(4)]
    made = toolchain.link_library(PLATFORMS["x86_64-linux"], objects, tmp_path / "x.so", names)
    assert set(names) <= ObjectFile(made.read_bytes()).defined
    assert set(names[:3]) <= ObjectFile(toolchain.join_objects(codes[:3])).defined


@pytest.mark.skipif(host_platform_name() != "x86_64-linux", reason="the code is for x86-64")
def test_half_floats_of_an_old_cpu_come_from_the_builtins(tmp_path: Path) -> None:
    """x86-64 before F16C has no conversion: LLVM calls a function that libc does not have."""
    ir = """define i16 @smelt_run(float %x) {
      %h = fptrunc float %x to half
      %b = bitcast half %h to i16
      ret i16 %b }"""
    made = toolchain.link_library(
        PLATFORMS["x86_64-linux"], [emit(ir, "x86-64")], tmp_path / "x.so", ["smelt_run"]
    )
    to_half = ctypes.CDLL(str(made)).smelt_run
    to_half.argtypes, to_half.restype = [ctypes.c_float], ctypes.c_uint16
    rng = np.random.default_rng(7)
    values = [*(rng.standard_normal(2000) * 10.0 ** rng.uniform(-9, 6, 2000)), 0.0, -0.0, np.inf, -np.inf]
    with np.errstate(over="ignore"):
        want = np.array(values, np.float32).astype(np.float16).view(np.uint16)
    assert [to_half(float(np.float32(v))) for v in values] == want.tolist()


def test_builtins_leave_libcs_functions_to_libc() -> None:
    row = PLATFORMS["armv7-linux"]
    made = toolchain._builtins(row).read_bytes()
    assert not ObjectFile(made).defined & {"memcpy", "expf"}
    assert b"__aeabi_ldivmod" in made


# ---- ELF ----


def test_broken_files_are_refused(tmp_path: Path) -> None:
    whole = build_library(parse_target("arm64"), model_object("aarch64-linux"), tmp_path, MODEL).read_bytes()
    assert read_elf(whole).bits == 64
    for data in (b"", b"\x7fELF", whole[:40], b"MZ" + whole[2:], whole[:100], whole[:3000]):
        with pytest.raises(SmeltError):
            read_elf(data)


def test_check_elf_lists_all_that_is_wrong(tmp_path: Path) -> None:
    made = build_library(parse_target("x86"), model_object("x86_64-linux"), tmp_path, MODEL)
    with pytest.raises(SmeltError, match=r"machine 62, wanted 183; needs .*; segments aligned to 4096"):
        check_elf(made, PLATFORMS["aarch64-android"])


def test_cache_survives_a_race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process may finish the same folder first: its result is taken, ours thrown away."""
    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))
    theirs = toolchain._kept_folder("things", ["k"])

    def build(folder: Path) -> None:
        theirs.mkdir()
        (theirs / "x").write_text("theirs")
        (theirs / ".sum").write_text(toolchain._sum(theirs))
        (folder / "x").write_text("ours")

    assert (toolchain._kept("things", ["k"], build) / "x").read_text() == "theirs"
    assert [path.name for path in theirs.parent.iterdir()] == [theirs.name]


@pytest.mark.parametrize("damage", [b"", b"ours!", None])
def test_what_is_damaged_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: bytes | None
) -> None:
    """As a power failure leaves files."""
    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "x").write_text("whole")

    for _ in range(3):
        made = toolchain._kept("things", ["k"], build)
    if damage is None:
        (made / "x").unlink()
    else:
        (made / "x").write_bytes(damage)
    assert (toolchain._kept("things", ["k"], build) / "x").read_text() == "whole"
    assert len(built) == 2 and [p.name for p in made.parent.iterdir()] == [made.name]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE", "/dev/null/smelt")
    with pytest.raises(SmeltError, match=r"cache folder '/dev/null/smelt': Not a.*SMELT_CACHE") as e:
        toolchain._kept("things", ["k"], lambda folder: None)
    assert e.value.kind == "infra"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("device", ["", "+opencl"])
def test_all_that_is_kept_is_there_before_a_compile(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compile may only read the cache, from the moment on at which it reads the model."""
    asked: set[str] = set()
    kept_folder = toolchain._kept_folder

    def note(kind: str, key: Sequence[object]) -> Path:
        asked.add(str(kept_folder(kind, key)))
        return kept_folder(kind, key)

    monkeypatch.setattr(toolchain, "_kept_folder", note)
    spec, model = parse_target(name + device), model_object(name)
    asked.clear()
    toolchain.prepare(spec)
    prepared = frozenset(asked)
    asked.clear()
    build_library(spec, model, tmp_path, MODEL)
    build_static(spec, model, tmp_path, MODEL)
    build_runner(spec, b"" if device else model, tmp_path)
    assert asked <= prepared


def test_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))

    def build(folder: Path) -> None:
        (folder / "half").write_text("done")
        raise SmeltError("no", kind="internal")

    with pytest.raises(SmeltError):
        toolchain._kept("things", ["k"], build)
    assert list((tmp_path / "things").iterdir()) == []
