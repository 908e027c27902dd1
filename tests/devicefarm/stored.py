"""Devices whose stores lie in folders of this machine: what is stored there is looked at, and spoilt."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rig
from boards import need_qemu

from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.qemu_user import qemu_user
from smelt.devicefarm.room import StoreRules
from smelt.devicefarm.ssh import SshTransport
from smelt.devicefarm.transport import Transport

LIMITS = StepLimits(connect=100, load=100, run=100, output=100, grace=5, total=600)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
FINE, SLEEP = np.int32(0), np.int32(16)
MIB = 1 << 20


class Board:
    """A device with a store in a folder of this machine; `open` makes a new session's transport to it."""

    def __init__(self, bundle: Path, root: Path, make: Callable[..., Transport], port: int = 0) -> None:
        self.bundle, self.root, self.open, self.port = bundle, root, make, port

    def run(self, budget: Budget | None = None) -> None:
        """One session, with the right answer."""
        transport = self.open()
        try:
            with open_session(transport, self.bundle, budget=budget or Budget(LIMITS)) as client:
                assert np.array_equal(client.run([X, FINE]).outputs["y"], 2 * X)
        finally:
            transport.close()

    def stored(self) -> list[Path]:
        return sorted((self.root / "cas").iterdir())

    def left(self, folder: str) -> list[str]:
        return sorted(p.name for p in (self.root / folder).iterdir())


def _local(request: pytest.FixtureRequest, root: Path) -> Board:
    def make(rules: StoreRules | None = None) -> Transport:
        return LocalTransport("stored", store=root, rules=rules or StoreRules())

    return Board(request.getfixturevalue("native_bundle"), root, make)


def _qemu(request: pytest.FixtureRequest, root: Path) -> Board:
    need_qemu("qemu-aarch64-static")

    def make() -> Transport:
        return qemu_user("emulated", "qemu-aarch64", sysroot=rig.SYSROOT, store=root)

    return Board(request.getfixturevalue("arm64_bundle"), root, make)


def _ssh(request: pytest.FixtureRequest, root: Path, server: str = "sshd") -> Board:
    address = request.getfixturevalue(server).address

    def make(port: int = 0, rules: StoreRules | None = None) -> Transport:
        there = replace(address, port=port or address.port)
        return SshTransport("board", there, root=str(root), rules=rules)

    return Board(request.getfixturevalue("native_bundle"), root, make, address.port)


def _dropbear(request: pytest.FixtureRequest, root: Path) -> Board:
    return _ssh(request, root, "dropbear")


BOARDS = {"store": _local, "qemu-user": _qemu, "ssh": _ssh, "dropbear": _dropbear}
LINKED = {"ssh": _ssh, "dropbear": _dropbear}


def with_weights(bundle: Path, into: Path, size: int, seed: int = 1) -> Path:
    """A copy of the bundle with a file of weights, which the fake model does not read."""
    shutil.copytree(bundle, into)
    (into / "model.weights").write_bytes(random.Random(seed).randbytes(size))
    return into
