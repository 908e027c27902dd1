"""Conditions of measuring: profiles chosen and set on a fake sysfs, set back in every way to end, and the
gate of heat."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.condition import Condition, Policy
from smelt.devicefarm.measure import TimingVerdict
from smelt.devicefarm.profiles import AS_SHIPPED, Gate, Profile, controlled, mask, processors, wait_until_cool

# ---------------------------------------------------------------- which profile


def policy(number: int, cpus: str, most: int | None) -> Policy:
    return Policy(number, cpus, "schedutil", 10**6, 10**6, most)


def test_the_fastest_processors_are_chosen() -> None:
    phone = Condition(
        policies=(policy(0, "0-3", 1_800_000), policy(4, "4 5 6", 2_400_000), policy(7, "7", 2_400_000))
    )
    assert controlled(phone) == Profile("controlled", "performance", 0, (4, 5, 6, 7))
    assert controlled(phone, khz=5, cpus=(1,)) == Profile("controlled", "performance", 5, (1,))
    for equal in (
        Condition(),
        Condition(policies=(policy(0, "0-3", 9), policy(4, "4-7", 9), policy(8, "8", None))),
    ):
        assert controlled(equal).cpus == ()


def test_lists_of_processors() -> None:
    assert processors("0-2,7") == (0, 1, 2, 7) and processors("3 1") == (1, 3) and processors("") == ()
    assert mask((0, 9)) == b"\x01\x02" + bytes(126) and mask(()) == bytes(128)
    for bad in ("x", "-1", "1-", "1-x", "١", "1024", "0-9999", "0-9999999", "1-²", "1" * 30):
        with pytest.raises(SmeltError, match="processor"):
            processors(bad)


# ---------------------------------------------------------------- on the device

CPUFREQ = "devices/system/cpu/cpufreq"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A sysfs of two policies."""
    for number in (0, 4):
        for file, value in {
            "scaling_governor": "schedutil", "scaling_min_freq": 300_000 + number,
            "scaling_max_freq": 1_800_000, "cpuinfo_max_freq": 1_800_000 + number,
        }.items():  # fmt: skip
            path = tmp_path / CPUFREQ / f"policy{number}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    return tmp_path


def state(board: Path) -> dict[str, str]:
    """All values, as 'policy file' -> text."""
    return {
        f"{p.parent.name} {p.name}": p.read_text().strip()
        for p in sorted((board / CPUFREQ).glob("policy*/*"))
    }


def runner(bundle: Path, board: Path) -> tuple[RunnerClient, PipeChannel]:
    channel = PipeChannel([str(bundle / "smelt_run"), "--serve", "--sysfs", str(board)])
    return RunnerClient(channel, budget=Budget(StepLimits(total=60))), channel


FIXED = Profile("controlled", "performance", 1_200_000, ())


def test_set_and_set_back_by_every_way_to_end(native_bundle: Path, board: Path) -> None:
    before = state(board)

    def close(client: RunnerClient, channel: PipeChannel) -> None:
        client.close()

    def hang_up(client: RunnerClient, channel: PipeChannel) -> None:
        assert channel.process.stdin is not None
        channel.process.stdin.close()
        channel.process.wait(10)
        client.close()

    def kill_and_start_another(client: RunnerClient, channel: PipeChannel) -> None:
        channel.process.kill()
        channel.process.wait()
        client.close()
        assert state(board) != before
        other, _ = runner(native_bundle, board)
        other.hello()
        assert state(board) == before
        other.close()

    def give_another_profile(client: RunnerClient, channel: PipeChannel) -> None:
        client.control(AS_SHIPPED)
        assert state(board) == before
        client.close()

    for end in (close, hang_up, kill_and_start_another, give_another_profile):
        client, channel = runner(native_bundle, board)
        found = client.control(FIXED)
        assert found.profile == FIXED and not found.refused
        assert found.changed[f"{CPUFREQ}/policy4/scaling_governor"] == ("schedutil", "performance")
        assert len(found.changed) == 6
        for text in state(board).items():
            assert text[0].endswith("cpuinfo_max_freq") or text[1] in ("performance", "1200000"), text
        end(client, channel)
        assert state(board) == before, end.__name__
        assert not (board / "smelt-control").exists()


def test_what_cannot_be_set_is_told(native_bundle: Path, board: Path) -> None:
    (board / CPUFREQ / "policy4" / "scaling_governor").unlink()
    client, _ = runner(native_bundle, board)
    found = client.control(Profile("controlled", "performance", 0, (1023,)))
    assert set(found.changed) == {f"{CPUFREQ}/policy0/scaling_governor"}
    assert found.refused[f"{CPUFREQ}/policy4/scaling_governor"] == ("performance", "")
    assert found.refused["processors"] == ("those named", "none that may be used")
    assert "  not set: processors: wanted those named, found none that may be used" in found.lines()
    assert f"  set: {CPUFREQ}/policy0/scaling_governor: performance (was schedutil)" in found.lines()
    client.close()


