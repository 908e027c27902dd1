"""A request for a compile in; it runs in a child process under limits; how that ended comes out.

The child's standard input is open for as long as the caller lives. When it closes, the child ends, whatever
has killed the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smelt.core.staging import sweep
from smelt.forks import COMPILER, SERVER, Child
from smelt.limits import Limits, used_share

KEPT_STDERR = 1 << 16
"""How many of the last bytes of a child's stderr are kept."""

BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the memory of a child: 0.05 ms of processor time each."""

LONGEST_LINE = 1 << 12
"""Most bytes of a line that names a stage; longer lines are ignored."""

Cause = Literal["", "stuck", "seconds", "memory", "killed"]


@dataclass(frozen=True)
class Ended:
    """How a child ended. status: as subprocess's returncode. stage: the last that it named. cause: the limit
    that ended it, 'killed' for a signal from elsewhere, '' when it ended by itself. said: the end of its
    stderr."""

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
    program: str = COMPILER,
) -> Ended:
    """Compile in a child. It writes its outcome to `result`; where it died before, its temporary folder
    beside `out` is removed. An exception here (Ctrl-C too) kills the child and its children. progress: called
    with the name of each stage."""
    child = SERVER.start(program, result)
    try:
        watch = _Watch(child, progress)
        watch.send(json.dumps([limits.memory, limits.seconds, request]))
        stuck = watch.read(time.monotonic() + limits.wall)
    finally:
        status = child.end()
        sweep(Path(os.path.realpath(out)))
    said = bytes(watch.said).decode("utf-8", "replace")
    cause = "stuck" if stuck else _cause(status, said, watch.used)
    return Ended(status, watch.stage, cause, said, child.pid)


class _Watch:
    """Reads both pipes of a child as they fill, so that neither blocks it."""

    def __init__(self, child: Child, progress: Callable[[str], None] | None) -> None:
        self.child = child
        self.progress = progress
        self.stage = "start"
        self.used = 0.0  # of what the child may have of memory, when it was last seen
        self.said = bytearray()
        self._line = bytearray()
        self._look = time.monotonic() + BETWEEN_LOOKS

    def send(self, request: str) -> None:
        """Write the request as one line; the pipe stays open."""
        data = memoryview(request.encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it has died already; its status tells
            while data:
                data = data[os.write(self.child.stdin, data) :]

    def read(self, deadline: float) -> bool:
        """Read until both pipes or the child end, or until the deadline (of time.monotonic). Whether it
        passed."""
        with selectors.DefaultSelector() as selector:
            for pipe, take in ((self.child.stdout, self._stages), (self.child.stderr, self._errors)):
                selector.register(pipe, selectors.EVENT_READ, take)
            while selector.get_map():
                # a grandchild may hold the pipes when the child is gone
                ended = self.child.has_ended()
                if not ended and time.monotonic() > self._look:
                    self.used = used_share(self.child.pid) or self.used
                    self._look = time.monotonic() + BETWEEN_LOOKS
                ready = selector.select(0 if ended else BETWEEN_LOOKS)
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
        # it closed its pipes; its end is near
        return not self.child.has_ended(max(0.0, deadline - time.monotonic()))

    def _errors(self, data: bytes) -> None:
        self.said += data
        del self.said[:-KEPT_STDERR]

    def _stages(self, data: bytes) -> None:
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest[-LONGEST_LINE:])
        for line in lines:
            self.stage = line.decode("utf-8", "replace").strip()
            if self.progress is not None:
                self.progress(self.stage)


WANT = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError", "failed to map segment")
"""What libraries print before they abort because memory ran out."""


FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""How a library ends a process that gives it no memory and whose answer it does not look at."""

SHORT = 0.75
"""The share of its memory from which a fault of a child counts as one of memory."""


def _cause(status: int, said: str, used: float) -> Cause:
    if status == -signal.SIGXCPU:
        return "seconds"
    if status and (any(w in said for w in WANT) or (-status in FAULTS and used > SHORT)):
        return "memory"
    return "killed" if status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP) else ""
