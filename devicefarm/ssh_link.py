"""An ssh connection in, one whose every wait ends out: paramiko waits for some answers without an end, and
for others from each byte anew, so that a step that takes too long has its connection cut."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smelt.core.diag import SmeltError
from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import LINK_LOST, LINK_STALLED, InfraError, infra

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Lazily("paramiko")

_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_SAID_OF_LOST = (
    "dropped", "is closed", "saw EOF", "Negotiation failed", "No existing session", "not active",
    "protocol banner",
)  # fmt: skip
"""What paramiko says of connections that have ended, for which it has no class."""


class SshLink:
    """A connection, by its socket and by what speaks over it."""

    def __init__(self, device: str, sock: socket.socket, client: paramiko.SSHClient) -> None:
        self.device = device
        self._socket, self._client = sock, client
        self._doubtful = False

    @property
    def alive(self) -> bool:
        """Whether it can be used: nothing has told that it is lost, and nothing has been waited for in
        vain."""
        return self.active and not self._doubtful

    @property
    def active(self) -> bool:
        """Whether nothing has told that it is lost."""
        transport = self._client.get_transport()
        return transport is not None and bool(transport.is_active())

    def doubt(self) -> None:
        """Something was waited for in vain: whoever needs a connection next makes a new one."""
        self._doubtful = True

    def cut(self) -> None:
        """End it at once, from any thread: whoever waits for it, to read or to write, is told."""
        self._doubtful = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self, limit: float) -> None:
        """End it within so many seconds."""
        self.cut()
        transport = self._client.get_transport()
        if transport is not None:
            transport.packetizer.complete_handshake()  # else its timer goes on
        bounded(self._client.close, limit)

    def open_session(self, seconds: float) -> paramiko.Channel:
        """A new channel. Raises InfraError."""
        transport = self._client.get_transport()
        if transport is None:
            raise infra(f"the link to device '{self.device}' was lost", status=LINK_LOST)
        with self.doing("opening a channel", seconds):
            return transport.open_session(timeout=2 * seconds)

    @contextmanager
    def within(self, seconds: float) -> Iterator[threading.Event]:
        """Cut the connection if the block takes longer; the event tells that it did."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.cut()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    @contextmanager
    def doing(self, doing: str, seconds: float) -> Iterator[None]:
        """Give the block so long, and turn what it raises into InfraError. A device can make paramiko raise
        anything."""
        with self.within(seconds) as late:
            try:
                yield
            except SmeltError:
                raise
            except Exception as error:
                what = f"{doing} failed on device '{self.device}'"
                found = TimeoutError() if late.is_set() else error
                known = link_failure(self.device, what, found, seconds)
                if known is not None:  # it may still pass for active for a moment
                    self.doubt()
                raise known or infra(f"{what}: {error or type(error).__name__}") from error


def link_failure(device: str, what: str, error: Exception, limit: float) -> InfraError | None:
    """The error for a link that is lost or stalled, None for any other failure. limit: for how many seconds
    nothing had come when a wait was given up."""
    if isinstance(error, TimeoutError):
        why = f"no byte came from the device for {limit:.0f} s"
        return infra(f"{what}: {why}", status=LINK_STALLED)
    said = str(error) or type(error).__name__
    lost = isinstance(error, EOFError | ConnectionError) or any(words in said for words in _SAID_OF_LOST)
    if lost or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
        return infra(f"{what}: the link to device '{device}' was lost ({said})", status=LINK_LOST)
    return None


def bounded(action: Callable[[], object], limit: float) -> None:
    """Run a closing action in a thread and wait at most `limit` seconds: some close calls of paramiko can
    hang."""

    def body() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(limit)
