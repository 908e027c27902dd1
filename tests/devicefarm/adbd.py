"""A real adbd on this machine, in a network namespace of its own, and the adb server that reaches it.

adbd listens on all addresses and asks nobody for a key, so it never runs where others can reach it: the
namespace has a loopback interface and nothing else. A port of this machine's loopback leads to it through
sockets that are opened inside.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import rig
from installed import program_path

from smelt.core.diag import SmeltError
from smelt.devicefarm.adb import AdbServer
from smelt.devicefarm.debian import ADBD, unpacked

INSIDE = """
import ctypes, fcntl, os, signal, socket, struct, subprocess, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
up = struct.pack('16sH14s', b'lo', 0x41, b'')
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, up)
device = subprocess.Popen(sys.argv[2:])
asked = socket.socket(fileno=int(sys.argv[1]))
while asked.recv(1):
    made = socket.socket()
    try:
        made.connect(('127.0.0.1', 5555))
        socket.send_fds(asked, [str(device.pid).encode()], [made.fileno()])
    except OSError:
        asked.send(b'-')
    made.close()
device.kill()
"""
STARTS = 30.0
"""Seconds until adbd listens."""


@dataclass
class Adbd:
    """An adbd, its address for `adb connect`, and the server that does so."""

    serial: str
    pid: int
    server: AdbServer
    links: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        """End every connection, as a cable that is pulled."""
        for link in self.links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


def _pump(a: socket.socket, b: socket.socket) -> None:
    with suppress(OSError):
        while data := a.recv(1 << 16):
            b.sendall(data)
    for s in (a, b):
        with suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)


class _Door:
    """Opens connections inside of the namespace."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked, self._alone = asked, threading.Lock()

    def open(self) -> tuple[socket.socket, int]:
        """A connection to adbd, and adbd's process; waits until it listens."""
        end = time.monotonic() + STARTS
        while time.monotonic() < end:
            with self._alone:
                self._asked.send(b"?")
                told, fds, _, _ = socket.recv_fds(self._asked, 16, 1)
            if fds:
                return socket.socket(fileno=fds[0]), int(told)
            time.sleep(0.05)
        raise ConnectionError("adbd does not listen")


@contextmanager
def start_adbd(home: Path, programs: Path | None = None) -> Iterator[Adbd]:
    """adbd and an adb server of its own, both ended with the block. programs: a folder whose programs the
    device has besides this machine's."""
    adb, alone = program_path("adb"), rig.own("net")
    rig.need(adb, "needs adb: apt-get install adb")
    if alone is None:
        pytest.skip("needs a network namespace: run as root, or let users make namespaces")
    try:
        tree = unpacked(ADBD)
    except SmeltError as error:
        pytest.skip(f"needs Debian's package adbd: {error}")
    libraries = tree / f"usr/lib/{platform.machine()}-linux-gnu"
    loader = next(libraries.glob("ld-linux*.so.*"))
    program = tree / "usr/lib/android-sdk/platform-tools/adbd"
    run = [str(loader), "--library-path", f"{libraries}/android:{libraries}", str(program)]
    home.mkdir(parents=True, exist_ok=True)
    mine, theirs = socket.socketpair()
    argv = [*alone, "--", sys.executable, "-c", INSIDE, str(theirs.fileno()), *run]
    path = os.pathsep.join([*([str(programs)] if programs else ()), os.environ["PATH"]])
    with (home / "adbd.log").open("wb") as log:
        env = {**os.environ, "PATH": path}
        inside = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=log, cwd=home, env=env)
    theirs.close()
    server = AdbServer(str(adb), rig.free_port(), home / "adb")
    with mine, socket.create_server(("127.0.0.1", 0)) as outside:
        door = _Door(mine)
        first, pid = door.open()
        first.close()
        made = Adbd(f"127.0.0.1:{outside.getsockname()[1]}", pid, server)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    here, _ = outside.accept()
                    try:
                        there, _ = door.open()
                    except (OSError, ValueError):
                        here.close()
                        continue
                    made.links += [here, there]
                    for a, b in ((here, there), (there, here)):
                        threading.Thread(target=_pump, args=(a, b), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield made
        finally:
            server.run(["kill-server"], 20)  # this rig's own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            outside.shutdown(socket.SHUT_RDWR)
            mine.shutdown(socket.SHUT_RDWR)
            inside.kill()
            inside.wait()
            made.cut()
            for link in made.links:
                link.close()
            made.links.clear()
