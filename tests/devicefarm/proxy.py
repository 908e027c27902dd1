"""A TCP server on loopback before another one: it counts, cuts and stalls what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PIECE = 16 * 1024


@dataclass
class Proxy:
    """sent: bytes that clients have sent so far. cut_after: close all once `sent` is that much; stalled: pass
    nothing on, in either direction, and keep the connections."""

    port: int
    sent: int = 0
    cut_after: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    _open: list[socket.socket] = field(default_factory=list)
    _lost: set[socket.socket] = field(default_factory=set)

    def cut(self) -> None:
        """End every connection that there is now: clients may open new ones at once."""
        for s in tuple(self._open):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Have the connections that there are stay silent for ever."""
        self._lost |= set(self._open)

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                while self.stalled.is_set() or source in self._lost:
                    time.sleep(0.02)
                if counted:
                    if self.cut_after is not None and self.sent + len(data) >= self.cut_after:
                        data = data[: max(0, self.cut_after - self.sent)]
                        sink.sendall(data)
                        self.sent += len(data)
                        time.sleep(0.2)  # what is under way arrives
                        self.cut_after = None
                        return self.cut()
                    self.sent += len(data)
                sink.sendall(data)
        self.cut_pair(source, sink)
        return None

    @staticmethod
    def cut_pair(*pair: socket.socket) -> None:
        """End one connection."""
        for s in pair:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


@contextmanager
def before(port: int) -> Iterator[Proxy]:
    """A proxy of the server at this port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(server.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    far = socket.create_connection(("127.0.0.1", port))
                    proxy._open += [near, far]
                    for ends in ((near, far, True), (far, near, False)):
                        threading.Thread(target=proxy._pass, args=ends, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy._lost.clear()
            proxy.stalled.clear()
            server.shutdown(socket.SHUT_RDWR)
            proxy.cut()
            for s in proxy._open:
                s.close()
