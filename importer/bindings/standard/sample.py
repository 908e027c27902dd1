"""Bindings of ops that read or write at positions which are data: grids, regions, offsets, caches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmin, product, sym, to_dim
from smelt.core.dtype import f32, f64, i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.wide import HALVES, TRUNCATED, TRUTHS, widened
from smelt.importer.call import Call, OnnxOp
from smelt.importer.weights import dtype_of

LOG10 = math.log(10)
MANY_READINGS = 1 << 20
"""Readings along an axis of a region's bin: no region is larger."""
GRID_MODES = {
    "bilinear": "linear",
    "linear": "linear",
    "bicubic": "cubic",
    "cubic": "cubic",
    "nearest": "nearest",
}


def grid_sample(c: Call) -> Ref:
    """Samples of an image at points between -1 and 1."""
    mode, padding = c.text("mode", "linear"), c.text("padding_mode", "zeros")
    if mode not in GRID_MODES or padding not in ("zeros", "border", "reflection"):
        raise c.fail(f"mode '{mode}' with padding_mode '{padding}'")
    corners = c.flag("align_corners")
    return c.emit(
        "grid_sample", c.x(0), c.x(1), mode=GRID_MODES[mode], padding=padding, align_corners=corners
    )


def _affine_grid(c: Call) -> Ref:
    """theta @ (x, y, [z,] 1) for each point of a grid over -1..1."""
    b = c.builder
    n = c.type(0).rank
    theta, corners = c.shape(0), c.flag("align_corners")
    length = theta[1].const + 2 if theta[1].is_const else c.declared_rank()
    size = b.dims_of(c.sized_like(c.x(1), length), "the size of an AffineGrid")
    if n != 3 or len(size) not in (4, 5):
        raise c.fail(f"theta is {c.type(0)} for {len(size)} sizes")
    for a, wanted in ((1, len(size) - 2), (2, len(size) - 1)):
        c.engine.same(f"axis {a} of theta", theta[a], to_dim(wanted))
    dtype, spatial = c.type(0).dtype, size[2:]
    rank = len(spatial)
    c.engine.same("batch of theta and of the grid", theta[0], size[0])
    columns = []
    for a in reversed(range(rank)):  # x comes first
        extent = b.cast(b.from_dims([spatial[a]], []), f64)
        steps = b.cast(c.iota(spatial[a]), f64)
        one = c.scalar(1, extent)
        if corners:
            last = c.emit("max", c.emit("sub", extent, one), one)
            at = c.emit("sub", c.emit("div", c.emit("mul", steps, c.scalar(2, steps)), last), one)
        else:
            twice = c.emit("add", c.emit("mul", steps, c.scalar(2, steps)), one)
            at = c.emit("sub", c.emit("div", twice, extent), one)
        shape = [spatial[a] if e == a else ONE for e in range(rank)]
        columns.append(b.reshape(b.broadcast_to(b.reshape(at, shape), spatial), (product(spatial), 1)))
    ones = b.broadcast_to(c.scalar(1, columns[0]), (product(spatial), 1))
    points = b.cast(c.emit("concat", *columns, ones, axis=1), dtype)
    points = b.reshape(points, (1, product(spatial), rank + 1))
    grid = c.emit("matmul", points, b.transpose(c.x(0), (0, 2, 1)))
    return b.reshape(grid, (size[0], *spatial, rank))


def _roi_align(c: Call) -> Ref:
    samples, mode = c.integer("sampling_ratio", 0), c.text("mode", "avg")
    if mode not in ("avg", "max"):
        raise c.fail(f"mode '{mode}' is none of avg, max")
    batch, _, *extents = c.extents(0, 4)
    c.extents(1, 2)
    inside(c, c.x(2), batch, "image of a region", wraps=False)
    for what, extent in zip(("rows", "columns"), extents, strict=True):
        c.engine.at_most(f"1 and the image's {what}", ONE, extent)  # positions are moved to the nearest pixel
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    half = c.text("coordinate_transformation_mode", default) == "half_pixel"
    size = tuple(to_dim(c.integer(name, 1)) for name in ("output_height", "output_width"))
    own = {"size": size, "scale": c.number("spatial_scale", 1.0), "mode": mode, "half_pixel": half}
    rois, batches = c.x(1), c.cast(c.x(2), i64)
    if samples > 0:
        return c.emit("roi_align", c.x(0), rois, batches, samples=(to_dim(samples),) * 2, **own)
    counts, most = _samples_of(c, size, half)
    x = c.builder.transpose(c.x(0), (0, 2, 3, 1))
    y = c.emit("roi_align_counted", x, rois, batches, counts, samples=most, **own)
    return c.builder.transpose(y, (0, 3, 1, 2))


