"""Module -> Module: every kernel scheduled for the machine that runs it, once for each way to use it.

A use is what a schedule may rely on: the unit, which inputs are weights, the ranges of the dims at the call.
Uses for which the same is decided share one kernel, scheduled for all of them.

A weight that some kernels pack and others pick from by run-time indices (an embedding that is also the weight
of the last product) lies once: the latter read it as the former packed it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from types import MappingProxyType
from typing import TypeAlias

from smelt.core.dim import Dim, Facts, sym
from smelt.core.ir.analysis.traits import picks
from smelt.core.ir.checked import FactScope
from smelt.core.ir.graph import Graph, Module, Node, Ref
from smelt.core.ir.kernel import DimParam, HotCase, Kernel
from smelt.core.ir.layout import Layout, PackSpec
from smelt.core.ir.params import intersection, parameter, union
from smelt.core.ir.rewrite import map_stmt_dims
from smelt.core.ir.verify import module_facts
from smelt.core.machine import Machine
from smelt.core.schedule.hot import MOST_POINTS, Point, all_points, least_points, points, specialised, steps
from smelt.core.schedule.question import Question
from smelt.core.schedule.recall import Recall, Recalled
from smelt.core.schedule.strategies import draft
from smelt.core.spread import SpreadOut, serially

Machines = Mapping[str, Machine]
_FORMULA = sym("")
FORK_QUESTIONS = 4
"""Kernels whose schedule takes longer than a fork does."""


def schedule_kernel(kernel: Kernel, machine: Machine, constants: frozenset[str] = frozenset()) -> Kernel:
    """The kernel scheduled for the machine. constants: names of inputs that are known when compiling
    and may be packed (see core/ir/layout.py)."""
    return draft(kernel, machine, constants).kernel


def schedule_module(module: Module, machine: Machine, units: Machines = MappingProxyType({})) -> Module:
    """Every kernel scheduled. units: the machines of the units that run calls (Node.unit); machine:
    that of calls which name none. Where uses of a kernel differ in what is decided, calls name one of
    several; what nobody calls is scheduled for any use."""
    return schedule_by(module, machine, units, Recall()).module


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A module whose kernels are scheduled. asked: of each kernel that was, by its name, what the strategies
    were asked and what was answered. hot: of each that depends on sizes with hot values, whether it is
    scheduled again for these, and why it is not; in lines."""

    module: Module
    asked: Mapping[str, Recalled]
    hot: Sequence[str]


def hot_reasons(module: Module, machine: Machine, units: Machines = MappingProxyType({})) -> Sequence[str]:
    """What `schedule_by` says of hot values."""
    return schedule_by(module, machine, units, Recall()).hot


def schedule_by(
    module: Module, machine: Machine, units: Machines, recall: Recall, spread: SpreadOut = serially
) -> Scheduled:
    """As `schedule_module`. recall: the schedules to take in the place of the strategies' own; which uses
    share a kernel is decided by the latter, and so is what runs at hot sizes. spread: asks the strategies.
    Raises SmeltError as Recall does."""
    scheduling = _Scheduling(module, machine, units, recall, spread)
    found = scheduling.run()
    laid = _packed_elsewhere(found)
    hot = {s.name: s.hot for s in module.symbols if s.hot}
    if laid or hot:
        scheduling = replace(scheduling, laid=laid, hot=hot, asked={})
        found = scheduling.run()
    return Scheduled(found, scheduling.asked, scheduling.reasons)


WeightLayouts: TypeAlias = Mapping[tuple[Ref, str], PackSpec]
"""Of a weight at a unit, how it is packed there."""


