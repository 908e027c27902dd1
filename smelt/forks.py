"""A module's name in, a child process that runs it out: a fork of a server that has it in memory.

The server (fork_server.py) is a Python that takes nothing from the current folder. It lives as long as this
process, or until it has had nothing to do for a while; starting it takes the half second that a child without
it would take.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import smelt
from smelt.fork_server import KINDS, NUMBER

PATIENCE = 120.0
"""Seconds that a server may take to import the compiler; it takes half a one."""

STARTS = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
name, number, program, *home = sys.argv[1:]
spec = spec_from_file_location("smelt", name, submodule_search_locations=home)
sys.modules["smelt"] = module = module_from_spec(spec)
spec.loader.exec_module(module)
from smelt.fork_server import serve
serve(int(number), program)
"""
"""The server's program: this very smelt, wherever it lies, and not one that the current folder offers."""


@dataclass
class Child:
    """A process that the server has started, which leads a group of its own. stdin, stdout, stderr: this end
    of its pipes. said: the socket that tells its status, which is as subprocess gives it; None: it runs."""

    pid: int
    stdin: int
    stdout: int
    stderr: int
    said: socket.socket
    status: int | None = None

    def has_ended(self, seconds: float | None = 0) -> bool:
        """Whether it has, after waiting so long. Its number means nothing else before `end`."""
        if self.status is None and select.select([self.said], [], [], seconds)[0]:
            data = self.said.recv(NUMBER.size)
            # who was to tell has been killed; the child goes with it
            self.status = NUMBER.unpack(data)[0] if data else -signal.SIGKILL
        return self.status is not None

    def end(self) -> int:
        """The child and what it has started are gone when this returns; its status."""
        for f in (self.stdin, self.stdout, self.stderr):
            os.close(f)
        # even when the child has ended: a linker that it started may run on
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.has_ended(None)
        self.said.close()
        assert self.status is not None
        return self.status


@dataclass
class Server:
    """The server of this process, started when it is first asked for a child and again when it has gone.

    key: what it was started with; it is replaced when that changes. errors: what it prints.
    """

    key: tuple[object, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    requests: socket.socket | None = None
    errors: IO[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, program: str, result: Path) -> Child:
        """A child that runs main(result) of the module `program`. Raises OSError when there can be none."""
        for _ in range(2):  # it may have ended a moment ago, for want of work
            with self.lock:
                requests = self._connection(program)
                child = _ask(requests, result)
                if child is not None:
                    return child
                said = self._close()
        raise OSError(f"a process for the compiler cannot be started: {said or 'it ended without a word'}")

    def _connection(self, program: str) -> socket.socket:
        """The socket of a server for that program; a new one where there is none."""
        own = environment()
        key = (program, sys.executable, sys.flags, own.get("PYTHONPATH"), tuple(smelt.__path__))
        if self.requests is not None and key == self.key:
            return self.requests
        self._close()
        here, there = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the server)
        with there:
            self.process = subprocess.Popen(
                command(there.fileno(), program), stdin=subprocess.DEVNULL, stdout=self.errors,
                stderr=self.errors, env=own, process_group=0, pass_fds=(there.fileno(),),
            )  # fmt: skip
        self.requests, self.key = here, key
        return here

    def _close(self) -> str:
        """End it; what it had to say."""
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
        """In a fork of this process: it is the other's."""
        if self.requests is not None and self.errors is not None:
            self.requests.close()
            self.errors.close()
        self.requests = self.process = self.errors = None
        self.lock = threading.Lock()

    def close(self) -> None:
        """End it; children that run go with it."""
        with self.lock:
            self._close()


def _ask(requests: socket.socket, result: Path) -> Child | None:
    """The child of one request; None when the server is not there any more."""
    here, there = socket.socketpair()
    pipes = [os.pipe() for _ in range(3)]
    (stdin_read, stdin), (stdout, stdout_write), (stderr, stderr_write) = pipes
    with tempfile.TemporaryFile() as text:
        text.write(json.dumps(_request(result)).encode())
        text.seek(0)
        try:
            with there:
                files = [stdin_read, stdout_write, stderr_write, there.fileno(), text.fileno()]
                socket.send_fds(requests, [b"."], files)
            pid = here.recv(NUMBER.size) if select.select([here], [], [], PATIENCE)[0] else b""
        except (BrokenPipeError, ConnectionResetError):
            pid = b""
        finally:
            for f in (stdin_read, stdout_write, stderr_write):
                os.close(f)
    child = Child(NUMBER.unpack(pid)[0] if pid else 0, stdin, stdout, stderr, here)
    if not pid:
        for f in (stdin, stdout, stderr):
            os.close(f)
        here.close()
        return None
    return child


def _request(result: Path) -> dict[str, object]:
    """What the child is to be: in the folder, the environment and the limits of this process."""
    folder = None
    with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
        folder = os.getcwd()
    return {
        "result": str(result),
        "environment": environment(),
        "folder": folder,
        "umask": _umask(),
        "nice": os.nice(0),
        "limits": {k: resource.getrlimit(getattr(resource, k)) for k in KINDS},
    }


def _umask() -> int | None:
    """Which permissions new files do not get; asking the system for it would change it for other threads."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return None


def command(number: int, program: str) -> list[str]:
    """How the server is started: -P keeps the current folder off its path; site-packages and the caller's
    PYTHONPATH stay, unless the caller does without them as well."""
    flags = ["-I"] if sys.flags.isolated else ["-P"]
    flags += ["-E"] * sys.flags.ignore_environment + ["-s"] * sys.flags.no_user_site
    home = [str(Path(p).absolute()) for p in smelt.__path__]
    name = str(Path(str(smelt.__file__)).absolute())
    return [sys.executable, *flags, "-c", STARTS, name, str(number), program, *home]


def environment() -> dict[str, str]:
    """The caller's, but for the blank entries of PYTHONPATH, which mean the current folder by accident."""
    own = dict(os.environ)
    if "PYTHONPATH" in own:
        own["PYTHONPATH"] = os.pathsep.join(p for p in own["PYTHONPATH"].split(os.pathsep) if p)
    return own


SERVER = Server()
"""That of this process."""

atexit.register(SERVER.close)
os.register_at_fork(after_in_child=SERVER.forget)
