"""A command of this machine -> its exit code and the first bytes of what it writes, within a time limit."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PIECE = 1 << 16
_LAST_WAIT = 2.0
"""Seconds for a process that was killed to be gone."""


class TooLong(Exception):
    """The command had not ended within its limit; it was killed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and the first bytes that it wrote."""

    code: int
    out: bytes
    err: bytes


def run_within(
    argv: Sequence[str],
    limit: float,
    *,
    most: int,
    env: Mapping[str, str] | None = None,
    source: bytes = b"",
) -> Ran:
    """Run a command to its end. limit: in seconds. most: bytes of each stream that are kept. source: its
    stdin. Raises TooLong, and OSError where it cannot be started.

    Nothing that it has started and left behind is waited for, even when that has its streams open.
    """
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin and process.stdout and process.stderr
    try:
        out, err = _exchange(process, source, time.monotonic() + limit, most)
        return Ran(process.returncode, out, err)
    finally:
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WAIT)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                stream.close()


def _exchange(process: subprocess.Popen[bytes], source: bytes, end: float, most: int) -> tuple[bytes, bytes]:
    """Give it its input, and take both streams, until it has ended."""
    assert process.stdin and process.stdout and process.stderr
    kept = {process.stdout: bytearray(), process.stderr: bytearray()}
    view = memoryview(source)
    with selectors.DefaultSelector() as waiting:
        for stream in kept:
            waiting.register(stream, selectors.EVENT_READ)
        if view:
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while waiting.get_map():
            over, left = process.poll() is not None, end - time.monotonic()
            if left <= 0:
                break
            # what lies in the pipes of one that has ended; else a look now and then: others may have them
            ready = waiting.select(0 if over else min(left, 0.05))
            if over and not any(key.fileobj in kept for key, _ in ready):
                break
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    view = _given(key.fd, view)
                    going = bool(view)
                else:
                    going = _taken(key.fd, kept[key.fileobj], most)  # type: ignore[index]
                if not going:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TooLong from None
    return bytes(kept[process.stdout]), bytes(kept[process.stderr])


def _given(fd: int, view: memoryview) -> memoryview:
    """Write what there is room for; what is left. A command need not read its input."""
    try:
        return view[os.write(fd, view[:_PIECE]) :]
    except BlockingIOError:
        return view
    except OSError:
        return view[:0]


def _taken(fd: int, into: bytearray, most: int) -> bool:
    """Read a piece; False at the end."""
    data = os.read(fd, _PIECE)
    into += data[: max(0, most - len(into))]
    return bool(data)
