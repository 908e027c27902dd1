"""Mutants of dumps: an answer or a refusal in words; never a crash, a hang or a bug."""

from __future__ import annotations

from functools import cache

import pytest
from attack_dumps import attack
from campaign import Outcome

PART = 25


@cache
def outcomes(part: int) -> tuple[Outcome, ...]:
    """Mutants of two models, of each some dumps."""
    return tuple(map(attack, range(part * 80, part * 80 + 2 * PART, 2)))


@pytest.mark.table(2)
@pytest.mark.parametrize("part", range(8))
def test_mutants_of_dumps(part: int) -> None:
    bad = [o.detail for o in outcomes(part) if o.failed]
    assert not bad, "\n\n".join(bad[:10])


def test_some_mutants_are_read() -> None:
    """An attack whose mutants are all refused says nothing about what comes after reading."""
    assert {o.what.split(":")[0].split(",")[0] for o in outcomes(0)} == {"read", "refused"}
