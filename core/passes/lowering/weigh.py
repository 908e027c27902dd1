"""A lowered graph, a System and sizes -> its UnitCosts: what calls cost at each unit, and moves between them.

Things to place are the calls, what branches and loops give, and states. Inputs come from the host, outputs
go there, and the host reads sizes and conditions; weights are wherever they are read. A loop's body counts
for each round, an arm of a branch for its share: nobody knows which arm a run takes. A value moves once for
all that read it elsewhere, also where the arms of branches move it each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from smelt.core.dim import Dim, value_at
from smelt.core.dtype import INT64
from smelt.core.ir.analysis.samples import sample_points
from smelt.core.ir.analysis.work import KernelWork, amounts, work
from smelt.core.ir.graph import Graph, Module, Node, Ref, Symbol, TensorType, Value
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.units import CALLS, HOST_CALLS, HOST_READS, VIEWS
from smelt.core.passes.lowering.assign import Shared, UnitCosts
from smelt.core.system import System

HOST_THING: Final = 0
"""The thing that stands for the host's own memory."""
TICKS: Final = 10**12
"""Costs are in picoseconds, so that they are whole numbers and none is lost."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A graph with its costs. units: the names of the numbers in it, the CPU first. things: of each its first
    value, '' for the host. calls: number of a thing -> the call. rounds: how often it runs."""

    costs: UnitCosts
    units: tuple[str, ...]
    things: tuple[Ref, ...]
    calls: Mapping[int, Node]
    rounds: Mapping[int, float]


def weighed(
    module: Module,
    graph: Graph,
    system: System,
    point: Mapping[str, int],
    fixed: Callable[[Node], str | None],
    twins: frozenset[Ref] = frozenset(),
    states: Sequence[tuple[Ref | None, Ref | None]] = (),
) -> Weighed:
    """What it costs. point: a value for each symbol. fixed: the unit of a call that has no choice. twins:
    what the host reads and makes itself. states: inputs, and outputs that replace them, which stay where they
    are."""
    found = _Scales(module, system, point, fixed, twins)
    found.whole(graph, states)
    return found.done()


@dataclass(frozen=True, slots=True)
class _Made:
    """A value: what makes it, its bytes, and how often it is made: as often it moves, if it does."""

    maker: int
    size: int
    rounds: float


