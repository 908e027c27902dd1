"""A lowered graph -> storages: which values share bytes (views, in place, crossing), and when each lives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from smelt.core.dim import YES, Dim, dmax, dmin, product, to_dim
from smelt.core.dtype import DType
from smelt.core.ir.checked import FactScope
from smelt.core.ir.graph import Graph, Module, Ref, TensorType, Value
from smelt.core.ir.in_place import in_place_inputs
from smelt.core.machine import CPU
from smelt.core.plan.items import Arm, Item, Timeline, new_symbols, timeline, walk_items

ALIGNMENT = 64
"""Bytes: a cache line and the widest vector."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that one or more values share. root: the value that was there first. first/last: the
    positions of the nodes that write it first and read it last (inclusive)."""

    root: Ref
    bytes: Dim
    first: int
    last: int


def bytes_of(dtype: DType, shape: tuple[Dim, ...]) -> Dim:
    """Compact size of a tensor."""
    return product(shape) * dtype.bytes


@dataclass(frozen=True, slots=True)
class Move:
    """After a round, what the storage `to` holds becomes what the storage `source` holds (roots). value,
    made: the values that lie there, which say from where each is looked at. reserve: `to` has an arena of
    its own, which gets the new size first."""

    to: Ref
    source: Ref
    value: Ref
    made: Ref
    bytes: Dim
    reserve: bool = False


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """copied: numbers of the carried values whose first state is copied in. moves: what happens after each
    round, in order. counter, flag: storages of the round's number and the condition ('': nobody reads it)."""

    copied: frozenset[int]
    moves: tuple[Move, ...]
    counter: Ref
    flag: Ref


@dataclass(frozen=True, slots=True)
class Slice:
    """A storage that is part of a stack: element `counter` of so many bytes."""

    stack: Ref
    bytes: Dim
    counter: str


@dataclass(frozen=True)
class Storages:
    """of: the root of every value (weights and inputs are their own roots). rows: arena candidates, in
    order of first use. alone: storages whose size changes while they hold something (a carried value that
    grows, a stack of unknown height), by root, each in an arena of its own. slices: roots that lie inside a
    stack. loops: by the loop's position. units: at which unit each root of rows and alone lies. lies: at
    which unit each value is read and written, also one that lies at another. seen: roots at a unit that the
    host looks at, too: a value of the CPU in such a storage was handed over, or is to be."""

    time: Timeline
    of: Mapping[Ref, Ref]
    rows: tuple[Storage, ...]
    alone: Mapping[Ref, Dim] = field(default_factory=dict)
    slices: Mapping[Ref, Slice] = field(default_factory=dict)
    loops: Mapping[int, LoopPlan] = field(default_factory=dict)
    units: Mapping[Ref, str] = field(default_factory=dict)
    lies: Mapping[Ref, str] = field(default_factory=dict)
    seen: frozenset[Ref] = frozenset()

    def root(self, ref: Ref) -> Ref:
        """The storage of a value."""
        return self.of.get(ref, ref)


def storages(module: Module, graph: Graph, scope: FactScope) -> Storages:
    """Group values into storages and compute lifetimes over positions.

    Graph inputs and weights are never written, so no output takes over their storage. What a loop carries
    has one storage, which the body's result is written to straight where the old state is not read any
    more; a stack of known height is written slice by slice where it lies.

    What a transfer moves between the host and one unit is one storage, at the unit: where the unit's memory
    is the host's, nothing is copied then; elsewhere the host has a copy of its own, at the same place of
    memory beside it. So it lives from the first write to the last read of both.
    """
    return _Layout(module, graph, scope).storages()


