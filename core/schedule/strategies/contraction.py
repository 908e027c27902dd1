"""Contractions (matrix products, convolutions): register tiles of rows x columns over packed panels.

The schedule is the same for a matrix product and a convolution on channels-last data: rows are output
positions, columns output channels, the reduction runs over taps and channels. For every panel of columns
{ for every tile of rows { accumulate in registers; epilogue; store } }. What the numbers below are worth
stands in benchmarks/results/choices.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, prod

from smelt.core.dim import YES, Dim, product
from smelt.core.ir.analysis.scope import expressions, kernel_facts
from smelt.core.ir.instructions import meaning
from smelt.core.ir.kernel import Load, walk_expr
from smelt.core.ir.layout import PackDim, PackSpec
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.fitting import Fit, fitting, fitting_words, latency, power
from smelt.core.schedule.tree import ScheduleError, chain, find, var_of
from smelt.core.schedule.view import Roles, View, block_roles, roles

MAX_ROWS = 16
"""Bodies of a row tile are emitted once per height; more rows than this gain nothing."""
POINTER_ROWS = 8
"""The same where every row has an address of its own: more would spill addresses of 16 integer registers."""
SUPPLY = 4
"""Cycles in which the second-level cache delivers a vector of B."""
SECOND_NEST = 0.25
"""What a narrower nest for the last columns takes, in whole vectors."""
FEW_ROWS = 32
"""With fewer rows B is read in place: packing it costs more than it saves."""
DOT_ROWS = 4
"""So many rows times a matrix that lies along its rows are dot products: each costs a sum of lanes, and all
of them less than a copy of the matrix, turned."""
FAR = 4096
"""Bytes between reduction steps of B from which reading it in place loses to packing it: one page, so
that every step misses the TLB and the prefetcher."""
MANY_ROWS, FAR_MANY = 64, 1024
"""The same from so many rows on: steps that share a few sets of the first cache are enough."""
LANE_ROWS, TASK_ROWS = 4, 8
"""Rows of a lane's tile of one vector: of lanes in step, and of one that is a task of its own, whose vectors
are to be used by so many rows that loading one costs little. A tile of two vectors has half as many."""
DECODE_ROWS = 12
"""Rows up to which a weight is decoded for each tile of them again: of more a panel is decoded once."""
FEW_TASK_ROWS, FEW_TASK_VECTORS = 4, 4
"""Rows up to which a lane that is a task of its own has all of them, if only a run knows how many there are,
so that B is read once; and the vectors of its tile for one row alone, whose sums hide their latency."""
MANY, FEW = ".m", ".f"
"""What the names of loops over many rows end in, where few have a nest of their own, and of those where one
has."""
SHORT_AXIS = 4
"""Steps of the innermost axis of a reduction (3 channels, the fields of a byte) that are written out."""


@dataclass(frozen=True)
class Shape:
    """A register tile: rows x (vectors * lanes) columns. fit: what sums several terms at once. panel: the
    columns of a panel of weights, of which a tile reads a part, or several side by side; 0: the tile's. run:
    neighbours of A that are loaded together; 0: each by itself. once: panels are decoded before tiles."""

    rows: int
    vectors: int
    lanes: int
    fit: Fit | None = None
    panel: int = 0
    run: int = 0
    once: bool = False

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def padded(self, rest: int) -> int:
        """How many columns a tile computes of so many that are left, where zeros fill the last panel."""
        width = min(power(ceil(rest / self.lanes)) * self.lanes, self.columns)
        step = min(self.panel or self.columns, self.columns)
        return min(width, ceil(rest / step) * step)


def register_shapes(
    machine: Machine, lanes: int, accumulators: int, pointers: bool, panel: int = 1, run: int = 0
) -> tuple[Shape, ...]:
    """The tiles that fit the register file: rows*vectors accumulators, `panel` registers of B for each vector
    of columns, one of A, or one for each row where these are loaded in runs.

    pointers: every row has an address of its own (padding, strides unknown when compiling).
    """
    registers = max(machine.vector_registers, 16)
    # two spare of 32: 31 live ones spill under some of LLVM's scheduling models
    live = registers - 3 if registers >= 32 else registers - 1
    found = []
    for vectors in (1, 2, 4, 8):
        rows = (live - (not run) - vectors * panel) // (vectors * accumulators + bool(run))
        rows = min(rows, POINTER_ROWS if pointers else MAX_ROWS)
        rows -= rows % 2 if rows > 4 and not run else 0
        if rows >= 1:
            found.append(Shape(rows, vectors, lanes, run=run))
    return tuple(found)


def rank_shapes(
    shapes: Iterable[Shape], columns: int | None, rows: int | None, busy: int
) -> tuple[Shape, ...]:
    """The tiles by their estimated time per output, of equals the widest first: few rows leave more sums in
    flight, and there are fewer bodies to emit. columns, rows: extents when constant. busy: sums that keep the
    pipes busy (latency times instructions per cycle)."""

    def efficiency(height: int, vectors: int) -> float:
        fma, loads = height * vectors, height + vectors
        return fma / max(fma, loads, busy, SUPPLY * vectors)

    def taken(s: Shape, vectors: int) -> float:
        """The time of so many vectors of columns for a row, the mean of those of all rows."""
        tiles = _balanced(s.rows, rows)
        whole = sum(n * height / efficiency(height, vectors) for height, n in tiles)
        return vectors * whole / sum(n * height for height, n in tiles)

    def time(s: Shape) -> float:
        if columns is None:
            return taken(s, s.vectors) / s.vectors
        full, rest = divmod(columns, s.columns)
        cost = full * taken(s, s.vectors)
        tail = power(ceil(rest / s.lanes)) if rest else 0
        if rest:
            cost += taken(s, tail) + (SECOND_NEST if full else 0)
        return cost

    return tuple(sorted(shapes, key=lambda s: (round(time(s), 6), -s.vectors)))


def choose_shape(shapes: tuple[Shape, ...], columns: int | None, rows: int | None, busy: int) -> Shape:
    """The tile with the least estimated time per output; arguments are those of `rank_shapes`."""
    return rank_shapes(shapes, columns, rows, busy)[0]


def _pick_shape(
    d: Draft, shapes: tuple[Shape, ...], columns: int | None, rows: int | None, busy: int
) -> Shape:
    """A tile of these, the best by its estimate unless another is asked for; behind them come lower ones,
    which leave registers to whatever else a kernel computes."""
    ranked = rank_shapes(shapes, columns, rows, busy)
    lower = (replace(s, rows=s.rows // 2) for s in shapes if s.rows > 1)
    every = (*ranked, *rank_shapes(lower, columns, rows, busy))
    options: dict[str, Shape] = {}
    for s in every:
        options.setdefault(f"{s.rows}x{s.columns}", s)
    return d.pick("tile", options)


def _heights(most: int, rows: int | None) -> tuple[int, bool]:
    """(rows of a tile, whether tiles of that height cover the rows exactly). A lower tile that does is taken
    where it needs no more tiles: each reads a whole panel of B."""
    if rows is None:
        return most, False
    if rows <= most:
        return max(rows, 1), True
    exact = next(h for h in range(most, 0, -1) if rows % h == 0)
    return (exact, True) if rows // exact == ceil(rows / most) else (most, False)


def _balanced(most: int, rows: int | None) -> tuple[tuple[int, int], ...]:
    """The heights of the tiles that cover the rows, and how many there are of each: 7 rows by at most 6 are
    tiles of 4 and 3, whose vectors of B serve few rows. One of the most where nobody knows the rows."""
    height, exact = _heights(most, rows)
    if rows is None or exact:
        return ((height, 1),)
    tiles = ceil(rows / height)
    low, higher = divmod(rows, tiles)
    return (low, tiles - higher), (low + 1, higher)


def contraction(d: Draft, root: str) -> None:
    """Register tiles for a nest that `roles` understands; refuses others."""
    v = d.view(d.split_phases(root))
    r = roles(v) or block_roles(v)
    if r is None:
        raise ScheduleError("contraction", "no row and column roles")
    if v.extent(r.column) == 0:
        raise ScheduleError("contraction", "nothing to compute")
    v, r = collapsed(d, v, r)
    fit = fitting(d, v, r) if not r.block and _words_pay(d, v, r) else None
    if fit is not None:
        d.do("deepen", fit.axis, fit.depth, fit.outer, fit.inner)
        v, r = again(d, v)
    elif v.extent(r.column).is_const:
        fit = fitting_words(d, v, r)
    if r.block and (fit is None or d.machine.has_lanes):
        raise ScheduleError("contraction", "sums of blocks that no instruction makes")
    lanes = d.machine.lanes(v.bits)
    rows = None if r.row is None else v.extent(r.row).const_or_none
    rows = 1 if r.row is None else rows
    wide = 1 if fit is None else lanes // meaning(fit.row).columns
    run = 0 if r.block else _run(d.machine, v, r, fit)
    shapes = register_shapes(d.machine, lanes, len(v.all_reduces()), _needs_pointers(v, r), wide, run)
    columns = v.extent(r.column).const_or_none
    if d.machine.has_lanes:
        shapes = (Shape(LANE_ROWS, 1, lanes),) if d.machine.in_step else _task_shapes(d, v, r, lanes)
    shape = _pick_shape(d, shapes, columns, rows, latency(d.machine, r, fit))
    shape = replace(shape, fit=fit, panel=d.machine.panel_bits // v.bits)
    before = d.roots()
    padded = _layout(d, v, r, shape, rows)
    if columns is None:
        _dynamic_columns(d, r, shape, next((s for s in shapes if s.vectors == 1), shape))
        return
    copied = d.roots() != before
    for mine, tile in [(r, shape)] if copied else _by_rows(d, r, shape, columns):
        _constant_columns(d, mine, tile, columns, padded)


def _task_shapes(d: Draft, v: View, r: Roles, lanes: int) -> tuple[Shape, ...]:
    """The tiles of a lane that is a task of its own, of as many sums each: one of two vectors reads less of A
    for them, and twice as much of B, so that the first cache has to hold a panel of that."""
    terms = product([a.extent for a in r.reduce.axes]).const_or_none
    panel = None if terms is None else terms * 2 * lanes * v.bits // 8
    near = panel is not None and panel <= d.machine.cache_bytes[0]
    return tuple(Shape(TASK_ROWS // n, n, lanes) for n in ((1, 2) if near else (1,)))


def _by_rows(d: Draft, r: Roles, shape: Shape, columns: int) -> list[tuple[Roles, Shape]]:
    """The nests and their tiles: several, of which one is not empty, where only a run knows whether a lane
    that is a task of its own would have rows that are not there, or whether weights are decoded once or by
    tiles."""
    if r.row is not None and _decoded_panels(d, r, shape):
        n = d.view(r.column).extent(r.row)
        if kernel_facts(d.kernel).prove_lt(DECODE_ROWS, n) is YES:
            return [(r, replace(shape, once=True))]
        if kernel_facts(d.kernel).prove_le(n, DECODE_ROWS) is YES:
            return [(r, shape)]
        d.order(r.row, *(x for x in d.view(r.column).vars if x != r.row))
        d.do("divide", r.row, DECODE_ROWS, MANY)
        return [(r, shape), (_renamed(r, MANY), replace(shape, once=True))]
    if not d.machine.has_lanes or d.machine.in_step or r.row is None or shape.rows == 1:
        return [(r, shape)]
    v, facts = d.view(r.column), kernel_facts(d.kernel)
    n = v.extent(r.row)
    if n.is_const or facts.prove_lt(FEW_TASK_ROWS, n) is YES:
        return [(r, shape)]
    vectors = shape.vectors
    while vectors < FEW_TASK_VECTORS and columns % (2 * vectors * shape.lanes) == columns % shape.columns:
        vectors *= 2  # a rest would be one more launch
    one = replace(shape, rows=1, vectors=vectors, panel=shape.panel or shape.columns)
    few = replace(one, rows=FEW_TASK_ROWS, vectors=1)
    d.order(r.row, *(x for x in v.vars if x != r.row))
    many = []
    if facts.prove_le(n, FEW_TASK_ROWS) is not YES:
        d.do("divide", r.row, FEW_TASK_ROWS, MANY)
        many = [(_renamed(r, MANY), shape)]
    if facts.prove_le(n, 1) is YES:
        return [(r, one)]
    d.do("divide", r.row, 1, FEW)
    return [(r, one), (_renamed(r, FEW), few), *many]


def _decoded_panels(d: Draft, r: Roles, shape: Shape) -> bool:
    """Whether there are rows for which a decoded panel of B could stand in half of the second cache."""
    if r.batch or not r.beside or r.block or shape.fit is not None or d.machine.has_lanes:
        return False
    terms = product([a.extent for a in r.reduce.axes]).const_or_none
    near = terms is not None and terms * shape.columns * r.reduce.dtype.bytes <= d.machine.cache_bytes[1] // 2
    # a `let` picks the panel by a row (experts)
    return near and not d.inside(r.column) and not d.view(r.column).has_lets


def _renamed(r: Roles, suffix: str) -> Roles:
    """The roles of the loops of a copy, whose variables have the suffix."""
    axes = tuple(replace(a, var=a.var + suffix) for a in r.reduce.axes)
    return replace(
        r,
        row=None if r.row is None else r.row + suffix,
        column=r.column + suffix,
        batch=tuple(x + suffix for x in r.batch),
        outer=tuple(x + suffix for x in r.outer),
        reduce=replace(r.reduce, axes=axes),
    )


def collapsed(d: Draft, v: View, r: Roles) -> tuple[View, Roles]:
    """Row loops joined into one while their accesses allow (pixels of a 1x1 convolution)."""
    while r.row is not None and r.outer:
        i = v.vars.index(r.row)
        outer = v.vars[i - 1] if i else ""
        name = d.fresh(f"{outer}_{r.row}")
        if outer not in r.outer or not d.attempt("collapse", outer, r.row, name):
            break
        v, r = again(d, d.view(name))
    return v, r


def again(d: Draft, v: View) -> tuple[View, Roles]:
    """The nest and its roles after a step that changed neither."""
    v = d.view(v.vars[0])
    found = roles(v) or block_roles(v)
    assert found is not None
    return v, found


def _needs_pointers(v: View, r: Roles) -> bool:
    """Whether the addresses of A's rows are not one base plus constants."""
    for a in r.a:
        step = None if r.row is None else v.stride(a, r.row)
        if a.guard or (r.row is not None and (step is None or not step.is_const)):
            return True
    return False


