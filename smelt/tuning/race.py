"""A bundle of candidates and sizes in; their results compared and their times in turns with the default's,
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.compare_builds import LOOKS, THRESHOLD, Change, judge_pairs
from smelt.devicefarm.measure import ONCE, RunPlan, geomean, median
from smelt.difference import compare_arrays
from smelt.tuning.budget import TuneBudget
from smelt.tuning.jobs import DimValues
from smelt.tuning.trial import entry_name

TURN = RunPlan(warmup_runs=1, warmup_min=0.0, warmup_max=0.02, samples=5, min_time=0.0, max_time=2.0)
"""How a candidate is measured when it is its turn."""
LOOK_TURNS = 3
"""Turns after which most candidates are given up."""
PROOF_TURNS = min(LOOKS)
"""Turns by which the others are judged."""


class Failed(Exception):
    """A candidate that does not run, or computes something else than the default. number: which."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.why = why


@dataclass(frozen=True)
class RaceVerdict:
    """A candidate against the default. ratio: of the times, the geometric mean over sizes of the medians; at:
    of each size; faster: by the rule of `judged`."""

    number: int
    ratio: float
    at: tuple[float, ...]
    faster: bool = False


class Race:
    """The entries of a trial's bundle on one runner. threads: where it is one, times are the processor's,
    which neighbours disturb less."""

    def __init__(
        self, client: RunnerClient, feeds: Mapping[DimValues, Mapping[str, Array]], threads: int | None,
        budget: TuneBudget,
    ) -> None:  # fmt: skip
        self._client = client
        self._feeds = feeds
        self._alone = threads == 1
        self._budget = budget

    def agree(self, numbers: Sequence[int]) -> None:
        """Run each candidate at each size once and compare with the default, number 0. Raises Failed."""
        for sizes, feed in self._feeds.items():
            wanted = self._once(0, feed)
            for number in numbers:
                got = self._once(number, feed)
                for name, want in wanted.items():
                    found = compare_arrays(name, got[name], want)
                    if not found.ok:
                        raise Failed(number, f"differs from the default at {sizes}: {found}")

    def _once(self, number: int, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        try:
            self._client.use_entry(entry_name(number))
            return self._client.run(feed, ONCE).outputs
        except SmeltError as e:
            raise Failed(number, e.message) from None

    def ratios(self, numbers: Sequence[int], turns: int) -> dict[int, dict[DimValues, list[float]]]:
        """Time over the default's time of the same turn, for each candidate at each size. The order is turned
        round after each turn, so that a drift meets all alike. Raises Failed and BudgetSpent."""
        found: dict[int, dict[DimValues, list[float]]] = {n: {s: [] for s in self._feeds} for n in numbers}
        for turn in range(turns):
            for sizes, feed in self._feeds.items():
                order = [0, *numbers] if turn % 2 == 0 else [*reversed(numbers), 0]
                taken = {n: self._timed(n, feed) for n in order}
                for n in numbers:
                    found[n][sizes].append(taken[n] / taken[0])
        return found

    def _timed(self, number: int, feed: Mapping[str, Array]) -> float:
        """Nanoseconds of a run, the median of a few samples."""
        self._budget.take()
        try:
            self._client.use_entry(entry_name(number))
            samples = self._client.run(feed, TURN, outputs=False).samples
        except SmeltError as e:
            raise Failed(number, e.message) from None
        taken = samples.cpu_ns if self._alone else samples.ns
        return max(median(taken), 1.0) / samples.inner


def looked(number: int, ratios: Mapping[DimValues, Sequence[float]]) -> RaceVerdict:
    """What a few turns say: nothing is proved by them."""
    at = tuple(median(r) for r in ratios.values())
    return RaceVerdict(number, geomean(at), at)


def judged(number: int, ratios: Mapping[DimValues, Sequence[float]], rivals: int) -> RaceVerdict:
    """What as many turns as a look of `judge_pairs` takes prove. A candidate is faster where the geometric
    means over sizes are an improvement, and no size is slower by more than what matters, proved or not.
    rivals: the candidates that share the permitted error."""
    found = looked(number, ratios)
    together = judge_pairs([geomean(turn) for turn in zip(*ratios.values(), strict=True)], cases=rivals)
    faster = together.change is Change.IMPROVEMENT and max(found.at) <= THRESHOLD
    return RaceVerdict(number, together.ratio, found.at, faster)
