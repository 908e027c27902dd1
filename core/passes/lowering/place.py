"""Lowered graphs -> lowered graphs whose values name the unit that they lie at; transfers where edges cross.

A kernel runs on one unit and reads what lies there:

    %a = call_kernel(%x) {kernel = "f"}           %a = call_kernel(%x) {kernel = "f"} : .. on "cpu"
    %b = call_kernel(%a) {kernel = "g"}    -->    %a.gpu = transfer(%a) : .. on "gpu"
                                                  %b = call_kernel(%a.gpu) {kernel = "g"} : .. on "gpu"

What crosses is moved once to each unit that reads it, before the outermost loop that reads it, and an input
before anything runs. What goes to the host sets out where it is made, so that the host works while the unit
does, until it reads it. An input lies where it is read, at the CPU if the host or several units read it. What
a loop carries or a branch gives lies where the body or the first arm makes it. Weights are at every unit that
reads them. What the host reads of fed integers it makes itself (hosted.py).

What computes with a dtype that some devices lack is the host's, unless a rule names a unit for it.

A rule that says `auto` leaves its kernels to costs (costs.py), and with them where branches, loops and states
have their results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.ir.analysis.scope import kernel_dtypes
from smelt.core.ir.graph import Graph, Module, Node, Ref, Value
from smelt.core.ir.units import CALLS, HELD, HOST_CALLS, VIEWS
from smelt.core.machine import ANY_UNIT, CPU
from smelt.core.passes.cleanup.dce import dce
from smelt.core.passes.context import Context, Hook
from smelt.core.passes.lowering.costs import Choice, chosen
from smelt.core.passes.lowering.hosted import decided, hosted
from smelt.core.system import is_auto, system_of, weighing_of

UnitOf: TypeAlias = Callable[[Node], str]
"""Which unit runs a kernel."""


def place(module: Module, ctx: Context) -> Module:
    """The module with a unit for each value. A kernel runs where the first rule of ctx.options.place says
    whose pattern fits its name, its node's, or the op type of a node that it does the work of; else on the
    unit that ctx.machine is of, or on the CPU if some devices of that kind lack a dtype of its. A name of no
    kernel's own node is of those that hold the node. The rule may leave that to costs (docs/units.md).

    Raises SmeltError for a unit that there is not, for a name that nothing has, and for names of one
    kernel's nodes that are to be on several units; `*` and the like may fit nothing, which `idle_reporter`
    tells. For costs that cannot be told, as system_of and point_of do."""
    rules = _Rules.of(module, ctx)
    rules.check()
    if not ctx.units:
        return module
    placed = {name: _place(module, g, ctx, rules) for name, g in module.graphs.items()}
    return dce(module.with_(graphs=placed), ctx)


def explain_places(module: Module, ctx: Context) -> tuple[str, ...]:
    """Why `place` puts kernels where it does: with a rule that leaves some to costs, these; and which ones
    are the CPU's for their dtypes."""
    rules = _Rules.of(module, ctx)
    rules.check()
    found = (choice_of(module, g, ctx) for g in module.graphs.values())
    lines = [line for choice in found if choice is not None for line in choice.reasons()]
    for n in module.calls():
        missing = rules.missing(n)
        if missing:
            name = n.attr("kernel")
            why = f"it computes in {', '.join(sorted(missing))}, which some devices lack"
            lines.append(f"{name}: at the CPU, since {why}; a rule '{name}=UNIT' places it elsewhere")
    return tuple(dict.fromkeys(lines))


def idle_reporter(idle: dict[str, None], ctx: Context) -> Hook:
    """A hook that fills `idle` when the pass is done: patterns of ctx.options.place that fit no kernel."""

    def look(before: Module, name: str, after: Module) -> None:
        if name == "place":
            rules, calls = _Rules.of(before, ctx), list(before.calls())
            patterns = [p for p, _ in ctx.options.place]
            idle.update((p, None) for p in patterns if not any(rules.fits(p, n) for n in calls))

    return look


def choice_of(module: Module, graph: Graph, ctx: Context) -> Choice | None:
    """What costs say of a lowered graph without units, where a rule asks them about one of its calls; else
    None. Raises as `place`."""
    rules = _Rules.of(module, ctx)
    if not any(n.op in CALLS and is_auto(rules.unit(n)) for n in graph.walk()):
        return None
    asked = [weighing_of(unit, ctx.units) for _, unit in ctx.options.place if is_auto(unit)]
    weighing = reduce(or_, asked)
    units = {CPU: ctx.units[CPU], **ctx.units}

    def fixed(n: Node) -> str | None:
        ruled = rules.unit(n)
        return None if is_auto(ruled) else ruled

    system = system_of(units, weighing.figures)
    twins = decided(module, graph)
    return chosen(module, graph, system, weighing.sizes, fixed, twins, ctx.options.states)


