"""Kernel and Machine in, Schedule out: a table of strategies, tried in order for every top-level nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from smelt.core.ir.kernel import Kernel, Loop, Reduce, Store, walk_expr
from smelt.core.ir.layout import PackSpec
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.schedule import Schedule
from smelt.core.schedule.strategies.contraction import contraction
from smelt.core.schedule.strategies.elementwise import elementwise
from smelt.core.schedule.strategies.fallback import outer_groups
from smelt.core.schedule.strategies.lane_products import lane_products
from smelt.core.schedule.strategies.lane_rows import lane_columns, lane_rows
from smelt.core.schedule.strategies.lane_softmax import lane_softmax
from smelt.core.schedule.strategies.lanes import over_lanes
from smelt.core.schedule.strategies.picked import picked
from smelt.core.schedule.strategies.recurrence import recurrence
from smelt.core.schedule.strategies.reduction import columns, gathered_rows, rows
from smelt.core.schedule.strategies.row_product import row_product
from smelt.core.schedule.strategies.rows_together import rows_together
from smelt.core.schedule.strategies.short_rows import short_rows
from smelt.core.schedule.tree import ScheduleError, chain, closed

Strategy: TypeAlias = Callable[[Draft, str], None]

# A strategy refuses (ScheduleError) nests that are not its kind; its steps are then taken back.
# Order: contraction before columns, whose trees would also fit a matrix product; rows before columns,
# because a row kernel's reductions follow no contiguous loop; gathered rows take what is neither.
# Row products before all of these, which they ask about the two nests that they make. Short rows before rows,
# whose vectors lie along a row, and between them rows that end together.
STRATEGIES: tuple[Strategy, ...] = (
    elementwise, row_product, contraction, picked, short_rows, rows_together, rows, columns,
    gathered_rows, recurrence, outer_groups,
)  # fmt: skip

# What serves machines whose lanes run in step is asked first; it refuses others. What it leaves, and whatever
# one lane does by itself, is scheduled as for processors, and `over_lanes` shares it among lanes.
IN_STEP: tuple[Strategy, ...] = (lane_softmax, lane_products, lane_rows, lane_columns)


def choose(kernel: Kernel, machine: Machine, constants: frozenset[str] = frozenset()) -> Schedule:
    """The schedule of a naive kernel for a machine. constants: inputs known when compiling."""
    return draft(kernel, machine, constants).schedule


def draft(
    kernel: Kernel,
    machine: Machine,
    constants: frozenset[str] = frozenset(),
    laid: Mapping[str, PackSpec] = MappingProxyType({}),
    answers: Mapping[str, str] = MappingProxyType({}),
) -> Draft:
    """As `choose`, with the scheduled kernel. laid: how inputs lie already; constants has none of them.
    answers: to the strategies' picks; without them each takes what its model finds best."""
    d = Draft(kernel.with_(schedule=""), machine, constants, answers)
    d.do("normalise")
    for name, spec in laid.items():
        d.do("pack", name, str(spec))
    for number, s in enumerate(d.kernel.body):
        if isinstance(s, Store) and any(isinstance(x, Reduce) for x in walk_expr(s.value)):
            d.do("enclose", str(number), d.fresh("one"))
    table = (*IN_STEP, *STRATEGIES) if machine.in_step else STRATEGIES
    for root in _roots(d.kernel):
        for strategy in table:
            try:
                with d.all_or_nothing():
                    strategy(d, root)
                    closed(d.kernel, (), root)
                break
            except ScheduleError:
                continue
    if machine.has_lanes:
        over_lanes(d)
    return d


def _roots(kernel: Kernel) -> tuple[str, ...]:
    """The outermost loop of every top-level nest of serial loops."""
    found = []
    for s in kernel.body:
        if isinstance(s, Store):
            continue
        nodes, _ = chain(s)
        if nodes and isinstance(nodes[0], Loop) and nodes[0].level == "serial":
            found.append(nodes[0].var)
    return tuple(found)