def test_a_device_without_frequencies(native_bundle: Path, tmp_path: Path) -> None:
    client, _ = runner(native_bundle, tmp_path)
    found = client.control(Profile("controlled", "performance"))
    assert found.refused == {"cpufreq": ("a governor or a frequency", "no policy")} and not found.changed
    client.close()
    assert list(tmp_path.iterdir()) == []


def test_another_runner_neither_sets_back_nor_changes(native_bundle: Path, board: Path) -> None:
    first, _ = runner(native_bundle, board)
    first.control(FIXED)
    under = state(board)
    second, _ = runner(native_bundle, board)
    second.hello()
    assert state(board) == under
    assert "another runner has it" in second.control(Profile("controlled", "powersave")).refused["cpufreq"][1]
    assert state(board) == under
    second.close()
    assert state(board) == under
    first.close()


@pytest.mark.parametrize(
    "record", [b"", b"\n\n", b"0 0", b"9 9 x\n", b"0 0 ok\nx y z\n\xff\n1", b"0 0 " + b"9" * 70_000]
)
def test_a_damaged_record_does_no_harm(native_bundle: Path, board: Path, record: bytes) -> None:
    (board / "smelt-control").write_bytes(record)
    before = state(board)
    client, _ = runner(native_bundle, board)
    client.hello()
    client.close()
    after = state(board)
    assert {k for k in after if after[k] != before[k]} <= {"policy0 scaling_governor"}
    assert not (board / "smelt-control").exists()


def test_a_lock_that_stays_is_respected(native_bundle: Path, board: Path) -> None:
    record = board / "smelt-control"
    record.write_text("0 0 powersave\n")
    with record.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        client, _ = runner(native_bundle, board)
        client.hello()
        client.close()
        assert record.exists() and state(board)["policy0 scaling_governor"] == "schedutil"


def test_models_run_on_the_processors_of_the_profile(native_bundle: Path, tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    client, channel = runner(native_bundle, tmp_path)
    assert not client.control(Profile("controlled", cpus=(last,))).refused
    client.load(str(native_bundle))
    children = Path(f"/proc/{channel.process.pid}/task/{channel.process.pid}/children").read_text().split()
    assert [os.sched_getaffinity(int(pid)) for pid in children] == [{last}]
    assert len(os.sched_getaffinity(channel.process.pid)) == len(os.sched_getaffinity(0))
    client.run([np.zeros((1, 1), np.float32), np.int32(0)])
    client.close()


# ---------------------------------------------------------------- heat

GATE = Gate()


def wait(temperature: Callable[[float], float | None]) -> tuple[float, str]:
    """How long the gate waits for a device of that temperature over time in s, and what it says."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    doubt = wait_until_cool(lambda: temperature(now[0]), GATE, clock=lambda: now[0], sleep=sleep)
    assert doubt is None or doubt.kind is TimingVerdict.TOO_HOT
    return now[0], doubt.text if doubt else ""


def test_no_sensor_and_a_cold_device_do_not_wait() -> None:
    assert wait(lambda t: None) == (0.0, "")
    assert wait(lambda t: 40 + t) == (0.0, "")


def test_cooling_is_waited_for() -> None:
    waited, said = wait(lambda t: 45 + 40 * 2 ** (-t / 60))
    assert said == "" and 55 < waited < 65  # 65 degrees after 60 s


def test_warming_below_the_limit_is_waited_for() -> None:
    waited, said = wait(lambda t: min(64.0, 56 + t / 20))
    assert said == "" and waited > 160  # it is level after 160 s


def test_a_sensor_of_whole_degrees() -> None:
    waited, said = wait(lambda t: float(round(50 + 20 * 2 ** (-t / 30))))
    assert said == "" and waited < 120


@pytest.mark.parametrize("temperature", [lambda t: 80.0, lambda t: 51 + t / 60])
def test_a_device_that_stays_hot_or_warms_is_too_hot(temperature: Callable[[float], float]) -> None:
    waited, said = wait(temperature)
    assert waited == GATE.most_wait and "after 300 s of waiting; wanted 65 and below +0.5" in said


def test_a_sensor_that_goes_away_ends_the_wait() -> None:
    assert wait(lambda t: 80.0 if t < 5 else None) == (5.0, "")
