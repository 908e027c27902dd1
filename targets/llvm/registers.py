"""Register buffers as SSA values: which qualify, how rows are cut into vectors, reading and writing cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from smelt.core.dim import Dim
from smelt.core.ir.kernel import (
    Block,
    Buffer,
    Expr,
    Let,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
    walk,
)
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.index import Env


@dataclass
class Registers:
    """One register buffer. cuts: (start, width) of the pieces of a row, width 0 for scalars. cells: the
    current value of each piece by (leading indices, start); absent ones have not been written."""

    buffer: Buffer
    elem: str
    shape: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]
    cells: dict[tuple[tuple[int, ...], int], Value] = field(default_factory=dict)

    def every(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Every cell, in order."""
        for lead in product(*(range(n) for n in self.shape[:-1])):
            for start, _ in self.cuts:
                yield lead, start

    def get(self, b: FunctionBuilder, key: tuple[tuple[int, ...], int]) -> Value:
        """A cell's value; poison when nothing was written."""
        found = self.cells.get(key)
        return b.poison(self.elem, dict(self.cuts)[key[1]]) if found is None else found

    def read(self, b: FunctionBuilder, index: Sequence[int], lanes: int) -> Value:
        """The element at index, or `lanes` elements from there on along the last axis."""
        lead, at = self._place(index)
        width = dict(self.cuts).get(at)
        if width == lanes:
            return self.get(b, (lead, at))
        start, piece = self._piece(at)
        if lanes and at + lanes <= start + piece:
            whole = self.get(b, (lead, start))
            return b.shuffle(whole, None, range(at - start, at - start + lanes))
        parts = [self._element(b, lead, at + i) for i in range(max(lanes, 1))]
        return b.vector(parts) if lanes else parts[0]

    def write(self, b: FunctionBuilder, index: Sequence[int], value: Value) -> None:
        """Replace the element, or the elements from there on, by value."""
        lead, at = self._place(index)
        if dict(self.cuts).get(at) == value.lanes:
            self.cells[lead, at] = value
            return
        start, piece = self._piece(at)
        if value.lanes and at + value.lanes <= start + piece:
            self.cells[lead, start] = self._blend(b, (lead, start), piece, value, at - start)
            return
        for i in range(max(value.lanes, 1)):
            start, width = self._piece(at + i)
            part = b.lane(value, i)
            if width:
                part = b.with_lane(self.get(b, (lead, start)), part, at + i - start)
            self.cells[lead, start] = part

    def read_tile(self, b: FunctionBuilder, index: Sequence[int], rows: int, columns: int) -> Value:
        """The elements of `rows` rows from index on, `columns` of each, as one vector."""
        assert rows == 1, f"{self.buffer.name}: rows do not share a register"
        return self.read(b, index, columns)

    def write_tile(self, b: FunctionBuilder, index: Sequence[int], rows: int, value: Value) -> None:
        """The inverse of `read_tile`."""
        self.write(b, index, value)

    def _blend(
        self, b: FunctionBuilder, key: tuple[tuple[int, ...], int], piece: int, value: Value, at: int
    ) -> Value:
        """A piece with lanes from `at` on replaced by a narrower vector."""
        n = value.lanes
        wide = b.shuffle(value, None, [min(max(i - at, 0), n - 1) for i in range(piece)])
        picks = [piece + i if at <= i < at + n else i for i in range(piece)]
        return b.shuffle(self.get(b, key), wide, picks)

    def _place(self, index: Sequence[int]) -> tuple[tuple[int, ...], int]:
        for i, n in zip(index, self.shape, strict=True):
            assert 0 <= i < n, f"{self.buffer.name}{list(index)} is outside {list(self.shape)}"
        return tuple(index[:-1]), (index[-1] if index else 0)

    def _piece(self, at: int) -> tuple[int, int]:
        return next((s, w) for s, w in self.cuts if s <= at < s + max(w, 1))

    def _element(self, b: FunctionBuilder, lead: tuple[int, ...], at: int) -> Value:
        start, width = self._piece(at)
        cell = self.get(b, (lead, start))
        return b.lane(cell, at - start) if width else cell


