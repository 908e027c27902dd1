"""Which time of two runtimes counts: a clock that only what is called moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smelt import bench
from smelt.bench import per_run, waited_ns
from smelt.cli.bench import race_table
from smelt.core.session_memory import MEMORY_FIELDS, Memory


class Clock:
    """Nanoseconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[str] = []

    def passes(self, name: str, ns: int) -> bench.Action:
        """Something that takes so long."""

        def action() -> None:
            self.calls.append(name)
            self.now += ns

        return action


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bench.time, "perf_counter_ns", lambda: made.now)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: made.now / 1e9)
    return made


def test_the_way_back_to_the_start_is_not_timed(clock: Clock) -> None:
    ours, theirs, reset = clock.passes("a", 400), clock.passes("b", 700), clock.passes("reset", 10**8)
    pair = bench._pair("x", ours, theirs, 6, 1.0, reset)
    assert set(pair.smelt_ns) == {400}
    assert set(pair.rival_ns) == {700}
    assert pair.ratio == 700 / 400
    before = [x for x, y in zip(clock.calls, clock.calls[1:], strict=False) if y == "a"]
    assert set(before) == {"reset"}, "each run of ours begins at the start"
    assert clock.calls.count("reset") == clock.calls.count("a")


def test_without_a_state_nothing_comes_between(clock: Clock) -> None:
    pair = bench._pair("x", clock.passes("a", 400), clock.passes("b", 200), 5, 1.0)
    assert (set(pair.smelt_ns), set(pair.rival_ns)) == ({400}, {200})
    assert len(pair.smelt_ns) == 5


def test_what_a_run_does_at_units() -> None:
    """The mean over the runs since the last look; nothing of a bundle that runs on the CPU alone."""
    none = Memory(**dict.fromkeys(MEMORY_FIELDS, 0))
    after = replace(none, runs=4, launches=40, submits=6, uploads=8, reads=4, waits=4)
    later = replace(after, runs=6, launches=60, submits=8, uploads=12, reads=6, waits=6)
    wanted = {"launches": 10.0, "submits": 1.5, "uploads": 2.0, "reads": 1.0, "waits": 1.0}
    assert per_run(none, after) == wanted
    assert per_run(after, later) == wanted | {"submits": 1.0}
    assert per_run(none, replace(none, runs=9)) == {}


@pytest.mark.parametrize(
    ("rival", "waited", "verdict"),
    [
        ([2.0, 2.01, 1.99] * 5, 0.0, "valid"), ([2.0, 2.01, 1.99] * 5, 0.2, "busy"),
        ([2.0, 3.0, 1.0] * 5, 0.0, "unstable"), ([2.0, 3.0, 1.0] * 5, 0.2, "busy"),
    ],
)  # fmt: skip
def test_a_race_has_a_verdict(rival: list[float], waited: float, verdict: str) -> None:
    pair = bench.Pair("x", (1.0,) * 15, tuple(rival), waited)
    assert pair.verdict.value == verdict and pair.ratio == 2
    table = race_table((pair,)).splitlines()
    assert table[1].endswith(verdict) and len(table) == 2 + len(pair.doubts)


def test_waiting_is_told_by_the_kernel() -> None:
    assert waited_ns() >= 0
