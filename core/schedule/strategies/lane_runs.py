"""Products of few rows with a constant B (a decode step), for lanes that read several neighbours at once: B
lies in panels whose innermost axis is a run of the reduction, which a lane reads as one.

Such a product is bound by memory, and memory is as fast as what is asked of it at a time: latency times
bandwidth. A lane that reads an element and adds it up asks for an element's bytes; here it asks for several
runs. Many rows of the same product read the same panels."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.core.ir.analysis.scope import expressions
from smelt.core.ir.kernel import Load, walk_expr
from smelt.core.ir.layout import PackDim, PackSpec
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.contraction import fits_panels, panel_spec
from smelt.core.schedule.strategies.lanes import few_rows_in_groups
from smelt.core.schedule.strategies.reduction import prod_or_none
from smelt.core.schedule.tree import find
from smelt.core.schedule.view import Roles, roles

RUN_COLUMNS = 8
"""Lanes along the columns of a panel: with runs of 16 bytes they read 128, a line; the others share the
reduction, so that a group has few columns and there are many groups."""
DECODED_COLUMNS = 2
"""Columns of a lane where B is decoded: each row's element is read and converted once for all of them."""
RUN_BYTES = 64
"""Bytes of B that a lane has in flight: 512 lanes on a core have half as much again as an H200 needs."""
LEAST_RUN_TERMS = 32
"""Steps that an axis with runs is a multiple of, so that many rows have slices of whole runs."""
LEAST_SHARE = 8
"""Terms of a reduction that a lane adds up at least before the lanes of a group add up theirs."""


@dataclass(frozen=True)
class RunAxes:
    """inner: the axes of the reduction from the one with runs on. run: the steps of the first of them that
    are read at once."""

    inner: tuple[str, ...]
    run: int


def packed_in_runs(d: Draft, r: Roles, width: int) -> tuple[Roles, RunAxes] | None:
    """B in panels of runs, what it is decoded with in plain ones; None where that cannot be, and nothing was
    done. The roles afterwards: an axis that is longer than a run is two."""
    every = [x for e in expressions(d.kernel.body) for x in walk_expr(e) if isinstance(x, Load)]
    specs = []
    for b in (r.b, *r.beside):
        axes = [i for i, x in enumerate(b.index) if r.column in x.symbols]
        same = all(x.index == b.index for x in every if x.buffer == b.buffer)
        if not same or len(axes) != 1 or b.guard or b.buffer not in d.constants:
            return None
        if not fits_panels(d, b.index[axes[0]], r, width):
            return None
        specs.append((b.buffer, panel_spec(b, r, axes[0], width)))
    followed = [a for a in r.reduce.axes if any(a.var in x.symbols for x in r.b.index)]
    if not followed:
        return None
    last, most = followed[-1], d.machine.lane_bytes // r.b.dtype.bytes
    deep = [i for i, x in enumerate(r.b.index) if last.var in x.symbols]
    n = last.extent.const_or_none
    if not n or len(deep) != 1 or str(r.b.index[deep[0]]) != last.var or most < 2:
        return None
    whole = n <= most and n & (n - 1) == 0 and last is not r.reduce.axes[0]
    at_end = last is r.reduce.axes[-1]
    if not whole and (n % LEAST_RUN_TERMS or (at_end and len(r.reduce.axes) > 1)):
        return None
    buffer, spec = specs[0]
    rest = tuple(p for p in spec.dims if p.axis != deep[0])
    run = (PackDim(deep[0]),) if whole else (PackDim(deep[0], "inner", most),)
    if not whole:
        at = next(i for i, p in enumerate(spec.dims) if p.axis == deep[0])
        rest = (*spec.dims[:at], PackDim(deep[0], "outer", most), *spec.dims[at + 1 :])
    specs[0] = (buffer, PackSpec((*rest, *run)))
    for name, layout in specs:
        d.do("pack", name, str(layout))
    inner = tuple(a.var for a in r.reduce.axes[r.reduce.axes.index(last) :])
    if not whole and at_end:
        o, i = f"{last.var}.o", f"{last.var}.i"
        d.do("deepen", last.var, most, o, i)
        inner = (i,)
    found = roles(d.view(r.column))
    assert found is not None
    return found, RunAxes(inner, min(n, most))


