"""Recurrences (running sums) along an axis that is not the last: rows of vectors, one after the other."""

from __future__ import annotations

from smelt.core.ir.analysis.scope import enter, kernel_facts
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.reduction import IN_FLIGHT
from smelt.core.schedule.tree import ScheduleError, chain, is_parallel
from smelt.core.schedule.view import View

ROW_CHUNK = 256
"""Elements of a row that a group takes through all steps."""


def recurrence(d: Draft, root: str) -> None:
    """for c { for k { y[k, c] = f(y[k - 1, c]) } }  -->  for chunks of c { for k { vectors of c { .. } } }"""
    v = _collapsed(d, d.view(root, recurrent=True))
    nodes, _ = chain(d.root(v.vars[0]))
    facts = kernel_facts(d.kernel)
    for n in nodes[:-1]:
        facts = enter(facts, n)
    *others, along = v.vars
    row = v.contiguous_store()
    if d.machine.has_lanes or v.all_reduces() or is_parallel(nodes[-1], facts):
        raise ScheduleError("recurrence", "no loop depends on its own past alone")
    if row is None or row == along:
        raise ScheduleError("recurrence", "nothing else is contiguous")
    d.do("chunk", row, d.size("chunk", ROW_CHUNK), f"{row}.g")
    groups = [*(x for x in others if x != row), f"{row}.g"]
    d.order(*groups, along, row)
    d.share(groups)
    d.do("strip", row, d.machine.lanes(v.bits), d.size("in flight", IN_FLIGHT), d.machine.masked)


def _collapsed(d: Draft, v: View) -> View:
    """Neighbouring loops but the last, joined where accesses allow it."""
    for a in reversed(v.vars[:-2]):
        b = v.vars[v.vars.index(a) + 1]
        if d.attempt("collapse", a, b, name := d.fresh("flat")):
            v = d.view(name, recurrent=True)
    return v
