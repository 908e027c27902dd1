"""Links that fail at any byte -> each session ends in time with the right error, and the next one works.

A seed draws a server (OpenSSH's, dropbear, adbd), a byte of what either side sends in a whole session
(connect, keys, files, runner, tensors, close), and what happens there: the link is cut, goes silent for ever,
passes on a byte now and then, or changes bytes. After that the link is whole again, while what it has done to
the old connections stays; the same transport must then bring the right answer, and leave nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "support"), str(TESTS / "devicefarm")]
import adbd  # noqa: E402  # of tests/devicefarm
import rig  # noqa: E402  # likewise
from campaign import Outcome, main  # noqa: E402

from smelt.core.diag import SmeltError  # noqa: E402
from smelt.devicefarm.adb import AdbTransport  # noqa: E402
from smelt.devicefarm.budget import (  # noqa: E402
    DAMAGED,
    LINK_LOST,
    LINK_STALLED,
    Budget,
    InfraError,
    StepLimits,
)
from smelt.devicefarm.client import open_session  # noqa: E402
from smelt.devicefarm.report import RunnerError  # noqa: E402
from smelt.devicefarm.ssh import SshTransport  # noqa: E402
from smelt.devicefarm.transport import Transport  # noqa: E402

PIECE = 16 * 1024
LIMITS = StepLimits(
    connect=1.5, command=1.5, upload=2, upload_floor=1 << 20, hash_floor=1 << 24, load=3, run=2, output=2,
    close=0.5, idle=20, beat=0.2, silence=1.0, grace=0.5, total=12,
)  # fmt: skip
PATIENT = StepLimits(connect=20, command=60, upload=60, load=60, run=60, output=60, total=120)
"""Of the session after that: a busy machine is no fault."""
HANG = 45.0
"""Seconds after which a session hangs; all its limits together are shorter."""
X = np.arange(30_000, dtype=np.float32).reshape(3, 10_000)
DRIP = 0.4
"""Seconds between the bytes of a link that drips."""
HOWS = ("cut", "stall", "drip", "garble")
EXPECTED = {
    "cut": (LINK_LOST,), "stall": (LINK_STALLED,), "drip": (LINK_STALLED,),
    "garble": (LINK_LOST, LINK_STALLED, "infra"),
}  # fmt: skip
BY_ADB = (LINK_LOST, LINK_STALLED, DAMAGED, "infra")
"""What adb makes of it: its server says that a device is offline, or not there, whatever the link does, and
its protocol has no checksums."""


@dataclass(frozen=True)
class Fault:
    """What happens at the byte `at` of those that go `up` to the device, or down from it."""

    how: str
    up: bool
    at: int
    seed: int = 0


@dataclass
class Link:
    """A TCP server before a device's. passed: bytes that went down and up; fault: what waits for its byte;
    connections that it has met stay as it left them."""

    port: int
    fault: Fault | None = None
    passed: list[int] = field(default_factory=lambda: [0, 0])
    ends: list[socket.socket] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def join(self, near: socket.socket, far: socket.socket) -> None:
        """Pass on what comes at either end."""
        self.ends += [near, far]
        met: list[str] = []
        for source, sink, up in ((near, far, True), (far, near, False)):
            threading.Thread(target=self._pass, args=(source, sink, up, met), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool, met: list[str]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                for piece in self._spoilt(data, up, met):
                    sink.sendall(piece)
        for s in (source, sink):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def _spoilt(self, data: bytes, up: bool, met: list[str]) -> Iterator[bytes]:
        fault, before = self.fault, self.passed[up]
        self.passed[up] += len(data)
        if fault is not None and fault.up == up and before + len(data) > fault.at:
            self.fault, at = None, fault.at - before
            if fault.how != "garble":
                yield data[:at]
                data = data[at:]
                met.append(fault.how)
            else:
                chance = random.Random(fault.seed)
                kept, spoilt = data[:at], data[at : at + chance.choice((1, 4, 100))]
                yield kept + chance.randbytes(len(spoilt)) + data[at + len(spoilt) :]
                return
        if "cut" in met:
            raise OSError
        while "stall" in met:
            if self.over.wait(0.05):
                return
        if "drip" in met:
            for k in range(len(data)):
                if self.over.wait(DRIP):
                    return
                yield data[k : k + 1]
            return
        yield data


@contextmanager
def link_to(port: int) -> Iterator[Link]:
    """A link to the server at this port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = Link(server.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    link.join(near, socket.create_connection(("127.0.0.1", port)))

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield link
        finally:
            link.over.set()
            server.shutdown(socket.SHUT_RDWR)
            for s in link.ends:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)
                s.close()


