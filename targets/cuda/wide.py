"""Loads of elements in, loads of 16 bytes out: what a thread reads side by side is one load.

At a unit every buffer of a kernel begins on 64 bytes (smelt_abi.h), so an element's address is a multiple of
what all terms of its index are. LLVM puts neighbours together by the alignment that loads say themselves; of
a weight, whose loads should all be on their way before the first is used, this file does it."""

from __future__ import annotations

import re
from math import gcd

from smelt.core.dim import YES, Dim, product, to_dim
from smelt.core.dtype import f32, u8
from smelt.core.ir.kernel import Call, Const, Index, Kernel, Load, Loop, Stmt, Store, walk, walk_expr
from smelt.core.ir.rewrite import local_buffers
from smelt.targets.llvm.builder import BasicBlock, Scope, Value, type_text
from smelt.targets.llvm.emit import Function
from smelt.targets.llvm.exprs import BufferMemory
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.scalar import storage_elem

WIDEST = 16
"""Bytes of the widest load of a thread."""
_NAME = re.compile(r"%[\w.]+")
_ADDRESS = re.compile(r" = (?:getelementptr|mul|add|sub|shl|lshr|and|or|sext|zext|trunc) ")
RESIDENT = 4
"""Groups of a multiprocessor that a kernel with loads ahead is assembled for: of 128 threads they leave 128
registers to each. Told nothing, ptxas saves registers for 16 groups, and waits for a load before the next."""

AT_LEAST = 4
"""Steps of a sum that are written out for their loads to be on their way together; fewer are a window's."""


