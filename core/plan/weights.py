"""A scheduled Module -> its physical weights: each logical weight in each layout that a kernel reads it in,
equal ones once, at offsets in the weights' file.

Calls of kernels name logical weights, whatever the kernel was scheduled for; a kernel's inputs say in which
layout they want them (core/ir/layout.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TypeAlias

from smelt.core.dim import product, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import Derived, Graph, Module, Node, Ref, Weight
from smelt.core.ir.layout import Layout, PackSpec, apply_numpy
from smelt.core.machine import CPU
from smelt.core.plan.items import Timeline, is_view
from smelt.core.plan.lifetime import ALIGNMENT
from smelt.core.plan.program import WeightPlace

SMALL_WEIGHT_BYTES = 64 << 10
"""Bytes of a weight up to which it is packed at once; a larger one is packed when it is written."""

PART = 4 << 20
"""Bytes that are packed at a time, if that does not take too many passes over the weight."""

MOST_PASSES = 16
"""How often a weight may be read to pack it."""


Readers: TypeAlias = "Mapping[tuple[Ref, Layout | None], set[int]]"
"""A weight in a layout -> the numbers of the units that read it so, in the order of first use."""


def weight_readers(
    module: Module, graph: Graph, time: Timeline, units: Sequence[str] = (CPU,)
) -> Readers:
    """What the nodes of a graph and its regions read of the weights. units: names by number."""
    readers: dict[tuple[Ref, Layout | None], set[int]] = {}
    for ref, layout, unit in _uses(module, graph):
        if time.value(ref).startswith("@"):
            number = units.index(unit) if unit else 0
            readers.setdefault((time.value(ref), layout), set()).add(number)
    return readers


def weight_places(graphs: Sequence[tuple[Module, Readers]]) -> list[tuple[WeightPlace, ...]]:
    """Where each of these graphs finds its weights in the file that they share. Places of equal bytes have
    one offset; what the same units read lies together, in the order of first use."""
    keys = [(g, key) for g, (_, readers) in enumerate(graphs) for key in readers]
    identities = _identities(graphs, [(g, ref, layout) for g, (ref, layout) in keys])
    by: dict[Hashable, set[int]] = {}
    for (g, key), (identity, _) in zip(keys, identities, strict=True):
        by.setdefault(identity, set()).update(graphs[g][1][key])
    rows = [(g, key, identity, size) for (g, key), (identity, size) in zip(keys, identities, strict=True)]
    offset = 0
    places: list[list[WeightPlace]] = [[] for _ in graphs]
    at: dict[Hashable, int] = {}
    for g, (ref, layout), identity, size in sorted(rows, key=lambda row: (min(by[row[2]]), max(by[row[2]]))):
        if identity not in at:
            at[identity] = offset
            offset = -(-(offset + size) // ALIGNMENT) * ALIGNMENT
        places[g].append(WeightPlace(ref, layout, at[identity], size, tuple(sorted(by[identity]))))
    return [tuple(found) for found in places]


def _uses(module: Module, graph: Graph) -> Iterator[tuple[Ref, Layout | None, str]]:
    """What is read in which layout at which unit; '' stands for the CPU, which reads what the host reads."""
    for n in graph.walk():
        results = [v.unit for v in n.outputs]
        if n.op == "call_kernel":
            yield from zip(n.inputs, layouts(module, n), repeat(n.unit), strict=False)
        elif n.op == "loop":
            yield from zip(n.inputs, repeat(None), ("", "", *results), strict=False)
        elif not is_view(n):
            yield from zip(n.inputs, repeat(None), repeat(""), strict=False)
        for region in n.regions:
            first = [""] * (n.op == "loop")
            yield from zip(region.outputs, repeat(None), (*first, *results), strict=False)
    yield from zip(graph.outputs, repeat(None), repeat(""), strict=False)


def layouts(module: Module, node: Node) -> Sequence[Layout | None]:
    """In which layout a node reads each of its inputs."""
    if node.op != "call_kernel":
        return [None] * len(node.inputs)
    return [b.layout for b in module.kernels[str(node.attr("kernel"))].inputs]


def _identities(
    graphs: Sequence[tuple[Module, Readers]], uses: Sequence[tuple[int, Ref, Layout | None]]
) -> list[tuple[Hashable, int]]:
    """For each weight (number of the graph, name) in a layout what is equal where the weights are and the
    layouts do the same, and how many bytes there are. Only weights of one size that begin alike are hashed
    whole."""
    weights = {(g, ref): graphs[g][0].weights[ref] for g, ref, _ in uses}
    sizes = Counter(w.bytes for w in weights.values())
    heads = {key: (w.bytes, w.head) for key, w in weights.items() if sizes[w.bytes] > 1}
    alike = Counter(heads.values())
    contents: dict[tuple[int, Ref], Hashable] = {
        key: w.digest if key in heads and alike[heads[key]] > 1 else key for key, w in weights.items()
    }
    found: list[tuple[Hashable, int]] = []
    for g, ref, layout in uses:
        w, order = weights[g, ref], () if layout is None else layout.order
        size = w.bytes if layout is None else product(layout.shape).const * w.dtype.bytes
        found.append(((contents[g, ref], order, w.dtype.bytes if order else 0), size))
    return found


def physical(w: Weight, layout: Layout | None) -> Weight:
    """The weight as it lies for who reads it in this layout."""
    if layout is None:
        return w
    source = tuple(d.const for d in layout.source)
    return _packed(w, layout.spec, source, f"{w.name} {layout}")


def _packed(w: Weight, spec: PackSpec, source: tuple[int, ...], name: Ref) -> Weight:
    """The weight in its layout."""
    shape = tuple(d.const for d in spec.shape([to_dim(n) for n in source]))
    if w.bytes <= SMALL_WEIGHT_BYTES:
        data = apply_numpy(spec, w.array().reshape(source))
        return Weight(name, w.dtype, shape, data=data, origin=w.origin)
    return Weight(name, w.dtype, shape, recipe=lambda: _parts(w, spec, source), origin=w.origin)


def _parts(w: Weight, spec: PackSpec, source: tuple[int, ...]) -> Iterator[Array]:
    """The packed weight cut along its outermost axis. Unless that is the outermost axis of the source too,
    every part passes over the whole source: hence not too many of them."""
    if w.recipe is not None and not isinstance(w.recipe, Derived):
        w = replace(w, data=w.array(), recipe=None)  # it could not be made in parts: once, then
    first = spec.dims[0]
    extent, step = source[first.axis], first.factor if first.part == "outer" else 1
    passes = math.ceil(w.bytes / PART)
    if math.prod(source[: first.axis]) > 1:
        passes = min(passes, MOST_PASSES)
    width = extent if first.part == "inner" else step * max(1, math.ceil(extent / step / passes))
    for start in range(0, extent, width):
        yield apply_numpy(spec, w.window(source, first.axis, start, min(extent, start + width)))
