"""A vector that is read of a packed weight, or written of an output, in; what asks the cache for those that
follow, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from smelt.core.ir.kernel import Buffer
from smelt.targets.llvm.builder import FunctionBuilder, Scope, Value
from smelt.targets.llvm.index import Indexer, Number, ScaledValue

CACHE_LINE = 64
"""Bytes that one request brings."""
PAGES, PAGES_EACH = 65536, 4 * CACHE_LINE
"""How far after a vector of a large weight a line is asked for besides, for every so many bytes: the address
of its page has been looked up then when all of its lines are asked for."""
SHARED_BY = 4
"""Tiles of rows from which on each asks for a share of the next panel instead of for what it reads itself."""
_ONE = 16
"""Bits behind the point of a share as a number."""
_READ, _READ_SECOND, _WRITE = "i32 0, i32 3", "i32 0, i32 2", "i32 1, i32 3"
"""What llvm.prefetch is told: into the first-level cache, into the second, to be written."""
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


@dataclass(frozen=True)
class Share:
    """Code for the `at`-th of so many tiles of rows, which all read the same panel. depth: of the scope
    around the tiles; what varies further inside walks through the panel."""

    at: Number
    tiles: Number
    depth: int


@dataclass(frozen=True)
class Panel:
    """Where the panel of a weight begins that a tile reads, and its bytes; the next one lies behind it."""

    start: Value
    bytes: int
    share: Share


class Ahead:
    """The requests of one function. cached: the bytes of the largest cache of a core. share: of the tile that
    code is emitted for.

    Lines of a weight come into the first-level cache, so that those which the second has are read there once
    only. A weight that the second could hold has the addresses of its pages looked up already. Of a larger
    one the first of many tiles would wait for memory, and memory for the others: so each of them asks for its
    share of the next panel, line after line (benchmarks/results/choices.md, Requests for weights).
    """

    def __init__(self, b: FunctionBuilder, index: Indexer, cached: int) -> None:
        self.b = b
        self.index = index
        self.cached = cached
        self.share: Share | None = None
        self._walks: dict[str, tuple[Value, list[ScaledValue]]] = {}  # starts and bytes, by the pointer
        self._seen: dict[tuple[Scope, str], int] = {}  # bytes of a buffer, by where they are accessed

    def walking(self, pointer: Value, buffer: Buffer, start: Value, parts: Sequence[ScaledValue]) -> Value:
        """The pointer, which is so many elements after the start of the buffer, is remembered as that."""
        if buffer.ahead:
            self._walks[pointer.text] = start, [(n * buffer.dtype.bytes, v) for n, v in parts]
        return pointer

    def after_read(self, buffer: Buffer, pointer: Value, scope: Scope, elem: str, lanes: int) -> None:
        """Ask for what lies `ahead` bytes after the vector at the pointer. The vectors of a scope are
        neighbours, front to back. Nothing happens where that is outside of the buffer."""
        start, size = self._next(buffer, scope, elem, lanes)
        lines, pages = _due(start, size, CACHE_LINE), _due(start, size, PAGES_EACH)
        large = _bytes(buffer) > self.cached
        panel = self._panel(pointer) if large else None
        if panel is not None:
            own, others = self._shared(buffer, pointer, panel)
            self._ask(own, scope, 0, lines, _READ)
            self._ask(others, scope, 0, pages, _READ_SECOND)
            return
        self._ask(pointer, scope, buffer.ahead, lines, _READ)
        if large:
            self._ask(pointer, scope, PAGES, pages, _READ_SECOND)

    def _panel(self, pointer: Value) -> Panel | None:
        """That through which the code of a tile walks from there, if it is one of several."""
        if self.share is None or pointer.text not in self._walks:
            return None
        start, parts = self._walks[pointer.text]
        outer = [(n, v) for n, v in parts if v.scope.depth <= self.share.depth]
        if not outer or len(outer) == len(parts):
            return None
        offset = self.index.as_value(self.index.total(0, outer))
        return Panel(self._plus(start, offset), min(abs(n) for n, _ in outer), self.share)

    def _shared(self, buffer: Buffer, pointer: Value, panel: Panel) -> tuple[Value, Value]:
        """What is asked for in the first-level cache, and in the second: by few tiles what they read next,
        and its pages; by more what is read now, which costs little, and a share of the next panel. Either
        way the second address grows by a part of what the pointer does."""
        b, ix, share = self.b, self.index, panel.share
        tiles = ix.as_value(ix.pick("smax", share.tiles, 1))
        few = b.pure(f"icmp slt {tiles.typed}, {SHARED_BY}", "i1", 0, tiles)
        distance = self._either(few, ix.as_value(buffer.ahead), ix.as_value(0))
        part = self._either(few, ix.as_value(1 << _ONE), ix.as_value(ix.floordiv(1 << _ONE, tiles)))
        begin = ix.add(panel.bytes, ix.floordiv(ix.mul(share.at, panel.bytes), tiles))
        first = self._either(few, ix.as_value(PAGES), ix.as_value(begin))
        walked = self._distance(panel.start, pointer)
        along = b.pure(f"mul {walked.typed}, {part.text}", ix.elem, 0, walked, part)
        along = b.pure(f"lshr {along.typed}, {_ONE}", ix.elem, 0, along)
        return self._plus(pointer, distance), self._plus(self._plus(panel.start, first), along)

    def _either(self, condition: Value, a: Value, other: Value) -> Value:
        rhs = f"select {condition.typed}, {a.typed}, {other.typed}"
        return self.b.pure(rhs, a.elem, 0, condition, a, other)

    def _distance(self, start: Value, pointer: Value) -> Value:
        elem = self.index.elem
        low = self.b.pure(f"ptrtoint {start.typed} to {elem}", elem, 0, start)
        high = self.b.pure(f"ptrtoint {pointer.typed} to {elem}", elem, 0, pointer)
        return self.b.pure(f"sub {high.typed}, {low.text}", elem, 0, high, low)

    def _plus(self, pointer: Value, offset: Value) -> Value:
        return self.b.pure(f"getelementptr i8, {pointer.typed}, {offset.typed}", "ptr", 0, pointer, offset)

    def after_write(self, buffer: Buffer, pointer: Value, scope: Scope, elem: str, lanes: int) -> None:
        """The same for a vector that is written: every line, which is the core's own then."""
        start, size = self._next(buffer, scope, elem, lanes)
        self._ask(pointer, scope, buffer.ahead, _due(start, size, CACHE_LINE), _WRITE)

    def _next(self, buffer: Buffer, scope: Scope, elem: str, lanes: int) -> tuple[int, int]:
        """How many bytes of the buffer the scope accesses before this vector, and how many the vector has."""
        size = lanes * (_BITS.get(elem) or int(elem[1:])) // 8
        start = self._seen.get((scope, buffer.name), 0)
        self._seen[scope, buffer.name] = start + size
        return start, size

    def _ask(self, pointer: Value, scope: Scope, distance: int, places: range, how: str) -> None:
        if places:
            self.b.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"], "nounwind")
        for place in places:
            address = f"getelementptr i8, {pointer.typed}, i64 {distance + place}"
            at = self.b.at(scope, address, "ptr", 0, None)
            scope.block.lines.append(f"call void @llvm.prefetch.p0({at.typed}, {how}, i32 1)")


def _due(start: int, size: int, step: int) -> range:
    """Where multiples of step lie in `size` bytes that follow `start`, counted from there."""
    return range(-start % step, size, step)


def _bytes(buffer: Buffer) -> float:
    """Infinite where only a run knows them."""
    sizes = [n.const_or_none for n in buffer.shape]
    return prod(float("inf") if n is None else n for n in sizes) * buffer.dtype.bytes
