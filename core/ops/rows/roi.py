"""An image and regions of it -> the mean or the maximum of readings in each bin of each region: roi_align.

A reading lies between four elements. How many a bin has is known when compiling (`roi_align`), or told by an
operand of each region (`roi_align_counted`), whose channels come last: positions and weights of a reading are
found once, and then used for all channels, which are neighbours.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, DType, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import dims, number
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.sample import interpolated, np_taps, parted, rejoined, taps_of, work_type
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op, wants_elements
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select

FEW_SAMPLES = 4
"""Samples of a bin that are written out."""


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, rois, batch = args[:3]
    assert x is not None and rois is not None and batch is not None
    if x.rank != 4 or rois.rank != 2 or batch.rank != 1:
        raise c.fail(f"ranks are {x.rank}, {rois.rank} and {batch.rank}, wanted 4, 2 and 1")
    c.same("regions and batch indices", rois.shape[0], batch.shape[0])
    c.same("numbers per region", rois.shape[1], to_dim(4))
    last = bool(attrs.get("channels_last", False))
    made = rejoined(rois.shape[0], parted(x.shape, last)[1], dims(attrs, "size"), last)
    for a in (0, 1, 2) if last else (0, 2, 3):
        wants_elements(c, f"axis {a}", made, x.shape[a])
    return (TensorType(x.dtype, made),)


def _infer_counted(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    _, rois, _, counts = args
    assert rois is not None and counts is not None
    if counts.rank != 2 or not counts.dtype.is_int:
        raise c.fail(f"the numbers of samples are {counts.type}, wanted integers of rank 2")
    c.same("regions and numbers of samples", rois.shape[0], counts.shape[0])
    c.same("numbers of samples per region", counts.shape[1], to_dim(2))
    return _infer(c, args, {**attrs, "channels_last": True})


@dataclass(frozen=True)
class _Bin:
    """One bin of a region. edge: the region's left, top, right and bottom; at, size: which of the bins down
    and across it is, and of how many; image: the extents of what is read."""

    edge: Callable[[int], Expr]
    at: DimIndex
    size: Sequence[Dim]
    image: DimIndex
    half: bool
    work: DType

    def const(self, v: float) -> Expr:
        return const(v, self.work)

    def position(self, a: int, s: Dim, count: Expr) -> Expr:
        """Where sample s of `count` lies along an axis."""
        start, end = self.edge(1 - a), self.edge(3 - a)
        span = call("sub", end, start)
        span = span if self.half else call("max", span, self.const(1))
        step = call("div", span, index(self.size[a], self.work))
        inner = call("div", call("add", index(s, self.work), self.const(0.5)), count)
        return call("add", start, call("mul", step, call("add", index(self.at[a], self.work), inner)))

    def placed(self, samples: DimIndex, counts: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        """The positions, moved into the image, and whether they were too far outside of it."""
        outside: Expr | None = None
        positions: list[Expr] = []
        for a in range(2):
            p, extent = self.position(a, samples[a], counts[a]), self.image[a]
            out = call("or", call("lt", p, self.const(-1)), call("gt", p, index(extent, self.work)))
            outside = out if outside is None else call("or", outside, out)
            positions.append(call("min", call("max", p, self.const(0)), index(extent - 1, self.work)))
        assert outside is not None
        return positions, outside


def _edge(e: Expr, attrs: Attrs, work: DType) -> Expr:
    """A region's edge in elements of the image."""
    scaled = call("mul", cast(e, work), const(number(attrs, "scale"), work))
    return call("sub", scaled, const(0.5, work)) if attrs["half_pixel"] else scaled


def _between(positions: Sequence[Expr], floors: DimIndex, image: DimIndex, fetch: Callable[..., Expr],
             largest: bool) -> Expr:  # fmt: skip
    """The sum of the four weighted neighbours of a position, or the largest of them: what the operator's
    maximum is taken over. floors: of the position, inside of the image."""
    rows = [taps_of("linear", call("sub", p, call("floor", p))) for p in positions]
    parts = []
    for (a, v), (b, w) in itertools.product(*rows):
        row, column = dmin(floors[0] + a, image[0] - 1), dmin(floors[1] + b, image[1] - 1)
        parts.append(call("mul", fetch(row, column), call("mul", v, w)))
    return functools.reduce(lambda x, y: call("max" if largest else "add", x, y), parts)


# ---------------------------------------------------------------- as many readings in each bin


