"""Module -> Module: every weight laid out as the kernels that read it asked for, each layout once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from smelt.core.dim import to_dim
from smelt.core.ir.graph import Array, Derived, Graph, Module, Node, Ref, Weight
from smelt.core.ir.kernel import Kernel
from smelt.core.schedule.pack import Packed, PackSpec, apply_numpy, packed_inputs

SMALL = 64 << 10
"""Bytes of a weight up to which it is packed at once; a larger one is packed when it is written."""

PART = 4 << 20
"""Bytes that are packed at a time, if that does not take too many passes over the weight."""

MOST_PASSES = 16
"""How often a weight may be read to pack it."""


def pack_weights(module: Module, naive: Module) -> Module:
    """Apply the pack records that scheduling left in the kernels' flags to the weights at their calls.

    naive: the module before scheduling, whose kernels say what shape each spec's source has (a weight
    may have more axes of extent 1 than the kernel's view of it).
    Weights are equal when their content is: layers that share one share its packed copy too. The records
    are taken out of the flags, so that packing twice changes nothing.
    """
    wanted = {name: packed_inputs(k.flags) for name, k in module.kernels.items()}
    weights = dict(module.weights)
    made: dict[tuple[Ref, str], Ref] = {}
    copies: Counter[Ref] = Counter()

    def packed(ref: Ref, spec: PackSpec, source: tuple[int, ...]) -> Ref:
        key = (ref, f"{spec} of {source}")
        if key not in made:
            name = f"{ref}.packed{copies[ref]}"
            copies[ref] += 1
            weights[name] = _packed(module.weights[ref], spec, source, name)
            made[key] = name
        return made[key]

    def rewrite(node: Node) -> Node:
        regions = tuple(graph(r) for r in node.regions)
        inputs = list(node.inputs)
        for p in wanted.get(str(node.attr("kernel")), ()) if node.op == "call_kernel" else ():
            place = _place(node, p)
            source = naive.kernels[str(node.attr("kernel"))].inputs[p.input].shape
            inputs[place] = packed(inputs[place], p.spec, tuple(d.const for d in source))
        return node.with_(inputs=tuple(inputs), regions=regions)

    def graph(g: Graph) -> Graph:
        return g.with_(nodes=tuple(rewrite(n) for n in g.nodes))

    graphs = {name: graph(g) for name, g in module.graphs.items()}
    used = {r for g in graphs.values() for n in g.walk() for r in n.inputs}
    used |= {r for g in graphs.values() for n in g.walk() for reg in n.regions for r in reg.outputs}
    used |= {r for g in graphs.values() for r in g.outputs}
    return module.with_(
        graphs=graphs,
        kernels={name: _clean(k) for name, k in module.kernels.items()},
        weights={ref: w for ref, w in weights.items() if ref in used},
    )


def _place(node: Node, p: Packed) -> int:
    """The position among the node's inputs of the kernel's input p.input (absent inputs do not count)."""
    return [n for n, ref in enumerate(node.inputs) if ref][p.input]


def _clean(kernel: Kernel) -> Kernel:
    return kernel.with_(flags=frozenset(f for f in kernel.flags if not f.startswith("pack ")))


def _packed(w: Weight, spec: PackSpec, source: tuple[int, ...], name: Ref) -> Weight:
    """The weight in its layout."""
    shape = tuple(d.const for d in spec.shape([to_dim(n) for n in source]))
    if w.bytes <= SMALL:
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
