"""Raw samples of run times -> statistics, doubts and a verdict; pure functions, no clock.

Times are nanoseconds per run. No sample is dropped: outliers are counted, drift and noise make a result
`unstable`. What the device did meanwhile raises doubts of its own (see doubts.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

CONFIDENCE = 0.99
OUTLIER_MADS = 3.5 * 1.4826  # MAD * 1.4826 estimates the standard deviation of normal data
DRIFT_LIMIT = 0.03  # of the first third's median
TREND_LIMIT = 0.02  # a significant trend below this share is real but too small to matter
TREND_P = 0.01
NOISE_LIMIT = 0.05  # half width of the median's interval, as a share of the median
P99_SAMPLES = 1000
TREND_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How a run is measured on the device; samples = 0 runs once and times nothing further.

    Warm-up lasts at least `warmup_runs` runs and `warmup_min` s and ends when the last three runs
    agree within 5 %, or at `warmup_max` s. Then at least `samples` samples and `min_time` s are
    taken, each over so many runs that it lasts `sample_time` s, but never longer than `max_time` s.
    """

    warmup_runs: int = 3
    warmup_min: float = 0.5
    warmup_max: float = 10.0
    samples: int = 50
    min_time: float = 1.0
    max_time: float = 150.0
    sample_time: float = 0.001
    profile: bool = False


ONCE = RunPlan(samples=0)
SUSTAINED = RunPlan(0, 0.0, 0.0, min_time=300.0, max_time=330.0, sample_time=0.01)
QUICK = RunPlan(warmup_min=0.1, warmup_max=2.0, samples=10, min_time=0.2, max_time=10.0)
STEADY = RunPlan()
SHOWN = RunPlan(warmup_runs=0, warmup_min=0.0, warmup_max=0.0, samples=3, min_time=0.0, max_time=5.0)
"""Of emulated devices, whose times mean nothing: a few runs show that the code works."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float


class TimingVerdict(Enum):
    """What a time is worth. Only VALID ones are the device's speed; a device is never blamed for the
    others."""

    VALID = "valid"
    UNSTABLE = "unstable"
    BUSY = "busy"
    TOO_HOT = "too hot"
    THROTTLED = "throttled"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason to doubt times: of which kind, and in words."""

    kind: TimingVerdict
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


def gravest(doubts: Sequence[Doubt]) -> TimingVerdict:
    """The verdict that doubts lead to."""
    kinds = list(TimingVerdict)  # in the order of gravity
    return max((d.kind for d in doubts), key=kinds.index, default=TimingVerdict.VALID)


@dataclass(frozen=True, slots=True)
class Timing:
    """Statistics of one run's samples, in ns per run. p99 is None below 1000 samples, ci below 8.

    doubts: why they may not be the device's speed.
    """

    n: int
    min: float
    median: float
    mean: float
    p90: float
    p99: float | None
    iqr: float
    mad: float
    ci: Interval | None
    outliers: int
    drift: float
    trend_p: float
    doubts: tuple[Doubt, ...] = ()

    @property
    def verdict(self) -> TimingVerdict:
        """The gravest of the doubts' kinds; VALID without any."""
        return gravest(self.doubts)


def quantile(sorted_samples: Sequence[float], q: float) -> float:
    """The q-quantile with linear interpolation between order statistics; needs sorted, non-empty samples."""
    assert sorted_samples and 0.0 <= q <= 1.0
    at = q * (len(sorted_samples) - 1)
    low = math.floor(at)
    high = min(low + 1, len(sorted_samples) - 1)
    a, b = sorted_samples[low], sorted_samples[high]
    # clamped: a + (b - a) * t can leave [a, b] by rounding
    return min(max(a + (b - a) * (at - low), a), b)


def median(samples: Sequence[float]) -> float:
    """The median of non-empty samples in any order."""
    return quantile(sorted(samples), 0.5)


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def mad(samples: Sequence[float]) -> float:
    """Median absolute deviation from the median."""
    middle = median(samples)
    return median([abs(x - middle) for x in samples])


def median_interval(samples: Sequence[float]) -> Interval | None:
    """Interval of the median by order statistics: no assumption about the distribution, coverage >=
    CONFIDENCE.

    [x(k+1), x(n-k)] with the greatest k for which P(Binomial(n, 1/2) <= k) <= (1 - CONFIDENCE) / 2.
    None when n is too small for any k.
    """
    n = len(samples)
    k = _binomial_rank(n, (1.0 - CONFIDENCE) / 2.0)
    if k < 0:
        return None
    ordered = sorted(samples)
    return Interval(ordered[k], ordered[n - 1 - k])


def _binomial_rank(n: int, tail: float) -> int:
    """The greatest k with P(Binomial(n, 1/2) <= k) <= tail; -1 when there is none."""
    if (
        n > 4000
    ):  # the normal approximation errs by less than one rank here; one rank is given away to stay safe
        deviation = _normal_quantile(1.0 - tail) * math.sqrt(n) / 2.0
        return math.floor(n / 2.0 - deviation - 1.5)
    term, total, k = 1, 0, -1
    limit = tail * 2.0**n if n < 1000 else int(tail * 2**52) * (1 << (n - 52))
    for i in range(n + 1):
        total += term
        if total > limit:
            break
        k = i
        term = term * (n - i) // (i + 1)
    return k