def _compute(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, rois: Operand, batch: Operand
) -> Expr:
    """The mean (or maximum) of samples * samples bilinear readings in each bin of the region."""
    extents, largest = dims(attrs, "samples"), attrs["mode"] == "max"
    work, last = work_type(x.dtype), bool(attrs.get("channels_last", False))
    (_, _, image), (_, channel, at) = parted(x.shape, last), parted(i, last)
    own = _Bin(
        lambda k: _edge(rois[i[0], to_dim(k)], attrs, work), at, dims(attrs, "size"), image,
        bool(attrs["half_pixel"]), work,
    )  # fmt: skip
    counts = [index(n, work) for n in extents]

    def reading(n: Dim, *s: Dim) -> Expr:
        def fetch(*place: Dim) -> Expr:
            return cast(x[rejoined(n, channel, place, last)], work)

        positions, outside = own.placed(s, counts)
        read = _peak if largest else _bilinear
        return select(outside, own.const(0), read(t, positions, image, fetch))

    def pooled(n: Dim) -> Expr:
        if largest:
            return t.reduce("max", extents, lambda *s: reading(n, *s))
        total = _few(extents, lambda *s: reading(n, *s)) or t.sum(extents, lambda *s: reading(n, *s))
        return call("div", total, index(dmax(extents[0] * extents[1], 1), work))

    return cast(t.let(cast(batch[i[0]], i64), 0, x.shape[0] - 1, pooled), x.dtype)


def _few(own: Sequence[Dim], reading: Callable[..., Expr]) -> Expr | None:
    """The sum of a few samples, written out, so that what does not depend on the channel stands before its
    loop; None of many."""
    counts = [d.const_or_none or 0 for d in own]
    if not 1 <= math.prod(counts) <= FEW_SAMPLES:
        return None
    every = (reading(*map(to_dim, s)) for s in itertools.product(*map(range, counts)))
    return functools.reduce(lambda a, b: call("add", a, b), every)


def _bilinear(t: Trace, positions: Sequence[Expr], image: DimIndex, fetch: Callable[..., Expr]) -> Expr:
    def inside(*at: Dim) -> Expr:
        return fetch(*(dmax(dmin(d, e - 1), 0) for d, e in zip(at, image, strict=True)))

    return interpolated(t, positions, image, "linear", inside)


def _peak(t: Trace, positions: Sequence[Expr], image: DimIndex, fetch: Callable[..., Expr]) -> Expr:
    down, across = (cast(call("floor", p), i64) for p in positions)

    def at(g: Dim) -> Expr:
        return t.let(across, 0, image[1] - 1, lambda h: _between(positions, (g, h), image, fetch, True))

    return t.let(down, 0, image[0] - 1, at)


# ---------------------------------------------------------------- as many as each region wants