def _run(machine: Machine, v: View, r: Roles, fit: Fit | None) -> int:
    """Steps of the innermost axis that are neighbours of A in one register: floats, or the words that an
    instruction takes one of at a time. 0: they are none, or too few."""
    if not machine.lane_operands or not r.reduce.axes or len(v.all_reduces()) > 1:
        return 0
    if fit is not None:
        run = machine.lanes(8 * fit.depth)
        word = meaning(fit.row).rows == 1 and bool(fit.outer)
        return run if word and fit.extent // fit.depth >= 2 * run else 0
    last, run = r.reduce.axes[-1], machine.lanes(v.bits)
    n = last.extent.const_or_none
    guards = {x for a in r.a for g in a.guard for e in (g.low, g.index, g.high) for x in e.symbols}
    near = all(v.stride(a, last.var) == 1 and a.dtype.is_float for a in r.a)
    return run if near and last.var not in guards and (n is None or n >= 2 * run) else 0


# ---------------------------------------------------------------- the right operand


def _words_pay(d: Draft, v: View, r: Roles) -> bool:
    """Whether B may be brought into words of an instruction: once, or in every run. Where its terms do not
    lie next to each other that takes longer than what few rows gain (benchmarks/results/choices.md)."""
    n = None if r.row is None else v.extent(r.row).const_or_none
    few = n is not None and n < FEW_ROWS and v.stride(r.b, r.column) == 1
    return r.b.buffer in d.constants or (r.row is not None and not few)


