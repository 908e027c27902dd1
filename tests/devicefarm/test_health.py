"""Checks and the ladder of recovery, on a board whose every part can fail, and on real processes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.channel import Channel
from smelt.devicefarm.client import open_session
from smelt.devicefarm.doctor import Finding
from smelt.devicefarm.health import (
    BOOT_ID,
    Ladder,
    Patient,
    Rung,
    Unwell,
    boot_id,
    ensure_well,
    full_check,
    patient_of,
)
from smelt.devicefarm.inventory import Device
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.power import ShellPower, power_of
from smelt.devicefarm.transport import Completed, Transport


@dataclass
class Board:
    """A board that is well again after `cure`, and a transport to it. Time passes when someone sleeps."""

    cure: str = ""
    boots: int = 1
    down: int = 0  # looks for which it does not answer
    frozen: bool = False  # power or reboot do nothing
    time: float = 0.0
    closed: int = 0
    name: str = "board"
    emulated: bool = True
    done: list[str] = field(default_factory=list)

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        self.time += 0.1
        if argv[0] == "cat":
            if self.down:
                self.down -= 1
                raise infra("no route to the board")
            return Completed(0, f"boot {self.boots}\n", "")
        if "reboot" in argv[-1]:
            self.restarted("reboot")
            raise infra("the link was lost")
        if "kill" in argv[2]:
            self.done.append("kill")
        return Completed(0, "", "")

    def cycle(self, budget: Budget) -> None:
        self.restarted("power cycle")

    def restarted(self, how: str) -> None:
        self.done.append(how)
        if not self.frozen:
            self.boots, self.down = self.boots + 1, 3

    def check(self, transport: Transport) -> tuple[Finding, ...]:
        well = self.cure in self.done or (self.cure == "reconnect" and self.closed > 0)
        return (Finding("echo", well, "answered" if well else "it says nothing"),)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def close(self) -> None:
        self.closed += 1

    def deploy(self, bundle: Path, budget: Budget) -> str:
        raise NotImplementedError

    def damaged(self, bundle: Path, budget: Budget) -> tuple[str, ...]:
        raise NotImplementedError

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        raise NotImplementedError

    def system_log(self, seconds: float, pid: int) -> str:
        return ""

    def free_bytes(self, budget: Budget) -> int | None:
        return None


def mend(board: Board, *, power: bool = True, reboot: bool = True, total: float = 300.0) -> tuple[Rung, ...]:
    patient = Patient(board, "/store", board if power else None, reboot)
    return ensure_well(
        patient, check=board.check, ladder=Ladder(total=total), clock=lambda: board.time, sleep=board.sleep
    )


@pytest.mark.parametrize("cure", ["reconnect", "kill", "reboot", "power cycle"])
def test_the_first_step_that_helps_is_the_last(cure: str) -> None:
    board = Board(cure)
    steps = mend(board)
    assert [s.name for s in steps if s.mended] == [cure] == [steps[-1].name]
    assert ("power cycle" in board.done) == (cure == "power cycle")


def test_a_device_that_is_well_is_left_alone() -> None:
    board = Board("nothing", done=["nothing"])
    assert mend(board) == ()
    assert (board.done, board.closed) == (["nothing"], 0)


def test_a_boot_is_proved_by_its_id() -> None:
    board = Board("reboot", frozen=True)
    with pytest.raises(Unwell, match="boot id is the same, so it has not restarted") as caught:
        mend(board)
    assert [s.name for s in caught.value.steps] == ["check", "reconnect", "kill", "reboot", "power cycle"]
    assert caught.value.kind == "infra"
    assert mend(Board("reboot"))[-1].detail == "boot id boot 2"


def test_the_means_that_a_device_has_not_are_not_used() -> None:
    board = Board("power cycle")
    with pytest.raises(Unwell) as caught:
        mend(board, power=False, reboot=False)
    assert [s.name for s in caught.value.steps] == ["check", "reconnect", "kill"]
    assert board.done == ["kill"]


def test_the_ladder_ends_when_its_budget_is_spent() -> None:
    board = Board("power cycle", frozen=True)
    with pytest.raises(Unwell, match="not tried: 20 s have passed"):
        mend(board, total=20.0)
    assert board.time < 30


# ---------------------------------------------------------------- real parts


def test_a_runner_that_was_left_is_killed_and_no_other(native_bundle: Path, tmp_path: Path) -> None:
    left, other = (LocalTransport(n, store=tmp_path / n) for n in ("left", "other"))
    fed = [np.zeros((1, 1), np.float32), np.int32(0)]
    with open_session(left, native_bundle) as lost, open_session(other, native_bundle) as alive:
        ill = [True, True]  # until the second step

        def check(transport: Transport) -> tuple[Finding, ...]:
            return (Finding("echo", not ill or not ill.pop(), ""),)

        steps = ensure_well(Patient(left, str(tmp_path / "left")), check=check)
        assert [s.name for s in steps] == ["check", "reconnect", "kill"]
        with pytest.raises(SmeltError):
            lost.run(fed)
        alive.run(fed)


def test_a_full_check_starts_a_runner(native_bundle: Path, tmp_path: Path) -> None:
    board = LocalTransport("board", store=tmp_path / "store")
    found = {f.check: f.ok for f in full_check(board, native_bundle)}
    assert (found["echo"], found["disk"], found["runner"]) == (True, True, True)
    assert found["load"] is not False  # a busy device is well
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "smelt_run").write_text("#!/bin/sh\nexit 3\n")
    assert {f.check: f.ok for f in full_check(board, broken)}["runner"] is False
    board.close()


def test_the_boot_id_of_a_machine(tmp_path: Path) -> None:
    assert len(boot_id(LocalTransport())) == 36


def test_a_power_command_gets_the_name_and_its_failure_is_told(tmp_path: Path) -> None:
    device = Device("pi5", "ssh", "aarch64-linux", power=f"shell: echo $SMELT_DEVICE >{tmp_path}/out")
    control = power_of(device)
    assert isinstance(control, ShellPower)
    control.cycle(Budget())
    assert (tmp_path / "out").read_text() == "pi5\n"
    with pytest.raises(SmeltError, match="ended with 3: relay is gone"):
        ShellPower("pi5", "echo relay is gone >&2; exit 3").cycle(Budget())
    assert power_of(Device("x", "ssh", "aarch64-linux")) is None
    with pytest.raises(SmeltError, match=r"there are 'shell:\.\.\.'"):
        power_of(Device("x", "ssh", "aarch64-linux", power="magic"))


def test_this_machine_is_never_rebooted() -> None:
    for device in (Device("a", "local", "host"), Device("b", "ssh", "aarch64-linux")):
        patient = patient_of(device, LocalTransport())
        assert not patient.may_reboot
        assert patient.power is None
    allowed = patient_of(Device("b", "ssh", "aarch64-linux", tags=("reboot",)), LocalTransport())
    assert allowed.may_reboot
    assert allowed.root


def test_a_stopped_board_is_power_cycled_for_real(tmp_path: Path) -> None:
    """The board is a shell that reads a boot id from a file; its power command starts it anew."""
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    alive = subprocess.Popen(["sleep", "1000"])

    class Slow(LocalTransport):
        def execute(self, argv: list[str], budget: Budget) -> Completed:
            if not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text()}"):
                raise infra("it does not answer")
            return super().execute([a.replace(BOOT_ID, str(boot)) for a in argv], budget)

    (tmp_path / "pid").write_text(str(alive.pid))
    alive.kill()
    alive.wait()
    command = f"sleep 1000 & echo -n $! >{tmp_path}/pid; echo second >{boot}"
    try:
        power = ShellPower("slow", f"({command}) >/dev/null 2>&1")
        patient = Patient(Slow("slow"), power=power, boot_id="first")
        steps = ensure_well(patient)
        assert steps[-1] == Rung("power cycle", True, "boot id second")
    finally:
        subprocess.run(["kill", (tmp_path / "pid").read_text()], check=False)
