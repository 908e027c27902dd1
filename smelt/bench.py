"""A bundle and inputs -> times: on a device by its runner, or here in turns with ONNX Runtime."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from smelt.core.bundle import Bundle
from smelt.core.session_memory import Memory
from smelt.devicefarm.measure import QUICK, STEADY, RunPlan, median
from smelt.devicefarm.report import RunReport
from smelt.devicefarm.verdict import Verdict, verdict_of_timing
from smelt.leasing import Where
from smelt.reference import Reference
from smelt.running import running
from smelt.session import load
from smelt.shapes import RunCase

PLANS: dict[str, RunPlan] = {"quick": QUICK, "steady": STEADY}


UNIT_COUNTS = ("launches", "submits", "uploads", "reads", "waits")
"""What a run does at units besides the CPU: fields of Memory, which count from the start of the session."""


@dataclass(frozen=True)
class Measured:
    """The times of one case on one device, in ns. load_ns: what opening library and session took. per_run:
    counts of UNIT_COUNTS; {}: all ran on the CPU."""

    label: str
    load_ns: int
    report: RunReport
    per_run: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Whether the times may be used."""
        timing = self.report.timing
        assert timing is not None
        return verdict_of_timing(timing)


def measure(
    bundle: Bundle,
    cases: Sequence[RunCase],
    *,
    device: Where = None,
    threads: int = 0,
    plan: RunPlan = STEADY,
    on_case: Callable[[Measured], None] = lambda m: None,
) -> tuple[Measured, ...]:
    """Measure load, first and steady times of every case, in ns, by the runner on the device.

    threads: 0 takes the bundle's default. on_case: called after each case. Raises SmeltError: 'infra' for no
    device or a lost link, RunnerError for what the model or the runner refuses.
    """
    found = []
    with running(bundle, device, threads=threads) as client:
        assert client.model is not None
        before: Memory = client.model.memory
        for case in cases:
            report = client.run(case.tensors, plan, outputs=False)
            counted = per_run(before, report.memory)
            before = report.memory
            found.append(Measured(case.label, client.model.load_ns, report, counted))
            on_case(found[-1])
    return tuple(found)


def per_run(before: Memory, after: Memory) -> dict[str, float]:
    """The mean over the runs between two looks."""
    runs = max(1, after.runs - before.runs)
    counts = {name: (getattr(after, name) - getattr(before, name)) / runs for name in UNIT_COUNTS}
    return counts if counts["launches"] else {}


@dataclass(frozen=True)
class Pair:
    """One case, run by both runtimes in turns in this process: ns per run of each round."""

    label: str
    smelt_ns: tuple[float, ...]
    rival_ns: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Speedup over the rival: the median over rounds of rival / smelt, above 1 where smelt is faster."""
        return median([r / s for r, s in zip(self.rival_ns, self.smelt_ns, strict=True)])


def against(
    bundle: Bundle,
    model: Path,
    cases: Sequence[RunCase],
    *,
    threads: int = 1,
    rounds: int = 15,
    seconds: float = 6.0,
    on_case: Callable[[Pair], None] = lambda p: None,
) -> tuple[Pair, ...]:
    """Time the bundle and ONNX Runtime in turns (ABBA), so that a drift of the machine's speed affects both
    alike. Where a model keeps state, both begin every run at its start.

    rounds: how many a case has at most. seconds: a case ends after so many, but not before 5 rounds.
    Raises SmeltError as `load` and Reference do, and for inputs that one of the two refuses.
    """
    session, rival = load(bundle, threads=threads), Reference(model, threads=threads, exact=False)
    found = []
    for case in cases:
        theirs = partial(rival.run, {**case.feed, **case.state})
        ours = partial(session.run, None, case.feed)
        found.append(_pair(case.label, ours, theirs, rounds, seconds, session.reset if case.state else None))
        on_case(found[-1])
    session.close()
    return tuple(found)


Action: TypeAlias = Callable[[], object]


def _pair(
    label: str, a: Action, b: Action, rounds: int, seconds: float, before_a: Action | None = None
) -> Pair:
    """Time a and b in turns. before_a: called before each run of a, untimed, to reset its state."""
    once = min(_timed(f, 1, before) for f, before in 2 * ((a, before_a), (b, None)))
    inner = max(1, math.ceil(1e6 / max(once, 1.0)))  # a sample lasts a millisecond or more
    ours: list[float] = []
    theirs: list[float] = []
    start = time.perf_counter()
    for i in range(rounds):
        for mine in (True, False) if i % 2 == 0 else (False, True):
            (ours if mine else theirs).append(_timed(a, inner, before_a) if mine else _timed(b, inner, None))
        if time.perf_counter() - start > seconds and i >= 4:
            break
    return Pair(label, tuple(ours), tuple(theirs))


def _timed(f: Action, inner: int, before: Action | None) -> float:
    """Nanoseconds per call of f, averaged over `inner` calls. before: called before each of them, untimed."""
    if before is None:
        start = time.perf_counter_ns()
        for _ in range(inner):
            f()
        return (time.perf_counter_ns() - start) / inner
    total = 0
    for _ in range(inner):
        before()
        start = time.perf_counter_ns()
        f()
        total += time.perf_counter_ns() - start
    return total / inner


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