def _layout(d: Draft, v: View, r: Roles, shape: Shape, rows: int | None) -> bool:
    """Bring B into panels when that pays; True when B then has zeros after its last column."""
    if r.beside:
        return _layout_all(d, r, shape)
    b = r.b
    loads = [x for e in expressions(d.kernel.body) for x in walk_expr(e) if isinstance(x, Load)]
    same = all(x.index == b.index for x in loads if x.buffer == b.buffer)
    axes = [i for i, x in enumerate(b.index) if r.column in x.symbols]
    plain = not b.guard or shape.fit is not None  # the guard of a last block goes when B is padded
    panels = same and len(axes) == 1 and plain and fits_panels(d, b.index[axes[0]], r, shape.columns)
    if panels and b.buffer in d.constants:
        width = _panel_width(d, b.index[axes[0]], r, shape)
        _pack(d, b.buffer, panel_spec(b, r, axes[0], width, shape.fit))
        return True
    few = rows is not None and rows < FEW_ROWS
    if shape.fit is None and v.stride(b, r.column) == 1:
        symbolic = not v.extent(r.column).is_const and not d.machine.masked
        far = FAR_MANY if rows is not None and rows >= MANY_ROWS else FAR
        ways = {"in place": False, "in panels": True}
        if not few and (symbolic or _step(v, r) >= far):
            ways = dict(reversed(ways.items()))
        if not panels or not d.pick("right operand", ways):
            return False
    elif rows is not None and rows <= DOT_ROWS:
        raise ScheduleError("contraction", "few rows times a matrix along its rows: dot products do better")
    if not panels:
        return False
    name = d.fresh(f"{b.buffer}.panels")
    d.do("stage", b.buffer, str(panel_spec(b, r, axes[0], shape.columns, shape.fit)), name)
    _schedule_copy(d, name, shape.fit is not None and v.stride(b, r.column) == 1)
    return True


