"""A block that a warp computes by its matrix instruction in, the code of one thread out: fragments from
shared memory, eight rows of 16 bytes at a time where they lie so, and a product for each of its tiles.
Which element of a fragment a lane holds is given in the PTX ISA, sections "Matrix Fragments for mma.m16n8k16"
and "ldmatrix".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from smelt.core.dim import YES, Facts
from smelt.core.ir.instructions import Match, meaning
from smelt.core.ir.kernel import Load, Loop
from smelt.targets.llvm.builder import Value

if TYPE_CHECKING:
    from smelt.targets.cuda.emit import KernelPart

ROW = 8
"""Elements of a row of the 8 x 8 matrices that a fragment is made of."""
WARP = 32
MATRIX_LOAD = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4"
"""Four matrices, one register each; with `.trans` transposed ones."""
PRODUCTS: Mapping[str, tuple[str, str]] = {
    "mma.m16n8k16.f16": ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>"),
    "mma.m16n8k16.bf16": ("llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32"),
}
"""A row's name -> LLVM's name of the instruction, and how that spells a register of operands."""

Fragment: TypeAlias = tuple[Value, ...]
Place: TypeAlias = Mapping[str, int]
"""Loops around an instruction -> where it stands in them."""


@dataclass
class WarpProduct:
    """One block. y, x: the loops over lanes that the instruction's lanes are. lane: the thread's number in
    its warp. done: fragments by operand and place."""

    code: KernelPart
    found: Match
    y: str
    x: str
    lane: Value
    done: dict[tuple[str, tuple[tuple[str, int], ...]], Fragment] = field(default_factory=dict)

    def emit(self) -> None:
        """All products of the block, in the order of its loops."""
        code, want = self.code, meaning(self.found.row)
        i, j = (self.found.loops[next(iter(d.symbols))].var for d in want.store.index[-2:])
        (k,) = (x.var for v, x in self.found.loops.items() if x.var not in (i, j))
        self._all_of(self.found.left, lambda places: [self._left(i, k, p) for p in places])
        self._all_of(self.found.right, lambda places: self._right(j, k, places))
        for place in self._places(self.found.around):
            left, right = (self.done[self._key(e, place)] for e in (self.found.left, self.found.right))
            with code.bind(dict(place)):
                self._product(i, j, left, right)

    def _places(self, loops: Sequence[Loop]) -> list[Place]:
        extents = [range(x.extent.const) for x in loops]
        return [dict(zip([x.var for x in loops], at, strict=True)) for at in product(*extents)]

    def _key(self, e: Load, place: Place) -> tuple[str, tuple[tuple[str, int], ...]]:
        used = {v for d in e.index for v in d.symbols}
        return e.buffer, tuple((v, n) for v, n in place.items() if v in used)

    def _all_of(self, e: Load, load: object) -> None:
        """Every fragment of an operand, in the order in which the products want them."""
        used = {v for d in e.index for v in d.symbols}
        places = self._places([x for x in self.found.around if x.var in used])
        for place, found in zip(places, load(places), strict=True):  # type: ignore[operator]
            self.done[self._key(e, place)] = found

    # -- operands

    def _left(self, i: str, k: str, place: Place) -> Fragment:
        """Rows and terms in halves: (rows 0..7, terms 0..7), (rows 8..15, terms 0..7), (.., terms 8..15)."""
        e = self.found.left
        if self._lies(e, k, {k: 0}):
            at = self._part(ROW, 2), self._part(2 * ROW, 2)
            index = {self.y: self._part(1, ROW), i: at[0], k: self._times(at[1], ROW)}
            return self._load(e, False, index, place)
        return tuple(self._pair(e, k, {i: q % 2}, ROW * (q // 2), place) for q in range(4))

    def _right(self, j: str, k: str, places: Sequence[Place]) -> list[Fragment]:
        """Terms in halves, two tiles of columns at a time where they follow each other in a loop."""
        e = self.found.right
        along = {k: 0} if self._lies(e, k, {k: 0}) else {j: 0, self.x: 0}
        if not (k in along or self._lies(e, j, along)):
            own: dict[str, int | Value] = {self.x: 0, j: self._part(4, ROW)}
            return [tuple(self._pair(e, k, own, ROW * h, p) for h in range(2)) for p in places]
        found: list[Fragment] = []
        row, half, second = self._part(1, ROW), self._part(ROW, 2), self._part(2 * ROW, 2)
        terms = self._times(half, ROW)
        while len(found) < len(places):
            place, follows = places[len(found)], places[len(found) + 1 :][:1]
            moving = [v for p in follows for v in p if p[v] != place[v]]
            pair = len(moving) == 1 and follows[0][moving[0]] == place[moving[0]] + 1
            index: dict[str, int | Value] = dict(place)
            if pair:
                index[moving[0]] = self.code.index.as_value(self.code.index.add(second, place[moving[0]]))
            if k in along:
                index |= {self.x: 0, j: row, k: terms}
            else:
                index |= {self.x: 0, j: 0, k: self.code.index.as_value(self.code.index.add(terms, row))}
            four = self._load(e, k not in along, index, {})
            found += [four[:2], four[2:]] if pair else [four[:2]]
        return found

    def _lies(self, e: Load, var: str, at: Mapping[str, int]) -> bool:
        """Whether neighbours along var are neighbours in shared memory, from where `at` is on by rows of 16
        bytes."""
        flat = self.code.flat(self.code.memory[e.buffer].buffer, e.index)
        step = flat.linear(var)
        rest = flat.substitute(at)
        whole = Facts({}).prove_divisible(rest, ROW) is YES
        return e.buffer in self.code.shared and step is not None and step[0] == 1 and whole

    def _part(self, by: int, n: int) -> Value:
        """lane // by % n"""
        ix = self.code.index
        return ix.as_value(ix.mod(ix.floordiv(self.lane, by), n))

    def _times(self, v: Value, n: int) -> Value:
        return self.code.index.as_value(self.code.index.mul(v, n))

    def _load(self, e: Load, transposed: bool, index: Mapping[str, int | Value], place: Place) -> Fragment:
        """Four registers, of the matrices whose rows begin where lanes 0..7, 8..15 and so on say."""
        code, b = self.code, self.code.b
        with code.bind({**place, **index}, 0):
            at = code.pointer(code.memory[e.buffer], e.index)
        name = f"{MATRIX_LOAD}{'.trans' if transposed else ''}.b16.p3"
        near = b.pure(f"addrspacecast {at.typed} to ptr addrspace(3)", "ptr addrspace(3)", 0, at)
        kind = "{ i32, i32, i32, i32 }"
        b.declare(name, kind, ["ptr addrspace(3)"], "convergent nounwind memory(argmem: read)")
        four = b.here(f"call {kind} @{name}({near.typed})", kind, 0)
        return tuple(b.pure(f"extractvalue {four.typed}, {q}", "i32", 0, four) for q in range(4))

    def _pair(self, e: Load, k: str, own: Mapping[str, int | Value], first: int, place: Place) -> Value:
        """The two terms of a lane from `first` on, each read by itself."""
        code, b, ix = self.code, self.code.b, self.code.index
        words = []
        for h in range(2):
            at = ix.as_value(ix.add(self._times(self._part(1, 4), 2), first + h))
            with code.bind({**place, **own, k: at}, 0):
                m = code.memory[e.buffer]
                bits = code.read_raw(m, code.pointer(m, e.index), "i16", 0)
            words.append(b.pure(f"zext {bits.typed} to i32", "i32", 0, bits))
        high = b.pure(f"shl {words[1].typed}, 16", "i32", 0, words[1])
        return b.pure(f"or {words[0].typed}, {high.text}", "i32", 0, words[0], high)

    # -- the product

    def _product(self, i: str, j: str, left: Fragment, right: Fragment) -> None:
        code, b = self.code, self.code.b
        name, kind = PRODUCTS[self.found.row.name]
        operands = [*left, *right]
        if kind != "i32":
            operands = [b.pure(f"bitcast {v.typed} to {kind}", kind, 0, v) for v in operands]
        registers = code.registers[self.found.store.buffer]
        places = []
        for r, c in product(range(2), range(2)):
            with code.bind({i: r, j: c}, 0):
                at = [code.index.number(d, code.env) for d in self.found.store.index]
            places.append(tuple(n for n in at if isinstance(n, int)))
            assert len(places[-1]) == len(at), f"{self.found.store.buffer}: a register index is not constant"
        old = [registers.read(b, cell, 0) for cell in places]
        made = "{ float, float, float, float }"
        args = [*operands, *old]
        b.declare(name, made, [a.type for a in args], "convergent nounwind memory(none)")
        four = b.here(f"call {made} @{name}({', '.join(a.typed for a in args)})", made, 0)
        for q, cell in enumerate(places):
            registers.write(b, cell, b.pure(f"extractvalue {four.typed}, {q}", "float", 0, four))
