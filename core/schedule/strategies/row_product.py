"""Products of rows that reductions make (softmax(x) * v, norm(x) * w): a block of rows at a time is computed
into a buffer, as `rows` would, and multiplied from there, as `contraction` would. Where rows are made of a
product themselves (attention), a block of that is computed ahead of them, in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.core.ir.analysis.products import split_factors
from smelt.core.ir.analysis.row_operand import row_operand
from smelt.core.ir.kernel import Expr
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.contraction import contraction
from smelt.core.schedule.strategies.fallback import outer_groups
from smelt.core.schedule.strategies.reduction import columns, gathered_rows, prod_or_none, rows
from smelt.core.schedule.tree import ScheduleError
from smelt.core.schedule.view import View, block_roles

FILL: tuple[Callable[[Draft, str], None], ...] = (rows, gathered_rows)
MULTIPLY: tuple[Callable[[Draft, str], None], ...] = (contraction, rows, columns, gathered_rows, outer_groups)


def row_product(d: Draft, root: str) -> None:
    """A block of rows is a group: what the left factor makes of them is computed once, for all columns, and
    lies in the second-level cache when they are multiplied. Refuses other products."""
    v = d.view(root)
    found = {(r.axes, *parts) for r in v.reduces() if (parts := split_factors(r)) is not None}
    if len(found) != 1:
        raise ScheduleError("row_product", "no product of which one factor has reductions")
    ((axes, left, right),) = found
    operand = row_operand(left, axes[-1]) if axes else None
    if block_roles(v) is not None:
        raise ScheduleError("row_product", "the sums are of blocks of a product: its columns share none")
    groups, row, inner = _loops(v, left, right)
    if row is None and not inner:  # one row and one column: the product is a nest all the same
        inner = [d.enclose(v.vars[0])]
    d.order(*groups, *([row] if row else []), *inner)
    if row is not None:
        groups.append(f"{row}.c")
        length = prod_or_none([a.extent for a in axes])
        held = left.dtype.bytes + (0 if operand is None else operand.dtype.bytes)
        size = None if length is None else length * held
        d.do("chunk", row, d.size("rows of a block", d.machine.row_block(size)), groups[-1])
    elif not groups:
        groups.append(d.enclose(v.vars[0]))
    d.share(groups)
    # what the operand is made of is linear in the sequence, and so are groups' own places; rows that are read
    # are as large as places for all of them, which are faster then (benchmarks/results/choices.md)
    own = operand is not None and not d.machine.has_lanes
    d.do("stage_factor", groups[-1], axes[-1].var, d.fresh("rows"), own)
    fill, product = d.nests(groups[-1])
    if operand is not None:
        d.do("stage_operand", groups[-1], d.view(fill).vars[-1], d.fresh("operand"), own)
        made, fill, product = d.nests(groups[-1])
        _first_of(MULTIPLY, d, made)
    _first_of(FILL, d, fill)
    _first_of(MULTIPLY, d, product)


def _loops(v: View, left: Expr, right: Expr) -> tuple[list[str], str | None, list[str]]:
    """(other loops that the left factor follows, the innermost that it follows alone, those it does not)"""
    mine = [x for x in v.vars if x in v.follows(left)]
    alone = [x for x in mine if x not in v.follows(right)]
    row = alone[-1] if alone else None
    return [x for x in mine if x != row], row, [x for x in v.vars if x not in mine]


def _first_of(strategies: Sequence[Callable[[Draft, str], None]], d: Draft, root: str) -> None:
    """The first strategy that takes the nest."""
    for strategy in strategies:
        try:
            with d.all_or_nothing():
                return strategy(d, root)
        except ScheduleError:
            continue
    raise ScheduleError("row_product", f"no strategy takes the nest of '{root}'")
