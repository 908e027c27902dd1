"""Tiles in, a copy of the body per tile size out: balanced tiles by a switch, greedy ones by a loop per
size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.core.dim import YES, Dim, Facts, ceildiv
from smelt.core.ir.kernel import Tiles
from smelt.targets.llvm.ahead import Share
from smelt.targets.llvm.builder import Value
from smelt.targets.llvm.statements import Statements


class Tiled(Statements):
    """The tiles of one kernel; inside them the size of the tile is a constant."""

    def _balanced_tile(self, t: Tiles, at: int | Value, inside: Callable[[], None]) -> None:
        """The at-th of n tiles: the first extent % n have one row more than the others."""
        ix = self.index
        extent = ix.number(t.extent, self.env)
        n = ix.pick("smax", ix.number(ceildiv(t.extent, t.sizes[0]), self.env), 1)
        outer = self.lines_ahead.share
        self.lines_ahead.share = Share(at, n, self.b.scope.depth)
        self._balanced(t, at, extent, n, inside)
        self.lines_ahead.share = outer

    def _balanced(
        self, t: Tiles, at: int | Value, extent: int | Value, n: int | Value, inside: Callable[[], None]
    ) -> None:
        ix = self.index
        rows = ix.floordiv(extent, n)
        longer = ix.sub(extent, ix.mul(n, rows))
        start = ix.add(ix.mul(rows, at), ix.pick("smin", longer, at))
        if isinstance(rows, int) and isinstance(longer, int) and longer == 0:
            self._sized(t, start, rows, inside)
            return
        a, b = ix.as_value(at), ix.as_value(longer)
        more = self.b.pure(f"icmp slt {a.typed}, {b.text}", "i1", 0, a, b)
        extra = self.b.pure(f"zext {more.typed} to {ix.elem}", ix.elem, 0, more)
        extra.low, extra.high = 0, 1
        if isinstance(start, Value):
            start.low = 0
        size = ix.as_value(ix.add(rows, extra))
        arms = [(r, self._arm(t, start, r, inside)) for r in self._reachable(t)]
        self._switch(size, arms, t.body)

    def _arm(
        self, t: Tiles, start: int | Value, rows: int, inside: Callable[[], None]
    ) -> Callable[[], None]:
        return lambda: self._sized(t, start, rows, inside)

    def _sized(
        self, t: Tiles, start: int | Value, rows: int, inside: Callable[[], None]
    ) -> None:
        old = self.rare
        # of more rows than sizes[0] squared all balanced tiles have sizes[0] or one fewer
        self.rare = t.mode == "balanced" and isinstance(rows, int) and rows < t.sizes[0] - 1
        with self.bind({t.start: start, t.rows: rows}):
            inside()
        self.rare = old

    def _reachable(self, t: Tiles) -> list[int]:
        """Tile sizes that some extent in range gives, largest first."""
        low, high = self.facts.bounds(t.extent)
        most = t.sizes[0]
        first = max(low or 0, 1)
        # above most^2 rows all tiles have most or most-1 rows
        last = min(first + most * most + most, high) if high is not None else first + most * (most + 1)
        found = set()
        for extent in range(first, last + 1):
            n = -(-extent // most)
            found.add(extent // n)
            if extent % n:
                found.add(extent // n + 1)
        if high is None or high > last:
            found |= {most, max(most - 1, 1)}
        return sorted(found or {1}, reverse=True)

    def _greedy_group(self, t: Tiles, at: int | Value, inside: Callable[[], None]) -> None:
        """Group `at` is a whole tile of sizes[0], or, the last one, the rest in smaller tiles."""
        ix = self.index
        start = ix.mul(at, t.sizes[0])
        left = ix.sub(ix.number(t.extent, self.env), start)
        if isinstance(left, int):
            self._greedy(t, start, left, t.sizes, inside)
            return
        if _divides(self.facts, t.extent, t.sizes[0]):
            self._sized(t, start, t.sizes[0], inside)
            return
        full = self.s.compare("icmp sge", left, self.b.integer(t.sizes[0], ix.elem))
        left.low, left.high = 0, None
        self._branch(
            full,
            lambda: self._sized(t, start, t.sizes[0], inside),
            lambda: self._greedy(t, start, left, t.sizes[1:], inside, t.sizes[0] - 1),
            t.body,
        )

    def _greedy(
        self,
        t: Tiles,
        start: int | Value,
        left: int | Value,
        sizes: Sequence[int],
        inside: Callable[[], None],
        most: int | None = None,
    ) -> None:
        """Tiles of each size in turn, as many as fit. most: an upper bound of what is left."""
        ix = self.index
        for size in sizes:
            count = ix.floordiv(left, size)
            if isinstance(count, Value) and most is not None and most // size <= 1:
                some = self.s.compare("icmp sge", ix.as_value(left), self.b.integer(size, ix.elem))
                if most // size == 1:
                    self._branch(some, self._arm(t, start, size, inside), lambda: None, t.body)
            elif most is None or most // size > 0:
                self._tile_loop(t, start, count, size, inside)
            start = ix.add(start, ix.mul(count, size))
            left = ix.mod(left, size)
            most = size - 1 if most is None else min(most, size - 1)

    def _tile_loop(
        self, t: Tiles, start: int | Value, count: int | Value, size: int, inside: Callable[[], None]
    ) -> None:
        ix = self.index
        n = ix.as_value(count)
        if t.level == "unroll" and isinstance(count, int):
            for i in range(count):
                self._sized(t, ix.add(start, i * size), size, inside)
            return

        def run(i: Value) -> None:
            at = int(i.const) if i.const is not None else i
            self._sized(t, ix.add(start, ix.mul(at, size)), size, inside)

        self._loop(n, t.body, run)

    def _tiles(self, t: Tiles) -> None:
        """Tiles below the group level, one after the other."""

        def inside() -> None:
            self._pass(t)

        extent = self.index.number(t.extent, self.env)
        around = self.needed(t.body, t.buffers)
        if t.mode == "greedy":
            if isinstance(extent, Value):
                extent = self.unless_idle(extent, t.extent, around)
            self._greedy(t, 0, extent, t.sizes, inside, self.facts.bounds(t.extent)[1])
            return
        if isinstance(extent, int) and extent == 0:
            return
        count = self.index.number(ceildiv(t.extent, t.sizes[0]), self.env)
        if t.level == "unroll" and isinstance(count, int):
            for i in range(count):
                self._balanced_tile(t, i, inside)
            return

        def run(i: Value) -> None:
            self._balanced_tile(t, int(i.const) if i.const is not None else i, inside)

        self._loop(self.unless_idle(self.index.as_value(count), t.extent, around), t.body, run)


def _divides(facts: Facts, extent: Dim, size: int) -> bool:
    return facts.prove_divisible(extent, size) is YES