@dataclass(frozen=True)
class _Rules:
    """The rules of a compile for the calls of a module. own: names of kernels, and of the nodes that they are
    called after. names: these and of all other nodes that kernels hold. op_types: of each node. dtypes: of
    each kernel, those that some unit lacks."""

    module: Module
    ctx: Context
    own: frozenset[str]
    names: frozenset[str]
    op_types: Mapping[str, Collection[str]]
    dtypes: Mapping[str, frozenset[str]]

    @staticmethod
    def of(module: Module, ctx: Context) -> _Rules:
        """The rules of ctx for this module."""
        own = frozenset(name for n in module.calls() for name in _own_names(n))
        held = frozenset(name for n in module.calls() for name in _held_names(n))
        op_types: dict[str, list[str]] = {}
        for op_type, names in ctx.options.op_types.items():
            for name in names:
                op_types.setdefault(name, []).append(op_type)
        lacks = {dtype for m in ctx.units.values() for dtype in m.lacks}
        kernels = module.kernels.items() if lacks else ()
        used = {name: lacks.intersection(t.name for t in kernel_dtypes(k)) for name, k in kernels}
        dtypes = {name: frozenset(found) for name, found in used.items() if found}
        return _Rules(module, ctx, own, own | held, op_types, dtypes)

    def unit(self, n: Node) -> str:
        """The unit that runs a kernel, or that costs decide; libraries are the host's. Of one unit there is
        no choice."""
        if n.op in HOST_CALLS:
            return CPU
        if self.missing(n):
            return CPU
        rule = self.ruled(n)
        return self.ctx.unit if rule is None or (is_auto(rule) and len(self.ctx.units) == 1) else rule

    def ruled(self, n: Node) -> str | None:
        """What the first rule that fits says."""
        return next((unit for pattern, unit in self.ctx.options.place if self.fits(pattern, n)), None)

    def missing(self, n: Node) -> frozenset[str]:
        """The dtypes for which a kernel is the CPU's: those that some devices lack where it would run, unless
        a rule names its unit."""
        used = self.dtypes.get(str(n.attr("kernel")), frozenset())
        if not used or n.op in HOST_CALLS:
            return frozenset()
        rule = self.ruled(n)
        if rule is None:
            return used & self.ctx.units[self.ctx.unit].lacks
        return used if is_auto(rule) else frozenset()

    def fits(self, pattern: str, n: Node) -> bool:
        """Whether a rule is about a call: by a name of its own, as the one that holds the node, or by the op
        type of a node that it holds. What is the name of a node is no op type."""
        if any(fnmatchcase(name, pattern) for name in _own_names(n)) or self.is_held(pattern, n):
            return True
        held = () if pattern in self.names else _held_names(n)
        return any(fnmatchcase(t, pattern) for name in held for t in self.op_types.get(name, ()))

    def is_held(self, pattern: str, n: Node) -> bool:
        """Whether a rule names a node that is part of this kernel and of no kernel the last one."""
        return pattern in _held_names(n) and pattern not in self.own

    def check(self) -> None:
        """Raises SmeltError as `place` does."""
        calls = list(self.module.calls())
        op_types = self.ctx.options.op_types
        for pattern, unit in self.ctx.options.place:
            if is_auto(unit):
                weighing_of(unit, self.ctx.units)
            elif unit not in self.ctx.units:
                known = ", ".join((*self.ctx.units, ANY_UNIT))
                raise SmeltError(f"place: '{pattern}={unit}' names no unit of the target, which has {known}")
            if _is_name(pattern) and pattern not in self.names and pattern not in op_types:
                from difflib import get_close_matches

                close = get_close_matches(pattern, sorted({*self.names, *op_types}), 3, 0.0)
                near = ", ".join(f"'{n}'" for n in close)
                raise SmeltError(
                    f"place: '{pattern}={unit}' names no node, op type or kernel of '{self.module.name}'",
                    hint=f"near to it are {near}" if near else "the model calls no kernel",
                )
        named = [r for r in self.ctx.options.place if r[0] in self.names]
        for n in calls if len(named) > 1 else ():
            self._check_call(n, named)

    def _check_call(self, n: Node, named: Sequence[tuple[str, str]]) -> None:
        """Names of nodes that one kernel holds are of one unit."""
        about = [r for r in named if self.fits(r[0], n)]
        other = next((r for r in about if r[1] != about[0][1]), None)
        if other is not None and any(self.is_held(pattern, n) for pattern, _ in about):
            first, second = ("=".join(r) for r in (about[0], other))
            raise SmeltError(
                f"place: '{first}' and '{second}' disagree: kernel '{n.attr('kernel')}' does the work of "
                "both",
                node=n.origin or None,
                hint="give them one unit, or leave one of the rules out",
            )


