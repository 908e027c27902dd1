"""Ops that read between elements, at positions that are data: grid_sample, deform_columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, DType, f32, f64, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Expr
from smelt.core.ops.attrs import dims, integer, ints
from smelt.core.ops.rows.resize import tap_weights
from smelt.core.ops.rows.window import window_extent
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op, wants_elements
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select

FAR_TAP = 4
"""How far outside a position may lie before it is pulled closer; taps reach two elements at most."""
CUBIC = -0.75
FARTHEST = float(1 << 62)
"""A position that is farther away, or no number, is read as that of -1, as in ONNX Runtime; PyTorch says so
of NaN. Reference points of a level that is masked as a whole are such: 0 / 0."""


def work_type(dtype: DType) -> DType:
    return f64 if dtype == f64 else f32


def taps_of(mode: str, frac: Expr) -> list[tuple[int, Expr]]:
    """(distance from the base, weight) of each tap."""
    weights = tap_weights(mode, frac, CUBIC)
    return list(enumerate(weights, 1 - len(weights) // 2))


def interpolated(
    t: Trace, positions: Sequence[Expr], extents: Sequence[Dim], mode: str, fetch: Callable[..., Expr]
) -> Expr:
    """The sum of weights times fetch(*taps). fetch gets taps that may lie up to FAR_TAP + 2 outside."""

    def axis(a: int, at: tuple[Dim, ...], weight: Expr | None) -> Expr:
        if a == len(positions):
            e = fetch(*at)
            return e if weight is None else call("mul", cast(e, weight.dtype), weight)
        p = positions[a]
        if mode == "nearest":
            base = cast(call("round", p), i64)
            return t.let(base, -FAR_TAP, extents[a] + FAR_TAP, lambda g: axis(a + 1, (*at, g), weight))
        base = cast(call("floor", p), i64)
        return t.let(base, -FAR_TAP, extents[a] + FAR_TAP, lambda g: taps(a, at, weight, g))

    def taps(a: int, at: tuple[Dim, ...], weight: Expr | None, g: Dim) -> Expr:
        p = positions[a]
        total: Expr | None = None
        for away, w in taps_of(mode, call("sub", p, call("floor", p))):
            e = axis(a + 1, (*at, g + away), w if weight is None else call("mul", weight, w))
            total = e if total is None else call("add", total, e)
        assert total is not None
        return total

    return axis(0, (), None)


# ---------------------------------------------------------------- grid_sample


def _infer_grid(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, grid = args
    assert x is not None and grid is not None
    n = x.rank - 2
    if n < 1 or grid.rank != x.rank:
        raise c.fail(f"input has rank {x.rank}, grid has rank {grid.rank}; wanted the same, at least 3")
    c.same("batch of input and grid", x.shape[0], grid.shape[0])
    c.same("coordinates per position", grid.shape[-1], to_dim(n))
    last = bool(attrs.get("channels_last", False))
    batch, channels, extents = parted(x.shape, last)
    made = rejoined(batch, channels, grid.shape[1:-1], last)
    if attrs["padding"] != "zeros":  # positions outside are moved inside
        for a, extent in enumerate(extents, 1 if last else 2):
            wants_elements(c, f"axis {a}", made, extent)
    return (TensorType(x.dtype, made),)


def parted(i: DimIndex, last: bool) -> tuple[Dim, Dim, DimIndex]:
    """(batch, channel, the other axes) of a shape or an index; last: the channel is its last axis."""
    return (i[0], i[-1], i[1:-1]) if last else (i[0], i[1], i[2:])


def rejoined(batch: Dim, channel: Dim, others: DimIndex, last: bool) -> DimIndex:
    """The inverse of parted."""
    return (batch, *others, channel) if last else (batch, channel, *others)


def _reflected(p: Expr, n: Dim, corners: bool) -> Expr:
    """A position folded back at the borders: 0 and n-1 (corners), else -0.5 and n-0.5."""
    low = const(0.0 if corners else -0.5, p.dtype)
    span = index(dmax(n - 1, 1) if corners else n, p.dtype)
    away = call("abs", call("sub", p, low))
    twice = call("add", span, span)
    part = call("sub", away, call("mul", call("floor", call("div", away, twice)), twice))
    folded = call("add", low, call("sub", span, call("abs", call("sub", span, part))))
    return select(call("eq", index(n), const(1, i64)), const(0.0, p.dtype), folded) if corners else folded


def _grid_sample(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, grid: Operand) -> Expr:
    """x at ((g + 1) * n - 1) / 2, or (g + 1) / 2 * (n - 1) with align_corners; g is given last axis first."""
    mode, padding, corners = str(attrs["mode"]), str(attrs["padding"]), bool(attrs["align_corners"])
    last = bool(attrs.get("channels_last", False))
    (_, _, extents), (batch, channel, place) = parted(x.shape, last), parted(i, last)
    work = work_type(x.dtype)
    n = len(extents)

    def k(v: float) -> Expr:
        return const(v, work)

    positions = []
    for a, extent in enumerate(extents):
        g = call("add", cast(grid[(batch, *place, to_dim(n - 1 - a))], work), k(1))
        if corners:
            p: Expr = call("mul", call("mul", g, k(0.5)), index(extent - 1, work))
        else:
            p = call("mul", call("sub", call("mul", g, index(extent, work)), k(1)), k(0.5))
        near = call("le", call("abs", p), k(FARTHEST))
        p = select(near, p, k(0.0 if corners else -0.5))
        if mode == "nearest":
            p = call("round", p)
        if padding == "border" and mode != "cubic":  # there each tap is pulled inside, not the position
            p = call("min", call("max", p, k(0)), index(extent - 1, work))
        elif padding == "reflection":
            p = _reflected(p, extent, corners)
        positions.append(p)

    def fetch(*at: Dim) -> Expr:
        if padding == "zeros":
            bounds = tuple(Bound(ZERO, d, e) for d, e in zip(at, extents, strict=True))
            return x.guarded(rejoined(batch, channel, at, last), bounds, const(0, x.dtype))
        inside = tuple(_inside(d, e, padding, corners) for d, e in zip(at, extents, strict=True))
        return x[rejoined(batch, channel, inside, last)]

    if mode == "nearest" and padding == "reflection":  # what int() of the reference does
        positions = [call("trunc", p) for p in positions]
    return cast(interpolated(t, positions, extents, mode, fetch), x.dtype)


def _inside(d: Dim, n: Dim, padding: str, corners: bool) -> Dim:
    if padding == "reflection":
        period = dmax((n - 1) * 2, 1) if corners else n * 2
        part = d % period
        d = dmin(part, (n - 1) * 2 - part if corners else period - 1 - part)
    return dmax(dmin(d, n - 1), 0)


def _np_fold(d: int, n: int, padding: str, corners: bool) -> int:
    if padding == "reflection":
        period = max(2 * (n - 1), 1) if corners else 2 * n
        part = d % period
        d = min(part, (2 * (n - 1) if corners else period - 1) - part)
    return min(max(d, 0), n - 1)


def np_taps(p: float, mode: str) -> list[tuple[int, float]]:
    if mode == "nearest":
        return [(round(p), 1.0)]
    base = math.floor(p)
    f = p - base
    if mode == "linear":
        return [(base, 1 - f), (base + 1, f)]
    near = [((CUBIC + 2) * v - (CUBIC + 3)) * v * v + 1 for v in (f, 1 - f)]
    far = [((CUBIC * v - 5 * CUBIC) * v + 8 * CUBIC) * v - 4 * CUBIC for v in (1 + f, 2 - f)]
    return list(zip(range(base - 1, base + 3), (far[0], *near, far[1]), strict=True))


def _np_reflect(p: float, n: int, corners: bool) -> float:
    low, span = (0.0, float(n - 1)) if corners else (-0.5, float(n))
    if span == 0:
        return 0.0
    part = abs(p - low) % (2 * span)
    return low + span - abs(span - part)


def _ref_grid(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, grid = arrays
    assert x is not None and grid is not None
    mode, padding, corners = str(attrs["mode"]), str(attrs["padding"]), bool(attrs["align_corners"])
    made = np.zeros([d.const for d in types[0].shape], np.float64)
    y = made
    if attrs.get("channels_last", False):
        x, y = np.moveaxis(x, -1, 1), np.moveaxis(made, -1, 1)
    for at in np.ndindex(*grid.shape[:-1]):
        rows = []
        for a, n in enumerate(x.shape[2:]):
            g = float(grid[at][::-1][a])
            p = (g + 1) / 2 * (n - 1) if corners else ((g + 1) * n - 1) / 2
            p = p if abs(p) <= FARTHEST else 0.0 if corners else -0.5
            p = float(np.rint(p)) if mode == "nearest" else p
            p = min(max(p, 0), n - 1) if padding == "border" and mode != "cubic" else p
            if padding == "reflection":
                p = _np_reflect(p, n, corners)
                p = math.trunc(p) if mode == "nearest" else p
            rows.append(np_taps(p, mode))
        for taps in itertools.product(*rows):
            where = [q for q, _ in taps]
            inside = all(0 <= q < n for q, n in zip(where, x.shape[2:], strict=True))
            if inside or padding != "zeros":
                where = [_np_fold(q, n, padding, corners) for q, n in zip(where, x.shape[2:], strict=True)]
                weight = math.prod(w for _, w in taps)
                y[(at[0], slice(None), *at[1:])] += weight * x[(at[0], slice(None), *where)]
    return (made.astype(types[0].dtype.numpy),)


# ---------------------------------------------------------------- deform_columns


def _infer_deform(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, offset, mask = (*args, None)[:3]
    assert x is not None and offset is not None
    if x.rank != 4 or offset.rank != 4 or (mask is not None and mask.rank != 4):
        raise c.unsupported(f"a deformable convolution of rank {x.rank} with offsets of rank {offset.rank}")
    offsets, kernel = integer(attrs, "offset_group"), dims(attrs, "kernel")
    if offsets < 1:
        raise c.fail(f"offset_group is {offsets}, wanted at least 1")
    c.divides("channels in groups of offsets", to_dim(offsets), x.shape[3])
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    pads = [b + e for b, e in zip(dims(attrs, "pads_begin"), dims(attrs, "pads_end"), strict=True)]
    extents = [
        c.simplify(window_extent(x.shape[1 + a], kernel[a], strides[a], dilations[a], pads[a]))
        for a in range(2)
    ]
    taps = kernel[0] * kernel[1]
    for what, t, channels in (("offset", offset, taps * (2 * offsets)), ("mask", mask, taps * offsets)):
        if t is None:
            continue
        c.same(f"batch of the {what}", t.shape[0], x.shape[0])
        c.same(f"channels of the {what}", t.shape[1], channels)
        for a in range(2):
            c.same(f"spatial axis {a} of the {what}", t.shape[2 + a], extents[a])
    return (TensorType(work_type(x.dtype), (x.shape[0], *extents, c.simplify(taps), x.shape[3])),)


def _deform_columns(
    t: Trace,
    i: DimIndex,
    attrs: Attrs,
    out: TensorType,
    x: Operand,
    offset: Operand,
    mask: Operand | None = None,
) -> Expr:
    """y[n, o, k, c] = mask * x[n, o * s - p + k * d + offset, c], to be multiplied with the weights; channels
    last, so that those of one place are read at one place"""
    strides, dilations, begin = ints(attrs, "strides"), ints(attrs, "dilations"), dims(attrs, "pads_begin")
    offsets, kernel = integer(attrs, "offset_group"), dims(attrs, "kernel")
    n, at, tap, channel = i[0], i[1:3], i[3], i[4]
    own = channel // (x.shape[3] // offsets) if offsets > 1 else ZERO
    flat = own * (kernel[0] * kernel[1]) + tap
    positions = []
    for a, k in enumerate((tap // kernel[1], tap % kernel[1])):
        away = cast(offset[(n, flat * 2 + a, *at)], out.dtype)
        start = at[a] * strides[a] - begin[a] + k * dilations[a]
        positions.append(call("add", index(start, out.dtype), away))

    def fetch(*place: Dim) -> Expr:
        bounds = tuple(Bound(ZERO, d, e) for d, e in zip(place, x.shape[1:3], strict=True))
        return x.guarded((n, *place, channel), bounds, const(0, x.dtype))

    y = cast(interpolated(t, positions, x.shape[1:3], "linear", fetch), out.dtype)
    return y if mask is None else call("mul", y, cast(mask[(n, flat, *at)], out.dtype))


def _np_bilinear(x: Array, positions: Sequence[float]) -> Any:
    """x[..., H, W] between elements, zero outside."""
    y = np.zeros(x.shape[:-2], np.float64)
    for taps in itertools.product(*(np_taps(p, "linear") for p in positions)):
        at = [q for q, _ in taps]
        if all(0 <= q < n for q, n in zip(at, x.shape[-2:], strict=True)):
            y += x[..., at[0], at[1]] * math.prod(v for _, v in taps)
    return y


def _ref_deform(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, offset = (np.asarray(a) for a in arrays[:2])
    mask = (*arrays, None)[2]
    strides, dilations, begin = ints(attrs, "strides"), ints(attrs, "dilations"), dims(attrs, "pads_begin")
    taps, width = types[0].shape[3].const, dims(attrs, "kernel")[1].const
    y = np.zeros([d.const for d in types[0].shape], np.float64)
    per_offset = x.shape[3] // integer(attrs, "offset_group")
    for n, oy, ox, tap, c in np.ndindex(*y.shape):
        flat = c // per_offset * taps + tap
        at = [
            o * strides[a] - begin[a].const + k * dilations[a] + float(offset[n, 2 * flat + a, oy, ox])
            for a, (o, k) in enumerate(((oy, tap // width), (ox, tap % width)))
        ]
        scale = 1.0 if mask is None else float(mask[n, flat, oy, ox])
        y[n, oy, ox, tap, c] = scale * _np_bilinear(x[n, :, :, c], at)
    return (y.astype(types[0].dtype.numpy),)


_GRID = np.array([[[[-1.4, -1], [0.1, 0.9], [0.4, -0.3]], [[0, 0], [1, 1], [0.55, 1.7]]]], np.float32)
_WILD = np.array([[[[np.nan, 0.2], [0.1, np.inf]], [[-np.inf, np.nan], [1e30, -1e30]]]], np.float32)
_DEFORM: dict[str, Any] = {
    "strides": (1, 1), "dilations": (1, 1), "pads_begin": (ONE, ZERO), "pads_end": (ONE, ZERO),
    "kernel": (to_dim(3), to_dim(2)), "offset_group": 1,
}  # fmt: skip

ROWS: tuple[Op, ...] = (
    Op(
        "grid_sample",
        "x grid",
        _infer_grid,
        _ref_grid,
        tuple(
            Case(("f32[1, 2, 4, 5]", _GRID), attrs={"mode": m, "padding": p, "align_corners": c})
            for m, p, c in (
                ("linear", "zeros", False), ("linear", "reflection", False), ("cubic", "zeros", True),
                ("nearest", "border", True), ("cubic", "reflection", True), ("nearest", "zeros", False),
            )
        ) + tuple(
            Case(("f32[1, 4, 5, 3]", _GRID), attrs={
                "mode": m, "padding": p, "align_corners": False, "channels_last": True,
            }) for m, p in (("linear", "zeros"), ("cubic", "reflection"), ("nearest", "border"))
        ) + tuple(
            Case(("f32[1, 2, 4, 5]", _WILD), attrs={"mode": m, "padding": p, "align_corners": c})
            for m, p, c in (
                ("linear", "zeros", False), ("cubic", "border", True), ("nearest", "reflection", False),
            )
        ),
        compute=_grid_sample,
    ),
    Op(
        "deform_columns",
        "x offset mask?",
        _infer_deform,
        _ref_deform,
        (
            Case(("f32[1, 4, 4, 2]", "f32[1, 12, 4, 3]", "-"), attrs=_DEFORM),
            Case(
                ("f32[1, 3, 4, 4]", "f32[1, 24, 3, 3]", "f32[1, 12, 3, 3]"),
                attrs={**_DEFORM, "offset_group": 2},
            ),
        ),
        compute=_deform_columns,
    ),
)  # fmt: skip