def _layout_all(d: Draft, r: Roles, shape: Shape) -> bool:
    """Bring everything that B is decoded with into panels; they have zeros after the last column."""
    every = [x for e in expressions(d.kernel.body) for x in walk_expr(e) if isinstance(x, Load)]
    specs = []
    for b in (r.b, *r.beside):
        axes = [i for i, x in enumerate(b.index) if r.column in x.symbols]
        same = all(x.index == b.index for x in every if x.buffer == b.buffer)
        fits = same and len(axes) == 1 and fits_panels(d, b.index[axes[0]], r, shape.columns)
        if not fits or b.buffer not in d.constants:
            raise ScheduleError("contraction", "a decoded operand that is not constant")
        width = _panel_width(d, b.index[axes[0]], r, shape)
        fit = shape.fit if b == r.b else None
        specs.append((b.buffer, panel_spec(b, r, axes[0], width, fit)))
    for buffer, spec in specs:
        _pack(d, buffer, spec)
    return True


def _pack(d: Draft, buffer: str, spec: PackSpec) -> None:
    """A weight in panels, which is asked for ahead where it is longer than the distance: otherwise the time
    in which memory brings a panel and the time in which a few rows multiply it add up (AHEAD in
    benchmarks/results/choices.md)."""
    d.do("pack", buffer, str(spec))
    b = next(b for b in d.kernel.inputs if b.name == buffer)
    sizes = [n.const_or_none for n in b.shape]
    whole = prod(n for n in sizes if n is not None) * b.dtype.bytes
    if d.machine.ahead and (None in sizes or whole > d.machine.ahead):
        d.do("ask_ahead", buffer, d.machine.ahead)


