"""Bindings of linear quantisation: quantize and dequantize around ops on floats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from smelt.core.dim import ONE, Dim, ceildiv, to_dim
from smelt.core.dtype import DType, f32, i8, i32, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard.conv import conv_of
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp
from smelt.importer.coded import CODE_MASKS, decoding, encoded
from smelt.importer.domains import MS
from smelt.importer.weights import dtype_of


def _spread(c: Call, ref: Ref) -> Ref:
    """A scale or zero point so that it broadcasts against input 0: per tensor, per axis, or per block."""
    b = c.builder
    shape, own = c.shape(0), b.type_of(ref).shape
    if len(own) == 0 or all(d.const_or_none == 1 for d in own):
        return b.reshape(ref, ())
    axis = c.axis(c.integer("axis", 1), len(shape))
    block = c.integer("block_size", 0)
    if block:
        if len(own) != len(shape) or block < 1:
            raise c.fail(f"scale has rank {len(own)}, the input {len(shape)}, and block_size is {block}")
        return _blocks(c, ref, axis, block)
    if len(own) != 1:
        raise c.fail(f"scale has rank {len(own)} and there is no block_size")
    ref = c.one_or_each(ref, shape[axis], f"scales and axis {axis} of the input")
    return b.reshape(ref, [d if a == axis else to_dim(1) for a, d in enumerate(shape)])


def _blocks(c: Call, ref: Ref, axis: int, block: int) -> Ref:
    """Each scale repeated `block` times along the axis, cut to the input's extent."""
    b = c.builder
    own = list(b.type_of(ref).shape)
    c.engine.same("blocks", own[axis], ceildiv(c.shape(0)[axis], to_dim(block)))
    wide: list[Dim] = [*own[: axis + 1], to_dim(block), *own[axis + 1 :]]
    thin: list[Dim] = [*own[: axis + 1], to_dim(1), *own[axis + 1 :]]
    flat = [*own[:axis], own[axis] * block, *own[axis + 1 :]]
    y = b.reshape(b.broadcast_to(b.reshape(ref, thin), wide), flat)
    return b.slice_axis(y, axis, 0, c.shape(0)[axis])


def _is_blocked(c: Call) -> bool:
    """Whether scales are of blocks; a single one may be, where it has an axis for each of the input's."""
    single = c.type(1).rank < 2 and all(d.const_or_none == 1 for d in c.shape(1))
    return bool(c.integer("block_size", 0)) and not single


def _parameter(c: Call, ref: Ref, extent: Dim = ONE) -> Ref:
    """A scale or zero point: a scalar where it has one element, else one each along that extent."""
    return c.one_or_each(ref, extent, "scales") if ref else ref


def _along(c: Call) -> tuple[int, Dim]:
    """The axis of vectors of scales and its extent; -1 and 1 when there is one scale."""
    shape = c.shape(1)
    if all(d.const_or_none == 1 for d in shape):
        return -1, ONE
    if len(shape) != 1:
        raise c.fail(f"scale has rank {len(shape)} and there is no block_size")
    axis = c.axis(c.integer("axis", 1), c.type(0).rank)
    each = c.shape(0)[axis]
    return (-1, ONE) if each == ONE else (axis, each)


def _dequantize(c: Call) -> Ref:
    """(x - zero) * scale, as output_dtype where that is given."""
    y = _dequantized(c)
    if not c.integer("output_dtype", 0):
        return y
    return c.cast(y, dtype_of(c.integer("output_dtype"), "attribute 'output_dtype'", c.engine.node))


def _whole(c: Call, i: int) -> Ref:
    """Input i, or ''; constant codes of integers as the bytes that they stand for."""
    x = c.optional(i)
    if not x or c.type(i).dtype.name not in CODE_MASKS:
        return x
    known = c.builder.constant_of(x)
    if known is None:
        return x
    return c.builder.constant(known.astype(np.int8 if c.type(i).dtype.name[0] == "i" else np.uint8))