def _samples_of(c: Call, size: Sequence[Dim], half: bool) -> tuple[Ref, tuple[Dim, ...]]:
    """i64 [regions, 2]: as many readings down and across as a bin has elements, rounded up; and the most."""
    b, work = c.builder, f64 if c.type(0).dtype == f64 else f32
    rois = c.cast(c.x(1), work)
    corners = [b.slice_axis(rois, 1, k, k + 2) for k in (0, 2)]
    scaled = [c.emit("mul", x, c.scalar(c.number("spatial_scale", 1.0), x)) for x in corners]
    span = c.emit("sub", scaled[1], scaled[0])  # [regions, (across, down)]
    span = span if half else c.emit("max", span, c.scalar(1, span))
    bins = b.constant(np.array([size[1].const, size[0].const], work.numpy))
    count = c.cast(c.emit("ceil", c.emit("div", span, bins)), i64)
    parts = [b.slice_axis(count, 1, k, k + 1) for k in (1, 0)]
    most: list[Dim] = []
    for x in parts:
        top = c.emit("reduce_max", x, axes=(0, 1), keepdims=False)
        most += b.dims_of(
            c.emit("clip", top, c.scalar(0, top), c.scalar(MANY_READINGS, top)),
            "samples",
            0,
            to_dim(MANY_READINGS),
        )
    return c.emit("concat", *parts, axis=1), tuple(most)


def _max_roi_pool(c: Call) -> Ref:
    """The maximum of each of the bins that a region [batch, left, top, right, bottom] is cut into."""
    b, shape, size = c.builder, c.shape(0), c.ints("pooled_shape")
    if len(shape) != 4 or c.type(1).rank != 2 or len(size) != 2 or min(size) < 1:
        found = f"{c.type(0)}, {c.type(1)} and pooled_shape {list(size)}"
        raise c.fail(f"found {found}, wanted rank 4, rank 2 and two numbers of 1 or more")
    c.engine.same("numbers of a region", c.shape(1)[1], to_dim(5))
    rois, count = c.cast(c.x(1), f32), c.shape(1)[0]
    column = [b.reshape(b.slice_axis(rois, 1, k, k + 1), (count, 1)) for k in range(5)]
    batch = c.cast(b.reshape(column[0], (count,)), i64)
    inside(c, batch, shape[0], "batch of a region", wraps=False)
    scale = c.scalar(c.number("spatial_scale", 1.0), rois)
    edges = [_nearest(c, c.emit("mul", x, scale)) for x in column[1:]]
    bins = [_bins(c, edges[1 - a], edges[3 - a], size[a], shape[2 + a]) for a in range(2)]
    return c.emit("max_region_pool", c.x(0), batch, *bins)


def _nearest(c: Call, x: Ref) -> Ref:
    """Rounded, what lies in the middle away from 0."""
    far = c.emit("floor", c.emit("add", c.emit("abs", x), c.scalar(0.5, x)))
    return c.emit("mul", c.emit("sign", x), far)


MOST_BINS = 1 << 16
"""Bins of a pooled region along one axis."""


def _bins(c: Call, start: Ref, end: Ref, size: int, extent: Dim) -> Ref:
    """i64 [regions, size, 2]: where each bin of start .. end begins within the extent, and how long it is."""
    b, one = c.builder, c.scalar(1, start)
    if not 1 <= size <= MOST_BINS:
        raise c.fail(f"a region of {size} bins, wanted 1 to {MOST_BINS}")
    length = c.emit("max", c.emit("add", c.emit("sub", end, start), one), one)
    step = c.emit("div", length, c.scalar(size, length))
    places = np.arange(size, dtype=np.float32).reshape(1, size)
    low = c.emit("floor", c.emit("mul", step, b.constant(places)))
    high = c.emit("ceil", c.emit("mul", step, b.constant(places + 1)))
    top = c.cast(b.from_dims([extent], ()), f32)
    at = [c.emit("clip", c.emit("add", e, start), c.scalar(0, low), top) for e in (low, high)]
    first, last = (c.cast(e, i64) for e in at)
    count = c.emit("sub", last, first)
    regions = b.type_of(start).shape[0]
    return c.emit("concat", *(b.reshape(e, (regions, size, 1)) for e in (first, count)), axis=2)


