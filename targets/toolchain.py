"""A model's object code in, what a platform loads or runs out: libdet.so, libdet.a, smelt_run.

Needs only the wheels llvmlite and ziglang: no compiler, sysroot or NDK of the system. What does not depend on
the model (the compiled C runtime, stand-ins for libc, zig's own libc for static programs) is made once and
kept in $SMELT_CACHE, by default ~/.cache/smelt. Output depends on the inputs alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError, limit_hint
from smelt.core.naming import FUNCTIONS, Names
from smelt.core.scratch import no_room
from smelt.targets import musl
from smelt.targets.elf import ObjectFile
from smelt.targets.platform import DRIVERS, PLATFORMS, Platform, TargetSpec, parse_target, zig_directory
from smelt.targets.stubs import libraries, stub_ir

__all__ = [
    "PLATFORMS",
    "build_library",
    "build_runner",
    "build_shim_runner",
    "build_static",
    "link_library",
    "look_up",
    "parse_target",
    "prepare",
    "runtime_dir",
]

_RUNTIME = (
    "bind", "cache", "chain", "check", "cpu", "crossing", "device", "faults", "launch", "memory", "policy",
    "pool", "session", "share", "state", "stream", "surroundings", "tensor", "unit", "weights",
)  # fmt: skip
_CRT = ("crt",)
_RUNNER = (
    "runner", "runner_condition", "runner_control", "runner_crash", "runner_descendants", "runner_facts",
    "runner_fence", "runner_frames", "runner_gauge", "runner_machine", "runner_probe", "runner_supervisor",
    "runner_worker",
)  # fmt: skip
_RUNNER_FORMS = ("runner_model", "runner_units")  # a static program has them in another form
_C_FLAGS = (
    "-std=c11",
    "-O2",
    "-g0",
    "-fPIC",
    "-fno-sanitize=all",
    "-fno-stack-protector",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
)
_LINKER = ("ld.lld", "--threads=1")
"""By one thread a link takes a tenth less of the processors' time (benchmarks/results/compile_time.md)."""
_LINK_FLAGS = (
    "-z", "now",
    "-z", "relro",
    "-z", "noexecstack",
    "-z", "defs",
    "--hash-style=both",
    "--eh-frame-hdr",
    "--build-id=sha1",
    "--no-rosegment",
    "--gc-sections",
    "--as-needed",
)  # fmt: skip
_STATIC_FLAGS = (
    "-static",
    "-S",  # symbols stay: a crash is told by the kernel's name
    "-z", "relro",
    "-z", "noexecstack",
    "-z", "stack-size=8388608",  # musl gives new threads this much
    "--eh-frame-hdr",
    "--build-id=sha1",
    "--gc-sections",
)  # fmt: skip
# Variables that would let the caller's surroundings into the output.
_UNWANTED = ("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "SOURCE_DATE_EPOCH")


def runtime_dir() -> Path:
    """Where the C sources and headers of the device runtime lie (smelt.h among them)."""
    return Path(__file__).absolute().parent / "runtime"


# ---- running zig ----


def _zig(words: Sequence[str | Path], cwd: Path) -> str:
    """Run zig; its stderr. Raises SmeltError with the tool's own words when it fails: of kind 'infra' where
    the system is to blame, else 'internal'."""
    # the binary itself: `python -m ziglang` starts a second Python first
    binary = zig_directory() / ("zig.exe" if os.name == "nt" else "zig")
    kept = str(cache_dir() / "zig")
    env = {k: v for k, v in os.environ.items() if k not in _UNWANTED}
    env |= {"ZIG_GLOBAL_CACHE_DIR": kept, "ZIG_LOCAL_CACHE_DIR": kept, "LC_ALL": "C"}
    command = [str(binary), *map(str, words)]
    try:
        # restore_signals would let a limit of a file's size kill zig instead of failing its write
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, stdin=subprocess.DEVNULL, restore_signals=False
        )
    except OSError as error:
        hint = limit_hint(error) or "reinstall ziglang"
        raise SmeltError(f"{binary}: cannot be run: {error}", kind="infra", hint=hint) from error
    text = done.stderr.decode("utf-8", "replace")
    if done.returncode == 0:
        return text
    missing = sorted(set(re.findall(r"undefined symbol: (\S+)", text)))
    if missing:
        raise _UndefinedSymbols(tuple(missing))
    said = f": {text[-2000:].strip()}" if text.strip() else ""
    if done.returncode == -signal.SIGBUS or any(word in text for word in _FULL):
        what = f"zig {words[0]} found no space left in '{cwd}' or the cache folder '{kept}'{said}"
        hint = "free some space, or choose others with TMPDIR and SMELT_CACHE"
        raise SmeltError(what, kind="infra", hint=hint)
    if "FdQuotaExceeded" in text:
        what = f"zig {words[0]} could open no more files{said}"
        raise SmeltError(what, kind="infra", hint=limit_hint(OSError(errno.EMFILE, "")))
    if done.returncode == -signal.SIGKILL:
        hint = "the system may have run out of memory"
        raise SmeltError(f"zig {words[0]} was killed from outside{said}", kind="infra", hint=hint)
    raise SmeltError(f"zig {words[0]} failed ({done.returncode}){said}", kind="internal")


