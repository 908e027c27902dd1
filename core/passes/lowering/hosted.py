"""Lowered graphs -> lowered graphs that make at the host, too, what the host reads of integers that are fed.

A size, an index to check or a condition that a device makes of a run's inputs is read back in the middle of
the run, which then waits for all work before it. Its kernels are few and small, so the host runs them too:

    %m = call_kernel(%ids) {kernel = "most"}             %m.host = call_kernel(%ids) {kernel = "most"}
    bind(%m) {symbol = "index"}                  -->     bind(%m.host) {symbol = "index"}

Integers and truth values alone qualify, and small weights: floats are data, of which there is much, and so is
what a product with a large weight makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod

from smelt.core.dtype import DType, bool_, i32, i64
from smelt.core.ir.graph import Graph, Module, Node, Ref
from smelt.core.ir.units import HOST_READS, VIEWS
from smelt.core.machine import CPU
from smelt.core.passes.rewriting.editor import renamed

DECIDING: frozenset[DType] = frozenset({bool_, i32, i64})
"""Types of sizes, positions, masks of tokens and conditions."""
LARGEST_TABLE = 4096
"""Elements of a weight that is taken for a table of such numbers."""


def hosted(module: Module, graph: Graph, unit: Callable[[Node], str]) -> tuple[Graph, frozenset[Ref]]:
    """The graph, and its values that are to lie at the host. unit: which one runs a kernel."""
    wanted = _makers_of(decided(module, graph), graph)
    names = {v.name for n in graph.walk() for v in n.outputs}
    twins: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for n in graph.nodes:
        nodes.append(_reading(n, twins))
        if wanted.isdisjoint(v.name for v in n.outputs) or (n.op not in VIEWS and unit(n) == CPU):
            continue
        for v in n.outputs:
            twins[v.name] = f"{v.name}.host"
            while twins[v.name] in names:
                twins[v.name] += "'"
        outputs = tuple(replace(v, name=twins[v.name]) for v in n.outputs)
        nodes.append(renamed(n, twins).with_(outputs=outputs))
    inputs = wanted & {v.name for v in graph.inputs}
    return graph.with_(nodes=tuple(nodes)), frozenset({*twins.values(), *inputs})


def decided(module: Module, graph: Graph) -> frozenset[Ref]:
    """What the host reads of fed integers, and makes itself wherever else it is made."""
    read = {r for n in graph.walk() for r in n.inputs[: HOST_READS.get(n.op, 0)]}
    return frozenset(read & _of_fed_integers(module, graph))


def _reading(n: Node, twins: Mapping[Ref, Ref]) -> Node:
    """The node, and those of its regions, with the host's reads at the host."""
    count = HOST_READS.get(n.op)
    if count is None:
        return n
    inputs = (*(twins.get(r, r) for r in n.inputs[:count]), *n.inputs[count:])
    regions = tuple(g.with_(nodes=tuple(_reading(m, twins) for m in g.nodes)) for g in n.regions)
    return n.with_(inputs=inputs, regions=regions)


def _of_fed_integers(module: Module, graph: Graph) -> set[Ref]:
    """Values that are made of nothing but fed integers and small weights."""
    found = {v.name for v in graph.inputs if v.type.dtype in DECIDING}

    def is_one(ref: Ref) -> bool:
        if not ref.startswith("@"):
            return ref in found
        t = module.weights[ref].type
        return t.dtype in DECIDING and prod(d.const for d in t.shape) <= LARGEST_TABLE

    for n in graph.nodes:
        deciding = all(v.type.dtype in DECIDING for v in n.outputs)
        if n.op in ("call_kernel", *VIEWS) and deciding and all(is_one(r) for r in n.inputs if r):
            found.update(v.name for v in n.outputs)
    return found


def _makers_of(refs: Iterable[Ref], graph: Graph) -> set[Ref]:
    """These values and all that they are made of."""
    makers = {v.name: n for n in graph.nodes for v in n.outputs}
    found: set[Ref] = set()
    waiting = list(refs)
    while waiting:
        ref = waiting.pop()
        if ref not in found:
            found.add(ref)
            waiting += (r for r in makers[ref].inputs if r) if ref in makers else ()
    return found