def _deform_conv(c: Call) -> Ref:
    """The columns that offsets and mask make of the input, times the weight, group by group."""
    b, x, w, groups = c.builder, c.shape(0), c.shape(1), c.integer("group", 1)
    if len(x) != 4 or len(w) != 4:
        raise c.unsupported(f"a deformable convolution of rank {len(x)} and {len(w)}")
    c.engine.same("channels of the group and of the weight", x[1], w[1] * groups)
    if groups < 1:
        raise c.fail(f"group is {groups}, wanted at least 1")
    pads = c.positives("pads", 4, 0, least=0)
    columns = c.emit(
        "deform_columns", b.transpose(c.x(0), (0, 2, 3, 1)), c.x(2), c.optional(4), kernel=w[2:],
        strides=c.positives("strides", 2), dilations=c.positives("dilations", 2),
        pads_begin=tuple(map(to_dim, pads[:2])), pads_end=tuple(map(to_dim, pads[2:])),
        offset_group=c.integer("offset_group", 1),
    )  # fmt: skip
    n, height, width, taps, _ = b.type_of(columns).shape
    made, places = w[0] // groups, height * width
    # [n, places, taps, groups, channels] -> [n, groups, places, taps * channels]
    columns = b.reshape(columns, (n, places, taps, groups, w[1]))
    columns = b.reshape(b.transpose(columns, (0, 3, 1, 2, 4)), (n, groups, places, taps * w[1]))
    # [groups, made, channels, taps] -> [groups, taps * channels, made]
    weight = b.reshape(c.x(1), (groups, made, w[1], taps))
    weight = b.reshape(b.transpose(weight, (0, 3, 2, 1)), (groups, taps * w[1], made))
    y = c.emit("matmul", columns, b.cast(weight, b.type_of(columns).dtype))
    y = b.reshape(b.transpose(y, (0, 1, 3, 2)), (n, made * groups, height, width))
    y = b.cast(y, c.type(0).dtype)
    return c.emit("add", y, b.reshape(c.x(3), (w[0], 1, 1))) if c.has(3) else y


