"""Judging two builds: the exact distribution against enumeration, and how often verdicts are wrong under
noise.

The generators below make times of launches in the order in which a device would give them. None is known to
the implementation, which assumes nothing about noise. Seeds are fixed, so the counts are the same in every
run.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from smelt.devicefarm.compare_builds import (
    ERROR,
    LOOKS,
    MOST_PAIRS,
    SAME_ERROR,
    Change,
    decide,
    judge_pairs,
    pair_orders,
    signed_rank_interval,
    signed_rank_quantile,
    walsh_averages,
)

SEEDS, LAUNCHES = 1500, 2 * MOST_PAIRS
Noise = Callable[[np.random.Generator], np.ndarray]


@pytest.mark.parametrize("n", [1, 4, 7, 10])
@pytest.mark.parametrize("tail", [0.25, 0.05, 0.005, 1e-9])
def test_quantiles_are_those_of_all_subsets(n: int, tail: float) -> None:
    sums = [sum(s) for k in range(n + 1) for s in itertools.combinations(range(1, n + 1), k)]
    least = [k for k in range(-1, max(sums) + 1) if sum(s <= k for s in sums) <= tail * 2**n]
    assert signed_rank_quantile(n, tail) == max(least)


def test_quantiles_of_printed_tables() -> None:
    # critical values, two-sided 5 % and 1 %, of every textbook's table
    for n, five, one in ((8, 3, 0), (16, 29, 19), (25, 89, 68), (32, 159, 128)):
        assert (signed_rank_quantile(n, 0.025), signed_rank_quantile(n, 0.005)) == (five, one)


def test_the_interval_is_what_the_test_does_not_refuse() -> None:
    """A shift lies in the interval exactly when the signed-rank test of the shifted data keeps it."""
    logs = np.random.default_rng(3).normal(0.01, 0.05, 12)
    low, high = signed_rank_interval(walsh_averages(logs), 0.05)
    limit = signed_rank_quantile(12, 0.025)
    for shift in np.linspace(-0.1, 0.1, 401):
        moved = logs - shift
        ranks = np.argsort(np.argsort(np.abs(moved))) + 1
        plus, minus = ranks[moved > 0].sum(), ranks[moved < 0].sum()
        assert (low <= shift <= high) == (min(plus, minus) > limit)


def test_too_few_pairs_for_an_error_have_no_interval() -> None:
    low, high = signed_rank_interval(walsh_averages(np.zeros(16)), 2.0**-17)
    assert (low, high) == (-math.inf, math.inf)


# ---------------------------------------------------------------- noise, of (seed, launch)


def normal(share: float) -> Noise:
    return lambda r: np.clip(r.normal(1, share, (SEEDS, LAUNCHES)), 0.5, None)


def heating(r: np.random.Generator) -> np.ndarray:
    towards = r.uniform(0.8, 1.5, (SEEDS, 1))
    return normal(0.01)(r) * (towards + (1 - towards) * np.exp(-np.arange(LAUNCHES) / 20))


def one_step(r: np.random.Generator) -> np.ndarray:
    late = np.arange(LAUNCHES) >= r.integers(1, LAUNCHES, (SEEDS, 1))
    return normal(0.015)(r) * np.where(late, 1.4, 1.0)


def pareto(r: np.random.Generator) -> np.ndarray:
    return 1 + 0.005 * r.pareto(1.3, (SEEDS, LAUNCHES))


def interrupted(r: np.random.Generator) -> np.ndarray:
    return normal(0.01)(r) * np.where(
        r.random((SEEDS, LAUNCHES)) < 0.06, r.uniform(1.2, 4, (SEEDS, LAUNCHES)), 1
    )


def two_modes(r: np.random.Generator) -> np.ndarray:
    return normal(0.01)(r) * np.where(r.random((SEEDS, LAUNCHES)) < 0.3, 1.06, 1)


def two_far_modes(r: np.random.Generator) -> np.ndarray:
    return normal(0.01)(r) * np.where(r.random((SEEDS, LAUNCHES)) < 0.5, 1.1, 1)


def two_lasting_modes(r: np.random.Generator) -> np.ndarray:
    return normal(0.01)(r) * np.where(np.cumsum(r.random((SEEDS, LAUNCHES)) < 0.05, 1) % 2, 1.35, 1)


def random_walk(r: np.random.Generator) -> np.ndarray:
    return np.exp(np.cumsum(r.normal(0, 0.02, (SEEDS, LAUNCHES)), 1))


def autocorrelated(keep: float, share: float) -> Noise:
    def make(r: np.random.Generator) -> np.ndarray:
        fresh = r.normal(0, share * math.sqrt(1 - keep**2), (LAUNCHES, SEEDS))
        found = [fresh[0] / math.sqrt(1 - keep**2)]
        for row in fresh[1:]:
            found.append(keep * found[-1] + row)
        return np.exp(np.stack(found, 1))

    return make


def rhythm(launches: int) -> Noise:
    def make(r: np.random.Generator) -> np.ndarray:
        phase = r.uniform(0, 2 * np.pi, (SEEDS, 1))
        return normal(0.005)(r) * (1 + 0.06 * np.sin(phase + 2 * np.pi * np.arange(LAUNCHES) / launches))

    return make


def ticks(r: np.random.Generator) -> np.ndarray:
    """A clock of few steps: many ratios are exactly 1."""
    return np.round(normal(0.01)(r) * 200) / 200


NOISE: dict[str, Noise] = {
    "none": normal(0), "0.5 %": normal(0.005), "1 %": normal(0.01), "2 %": normal(0.02), "3 %": normal(0.03),
    "heating": heating, "one step": one_step, "pareto": pareto, "interrupted": interrupted,
    "two modes": two_modes, "two far modes": two_far_modes, "two lasting modes": two_lasting_modes,
    "random walk": random_walk,
    "autocorrelated": autocorrelated(0.9, 0.03), "alternating": autocorrelated(-0.5, 0.02), "ticks": ticks,
}  # fmt: skip
HOSTILE: dict[str, Noise] = {
    "10 %": normal(0.1), "30 %": normal(0.3), **{f"rhythm of {n}": rhythm(n) for n in (2, 3, 4, 5)},
}  # fmt: skip


def verdicts(noise: Noise, slower: float, seed: int) -> Counter[Change]:
    """How often each verdict comes in SEEDS comparisons of a build that is `slower` times as slow."""
    pairs = noise(np.random.default_rng(seed)).reshape(SEEDS, MOST_PAIRS, 2)
    first = np.array([pair_orders(MOST_PAIRS, i) for i in range(SEEDS)])
    new, old = np.where(first, pairs[..., 0], pairs[..., 1]), np.where(first, pairs[..., 1], pairs[..., 0])
    logs = np.log(slower * new / old)
    found: Counter[Change] = Counter()
    for n, share in LOOKS.items():
        averages = walsh_averages(logs[:, :n])
        ends = np.stack(
            [e for error in (ERROR, SAME_ERROR) for e in signed_rank_interval(averages, error * share)]
        )
        centres = np.median(averages, axis=-1)
        told = [decide(c, (e[0], e[1]), (e[2], e[3]))[0] for c, e in zip(centres, ends.T, strict=True)]
        left = np.array([t is Change.INCONCLUSIVE for t in told], bool)
        found.update(t for t in told if t is not Change.INCONCLUSIVE or n == MOST_PAIRS)
        logs = logs[left]
    assert found.total() == SEEDS
    return found


@pytest.mark.parametrize("name", [*NOISE, *HOSTILE])
def test_equal_builds_are_not_called_slower(name: str) -> None:
    found = verdicts((NOISE | HOSTILE)[name], 1.0, 1)
    assert found[Change.REGRESSION] < 0.01 * SEEDS, found
    assert found[Change.IMPROVEMENT] < 0.01 * SEEDS, found


@pytest.mark.parametrize("name", NOISE)
def test_five_percent_are_found(name: str) -> None:
    found = verdicts(NOISE[name], 1.05, 2)
    assert found[Change.REGRESSION] >= 0.95 * SEEDS, found
    assert found[Change.IMPROVEMENT] == 0
    assert verdicts(NOISE[name], 1 / 1.05, 3)[Change.IMPROVEMENT] >= 0.95 * SEEDS


@pytest.mark.parametrize("name", NOISE)
def test_what_is_slower_is_not_called_equal(name: str) -> None:
    assert verdicts(NOISE[name], 1.05, 4)[Change.NO_DIFFERENCE] < 0.01 * SEEDS


def test_a_small_difference_is_no_regression() -> None:
    found = verdicts(NOISE["0.5 %"], 1.02, 5)
    assert found[Change.REGRESSION] == 0 and found[Change.NO_DIFFERENCE] > 0.95 * SEEDS


def test_judging_one_comparison() -> None:
    r = np.random.default_rng(7)
    slow = judge_pairs(list(1.05 * np.exp(r.normal(0, 0.01, 16))))
    assert slow.change is Change.REGRESSION and slow.pairs == 16 and not slow.reasons
    assert 1.03 < slow.interval.low < slow.ratio < slow.interval.high < 1.07
    noisy = judge_pairs(list(np.exp(r.normal(0, 0.3, 32))))
    assert noisy.change is Change.INCONCLUSIVE and "cannot be told from 1" in noisy.reasons[0]
    between = judge_pairs(list(1.029 * np.exp(np.linspace(-0.02, 0.02, 32))))
    assert between.change is Change.INCONCLUSIVE and "1.03" in between.reasons[0]


def test_many_cases_share_the_error() -> None:
    ratios = list(1.05 * np.exp(np.random.default_rng(8).normal(0, 0.01, 16)))
    one, many = judge_pairs(ratios), judge_pairs(ratios, cases=20)
    assert many.interval.low < one.interval.low and one.interval.high < many.interval.high
    assert one.ratio == many.ratio


@pytest.mark.parametrize("ratios", [[], [1.0] * 15, [1.0] * 17, [1.0] * 15 + [0.0], [1.0] * 15 + [math.inf]])
def test_other_counts_and_bad_ratios_are_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="a look takes 16 or 32 or 64 positive ratios"):
        judge_pairs(ratios)


def test_orders_are_coins_and_repeatable() -> None:
    assert pair_orders(32, 5) == pair_orders(32, 5) != pair_orders(32, 6)
    share = np.mean([pair_orders(32, i) for i in range(500)])
    assert 0.48 < share < 0.52