def _is_name(pattern: str) -> bool:
    return not any(c in pattern for c in "*?[")


def _own_names(n: Node) -> tuple[str, ...]:
    """What a call is known by: its kernel, and the node that it is called after."""
    return tuple(name for name in (str(n.attr("kernel")), n.origin) if name)


def _held_names(n: Node) -> tuple[str, ...]:
    """The names of the nodes that a call does the work of, where lower.py has noted them."""
    held = n.attr(HELD, ())
    return tuple(map(str, held)) if isinstance(held, tuple) else ()


def _place(module: Module, graph: Graph, ctx: Context, rules: _Rules) -> Graph:
    choice = choice_of(module, graph, ctx)
    chosen_units = {} if choice is None else choice.units

    def unit_of(n: Node) -> str:
        ruled = rules.unit(n)
        return chosen_units[n.outputs[0].name] if is_auto(ruled) else ruled

    graph, ours = hosted(module, graph, unit_of)
    units = _Units(graph, unit_of, ctx.unit, ours, chosen_units)
    return _Scope(units, None, "", {}).graph(graph, [units.of_input(v) for v in graph.inputs])


class _Units:
    """Where each value of a graph is to lie, before anything is moved. hosted: at the host in any case.
    given: of results of branches and loops, and of inputs, what costs say."""

    def __init__(
        self, graph: Graph, unit_of: UnitOf, usual: str, hosted: frozenset[Ref], given: Mapping[Ref, str]
    ) -> None:
        self.unit_of = unit_of
        self.usual = usual
        self.hosted = hosted
        self.given = given
        nodes = list(graph.walk())
        self.maker = {v.name: n for n in nodes for v in n.outputs}
        self.wanted: dict[Ref, dict[str, None]] = {}
        self.names = {*self.maker, *(v.name for v in graph.inputs)}
        self.names.update(v.name for n in nodes for r in n.regions for v in r.inputs)
        for n in nodes:
            for ref, unit in self._reads(n):
                self.wanted.setdefault(self._source(ref), {})[unit] = None

    def of_call(self, n: Node) -> str:
        """The unit that runs a kernel."""
        return CPU if n.outputs[0].name in self.hosted else self.unit_of(n)

    def of_result(self, n: Node, k: int) -> str:
        """Where output k of a node lies."""
        if n.op in CALLS:
            return self.of_call(n)
        if n.op not in ("if", "loop"):
            return n.unit or self.usual
        if n.outputs[k].name in self.given:
            return self.given[n.outputs[k].name]
        ref = self._source(n.regions[0].outputs[k + (n.op == "loop")])
        made = self.maker.get(ref)
        return self.of_result(made, [v.name for v in made.outputs].index(ref)) if made else self.usual

    def of_input(self, v: Value) -> str:
        """Where an input lies."""
        wanted = self.wanted.get(v.name, {})
        if v.name in self.given and v.name not in self.hosted:
            return self.given[v.name]
        return next(iter(wanted)) if len(wanted) == 1 and v.name not in self.hosted else CPU

    def _source(self, ref: Ref) -> Ref:
        """What a ref is a view of."""
        while ref in self.maker and self.maker[ref].op in VIEWS:
            ref = self.maker[ref].inputs[0]
        return ref

    def _reads(self, n: Node) -> Iterable[tuple[Ref, str]]:
        if n.op in CALLS:
            return [(r, self.of_call(n)) for r in n.inputs]
        if n.op not in ("if", "loop"):
            return []
        units = [self.of_result(n, k) for k in range(len(n.outputs))]
        first = n.op == "loop"
        found = [pair for r in n.regions for pair in zip(r.outputs[first:], units, strict=True)]
        return [*found, *zip(n.inputs[2:], units, strict=False)] if first else found


