"""A translated graph in; a Module out: equalities applied to all types, dead nodes gone, shapes checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import onnx

from smelt.core.diag import SmeltError, invalid
from smelt.core.dim import ONE, Dim, dim_from_param, sym
from smelt.core.ir.graph import Attr, Graph, Module, Node, Ref, Symbol, TensorType, Value, attr_dims
from smelt.core.ops.infer import Engine
from smelt.importer.builder import GraphBuilder, ImportStore
from smelt.importer.symbols import dim_text
from smelt.importer.translate import REFUSED
from smelt.importer.weights import DTYPE_OF

KEPT = frozenset({"check", "bind"})
"""Ops of nodes that are kept although nothing reads them."""


def finish(name: str, b: GraphBuilder, outputs: Sequence[Ref], output_names: Sequence[str]) -> Module:
    """The module of a main graph."""
    refs = tuple(b.real(r) for r in outputs)
    b.flush_checks()
    settle = _Settle(b.store)
    inputs = tuple(settle.value(v) for v in b.inputs)
    nodes = settle.nodes(_alive(b.nodes, set(refs), b.engine), _names(inputs))
    graph = Graph("main", inputs, nodes, refs, tuple(output_names))
    weights = _used(graph, b.store)
    return Module(
        name, _symbols(graph, b.engine), MappingProxyType(weights), MappingProxyType({"main": graph})
    )


class _Settle:
    """Rewrites every Dim of a graph with all equalities that the import has found."""

    def __init__(self, store: ImportStore) -> None:
        self._engine = store.engine
        self._origins = store.origins

    def value(self, v: Value) -> Value:
        """A value with its final type and its ONNX name."""
        shape = tuple(self._engine.settled(d) for d in v.type.shape)
        return Value(v.name, TensorType(v.type.dtype, shape), self._origins.get(v.name, v.origin))

    def nodes(self, nodes: Iterable[Node], known: frozenset[str]) -> tuple[Node, ...]:
        """The nodes of a graph, each check as early as it can be, without checks that have become true or
        repeat an earlier one. known: the sizes that have values before them."""
        result: list[Node] = []
        seen: set[tuple[object, ...]] = set()
        for n in nodes:
            attrs = {k: self._attr(v) for k, v in n.attrs.items()}
            if n.op == "check":
                key = (attrs["left"], attrs["relation"], attrs["right"])
                if key in seen or self._holds(*key):
                    continue
                seen.add(key)
            outputs = tuple(self.value(v) for v in n.outputs)
            outputs = tuple(
                v if v.origin or not n.origin else Value(v.name, v.type, f"{n.origin}.{n.op}")
                for v in outputs
            )
            sizes = known.union(*(m.settled for m in result)) if n.regions else known
            regions = tuple(self._region(g, sizes) for g in n.regions)
            result.append(Node(n.op, n.inputs, outputs, MappingProxyType(attrs), regions, n.origin))
        return _raised(known, result)

    def _region(self, g: Graph, known: frozenset[str]) -> Graph:
        inputs = tuple(self.value(v) for v in g.inputs)
        nodes = self.nodes(_alive(g.nodes, set(g.outputs), self._engine), known | _names(inputs))
        return g.with_(inputs=inputs, nodes=nodes)

    def _attr(self, v: Any) -> Any:
        if isinstance(v, Dim):
            return self._engine.settled(v)
        return tuple(self._attr(e) for e in v) if isinstance(v, tuple) else v

    def _holds(self, left: Any, relation: Any, right: Any) -> bool:
        return bool(relation != "divides" and left == right) or (relation == "fits" and left == ONE)


def _names(values: Iterable[Value]) -> frozenset[str]:
    return frozenset(s for v in values for s in v.type.symbols)


def _raised(known: frozenset[str], nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with every check directly after the nodes that bind its sizes, and after the check before it:
    passes rely on checks, so a check must precede all nodes that may rely on it (core/ir/checked.py)."""
    behind: list[list[Node]] = [[]]
    # symbol -> the node, counted from 1 without checks, that gives it a value
    given = dict.fromkeys(known, 0)
    place = 0
    for n in nodes:
        if n.op == "check":
            place = max((place, *(given.get(s, 0) for s in _sizes_of(n))))
            behind[place].append(n)
            continue
        behind.append([n])
        for s in n.settled:
            given.setdefault(s, len(behind) - 1)
    return tuple(n for part in behind for n in part)


