"""A lowered Module -> the same without weights whose transposes it has, as far as runs only pick from them.

    %e = call_kernel(%i, @w) {y[m, k] = w[i[m], k]}; %l = call_kernel(%h, @t)      where @t is @w transposed
    -->  %e = call_kernel(%i, @t) {y[m, k] = t[k, i[m]]}; %l = call_kernel(%h, @t)

An embedding that is also the weight of the last product is one weight then, of which a step reads a few rows;
these lie apart in the transpose, which costs less than a second copy of a model's largest weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from smelt.core.dtype import Array
from smelt.core.ir.analysis.traits import picks
from smelt.core.ir.graph import FILE_PIECE, Graph, Module, Node, Ref, Transposed, Weight
from smelt.core.ir.kernel import Expr, Kernel, Load
from smelt.core.ir.rewrite import fresh_name, map_expr, map_stmt_exprs
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.editor import without_unused


def tied(module: Module, ctx: Context) -> Module:
    """The module without the weights of two axes that runs only pick from, and whose transposes are there."""
    picked = _picked(module)
    found = _transposes(module, picked)
    if not found:
        return module
    kernels = dict(module.kernels)
    turned: dict[tuple[str, int], str] = {}

    def changed(g: Graph) -> Graph:
        return g.with_(nodes=tuple(map(call, g.nodes)))

    def call(n: Node) -> Node:
        for k in picked.get(str(n.attr("kernel", "")), ()):
            if n.inputs[k] in found:
                name = str(n.attr("kernel"))
                if (name, k) not in turned:
                    turned[name, k] = own = fresh_name(name, kernels)
                    kernels[own] = _turned(kernels[name], k).with_(name=own)
                inputs = (*n.inputs[:k], found[n.inputs[k]], *n.inputs[k + 1 :])
                n = n.with_(inputs=inputs, attrs={**n.attrs, "kernel": turned[name, k]})
        return n.with_(regions=tuple(map(changed, n.regions))) if n.regions else n

    done = module.with_(graphs={name: changed(g) for name, g in module.graphs.items()})
    left = {old for old, _ in turned} - {str(n.attr("kernel")) for n in done.calls()}
    return without_unused(done.with_(kernels={name: k for name, k in kernels.items() if name not in left}))


def _picked(module: Module) -> Mapping[str, tuple[int, ...]]:
    """Of each kernel that has some, the inputs of two axes of which it reads what the data say."""
    found = {
        name: tuple(n for n, b in enumerate(k.inputs) if len(b.shape) == 2 and picks(k.body, b.name))
        for name, k in module.kernels.items()
    }
    return {name: inputs for name, inputs in found.items() if inputs}


def _transposes(module: Module, inputs: Mapping[str, tuple[int, ...]]) -> Mapping[Ref, Ref]:
    """Of each weight that is only picked from, the transpose that some kernel reads otherwise."""
    reads: Counter[Ref] = Counter()
    picked: Counter[Ref] = Counter()
    for n in (n for g in module.graphs.values() for n in g.walk()):
        reads.update(x for x in n.inputs if x.startswith("@"))
        picked.update(n.inputs[k] for k in inputs.get(str(n.attr("kernel", "")), ()))
    for g in module.graphs.values():
        reads.update(_results(g))
    others = [w for r, w in module.weights.items() if len(w.shape) == 2 and reads[r] > picked[r]]
    found: dict[Ref, Ref] = {}
    for ref, w in module.weights.items():
        if picked[ref] and picked[ref] == reads[ref] and len(w.shape) == 2:
            same = next((o for o in others if _is_transpose(w, o)), None)
            if same is not None:
                found[ref] = same.name
    return found


def _results(g: Graph) -> Iterator[Ref]:
    """Weights that a graph or a region of it returns."""
    yield from (r for r in g.outputs if r.startswith("@"))
    for n in g.walk():
        for region in n.regions:
            yield from (r for r in region.outputs if r.startswith("@"))


def _is_transpose(w: Weight, other: Weight) -> bool:
    """Whether the elements are those of w with the axes exchanged, bit by bit."""
    if other.shape != w.shape[::-1] or other.dtype != w.dtype:
        return False
    for one, made in ((w, other.recipe), (other, w.recipe)):
        if isinstance(made, Transposed):
            return _same(one, made.source)
    plain = all(x.recipe is None and x.stored is None and not x.is_named_only for x in (w, other))
    return plain and _equal(w.array(), other.array().T)


def _same(a: Weight, b: Weight) -> bool:
    """Whether two weights of one type have the same elements."""
    return a.head == b.head and a.digest == b.digest


def _equal(a: Array, b: Array) -> bool:
    """Compared some rows at a time; one in the middle tells most weights apart."""
    rows = len(a)
    if not a.size:
        return True
    step = max(1, FILE_PIECE * rows // a.nbytes)
    parts = [(rows // 2, rows // 2 + 1), *((k, k + step) for k in range(0, rows, step))]
    return all(np.array_equal(_bits(a[first:last]), _bits(b[first:last])) for first, last in parts)


def _bits(a: Array) -> Array:
    return np.ascontiguousarray(a).view(np.uint8)


def _turned(kernel: Kernel, number: int) -> Kernel:
    """The kernel with the axes of an input exchanged."""
    name = kernel.inputs[number].name

    def load(e: Expr) -> Expr:
        return replace(e, index=e.index[::-1]) if isinstance(e, Load) and e.buffer == name else e

    inputs = tuple(replace(b, shape=b.shape[::-1]) if b.name == name else b for b in kernel.inputs)
    body = tuple(map_stmt_exprs(s, lambda e: map_expr(e, load)) for s in kernel.body)
    return kernel.with_(inputs=inputs, body=body)
