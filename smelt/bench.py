"""A bundle and inputs -> times: on a device by its runner, or here in turns with ONNX Runtime."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from smelt.core.bundle import Bundle
from smelt.core.policies import STATIC
from smelt.core.session_memory import Memory
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.doubts import MOST_WAITED
from smelt.devicefarm.measure import (
    NOISE_LIMIT,
    QUICK,
    STEADY,
    SUSTAINED,
    Doubt,
    RunPlan,
    Sustained,
    TimingVerdict,
    gravest,
    median,
    sustained,
)
from smelt.devicefarm.profiles import AS_SHIPPED, GATE, UNCHANGED, Conditions, Gate, Profile
from smelt.devicefarm.report import RunReport
from smelt.devicefarm.verdict import Verdict, verdict_of_timing
from smelt.leasing import Where
from smelt.reference import Reference
from smelt.running import conditioned, runners
from smelt.shapes import RunCase

PLANS: dict[str, RunPlan] = {"quick": QUICK, "steady": STEADY, "sustained": SUSTAINED}


SPREAD_ERROR = 2.58 * 1.4826 * 1.2533
"""Half of a 99 % interval of a median, in median deviations over the root of the count: for a doubt, not a
claim."""
IDLE_SHARE = 0.2
"""Share of one processor below which a process is idle: to ask for it takes some."""
UNIT_COUNTS = ("launches", "submits", "uploads", "reads", "waits")
"""What a run does at units besides the CPU: fields of Memory, which count from the start of the session."""


@dataclass(frozen=True)
class Measured:
    """The times of one case on one device, in ns. load_ns: what opening library and session took. per_run:
    counts of UNIT_COUNTS; {}: all ran on the CPU. conditions: the profile, and what of it could be set.
    plan: how it was measured."""

    label: str
    load_ns: int
    report: RunReport
    per_run: Mapping[str, float] = field(default_factory=dict)
    conditions: Conditions = UNCHANGED
    plan: RunPlan = STEADY

    @cached_property
    def sustained(self) -> Sustained | None:
        """Of a sustained run, what it is about."""
        enough = self.plan is SUSTAINED and len(self.report.samples_ns) >= 30
        return sustained(self.report.samples_ns, self.report.doubts) if enough else None

    @property
    def verdict(self) -> Verdict:
        """Whether the times may be used; of a sustained run, those of its end."""
        timing = self.sustained.steady if self.sustained else self.report.timing
        assert timing is not None
        return verdict_of_timing(timing)


def measure(
    bundle: Bundle,
    cases: Sequence[RunCase],
    *,
    device: Where = None,
    threads: int = 0,
    plan: RunPlan = STEADY,
    choose: Callable[[Condition], Profile] = lambda now: AS_SHIPPED,
    gate: Gate | None = GATE,
    policy: str = STATIC,
    on_case: Callable[[Measured], None] = lambda m: None,
) -> tuple[Measured, ...]:
    """Measure load, first and steady times of every case, in ns, by the runner on the device.

    threads: 0 takes the bundle's default. choose: the profile for a device in that condition. gate: each
    case waits until the device is cool; None does not. policy: what binds runs to units. on_case: called
    after each case. Raises SmeltError: 'infra' for no device or a lost link, RunnerError for what the model
    or the runner refuses.
    """
    found = []
    with runners((bundle,), device) as (runner,):
        (under,) = conditioned((runner,), choose)
        with runner.loaded(threads, policy) as client:
            assert client.model is not None
            before: Memory = client.model.memory
            for case in cases:
                hot = client.cool_down(gate) if gate else None
                report = client.run(case.tensors, plan, outputs=False)
                report = replace(report, doubts=(hot, *report.doubts)) if hot else report
                counted = per_run(before, report.memory)
                before = report.memory
                found.append(Measured(case.label, client.model.load_ns, report, counted, under, plan))
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
    waited: float = 0.0
    """The share of the time in which this process was ready to run and had no processor."""

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Why the times and their ratio may not be what the machine can do."""
        found = []
        if self.waited > MOST_WAITED:
            text = f"both were ready and had no processor for {self.waited:.0%} of the time"
            found.append(Doubt(TimingVerdict.BUSY, text))
        logs = [math.log(r / s) for r, s in zip(self.rival_ns, self.smelt_ns, strict=True)]
        middle = median(logs)
        spread = SPREAD_ERROR * median([abs(x - middle) for x in logs]) / math.sqrt(len(logs))
        if spread > NOISE_LIMIT:
            found.append(Doubt(TimingVerdict.UNSTABLE, f"the ratio is known to +-{spread:.0%} only"))
        return tuple(found)

    @property
    def verdict(self) -> TimingVerdict:
        """What the times and their ratio are worth."""
        return gravest(self.doubts)

    @property
    def ratio(self) -> float:
        """Speedup over the rival: the median over rounds of rival / smelt, above 1 where smelt is faster."""
        return median([r / s for r, s in zip(self.rival_ns, self.smelt_ns, strict=True)])


