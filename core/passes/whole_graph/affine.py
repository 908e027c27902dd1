"""Rules that move constant scales and biases, batch norms among them, into the weights before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from smelt.core.dtype import Array, f16
from smelt.core.ir.graph import Node, Ref, Weight
from smelt.core.ops.rows.window import CONVOLUTIONS
from smelt.core.passes.numerics import EXACT, SUMS
from smelt.core.passes.rewriting.constants import per_axis
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule


@rule("batch_norm", kind=EXACT, forms=[
    "x: f32[N, 3, H]; s: f32[3] = draw; b: f32[3] = draw; m: f32[3] = draw; v: f32[3] = draw(0.5, "
    "2.0); batch_norm(x, s, b, m, v, epsilon=1e-5)",
])
def _batch_norm(g: Editor, n: Node) -> Ref | None:
    # batch_norm(x) with constant statistics  -->  x * k + c per channel
    parameters = [g.array(r) for r in n.inputs[1:5]]
    rank, x = n.output.type.rank, n.inputs[0]
    if rank < 2 or any(p is None or p.dtype != n.output.type.dtype.numpy for p in parameters):
        return None
    scale, bias, mean, variance = (np.asarray(p) for p in parameters)
    with np.errstate(all="ignore"):  # in the order and the type of the op's expansion
        k = scale / np.sqrt(variance + scale.dtype.type(float(n.attr("epsilon"))))
        c = bias - mean * k
    shape = (-1, *(1,) * (rank - 2))
    y = g.emit("mul", (x, g.constant(k.reshape(shape))))
    return g.emit("add", (y, g.constant(c.reshape(shape))))


# ---------------------------------------------------------------- which constants may merge

FACTOR = 2.0**24
"""Factors are between 1 / FACTOR and FACTOR: then only sums beyond 2^100 tell where they were applied."""
LEAST_TOP, MOST_TOP = 2.0**-96, 2.0**64
"""Where the largest weight of a scaled tensor lies: what gets lost below the smallest normal number is
nothing beside it, and products with inputs up to 2^40 do not overflow."""
MOST_CANCELLED = 2.0**10
"""How many times its sum a bias may be that is merged with another, ..."""
SMALL_BIAS = 16.0
"""... unless it is as small as this."""


def _factor(n: Node, c: Array) -> Array | None:
    """The constant that n multiplies with or divides by, as factors in f64; None where weights must not take
    them in."""
    if n.output.type.dtype == f16:
        return None
    with np.errstate(all="ignore"):
        k = np.asarray(c, np.float64) if n.op == "mul" else 1.0 / np.asarray(c, np.float64)
    size = np.abs(k)
    return k if bool(np.all((size >= 1 / FACTOR) & (size <= FACTOR))) else None


def _holds_scaled(w: Weight, k: Array) -> bool:
    """Whether a weight times the factors neither overflows nor vanishes; looked at in pieces."""
    size = np.abs(k)
    most = max((float(np.abs(p).max(initial=0)) for p in w.pieces()), default=0.0)
    fits = most <= MOST_TOP and most * float(size.max()) <= MOST_TOP and most * float(size.min()) >= LEAST_TOP
    return most == 0 or fits


def _products(b: Array, k: Array) -> Array | None:
    """b * k in b's type, as the model computes it where nothing is added to b; None where one overflows."""
    with np.errstate(all="ignore"):
        made = np.asarray(b * k.astype(b.dtype), b.dtype)
    return made if bool(np.isfinite(made).all()) else None


def _sums(b: Array, c: Array) -> Array | None:
    """b + c in b's type; None where one overflows, or where little is left of what there was."""
    with np.errstate(all="ignore"):
        total = np.asarray(b + c, b.dtype)
    largest = np.maximum(np.abs(b), np.abs(c))
    good = np.isfinite(total) & (largest <= np.maximum(SMALL_BIAS, MOST_CANCELLED * np.abs(total)))
    return total if bool(good.all()) else None


# ---------------------------------------------------------------- into weights


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


@rule("mul", "div", kind=SUMS, forms=[
    "x: f32[N, 2, H]; w: f32[3, 2, 3] = draw; b: f32[3] = draw; c: f32[3, 1] = draw; mul(conv(x, w, b), c)",
    "x: f32[N, 6]; w: f32[6, 4] = draw; div(matmul(x, w), 3.0)",
    "x: f32[N, 2, H]; w: f32[2, 3, 3] = draw; c: f32[3, 1] = draw; mul(conv_transpose(x, w), c)",
])
def _scale(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b) * c  -->  conv(x, w * c, b * c);  matmul(x, w) * c  -->  matmul(x, w * c)
    m = _linear(g, n.inputs[0], n)
    c = None if m is None else _constant_of(g, n, m)
    k = None if c is None else _factor(n, c)
    if m is None or k is None or not _holds_scaled(g.shop.weights[m.inputs[1]], k):
        return None
    given = m.inputs[2] if len(m.inputs) > 2 else ""
    bias = g.array(given) if given else None
    moved = None if bias is None else _products(bias, k)
    w = None if given and moved is None else _scaled_weight(g, m, k)
    if w is None:
        return None
    inputs = [m.inputs[0], g.shop.weight(w)]
    if moved is not None:
        inputs.append(g.constant(moved, given[1:]))
    return g.emit(m.op, inputs, m.attrs)


@rule("add", kind=SUMS, forms=[
    "x: f32[N, 2, H]; w: f32[3, 2, 3] = draw; b: f32[3] = draw; c: f32[3, 1] = draw; add(conv(x, w, "
    "b), c)",
    "x: f32[N, 2, H]; w: f32[3, 2, 3] = draw; c: f32[3, 1] = draw; add(conv(x, w), c)",
])
def _bias(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b) + c  -->  conv(x, w, b + c), c one number per channel
    m = _linear(g, n.inputs[0], n)
    if m is None or m.op == "matmul":
        return None
    c = _constant_of(g, n, m)
    given = m.inputs[2] if len(m.inputs) > 2 else ""
    before = g.array(given) if given else None
    if c is None or (given and (before is None or n.output.type.dtype == f16)):
        return None
    channels = n.output.type.shape[_channel_axis(m)].const
    own = np.broadcast_to(c, (channels,))
    total = own if before is None else _sums(before, own)
    if total is None:
        return None
    name = given[1:] if given else f"{m.inputs[1][1:]}.bias"
    b = g.constant(np.array(total), name)
    return g.emit(m.op, (*m.inputs[:2], b), m.attrs)


@rule("mul", kind=SUMS, forms=[
    "x: f32[N, 6]; w: f32[6, 4] = draw; b: f32[4] = draw; mul(add(matmul(x, w), b), 0.3)",
])
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
    k = _factor(n, c)
    both = None if k is None else _products(b, k)
    if k is None or both is None or not _holds_scaled(g.shop.weights[m.inputs[1]], k):
        return None
    y = g.emit("mul", (total.inputs[0], n.inputs[1]))
    return g.emit("add", (y, g.constant(both)))


AFFINE_RULES: tuple[Rule, ...] = (_batch_norm, _scale, _bias, _scale_behind_bias)
