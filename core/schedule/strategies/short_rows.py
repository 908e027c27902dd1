"""Reductions of rows of a few elements, such as the scores of 4 classes: vectors of rows, whose elements an
emitter takes apart in registers."""

from __future__ import annotations

from math import prod

from smelt.core.ir.kernel import Load, walk_expr
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.reduction import (
    GROUP_ELEMENTS,
    HEAVY_IN_FLIGHT,
    ROW_ELEMENTS,
    along,
    in_flight,
    row_nest,
    sides,
)
from smelt.core.schedule.tree import ScheduleError
from smelt.core.schedule.view import View


def short_rows(d: Draft, root: str) -> None:
    """One element for each row of a few; rows are neighbours in memory, and their results."""
    v = d.view(root)
    if d.machine.has_lanes or not _few(v):
        raise ScheduleError("short_rows", "no rows of a few elements")
    v = row_nest(d, v)
    outer, inner = sides(v)
    row, lanes = v.contiguous_store(), d.machine.lanes(v.bits)
    if inner or row != v.vars[-1] or not along(v, []) or not _side_by_side(v, row):
        raise ScheduleError("short_rows", "rows or their results are not side by side")
    n = v.extent(row).const_or_none
    if lanes < 2 or (n is not None and n < lanes):
        raise ScheduleError("short_rows", "fewer rows than lanes")
    groups = outer[:-1]
    if n is None or n > GROUP_ELEMENTS:
        d.do("chunk", row, GROUP_ELEMENTS, f"{row}.g")
        groups.append(f"{row}.g")
    elif not groups:
        groups.append(d.enclose(row))
    d.share(groups)
    d.do("strip", row, lanes, d.size("in flight", in_flight(d.machine, HEAVY_IN_FLIGHT, v.stores)), False)


def _few(v: View) -> bool:
    """Whether every reduction is of at most ROW_ELEMENTS, known when compiling."""
    counts = [[a.extent.const_or_none for a in r.axes] for r in v.all_reduces()]
    known = [[n for n in c if n is not None] for c in counts]
    return bool(counts) and counts == known and all(1 < prod(c) <= ROW_ELEMENTS for c in known)


def _side_by_side(v: View, row: str) -> bool:
    """Whether a row's elements follow those of the row before, or do not depend on it."""
    for r in v.all_reduces():
        n = prod(a.extent.const for a in r.axes)
        for x in walk_expr(r.body):
            if isinstance(x, Load) and (x.guard or v.stride(x, row) not in (0, n)):
                return False
    return True


__all__ = ["short_rows"]
