"""Bindings of com.microsoft ops on images: channels last, norms of groups, crops, transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.core.dim import ONE, ZERO, Dim, to_dim
from smelt.core.dtype import f32, i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.standard.conv import (
    channels_first,
    channels_last,
    conv_of,
    on_first,
    pool_of,
    transposed_conv_of,
)
from smelt.importer.bindings.standard.sample import grid_sample
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

# ---------------------------------------------------------------- channels last


def _conv(c: Call) -> Ref:
    return conv_of(c, c.x(0), c.x(1), c.optional(2))


def _max_pool(c: Call) -> Ref:
    return pool_of(c, "max_pool", c.x(0))


# ---------------------------------------------------------------- norms of groups


def _normed(c: Call, x: Ref) -> Ref:
    """Groups of channels normed, scaled per channel, and an activation."""
    groups, last = c.integer("groups"), c.flag("channels_last", 1)
    if groups < 1:
        raise c.fail(f"groups is {groups}, wanted at least 1")
    dtype = c.builder.type_of(x).dtype
    y = c.cast(channels_first(c, x) if last else x, wide(dtype))
    c.engine.divides("groups", to_dim(groups), c.builder.type_of(y).shape[1])
    parts = [c.cast(c.x(i), wide(dtype)) for i in (1, 2)]
    y = c.emit("group_norm", y, *parts, groups=groups, epsilon=c.number("epsilon", 1e-5))
    if c.integer("activation"):
        y = c.emit("silu", y)
    y = c.cast(y, dtype)
    return channels_last(c, y) if last else y


def _group_norm(c: Call) -> Ref:
    return _normed(c, c.x(0))


def _skip_group_norm(c: Call) -> tuple[Ref, Ref]:
    """The norm of input + skip + bias, and the sum. A skip [batch, channels] goes to every place."""
    if not c.flag("channels_last", 1):
        raise c.unsupported("channels_last=0")
    b, skip, shape = c.builder, c.x(3), c.shape(3)
    if len(shape) == 2:
        skip = b.reshape(skip, (shape[0], *(ONE for _ in c.shape(0)[1:-1]), shape[1]))
    total = c.emit("add", c.x(0), skip)
    if c.has(4):
        total = c.emit("add", total, c.x(4))
    return _normed(c, total), total


# ---------------------------------------------------------------- crops


def _crop_and_resize(c: Call) -> Ref:
    """Boxes [R, 4] of corners (y1, x1, y2, x2) between 0 and 1, each resized to crop_size."""
    b, mode = c.builder, c.text("mode", "bilinear")
    if mode not in ("bilinear", "nearest"):
        raise c.fail(f"mode '{mode}' is none of bilinear, nearest")
    batch, _, *extents = c.shape(0)
    inside(c, c.x(2), batch, "image of a box", wraps=False)
    size = b.dims_of(c.sized_like(c.x(3), 2), "crop_size", 1)
    if len(size) != 2:
        raise c.fail(f"crop_size has {len(size)} elements, wanted 2")
    for what, extent in zip(("rows", "columns"), extents, strict=True):
        c.engine.at_most(f"1 and the image's {what}", to_dim(1), extent)
    count = c.shape(1)[0]
    rows, columns = (_crop_places(c, a, extents[a], size[a], count) for a in (0, 1))
    image = b.reshape(c.cast(c.x(2), i64), (count, 1, 1, 1))
    source = channels_last(c, c.x(0))
    grid = (count, *size)

    def picked(row: Ref, column: Ref) -> Ref:
        spread = [b.reshape(row, (count, size[0], 1, 1)), b.reshape(column, (count, 1, size[1], 1))]
        parts = [b.broadcast_to(p, (*grid, 1)) for p in (image, *spread)]
        return c.emit("gather_nd", source, c.emit("concat", *parts, axis=3), batch_dims=0)

    if mode == "nearest":
        y = picked(_nearest(c, rows, extents[0]), _nearest(c, columns, extents[1]))
    else:
        (top, bottom), (left, right) = _around(c, rows, extents[0]), _around(c, columns, extents[1])
        down = b.reshape(_fraction(c, rows), (count, size[0], 1, 1))
        along = b.reshape(_fraction(c, columns), (count, 1, size[1], 1))
        upper = _between(c, picked(top, left), picked(top, right), along)
        lower = _between(c, picked(bottom, left), picked(bottom, right), along)
        y = _between(c, upper, lower, down)
    held = c.emit(
        "and",
        b.reshape(_held(c, rows, extents[0]), (count, size[0], 1, 1)),
        b.reshape(_held(c, columns, extents[1]), (count, 1, size[1], 1)),
    )
    y = c.emit("where", held, y, c.scalar(c.number("extrapolation_value", 0.0), y))
    return b.transpose(y, (0, 3, 1, 2))


def _crop_places(c: Call, axis: int, extent: Dim, size: Dim, count: Dim) -> Ref:
    """f32 [R, size]: corners and what lies between them at equal distances, the middle where there is one."""
    b = c.builder
    first, last = (b.slice_axis(c.x(1), 1, axis + h, axis + h + 1) for h in (0, 2))
    length = c.cast(b.from_dims([extent - 1], ()), f32)
    steps = c.cast(b.reshape(c.iota(size), (1, size)), f32)
    middle = c.emit("mul", c.emit("mul", c.emit("add", first, last), c.scalar(0.5, first)), length)
    single = b.compare_dims(size, ONE)
    if single:
        return b.broadcast_to(middle, (count, size))
    gaps = c.cast(b.from_dims([size - 1], ()), f32)
    step = c.emit("div", c.emit("mul", c.emit("sub", last, first), length), gaps)
    at = c.emit("add", c.emit("mul", first, length), c.emit("mul", steps, step))
    if single is False:
        return at
    return c.emit("where", c.emit("equal", gaps, c.scalar(0, gaps)), middle, at)


def _held(c: Call, at: Ref, extent: Dim) -> Ref:
    """Whether a place lies on the image."""
    last = c.cast(c.builder.from_dims([extent - 1], ()), f32)
    return c.emit("and", c.emit("greater_equal", at, c.scalar(0, at)), c.emit("less_equal", at, last))


def _clamped(c: Call, at: Ref, extent: Dim) -> Ref:
    """A place as an index of the image."""
    last = c.cast(c.builder.from_dims([extent - 1], ()), f32)
    return c.cast(c.emit("clip", at, c.scalar(0, at), last), i64)


def _nearest(c: Call, at: Ref, extent: Dim) -> Ref:
    return _clamped(c, c.emit("floor", c.emit("add", at, c.scalar(0.5, at))), extent)


def _around(c: Call, at: Ref, extent: Dim) -> Sequence[Ref]:
    return [_clamped(c, c.emit(op, at), extent) for op in ("floor", "ceil")]


def _fraction(c: Call, at: Ref) -> Ref:
    return c.emit("sub", at, c.emit("floor", at))


def _between(c: Call, a: Ref, b: Ref, t: Ref) -> Ref:
    return c.emit("add", a, c.emit("mul", c.emit("sub", b, a), t))


# ---------------------------------------------------------------- transposed convolutions


def _dynamic_pads(c: Call) -> Ref:
    """Pads that are an input."""
    n = c.type(0).rank - 2
    pads: Sequence[Dim] = [ZERO] * (2 * n)
    if c.has(2):
        pads = c.builder.dims_of(c.sized_like(c.x(2), 2 * n), "the pads of a transposed convolution")
    if len(pads) != 2 * n:
        raise c.fail(f"{len(pads)} pads for {n} spatial axes, wanted {2 * n}")
    return transposed_conv_of(c, c.optional(3), tuple(pads[:n]), tuple(pads[n:]))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("NhwcConv", 1, on_first(_conv), MS),
    OnnxOp("NhwcMaxPool", 1, on_first(_max_pool), MS),
    OnnxOp("GroupNorm", 1, _group_norm, MS),
    OnnxOp("SkipGroupNorm", 1, _skip_group_norm, MS),
    OnnxOp("GridSample", 1, grid_sample, MS),
    OnnxOp("CropAndResize", 1, _crop_and_resize, MS),
    OnnxOp("ConvTransposeWithDynamicPads", 1, _dynamic_pads, MS),
)
