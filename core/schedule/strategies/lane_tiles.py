"""Products of many rows for lanes that run in step: a tile of rows and columns is a group's, its operands are
copied to shared memory a slice of the reduction at a time, and every lane has a tile of sums in registers.

One tree for matrix products and for convolutions on channels-last data (implicit GEMM: rows are positions of
the output, which lie in two axes where windows overlap); B may lie along its rows or be decoded on the way,
and all sizes may be a run's. Not for processors and lanes that are tasks of their own: their caches are as
near as shared memory would be, and copies to it only cost (benchmarks/results/ has it measured)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from smelt.core.ir.kernel import Load, Loop
from smelt.core.ir.rewrite import local_buffers
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.reduction import prod_or_none
from smelt.core.schedule.tree import ScheduleError, find
from smelt.core.schedule.view import Roles, View, roles

SLICE = 16
"""Steps of a reduction whose operands are in shared memory together: as many as fill half a transaction along
A's rows, so that tiles of A and B fit the least shared memory that devices have."""
TALL = 8
"""Rows of a lane's tile: all lanes in step read one element of A at once, and B's elements differ, so a tile
is taller than wide."""
AT_ONCE = 4
"""Steps that are written out: what a lane reads of a row of A is then one load of 16 bytes."""
LEAST_SLICE = 12
"""Steps below which two barriers for each slice cost more than shared operands save."""


@dataclass(frozen=True)
class Tile:
    """down x across lanes, each with rows x columns sums; a lane's columns lie `across` apart."""

    down: int
    across: int
    rows: int
    columns: int