_FULL = ("NoSpaceLeft", "No space left on device", "DiskQuota", "Disk quota exceeded")
"""What zig says of a full disk, where it says anything: its linker writes mapped memory, and gets SIGBUS."""


class _UndefinedSymbols(SmeltError):
    """A link failed for undefined symbols. names: these, sorted."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(
            f"the model's code calls functions that no library of the platform has: {', '.join(names)}",
            kind="internal",
        )
        self.names = names


# ---- made once, kept ----


@cache
def _zig_version() -> str:
    """The version of ziglang, from the name of the folder that pip leaves beside it: importlib.metadata takes
    a hundred times as long."""
    name, end = "ziglang-", ".dist-info"
    found = [p.name for p in zig_directory().parent.glob(f"{name}*{end}")]
    if len(found) == 1:
        return found[0].removeprefix(name).removesuffix(end)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ziglang")
    except PackageNotFoundError:
        return "unknown"


def _kept_folder(kind: str, key: Sequence[object]) -> Path:
    import llvmlite

    text = json.dumps([kind, "with a sum", *key, _zig_version(), str(llvmlite.__version__)])
    return cache_dir() / kind / hashlib.sha256(text.encode()).hexdigest()[:32]


def _kept(kind: str, key: Sequence[object], build: Callable[[Path], None]) -> Path:
    """The folder that build filled for this key; built in a folder beside it, then renamed, so that
    a second process sees all of it or nothing."""
    folder = _kept_folder(kind, key)
    try:
        if not _is_whole(folder):
            _make(folder, build)
    except OSError as e:
        raise SmeltError(
            f"cannot keep what is built once in the cache folder '{cache_dir()}': {e.strerror or e}",
            kind="infra",
            hint=limit_hint(e) or "make it writable, or choose another with SMELT_CACHE",
        ) from None
    return folder


def _make(folder: Path, build: Callable[[Path], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        build(making)
        (making / _SUM).write_text(_sum(making), "utf-8")
        making.chmod(0o755)
        try:
            making.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            if not _is_whole(folder):
                folder.rename(making / "damaged")
                making.rename(folder)
                shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(making, ignore_errors=True)


_SUM = ".sum"
"""The file in a kept folder that has the hash of all others: a power failure may leave empty ones."""


def _sum(folder: Path) -> str:
    every = (f"{at}/{name}" for at, _, names in os.walk(folder) for name in names if name != _SUM)
    return _hash_of_files(sorted(every))


def _is_whole(folder: Path) -> bool:
    """Whether the folder is there with all that was built into it."""
    try:
        return (folder / _SUM).read_text("utf-8") == _sum(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _hash_of_files(files: Sequence[str | Path]) -> str:
    """A hash of the files' names and contents; they are read again when one of them has changed."""
    facts = tuple((str(f), (found := os.stat(f)).st_mtime_ns, found.st_size, found.st_ino) for f in files)
    return _hash_of_contents(facts)