def _nest(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """A bin's readings one after the other, each for all channels. A region without readings is 0."""
    (x, rois, batch, counts), (y,) = inputs, outputs
    assert x is not None and rois is not None and batch is not None and counts is not None
    work, largest, image = work_type(x.dtype), attrs["mode"] == "max", x.shape[1:3]
    total = y if y.dtype == work else Buffer("total", work, y.shape)
    most = dims(attrs, "samples")

    def let(value: Expr, low: Dim, high: Dim, body: Callable[[Dim], tuple[Stmt, ...]]) -> Block:
        g = t.fresh("g")
        return Block(body(g), let=((str(g), value, low, high),))

    def bin_(o: DimIndex) -> tuple[Stmt, ...]:
        own = _Bin(
            lambda k: _edge(Load(rois.name, (o[0], to_dim(k)), rois.dtype), attrs, work), o[1:],
            dims(attrs, "size"), image, bool(attrs["half_pixel"]), work,
        )  # fmt: skip

        def channels(value: Callable[[Dim], Expr], into: Buffer) -> Loop:
            c = t.fresh("c")
            return Loop("serial", str(c), y.shape[-1], (Store(into.name, (*o, c), value(c)),))

        def so_far(c: Dim) -> Expr:
            return Load(total.name, (*o, c), work)

        def sample(n: Dim, s: DimIndex, numbers: DimIndex) -> tuple[Stmt, ...]:
            positions, outside = own.placed(s, [index(m, work) for m in numbers])

            def read(floors: DimIndex, c: Dim) -> Expr:
                def fetch(*place: Dim) -> Expr:
                    return cast(Load(x.name, (n, *place, c), x.dtype), work)

                value = select(outside, own.const(0), _between(positions, floors, image, fetch, largest))
                return call("max" if largest else "add", so_far(c), value)

            floors = [cast(call("floor", p), i64) for p in positions]

            def at(g: Dim) -> tuple[Stmt, ...]:
                return (let(floors[1], ZERO, image[1] - 1,
                            lambda h: (channels(lambda c: read((g, h), c), total),)),)  # fmt: skip

            return (let(floors[0], ZERO, image[0] - 1, at),)

        def pooled(n: Dim, g: Dim, h: Dim) -> tuple[Stmt, ...]:
            start = own.const(-math.inf if largest else 0)
            count = index(g * h, work)

            def end(c: Dim) -> Expr:
                if not largest:
                    return cast(call("div", so_far(c), call("max", count, own.const(1))), y.dtype)
                return cast(select(call("lt", count, own.const(1)), own.const(0), so_far(c)), y.dtype)

            down, across = t.fresh("s"), t.fresh("s")
            rows = Loop("serial", str(across), h, sample(n, (down, across), (g, h)))
            return (
                channels(lambda c: start, total),
                Loop("serial", str(down), g, (rows,)),
                channels(end, y),
            )

        down, across = (Load(counts.name, (o[0], to_dim(a)), counts.dtype) for a in range(2))
        image_of = cast(Load(batch.name, (o[0],), batch.dtype), i64)
        return (
            let(image_of, ZERO, x.shape[0] - 1, lambda n: (
                let(cast(down, i64), ZERO, most[0], lambda g: (
                    let(cast(across, i64), ZERO, most[1], lambda h: pooled(n, g, h)),)),)),
        )  # fmt: skip

    return Nest(nest_over(t, y.shape[:-1], bin_), () if total is y else (total,))


# ---------------------------------------------------------------- references


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, rois, batch = (np.asarray(a) for a in arrays[:3])
    fixed, scale = [d.const for d in dims(attrs, "samples")], number(attrs, "scale")
    given = None if len(arrays) < 4 else arrays[3]
    half, largest = bool(attrs["half_pixel"]), attrs["mode"] == "max"
    made = np.zeros([d.const for d in types[0].shape], np.float64)
    y = made
    if given is not None or attrs.get("channels_last", False):
        x, y = np.moveaxis(x, -1, 1), np.moveaxis(made, -1, 1)
    for r, ph, pw in np.ndindex(y.shape[0], *y.shape[2:]):
        box = rois[r].astype(np.float64) * scale - (0.5 if half else 0.0)
        found: list[Array] = []
        samples = fixed if given is None else [max(int(n), 0) for n in given[r]]
        for s in np.ndindex(*samples):
            taps, skip = [], False
            for a, o in enumerate((ph, pw)):
                span = box[3 - a] - box[1 - a]
                span = span if half else max(span, 1.0)
                p = box[1 - a] + span / y.shape[2 + a] * (o + (s[a] + 0.5) / samples[a])
                skip = skip or p < -1 or p > x.shape[2 + a]
                taps.append(np_taps(min(max(p, 0), x.shape[2 + a] - 1), "linear"))
            parts = [
                x[batch[r], :, min(q, x.shape[2] - 1), min(h, x.shape[3] - 1)].astype(np.float64) * v * w
                for (q, v), (h, w) in itertools.product(*taps)
            ]
            joined = np.max(parts, axis=0) if largest else np.sum(parts, axis=0)
            found.append(joined * (0 if skip else 1))
        if found:
            y[r, :, ph, pw] = np.max(found, axis=0) if largest else np.mean(found, axis=0)
    return (made.astype(types[0].dtype.numpy),)


_ROIS = np.array([[0, 0, 4, 5], [1, 2, 9, 3]], np.float32)
_BATCH = np.array([1, 0], np.int64)
_COUNTS = np.array([[2, 1], [0, 3]], np.int64)
_SIZES = {"size": (to_dim(2), to_dim(3)), "samples": (to_dim(2), to_dim(3))}

ROWS: tuple[Op, ...] = (
    Op(
        "roi_align",
        "x rois batch",
        _infer,
        _ref,
        tuple(
            Case(("f32[2, 3, 6, 7]", _ROIS, _BATCH), attrs={**_SIZES, "scale": s, "half_pixel": h, "mode": m})
            for s, h, m in ((1.0, True, "avg"), (0.5, False, "avg"), (1.0, False, "max"))
        ) + tuple(
            Case(("f32[2, 6, 7, 3]", _ROIS, _BATCH), attrs={
                **_SIZES, "scale": 1.0, "half_pixel": True, "mode": m, "channels_last": True,
            }) for m in ("avg", "max")
        ),
        compute=_compute,
    ),
    Op(
        "roi_align_counted",
        "x rois batch counts",
        _infer_counted,
        _ref,
        tuple(
            Case((f"{dtype}[2, 6, 7, 3]", _ROIS, _BATCH, _COUNTS), attrs={
                **_SIZES, "scale": s, "half_pixel": h, "mode": m,
            }) for dtype, s, h, m in (
                ("f32", 1.0, True, "avg"), ("f32", 0.5, False, "max"), ("f16", 1.0, False, "avg"),
            )
        ),
        nest=_nest,
    ),
)  # fmt: skip

__all__ = ["ROWS"]