def _dequantized(c: Call) -> Ref:
    c = replace(c, inputs=(_whole(c, 0), c.x(1), _whole(c, 2)))
    if c.type(0).dtype.coded or c.type(1).dtype.coded:
        return _decoded(c)
    if _is_blocked(c):
        axis, block = c.axis(c.integer("axis", 1), c.type(0).rank), c.integer("block_size")
        if block < 1 or c.type(1).rank != c.type(0).rank:
            found = f"scale has rank {c.type(1).rank}, the input {c.type(0).rank}"
            raise c.fail(f"{found}, and block_size is {block}")
        return c.emit("dequantize_blocks", c.x(0), c.x(1), c.optional(2), axis=axis, block=block)
    axis, each = _along(c)
    scale, zero = _parameter(c, c.x(1), each), _parameter(c, c.optional(2), each)
    return c.emit("dequantize", c.x(0), scale, zero, axis=axis)


def _decoded(c: Call) -> Ref:
    """Dequantised codes, by way of the numbers that they encode."""
    own = c.type(1).dtype
    to = f32 if own.coded else own
    if c.integer("output_dtype", 0):
        to = dtype_of(c.integer("output_dtype"), "attribute 'output_dtype'", c.engine.node)
    x = c.cast(c.x(0), f32)
    if c.has(2):
        x = c.emit("sub", x, _spread(c, c.cast(c.x(2), f32)))
    return c.cast(c.emit("mul", x, _spread(c, c.cast(c.x(1), f32))), to)


def _encoded(c: Call, to: DType) -> Ref:
    """_quantize to codes; floats among them are rounded by their own format."""
    y = c.emit("div", c.cast(c.x(0), f32), _spread(c, c.cast(c.x(1), f32)))
    if to.name not in CODE_MASKS:
        return encoded(c.builder, y, to, c.flag("saturate", 1))
    y = c.emit("round", y)
    if c.has(2):
        y = c.emit("add", y, _spread(c, c.cast(c.x(2), f32)))
    values = decoding(to)
    y = c.emit("clip", y, c.scalar(float(values.min()), y), c.scalar(float(values.max()), y))
    return encoded(c.builder, c.cast(y, i32), to)


def _quantize(c: Call) -> Ref:
    """saturate(round half to even(x / scale) + zero)."""
    to: DType = u8
    if c.has(2):
        to = c.type(2).dtype
    elif c.integer("output_dtype", 0):
        to = dtype_of(c.integer("output_dtype"), "attribute 'output_dtype'", c.engine.node)
    if to.coded:
        return _encoded(c, to)
    if not to.is_int:
        raise c.fail(f"cannot quantize to {to}")
    if not _is_blocked(c):
        axis, each = _along(c)
        zero = _parameter(c, c.optional(2), each)
        x, scale = _divided(c)
        return c.emit("quantize", x, scale, zero, axis=axis, to=to)
    y = c.emit("div", c.cast(c.x(0), f32), _spread(c, c.cast(c.x(1), f32)))
    y = c.emit("round", y)
    if c.has(2):
        y = c.emit("add", y, _spread(c, c.cast(c.x(2), f32)))
    low, high = to.limits
    return c.cast(c.emit("clip", y, c.scalar(low, y), c.scalar(high, y)), to)


def _divided(c: Call) -> tuple[Ref, Ref]:
    """x and its scale; or their quotient and 1, where it is to be rounded to the type `precision`."""
    x = c.x(0) if c.type(0).dtype.is_float else c.cast(c.x(0), f32)
    if c.integer("precision", 0) in (0, onnx.TensorProto.FLOAT):
        return x, _parameter(c, c.x(1), _along(c)[1])
    to = dtype_of(c.integer("precision"), "attribute 'precision'", c.engine.node)
    if not to.is_float:
        raise c.fail(f"attribute 'precision' is {to}, wanted a float type to divide in")
    y = c.cast(c.emit("div", c.cast(x, to), c.cast(_spread(c, c.x(1)), to)), f32)
    along, each = _along(c)
    one = c.scalar(1, y)
    return y, one if along < 0 else c.builder.broadcast_to(one, (each,))


