"""A lowered graph and rules of placement that leave calls to costs -> the unit of each, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.core.diag import SmeltError, shortened
from smelt.core.dim import Dim, value_at
from smelt.core.ir.analysis.samples import sample_points
from smelt.core.ir.graph import Graph, Module, Node, Ref
from smelt.core.ir.verify import most_of_binds
from smelt.core.passes.lowering.assign import Assignment, Shared, assigned
from smelt.core.passes.lowering.weigh import TICKS, Weighed, weighed
from smelt.core.system import System

States = Sequence[tuple[str | None, str | None]]
"""Names of inputs, and of the outputs that replace them."""


def point_of(module: Module, sizes: Mapping[str, int]) -> dict[str, int]:
    """A value for each symbol at which placements are weighed: those that are given, else the last of the
    samples by which memory is planned, which are usual sizes.

    Raises SmeltError for a size that no input has, or beyond what it may be."""
    known = {s.name: s for s in module.symbols}
    for name, size in sizes.items():
        if name not in known:
            raise SmeltError(
                f"place: 'auto@{name}={size}': there is no dim '{name}'",
                hint=f"there are {', '.join(known) or 'none'}; of several entries, ENTRY/PATTERN=auto@.. "
                "is about one",
            )
        s = known[name]
        if size < s.low or (s.high is not None and size > s.high) or size % s.divisor:
            high = "" if s.high is None else s.high
            step = f", multiples of {s.divisor}" if s.divisor > 1 else ""
            raise SmeltError(f"place: 'auto@{name}={size}': the dim is in {s.low}..{high}{step}")
    given = {name: replace(known[name], low=size, high=size, divisor=1) for name, size in sizes.items()}
    symbols = [given.get(s.name, s) for s in module.symbols]  # others are at most what these allow
    point = dict(sample_points(symbols, most_of_binds(module))[-1])
    for n in module.main.walk():
        if n.op == "bind" and isinstance(n.attr("value"), Dim) and str(n.attr("symbol")) not in sizes:
            point[str(n.attr("symbol"))] = value_at(n.attr("value"), point)
    return point


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the things of a graph are to be. point: the sizes for which that is best."""

    weighed: Weighed
    assignment: Assignment
    point: Mapping[str, int]

    @property
    def units(self) -> dict[Ref, str]:
        """By the first value of a call, by what a branch or a loop gives, by a state's input."""
        w = self.weighed
        return {name: w.units[unit] for name, unit in zip(w.things, self.assignment, strict=True) if name}

    def reasons(self) -> list[str]:
        """A line about the whole, and one for each call."""
        w, p = self.weighed, self.weighed.costs
        near: dict[int, list[Shared]] = {thing: [] for thing in w.calls}
        for s in p.shared:
            for thing in {s.maker, *s.readers} & near.keys():
                near[thing].append(s)
        alone = ", ".join(f"all on {u}: {_time(p.cost(p.alone(n)))}" for n, u in enumerate(w.units))
        sizes = shortened(", ".join(f"{name}={size}" for name, size in self.point.items()))
        lines = [f"placed for {_time(p.cost(self.assignment))} of a run{sizes and ' at ' + sizes}; {alone}"]
        return lines + [self._reason(thing, n, near[thing]) for thing, n in w.calls.items()]

    def _reason(self, thing: int, n: Node, near: Sequence[Shared]) -> str:
        """near: the values that the call makes or reads."""
        w, own, unit = self.weighed, self.weighed.costs.own[thing], self.assignment[thing]
        name = str(n.attr("kernel") or n.attr("library"))
        rounds = f" in {w.rounds[thing]:g} rounds" if w.rounds[thing] != 1 else ""
        head = f"{name} ({n.origin})" if n.origin and n.origin != name else name
        where = f"{head}{rounds} on {w.units[unit]}"
        if sum(cost is not None for cost in own) == 1:
            return f"{where}: a rule says so, or it is the host's"
        costs = ", ".join(f"{u} {_time(c)}" for u, c in zip(w.units, own, strict=True) if c is not None)
        least, cheapest = min((c, k) for k, c in enumerate(own) if c is not None)
        here = own[unit]
        assert here is not None
        if here == least:
            return f"{where}: {costs}; the least"
        moved = (*self.assignment[:thing], cheapest, *self.assignment[thing + 1 :])
        more = sum(w.costs.moved(s, moved) - w.costs.moved(s, self.assignment) for s in near) + least - here
        return f"{where}: {costs}; alone on {w.units[cheapest]} it costs {_time(more)} more with its copies"


def chosen(
    module: Module,
    graph: Graph,
    system: System,
    sizes: Mapping[str, int],
    fixed: Callable[[Node], str | None],
    twins: frozenset[Ref],
    states: States,
) -> Choice:
    """The assignment that costs least by the model of weigh.py. fixed: the unit of a call that no rule leaves
    open. twins: what the host reads and makes itself. Raises as `point_of`."""
    point = point_of(module, sizes)
    found = weighed(module, graph, system, point, fixed, twins, _refs(graph, states))
    return Choice(found, assigned(found.costs), point)


def _refs(graph: Graph, states: States) -> list[tuple[Ref | None, Ref | None]]:
    """The values that have these names of inputs and outputs."""
    before = {v.origin or v.name[1:]: v.name for v in graph.inputs}
    after = dict(zip(graph.output_names, graph.outputs, strict=False))
    return [(before[a] if a is not None else None, after[b] if b is not None else None) for a, b in states]


def _time(ticks: int) -> str:
    """A time for people."""
    seconds = ticks / TICKS
    return f"{1e3 * seconds:.3g} ms" if abs(seconds) >= 1e-3 else f"{1e6 * seconds:.3g} us"