@dataclass
class _Scales:
    """What has been weighed of a graph."""

    module: Module
    system: System
    point: Mapping[str, int]
    fixed: Callable[[Node], str | None]
    twins: frozenset[Ref]
    things: list[Ref] = field(default_factory=list)
    own: list[tuple[int | None, ...]] = field(default_factory=list)
    calls: dict[int, Node] = field(default_factory=dict)
    rounds: dict[int, float] = field(default_factory=dict)
    made: dict[Ref, _Made] = field(default_factory=dict)
    below: dict[Ref, Ref] = field(default_factory=dict)
    readers: dict[Ref, dict[int, None]] = field(default_factory=dict)
    apart: list[tuple[_Made, int]] = field(default_factory=list)
    counted: dict[Kernel, KernelWork | None] = field(default_factory=dict)

    def done(self) -> Weighed:
        """All of it."""
        shared = [self._shared(self.made[ref], tuple(to)) for ref, to in self.readers.items()]
        shared += [self._shared(m, (reader,)) for m, reader in self.apart]
        units = tuple(self.system.machines)
        found = UnitCosts(len(units), tuple(self.own), tuple(shared))
        return Weighed(found, units, tuple(self.things), self.calls, self.rounds)

    # ------------------------------------------------------------ graphs

    def whole(self, g: Graph, states: Sequence[tuple[Ref | None, Ref | None]]) -> None:
        """The main graph. What it returns as it was fed stays at the host."""
        at_host = tuple(0 if n == 0 else None for n, _ in enumerate(self.system.machines))
        self._thing("", at_host)
        homes = {given: self._thing(given) for given, _ in states if given is not None}
        self.below.update((n.output.name, n.inputs[0]) for n in g.nodes if n.op in VIEWS)
        returned = set(map(self._source, g.outputs))
        for v in g.inputs:
            if v.name in returned and v.name not in homes:
                homes[v.name] = self._thing(v.name, at_host)
            self._make(v, homes.get(v.name, HOST_THING), 1.0)
        self._nodes(g, 1.0)
        kept = {after: given for given, after in states if after is not None}
        for ref in g.outputs:
            home = HOST_THING if ref not in kept else homes.get(kept[ref] or "")
            made = self.made.get(self._source(ref))
            if made is not None and home is not None:  # another entry's state may lie anywhere
                self.apart.append((made, home))

    def _nodes(self, g: Graph, rounds: float) -> None:
        for n in g.nodes:
            if n.op in VIEWS:
                self.below[n.output.name] = n.inputs[0]
                continue
            for ref in n.inputs[: HOST_READS.get(n.op, 0)]:
                if ref not in self.twins:
                    self._read(ref, HOST_THING)
            if n.op in CALLS:
                self._call(n, rounds)
            elif n.op in ("if", "loop"):
                results = [self._thing(v.name) for v in n.outputs]
                for v, thing in zip(n.outputs, results, strict=True):
                    self._make(v, thing, rounds)
                self._arms(n, results, rounds) if n.op == "if" else self._loop(n, results, rounds)
            else:
                for v in n.outputs:
                    self._make(v, HOST_THING, rounds)

    def _arms(self, n: Node, results: Sequence[int], rounds: float) -> None:
        for region in n.regions:
            self._nodes(region, rounds / len(n.regions))
            for ref, thing in zip(region.outputs, results, strict=True):
                self._read(ref, thing)

    def _loop(self, n: Node, results: Sequence[int], rounds: float) -> None:
        (body,), carried = n.regions, n.inputs[2:]
        rounds *= self._trips(n)
        for k, v in enumerate(body.inputs):
            self._make(v, HOST_THING if k < 2 else results[k - 2], rounds)
        for ref, thing in zip(carried, results, strict=False):
            self._read(ref, thing)
        self._nodes(body, rounds)
        for ref, thing in zip(body.outputs, (HOST_THING, *results), strict=True):
            self._read(ref, thing)

    def _trips(self, n: Node) -> int:
        """How often a loop runs: by its attribute, by what it stacks, by a weight; else as often as a size is
        large that nobody has bounded."""
        trips, given = n.attr("trips"), self.module.weights.get(n.inputs[0])
        stacked = n.outputs[len(n.inputs) - 2 :]
        if isinstance(trips, Dim) and (count := value_at(trips, self.point)) < INT64:
            return max(count, 0)
        if stacked:
            return max(value_at(stacked[0].type.shape[0], self.point), 0)
        if given is not None and not given.is_named_only and (count := int(given.array().item())) < INT64:
            return max(count, 0)
        return sample_points([Symbol("")])[-1][""]

    # ------------------------------------------------------------ things and values

    def _thing(self, name: Ref, own: tuple[int | None, ...] | None = None) -> int:
        """A new thing; without costs of its own it may be anywhere."""
        self.things.append(name)
        self.own.append((0,) * len(self.system.machines) if own is None else own)
        return len(self.things) - 1

    def _make(self, v: Value, maker: int, rounds: float) -> None:
        self.made[v.name] = _Made(maker, self._bytes(v.type), rounds)

    def _source(self, ref: Ref) -> Ref:
        while ref in self.below:
            ref = self.below[ref]
        return ref

    def _read(self, ref: Ref, reader: int) -> None:
        """Of a weight, or of nothing, there is nothing to move."""
        ref = self._source(ref)
        if ref in self.made:
            self.readers.setdefault(ref, {})[reader] = None

    def _bytes(self, t: TensorType) -> int:
        return prod(max(value_at(d, self.point), 0) for d in t.shape) * t.dtype.bytes

    def _shared(self, m: _Made, readers: tuple[int, ...]) -> Shared:
        units = tuple(self.system.machines)
        seconds = self.system.copy_seconds
        return Shared(m.maker, readers, tuple(
            tuple(_ticks(seconds(a, b, m.size) * m.rounds) for b in units) for a in units
        ))  # fmt: skip

    # ------------------------------------------------------------ calls

    def _call(self, n: Node, rounds: float) -> None:
        units, unit = tuple(self.system.machines), self.fixed(n)
        costs = [0.0] * len(units) if n.op in HOST_CALLS else self._seconds(n)
        own = [
            _ticks(seconds * rounds) if unit in (None, name) else None
            for name, seconds in zip(units, costs, strict=True)
        ]
        thing = self._thing(n.outputs[0].name, tuple(own))
        self.calls[thing], self.rounds[thing] = n, rounds
        for v in n.outputs:
            self._make(v, thing, rounds)
        for ref in n.inputs:
            self._read(ref, thing)

    def _seconds(self, n: Node) -> list[float]:
        """What one launch takes at each unit."""
        kernel = self.module.kernels[str(n.attr("kernel"))]
        if kernel not in self.counted:
            self.counted[kernel] = work(kernel)
        found = self.counted[kernel]
        at = {p.name: value_at(d, self.point) for p, d in zip(kernel.dims, n.attr("dims", ()), strict=True)}
        amount = amounts(kernel, found, at)
        return [self.system.kernel_seconds(unit, *amount) for unit in self.system.machines]


def _ticks(seconds: float) -> int:
    return round(seconds * TICKS)
