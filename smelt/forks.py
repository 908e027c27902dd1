"""A module's name in, a child process that runs it out: a fork of a server that has it in memory.

The server (fork_server.py) is a Python process that imports nothing from the current folder. It ends with
this process, or after some time without requests. Starting it takes a quarter of a second, as starting a
compile without it would. The children that it has started outlive it.

A command starts the server before it does anything else, so this file imports no more than that takes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading

import smelt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

START_PATIENCE = 120.0
"""Seconds that a server may take to import the compiler; it takes half a second."""

LAST_MOMENT = 5.0
"""Seconds that a killed process may take to be gone."""

LONGEST_WAIT = 2e6
"""Seconds: poll takes fewer than 2^31 milliseconds."""

COMPILER = "smelt.compile_child"
"""The module that compiles."""

STARTS = """
import gc, sys
gc.disable()
from importlib.util import module_from_spec, spec_from_file_location
name, number, program, *home = sys.argv[1:]
spec = spec_from_file_location("smelt", name, submodule_search_locations=home)
sys.modules["smelt"] = module = module_from_spec(spec)
spec.loader.exec_module(module)
from smelt.fork_server import serve
serve(int(number), program)
"""
"""The server's program. It imports this installation of smelt, not one in the current folder. The garbage
collector is off during imports: what they make stays, and to look for cycles in it took a fifth of their
time."""

ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables of the server's environment besides the caller's; its children get the caller's alone. A compile
multiplies no large matrices, and a fork would wait for NumPy's threads to end."""


class Child:
    """A process that the server has started, the leader of a process group of its own. stdin, stdout, stderr:
    this end of its pipes. said: the socket that brings its exit status. status: as subprocess's returncode,
    None while it runs."""

    def __init__(self, pid: int, stdin: int, stdout: int, stderr: int, said: socket.socket) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.said = said
        self.status: int | None = None
        self.orphaned = False  # the server has ended before it could tell

    def has_ended(self, seconds: float | None = 0) -> bool:
        """Wait at most so many seconds (None: without a limit); whether the child has ended. Its process id
        is not reused before `end`."""
        if self.status is None and _is_readable(self.said, seconds):
            told = _received(self.said, 0)
            # who was to tell has been killed; the child goes with it
            self.orphaned = told is None
            self.status = -signal.SIGKILL if told is None else told
        return self.status is not None

    def end(self) -> int:
        """Kill the child and all processes that it has started, unless they have ended; its exit status."""
        with contextlib.ExitStack() as held:
            held.callback(self.said.close)
            for f in (self.stdin, self.stdout, self.stderr):
                held.callback(os.close, f)
            # even when the child has ended: a linker that it started may run on
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.has_ended(None)
            if self.orphaned:
                _await_end(self.pid)
        assert self.status is not None
        return self.status


def _await_end(pid: int) -> None:
    """Wait a moment until a killed process holds nothing any more: its pipes are closed before its locks."""
    with contextlib.suppress(OSError):  # there is no such process any more
        fd = os.pidfd_open(pid)
        try:
            _is_readable(fd, LAST_MOMENT)
        finally:
            os.close(fd)


