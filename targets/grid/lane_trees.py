"""A block of a kernel in; the tree in it by which lanes reduce what each of them has made, taken apart, out.

    shared p[L];
    lane l in L { ..; p[l] = e }; lane l in L/2 { p[l] op= p[l + L/2] }; ..; x = op j in 2 { p[j] }

Where neighbouring lanes have instructions for that, a group meets once for all of it (lane_reduce in
core/schedule/lanes.py makes these blocks).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from smelt.core.dim import sym
from smelt.core.ir.analysis.scope import accesses
from smelt.core.ir.intrinsics import REDUCE_FN
from smelt.core.ir.kernel import Block, Buffer, Load, Loop, Reduce, Stmt, Store


@dataclass(frozen=True, slots=True)
class LaneTree:
    """first: each of `lanes` lanes stores its part of the reduction to its element of `parts`, as the last
    thing that it does. total: one lane stores the reduction of all parts. Nobody else reads them."""

    parts: Buffer
    lanes: int
    first: Loop
    kind: str
    total: Store


def lane_tree(b: Block) -> LaneTree | None:
    """None where the block is something else."""
    if len(b.buffers) != 1 or len(b.body) < 2:
        return None
    (parts,), first, total = b.buffers, b.body[0], b.body[-1]
    if len(parts.shape) != 1 or not parts.shape[0].is_const or parts.space != "shared":
        return None
    lanes = parts.shape[0].const
    kind = _kind_of_pair(parts, total)
    if kind is None or not _fills(first, parts, lanes):
        return None
    assert isinstance(first, Loop) and isinstance(total, Store)
    widths = [lanes, *(s.extent.const_or_none if isinstance(s, Loop) else None for s in b.body[1:-1]), 1]
    halved = all(x is not None and y is not None and x == 2 * y for x, y in pairwise(widths))
    if not halved or not all(_halves(s, parts, kind) for s in b.body[1:-1]):
        return None
    return LaneTree(parts, lanes, first, kind, total)


def _fills(s: Stmt, parts: Buffer, lanes: int) -> bool:
    if not isinstance(s, Loop) or s.level != "lane" or s.extent != lanes or not s.body:
        return False
    last = s.body[-1]
    own = isinstance(last, Store) and last.buffer == parts.name and last.index == (sym(s.var),)
    plain = isinstance(last, Store) and last.accumulate is None and not last.guard
    return own and plain and sum(a.buffer == parts.name for a in accesses((s,))) == 1


def _halves(s: Stmt, parts: Buffer, kind: str) -> bool:
    if not isinstance(s, Loop) or s.level != "lane" or s.buffers:
        return False
    me = sym(s.var)
    other = Load(parts.name, (me + s.extent,), parts.dtype)
    return s.body == (Store(parts.name, (me,), other, REDUCE_FN[kind]),)


def _kind_of_pair(parts: Buffer, s: Stmt) -> str | None:
    """The kind of the reduction that a statement is of the first two parts."""
    if not isinstance(s, Store) or s.accumulate is not None or s.guard or not isinstance(s.value, Reduce):
        return None
    e = s.value
    plain = len(e.axes) == 1 and e.axes[0].extent == 2 and e.dtype == parts.dtype
    return e.kind if plain and e.body == Load(parts.name, (sym(e.axes[0].var),), parts.dtype) else None


__all__ = ["LaneTree", "lane_tree"]