class _Layout:
    """The walk over the items of one graph."""

    def __init__(self, module: Module, graph: Graph, scope: FactScope) -> None:
        self.facts = scope.facts
        self.scope = scope  # of the region that is walked
        self.weights = module.weights
        self.time = timeline(graph)
        self.may = {name: in_place_inputs(k) for name, k in module.kernels.items()}
        values = list(_values(graph, self.time))
        self.types = {v.name: v.type for v in values}
        self.units = {v.name: v.unit for v in values}
        self.uses = _last_uses(graph, self.time, self.handed())
        self.outputs = {self.time.value(r) for r in graph.outputs}
        self.roots: dict[Ref, Ref] = {v.name: v.name for v in graph.inputs}
        self.sizes: dict[Ref, Dim] = {}  # of the storages that are ours
        self.first: dict[Ref, int] = {}
        self.last: dict[Ref, int] = {}
        self.alone: dict[Ref, Dim] = {}
        self.slices: dict[Ref, Slice] = {}
        self.loops: dict[int, LoopPlan] = {}
        self.wanted: dict[Ref, Ref] = {}  # values that have a storage before the node that makes them
        self.stacked: dict[Ref, Slice] = {}
        self.fed = {v.name for v in graph.inputs}
        self.carried: set[Ref] = set()
        self.seen: dict[Ref, str] = {}  # roots that the host and a unit look at, and this unit

    def storages(self) -> Storages:
        self.walk(self.time.items)
        roots = dict(self.roots)
        for view, value in self.time.under.items():
            roots[view] = self.root(value)
        rows = tuple(
            Storage(r, self.sizes[r], self.first[r], self.last[r])
            for r in sorted(self.sizes, key=self.first.__getitem__)
        )
        units = {r: self.home(r) for r in (*self.sizes, *self.alone)}
        return Storages(
            self.time, roots, rows, self.alone, self.slices, self.loops, units, self.units,
            frozenset(self.seen),
        )  # fmt: skip

    # ------------------------------------------------------------ small answers

    def root(self, ref: Ref) -> Ref:
        value = self.time.value(ref)
        return self.roots.get(value, value)

    def bytes(self, t: TensorType) -> Dim:
        return self.facts.simplify(bytes_of(t.dtype, t.shape))

    def known(self, t: TensorType, at: int) -> bool:
        """Whether the size is known before the node at that position."""
        return self.time.stage(*t.shape) < at

    def same_bytes(self, a: TensorType, b: TensorType) -> bool:
        x, y = self.bytes(a), self.bytes(b)
        return x == y or self.facts.prove_eq(x, y) is YES

    def own(self, ref: Ref, size: Dim, first: int, last: int) -> None:
        """A new storage. What may not come to be (a branch not taken) must not have a negative size."""
        self.roots[ref] = ref
        if self.facts.prove_le(to_dim(0), size) is not YES:
            size = dmax(size, 0)
        # a region that checks a size of the graph around it holds no more than it lets pass
        if self.scope.facts is not self.facts and self.facts.bounds(size)[1] is None:
            high = self.scope.facts.bounds(size)[1]
            size = size if high is None else dmin(size, high)
        self.sizes[ref], self.first[ref], self.last[ref] = size, first, max(first, last)

    def own_value(self, v: Value, first: int) -> None:
        self.own(v.name, self.bytes(v.type), first, self.uses.get(v.name, first))

    def join(self, ref: Ref, root: Ref, until: int = -1) -> None:
        """The value lies in a storage that is there, which lives as long as it."""
        self.roots[ref] = root
        if root in self.last:
            self.last[root] = max(self.last[root], self.uses.get(ref, -1), until)

    # ------------------------------------------------------------ what crosses

    def home(self, root: Ref) -> str:
        """The unit that a storage lies at."""
        return self.seen.get(root, self.units[root])

    def handed(self) -> dict[Ref, Ref]:
        """Values that the host and a unit may share, by what a transfer calls them: what each is made of."""
        moves = (item.node for item in walk_items(self.time.items) if item.node.op == "transfer")
        pairs = {n.output.name: self.time.value(n.inputs[0]) for n in moves}
        return {to: of for to, of in pairs.items() if self.at_host(to) is not self.at_host(of)}

    def at_host(self, value: Ref) -> bool:
        return self.units.get(value, CPU) in ("", CPU)

    def share(self, root: Ref, unit: str) -> bool:
        """Whether a value of that unit may lie in a storage, which from now on the host looks at, too, if it
        does not yet."""
        if root not in self.sizes and root not in self.alone and root not in self.fed:
            return False
        home = self.home(root)
        if (home in ("", CPU)) is (unit in ("", CPU)):
            return home == unit
        if root in self.seen:
            return unit in ("", CPU)
        if home in ("", CPU) and (root in self.fed or root in self.outputs - self.carried):
            return False  # it comes from the caller, or goes to him, and crosses once
        self.seen[root] = unit if home in ("", CPU) else home
        return True

    def transfer(self, item: Item) -> None:
        v, root = item.node.output, self.root(item.node.inputs[0])
        if v.name in self.wanted or v.name in self.stacked or not self.share(root, v.unit):
            self.plain(item)
        else:
            self.join(v.name, root)

    # ------------------------------------------------------------ nodes

    def walk(self, items: tuple[Item, ...]) -> None:
        steps = {"if": self.branch, "loop": self.loop, "transfer": self.transfer}
        for item in items:
            steps.get(item.node.op, self.plain)(item)

    def plain(self, item: Item) -> None:
        taken: set[Ref] = set()
        for n, v in enumerate(item.node.outputs):
            if v.name in self.wanted:
                self.join(v.name, self.wanted[v.name])
            elif v.name in self.stacked:
                self.roots[v.name] = v.name
                self.slices[v.name] = self.stacked[v.name]
            elif (over := self.taken_over(item, n, v.name, taken)) is not None:
                taken.add(over)
                self.join(v.name, over)
            else:
                self.own_value(v, item.start)

    def taken_over(self, item: Item, n: int, value: Ref, taken: set[Ref]) -> Ref | None:
        """The storage that output n of the node may overwrite: of an input that dies here."""
        if value in self.outputs:
            return None
        roots = [self.root(r) for r in item.node.inputs]
        for k in self.may_take(item, n):
            r = roots[k]
            if r not in self.sizes or r in taken or self.last[r] != item.start or roots.count(r) > 1:
                continue
            return r
        return None

    def may_take(self, item: Item, n: int) -> tuple[int, ...]:
        if item.node.op != "call_kernel":
            return ()
        return self.may.get(str(item.node.attr("kernel")), {}).get(n, ())

    # ------------------------------------------------------------ branches

    def branch(self, item: Item) -> None:
        """Results of a size known before lie in one storage that both branches write to; others get theirs
        after the branches."""
        early = [self.known(v.type, item.start) for v in item.node.outputs]
        for v, known in zip(item.node.outputs, early, strict=True):
            if v.name in self.wanted:
                self.join(v.name, self.wanted[v.name])
            else:
                self.own_value(v, item.start if known else item.arms[0].end)
        for arm in item.arms:
            made = _made_in(arm)
            for v, known, ref in zip(item.node.outputs, early, arm.graph.outputs, strict=True):
                value = self.time.value(ref)
                if not known or value not in made or value in self.wanted:
                    continue
                if self.same_bytes(self.types[value], v.type):
                    self.want(value, self.roots[v.name], made)
            self.inside(arm)

    def want(self, value: Ref, root: Ref, made: Mapping[Ref, Item]) -> None:
        """The value is to be made in a storage that is there; so is what a transfer in this region makes it
        of, where both may lie there."""
        self.wanted[value] = root
        node = made[value].node
        source = self.time.value(node.inputs[0]) if node.op == "transfer" else ""
        if source in made and source not in self.wanted and self.share(root, self.units[source]):
            self.want(source, root, made)

    def inside(self, arm: Arm) -> None:
        outside, self.scope = self.scope, self.scope.enter(arm.graph)
        self.walk(arm.items)
        self.scope = outside

    # ------------------------------------------------------------ loops

    def loop(self, item: Item) -> None:
        (arm,) = item.arms
        states, results = arm.graph.inputs[2:], item.node.outputs
        copied: set[int] = set()
        taken: set[Ref] = set()
        self.carried.update(v.name for v in results)
        for k, (state, first) in enumerate(zip(states, item.node.inputs[2:], strict=True)):
            self.state(item, k, state, results[k], first, copied, taken)
        counter, flag = (self.cell(item, v) for v in arm.graph.inputs[:2])
        made = _made_in(arm)
        for state, ref in zip(states, arm.graph.outputs[1:], strict=False):
            self.written_straight(state, self.time.value(ref), made)
        for v, ref in zip(results[len(states) :], arm.graph.outputs[1 + len(states) :], strict=True):
            self.stack(item, v, self.time.value(ref), made)
        self.inside(arm)
        moves = self.moves(item, arm)
        self.loops[item.start] = LoopPlan(frozenset(copied), tuple(moves), counter, flag)

    def state(
        self, item: Item, k: int, state: Value, result: Value, first: Ref, copied: set[int], taken: set[Ref]
    ) -> None:
        """The storage of carried value k: before, in and after the loop."""
        if not self.known(state.type, item.start):
            self.alone[result.name] = self.bytes(state.type)
            self.roots[result.name] = self.roots[state.name] = result.name
            copied.add(k)
            return
        before = self.root(first)
        if result.name in self.wanted:
            root = self.wanted[result.name]
            copied.add(k)
        elif self.is_free(before, item, taken) and self.share(before, state.unit):
            root = before
            taken.add(before)
        else:
            root = result.name
            self.own(root, self.bytes(state.type), item.start, item.end)
            copied.add(k)
        self.join(result.name, root, item.end)
        self.roots[state.name] = root

    def is_free(self, root: Ref, item: Item, taken: set[Ref]) -> bool:
        return root in self.sizes and self.last[root] == item.start and root not in taken

    def cell(self, item: Item, v: Value) -> Ref:
        """A storage for the round's number or the condition, where the body reads it."""
        if v.name not in self.uses:
            return ""
        self.own(v.name, to_dim(v.type.dtype.bytes), item.start, item.end)
        return v.name

    def written_straight(self, state: Value, value: Ref, made: Mapping[Ref, Item]) -> None:
        """Let the body write the next state over this one, where this one is not read any more."""
        item, root = made.get(value), self.roots[state.name]
        if item is None or value in self.wanted or root in self.alone:
            return
        if not self.same_bytes(state.type, self.types[value]):
            return
        early = self.time.value(item.node.inputs[0]) if item.node.op == "transfer" else ""
        if early in made and self.may_replace(made[early], early, state.name):
            self.want(value, root, made)
        elif self.may_replace(item, value, state.name):
            self.wanted[value] = root

    def may_replace(self, item: Item, value: Ref, state: Ref) -> bool:
        """Whether nothing reads the state any more once the node writes the value."""
        read = self.uses.get(state, -1)
        return read < item.start or (read == item.start and self.overwrites(item, value, state))

    def overwrites(self, item: Item, value: Ref, state: Ref) -> bool:
        n = next(n for n, v in enumerate(item.node.outputs) if v.name == value)
        read = [self.time.value(r) for r in item.node.inputs]
        return read.count(state) == 1 and read.index(state) in self.may_take(item, n)

    def stack(self, item: Item, v: Value, value: Ref, made: Mapping[Ref, Item]) -> None:
        """What rounds add up to: whole from the start where its size is known, else it grows."""
        if not self.known(v.type, item.start):
            self.alone[v.name] = self.bytes(v.type)
            self.roots[v.name] = v.name
            return
        if v.name in self.wanted:
            self.join(v.name, self.wanted[v.name])
        else:
            self.own(v.name, self.bytes(v.type), item.start, max(item.end, self.uses.get(v.name, -1)))
        maker = made.get(value)
        if maker is not None and not maker.arms and value not in self.wanted and value not in self.stacked:
            size = self.bytes(self.types[value])
            # at a unit every buffer of a kernel begins where an arena may
            if v.unit in ("", CPU) or self.facts.prove_divisible(size, ALIGNMENT) is YES:
                self.stacked[value] = Slice(self.roots[v.name], size, item.counter)

    def moves(self, item: Item, arm: Arm) -> list[Move]:
        """The next states into their storages, in an order that reads each before it is overwritten."""
        waiting: list[Move] = []
        states = arm.graph.inputs[2:]
        for state, ref in zip(states, arm.graph.outputs[1:], strict=False):
            to, source = self.roots[state.name], self.root(ref)
            if to != source or self.at_host(state.name) is not self.at_host(self.time.value(ref)):
                size = self.bytes(self.type_of(ref))
                waiting.append(Move(to, source, state.name, ref, size, to in self.alone))
        sizes = {self.roots[s.name]: self.bytes(s.type) for s in states}
        done: list[Move] = []
        while waiting:
            free = next((m for m in waiting if all(o.source != m.to for o in waiting)), None)
            if free is not None:
                waiting.remove(free)
                done.append(free)
                continue
            # a ring: its first state is put aside
            m = waiting[0]
            aside = f"aside.{item.start}.{len(done)}"
            self.units[aside] = self.units[m.value]
            if m.reserve:
                self.alone[aside] = sizes[m.to]
                self.roots[aside] = aside
            else:
                self.own(aside, sizes[m.to], arm.end, arm.end)
            done.append(Move(aside, m.to, aside, m.value, sizes[m.to], m.reserve))
            waiting = [replace(o, source=aside, made=aside) if o.source == m.to else o for o in waiting]
        return done

    def type_of(self, ref: Ref) -> TensorType:
        """The type of the value or weight below a ref."""
        value = self.time.value(ref)
        return self.types[value] if value in self.types else self.weights[value].type


