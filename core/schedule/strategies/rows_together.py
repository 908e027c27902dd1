"""Reductions of short rows whose results are neighbours (dot products with few vectors, extremes of blocks):
several rows are reduced lane by lane side by side, and then across their lanes together, which takes a few
operations for all of them. Rows of a few other operands (queries that share keys) read theirs once.

What the numbers below are worth stands in benchmarks/results/choices.md."""

from __future__ import annotations

from smelt.core.ir.kernel import Load, Reduce, walk_expr
from smelt.core.ir.rewrite import free_symbols
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.contraction import DOT_ROWS
from smelt.core.schedule.strategies.reduction import (
    GROUP_ELEMENTS,
    SHORT_ROW,
    along,
    row_nest,
    sides,
)
from smelt.core.schedule.tree import ScheduleError
from smelt.core.schedule.view import View


def rows_together(d: Draft, root: str) -> None:
    """One element for each of neighbouring rows, of as many at a time as registers hold."""
    v = d.view(root)
    lanes = d.machine.lanes(v.bits)
    if d.machine.has_lanes or lanes < 2 or v.is_heavy(d.machine) or not _short(v, lanes):
        raise ScheduleError("rows_together", "no short rows, or costly ones")
    v = row_nest(d, v)
    (r,) = v.all_reduces()
    column = v.contiguous_store()
    if sides(v)[1] or column is None or column not in free_symbols(r) or not along(v, []):
        raise ScheduleError("rows_together", "rows are not contiguous, or their results no neighbours")
    sharing = _sharing(v, r, column)
    together = _fit(d, 1 if sharing is None else v.extent(sharing).const, lanes)
    n = v.extent(column).const_or_none
    if together < 2 or (n is not None and n < together):
        raise ScheduleError("rows_together", "fewer rows than registers hold")
    _schedule(d, v, r, column, sharing, together)


def _schedule(d: Draft, v: View, r: Reduce, column: str, sharing: str | None, together: int) -> None:
    (axis,), n = r.axes, v.extent(column).const_or_none
    others = [x for x in v.vars if x not in (column, sharing)]
    size = max(GROUP_ELEMENTS // axis.extent.const // together, 1) * together
    shared = [] if sharing is None else [sharing]
    d.order(*others, column, *shared)
    if n is None or n > size:
        d.do("chunk", column, size, f"{column}.g")
        others.append(f"{column}.g")
    elif not others:
        others.append(d.enclose(v.vars[0]))
    d.share(others)
    o, i = f"{column}.o", f"{column}.i"
    d.do("tile", column, (together, 1), "greedy", o, f"{column}.r", i)
    d.order(*shared, i)
    (name,) = d.stage_reduce(o)
    d.do("strip_together", name, d.machine.lanes(v.bits))
    for x in shared:
        d.do("unroll", x)
    for x in (*shared, i):
        d.do("unroll", f"{x}.p")
    d.do("bind", i, "vector")


def _short(v: View, lanes: int) -> bool:
    """Whether there is one reduction, of floats along one axis of a known length, which is short."""
    found = v.all_reduces()
    if len(found) != 1 or len(v.stores) != 1 or not found[0].dtype.is_float:
        return False
    lengths = [a.extent.const_or_none for a in found[0].axes]
    plain = not any(isinstance(x, Load) and x.guard for x in walk_expr(found[0].body))
    return plain and len(lengths) == 1 and lengths[0] is not None and lanes <= lengths[0] <= SHORT_ROW


def _sharing(v: View, r: Reduce, column: str) -> str | None:
    """A loop of a few steps that some operand of the columns does not follow."""
    loads = [x for x in walk_expr(r.body) if isinstance(x, Load) and column in v.follows(x)]
    for x in reversed(v.vars):
        few = v.extent(x).is_const and v.extent(x).const <= DOT_ROWS
        if x != column and few and x in v.follows(r) and any(x not in v.follows(y) for y in loads):
            return x
    return None


def _fit(d: Draft, rows: int, lanes: int) -> int:
    """How many columns' sums stay in registers with an operand of each row, and one of a column."""
    room = max(d.machine.vector_registers, 16) - 1 - rows
    together = lanes
    while together * rows > room:
        together //= 2
    return together


__all__ = ["rows_together"]
