"""Kernels whose sizes are numbers: fixed seeds of attack_pinned, and what it has found."""

from __future__ import annotations

import attack_pinned
import pytest

FOUND = {"a loop without rounds, whose steps follow each other, is parallel": 425005}


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_fixed_seeds(first: int) -> None:
    for seed in range(first, first + 20):
        found = attack_pinned.attack(seed)
        assert not found.failed, found.detail


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str) -> None:
    found = attack_pinned.attack(FOUND[name])
    assert not found.failed, found.detail