def _col2im(c: Call) -> Ref:
    """A transposed convolution of each channel whose filters are the unit vectors of the block."""
    b, x = c.builder, c.x(0)
    if c.type(0).rank != 3:
        raise c.fail(f"input has rank {c.type(0).rank}, wanted [batch, channels * block, windows]")
    n = len(c.ints("strides", ())) or len(c.ints("dilations", ())) or len(c.ints("pads", ())) // 2
    rank = c.declared_rank()
    length = n or (rank - 2 if rank is not None else None)
    image = b.dims_of(c.sized_like(c.x(1), length), "the image's shape")
    block = b.dims_of(c.sized_like(c.x(2), length), "the block's shape", 1)
    n = len(image)
    if n < 1 or len(block) != n:
        raise c.fail(f"the image has {n} axes and the block {len(block)}, wanted as many, and at least 1")
    strides, dilations = c.positives("strides", n), c.positives("dilations", n)
    pads = c.positives("pads", 2 * n, 0, least=0)
    batch, columns, _ = c.extents(0, 3)
    size = c.engine.simplify(product(block))
    c.engine.divides("the block's elements", size, columns)
    channels = c.engine.simplify(columns // size)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, block, strict=True)]
    inside = [image[a] + pads[a] + pads[a + n] for a in range(n)]
    windows = [c.engine.simplify((inside[a] - reach[a]) // strides[a] + 1) for a in range(n)]
    if not all(d.is_const for d in (*image, *block)):
        y = _scattered(c, x, image, block, windows, (strides, dilations, pads))
        return b.reshape(y, (batch, channels, *image))
    x = b.reshape(x, (batch * channels, size, *windows))
    unit = c.emit("equal", b.reshape(c.iota(size), (size, 1)), b.reshape(c.iota(size), (1, size)))
    w = b.reshape(b.cast(unit, c.type(0).dtype), (size, 1, *block))
    made = [(windows[a] - 1) * strides[a] + reach[a] for a in range(n)]
    extra = tuple(c.engine.simplify(inside[a] - made[a]) for a in range(n))
    y = c.emit(
        "conv_transpose", x, w, strides=strides, dilations=dilations, group=1,
        pads_begin=tuple(map(to_dim, pads[:n])), pads_end=tuple(map(to_dim, pads[n:])),
        output_padding=extra, channels_last=False,
    )  # fmt: skip
    return b.reshape(y, (batch, channels, *image))


def _scattered(
    c: Call,
    x: Ref,
    image: Sequence[Dim],
    block: Sequence[Dim],
    windows: Sequence[Dim],
    steps: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> Ref:
    """x[batch, channels * block, windows] added up where each element belongs; what lies in the padding goes
    to a place of its own, after the image. Products of sizes are symbols of their own here: formulas of
    formulas would take long to reason about."""
    b, (strides, dilations, pads) = c.builder, steps
    batch, columns, count = b.type_of(x).shape
    size, total, rows = (_named(c, product(d)) for d in (block, image, (batch, columns)))
    rows = _named(c, rows // size)
    x = b.reshape(x, (rows, size * count))
    k, w = b.reshape(c.iota(size), (size, 1)), b.reshape(c.iota(count), (1, count))
    flat, inside = c.scalar(0, k), ""
    for a in range(len(image)):
        own, at = (
            c.emit(
                "mod",
                c.emit("div", v, b.from_dims([_named(c, product(d[a + 1 :]))], [])),
                b.from_dims([_named(c, d[a])], []),
            )
            for v, d in ((k, block), (w, windows))
        )
        start = c.emit("sub", c.emit("mul", at, c.scalar(strides[a], at)), c.scalar(pads[a], at))
        place = c.emit("add", start, c.emit("mul", own, c.scalar(dilations[a], own)))
        extent = b.from_dims([image[a]], [])
        fits = c.emit(
            "and", c.emit("greater_equal", place, c.scalar(0, place)), c.emit("less", place, extent)
        )
        inside = c.emit("and", inside, fits) if inside else fits
        flat = c.emit("add", c.emit("mul", flat, extent), place)
    at = c.emit("where", inside, flat, b.from_dims([total], []))
    at = b.broadcast_to(b.reshape(at, (1, size * count)), (rows, size * count))
    zeros = b.broadcast_to(c.scalar(0, x), (rows, total + 1))
    y = c.emit("scatter_elements", zeros, at, x, axis=1, reduction="add")
    return b.slice_axis(y, 1, 0, total)


def _named(c: Call, d: Dim) -> Dim:
    """d, or a symbol for it when it is a formula."""
    d = c.engine.simplify(d)
    return d if d.is_const or d == sym(str(d)) else c.builder.bind(c.builder.from_dims([d], []), 0, "size")


def _max_unpool(c: Call) -> Ref:
    """Zeros, with the elements put where their flat indices say."""
    b, shape = c.builder, c.shape(0)
    n = len(shape) - 2
    if n < 1:
        raise c.fail(f"input has rank {len(shape)}, wanted [batch, channels, *spatial]")
    kernel, strides = c.positives("kernel_shape", n, None), c.positives("strides", n)
    pads = c.positives("pads", 2 * n, 0, least=0)
    made = [*shape[:2]]
    for a in range(n):
        made.append(c.engine.simplify((shape[2 + a] - 1) * strides[a] + kernel[a] - pads[a] - pads[a + n]))
    total = c.engine.simplify(product(made))
    zeros = b.broadcast_to(c.scalar(0, c.x(0)), (total,))
    values, at = (b.reshape(c.x(i), (product(shape),)) for i in (0, 1))
    inside(c, at, total, "index of the output", wraps=False)
    flat = c.emit("scatter_elements", zeros, c.cast(at, i64), values, axis=0, reduction="none")
    y = b.reshape(flat, made)
    if not c.has(2):
        return y
    wanted = b.dims_of(c.sized_like(c.x(2), n + 2), "the output's shape")
    if len(wanted) != n + 2:
        raise c.fail(f"the output's shape has {len(wanted)} extents, wanted {n + 2}")
    after = []
    for a, (d, w) in enumerate(zip(made, wanted, strict=True)):
        c.engine.at_most(f"axis {a} of the output", d, w)
        after.append(c.engine.simplify(w - d))
    if all(d == ZERO for d in after):
        return y
    return c.emit("pad", y, before=(ZERO,) * (n + 2), after=tuple(after), mode="constant")


def _tensor_scatter(c: Call) -> Ref:
    """The cache, with the update from each batch's write index on; circular wraps at the end."""
    b, shape = c.builder, c.shape(0)
    rank = len(shape)
    axis, mode = c.axis(c.integer("axis", -2), rank), c.text("mode", "linear")
    if mode not in ("linear", "circular") or axis == 0:
        raise c.fail(f"mode '{mode}' along axis {axis}")
    size, new = shape[axis], c.shape(1)[axis]
    ones = [ONE] * rank
    place = b.reshape(c.iota(size), [*ones[:axis], size, *ones[axis + 1 :]])
    if c.has(2):
        place = c.emit("sub", place, b.reshape(c.cast(c.x(2), i64), [shape[0], *ones[1:]]))
    if mode == "circular":
        place = c.emit("mod", place, b.from_dims([size], []))
    zero, count = c.scalar(0, place), b.from_dims([new], [])
    fresh = c.emit("and", c.emit("greater_equal", place, zero), c.emit("less", place, count))
    at = c.emit("clip", place, zero, c.emit("sub", count, c.scalar(1, count)))
    c.engine.at_most("the update along the axis", new, size)
    c.engine.at_most("an empty update along the axis", ONE, new)
    wide = c.emit("gather_elements", c.x(1), b.broadcast_to(at, shape), axis=axis)
    return c.emit("where", fresh, wide, c.x(0))


def _causal_conv(c: Call) -> tuple[Ref, Ref]:
    """A depthwise convolution over the past state and the input; the new state is the last part of both."""
    b, shape = c.builder, c.shape(0)
    if c.type(0).rank != 3 or c.type(1).rank != 3:
        raise c.fail(f"input is {c.type(0)}, weight is {c.type(1)}; wanted rank 3")
    batch, channels, _ = shape
    before = c.engine.simplify(c.shape(1)[2] - 1)
    state = c.optional(3) or b.broadcast_to(c.scalar(0, c.x(0)), (batch, channels, before))
    if b.type_of(state).rank != 3:
        raise c.fail(f"the past state is {b.type_of(state)}, wanted rank 3")
    c.engine.same("the past state's extent", b.type_of(state).shape[2], before)
    padded = c.emit("concat", state, c.x(0), axis=2)
    activation = c.text("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise c.fail(f"activation '{activation}' is none of none, silu, swish")
    if channels.is_const and channels.const:  # no convolution has 0 groups
        y = c.emit(
            "conv", padded, c.x(1), c.optional(2), strides=(1,), dilations=(1,), pads_begin=(ZERO,),
            pads_end=(ZERO,), group=channels.const, channels_last=False,
        )  # fmt: skip
    else:
        y = _depthwise(c, padded, shape[2])
    y = y if activation == "none" else c.emit("silu", y)
    total = b.type_of(padded).shape[2]
    return y, b.slice_axis(padded, 2, total - before, total)


def _depthwise(c: Call, padded: Ref, length: Dim) -> Ref:
    """y[b, c, t] = bias[c] + the sum over k of weight[c, 0, k] * padded[b, c, t + k]."""
    b, dtype = c.builder, c.type(0).dtype
    channels, _, taps = c.extents(1, 3)
    c.engine.same("channels of input and weight", c.shape(0)[1], channels)
    c.engine.same("input channels of a filter", c.shape(1)[1], ONE)
    at = c.emit("add", b.reshape(c.iota(length), (length, 1)), b.reshape(c.iota(taps), (1, taps)))
    wide = f64 if dtype == f64 else f32
    windows = b.cast(c.emit("gather", padded, at, axis=2), wide)
    terms = c.emit("mul", windows, b.cast(b.reshape(c.x(1), (1, channels, 1, taps)), wide))
    y = b.cast(c.emit("reduce_sum", terms, axes=(3,), keepdims=False), dtype)
    return c.emit("add", y, b.reshape(c.x(2), (1, channels, 1))) if c.has(2) else y


def _mel(c: Call) -> Ref:
    """Triangles over the spectrogram's bins, equally spaced on the mel scale."""
    b = c.builder
    (bins,) = b.dims_of(b.reshape(c.x(0), ()), "num_mel_bins", 1)
    (length,) = b.dims_of(b.reshape(c.x(1), ()), "dft_length", 1)
    rate, low, high = (c.cast(b.reshape(c.x(i), ()), f64) for i in (2, 3, 4))

    def k(v: float) -> Ref:
        return c.scalar(v, rate)

    def mel(v: Ref) -> Ref:
        return c.emit("mul", c.emit("log", c.emit("add", c.emit("div", v, k(700)), k(1))), k(2595 / LOG10))

    count = b.cast(b.from_dims([bins + 2], []), f64)
    step = c.emit("div", c.emit("sub", mel(high), mel(low)), count)
    mels = c.emit("add", c.emit("mul", b.cast(c.iota(bins + 2), f64), step), mel(low))
    hertz = c.emit("exp", c.emit("mul", mels, k(LOG10 / 2595)))
    hertz = c.emit("mul", c.emit("sub", hertz, k(1)), k(700))
    turns = b.cast(b.from_dims([length + 1], []), f64)
    edges = c.emit("floor", c.emit("div", c.emit("mul", hertz, turns), rate))
    left, centre, right = (b.slice_axis(edges, 0, a, a + bins) for a in range(3))
    j = b.reshape(b.cast(c.iota(length // 2 + 1), f64), (length // 2 + 1, 1))
    rise, fall = c.emit("sub", centre, left), c.emit("sub", right, centre)
    up = c.emit("div", c.emit("sub", j, left), c.emit("max", rise, k(1)))
    down = c.emit("div", c.emit("sub", right, j), c.emit("max", fall, k(1)))
    zero = k(0)
    rising = c.emit("and", c.emit("greater_equal", j, left), c.emit("less_equal", j, centre))
    rising = c.emit("and", rising, c.emit("greater", rise, zero))
    falling = c.emit("and", c.emit("greater_equal", j, centre), c.emit("less", j, right))
    falling = c.emit("and", falling, c.emit("greater", fall, zero))
    flat = c.emit("and", c.emit("equal", rise, zero), c.emit("equal", j, centre))
    y = c.emit("where", rising, up, c.emit("where", flat, k(1), zero))
    y = c.emit("where", falling, down, y)
    return c.cast(y, dtype_of(c.integer("output_datatype", 1), "attribute 'output_datatype'", c.engine.node))


def _center_crop_pad(c: Call) -> Ref:
    """Each of `axes` cut, or filled up with zeros, on both sides alike; the odd one goes or comes after."""
    b, x, rank = c.builder, c.x(0), c.type(0).rank
    axes = [c.axis(a, rank, "axes") for a in c.ints("axes", tuple(range(rank)))]
    wanted = b.dims_of(c.sized_like(b.cast(c.x(1), i64), len(axes)), "shape")
    if len(wanted) != len(axes):
        raise c.fail(f"shape has {len(wanted)} elements for {len(axes)} axes")
    before, after = [ZERO] * rank, [ZERO] * rank
    for a, size in zip(axes, wanted, strict=True):
        extent = b.type_of(x).shape[a]
        keep = c.engine.simplify(dmin(extent, size))
        first = c.engine.simplify((extent - keep) // 2)
        x = b.slice_axis(x, a, first, first + keep)
        before[a] = c.engine.simplify((size - keep) // 2)
        after[a] = c.engine.simplify(size - keep - before[a])
    if before == after == [ZERO] * rank:
        return x
    return c.emit("pad", x, before=tuple(before), after=tuple(after), mode="constant")


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("CenterCropPad", 18, _center_crop_pad),
    OnnxOp("GridSample", 16, widened(grid_sample, {**HALVES, **TRUNCATED})),
    OnnxOp("AffineGrid", 20, widened(_affine_grid)),
    OnnxOp("RoiAlign", 10, _roi_align),
    OnnxOp("MaxRoiPool", 1, _max_roi_pool),
    OnnxOp("DeformConv", 19, _deform_conv),
    OnnxOp("Col2Im", 18, widened(_col2im, TRUTHS)),
    OnnxOp("MaxUnpool", 9, _max_unpool),
    OnnxOp("TensorScatter", 24, _tensor_scatter),
    OnnxOp("CausalConvWithState", 27, _causal_conv),
    OnnxOp("MelWeightMatrix", 17, _mel),
)
