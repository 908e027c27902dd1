"""What each thing costs at each unit, and what moving values costs, in; a unit for each thing, out.

For two units the choice is a least cut, and exact. For more it is improved by cuts until none helps: between
two units, and of all that is better at one of them (Boykov, Veksler and Zabih, "Fast Approximate Energy
Minimization via Graph Cuts", 2001), from each unit and from the best of each two on. Costs are whole numbers,
so that nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.passes.lowering.min_cut import SINK, SOURCE, Arc, least_cut

Assignment: TypeAlias = tuple[int, ...]
"""The number of a unit for each thing."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A value that one thing makes and others read: it moves once to each unit that reads it elsewhere.
    moves[a][b]: what that costs from unit a to b; 0 from a unit to itself."""

    maker: int
    readers: tuple[int, ...]
    moves: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """units: how many there are. own: of each thing the cost at each unit; None: it cannot be there,
    but at another one."""

    units: int
    own: tuple[tuple[int | None, ...], ...]
    shared: tuple[Shared, ...]

    def cost(self, chosen: Assignment) -> int:
        """What an assignment costs that puts nothing where it cannot be."""
        total = 0
        for own, unit in zip(self.own, chosen, strict=True):
            here = own[unit]
            assert here is not None
            total += here
        return total + sum(self.moved(s, chosen) for s in self.shared)

    def moved(self, s: Shared, chosen: Assignment) -> int:
        """What the moves of a value cost."""
        there = {chosen[r] for r in s.readers}
        return sum(s.moves[chosen[s.maker]][unit] for unit in there)

    def alone(self, unit: int) -> Assignment:
        """All on one unit, but for what cannot be there, which is where it costs least."""
        return tuple(unit if own[unit] is not None else _cheapest(own) for own in self.own)


def _cheapest(own: Sequence[int | None]) -> int:
    return min((cost, unit) for unit, cost in enumerate(own) if cost is not None)[1]


def assigned(costs: UnitCosts) -> Assignment:
    """The best assignment that was found: the best of all for two units; for more, none that uses only two of
    them is better."""
    alone = [costs.alone(unit) for unit in range(costs.units)]
    if costs.units <= 2:
        return _improved(costs, min(alone, key=costs.cost))
    pairs = [(a, b) for b in range(costs.units) for a in range(b)]
    starts = [*alone, *(_best(costs, *_choices(costs, alone[a], a, b)) for a, b in pairs)]
    return min((_improved(costs, start) for start in starts), key=costs.cost)


def _improved(costs: UnitCosts, chosen: Assignment) -> Assignment:
    """The assignment after all changes that make it better, until none does."""
    units = range(costs.units)
    changes = [(a, b) for b in units for a in range(b)] + [(b, b) for b in units if costs.units > 2]
    cost, tried = costs.cost(chosen), 0
    while tried < len(changes):
        change, tried = changes[0], tried + 1
        changes = [*changes[1:], change]
        found = _best(costs, *_choices(costs, chosen, *change))
        if (less := costs.cost(found)) < cost:
            chosen, cost, tried = found, less, 1
    return chosen


def _choices(costs: UnitCosts, chosen: Assignment, a: int, b: int) -> tuple[Assignment, Assignment]:
    """Two units for each thing to choose from, the same one twice where it has to stay: a and b for what is
    at one of them; for a = b, b or where it is."""
    zero, one = [], []
    for at, own in zip(chosen, costs.own, strict=True):
        swaps = at in (a, b) and own[a] is not None and own[b] is not None
        zero.append(a if swaps else at)
        one.append(b if (swaps if a != b else own[b] is not None) else at)
    return tuple(zero), tuple(one)


def _best(costs: UnitCosts, zero: Assignment, one: Assignment) -> Assignment:
    """The best assignment that has one of two units for each thing. It is exact where all choose between the
    same two; else a move may count as what it costs from the dearer of the maker's places."""
    network = _Choice(zero, one)
    for n, own in enumerate(costs.own):
        if zero[n] != one[n]:
            low, high = own[zero[n]], own[one[n]]
            assert low is not None and high is not None
            network.alone(n, low - min(low, high), high - min(low, high))
    for s in costs.shared:
        network.value(s)
    side = network.cut()
    return tuple(a if n in side else b for n, (a, b) in enumerate(zip(zero, one, strict=True)))


class _Choice:
    """The network of a choice: a thing is on the source's side where it has its unit of `zero`."""

    def __init__(self, zero: Assignment, one: Assignment) -> None:
        self.zero, self.one = zero, one
        free = [n for n, (a, b) in enumerate(zip(zero, one, strict=True)) if a != b]
        self.node = {n: k for k, n in enumerate(free, 2)}
        self.count = 2 + len(free)
        self.arcs: list[Arc] = []

    def cut(self) -> frozenset[int]:
        """The things on the source's side."""
        side = least_cut(self.count, self.arcs)
        return frozenset(n for n, k in self.node.items() if k in side)

    def alone(self, thing: int, low: int, high: int) -> None:
        """Cost `low` where the thing has its unit of `zero`, else `high`; nothing where it has no choice."""
        if thing in self.node:
            self.arcs += [(self.node[thing], SINK, low), (SOURCE, self.node[thing], high)]

    def value(self, s: Shared) -> None:
        """The moves of a value, unit by unit."""
        low, high = s.moves[self.zero[s.maker]], s.moves[self.one[s.maker]]
        for unit in dict.fromkeys(u for r in s.readers for u in (self.zero[r], self.one[r])):
            if not low[unit] and not high[unit]:
                continue
            zeros = [r for r in s.readers if self.zero[r] == unit]
            ones = [r for r in s.readers if self.one[r] == unit]
            if set(zeros) & set(ones):
                self.alone(s.maker, low[unit], high[unit])
            elif zeros:
                self._below([self.node[r] for r in zeros], s.maker, low[unit], high[unit] - low[unit])
            else:
                self._above([self.node[r] for r in ones], s.maker, high[unit], low[unit] - high[unit])

    def _below(self, readers: Sequence[int], maker: int, cost: int, more: int) -> None:
        """`cost` where any reader is on the source's side, and `more` where the maker is not, if above 0."""
        if len(readers) > 1 and (cost or more > 0):
            joined = self._joined()
            self.arcs += [(r, joined, None) for r in readers]
            readers = [joined]
        self.arcs += [(r, SINK, cost) for r in readers if cost]
        self.arcs += [(r, self.node[maker], more) for r in readers if more > 0 and maker in self.node]

    def _above(self, readers: Sequence[int], maker: int, cost: int, more: int) -> None:
        """The same with the sides changed."""
        if len(readers) > 1 and (cost or more > 0):
            joined = self._joined()
            self.arcs += [(joined, r, None) for r in readers]
            readers = [joined]
        self.arcs += [(SOURCE, r, cost) for r in readers if cost]
        self.arcs += [(self.node[maker], r, more) for r in readers if more > 0 and maker in self.node]

    def _joined(self) -> int:
        """A node that stands for several readers."""
        self.count += 1
        return self.count - 1