class WideLoads(Function):
    """A function whose loads are as wide as what is known of their addresses. issued: whether many are to be
    on their way at once: some stand ahead of where they are used, or steps of a sum are written out."""

    def __init__(self, kernel: Kernel, part: int, s: Stmt, cpu: Cpu, declared: dict[str, str]) -> None:
        super().__init__(kernel, part, s, cpu, declared)
        self._last: dict[str, str] = {}  # address and block -> the last load from there
        self._steps = False

    @property
    def issued(self) -> bool:
        return self._steps or bool(self._last)

    def _accumulates(self, s: Loop) -> bool:
        """No step of a reduction waits for the one before: a thread is fast by loads in flight, and has 255
        registers. Where the threads of a group share a sum, it is all that the registers are for."""
        if super()._accumulates(s):
            every = [x for t in walk(s.body) if isinstance(t, Store) for x in walk_expr(t.value)]
            shared = any(b.space == "shared" for b in local_buffers((self.statement,)))
            many = shared and s.extent.is_const and s.extent.const >= AT_LEAST
            self._steps |= many and any(isinstance(x, Load) and x.buffer in self.all_buffers for x in every)
        return False

    def _load_one(self, m: BufferMemory, e: Load, lanes: int) -> Value:
        width = m.buffer.dtype.bytes
        if lanes or e.guard or m.buffer.name not in self.all_buffers or width >= WIDEST:
            return super()._load_one(m, e, lanes)
        before = len(self.b.scope.block.lines)
        base, const, step = self._place(m, e)
        if not self._is_run(m, step):
            raw = self.read_raw(m, self.at(base, const), storage_elem(m.buffer.dtype), 0, gcd(step, const))
            value = self.from_storage(raw, m.buffer.dtype)
            if m.buffer.layout is not None:
                self._move_up(self.b.scope.block, before)
            return value
        if m.buffer.dtype.bits == 8:
            raw = self._byte(base, const)
        else:
            whole = self._ahead(base, const // WIDEST * WIDEST, storage_elem(m.buffer.dtype), WIDEST // width)
            raw = self.b.lane(whole, const % WIDEST // width)
        return self.from_storage(raw, m.buffer.dtype)

    def _place(self, m: BufferMemory, e: Load) -> tuple[Value, int, int]:
        """(address, bytes beyond it, what the address is a multiple of) of an element."""
        width = m.buffer.dtype.bytes
        split = self.index.split(self.flat(m.buffer, e.index), self.env)
        assert split is not None, e
        step = gcd(WIDEST, *(c * width for c, _ in split[2]))
        return self._advance(m.pointer, split[2], width), split[1] * width, step

    def _is_run(self, m: BufferMemory, step: int) -> bool:
        """Whether an element of a weight is one of a run that starts there."""
        size = product(m.buffer.shape) * m.buffer.dtype.bytes
        whole = self.facts.prove_divisible(size, WIDEST) is YES
        return m.buffer.layout is not None and step == WIDEST and whole

    # -- bytes

    def _word(self, base: Value, const: int) -> Value:
        """The four bytes that hold the one at base + const."""
        whole = self._ahead(base, const // WIDEST * WIDEST, "i32", WIDEST // 4)
        return self.b.lane(whole, const % WIDEST // 4)

    def _byte(self, base: Value, const: int) -> Value:
        word, at = self._word(base, const), 8 * (const % 4)
        if at:
            word = self.b.pure(f"lshr {word.typed}, {at}", "i32", 0, word)
        return self.b.pure(f"trunc {word.typed} to i8", "i8", 0, word)

    def _call(self, e: Call) -> Value:
        found = self._float_of_bits(e) if e.fn == "bitcast" else None
        return super()._call(e) if found is None else found

    def _float_of_bits(self, e: Call) -> Value | None:
        """bitcast:f32(or(bits of a run's byte, c << 24)): the byte is put below c by one instruction, and cut
        out of it together with its three neighbours; by itself that takes an instruction for each, which
        lanes have half as many of as of multiply-adds."""
        found = _bits_below(e)
        if found is None or self.lanes:
            return None
        load, by, mask, top = found
        right = self.index.number(by, self.env)
        if load.buffer not in self.memory or not isinstance(right, int) or not 0 <= mask << right <= 255:
            return None
        base, const, step = self._place(self.memory[load.buffer], load)
        if not self._is_run(self.memory[load.buffer], step):
            return None
        word = self._word(base, const)
        if right:
            word = self.b.pure(f"lshr {word.typed}, {right}", "i32", 0, word)
        if mask << right != 255 or right:
            word = self.b.pure(f"and {word.typed}, {mask * 0x01010101}", "i32", 0, word)
        four = self.b.pure(f"bitcast {word.typed} to <4 x i8>", "i8", 4, word)
        one = self.b.shuffle(four, self._opaque(top), (const % 4, 4, 4, 7))
        return self.b.pure(f"bitcast {one.typed} to float", "float", 0, one)

    def _opaque(self, bits: int) -> Value:
        """A constant as four bytes, which assemblers take for a value, and keep in a register: of two
        constants of an instruction ptxas copies one anew for each. No group has a number of 56 bits."""
        first = Value("%first", "i64", 0, self.b.root)
        none = self.b.pure(f"lshr {first.typed}, 56", "i64", 0, first)
        low = self.b.pure(f"trunc {none.typed} to i32", "i32", 0, none)
        made = self.b.pure(f"or {low.typed}, {bits}", "i32", 0, low)
        return self.b.pure(f"bitcast {made.typed} to <4 x i8>", "i8", 4, made)

    # -- loads ahead

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
        self._last[scope.block.label] = self._last[mark]
        scope.cache[key] = made
        return made

    def _move_up(self, block: BasicBlock, first: int) -> None:
        """The lines of a block from that number on, which load from a weight, and what they take from lines
        before, stand next to the last wide load. So does a scale that is used when the block is done."""
        last = self._last.get(block.label)
        if last is None or first >= len(block.lines):
            return
        at = block.lines.index(last) + 1
        late = {line.split(" = ")[0]: line for line in block.lines[at:first]}
        needed, waiting = set[str](), block.lines[first:]
        while waiting:
            for name in _NAME.findall(waiting.pop()):
                if name in late and late[name] not in needed:
                    if not _ADDRESS.search(late[name]):
                        return
                    needed.add(late[name])
                    waiting.append(late[name])
        moved = [*(x for x in block.lines[at:first] if x in needed), *block.lines[first:]]
        block.lines[at:] = [*moved, *(x for x in block.lines[at:first] if x not in needed)]


def _bits_below(e: Call) -> tuple[Load, Dim, int, int] | None:
    """(load, i, mask, c << 24) of bitcast:f32(or(and(shr(cast:i32(load), i), mask), c << 24)), of a byte."""
    (whole,) = e.args
    if e.dtype != f32 or not (isinstance(whole, Call) and whole.fn == "or" and whole.dtype.bits == 32):
        return None
    bits, above = whole.args
    right, mask = to_dim(0), 255
    if isinstance(bits, Call) and bits.fn == "and":
        bits, few = bits.args
        if not isinstance(few, Const):
            return None
        mask = int(few.value)
    if isinstance(bits, Call) and bits.fn == "shr":
        bits, by = bits.args
        if not isinstance(by, Index | Const):
            return None
        right = by.dim if isinstance(by, Index) else to_dim(int(by.value))
    load = bits.args[0] if isinstance(bits, Call) and bits.fn == "cast" else None
    if not isinstance(load, Load) or load.dtype != u8 or load.guard or not isinstance(above, Const):
        return None
    return None if int(above.value) & 0xFFFFFF else (load, right, mask, int(above.value))
