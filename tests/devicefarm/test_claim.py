"""Fencing tokens where they count: in the device's store, by its runner, and on the host."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import struct
import subprocess
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import rig
from boards import need_qemu

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.claim import RECORD, DeviceClaim, FenceFile, Stale
from smelt.devicefarm.client import RunnerClient, open_session
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.qemu_user import qemu_user
from smelt.devicefarm.report import RunnerError
from smelt.devicefarm.ssh import SshTransport
from smelt.devicefarm.transport import Transport

LIMITS = StepLimits(connect=100, load=100, run=100, output=100, total=600)
FINE, SPIN = np.int32(0), np.int32(3)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@dataclass(frozen=True)
class Board:
    """A transport with a store, whose root is a folder here."""

    transport: Transport
    bundle: Path
    root: Path

    def session(self, fence: int):  # type: ignore[no-untyped-def]
        return open_session(self.transport, self.bundle, budget=Budget(LIMITS), claim=DeviceClaim(fence))


@pytest.fixture(params=["store", "qemu-user", "ssh"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Board]:
    root = tmp_path / "root"
    if request.param == "qemu-user":
        need_qemu("qemu-aarch64-static")
        bundle = request.getfixturevalue("arm64_bundle")
        transport: Transport = qemu_user("emulated", "qemu-aarch64", sysroot=rig.SYSROOT, store=root)
    else:
        bundle = request.getfixturevalue("native_bundle")
        transport = LocalTransport("stored", store=root)
        if request.param == "ssh":
            transport = SshTransport("board", request.getfixturevalue("sshd").address, root=str(root))
    yield Board(transport, bundle, root)
    transport.close()


def works(client: RunnerClient) -> bool:
    return bool(np.array_equal(client.run([X, FINE]).outputs["y"], 2 * X))


def test_a_newer_lease_ends_an_older_one_at_work(board: Board) -> None:
    with board.session(7) as old:
        assert works(old)
        with board.session(8) as new:
            assert works(new)
            with pytest.raises(RunnerError, match="newer lease") as caught:
                old.run([X, FINE])
            assert caught.value.status == "stale"
            assert works(new)
    assert FenceFile(board.root / "fence").highest() == 8


def test_a_run_under_way_ends_when_a_newer_lease_comes(board: Board) -> None:
    with board.session(7) as old, ThreadPoolExecutor(1) as pool:
        spinning = pool.submit(old.run, [X, SPIN])
        with board.session(9) as new:
            with pytest.raises(RunnerError, match="newer lease"):
                spinning.result(60)
            assert works(new)


def test_an_older_lease_is_refused_by_every_later_runner(board: Board) -> None:
    with board.session(8) as new:
        assert works(new)
    with pytest.raises(RunnerError, match="newer lease"), board.session(7):
        pass
    with board.session(8) as again:
        assert works(again)


def test_a_runner_that_is_stopped_does_not_hold_the_device(board: Board) -> None:
    with board.session(7) as old:
        assert works(old)
        assert old.facts is not None
        os.kill(old.facts.pid, signal.SIGSTOP)
        with board.session(8) as new:
            assert works(new)
        with pytest.raises(SmeltError):
            old.run([X, FINE])


def test_a_damaged_fence_file_shuts_nobody_out(board: Board) -> None:
    with board.session(7) as old:
        assert works(old)
    (board.root / "fence").write_bytes(b"\xff" * RECORD.size)
    with board.session(1) as any_lease:
        assert works(any_lease)
    assert FenceFile(board.root / "fence").highest() == 1


@pytest.mark.parametrize("whole", [True, False])
def test_only_a_whole_record_of_who_works_names_a_process_to_kill(board: Board, whole: bool) -> None:
    """A disk that changes the number of the process must not have another one killed."""
    with board.session(7) as old:
        assert works(old)
    with subprocess.Popen(["sleep", "1000"]) as holder, (board.root / "fence.busy").open("r+b") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        record = struct.pack("<QI", 7, holder.pid)
        busy.write(record + struct.pack("<I", zlib.crc32(record) ^ (not whole)))
        busy.flush()
        with pytest.raises(RunnerError, match="another runner still works"), board.session(8):
            pass
        assert holder.poll() == (-signal.SIGKILL if whole else None)
        holder.kill()


def test_a_bundle_that_is_run_in_its_place_has_its_fence_elsewhere(
    native_bundle: Path, tmp_path: Path
) -> None:
    place = str(tmp_path / "fence")
    with open_session(LocalTransport(), native_bundle, claim=DeviceClaim(5, place=place)) as client:
        assert works(client)
    with (
        pytest.raises(RunnerError, match="newer lease"),
        open_session(LocalTransport(), native_bundle, claim=DeviceClaim(4, place=place)),
    ):
        pass
    missing = DeviceClaim(6, place=str(tmp_path / "missing" / "fence"))
    with (
        pytest.raises(SmeltError, match="fence file cannot be opened") as caught,
        open_session(LocalTransport(), native_bundle, claim=missing),
    ):
        pass
    assert caught.value.kind == "infra"


def test_a_claim_is_checked_before_every_request(native_bundle: Path) -> None:
    over: list[SmeltError] = []

    def check() -> None:
        if over:
            raise over[0]

    with open_session(LocalTransport(), native_bundle, claim=DeviceClaim(0, check)) as client:
        assert works(client)
        over.append(Stale("x", 1, 2))
        with pytest.raises(Stale):
            client.run([X, FINE])


# ---------------------------------------------------------------- the host's own file


def test_a_host_lets_in_no_older_token(tmp_path: Path) -> None:
    kept = FenceFile(tmp_path / "new" / "fence")
    assert kept.highest() == 0
    for fence in (3, 3, 5):
        kept.admit(fence)
    with pytest.raises(Stale, match="has seen fence 5"):
        kept.admit(4)
    raw = (5).to_bytes(8, "little")
    assert kept.path.read_bytes() == raw + zlib.crc32(raw).to_bytes(4, "little")


def _race(path: Path, fences: list[int]) -> list[int]:
    let_in = []
    for fence in fences:
        try:
            FenceFile(path).admit(fence)
            let_in.append(fence)
        except Stale:
            continue
    return let_in


def test_tokens_that_race_are_let_in_in_order(tmp_path: Path) -> None:
    path = tmp_path / "fence"
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.starmap(_race, [(path, list(range(k, 300, 3))) for k in range(3)])
    assert FenceFile(path).highest() == max(f for one in found for f in one) == 299


def test_a_fence_file_that_cannot_be_made_is_infrastructure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SmeltError, match="cannot be opened") as caught:
        FenceFile(tmp_path / "file" / "fence").admit(1)
    assert caught.value.kind == "infra"


def test_a_runner_of_the_same_lease_is_waited_for_and_not_killed(native_bundle: Path, tmp_path: Path) -> None:
    """Two builds that are compared have a runner each; only one has a model loaded at a time."""
    board = LocalTransport("stored", store=tmp_path / "root")
    with open_session(board, native_bundle, claim=DeviceClaim(5)) as one:
        with (
            pytest.raises(RunnerError, match="another runner still works") as caught,
            open_session(board, native_bundle, claim=DeviceClaim(5)),
        ):
            pass
        assert caught.value.kind == "infra"
        assert works(one)
        one.reset()
        with open_session(board, native_bundle, claim=DeviceClaim(5)) as two:
            assert works(two)
