"""Reductions for lanes that run in step. Along neighbours in memory: a row is a group's, its lanes have
neighbouring elements, and a tree reduces what they have. Along another axis: lanes have neighbouring kept
elements, and share a long reduction. Where rows are too few for the machine, parts of a long reduction are
groups, and a statement of its own reduces what they have.

Not for processors and lanes that are tasks of their own: `rows` and `columns` do there with vectors what
lanes do here, and share rows among cores."""

from __future__ import annotations

from smelt.core.dim import YES, Dim
from smelt.core.ir.analysis.products import split_factors
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.kernel import Reduce, walk_expr
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.reductions import UPDATE
from smelt.core.schedule.strategies.contraction import SHORT_AXIS
from smelt.core.schedule.strategies.elementwise import elementwise
from smelt.core.schedule.strategies.fitting import power
from smelt.core.schedule.strategies.lanes import FEW_GROUPS, few_rows
from smelt.core.schedule.strategies.reduction import (
    accumulate_long,
    along,
    joined_axes,
    prod_or_none,
    row_nest,
    rows,
    sides,
)
from smelt.core.schedule.tree import ScheduleError
from smelt.core.schedule.view import View, roles

PART_TERMS = 32
"""Terms that a lane reduces in a part of a long reduction: several times the steps of the tree at its end."""

SHORT_LANE_ROW = 512
"""Elements of a row up to which several are a group's: a tree and its barriers for each would take longer
than the row."""
LONG_LANE_ROW = 16384
"""Elements of a row from which on its parts are groups: one group would take longer for it than launches for
what the parts make."""
ROW_AT_ONCE = 4
"""Elements of a row that a lane has on their way: with 2048 lanes on a core these are 32 KB of floats."""
SEVERAL_ROWS = 8
"""Rows from which on a group can have several."""


def lane_rows(d: Draft, root: str) -> None:
    """Softmax, norms and reductions along the last axis; refuses rows shorter than lanes are together."""
    _check(d, root, "lane_rows")
    v = d.view(root)
    d.attempt("unclamp", (v.vars[-1], *dict.fromkeys(r.axes[-1].var for r in v.all_reduces())))
    v = row_nest(d, d.view(root))
    outer, inner = _row_sides(v)
    if not along(v, inner) or len(inner) > 1:
        raise ScheduleError("lane_rows", "the reduced axis is not contiguous")
    if any(_short(d, r.axes[-1].extent) for r in v.all_reduces()):
        raise ScheduleError("lane_rows", "a row is shorter than lanes are together")
    count = prod_or_none([v.extent(x) for x in outer])
    if not outer:
        outer = [d.enclose(v.vars[0])]
    for part, kind in _by_length(d, outer, inner):
        if kind == "short":
            _short_rows(d, part)
            continue
        groups = {"long": 0, "row": None}.get(kind, count)
        for each in _parts(d, part, groups):
            _row(d, each)


def _by_length(d: Draft, outer: list[str], inner: list[str]) -> list[tuple[str, str]]:
    """(root, 'short', 'row', 'long' or '') of the nests for rows of different lengths: several where only a
    run knows. Parts of a long row are groups, however many rows there are: no cache holds them in between."""
    v = d.view(outer[0])
    lengths = {r.axes[-1].extent for r in v.all_reduces()} | {v.extent(x) for x in inner}
    plain = len(lengths) == 1 and all(len(r.axes) == 1 for r in v.all_reduces())
    if not plain or all(v.extent(x) == 1 for x in outer):
        return [(outer[0], "")]
    (n,) = lengths
    several = (v.extent(outer[-1]).const_or_none or SEVERAL_ROWS) >= SEVERAL_ROWS
    if n.is_const:
        short = n.const <= SHORT_LANE_ROW and several
        return [(outer[0], "short" if short else "long" if n.const > LONG_LANE_ROW else "")]
    d.order(*outer, *inner)
    root, found = outer[0], [(outer[0], "")]
    unbounded = kernel_facts(d.kernel).prove_le(n, LONG_LANE_ROW) is not YES
    if unbounded and d.attempt("divide_by", root, n, LONG_LANE_ROW, ".p"):
        found = [(root, "row"), (f"{root}.p", "long")]
    if several and d.attempt("divide_by", root, n, SHORT_LANE_ROW, ".w"):
        found = [(root, "short"), (f"{root}.w", found[0][1]), *found[1:]]
    return found


