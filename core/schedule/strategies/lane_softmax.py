"""Products of softmaxes (attention) for lanes that run in step.

Of many rows a tile is a group's: blocks of the row are made in shared memory, reduced by all lanes of the
group and multiplied, each before the next, with a running maximum. So nothing is stored that grows with rows
and their length both. Few rows (a decode step) are as many kernels' worth of statements, scores, rows and
product: each is shared among more groups than rows would give, and what is stored is as long as the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.core.dim import YES
from smelt.core.dtype import DType
from smelt.core.ir.analysis.products import split_factors
from smelt.core.ir.analysis.row_operand import row_operand
from smelt.core.ir.analysis.running import SoftmaxRow, softmax_row
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.kernel import Axis, Expr, Load, Reduce, walk_expr
from smelt.core.ir.rewrite import local_buffers
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.running import ENDINGS
from smelt.core.schedule.strategies.elementwise import elementwise
from smelt.core.schedule.strategies.lane_products import lane_products
from smelt.core.schedule.strategies.lane_rows import lane_columns, lane_rows
from smelt.core.schedule.strategies.lane_tiles import AT_ONCE, TALL, wide_copies
from smelt.core.schedule.strategies.lanes import FEW_LANE_ROWS
from smelt.core.schedule.strategies.reduction import columns, gathered_rows, prod_or_none, rows
from smelt.core.schedule.tree import ScheduleError, find
from smelt.core.schedule.view import View


@dataclass(frozen=True)
class _SoftmaxProduct:
    """groups: loops that scores and values follow. rows: those that the scores follow alone. columns: those
    that they do not. axis: of the sum. row: what the softmax is of."""

    groups: list[str]
    rows: list[str]
    columns: list[str]
    axis: Axis
    row: SoftmaxRow
    right: Expr


@dataclass(frozen=True)
class RunningTile:
    """down x across lanes, each with rows x columns sums, and blocks of so many elements of a row."""

    down: int
    across: int
    rows: int
    columns: int
    block: int


def lane_softmax(d: Draft, root: str) -> None:
    """Blocks of many rows, statements of few; refuses other products, and lanes that do not run in step."""
    if not d.machine.in_step or d.inside(root):
        raise ScheduleError("lane_softmax", "lanes that do not run in step, or a nest that one lane has")
    v = d.view(root)
    found = _product(v)
    for part, few in _by_rows(d, v, found):
        if few or not _whole(d, part):
            _apart(d, part)


def _product(v: View) -> _SoftmaxProduct:
    sums = {(r.axes, *parts) for r in v.reduces() if (parts := split_factors(r)) is not None}
    if len(sums) != 1 or len(v.stores) != 1:
        raise ScheduleError("lane_softmax", "no product of which one factor has reductions")
    ((axes, left, right),) = sums
    row = softmax_row(left, axes[0]) if len(axes) == 1 else None
    if row is None or len(v.reduces()) != 1:
        raise ScheduleError("lane_softmax", "the factor is no softmax along the sum")
    mine, others = v.follows(left), v.follows(right)
    return _SoftmaxProduct(
        [x for x in v.vars if x in mine & others or x not in mine | others],
        [x for x in v.vars if x in mine - others], [x for x in v.vars if x in others - mine],
        axes[0], row, right,
    )  # fmt: skip


def _by_rows(d: Draft, v: View, p: _SoftmaxProduct) -> list[tuple[str, bool]]:
    """(root, whether it has few rows) of the nests: two where only a run knows."""
    if not p.rows:
        return [(v.vars[0], True)]
    row, facts = p.rows[-1], kernel_facts(d.kernel)
    others = prod_or_none([v.extent(x) for x in p.rows[:-1]])
    most = max(1, FEW_LANE_ROWS // max(others or 1, 1))
    if facts.prove_le(v.extent(row), most) is YES:
        return [(v.vars[0], True)]
    if facts.prove_lt(most, v.extent(row)) is YES:
        return [(v.vars[0], False)]
    d.order(row, *(x for x in v.vars if x != row))
    d.do("divide", row, most, ".m")
    names = [f"{x}.m" for x in v.vars if x != row]
    d.order(*names[: len(names) - len(p.columns)], f"{row}.m", *names[len(names) - len(p.columns) :])
    d.order(*(x for x in v.vars if x != row and x not in p.columns), row, *p.columns)
    return [(d.view(row).vars[0], True), (d.view(f"{row}.m").vars[0], False)]


# ---------------------------------------------------------------- statements of their own


def _apart(d: Draft, root: str) -> None:
    """Scores, rows and product as statements, each by the strategies for its kind."""
    p = _product(d.view(root))
    before = d.roots()
    d.do("lift_factor", root, p.axis.var, d.fresh("rows"))
    (row,) = [x for x in d.roots() if x not in before]
    last = d.view(row).vars[-1]
    nests = [row, root]
    store = d.view(row).stores[0]
    if row_operand(store.value, Axis(last, d.view(row).extent(last))) is not None:
        before = d.roots()
        d.do("lift_operand", row, last, d.fresh("operand"))
        nests = [*(x for x in d.roots() if x not in before), *nests]
    for nest in nests:
        _first_of(d, nest)


def _first_of(d: Draft, root: str) -> None:
    """By the first strategy that takes the nest."""
    for strategy in (lane_products, lane_rows, lane_columns, rows, columns, gathered_rows, elementwise):
        try:
            with d.all_or_nothing():
                return strategy(d, root)
        except ScheduleError:
            continue
    raise ScheduleError("lane_softmax", f"no strategy takes the nest of '{root}'")


# ---------------------------------------------------------------- blocks


def _whole(d: Draft, root: str) -> bool:
    """Whether the nest could be made in blocks; else nothing was done."""
    try:
        with d.all_or_nothing():
            _in_blocks(d, root)
    except ScheduleError:
        return False
    return True


def _in_blocks(d: Draft, root: str) -> None:
    """A tile of rows is a group's, with all columns."""
    p = _product(d.view(root))
    for r in dict.fromkeys(x for c, _ in p.row.unless for x in walk_expr(c) if isinstance(x, Reduce)):
        _lifted(d, root, r)
    v = d.view(root)
    p = _product(v)
    if not p.rows or len(p.columns) != 1:
        raise ScheduleError("lane_softmax", "no rows, or columns in several axes")
    row, column = p.rows[-1], p.columns[0]
    size = v.extent(column).const_or_none
    if not size:
        raise ScheduleError("lane_softmax", "only a run knows how many columns there are")
    terms, shared, sums = _terms(p.row.scores), _shared_by(d.machine, p), _sums_of(p.row.scores)
    tile = choose_running_tile(d.machine, size, v.extent(row).const_or_none, shared, p)
    lanes, inside, above = _split(d, row, column, size, tile)
    groups = [*p.groups, *p.rows[:-1], above]
    d.order(*groups, *lanes, *inside)
    d.share(groups)
    for x in lanes:
        d.do("bind", x, "lane")
    d.do("running", groups[-1], p.axis.var, tile.block, _pad(d.machine, p.row.scores.dtype))
    mine = [x for x in (*lanes, *inside) if x.startswith(f"{row}.")]
    _scores(d, p.axis.var, mine, tile, sums)
    _rows(d, p.axis.var, mine, tile)
    _sums(d, p.axis.var, lanes, inside)
    _check_room(d, groups[-1])
    for e in sorted(terms, key=lambda x: p.axis.var not in _symbols(x)):  # what lanes read apart goes first
        _fetched(d, f"{p.axis.var}.o" if p.axis.var in _symbols(e) else groups[-1], e)


