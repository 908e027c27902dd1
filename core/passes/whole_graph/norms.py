"""Rules that find layer norm and RMS norm in means, squares and roots, and give them their scale and bias."""

from __future__ import annotations

import math

import numpy as np

from smelt.core.dtype import f16
from smelt.core.ir.graph import Node, Ref
from smelt.core.passes.numerics import ROUNDING
from smelt.core.passes.rewriting.constants import is_one, splat, whole
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule
from smelt.core.passes.whole_graph.products import inverse_root, mean_over, square_root, squared, trailing


def _quotients(g: Editor, n: Node) -> list[tuple[Ref, Ref]]:
    """(numerator, v) of every reading of the node as numerator / sqrt(v). None in halves: there a square is
    infinite from 256 on, and the norms compute it in more bits."""
    if n.output.type.dtype == f16:
        return []
    if n.op == "div":
        v = square_root(g, n.inputs[1])
        return [] if v is None else [(n.inputs[0], v)]
    a, b = n.inputs
    found = ((a, inverse_root(g, b)), (b, inverse_root(g, a)))
    return [(x, v) for x, v in found if v is not None]


def _with_epsilon(g: Editor, ref: Ref) -> tuple[Ref, float]:
    """(v, e) where ref is v + e with a constant e; e is 0 when nothing is added."""
    total = g.made_by(ref, "add")
    e = None if total is None else splat(g, total.inputs[1])
    if total is None or e is None or not 0 <= e < math.inf or g.type_of(total.inputs[0]) != g.type_of(ref):
        return ref, 0.0
    return total.inputs[0], float(e)


def _centred(g: Editor, ref: Ref) -> tuple[Ref, tuple[int, ...]] | None:
    """(x, axes) where ref is x - mean(x, axes)."""
    d = g.made_by(ref, "sub")
    mean = None if d is None else mean_over(g, d.inputs[1])
    if d is None or mean is None or mean[0] != d.inputs[0]:
        return None
    return mean


@rule("div", "mul", kind=ROUNDING, forms=[
    "x: f32[N, 8]; d = sub(x, reduce_mean(x, axes=(1,), keepdims=True)); div(d, "
    "sqrt(add(reduce_mean(mul(d, d), axes=(1,), keepdims=True), 1e-5)))",
])
def _layer_norm(g: Editor, n: Node) -> Ref | None:
    # (x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + e)  -->  layer_norm(x, e)
    for d, v in _quotients(g, n):
        centred = _centred(g, d)
        variance, epsilon = _with_epsilon(g, v)
        mean = mean_over(g, variance)
        base = None if mean is None else squared(g, mean[0])
        if centred is None or mean is None or base is None or mean[1] != centred[1]:
            continue
        if base != d and _centred(g, base) != centred:
            continue
        axis = trailing(centred[1], n.output.type.rank)
        if axis is not None and whole(g, centred[0], n):
            return g.emit("layer_norm", (centred[0],), {"axis": axis, "epsilon": epsilon})
    return None


@rule("div", "mul", kind=ROUNDING, forms=[
    "x: f32[N, 8]; mul(x, reciprocal(sqrt(add(reduce_mean(mul(x, x), axes=(1,), keepdims=True), "
    "1e-5))))",
    "x: f32[N, 8]; div(x, sqrt(add(reduce_mean(mul(x, x), axes=(1,), keepdims=True), 1e-5)))",
])
def _rms_norm(g: Editor, n: Node) -> Ref | None:
    # x / sqrt(mean(x * x) + e)  -->  rms_norm(x, e)
    for x, v in _quotients(g, n):
        square, epsilon = _with_epsilon(g, v)
        mean = mean_over(g, square)
        if mean is None or squared(g, mean[0]) != x:
            continue
        axis = trailing(mean[1], n.output.type.rank)
        if axis is not None and whole(g, x, n):
            return g.emit("rms_norm", (x,), {"axis": axis, "epsilon": epsilon})
    return None


def _fitting(g: Editor, ref: Ref, norm: Node) -> Ref | None:
    """ref as a scale or bias of the norm, of exactly the shape of the normalised axes."""
    axis = int(norm.attr("axis"))
    wanted, shape = norm.output.type.shape[axis:], g.shape(ref)
    if shape == wanted:
        return ref
    array = g.array(ref)
    if array is None or not all(d.is_const for d in wanted) or len(shape) > norm.output.type.rank:
        return None
    lead = len(shape) - len(wanted)
    if any(not is_one(d) for d in shape[: max(lead, 0)]):
        return None
    full = tuple(d.const for d in wanted)
    try:
        return g.constant(np.broadcast_to(array.reshape(array.shape[max(lead, 0) :]), full))
    except ValueError:
        return None


def _affine(op: str, slot: int) -> Rule:
    """The rule that gives a norm its scale (mul, slot 1) or bias (add, slot 2)."""

    def apply(g: Editor, n: Node) -> Ref | None:
        # layer_norm(x) * s  -->  layer_norm(x, s);  layer_norm(x, s) + b  -->  layer_norm(x, s, b)
        for r, other in (n.inputs, n.inputs[::-1]):
            norm = g.made_by(r, *(("layer_norm", "rms_norm") if slot == 1 else ("layer_norm",)))
            if norm is None or g.uses(r) != 1 or len(norm.inputs) > slot or r == other:
                continue
            if g.type_of(r) != n.output.type or g.type_of(other).dtype != n.output.type.dtype:
                continue
            made = _fitting(g, other, norm)
            if made is not None:
                inputs = (*norm.inputs, *([""] * (slot - len(norm.inputs))), made)
                return g.emit(norm.op, inputs, norm.attrs)
        return None

    form = "x: f32[N, 8]; c: f32[8] = draw; "
    form += "mul(layer_norm(x{}), c)" if slot == 1 else "add(layer_norm(x, c{}), c)"
    return Rule(f"norm_{op}", (op,), apply, ROUNDING, (form.format(", axis=1, epsilon=1e-5"),))


NORM_RULES: tuple[Rule, ...] = (_layer_norm, _rms_norm, _affine("mul", 1), _affine("add", 2))
