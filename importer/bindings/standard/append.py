"""States of a loop to which its rounds only append in; stacks, which are written in place, out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from smelt.core.dim import to_dim
from smelt.core.ir.graph import Node, Ref, attr_dims
from smelt.importer import sequences as sq
from smelt.importer.builder import GraphBuilder


@dataclass(frozen=True)
class Append:
    """A packed sequence whose values are state `place` and whose shapes are the next state. flat, row: what
    each round appends to the two, of the same size in all rounds. nodes: those that append."""

    place: int
    flat: Ref
    row: Ref
    nodes: tuple[Node, Node]


def appends(
    region: GraphBuilder, forms: Sequence[sq.ElementForm], results: Sequence[Ref], own: frozenset[str]
) -> list[Append]:
    """The sequences that a loop's body appends one element to and does not read. forms: of the states;
    results: their tensors after the body. own: sizes that differ between rounds."""
    found, at = [], 0
    for f in forms:
        if isinstance(f, sq.PackForm):
            one = _append(region, at, results, own)
            found += [] if one is None else [one]
        at += sq.count(f)
    return found


def _append(region: GraphBuilder, at: int, results: Sequence[Ref], own: frozenset[str]) -> Append | None:
    makers = {v.name: n for n in region.nodes for v in n.outputs}
    params = [v.name for v in region.inputs[2 + at : 4 + at]]
    nodes = [makers.get(r) for r in results[at : at + 2]]
    tails = []
    for p, n in zip(params, nodes, strict=True):
        if n is None or n.op != "concat" or n.attr("axis") != 0 or len(n.inputs) != 2 or n.inputs[0] != p:
            return None
        tails.append(n.inputs[1])
    values, shapes = nodes
    assert values is not None and shapes is not None
    grown = [region.store.types[p].shape[0] for p in params]
    if any(not own.isdisjoint(d.symbols) for r in tails for d in region.type_of(r).shape):
        return None
    if _read(region, (values, shapes), {*params, *results[at : at + 2]}, results, at):
        return None
    if _sized(region, (values, shapes), frozenset(s for d in grown for s in d.symbols), params):
        return None
    return Append(at, tails[0], tails[1], (values, shapes))


def _read(
    region: GraphBuilder, but: Sequence[Node], names: set[Ref], results: Sequence[Ref], at: int
) -> bool:
    """Whether anything but these nodes reads one of the names, or the body returns it elsewhere."""
    others = [r for k, r in enumerate(results) if not at <= k < at + 2]
    used = {r for n in _walk(region.nodes) if n not in but for r in n.inputs}
    used |= {r for n in _walk(region.nodes) for g in n.regions for r in g.outputs}
    return not names.isdisjoint({*used, *others})


def _sized(region: GraphBuilder, but: Sequence[Node], symbols: frozenset[str], params: Sequence[Ref]) -> bool:
    """Whether anything but these nodes and parameters has a size made of the symbols."""
    found = {s for v in region.inputs if v.name not in params for d in v.type.shape for s in d.symbols}
    for n in _walk(region.nodes):
        if n not in but:
            found |= {s for v in n.outputs for d in v.type.shape for s in d.symbols}
            found |= {s for a in n.attrs.values() for d in attr_dims(a) for s in d.symbols}
            found |= {s for g in n.regions for v in g.inputs for d in v.type.shape for s in d.symbols}
    return not symbols.isdisjoint(found)


def _walk(nodes: Iterable[Node]) -> Iterator[Node]:
    for n in nodes:
        yield n
        for g in n.regions:
            yield from g.walk()


def taken_out(region: GraphBuilder, found: Sequence[Append]) -> list[Ref]:
    """Remove the states from the region; the refs that each round appends to their stacks: values and a row
    each."""
    places = {2 + a.place + k for a in found for k in (0, 1)}
    gone = [n for a in found for n in a.nodes]
    region.nodes = [n for n in region.nodes if not any(n is g for g in gone)]
    region.inputs = [v for k, v in enumerate(region.inputs) if k not in places]
    added = []
    for a in found:
        width = region.type_of(a.row).shape[1]
        added += [a.flat, region.reshape(a.row, (width,))]
    return added


def put_back(
    b: GraphBuilder,
    found: Sequence[Append],
    entry: Sequence[Ref],
    states: Sequence[Ref],
    stacks: Sequence[Ref],
) -> list[Ref]:
    """The tensors of all states after the loop. entry: before it. states: those that were carried. stacks:
    as `taken_out` gave them, with the rounds as a new first axis."""
    rest, all_ = iter(states), dict[int, Ref]()
    for a, values, rows in zip(found, stacks[::2], stacks[1::2], strict=True):
        count, size = b.type_of(values).shape
        flat = b.reshape(values, (b.engine.simplify(count * size),))
        all_[a.place] = _behind(b, entry[a.place], flat)
        all_[a.place + 1] = _behind(b, entry[a.place + 1], rows)
    return [all_[k] if k in all_ else next(rest) for k in range(len(entry))]


def _behind(b: GraphBuilder, x: Ref, more: Ref) -> Ref:
    return more if b.type_of(x).shape[0] == to_dim(0) else b.emit("concat", [x, more], {"axis": 0})
