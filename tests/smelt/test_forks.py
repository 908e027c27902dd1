"""Forks of a server: who starts them, who ends with whom, refusals of the system, and no descriptor lost."""

from __future__ import annotations

import ast
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from stand_ins import SMALL, stand_in

import smelt
from smelt import forks
from smelt.core import forksafe
from smelt.core.forksafe import ForkSafe
from smelt.forks import SERVER, command, environment
from smelt.supervise import Ended, run_child


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A trivial model."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [helper.make_node("Sin", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    return tmp_path / "m.onnx"


def test_one_server_starts_all_children_of_a_process(model: Path, tmp_path: Path) -> None:
    """It is started again when it has gone, and for another PYTHONPATH; a fork of the caller has its own."""
    code = "\n".join([
        "import os, signal, smelt, sys",
        "from smelt.forks import SERVER",
        "def one():",
        "    smelt.compile(sys.argv[1], output=sys.argv[2])",
        "    return SERVER.process.pid",
        "first, second = one(), one()",
        "os.kill(second, signal.SIGKILL)",
        "third = one()",
        "os.environ['PYTHONPATH'] = '/nowhere'",
        "fourth = one()",
        "pid = os.fork()",
        "if pid == 0: os._exit(int(one() == fourth))",
        "print(first == second, len({second, third, fourth}), os.waitpid(pid, 0)[1], one() == fourth)",
    ])  # fmt: skip
    words = [sys.executable, "-c", code, str(model), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "True 3 0 True\n", done.stdout + done.stderr


def test_children_are_what_their_caller_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder, environment, umask and limits are the caller's at that moment, not the server's."""
    told = "[os.getcwd(), os.environ.get('OWN'), os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]"
    body = f"import json, resource; json.dump({told}, open(result, 'w'))"
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, body)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for k in (1, 2):
        folder = tmp_path / f"in{k}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("OWN", str(k))
        before = os.umask(0o070 + k)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200 + k, hard))
        try:
            assert run_child("{}", result, out, own, None, program).status == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.umask(before)
        assert json.loads(result.read_text()) == [str(folder), str(k), 0o070 + k, 200 + k]


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No module named 'no_such_program'"):
        run_child("{}", tmp_path / "result", tmp_path / "out", SMALL, None, "no_such_program")


def test_the_command_is_isolated() -> None:
    assert command(3, "program")[1] in ("-P", "-I")
    assert "" not in environment().get("PYTHONPATH", "x").split(os.pathsep)


def test_a_server_ends_for_want_of_work_but_not_while_a_child_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = "import smelt.fork_server as f\nf.IDLE = 2.0"
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, "time.sleep(6)", quick)
    assert run_child("{}", result, out, own, None, program).status == 0
    assert SERVER.process is not None
    assert SERVER.process.wait(30) == 0
    assert run_child("{}", result, out, own, None, program).status == 0  # by another one


def waits_for(file: Path) -> str:
    """A program that says that it runs, and ends well once the file is there."""
    return (
        f"os.write(1, b'run\\n')\n    while not os.path.exists({str(file)!r}): time.sleep(0.01)\n"
        "    sys.exit(7)"
    )


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that does it, and what came of it."""
    results: list[object] = []

    def go() -> None:
        try:
            results.append(work())
        except BaseException as e:
            results.append(e)

    thread = threading.Thread(target=go)
    thread.start()
    return thread, results


@pytest.mark.parametrize("how", ["replaced", "killed"])
def test_a_child_outlives_its_server(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, waits_for(tmp_path / "go"))
    runs = threading.Event()
    thread, found = in_thread(lambda: run_child("{}", result, out, own, lambda stage: runs.set(), program))
    assert runs.wait(60)
    first = SERVER.process
    assert first is not None
    if how == "killed":
        first.kill()
        first.wait()
    else:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path") + os.pathsep + "/nowhere")
    (tmp_path / "more").mkdir()
    second = run_child("{}", tmp_path / "second", tmp_path / "more" / "out", own, None, quick(tmp_path))
    assert second.status == 5
    assert SERVER.process is not None
    assert SERVER.process.pid != first.pid
    assert not found, "the first child ended with its server"
    (tmp_path / "go").touch()
    thread.join(60)
    assert [e.status for e in found if isinstance(e, Ended)] == [7], found
    assert first.wait(30) == (-signal.SIGKILL if how == "killed" else 0)


def quick(folder: Path) -> str:
    """Another program, beside those that stand_in has written."""
    (folder / "path" / "quick_program.py").write_text(
        "import sys\ndef preload(): pass\ndef preload_rest(): pass\ndef main(result): sys.exit(5)\n"
    )
    return "quick_program"


def test_many_threads_compile_while_the_server_is_replaced(model: Path, tmp_path: Path) -> None:
    """Each thread finds another PYTHONPATH and a server killed under it; all get their bundles."""
    code = "\n".join([
        "import os, smelt, sys, threading",
        "from smelt.forks import SERVER",
        "wrong, servers = [], set()",
        "def work(n):",
        "    try:",
        "        for k in range(2):",
        "            os.environ['PYTHONPATH'] = f'/nowhere/{n % 3}'",
        "            smelt.compile(sys.argv[1], output=f'{sys.argv[2]}/{n}.{k}')",
        "            servers.add(SERVER.key)",
        "            if n == 0 and SERVER.process is not None: SERVER.process.kill()",
        "    except BaseException as e: wrong.append(repr(e))",
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]",
        "for t in threads: t.start()",
        "for t in threads: t.join()",
        "print(len(servers) > 1, wrong)",
    ])  # fmt: skip
    (tmp_path / "many").mkdir()
    words = [sys.executable, "-c", code, str(model), str(tmp_path / "many")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "True []\n", done.stdout + done.stderr
    assert len(list((tmp_path / "many").glob("*/*.so"))) == 12


FAILS = """
import errno
def failing(number=os.getpid(), fork=os.fork):
    if {where} and os.path.exists({flag!r}): raise OSError(errno.{name}, os.strerror(errno.{name}))
    return fork()
os.fork = failing
"""
"""A server whose forks, or those of its keepers, fail while a file is there."""


@pytest.mark.parametrize(
    "where", ["os.getpid() == number", "os.getpid() != number"], ids=["server", "keeper"]
)
@pytest.mark.parametrize("name", ["EAGAIN", "ENOMEM"])
def test_a_fork_that_the_system_refuses(
    where: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of who asked for it; the server and what runs go on."""
    top = FAILS.format(where=where, name=name, flag=str(tmp_path / "flag"))
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, waits_for(tmp_path / "go"), top)
    runs = threading.Event()
    thread, found = in_thread(lambda: run_child("{}", result, out, own, lambda stage: runs.set(), program))
    assert runs.wait(60)
    first = SERVER.process
    (tmp_path / "flag").touch()
    before = descriptors()
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        run_child("{}", result, out, own, None, program)
    assert descriptors() == before
    assert not found, "the other child ended as well"
    (tmp_path / "flag").unlink()
    (tmp_path / "go").touch()
    thread.join(60)
    assert [e.status for e in found if isinstance(e, Ended)] == [7], found
    assert run_child("{}", result, out, own, None, program).status == 7
    assert SERVER.process is first


def test_a_compile_without_a_fork_is_an_error_of_the_system(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path").mkdir()
    top = "import os\n" + FAILS.format(where="True", name="EAGAIN", flag=str(tmp_path))
    (tmp_path / "path" / "sitecustomize.py").write_text(top)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    with pytest.raises(smelt.SmeltError, match="cannot be started: Resource temporarily") as caught:
        smelt.compile(str(model), output=tmp_path / "out")
    assert caught.value.kind == "infra"


# ---------------------------------------------------------------- descriptors


def descriptors() -> dict[str, str]:
    """Those of this process, but for the one that lists them."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
    return found


def interrupted(*args: object, **more: object) -> object:
    """What Ctrl-C does at that moment."""
    raise KeyboardInterrupt


POINTS = {
    "sending": (socket, "send_fds"),
    "waiting": (forks, "_received"),
    "asking": (forks, "_request"),
    "a pipe": (os, "pipe"),
    "starting": (subprocess, "Popen"),
}


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_request_leaves_no_descriptor(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, "sys.exit(5)")
    if point != "starting":
        assert run_child("{}", result, out, own, None, program).status == 5
    else:
        SERVER.close()
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(*POINTS[point], interrupted)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                run_child("{}", result, out, own, None, program)
    assert descriptors() == before
    assert run_child("{}", result, out, own, None, program).status == 5


def test_a_pipe_that_the_system_refuses_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is of the three."""
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, "sys.exit(5)")
    assert run_child("{}", result, out, own, None, program).status == 5
    before, pipe = descriptors(), os.pipe
    for last in range(3):
        made = iter([pipe] * last)

        def refused(made: object = made) -> tuple[int, int]:
            for one in made:  # type: ignore[attr-defined]
                return one()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", refused)
            with pytest.raises(OSError, match="cannot be started: Too many open files"):
                run_child("{}", result, out, own, None, program)
        assert descriptors() == before


def test_an_interrupt_ends_the_child_and_its_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, waits_for(tmp_path / "never"))
    SERVER.close()
    before = descriptors()
    with pytest.raises(KeyboardInterrupt):
        run_child("{}", result, out, own, interrupted, program)
    held = set(descriptors().values()) - set(before.values())
    assert len(held) == 2, f"the server's socket and what it prints, and no more: {held}"


def test_a_caller_with_a_thousand_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, "sys.exit(5)")
    SERVER.close()  # else the next server's descriptors would be those of the last one, which are low
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        while not held or held[-1] <= 1100:
            held.append(os.open(os.devnull, os.O_RDONLY))
        assert run_child("{}", result, out, own, None, program).status == 5
    finally:
        for f in held:
            os.close(f)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---------------------------------------------------------------- forks of the caller, in other threads

WHILE_IMPORTING = """
class Slow(importlib.machinery.PathFinder):  # the import of one module takes its time
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == {slow!r}: slowly()
        return None
sys.meta_path.insert(0, Slow)
"""

WHILE_LOOKING = """
import tempfile
find = tempfile._get_default_tempdir  # once in a process, under a lock that a fork does not free
tempfile._get_default_tempdir = lambda: (slowly(), find())[1]
"""

WHILE_BUSY = """
import importlib.machinery, os, signal, sys, threading, time
import smelt

begun = threading.Event()

def slowly():
    begun.set()
    time.sleep(0.5)

def use():
    smelt.compile({model!r}, output=out)
    smelt.load(out).close()
{busy}
out = {out!r} + "parent"
other = threading.Thread(target=use)
other.start()
begun.wait()
child = os.fork()
if child == 0:
    out = {out!r} + "child"
    signal.alarm(60)
    use()
    os._exit(0)
other.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FIRST_USES = {
    **{name: WHILE_IMPORTING.format(slow=name)
       for name in ("smelt.driver", "smelt.core.diag", "smelt.session", "smelt.fork_server")},
    "temporary files": WHILE_LOOKING,
}  # fmt: skip


@pytest.mark.table(2)
@pytest.mark.parametrize("busy", FIRST_USES)
def test_a_fork_during_the_first_use_of_another_thread(model: Path, tmp_path: Path, busy: str) -> None:
    """The child compiles and loads as if the other thread had never been."""
    code = WHILE_BUSY.format(busy=FIRST_USES[busy], model=str(model), out=str(tmp_path / "out-"))
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_lock_that_another_thread_holds_is_free_in_the_child() -> None:
    lock, held = ForkSafe(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(0.3)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    assert _forked_takes(lock)
    other.join()
    with lock:  # the thread that forks may hold it itself
        assert _forked_takes(lock)


def test_a_fork_that_cannot_wait_has_a_new_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread holds what the lock's holder waits for."""
    monkeypatch.setattr(forksafe, "FORK_PATIENCE", 0.1)
    lock, held, forked = ForkSafe(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            forked.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    assert _forked_takes(lock)
    forked.set()
    other.join()
    with lock:  # the parent's is still whole
        pass


def _forked_takes(lock: ForkSafe) -> bool:
    """Whether another thread of a child of fork takes the lock, within ten seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        with lock:
            pass
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_module_has_a_lock_that_a_fork_tears() -> None:
    """Module-level locks are ForkSafe; those of objects are made again by the module's own hook."""
    top = Path(__file__).parents[2]
    files = [f for name in ("smelt", "core", "importer", "families", "targets", "devicefarm")
             for f in (top / name).rglob("*.py")]  # fmt: skip
    kinds = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")
    found = [
        f"{f}:{s.lineno}"
        for f in files
        for s in ast.parse(f.read_text()).body
        if isinstance(s, ast.Assign | ast.AnnAssign) and isinstance(s.value, ast.Call)
        and ast.unparse(s.value.func).removeprefix("threading.") in kinds
    ]  # fmt: skip
    assert len(files) > 300 and not found, found
