"""A request for a compile in; it runs in a child process under limits, and what became of it comes out.

The child is a Python that takes nothing from the current folder, in a process group of its own. Its standard
input stays open for as long as the caller lives: its end is the child's end, whoever kills the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import smelt
from smelt.core.staging import sweep
from smelt.limits import Limits

KEPT = 1 << 16
"""Bytes of a child's standard error that are kept: the last ones."""

LONGEST = 1 << 12
"""Bytes of a line that names a stage; what is longer is none."""

STARTS = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("smelt", sys.argv[1], submodule_search_locations=sys.argv[3:])
sys.modules["smelt"] = module = module_from_spec(spec)
spec.loader.exec_module(module)
from smelt.compile_child import main
sys.exit(main(sys.argv[2]))
"""
"""The child's program: this very smelt, wherever it lies, and not one that the current folder offers."""

Cause = Literal["", "stuck", "seconds", "memory", "killed"]


@dataclass(frozen=True)
class Ended:
    """How a child ended. status: as subprocess gives it. stage: the last that it named. cause: the limit that
    ended it, 'killed' when somebody else did; '' when it ended by itself. said: the end of its stderr."""

    status: int
    stage: str
    cause: Cause
    said: str
    pid: int


def run_child(
    request: str,
    result: Path,
    out: Path,
    limits: Limits,
    progress: Callable[[str], None] | None = None,
) -> Ended:
    """Compile in a child; the outcome is in `result` when it could say one, and nothing lies beside `out`
    when it could not. An exception here (Ctrl-C too) ends the child, with what it has started."""
    child = subprocess.Popen(
        command(str(result)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        process_group=0,
    )
    watch = _Watch(child, progress)
    try:
        watch.send(json.dumps([limits.memory, limits.seconds, request]))
        stuck = watch.read(time.monotonic() + limits.wall)
    finally:
        end(child)
        sweep(Path(os.path.realpath(out)))
    said = bytes(watch.said).decode("utf-8", "replace")
    cause: Cause = "stuck" if stuck else _cause(child.returncode, said)
    return Ended(child.returncode, watch.stage, cause, said, child.pid)


def command(result: str) -> list[str]:
    """How the child is started: -P keeps the current folder off its path; site-packages and the caller's
    PYTHONPATH stay, unless the caller does without them as well."""
    flags = ["-I"] if sys.flags.isolated else ["-P"]
    flags += ["-E"] * sys.flags.ignore_environment + ["-s"] * sys.flags.no_user_site
    home = [str(Path(p).absolute()) for p in smelt.__path__]
    return [sys.executable, *flags, "-c", STARTS, str(Path(str(smelt.__file__)).absolute()), result, *home]


def environment() -> dict[str, str]:
    """The caller's, but for the blank entries of PYTHONPATH, which mean the current folder by accident."""
    own = dict(os.environ)
    if "PYTHONPATH" in own:
        own["PYTHONPATH"] = os.pathsep.join(p for p in own["PYTHONPATH"].split(os.pathsep) if p)
    return own


def has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether it has; it is left to be waited for."""
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the caller ignores its children's ends, or waits for all of them
        child.poll()
        return True


def end(child: subprocess.Popen[bytes]) -> None:
    """The child and what it has started are gone when this returns."""
    # even when the child has ended: a linker that it started may run on. Nobody has waited for it yet, so
    # that its number still means its group
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    child.wait()


class _Watch:
    """Reads both pipes of a child as they fill, so that neither blocks it."""

    def __init__(self, child: subprocess.Popen[bytes], progress: Callable[[str], None] | None) -> None:
        self.child = child
        self.progress = progress
        self.stage = "start"
        self.said = bytearray()
        self._line = bytearray()

    def send(self, request: str) -> None:
        """The request, as one line; the pipe stays open."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(request.encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # it has died already; its status tells

    def read(self, deadline: float) -> bool:
        """Until both pipes end, or the child does. Whether the deadline passed first."""
        with selectors.DefaultSelector() as selector:
            for pipe, take in ((self.child.stdout, self._stages), (self.child.stderr, self._errors)):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, take)
            while selector.get_map():
                # a grandchild may hold the pipes when the child is gone
                ended = has_ended(self.child)
                ready = selector.select(0 if ended else 0.5)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if data:
                        key.data(data)
                    else:
                        selector.unregister(key.fileobj)
                if ended and not ready:
                    return False
                if not ended and time.monotonic() > deadline:
                    return True
        while not has_ended(self.child):  # it closed its pipes; its end is near
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def _errors(self, data: bytes) -> None:
        self.said += data
        del self.said[:-KEPT]

    def _stages(self, data: bytes) -> None:
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest[-LONGEST:])
        for line in lines:
            self.stage = line.decode("utf-8", "replace").strip()
            if self.progress is not None:
                self.progress(self.stage)


WANT = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError", "failed to map segment")
"""What libraries print before they end for want of memory."""


def _cause(status: int, said: str) -> Cause:
    if status == -signal.SIGXCPU:
        return "seconds"
    if status and any(w in said for w in WANT):
        return "memory"
    return "killed" if status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP) else ""
