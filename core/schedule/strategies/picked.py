"""A nest whose outer loops look up which operand its products read in; products of that one operand out."""

from __future__ import annotations

from smelt.core.ir.analysis.scope import expressions
from smelt.core.ir.kernel import Let, walk_expr
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.contraction import contraction
from smelt.core.schedule.tree import ScheduleError


def picked(d: Draft, root: str) -> None:
    """Rows that are multiplied by a matrix each picks (experts): the index is read once, outside of the loops
    that it does not follow, and what is inside is a contraction. A group for every row; refuses others."""
    v = d.view(root)
    lets = [x for e in expressions(v.stores) for x in walk_expr(e) if isinstance(x, Let)]
    followed = [v.vars.index(loop) for x in lets for loop in v.follows(x.value)]
    if d.machine.has_lanes or not followed or max(followed) + 1 == len(v.vars):
        raise ScheduleError("picked", "no index that is the same for all of the innermost loop")
    outer, inner = v.vars[: max(followed) + 1], v.vars[max(followed) + 1]
    d.do("bind_let", outer[-1])
    contraction(d, inner)
    d.share(outer)
