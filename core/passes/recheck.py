"""Module -> nothing, or SmeltError: every type that a pass wrote is what inference says of the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.core.diag import SmeltError
from smelt.core.dim import NO, Dim
from smelt.core.ir.checked import FactScope
from smelt.core.ir.graph import Graph, Module, Node, Ref, TensorType
from smelt.core.ops import OPS
from smelt.core.ops.infer import Engine
from smelt.core.ops.infer_node import infer_node
from smelt.core.ops.table import Arg


def recheck(module: Module) -> None:
    """Count every op's inputs, infer its type again from theirs and compare: dtype and rank must be equal,
    and no extent may be proved to differ. Raises SmeltError(kind='internal') naming the node."""
    engine = Engine.of(module)
    weights = {name: w.type for name, w in module.weights.items()}
    start = FactScope(engine.facts)
    for graph in module.graphs.values():
        _graph(graph, dict(weights), engine, start)


def _graph(graph: Graph, types: dict[Ref, TensorType], engine: Engine, scope: FactScope) -> None:
    scope = scope.enter(graph)
    engine.suppose(scope.facts)
    types.update((v.name, v.type) for v in graph.inputs)
    for node in graph.nodes:
        if node.op in OPS and not _decides_sizes(node, types):
            _node(node, types, engine)
        for region in node.regions:
            with engine.conditional():  # what one way demands says nothing of the other one
                _graph(region, dict(types), engine, scope)
        types.update((v.name, v.type) for v in node.outputs)


def _node(node: Node, types: Mapping[Ref, TensorType], engine: Engine) -> None:
    engine.at(node.origin, node.op)
    _count(node, OPS[node.op].inputs.split())
    args = [Arg(types[r]) if r else None for r in node.inputs]
    for v, found in zip(node.outputs, infer_node(OPS[node.op], args, node.attrs, engine), strict=True):
        fits = v.type.dtype == found.dtype and v.type.rank == found.rank and all(
            _may_equal(engine, a, b) for a, b in zip(v.type.shape, found.shape, strict=True)
        )
        if not fits:
            raise SmeltError(
                f"{node.op} gives {found}, but {v.name} is declared {v.type}", kind="internal",
                node=node.origin or None,
            )


def _count(node: Node, wanted: Sequence[str]) -> None:
    """wanted: 'a b? *rest', word by word."""
    rest = any(w.startswith("*") for w in wanted)
    named = [w for w in wanted if not w.startswith("*")]
    absent = [w for k, w in enumerate(named) if w[-1] != "?" and not "".join(node.inputs[k : k + 1])]
    if absent or (len(node.inputs) > len(named) and not rest):
        raise SmeltError(
            f"{node.op} takes {' '.join(wanted) or 'no inputs'}, found {len(node.inputs)} inputs",
            kind="internal", node=node.origin or None,
        )  # fmt: skip


def _may_equal(engine: Engine, a: Dim, b: Dim) -> bool:
    return a == b or engine.facts.prove_eq(a, b) is not NO


def _decides_sizes(node: Node, types: Mapping[Ref, TensorType]) -> bool:
    """Whether the node's result has sizes that only running it tells: inferring again would make up
    new symbols."""
    known = {s for r in node.inputs if r for d in types[r].shape for s in d.symbols}
    for value in node.attrs.values():
        known |= _symbols(value)
    return any(not d.symbols <= known for v in node.outputs for d in v.type.shape)


def _symbols(value: object) -> set[str]:
    if isinstance(value, tuple):
        return {s for v in value for s in _symbols(v)}
    return set(value.symbols) if isinstance(value, Dim) else set()
