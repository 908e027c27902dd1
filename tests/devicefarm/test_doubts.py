"""What a run was refused -> doubts: each kind is found where it is, and nothing on a quiet device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smelt.devicefarm.condition import Condition, Cooling, Policy, TelemetryReading, Zone
from smelt.devicefarm.doubts import Samples, find_doubts
from smelt.devicefarm.measure import Doubt, TimingVerdict

MS = 10**6
CALM = Condition(
    (Zone(0, "cpu", 45.0),),
    (Policy(0, "0-3", "schedutil", 10**6, 10**6, 10**6),),
    (Cooling("c", 0),),
    0x50000,
)
FIRST = TelemetryReading(0, 0, 45.0, 10**6, 10**6, 0, (0, 0), (0, 0))
LAST = replace(FIRST, at_ns=1000 * MS, sample=100, busy=(99, 3))
QUIET = Samples(
    1, (10 * MS,) * 100, (int(9.9 * MS),) * 100, (20_000,) * 100, (0,) * 100, (0,) * 100
)  # a second on the first of two processors


def doubts(
    samples: Samples = QUIET,
    last: TelemetryReading = LAST,
    *,
    before: Condition = CALM,
    after: Condition = CALM,
    emulated: bool = False,
    settled: bool = True,
    between: tuple[TelemetryReading, ...] = (),
) -> tuple[Doubt, ...]:
    return find_doubts(samples, (FIRST, *between, last), before, after, emulated=emulated, settled=settled)


def test_a_quiet_device_raises_none() -> None:
    assert doubts() == ()
    assert find_doubts(Samples(), (), CALM, CALM, emulated=False, settled=True) == ()


def longer(count: int, wait: int | None, taken: int = 1) -> Samples:
    """The last `count` samples waited."""
    return replace(
        QUIET,
        wait_ns=QUIET.wait_ns[count:] + (wait,) * count if wait is not None else (None,) * 100,
        preempted=QUIET.preempted[count:] + (taken,) * count,
    )


@pytest.mark.parametrize(
    ("samples", "busy"),
    [
        (longer(11, MS), True), (longer(9, MS // 2), False), (longer(100, MS), True),
        (longer(3, 40 * MS), True),  # few, but for long
        (longer(100, 100_000, 5), False),  # a timer's interrupt in each
        (longer(11, None), True), (longer(9, None), False),  # an old kernel: preemptions alone
    ],
)  # fmt: skip
def test_waiting_for_a_processor_is_busy(samples: Samples, busy: bool) -> None:
    assert [d.kind for d in doubts(samples)] == [TimingVerdict.BUSY] * busy


@pytest.mark.parametrize(
    ("last", "word"),
    [
        (replace(LAST, busy=(99, 60)), "other programs used 0.60 processors"),
        (replace(LAST, busy=(99, 15)), None),
        (replace(LAST, stolen=(9, 0)), "hypervisor took the processor for 9%"),
        (replace(LAST, stolen=(0, 50)), None),  # of a processor that the model did not use
        (replace(LAST, at_ns=50 * MS, busy=(30, 30)), None),  # too short for ticks to tell
    ],
)
def test_others_on_any_processor(last: TelemetryReading, word: str | None) -> None:
    found = doubts(last=last)
    assert [d.kind for d in found] == [TimingVerdict.BUSY] * (word is not None)
    assert word is None or word in found[0].text


def test_a_server_of_many_processors_may_do_something_else_but_little() -> None:
    def told(foreign: int) -> bool:
        last = replace(LAST, busy=(99, foreign, *[0] * 62))
        return bool(find_doubts(QUIET, (FIRST, last), CALM, CALM, emulated=False, settled=True))

    assert told(100) and not told(40)


SLOWER = replace(CALM, policies=(Policy(0, "0-3", "schedutil", 10**6, 600_000, 10**6),))


@pytest.mark.parametrize(
    ("found", "kind", "word"),
    [
        (doubts(after=SLOWER), TimingVerdict.THROTTLED, "processors 0-3 fell from 1000000 to 600000 kHz"),
        (doubts(between=(replace(LAST, limits_khz=5),)), TimingVerdict.THROTTLED, "fell for a time"),
        (doubts(after=replace(CALM, cooling=(Cooling("c", 2),))), TimingVerdict.THROTTLED, "level 2"),
        (doubts(between=(replace(LAST, cooling=1),)), TimingVerdict.THROTTLED, "level 1"),
        (doubts(after=replace(CALM, firmware=0x50005)), TimingVerdict.THROTTLED, "(0x5)"),
        (doubts(after=replace(CALM, firmware=0xD0000)), TimingVerdict.THROTTLED, "(0x80000)"),
        (doubts(after=replace(CALM, zones=(Zone(3, "a", 91.0),))), TimingVerdict.TOO_HOT, "91 degrees C"),
        (doubts(between=(replace(LAST, degrees=88.0),)), TimingVerdict.TOO_HOT, "88 degrees C"),
        (doubts(last=replace(LAST, khz=800_000)), TimingVerdict.UNSTABLE, "from 1000000 to 800000 kHz"),
        (doubts(settled=False), TimingVerdict.UNSTABLE, "the warm-up"),
        (doubts(emulated=True), TimingVerdict.EMULATED, "nothing about the speed"),
    ],
)  # fmt: skip
def test_each_kind(found: tuple[Doubt, ...], kind: TimingVerdict, word: str) -> None:
    assert [d.kind for d in found] == [kind] and word in found[0].text


def test_one_odd_frequency_is_no_trend() -> None:
    assert doubts(between=(LAST, replace(LAST, khz=500_000), LAST, LAST)) == ()


def test_what_was_so_before_is_not_the_runs() -> None:
    assert doubts(before=SLOWER, after=SLOWER) == ()  # a limit that its owner has set
    assert doubts(before=replace(CALM, firmware=0xF0000), after=replace(CALM, firmware=0xF0000)) == ()
