"""Statistics: laws that hold for any samples, coverage by simulation, and verdicts that can go either way."""

from __future__ import annotations

import random
import statistics
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.devicefarm.measure import (
    Doubt,
    Interval,
    TimingVerdict,
    drift,
    mad,
    mann_kendall_p,
    median,
    median_interval,
    outlier_count,
    quantile,
    rises_less_falls,
    summarize,
    sustained,
)

TIMES = st.floats(1.0, 1e12)
SAMPLES = st.lists(TIMES, min_size=1, max_size=60)


@given(SAMPLES, st.floats(0, 1))
def test_quantile_is_numpys(samples: list[float], q: float) -> None:
    ours = quantile(sorted(samples), q)
    assert ours == pytest.approx(float(np.quantile(samples, q)), rel=1e-9)
    assert min(samples) <= ours <= max(samples)


@given(SAMPLES)
def test_median_and_mad(samples: list[float]) -> None:
    assert median(samples) == pytest.approx(statistics.median(samples), rel=1e-12)
    assert 0 <= mad(samples) <= max(samples) - min(samples)


@given(SAMPLES, st.floats(0.001, 1000))
def test_statistics_scale_with_the_unit(samples: list[float], factor: float) -> None:
    a, b = summarize(samples), summarize([factor * x for x in samples])
    for name in ("min", "median", "mean", "p90"):
        assert getattr(b, name) == pytest.approx(factor * getattr(a, name), rel=1e-6)


@given(SAMPLES)
def test_summary_is_ordered(samples: list[float]) -> None:
    t = summarize(samples)
    assert t.n == len(samples)
    assert t.min <= t.median <= t.p90 <= max(samples)
    assert t.p99 is None
    assert (t.ci is None) == (t.n < 8)
    if t.ci:
        assert t.min <= t.ci.low <= t.median <= t.ci.high <= max(samples)
    assert 0 <= t.outliers <= t.n // 2
    assert 0 <= t.trend_p <= 1


def test_p99_needs_a_thousand_samples() -> None:
    assert summarize([1.0] * 999).p99 is None
    assert summarize([1.0] * 1000).p99 == 1.0


def test_median_interval_of_known_ranks() -> None:
    # tables of the sign test at 99 %: n = 8 -> (1, 8), 20 -> (4, 17), 50 -> (16, 35), 100 -> (37, 64)
    for n, low, high in ((8, 1, 8), (20, 4, 17), (50, 16, 35), (100, 37, 64)):
        assert median_interval([float(i) for i in range(1, n + 1)]) == Interval(low, high)
    assert median_interval([1.0] * 7) is None


@pytest.mark.parametrize("n", [9, 30, 200])
def test_median_interval_covers(n: int) -> None:
    rng = np.random.default_rng(n)
    hits = 0
    for _ in range(2000):
        ci = median_interval(list(rng.lognormal(0, 1, n)))  # true median 1
        assert ci is not None
        hits += ci.low <= 1.0 <= ci.high
    assert hits / 2000 > 0.984  # 0.99 less 2.7 standard errors


def test_large_n_uses_a_safe_approximation() -> None:
    exact = median_interval(list(map(float, range(4000))))
    approximate = median_interval(list(map(float, range(4001))))
    assert exact is not None and approximate is not None
    assert abs((approximate.high - approximate.low) - (exact.high - exact.low)) <= 4


def test_outliers_are_counted_not_dropped() -> None:
    base = [100.0 + (i % 7) for i in range(100)]
    t = summarize([*base, 1000.0, 1.0])
    assert outlier_count(base) == 0
    assert t.outliers == 2
    assert t.n == 102
    assert t.min == 1.0


def test_mann_kendall_against_all_orders() -> None:
    # exact two-sided p of a monotone series of 8 is 2 / 8!; the normal approximation with continuity is near
    assert mann_kendall_p(list(map(float, range(8)))) < 0.002
    assert mann_kendall_p([1.0] * 50) == 1.0
    assert mann_kendall_p([1.0, 2.0]) == 1.0


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=20))
def test_rises_and_falls_are_counted_pair_by_pair(samples: list[int]) -> None:
    wanted = sum((b > a) - (b < a) for a, b in combinations(samples, 2))
    assert rises_less_falls(samples) == wanted


@settings(max_examples=40)
@given(st.lists(TIMES, min_size=8, max_size=40, unique=True))
def test_mann_kendall_is_symmetric(samples: list[float]) -> None:
    assert mann_kendall_p(samples) == pytest.approx(mann_kendall_p(samples[::-1]))


def noise(seed: int, n: int = 200, spread: float = 0.01) -> list[float]:
    rng = random.Random(seed)
    return [1e6 * (1 + rng.gauss(0, spread)) for _ in range(n)]


def test_quiet_runs_are_rarely_called_unstable() -> None:
    assert sum(bool(summarize(noise(seed)).doubts) for seed in range(200)) <= 2


def test_drift_is_called_unstable() -> None:
    for seed in range(20):
        drifting = [x * (1 + 0.06 * i / 200) for i, x in enumerate(noise(seed))]
        assert summarize(drifting).verdict is TimingVerdict.UNSTABLE
        assert drift(drifting) == pytest.approx(0.04, abs=0.01)


def test_wide_noise_is_called_unstable() -> None:
    assert any("interval" in d.text for d in summarize(noise(1, 20, 0.2)).doubts)
    assert [str(d) for d in summarize([5.0, 5.0]).doubts] == ["unstable: fewer than 8 samples"]


def test_the_gravest_doubt_is_the_verdict() -> None:
    steady = [100.0 + i % 3 for i in range(60)]
    assert summarize(steady).verdict is TimingVerdict.VALID
    for kind in TimingVerdict:
        doubts = [Doubt(TimingVerdict.UNSTABLE, "a"), Doubt(kind, "b")]
        worst = TimingVerdict.UNSTABLE if kind is TimingVerdict.VALID else kind
        assert summarize(steady, doubts).verdict is summarize(steady, doubts[::-1]).verdict is worst



def test_a_sustained_run_is_judged_by_its_ends() -> None:
    """Heat that slows the device down is the finding, not a doubt; what else disturbs is."""
    slowing = [1e7 * (1 + 0.5 * min(1, i / 500)) * (1 + 0.001 * (i % 7)) for i in range(1000)]
    hot = [Doubt(TimingVerdict.THROTTLED, "a"), Doubt(TimingVerdict.TOO_HOT, "b")]
    assert summarize(slowing, hot).verdict is TimingVerdict.THROTTLED
    found = sustained(slowing, hot)
    assert found.steady.verdict is TimingVerdict.VALID and found.cold.verdict is TimingVerdict.UNSTABLE
    assert found.share == pytest.approx(1.05 / 1.5, rel=0.01)
    busy = sustained(slowing, [*hot, Doubt(TimingVerdict.BUSY, "c")])
    assert busy.steady.verdict is busy.cold.verdict is TimingVerdict.BUSY
