"""A size as a formula and the ranges of its symbols in, the most bytes that any run may want out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from smelt.core.dim import Dim, Facts, sym
from smelt.core.ir.graph import Symbol

UNBOUNDED = 2**31 - 1
"""A symbol that reaches it has no bound that anybody meant: inference gives it to sizes of a run that nothing
limits."""

LARGEST = 1 << 40
"""Bytes, or the value of a symbol that stands for a formula: what may be more is taken for unbounded."""


def most_bytes(
    sizes: Iterable[Dim], facts: Facts, symbols: Sequence[Symbol], names: Sequence[tuple[str, Dim]]
) -> tuple[int | None, ...]:
    """Of each size; None where there is no bound, as of a symbol that has none. names: symbols that stand for
    formulas, in order; one that a run gives several formulas (what a loop carries) has the bound that it was
    declared with."""
    known = {s.name for s in symbols if _bounded(s, facts)}
    times = Counter(name for name, _ in names)
    for name, d in names:
        if name in known or times[name] > 1 or not d.symbols <= known:
            continue
        if (high := _most(d, facts)) is not None:
            known.add(name)
            facts = facts.with_range(name, 0, high)
    # min(n, 32) has a bound whatever n is
    return tuple(_most(d.substitute({s: sym(f"\0{s}") for s in d.symbols - known}), facts) for d in sizes)


def _bounded(s: Symbol, facts: Facts) -> bool:
    """By its declaration, or by what a run checks."""
    high = s.high if s.high is not None and s.high < UNBOUNDED else facts.bounds(sym(s.name))[1]
    return high is not None and high < UNBOUNDED


def _most(d: Dim, facts: Facts) -> int | None:
    high = facts.bounds(d)[1]
    return None if high is None or high > LARGEST else max(0, high)
