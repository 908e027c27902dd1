"""Machines with lanes: what a strategy shares among groups is shared among the lanes of groups."""

from __future__ import annotations

from smelt.core.dim import YES
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.barriers import has_lanes
from smelt.core.ir.kernel import Loop, Stmt, Store
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.fitting import power
from smelt.core.schedule.view import Roles, View

FEW_GROUPS = 4
"""Groups for each core from which on they are made as wide as they can be: a bound, so that at most a
quarter of the time goes by with cores that wait for the last ones."""

FEW_LANE_ROWS = 4
"""Rows up to which every element of B is used at once for all of them: registers hold their sums, and each
height has a body of its own."""


def few_rows(d: Draft, r: Roles) -> bool:
    """Whether a product has few rows in every run."""
    if r.row is None:
        return True
    n = d.view(r.column).extent(r.row)
    return not r.outer and kernel_facts(d.kernel).prove_le(n, FEW_LANE_ROWS) is YES


def few_rows_in_groups(
    d: Draft, v: View, r: Roles, panels: list[str], lane: str, beside: list[str]
) -> tuple[list[str], list[str]]:
    """(groups, the loop over a group's rows) of a product of few rows: groups are everything but the lanes
    and the loops beside them, and every number of rows has a body of its own."""
    heights, row = [], [r.row] if r.row is not None else []
    if r.row is not None and not v.extent(r.row).is_const:
        heights, row = [f"{r.row}.o"], [f"{r.row}.i"]
        d.do("tile", r.row, tuple(range(FEW_LANE_ROWS, 0, -1)), "balanced", heights[0], f"{r.row}.r", row[0])
    groups = [*heights, *r.batch, *r.outer, *panels]
    if not groups:
        groups = [d.enclose(lane)]
    d.order(*groups, lane, *beside, *row)
    d.share(groups)
    d.do("bind", lane, "lane")
    return groups, row


def over_lanes(d: Draft) -> None:
    """Of the groups of every statement, the innermost become lanes: neighbouring lanes do what lies side by
    side. Groups are as wide as the machine has lanes, narrower where that leaves cores without one."""
    for number in range(len(d.kernel.body)):
        if has_lanes(d.kernel.body[number]):
            continue
        loops = _groups(d.kernel.body[number])
        left = _width(d, loops)
        for loop in reversed(loops):
            n, most = loop.extent.const_or_none, _most(d, loop)
            width = left if most is None else min(left, power(most))
            if left < 2 or most == 0 or (width < 2 and n is None):
                break
            if n is not None and n <= left:
                d.do("bind", loop.var, "lane")
                left //= n
            else:
                d.attempt("spread", loop.var, width, f"{loop.var}.w", f"{loop.var}.l")
                break


def _groups(s: Stmt) -> list[Loop]:
    """The directly nested loops over groups, outermost first."""
    found: list[Loop] = []
    while isinstance(s, Loop) and s.level == "group":
        found.append(s)
        if len(s.body) != 1 or s.buffers or isinstance(s.body[0], Store):
            break
        s = s.body[0]
    return found


def _most(d: Draft, loop: Loop) -> int | None:
    """The rounds of a loop over groups at most; None: nobody knows."""
    return kernel_facts(d.kernel).bounds(loop.extent)[1]


def _width(d: Draft, loops: list[Loop]) -> int:
    """Lanes of a group."""
    tasks = 1
    for loop in loops:
        n = _most(d, loop)
        if n is None:
            return d.machine.max_lanes
        tasks *= n
    width = d.machine.max_lanes
    while width > 1 and tasks < width * d.machine.cores * FEW_GROUPS:
        width //= 2
    return max(width, 1)


__all__ = ["few_rows", "over_lanes"]
