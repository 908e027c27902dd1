"""Bindings of convolutions and pools: auto_pad, output_shape and defaults become explicit pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from smelt.core.dim import Dim, ceildiv, dmax, to_dim
from smelt.core.ir.graph import Ref
from smelt.importer.call import Build, Call, OnnxOp

AUTO = ("NOTSET", "", "SAME_UPPER", "SAME_LOWER", "VALID")
MOST_TAPS = 1 << 24
"""Most elements of a pool's window: with the pads of auto_pad any window fits, and each element is read."""


def _spatial(c: Call) -> int:
    rank = c.type(0).rank
    if rank < 3:
        raise c.fail(f"input has rank {rank}, wanted [batch, channels, *spatial]")
    return rank - 2


def _pads(
    c: Call, kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int], check: bool = True
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Pads before and after each spatial axis, with auto_pad resolved."""
    n = len(strides)
    auto = c.text("auto_pad", "NOTSET")
    if auto not in AUTO:
        raise c.fail(f"auto_pad '{auto}' is none of {', '.join(a for a in AUTO if a)}")
    spatial = c.shape(0)[2:]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if auto.startswith("SAME"):
        sides = [
            _same_pads(c, x, r, s, auto == "SAME_UPPER")
            for x, r, s in zip(spatial, reach, strides, strict=True)
        ]
        return tuple(b for b, _ in sides), tuple(a for _, a in sides)
    pads = c.ints("pads", (0,) * (2 * n)) if auto != "VALID" else (0,) * (2 * n)
    if len(pads) != 2 * n:
        raise c.fail(f"pads has {len(pads)} entries for {n} spatial axes, wanted {2 * n}")
    if min(pads, default=0) < 0:
        raise c.fail(f"pads has {min(pads)}, wanted counts of elements to add", "slice the input instead")
    if check:
        for a in range(n):
            # one stride short of the window gives an output of extent 0, which simply works
            room = reach[a] - pads[a] - pads[a + n] - strides[a]
            c.engine.at_most(f"spatial axis {a} is smaller than the window", room, spatial[a])
    return tuple(to_dim(p) for p in pads[:n]), tuple(to_dim(p) for p in pads[n:])


def _same_pads(c: Call, extent: Dim, reach: Dim, stride: int, upper: bool) -> tuple[Dim, Dim]:
    """Pads that make the output ceil(extent / stride); the odd one goes after (UPPER) or in front."""
    needed = (ceildiv(extent, to_dim(stride)) - 1) * stride + reach - extent
    total = c.engine.simplify(dmax(needed, 0))
    half = c.engine.simplify(total // 2)
    rest = c.engine.simplify(total - half)
    return (half, rest) if upper else (rest, half)


def _common(c: Call, weight: int | None = None) -> dict[str, Any]:
    n = _spatial(c)
    strides, dilations = c.positives("strides", n), c.positives("dilations", n)
    if weight is None:
        taps = c.positives("kernel_shape", n, None)
        if prod(taps) > MOST_TAPS:
            raise c.unsupported(f"a window of {prod(taps)} elements; at most {MOST_TAPS} are looked at")
        kernel = tuple(map(to_dim, taps))
    else:
        if c.type(weight).rank != n + 2:
            raise c.fail(f"input has rank {n + 2}, weight has rank {c.type(weight).rank}")
        kernel = c.shape(weight)[2:]
        if c.given("kernel_shape"):
            for a, k in enumerate(c.positives("kernel_shape", n, None)):
                c.engine.same(f"kernel_shape {a} and the weight", kernel[a], to_dim(k))
    begin, end = _pads(c, kernel, strides, dilations)
    return {
        "strides": strides,
        "dilations": dilations,
        "pads_begin": begin,
        "pads_end": end,
        "channels_last": False,
        "kernel": tuple(k.const if k.is_const else 0 for k in kernel),
    }


def _conv(c: Call) -> Ref:
    return conv_of(c, c.x(0), c.x(1), c.optional(2))


def conv_of(c: Call, x: Ref, w: Ref, bias: Ref = "", weight: int = 1) -> Ref:
    """The node's convolution on tensors made from its inputs; input `weight` has the weight's shape."""
    attrs = _common(c, weight)
    attrs.pop("kernel")
    group = c.integer("group", 1)
    if bias and c.builder.type_of(bias).rank != 1:
        raise c.fail(f"the bias has rank {c.builder.type_of(bias).rank}, wanted 1")
    if group < 1:
        raise c.fail(f"group is {group}, wanted at least 1")
    return c.emit("conv", x, w, bias, group=group, **attrs)


def _conv_transpose(c: Call) -> Ref:
    n = _spatial(c)
    if c.type(1).rank != n + 2:
        raise c.fail(f"input has rank {n + 2}, weight has rank {c.type(1).rank}")
    strides, dilations = c.positives("strides", n), c.positives("dilations", n)
    extra: Sequence[int | Dim] = c.positives("output_padding", n, 0, least=0)
    kernel, spatial = c.shape(1)[2:], c.shape(0)[2:]
    auto = c.text("auto_pad", "NOTSET")
    if c.given("output_shape") or auto.startswith("SAME"):
        wanted: Sequence[Dim] = [d * s for d, s in zip(spatial, strides, strict=True)]
        if c.given("output_shape"):
            wanted = [to_dim(v) for v in c.ints("output_shape")[-n:]]
            if len(wanted) != n:
                raise c.fail(f"output_shape has {len(wanted)} entries for {n} spatial axes")
        full = [
            s * (x - 1) + e + d * (k - 1) + 1
            for x, s, e, d, k in zip(spatial, strides, extra, dilations, kernel, strict=True)
        ]
        sides = []
        grown = [to_dim(e) for e in extra]
        for a, (f, w) in enumerate(zip(full, wanted, strict=True)):
            total = c.engine.simplify(f - w)
            # an output that is larger than all windows is padded after
            grown[a] = c.engine.simplify(grown[a] + dmax(-total, 0))
            total = c.engine.simplify(dmax(total, 0))
            half = c.engine.simplify(total // 2)
            rest = c.engine.simplify(total - half)
            sides.append((half, rest) if auto == "SAME_UPPER" else (rest, half))
        extra = tuple(d.const if d.is_const else d for d in grown)
        begin, end = tuple(b for b, _ in sides), tuple(a for _, a in sides)
    else:
        begin, end = _pads(c, kernel, strides, dilations, check=False)
    return transposed_conv_of(c, c.optional(2), begin, end, extra)


def transposed_conv_of(
    c: Call, bias: Ref, begin: Sequence[Dim], end: Sequence[Dim], extra: Sequence[int | Dim] | None = None
) -> Ref:
    """The node's transposed convolution with pads before and after each spatial axis."""
    n, group = _spatial(c), c.integer("group", 1)
    if group < 1:
        raise c.fail(f"group is {group}, wanted at least 1")
    return c.emit(
        "conv_transpose",
        c.x(0),
        c.x(1),
        bias,
        strides=c.positives("strides", n),
        dilations=c.positives("dilations", n),
        pads_begin=tuple(begin),
        pads_end=tuple(end),
        output_padding=tuple(c.ints("output_padding", (0,) * n) if extra is None else extra),
        group=group,
        channels_last=False,
    )