@dataclass
class _Scope:
    """A graph or a region while it is written again. values: what is defined here, by name. moved: the name
    of a value at another unit. early: how many nodes in front move inputs."""

    units: _Units
    outer: _Scope | None
    op: str
    values: dict[Ref, Value]
    nodes: list[Node] = field(default_factory=list)
    moved: dict[tuple[Ref, str], Ref] = field(default_factory=dict)
    early: int = 0

    def graph(self, g: Graph, inputs: Sequence[str], results: Sequence[str] = ()) -> Graph:
        """The graph with its inputs at these units, and its last results."""
        given = tuple(replace(v, unit=unit) for v, unit in zip(g.inputs, inputs, strict=True))
        self.values.update((v.name, v) for v in given)
        for n in g.nodes:
            self.node(n)
        kept = len(g.outputs) - len(results)
        outputs = (*g.outputs[:kept], *map(self.at, g.outputs[kept:], results))
        return g.with_(inputs=given, nodes=tuple(self.nodes), outputs=outputs)

    def node(self, n: Node) -> None:
        units = [self.units.of_result(n, k) for k in range(len(n.outputs))]
        if n.op in VIEWS:
            units = [self.unit(n.inputs[0])]
        elif n.op in CALLS:
            attrs = MappingProxyType({key: a for key, a in n.attrs.items() if key != HELD})
            n = n.with_(inputs=tuple(self.at(r, units[0]) for r in n.inputs), attrs=attrs)
        elif n.op == "if":
            n = n.with_(regions=tuple(self.region(n.op, r, [], units) for r in n.regions))
        elif n.op == "loop":
            n = self.loop(n, units)
        outputs = tuple(replace(v, unit=unit) for v, unit in zip(n.outputs, units, strict=True))
        self.add(n.with_(outputs=outputs))

    def loop(self, n: Node, units: Sequence[str]) -> Node:
        (body,) = n.regions
        carried = n.inputs[2:]
        inputs = (*n.inputs[:2], *map(self.at, carried, units))
        cells = [self.units.of_input(v) for v in body.inputs[:2]]
        region = self.region(n.op, body, [*cells, *units[: len(carried)]], units)
        return n.with_(inputs=inputs, regions=(region,))

    def region(self, op: str, g: Graph, inputs: Sequence[str], results: Sequence[str]) -> Graph:
        return _Scope(self.units, self, op, {}).graph(g, inputs, results)

    def add(self, n: Node) -> None:
        self.nodes.append(n)
        self.values.update((v.name, v) for v in n.outputs)

    def find(self, ref: Ref) -> Value | None:
        """The value of that name, from here or around; None for a weight."""
        if ref in self.values or self.outer is None:
            return self.values.get(ref)
        return self.outer.find(ref)

    def repeats(self, ref: Ref) -> bool:
        """Whether a loop stands between here and what defines the value."""
        if ref in self.values or self.outer is None:
            return False
        return self.op == "loop" or self.outer.repeats(ref)

    def unit(self, ref: Ref) -> str:
        found = self.find(ref)
        return found.unit if found else ""

    def known(self, ref: Ref, unit: str) -> Ref | None:
        """What a value is called at a unit that it was moved to."""
        if (ref, unit) in self.moved or self.outer is None:
            return self.moved.get((ref, unit))
        return self.outer.known(ref, unit)

    def at(self, ref: Ref, unit: str) -> Ref:
        """The value at a unit, moved there first if it is not."""
        value = self.find(ref)
        if value is None or value.unit in ("", unit):
            return ref
        known = self.known(ref, unit)
        if known is not None:
            return known
        if self.outer is not None and self.repeats(ref):
            return self.outer.at(ref, unit)  # once, not once per round
        maker = self.units.maker.get(ref)
        name = self.free(f"{ref}.{unit}")
        moved = (replace(value, name=name, unit=unit),)
        if maker is not None and maker.op in VIEWS:
            self.add(maker.with_(inputs=(self.at(maker.inputs[0], unit),), outputs=moved))
        elif self.outer is None and maker is None:  # an input: at once, so that all work after it is one part
            self.values[name] = moved[0]
            self.nodes.insert(self.early, Node("transfer", (ref,), moved))
            self.early += 1
        else:
            self.move(Node("transfer", (ref,), moved, origin=maker.origin if maker else ""))
        self.moved[ref, unit] = name
        return name

    def move(self, n: Node) -> None:
        """A transfer: of what this scope makes and the host reads, right behind the node that makes it."""
        at = len(self.nodes)
        self.add(n)
        if n.unit != CPU or n.inputs[0] not in self.values:
            return
        made = (k for k in range(at - 1, -1, -1) if any(v.name == n.inputs[0] for v in self.nodes[k].outputs))
        self.nodes.insert(next(made, at - 1) + 1, self.nodes.pop())

    def free(self, name: Ref) -> Ref:
        """The name, longer where it is taken."""
        while name in self.units.names:
            name += "'"
        self.units.names.add(name)
        return name