def _packed_elsewhere(module: Module) -> WeightLayouts:
    """The weights of a scheduled module that some kernel packs and another one reads as they are."""
    found: dict[tuple[Ref, str], dict[Layout | None, None]] = {}
    for node in module.calls():
        inputs = module.kernels[str(node.attr("kernel"))].inputs
        for ref, b in zip(node.inputs, inputs, strict=False):
            if ref.startswith("@"):
                found.setdefault((ref, node.unit), {})[b.layout] = None
    return {
        at: next(x.spec for x in layouts if x is not None)
        for at, layouts in found.items() if None in layouts and len(layouts) > 1
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Use:
    """What may be relied on when a kernel is called. constants: numbers of the inputs that are weights.
    laid: of inputs that lie packed, the number and how. hot: where it is to be fast. least: each dim where
    its symbol is 1."""

    kernel: str
    unit: str
    constants: frozenset[int]
    dims: tuple[DimParam, ...]
    laid: Laid = ()
    hot: tuple[Point, ...] = ()
    least: tuple[Point, ...] = ()


Ranges: TypeAlias = dict[Dim, DimParam]
Laid: TypeAlias = tuple[tuple[int, PackSpec], ...]


def _range(p: DimParam, size: Dim, facts: Facts, ranges: Ranges) -> DimParam:
    """What is known of a dim at a call."""
    if size not in ranges:
        ranges[size] = parameter("", size, facts)
    return intersection(p, ranges[size])


_Decided: TypeAlias = tuple[Kernel, Hashable]
"""A scheduled kernel and what was decided (`_decisions`)."""


@dataclass
class _Scheduling:
    """Collects the kernels of one module. laid: weights that lie as other kernels packed them. hot: symbols
    with values at which kernels are to be fast. asked: about each kernel by its name in the result. reasons:
    what came of hot values, in lines. done, found: the kernels so far, by what was asked and by use."""

    module: Module
    machine: Machine
    units: Machines
    recall: Recall
    spread: SpreadOut
    laid: WeightLayouts = field(default_factory=dict)
    hot: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    asked: dict[str, Recalled] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    done: list[_Decided] = field(default_factory=list)
    found: dict[_Use, _Decided] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = FactScope(module_facts(self.module))

    def run(self) -> Module:
        graphs = self.module.graphs
        uses: dict[str, dict[_Use, None]] = {name: {} for name in self.module.kernels}
        for use in (u for g in graphs.values() for u in self._uses(g, self.start)):
            uses[use.kernel][use] = None
        self._ask(use for mine in uses.values() for use in mine)
        kernels: dict[str, Kernel] = {}
        names: dict[_Use, str] = {}
        for name, mine in uses.items():
            for use, scheduled, group in self._decided(name, mine):
                own = name if name not in kernels else _free(name, {*kernels, *uses})
                scheduled = self._recalled(use, scheduled, own)
                hot = []
                for values, case in self._cases(own, scheduled, group):
                    at = _free(f"{own}_hot", {*kernels, *uses, own})
                    kernels[at] = case.with_(name=at)
                    hot.append(HotCase(at, values))
                kernels[own] = scheduled.with_(name=own, hot=tuple(hot))
                names.update(dict.fromkeys(group, own))

        def renamed(g: Graph, scope: FactScope) -> Graph:
            ranges: Ranges = {}
            scope = scope.enter(g)
            return g.with_(nodes=tuple(call(n, scope, ranges) for n in g.nodes))

        def call(n: Node, scope: FactScope, ranges: Ranges) -> Node:
            if n.op == "call_kernel":
                return n.with_(attrs={**n.attrs, "kernel": names[self._use(n, scope.facts, ranges)]})
            return n.with_(regions=tuple(renamed(g, scope) for g in n.regions)) if n.regions else n

        return self.module.with_(
            kernels=kernels, graphs={name: renamed(g, self.start) for name, g in graphs.items()}
        )

    def _uses(self, graph: Graph, scope: FactScope) -> Iterator[_Use]:
        """Of all calls in the graph and its regions."""
        ranges: Ranges = {}
        scope = scope.enter(graph)
        for node in graph.nodes:
            if node.op == "call_kernel":
                yield self._use(node, scope.facts, ranges)
            for region in node.regions:
                yield from self._uses(region, scope)

    def _use(self, node: Node, facts: Facts, ranges: Ranges) -> _Use:
        """facts: what is known where the node stands. ranges: what was found by these so far; networks repeat
        their sizes."""
        kernel = self.module.kernels[str(node.attr("kernel"))]
        sizes = node.attr("dims", ())
        dims = tuple(_range(p, d, facts, ranges) for p, d in zip(kernel.dims, sizes, strict=True))
        constants = frozenset(i for i, ref in enumerate(node.inputs) if ref.startswith("@"))
        lying = ((i, self.laid.get((node.inputs[i], node.unit))) for i in sorted(constants) if self.laid)
        packed = ((i, spec, kernel.inputs[i].name) for i, spec in lying if spec is not None)
        laid = tuple((i, spec) for i, spec, name in packed if picks(kernel.body, name))
        hot = points(sizes, dims, self.hot, node.origin) if self.hot else ()
        return _Use(kernel.name, node.unit, constants, dims, laid, hot, least_points(sizes))

    def _decided(self, name: str, uses: Iterable[_Use]) -> Iterator[tuple[_Use, Kernel, list[_Use]]]:
        """The kernels that come of one, each with the use that it was scheduled for, and those for which it
        was decided so."""
        kernel = self.module.kernels[name]
        groups: dict[tuple[str, Hashable], dict[_Use, Kernel]] = {}
        for u in uses:
            scheduled, decisions = self.found[u]
            groups.setdefault((u.unit, decisions), {})[u] = scheduled
        alike = ((key, part) for key, group in groups.items() for part in _few_points(group))
        for (_, decisions), group in alike:
            (use, whole), found = next(iter(group.items())), decisions
            if len(group) > 1:
                use = reduce(_joined, group)
                whole, found = self._scheduled(use)
            if found == decisions:
                yield use, whole.with_(origin=kernel.origin), list(group)
            else:
                yield from ((u, k.with_(origin=kernel.origin), [u]) for u, k in group.items())
        if not groups:
            use = _Use(name, "", frozenset(), kernel.dims)
            yield use, self._scheduled(use)[0].with_(origin=kernel.origin), []

    def _recalled(self, use: _Use, scheduled: Kernel, name: str) -> Kernel:
        """The kernel of a use by the schedule that is recalled for it; what came scheduled stays."""
        naive = self.module.kernels[use.kernel]
        if naive.schedule:
            return scheduled
        machine = self.units.get(use.unit, self.machine)
        asked = self.recall(self._question(use), naive.with_(name=name), scheduled, use.unit, machine)
        self.asked[name] = asked
        return asked.done.with_(origin=naive.origin)

    def _question(self, use: _Use) -> Question:
        """What the strategies are asked about a use."""
        kernel = self.module.kernels[use.kernel].with_(name="", origin="", dims=use.dims)
        laid = {kernel.inputs[i].name: spec for i, spec in use.laid}
        names = frozenset(kernel.inputs[i].name for i in use.constants) - laid.keys()
        return Question(kernel, names, laid)

    def _ask(self, uses: Iterable[_Use]) -> None:
        """Find the kernel for each use, without a name, and its decisions; kernels of equal structure are
        scheduled once."""
        wanted: list[tuple[Question, Machine]] = []
        keys: dict[_Use, int] = {}
        for use in uses:
            if use not in self.found:
                asked = self._question(use)
                # hashed whole, so it is looked up once
                new = len(self.numbers)
                key = (asked.kernel, use.unit, use.constants, use.laid)
                keys[use] = number = self.numbers.setdefault(key, new)
                if number == new:
                    wanted.append((asked, self.units.get(use.unit, self.machine)))
        made = self.spread(_answer, wanted, FORK_QUESTIONS)
        self.done += [(k, _decisions(k)) for k in made]
        self.found.update((use, self.done[number]) for use, number in keys.items())

    def _scheduled(self, use: _Use) -> _Decided:
        """What `_ask` finds for one use."""
        self._ask([use])
        return self.found[use]

    def _cases(
        self, name: str, scheduled: Kernel, uses: Sequence[_Use]
    ) -> Iterator[tuple[tuple[tuple[str, int], ...], Kernel]]:
        """The kernels that run in the place of a scheduled one at the points of its uses, and the values of
        its dims there. name: the one that it has in messages."""
        if not uses:
            return
        use = reduce(_joined, uses)
        naive, machine = self.module.kernels[use.kernel], self.units.get(use.unit, self.machine)
        asked = all_points(u.hot for u in uses)
        unasked = steps(scheduled, machine, use.least)
        found = (*asked, *(p for p in unasked if p not in asked))
        if not found or naive.schedule:
            return
        naive = naive.with_(dims=use.dims)
        for p in found:
            case = specialised(naive, scheduled, p, machine, partial(_asked_of, self._question(use)))
            values = tuple(p.of(naive).items())
            if p in asked:
                at = f"{name}: {p.said} ({', '.join(f'{d} = {n}' for d, n in values)})"
                self.reasons.append(f"{at}: {case if isinstance(case, str) else 'scheduled again'}")
            elif not isinstance(case, str) and len(case.scratch) >= len(scheduled.scratch):
                continue  # it copies there, too
            if not isinstance(case, str):
                yield values, case.with_(origin=scheduled.origin)


def _answer(asked: tuple[Question, Machine]) -> Kernel:
    """What the strategies make of a kernel; one that came scheduled stays."""
    question, machine = asked
    return question.kernel if question.kernel.schedule else question.drafted(machine).kernel


def _asked_of(about: Question, kernel: Kernel, machine: Machine) -> Kernel:
    """What the strategies make of another kernel with the same inputs."""
    return replace(about, kernel=kernel).drafted(machine).kernel


def _few_points(uses: Mapping[_Use, Kernel]) -> Iterator[dict[_Use, Kernel]]:
    """The uses in groups that have at most MOST_POINTS points each."""
    group: dict[_Use, Kernel] = {}
    for use, kernel in uses.items():
        if group and len(all_points((*(u.hot for u in group), use.hot))) > MOST_POINTS:
            yield group
            group = {}
        group[use] = kernel
    yield group


def _joined(a: _Use, b: _Use) -> _Use:
    """What both allow to rely on."""
    dims = tuple(map(union, a.dims, b.dims))
    # one decision: laid alike
    hot, least = (all_points(of) for of in ((a.hot, b.hot), (a.least, b.least)))
    return _Use(a.kernel, a.unit, a.constants & b.constants, dims, a.laid, hot, least)


def _decisions(kernel: Kernel) -> Hashable:
    """A scheduled kernel but for what its formulas say: the steps, the loops and tiles with the sizes that
    are constant, which tails and guards there are."""
    body = tuple(map_stmt_dims(s, lambda d: d if d.is_const else _FORMULA) for s in kernel.body)
    return kernel.schedule, tuple(b.layout for b in kernel.inputs), len(kernel.scratch), body


def _free(name: str, taken: Collection[str]) -> str:
    """The name, or the first of name_2, name_3 .. that is not taken."""
    found, n = name, 1
    while found in taken:
        n += 1
        found = f"{name}_{n}"
    return found
