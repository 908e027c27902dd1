"""The transports that one suite runs on: each with a bundle for it, and with a way to its processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import rig
from boards import need_qemu
from processes import children

from smelt.devicefarm.adb import AdbTransport
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.qemu_board import BoardMachine, QemuBoardTransport
from smelt.devicefarm.qemu_user import BIONIC_VARIABLE, android_emulated, qemu_user
from smelt.devicefarm.ssh import SshTransport
from smelt.devicefarm.transport import Transport

LIMITS = StepLimits(connect=100, load=100, run=100, output=100, grace=5, total=600)
"""Longer than HANGS, so that what is noticed late is told from what a busy machine delays."""
HANGS = 60.0
"""Seconds after which something that should end at once counts as hanging."""


@dataclass(frozen=True)
class Place:
    """A transport and a bundle that it can run."""

    transport: Transport
    bundle: Path
    arch: str

    @property
    def elsewhere(self) -> bool:
        """Whether its processes are those of another kernel."""
        return isinstance(self.transport, QemuBoardTransport)

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a process on the device."""
        if not self.elsewhere:
            os.kill(pid, number)
        else:
            self.transport.execute(["kill", f"-{int(number)}", str(pid)], Budget(LIMITS))

    def children(self, pid: int) -> list[int]:
        """The processes that a process on the device has started."""
        if not self.elsewhere:
            return children(pid)
        told = self.transport.execute(["cat", f"/proc/{pid}/task/{pid}/children"], Budget(LIMITS)).out
        return [int(word) for word in told.split()]

    def gone(self, pid: int, limit: float = HANGS) -> bool:
        """Whether a process on the device has ended, or ends within so many seconds."""
        end = time.monotonic() + limit
        while True:
            stat = self._stat(pid)
            if stat is None or stat.rsplit(")", 1)[1].split()[0] == "Z":
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.02)

    def _stat(self, pid: int) -> str | None:
        path = f"/proc/{pid}/stat"
        if self.elsewhere:
            return self.transport.execute(["cat", path], Budget(LIMITS)).out or None
        try:
            return Path(path).read_text()
        except OSError:
            return None


def _local(request: pytest.FixtureRequest, tmp: Path) -> Place:
    return Place(LocalTransport(), request.getfixturevalue("native_bundle"), os.uname().machine)


def _local_store(request: pytest.FixtureRequest, tmp: Path) -> Place:
    transport = LocalTransport("stored", store=tmp / "store")
    return Place(transport, request.getfixturevalue("native_bundle"), os.uname().machine)


def _static(request: pytest.FixtureRequest, tmp: Path) -> Place:
    return Place(
        LocalTransport("static"), request.getfixturevalue("static_bundle"), os.uname().machine
    )


def _qemu(request: pytest.FixtureRequest, tmp: Path) -> Place:
    need_qemu("qemu-aarch64-static")
    bundle = request.getfixturevalue("arm64_bundle")
    transport = qemu_user("emulated", "qemu-aarch64", sysroot=rig.SYSROOT, store=tmp / "store")
    return Place(transport, bundle, "aarch64")


def _bionic(request: pytest.FixtureRequest, tmp: Path) -> Place:
    need_qemu("qemu-aarch64-static")
    transport = android_emulated(tmp / "cache", store=tmp / "store")
    return Place(transport, request.getfixturevalue("bionic_bundle"), "aarch64")


def _ssh(request: pytest.FixtureRequest, tmp: Path, server: str = "sshd") -> Place:
    address = request.getfixturevalue(server).address
    transport = SshTransport("board", address, root=str(tmp / "root"))
    return Place(transport, request.getfixturevalue("native_bundle"), os.uname().machine)


def _board(request: pytest.FixtureRequest, tmp: Path) -> Place:
    """With a store of its own, a copy of one that has the bundle: to send it takes its processor a second."""
    machine = BoardMachine("board", folder=request.getfixturevalue("board").folder)
    transport = QemuBoardTransport("board", machine, root=f"/root/{tmp.name}")
    stored = request.getfixturevalue("stored_on_board")
    copied = transport.execute(["cp", "-a", stored, f"/root/{tmp.name}"], Budget(LIMITS))
    assert copied.code == 0, copied
    return Place(transport, request.getfixturevalue("arm64_bundle"), "aarch64")


def _adb(request: pytest.FixtureRequest, tmp: Path) -> Place:
    device = request.getfixturevalue("adbd")
    transport = AdbTransport("phone", device.serial, server=device.server, root=str(tmp / "root"))
    return Place(transport, request.getfixturevalue("native_bundle"), os.uname().machine)


PLACES = {
    "local": _local,
    "store": _local_store,
    "static": _static,
    "qemu-user": _qemu,
    "ssh": _ssh,
    "dropbear": partial(_ssh, server="dropbear"),
    "adb": _adb,
    "qemu-board": _board,
}


if os.environ.get(BIONIC_VARIABLE):
    PLACES["bionic"] = _bionic