def _lifted(d: Draft, root: str, r: Reduce) -> None:
    """A reduction that says where a row is 0, as a statement of its own."""
    before = d.roots()
    d.do("lift", root, r.axes[0].var, d.fresh("whole"))
    (nest,) = [x for x in d.roots() if x not in before]
    _first_of(d, nest)


def _symbols(e: Load) -> set[str]:
    return set().union(*(i.symbols for i in e.index))


def _terms(scores: Expr) -> tuple[Load, ...]:
    """What the product is of that the scores are made of, where they are made of one: lanes read each of
    these several times."""
    sums = _sums_of(scores)
    loads = dict.fromkeys(x for r in sums for x in walk_expr(r) if isinstance(x, Load))
    return tuple(loads) if len(sums) == 1 else ()


def _sums_of(scores: Expr) -> list[Reduce]:
    """The products that scores are made of."""
    return list(dict.fromkeys(x for x in walk_expr(scores) if isinstance(x, Reduce)))


def _shared_by(machine: Machine, p: _SoftmaxProduct) -> int:
    """Bytes of what a score is a product of, of an element of the row and as many of a row."""
    sums = _sums_of(p.row.scores)
    steps = [prod_or_none([a.extent for a in x.axes]) for x in sums]
    bytes_ = [machine.held(x.dtype.bytes) for x in _terms(p.row.scores)]
    return (steps[0] or 0) * max(bytes_, default=0) if len(steps) == 1 else 0