def _panel_width(d: Draft, index: Dim, r: Roles, shape: Shape) -> int:
    """The columns of a panel of weights."""
    return shape.panel if shape.panel and fits_panels(d, index, r, shape.panel) else shape.columns


def fits_panels(d: Draft, index: Dim, r: Roles, columns: int) -> bool:
    """Whether the axis is the column plus whole panels of so many columns."""
    found = index.linear(r.column)
    if found is None or found[0] != 1:
        return False
    return kernel_facts(d.kernel).prove_divisible(found[1], columns) is YES


def panel_spec(b: Load, r: Roles, axis: int, columns: int, fit: Fit | None = None) -> PackSpec:
    """Axes of batch loops, panel, axes of the reduction in its order, column within the panel, and, where an
    instruction sums several terms at once, these."""
    depth = {a.var: i for i, a in enumerate(r.reduce.axes) if fit is None or a.var != fit.inner}

    def rank(a: int) -> tuple[int, int]:
        found = [depth[s] for s in b.index[a].symbols if s in depth]
        if fit is not None and fit.inner in b.index[a].symbols:
            found = found or [len(r.reduce.axes)]  # one word, whose loop is none
        return (1, max(found)) if found else (0, a)

    others = sorted((a for a in range(len(b.index)) if a != axis), key=rank)
    batch = [PackDim(a) for a in others if rank(a)[0] == 0]
    inner = [PackDim(a) for a in others if rank(a)[0] == 1]
    panel, lane = PackDim(axis, "outer", columns), PackDim(axis, "inner", columns)
    if fit is None:
        return PackSpec((*batch, panel, *inner, lane))
    (deep,) = (a for a in others if fit.inner in b.index[a].symbols)
    inner = [PackDim(deep, "outer", fit.depth) if p.axis == deep else p for p in inner]
    return PackSpec((*batch, panel, *inner, lane, PackDim(deep, "inner", fit.depth)))


