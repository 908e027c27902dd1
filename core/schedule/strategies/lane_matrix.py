"""Products of many rows by an instruction that lanes in step compute together: a tile of rows and columns is
a group's, its operands are copied to shared memory a slice of the reduction at a time, and every subgroup has
a part of the tile, whose sums lie in the registers of its lanes as the instruction leaves them.

The tree is that of `lane_tiles`, but for where a lane's rows and columns lie: that of one lane, which the
interpreter runs as it stands. What has no row in the machine's table, or is decoded on the way, is left to
`lane_tiles`."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.core.dim import YES
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.instructions import meaning
from smelt.core.ir.kernel import Load, Reduce
from smelt.core.machine import Instruction, Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.fitting import power
from smelt.core.schedule.strategies.lane_rows import kept_columns
from smelt.core.schedule.strategies.lane_tiles import overlapped, positions, wide_copies
from smelt.core.schedule.strategies.lanes import FEW_GROUPS
from smelt.core.schedule.strategies.reduction import prod_or_none
from smelt.core.schedule.tree import ScheduleError, find
from smelt.core.schedule.view import Roles, View, roles

MATRIX_SLICE = 64
"""Most steps of a reduction whose operands are in shared memory together: a row of a tile is then a line of
the second cache, and lanes meet every 64 steps."""
MATRIX_STAGES = 3
"""Most slices in shared memory: two are on their way while one is used."""
LOW_ROWS = 64
"""Rows up to which a product is bound by the reading of B: tiles are low, and parts of the reduction are
groups of their own where columns are too few for all cores."""
LOW_PART = 256
"""Steps of a reduction that such a group has at least: what adds up their parts is a launch of its own."""


@dataclass(frozen=True)
class MatrixTile:
    """down x across subgroups, each with rows x columns instructions side by side."""

    down: int
    across: int
    rows: int
    columns: int


def by_matrix(d: Draft, v: View, r: Roles, width: int, packed: bool) -> None:
    """The nest of v by a matrix instruction; ScheduleError where none fits. packed: B is in panels of `width`
    columns."""
    row = _instruction(d.machine, v, r)
    if r.row is None or r.beside or any(a.extent == 0 for a in r.reduce.axes):
        raise ScheduleError("lane_matrix", "it has no rows, or decoded operands, or sums nothing")
    v, r = _joined(d, v, r, meaning(row).depth)
    for nest in _heights(d, v, r):
        v = d.view(nest)
        for part in _parts(d, v, _roles(v), row):
            v, found = d.view(part), roles(d.view(part))
            if found is None:
                kept_columns(d, part)
            else:
                _tiled(d, v, found, row, width if packed else None)


def _roles(v: View) -> Roles:
    found = roles(v)
    if found is None:
        raise ScheduleError("lane_matrix", "it is no product any more")
    return found


def _joined(d: Draft, v: View, r: Roles, depth: int) -> tuple[View, Roles]:
    """A reduction that was cut into runs for the sake of few rows, whole again."""
    outer, inner = r.reduce.axes[-2:] if len(r.reduce.axes) > 1 else (None, r.reduce.axes[-1])
    n = inner.extent.const_or_none
    if outer is None or n is None or n >= depth or not all(_follow(a, outer.var, inner.var, n) for a in r.a):
        return v, r
    d.do("join_axes", outer.var, inner.var, d.fresh("k"))
    v = d.view(v.vars[0])
    return v, _roles(v)


def _follow(a: Load, outer: str, inner: str, n: int) -> bool:
    """Whether the terms of both axes follow each other in an operand."""
    steps = [(x.linear(outer), x.linear(inner)) for x in a.index if {outer, inner} & x.symbols]
    return all(o is not None and i is not None and o[0] == i[0] * n for o, i in steps)


def _heights(d: Draft, v: View, r: Roles) -> list[str]:
    """Nests of few and of many rows: two where only a run knows."""
    assert r.row is not None
    known, n = kernel_facts(d.kernel), v.extent(r.row)
    decided = known.prove_le(n, LOW_ROWS) is YES or known.prove_lt(LOW_ROWS, n) is YES
    if decided or v.vars[0] != r.row or positions(v, r):
        return [v.vars[0]]
    d.do("divide", r.row, LOW_ROWS, ".h")
    return [r.row, f"{r.row}.h"]


def _parts(d: Draft, v: View, r: Roles, row: Instruction) -> list[str]:
    """The nests of a product of few rows: where its columns are too few for all cores, groups share the
    reduction, and a nest of its own adds up what they have."""
    assert r.row is not None
    tile, first = _tile_of(d, v, r, row), r.reduce.axes[0]
    columns = prod_or_none([v.extent(x) for x in (r.column, *r.batch)])
    low = kernel_facts(d.kernel).prove_le(v.extent(r.row), LOW_ROWS) is YES
    n = first.extent.const_or_none
    if not low or not columns or not n or len(r.reduce.axes) > 1 or positions(v, r):
        return [v.vars[0]]
    groups = -(-columns // (tile.across * tile.columns * _columns(row)))
    parts = min(d.machine.cores * FEW_GROUPS // groups, n // LOW_PART)
    if parts < 2:
        return [v.vars[0]]
    before = d.roots()
    d.do("split_reduce", v.vars[0], first.var, power(-(-n // parts)), d.fresh("parts"))
    return [*(x for x in d.roots() if x not in before), v.vars[0]]


def _tiled(d: Draft, v: View, r: Roles, row: Instruction, panel: int | None) -> None:
    """One nest in tiles. panel: columns of a panel of B, where it is packed."""
    assert r.row is not None
    tile = _tile_of(d, v, r, row)
    r = _sliced(d, v, r, meaning(row).depth)
    assert r.row is not None
    if panel is not None and (panel % _columns(row) or panel >= tile.columns * _columns(row)):
        panel = None
    line = positions(v, r)
    above, lanes, inside = _split(d, row, r, tile, panel, line)
    groups = [*r.batch, *(x for x in r.outer if x != line), *above]
    d.order(*groups, *lanes, *inside)
    d.share(groups)
    for x in lanes:
        d.do("bind", x, "lane")
    (name,) = d.stage_reduce(groups[-1])
    d.do("accumulate", name, ())
    for x in inside:
        d.do("unroll", x)
    at, inner = _slices(d, r, groups[-1], meaning(row).depth)
    operands = (*r.a, r.b)
    tiles = [_fetched(d, at, x) for x in operands]
    if at != groups[-1]:
        overlapped(d, at, tiles, MATRIX_STAGES)
    for tile_name, e in zip(tiles, operands, strict=True):
        wide_copies(d, tile_name, e)
    _by_lanes(d, row, inner, lanes, inside[:-2])


def _by_lanes(d: Draft, row: Instruction, inner: str, lanes: list[str], many: list[str]) -> None:
    """The steps of a slice as a lane's own loops, innermost those of one instruction. many: loops over a
    lane's instructions."""
    depth = meaning(row).depth
    found = find(d.kernel, inner)
    assert found is not None
    steps = inner
    if found[1].extent != depth:
        d.do("split", inner, depth, f"{inner}.s", f"{inner}.q", False)
        steps = f"{inner}.q"
    d.do("inward", steps, [*lanes, *many][-1])
    if steps != inner:
        d.do("inward", f"{inner}.s", lanes[-1])
        d.do("unroll", f"{inner}.s")
    d.do("replace", [*many, steps][0], row.name)