def _normal_quantile(p: float) -> float:
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _normal_cdf(middle) < p else (low, middle)
    return low


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def outlier_count(samples: Sequence[float]) -> int:
    """Samples further than 3.5 scaled MADs from the median."""
    middle, spread = median(samples), mad(samples)
    return sum(abs(x - middle) > OUTLIER_MADS * spread for x in samples)


def drift(samples: Sequence[float]) -> float:
    """(median of the last third - median of the first third) / the latter; 0 below 6 samples, in
    the order taken.
    """
    third = len(samples) // 3
    if third < 2:
        return 0.0
    first, last = median(samples[:third]), median(samples[-third:])
    return (last - first) / first if first > 0 else 0.0


def rises_less_falls(samples: Sequence[float]) -> int:
    """Of all pairs, how many rise, less how many fall."""
    score = 0
    before: list[float] = []
    for x in samples:
        score += bisect_left(before, x) - (len(before) - bisect_right(before, x))
        insort(before, x)
    return score


def mann_kendall_p(samples: Sequence[float]) -> float:
    """Two-sided p of the Mann-Kendall trend test (normal approximation, ties corrected); 1 below 8 samples.

    Long series are first cut into 200 blocks, each replaced by its median: the test assumes
    independent samples, and neighbours in time are not.
    """
    n = len(samples)
    if n > TREND_BLOCKS:
        bounds = [n * i // TREND_BLOCKS for i in range(TREND_BLOCKS + 1)]
        samples = [median(samples[a:b]) for a, b in pairwise(bounds)]
        n = TREND_BLOCKS
    if n < 8:
        return 1.0
    score = rises_less_falls(samples)
    ties: dict[float, int] = {}
    for x in samples:
        ties[x] = ties.get(x, 0) + 1
    variance = (
        n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties.values())
    ) / 18.0
    if variance <= 0 or score == 0:
        return 1.0
    z = (abs(score) - 1) / math.sqrt(variance)
    return min(1.0, 2.0 * (1.0 - _normal_cdf(z)))


def summarize(samples: Sequence[float], doubts: Sequence[Doubt] = ()) -> Timing:
    """The statistics of samples (ns per run, in the order taken, at least one). doubts: others than those
    that the samples themselves raise."""
    assert samples
    ordered = sorted(samples)
    middle = quantile(ordered, 0.5)
    ci = median_interval(samples)
    moved, p = drift(samples), mann_kendall_p(samples)
    return Timing(
        n=len(ordered),
        min=ordered[0],
        median=middle,
        mean=math.fsum(ordered) / len(ordered),
        p90=quantile(ordered, 0.9),
        p99=quantile(ordered, 0.99) if len(ordered) >= P99_SAMPLES else None,
        iqr=quantile(ordered, 0.75) - quantile(ordered, 0.25),
        mad=mad(samples),
        ci=ci,
        outliers=outlier_count(samples),
        drift=moved,
        trend_p=p,
        doubts=(*doubts, *(Doubt(TimingVerdict.UNSTABLE, t) for t in _doubts(middle, ci, moved, p))),
    )


WHILE_HOT = frozenset({TimingVerdict.THROTTLED, TimingVerdict.TOO_HOT})


@dataclass(frozen=True, slots=True)
class Sustained:
    """A long run without a pause: its first tenth, cold, and its last third, when heat and cooling are
    level."""

    cold: Timing
    steady: Timing

    @property
    def share(self) -> float:
        """The speed that is kept, as a share of the cold one."""
        return self.cold.median / self.steady.median if self.steady.median > 0 else 1.0


def sustained(samples: Sequence[float], doubts: Sequence[Doubt] = ()) -> Sustained:
    """Both ends of a long run (at least 30 samples, in ns). Heat and what it slows down are what such a run
    measures, so they raise no doubt; all other doubts hold for both ends."""
    assert len(samples) >= 30
    kept = [d for d in doubts if d.kind not in WHILE_HOT]
    cold, steady = samples[: len(samples) // 10], samples[-(len(samples) // 3) :]
    return Sustained(summarize(cold, kept), summarize(steady, kept))


def _doubts(middle: float, ci: Interval | None, moved: float, p: float) -> tuple[str, ...]:
    """Why the figures are inconclusive, in words."""
    doubts = []
    if abs(moved) > DRIFT_LIMIT:
        doubts.append(f"the last third is {moved:+.1%} against the first")
    elif p < TREND_P and abs(moved) > TREND_LIMIT:
        doubts.append(f"a trend of {moved:+.1%} (Mann-Kendall p {p:.1e})")
    if ci is None:
        doubts.append("fewer than 8 samples")
    elif middle > 0 and (ci.high - ci.low) / 2 > NOISE_LIMIT * middle:
        doubts.append(f"the median's 99 % interval is +-{(ci.high - ci.low) / 2 / middle:.1%} wide")
    return tuple(doubts)

