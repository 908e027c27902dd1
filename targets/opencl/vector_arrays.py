"""A local buffer and the code that uses it in; whether it is an array of vectors, and how wide, out."""

from __future__ import annotations

from smelt.core.dim import sym
from smelt.core.dtype import bool_
from smelt.core.ir.analysis.scope import accesses
from smelt.core.ir.kernel import Buffer, Loop, Stmt, walk

WIDTHS = (16, 8, 4, 2)
"""Elements that OpenCL C has vector types for (3 is no power of two)."""


def whole_vectors(b: Buffer, body: tuple[Stmt, ...]) -> int:
    """Elements of a vector, where only vector loops reach the elements of a local buffer, along its last axis
    and from its beginning; 0 where anything else reaches some, or rows are no whole vectors."""
    n = b.shape[-1].const_or_none if b.shape else None
    if n is None or (n not in WIDTHS and n % WIDTHS[0]) or b.dtype == bool_:
        return 0
    inside = 0
    for s in walk(body):
        if isinstance(s, Loop) and s.level == "vector" and s.extent.is_const and s.extent.const <= n:
            mine = [a for x in s.body for a in accesses(x) if a.buffer == b.name]
            inside += sum(a.index[-1] == sym(s.var) for a in mine)
    return min(n, WIDTHS[0]) if inside and inside == sum(a.buffer == b.name for a in accesses(body)) else 0