def _fetched(d: Draft, at: str, e: Load) -> str:
    """A tile of an operand, its rows longer than their elements by what is moved at once, so that the rows
    that an instruction reads together lie in different banks."""
    name = d.fresh(f"{e.buffer}.tile")
    d.do("fetch", at, e.buffer, name, d.machine.lane_bytes // e.dtype.bytes)
    return name


def _columns(row: Instruction) -> int:
    """How many an instruction has, of all its lanes."""
    assert row.lanes is not None
    return row.lanes[1] * meaning(row).columns


def _rows(row: Instruction) -> int:
    assert row.lanes is not None
    return row.lanes[0] * meaning(row).rows


def _instruction(machine: Machine, v: View, r: Roles) -> Instruction:
    """The row that sums products of the operands' types."""
    (e, *more) = v.reduces()
    for row in machine.instructions:
        want = meaning(row)
        if want.shared and not more and _types(r, e) == want.types:
            return row
    raise ScheduleError("lane_matrix", "no instruction has these types, or several products share a nest")


def _types(r: Roles, e: Reduce) -> tuple[object, ...]:
    return (r.a[0].dtype if len(r.a) == 1 else None, r.b.dtype, e.dtype)


def _tile_of(d: Draft, v: View, r: Roles, row: Instruction) -> MatrixTile:
    """The tile of a nest, by what is known of its extents."""
    assert r.row is not None
    if positions(v, r):
        return choose_matrix_tile(d.machine, row, None, v.extent(r.column).const_or_none)
    rows = kernel_facts(d.kernel).bounds(v.extent(r.row))[1]
    return choose_matrix_tile(d.machine, row, rows, v.extent(r.column).const_or_none)


def choose_matrix_tile(
    machine: Machine, row: Instruction, rows: int | None, columns: int | None
) -> MatrixTile:
    """Half of a lane's registers hold sums, and the subgroups of a group lie in a square: then shared memory
    and the caches are read least. Of few rows, or few columns, they lie side by side along the others. rows,
    columns: as many at most; None: nobody knows."""
    subgroups = machine.max_lanes // machine.subgroup
    want = meaning(row)
    most = 1 << (((machine.vector_registers + 1) // 2 // (want.rows * want.columns)).bit_length() - 1)
    square = 1 << (subgroups.bit_length() // 2)
    high, wide = 1 << ((most.bit_length() - 1) // 2), 1 << (most.bit_length() // 2)
    down, across = subgroups // square, square
    if rows is not None and rows <= LOW_ROWS:
        down, across, wide = 1, subgroups, max(1, wide // subgroups)
    elif columns is not None and columns <= wide * _columns(row):
        down, across = subgroups, 1
    if columns is not None:
        wide = min(wide, -(-columns // (across * _columns(row))))
    if rows is not None:
        high = max(1, min(high, -(-rows // (down * _rows(row)))))
    most_bytes = machine.shared_bytes
    line = MATRIX_SLICE * machine.held(want.left.dtype.bytes) + machine.lane_bytes
    while high > 1 and 2 * line * (down * high * _rows(row) + across * wide * _columns(row)) > most_bytes:
        high //= 2
    return MatrixTile(down, across, high, wide)


def _sliced(d: Draft, v: View, r: Roles, depth: int) -> Roles:
    """The reduction with its last axis cut into slices where these are no divisors of it."""
    last = r.reduce.axes[-1]
    n = last.extent.const_or_none
    if n is not None and n % depth == 0:
        return r
    size = MATRIX_SLICE // 2 if n is None or n > depth else depth
    d.do("deepen", last.var, size, f"{last.var}.o", f"{last.var}.i")
    return _roles(d.view(v.vars[0]))


def _split(
    d: Draft, row: Instruction, r: Roles, tile: MatrixTile, panel: int | None, line: str | None
) -> tuple[list[str], list[str], list[str]]:
    """(loops over tiles, over lanes, inside a lane), the last two of them the instruction's own. Of positions
    of an image an instruction has neighbours in a line, and a tile several lines."""
    assert row.lanes is not None and r.row is not None
    want, (y, x), i, j = meaning(row), row.lanes, r.row, r.column
    if line is not None:
        above_line, warp_i, many_i, _ = _levels(d, line, [tile.down, tile.rows], 1)
        above_i, rest_i = _levels(d, i, [], y * want.rows)
        above = [above_line, above_i]
    else:
        above_i, warp_i, many_i, rest_i = _levels(d, i, [tile.down, tile.rows], y * want.rows)
        above = [above_i]
    d.do("split", rest_i, y, f"{i}.r", f"{i}.y", False)
    columns = x * want.columns
    counts = [tile.across, tile.columns]
    if panel is not None:
        counts = [tile.across, tile.columns * columns // panel, panel // columns]
    above_j, warp_j, *many_j, rest_j = _levels(d, j, counts, columns)
    d.do("split", rest_j, want.columns, f"{j}.x", f"{j}.c", False)
    warps = [w for w in (warp_i, warp_j) if w]
    inside = [m for m in (many_i, *many_j) if m]
    return [*above, above_j], [*warps, f"{i}.y", f"{j}.x"], [*inside, f"{i}.r", f"{j}.c"]


def _levels(d: Draft, var: str, counts: list[int], unit: int) -> list[str]:
    """A loop cut into tiles, these by each count in turn, down to runs of `unit`: the names of the loops,
    outermost first; '' where there is one of a count."""
    size = unit
    for n in counts:
        size *= n
    d.do("split", var, size, f"{var}.o", f"{var}.t", True)
    names, rest = [f"{var}.o"], f"{var}.t"
    for level, n in enumerate(counts):
        size //= n
        if n == 1:
            names.append("")
            continue
        if size == 1:
            names.append(rest)
            continue
        d.do("split", rest, size, f"{var}.w{level}", f"{var}.t{level}", False)
        names.append(f"{var}.w{level}")
        rest = f"{var}.t{level}"
    return [*names, rest]


def _slices(d: Draft, r: Roles, group: str, depth: int) -> tuple[str, str]:
    """(the loop around a slice of the reduction, that over its steps)."""
    last = r.reduce.axes[-1]
    n = last.extent.const
    size = next(s for s in (MATRIX_SLICE, MATRIX_SLICE // 2, depth) if n % s == 0)
    if n > size:
        d.do("split", last.var, size, f"{last.var}.o", f"{last.var}.i", False)
        return f"{last.var}.o", f"{last.var}.i"
    return (r.reduce.axes[-2].var if len(r.reduce.axes) > 1 else group), last.var


__all__ = ["by_matrix", "choose_matrix_tile"]
