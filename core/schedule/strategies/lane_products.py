"""Contractions for lanes that run in step: neighbouring lanes compute neighbouring columns, from panels as
wide as they are.

Few rows (a decode step) are bound by the reading of B: each element of it is read once, for all rows, and the
lanes of a group share the reduction. Many rows are computed in tiles of registers. Not for machines whose
lanes are tasks of their own, processors among them: there a lane is fast by its vectors, along columns as
well, and `contraction` serves them."""

from __future__ import annotations

from collections.abc import Callable

from smelt.core.dim import YES
from smelt.core.ir.analysis.scope import expressions, kernel_facts
from smelt.core.ir.kernel import Load, Loop, walk_expr
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.contraction import (
    LANE_ROWS,
    collapsed,
    fits_panels,
    panel_spec,
    unroll_short,
)
from smelt.core.schedule.strategies.fitting import power
from smelt.core.schedule.strategies.lane_matrix import by_matrix
from smelt.core.schedule.strategies.lane_rows import PART_TERMS, kept_columns
from smelt.core.schedule.strategies.lane_runs import few_rows_of_runs, packed_in_runs
from smelt.core.schedule.strategies.lane_streams import heads_and_rows, streamed, streams
from smelt.core.schedule.strategies.lane_tiles import tiled
from smelt.core.schedule.strategies.lanes import FEW_GROUPS, FEW_LANE_ROWS, few_rows, few_rows_in_groups
from smelt.core.schedule.strategies.reduction import prod_or_none
from smelt.core.schedule.tree import ScheduleError, find
from smelt.core.schedule.view import Roles, View, roles

LEAST_PARTS = 4
"""Groups that share a reduction at least: what adds up their parts is a launch of its own."""
LEAST_TERMS = 8
"""Terms of a reduction that a lane adds up at least before the lanes of a group add up theirs."""

SECTOR = 32
"""Bytes of a row of B that a group of lanes reads where B is no constant: what memory moves at least. With
fewer columns there are more groups, and all their other lanes have steps of the reduction."""
STEPS_AT_ONCE = 16
"""Steps of such a reduction that are on their way at once."""