def _pool_attrs(c: Call, op: str) -> dict[str, Any]:
    attrs = _common(c) | {"ceil_mode": c.flag("ceil_mode")}
    if op == "average_pool":
        attrs["count_include_pad"] = c.flag("count_include_pad")
    if op == "lp_pool":
        attrs["p"] = _norm(c)
    return attrs


def _norm(c: Call) -> int:
    p = c.integer("p", 2)
    if p < 1:
        raise c.fail(f"p is {p}, wanted at least 1")
    return p


def pool_of(c: Call, op: str, x: Ref) -> Ref:
    """The node's pooling on a tensor made from its input 0."""
    return c.emit(op, x, **_pool_attrs(c, op))


def _pool(op: str) -> Build:
    def build(c: Call) -> tuple[Ref, ...]:
        attrs = _pool_attrs(c, op)
        y = c.emit(op, c.x(), **attrs)
        if not c.wants(1):
            return (y,)
        order = {"column_major": c.flag("storage_order")}
        return (y, c.emit("max_pool_indices", c.x(), **attrs, **order))

    return build


def _global(op: str) -> Build:
    def build(c: Call) -> Ref:
        axes = tuple(range(2, _spatial(c) + 2))
        return c.emit(op, c.x(), axes=axes, keepdims=True)

    return build


def _global_lp(c: Call) -> Ref:
    p, x, axes = _norm(c), c.x(), tuple(range(2, _spatial(c) + 2))
    if p in (1, 2):
        return c.emit(f"reduce_l{p}", x, axes=axes, keepdims=True)
    powers = c.emit("pow", c.emit("abs", x), c.scalar(p, x))
    total = c.emit("reduce_sum", powers, axes=axes, keepdims=True)
    return c.emit("pow", total, c.scalar(1 / p, x))


# ---------------------------------------------------------------- channels last


def channels_first(c: Call, x: Ref) -> Ref:
    """[batch, *spatial, channels] as [batch, channels, *spatial]."""
    rank = c.builder.type_of(x).rank
    return c.builder.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(c: Call, x: Ref) -> Ref:
    """[batch, channels, *spatial] as [batch, *spatial, channels]."""
    rank = c.builder.type_of(x).rank
    return c.builder.transpose(x, (0, *range(2, rank), 1))


def on_first(build: Build) -> Build:
    """The op on input 0 with its channels moved to the front, and its result moved back."""

    def moved(c: Call) -> Ref:
        if c.type(0).rank < 3:
            raise c.fail(f"input has rank {c.type(0).rank}, wanted [batch, *spatial, channels]")
        y = build(replace(c, inputs=(channels_first(c, c.x(0)), *c.inputs[1:])))
        assert isinstance(y, str)
        return channels_last(c, y)

    return moved


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Conv", 1, _conv),
    OnnxOp("ConvTranspose", 1, _conv_transpose),
    OnnxOp("MaxPool", 1, _pool("max_pool")),
    OnnxOp("AveragePool", 1, _pool("average_pool")),
    OnnxOp("LpPool", 1, _pool("lp_pool")),
    OnnxOp("GlobalAveragePool", 1, _global("reduce_mean")),
    OnnxOp("GlobalMaxPool", 1, _global("reduce_max")),
    OnnxOp("GlobalLpPool", 1, _global_lp),
)