# ---------------------------------------------------------------- ops on quantised tensors


def scaled(c: Call, x: Ref, scale: Ref, zero: Ref, axis: int = -1) -> Ref:
    """A quantised tensor as floats; axis: that of a vector of scales."""
    t = c.builder.type_of(x)
    if axis >= t.rank:
        raise c.fail(f"a quantised input has rank {t.rank}, wanted at least {axis + 1}")
    each = ONE if axis < 0 else t.shape[axis]
    parts = [_parameter(c, scale, each), _parameter(c, zero, each)]
    if not t.dtype.coded:
        return c.emit("dequantize", x, *parts, axis=axis)
    wide = (each, *[ONE] * (t.rank - axis - 1)) if axis >= 0 else ()
    step, origin = (
        c.builder.reshape(p, wide) if c.builder.type_of(p).rank else p
        for p in (parts[0], c.cast(parts[1], f32))
    )
    return c.emit("mul", c.emit("sub", c.cast(x, f32), origin), step)


def requantized(c: Call, y: Ref, scale: Ref, zero: Ref, like: Ref = "") -> Ref:
    """Floats quantised to the type of the zero point, or of `like`."""
    to = c.builder.type_of(zero or like).dtype
    if to.coded:  # whose zero point is 0
        return encoded(c.builder, c.emit("div", c.cast(y, f32), _parameter(c, c.cast(scale, f32))), to)
    return c.emit("quantize", y, _parameter(c, scale), _parameter(c, zero), axis=-1, to=to)


def _columns(c: Call, i: int) -> int:
    """The axis of per-column scales of input i: the last one."""
    return c.type(i).rank - 1


def _q_linear_matmul(c: Call) -> Ref:
    rows = c.type(0).rank - 2 if c.type(1).rank == 1 else -1
    a = scaled(c, c.x(0), c.x(1), c.x(2), rows)
    b = scaled(c, c.x(3), c.x(4), c.x(5), _columns(c, 3))
    return requantized(c, c.emit("matmul", a, b), c.x(6), c.x(7))


def q_linear_conv(c: Call) -> Ref:
    """x, w and y with a scale and a zero point each, and a bias in the scale of the products."""
    x, w = scaled(c, c.x(0), c.x(1), c.x(2)), scaled(c, c.x(3), c.x(4), c.x(5), 0)
    bias = ""
    if c.has(8):  # its scale is the product of the others
        scale = c.emit("mul", _parameter(c, c.x(1)), _parameter(c, c.x(4), c.shape(3)[0]))
        bias = c.emit("dequantize", c.x(8), scale, axis=0)
    return requantized(c, conv_of(c, x, w, bias, weight=3), c.x(6), c.x(7))


def dynamic_quantize(c: Call) -> tuple[Ref, ...]:
    """Input 0 as bytes, their scale and zero point."""
    return byte_range(c.builder, c.x(0))


def byte_range(b: GraphBuilder, x: Ref) -> tuple[Ref, Ref, Ref]:
    """Floats as bytes; scale and zero point from their range, which always has 0 in it, as the operator
    DynamicQuantizeLinear defines them."""
    x = b.cast(x, f32)
    axes = tuple(range(b.type_of(x).rank))
    zero, most = b.scalar(0, x), b.scalar(255, x)
    low, high = (
        b.emit(pick, [b.emit(op, [x], {"axes": axes, "keepdims": False}) if axes else x, zero])
        for pick, op in (("min", "reduce_min"), ("max", "reduce_max"))
    )
    scale = b.emit("div", [b.emit("sub", [high, low]), most])
    scale = b.emit("where", [b.emit("equal", [high, low]), b.scalar(1, x), scale])
    origin = b.emit("div", [b.emit("neg", [low]), scale])
    origin = b.emit("round", [b.emit("clip", [origin, zero, most])])
    origin = b.cast(b.cast(origin, i32), u8)
    return b.emit("quantize", [x, scale, origin], {"axis": -1, "to": u8}), scale, origin


# ---------------------------------------------------------------- convolution of bytes


