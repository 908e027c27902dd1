"""A vector that is read of a packed weight, or written of an output, in; what asks the cache for those that
follow, out."""

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
        self._seen: dict[tuple[Scope, str], int] = {}  # bytes of a buffer, by where they are accessed

    def after(
        self, buffer: Buffer, pointer: Value, scope: Scope, elem: str, lanes: int, written: bool = False
    ) -> None:
        """Have the second-level cache, or the first for what is written, asked for what lies `ahead` bytes
        after the vector at the pointer, once for every line: the vectors of a scope are neighbours, front to
        back. Nothing happens where that is outside of the buffer."""
        size = lanes * (_BITS.get(elem) or int(elem[1:])) // 8
        start = self._seen.get((scope, buffer.name), 0)
        self._seen[scope, buffer.name] = start + size
        lines = -(-(start + size) // CACHE_LINE) - -(-start // CACHE_LINE)
        if not lines:
            return
        self.b.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"], "nounwind")
        for i in range(lines):
            place = f"getelementptr i8, {pointer.typed}, i64 {buffer.ahead + i * CACHE_LINE}"
            at = self.b.at(scope, place, "ptr", 0, None)
            how = "i32 1, i32 3" if written else "i32 0, i32 2"
            scope.block.lines.append(f"call void @llvm.prefetch.p0({at.typed}, {how}, i32 1)")