@functools.cache
def folder() -> Path:
    """Of what is made once in a process."""
    made = Path(tempfile.mkdtemp(prefix="attack-links-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def bundle() -> Path:
    made = rig.build_native(folder() / "bundle")
    (made / "model.weights").write_bytes(random.Random(0).randbytes(200_000))
    return made


SERVERS = {"sshd": rig.start_sshd, "dropbear": rig.start_dropbear, "adbd": adbd.start_adbd}


@functools.cache
def started(server: str) -> rig.Sshd | adbd.Adbd:
    """The server, which ends with the process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(SERVERS[server](folder() / server))


@contextmanager
def device(server: str) -> Iterator[tuple[Transport, Link]]:
    """A transport over a link to the server, with an empty store."""
    there = started(server)
    port = there.address.port if isinstance(there, rig.Sshd) else int(there.serial.rpartition(":")[2])
    with tempfile.TemporaryDirectory(prefix="attack-links-") as root, link_to(port) as link:
        if isinstance(there, rig.Sshd):
            yield SshTransport("board", replace(there.address, port=link.port), root=f"{root}/store"), link
            return
        serial = f"127.0.0.1:{link.port}"
        try:
            yield AdbTransport("phone", serial, server=there.server, root=f"{root}/store"), link
        finally:
            there.server.run(["disconnect", serial], 20)


def session(transport: Transport, limits: StepLimits) -> None:
    """A whole one; AssertionError where its answer is wrong."""
    with open_session(transport, bundle(), budget=Budget(limits)) as client:
        found = client.run([X, np.int32(0)]).outputs["y"]
    assert np.array_equal(found, 2 * X), "a wrong answer"


@functools.cache
def bytes_of(server: str) -> tuple[int, int]:
    """How many a session has down and up."""
    with device(server) as (transport, link):
        session(transport, PATIENT)
        transport.close()
        return link.passed[0], link.passed[1]


def draw(seed: int) -> tuple[str, Fault]:
    """Server and fault."""
    rng = random.Random(seed)
    server, how, up = rng.choice(list(SERVERS)), rng.choice(HOWS), rng.random() < 0.5
    total = bytes_of(server)[up]
    at = rng.randrange(total) if rng.random() < 0.5 else int(total ** rng.random())
    return server, Fault(how, up, at, seed)


def happen(server: str, fault: Fault) -> Outcome:
    """One session that meets the fault, and one after it."""
    told: list[Outcome] = []
    thread = threading.Thread(target=lambda: told.append(_played(server, fault)), daemon=True)
    thread.start()
    thread.join(HANG + 2 * PATIENT.connect)
    return told[0] if told else Outcome("hangs", failed=True)


def attack(seed: int) -> Outcome:
    """The same of a seed's; then no thread is left."""
    server, fault = draw(seed)
    threads = set(threading.enumerate())
    found = happen(server, fault)
    end = time.monotonic() + 10
    while (more := set(threading.enumerate()) - threads) and time.monotonic() < end:
        time.sleep(0.05)
    if more and not found.failed:
        found = Outcome("leaves threads", failed=True, detail=f"{found.what}: {more}")
    return replace(found, detail=f"{server}: {fault}: {found.detail}")


def _played(server: str, fault: Fault) -> Outcome:
    with device(server) as (transport, link):
        link.fault = fault
        start, what, status, detail = time.monotonic(), "answered", "", ""
        try:
            session(transport, LIMITS)
        except InfraError as error:
            what, status, detail = f"{fault.how}: {error.status}", error.status, repr(error)
        except RunnerError as error:  # the runner has seen it
            if (fault.how, error.status) != ("garble", "protocol"):
                return Outcome(f"the runner says '{error.status}'", failed=True, detail=repr(error))
            what, status, detail = "garble: protocol", "infra", repr(error)
        except SmeltError as error:
            return Outcome(f"kind {error.kind}", failed=True, detail=repr(error))
        except Exception as error:
            return Outcome(f"raised {type(error).__name__}", failed=True, detail=repr(error))
        took = time.monotonic() - start
        if took > HANG:
            return Outcome("took too long", failed=True, detail=f"{took:.0f} s {detail}")
        link.fault = None
        if status and status not in EXPECTED[fault.how] and (server != "adbd" or status not in BY_ADB):
            return Outcome(f"{fault.how} is '{status}'", failed=True, detail=detail)
        try:
            session(transport, PATIENT)
        except Exception as error:
            return Outcome("the next session fails", failed=True, detail=f"{detail}, then {error!r}")
        store = Path(transport.deploy(bundle(), Budget(PATIENT))).parents[1]
        transport.close()
        left = [p.name for folder in ("use", "tmp") for p in (store / folder).iterdir()]
        if left:
            return Outcome("leaves files", failed=True, detail=f"{detail}: {left}")
    return Outcome(what, detail=f"{took:.1f} s {detail}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or ""))
