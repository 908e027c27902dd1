"""A vector that is read of a packed weight in; what asks the cache for those that follow, out."""

from __future__ import annotations

from smelt.core.ir.kernel import Buffer
from smelt.targets.llvm.builder import FunctionBuilder, Scope, Value

CACHE_LINE = 64
"""Bytes that one request brings."""
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


class Ahead:
    """The requests of one function."""

    def __init__(self, b: FunctionBuilder) -> None:
        self.b = b
        self._read: dict[tuple[Scope, str], int] = {}  # bytes of a buffer, by where they are read

    def after(self, buffer: Buffer, pointer: Value, scope: Scope, elem: str, lanes: int) -> None:
        """Have the second-level cache asked for what lies `ahead` bytes after the vector at the pointer,
        once for every line: the vectors of a scope are neighbours, front to back. Nothing happens where that
        is outside of the buffer."""
        size = lanes * (_BITS.get(elem) or int(elem[1:])) // 8
        start = self._read.get((scope, buffer.name), 0)
        self._read[scope, buffer.name] = start + size
        lines = -(-(start + size) // CACHE_LINE) - -(-start // CACHE_LINE)
        if not lines:
            return
        self.b.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"], "nounwind")
        for i in range(lines):
            place = f"getelementptr i8, {pointer.typed}, i64 {buffer.ahead + i * CACHE_LINE}"
            at = self.b.at(scope, place, "ptr", 0, None)
            scope.block.lines.append(f"call void @llvm.prefetch.p0({at.typed}, i32 0, i32 2, i32 1)")
