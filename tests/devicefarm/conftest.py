"""Bundles and counterparts, built once per test run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import adbd as adbd_rig
import rig

from smelt.devicefarm.budget import Budget
from smelt.devicefarm.qemu_board import BoardMachine, QemuBoardTransport


@pytest.fixture(scope="session")
def native_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rig.build_native(tmp_path_factory.mktemp("native") / "bundle")


@pytest.fixture(scope="session")
def static_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rig.build_native(tmp_path_factory.mktemp("static") / "bundle", static=True)


@pytest.fixture(scope="session")
def arm64_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rig.build_arm64(tmp_path_factory.mktemp("arm64") / "bundle")


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Sshd]:
    with rig.start_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def dropbear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Sshd]:
    with rig.start_dropbear(tmp_path_factory.mktemp("dropbear")) as server:
        yield server


@pytest.fixture(scope="session")
def adbd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[adbd_rig.Adbd]:
    with adbd_rig.start_adbd(tmp_path_factory.mktemp("adbd")) as device:
        yield device


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoardMachine]:
    """A machine that runs; others who name its folder share it."""
    with rig.start_board(tmp_path_factory.mktemp("board") / "machine") as machine:
        yield machine


@pytest.fixture(scope="session")
def stored_on_board(board: BoardMachine, arm64_bundle: Path) -> str:
    """The root of a store on the board that has the bundle."""
    root = "/root/stored"
    transport = QemuBoardTransport("board", BoardMachine("board", folder=board.folder), root=root)
    transport.deploy(arm64_bundle, Budget())
    transport.close()
    return root


@pytest.fixture(scope="session")
def bionic_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rig.build_bionic(tmp_path_factory.mktemp("bionic") / "bundle")