class Rival(Protocol):
    """A model in another runtime."""

    def run(self, feed: Mapping[str, Any], /) -> object:
        """Run it with these inputs; the outputs, in whatever form."""


def against(
    bundle: Bundle,
    model: Path,
    cases: Sequence[RunCase],
    *,
    rival: Rival | None = None,
    threads: int = 1,
    rounds: int = 15,
    seconds: float = 6.0,
    on_case: Callable[[Pair], None] = lambda p: None,
    others: Callable[[RunCase], Sequence[RunCase]] = lambda case: (),
) -> tuple[Pair, ...]:
    """Time the bundle and a rival (ONNX Runtime) in turns (ABBA), so that a drift of the machine's speed
    affects both alike. Where a model keeps state, both begin every run at its start.

    rounds: how many a case has at most. seconds: a case ends after so many, but not before 5 rounds. others:
    inputs with which a case takes turns from call to call; a processor that runs one input again and again
    learns how all branches go that depend on its elements. Raises SmeltError as `load` and Reference do, and
    for inputs that one of the two refuses.
    """
    from smelt.session import load  # with NumPy, which measuring on a device does without

    rival = rival or Reference(model, threads=threads, exact=False)
    session = load(bundle, threads=threads)
    found = []
    for case in cases:
        fed = (case, *others(case))
        theirs = _by_turns([partial(rival.run, {**c.feed, **c.state}) for c in fed])
        ours = _by_turns([partial(session.run, None, c.feed) for c in fed])
        reset = session.reset if case.state else None
        found.append(_pair(case.label, ours, theirs, rounds, seconds, reset, threads > 1))
        on_case(found[-1])
    session.close()
    return tuple(found)


Action: TypeAlias = Callable[[], object]


def _by_turns(actions: Sequence[Action]) -> Action:
    """Does the next of them each time."""
    following = cycle(actions)
    return actions[0] if len(actions) == 1 else lambda: next(following)()


def _pair(
    label: str,
    a: Action,
    b: Action,
    rounds: int,
    seconds: float,
    before_a: Action | None = None,
    has_workers: bool = False,
) -> Pair:
    """Time a and b in turns. before_a: called before each run of a, untimed, to reset its state. has_workers:
    both have threads that may go on after a run."""
    once = min(_timed(f, 1, before) for f, before in 2 * ((a, before_a), (b, None)))
    inner = max(1, math.ceil(1e6 / max(once, 1.0)))  # a sample lasts a millisecond or more
    ours: list[float] = []
    theirs: list[float] = []
    start, waited = time.perf_counter(), waited_ns()
    for i in range(rounds):
        for mine in (True, False) if i % 2 == 0 else (False, True):
            run, before = (a, before_a) if mine else (b, None)
            if has_workers:
                _settle()
                _timed(run, 1, before)  # its own workers are awake then
            (ours if mine else theirs).append(_timed(run, inner, before))
        if time.perf_counter() - start > seconds and i >= 4:
            break
    spent = 1e9 * (time.perf_counter() - start)
    return Pair(label, tuple(ours), tuple(theirs), (waited_ns() - waited) / max(spent, 1.0))


def _settle() -> None:
    """Wait until no thread of this process computes, 1 s at most: workers that have nothing to do may spin
    for a while, on a processor that the other's threads need (ONNX Runtime's doubled smelt's times)."""
    for _ in range(40):
        start, used = time.perf_counter(), time.process_time()
        time.sleep(0.025)  # the clock sees threads on other processors at their ticks, 10 ms apart or less
        if time.process_time() - used < IDLE_SHARE * (time.perf_counter() - start):
            return


def waited_ns() -> int:
    """How long threads of this process have been ready to run without a processor; 0 where the system does
    not tell."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that has just ended
            total += int(path.read_text().split()[1])
    return total


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