def _step(v: View, r: Roles) -> int:
    """Bytes between steps of the innermost reduction axis in B; 0 when unknown."""
    step = v.stride(r.b, r.reduce.axes[-1].var) if r.reduce.axes else None
    return step.const * r.b.dtype.bytes if step is not None and step.is_const else 0


def _schedule_copy(d: Draft, name: str, words_of_rows: bool) -> None:
    """Panels are filled in parallel, a row of each at a time, or the rows of a word where these are what
    memory has next to each other."""
    scratch = d.kernel.buffers()[name]
    names = [f"{name}.{i}" for i in range(len(scratch.shape))]
    kept = [n for n in names if find(d.kernel, n) is not None]
    for n in kept[:-2]:
        d.do("bind", n, "group")
    if len(kept) < len(names):
        return
    if words_of_rows:
        d.do("order", (names[-1], names[-2]))
        d.do("unroll", names[-1])
    d.do("bind", names[-2] if words_of_rows else names[-1], "vector")


# ---------------------------------------------------------------- panels and tiles


def _constant_columns(d: Draft, r: Roles, shape: Shape, columns: int, padded: bool) -> None:
    """Whole panels, then what is left in a narrower one (padded) or in whole vectors and a rest."""
    c, rest = r.column, columns % shape.columns
    suffix = ""
    if columns - rest and rest:
        _outermost(d, c)
        d.do("peel", c, columns - rest, ".t")
        suffix = ".t"
    if columns - rest:
        _panel(d, r, "", c, shape, shape.columns, 0)
    if not rest:
        return
    if padded:
        if rest == 1 and shape.panel and (columns - rest) % shape.panel:
            # its place in the panel is a number: no axis is left to widen, nor one for an instruction
            _panel(d, r, suffix, c + suffix, replace(shape, fit=None), rest, 0)
            return
        _panel(d, r, suffix, c + suffix, shape, rest, shape.padded(rest))
        return
    for width in _pieces(rest, shape.lanes):
        if width < rest:
            _outermost(d, c + suffix)
            d.do("peel", c + suffix, width, ".t")
        _panel(d, r, suffix, c + suffix, shape, width, 0)
        rest -= width
        suffix += ".t"


