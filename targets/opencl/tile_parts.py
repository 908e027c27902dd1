"""A lane's local buffers and the code that uses them in; whether they are a tile of sums, whose rows a device
with few registers may make in parts, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from smelt.core.dim import sym
from smelt.core.ir.analysis.scope import Access, accesses
from smelt.core.ir.kernel import Bound, Buffer, Loop, Stmt, Store, walk
from smelt.core.ir.rewrite import free_symbols
from smelt.targets.opencl.vector_arrays import whole_vectors

HALF_FILE = 256
"""Bytes of sums up to which a tile stays whole everywhere: half of 16 registers of 256 bits (AVX2), or of 32
of 128 (NEON). Fuller files spill what is loaded."""
FIRST = "tile.first"
"""The symbol of the first row of a part of a tile."""


@dataclass(frozen=True, slots=True)
class PartedTile:
    """rows: of the tile; 0: it is none that may be made in parts. loops: the variables of those over rows.
    used: what holds for FIRST where any row from there on is stored."""

    rows: int
    loops: frozenset[str]
    used: tuple[Bound, ...] = ()


WHOLE = PartedTile(0, frozenset())


def tile_of(buffers: Sequence[Buffer], body: tuple[Stmt, ...]) -> PartedTile:
    """What local buffers are that are one tile of vectors: every store in `body` stands in one unrolled loop
    over all rows, and uses the tile at its own row alone, so that rows may be made in parts. Others are
    WHOLE, and those that fit any device, and odd numbers of rows."""
    sizes = [[d.const_or_none or 0 for d in b.shape] for b in buffers]
    rows = sizes[0][0] if sizes and sizes[0] else 0
    total = sum(prod(n) * b.dtype.bytes for n, b in zip(sizes, buffers, strict=True))
    nested = any(not isinstance(s, Store) and s.buffers for s in walk(body))
    if rows % 2 or total <= HALF_FILE or nested or any(n[:1] != [rows] for n in sizes):
        return WHOLE
    names, found = {b.name for b in buffers}, list(accesses(body))
    loops = [_row_loops(a, rows) for a in found]
    for a, over in zip(found, loops, strict=True):
        if len(over) != 1 or (a.buffer in names and a.index[0] != sym(over[0])):
            return WHOLE
    stores = [a.buffer for a in found if a.is_store and a.buffer not in names]
    again = any(not a.is_store and a.buffer in stores for a in found)
    if again or len(stores) > len(set(stores)) or not all(whole_vectors(b, body) for b in buffers):
        return WHOLE
    known = free_symbols(body)
    ends = [_ends(a, over[0], known) for a, over in zip(found, loops, strict=True) if a.buffer in stores]
    used = tuple(b for b in ends[0] if all(b in e for e in ends)) if ends else ()
    return PartedTile(rows, frozenset(v for over in loops for v in over), used)


def _ends(a: Access, row: str, known: frozenset[str]) -> tuple[Bound, ...]:
    """What holds for FIRST where the access is in bounds at any row from there on."""
    found = []
    for b in a.guard:
        step = b.index.linear(row)
        grows = step is not None and (step[0].const_or_none or 0) > 0 and row not in b.high.symbols
        first = b.index.substitute({row: sym(FIRST)})
        if grows and (first.symbols | b.high.symbols) - {FIRST} <= known:
            found.append(Bound(first, first, b.high))
    return tuple(found)


def _row_loops(a: Access, rows: int) -> list[str]:
    """The unrolled loops of so many passes around an access."""
    loops = [b for b in a.binders if isinstance(b, Loop) and b.level == "unroll"]
    return [x.var for x in loops if x.extent.const_or_none == rows]