def choose_running_tile(
    machine: Machine, columns: int, rows: int | None, length: int, p: _SoftmaxProduct
) -> RunningTile:
    """As many rows as registers hold sums of, a quarter of them at most, and blocks so long that what scores
    are made of fits shared memory beside them. length: bytes of what a score is made of."""
    across = min(machine.subgroup, columns)
    down = 1 << ((machine.max_lanes // across).bit_length() - 1)
    most = 1 << ((machine.vector_registers // 4).bit_length() - 1)
    many = -(-columns // across)
    if many > most:
        raise ScheduleError("lane_softmax", f"{columns} columns are more than registers hold")
    tall = min(TALL, most // many)
    if rows is not None:
        tall = min(tall, max(1, -(-rows // down)))
    pad, score = max(machine.lane_bytes, 4), machine.held(p.row.scores.dtype.bytes)
    mine = down * tall
    own = mine * (length + 2 * pad + 8 * 4) + 8 * machine.max_lanes
    block = 2 * machine.subgroup
    while block > 1 and own + block * (length + pad + mine * score) > machine.shared_bytes:
        block //= 2
    return RunningTile(down, across, tall, many, block)


def _split(
    d: Draft, row: str, column: str, size: int, tile: RunningTile
) -> tuple[list[str], list[str], str]:
    """(loops over lanes, inside a lane, over tiles of rows)"""
    o, t, i, lane = (f"{row}.{x}" for x in "oqil")
    d.do("split", row, tile.down * tile.rows, o, t, True)
    d.do("split", t, tile.rows, lane, i, False)
    if tile.columns == 1 and size == tile.across:
        return [lane, column], [i], o
    d.do("split", column, tile.across, f"{column}.i", f"{column}.l", True)
    return [lane, f"{column}.l"], [i, f"{column}.i"], o


def _scores(d: Draft, axis: str, mine: list[str], tile: RunningTile, sums: Sequence[Reduce]) -> None:
    """Neighbouring lanes have neighbouring elements of the same rows."""
    along = f"{axis}{ENDINGS['scores']}"
    lane, own = (f"{x}{ENDINGS['scores']}" for x in mine)
    across = min(tile.across, tile.block)
    names, inside = [lane, along], [own]
    if tile.block > across and tile.block % across == 0:
        d.do("split", along, across, f"{along}.i", f"{along}.l", False)
        names, inside = [lane, f"{along}.l"], [own, f"{along}.i"]
    d.order(*names, *inside)
    d.do("bind", names[-1], "lane")
    for r in sums:
        for name in d.stage_reduce(names[-1]):
            d.do("accumulate", name, ())
        _written_out(d, r.axes[-1].var)
    for x in inside:
        d.do("unroll", x)


def _written_out(d: Draft, steps: str) -> None:
    """Steps of a loop written out, so that what a lane reads of a row is one load."""
    if d.attempt("split", steps, AT_ONCE, f"{steps}.u", f"{steps}.v", False):
        d.do("unroll", f"{steps}.v")


def _pad(machine: Machine, dtype: DType) -> int:
    """Elements between the rows of a tile, so that lanes that read different rows at once read from different
    banks, and rows begin where what is read at once may."""
    return max(1, max(machine.lane_bytes, 4) // machine.held(dtype.bytes))


def _rows(d: Draft, axis: str, mine: list[str], tile: RunningTile) -> None:
    """Every row is a few lanes', which share its reductions."""
    share = d.machine.max_lanes // (tile.down * tile.rows)
    lanes = max(2, 1 << (max(share, 1).bit_length() - 1))
    for kind in ("top", "best", "change", "powers", "part", "total"):
        for x in mine:
            if x != mine[0]:
                d.do("bind", f"{x}{ENDINGS[kind]}", "lane")
    d.do("lane_share", f"{axis}.best", lanes, AT_ONCE)
    d.do("lane_share", f"{axis}.part", lanes, AT_ONCE)
    along = f"{axis}{ENDINGS['powers']}"
    if lanes < tile.block and tile.block % lanes == 0:
        d.do("split", along, lanes, f"{along}.i", f"{along}.l", False)
        d.order(*(f"{x}{ENDINGS['powers']}" for x in mine), f"{along}.l", f"{along}.i")
        along = f"{along}.l"
    d.do("bind", along, "lane")


def _sums(d: Draft, axis: str, lanes: list[str], inside: list[str]) -> None:
    """A lane's tile of sums in its registers."""
    for kind in ("sums", "scaled", "product"):
        for x in inside:
            d.do("unroll", f"{x}{ENDINGS[kind]}")
    for x in inside:
        d.do("unroll", x)
    _written_out(d, f"{axis}{ENDINGS['product']}")


def _fetched(d: Draft, at: str, e: Load) -> None:
    """A tile of what scores are made of in shared memory, where it fits there."""
    name = d.fresh(f"{e.buffer}.tile")
    try:
        with d.all_or_nothing():
            d.do("fetch", at, e.buffer, name, _pad(d.machine, e.dtype))
            _check_room(d, at)
    except ScheduleError:
        return
    wide_copies(d, name, e)


def _check_room(d: Draft, at: str) -> None:
    """Refuses what shares more memory than a group has."""
    found = find(d.kernel, at)
    assert found is not None
    shared = [b for b in local_buffers((*found[0], found[1])[:1]) if b.space == "shared"]
    size = sum((prod_or_none(list(b.shape)) or 0) * d.machine.held(b.dtype.bytes) for b in shared)
    if size > d.machine.shared_bytes:
        raise ScheduleError("lane_softmax", f"{size} bytes of shared memory")


__all__ = ["RunningTile", "choose_running_tile", "lane_softmax"]
