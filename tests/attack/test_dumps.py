"""Mutants of dumps: an answer or a refusal in words; never a crash, a hang or a bug."""

from __future__ import annotations

import pytest
from attack_dumps import attack

PART = 25


@pytest.mark.parametrize("part", range(8))
def test_mutants_of_dumps(part: int) -> None:
    """Sixteen models, of each some dumps."""
    seeds = range(part * 80, part * 80 + 2 * PART, 2)
    bad = [o.detail for o in map(attack, seeds) if o.failed]
    assert not bad, "\n\n".join(bad[:10])