def lane_products(d: Draft, root: str) -> None:
    """Lanes along columns, and what few and many rows want; refuses others, and what one lane has."""
    if not d.machine.in_step or d.inside(root):
        raise ScheduleError("lane_products", "lanes that do not run in step, or a nest that one lane has")
    v = d.view(d.split_phases(root))
    r = roles(v)
    if r is None or v.extent(r.column) == 0:
        raise ScheduleError("lane_products", "no row and column roles")
    v, r = collapsed(d, v, r)
    width = min(d.machine.subgroup, v.extent(r.column).const_or_none or d.machine.subgroup)
    runs = None
    if d.machine.lane_bytes and _may_be_few(d, r):
        made = packed_in_runs(d, r, width)
        if made is not None:
            r, runs = made
            v = d.view(v.vars[0])
    packed = runs is not None or _pack(d, r, width)
    apart = not packed and v.stride(r.b, r.column) != 1
    if apart and few_rows(d, r) and not _brief(d, r) and not streams(d, v, r):
        raise ScheduleError("lane_products", "a vector times a matrix along its rows: dot products do better")
    for part, few in _by_rows(d, r):
        v = d.view(part)
        if not few:
            _many_rows(d, v, _roles(v), width, packed)
            continue
        if not packed and streams(d, v, _roles(v)):
            streamed(d, part)
            continue
        for nest in _in_groups(d, v, _roles(v), width):
            v, mine = d.view(nest), roles(d.view(nest))
            if mine is None:
                kept_columns(d, nest)
            elif runs is not None:
                few_rows_of_runs(d, mine, width, runs)
            elif d.machine.lane_bytes and not packed and v.stride(mine.b, mine.column) == 1:
                wide = _neighbours(d, v, mine)
                columns = min(width, max(1, SECTOR // mine.b.dtype.bytes))
                _few_rows(d, v, mine, max(columns, 2 * wide if wide > 1 else 1), packed, wide)
                _at_once(d, mine, max(4, STEPS_AT_ONCE // wide))
            else:
                _few_rows(d, v, mine, width, packed)


def _roles(v: View) -> Roles:
    found = roles(v)
    assert found is not None
    return found


def _pack(d: Draft, r: Roles, width: int) -> bool:
    """B, and what it is decoded with, in panels as wide as lanes are together; False where they are no
    constants that can be."""
    every = [x for e in expressions(d.kernel.body) for x in walk_expr(e) if isinstance(x, Load)]
    specs = []
    for b in (r.b, *r.beside):
        axes = [i for i, x in enumerate(b.index) if r.column in x.symbols]
        same = all(x.index == b.index for x in every if x.buffer == b.buffer)
        if not same or len(axes) != 1 or b.guard or b.buffer not in d.constants:
            return False
        if not fits_panels(d, b.index[axes[0]], r, width):
            return False
        specs.append((b.buffer, panel_spec(b, r, axes[0], width)))
    for buffer, spec in specs:
        d.do("pack", buffer, str(spec))
    return True


def _may_be_few(d: Draft, r: Roles) -> bool:
    """Whether the product has few rows in some run."""
    if r.row is None:
        return True
    n = d.view(r.column).extent(r.row)
    return not r.outer and kernel_facts(d.kernel).prove_lt(FEW_LANE_ROWS, n) is not YES


def _brief(d: Draft, r: Roles) -> bool:
    """Whether what a lane reads along a row of B stays in the first cache, with what its group reads beside:
    then every transaction is used up by the next steps."""
    steps = prod_or_none([a.extent for a in r.reduce.axes])
    return steps is not None and steps * r.b.dtype.bytes * d.machine.max_lanes <= d.machine.cache_bytes[0]


def _by_rows(d: Draft, r: Roles) -> list[tuple[str, bool]]:
    """(root, whether it has few rows) of the nests: two where only a run knows."""
    v = d.view(r.column)
    if few_rows(d, r):
        return [(v.vars[0], True)]
    assert r.row is not None
    found = heads_and_rows(v, r)
    if found is not None and streams(d, v, r):
        few = FEW_LANE_ROWS // v.extent(found[0]).const
        if kernel_facts(d.kernel).prove_le(v.extent(found[1]), few) is YES:
            return [(v.vars[0], True)]
        return _by_heads(d, v, *found)
    if not _may_be_few(d, r):
        return [(v.vars[0], False)]
    d.order(r.row, *(x for x in v.vars if x != r.row))
    d.do("divide", r.row, FEW_LANE_ROWS, ".m")
    return [(r.row, True), (f"{r.row}.m", False)]


def _by_heads(d: Draft, v: View, heads: str, rows: str) -> list[tuple[str, bool]]:
    """The same where a row is one of a few heads and one of what a run knows. Many are rows of a head."""
    n = v.extent(heads).const
    d.order(rows, *(x for x in v.vars if x != rows))
    d.do("divide", rows, FEW_LANE_ROWS // n, ".m")
    d.order(*(f"{x}.m" for x in v.vars if x not in (rows, v.vars[-1])), f"{rows}.m", f"{v.vars[-1]}.m")
    return [(rows, True), (f"{rows}.m", False)]


def _in_groups(d: Draft, v: View, r: Roles, width: int) -> list[str]:
    """The nests of a product of few rows: where it has few columns and a long reduction, that is shared by
    groups, and a nest of its own adds up what they have."""
    panels = prod_or_none([v.extent(x) for x in (r.column, *r.batch)])
    terms = prod_or_none([a.extent for a in r.reduce.axes])
    first = r.reduce.axes[0]
    if not panels or not terms or len(v.reduces()) > 1 or not first.extent.is_const:
        return [v.vars[0]]
    groups = -(-panels // width)
    least = d.machine.max_lanes // width * PART_TERMS
    parts = min(d.machine.cores * FEW_GROUPS // groups, terms // least, first.extent.const)
    if parts < LEAST_PARTS:
        return [v.vars[0]]
    before = d.roots()
    d.do("split_reduce", v.vars[0], first.var, power(-(-first.extent.const // parts)), d.fresh("parts"))
    return [*(x for x in d.roots() if x not in before), v.vars[0]]


def _split_columns(d: Draft, v: View, r: Roles, width: int, packed: bool) -> tuple[list[str], str]:
    """(loop over panels, loop over the columns of one). What is not packed is read again at the end of a
    line, so that the loads of the reduction need no guard."""
    if v.extent(r.column).const_or_none == width:
        return [], r.column
    names = (f"{r.column}.o", f"{r.column}.i")
    if packed:
        d.do("split", r.column, width, *names, True)
    else:
        d.do("split_clamped", r.column, width, *names)
    return [names[0]], names[1]


def _neighbours(d: Draft, v: View, r: Roles) -> int:
    """Columns side by side that a lane reads at once, where all rows of B begin on so many bytes."""
    n, wide = v.extent(r.column).const_or_none, d.machine.lane_bytes // r.b.dtype.bytes
    last = r.b.index[-1].linear(r.column)
    steps = d.kernel.buffers()[r.b.buffer].shape[-1].const_or_none
    if n is None or steps is None or last is None or not wide or n % (2 * wide) or steps % wide:
        return 1
    return wide if kernel_facts(d.kernel).prove_divisible(last[1], wide) is YES else 1


def _few_rows(d: Draft, v: View, r: Roles, width: int, packed: bool, wide: int = 1) -> None:
    """A panel of columns is a group, whose lanes share the reduction as well: subgroup by subgroup every
    other step of it. Every height has a body of its own. wide: neighbouring columns of a lane."""
    axis, parts = _shared_axis(d, r, width // wide)
    panels, column = _split_columns(d, v, r, width, packed)
    beside: list[str] = []
    if wide > 1:
        beside = [f"{column}.c"]
        d.do("split", column, wide, f"{column}.l", beside[0], False)
        column = f"{column}.l"
    groups, row = few_rows_in_groups(d, v, r, panels, column, beside)
    if parts > 1:
        for name in d.stage_reduce(groups[-1]):
            d.do("lane_split", name, axis, parts)
        _in_registers(d, r, f"{column}.s", [f"{x}.s" for x in (*beside, *row)])
        for x in beside:
            d.do("bind", x, "lane")
        for x in row:
            d.do("unroll", x)
    else:
        _in_registers(d, r, column, [*beside, *row])


def _at_once(d: Draft, r: Roles, steps: int) -> None:
    """Steps of a reduction's innermost axis written out, so that their loads are on their way together."""
    step = r.reduce.axes[-1].var
    found = find(d.kernel, step)
    if found is None or not isinstance(found[1], Loop) or found[1].level != "serial":
        return
    n = found[1].extent
    if n.is_const and n.const <= steps:
        d.do("unroll", step)
        return
    d.attempt("peel", step, n // steps * steps, ".r")
    if d.attempt("split", step, steps, f"{step}.u", f"{step}.v", False):
        d.do("unroll", f"{step}.v")


def _shared_axis(d: Draft, r: Roles, width: int) -> tuple[str, int]:
    """The axis of the reduction that the lanes of a group share, and in how many parts."""
    most = d.machine.max_lanes // width
    for a in r.reduce.axes:
        n = a.extent.const_or_none
        terms = prod_or_none([b.extent for b in r.reduce.axes[r.reduce.axes.index(a) :]])
        parts = most if terms is None else min(most, terms // LEAST_TERMS)
        parts = parts if n is None else min(parts, n)
        if parts > 1:
            return a.var, 1 << (parts.bit_length() - 1)
    return "", 1


def _many_rows(d: Draft, v: View, r: Roles, width: int, packed: bool) -> None:
    """Lanes of a group along rows as well, each with a tile of them in registers; operands from caches."""
    assert r.row is not None
    if _whole(d, lambda: by_matrix(d, v, r, width, packed)):
        return
    beside = packed or v.stride(r.b, r.column) == 1
    if _whole(d, lambda: tiled(d, v, r, width, beside)):
        return  # else operands come from the caches
    n = v.extent(r.row).const_or_none
    panels, column = _split_columns(d, v, r, width, packed)
    height = LANE_ROWS if n is None else min(LANE_ROWS, n)
    lanes = d.machine.max_lanes // width
    lanes = lanes if n is None else min(lanes, power(-(-n // height)))
    o, t, i, lane = (f"{r.row}.{x}" for x in "otil")
    d.do("split_clamped", r.row, height * lanes, o, t)
    d.do("split", t, height, lane, i, False)
    groups = [*r.batch, *r.outer, o, *panels]
    d.order(*groups, lane, column, i)
    d.share(groups)
    for x in (lane, column):
        d.do("bind", x, "lane")
    _in_registers(d, r, column, [i])


def _whole(d: Draft, way: Callable[[], None]) -> bool:
    """Whether a way could be gone to its end; else nothing was done."""
    try:
        with d.all_or_nothing():
            way()
    except ScheduleError:
        return False
    return True


def _in_registers(d: Draft, r: Roles, lane: str, row: list[str]) -> None:
    """The sums of a lane in its registers, rows written out."""
    for name in dict.fromkeys(d.stage_reduce(lane)):
        d.do("accumulate", name, ())
    held = [a.var for a in r.reduce.axes[:-1] if any(a.var in i.symbols for b in r.beside for i in b.index)]
    if held:  # scales and zero points of a block
        d.attempt("once", held[-1], "held")
    for x in row:
        d.do("unroll", x)
    unroll_short(d, r, "", None)


__all__ = ["lane_products"]
