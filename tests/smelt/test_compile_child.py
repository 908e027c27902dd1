"""The child that compiles: its path, its pipes, its limits, and its end when its caller ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
import pytest
from forked import forked_smelt
from onnx import TensorProto, helper
from processes import started
from stand_ins import stand_in

import smelt
from smelt import compile_child
from smelt.core import cache
from smelt.core.bundle import read_bundle
from smelt.core.diag import SmeltError
from smelt.core.scratch import kept_folder
from smelt.limits import LEAST_MEMORY, Limits, available, limits, out_of_memory
from smelt.request import Request
from smelt.supervise import KEPT_STDERR, run_child
from smelt.targets import toolchain
from smelt.targets.platform import parse_target


def chain(count: int, op: str = "Sin") -> onnx.ModelProto:
    """`count` ops in a row."""
    nodes = [helper.make_node(op, [f"v{k}"], [f"v{k + 1}"]) for k in range(count)]
    x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "chain", [x], [onnx.ValueInfoProto(name=f"v{count}")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A trivial model."""
    onnx.save(chain(3), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


COMPILE = "import smelt; smelt.compile({model!r}, output={out!r}); print('compiled')"


def python(code: str, cwd: Path, **more: object) -> subprocess.CompletedProcess[str]:
    """A caller of its own, with its folder off its own path."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True, check=False, **more
    )  # type: ignore[call-overload]


def test_a_caller_with_limits_of_its_own(model: Path, tmp_path: Path) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (200, 200))

    code = COMPILE.format(model=str(model), out=str(tmp_path / "out"))
    done = python(code, tmp_path, preexec_fn=lower)
    assert done.stdout == "compiled\n", done.stderr


def test_the_processor_time_of_a_limited_caller(model: Path, tmp_path: Path) -> None:
    """At a hard limit the kernel kills without a word; the compile ends a second before."""
    (tmp_path / "busy.py").write_text("while True: pass")
    code = f"""import smelt
try:
    smelt.compile({str(model)!r}, output="out", plugins=("busy.py",))
except smelt.SmeltError as e:
    print(e)
"""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (3, 3))

    done = python(code, tmp_path, preexec_fn=lower)
    assert "used more than 2 s of processor time" in done.stdout and "ulimit -t" in done.stdout, done


@pytest.mark.parametrize("files", [12, 16])
def test_the_open_files_of_a_limited_caller(model: Path, tmp_path: Path, files: int) -> None:
    """Too few to start the compiler; enough for that, too few for the linker."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    done = python(COMPILE.format(model=str(model), out=str(tmp_path / "out")), tmp_path, preexec_fn=lower)
    assert f"this process may have {files} files open at a time" in done.stderr, done
    assert "reinstall" not in done.stderr


@pytest.mark.parametrize("paths", [None, f"{os.pathsep}/nowhere"])
def test_nothing_of_the_current_folder_is_executed(model: Path, tmp_path: Path, paths: str | None) -> None:
    folder = tmp_path / "hostile"
    (folder / "smelt").mkdir(parents=True)
    for name in ("onnx", "json", "numpy", "random", "llvmlite", "resource", "smelt/__init__", "core", "cupy"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    before = dict(os.environ)
    before.pop("PYTHONPATH", None)
    # the caller keeps its own path clean; what it hands on is the question
    code = "import os, smelt.driver\n"
    code += "" if paths is None else f"os.environ['PYTHONPATH'] = {paths!r}\n"
    done = python(code + COMPILE.format(model=str(model), out=str(tmp_path / "out")), folder, env=before)
    assert done.stdout == "compiled\n", done.stderr
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


def test_the_paths_of_the_user_still_count(model: Path, tmp_path: Path) -> None:
    text = """
from smelt.plugin import OnnxOp
BINDINGS = (OnnxOp("Twice", 1, lambda c: c.emit("add", c.x(), c.x()), "own"),)
"""
    node = helper.make_node("Twice", ["x"], ["y"], domain="own")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), model)
    for name, folder, path in (("near_ops", "here", ""), ("far_ops", "there", str(tmp_path / "there"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(text)
        own = {**os.environ, "SMELT_PLUGINS": name, "PYTHONPATH": path}
        code = COMPILE.format(model=str(model), out=str(tmp_path / "out"))
        done = python(code, tmp_path / "here", env=own)
        assert done.stdout == "compiled\n", done.stderr


def test_what_the_child_prints_blocks_nothing_and_names_no_stage(model: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "loud.py"
    plugin.write_text(
        "import os, sys\n"
        "for _ in range(100):\n    os.write(2, b'e' * 10_000)\n    print('p' * 10_000)\n"
        "from smelt.plugin import OnnxOp\n"
        "BINDINGS = (OnnxOp('Nothing', 1, lambda c: c.x(), 'own'),)\n"
    )
    stages: list[str] = []
    smelt.compile(str(model), output=tmp_path / "out", plugins=(str(plugin),), progress=stages.append)
    assert stages == ["import", "optimise", "schedule", "plan", "code", "link"]


def test_of_what_it_prints_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "os.read(0, 9); os.write(2, b'e' * 1_000_000 + b'the end'); sys.exit(3)"
    ended = run_child("{}", *stand_in(tmp_path, monkeypatch, body))
    assert ended.status == 3
    assert len(ended.said) == KEPT_STDERR
    assert ended.said.endswith("the end")


def test_a_limit_of_processor_time_names_the_stage(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match=r"more than 2 s of processor time in stage '\w+'") as caught:
        smelt.compile(chain(20_000), output=tmp_path / "out", time_limit=2)
    assert caught.value.kind == "infra"
    assert "--limit-seconds" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_memory_names_the_stage(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match=r"more than 0.14 GB of memory in stage '\w+'") as caught:
        smelt.compile(chain(5_000), output=tmp_path / "out", memory_limit=0.14)
    assert caught.value.kind == "infra"
    assert "SMELT_COMPILE_MEMORY" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("held", "kind"), [(90, "infra"), (1, "internal")])
def test_a_library_that_crashes_for_want_of_memory(model: Path, tmp_path: Path, held: int, kind: str) -> None:
    """As protobuf's parser does: it does not look at what it is given. held: megabytes of a hundred or so."""
    text = f"import os, time\nx = bytearray({held} << 20)\ntime.sleep(0.4)\nos.kill(os.getpid(), 11)\n"
    (tmp_path / "crashes.py").write_text(text)
    plugins = (str(tmp_path / "crashes.py"),)
    with pytest.raises(SmeltError, match="memory in stage" if kind == "infra" else "SIGSEGV") as caught:
        smelt.compile(model, output=tmp_path / "out", plugins=plugins, memory_limit=0.22)
    assert caught.value.kind == kind


@pytest.mark.parametrize(("limit", "option"), [(resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")])
def test_memory_that_the_caller_has_not(monkeypatch: pytest.MonkeyPatch, limit: int, option: str) -> None:
    limited = {limit: 1 << 29}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limited.get(kind, resource.RLIM_INFINITY),) * 2)
    told = out_of_memory(Limits(1 << 30, 1), "import")
    assert "0.537 GB" in told.message and f"ulimit {option}" in str(told.hint)
    told = out_of_memory(Limits(1 << 28, 1), "import")
    assert "0.268 GB" in told.message and "--limit-memory" in str(told.hint)


@pytest.mark.parametrize(("data", "kind"), [(0.95, "infra"), (0.5, "internal")])
def test_memory_that_python_forgets_to_tell_of(tmp_path: Path, data: float, kind: str) -> None:
    """CPython 3.11 raises SystemError where there is no memory for a generator's frame."""
    body = (
        "import sys, smelt.compile_child as c\n"
        "def fails(request, progress, scratch):\n"
        "    progress('code')\n"
        "    raise SystemError('error return without exception set')\n"
        f"c._compile, c._data = fails, lambda: {data} * 10**9\n"
        "c.main(sys.argv[1])"
    )
    words = [sys.executable, "-c", body, str(tmp_path / "result")]
    asked = json.dumps([10**9, 60, Request("").to_json()]) + "\n"
    subprocess.run(words, input=asked, text=True, check=True, capture_output=True, timeout=120)
    outcome = json.loads((tmp_path / "result").read_text())
    assert (outcome["kind"], "in stage 'code'" in outcome["message"]) == (kind, True)


def test_a_child_that_does_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "wall", property(lambda self: 1.0))
    body = "os.write(1, b'import\\n'); time.sleep(1000)"
    ended = run_child("{}", *stand_in(tmp_path, monkeypatch, body))
    assert (ended.cause, ended.stage) == ("stuck", "import")


def test_wishes_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits(2, 30) == Limits(2 * 10**9, 30.0)
    monkeypatch.setenv("SMELT_COMPILE_MEMORY", "3")
    monkeypatch.setenv("SMELT_COMPILE_SECONDS", "77")
    assert limits() == Limits(3 * 10**9, 77.0)
    assert limits(0.001).memory == LEAST_MEMORY
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(SmeltError, match="memory_limit is"):
            limits(wrong)
    monkeypatch.setenv("SMELT_COMPILE_SECONDS", "soon")
    with pytest.raises(SmeltError, match="SMELT_COMPILE_SECONDS is 'soon'"):
        limits()


@pytest.mark.parametrize(
    ("row", "file"),
    [
        ("0::/a/b", "a/memory.max"),
        ("0::/a/b", "memory.max"),
        ("0::/elsewhere/on/the/host", "memory.max"),
        ("5:cpu,memory:/docker/1", "memory/docker/1/memory.limit_in_bytes"),
    ],
)
def test_control_groups_limit_the_memory(tmp_path: Path, row: str, file: str) -> None:
    (tmp_path / "cgroup").write_text(f"1:name=systemd:/x\n{row}\n")
    assert available(tmp_path / "cgroup", tmp_path / "fs") > 1 << 30
    (tmp_path / "fs" / file).parent.mkdir(parents=True)
    (tmp_path / "fs" / file).write_text("max\n")
    assert available(tmp_path / "cgroup", tmp_path / "fs") > 1 << 30
    (tmp_path / "fs" / file).write_text("500000000\n")
    assert available(tmp_path / "cgroup", tmp_path / "fs") == 500_000_000


# ---------------------------------------------------------------- the end of the caller


def leaders(pid: int) -> list[int]:
    """Those of them that lead a group of their own: the server, and below it what compiles."""
    found = []
    for p in started(pid):
        with contextlib.suppress(ProcessLookupError):
            found += [p] * (os.getpgid(p) == p)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def until(what: object, seconds: float = 60) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose compile takes minutes."""
    path = tmp_path_factory.mktemp("long") / "long.onnx"
    onnx.save(chain(60_000), path)
    return path


@pytest.mark.parametrize(
    ("how", "fork", "orphan"),
    [
        (signal.SIGKILL, False, False),
        (signal.SIGTERM, False, False),
        (signal.SIGINT, False, False),
        (signal.SIGKILL, True, False),
        (signal.SIGKILL, True, True),
    ],
)
def test_a_killed_caller_takes_its_child_along(
    long: Path, tmp_path: Path, how: signal.Signals, fork: bool, orphan: bool
) -> None:
    """fork: a fork of the caller lives on and holds the child's standard input open. orphan: the server that
    has started the child is gone."""
    lines = [
        "import os, signal, smelt, threading, time",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",  # a job in the background ignores it
        f"model, out = {str(long)!r}, {str(tmp_path / 'out')!r}",
        "def go(): smelt.compile(model, output=out, progress=print)",
    ]
    if fork:
        lines += ["t = threading.Thread(target=go, daemon=True)", "t.start()", "time.sleep(2)"]
        lines += ["if os.fork() == 0: time.sleep(30); os._exit(0)", "t.join()"]
    else:
        lines += ["go()"]
    caller = subprocess.Popen(
        [sys.executable, "-P", "-u", "-c", "\n".join(lines)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert until(lambda: len(started(caller.pid)) > fork and len(leaders(caller.pid)) > 1)
    own, (server, child) = started(caller.pid), leaders(caller.pid)
    time.sleep(1)
    if orphan:
        os.kill(server, signal.SIGKILL)
        time.sleep(2)
        assert alive(child)
    caller.send_signal(how)
    caller.wait(60)
    assert until(lambda: not alive(child)), "the child runs on"
    for p in set(own) - {server, child}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(p, signal.SIGKILL)
    assert not list(tmp_path.iterdir())


def test_a_compile_in_a_thread_that_is_interrupted_elsewhere(model: Path, tmp_path: Path) -> None:
    results = []
    work = threading.Thread(target=lambda: results.append(smelt.compile(str(model), output=tmp_path / "out")))
    work.start()
    work.join()
    assert results[0].path == tmp_path / "out"


def test_who_calls_compile_does_not_load_the_compiler(model: Path, tmp_path: Path) -> None:
    """Its import takes half a second, and the child does that anyway."""
    code = (
        "import smelt, sys\n"
        "smelt.compile(sys.argv[1], output=sys.argv[2])\n"
        "heavy = ('smelt.importer', 'smelt.core.ops', 'onnx', 'llvmlite')\n"
        "print([m for m in sys.modules if m.startswith(heavy)])"
    )
    words = [sys.executable, "-c", code, str(model), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr


# ---------------------------------------------------------------- the cache folder


def test_a_cache_folder_that_takes_no_file_stops_no_compile(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is where the folder should be: root may write into folders that forbid it. The folder in its
    place has already what takes 15 s to make; the stand-ins for libc are made there."""
    (tmp_path / "a file").write_text("mine")
    kept = str(tmp_path / "a file" / "cache")
    toolchain.prepare(parse_target("aarch64-android"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    instead = Path(kept_folder("cache"))
    for part in ("builtins", "runtime"):
        shutil.copytree(cache.cache_dir() / part, instead / part)
    line = ["compile", model, "-o", tmp_path / "out", "--json", "--target", "aarch64-android"]
    environment = {**os.environ, "SMELT_CACHE": kept, "TMPDIR": str(tmp_path)}
    done = forked_smelt(*line, environment=environment)
    assert done.returncode == 0 and json.loads(done.stdout)["ok"], done.stderr
    assert done.stderr.count("smelt compile: warning: compiled without the cache folder") == 1, done.stderr
    assert f"'{kept}'" in done.stderr and "driver.py" not in done.stderr
    read_bundle(tmp_path / "out").verify()
    assert (tmp_path / "a file").read_text() == "mine" and any((instead / "stubs").iterdir())


@pytest.mark.parametrize("place", ["/proc/smelt", "/dev/null", "/dev/full/cache", "full"])
@pytest.mark.parametrize("dump", [False, True])
def test_a_compile_turns_to_another_cache_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, dump: bool
) -> None:
    """A dump's compile, which makes what is kept after it has read the dump, too. 'full': the disk is. The
    folder in its place is the user's, so that the next compile finds what was made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def build(folder: Path) -> None:
        if "full/" in str(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(toolchain, "prepare", lambda spec: toolchain._kept("thing", [1], build))
    if place == "full":
        monkeypatch.setattr(cache, "try_cache", partial(_no_room, cache.try_cache))
    kept = os.path.join(tmp_path, place)
    monkeypatch.setenv("SMELT_CACHE", kept)
    request = Request(source="m.smelt" if dump else "m.onnx")
    note = compile_child._prepared(request, tmp_path)
    assert f"'{kept}'" in note and (place != "full" or "No space left" in note), note
    users = tmp_path / f"smelt-kept-cache-{os.getuid()}"
    assert os.environ["SMELT_CACHE"] == str(users) and str(users) in note
    assert compile_child._prepared(request, tmp_path) == ""
    users.chmod(0o777)  # as one that another user has made
    monkeypatch.setenv("SMELT_CACHE", kept)
    assert "much longer" in compile_child._prepared(request, tmp_path)
    assert os.environ["SMELT_CACHE"] == str(tmp_path / "cache")


def _no_room(otherwise: Callable[[], None]) -> None:
    if cache.cache_dir().name == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    otherwise()


def test_what_fails_without_the_cache_folder_too_is_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(spec: object) -> None:
        raise SmeltError("no zig", kind="infra")

    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))
    monkeypatch.setattr(toolchain, "prepare", broken)
    with pytest.raises(SmeltError, match="no zig"):
        compile_child._prepared(Request(source="m.onnx"), tmp_path)
