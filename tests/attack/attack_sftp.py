"""Hostile answers of an sftp server to a store -> it tells of them, or has stored what it was given; in
bounded time and memory.

A server of OpenSSH's answers; a seed changes packets on their way: fields, counts, lengths, numbers, names,
bytes, their order. What the store then calls deployed must be so.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramiko.sftp import CMD_ATTRS, CMD_NAME, CMD_NAMES, CMD_STATUS

sys.path.append(str(Path(__file__).parents[1] / "support"))
from campaign import Outcome, main
from installed import needed
from isolated import isolated

from smelt.core.bundle import hash_file
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, InfraError, StepLimits
from smelt.devicefarm.sftp import SftpFiles
from smelt.devicefarm.store import DeviceStore
from smelt.devicefarm.transport import Completed

LIMITS = StepLimits(connect=0.4, command=0.4, upload=1.0, close=0.2, total=8)
HANG = 30.0
MEMORY = 256 << 20
"""Bytes that a client may allocate."""
EXTREMES = (0, 1, 5, 255, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1)
FILES = {"model.weights": 150_000, "smelt_run": 40_000, "libmodel.so": 3, "empty": 0}


class Link:
    """Nothing lies between: what SftpFiles asks of an SshLink."""

    device = "board"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def doubt(self) -> None: ...

    @contextmanager
    def within(self, seconds: float) -> Iterator[threading.Event]:
        late = threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), self._stream.cut()))
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()


class Stream:
    """The stdio of a server; the packets that `spoilt` numbers are changed."""

    def __init__(self, program: str, rng: random.Random, spoilt: set[int]) -> None:
        self._server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdin and self._server.stdout
        self._to, self._of = self._server.stdin.fileno(), self._server.stdout.fileno()
        self._rng, self._spoilt = rng, spoilt
        self._raw, self._ready, self._held, self._count = b"", b"", b"", 0
        self._timeout, self._is_cut = 1.0, False

    def cut(self) -> None:
        self._is_cut = True
        self._server.kill()

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout or 0.0

    def sendall(self, s: bytes) -> None:
        while s:
            s = s[os.write(self._to, s) :]

    def recv(self, nbytes: int) -> bytes:
        end = time.monotonic() + self._timeout
        while not self._ready:
            if not select.select([self._of], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            data = b"" if self._is_cut else os.read(self._of, 1 << 16)
            if not data:
                return b""
            self._raw += data
            while len(self._raw) >= (size := 4 + int.from_bytes(self._raw[:4], "big")):
                packet, self._raw = self._raw[4:size], self._raw[size:]
                self._ready += self._passed(packet)
                self._count += 1
        data, self._ready = self._ready[:nbytes], self._ready[nbytes:]
        return data

    def close(self) -> None:
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe:
                pipe.close()

    def _passed(self, packet: bytes) -> bytes:
        held, self._held = self._held, b""
        if self._count not in self._spoilt:
            return framed(packet) + held
        rng, how = self._rng, self._rng.choice(HOWS)
        at, number, extreme = rng.randrange(len(packet)), packet[1:5], self._rng.choice(EXTREMES)
        if how == "word" and len(packet) > 9:
            at = rng.randrange(5, len(packet) - 3)
            packet = packet[:at] + struct.pack(">I", extreme) + packet[at + 4 :]
        elif how == "byte":
            packet = packet[:at] + rng.randbytes(1) + packet[at + 1 :]
        elif how == "short":
            packet = packet[:at]
        elif how == "long":
            packet += rng.randbytes(rng.choice((1, 100, 300_000)))
        elif how == "length":
            return struct.pack(">I", extreme) + packet + held
        elif how == "number":
            packet = packet[:1] + struct.pack(">I", rng.choice((0, 1, self._count, 2**32 - 1))) + packet[5:]
        elif how == "type":
            packet = bytes([rng.choice((0, 1, *CMD_NAMES, 255))]) + packet[1:]
        elif how == "twice":
            return framed(packet) * rng.choice((2, 100)) + held
        elif how == "late":
            self._held = framed(packet)
            return held
        elif how == "status":
            code = rng.choice((*range(10), 2**32 - 1))
            packet = bytes([CMD_STATUS]) + number + struct.pack(">I", code)
        elif how == "names":
            packet = bytes([CMD_NAME]) + number + struct.pack(">I", extreme) + rng.choice(NAMES)
        elif how == "extended":
            packet = bytes([CMD_ATTRS]) + number + struct.pack(">II", 1 << 31, extreme)
        return framed(packet) + held


HOWS = ("word", "word", "byte", "byte", "short", "long", "length", "number", "type", "twice", "late", "drop",
        "status", "names", "extended")  # fmt: skip
NAMES = (b"", bytes(12), b"\0\0\0\3\xff\xfe/" + bytes(8), (b"\0\0\0\2..\0\0\0\0" + bytes(4)) * 5, bytes(60))


def framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(4, "big") + packet


def execute(argv: list[str], budget: Budget) -> Completed:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return Completed(done.returncode, done.stdout, done.stderr)


def attempt(seed: int, folder: Path) -> tuple[str, str]:
    """(what came of it, detail); in a child."""
    rng = random.Random(seed)
    bundle, root = folder / "bundle", folder / "root"
    bundle.mkdir()
    for name, size in FILES.items():
        (bundle / name).write_bytes(rng.randbytes(size))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + MEMORY, pages + MEMORY))
    spoilt = {int(100 ** rng.random()) - 1 for _ in range(rng.choice((0, 1, 1, 1, 2, 10)))}
    stream = Stream(needed("sftp-server"), rng, spoilt)
    try:
        files = SftpFiles(Link(stream), stream, str(root), execute, Budget(LIMITS))  # type: ignore[arg-type]
        store = DeviceStore(files)
        with contextlib.closing(stream):
            home = Path(store.deploy(bundle, Budget(LIMITS)))
            store.close(Budget(LIMITS))
    except InfraError as error:
        plain = str(error).replace("\n", " ").isprintable()
        return (f"told: {error.status}", "") if plain else ("a message that is no plain text", repr(error))
    except SmeltError as error:
        return f"kind {error.kind}", repr(error)
    except BaseException as error:
        return f"raised {type(error).__name__}", repr(error)
    if any(hash_file(home / name) != hash_file(bundle / name) for name in FILES):
        return "deployed what it was not given", str(spoilt)
    return "deployed", ""


def attack(seed: int) -> Outcome:
    """One deployment."""
    with tempfile.TemporaryDirectory(prefix="attack-sftp-") as folder:
        how, result = isolated(lambda: attempt(seed, Path(folder)), HANG)
    if how != "ok":
        return Outcome(f"{how} {result}", failed=True)
    what, detail = result
    return Outcome(what, failed=bool(detail), detail=detail)


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=10**6))
