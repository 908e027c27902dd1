"""A whole emulated board: it is found out as one, its power can be taken, and it ends with its last user."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rig

from smelt.core.diag import SmeltError
from smelt.devicefarm import qemu_board
from smelt.devicefarm.board_image import archive
from smelt.devicefarm.budget import LINK_LOST, LINK_STALLED, Budget, InfraError, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.measure import QUICK, TimingVerdict
from smelt.devicefarm.qemu_board import BoardMachine, QemuBoardTransport
from smelt.devicefarm.ssh import SshTransport

LIMITS = StepLimits(connect=60, command=60, load=100, run=100, silence=4, beat=0.5, total=600)
BOOT_ID = ["cat", "/proc/sys/kernel/random/boot_id"]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
FINE, SPIN, NAP = np.int32(0), np.int32(3), np.int32(9)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoardMachine]:
    """One whose power these tests take."""
    with rig.start_board(tmp_path_factory.mktemp("powered") / "machine") as made:
        yield made


@pytest.fixture
def board(machine: BoardMachine) -> Iterator[QemuBoardTransport]:
    made = QemuBoardTransport("board", BoardMachine("board", folder=machine.folder))
    yield made
    made.close()


def works(transport: QemuBoardTransport, bundle: Path) -> str:
    """Run the model; the id of the boot in which it ran."""
    with open_session(transport, bundle, budget=Budget(LIMITS)) as client:
        assert np.array_equal(client.run([X, FINE]).outputs["y"], 2 * X)
        assert client.facts is not None
        return client.facts.boot_id


def test_over_plain_ssh_it_says_itself_that_it_is_emulated(machine: BoardMachine, arm64_bundle: Path) -> None:
    """Neither the transport nor a row says so."""
    transport = SshTransport("sold as real", machine.start())
    assert not transport.emulated
    with open_session(transport, arm64_bundle, budget=Budget(LIMITS)) as client:
        report = client.run([X, NAP], QUICK)
    transport.close()
    assert report.emulated
    assert report.facts.emulation == "the device tree says 'linux,dummy-virt'"
    assert report.timing is not None
    assert report.timing.verdict is TimingVerdict.EMULATED
    assert report.facts.libc.startswith("glibc 2.")
    assert [c.count for c in report.facts.clusters] == [2]


@pytest.mark.parametrize("how", ["off", "reset", "panic"])
def test_power_is_lost_in_a_run(
    how: str, machine: BoardMachine, board: QemuBoardTransport, arm64_bundle: Path
) -> None:
    """The run ends as the infrastructure's failure; the next session has a board that has booted anew."""
    before = works(board, arm64_bundle)
    act = {"off": machine.power.off, "reset": machine.power.reset, "panic": machine.power.panic}[how]
    with open_session(board, arm64_bundle, budget=Budget(LIMITS)) as client:
        cutter = threading.Timer(0.5, act)
        cutter.start()
        with pytest.raises(SmeltError) as caught:
            client.run([X, SPIN])
        cutter.join()
    assert isinstance(caught.value, InfraError)
    assert caught.value.status in (LINK_LOST, LINK_STALLED)
    assert machine.power.is_on() == (how != "off")
    if how == "panic":
        assert "sysrq: Trigger a crash" in machine.power.console()
    board.close()
    again = QemuBoardTransport("board", BoardMachine("board", folder=machine.folder))
    assert works(again, arm64_bundle) != before
    again.close()


def test_board_that_hangs_is_noticed_and_goes_on(
    machine: BoardMachine, board: QemuBoardTransport, arm64_bundle: Path
) -> None:
    before = works(board, arm64_bundle)
    with open_session(board, arm64_bundle, budget=Budget(LIMITS)) as client:
        threading.Timer(0.5, machine.power.hang).start()
        start = time.monotonic()
        with pytest.raises(InfraError) as caught:
            client.run([X, SPIN])
        assert caught.value.status == LINK_STALLED
        assert time.monotonic() - start < LIMITS.run
    assert machine.power.status() == "paused"
    machine.power.resume()
    board.close()
    again = QemuBoardTransport("board", BoardMachine("board", folder=machine.folder))
    assert works(again, arm64_bundle) == before
    again.close()


def test_an_emulator_that_is_silent_is_on_and_its_power_can_be_cut(
    machine: BoardMachine, board: QemuBoardTransport, arm64_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no second one that is started, beside a machine that others use."""
    before, state = works(board, arm64_bundle), (machine.folder / "state.json").read_text()
    emulator = int((machine.folder / "emulator.pid").read_text())
    os.kill(emulator, signal.SIGSTOP)
    monkeypatch.setattr(qemu_board, "QMP_LIMIT", 3.0)
    assert machine.power.is_on()
    with pytest.raises(SmeltError, match="does not come up within 1 s"):
        machine.start(limit=1)
    assert (machine.folder / "state.json").read_text() == state
    machine.power.cycle(Budget(LIMITS))
    board.close()
    again = QemuBoardTransport("board", BoardMachine("board", folder=machine.folder))
    assert works(again, arm64_bundle) != before
    again.close()


USER = """
import sys, time
from pathlib import Path
from smelt.devicefarm.qemu_board import BoardMachine
machine = BoardMachine("board", folder=Path(sys.argv[1]))
machine.start()
print("up", flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_last_user_even_one_that_is_killed(machine: BoardMachine) -> None:
    """The tests' own machine, of which they are no user any more."""
    folder = machine.folder
    user = subprocess.Popen([sys.executable, "-c", USER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None and user.stdout.readline() == "up\n"
    second = BoardMachine("board", folder=folder)
    second.start()
    machine.release()
    user.send_signal(signal.SIGKILL)
    user.wait()
    user.stdout.close()
    time.sleep(6)  # longer than the lock is waited for at a time
    assert second.power.is_on()
    second.release()
    end = time.monotonic() + 60
    while second.power.is_on() and time.monotonic() < end:
        time.sleep(0.1)
    assert not second.power.is_on()
    with pytest.raises(InfraError, match="is switched off"):
        second.power.reset()


def test_a_process_that_hangs_as_it_starts_the_machine_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.need(rig.program_path("qemu-system-aarch64"), "needs qemu: apt-get install qemu-system-arm")
    monkeypatch.setattr(qemu_board, "TURN_LIMIT", 0.3)
    machine = BoardMachine("board", folder=tmp_path)
    with (tmp_path / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SmeltError, match=rf"lock' has been locked for 0.3 s by process {os.getpid()}"):
            machine.start()
    machine.release()


def test_archive_has_the_kernels_form() -> None:
    made = archive([("d", 0o40755, b""), ("d/f", 0o100644, b"hello")])
    assert made.startswith(b"070701" + b"00000001" + b"000041ED")
    assert len(made) % 4 == 0
    at = made.index(b"d/f\0")
    assert made[at + 8 - (at + 4) % 4 if (at + 4) % 4 else at + 4 :][:5] == b"hello"
    assert made.count(b"070701") == 3 and b"TRAILER!!!\0" in made


def test_emulator_that_does_not_start_says_why(tmp_path: Path) -> None:
    rig.need(rig.program_path("qemu-system-aarch64"), "needs qemu: apt-get install qemu-system-arm")
    machine = BoardMachine("board", cpu="cortex-none", folder=tmp_path / "machine")
    with pytest.raises(InfraError, match="unable to find CPU model 'cortex-none'"):
        machine.start()
    machine.release()
