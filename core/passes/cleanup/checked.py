"""Types and attributes of sizes that a check fixes -> the same in what is known after the check.

    %m = bind(%count) as n             the same
    check n == 32
    %y: f32[n, 8] = ...          -->   %y: f32[32, 8] = ...

So whatever reads types (later passes, schedules, the planner, the manifest) knows it, and a dump has it, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from smelt.core.dim import Dim, Facts
from smelt.core.ir.checked import MARKS, FactScope
from smelt.core.ir.graph import Graph, Module, Node, Value, attr_dims
from smelt.core.ir.verify import module_facts
from smelt.core.passes.context import Context


def checked(module: Module, ctx: Context) -> Module:
    """The module with simpler sizes. What a branch or a loop leaves, and what the first shape that has a size
    tells of it, keeps its type: there the size gets its value."""
    base = module_facts(module)
    graphs = {name: _graph(g, FactScope(base), base, top=True) for name, g in module.graphs.items()}
    return module if all(g is module.graphs[n] for n, g in graphs.items()) else module.with_(graphs=graphs)


def _graph(graph: Graph, scope: FactScope, base: Facts, top: bool) -> Graph:
    outer, scope = scope, scope.enter(graph)
    known = outer.names.union(*(v.type.symbols for v in graph.inputs))
    kept = frozenset() if top else frozenset(graph.outputs)
    nodes = []
    for n in graph.nodes:
        regions = tuple(_graph(g, scope, base, top=False) for g in n.regions)
        if any(new is not old for new, old in zip(regions, n.regions, strict=True)):
            n = n.with_(regions=regions)
        decides, known = not n.settled <= known, known | n.settled
        if scope.learned and n.op not in MARKS:
            n = _node(n, scope.facts, base, kept if not (decides or n.regions) else None)
        nodes.append(n)
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.with_(nodes=tuple(nodes))


def _node(n: Node, facts: Facts, base: Facts, kept: frozenset[str] | None) -> Node:
    """kept: outputs that keep their types; None: all of them."""

    def dim(d: Dim) -> Dim:
        # what was no simpler before the check is the pass's business alone
        return d if d.is_const or (found := facts.simplify(d)) == base.simplify(d) else found

    def attr(a: Any) -> Any:
        if isinstance(a, Dim):
            return dim(a)
        return tuple(map(attr, a)) if isinstance(a, tuple) and attr_dims(a) else a

    def value(v: Value) -> Value:
        if kept is None or v.name in kept:
            return v
        shape = tuple(map(dim, v.type.shape))
        return v if shape == v.type.shape else replace(v, type=replace(v.type, shape=shape))

    attrs, outputs = {k: attr(a) for k, a in n.attrs.items()}, tuple(map(value, n.outputs))
    if outputs == n.outputs and all(a == n.attrs[k] for k, a in attrs.items()):
        return n
    return n.with_(attrs=attrs, outputs=outputs)