@lru_cache(maxsize=64)
def _hash_of_contents(facts: tuple[tuple[str, int, int, int], ...]) -> str:
    files = [Path(name) for name, *_ in facts]
    digest = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        digest.update(f"{file.name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def look_up(spec: TargetSpec) -> None:
    """Ask the file system for what every later call in this process, and in its forks, wants to know.
    spec: the target that most of them are for, whose libc is most of what a compile compares."""
    _hash_of_files(_sources(runtime_dir()))
    _zig_version()
    _is_whole(_kept_folder("musl", _static_key(spec.platform)))


def _sources(folder: Path) -> list[str]:
    """The C files of a folder and all headers that they include."""
    runtime = str(runtime_dir())
    own = (f"{folder}/{n}" for n in os.listdir(folder) if n.endswith((".c", ".h")))
    shared = (f"{runtime}/{n}" for n in os.listdir(runtime) if n.endswith(".h"))
    return sorted((*own, *shared))  # six times per compile; `Path.glob` takes ten times as long


def _objects(
    platform: Platform, names: Sequence[str], defines: Sequence[str] = (), source: Path | None = None
) -> list[Path]:
    """Compiled C files of a source folder (the runtime's own unless given), in the order of names."""
    source = source or runtime_dir()
    flags = (*_C_FLAGS, *defines, "-target", platform.zig, *platform.zig_flags)

    def compile_one(folder: Path, name: str) -> None:
        words = ["cc", "-c", *flags, f"-I{runtime_dir()}", f"{name}.c", "-o", str(folder / f"{name}.o")]
        _zig(words, cwd=source)

    def build(folder: Path) -> None:
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda name: compile_one(folder, name), names))

    folder = _kept("runtime", (platform.name, flags, list(names), _hash_of_files(_sources(source))), build)
    return [folder / f"{name}.o" for name in names]


def _drivers(spec: TargetSpec) -> list[Path]:
    """The compiled drivers of a target's devices."""
    files = [DRIVERS[device] for device in spec.devices]
    return [_objects(spec.platform, (f.stem,), source=f.parent)[0] for f in files]


def _stubs(platform: Platform) -> list[Path]:
    """Stand-ins for the platform's libc libraries, to be linked against and never to be loaded."""
    rows = libraries(platform)

    def build(folder: Path) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(platform.triple)
        machine = target.create_target_machine(
            cpu=platform.default_cpu, features=platform.features, reloc="pic", abiname=platform.abi
        )
        for soname, names in rows.items():
            module = llvm.parse_assembly(stub_ir(platform, names))
            (folder / f"{soname}.o").write_bytes(machine.emit_object(module))
            words = ("ld.lld", "-shared", "-soname", soname, "-o", soname, f"{soname}.o")
            _zig((*words, "-z", f"max-page-size={platform.page}"), cwd=folder)

    folder = _kept("stubs", (platform.name, platform.triple, sorted(rows.items())), build)
    return [folder / soname for soname in rows]


def _compiler_rt(platform: Platform) -> Path:
    """zig's compiler-rt: what LLVM calls where the processor has no instruction (64-bit division on 32-bit
    Arm, half floats), and copies of a few functions of libc."""

    def build(folder: Path) -> None:
        words = ["build-obj", "-target", platform.zig, "-O", "ReleaseFast", "-fPIC", "-fstrip"]
        cpu = [flag for flag in platform.zig_flags if flag.startswith("-mcpu=")]
        words += [*cpu, "-ffunction-sections", "--name", "whole", "-femit-bin=whole.o"]
        _zig((*words, zig_directory() / "lib" / "compiler_rt.zig"), cwd=folder)

    return _kept("compiler_rt", (platform.name, platform.zig_flags), build) / "whole.o"


