"""What is known about symbols -> a few points at which all of it holds, and the least value of a Dim there.

No proof says that a Dim is at least what it is not at such a point. To ask them first takes time in
proportion to the terms, while the search for a proof of what does not hold tries all that it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import crc32

from smelt.core.dim.expr import Dim

DEEPEST: Final = 40
"""Bounds that are followed from one symbol to the next; a later one is only checked."""

MOST_APART: Final = 500
"""Points that are kept apart from those that every question is asked at."""


class Corner(NamedTuple):
    """How large a size without an upper bound is, and where between its bounds (0 to 1) a symbol lies. By its
    name a size may be up to spread - 1 steps larger."""

    size: int
    at: float
    spread: int = 1
    step: int = 1


_LEAST: Final = Corner(0, 0.0)
_BEYOND: Final = Corner(65, 1.0)  # one more than tiles of most sizes fill
_LOW: Final = Corner(9, 0.0, 4)
_MANY: Final = Corner(40_000, 1.0, 13_334)
_KINDS: Final = (_LOW, Corner(9, 1.0, 4), Corner(700, 0.5, 234), _MANY, _LEAST, _BEYOND)
_ALIKE: Final[Mapping[str, Corner]] = MappingProxyType({})
_MOST: Final = (_LOW, _MANY)
_FEW: Final = (Corner(3, 1.0), Corner(2, 1.0), Corner(1, 1.0), Corner(2, 0.0))
_FAR: Final = Corner(720_720**4, 1.0, 7, 720_720**4)
"""Sizes of 78 bits that small numbers divide, since some divisions are known to come out even."""
FALLEN: Final = -(2**72)
"""Less than any bound that is of use: the product of two sizes of at most 32 bits each is above it."""


def value_at(d: Dim, point: Mapping[str, int]) -> int:
    """The value at a sample, 0 where it divides by 0: a run at such sizes ends in its checks."""
    try:
        return d.evaluate(point)
    except ZeroDivisionError:
        return 0


class Points:
    """Points under fixed knowledge, as a Solver has it; each gives a symbol its value when it is asked for.

    Bounds that lead to a contradiction at a point leave it out; with no point left nothing is refuted.
    """

    def __init__(
        self,
        ranges: Mapping[str, tuple[int | None, int | None]],
        uppers: Mapping[str, tuple[Dim, ...]],
        lowers: Mapping[str, tuple[Dim, ...]],
        zeros: tuple[Dim, ...],
        nonneg: tuple[Dim, ...],
    ) -> None:
        self.ranges, self.uppers, self.lowers = ranges, uppers, lowers
        self.zeros, self.nonneg = zeros, nonneg
        self._points: tuple[_Point, ...] | None = None
        self._few: tuple[_Point, ...] | None = None
        self._apart: dict[tuple[frozenset[str], Corner, Corner], _Point | None] = {}

    def least(self, q: Dim, enough: float = -math.inf) -> float:
        """The least value of q at the points, or the first that is below `enough`; infinite without one."""
        if self._points is None:
            self._points = self._holding(_KINDS)
        least = math.inf
        for value in self._values(q):
            if value is not None and value < least:
                least = value
                if value < enough:
                    break
        return least

    def endless(self, q: Dim) -> bool:
        """Whether q falls without end where all sizes grow, or those alone that are taken away."""
        for others, grown in ((_FAR, frozenset[str]()), (_LEAST, _taken(q))):
            apart = self._where(grown, _FAR, others)
            value = None if apart is None else apart.value(q)
            if value is not None and value < FALLEN:
                return True
        return False

    def _values(self, q: Dim) -> Iterator[int | None]:
        """At the points, and where what is added is small and what is taken away is large: as where a sum
        of parts is less than the whole, which has a name of its own."""
        nowhere = True
        for p in self._points or ():
            nowhere &= (value := p.value(q)) is None
            yield value
        if nowhere:  # as in a nest of loops that only few rows have
            self._few = self._holding(_FEW) if self._few is None else self._few
            yield from (p.value(q) for p in self._few)
        taken = _taken(q)
        for kind in _MOST:
            apart = self._where(taken, kind)
            yield None if apart is None else apart.value(q)

    def _holding(self, kinds: tuple[Corner, ...]) -> tuple[_Point, ...]:
        """The points at corners, where the equalities and inequalities hold there."""
        return tuple(p for p in (_Point(self, kind) for kind in kinds) if p.holds())

    def _where(self, taken: frozenset[str], kind: Corner, others: Corner = _LEAST) -> _Point | None:
        """Where what is taken away is at this corner; None where the equalities do not hold there. Questions
        about the same symbols share it, unless one of them finds that the knowledge contradicts itself."""
        key = taken, kind, others
        found = self._apart.get(key)
        if found.broken if found is not None else key not in self._apart:
            if len(self._apart) > MOST_APART:
                self._apart.clear()
            p = _Point(self, others, dict.fromkeys(taken, kind))
            found = self._apart[key] = p if p.holds() else None
        return found


def _taken(q: Dim) -> frozenset[str]:
    """The symbols of the terms that are taken away."""
    return frozenset().union(*[atom.symbols for mono, k in q._poly.items() if k < 0 for atom, _ in mono])


class _Point:
    """Values of symbols, worked out one by one."""

    def __init__(self, known: Points, kind: Corner, others: Mapping[str, Corner] = _ALIKE) -> None:
        self.known, self.kind, self.others = known, kind, others
        self.values: dict[str, int] = {}
        self.busy: set[str] = set()
        self.later: list[str] = []  # symbols with bounds that were not looked at
        self.broken = False

    def holds(self) -> bool:
        """Whether the equalities and inequalities hold here."""
        equal = all(self.value(z) == 0 for z in self.known.zeros)
        return equal and all((self.value(n) or 0) >= 0 for n in self.known.nonneg) and not self.broken

    def value(self, q: Dim) -> int | None:
        """Of a Dim; None where it divides by 0 or the knowledge contradicts itself."""
        if not q.symbols <= self.values.keys():
            for name in q.symbols:
                if name not in self.values:
                    self._assign(name)
        while self.later and not self.broken:
            self.broken = not self._within(self.later.pop())
        if self.broken:
            return None
        try:
            return q.evaluate(self.values)
        except ZeroDivisionError:
            return None

    def _assign(self, name: str) -> None:
        """A value between the symbol's bounds, those first that these are made of."""
        self.busy.add(name)
        low, high = self.known.ranges.get(name, (0, None))
        lows = [] if low is None else [low]
        highs = [] if high is None else [high]
        for bounds, found in ((self.known.lowers, lows), (self.known.uppers, highs)):
            for x in bounds.get(name, ()):
                if (value := self._reached(x)) is None:
                    self.later.append(name)
                else:
                    found.append(value)
        self.busy.discard(name)
        self.values[name] = self._between(name, max(lows, default=None), min(highs, default=None))

    def _reached(self, x: Dim) -> int | None:
        for name in x.symbols:
            if name not in self.values:
                if name in self.busy or len(self.busy) > DEEPEST:
                    return None
                self._assign(name)
        try:
            return x.evaluate(self.values)
        except ZeroDivisionError:
            return None

    def _between(self, name: str, low: int | None, high: int | None) -> int:
        size, at, spread, step = self.others.get(name, self.kind)
        size += crc32(name.encode()) % spread * step
        if low is None:
            low = -size if high is None else high - size
        if high is None:
            return low + size
        self.broken |= low > high
        return low + int((high - low) * at) if high - low < 2**40 else min(low + size, high)

    def _within(self, name: str) -> bool:
        """Whether all bounds of a symbol hold that has a value."""
        at = self.values[name]
        return all(
            (value := self._reached(x)) is not None and sign * (value - at) >= 0
            for bounds, sign in ((self.known.lowers, -1), (self.known.uppers, 1))
            for x in bounds.get(name, ())
        )
