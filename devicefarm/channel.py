"""A byte stream to a program on the device, each transfer with a deadline."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, Protocol

from smelt.devicefarm.budget import KILLED, LINK_STALLED, InfraError, infra

STDERR_TAIL = 8192
READ_SIZE = 1 << 20
BUSY_TRIES = 6
EXIT_WAIT = 2.0
"""Seconds to wait for the exit code of a program whose output has ended."""
F_SETPIPE_SZ = 1031


class Channel(Protocol):
    """A byte stream to a program. Deadlines are moments of time.monotonic(); missing one raises
    SmeltError(kind='infra')."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of data. Raises SmeltError(kind='infra') when the other end has closed."""

    def receive(self, deadline: float) -> bytes:
        """Wait for data: at least one byte, or b"" at the end of the stream."""

    def stderr_tail(self) -> str:
        """The last 8 KiB of what the program wrote to stderr."""

    def ended(self) -> InfraError:
        """Why the stream has ended, as far as it can be known: a lost link, or how the program ended."""

    def close(self) -> None:
        """End the program and free everything within the closing limit; never raises."""


def ended_with(code: int | None) -> InfraError:
    """The error for a runner that ended before its time. code: as of a shell, negative for a signal, None for
    a signal that is not known."""
    if code is None or code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return infra("the runner's process was killed on the device", status=KILLED)
    if code in (126, 127):
        return infra("the runner cannot be started on the device", hint="was it built for this device?")
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return infra(f"the runner {how}", hint="see what it wrote; it may not be able to run on this device")


class Tail:
    """Keeps the last bytes of a stream that a thread reads all the time, so that its writer never blocks."""

    def __init__(self) -> None:
        self._bytes = b""
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        """Append, forgetting what is too old."""
        with self._lock:
            self._bytes = (self._bytes + data)[-STDERR_TAIL:]

    def text(self) -> str:
        """What is kept, as text."""
        with self._lock:
            return self._bytes.decode("utf-8", "replace")

    def drain(self, stream: IO[bytes]) -> None:
        """Read the stream to its end (the body of a thread)."""
        try:
            while data := os.read(stream.fileno(), 4096):
                self.add(data)
        except (OSError, ValueError):
            return


PR_SET_CHILD_SUBREAPER = 36


def _adopting() -> Callable[[], None] | None:
    """What makes a process adopt its descendants' orphans, a wish that lasts when it starts another program;
    None where this system knows no such thing."""
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return None if prctl is None else partial(prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _start(
    argv: list[str], env: dict[str, str] | None, first: Callable[[], None] | None
) -> subprocess.Popen[bytes]:
    """A program that was written a moment ago may be held open for writing by a process that another thread
    forks just then, until that has started its own program."""
    for attempt in range(BUSY_TRIES):
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
                preexec_fn=first,
            )
        except OSError as error:
            if error.errno != errno.ETXTBSY or attempt == BUSY_TRIES - 1:
                raise
            time.sleep(0.02 * (attempt + 1))
    raise AssertionError


class PipeChannel:
    """A child process's stdin and stdout."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        close_limit: float = 5.0,
        emulated: bool = False,
    ) -> None:
        """emulated: the program runs in an emulator, which may not pass on its wish to adopt orphans."""
        self._close_limit = close_limit
        adopt = _adopting() if emulated else None
        try:
            self.process = _start(list(argv), dict(env) if env is not None else None, adopt)
        except OSError as error:
            raise infra(
                f"'{argv[0]}' cannot be started: {error.strerror}",
                hint="is it there, executable, and built for this machine?",
            ) from error
        stdin, stdout, stderr = self.process.stdin, self.process.stdout, self.process.stderr
        assert stdin and stdout and stderr
        self._stdin, self._stdout = stdin.fileno(), stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        for fd in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # the system's limit may be lower
                fcntl.fcntl(fd, F_SETPIPE_SZ, 1 << 20)
        self._tail = Tail()
        self._drain = threading.Thread(target=self._tail.drain, args=(stderr,), daemon=True)
        self._drain.start()

    def send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._stdin, select.POLLOUT, deadline, "sending to the runner")
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self.ended() from error

    def receive(self, deadline: float) -> bytes:
        while True:
            self._wait(self._stdout, select.POLLIN, deadline, "waiting for the runner")
            try:
                return os.read(self._stdout, READ_SIZE)
            except BlockingIOError:
                continue
            except OSError as error:
                raise infra(f"the runner cannot be read any more: {error.strerror}") from error

    def stderr_tail(self) -> str:
        return self._tail.text()

    def ended(self) -> InfraError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return ended_with(self.process.wait(EXIT_WAIT))
        return infra("the runner closed its output")

    def close(self) -> None:
        """Close stdin (the runner ends by itself then), wait a little, kill its session.

        stdout is closed last: a thread that still reads it sees the end of the stream, not a number
        reused by another file.
        """
        process = self.process
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._close_limit)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._close_limit)
        self._drain.join(0.5)
        for stream, free in ((process.stdout, True), (process.stderr, not self._drain.is_alive())):
            if stream and free:
                stream.close()

    def _wait(self, fd: int, events: int, deadline: float, step: str) -> None:
        poll = select.poll()
        poll.register(fd, events)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise infra(f"{step} took longer than its limit", status=LINK_STALLED)
