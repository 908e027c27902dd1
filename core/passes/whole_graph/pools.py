"""Graph -> Graph: the maximum of a wide window is found axis by axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from smelt.core.dim import ZERO
from smelt.core.ir.graph import Attr, Node, Ref
from smelt.core.passes.numerics import EXACT
from smelt.core.passes.rewriting.constants import dims_of, ints_of
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule

PASS_COST = 1
"""Writing an element and reading it again takes about as long as comparing so many."""


@rule("max_pool", kind=EXACT, forms=[
    "x: f32[N, 2, 9, 8]; max_pool(x, kernel=(5, 5), pads_begin=(2, 2), pads_end=(2, 2))",
    "x: i8[N, 2, 9, 8]; max_pool(x, kernel=(7, 5), strides=(2, 1), dilations=(1, 2), pads_begin=(3, 0))",
    "x: f32[N, 2, 9, 8, 7]; max_pool(x, kernel=(3, 4, 3), pads_begin=(1, 1, 1))",
])
def _axis_by_axis(g: Editor, n: Node) -> Ref | None:
    # max_pool(x) of k * l elements  -->  max_pool(max_pool(x) of k) of l, k + l where windows overlap much
    kernel, strides = ints_of(n.attrs["kernel"]), ints_of(n.attrs["strides"])
    axis = best_axis(kernel, strides)
    if axis is None:
        return None
    y = n.inputs[0]
    for chosen in ((axis,), tuple(a for a in range(len(kernel)) if a != axis)):
        y = g.emit("max_pool", (y,), _along(n.attrs, chosen))
    return y


def best_axis(kernel: Sequence[int], strides: Sequence[int]) -> int | None:
    """The axis along which to begin, None where all at once is quicker. Elements that are compared for one
    of the result: those of the window; or those along the axis for each that is left, and then these."""
    found: dict[int, int] = {}
    for a, k in enumerate(kernel):
        left = prod(s for b, s in enumerate(strides) if b != a)
        if 1 < k < prod(kernel):
            found[a] = (k + PASS_COST) * left + prod(kernel) // k
    best = min(found, key=lambda a: found[a], default=None)
    return best if best is not None and found[best] < prod(kernel) else None


def _along(attrs: Mapping[str, Attr], axes: Sequence[int]) -> dict[str, Attr]:
    """The attributes of the window along these axes alone."""
    sizes = {
        name: tuple(k if a in axes else 1 for a, k in enumerate(ints_of(attrs[name])))
        for name in ("kernel", "strides", "dilations")
    }
    pads = {
        name: tuple(d if a in axes else ZERO for a, d in enumerate(dims_of(attrs[name])))
        for name in ("pads_begin", "pads_end")
    }
    return {**attrs, **sizes, **pads}


POOL_RULES: tuple[Rule, ...] = (_axis_by_axis,)