def _pieces(n: int, lanes: int) -> list[int]:
    """n as powers of two of whole vectors, and the rest: 44 of 16 lanes are 32 and 12."""
    found = []
    whole = n // lanes
    while whole:
        width = 1 << (whole.bit_length() - 1)
        found.append(width * lanes)
        whole -= width
    return found + ([n % lanes] if n % lanes else [])


def _outermost(d: Draft, var: str) -> None:
    names = list(d.view(var).vars)
    d.order(var, *(n for n in names if n != var))


def _panel(
    d: Draft, r: Roles, suffix: str, column: str, shape: Shape, width: int, padded_width: int
) -> None:
    """One nest whose columns are a multiple of width: split them (a single panel is not) and tile."""
    padded_width = padded_width if padded_width > width else 0
    found = find(d.kernel, column)
    assert found is not None
    if found[1].extent == width:
        _tile(d, r, suffix, None, column, shape, padded_width)
        return
    d.do("split", column, width, f"{column}.o", f"{column}.i", False)
    _tile(d, r, suffix, f"{column}.o", f"{column}.i", shape, padded_width)


def _dynamic_columns(d: Draft, r: Roles, shape: Shape, narrow: Shape) -> None:
    """Panels that are whole are not masked; what is left is a nest of its own, of narrow panels, of which the
    last may be cut: of 77 columns two panels of 32 and one of 16."""
    c, n = r.column, d.view(r.column).extent(r.column)
    o, i = f"{c}.o", f"{c}.i"
    whole = n // shape.columns
    exact = kernel_facts(d.kernel).prove_divisible(n, shape.columns) is YES
    if not exact and narrow.columns < shape.columns and shape.fit is None and not d.machine.has_lanes:
        _outermost(d, c)
        if d.attempt("peel", c, whole * shape.columns, ".t"):
            d.do("split", f"{c}.t", narrow.columns, f"{o}.t", f"{i}.t", True)
            _tile(d, r, ".t", f"{o}.t", f"{i}.t", narrow, 0)
            d.do("split", c, shape.columns, o, i, False)
            _tile(d, r, "", o, i, shape, 0)
            return
    d.do("split", c, shape.columns, o, i, True)
    _outermost_of_split(d, o)
    if not exact and d.attempt("peel", o, whole, ".t"):
        _tile(d, r, ".t", f"{o}.t", f"{i}.t", shape, 0)
    _tile(d, r, "", o, i, shape, 0)


def _outermost_of_split(d: Draft, o: str) -> None:
    nodes, _ = chain(d.root(o))
    names = [var_of(n) for n in nodes]
    d.order(o, *(n for n in names if n != o))


