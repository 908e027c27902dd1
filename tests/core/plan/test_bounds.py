"""What a size is at most: within declared ranges, through names of formulas, unknown where anything is."""

from __future__ import annotations

import pytest

from smelt.core.dim import Dim, Facts, parse_dim
from smelt.core.ir.graph import Symbol
from smelt.core.plan.bounds import LARGEST, UNBOUNDED, most_bytes

SYMBOLS = (Symbol("n", 1, 10), Symbol("m", 0, 7), Symbol("free", 0, None), Symbol("big", 0, UNBOUNDED))


def most(text: str, *names: tuple[str, str]) -> int | None:
    facts = Facts()
    for s in SYMBOLS:
        facts = facts.with_range(s.name, s.low, s.high)
    rows: list[tuple[str, Dim]] = [(name, parse_dim(d)) for name, d in names]
    (found,) = most_bytes([parse_dim(text)], facts, SYMBOLS, rows)
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("256", 256),
        ("4*n*m", 280),
        ("64*((n + 15)//16)", 64),
        ("max(4*n, 8*m) + 64", 120),
        ("4*n*free", None),
        ("4*big", None),
        (f"{LARGEST}*n", None),
        ("unheard", None),
        ("4*min(free, n)", 40),
        ("min(big, 9) + max(free, 3)", None),
        ("0", 0),
    ],
)
def test_bounds(text: str, found: int | None) -> None:
    assert most(text) == found


def test_names_of_formulas() -> None:
    assert most("4*s", ("s", "n + m")) == 68
    assert most("4*t", ("s", "n + m"), ("t", "2*s")) == 136
    assert most("4*s", ("s", "n + free")) is None
    assert most("4*s", ("s", "n"), ("s", "s + m")) is None, "a loop may add to it in every round"
    assert most("4*s", ("s", "s + m")) is None
