"""Machines with lanes (GPUs): one work-item per output element or per row, groups over the rest."""

from __future__ import annotations

from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.contraction import power
from smelt.core.schedule.strategies.elementwise import collapse_all
from smelt.core.schedule.tree import ScheduleError
from smelt.core.schedule.view import View, roles

MOST_LANES = 64
"""Work-items of a group: a multiple of every wave and warp size in use."""
TILE_ROWS = 4
"""Rows that a work-item of a contraction computes, so that it reads the right operand once for all."""


def lanes(d: Draft, root: str) -> None:
    """Split the innermost useful loop over work-items, bind the others as groups."""
    v = d.view(root)
    if _contraction(d, v, _width(d, v, v.vars[-1])):
        return
    v = collapse_all(d, v)
    reduced = v.all_reduces()
    column = v.vars[-1]
    if reduced and all(column not in v.follows(r) for r in v.reduces()):
        _rows(d, v)
        return
    width = _width(d, v, column)
    o, i = f"{column}.o", f"{column}.i"
    d.do("split", column, width, o, i, True)
    for g in (*v.vars[:-1], o):
        d.do("bind", g, "group")
    d.do("bind", i, "lane")
    if reduced:
        for name in d.stage_reduce(i):
            d.attempt("accumulate", name, ())


def _width(d: Draft, v: View, var: str) -> int:
    """Work-items along a loop: no more than the power of two that holds it."""
    n = v.extent(var).const_or_none
    return min(MOST_LANES, d.machine.max_lanes, MOST_LANES if n is None else power(n))


def _rows(d: Draft, v: View) -> None:
    """One row per work-item: reductions that the inner loops share are computed once."""
    followed = frozenset[str]().union(*(v.follows(r) for r in v.reduces()))
    outer = [x for x in v.vars if x in followed]
    inner = [x for x in v.vars if x not in followed]
    if not outer:
        raise ScheduleError("lanes", "one row: nothing to spread")
    d.order(*outer, *inner)
    row = outer[-1]
    width = _width(d, v, row)
    o, i = f"{row}.o", f"{row}.i"
    d.do("split", row, width, o, i, True)
    for g in (*outer[:-1], o):
        d.do("bind", g, "group")
    d.do("bind", i, "lane")
    names = d.stage_reduce(i)
    d.attempt("hoist", i, "inv")
    for name in names:
        d.attempt("accumulate", name, ())


def _contraction(d: Draft, v: View, width: int) -> bool:
    """A few rows per work-item, columns over work-items."""
    r = roles(v)
    if r is None or r.row is None:
        return False
    c, row = r.column, r.row
    o, i = f"{c}.o", f"{c}.i"
    with d.all_or_nothing():
        d.do("split", c, width, o, i, True)
        d.do(
            "tile", row, tuple(range(TILE_ROWS, 0, -1)), "balanced", f"{row}.o", f"{row}.r", f"{row}.i"
        )
        groups = [*r.batch, *r.outer, f"{row}.o", o]
        d.order(*groups, i, f"{row}.i")
        for g in groups:
            d.do("bind", g, "group")
        d.do("bind", i, "lane")
        for name in d.stage_reduce(i):
            d.attempt("accumulate", name, ())
        d.do("unroll", f"{row}.i")
    return True
