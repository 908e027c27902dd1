"""What every kernel can have: outer loops in parallel where that is provable, serial code inside."""

from __future__ import annotations

from smelt.core.ir.analysis.scope import enter, kernel_facts
from smelt.core.ir.kernel import Loop
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.tree import ScheduleError, chain, is_parallel, var_of


def outer_groups(d: Draft, root: str) -> None:
    """Bind the outermost provably independent serial loops as groups; at least none."""
    nodes, _ = chain(d.root(root))
    facts = kernel_facts(d.kernel)
    for n in nodes:
        if not isinstance(n, Loop) or n.level != "serial" or not is_parallel(n, facts):
            return
        try:
            d.share([var_of(n)])
        except ScheduleError:
            return
        facts = enter(facts, n)