@dataclass
class TileRegisters(Registers):
    """A register buffer of which each cell holds a tile, `tile` rows of `tile` columns in row-major order, as
    an instruction that multiplies small matrices wants it. A last tile of fewer rows has idle lanes."""

    tile: int = 2

    def every(self) -> Iterator[tuple[tuple[int, ...], int]]:
        *lead, rows, columns = self.shape
        for at in product(*(range(n) for n in lead), range(0, rows, self.tile)):
            for j in range(0, columns, self.tile):
                yield at, j

    def get(self, b: FunctionBuilder, key: tuple[tuple[int, ...], int]) -> Value:
        found = self.cells.get(key)
        return b.poison(self.elem, self.tile**2) if found is None else found

    def read(self, b: FunctionBuilder, index: Sequence[int], lanes: int) -> Value:
        if lanes == 2 * self.tile and index[-1] % self.tile == 0:
            (first, row), (second, _) = (self._of(index, at) for at in (0, self.tile))
            picks = [row + i for i in range(self.tile)]
            low, high = self.get(b, first), self.get(b, second)
            return b.shuffle(low, high, [*picks, *(self.tile**2 + p for p in picks)])
        parts = [self._of(index, i) for i in range(max(lanes, 1))]
        values = [b.lane(self.get(b, key), lane) for key, lane in parts]
        return b.vector(values) if lanes else values[0]

    def write(self, b: FunctionBuilder, index: Sequence[int], value: Value) -> None:
        for i in range(max(value.lanes, 1)):
            key, lane = self._of(index, i)
            self.cells[key] = b.with_lane(self.get(b, key), b.lane(value, i), lane)

    def read_tile(self, b: FunctionBuilder, index: Sequence[int], rows: int, columns: int) -> Value:
        assert rows == columns == self.tile, f"{self.buffer.name}: tiles of {rows} x {columns}"
        return self.get(b, self._of(index, 0)[0])

    def write_tile(self, b: FunctionBuilder, index: Sequence[int], rows: int, value: Value) -> None:
        self.cells[self._of(index, 0)[0]] = value

    def _of(self, index: Sequence[int], ahead: int) -> tuple[tuple[tuple[int, ...], int], int]:
        """(cell, lane) of the element so many columns ahead of index."""
        *lead, row, column = index
        i, j = row % self.tile, (column + ahead) % self.tile
        return ((*lead, row - i), column + ahead - j), i * self.tile + j


def pieces(extent: int, lanes: int) -> list[tuple[int, int]]:
    """Cut a vector loop into (start, width): widths are powers of two, at most `lanes`; 0 is a scalar."""
    out, at = [], 0
    while at < extent:
        width = min(lanes, 1 << ((extent - at).bit_length() - 1))
        out.append((at, width if width > 1 else 0))
        at += width
    return out


# ---------------------------------------------------------------- which buffers qualify


@dataclass
class _Uses:
    """What a scan finds: can the buffer be registers, and the widths of vector accesses to its rows."""

    fits: bool = True
    widths: set[tuple[int, int]] = field(default_factory=set)  # (extent, lanes) of vector loops
    unknown: bool = False
    tile: int = 1  # rows and columns that an instruction wants in one register


def plan_registers(
    buffers: Sequence[Buffer],
    body: Sequence[Stmt],
    env: Env,
    elems: dict[str, str],
    lanes_of: Callable[[Loop], int],
    tile_of: Callable[[Block], int],
) -> dict[str, Registers | None]:
    """For each buffer its (empty) registers, or None when some index of it is not constant once loops
    are expanded; then it must live in memory. lanes_of(loop) gives the lanes of a vector loop; tile_of(block)
    the rows that share a register in the instruction of a block."""
    uses = {b.name: _Uses() for b in buffers}
    scan = _Scan(uses, lanes_of, tile_of)
    fixed = {name for name, bound in env.items() if isinstance(bound, int)}
    numbers = {name: bound for name, bound in env.items() if isinstance(bound, int)}
    for s in body:
        scan.stmt(s, fixed, {}, numbers)
    out: dict[str, Registers | None] = {}
    for b in buffers:
        shape = [_number(d, numbers) for d in b.shape]
        use = uses[b.name]
        if not use.fits or any(n is None for n in shape):
            out[b.name] = None
            continue
        known = tuple(n for n in shape if n is not None)
        if use.tile > 1:
            out[b.name] = TileRegisters(b, elems[b.name], known, (), tile=use.tile)
        else:
            out[b.name] = Registers(b, elems[b.name], known, _cuts(known, use))
    return out


def _number(d: Dim, numbers: dict[str, int]) -> int | None:
    if d.is_const:
        return d.const
    return d.evaluate(numbers) if d.symbols <= numbers.keys() else None


