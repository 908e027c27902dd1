"""A lowered graph -> storages: which values share bytes (views, in place), and when each lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.core.dim import Dim, Facts, product
from smelt.core.dtype import DType
from smelt.core.ir.graph import Graph, Module, Node, Ref
from smelt.core.ir.kernel import Kernel, Load, Stmt, Store, walk, walk_expr
from smelt.core.ops import OPS


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


def is_view(node: Node) -> bool:
    """The output has the bytes of the first input."""
    return node.op in OPS and OPS[node.op].view


def in_place_inputs(kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """For each output, the inputs whose storage it may take over.

    An input qualifies when the kernel is one statement and each of its loads stands in the store to
    that output, unguarded, at the very index of the store: then every element is read by the instance
    that overwrites it, before it does.
    """
    if len(kernel.body) != 1 or kernel.scratch:
        return {}
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    found: dict[int, tuple[int, ...]] = {}
    for o, out in enumerate(kernel.outputs):
        mine = [s for s in stores if s.buffer == out.name]
        if len(mine) != 1:
            continue
        fits = tuple(
            n
            for n, b in enumerate(kernel.inputs)
            if (b.dtype, b.shape) == (out.dtype, out.shape) and _read_at_store(b.name, mine, kernel.body)
        )
        if fits:
            found[o] = fits
    return found


def _read_at_store(name: str, mine: list[Store], body: tuple[Stmt, ...]) -> bool:
    for s in walk(body):
        exprs = [s.value] if isinstance(s, Store) else [v for _, v, _, _ in getattr(s, "let", ())]
        for e in exprs:
            loads = [x for x in walk_expr(e) if isinstance(x, Load) and x.buffer == name]
            if not loads:
                continue
            if not isinstance(s, Store) or s not in mine or s.accumulate:
                return False
            if any(x.index != s.index or x.guard for x in loads):
                return False
    return True


@dataclass(frozen=True, slots=True)
class Storages:
    """of: the root of every value (weights and inputs are their own roots). rows: arena candidates,
    in order of first use."""

    of: Mapping[Ref, Ref]
    rows: tuple[Storage, ...]


def storages(module: Module, graph: Graph, facts: Facts, reuse_in_place: bool = True) -> Storages:
    """Group values into storages and compute lifetimes over node positions.

    Graph inputs and weights are never written, so no output takes over their storage.
    """
    roots: dict[Ref, Ref] = {v.name: v.name for v in graph.inputs}
    owned: set[Ref] = set()
    sizes: dict[Ref, Dim] = {}
    last: dict[Ref, int] = {}
    first: dict[Ref, int] = {}

    def root(ref: Ref) -> Ref:
        return roots.get(ref, ref)

    uses = _last_uses(graph, root_of_views(graph))
    end = len(graph.nodes)
    may = {name: in_place_inputs(k) for name, k in module.kernels.items()} if reuse_in_place else {}
    outputs = {root_of_views(graph).get(r, r) for r in graph.outputs}
    for position, node in enumerate(graph.nodes):
        if is_view(node):
            roots[node.output.name] = root(node.inputs[0])
            continue
        taken: set[Ref] = set()
        for n, v in enumerate(node.outputs):
            need = bytes_of(v.type.dtype, v.type.shape)
            over = _taken_over(node, n, may, root, owned, uses, position, taken, outputs, v.name)
            if over is not None:
                roots[v.name] = over
                taken.add(over)
                # the storage now lives as long as the new value does
                uses[over] = max(uses.get(over, position), uses.get(v.name, position))
                continue
            roots[v.name] = v.name
            owned.add(v.name)
            sizes[v.name], first[v.name] = need, position
    for ref in owned:
        last[ref] = max(first[ref], uses.get(ref, first[ref]))
    for ref in graph.outputs:
        r = root(ref)
        if r in owned:
            last[r] = end
    rows = tuple(
        Storage(r, facts.simplify(sizes[r]), first[r], last[r]) for r in sorted(owned, key=first.__getitem__)
    )
    return Storages(roots, rows)


def root_of_views(graph: Graph) -> dict[Ref, Ref]:
    """The value under each chain of views."""
    under: dict[Ref, Ref] = {}
    for node in graph.nodes:
        if is_view(node):
            source = node.inputs[0]
            under[node.output.name] = under.get(source, source)
    return under


def _last_uses(graph: Graph, under: Mapping[Ref, Ref]) -> dict[Ref, int]:
    """Position of the last node that reads each value (through views); views themselves do not read."""
    uses: dict[Ref, int] = {}
    for position, node in enumerate(graph.nodes):
        if is_view(node):
            continue
        for ref in node.inputs:
            uses[under.get(ref, ref)] = position
    for ref in graph.outputs:
        uses[under.get(ref, ref)] = len(graph.nodes)
    return uses


def _taken_over(
    node: Node,
    n: int,
    may: Mapping[str, dict[int, tuple[int, ...]]],
    root: object,
    owned: set[Ref],
    uses: Mapping[Ref, int],
    position: int,
    taken: set[Ref],
    outputs: set[Ref],
    value: Ref,
) -> Ref | None:
    """The storage that output n of the node may overwrite: of an input that dies here."""
    if node.op != "call_kernel" or value in outputs:
        return None
    for k in may.get(str(node.attr("kernel")), {}).get(n, ()):
        ref = node.inputs[k]
        r: Ref = root(ref)  # type: ignore[operator]
        if r not in owned or r in taken or r in outputs or uses.get(r) != position:
            continue
        if sum(root(i) == r for i in node.inputs) > 1:  # type: ignore[operator]
            continue
        return r
    return None
