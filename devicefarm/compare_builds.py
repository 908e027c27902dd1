"""Times of two builds, measured in pairs of process launches -> slower, faster, no difference, or not known.

A pair is one launch of each build, right after each other, so that what changes slowly (heat, frequency,
another user) meets both alike. Of the pairs' log ratios this takes the Hodges-Lehmann estimate and the
exact confidence interval of Wilcoxon's signed-rank test: neither needs to know how the noise is
distributed. A first look comes at 16 pairs; what it leaves open is judged once more at 32, and at 64 where
launches vary much or fall into modes. The looks share the permitted error.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from smelt.core.lazily import Lazily
from smelt.devicefarm.measure import Interval

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

LOOKS: Mapping[int, float] = {16: 0.2, 32: 0.3, 64: 0.5}
"""After how many pairs the ratios are judged -> the share of the permitted error that this look may spend.
Most of it waits for the last look, where disturbed launches have made the decision hard. Of launches in two
modes that are 10 % apart and equally frequent, 32 pairs show a slow-down by 5 % in 80 % of comparisons, and
64 in 98 % (simulated, tests/devicefarm/test_compare_builds.py)."""
MOST_PAIRS = max(LOOKS)
ERROR = 0.01
"""How often the interval may miss the true ratio, over all looks and cases of one comparison."""
SAME_ERROR = 0.10
"""The same for the interval that must lie within the threshold before two builds are called equally fast.
It is shorter: to call equal what differs by 3 % does less harm than to call a build slower that is not."""
THRESHOLD = 1.03
"""Ratios nearer to 1 than this one do not matter."""


class Change(Enum):
    """What became of the times: the new build against the baseline."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NO_DIFFERENCE = "no difference"
    INCONCLUSIVE = "inconclusive"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of the new build's time to the baseline's, above 1 where the new one is slower.

    ratio: the Hodges-Lehmann estimate. interval: holds the true ratio but for ERROR. reasons: why nothing
    can be said, where that is so.
    """

    change: Change
    ratio: float
    interval: Interval
    pairs: int
    reasons: tuple[str, ...] = ()


def pair_orders(pairs: int, seed: int) -> tuple[bool, ...]:
    """For each pair, whether the new build is launched first: a coin each. So builds that are equally fast
    give ratios above and below 1 with equal chance, whatever the device's noise is, a rhythm of it
    included."""
    chance = random.Random(seed)
    return tuple(chance.random() < 0.5 for _ in range(pairs))


def judge_pairs(ratios: Sequence[float], *, cases: int = 1) -> Comparison:
    """Judge the ratios (new / baseline) of all pairs measured so far.

    cases: how many comparisons share the permitted error, such as those of several shapes. Where more looks
    follow, INCONCLUSIVE asks for more pairs. Raises ValueError unless there are as many ratios as a look
    takes, all positive and finite.
    """
    if len(ratios) not in LOOKS or not all(0 < r < math.inf for r in ratios):
        raise ValueError(f"a look takes {' or '.join(map(str, LOOKS))} positive ratios, got {len(ratios)}")
    averages = walsh_averages(np.log(np.asarray(ratios, np.float64)))
    share = LOOKS[len(ratios)] / cases
    low, high = signed_rank_interval(averages, ERROR * share)
    near, far = signed_rank_interval(averages, SAME_ERROR * share)
    centre = float(np.median(averages))
    change, reasons = decide(centre, (float(low), float(high)), (float(near), float(far)))
    return Comparison(change, math.exp(centre), Interval(math.exp(low), math.exp(high)), len(ratios), reasons)


def decide(
    centre: float, interval: tuple[float, float], shorter: tuple[float, float]
) -> tuple[Change, tuple[str, ...]]:
    """The decision on logs of ratios: their estimate, its interval, and the interval that decides on
    equality."""
    limit = math.log(THRESHOLD)
    low, high = interval
    if low > 0 and centre > limit:
        return Change.REGRESSION, ()
    if high < 0 and centre < -limit:
        return Change.IMPROVEMENT, ()
    if -limit < shorter[0] and shorter[1] < limit:
        return Change.NO_DIFFERENCE, ()
    what = "1" if low <= 0 <= high else f"{THRESHOLD} or {1 / THRESHOLD:.3f}"
    return Change.INCONCLUSIVE, (f"the ratio cannot be told from {what} by so few pairs in this noise",)


def walsh_averages(logs: np.ndarray) -> np.ndarray:
    """The sorted means of all pairs of elements, each with itself, too: (..., n) -> (..., n (n + 1) / 2).
    Their median is the Hodges-Lehmann estimate."""
    i, j = np.triu_indices(logs.shape[-1])
    return np.sort((logs[..., i] + logs[..., j]) / 2, axis=-1)


def signed_rank_interval(averages: np.ndarray, error: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the exact interval of the centre that misses it with probability `error` at most, from
    sorted Walsh averages in the last axis; infinite where there are too few."""
    count = averages.shape[-1]
    n = math.isqrt(2 * count)  # count is n (n + 1) / 2
    rank = signed_rank_quantile(n, error / 2)
    if rank < 0:
        wide = np.full(averages.shape[:-1], np.inf)
        return -wide, wide
    return averages[..., rank], averages[..., count - 1 - rank]


@lru_cache(maxsize=64)
def signed_rank_quantile(n: int, tail: float) -> int:
    """The greatest k with P(T <= k) <= tail, where T is Wilcoxon's statistic of n pairs without a
    difference: the sum of a random subset of 1..n. -1 when there is none. Exact: counts are integers."""
    ways = [1]
    for size in range(1, n + 1):
        without = ways + [0] * size
        ways = [w + (without[at - size] if at >= size else 0) for at, w in enumerate(without)]
    limit, total = math.floor(tail * 2**n), 0
    for k, w in enumerate(ways):
        total += w
        if total > limit:
            return k - 1
    return len(ways) - 1
