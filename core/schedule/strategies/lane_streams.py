"""Products of few rows with matrices that a run makes (a decode step's keys and values), for lanes that run
in step: every element of B is read once, by lanes that read neighbours at once and have several such runs on
their way, and as many groups do it as B has parts.

B lies as it was made. Along its rows (keys): a lane has a run of several columns' rows, its neighbours have
the next runs, and all of them add up what they have. Along its columns (values): a lane has a run of columns,
the others of its group have other steps of the reduction, which groups share in parts of a fixed length, so
that neither few heads nor a long cache leave cores without work; a statement of its own adds up the parts."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, Dim
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.elementwise import LANE_BYTES
from smelt.core.schedule.strategies.lane_rows import PART_TERMS
from smelt.core.schedule.strategies.lane_tiles import AT_ONCE
from smelt.core.schedule.strategies.lanes import FEW_GROUPS, FEW_LANE_ROWS, few_rows_in_groups
from smelt.core.schedule.strategies.reduction import accumulate_long, prod_or_none
from smelt.core.schedule.tree import find
from smelt.core.schedule.view import Roles, View, roles


def streams(d: Draft, v: View, r: Roles) -> bool:
    """Whether a product of few rows is one that `streamed` takes: of one axis, with a B that is no constant
    and lies in runs along its rows or its columns."""
    plain = len(r.reduce.axes) == 1 and not r.beside and not r.b.guard and len(v.reduces()) == 1
    if not plain or r.b.buffer in d.constants or (r.outer and not heads_and_rows(v, r)):
        return False
    return _along_rows(d, v, r) is not None or _along_columns(d, v, r) is not None


def heads_and_rows(v: View, r: Roles) -> tuple[str, str] | None:
    """(loop over few heads, loop over their rows) of a product whose left factor follows these two, where a
    run knows the rows."""
    if len(r.outer) != 1 or r.row is None:
        return None
    for heads, rows in ((r.outer[0], r.row), (r.row, r.outer[0])):
        n = v.extent(heads).const_or_none
        if n is not None and 0 < n <= FEW_LANE_ROWS and not v.extent(rows).is_const:
            return heads, rows
    return None


def _heads_as_rows(v: View, r: Roles) -> Roles:
    """The roles where heads are the rows, for each of the rows that a head has."""
    found = heads_and_rows(v, r)
    return r if found is None else replace(r, batch=(*r.batch, found[1]), row=found[0], outer=())


def streamed(d: Draft, root: str) -> None:
    """The nest of `root`, which `streams` has seen."""
    v = d.view(root)
    r = roles(v)
    assert r is not None
    shape = _along_rows(d, v, r)
    if shape is not None:
        _rows(d, v, _heads_as_rows(v, r), *shape)
        return
    shape = _along_columns(d, v, r)
    assert shape is not None
    for nest in _parts(d, v, r, *shape):
        v, mine = d.view(nest), roles(d.view(nest))
        if mine is None:
            _sums(d, v)
        else:
            _columns(d, v, _heads_as_rows(v, mine), *shape)


def _run(r: Roles) -> int:
    """Elements of B that a lane reads at once."""
    return max(1, LANE_BYTES // r.b.dtype.bytes)


def _along_rows(d: Draft, v: View, r: Roles) -> tuple[int, int] | None:
    """(lanes along columns, along the reduction) where B is contiguous along the reduction and that is short:
    whole runs, as many as lanes of a power of two share, a few for each."""
    (axis,) = r.reduce.axes
    n, run = axis.extent.const_or_none, _run(r)
    if v.stride(r.b, axis.var) != 1 or n is None or n % run or not 0 < n <= 2 * d.machine.max_lanes:
        return None
    shared = min(n // run & -(n // run), d.machine.max_lanes // _least_across(d))
    return (d.machine.max_lanes // shared, shared) if shared >= AT_ONCE else None


def _least_across(d: Draft) -> int:
    """Lanes that read neighbouring floats, so many that these fill a sector of 32 bytes."""
    return max(1, d.machine.subgroup // AT_ONCE)


def _along_columns(d: Draft, v: View, r: Roles) -> tuple[int, int] | None:
    """(lanes along columns, along the reduction) where B is contiguous along its columns, which are whole
    runs of at most as many lanes as run in step."""
    (axis,) = r.reduce.axes
    n, run = v.extent(r.column).const_or_none, _run(r)
    if v.stride(r.b, r.column) != 1 or n is None or n % run or not 0 < n <= run * d.machine.subgroup:
        return None
    most = axis.extent.const_or_none
    shared = 1 << ((d.machine.max_lanes // (n // run)).bit_length() - 1)
    return (n // run, shared) if most is None or most >= 2 * shared * AT_ONCE else None


# ---------------------------------------------------------------- keys


def _rows(d: Draft, v: View, r: Roles, across: int, shared: int) -> None:
    """AT_ONCE columns for each lane, `across` apart; what A has for a run is read once for all of them."""
    (axis,) = r.reduce.axes
    runs, run = f"{axis.var}.o", f"{axis.var}.q"
    d.do("deepen", axis.var, _run(r), runs, run)
    o, t, beside, lane = (f"{r.column}.{x}" for x in "otil")
    d.do("split_clamped", r.column, across * AT_ONCE, o, t)
    d.do("split", t, across, beside, lane, False)
    _lanes(d, v, r, [o], lane, [beside], (runs, shared))
    d.do("unroll", run)
    found = find(d.kernel, runs)
    if found is not None and found[1].extent.const <= AT_ONCE:
        d.do("unroll", runs)


# ---------------------------------------------------------------- values


def _parts(d: Draft, v: View, r: Roles, across: int, shared: int) -> list[str]:
    """The nests of a product: where the reduction may be long and groups few, parts of it and their sums."""
    (axis,) = r.reduce.axes
    size = shared * PART_TERMS
    groups = prod_or_none([v.extent(x) for x in r.batch])
    enough = groups is not None and groups >= d.machine.cores * FEW_GROUPS
    if enough or _proved_at_most(d, axis.extent, size):
        return [v.vars[0]]
    before = d.roots()
    d.do("split_reduce", v.vars[0], axis.var, size, d.fresh("parts"))
    return [*(x for x in d.roots() if x not in before), v.vars[0]]


def _proved_at_most(d: Draft, n: Dim, size: int) -> bool:
    return kernel_facts(d.kernel).prove_le(n, size) is YES


def _columns(d: Draft, v: View, r: Roles, across: int, shared: int) -> None:
    """A run of columns for each lane, AT_ONCE steps of the reduction written out."""
    (axis,) = r.reduce.axes
    lane, beside = f"{r.column}.l", f"{r.column}.i"
    d.do("split", r.column, _run(r), lane, beside, False)
    _lanes(d, v, r, [], lane, [beside], (axis.var, shared))
    steps = find(d.kernel, axis.var)
    assert steps is not None
    n = steps[1].extent
    if n.const_or_none is None or n.const % AT_ONCE:
        d.do("peel", axis.var, n // AT_ONCE * AT_ONCE, ".r")
    d.do("split", axis.var, AT_ONCE, f"{axis.var}.u", f"{axis.var}.v", False)
    d.do("unroll", f"{axis.var}.v")


def _sums(d: Draft, v: View) -> None:
    """The sums of parts: few lanes along the columns, the others of a group have other parts, so that a lane
    waits for few of them."""
    column = v.contiguous_store()
    assert column is not None
    (total,) = v.all_reduces()
    across, (o, lane) = _least_across(d), (f"{column}.o", f"{column}.i")
    d.do("split_clamped", column, across, o, lane)
    groups = [*(x for x in v.vars if x != column), o]
    d.order(*groups, lane)
    d.share(groups)
    d.do("bind", lane, "lane")
    for name in d.stage_reduce(o):
        d.do("lane_split", name, total.axes[0].var, d.machine.max_lanes // across)
        _written_total(d, name)
    for name in d.stage_reduce(f"{lane}.s"):
        accumulate_long(d, name)


# ---------------------------------------------------------------- both


def _lanes(
    d: Draft, v: View, r: Roles, panels: list[str], lane: str, beside: list[str], shared: tuple[str, int]
) -> None:
    """Groups over everything but `lane` and the loops beside it, whose lanes share an axis of the reduction
    in so many parts; the sums of a lane in registers, a body for every number of rows."""
    groups, row = few_rows_in_groups(d, v, r, panels, lane, beside)
    names = d.stage_reduce(groups[-1])
    for name in names:
        d.do("lane_split", name, *shared)
        _written_total(d, name)
    own = d.stage_reduce(f"{lane}.s")
    for x in beside:
        d.do("bind", x, "lane")
    for name in own:
        d.do("accumulate", name, ())
    for x in (*beside, *row):
        d.do("unroll", f"{x}.s")
    for x in row:
        d.do("unroll", x)


def _written_total(d: Draft, name: str) -> None:
    """What lanes have added up, added up in one go."""
    d.do("accumulate", name, ())
    d.attempt("unroll", f"{name}.t")


__all__ = ["heads_and_rows", "streamed", "streams"]