class Server:
    """The server of this process, started when it is first asked for a child and again when it has gone.

    key: the program, the interpreter and the import path that it was started with; when they change, another
    server replaces it.
    errors: the file of its stderr. replaced: earlier servers, which still wait for their children.
    """

    def __init__(self) -> None:
        self.key: tuple[object, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None
        self.requests: socket.socket | None = None
        self.errors: IO[bytes] | None = None
        self.replaced: list[subprocess.Popen[bytes]] = []
        self.lock = threading.Lock()

    def start(self, program: str, result: Path) -> Child:
        """Start a child that runs main(result) of the module `program`. Raises OSError where the system
        refuses."""
        try:
            for _ in range(2):  # it may have ended a moment ago, for want of work
                with self.lock:
                    child = _ask(self._connection(program), result)
                    if child is not None:
                        return child
                    said = self._close()
        except OSError as e:
            raise OSError(f"a process for the compiler cannot be started: {e.strerror or e}") from e
        raise OSError(f"a process for the compiler cannot be started: {said or 'it ended without a word'}")

    def prepare(self, program: str) -> None:
        """Start a server ahead of the first child, so that this does not wait for it. Errors are raised by
        `start`."""
        with contextlib.suppress(OSError), self.lock:
            self._connection(program)

    def _connection(self, program: str) -> socket.socket:
        """The socket of the server for that program, which is started where there is none."""
        own = environment()
        key = (program, sys.executable, sys.flags, own.get("PYTHONPATH"), tuple(smelt.__path__))
        self.replaced = [p for p in self.replaced if p.poll() is None]
        if self.requests is not None and key == self.key:
            return self.requests
        self._replace()
        with contextlib.ExitStack() as held:
            here, there = _sockets()
            held.callback(here.close)
            errors = held.enter_context(_unnamed())
            with there:
                process = subprocess.Popen(
                    command(there.fileno(), program), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                    env={**own, **ALONE}, process_group=0, pass_fds=(there.fileno(),),
                )  # fmt: skip
            held.pop_all()  # they live as long as the server
            self.process, self.errors, self.requests, self.key = process, errors, here, key
        return here

    def _replace(self) -> None:
        """Send the server no more requests; it ends by itself after its children."""
        if self.requests is not None and self.process is not None and self.errors is not None:
            self.requests.close()
            self.errors.close()
            self.replaced.append(self.process)
        self.requests = self.process = self.errors = None

    def _close(self) -> str:
        """End the server; the text of its stderr."""
        if self.requests is None or self.process is None or self.errors is None:
            return ""
        self.requests.close()
        self.process.kill()  # it may be the one that does not answer
        self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", "replace").strip()
        self.errors.close()
        self.requests = self.process = self.errors = None
        return said[-2000:]

    def forget(self) -> None:
        """Called in a fork of this process: drop the server, which belongs to the parent."""
        if self.requests is not None and self.errors is not None:
            self.requests.close()
            self.errors.close()
        self.requests = self.process = self.errors = None
        self.replaced = []
        self.lock = threading.Lock()

    def close(self) -> None:
        """End the server, and those that it has replaced."""
        with self.lock:
            self._close()
            for p in self.replaced:
                p.kill()
                p.wait()
            self.replaced = []


def _ask(requests: socket.socket, result: Path) -> Child | None:
    """Send one request; its child, or None where the server has ended. Raises OSError where the system
    refuses to make a child."""
    with contextlib.ExitStack() as ours:
        with contextlib.ExitStack() as theirs:
            here, there = _sockets()
            ours.callback(here.close)
            theirs.callback(there.close)
            stdin_read, stdin = _pipe(theirs, ours)
            stdout, stdout_write = _pipe(ours, theirs)
            stderr, stderr_write = _pipe(ours, theirs)
            text = theirs.enter_context(_unnamed())
            text.write(_request(result).encode())
            text.seek(0)
            files = [stdin_read, stdout_write, stderr_write, there.fileno(), text.fileno()]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(requests, [b"."], files)
        pid = _received(here, START_PATIENCE)
        if pid is None:
            return None
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        ours.pop_all()  # they live as long as the child
    return Child(pid, stdin, stdout, stderr, here)


def _pipe(read: contextlib.ExitStack, write: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe's (read, write) descriptors; each is closed with its stack."""
    ends = tuple(map(_above_standard, os.pipe()))
    read.callback(os.close, ends[0])
    write.callback(os.close, ends[1])
    return ends[0], ends[1]


def _sockets() -> tuple[socket.socket, socket.socket]:
    """socket.socketpair, of descriptors above 2."""
    here, there = (socket.socket(fileno=_above_standard(s.detach())) for s in socket.socketpair())
    return here, there


def _above_standard(number: int) -> int:
    """The descriptor, moved where it is one of the first three: a daemon has closed those, and all the same
    somebody may write to them."""
    if number > 2:
        return number
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(number)
    return moved


def _unnamed() -> IO[bytes]:
    """A file to write and read, which is gone when it is closed."""
    with contextlib.suppress(AttributeError, OSError):  # an old Python, or an old Linux
        return open(_above_standard(os.memfd_create("smelt")), "w+b")
    import tempfile  # whose import takes longer than all that is done with the file

    return tempfile.TemporaryFile()


def _received(said: socket.socket, seconds: float | None) -> int | None:
    """The number that the socket receives within that time (seconds; None: no limit); None for a timeout, and
    at the end of the stream."""
    from smelt.fork_server import NUMBER

    if not _is_readable(said, seconds):
        return None
    data = b""
    with contextlib.suppress(ConnectionResetError):
        data = said.recv(NUMBER.size)
    return NUMBER.unpack(data)[0] if data else None


def _is_readable(said: socket.socket | int, seconds: float | None) -> bool:
    """Whether the socket has data, or its other end has closed, or the process of the descriptor has ended,
    within that time (seconds, of which it waits at most LONGEST_WAIT; None: no limit)."""
    poll = select.poll()  # select takes no descriptor above 1023
    poll.register(said, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * min(seconds, LONGEST_WAIT)))


def _request(result: Path) -> str:
    """The text of a request, JSON, for the child to take over: folder, environment, umask and limits of this
    process."""
    import json
    import resource

    from smelt.fork_server import RLIMITS


    folder = None
    with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
        folder = os.getcwd()
    asked = {
        "result": str(result),
        "environment": environment(),
        "folder": folder,
        "umask": _umask(),
        "nice": os.nice(0),
        "limits": {k: resource.getrlimit(getattr(resource, k)) for k in RLIMITS},
    }
    return json.dumps(asked)


def _umask() -> int | None:
    """This process's umask, read from /proc: asking the system for it would change it for other threads."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), None)
    return None


def command(number: int, program: str) -> list[str]:
    """The command line of the server. -P keeps the current folder off its path; site-packages and the
    caller's PYTHONPATH stay, unless the caller runs without them."""
    flags = ["-I"] if sys.flags.isolated else ["-P"]
    flags += ["-E"] * sys.flags.ignore_environment + ["-s"] * sys.flags.no_user_site
    home = [os.path.abspath(p) for p in smelt.__path__]
    name = os.path.abspath(smelt.__file__)
    return [sys.executable, *flags, "-c", STARTS, name, str(number), program, *home]


def environment() -> dict[str, str]:
    """The caller's environment without the blank entries of PYTHONPATH, which mean the current folder by
    accident."""
    own = dict(os.environ)
    if "PYTHONPATH" in own:
        own["PYTHONPATH"] = os.pathsep.join(p for p in own["PYTHONPATH"].split(os.pathsep) if p)
    return own


SERVER = Server()
"""The server of this process."""

atexit.register(SERVER.close)
os.register_at_fork(after_in_child=SERVER.forget)