def _tile(
    d: Draft, r: Roles, suffix: str, outer: str | None, inner: str, shape: Shape, padded_width: int
) -> None:
    """Rows in register tiles, groups over panels (outer; None: there is one) and tiles, accumulators in
    registers."""
    batch, outers = [x + suffix for x in r.batch], [x + suffix for x in r.outer]
    row = None if r.row is None else r.row + suffix
    if shape.once and outer is not None and row is not None:
        d.order(outer, *outers, row, inner)
        d.share([outer])
        d.do("stage_right", outer, row, d.fresh("decoded"))
        d.do("bind", f"{inner}.w", "vector")
        outer = None  # the tiles are a nest inside of it
    row_outer, row_inner = _split_rows(d, row, shape)
    groups = [*batch, *([outer] if outer else []), *outers, *row_outer]
    if d.machine.has_lanes and not (outer and _one_at_most(d, outer)):
        # neighbouring lanes read one row of A, and neighbouring panels of B
        groups = [*batch, *outers, *row_outer, *([outer] if outer else [])]
    if d.machine.has_lanes and outer is None and row_outer and _one_at_most(d, row_outer[0]):
        groups = [*row_outer, *batch, *outers]  # the innermost become lanes
    if not groups:
        groups = [d.enclose(inner)]
    d.order(*groups, *row_inner, inner)
    d.share(groups)
    around = [groups[-1], *([r.block + suffix] if r.block else [])]
    for loop in around:
        for name in d.stage_reduce(loop):
            if padded_width:
                d.do("widen", name, inner, padded_width)
            d.do("accumulate", name, ())
    for x in row_inner:
        d.do("unroll", x)
    d.do("bind", inner, "vector")
    parts = () if shape.fit is None else _last_block(d, shape.fit, suffix)
    unroll_short(d, r, suffix, shape.fit)
    for q in parts:
        assert shape.fit is not None
        d.do("replace", q, shape.fit.row.name)
    if shape.run:
        _runs(d, (r.reduce.axes[-1].var if shape.fit is None else shape.fit.outer) + suffix, shape.run)


def _runs(d: Draft, axis: str, run: int) -> None:
    """The axis in steps of a run, and what is left one by one."""
    found = find(d.kernel, axis)
    if found is None:
        return
    n = found[1].extent
    whole = n // run * run
    if whole != n:
        d.do("peel", axis, whole, ".k")
        if (n - whole).is_const:
            d.do("unroll", f"{axis}.k")
    d.do("split", axis, run, f"{axis}.n", f"{axis}.l", False)
    d.do("unroll", f"{axis}.l")


def _last_block(d: Draft, fit: Fit, suffix: str) -> tuple[str, ...]:
    """The last block of an axis that is no multiple of the instruction's depth apart from those that need no
    guard. The loops over the terms of a block."""
    o, q = fit.outer + suffix, fit.inner + suffix
    if fit.extent % fit.depth == 0 or fit.extent < fit.depth:
        return (q,)
    d.do("peel", o, fit.extent // fit.depth, ".r")
    return (q, f"{q}.r")


def _one_at_most(d: Draft, var: str) -> bool:
    found = find(d.kernel, var)
    return found is not None and kernel_facts(d.kernel).prove_le(found[1].extent, 1) is YES


def _split_rows(d: Draft, row: str | None, shape: Shape) -> tuple[list[str], list[str]]:
    """(loops over tiles, loop within a tile)"""
    if row is None:
        return [], []
    found = find(d.kernel, row)
    assert found is not None
    extent = found[1].extent
    height, exact = _heights(shape.rows, extent.const_or_none)
    if exact and extent == height:
        return [], [row]
    names = (f"{row}.o", f"{row}.i")
    if exact:
        d.do("split", row, height, *names, False)
    elif height == 1:
        return [row], []
    elif d.machine.has_lanes:
        d.do("split_clamped", row, height, *names)
    else:
        d.do("tile", row, tuple(range(height, 0, -1)), "balanced", names[0], f"{row}.r", names[1])
    return [names[0]], [names[1]]


def unroll_short(d: Draft, r: Roles, suffix: str, fit: Fit | None) -> None:
    """The innermost reduction axis is written out where it has few steps."""
    axes = [a for a in r.reduce.axes if fit is None or a.var != fit.inner]
    last = axes[-1] if axes else None
    if last is not None and last.extent.is_const and last.extent.const <= SHORT_AXIS:
        d.attempt("unroll", last.var + suffix)


__all__ = [
    "again", "choose_shape", "collapsed", "contraction", "fits_panels", "panel_spec", "register_shapes",
    "unroll_short",
]  # fmt: skip
