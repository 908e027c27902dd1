"""Rules that move constant scales and biases, batch norms among them, into the weights before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from smelt.core.ir.graph import Node, Ref, Weight
from smelt.core.passes.constants import per_axis
from smelt.core.passes.editor import Array, Editor
from smelt.core.passes.rules import Rule, rule

CONVOLUTIONS = ("conv", "conv_transpose")


@rule("batch_norm")
def _batch_norm(g: Editor, n: Node) -> Ref | None:
    # batch_norm(x) with constant statistics  -->  x * k + c per channel
    parameters = [g.array(r) for r in n.inputs[1:5]]
    if any(p is None for p in parameters):
        return None
    scale, bias, mean, var = (np.asarray(p, np.float64) for p in parameters)
    k = scale / np.sqrt(var + float(n.attr("epsilon")))
    c = bias - mean * k
    rank, x = n.output.type.rank, n.inputs[0]
    if rank < 2:
        return None
    shape = (-1, *(1,) * (rank - 2))
    dtype = n.output.type.dtype.numpy
    y = g.emit("mul", (x, g.constant(k.astype(dtype).reshape(shape))))
    return g.emit("add", (y, g.constant(c.astype(dtype).reshape(shape))))


def _channel_axis(n: Node) -> int:
    return n.output.type.rank - 1 if n.attrs.get("channels_last", False) else 1


def _scaled_weight(g: Editor, n: Node, c: Array) -> Weight | None:
    """The weight of a convolution or matrix product whose output channels are multiplied by c."""
    if not g.is_weight(n.inputs[1]):
        return None
    w = g.shop.weights[n.inputs[1]]
    k, rank = np.asarray(c, np.float64), len(w.shape)
    factor = k.reshape((1,) * rank) if k.size == 1 else FACTORS[n.op](n, k, w.shape)
    return None if factor is None else w.scaled(factor, n.inputs[1])


def _last(n: Node, k: Array, shape: tuple[int, ...]) -> Array:
    return k.reshape(*(1,) * (len(shape) - 1), -1)


def _conv(n: Node, k: Array, shape: tuple[int, ...]) -> Array:
    # [M, C/g, *K], or [*K, C/g, M] channels last
    last = n.attrs.get("channels_last", False)
    return _last(n, k, shape) if last else k.reshape(-1, *(1,) * (len(shape) - 1))


def _conv_transpose(n: Node, k: Array, shape: tuple[int, ...]) -> Array | None:
    # [C, M/g, *K]: the output channel of group i, column j is i * M/g + j
    if n.attrs.get("channels_last", False):
        return None
    group = int(n.attr("group"))
    rows = np.repeat(k.reshape(group, shape[1]), shape[0] // group, axis=0)
    return rows.reshape(*shape[:2], *(1,) * (len(shape) - 2))


# op -> one number per output channel, k, in the rank of a weight of that shape
FACTORS: Mapping[str, Callable[[Node, Array, tuple[int, ...]], Array | None]] = {
    "matmul": _last,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
}


def _linear(g: Editor, ref: Ref, n: Node) -> Node | None:
    """The float convolution or product with a constant matrix that makes ref, used by n alone."""
    m = g.made_by(ref, *CONVOLUTIONS, "matmul")
    if m is None or g.uses(ref) != 1 or g.type_of(ref) != n.output.type:
        return None
    if m.op == "matmul" and (len(g.shape(m.inputs[1])) != 2 or len(g.shape(m.inputs[0])) < 2):
        return None
    return m if g.is_weight(m.inputs[1]) and n.output.type.dtype.is_float else None


def _constant_of(g: Editor, n: Node, m: Node) -> Array | None:
    """n's right operand as one number per output channel of m, or one for all."""
    rank = n.output.type.rank
    axis = rank - 1 if m.op == "matmul" else _channel_axis(m)
    return per_axis(g, n.inputs[1], rank, axis, n.output.type.shape[axis])


@rule("mul", "div")
def _scale(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b) * c  -->  conv(x, w * c, b * c);  matmul(x, w) * c  -->  matmul(x, w * c)
    m = _linear(g, n.inputs[0], n)
    c = None if m is None else _constant_of(g, n, m)
    if m is None or c is None:
        return None
    k = np.asarray(c, np.float64) if n.op == "mul" else 1.0 / np.asarray(c, np.float64)
    bias = g.array(m.inputs[2]) if len(m.inputs) > 2 and m.inputs[2] else None
    if not np.isfinite(k).all() or (bias is None and len(m.inputs) > 2 and m.inputs[2]):
        return None
    w = _scaled_weight(g, m, k)
    if w is None:
        return None
    inputs = [m.inputs[0], g.shop.weight(w)]
    if bias is not None:
        inputs.append(g.constant((bias * k).astype(bias.dtype), m.inputs[2][1:]))
    return g.emit(m.op, inputs, m.attrs)


@rule("add")
def _bias(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b) + c  -->  conv(x, w, b + c), c one number per channel
    m = _linear(g, n.inputs[0], n)
    if m is None or m.op == "matmul":
        return None
    c = _constant_of(g, n, m)
    given = m.inputs[2] if len(m.inputs) > 2 else ""
    before = g.array(given) if given else np.zeros(1, n.output.type.dtype.numpy)
    if c is None or before is None:
        return None
    channels = n.output.type.shape[_channel_axis(m)].const
    total = np.broadcast_to(np.asarray(before, np.float64) + c, (channels,))
    name = given[1:] if given else f"{m.inputs[1][1:]}.bias"
    b = g.constant(total.astype(n.output.type.dtype.numpy), name)
    return g.emit(m.op, (*m.inputs[:2], b), m.attrs)


@rule("mul")
def _scale_behind_bias(g: Editor, n: Node) -> Ref | None:
    # (matmul(x, w) + b) * c  -->  matmul(x, w) * c + b * c
    total = g.made_by(n.inputs[0], "add")
    if total is None or g.uses(n.inputs[0]) != 1:
        return None
    b, c = g.array(total.inputs[1]), g.array(n.inputs[1])
    m = g.made_by(total.inputs[0], "matmul")
    if b is None or c is None or m is None or _linear(g, total.inputs[0], total) is None:
        return None
    if _constant_of(g, n, m) is None or _constant_of(g, total, m) is None:
        return None
    if g.type_of(n.inputs[0]) != n.output.type:
        return None
    both = np.asarray(np.asarray(b, np.float64) * c, b.dtype)
    y = g.emit("mul", (total.inputs[0], n.inputs[1]))
    return g.emit("add", (y, g.constant(both)))


AFFINE_RULES: tuple[Rule, ...] = (_batch_norm, _scale, _bias, _scale_behind_bias)
