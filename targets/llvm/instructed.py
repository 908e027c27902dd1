"""A block that one instruction computes in, that instruction out, with its operands in the layout it
needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from smelt.core.dim import Facts
from smelt.core.ir.instructions import ByteField, Match, RowMeaning, match, meaning, row_of
from smelt.core.ir.kernel import Block, Bound, Const, Load, Loop
from smelt.targets.llvm.builder import Value, type_text
from smelt.targets.llvm.exprs import BufferMemory
from smelt.targets.llvm.index import Env, Lanes
from smelt.targets.llvm.scalar import Scalars
from smelt.targets.llvm.stores import Stores

Print: TypeAlias = Callable[[Scalars, Value, Value, Value], Value]
"""(left operand, right operand, accumulator) -> accumulator. Integers come as words of `depth` of them."""


class Instructed(Stores):
    """Emits the blocks of one kernel that are marked for an instruction."""

    def _instruction(self, s: Block, plain: Callable[[], None]) -> None:
        """Emit the block by its instruction, or `plain` where its sums are not in registers."""
        row = row_of(self.cpu.machine, s.by)
        assert row is not None, f"{self.cpu.machine.name} has no instruction '{s.by}'"
        known = Facts({v: (n, n) for v, n in self.env.items() if isinstance(n, int)})
        found = match(s.body, row, known)
        assert isinstance(found, Match), f"this is not '{s.by}': {found}"
        if found.store.buffer not in self.registers:
            plain()
            return
        self.start_statement()
        self._repeat_around(found.around, found)

    def tile_of(self, s: Block) -> int:
        """The rows of results that share a register in the instruction of a block."""
        row = row_of(self.cpu.machine, s.by)
        return 1 if row is None else meaning(row).rows

    def _repeat_around(self, around: tuple[Loop, ...], found: Match) -> None:
        if not around:
            self._each_tile(found)
            return
        for i in range(self._count(around[0])):
            with self.bind({around[0].var: i}):
                self._repeat_around(around[1:], found)

    def _count(self, loop: Loop) -> int:
        n = self.index.number(loop.extent, self.env)
        assert isinstance(n, int), f"loop '{loop.var}' around an instruction has the extent {loop.extent}"
        return n

    def _each_tile(self, found: Match) -> None:
        """Every tile of rows and columns that one instruction computes; terms are its own business."""
        want = meaning(found.row)
        axes = [next(iter(d.symbols)) for d in want.store.index]
        column = found.loops[axes[-1]]
        row = found.loops[axes[-2]] if len(axes) > 1 else None
        terms = {x.var: 0 for v, x in found.loops.items() if v not in axes}
        height = 1 if row is None else self._count(row)
        for i in range(0, height, want.rows):
            for j in range(0, self._count(column), want.columns):
                here: Env = {**terms, column.var: j, **({} if row is None else {row.var: i})}
                with self.bind(here):
                    self._one(found, want, min(want.rows, height - i))

    def _one(self, found: Match, want: RowMeaning, height: int) -> None:
        index = [self.index.number(d, self.env) for d in found.store.index]
        at = [n for n in index if isinstance(n, int)]
        assert len(at) == len(index), f"{found.store.buffer}: a register index is not constant"
        r = self.registers[found.store.buffer]
        old = r.read_tile(self.b, at, want.rows, want.columns)
        operands = _Operands(self, found, want, height)
        left = operands.field(operands.of(found.left, want.left), found.fields[0])
        right = operands.field(operands.of(found.right, want.right), found.fields[1])
        printed = code_of(found.row.name)(self.s, left, right, old)
        r.write_tile(self.b, at, want.rows, printed)

    # -- words of elements

    def word(self, e: Load, var: str, n: int) -> Value:
        """n neighbours from var = 0 on as one integer, the first lowest; what a guard keeps out is the load's
        `otherwise`."""
        moving = tuple(g for g in e.guard if any(var in d.symbols for d in (g.low, g.index, g.high)))
        fixed = replace(e, guard=tuple(g for g in e.guard if g not in moving))
        valid = self._valid(moving, var, n)
        bits = e.dtype.bits
        one = int(e.otherwise.value) & (1 << bits) - 1 if isinstance(e.otherwise, Const) else 0
        elem = f"i{bits * n}"

        def filled(first: int) -> Value:
            return self.b.integer(_signed(sum(one << bits * i for i in range(first, n)), bits * n), elem)

        with self.bind({var: 0}, 0):
            inside = self.condition(fixed.guard)
            other = filled(0)
            if inside.const == 0 or valid == 0:
                return other
            m = self.memory[e.buffer]
            near = None if moving else self._near_word(m, e, n, other)
            if near is not None:
                return near
            pointer = (
                self.pointer(m, e.index) if inside.const else self.select_pointer(m, fixed, inside, valid)
            )
            found = self._joined(e, pointer, valid, n)
            if one and valid < n:
                found = self.s.binary("or", found, filled(valid))
            return self.s.select(inside, found, other) if one and not inside.const else found

    def _near_word(self, m: BufferMemory, e: Load, n: int, other: Value) -> Value | None:
        """The word as a lane of a register full of neighbours; None where it is alone."""
        elem = f"i{e.dtype.bits * n}"
        width = self.cpu.machine.lanes(e.dtype.bits * n)

        def load() -> Value:
            inside = self.condition(e.guard)
            if inside.const:
                return self.read_raw(m, self.pointer(m, e.index), elem, width)
            found = self.read_raw(m, self.select_pointer(m, e, inside, n * width), elem, width)
            return self.s.select(inside, found, self.b.splat(other, width)) if other.const else found

        return self.lane_of(m, e, n, width, load)

    def _valid(self, moving: tuple[Bound, ...], var: str, n: int) -> int:
        """How many neighbours are inside: the first ones, as many in every run (core/ir/instructions.py)."""
        for i in range(n):
            with self.bind({var: i}, 0):
                inside = self.condition(moving)
            assert inside.const is not None, f"a guard of '{var}' is decided by a run only"
            if not inside.const:
                return i
        return n

    def _joined(self, e: Load, pointer: Value, valid: int, n: int) -> Value:
        """`valid` elements from the pointer on, zeros above them, by loads of 1, 2, 4 and 8 bytes."""
        elem, total, at = f"i{e.dtype.bits * n}", None, 0
        n, valid = n * e.dtype.bytes, valid * e.dtype.bytes
        while at < valid:
            size = 1 << ((valid - at).bit_length() - 1)
            part = self.read_raw(self.memory[e.buffer], self.at(pointer, at), f"i{8 * size}", 0)
            part = part if size == n else self.s.convert("zext", part, elem)
            part = self.s.binary("shl", part, self.b.integer(8 * at, elem)) if at else part
            total = part if total is None else self.s.binary("or", total, part)
            at += size
        assert total is not None
        return total


def _signed(value: int, bits: int) -> int:
    """The same bits as a signed number, as LLVM spells constants."""
    return value - (1 << bits) if value >> bits - 1 else value


@dataclass
class _Operands:
    """The operands of one instruction. height: rows that it computes for."""

    code: Instructed
    found: Match
    want: RowMeaning
    height: int

    def of(self, e: Load, like: Load) -> Value:
        """One operand: floats as they are, integers as words along the operand's last axis, one for each lane
        of the other."""
        code, names = self.code, [next(iter(d.symbols)) for d in like.index]
        loops: Mapping[str, Loop] = self.found.loops
        if e.dtype.is_float:
            if not names:
                return code.value(e)
            (column,) = names
            start, count = code.env[loops[column].var], self.want.columns
            assert isinstance(start, int)
            with code.bind({loops[column].var: Lanes(start, count)}, count):
                return code.b.splat(code.value(e), count)
        *outer, last = names
        depth, word = self.want.depth, f"i{e.dtype.bits * self.want.depth}"
        var = loops[last].var
        if not outer:
            return code.word(e, var, depth)
        across = loops[outer[0]].var
        rows = outer[0] in {v for d in self.want.store.index[:-1] for v in d.symbols}
        count = self.height if rows else self.want.columns
        start = code.env[across]
        assert isinstance(start, int)
        if not e.guard and not rows and self._dense(e, Lanes(start, count), across, var):
            m = code.memory[e.buffer]
            with code.bind({var: 0}, 0):
                return code.read_raw(m, code.pointer(m, e.index), word, count)
        words = []
        for i in range(count):
            with code.bind({across: start + i}, 0):
                words.append(code.word(e, var, depth))
        missing = (self.want.rows if rows else count) - count
        return code.b.vector([*words, *[code.b.integer(0, word)] * missing])

    def field(self, words: Value, field: ByteField | None) -> Value:
        """The field of each byte of words; what the shift brings in from the next byte is masked away."""
        if field is None:
            return words
        s, shift = self.code.s, self.code.index.number(field.shift, self.code.env)
        assert isinstance(shift, int), f"a field of bytes starts at bit {field.shift}"
        moved = s.binary("lshr", words, s.like(words, shift)) if shift else words
        depth = self.want.depth
        mask = _signed(sum(field.mask << 8 * i for i in range(depth)), 8 * depth)
        return s.binary("and", moved, s.like(moved, mask))

    def _dense(self, e: Load, across: Lanes, axis: str, var: str) -> bool:
        """Whether neighbours across lie one word apart."""
        code = self.code
        flat = code.flat(code.memory[e.buffer].buffer, e.index)
        step = flat.linear(var)
        with code.bind({axis: across, var: 0}, across.count):
            found = code.index.split(flat, code.env)
        return step is not None and step[0] == 1 and found is not None and found[0] == self.want.depth


# ---------------------------------------------------------------- the code of each row


def _fma(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    return s.fma(a, b, c)


def _vpdpbusd(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    return _dpbusd(s, s.b.splat(a, c.lanes), b, c)


def _vpdpbusd_turned(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    return _dpbusd(s, b, s.b.splat(a, c.lanes), c)


def _dpbusd(s: Scalars, plain: Value, signed: Value, c: Value) -> Value:
    return s.b.call(f"llvm.x86.avx512.vpdpbusd.{32 * c.lanes}", "i32", c.lanes, c, plain, signed)


_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def _vpmaddwd(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    return _maddwd(s, s.b.splat(a, c.lanes), b, c)


def _vpmaddwd_turned(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    return _maddwd(s, b, s.b.splat(a, c.lanes), c)


def _vpmaddwd_words(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    return _pair(s, s.b.splat(a, c.lanes), b, c)


def _maddwd(s: Scalars, plain: Value, signed: Value, c: Value) -> Value:
    """By products of 16-bit pairs: the bytes 0 and 2, then 1 and 3 of each word."""
    low = s.binary("and", plain, s.like(plain, 0x00FF00FF))
    high = s.binary("and", s.binary("lshr", plain, s.like(plain, 8)), s.like(plain, 0x00FF00FF))
    halves = _as(s, signed, "i16", 2 * signed.lanes)
    eight = s.like(halves, 8)
    for x, y in (
        (low, s.binary("ashr", s.binary("shl", halves, eight), eight)),
        (high, s.binary("ashr", halves, eight)),
    ):
        c = _pair(s, x, y, c)
    return c


def _pair(s: Scalars, a: Value, b: Value, c: Value) -> Value:
    """c and, of each of its lanes, the two products of 16 bits."""
    words = (x if x.elem == "i16" else _as(s, x, "i16", 2 * x.lanes) for x in (a, b))
    return s.binary("add", c, s.b.call(_PAIRS[c.lanes], "i32", c.lanes, *words))


def _neon(name: str) -> Print:
    """A dot product or a tile of bytes on AArch64; a lone word is in every lane. Where both sides have one
    type, it is the right one, which LLVM knows to be one lane of a register."""
    even = name in ("sdot", "udot")

    def emit(s: Scalars, a: Value, b: Value, c: Value) -> Value:
        a, b = (b, a) if even and not a.lanes else (a, b)
        left, right = (_as(s, s.b.splat(x, 4 if not x.lanes else x.lanes), "i8", 16) for x in (a, b))
        return s.b.call(f"llvm.aarch64.neon.{name}.v4i32.v16i8", "i32", 4, c, left, right)

    return emit


def _pairs(product: str, added: str, sums: bool) -> Print:
    """Products of bytes on Arm in 16 bits, whose neighbours are added to sums of 32; a lone word is in every
    lane. product, added: LLVM's names of the two. sums: the second takes the sums, too."""

    def emit(s: Scalars, a: Value, b: Value, c: Value) -> Value:
        left, right = (_as(s, s.b.splat(x, 4 if not x.lanes else x.lanes), "i8", 8) for x in (a, b))
        products = s.b.call(f"llvm.{product}.v8i16", "i16", 8, left, right)
        if sums:
            return s.b.call(f"llvm.{added}.v4i32.v8i16", "i32", 4, c, products)
        return s.binary("add", c, s.b.call(f"llvm.{added}.v4i32.v8i16", "i32", 4, products))

    return emit


def _as(s: Scalars, v: Value, elem: str, lanes: int) -> Value:
    return s.b.pure(f"bitcast {v.typed} to {type_text(elem, lanes)}", elem, lanes, v)


PRINT: Mapping[str, Print] = {
    "vfmadd": _fma,
    "fmla": _fma,
    "vpdpbusd": _vpdpbusd,
    "vpdpbusd.i8": _vpdpbusd_turned,
    "vpmaddwd": _vpmaddwd,
    "vpmaddwd.i8": _vpmaddwd_turned,
    "vpmaddwd.i16": _vpmaddwd_words,
    "smull": _pairs("aarch64.neon.smull", "aarch64.neon.saddlp", sums=False),
    "vmull.s8": _pairs("arm.neon.vmulls", "arm.neon.vpadals", sums=True),
    **{name: _neon(name) for name in ("sdot", "udot", "usdot", "smmla", "ummla", "usmmla")},
}
"""The first parts of a row's name -> its code."""


def code_of(row: str) -> Print:
    """The code of a row: that of the longest start of its name."""
    return PRINT[max((k for k in PRINT if f"{row}.".startswith(f"{k}.")), key=len)]