def choose_tile(machine: Machine, width: int, rows: int | None, columns: int | None) -> Tile:
    """The sums of a lane take a quarter of its registers at most: what is left holds operands and addresses,
    and lets several groups run on a core. rows, columns: extents where they are constant."""
    sums = 1 << ((machine.vector_registers // 4).bit_length() - 1)
    down = 1 << ((machine.max_lanes // width).bit_length() - 1)
    tall = min(TALL, sums)
    panels = sums // tall if columns is None else -(-columns // width)
    if rows is not None:
        tall = min(tall, max(1, -(-rows // down)))
    return Tile(down, width, tall, max(1, min(sums // TALL, panels)))


def tiled(d: Draft, v: View, r: Roles, width: int, beside: bool) -> None:
    """The nest of v in tiles; ScheduleError where an operand cannot be copied, or slices are too short.
    beside: whether neighbouring columns of B lie side by side; where not, rows of its tile have an odd
    length, so that lanes read from different banks."""
    if len(v.reduces()) > 1:
        raise ScheduleError("lane_tiles", "several products share a nest")
    r = _sliced(d, v, r)
    assert r.row is not None
    v = d.view(v.vars[0])
    below = positions(v, r)
    rows = None if below is not None else v.extent(r.row).const_or_none
    tile = choose_tile(d.machine, width, rows, v.extent(r.column).const_or_none)
    groups, lanes, inside = _split_rows(d, r, tile, below)
    wide, column, panels = _split_columns(d, v, r, tile)
    inside += panels
    outers = [x for x in r.outer if x != below]
    groups = [*r.batch, *outers, *groups, *wide]
    if not groups:
        groups = [d.enclose(column)]
    d.order(*groups, *lanes, column, *inside)
    d.share(groups)
    for x in (*lanes, column):
        d.do("bind", x, "lane")
    (name,) = d.stage_reduce(groups[-1])
    d.do("accumulate", name, ())
    for x in inside:
        d.do("unroll", x)
    at = _slice_loop(d, r)
    _write_out(d, r)
    pads = {x.buffer: int(width < d.machine.subgroup) for x in r.a}
    pads |= {x.buffer: int(not beside) for x in (r.b, *r.beside)}
    tiles = {buffer: d.fresh(f"{buffer}.tile") for buffer in pads}
    outer = _of_blocks(r, at)
    held = {x.buffer for x in r.beside} if outer else set[str]()
    for buffer, name in tiles.items():
        d.do("fetch", outer if outer and buffer in held else at, buffer, name, pads[buffer])
    wanted = _shared_bytes(d, tiles.values())
    if wanted > d.machine.shared_bytes:
        raise ScheduleError("lane_tiles", f"slices of {wanted} bytes")
    overlapped(d, at, [name for buffer, name in tiles.items() if buffer not in held], 2)
    for e in (*r.a, r.b):
        if pads[e.buffer] == 0:
            wide_copies(d, tiles[e.buffer], e)


def wide_copies(d: Draft, tile: str, e: Load) -> None:
    """Lanes fill the tile of e by as many neighbours at once as the machine moves, fewer where rows end."""
    wide = d.machine.lane_bytes // e.dtype.bytes
    while wide > 1 and not d.attempt("copy_wide", tile, wide):
        wide //= 2


def _sliced(d: Draft, v: View, r: Roles) -> Roles:
    """The reduction with its last axis cut into slices where these are no divisors of it."""
    last = r.reduce.axes[-1]
    n = last.extent.const_or_none
    if n is None or (n > SLICE and n % SLICE):
        d.do("deepen", last.var, SLICE, f"{last.var}.o", f"{last.var}.q")
        found = roles(d.view(v.vars[0]))
        assert found is not None
        return found
    return r


def positions(v: View, r: Roles) -> str | None:
    """The loop over lines of an image whose windows overlap along it."""
    if not r.outer:
        return None
    steps = {a.var for a in r.reduce.axes}
    line = r.outer[-1]
    found = any(line in i.symbols and steps & i.symbols for a in r.a for i in a.index)
    return line if found else None


def _split_rows(
    d: Draft, r: Roles, tile: Tile, below: str | None
) -> tuple[list[str], list[str], list[str]]:
    """(loops over tiles, over lanes, inside a lane) of the rows. Beyond a matrix's last row lie zeros."""
    assert r.row is not None
    o, t, lane, i = (f"{r.row}.{x}" for x in "otli")
    if below is not None:
        # windows have bounds of their own: what is beyond the last position reads what that does
        d.do("split_clamped", below, tile.down, f"{below}.o", f"{below}.l")
        d.do("split_clamped", r.row, tile.rows, o, i)
        return [f"{below}.o", o], [f"{below}.l"], [i]
    d.do("split", r.row, tile.down * tile.rows, o, t, True)
    if tile.rows == 1:
        return [o], [t], []
    d.do("split", t, tile.rows, lane, i, False)
    return [o], [lane], [i]


def _split_columns(d: Draft, v: View, r: Roles, tile: Tile) -> tuple[list[str], str, list[str]]:
    """(loops over tiles, over lanes, inside a lane) of the columns."""
    c = r.column
    if v.extent(c) == tile.across:
        return [], c, []
    o, t, lane, i = (f"{c}.{x}" for x in "otli")
    d.do("split", c, tile.across * tile.columns, o, t, True)
    if tile.columns == 1:
        return [o], t, []
    d.do("split", t, tile.across, i, lane, False)
    return [o], lane, [i]


def _slice_loop(d: Draft, r: Roles) -> str:
    """The loop around a slice of the reduction, cut out of an axis if need be."""
    steps = 1
    for a in reversed(r.reduce.axes):
        n = a.extent.const_or_none
        if n == 0:
            break
        if n is not None and n * steps <= SLICE:
            steps *= n
            continue
        most = SLICE // steps
        cut = 1 if n is None else next(f for f in range(most, 0, -1) if n % f == 0)
        if cut * steps < LEAST_SLICE:
            break
        if cut == 1:
            return a.var
        d.do("split", a.var, cut, f"{a.var}.o", f"{a.var}.i", False)
        return f"{a.var}.o"
    raise ScheduleError("lane_tiles", f"slices of {steps} steps")


def _of_blocks(r: Roles, at: str) -> str | None:
    """The loop around that of slices which all that B is decoded with follows, and nothing further in."""
    axes = [a.var for a in r.reduce.axes]
    last = [max((i for i, a in enumerate(axes) if any(a in x.symbols for x in b.index)), default=-1)
            for b in r.beside]  # fmt: skip
    inner = next(i for i, a in enumerate(axes) if at in (a, f"{a}.o"))
    return axes[last[0]] if last and len(set(last)) == 1 and 0 <= last[0] < inner else None


def _write_out(d: Draft, r: Roles) -> None:
    """The last steps of a slice written out."""
    last = r.reduce.axes[-1].var
    found = find(d.kernel, last) or find(d.kernel, last := f"{last}.i")
    assert found is not None
    n = found[1].extent.const
    if n <= AT_ONCE:
        d.do("unroll", last)
    elif n % AT_ONCE == 0:
        d.do("split", last, AT_ONCE, f"{last}.u", f"{last}.v", False)
        d.do("unroll", f"{last}.v")


def overlapped(d: Draft, at: str, tiles: list[str], most: int) -> None:
    """Every tile up to `most` times, as far as there is shared memory for it: slices are copied while others
    are used. n slices then take n + 2 barriers and not 2*n, again for every turn of a loop around them."""
    found = find(d.kernel, at)
    assert found is not None
    size = _shared_bytes(d, tiles)
    n = found[1].extent.const_or_none
    again = any(isinstance(s, Loop) and s.level == "serial" for s in found[0])
    stages = min(most, d.machine.shared_bytes // max(size, 1), most if n is None else n)
    if stages < 2 or (n == 2 and again):
        return
    for name in tiles:
        d.do("pipeline", at, name, stages)


def _shared_bytes(d: Draft, tiles: Collection[str]) -> int:
    shared = [b for b in local_buffers(d.kernel.body) if b.name in tiles]
    return sum((prod_or_none(list(b.shape)) or 0) * d.machine.held(b.dtype.bytes) for b in shared)


__all__ = ["choose_tile", "overlapped", "positions", "tiled", "wide_copies"]
