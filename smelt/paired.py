"""Two bundles and inputs -> how their times differ on a device, from pairs of launches under one
connection."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.compare_builds import LOOKS, MOST_PAIRS, Change, Comparison, judge_pairs, pair_orders
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.measure import QUICK, SHOWN, Interval, RunPlan, TimingVerdict
from smelt.devicefarm.profiles import AS_SHIPPED, GATE, UNCHANGED, Conditions, Gate, Profile
from smelt.devicefarm.report import RunReport
from smelt.leasing import Where
from smelt.running import Loading, conditioned, runners
from smelt.shapes import RunCase

SPARE_PAIRS = 16
"""How many pairs may be measured in the place of disturbed ones."""
NOT_COUNTED = frozenset({TimingVerdict.BUSY, TimingVerdict.TOO_HOT, TimingVerdict.THROTTLED})
"""Launches with these verdicts do not count. The rule does not know which build they are of, so it favours
none."""


@dataclass(frozen=True)
class BuildLaunch:
    """One case in one fresh process of one build. pair: its number, from 0. first: launched before its
    rival."""

    pair: int
    new: bool
    first: bool
    load_ns: int
    report: RunReport

    @property
    def median_ns(self) -> float:
        """The launch's one figure."""
        timing = self.report.timing
        assert timing is not None
        return timing.median

    @property
    def verdict(self) -> TimingVerdict:
        """What that figure is worth."""
        timing = self.report.timing
        assert timing is not None
        return timing.verdict


@dataclass(frozen=True)
class Compared:
    """A case of both builds: the comparison, and all launches in the order in which they were made, those
    that do not count among them."""

    label: str
    comparison: Comparison
    launches: tuple[BuildLaunch, ...]
    conditions: Conditions = UNCHANGED


@dataclass
class _Case:
    """A case while it is measured."""

    case: RunCase
    cases: int
    launches: list[BuildLaunch] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    found: Comparison | None = None

    def add(self, a: BuildLaunch, b: BuildLaunch) -> None:
        """Take a pair, and judge where that makes a look complete."""
        self.launches += [a, b]
        if a.report.emulated or b.report.emulated:
            why = "an emulator's times say nothing about the builds on a device"
            self.found = Comparison(Change.EMULATED, float("nan"), Interval(0.0, float("inf")), 1, (why,))
        elif NOT_COUNTED.isdisjoint((a.verdict, b.verdict)):
            new, old = (a, b) if a.new else (b, a)
            self.ratios.append(new.median_ns / old.median_ns)
            if len(self.ratios) in LOOKS:
                self.found = judge_pairs(self.ratios, cases=self.cases)

    @property
    def is_open(self) -> bool:
        """Whether more pairs can change what is known."""
        if self.found is None:
            return True
        return self.found.change is Change.INCONCLUSIVE and len(self.ratios) < MOST_PAIRS

    @property
    def has_spare(self) -> bool:
        """Whether another disturbed pair may be replaced."""
        return len(self.launches) // 2 - len(self.ratios) <= SPARE_PAIRS

    def result(self) -> Compared:
        """What was found, with the reason where pairs ran out."""
        found = self.found
        if found is None or self.is_open:
            pairs, verdicts = len(self.launches) // 2, Counter(v.verdict.value for v in self.launches)
            told = ", ".join(f"{n} {name}" for name, n in verdicts.most_common())
            why = f"only {len(self.ratios)} of {pairs} pairs were undisturbed; launches: {told}"
            open_ended = Comparison(
                Change.INCONCLUSIVE, float("nan"), Interval(0.0, float("inf")), len(self.ratios)
            )
            found = replace(found or open_ended, reasons=(*(found.reasons if found else ()), why))
        return Compared(self.case.label, found, tuple(self.launches))


def compare_builds(
    new: Bundle,
    baseline: Bundle,
    cases: Sequence[RunCase],
    *,
    device: Where = None,
    threads: int = 0,
    plan: RunPlan = QUICK,
    choose: Callable[[Condition], Profile] = lambda now: AS_SHIPPED,
    gate: Gate | None = GATE,
    seed: int | None = None,
    on_pair: Callable[[int, int], None] = lambda done, most: None,
) -> tuple[Compared, ...]:
    """Launch both builds in pairs on one device until every case is decided, or pairs run out.

    Each launch is a fresh process that loads the bundle and runs all open cases. threads: 0 takes each
    bundle's default. choose, gate: as in `smelt.bench.measure`; the wait comes before each launch. seed: of
    the order within pairs, None for another one each time. on_pair: called after each pair with its number
    and the most that there can be. Raises SmeltError: 'invalid' where the bundles do not fit each other,
    else as `running`.
    """
    _check_fit(new, baseline)
    todo = [_Case(c, len(cases)) for c in cases]
    orders = pair_orders(MOST_PAIRS + SPARE_PAIRS, secrets.randbits(64) if seed is None else seed)
    with runners((new, baseline), device) as (of_new, of_baseline):
        under = conditioned((of_new, of_baseline), choose)[0]
        for pair, new_first in enumerate(orders):
            todo_now = [c for c in todo if c.is_open and c.has_spare]
            if not todo_now:
                break
            order = (of_new, of_baseline) if new_first else (of_baseline, of_new)
            shown = [c.case for c in todo_now]
            firsts, seconds = (
                _launch(r, shown, plan, threads, gate, pair, r is of_new, r is order[0]) for r in order
            )
            for c, a, b in zip(todo_now, firsts, seconds, strict=True):
                c.add(a, b)
            on_pair(pair + 1, len(orders))
    return tuple(replace(c.result(), conditions=under) for c in todo)


def _launch(
    runner: Loading,
    cases: Sequence[RunCase],
    plan: RunPlan,
    threads: int,
    gate: Gate | None,
    pair: int,
    new: bool,
    first: bool,
) -> list[BuildLaunch]:
    """All cases in one fresh process, which is ended afterwards: an idle one would hold memory."""
    hot = runner.client.cool_down(gate) if gate else None
    with runner.loaded(threads) as client:
        assert client.model is not None
        load_ns, chosen = client.model.load_ns, SHOWN if client.emulated else plan
        reports = [client.run(c.tensors, chosen, outputs=False) for c in cases]
    doubted = [replace(r, doubts=(hot, *r.doubts)) if hot else r for r in reports]
    return [BuildLaunch(pair, new, first, load_ns, r) for r in doubted]


def _check_fit(new: Bundle, baseline: Bundle) -> None:
    """Both run on one platform and take the same tensors."""
    for what, a, b in (
        ("platform", new.manifest["platform"], baseline.manifest["platform"]),
        ("inputs", _ports(new), _ports(baseline)),
    ):
        if a != b:
            raise SmeltError(
                f"the bundles cannot be compared: the new one's {what}: {a}, the baseline's: {b}",
                hint="compare two builds of one model for one platform",
            )


def _ports(bundle: Bundle) -> list[tuple[str, str, int]]:
    return [(i["name"], i["dtype"], len(i["shape"])) for i in bundle.manifest["inputs"]]