def few_rows_of_runs(d: Draft, r: Roles, width: int, runs: RunAxes) -> None:
    """A few columns are a group, whose lanes share the reduction as well: neighbours have neighbouring runs
    and columns. Every height has a body of its own, in which several runs are on their way at once."""
    v = d.view(r.column)
    panels, column = [], r.column
    if v.extent(column).const_or_none != width:
        panels, column = [f"{r.column}.o"], f"{r.column}.i"
        d.do("split", r.column, width, panels[0], column, True)
    across, columns = RUN_COLUMNS, DECODED_COLUMNS if r.beside else 1
    if width % (across * columns):
        across, columns = width, 1
    if width != across * columns:
        panels.append(f"{column}.h")
        d.do("split", column, across * columns, panels[-1], f"{column}.t", False)
        column = f"{column}.t"
    beside: list[str] = []
    if columns > 1:
        beside = [f"{column}.c"]
        d.do("split", column, across, beside[0], f"{column}.l", False)
        column = f"{column}.l"
    groups, row = few_rows_in_groups(d, v, r, panels, column, beside)
    axis, parts = _shared(d, r, across)
    lane, mine = column, [*beside, *row]
    if parts > 1:
        for name in d.stage_reduce(groups[-1]):
            d.do("lane_split", name, axis, parts)
        for x in beside:
            d.do("bind", x, "lane")
        for x in row:
            d.do("unroll", x)
        lane, mine = f"{column}.s", [f"{x}.s" for x in mine]
    _written_out(d, r, runs, dict.fromkeys(d.stage_reduce(lane)), mine, columns)


def _shared(d: Draft, r: Roles, across: int) -> tuple[str, int]:
    """The axis of the reduction that the lanes of a group share, and in how many parts: of equal length
    unless that were less than half as many."""
    first = r.reduce.axes[0]
    n, terms = first.extent.const_or_none, prod_or_none([a.extent for a in r.reduce.axes])
    most = d.machine.max_lanes // across
    most = most if n is None or terms is None else min(most, terms // LEAST_SHARE, n)
    if most < 2:
        return first.var, 1
    most = 1 << (most.bit_length() - 1)
    equal = most if n is None else n & -n
    return first.var, equal if max(2, most // 2) <= equal < most else most


def _written_out(
    d: Draft, r: Roles, runs: RunAxes, names: dict[str, None], mine: list[str], columns: int
) -> None:
    """The sums of a lane in its registers; runs written out, and as many of them as are in flight at once.
    What B is decoded with is read once for a block, whose sum the scale multiplies."""
    axes = [a.var for a in r.reduce.axes]
    block = next((a for a in reversed(axes) if any(a in i.symbols for b in r.beside for i in b.index)), "")
    factored = [x for x in names if block and d.attempt("factor", x, block)]
    for name in names:
        d.do("accumulate", name, ())
    for x in mine:
        d.do("unroll", x)
    count = max(1, RUN_BYTES // (runs.run * r.b.dtype.bytes * columns))
    first, rest = runs.inner[0], runs.inner[1:]
    whole = next(a for a in r.reduce.axes if a.var == first).extent == runs.run
    step = axes[axes.index(first) - 1]
    loops = _at_once(d, step, count) if whole else [(step, "", False)]
    for loop, suffix, _ in loops:
        at = loop if block == step else block
        if factored:
            for part in d.stage_reduce(at):
                d.do("accumulate", part, ())
        if block:
            d.attempt("by_bits", at)
            d.attempt("once", at, "held")
        if whole:
            for x in runs.inner:
                d.do("unroll", x + suffix)
    if not whole:
        d.do("split", first, runs.run, f"{first}.w", f"{first}.x", False)
        loops = _at_once(d, f"{first}.w", count)
        for _, suffix, _ in loops:
            for x in (f"{first}.x", *rest):
                d.do("unroll", x + suffix)
    for loop, _, unrolled in loops:
        if unrolled:
            d.do("unroll", loop)


def _at_once(d: Draft, step: str, count: int) -> list[tuple[str, str, bool]]:
    """The loop over runs cut so that `count` of them are written out: (loop around a run, what the names
    inside it end in, whether it is to be written out), for each of the loops that this makes."""
    found = find(d.kernel, step)
    assert found is not None
    n = found[1].extent.const_or_none
    if n is None or count < 2:
        return [(step, "", False)]
    if n <= count:
        return [(step, "", True)]
    loops = []
    if n % count:
        d.do("peel", step, n - n % count, ".r")
        loops.append((f"{step}.r", ".r", True))
    d.do("split", step, count, f"{step}.u", f"{step}.v", False)
    return [(f"{step}.v", "", True), *loops]


__all__ = ["RunAxes", "few_rows_of_runs", "packed_in_runs"]