def _alive(nodes: Sequence[Node], used: set[Ref], engine: Engine) -> list[Node]:
    """The nodes whose results, or the sizes that these decide, are needed; in order."""
    result = []
    decided, sizes = _decided(nodes, engine), set[str]()
    for n in reversed(nodes):
        needed = any(v.name in used for v in n.outputs) or not sizes.isdisjoint(decided.get(id(n), ()))
        if n.op in KEPT or needed:
            sizes |= _sizes_of(n)
            used.update(n.inputs)
            for g in n.regions:
                used.update(r for m in g.walk() for r in m.inputs)
                used.update(g.outputs)
                used.update(r for m in g.walk() for h in m.regions for r in h.outputs)
            result.append(n)
    return result[::-1]


def _decided(nodes: Sequence[Node], engine: Engine) -> dict[int, set[str]]:
    """id of a node -> the symbols, none of an input, that first occur in the shapes of its regions'
    values."""
    seen = {s.name for s in engine.symbols() if s.origin.startswith("input ")}
    found: dict[int, set[str]] = {}
    for n in nodes:
        own = {s for v in n.outputs for s in v.type.symbols}
        if n.op in ("if", "loop"):
            found[id(n)] = own - seen
        seen |= own
    return found


def _symbols_of(value: Attr) -> set[str]:
    return {s for d in attr_dims(value) for s in d.symbols}


def _sizes_of(n: Node) -> set[str]:
    """The symbols that a node mentions, its regions too."""
    found: set[str] = set()
    for m in (n, *(m for g in n.regions for m in g.walk())):
        for a in m.attrs.values():
            found |= _symbols_of(a)
        for v in m.outputs:
            found |= v.type.symbols
    return found


def _used(graph: Graph, store: ImportStore) -> dict[Ref, Any]:
    names = set(graph.outputs)
    for n in graph.walk():
        names.update(n.inputs)
        for g in n.regions:
            names.update(g.outputs)
    return {ref: w for ref, w in store.weights.items() if ref in names}


def _symbols(graph: Graph, engine: Engine) -> tuple[Symbol, ...]:
    """The symbols that occur, in the order of declaration."""
    found: set[str] = set()
    for v in graph.inputs:
        found |= v.type.symbols
    for n in graph.walk():
        for a in n.attrs.values():
            found |= _symbols_of(a)
        found |= n.bound
        for v in (*n.outputs, *(i for g in n.regions for i in g.inputs)):
            found |= v.type.symbols
    hot = _hot_values(engine)
    kept = (s for s in engine.symbols() if s.name in found)
    return tuple(replace(s, hot=_possible(s, hot.get(s.name, ()))) for s in kept)