def _made_in(arm: Arm) -> dict[Ref, Item]:
    """The values that nodes of the region itself make."""
    return {v.name: item for item in arm.items for v in item.node.outputs}


def _values(graph: Graph, time: Timeline) -> Iterator[Value]:
    yield from graph.inputs
    for item in walk_items(time.items):
        yield from item.node.outputs
        for arm in item.arms:
            yield from arm.graph.inputs


def _last_uses(graph: Graph, time: Timeline, handed: Mapping[Ref, Ref]) -> dict[Ref, int]:
    """Position of the last read of each value (through views; views themselves do not read). What a loop
    reads from outside is read until the loop ends; what an arm gives, until the branch ends where that
    decides sizes, since memory of these sizes is reserved before it is copied there. handed: values that may
    lie where another one lies, which is then read with them."""
    uses: dict[Ref, int] = {}
    home: dict[Ref, int] = {}

    def define(values: Iterable[Value], path: Sequence[int]) -> None:
        home.update((v.name, len(path)) for v in values)

    def read(refs: Iterable[Ref], at: int, path: Sequence[int]) -> None:
        for ref in refs:
            value = time.value(ref)
            while value:
                depth = home.get(value, 0)
                uses[value] = max(uses.get(value, -1), path[depth] if depth < len(path) else at)
                value = handed.get(value, "")

    def visit(items: tuple[Item, ...], path: tuple[int, ...]) -> None:
        for item in items:
            read((r for r in item.node.inputs if r), item.start, path)
            inner = (*path, item.end) if item.node.op == "loop" else path
            decides = item.node.op == "if" and new_symbols(item.node.outputs, time, item.end)
            for arm in item.arms:
                define(arm.graph.inputs, inner)
                visit(arm.items, inner)
                read(arm.graph.outputs, item.end if decides else arm.end, inner)
            define(item.node.outputs, path)

    define(graph.inputs, ())
    visit(time.items, ())
    read(graph.outputs, time.end, ())
    return uses


__all__ = ["ALIGNMENT", "LoopPlan", "Move", "Slice", "Storage", "Storages", "bytes_of", "storages"]