def _builtins(platform: Platform) -> Path:
    """compiler-rt without its copies of what libc has, since libc's are faster."""
    rows = libraries(platform)
    taken = frozenset(name for names in rows.values() for name in names)

    def build(folder: Path) -> None:
        whole = ObjectFile(_compiler_rt(platform).read_bytes())
        made = whole.renamed({name: f"smelt.{name}" for name in taken & whole.defined})
        (folder / "builtins.o").write_bytes(made)

    return _kept("builtins", (platform.name, platform.zig_flags, sorted(taken)), build) / "builtins.o"


def _static_libc(platform: Platform) -> Path:
    """A folder with what a static program links: musl, as far as runners and models call it."""

    def build(folder: Path) -> None:
        for words in musl.commands(platform, zig_directory() / "lib"):
            _zig(words, cwd=folder)
        shutil.copyfile(_compiler_rt(platform), folder / "compiler_rt.o")

    return _kept("musl", _static_key(platform), build)


def _whole_libc(platform: Platform) -> Path:
    """The same with all of musl, as zig itself builds it, which takes a minute: for a program that calls
    more. It is taken out of zig's own cache, which would build it anew for other compiler flags."""

    def build(folder: Path) -> None:
        (folder / "main.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
        words = ["cc", "-v", "-target", str(platform.static_zig), *platform.zig_flags, "-O2", "-s"]
        said = _zig([*words, "-static", "main.c", "-o", "main"], cwd=folder)
        # the first time zig also links libc's own parts: the program's line is the one with the archive
        links = [line for line in said.splitlines() if line.startswith("ld.lld ")]
        link = next((line for line in reversed(links) if "/libc.a" in line), "")
        found = [
            Path(word) for word in link.split() if word.endswith((".a", "crt1.o")) and "ubsan" not in word
        ]
        if not any(path.name == "crt1.o" for path in found):
            raise SmeltError(
                "this version of ziglang does not say how it links a static program",
                kind="infra",
                hint="pip install 'ziglang==0.17.0'",
            )
        for path in found:
            shutil.copyfile(path, folder / path.name)
        for name in ("main", "main.c"):
            (folder / name).unlink()

    return _kept("whole-musl", _static_key(platform), build)


def _static_key(platform: Platform) -> tuple[object, ...]:
    return (platform.static_zig, platform.zig_flags, musl.MUSL_FLAGS, sorted(musl.MUSL_FILES.items()))


def prepare(spec: TargetSpec) -> None:
    """Make everything that is kept for a target, so that no later call waits for it. The first time
    a static program's libc is built, which takes 15 s; call it beside other work."""
    _objects(spec.platform, _RUNTIME)
    _drivers(spec)
    _runner_objects(spec.platform, None, _is_static(spec))
    _stubs(spec.platform)
    _builtins(spec.platform)
    if _is_static(spec):
        _static_libc(spec.platform)
    else:
        _objects(spec.platform, _CRT)


# ---- linking ----


def _link(
    platform: Platform,
    objects: Sequence[bytes | Path],
    out: Path,
    flags: Sequence[str],
    exports: Sequence[str] = (),
) -> None:
    """ld.lld over objects and the platform's libc, and over the builtins if names are missing without."""
    out.parent.mkdir(parents=True, exist_ok=True)
    stubs = _stubs(platform)
    with _linking() as folder:
        shown = " ".join(f"{name};" for name in exports)
        _put_temporary(folder / "exports.map", f"{{ global: {shown} local: *; }};\n".encode())
        words = [*_LINKER, *_LINK_FLAGS, "-z", f"max-page-size={platform.page}", *flags, "-o", "out"]
        words += [*_placed(folder, objects), *map(str, stubs)]
        try:
            _zig(words, cwd=folder)
        except _UndefinedSymbols:
            lazily = ["--start-lib", str(_builtins(platform)), "--end-lib"]
            _zig([*words, *lazily], cwd=folder)
        _deliver(folder / "out", out)


@contextmanager
def _linking() -> Iterator[Path]:
    """A folder for temporary files of a link. Raises SmeltError(kind='infra') where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="smelt-link-"))
        except OSError as e:
            raise no_room(os.environ.get("TMPDIR", "/tmp"), e) from None
        yield Path(name)


def _placed(folder: Path, objects: Sequence[bytes | Path]) -> list[str]:
    """The linker's words for objects: of those that are bytes an archive in the folder, then the files. To
    make and remove a file takes 0.3 ms of the processor, to open it 0.15 of the linker
    (benchmarks/results/compile_time.md)."""
    files = [str(item) for item in objects if isinstance(item, Path)]
    parts = [b"!<arch>\n"]
    for data in (item for item in objects if isinstance(item, bytes)):
        parts += [b"%-48s%-10d`\n" % (b"%d.o/" % len(parts), len(data)), data, b"\n" * (len(data) % 2)]
    if len(parts) == 1:
        return files
    _put_temporary(folder / "own.a", b"".join(parts))
    return ["--whole-archive", "own.a", "--no-whole-archive", *files]


def _put_temporary(file: Path, data: bytes) -> None:
    """Write a file into a folder of `_linking`: a write that fails does not say where."""
    try:
        file.write_bytes(data)
    except OSError as e:
        raise no_room(file.parent, e) from e


def _deliver(made: Path, out: Path, *, runs: bool = True) -> None:
    """Move a finished file to its place in one step: a reader never sees half of it. runs: whoever may read
    it, by the caller's umask, may also run it."""
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.copyfile(made, beside)
    if runs:
        mode = stat.S_IMODE(beside.stat().st_mode)
        beside.chmod(mode | (mode & 0o444) >> 2)
    beside.replace(out)


def join_objects(objects: Sequence[bytes]) -> bytes:
    """One relocatable object joined from several."""
    if len(objects) == 1:
        return objects[0]
    with _linking() as folder:
        _zig((*_LINKER, "-r", "-o", "out", *_placed(folder, objects)), cwd=folder)
        return (folder / "out").read_bytes()


def link_library(
    platform: Platform, objects: Sequence[bytes | Path], out: Path, exports: Sequence[str]
) -> Path:
    """A shared library of objects for a platform; it exports these names and needs libc and libm alone.

    Raises SmeltError(kind='internal') naming every function that nothing provides.
    """
    flags = ("-shared", "-soname", out.name, "-Bsymbolic", "--version-script=exports.map")
    _link(platform, objects, out, flags, exports)
    return out


def _named(spec: TargetSpec, model_object: bytes, names: Names, hidden: bool) -> dict[str, bytes]:
    """The model and the runtime by file name, their symbols named after the model; so the code of two models
    never meets in one program. Public functions have the prefix; all else has a name that C cannot
    spell, and stays inside. hidden: the public functions do too."""
    objects = {names.object: ObjectFile(model_object)}
    for path in (*_objects(spec.platform, _RUNTIME), *_drivers(spec)):
        objects[f"{names.prefix}_{path.name}"] = _kept_object(path)
    public = {f"smelt_{f}": new for f, new in zip(FUNCTIONS, names.functions, strict=True)}
    public["smelt_open_this"] = names.opener
    defined = frozenset().union(*(o.defined for o in objects.values()))
    inside = {old: f"{names.prefix}.{old}" for old in defined - public.keys()}
    kept_in = frozenset(inside.values()) | (frozenset(public.values()) if hidden else frozenset())
    return {file: o.renamed({**public, **inside}, kept_in) for file, o in objects.items()}


@lru_cache(maxsize=64)
def _kept_object(path: Path) -> ObjectFile:
    """The object file in a folder that is named after what is in it."""
    return ObjectFile(path.read_bytes())


def build_library(spec: TargetSpec, model_object: bytes, out_dir: Path, names: Names) -> Path:
    """out_dir/libdet.so, for a model called det: the model and the runtime."""
    objects = _named(spec, model_object, names, hidden=False)
    shown = [*names.functions, names.opener]
    return link_library(spec.platform, [*objects.values()], out_dir / names.library, shown)


def build_static(spec: TargetSpec, model_object: bytes, out_dir: Path, names: Names) -> tuple[Path, Path]:
    """out_dir/det.o and out_dir/libdet.a, for programs that link the model in.

    libdet.a holds the model too; link it with libc, libm, libdl and libpthread. Its functions are hidden: a
    shared library that links it in does not show them, so two of those cannot take each other's.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    model, archive = out_dir / names.object, out_dir / names.archive
    objects = _named(spec, model_object, names, hidden=True)
    model.write_bytes(objects[names.object])
    with _linking() as folder:
        for file, data in objects.items():
            _put_temporary(folder / file, data)
        _zig(["ar", "rcsD", "out", *objects], cwd=folder)  # D: no times, no owners
        _deliver(folder / "out", archive, runs=False)
    return model, archive


def _is_static(spec: TargetSpec) -> bool:
    """A static program cannot load drivers, so a target with devices gets a dynamic one."""
    return spec.platform.static_zig is not None and not spec.devices


def build_runner(spec: TargetSpec, model_object: bytes, out_dir: Path, *, source: Path | None = None) -> Path:
    """out_dir/smelt_run. Without devices on Linux: a static program that holds the model and runs on any
    kernel. Else: a dynamic one that opens the library of the bundle it is given. source: a program of one
    C file instead."""
    out = out_dir / "smelt_run"
    if _is_static(spec):
        return _link_static(spec.platform, model_object, out, source)
    return _link_dynamic(spec.platform, out, source)


def build_shim_runner(spec: TargetSpec, out: Path, *, source: Path | None = None) -> Path:
    """A dynamic runner for the platform that stands in for this one (Android's library under glibc).

    Raises SmeltError(kind='unsupported') when nothing stands in for it.
    """
    if spec.platform.shim is None:
        raise SmeltError(f"platform '{spec.platform.name}' has no stand-in", kind="unsupported")
    return _link_dynamic(PLATFORMS[spec.platform.shim], out, source)


def _runner_objects(platform: Platform, source: Path | None, static: bool) -> list[Path]:
    defines = ("-DSMELT_STATIC",) if static else ()
    if source:
        return _objects(platform, (source.stem,), defines, source.resolve().parent)
    return [*_objects(platform, _RUNNER), *_objects(platform, _RUNNER_FORMS, defines)]


def _link_dynamic(platform: Platform, out: Path, source: Path | None) -> Path:
    objects = [*_objects(platform, _CRT), *_runner_objects(platform, source, static=False)]
    _link(platform, objects, out, ("-pie", "-dynamic-linker", platform.loader))
    return out


def _link_static(platform: Platform, model_object: bytes, out: Path, source: Path | None) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    objects = [*_runner_objects(platform, source, static=True), *_objects(platform, _RUNTIME)]
    with _linking() as folder:
        words = [*_LINKER, *_STATIC_FLAGS, "-o", "out", *_placed(folder, [model_object, *objects])]
        try:
            _zig([*words, *_libc_words(_static_libc(platform))], cwd=folder)
        except _UndefinedSymbols:  # a program of one's own calls more, or this zig's musl has other files
            _zig([*words, *_libc_words(_whole_libc(platform))], cwd=folder)
        _deliver(folder / "out", out)
    return out


def _libc_words(libc: Path) -> list[str]:
    """The linker's words for a static libc's folder."""
    parts = sorted(str(p) for p in libc.iterdir() if p.suffix in (".o", ".a") and p.name != "crt1.o")
    return [str(libc / "crt1.o"), "--start-lib", *parts, "--end-lib"]