def _short_rows(d: Draft, root: str) -> None:
    """Several rows are a group's, each of a few lanes: half as many as are together, if only a run knows its
    length, so that they read whole sectors of memory."""
    v = d.view(root)
    outer, inner = _row_sides(v)
    (n,) = {r.axes[-1].extent for r in v.all_reduces()}
    lanes = d.machine.subgroup // 2
    if n.is_const:
        lanes = min(d.machine.subgroup, max(2, lanes // 2, power(n.const) // 16))
    o, row = f"{outer[-1]}.o", f"{outer[-1]}.l"
    d.do("split_clamped", outer[-1], d.machine.max_lanes // lanes, o, row)
    along: list[str] = []
    if inner:
        along = [f"{inner[0]}.l", f"{inner[0]}.o"]
        d.do("split_clamped", inner[0], lanes, along[1], along[0])
    d.order(*outer[:-1], o, row, *along)
    d.share([*outer[:-1], o])
    names = d.stage_reduce(o)
    d.attempt("hoist", o, "inv")
    d.do("bind", row, "lane")
    for name in names:
        d.do("lane_share", name, lanes, ROW_AT_ONCE)
    for x in along[:1]:
        d.do("bind", x, "lane")


def lane_columns(d: Draft, root: str) -> None:
    """Reductions that keep the contiguous axis: pooling, depthwise convolution, means over positions."""
    _check(d, root, "lane_columns")
    v = joined_axes(d, d.view(d.split_phases(root)))
    column = v.contiguous_store()
    if column is None or column not in sides(v)[0] or v.extent(column) == 0:
        raise ScheduleError("lane_columns", "no kept contiguous axis")
    count = prod_or_none([v.extent(x) for x in sides(v)[0]])
    for part in _parts(d, v.vars[0], None if count is None else -(-count // d.machine.subgroup)):
        kept_columns(d, part)


def _check(d: Draft, root: str, who: str) -> None:
    if not d.machine.in_step or d.inside(root):
        raise ScheduleError(who, "lanes that do not run in step, or a nest that one lane has")
    found = d.view(root).all_reduces()
    if not found or any(r.kind not in UPDATE or not r.axes for r in found):
        raise ScheduleError(who, "no reductions, or some that lanes cannot share")
    if any(split_factors(r) is not None for r in found):
        raise ScheduleError(who, "a product of rows that reductions make")
    product = roles(d.view(root))
    if product is not None and not few_rows(d, product):
        raise ScheduleError(who, "a product of many rows")


def _short(d: Draft, n: Dim) -> bool:
    return n.is_const and n.const < d.machine.subgroup


# ---------------------------------------------------------------- few groups


def _parts(d: Draft, root: str, groups: int | None) -> list[str]:
    """The roots of the nests that do the work of one, of `groups` groups: itself; where these are few, each
    long reduction as two statements before it."""
    found = [root]
    if groups is None or groups >= d.machine.cores * FEW_GROUPS:
        return found
    part = d.machine.max_lanes * PART_TERMS
    for r in _long(d, root, part):
        mine, v = root, d.view(root)
        if len(v.all_reduces()) > 1 or any(v.extent(x) != 1 for x in sides(v)[1]):
            before = d.roots()
            d.do("lift", root, r.axes[0].var, d.fresh("whole"))
            (mine,) = [x for x in d.roots() if x not in before]
            found.insert(-1, mine)
        before = d.roots()
        inner = prod_or_none([a.extent for a in r.axes[1:]]) or part
        d.do("split_reduce", mine, r.axes[0].var, max(1, part // inner), d.fresh("parts"))
        found[found.index(mine) : found.index(mine)] = [x for x in d.roots() if x not in before]
    return found


def _long(d: Draft, root: str, part: int) -> list[Reduce]:
    """The reductions of a nest if one of them may have more than two parts, those that others hold first."""
    facts = kernel_facts(d.kernel)
    found = sorted(d.view(root).all_reduces(), key=lambda r: sum(isinstance(x, Reduce) for x in walk_expr(r)))

    def terms(r: Reduce) -> float:
        total = 1.0
        for a in r.axes:
            most = facts.interval(a.extent)[1]
            total *= float("inf") if most is None else most
        return total

    return found if any(terms(r) > 2 * part for r in found) else []


# ---------------------------------------------------------------- along neighbours


def _row_sides(v: View) -> tuple[list[str], list[str]]:
    """(loops over rows, loops inside a row); loops of one iteration are over rows."""
    outer, inner = sides(v)
    single = [x for x in inner if v.extent(x) == 1]
    return [*single, *outer], [x for x in inner if x not in single]


def _row(d: Draft, root: str) -> None:
    """A group for every row, its reductions by lanes and a tree."""
    v = d.view(root)
    if not v.all_reduces():
        elementwise(d, root)
        return
    lengths = [r.axes[-1].extent for r in v.all_reduces()]
    if any(_short(d, n) for n in lengths):  # the few parts of something long
        if along(v, _row_sides(v)[1]):
            rows(d, root)
        else:
            kept_columns(d, root)
        return
    outer, inner = _row_sides(v)
    d.order(*outer, *inner)
    d.share(outer)
    names = d.stage_reduce(outer[-1])
    d.attempt("hoist", outer[-1], "inv")
    most = max((n.const_or_none or d.machine.max_lanes for n in lengths), default=1)
    for name in names:
        d.do("lane_reduce", name, min(d.machine.max_lanes, power(most)), 1)
    for x in inner:
        d.do("bind", x, "lane")


# ---------------------------------------------------------------- kept axis


def kept_columns(d: Draft, root: str) -> None:
    """Neighbouring lanes for neighbouring kept elements, of which each has the whole reduction; where that is
    long and nothing else runs along it, the lanes of a group share it."""
    v = d.view(root)
    if not v.all_reduces():
        elementwise(d, root)
        return
    column = v.contiguous_store()
    assert column is not None
    outer, inner = sides(v)
    others = [x for x in outer if x != column]
    axis = None if inner or len(v.all_reduces()) > 1 else _shared_axis(v)
    if axis is not None:
        _shared(d, v, others, column, axis)
        return
    d.order(*others, column, *inner)
    d.share([*others, column])
    names = d.stage_reduce(column)
    d.attempt("hoist", column, "inv")
    for name in names:
        accumulate_long(d, name)
    for r in v.all_reduces():
        if prod_or_none([a.extent for a in r.axes[-1:]]) in range(1, SHORT_AXIS + 1):
            d.attempt("unroll", r.axes[-1].var)


def _shared_axis(v: View) -> str | None:
    """The axis of a long reduction that lanes take in turns."""
    (r,) = v.all_reduces()
    terms = prod_or_none([a.extent for a in r.axes])
    if terms is not None and terms < 2 * PART_TERMS:
        return None
    return max(r.axes, key=lambda a: float("inf") if not a.extent.is_const else a.extent.const).var


def _shared(d: Draft, v: View, others: list[str], column: str, axis: str) -> None:
    """A group for as many columns as lanes are together; its other lanes have other steps of the axis."""
    n, width = v.extent(column).const_or_none, d.machine.subgroup
    width = width if n is None else min(width, n)
    parts = d.machine.max_lanes // width
    lane = column
    if n != width:
        others, lane = [*others, f"{column}.o"], f"{column}.i"
        d.do("split_clamped", column, width, others[-1], lane)
    if not others:
        others = [d.enclose(lane)]
    d.order(*others, lane)
    d.share(others)
    d.do("bind", lane, "lane")
    for name in d.stage_reduce(others[-1]):
        d.do("lane_split", name, axis, 1 << (parts.bit_length() - 1))
    for name in d.stage_reduce(f"{lane}.s"):
        accumulate_long(d, name)


__all__ = ["kept_columns", "lane_columns", "lane_rows"]
