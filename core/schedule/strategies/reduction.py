"""Reductions: along the contiguous axis (rows in registers, then across the vector), or along another
one (vectors of kept elements: pooling, depthwise convolution, softmax over channels). What the numbers below
are worth stands in benchmarks/results/choices.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, inf, prod

from smelt.core.dim import YES, Dim
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.analysis.traits import heavy
from smelt.core.ir.kernel import Load, Reduce, Store, walk, walk_expr
from smelt.core.ir.rewrite import free_symbols
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.fitting import power
from smelt.core.schedule.tree import ScheduleError, chain, find, var_of
from smelt.core.schedule.view import View

SHORT_ROW = 512
"""Elements of a row up to which several are one group's, so that claiming a group pays."""
GROUP_ELEMENTS = 2048
"""Elements of such a group."""
ROW_ELEMENTS = 8
"""Elements of a row up to which vectors hold rows: a vector along the row would be mostly empty, and end in
a sum of its lanes for every row."""
IN_FLIGHT, HEAVY_IN_FLIGHT = 4, 2
"""Vectors that a turn of a loop has in flight; fewer where a costly function fills the pipes by itself."""
KEPT_VECTORS, TILED_VECTORS = 8, 2
"""Vectors of kept elements at a time; fewer where rows of a tile or several reductions multiply the sums."""
MOST_TILE = 8
"""Rows of a window's tile: beyond that the addresses of its positions do not fit 16 integer registers."""
WIDE_WINDOW, WIDE_TILE = 9, 4
"""Window positions beyond which a tile has fewer rows: each is written out for every height of a tile. With 8
rows, 5 x 5 took a tenth more of a recogniser's code for 1 % of its time (benchmarks/results/choices.md)."""
BLOCK_TERMS = 64
"""Terms of a sum of floats that follow each other in one accumulator; longer sums are sums of such blocks, so
that errors grow with BLOCK_TERMS + n / BLOCK_TERMS and not with n."""
UNROLL_TAPS = 49
"""Window positions that are written out where rows of a tile share them: 7 x 7, in 0.7 of the time."""


