"""Schedules that nobody has chosen: each is refused, or keeps what the kernel computes."""

from __future__ import annotations

from attack_schedules import attack


def test_mutants_of_schedules() -> None:
    outcomes = [attack(seed) for seed in range(777_100, 777_120)]
    bad = [o.detail for o in outcomes if o.failed]
    assert not bad, "\n\n".join(bad)
    assert any(o.what.startswith("refused") for o in outcomes)
    assert any(o.what == "another, and right" for o in outcomes)
