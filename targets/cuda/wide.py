"""Loads of elements in, loads of 16 bytes out: what a thread reads side by side is one load.

At a unit every buffer of a kernel begins on 64 bytes (smelt_abi.h), so an element's address is a multiple of
what all terms of its index are. LLVM puts neighbours together by the alignment that loads say themselves; of
a weight, whose loads should all be on their way before the first is used, this file does it."""

from __future__ import annotations

from math import gcd

from smelt.core.dim import YES, product
from smelt.core.ir.kernel import Buffer, Kernel, Load, Stmt
from smelt.targets.llvm.builder import Scope, Value, type_text
from smelt.targets.llvm.emit import Function
from smelt.targets.llvm.exprs import BufferMemory
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.scalar import storage_elem

WIDEST = 16
"""Bytes of the widest load of a thread."""
RESIDENT = 4
"""Groups of a multiprocessor that a kernel with loads ahead is assembled for: of 128 threads they leave 128
registers to each. Told nothing, ptxas saves registers for 16 groups, and waits for a load before the next."""


class WideLoads(Function):
    """A function whose loads are as wide as what is known of their addresses. issued: whether some loads of
    weights stand ahead of where they are used."""

    def __init__(self, kernel: Kernel, part: int, s: Stmt, cpu: Cpu, declared: dict[str, str]) -> None:
        super().__init__(kernel, part, s, cpu, declared)
        self._last: dict[str, str] = {}  # address and block -> the last load from there

    @property
    def issued(self) -> bool:
        return bool(self._last)

    def _load_one(self, m: BufferMemory, e: Load, lanes: int) -> Value:
        width = m.buffer.dtype.bytes
        if lanes or e.guard or m.buffer.name not in self.all_buffers or width >= WIDEST:
            return super()._load_one(m, e, lanes)
        split = self.index.split(self.flat(m.buffer, e.index), self.env)
        assert split is not None, e
        _, const, parts = split
        step, elem = gcd(WIDEST, *(c * width for c, _ in parts)), storage_elem(m.buffer.dtype)
        base = self._advance(m.pointer, parts, width)
        if m.buffer.layout is None or step < WIDEST or not parts or not self._whole(m.buffer):
            align = max(width, gcd(step, const * width))
            raw = self.read_raw(m, self.at(base, const * width), elem, 0, align)
            return self.from_storage(raw, m.buffer.dtype)
        first = const * width // WIDEST * WIDEST
        raw = self.b.lane(self._ahead(base, first, elem, WIDEST // width), const - first // width)
        return self.from_storage(raw, m.buffer.dtype)

    def _whole(self, b: Buffer) -> bool:
        """Whether a buffer is whole loads of the widest kind."""
        return self.facts.prove_divisible(product(b.shape) * b.dtype.bytes, WIDEST) is YES

    def _ahead(self, base: Value, first: int, elem: str, lanes: int) -> Value:
        """The elements at base + first bytes. Nobody writes a weight, so a load of one stands next to that
        which was the last one from the same base in this block: all of them are on their way at once. An
        assembler keeps the order of loads, and so the number in flight, where it could save registers."""
        scope = self.b.scope
        look: Scope | None = scope
        key = f"{type_text(elem, lanes)} {base.text} {first}"
        while look is not None:
            if key in look.cache:
                return look.cache[key]
            look = look.parent
        lines, mark = scope.block.lines, f"{base.text} {scope.block.label}"
        at = len(lines)
        if mark in self._last:
            at = lines.index(self._last[mark]) + 1
        place, made = base.text, Value(self.b.name(), elem, lanes, scope)
        if first:
            place = self.b.name()
            lines.insert(at, f"{place} = getelementptr i8, ptr {base.text}, {self.index.elem} {first}")
            at += 1
        self._last[mark] = f"{made.text} = load {made.type}, ptr {place}, align {WIDEST}"
        lines.insert(at, self._last[mark])
        scope.cache[key] = made
        return made