def in_flight(machine: Machine, most: int, stores: Sequence[Store]) -> int:
    """How many vectors of what the stores compute a turn has in flight, at most `most`. What several stores
    read stays in registers from the first one to the last: of transforms of tiles, a vector alone fills
    them."""
    readers = Counter(e for s in stores for e in {x for x in walk_expr(s.value) if isinstance(x, Load)})
    kept = sum(n > 1 for n in readers.values())
    return max(1, min(most, machine.vector_registers // max(kept, 1)))


# ---------------------------------------------------------------- rows


def rows(d: Draft, root: str) -> None:
    """Softmax, layer norm, sums along the last axis: one row after the other, in vectors along it.

    Loops that the reductions follow are outer, the others run inside a row; a nest without others (a
    plain sum along an axis) gives one scalar per row.
    """
    _rows(d, root, gathered=False)


def gathered_rows(d: Draft, root: str) -> None:
    """As `rows` where elements of a row lie anyhow, as beside an extent that may be 1. Vectors gather, which
    is slow; a reduction that is done again for every element of its row would be slower by the row."""
    _rows(d, root, gathered=True)


def _rows(d: Draft, root: str, gathered: bool) -> None:
    v = d.view(root)
    d.attempt("unclamp", (v.vars[-1], *dict.fromkeys(r.axes[-1].var for r in v.all_reduces() if r.axes)))
    v = row_nest(d, d.view(root))
    outer, inner = sides(v)
    single = [x for x in inner if v.extent(x) == 1]
    inner = [x for x in inner if x not in single]
    outer = single + outer
    if not v.all_reduces() or not (gathered or along(v, inner)):
        raise ScheduleError("rows", "the reduced axis is not contiguous")
    if not outer:  # one row
        outer = [d.enclose(v.vars[0])]
    if len(inner) > 1 and not gathered:
        raise ScheduleError("rows", "several loops inside a row that do not collapse")
    d.order(*outer, *inner)
    lanes = d.machine.lanes(v.bits)
    anchor, groups = outer[-1], list(outer)
    _group_rows(d, v, groups, inner)
    names = d.stage_reduce(anchor)
    _keep_heavy(d, v, names)
    d.attempt("hoist", anchor, "inv")
    unroll = d.size("in flight", HEAVY_IN_FLIGHT if v.is_heavy(d.machine) else IN_FLIGHT)
    for name in names:
        d.attempt("strip_reduce", name, lanes, unroll, d.machine.masked)
    for x in inner[-1:]:
        d.do("strip", x, lanes, unroll, d.machine.masked)


def sides(v: View) -> tuple[list[str], list[str]]:
    """(loops that some reduction follows, loops that none does)"""
    followed = frozenset[str]().union(*(free_symbols(r) for r in v.all_reduces()))
    return [x for x in v.vars if x in followed], [x for x in v.vars if x not in followed]


def along(v: View, inner: list[str]) -> bool:
    """Whether every reduction steps by one element along its last axis in some load, and stores follow
    the inner loop in the same way."""
    for r in v.all_reduces():
        loads = [x for x in walk_expr(r.body) if isinstance(x, Load)]
        if r.axes and loads and not any(v.stride(x, r.axes[-1].var) == 1 for x in loads):
            return False
    return not inner or all(v.stride(s, inner[-1]) == 1 for s in v.stores)


def joined_axes(d: Draft, v: View) -> View:
    """Neighbouring axes of reductions joined where accesses allow."""
    for r in v.all_reduces():
        axes = [a.var for a in r.axes]
        while len(axes) > 1:
            b, a = axes.pop(), axes.pop()
            name = d.fresh(f"{a}_{b}")
            if not d.attempt("collapse", a, b, name):
                break
            axes.append(name)
    return d.view(v.vars[0])


def row_nest(d: Draft, v: View) -> View:
    """Neighbouring loops and neighbouring axes joined where accesses allow."""
    v = joined_axes(d, v)
    outer, inner = sides(v)
    for side in (inner, outer):
        at = len(side) - 2
        while at >= 0:
            a, b = side[at], side[at + 1]
            name = d.fresh(f"{a}_{b}" if len(a) < 12 else "flat")
            if d.attempt("collapse", a, b, name):
                side[at : at + 2] = [name]
                v = d.view(name)
            at -= 1
    return v


def _group_rows(d: Draft, v: View, groups: list[str], inner: list[str]) -> None:
    """Rows become groups, several at a time when they are short."""
    if d.inside(groups[-1]):
        return
    if d.machine.has_lanes:
        d.share(groups)
        return
    work = [v.extent(x).const_or_none for x in inner]
    work += [prod_or_none([a.extent for a in r.axes]) for r in v.all_reduces()]
    size = max((n for n in work if n is not None), default=None)
    if size is not None and None not in work and size <= SHORT_ROW:
        rows_at_once = d.size("rows of a group", max(1, GROUP_ELEMENTS // max(size, 16)))
        d.do("chunk", groups[-1], rows_at_once, f"{groups[-1]}.g")
        groups[-1] += ".g"
    d.share(groups)


def prod_or_none(extents: list[Dim]) -> int | None:
    """The product of constant extents."""
    known = [n.const_or_none for n in extents]
    return None if None in known else prod(n for n in known if n is not None)


def _keep_heavy(d: Draft, v: View, names: list[str]) -> None:
    """exp of a softmax is computed once: kept in the output between the sum and the division."""
    if len(v.stores) != 1:
        return
    for r, name in _fills(d, names):
        if heavy(r.body, d.machine):
            d.attempt("keep", name, v.stores[0].buffer)


def _fills(d: Draft, names: list[str]) -> list[tuple[Reduce, str]]:
    found = []
    for s in walk(d.kernel.body):
        if isinstance(s, Store) and s.buffer in names and isinstance(s.value, Reduce):
            found.append((s.value, s.buffer))
    return found


# ---------------------------------------------------------------- kept axis


def columns(d: Draft, root: str) -> None:
    """Reductions whose neighbours in memory are neighbours in the output: vectors of kept elements,
    serial loops over what is reduced. Where windows overlap, tiles of a second loop share loads and the
    panels of a tile run one after the other, so that bounds of the window are worked out once for all."""
    v = d.view(d.split_phases(root))
    column = v.contiguous_store()
    outer, inner = sides(v)
    if column is None or column not in outer or not v.all_reduces():
        raise ScheduleError("columns", "no kept contiguous axis")
    if v.extent(column) == 0:
        raise ScheduleError("columns", "nothing to compute")
    row = None if d.machine.has_lanes else _window_row(v, column, inner)
    if row is None:
        v = joined_axes(d, v)
    n = v.extent(column)
    lanes = d.machine.lanes(v.bits)
    wide = d.size("vectors", _wide(d, n.const_or_none, lanes, row is not None, len(v.all_reduces())))
    others = [x for x in v.vars if x not in (column, row) and x not in inner]
    if row is None:
        for _, suffix in cut_columns(d, column, n, wide * lanes, lanes, True):
            o, _ = panel_names(column, suffix)
            groups = [*(x + suffix for x in others), o]
            _panel(d, v, groups, [x + suffix for x in inner], [], column, suffix)
        return
    row_outer, row_inner = _tile_rows(d, row, d.size("rows of a tile", _tile_height(d, v, row, wide)))
    d.order(*others, *row_outer, column, *row_inner)
    # a line of tiles per group, so that finding one's place is paid for once per line
    d.share(others if len(others) > 1 else [*others, *row_outer])
    for _, suffix in cut_columns(d, column, n, wide * lanes, lanes, False):
        _panel(d, v, [], [], [x + suffix for x in row_inner], column, suffix)


def _window_row(v: View, column: str, inner: list[str]) -> str | None:
    """The innermost other loop that a reduction over a window follows (its loads overlap)."""
    if inner or not all(len(r.axes) >= 1 and _is_window(v, r) for r in v.all_reduces()):
        return None
    followed = [x for x in v.vars if x != column and all(x in free_symbols(r) for r in v.all_reduces())]
    return followed[-1] if followed and v.extent(followed[-1]).const_or_none != 1 else None


def _is_window(v: View, r: Reduce) -> bool:
    """Some index adds a loop and a reduced variable."""
    names = {a.var for a in r.axes}
    return any(
        (i.symbols & names) and (i.symbols & set(v.vars))
        for x in walk_expr(r.body)
        if isinstance(x, Load)
        for i in x.index
    )


def _wide(d: Draft, n: int | None, lanes: int, tiled: bool, accumulators: int) -> int:
    """Vectors per step: enough independent sums to hide the latency, within the registers."""
    most = TILED_VECTORS if tiled or accumulators > 1 else KEPT_VECTORS
    if tiled and d.machine.vector_registers < 32:
        most = 1  # rows share more than columns do
    return most if n is None else max(1, min(most, power(ceil(n / lanes) + 1) // 2))


def cut_columns(
    d: Draft, column: str, n: Dim, width: int, lanes: int, outermost: bool
) -> list[tuple[int, str]]:
    """Split the column loop into whole panels and narrower rests; (width, suffix of names) of each.
    Leaves loops column.o and column.i (with the suffix). outermost: parts become nests of their own."""
    if not n.is_const:
        o, i = panel_names(column, "")
        d.do("split", column, width, o, i, True)
        if outermost:
            _first(d, o)
        whole = kernel_facts(d.kernel).prove_divisible(n, width) is YES
        if not whole and d.attempt("peel", o, n // width, ".t"):
            return [(width, ".t"), (width, "")]
        return [(width, "")]
    found, suffix, rest = [], "", n.const
    for size in _widths(n.const, width, lanes):
        part = column + suffix
        whole_n = rest // size * size
        if whole_n < rest:
            if outermost:
                _first(d, part)
            d.do("peel", part, whole_n, ".t")
        found.append((size, suffix))
        d.do("split", part, size, *panel_names(column, suffix), False)
        rest -= whole_n
        suffix += ".t"
    return found


def panel_names(column: str, suffix: str) -> tuple[str, str]:
    return f"{column}.o{suffix}", f"{column}.i{suffix}"


def _widths(n: int, width: int, lanes: int) -> list[int]:
    """Widths that cover n: 144 in steps of 64 of 16 lanes is 64 (twice) and 16."""
    found = []
    for size in (width, n % width // lanes * lanes, n % width % lanes):
        if size and n >= size:
            found.append(size)
    return found


def _first(d: Draft, var: str) -> None:
    nodes, _ = chain(d.root(var))
    names = [var_of(n) for n in nodes]
    d.order(var, *(n for n in names if n != var))


def _panel(
    d: Draft, v: View, groups: list[str], inner: list[str], row_inner: list[str], column: str, suffix: str
) -> None:
    """Accumulators for the columns of one panel (times the rows of a tile)."""
    o, i = panel_names(column, suffix)
    d.order(*(groups or [o]), *inner, *row_inner, i)
    d.share(groups)
    names = d.stage_reduce(o)
    _keep_heavy(d, v, names)
    d.attempt("hoist", o, "inv")
    for name in names:
        accumulate_long(d, name)
    for x in row_inner:
        d.do("unroll", x)
    d.do("bind", i, "vector")
    for r in v.all_reduces():
        taps = prod_or_none([a.extent for a in r.axes])
        if row_inner and taps is not None and taps <= UNROLL_TAPS and _written_out(d):
            for a in r.axes:
                d.attempt("unroll", a.var + suffix)


def _written_out(d: Draft) -> bool:
    """Whether the positions of a small window are."""
    return d.pick("window", {"written out": True, "in a loop": False})


def accumulate_long(d: Draft, name: str) -> None:
    """Serial loops into the register of that name; a long sum of floats in blocks, which are cut again."""
    cut = next((_cut(d, r) for r, _ in _fills(d, [name])), None)
    part = d.fresh(f"{name}.p")
    if cut is None or not d.attempt("accumulate_blocks", name, *cut, d.fresh(f"{cut[0]}.b"), part):
        d.attempt("accumulate", name, ())
        return
    accumulate_long(d, part)


def _cut(d: Draft, r: Reduce) -> tuple[str, int] | None:
    """(axis, steps of it) of the blocks of a sum, None where it is one block. Of several axes without bound
    the outermost first: what is left to the blocks is cut again."""
    if r.kind != "sum" or not r.dtype.is_float:
        return None
    facts = kernel_facts(d.kernel)
    most = [facts.interval(a.extent)[1] or inf for a in r.axes]
    open_ = [a.var for a, n in zip(r.axes, most, strict=True) if n > BLOCK_TERMS and not a.extent.is_const]
    if len(open_) > 1:
        return open_[0], BLOCK_TERMS
    terms: float = 1
    for a, n in zip(reversed(r.axes), reversed(most), strict=True):
        if n * terms > BLOCK_TERMS:
            return a.var, max(1, int(BLOCK_TERMS // terms))
        terms *= n
    return None


def _tile_height(d: Draft, v: View, row: str, wide: int) -> int:
    """Rows of a tile whose sums, and the window positions they share, stay in registers together:
    wide * (rows + stride*(rows - 1) + taps) + wide of weights."""
    stride, taps, most = 1, 1, MOST_TILE
    for r in v.all_reduces():
        last = r.axes[-1]
        window = prod_or_none([a.extent for a in r.axes])
        if window is not None and window > WIDE_WINDOW:
            most = WIDE_TILE
        taps = max(taps, last.extent.const_or_none or 1)
        for x in walk_expr(r.body):
            if isinstance(x, Load):
                for i in x.index:
                    step = i.linear(row)
                    if step is not None and last.var in i.symbols:
                        stride = max(stride, step[0].const_or_none or 1)
    live = max(d.machine.vector_registers, 16) - 1
    return max(2, min(most, (live // wide - taps - 1 + stride) // (1 + stride)))


def _tile_rows(d: Draft, row: str, most: int) -> tuple[list[str], list[str]]:
    """(loops over tiles, loop within a tile)"""
    found = find(d.kernel, row)
    assert found is not None
    n = found[1].extent.const_or_none
    if n is not None and n <= most:
        return [], [row]
    exact = [h for h in range(most, most // 2, -1) if n is not None and n % h == 0]
    o, i = f"{row}.o", f"{row}.i"
    if exact:
        d.do("split", row, exact[0], o, i, False)
    else:
        d.do("tile", row, tuple(range(most, 0, -1)), "balanced", o, f"{row}.r", i)
    return [o], [i]
