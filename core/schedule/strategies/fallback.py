"""What every kernel can have: outer loops in parallel where that is provable, and rows of vectors inside."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smelt.core.ir.analysis.scope import enter, kernel_facts
from smelt.core.ir.kernel import Block, Kernel, Load, Loop, Reduce, Stmt, Store, walk_expr
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.reduction import IN_FLIGHT, in_flight
from smelt.core.schedule.tree import ScheduleError, chain, is_parallel, var_of
from smelt.core.schedule.view import flat_stride


def outer_groups(d: Draft, root: str) -> None:
    """Bind the outermost provably independent serial loops as groups, at least none; loops further in
    that store neighbours become vectors, unless lanes run in step."""
    top = d.root(root)
    inside = top.body if isinstance(top, Loop) and not d.machine.in_step else ()
    rows = [x for s in inside for x in _rows(d.kernel, s)]
    _share_outer(d, root, {loop.var for loop, _ in rows})
    for loop, bits in rows:
        stores = [x for x in loop.body if isinstance(x, Store)]
        wide = d.size("in flight", in_flight(d.machine, IN_FLIGHT, stores))
        d.attempt("strip", loop.var, d.machine.lanes(bits), wide, d.machine.masked)


def _share_outer(d: Draft, root: str, rows: Collection[str]) -> None:
    nodes, _ = chain(d.root(root))
    facts = kernel_facts(d.kernel)
    for n in nodes:
        if not isinstance(n, Loop) or n.level != "serial" or n.var in rows or not is_parallel(n, facts):
            return
        try:
            d.share([var_of(n)])
        except ScheduleError:
            return
        facts = enter(facts, n)


def _rows(kernel: Kernel, s: Stmt) -> Iterator[tuple[Loop, int]]:
    """Innermost loops that store neighbours, and load neighbours or what is the same for all of them, each
    with the bits of what it stores."""
    if isinstance(s, Loop) and all(isinstance(x, Store) and _is_row(kernel, x, s.var) for x in s.body):
        yield s, max(kernel.buffers()[x.buffer].dtype.bits for x in s.body if isinstance(x, Store))
    elif isinstance(s, Loop | Block):
        for x in s.body:
            yield from _rows(kernel, x)


def _is_row(kernel: Kernel, s: Store, var: str) -> bool:
    buffers, inside = kernel.buffers(), list(walk_expr(s.value))
    loads = [x for x in inside if isinstance(x, Load)]
    known = all(b in buffers for b in (s.buffer, *(x.buffer for x in loads)))
    if not known or any(isinstance(x, Reduce) for x in inside):
        return False
    steps = {flat_stride(buffers[x.buffer].shape, x.index, var) for x in loads}
    return flat_stride(buffers[s.buffer].shape, s.index, var) == 1 and steps <= {0, 1}
