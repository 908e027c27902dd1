"""Graph -> Graph: convolutions of 2 to 5 taps by minimal filtering, where fewer products pay for transforms.

conv(x, w)  -->  winograd_output(winograd_input(pad(x)) * w')      a product of matrices for each element of
                                                                    a transformed tile

Of bytes the elements are integers of 16 bits, and nothing is lost; that is for machines that multiply these
faster than bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from smelt.core.dim import ZERO, ceildiv, product, to_dim
from smelt.core.dtype import BYTES, Array, DType, f32, i8
from smelt.core.ir.graph import Attr, Module, Node, Ref
from smelt.core.ir.instructions import words_pay
from smelt.core.ops.rows.winograd import (
    INTERPOLATION_POINTS,
    excess,
    transformed_weight,
    transforms,
)
from smelt.core.passes.context import Context
from smelt.core.passes.numerics import EXACT, TRANSFORMS
from smelt.core.passes.rewriting.constants import dims_of, ints_of
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rewrite, rule

OF_FOUR, OF_SIX = 20, 35
"""What each element of a transformed tile costs beside its products, in multiply-adds, where the tile has 4
or 6 elements on an axis: it is computed from others, written and read, beyond the second-level cache
(benchmarks/results/choices.md). r taps make 5 - r or 7 - r outputs of them."""
OF_WEIGHT_BYTE = 3
"""What a byte of a weight costs, in multiply-adds: a run reads it once, from memory, however many outputs
share it (benchmarks/results/choices.md)."""
MOST_TRANSFORMED_WEIGHT = 10 << 20
"""Bytes of a weight for tiles of more than 2: 4 times the weight's own, which few tiles do not pay for, and
many pay little for. Of bytes for all tiles: those of 2 make it 3.5 times as long, those of 4 8 times
(benchmarks/results/choices.md has what that buys)."""
LOST = 2.0**-17
"""The most that an output may be off, of the largest of its channel. A plain sum of 4608 products
loses a third of that (benchmarks/results/winograd.md); the tolerance of comparisons, 1e-5, is above it."""
MOST_TILE_ELEMENTS = 64
"""Elements of a transformed tile, which are written out in a kernel."""
TRIAL_TILES = 16
"""Tiles of random numbers by which the loss is measured."""


OF_FOUR_WORDS, OF_SIX_WORDS = 9, 18
"""OF_FOUR and OF_SIX of convolutions of bytes (benchmarks/results/choices.md)."""


class Costs(NamedTuple):
    """What convolutions by tiles take beside their products, in multiply-adds: four and six are those of an
    element of a transformed tile that has 4 or 6 of them on an axis; weight_byte is that of a byte of the
    weight. words: they are of bytes, transformed to integers of 16 bits."""

    four: int
    six: int
    weight_byte: int = 0
    words: bool = False


def winograd(module: Module, ctx: Context) -> Module:
    """The module with transformed convolutions, where the machine says what a transformed element costs, or
    is a processor with vectors. Transformed tiles of 16 bits would lose too much."""
    m = ctx.machine
    if m.transforms:
        costs = Costs(*m.transforms)
    elif m.vector_bits and not m.has_lanes:
        costs = Costs(OF_FOUR, OF_SIX, OF_WEIGHT_BYTE)
    else:
        return module
    if ctx.options.fp16:
        return module
    rules = [replace(_conv_by_tiles, apply=partial(_by_tiles, costs=costs))]
    return rewrite(module, [*rules, *([_bytes_by_tiles] if words_pay(m) else [])])


@rule("conv", kind=TRANSFORMS, forms=[
    "x: f32[1, H, 4, 32]; w: f32[3, 3, 32, 32] = draw; b: f32[32] = draw; "
    "conv(x, w, b, pads_begin=(1, 1), pads_end=(1, 1), channels_last=True)",
    "x: f32[1, H, 160]; w: f32[5, 160, 160] = draw; "
    "conv(x, w, strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), channels_last=True)",
])
def _conv_by_tiles(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b)  -->  winograd_output(matmul(winograd_input(pad(x)), w'), b)
    return _by_tiles(g, n, Costs(OF_FOUR, OF_SIX, OF_WEIGHT_BYTE))


@rule("conv", kind=EXACT, forms=[
    "x: u8[1, H, 4, 64]; w: i8[3, 3, 64, 64] = draw; b: i32[64] = draw; "
    "conv(x, w, b, pads_begin=(1, 1), pads_end=(1, 1), channels_last=True, origin=7)",
    "x: i8[1, H, 160]; w: i8[3, 160, 160] = draw; "
    "conv(x, w, strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), channels_last=True)",
])
def _bytes_by_tiles(g: Editor, n: Node) -> Ref | None:
    # the same of bytes
    return _by_tiles(g, n, Costs(OF_FOUR_WORDS, OF_SIX_WORDS, OF_WEIGHT_BYTE, True))


def _by_tiles(g: Editor, n: Node, costs: Costs) -> Ref | None:
    if not g.is_weight(n.inputs[1]):
        return None
    shape = tuple(d.const for d in g.shape(n.inputs[1]))
    types = [g.type_of(r).dtype for r in n.inputs[:2]]
    known = types[0] in BYTES and types[1] == i8 if costs.words else n.output.type.dtype == f32
    if not known or not _is_plain(g, n, shape):
        return None
    found = _transformed(g, n, shape, costs)
    if found is None:
        return None
    tile, weight = found
    kernel, out = shape[:-2], n.output.type.shape[1:-1]
    begin = dims_of(n.attrs["pads_begin"])
    tiles = tuple(ceildiv(o, m) for o, m in zip(out, tile, strict=True))
    whole = [t * m + (r - 1) for t, m, r in zip(tiles, tile, kernel, strict=True)]
    end = [s - b - h for s, b, h in zip(whole, begin, g.shape(n.inputs[0])[1:-1], strict=True)]
    attrs: dict[str, Attr] = {"tile": tile, "kernel": kernel}
    x = n.inputs[0]
    if any(d != 0 for d in (*begin, *end)):
        pads = {"before": (ZERO, *begin, ZERO), "after": (ZERO, *end, ZERO)}
        origin = int(n.attr("origin", 0))
        x = g.emit("pad", (x, *([g.like(origin, x)] if origin else [])), {**pads, "mode": "constant"})
    v = g.emit("winograd_input", (x,), {**attrs, "tiles": tiles})
    elements, batch, *_, channels = g.shape(v)
    v = g.emit("reshape", (v,), {"shape": (elements, product((batch, *tiles)), channels)})
    y = g.emit("matmul", (v, g.constant(weight, n.inputs[1][1:])))
    y = g.emit("reshape", (y,), {"shape": (elements, batch, *tiles, to_dim(shape[-1]))})
    return g.emit("winograd_output", (y, *(r for r in n.inputs[2:] if r)), {**attrs, "shape": out})


def _is_plain(g: Editor, n: Node, shape: tuple[int, ...]) -> bool:
    """Whether it is a convolution as the transforms know it: channels last, dense, with steps of 1, and few
    enough taps on all axes that have more than one."""
    begin = [g.engine.facts.bounds(d)[0] for d in dims_of(n.attrs["pads_begin"])]
    steps = (*ints_of(n.attrs["strides"]), *ints_of(n.attrs["dilations"]), int(n.attr("group")))
    kernel = shape[:-2]
    return bool(
        n.attr("channels_last", False)
        and set(steps) == {1}
        and all(b is not None and b >= 0 for b in begin)
        and 1 < max(kernel) < len(INTERPOLATION_POINTS) + 1
        and 0 not in shape
    )


def _transformed(
    g: Editor, n: Node, shape: tuple[int, ...], costs: Costs
) -> tuple[tuple[int, ...], Array] | None:
    """The tile that takes least time of those that lose little enough, and the weight for it; None where the
    convolution itself is as fast."""
    out = [d.const_or_none for d in n.output.type.shape[:-1]]
    taps = shape[:-2]
    bytes_ = g.type_of(n.inputs[1]).dtype.bytes
    plain = _cost((1,) * len(taps), 0, shape, bytes_ * costs.weight_byte, out)
    bytes_ = 2 if costs.words else bytes_
    found = {}
    for points, moved in ((4, costs.four), (6, costs.six)):
        tile = tuple(points - r + 1 if r > 1 else 1 for r in taps)
        size = prod(points if r > 1 else 1 for r in taps)
        long = size * prod(shape[-2:]) * bytes_ > MOST_TRANSFORMED_WEIGHT
        fits = size <= MOST_TILE_ELEMENTS and not (long and (costs.words or max(tile) > 2))
        if fits and min(m for m, r in zip(tile, taps, strict=True) if r > 1) > 1:
            found[tile] = _cost(tile, moved, shape, bytes_ * costs.weight_byte, out)
    cheaper = [tile for tile in sorted(found, key=lambda t: found[t]) if found[tile] < plain]
    w = g.array(n.inputs[1]) if cheaper else None  # read where it is used: it may be large
    if w is None:
        return None
    for tile in cheaper:
        with np.errstate(all="ignore"):
            exact = transformed_weight(w, tile)
            if costs.words:
                if _in_words(w, exact, tile, g.type_of(n.inputs[0]).dtype):
                    return tile, exact.astype(np.int16)
                continue
            weight = exact.astype(w.dtype)
            if bool(np.isfinite(weight).all()) and _loss(exact, weight, tile, taps) <= LOST:
                return tile, weight
    return None


def _cost(
    tile: Sequence[int], moved: int, shape: Sequence[int], element: int, out: Sequence[int | None]
) -> float:
    """Multiply-adds of an output for all channels, and what is as long. moved: what an element of a
    transformed tile costs; element: one of the weight. out: the batch, of which one is the least that shares
    a weight, and the extents of outputs, of which nobody knows how many there are where one is unknown."""
    *kernel, channels, made = shape
    size = prod(t + r - 1 for t, r in zip(tile, kernel, strict=True))
    batch, *extents = out
    filled = prod(o / (-(-o // t) * t) for o, t in zip(extents, tile, strict=True) if o)
    each = size / prod(tile) / filled * (channels * made + moved * (channels + made))
    known = [o for o in extents if o]
    if len(known) < len(extents):
        return each
    return each + size * channels * made * element / (prod(known) * (batch or 1))


def _in_words(w: Array, exact: Array, tile: Sequence[int], x: DType) -> bool:
    """Whether 16 bits hold a transformed weight and tiles, and 32 bits what is shifted at the end. x: the
    type of the inputs."""
    taps = w.shape[: len(tile)]
    low, high = x.limits
    ends = [(low, high)]
    for m, r in zip(tile, taps, strict=True):
        rows = [[int(c) for c in row] for row in transforms(m, r).data]
        ends = [
            (sum(min(c * a, c * b) for c in row), sum(max(c * a, c * b) for c in row))
            for row in rows for a, b in ends
        ]  # fmt: skip
    words = 1 << 15
    room = all(a >= -words and b < words for a, b in ends) and np.abs(exact).max(initial=0) < words
    sums = np.abs(w.astype(np.int64)).sum(axis=tuple(range(w.ndim - 1)), dtype=np.int64)
    return room and int(sums.max(initial=0)) * max(-low, high) << excess(tile, taps)[1] < 1 << 31


def _loss(exact: Array, weight: Array, tile: Sequence[int], kernel: Sequence[int]) -> float:
    """The largest error of outputs, as a share of the largest of their channel, for random inputs: what is
    rounded are weights and transformed tiles, before and after their products. exact: the weights before."""
    axes = [transforms(m, r) for m, r in zip(tile, kernel, strict=True)]
    sizes = [len(f.data) for f in axes]
    _, channels, made = weight.shape
    x = np.random.default_rng(0).standard_normal((TRIAL_TILES, *sizes, channels))
    v = _along(x, [f.data for f in axes]).reshape(TRIAL_TILES, -1, channels).swapaxes(0, 1)

    def outputs(y: Array) -> Array:
        return _along(y.swapaxes(0, 1).reshape(TRIAL_TILES, *sizes, made), [f.back for f in axes])

    rounded = v.astype(np.float32).astype(np.float64) @ weight.astype(np.float64)
    wanted, found = outputs(v @ exact), outputs(rounded.astype(np.float32).astype(np.float64))
    over = tuple(range(wanted.ndim - 1))
    largest = np.abs(wanted).max(over)
    return float(np.max(np.abs(found - wanted).max(over) / np.where(largest == 0, 1, largest), initial=0))


def _along(x: Array, matrices: Sequence[Sequence[Sequence[object]]]) -> Array:
    """[P, *S, C] with each axis of S multiplied by its matrix."""
    for a, m in enumerate(matrices, start=1):
        x = np.moveaxis(np.tensordot(np.array(m, np.float64), x, (1, a)), 0, a)
    return x


RULES: tuple[Rule, ...] = (_conv_by_tiles, _bytes_by_tiles)
