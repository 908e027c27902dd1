"""A socket in; for each request that comes by it a fork of this process, which has the compiler in memory.

    caller --socket--> server --fork--> keeper --fork--> child, which compiles

The keeper waits for the child and tells its status by the request's own socket; it takes the status up when
the caller has closed that, so that the child's process id means nothing else before. Whoever goes, the others
follow: the server ends with the caller or after IDLE seconds, a keeper with either, a child with its keeper.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

IDLE = 120.0
"""Seconds without a request and without a child after which the server gives its 90 MB back."""

NUMBER = struct.Struct("=i")
FILES = 5
"""What a request brings: standard input, output and error of the child, the request's socket, its text."""

KINDS = tuple(k for k in dir(resource) if k.startswith("RLIMIT_"))


def serve(number: int, module: str) -> None:
    """Until the socket closes. module: has `preload()`, which imports what every request needs, and
    `main(result)`, which a child runs and whose result is its status."""
    caller = os.getppid()
    program = importlib.import_module(module)
    program.preload()
    gc.collect()
    gc.freeze()  # what a fork never looks at stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the caller may ignore it
    with socket.socket(fileno=number) as requests:
        waited, keepers = 0.0, 0
        while waited < IDLE and os.getppid() == caller:
            ready, _, _ = select.select([requests], [], [], 1.0)
            while keepers and os.waitpid(-1, os.WNOHANG)[0]:
                keepers -= 1
            waited = 0.0 if ready or keepers else waited + 1.0
            if not ready:
                continue
            data, files, _, _ = socket.recv_fds(requests, 1, FILES)
            if not data:
                return
            if os.fork() == 0:
                requests.close()
                with contextlib.suppress(BaseException):
                    _keep(files, os.getppid(), program)
                os._exit(1)
            keepers += 1
            for f in files:
                os.close(f)


def _keep(files: list[int], server: int, program: Any) -> None:
    """The keeper: starts the child, tells its process id and how it ended."""
    *standard, said, text = files
    child = os.fork()
    if child == 0:
        os.close(said)
        _become(standard, text, program)  # does not return
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    for f in (*standard, text):
        os.close(f)
    with socket.socket(fileno=said) as caller, contextlib.suppress(OSError):
        caller.sendall(NUMBER.pack(child))
        if _wait(child, caller, server):
            status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            assert status is not None
            killed = status.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            caller.sendall(NUMBER.pack(-status.si_status if killed else status.si_status))
            while os.getppid() == server and not select.select([caller], [], [], 1.0)[0]:
                pass  # its number stays taken until the caller has done
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def _wait(child: int, caller: socket.socket, server: int) -> bool:
    """Whether the child ended before the caller and the server did."""
    watched, pause = [caller.fileno()], 0.02
    with contextlib.suppress(OSError):  # before Linux 5.3
        watched, pause = [*watched, os.pidfd_open(child)], 1.0
    while os.getppid() == server:
        ready, _, _ = select.select(watched, [], [], pause)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        if ready:
            return False
    return False


def _become(standard: list[int], text: int, program: Any) -> None:
    """The child: what the caller is, and then the program."""
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
    """The caller's limit, where it is not above this process's own."""
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        hard = most if hard == resource.RLIM_INFINITY else min(hard, most)
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(kind, (soft, hard))
