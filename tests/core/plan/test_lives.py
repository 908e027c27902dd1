"""Lives: the storages that live together with one, as looking at every pair finds them."""

from __future__ import annotations

import random

import pytest

from smelt.core.dim import to_dim
from smelt.core.plan.lifetime import Storage
from smelt.core.plan.lives import Lives


def storage(first: int, last: int) -> Storage:
    """A storage of one byte with that life."""
    return Storage(f"v{first}", to_dim(1), first, last)


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_every_pair_would(seed: int) -> None:
    rng = random.Random(seed)
    lives, before = Lives(), []
    for _ in range(200):
        first = rng.randrange(-1, 300)
        s = storage(first, first + rng.choice([0, 1, 2, 7, 8, 63, 200, 10**6]))
        want = [n for n, o in enumerate(before) if o.first <= s.last and s.first <= o.last]
        assert lives.beside(s) == want
        lives.add(s)
        before.append(s)


def test_cells_stay_small() -> None:
    """What a chain looks at per value does not grow with the chain."""

    def cells(count: int) -> int:
        lives = Lives()
        for k in range(count):
            s = storage(k, k + 3)
            lives.add(s)
        return max(len(c) for row in lives.rows.values() for c in row.values()) * len(lives.rows)

    assert cells(2_000) == cells(1_000) <= 16