def _cuts(shape: tuple[int, ...], use: _Uses) -> tuple[tuple[int, int], ...]:
    row = shape[-1] if shape else 1
    if use.unknown or not use.widths:
        return tuple((i, 0) for i in range(row))
    # the widest loops decide: they are the inner ones, and narrower ones pick lanes from their pieces
    for extent, lanes in sorted(use.widths, reverse=True):
        if row % extent == 0:
            one = pieces(extent, lanes)
            return tuple((o + s, w) for o in range(0, row, extent) for s, w in one)
    # no loop divides the row: cut it so that each access is a whole number of pieces
    parts = [w for e, n in use.widths for _, w in pieces(e, n)]
    step = math.gcd(row, *(max(w, 1) for w in parts))
    return tuple((i, step if step > 1 else 0) for i in range(0, row, step))


class _Scan:
    """Walks statements; fixed: variables that are constants when the code is expanded."""

    def __init__(
        self, uses: dict[str, _Uses], lanes_of: Callable[[Loop], int], tile_of: Callable[[Block], int]
    ) -> None:
        self.uses = uses
        self.lanes_of = lanes_of
        self.tile_of = tile_of

    def stmt(
        self, s: Stmt, fixed: set[str], vectors: dict[str, tuple[int, int]], numbers: dict[str, int]
    ) -> None:
        if isinstance(s, Store):
            self.expr(s.value, fixed, vectors, numbers)
            self.access(s.buffer, s.index, fixed, vectors)
            return
        if isinstance(s, Block):
            for _, value, _, _ in s.let:
                self.expr(value, fixed, vectors, numbers)
            for inner in walk((s,)) if s.by else ():
                if isinstance(inner, Store) and inner.buffer in self.uses:
                    self.uses[inner.buffer].tile = self.tile_of(s)
        elif isinstance(s, Tiles):
            fixed = fixed | {s.rows}
            if s.level == "unroll":
                fixed = fixed | {s.start}
        else:
            fixed, vectors = self.loop(s, fixed, vectors, numbers)
        for child in s.body:
            self.stmt(child, fixed, vectors, numbers)

    def loop(
        self, s: Loop, fixed: set[str], vectors: dict[str, tuple[int, int]], numbers: dict[str, int]
    ) -> tuple[set[str], dict[str, tuple[int, int]]]:
        if s.level == "vector":
            extent = _number(s.extent, numbers)
            lanes = self.lanes_of(s)
            return fixed, {**vectors, s.var: (extent or -1, lanes)}
        if s.level == "unroll" or _number(s.extent, numbers) == 1:
            return fixed | {s.var}, vectors
        return fixed, vectors

    def expr(
        self, e: Expr, fixed: set[str], vectors: dict[str, tuple[int, int]], numbers: dict[str, int]
    ) -> None:
        if isinstance(e, Load):
            self.access(e.buffer, e.index, fixed, vectors)
        if isinstance(e, Reduce) and self._reduces_registers(e):
            for axis in e.axes:
                if _number(axis.extent, numbers) is not None or axis.extent.symbols <= fixed:
                    fixed = fixed | {axis.var}
        if isinstance(e, Let):
            self.expr(e.value, fixed, vectors, numbers)
            self.expr(e.body, fixed, vectors, numbers)
            return
        for c in children(e):
            self.expr(c, fixed, vectors, numbers)

    def _reduces_registers(self, e: Reduce) -> bool:
        return reduces_over(e, self.uses.keys())

    def access(
        self,
        buffer: str,
        index: tuple[Dim, ...],
        fixed: set[str],
        vectors: dict[str, tuple[int, int]],
    ) -> None:
        use = self.uses.get(buffer)
        if use is None:
            return
        for axis, d in enumerate(index):
            for name in d.symbols:
                if name in fixed:
                    continue
                if name not in vectors:
                    use.fits = False
                elif axis == len(index) - 1:
                    self._width(use, d, name, vectors[name])

    def _width(self, use: _Uses, d: Dim, name: str, vector: tuple[int, int]) -> None:
        split = d.linear(name)
        if split is None or split[0] != 1:
            return
        if vector[0] < 0:
            use.unknown = True
        else:
            use.widths.add(vector)


def reduces_over(e: Reduce, buffers: Container[str]) -> bool:
    """Whether a reduction's variables index one of these (register) buffers."""
    names = {a.var for a in e.axes}

    def visit(x: Expr) -> bool:
        if isinstance(x, Load) and x.buffer in buffers:
            return any(d.symbols & names for d in x.index)
        return any(visit(c) for c in children(x))

    return visit(e.body)
