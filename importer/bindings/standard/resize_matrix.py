"""Resize by one weight matrix per axis, computed by core ops, and a product with it: for filters that stretch
(antialias), and for many axes whose scales only a run knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smelt.core.dim import ONE, ZERO, Dim, to_dim
from smelt.core.dtype import f64, i64
from smelt.core.ir.graph import Ref
from smelt.importer.call import Call

RADIUS = {"linear": 1, "cubic": 2}


@dataclass(frozen=True)
class Late:
    """Scales that only a run knows: the tensor, and which element is an axis's own."""

    ref: Ref
    at: tuple[int | None, ...]


def by_matrices(
    c: Call,
    x: Ref,
    shape: Sequence[Dim],
    scales: Sequence[float | None],
    coordinates: str,
    late: Late,
    mode: str,
    stretch: bool,
) -> Ref:
    """x resized to `shape`; stretch: the filter widens where an axis shrinks."""
    b, dtype, rank = c.builder, c.type(0).dtype, len(shape)
    for axis in range(rank):
        n, out = b.type_of(x).shape[axis], shape[axis]
        if n == out and scales[axis] in (None, 1.0) and late.at[axis] is None:
            continue
        scale = _scale(c, n, out, scales[axis], late, axis)
        width = c.emit("min", scale, c.scalar(1, scale)) if stretch else c.scalar(1, scale)
        p = _positions(c, n, out, scale, coordinates)
        m = b.cast(_matrix(c, n, out, p, width, mode), dtype)
        order = [*(a for a in range(rank) if a != axis), axis]
        y = c.emit("matmul", b.transpose(x, order), m)
        x = b.transpose(y, [order.index(a) for a in range(rank)])
    return x


def _scale(c: Call, n: Dim, out: Dim, scale: float | None, late: Late, axis: int) -> Ref:
    """Output positions per input position, a rank-0 f64."""
    b, at = c.builder, late.at[axis]
    if scale is not None:
        return b.scalar(scale, b.cast(b.from_dims([n], []), f64))
    if late.ref and at is not None:
        return b.cast(b.reshape(b.slice_axis(late.ref, 0, at, at + 1), ()), f64)
    return c.emit("div", b.cast(b.from_dims([out], []), f64), b.cast(b.from_dims([n], []), f64))


def _positions(c: Call, n: Dim, out: Dim, scale: Ref, coordinates: str) -> Ref:
    """Where each output lies in the input, f64[out]."""
    b = c.builder
    o = c.emit("iota", shape=(out,), start=ZERO, step=ONE, dtype=f64)
    size, made = (b.cast(b.from_dims([d], []), f64) for d in (n, out))

    def k(v: float) -> Ref:
        return c.scalar(v, o)

    grown = c.emit("mul", scale, size)
    centre = c.emit("sub", c.emit("div", c.emit("add", o, k(0.5)), scale), k(0.5))
    if coordinates == "half_pixel":
        return centre
    if coordinates == "pytorch_half_pixel":
        return c.emit("where", c.emit("equal", grown, k(1)), k(-0.5), centre)
    if coordinates == "asymmetric":
        return c.emit("div", o, scale)
    if coordinates == "tf_half_pixel_for_nn":
        return c.emit("div", c.emit("add", o, k(0.5)), scale)
    if coordinates == "align_corners":
        last = c.emit("sub", grown, k(1))
        last = c.emit("where", c.emit("equal", last, k(0)), k(1), last)
        return c.emit("div", c.emit("mul", o, c.emit("sub", size, k(1))), last)
    if coordinates == "half_pixel_symmetric":
        away = c.emit("sub", k(1), c.emit("div", made, grown))
        return c.emit("add", c.emit("mul", c.emit("mul", size, k(0.5)), away), centre)
    raise c.unsupported(f"antialias with coordinates '{coordinates}'")


def _taps(c: Call, width: Ref, mode: str) -> tuple[Dim, Ref]:
    """How many inputs one output reads, and the first one's distance from the base, rank 0 in f64."""
    b, radius = c.builder, RADIUS[mode]
    known = b.constant_of(width)
    if known is not None:
        start = math.floor(-radius / (float(known) or 1.0)) + 1  # 0: there is no output
        return to_dim(2 - 2 * start), c.scalar(start, width)
    reach = c.emit("div", c.scalar(-radius, width), width)
    first = c.emit("add", c.emit("floor", reach), c.scalar(1, width))
    count = c.emit("sub", c.scalar(2, first), c.emit("mul", c.scalar(2, first), first))
    return b.bind(b.cast(count, i64), 0, "taps"), first


def _matrix(c: Call, n: Dim, out: Dim, p: Ref, width: Ref, mode: str) -> Ref:
    """[n, out] weights of outputs at positions p; a tap outside counts for the edge, or not at all with
    exclude_outside."""
    b = c.builder
    base = c.emit("sub", c.emit("ceil", p), c.scalar(1, p))
    count, first = _taps(c, width, mode)
    taps = c.emit("add", c.emit("iota", shape=(count,), start=ZERO, step=ONE, dtype=f64), first)
    ratio = b.reshape(c.emit("sub", p, base), (out, 1))
    away = c.emit("sub", b.reshape(taps, (1, count)), ratio)
    weights = _filter(c, c.emit("abs", c.emit("mul", away, width)), mode)
    at = c.emit("add", b.reshape(base, (out, 1)), b.reshape(taps, (1, count)))
    last = c.emit("sub", b.cast(b.from_dims([n], []), f64), c.scalar(1, at))
    if c.flag("exclude_outside"):
        inside = c.emit("and", c.emit("greater_equal", at, c.scalar(0, at)), c.emit("less_equal", at, last))
        weights = c.emit("where", inside, weights, c.scalar(0, weights))
    weights = c.emit("div", weights, c.emit("reduce_sum", weights, axes=(1,), keepdims=True))
    place = c.emit("clip", at, c.scalar(0, at), last)
    inputs = b.reshape(c.emit("iota", shape=(n,), start=ZERO, step=ONE, dtype=f64), (n, 1, 1))
    hit = c.emit("equal", inputs, b.reshape(place, (1, out, count)))
    part = c.emit("where", hit, b.reshape(weights, (1, out, count)), c.scalar(0, weights))
    return c.emit("reduce_sum", part, axes=(2,), keepdims=False)


def _filter(c: Call, x: Ref, mode: str) -> Ref:
    """The triangle or Keys' cubic at distances x >= 0."""

    def k(v: float) -> Ref:
        return c.scalar(v, x)

    if mode == "linear":
        return c.emit("max", c.emit("sub", k(1), x), k(0))
    a = c.number("cubic_coeff_a", -0.75)
    x2 = c.emit("mul", x, x)
    x3 = c.emit("mul", x2, x)

    def cubic(*factors: float) -> Ref:
        terms = [c.emit("mul", p, k(f)) for p, f in zip((x3, x2, x), factors[:3], strict=True)]
        y = c.emit("add", c.emit("add", terms[0], terms[1]), terms[2])
        return c.emit("add", y, k(factors[3]))

    near, far = cubic(a + 2, -(a + 3), 0, 1), cubic(a, -5 * a, 8 * a, -4 * a)
    far = c.emit("where", c.emit("less", x, k(2)), far, k(0))
    return c.emit("where", c.emit("less_equal", x, k(1)), near, far)
