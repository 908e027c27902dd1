"""Kernel expressions in, SSA values out: loads and guards, intrinsics, reductions, data-dependent indices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

from smelt.core.dim import Dim, sym, to_dim
from smelt.core.dtype import DType, bool_
from smelt.core.ir.idle import axes_needed
from smelt.core.ir.intrinsics import REDUCE_FN
from smelt.core.ir.kernel import (
    Axis,
    Bound,
    Buffer,
    Call,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Reduce,
    walk_expr,
)
from smelt.core.ir.rewrite import free_symbols
from smelt.core.schedule.view import flat_stride
from smelt.targets.llvm.across import across_one, across_rows, whole_rows
from smelt.targets.llvm.ahead import Ahead
from smelt.targets.llvm.builder import FunctionBuilder, Value, type_text
from smelt.targets.llvm.index import LONGEST_APART, Env, Indexer, Lanes, Split, in_whole_rows, moves
from smelt.targets.llvm.intrinsics import emit
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.registers import Registers, pieces, reduces_over
from smelt.targets.llvm.scalar import Scalars, compute_elem, highest, lowest, storage_elem
from smelt.targets.llvm.sharing import Given
from smelt.targets.llvm.zeros import LEAST_PAGE, ZERO_PAGE, or_zeros

MOST_NEIGHBOURS = 64
"""Elements that one test of vectors reads."""
ElementPlace: TypeAlias = "tuple[str, tuple[Dim, ...]]"
"""A buffer and the index of an element."""
LoopStep: TypeAlias = Callable[[list[Value]], list[Value]]


@dataclass
class BufferMemory:
    """A buffer behind a pointer. read_only: nothing in this function writes to it."""

    buffer: Buffer
    pointer: Value
    read_only: bool


class Exprs:
    """Evaluates expressions in the current environment of one function.

    env: what index variables are bound to. lanes: how many elements of a vector loop are computed
    together (0 outside of vector loops). proved: bounds that hold for every element of this code. alone:
    whether the code is run by one thread, which has a stack.
    """

    alone = True

    def __init__(self, b: FunctionBuilder, cpu: Cpu) -> None:
        self.b = b
        self.cpu = cpu
        self.s = Scalars(b, cpu)
        self.index = Indexer(b, f"i{cpu.index_bits}")
        self.wide = self.index if cpu.index_bits == 64 else Indexer(b, "i64")
        self.env: Env = {}
        self.given: list[Value] = []  # what Given literals are
        self.lanes = 0
        self.memory: dict[str, BufferMemory] = {}
        self.registers: dict[str, Registers] = {}
        self.epochs: dict[str, int] = {}
        self.proved: frozenset[Bound] = frozenset()
        self.invariant_loads = True  # LLVM may move loads of read-only memory anywhere
        self._moving: frozenset[str] = frozenset()  # variables that differ between lanes
        self._symbols: dict[int, tuple[Load, frozenset[str]]] = {}
        self.lines_ahead = Ahead(b, self.index, cpu.machine.cache_bytes[-1])
        self._flat: dict[ElementPlace, Dim] = {}
        self._memo: dict[int, Value] = {}
        self._splits: dict[ElementPlace, Split | None] = {}
        self._pointers: dict[ElementPlace, Value] = {}

    # -- environment

    @contextmanager
    def bind(self, names: Env, lanes: int | None = None) -> Iterator[None]:
        """More variables, for a while; values computed before are not reused under them. What is computed
        meanwhile is not reused after it: it may stand in an arm of a branch."""
        old = self.env, self.lanes, self._moving, self._memo, self._splits, self._pointers
        self.lanes = self.lanes if lanes is None else lanes
        self._memo = {}
        if names:
            self.env = {**self.env, **names}
            self._moving = self._moving.difference(names).union(n for n, b in names.items() if moves(b))
            self._splits, self._pointers = {}, {}
        else:
            self._splits, self._pointers = dict(self._splits), dict(self._pointers)
        yield
        self.env, self.lanes, self._moving, self._memo, self._splits, self._pointers = old

    def differs(self, *dims: Dim) -> bool:
        """Whether the lanes of the current vector see different values of any of them."""
        return any(not self._moving.isdisjoint(d.symbols) for d in dims)

    def start_statement(self) -> None:
        """Forget the values of expressions: registers and memory may have changed."""
        self._memo = {}

    def by_lane(self, e: Expr) -> Value:
        """The expression computed for each lane apart."""
        parts = []
        for i in range(self.lanes):
            with self.bind(self.index.lane(self.env, i), 0):
                parts.append(self.value(e))
        return self.b.vector(parts)

    # -- expressions

    def value(self, e: Expr) -> Value:
        """The expression as a scalar, or a vector when it differs between lanes."""
        found = self._memo.get(id(e))
        if found is None:
            found = self._memo[id(e)] = self._value(e)
        return found

    def _value(self, e: Expr) -> Value:
        if isinstance(e, Call):
            return self._call(e)
        if isinstance(e, Load):
            return self._load(e)
        if isinstance(e, Const):
            return self.given[e.number] if isinstance(e, Given) else self._literal(e)
        if isinstance(e, Index):
            return self._index(e)
        if isinstance(e, Reduce):
            return self._reduce(e)
        return self._let(e)

    def _literal(self, e: Const) -> Value:
        return self.b.const(e.value, compute_elem(e.dtype))

    def _call(self, e: Call) -> Value:
        if e.fn == "select":
            c, a, b = (self.value(x) for x in e.args)
            return self.s.select(c, a, b)
        args = tuple(self.value(x) for x in e.args)
        kind = dtype_of(e.args[0])
        if e.fn == "cast":
            return self.s.cast(args[0], kind, e.dtype)
        if e.fn == "bitcast":
            return self._bitcast(args[0], kind, e.dtype)
        lanes = max(a.lanes for a in args)
        args = tuple(self.b.splat(a, lanes) for a in args)
        return emit(self.s, e.fn, args, kind)

    def _bitcast(self, v: Value, source: DType, target: DType) -> Value:
        bits, elem = self.to_storage(v, source), storage_elem(target)
        return self.from_storage(bits if bits.elem == elem else self.s.convert("bitcast", bits, elem), target)

    def _index(self, e: Index) -> Value:
        # a float is made of an index as wide as addresses: 64-bit conversions are calls where those are 32
        narrow = e.dtype.is_float or e.dtype.bits <= self.cpu.index_bits
        indexer = self.index if narrow else self.wide
        if self.lanes and self.differs(e.dim):
            v = indexer.vector(e.dim, self.env, self.lanes)
        else:
            v = indexer.value(e.dim, self.env)
        if v.const is not None:
            return self.b.const(v.const, compute_elem(e.dtype), v.lanes)
        width = int(v.elem[1:])
        if e.dtype.is_float:
            return self.s.convert("sitofp", v, compute_elem(e.dtype))
        if e.dtype.bits == width:
            return v
        return self.s.convert("trunc" if e.dtype.bits < width else "sext", v, f"i{e.dtype.bits}")

    def let_value(self, value: Expr, low: Dim, high: Dim) -> Value:
        """An integer as an index, clamped into low .. high (inclusive)."""
        v, kind = self.value(value), dtype_of(value)
        elem = self.index.elem
        width = int(elem[1:])
        if kind.bits > width:
            # clamp before narrowing, lest a wild index wraps into range
            v = self._clamp(v, self._bound_value(low, self.wide), self._bound_value(high, self.wide))
            return self._bounded(self.s.convert("trunc", v, elem), low, high)
        if kind.bits < width:
            v = self.s.convert("sext" if kind.category == "int" else "zext", v, elem)
        first = self._bound_value(low, self.index)
        last = self._bound_value(high, self.index)
        return self._bounded(self._clamp(v, first, last), low, high)

    def _bounded(self, v: Value, low: Dim, high: Dim) -> Value:
        v.low = low.const_or_none if v.low is None else v.low
        v.high = high.const_or_none if v.high is None else v.high
        return v

    def _bound_value(self, d: Dim, indexer: Indexer) -> Value:
        if self.lanes and self.differs(d):
            return indexer.vector(d, self.env, self.lanes)
        return indexer.value(d, self.env)

    def _clamp(self, v: Value, low: Value, high: Value) -> Value:
        v, high = self.s.same(v, high)
        v = self.b.intrinsic("smin", v.elem, v.lanes, v, high)
        v, low = self.s.same(v, low)
        return self.b.intrinsic("smax", v.elem, v.lanes, v, low)

    def _let(self, e: Let) -> Value:
        with self.bind({e.var: self.let_value(e.value, e.low, e.high)}):
            return self.value(e.body)

    # -- storage types

    def from_storage(self, v: Value, dtype: DType) -> Value:
        """An element as memory holds it, as a value to compute with."""
        if dtype == bool_:
            return self.s.compare("icmp ne", v, self.s.like(v, 0))
        if dtype.is_float and dtype.bits == 16:
            return self.s.widen(v, dtype)
        if dtype.is_float and v.elem[0] == "i":
            return self.s.from_bits(v)
        return v

    def to_storage(self, v: Value, dtype: DType) -> Value:
        """A value as memory holds it."""
        if dtype == bool_:
            return self.b.integer(int(v.const), "i8", v.lanes) if v.const is not None else (
                self.s.convert("zext", v, "i8")
            )
        if dtype.is_float and dtype.bits == 16:
            return self.s.narrow(v, dtype)
        return v

    # -- guards

    def condition(self, guard: Sequence[Bound]) -> Value:
        """The conjunction of bounds: true, a scalar i1, or a vector of i1."""
        out = self.b.integer(1, "i1")
        for bound in guard:
            if bound not in self.proved:
                out = self.s.both(out, self._inside(bound))
        return out

    def _inside(self, bound: Bound) -> Value:
        if self.lanes and self.differs(bound.low, bound.index, bound.high):
            return self._inside_lanes(bound)
        low = self.index.number(bound.low, self.env)
        at = self.index.number(bound.index, self.env)
        high = self.index.number(bound.high, self.env)
        if isinstance(at, int) and isinstance(low, int) and isinstance(high, int):
            return self.b.integer(int(low <= at < high), "i1")
        v = self.index.as_value(at)
        top = self.index.as_value(high)
        above_zero = v.low is not None and v.low >= 0
        if low == 0 and not above_zero and top.low is not None and top.low >= 0:
            return self.s.compare("icmp ult", v, top)  # negative numbers are huge unsigned ones
        below = self.s.compare("icmp slt", v, top)
        if isinstance(low, int) and v.low is not None and v.low >= low:
            return below
        return self.s.both(self.s.compare("icmp sge", v, self.index.as_value(low)), below)

    def _inside_lanes(self, bound: Bound) -> Value:
        """One condition for each lane; 32-bit lane numbers are compared when the index is base + lane."""
        step, base = self.index.affine(bound.index, self.env)
        ends = (bound.low, bound.high)
        if step != 1 or base is None or self.differs(*ends):
            at, low, high = (self._bound_value(d, self.index) for d in
                             (bound.index, bound.low, bound.high))
            over = self.s.compare("icmp sge", at, low)
            return self.s.both(over, self.s.compare("icmp slt", at, high))
        first, last = (self._lane_limit(d, base) for d in ends)
        numbers = self._lane_numbers()
        under = self.s.compare("icmp slt", numbers, last)
        if first.const == 0:
            return under
        return self.s.both(self.s.compare("icmp sge", numbers, first), under)

    def _lane_limit(self, d: Dim, base: int | Value) -> Value:
        """d - base clamped to 0 .. lanes, as i32."""
        n = self.index.sub(self.index.number(d, self.env), base)
        n = self.index.pick("smax", self.index.pick("smin", n, self.lanes), 0)
        v = self.index.as_value(n)
        if v.const is not None:
            return self.b.integer(int(v.const), "i32")
        return v if v.elem == "i32" else self.s.convert("trunc", v, "i32")

    def _lane_numbers(self) -> Value:
        text = ", ".join(f"i32 {i}" for i in range(self.lanes))
        return Value(f"<{text}>", "i32", self.lanes, self.b.root)

    # -- memory

    def flat(self, buffer: Buffer, index: tuple[Dim, ...]) -> Dim:
        """Row-major element offset."""
        key = buffer.name, index
        found = self._flat.get(key)
        if found is None:
            found = to_dim(0)
            for i, n in zip(index, buffer.shape, strict=True):
                found = found * n + i
            self._flat[key] = found
        return found

    def split(self, m: BufferMemory, index: tuple[Dim, ...]) -> Split | None:
        """An element's place in its buffer as Indexer.split gives it; None when lanes are not affine."""
        key = m.buffer.name, index
        if key not in self._splits:
            self._splits[key] = self.index.split(self.flat(m.buffer, index), self.env)
        return self._splits[key]

    def pointer(self, m: BufferMemory, index: tuple[Dim, ...]) -> Value:
        """The address of the (first lane's) element."""
        key = m.buffer.name, index
        if key not in self._pointers:
            self._pointers[key] = self._pointer(m, index)
        return self._pointers[key]

    def _pointer(self, m: BufferMemory, index: tuple[Dim, ...]) -> Value:
        split = self.split(m, index)
        assert split is not None, f"{m.buffer.name}{list(map(str, index))} is not affine in its lanes"
        _, const, parts = split
        width = m.buffer.dtype.bytes
        found = self.at(self._advance(m.pointer, parts, width), const * width)
        return self.lines_ahead.walking(found, m.buffer, m.pointer, parts)

    def _advance(self, pointer: Value, parts: Sequence[tuple[int, Value]], width: int) -> Value:
        """pointer + the sum, one step for each scope, outer first: inner loops add only what they vary."""
        return self.b.once("advance", (pointer, width), tuple(parts), self._advanced)

    def _advanced(self, start: tuple[Value, int], parts: tuple[tuple[int, Value], ...]) -> Value:
        pointer, width = start
        by_depth: dict[int, list[tuple[int, Value]]] = {}
        for coef, v in parts:
            by_depth.setdefault(v.scope.depth, []).append((coef * width, v))
        scopes = [by_depth[depth] for depth in sorted(by_depth)]
        if self.alone and len(scopes) > 1:
            pointer, scopes = self._plus(pointer, self._hidden(scopes[:-1])), scopes[-1:]
        for own in scopes:
            pointer = self._plus(pointer, self._offset(own))
        return pointer

    def _hidden(self, scopes: Sequence[Sequence[tuple[int, Value]]]) -> Value:
        """The sum of what scopes add to an address, outer first, as one number of which loops further inside
        see no terms: LLVM's loop strength reduction takes a third of the time of all its code to try the
        terms of addresses in each order. A pointer would hide what memory it is in, too."""
        found: list[tuple[int, Value]] = []
        for parts in scopes:
            v = self._offset([*found, *parts])
            found = [(1, v if v.const is not None else self.b.pure(f"freeze {v.typed}", v.elem, 0, v))]
        return found[0][1]

    def _offset(self, parts: Sequence[tuple[int, Value]]) -> Value:
        return self.index.as_value(self.index.total(0, parts))

    def _plus(self, pointer: Value, offset: Value) -> Value:
        rhs = f"getelementptr i8, ptr {pointer.text}, {offset.typed}"
        return self.b.pure(rhs, "ptr", 0, pointer, offset)

    def at(self, pointer: Value, const: int) -> Value:
        """pointer + const bytes."""
        return self._plus(pointer, self.b.integer(const, self.index.elem)) if const else pointer

    def _load(self, e: Load) -> Value:
        if e.buffer in self.registers:
            return self._load_register(e)
        m = self.memory[e.buffer]
        if not self.lanes or self._moving.isdisjoint(self._symbols_of(e)):
            return self._load_alone(m, e)
        split = self.split(m, e.index)
        if split is not None and split[0] == 1:
            return self._load_one(m, e, self.lanes)
        if split is not None and split[0] == 0 and not e.guard:
            return self._load_alone(m, e)
        if split is not None and not e.guard and in_whole_rows(m.buffer.shape, split):
            step, const, parts = split
            at, count = const % step, self.lanes * step
            return self._load_picked(m, (step, const - at, parts), count, range(at, count, step))
        near = None if e.guard else self.index.near(self.flat(m.buffer, e.index), self.env, self.lanes)
        return self.by_lane(e) if near is None else self._load_picked(m, near[0], max(near[1]) + 1, near[1])

    def _load_picked(self, m: BufferMemory, first: Split, count: int, picks: Sequence[int]) -> Value:
        """Elements out of a few neighbours, such as one of each of some rows: the neighbours are read as one,
        once for all who pick of them."""
        dtype = m.buffer.dtype
        at = self.at(self._advance(m.pointer, first[2], dtype.bytes), first[1] * dtype.bytes)
        whole = self.read_raw(m, at, storage_elem(dtype), count)
        return self.from_storage(self.b.shuffle(whole, None, picks), dtype)

    def _load_alone(self, m: BufferMemory, e: Load) -> Value:
        """An element that all lanes read."""
        return self._load_one(m, e, 0)

    def _symbols_of(self, e: Load) -> frozenset[str]:
        """The variables of an access and of its guard."""
        found = self._symbols.get(id(e))
        if found is None:
            dims = (*e.index, *(d for g in e.guard for d in (g.low, g.index, g.high)))
            # with the expression, whose identity belongs to another one once it is gone
            found = self._symbols[id(e)] = e, frozenset().union(*(d.symbols for d in dims))
        return found[1]

    def _load_one(self, m: BufferMemory, e: Load, lanes: int) -> Value:
        """An element, or contiguous ones; where the guard does not hold, `otherwise`."""
        inside = self.condition(e.guard)
        other = None if e.otherwise is None else self.value(e.otherwise)
        zero = other is None or (other.const == 0 and str(other.const) != "-0.0")
        if inside.const is not None:
            if inside.const:
                return self._read(m, self.pointer(m, e.index), lanes)
            return self._otherwise(e, lanes, other)
        if inside.lanes:
            return self._read_masked(m, self.pointer(m, e.index), inside, other)
        value = self._read(m, self.select_pointer(m, e, inside, lanes), lanes)
        if zero:
            return value
        assert other is not None
        return self.s.select(inside, value, other)

    def _otherwise(self, e: Load, lanes: int, other: Value | None) -> Value:
        return self.b.const(0, compute_elem(e.dtype), lanes) if other is None else other

    def select_pointer(self, m: BufferMemory, e: Load, inside: Value, lanes: int) -> Value:
        """inside ? &buffer[index] : zeros. The choice is made outside of the loops that the guard does
        not mention, when what they add to the address stays inside the zero page, and once for neighbours
        that are less than a page away, in code of one thread: elsewhere nobody has measured it."""
        width = m.buffer.dtype.bytes
        split = self.split(m, e.index)
        assert split is not None, e
        near = split[1] * width % LEAST_PAGE if self.alone else 0
        inner = [(c * width, v) for c, v in split[2] if v.scope.depth > inside.scope.depth]
        outer = [(c, v) for c, v in split[2] if v.scope.depth <= inside.scope.depth]
        own = max(lanes, 1) * width + near
        reach = own
        for coef, v in inner:
            known = coef > 0 and v.low is not None and v.low >= 0 and v.high is not None
            reach += coef * v.high if known and v.high is not None else ZERO_PAGE
        if reach > ZERO_PAGE:
            inner, outer, reach = [], list(split[2]), own
        base = self.at(self._advance(m.pointer, outer, width), split[1] * width - near)
        return self.at(self._advance(or_zeros(self.b, inside, base, reach), inner, 1), near)

    def _read(self, m: BufferMemory, pointer: Value, lanes: int) -> Value:
        dtype = m.buffer.dtype
        return self.from_storage(self.read_raw(m, pointer, storage_elem(dtype), lanes), dtype)

    def read_raw(self, m: BufferMemory, pointer: Value, elem: str, lanes: int, align: int = 0) -> Value:
        """Load; from read-only memory it is hoisted out of loops that run at least once. align: what the
        address is a multiple of, in bytes; 0: its elements are aligned."""
        epoch = 0 if m.read_only else self.epochs.get(m.buffer.name, 0)
        note = ", !invariant.load !0" if m.read_only and self.invariant_loads else ""
        align = align or m.buffer.dtype.bytes
        rhs = f"load {type_text(elem, lanes)}, ptr {pointer.text}, align {align}{note}"
        key = f"{rhs} #{epoch}"
        scope = self.b.scope
        while m.read_only and scope.certain and scope.depth > pointer.scope.depth:
            assert scope.parent is not None
            scope = scope.parent
        found, look = None, self.b.scope
        while found is None:
            found = look.cache.get(key)
            if look.parent is None:
                break
            look = look.parent
        if found is None:
            found = self.b.at(scope, rhs, elem, lanes, key)
            if m.buffer.ahead and lanes:
                self.lines_ahead.after_read(m.buffer, pointer, scope, elem, lanes)
        return found

    def _read_masked(
        self, m: BufferMemory, pointer: Value, mask: Value, other: Value | None
    ) -> Value:
        elem = storage_elem(m.buffer.dtype)
        zero = self.b.const(0, elem, self.lanes)
        v = self.masked_load(pointer, mask, zero, m.buffer.dtype.bytes)
        v = self.from_storage(v, m.buffer.dtype)
        if other is None:
            return v
        return self.s.select(mask, v, other)

    def masked_load(self, pointer: Value, mask: Value, other: Value, align: int) -> Value:
        """Lanes where the mask holds; `other` elsewhere, without touching memory there."""
        kind = type_text(other.elem, other.lanes)
        name = f"llvm.masked.load.v{other.lanes}{_short(other.elem)}.p0"
        self.b.declare(name, kind, ["ptr", mask.type, kind], "nounwind memory(argmem: read)")
        args = f"ptr align {align} {pointer.text}, {mask.typed}, {other.typed}"
        return self.b.here(f"call {kind} @{name}({args})", other.elem, other.lanes)

    def _load_register(self, e: Load) -> Value:
        r = self.registers[e.buffer]
        inside = self.condition(e.guard)
        if inside.const == 0:
            return self._otherwise(e, 0, None if e.otherwise is None else self.value(e.otherwise))
        index: list[int] = []
        lanes = 0
        for axis, d in enumerate(e.index):
            step, base = self.index.affine(d, self.env)
            if step is None or not isinstance(base, int) or (step and axis < len(e.index) - 1):
                return self.by_lane(e)
            if step not in (0, 1):
                return self.by_lane(e)
            lanes = self.lanes if step else 0
            index.append(base)
        v = r.read(self.b, index, lanes)
        if inside.const is not None:
            return v
        other = self._otherwise(e, 0, None if e.otherwise is None else self.value(e.otherwise))
        return self.s.select(inside, v, other)

    # -- reductions

    def _reduce(self, e: Reduce) -> Value:
        if e.kind in ("argmax", "argmin"):
            return self._arg_extreme(e)
        if reduces_over(e, self.registers) or self._tests_neighbours(e):
            return self._reduce_registers(e)
        fn = REDUCE_FN[e.kind]
        first = self.b.const(self.neutral(e.kind, e.dtype), compute_elem(e.dtype))
        if self.lanes and self._body_varies(e):
            first = self.b.splat(first, self.lanes)

        def step(carried: list[Value]) -> list[Value]:
            if fn == "add" and isinstance(e.body, Call) and e.body.fn == "mul" and (
                e.body.dtype == e.dtype and e.dtype.is_float
            ):
                x, y = (self.value(a) for a in e.body.args)
                return [self.s.fma(x, y, carried[0])]
            return [self.combine(fn, e.dtype, carried[0], self.value(e.body))]

        return self._over(e.axes, [first], step)[0]

    def combine(self, fn: str, dtype: DType, acc: Value, v: Value) -> Value:
        acc, v = self.s.same(acc, v)
        return emit(self.s, fn, (acc, v), dtype)

    def neutral(self, kind: str, dtype: DType) -> int | float:
        """What a reduction of nothing gives."""
        if kind == "max":
            return lowest(dtype) if dtype != bool_ else 0
        if kind == "min":
            return highest(dtype)
        return {"sum": 0, "prod": 1, "any": 0, "all": 1}[kind]

    def _over(
        self, axes: Sequence[Axis], carried: list[Value], step: LoopStep
    ) -> list[Value]:
        """Nested serial loops over the axes; step(carried) -> carried in the innermost."""
        if not axes:
            return step(carried)
        axis = axes[0]
        assert not self.differs(axis.extent), f"extent of {axis.var} differs between lanes"
        if self.lanes and all(a.extent.is_const for a in axes):
            sizes = [a.extent.const for a in axes]
            if prod(sizes) <= LONGEST_APART:  # written out, so that `_load_picked` knows each element's place
                for place in _positions(sizes):
                    with self.bind({a.var: k for a, k in zip(axes, place, strict=True)}):
                        carried = step(carried)
                return carried
        count = self.index.value(axis.extent, self.env)
        count = self.unless_idle(count, axis.extent, axes_needed(axes[1:]))
        nonzero = count.low is not None and count.low > 0

        def body(i: Value, inner: list[Value]) -> list[Value]:
            with self.bind({axis.var: int(i.const) if i.const is not None else i}):
                return self._over(axes[1:], inner, step)

        return self.b.loop(count, carried, body, nonzero)

    def unless_idle(self, count: Value, extent: Dim, others: Collection[Dim]) -> Value:
        """The rounds of a loop of that extent, none where one of the others is 0."""
        raise NotImplementedError

    def _tests_neighbours(self, e: Reduce) -> bool:
        """Whether a test of a few elements, for a scalar, finds them side by side: as one of vectors it reads
        them all, where a loop would look at one after the other."""
        if self.lanes or e.kind not in ("any", "all") or len(e.axes) != 1:
            return False
        (axis,) = e.axes
        inside = list(walk_expr(e.body))
        loads = [x for x in inside if isinstance(x, Load)]
        plain = not any(isinstance(x, Let | Reduce) for x in inside)
        if not plain or any(x.buffer not in self.memory for x in loads):
            return False
        steps = [flat_stride(self.memory[x.buffer].buffer.shape, x.index, axis.var) for x in loads]
        few = axis.extent.is_const and 1 < axis.extent.const <= MOST_NEIGHBOURS
        return few and 1 in steps and set(steps) <= {0, 1}

    def _body_varies(self, e: Reduce) -> bool:
        """Whether the reduction has to be done for each lane: some index inside differs between lanes."""
        return not self._moving.isdisjoint(free_symbols(e))

    def _arg_extreme(self, e: Reduce) -> Value:
        """The position of the first (or last) extreme; NaN counts as the extreme, as in NumPy."""
        (axis,) = e.axes
        kind = dtype_of(e.body)
        lanes = self.lanes if self.lanes and self._body_varies(e) else 0
        most = e.kind == "argmax"
        start = (lowest(kind) if most else highest(kind)) if kind != bool_ else int(not most)
        best = self.b.const(start, compute_elem(kind), lanes)
        place = self.b.const(0, compute_elem(e.dtype), lanes)
        beats = ("ge" if e.last else "gt") if most else ("le" if e.last else "lt")

        def step(carried: list[Value]) -> list[Value]:
            old, where = carried
            (v,) = (self.b.splat(self.value(e.body), lanes),)
            better = emit(self.s, beats, (v, old), kind)
            if kind.is_float:
                is_nan = self.s.compare("fcmp uno", v, v)
                was_nan = self.s.compare("fcmp uno", old, old)
                if e.last:
                    better = self.s.binary("or", better, is_nan)
                else:
                    yes = self.b.integer(1, "i1", lanes)
                    new = self.s.binary("and", is_nan, self.s.binary("xor", was_nan, yes))
                    better = self.s.binary("or", better, new)
            here = self._index(Index(sym(axis.var), e.dtype))
            return [
                self.s.select(better, v, old),
                self.s.select(better, self.b.splat(here, lanes), where),
            ]

        return self._over(e.axes, [best, place], step)[1]

    def _reduce_registers(self, e: Reduce) -> Value:
        """A reduction over registers is expanded: pieces of the last axis side by side, then the lanes of
        the sum in a fixed tree."""
        fn = REDUCE_FN[e.kind]
        rows = whole_rows(e, self.registers, self.index, self.env, self.b, self.lanes) if self.lanes else None
        if rows:
            return across_rows(self.b, rows, lambda x, y: self.combine(fn, e.dtype, x, y))
        acc: list[Value] = []
        last = e.axes[-1]
        extents = [self.index.number(a.extent, self.env) for a in e.axes]
        assert all(isinstance(n, int) for n in extents), f"{e.axes}: registers need constant extents"
        sizes = [n for n in extents if isinstance(n, int)]
        wide = 1 if self.lanes else max(1, self.cpu.machine.lanes(max(e.dtype.bits, 8)))
        for lead in _positions(sizes[:-1]):
            bound: Env = {a.var: i for a, i in zip(e.axes, lead, strict=False)}
            for start, width in pieces(sizes[-1], wide):
                self._accumulate_piece(e, fn, acc, bound, last.var, start, width)
        if not acc:
            return self.b.const(self.neutral(e.kind, e.dtype), compute_elem(e.dtype))
        total = self.across(fn, e.dtype, acc[0])
        for v in acc[1:]:
            total = self.combine(fn, e.dtype, total, self.across(fn, e.dtype, v))
        return total

    def _accumulate_piece(
        self, e: Reduce, fn: str, acc: list[Value], bound: Env, var: str, start: int, width: int
    ) -> None:
        place: Env = {**bound, var: Lanes(start, width) if width else start}
        with self.bind(place, width or None):
            v = self.value(e.body)
        v = self.b.splat(v, width) if width else v
        for i, other in enumerate(acc):
            if other.lanes == v.lanes:
                acc[i] = self.combine(fn, e.dtype, other, v)
                return
        acc.append(v)

    def across(self, fn: str, dtype: DType, v: Value) -> Value:
        """The lanes of a vector (a power of two) combined pairwise, halves first.

        Except for four integers on x86: where LLVM sees a sum of products of bytes by halves it takes one
        instruction for it (vpdpbusd) and loses all but the first four products of fewer than 64.
        """
        if self.lanes:
            return v
        mixed = not dtype.is_float and self.cpu.triple.startswith("x86")
        return across_one(self.b, v, lambda x, y: self.combine(fn, dtype, x, y), mixed)


def dtype_of(e: Expr) -> DType:
    """The type of an expression's value."""
    return dtype_of(e.body) if isinstance(e, Let) else e.dtype


def _short(elem: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(elem, elem)


def _positions(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return product(*(range(n) for n in sizes))
