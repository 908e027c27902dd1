"""Requests by a socket in; for each of them a fork of this process, which has the compiler in memory.

    caller --socket--> server --fork--> keeper --fork--> child, which compiles

The keeper waits for the child and sends its exit status by the request's own socket. It reaps the child only
when the caller has closed that socket, so that the child's process id is not reused before. A child ends with
its keeper, a keeper with the caller or its socket, the server with the caller or after IDLE seconds. A keeper
may outlive the server, which may be replaced while a compile runs.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

IDLE = 120.0
"""Seconds without a request and without a child after which the server gives its 90 MB back."""

GRACE = 10.0
"""Seconds after the caller's end in which a child may end by itself."""

NUMBER = struct.Struct("=i")
DESCRIPTORS = 5
"""What a request brings: standard input, output and error of the child, the request's socket, its text."""

RLIMITS = tuple(k for k in dir(resource) if k.startswith("RLIMIT_"))


def serve(number: int, module: str) -> None:
    """Serve requests until the socket closes and no keeper is left.

    number: the socket's file descriptor. module: the name of one that has `preload()`, which imports what all
    requests need, `preload_rest()`, which imports what many need and runs beside the first child, and
    `main(result)`, which a child runs and whose result is its exit status.
    """
    caller = Caller.of(os.getppid())
    program = importlib.import_module(module)
    _load(program.preload)
    rest: Callable[[], None] | None = program.preload_rest
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the caller may ignore it
    low = os.dup(number)  # select takes no descriptor above 1023, as the caller's may be
    os.close(number)
    with socket.socket(fileno=low) as requests:
        waited, keepers, listening = 0.0, 0, [requests]
        while os.getppid() == caller.pid and (keepers or (listening and waited < IDLE)):
            ready, _, _ = select.select(listening, [], [], 1.0)
            while keepers and os.waitpid(-1, os.WNOHANG)[0]:
                keepers -= 1
            waited = 0.0 if ready or keepers else waited + 1.0
            if not ready:
                continue
            data, files, _, _ = socket.recv_fds(requests, 1, DESCRIPTORS)
            if data:
                keepers += _start(files, requests, caller, program)
                if rest is not None:
                    _load(rest)
                    rest = None
            else:
                listening = []  # it has another server; the keepers are still to be waited for


def _load(imports: Callable[[], None]) -> None:
    """What imports make stays: to look for cycles in it took a fifth of their time."""
    gc.disable()
    imports()
    gc.freeze()  # what a fork never looks at stays shared
    gc.enable()


@dataclass(frozen=True)
class Caller:
    """The process that sends requests. life: a descriptor that is readable when the process has ended; None
    before Linux 5.3. server: this server's process id."""

    pid: int
    server: int
    life: int | None

    @staticmethod
    def of(pid: int) -> Caller:
        """The caller of this process. pid: that of this process's parent."""
        return Caller(pid, os.getpid(), _life(pid))

    def has_ended(self) -> bool:
        """Whether the caller has ended. Its sockets do not tell: a fork of it may hold them open."""
        if self.life is None:
            return os.getppid() != self.server  # which ends with it
        return bool(select.select([self.life], [], [], 0)[0])


def _life(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def _start(files: list[int], requests: socket.socket, caller: Caller, program: Any) -> bool:
    """Start a keeper for the request. False where the system refuses; the caller receives the reason."""
    try:
        if len(files) != DESCRIPTORS:  # this process may have no more; the caller sees its socket close
            return False
        pid = _fork(files[3])
        if pid == 0:
            requests.close()
            with contextlib.suppress(BaseException):
                _keep(files, caller, program)
            os._exit(1)
        return pid is not None
    finally:
        for f in files:
            os.close(f)


def _fork(said: int) -> int | None:
    """os.fork; None where the system refuses, with the error sent by the socket."""
    try:
        return os.fork()
    except OSError as e:
        with contextlib.suppress(OSError):
            os.write(said, NUMBER.pack(-(e.errno or errno.EAGAIN)))
        return None


def _keep(files: list[int], caller: Caller, program: Any) -> None:
    """Run as the keeper: start the child, send its process id, then its exit status."""
    *standard, said, text = files
    child = _fork(said)
    if child is None:
        os._exit(1)
    if child == 0:
        os.close(said)
        _become(standard, text, program)  # does not return
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    for f in (*standard, text):
        os.close(f)
    with socket.socket(fileno=said) as asked, contextlib.suppress(OSError):
        asked.sendall(NUMBER.pack(child))
        if _wait(child, asked, caller):
            status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            assert status is not None
            killed = status.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            asked.sendall(NUMBER.pack(-status.si_status if killed else status.si_status))
            while not caller.has_ended() and not select.select([asked], [], [], 1.0)[0]:
                pass  # its number stays taken until the caller has done
        else:  # a caller that lives has killed the child before it closes the socket
            _let_end(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def _wait(child: int, asked: socket.socket, caller: Caller) -> bool:
    """Wait for the child. False where the caller ended, or closed its socket, before."""
    own = _life(child)
    watched: list[socket.socket | int] = [asked, *(f for f in (own, caller.life) if f is not None)]
    while not caller.has_ended():
        ready, _, _ = select.select(watched, [], [], 0.02 if own is None else 1.0)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        if asked in ready:
            return False
    return False


def _let_end(child: int) -> None:
    """Ask the child to remove its files and end, and wait for that."""
    os.kill(child, signal.SIGTERM)
    latest = time.monotonic() + GRACE
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while time.monotonic() < latest and os.waitid(os.P_PID, child, options) is None:
        time.sleep(0.02)


def _become(standard: list[int], text: int, program: Any) -> None:
    """Run as the child: take over the caller's folder, environment and limits, then run the program."""
    status = 70
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        with open(text, encoding="utf-8") as file:
            asked: dict[str, Any] = json.load(file)
        for n, f in enumerate(standard):
            os.dup2(f, n)
            os.close(f)
        os.environ.clear()
        os.environ.update(asked["environment"])
        if asked["folder"] is not None:
            os.chdir(asked["folder"])
        if asked["umask"] is not None:
            os.umask(asked["umask"])
        for kind, (soft, hard) in asked["limits"].items():
            _lower(getattr(resource, kind), soft, hard)
        os.nice(max(0, asked["nice"] - os.nice(0)))
        status = program.main(asked["result"])
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _lower(kind: int, soft: int, hard: int) -> None:
    """Set a resource limit to the caller's, but not above this process's own."""
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        hard = most if hard == resource.RLIM_INFINITY else min(hard, most)
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(kind, (soft, hard))
