"""A vector that is read of a packed weight, or written of an output, in; what asks the cache for those that
follow, out."""

from __future__ import annotations

from math import prod

from smelt.core.ir.kernel import Buffer
from smelt.targets.llvm.builder import FunctionBuilder, Scope, Value

CACHE_LINE = 64
"""Bytes that one request brings."""
PAGES, PAGES_EACH = 65536, 4 * CACHE_LINE
"""How far after a vector of a large weight a line is asked for besides, for every so many bytes: the address
of its page has been looked up then when all of its lines are asked for."""
_READ, _READ_SECOND, _WRITE = "i32 0, i32 3", "i32 0, i32 2", "i32 1, i32 3"
"""What llvm.prefetch is told: into the first-level cache, into the second, to be written."""
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


class Ahead:
    """The requests of one function. cached: the bytes of the largest cache of a core.

    Lines of a weight come into the first-level cache, so that those which the second has are read there once
    only. A weight that the second could hold has the addresses of its pages looked up already
    (benchmarks/results/choices.md, Requests for weights).
    """

    def __init__(self, b: FunctionBuilder, cached: int) -> None:
        self.b = b
        self.cached = cached
        self._seen: dict[tuple[Scope, str], int] = {}  # bytes of a buffer, by where they are accessed

    def after_read(self, buffer: Buffer, pointer: Value, scope: Scope, elem: str, lanes: int) -> None:
        """Ask for what lies `ahead` bytes after the vector at the pointer. The vectors of a scope are
        neighbours, front to back. Nothing happens where that is outside of the buffer."""
        start, size = self._next(buffer, scope, elem, lanes)
        self._ask(pointer, scope, buffer.ahead, _due(start, size, CACHE_LINE), _READ)
        if _bytes(buffer) > self.cached:
            self._ask(pointer, scope, PAGES, _due(start, size, PAGES_EACH), _READ_SECOND)

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
