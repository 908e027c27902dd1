"""A top-level statement of a kernel in, the code of one group of a dialect out.

Outside of lane nodes a statement is lane 0's; loops around lane nodes run on all lanes, with a barrier where
an edge between siblings is all-to-all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from math import prod
from typing import ClassVar

from smelt.core.dim import Dim, ceildiv, product, to_dim
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.barriers import (
    barriers_before,
    has_lanes,
    lane_count,
    needs_barrier_after,
    own_indices,
    reads_what_it_writes,
)
from smelt.core.ir.groups import instances, nest
from smelt.core.ir.idle import needed, needed_at_all
from smelt.core.ir.kernel import Block, Buffer, Kernel, Loop, LoopNode, Stmt, Store, Tiles, walk
from smelt.core.machine import Machine
from smelt.targets.grid.exprs import GridExprs, P, T
from smelt.targets.grid.parts import too_large, unrolls

Inside = Callable[[], None]


class GridStatements(GridExprs[T, P]):
    """One top-level statement. lanes: of a group. In `shared` code all of them take part. own: local buffers
    of which each lane has its own."""

    device: ClassVar[str]
    private_limit: ClassVar[int]
    """Bytes of arrays that one lane may have."""
    lane: T

    def __init__(self, kernel: Kernel, s: Stmt, machine: Machine) -> None:
        super().__init__(kernel_facts(kernel))
        self.kernel, self.statement, self.machine = kernel, s, machine
        self.lanes = lane_count(s, machine.max_lanes)
        self.own: frozenset[str] = frozenset()
        self._asked = needed_at_all(s, kernel)
        self._private_bytes = 0
        self._shared_bytes = 0

    @property
    def shared_bytes(self) -> int:
        """Memory that a group takes, so far."""
        return self._shared_bytes

    # -- the dialect: numbers

    @abstractmethod
    def compute(self, fn: str, a: T | int, b: T | int) -> T:
        """'add', 'sub', 'mul', 'div', 'mod', 'min' or 'max' of two numbers that are not negative, or a test:
        'lt', 'eq' or 'ge'."""

    def reach(self, d: Dim) -> None:
        """A number that `compute` makes here is no larger than d."""

    @abstractmethod
    def either(self, condition: T, yes: Inside, no: Inside) -> None:
        """yes() where the condition holds, else no()."""

    # -- the dialect: groups, lanes and memory

    @abstractmethod
    def group_number(self) -> AbstractContextManager[T]:
        """The number of this group among all of the launch."""

    @abstractmethod
    def lane_number(self) -> T:
        """The number of this lane in its group."""

    @abstractmethod
    def turns(self, count: T) -> AbstractContextManager[T]:
        """A loop over the lane's number, and every `lanes`-th one after it, below count."""

    @abstractmethod
    def stepping(self, t: Tiles, first: T, last: T) -> AbstractContextManager[tuple[T, T]]:
        """A loop over (start, rows) from first to last; each takes the largest size of t that is left."""

    @abstractmethod
    def barrier(self) -> None:
        """All lanes of the group come here, and see what the others have written."""

    @abstractmethod
    def element_bytes(self, b: Buffer, shared: bool) -> int:
        """What an element of an array takes. shared: of one of the group, not of a lane's own."""

    @abstractmethod
    def private_array(self, b: Buffer, extents: tuple[int, ...], leading: int, body: tuple[Stmt, ...]) -> P:
        """An array of each lane. body: where it is used."""

    @abstractmethod
    def shared_array(self, b: Buffer, extents: tuple[int, ...]) -> P:
        """An array of the group."""

    def apart(self, inside: Inside) -> None:
        """An ordered block: a language may have it as a function, where its compilers take long over all."""
        inside()

    def vectors(self, s: Loop, count: int) -> bool:
        """Write a vector loop of that many passes by other means than a loop; False where there are none."""
        return False

    # -- groups and lanes

    def groups(self) -> None:
        """The whole statement."""
        nodes, body = nest(self.statement, "group")
        shared = self.lanes > 1
        if shared:
            self.lane = self.lane_number()

        def enter_at(at: Sequence[T | int]) -> None:
            self._enter(nodes, at, lambda: self._stmts(body, shared), shared)

        if all(self.number(instances(n)) == 1 for n in nodes):
            enter_at([0] * len(nodes))
            return
        with self.group_number() as flat:
            enter_at(self._decode(flat, nodes))

    def _decode(self, flat: T, nodes: Sequence[LoopNode]) -> list[T | int]:
        """A flat instance number as one number for each node, the last fastest."""
        found: list[T | int] = []
        for n in reversed(nodes[1:]):
            count = instances(n)
            if self.number(count) == 1:
                found.append(0)
                continue
            extent = self.index(count)
            found.append(self.compute("mod", flat, extent))
            flat = self.compute("div", flat, extent)
        found.append(0 if self.number(instances(nodes[0])) == 1 else flat)
        return found[::-1]

    def _enter(self, nodes: Sequence[LoopNode], at: Sequence[T | int], inside: Inside, shared: bool) -> None:
        """Bind the variables of parallel nodes from the outermost on, then go inside."""
        if not nodes:
            inside()
            return
        node = nodes[0]

        def deeper() -> None:
            with self._buffers(node.buffers, node.body, shared):
                self._enter(nodes[1:], at[1:], inside, shared)

        if isinstance(node, Tiles):
            self._tile(node, at[0], deeper, shared)
            return
        with self.bind({node.var: at[0]}, node):
            deeper()

    def _lanes(self, s: Stmt) -> None:
        """A nest of lane nodes: its instances spread over the lanes, which take turns if need be."""
        nodes, body = nest(s, "lane")
        with self._instances(product(instances(n) for n in nodes)) as flat:
            self._enter(nodes, self._decode(flat, nodes), lambda: self._stmts(body, False), False)

    @contextmanager
    def _instances(self, count: Dim) -> Iterator[T]:
        number = self.number(count)
        if number is None or number > self.lanes:
            with self.turns(self.index(count)) as flat, self.frame():
                yield flat
            return
        few = number < self.lanes
        with self.when(self.compute("lt", self.lane, number)) if few else self.frame():
            yield self.lane

    # -- tiles

    def _tile(self, t: Tiles, at: T | int, inside: Inside, shared: bool) -> None:
        """The at-th instance of a node of tiles."""
        most = t.sizes[0]
        if t.mode == "greedy":
            self.reach(t.extent + 2 * most)
            first = self.compute("mul", at, most)
            last = self.compute("min", self.compute("add", first, most), self.index(t.extent))
            self._greedy(t, first, last, inside, shared)
            return
        known = self.number(t.extent)
        if known:
            self._known_tile(t, at, known, inside)
            return
        extent = self.index(t.extent)
        count = self.compute("max", self.index(ceildiv(t.extent, most)), 1)
        size, longer = self.compute("div", extent, count), self.compute("mod", extent, count)
        early = self.compute("lt", at, longer)
        rows = self.select(early, self.compute("add", size, 1), size)
        self._sized(t, self._start(size, longer, at), rows, inside)

    def _start(self, size: T | int, longer: T | int, at: T | int) -> T:
        """Where the at-th tile begins, if the first `longer` ones have a row more than the others."""
        return self.compute("add", self.compute("mul", size, at), self.compute("min", longer, at))

    def _known_tile(self, t: Tiles, at: T | int, extent: int, inside: Inside) -> None:
        """The at-th of balanced tiles of a constant extent, which have one or two sizes."""
        size, longer = divmod(extent, -(-extent // t.sizes[0]))
        start = self._start(size, longer, at) if longer else self.compute("mul", at, size)

        def of(rows: int) -> None:
            with self.bind({t.start: start, t.rows: rows}, t):
                inside()

        if longer:
            self.either(self.compute("lt", at, longer), lambda: of(size + 1), lambda: of(size))
        else:
            of(size)

    def _greedy(self, t: Tiles, first: T, last: T, inside: Inside, shared: bool) -> None:
        """From first to last, each tile of the largest size that fits."""
        with self.stepping(t, first, last) as (start, rows):
            self._sized(t, start, rows, lambda: self._iteration(t.body, inside, shared))

    def _sized(self, t: Tiles, start: T, rows: T, inside: Inside) -> None:
        """A tile; where loops are unrolled over its rows, with a version for whole tiles."""
        most = t.sizes[0]

        def of(n: T | int) -> None:
            with self.bind({t.start: start, t.rows: n}, t):
                inside()

        if most == 1 or not unrolls(t):
            of(1 if most == 1 else rows)
        else:
            self.either(self.compute("eq", rows, most), lambda: of(most), lambda: of(rows))

    # -- local buffers

    @contextmanager
    def _buffers(self, buffers: Sequence[Buffer], body: tuple[Stmt, ...], shared: bool) -> Iterator[None]:
        """Declare the buffers of a node around what is written inside."""
        before = dict(self.places), self.own
        for b in buffers:
            leading = own_indices(b, body, self.lanes) if shared and b.space == "register" else None
            extents = self._extents(b)
            if shared and leading is None:
                self._shared_bytes += max(prod(extents), 1) * self.element_bytes(b, True)
                self._check("a group", self._shared_bytes, self.machine.shared_bytes)
                self.places[b.name] = self.shared_array(b, extents)
                self.own -= {b.name}
            else:
                extents = extents[leading or 0 :]
                self._private_bytes += max(prod(extents), 1) * self.element_bytes(b, False)
                self._check("a lane", self._private_bytes, self.private_limit)
                self.places[b.name] = self.private_array(b, extents, leading or 0, body)
                self.own |= {b.name}
        yield
        self.places, self.own = before

    def _check(self, of: str, wanted: int, there: int) -> None:
        if wanted > there:
            raise too_large(self.kernel, self.device, of, wanted, there)

    def _extents(self, b: Buffer) -> tuple[int, ...]:
        """Constant extents, the largest where tiles differ."""
        found = []
        for d in b.shape:
            n = self.number(d)
            if n is None:
                n = self.facts.bounds(d)[1]
            assert n is not None, f"local buffer {b.name} has the dynamic extent {d}"
            found.append(n)
        return tuple(found)

    # -- statements

    def _stmts(self, body: tuple[Stmt, ...], shared: bool) -> None:
        if not shared:
            for s in body:
                self._stmt(s, False)
            return
        shapes = {name: p.buffer for name, p in self.places.items()}
        before = barriers_before(body, self.facts, shapes, self.own)
        for i, s in enumerate(body):
            if i in before:
                self.barrier()
            if has_lanes(s):
                self._stmt(s, True)
            elif isinstance(s, Block) and s.ordered:
                # the condition inside: of `if (lane == 0) function();` PoCL 3.1 makes code without an end
                self.apart(partial(self._alone, partial(self._block, s, False)))
            else:
                self._alone(partial(self._stmt, s, False))

    def _alone(self, inside: Inside) -> None:
        """Of one lane."""
        with self.when(self.compute("eq", self.lane, 0)):
            inside()

    def _iteration(self, body: tuple[Stmt, ...], inside: Inside, shared: bool) -> None:
        """One pass of a loop, over before the next one where lanes share what it writes."""
        inside()
        if shared:
            local = frozenset(n for n, p in self.places.items() if p.is_array) - self.own
            inner = frozenset(b.name for s in walk(body) if not isinstance(s, Store) for b in s.buffers)
            if needs_barrier_after(body, self.own, local | inner):
                self.barrier()

    def _stmt(self, s: Stmt, shared: bool) -> None:
        match s:
            case Store():
                self.store(s)
            case Block() if s.ordered:
                self.apart(lambda: self._block(s, shared))
            case Block():
                self._block(s, shared)
            case Loop() | Tiles() if shared and s.level == "lane":
                self._lanes(s)
            case Loop():
                self._loop(s, shared)
            case Tiles():
                self._tiles(s, shared)

    def _needed(self, s: LoopNode) -> frozenset[Dim]:
        """Extents without which a loop's body does nothing, less those that the launch has asked about."""
        return needed(s.body, self.kernel.buffers(), s.buffers) - self._asked

    def _body(self, s: LoopNode | Block, shared: bool) -> None:
        with self._buffers(s.buffers, s.body, shared):
            self._stmts(s.body, shared)

    def _loop(self, s: Loop, shared: bool) -> None:
        count = self.number(s.extent)
        if count is not None and count <= 1:
            if count == 1:
                with self.frame(), self.bind({s.var: 0}, s):
                    self._body(s, shared)
            return
        if s.level == "vector" and count is not None and not shared and self.vectors(s, count):
            return
        with self.looped(s.var, s.extent, self._needed(s), s.level) as at, self.bind({s.var: at}, s):
            self._iteration(s.body, lambda: self._body(s, shared), shared)

    def _tiles(self, t: Tiles, shared: bool) -> None:
        """Tiles that are not spread: one after the other."""
        if t.mode == "greedy":
            self.reach(t.extent + t.sizes[0])
            condition = self.unless_idle(t.extent, self._needed(t))
            with nullcontext() if condition is None else self.when(condition):
                first, last = self.index(to_dim(0)), self.index(t.extent)
                self._greedy(t, first, last, lambda: self._body(t, shared), shared)
            return
        with self.looped(t.start, ceildiv(t.extent, t.sizes[0]), self._needed(t)) as at:
            self._tile(t, at, lambda: self._iteration(t.body, lambda: self._body(t, shared), shared), shared)

    def _block(self, s: Block, shared: bool) -> None:
        with self.frame(), ExitStack() as bound:
            for n, (var, value, low, high) in enumerate(s.let):
                with self.frame():
                    at = self.clamped(var, value, low, high)
                bound.enter_context(self.bind({var: at}, Block((), let=s.let[n : n + 1])))
            if shared and reads_what_it_writes(s):
                self.barrier()
            with self.guarded(s.guard):
                self._body(s, shared)

    def store(self, s: Store) -> None:
        """One store, element by element."""
        with self.guarded(s.guard), self.frame():
            if s.accumulate is None:
                value = self.value(s.value)
                self.write(*self.element(s.buffer, s.index), value)
                return
            place, at = self.element(s.buffer, s.index)
            value = self.accumulated(s.accumulate, place.buffer.dtype, self.read(place, at), s.value)
            self.write(place, at, value)