def _conv_integer(c: Call) -> Ref:
    """The sum of (x - its zero) (w - its zero) over a window, in i32; what lies outside of x adds nothing.

    = conv(x, w) - x's zero * conv(1, sums of w - w's zero over channels) - w's zero * conv(x, 1)
    """
    b = c.builder
    group, channels, rank = c.integer("group", 1), c.shape(1)[0], c.type(0).rank
    if any(c.type(i).dtype not in (i8, u8) for i in (0, 1)) or group < 1:
        raise c.fail(f"inputs are {c.type(0)} and {c.type(1)} in {group} groups, wanted i8 or u8")
    one: tuple[Dim | int, ...] = (1,) * (rank - 1)
    x, zero = c.x(0), c.cast(b.reshape(c.x(2), ()), i32) if c.has(2) else ""
    w, own = c.x(1), c.cast(c.x(3), i32) if c.has(3) else ""
    if c.type(0).dtype == i8:  # u8 times i8 is what machines multiply
        x = c.emit("bit_xor", b.cast(x, u8), b.constant(np.array(128, np.uint8)))
        zero = c.emit("add", zero, c.scalar(128, zero)) if zero else b.constant(np.array(128, np.int32))
    known = b.constant_of(w)
    if known is not None and known.dtype == np.uint8:
        w = b.constant((known.astype(np.int16) - 128).astype(np.int8))
        own = c.emit("sub", own, c.scalar(128, own)) if own else b.constant(np.array(-128, np.int32))
    if own:
        whole = all(d.const_or_none == 1 for d in b.type_of(own).shape)
        own = b.reshape(own, () if whole else (channels, *one))
    y = conv_of(c, x, w)
    sums = c.emit("reduce_sum", _less(c, c.cast(w, i32), own), axes=(1,), keepdims=True)
    if zero:
        image = b.broadcast_to(b.constant(np.ones((), np.int32)), (1, 1, *c.shape(0)[2:]))
        weight = c.emit("mul", sums, zero)
        y = c.emit("sub", y, conv_of(replace(c, attributes=_without_group(c)), image, weight))
    if own:
        y = c.emit("sub", y, _window_sums(c, x, own, group))
    return y


def _less(c: Call, x: Ref, y: Ref) -> Ref:
    return c.emit("sub", x, y) if y else x


def _without_group(c: Call) -> dict[str, onnx.AttributeProto]:
    return {name: a for name, a in c.attributes.items() if name != "group"}


def _window_sums(c: Call, x: Ref, own: Ref, group: int) -> Ref:
    """The weight's zero points, [] or [M, 1, ..], times the sums of x over each window and group."""
    b, (channels, per_group, *kernel) = c.builder, c.shape(1)
    dtype = i8 if b.type_of(x).dtype == u8 else u8
    ones = b.broadcast_to(b.constant(np.ones((), dtype.numpy)), (group, per_group, *kernel))
    sums = conv_of(c, x, ones)
    batch, _, *spatial = b.type_of(sums).shape
    own = b.reshape(own, (1, *b.type_of(own).shape[:-1])) if b.type_of(own).rank else own
    if group > 1:
        c.engine.divides("groups and filters", to_dim(group), channels)
        wide = b.broadcast_to(
            b.reshape(sums, (batch, group, 1, *spatial)), (batch, group, channels // group, *spatial)
        )
        sums = b.reshape(wide, (batch, channels, *spatial))
    return c.emit("mul", sums, own)


ROWS: tuple[OnnxOp, ...] = (
    *(OnnxOp("DequantizeLinear", since, _dequantize, domain) for since, domain in ((10, ""), (1, MS))),
    *(OnnxOp("QuantizeLinear", since, _quantize, domain) for since, domain in ((10, ""), (1, MS))),
    OnnxOp("DynamicQuantizeLinear", 11, dynamic_quantize),
    OnnxOp("QLinearMatMul", 10, _q_linear_matmul),
    OnnxOp("ConvInteger", 10, _conv_integer),
    OnnxOp("QLinearConv", 10, q_linear_conv),
)