def _hot_values(engine: Engine) -> dict[str, tuple[int, ...]]:
    """Those of symbols, and of others that the model makes equal to formulas of one symbol, in this one.
    Raises SmeltError(kind='invalid') for values that the model makes impossible."""
    found: dict[str, tuple[int, ...]] = {}
    for name, values in engine.hot().items():
        size = engine.settled(sym(name))
        own = next(iter(size.symbols), name)
        step = size.linear(own)
        if step is None or not (step[0].is_const and step[1].is_const):
            raise invalid(f"dims: '{name}' is {size} in this model", hint="give hot sizes to what that names")
        c, rest = step[0].const, step[1].const
        never = [n for n in values if (n != rest if c == 0 else (n - rest) % c)]
        if never:
            raise invalid(f"dims: '{name}' is {size} in this model, and its hot sizes have {_said(never)}")
        if c:
            known = found.get(own, ())
            found[own] = tuple(dict.fromkeys((*known, *((n - rest) // c for n in values))))
    return found


def _possible(s: Symbol, values: tuple[int, ...]) -> tuple[int, ...]:
    """The hot values of a symbol, all of which the model takes. Raises SmeltError."""
    bad = [n for n in values if n < s.low or (s.high is not None and n > s.high) or n % s.divisor]
    if bad:
        step = f", multiples of {s.divisor}" if s.divisor > 1 else ""
        said = f"{s.low}..{'*' if s.high is None else s.high}{step}"
        raise invalid(f"dims: the model takes {said} for '{s.name}', its hot sizes have {_said(bad)}")
    return values


def _said(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


# ---------------------------------------------------------------- declared shapes


def check_declared(b: GraphBuilder, g: onnx.GraphProto) -> list[SmeltError]:
    """Errors for values whose dtype is not the declared one. Declared ranks and extents that contradict the
    inferred ones are ignored, as ONNX Runtime ignores them; so is a value_info of an output."""
    problems, returned = [], {v.name for v in g.output}
    for kind, infos in (("output", g.output), ("value", g.value_info)):
        for v in infos:
            ref = b.names.get(v.name)
            if not ref or ref == REFUSED or not v.type.HasField("tensor_type"):
                continue
            if ref in b.store.compounds:
                continue  # outputs are compared with what they are declared as where they are returned
            if kind == "value" and (ref in b.store.weights or v.name in returned):
                continue  # a constant's type is beyond doubt; an output is declared elsewhere
            own, declared = b.type_of(ref).dtype, DTYPE_OF.get(v.type.tensor_type.elem_type)
            if declared is not None and declared != own:
                problems.append(
                    invalid(
                        f"{kind} '{v.name}' is declared as {declared}, its node makes {own}",
                        hint="the file's types are stale; remove its value_info or export it again",
                    )
                )
    return problems


def with_file_names(module: Module, outputs: Sequence[onnx.ValueInfoProto]) -> Module:
    """The module with data-dependent sizes renamed to the names that the file gives them, where these are
    unused."""
    names: dict[str, Dim] = {}
    taken = {s.name for s in module.symbols}
    generated = {s.name for s in module.symbols if not s.origin.startswith("input ")}
    types = {v.name: v.type for v in module.main.values().values()}
    for ref, v in zip(module.main.outputs, outputs, strict=False):
        own = types.get(ref)
        dims = [dim_text(d) for d in v.type.tensor_type.shape.dim]
        if own is None or len(dims) != own.rank:
            continue
        for text, d in zip(dims, own.shape, strict=True):
            if not isinstance(text, str) or not text:
                continue
            wanted = dim_from_param(text)
            plain = next((s for s in wanted.symbols if wanted == sym(s)), None)
            old = next((s for s in d.symbols if d == sym(s)), None)
            if plain and old in generated and old not in names and plain not in taken:
                names[old] = sym(plain)
                taken.add(plain)
    return _renamed(module, names) if names else module


def _renamed(module: Module, names: Mapping[str, Dim]) -> Module:
    def of(v: Any) -> Any:
        if isinstance(v, Dim):
            return v.substitute(names)
        if isinstance(v, tuple):
            return tuple(of(e) for e in v)
        return v

    def value(v: Value) -> Value:
        return Value(v.name, TensorType(v.type.dtype, of(v.type.shape)), v.origin)

    def node(n: Node) -> Node:
        attrs = {k: of(v) for k, v in n.attrs.items()}
        if n.op == "bind" and n.attrs["symbol"] in names:
            attrs["symbol"] = str(next(iter(names[str(n.attrs["symbol"])].symbols)))
        regions = tuple(graph(g) for g in n.regions)
        return Node(
            n.op, n.inputs, tuple(value(v) for v in n.outputs), MappingProxyType(attrs), regions, n.origin
        )

    def graph(g: Graph) -> Graph:
        return g.with_(inputs=tuple(value(v) for v in g.inputs), nodes=tuple(node(n) for n in g.nodes))

    symbols = tuple(
        replace(s, name=next(iter(names[s.name].symbols)))
        if s.name in names
        else s
        for s in module.symbols
    )
    return module.with_(
        symbols=symbols, graphs=MappingProxyType({k: graph(g) for k, g in module.graphs.items()})
    )
