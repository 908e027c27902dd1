"""Hostile calls of a model's C functions: fixed seeds of the campaign.

The cases that it has found stand, under sanitizers, in tests/targets/runtime_c/probe.c.
"""

from __future__ import annotations

from campaign import apart


def test_fixed_seeds() -> None:
    tally = apart("attack_callers", 150)
    assert not tally.failures, tally.report()
    assert tally.counts["5 calls and more"] > 30
