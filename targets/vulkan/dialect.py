"""The operations of a kernel in, SPIR-V instructions out; a value is what an instruction made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import DType, bf16, bool_, f16, f32, i64
from smelt.core.ir.analysis.scope import Binder, holding, written
from smelt.core.ir.intrinsics import REDUCE_FN
from smelt.core.ir.kernel import (
    Block,
    Buffer,
    Const,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    LoopNode,
    Stmt,
    Store,
    Tiles,
    children,
    walk,
)
from smelt.core.ir.rewrite import free_symbols
from smelt.core.machine import Machine
from smelt.targets.grid.exprs import GridPlace, flat_index
from smelt.targets.grid.lane_trees import LaneTree, lane_tree
from smelt.targets.grid.reduce import neutral
from smelt.targets.grid.statements import GridStatements, Inside
from smelt.targets.vulkan import half, scalars, subgroups, wide
from smelt.targets.vulkan.code import DONT_UNROLL, Code, V, Variable
from smelt.targets.vulkan.index import Largest, fits, is_wide, magnitude, narrow_index, numbered, wide_index
from smelt.targets.vulkan.machine import PRIVATE_LIMIT
from smelt.targets.vulkan.rounds import ROUND, divided, rounds, times
from smelt.targets.vulkan.scalars import kind_of
from smelt.targets.vulkan.spirv import (
    FUNCTION,
    LOCAL_INVOCATION_ID,
    NARROW_BYTES,
    NUM_SUBGROUPS,
    NUM_WORKGROUPS,
    STORAGE_BUFFER,
    SUBGROUP_ID,
    WORKGROUP,
    WORKGROUP_ID,
    SpirvModule,
)

MOST_COPIES = 64
"""Passes of unrolled loops that are written out, of nested ones together; the others stay loops."""

WORKGROUP_SCOPE = 2
FENCE = 0x8 | 0x40 | 0x100  # acquire and release, of storage buffers and of the group's memory

_OPCODES = {
    "add": "IAdd", "sub": "ISub", "mul": "IMul", "div": "UDiv", "mod": "UMod",
    "lt": "SLessThan", "eq": "IEqual", "ge": "SGreaterThanEqual",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(GridPlace):
    """memory: a variable with elements of `kind`, in storage class `storage`. In global memory these are
    words, or of the kinds that memory alone has; the buffer begins at `offset` in bytes."""

    memory: int
    kind: str = "u"
    storage: int = STORAGE_BUFFER
    offset: V | None = None


@dataclass(frozen=True, slots=True)
class PartParameter:
    """A word that a launch passes. kind: 'buffer' (its offset in bytes), 'dim' (one that must fit 31 bits),
    the 'low' or 'high' half of one that need not, or 'groups'."""

    kind: str
    index: int


class Dialect(GridStatements[V, Place]):
    """SPIR-V. features: what the device may be asked for, by the names of FEATURES. limits: what must fit 31
    bits, in the kernel's dims. reaches: what the sizes of index symbols do not exceed, in the same. elastic:
    any number of invocations does for a group. rounds: of all loops of an invocation, in units of 1 / ROUND,
    and one more for each loop that is run: no more than that."""

    device = "Vulkan"
    private_limit = PRIVATE_LIMIT

    def __init__(
        self, kernel: Kernel, s: Stmt, machine: Machine, features: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(kernel, s, machine)
        self.features = features
        self.code = Code(SpirvModule())
        self.limits = Largest()
        self.reaches: Mapping[str, Dim] = {}
        self.elastic = self.lanes > 1
        self.parameters: dict[PartParameter, V] = {}
        self.built_in: list[int] = []
        self.width = V(self.code, self.code.m.specialised(0, self.lanes), "u")
        self.rounds, self._times = to_dim(0), to_dim(ROUND)
        self.code.spend = self._spend
        self._copies = 1  # of what is written here, by loops that are written out

    # -- what a launch passes

    def parameter(self, kind: str, index: int) -> V:
        """A word of the launch."""
        key = PartParameter(kind, index)
        if key not in self.parameters:
            self.parameters[key] = V(self.code, self.code.m.fresh(), "u")
        return self.parameters[key]

    def _number(self, which: int) -> V:
        """A built-in variable of one number."""
        memory = self.code.m.built_in(which, "u")
        if which not in self.built_in:
            self.built_in.append(which)
        return self.code.at_head("Load", "u", memory)

    def _input(self, which: int, axis: int) -> V:
        """A number of a built-in variable."""
        m = self.code.m
        if which not in self.built_in:
            self.built_in.append(which)
        found = self.code.at_head("Load", "x", m.built_in(which))
        return self.code.at_head("CompositeExtract", "u", found.id, axis)

    @contextmanager
    def group_number(self) -> Iterator[V]:
        # a dimension of the grid has 65535 groups at most: the driver folds them into three
        flat = self.code.u(0)
        for axis in (2, 1, 0):
            flat = flat * self._input(NUM_WORKGROUPS, axis) + self._input(WORKGROUP_ID, axis)
        with self.when(flat.below(self.parameter("groups", 0))):
            yield flat

    def lane_number(self) -> V:
        return self._input(LOCAL_INVOCATION_ID, 0)

    # -- rounds of loops

    def _spend(self, count: int) -> None:
        if count:
            self.rounds = self.rounds + self._times * count

    @contextmanager
    def _repeated(self, extent: Dim, by: int = 1, more: int = 0) -> Iterator[None]:
        """A loop of extent / by + more rounds around what is written inside."""
        before = self._times
        each = rounds(numbered(extent, self.env), self.reaches, self.facts)
        self._times = divided(times(before, each), by) + before * more
        self.rounds = self.rounds + self._times + before
        yield
        self._times = before

    # -- blocks

    @contextmanager
    def when(self, condition: V) -> Iterator[None]:
        with self.code.when(condition), self.frame():
            yield

    def either(self, condition: V, yes: Inside, no: Inside) -> None:
        for holds, inside in ((condition, yes), (~condition, no)):
            with self.when(holds):
                inside()

    @contextmanager
    def looped(self, var: str, extent: Dim, others: Collection[Dim], level: str = "") -> Iterator[V]:
        asked = self.unless_idle(extent, others)
        limit = self.index(extent)
        if asked is not None:
            limit = self.code.select(asked, limit, 0)
        hint = DONT_UNROLL if level in ("unroll", "vector") else 0
        with self._repeated(extent), self.code.count(0, limit, hint=hint) as at, self.frame():
            yield at

    def _body(self, s: LoopNode | Block, shared: bool) -> None:
        tree = lane_tree(s) if shared and isinstance(s, Block) and "subgroups" in self.features else None
        if tree is None or not self._has_instruction(tree):
            super()._body(s, shared)
            return
        # a part for each subgroup, of which there are as many as invocations at most
        parts = replace(tree.parts, shape=(to_dim(self.lanes),))
        with self._buffers((parts,), s.body, shared):
            self._reduce_lanes(tree)

    def _has_instruction(self, tree: LaneTree) -> bool:
        wanted = self.lanes * self.element_bytes(tree.parts, True)
        fits = tree.lanes <= self.lanes and self.shared_bytes + wanted <= self.machine.shared_bytes
        return fits and subgroups.reduces(tree.kind, tree.parts.dtype)

    def _reduce_lanes(self, tree: LaneTree) -> None:
        """Each subgroup reduces what its invocations have made, and one of the group what the subgroups have:
        which invocations are one does not matter. All come here, since a block with lanes stands where all
        of the group go."""
        c, name, dtype = self.code, tree.parts.name, tree.parts.dtype
        c.m.require("subgroups")
        start = self.literal(neutral(tree.kind, dtype), dtype)
        common, mine = self.places[name], self.private_array(tree.parts, (), 1, (tree.first,))
        self.write(mine, c.u(0), start)  # also for invocations that have no part
        self.places[name] = mine
        self._stmts((tree.first,), True)
        self.places[name] = common
        together = subgroups.over_subgroup(tree.kind, dtype, self.read(mine, c.u(0)))
        with self.when(subgroups.elected(c)):
            self.write(common, self._number(SUBGROUP_ID), together)
        self.barrier()
        with self.when(self.lane.equals(0)):
            total, count = c.variable(kind_of(dtype), start), self._number(NUM_SUBGROUPS)
            with c.count(0, count, rounds=self.lanes) as at, self.frame():
                part = self.read(common, at)
                total.set(self.intrinsic(REDUCE_FN[tree.kind], dtype, total.get(), part))
            self.write(*self.element(tree.total.buffer, tree.total.index), total.get())

    def _loop(self, s: Loop, shared: bool) -> None:
        """Unrolled loops are written out, so that elements of private arrays have constant places: an array
        whose places are computed stays in memory, and that is slow everywhere."""
        count = self.number(s.extent) or 0
        if s.level not in ("unroll", "vector") or not 1 < count * self._copies <= MOST_COPIES or _declares(s):
            super()._loop(s, shared)
            return
        before, self._copies = self._copies, self._copies * count
        with self.frame():
            self._load_common(s)
            for i in range(count):
                with self.frame(), self.bind({s.var: i}, s):
                    self._iteration(s.body, partial(self._body, s, shared), shared)
        self._copies = before

    def _load_common(self, s: Loop) -> None:
        """Loads that are the same in each pass, before the first."""
        changed, seen = written(s.body), set[int]()

        def visit(e: Expr) -> None:
            if id(e) in seen:
                return
            seen.add(id(e))
            free = free_symbols(e)
            same = s.var not in free and free <= self.env.keys()
            if same and isinstance(e, Load) and e.buffer not in changed:
                self.value(e)
                return
            for c in children(e):
                visit(c)

        for x in s.body:
            if isinstance(x, Store) and not x.guard:
                visit(x.value)

    @contextmanager
    def _instances(self, count: Dim) -> Iterator[V]:
        number = self.number(count)
        in_turns = number is None or number > self.lanes
        self.elastic = self.elastic and in_turns
        with (
            self._repeated(count, self.lanes, 1) if in_turns else nullcontext(),
            super()._instances(count) as flat,
        ):
            yield flat

    def turns(self, count: V) -> AbstractContextManager[V]:
        return self.code.count(self.lane, count, self.width)

    @contextmanager
    def stepping(self, t: Tiles, first: V, last: V) -> Iterator[tuple[V, V]]:
        c = self.code
        at, size = c.variable("u", first), c.variable("u", 0)
        on = c.loop(lambda: at.get() < last, lambda: at.set(at.get() + size.get()))
        with self._repeated(t.extent, t.sizes[0], t.sizes[0]), on, self.frame():
            start = at.get()
            left, rows = last - start, c.u(t.sizes[-1])
            for n in reversed(t.sizes[:-1]):
                rows = c.select(left >= n, n, rows)
            size.set(rows)
            yield start, rows

    def barrier(self) -> None:
        scope, fence = self.code.u(WORKGROUP_SCOPE).id, self.code.u(FENCE).id
        self.code.do("ControlBarrier", scope, scope, fence)

    # -- indices

    @contextmanager
    def bind(self, values: Mapping[str, V | int], binder: Binder) -> Iterator[None]:
        before, self.reaches = self.reaches, {**self.reaches, **self._bound(binder)}
        with super().bind(values, binder):
            yield
        self.reaches = before

    def _bound(self, binder: Binder) -> dict[str, Dim]:
        """What the sizes of the variables that a binder binds do not exceed."""
        match binder:
            case Loop():
                return {binder.var: self.size(binder.extent)}
            case Tiles():
                return {binder.start: self.size(binder.extent), binder.rows: to_dim(binder.sizes[0])}
            case Let():
                return {binder.var: self.size(binder.low) + self.size(binder.high)}
            case Block():
                return {var: self.size(low) + self.size(high) for var, _, low, high in binder.let}
        return {axis.var: self.size(axis.extent) for axis in binder}

    def size(self, d: Dim) -> Dim:
        """No less than |d|, in the kernel's dims."""
        return magnitude(numbered(d, self.env), self.reaches, self.facts)

    def reach(self, d: Dim) -> None:
        """The value of d must fit 31 bits."""
        if self.is_wide(d):
            return
        size = self.size(d)
        if not self.limits.covers(size) and not fits(numbered(d, self.env), self.facts):
            self.limits.add(size)

    def is_wide(self, d: Dim) -> bool:
        """Whether 32 bits are too few for d."""
        return is_wide(d, self.env, self.facts)

    def address(self, d: Dim) -> V:
        """A Dim modulo 2^32."""
        if self.is_wide(d):
            return wide_index(self.code, d, self.env).low
        return narrow_index(self.code, d, self.env, self.facts, self.reach)

    def index(self, d: Dim) -> V:
        """A Dim in 32 bits, signed."""
        self.reach(d)
        return self.address(d)

    def wide_index(self, d: Dim) -> V:
        """A Dim in 64 bits."""
        if self.is_wide(d):
            return wide_index(self.code, d, self.env)
        return wide.extend(self.index(d), True)

    def compare(self, a: Dim, operator: str, b: Dim) -> V:
        if self.is_wide(a) or self.is_wide(b):
            x, y = self.wide_index(a), self.wide_index(b)
            return wide.less(x, y, True) if operator == "<" else ~wide.less(y, x, True)
        return self.index(a) < self.index(b) if operator == "<" else self.index(a) <= self.index(b)

    def both(self, a: V, b: V) -> V:
        return a & b

    def compute(self, fn: str, a: V | int, b: V | int) -> V:
        c = self.code
        a, b = (c.u(x) if isinstance(x, int) else x for x in (a, b))
        if fn in ("min", "max"):
            return c.select(a < b if fn == "min" else b < a, a, b)
        return c.pure(_OPCODES[fn], "b" if fn in ("lt", "eq", "ge") else "u", a, b)

    def clamped(self, var: str, value: Expr, low: Dim, high: Dim) -> V:
        """Of 64 bits where the bounds are."""
        c = self.code
        raw = self.cast(self.value(value), value.dtype, i64)
        large = self.is_wide(low) or self.is_wide(high)
        a, b = (self.wide_index(d) for d in (low, high))
        up = c.select(wide.less(raw, a, True), a, raw)
        found = c.select(wide.less(b, up, True), b, up)
        return found if large else found.low

    # -- values

    def literal(self, value: bool | int | float, dtype: DType) -> V:
        return scalars.literal(self.code, value, dtype)

    def index_value(self, e: Index) -> V:
        """What may exceed 31 bits as a number of 64 is computed in 64."""
        terms = numbered(e.dim, self.env).terms()
        products = any(sum(power for _, power in factors) > 1 for _, factors in terms)
        found = wide_index(self.code, e.dim, self.env) if products else self.wide_index(e.dim)
        return self.cast(found, i64, e.dtype)

    def cast(self, v: V, source: DType, target: DType) -> V:
        if target == f16 != source and "halves" in self.features:
            self.code.m.require("halves")
            return self.code.pure("FConvert", "f", self._half(scalars.cast(v, source, f32)))
        return scalars.cast(v, source, target)

    def bitcast(self, v: V, source: DType, target: DType) -> V:
        return scalars.bitcast(v, source, target)

    def select(self, condition: V, a: V, b: V) -> V:
        return self.code.select(condition, a, b)

    def choose(self, condition: V, a: Callable[[], V], b: Callable[[], V]) -> V:
        return self.code.choose(condition, a, b)

    def intrinsic(self, fn: str, dtype: DType, *args: V) -> V:
        return scalars.intrinsic(fn, dtype, *args)

    def contracted(self, dtype: DType, a: V, b: V, total: V) -> V:
        return scalars.contracted(a, b, total)

    def cell(self, dtype: DType, first: V) -> Variable:
        return self.code.variable(kind_of(dtype), first)

    # -- memory

    def stored_kind(self, d: DType) -> str:
        """The kind of what global memory has for a dtype."""
        storage = f"storage{d.bits}"
        if storage not in self.features:
            return "u"
        self.code.m.require(storage)
        return self._narrow_kind(d)

    def _narrow_kind(self, d: DType) -> str:
        """The kind of 8 or 16 bits of a dtype."""
        if d == f16 and "halves" in self.features:
            self.code.m.require("halves")
            return "h"
        return "s" if d.bits == 16 else "y"

    def _shared_kind(self, d: DType) -> str:
        """The kind of what a group's memory has for a dtype: the smallest that is there. Of f16 that is the
        device's own, as a group reads often what it shares."""
        feature = "halves" if d == f16 else f"int{d.bits}"
        if d.bits >= 32 or feature not in self.features:
            return "u" if d == bool_ else kind_of(d)
        self.code.m.require(feature)
        return self._narrow_kind(d)

    def _narrowed(self, place: Place, value: V) -> V:
        """A value as an element of a kind that memory alone has."""
        if place.kind == "h":
            return self._half(value)
        d = place.buffer.dtype
        bits = half.to_bits(value, d) if d in (f16, bf16) else value
        return self.code.pure("UConvert", place.kind, bits)

    def _half(self, value: V) -> V:
        """A float, rounded to 16 bits by the device."""
        return self.code.pure("FConvert", "h", value)

    def _widened(self, place: Place, element: V) -> V:
        """The value of such an element."""
        d = place.buffer.dtype
        if place.kind == "h":
            return self.code.pure("FConvert", "f", element)
        bits = self.code.pure("SConvert" if d.category == "int" else "UConvert", "u", element)
        if d == bool_:
            return bits.differs(0)
        return half.from_bits(bits, d) if d in (f16, bf16) else bits

    def _in_memory(self, place: Place, at: V) -> V:
        """An element's place in what is bound, in elements that are words or smaller."""
        assert place.offset is not None
        size = NARROW_BYTES.get(place.kind, 4)
        return (place.offset >> (size.bit_length() - 1)) + at

    def _element(self, place: Place, at: V) -> int:
        """The pointer to the at-th element of a memory."""
        first = () if place.offset is None else (self.code.u(0),)
        return self.code.chain(place.storage, place.kind, place.memory, *first, at)

    def _word(self, place: Place, at: V) -> int:
        """The pointer to a word of a storage buffer."""
        return self.code.chain(place.storage, "u", place.memory, self.code.u(0), at)

    def _loaded(self, pointer: int, kind: str = "u") -> V:
        return self.code.impure("Load", kind, pointer)

    def _part(self, place: Place, at: V) -> tuple[V, V]:
        """The word that has an element of 8 or 16 bits, and the element's first bit in it."""
        assert place.offset is not None
        byte = place.offset + (at << 1 if place.buffer.dtype.bits == 16 else at)
        return byte >> 2, (byte & 3) << 3

    def read(self, place: Place, at: V) -> V:
        d = place.buffer.dtype
        if place.kind in NARROW_BYTES:
            at = at if place.offset is None else self._in_memory(place, at)
            return self._widened(place, self._loaded(self._element(place, at), place.kind))
        if place.offset is None:
            value = self._loaded(self._element(place, at), place.kind)
            return value.differs(0) if d == bool_ else value
        if d.bits == 64:
            first = (place.offset >> 2) + (at << 1)
            pair = self.code.wide(*(self._loaded(self._word(place, first + i)) for i in (0, 1)))
            return pair.as_float() if d.is_float else pair
        if d.bits == 32:
            word = self._loaded(self._word(place, self._in_memory(place, at)))
            return word.as_float() if d.is_float else word
        where, shift = self._part(place, at)
        word = self._loaded(self._word(place, where))
        if d.category == "int":
            return self.code.pure("BitFieldSExtract", "u", word, shift, self.code.u(d.bits))
        bits = (word >> shift) & ((1 << d.bits) - 1)
        if d == bool_:
            return bits.differs(0)
        return half.from_bits(bits, d) if d in (f16, bf16) else bits

    def write(self, place: Place, at: V, value: V) -> None:
        c, d = self.code, place.buffer.dtype
        if d == bool_:
            value = c.select(value, c.u(1), 0)
        if place.kind in NARROW_BYTES:
            at = at if place.offset is None else self._in_memory(place, at)
            c.do("Store", self._element(place, at), self._narrowed(place, value).id)
            return
        if place.offset is None:
            c.do("Store", self._element(place, at), value.id)
            return
        if d.bits == 64:
            pair = value.bits() if d.is_float else value
            first = (place.offset >> 2) + (at << 1)
            for i, part in enumerate((pair.low, pair.high)):
                c.do("Store", self._word(place, first + i), part.id)
            return
        if d.bits == 32:
            word = value.bits() if d.is_float else value
            c.do("Store", self._word(place, self._in_memory(place, at)), word.id)
            return
        self._write_part(place, at, half.to_bits(value, d) if d in (f16, bf16) else value)

    def _write_part(self, place: Place, at: V, bits: V) -> None:
        """Store 8 or 16 bits. Other invocations may write the rest of the word at the same time: what differs
        in this part is flipped in one atomic operation."""
        c, mask = self.code, (1 << place.buffer.dtype.bits) - 1
        where, shift = self._part(place, at)
        pointer, device, relaxed = self._word(place, where), c.u(1).id, c.u(0).id
        old = c.impure("AtomicLoad", "u", pointer, device, relaxed)
        flips = (((old >> shift) ^ bits) & mask) << shift
        c.impure("AtomicXor", "u", pointer, device, relaxed, flips.id)

    def _load(self, e: Load) -> V:
        """Under a guard, of a word at least: the word at the binding's start where the guard does not hold. A
        branch costs more than that everywhere."""
        condition, place = self.condition(e.guard), self.places[e.buffer]
        other = Const(0, e.dtype) if e.otherwise is None else e.otherwise
        narrow = place.kind in NARROW_BYTES
        whole = narrow or place.buffer.dtype.bits == 32
        if condition is None or place.offset is None or not whole or not isinstance(other, Const):
            return super()._load(e)
        with self.scope({}, holding(self.facts, e.guard)):
            at = self._in_memory(place, self.address(flat_index(place, e.index)))
        raw = self._loaded(self._element(place, self.code.select(condition, at, 0)), place.kind)
        if narrow:
            found = self._widened(place, raw)
        else:
            found = raw.as_float() if place.buffer.dtype.is_float else raw
        return self.code.select(condition, found, self.literal(other.value, e.dtype))

    def element_bytes(self, b: Buffer, shared: bool) -> int:
        kind = self._shared_kind(b.dtype) if shared else "u"
        return NARROW_BYTES.get(kind, max(b.dtype.bytes, 4))

    def private_array(
        self, b: Buffer, extents: tuple[int, ...], leading: int, body: tuple[Stmt, ...]
    ) -> Place:
        self.elastic = self.elastic and not leading
        kind = "u" if b.dtype == bool_ else kind_of(b.dtype)
        array = self.code.storage(self._array(kind, extents))
        return Place(buffer=b, extents=extents, leading=leading, memory=array, kind=kind, storage=FUNCTION)

    def shared_array(self, b: Buffer, extents: tuple[int, ...]) -> Place:
        m, kind = self.code.m, self._shared_kind(b.dtype)
        array = m.global_variable(WORKGROUP, m.pointer(WORKGROUP, self._array(kind, extents)))
        return Place(buffer=b, extents=extents, memory=array, kind=kind, storage=WORKGROUP)

    def _array(self, kind: str, extents: Sequence[int]) -> int:
        """The type of an array."""
        return self.code.m.array(kind, max(prod(extents), 1))


def _declares(s: Loop) -> bool:
    """Whether something in a loop has buffers of its own."""
    return any(x.buffers for x in walk((s,)) if not isinstance(x, Store))
