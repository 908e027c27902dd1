"""Bindings of linear quantisation, as the float arithmetic that defines it."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import Dim, ceildiv, to_dim
from smelt.core.dtype import DType, f32, i32, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.conv import conv_of
from smelt.importer.call import Call, OnnxOp
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
    c.engine.same(f"scales and axis {axis} of the input", own[0], shape[axis])
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


def _dequantize(c: Call) -> Ref:
    """(x - zero) * scale."""
    scale = c.x(1)
    to = c.builder.type_of(scale).dtype
    x = c.cast(c.x(0), i32)
    if c.has(2):
        x = c.emit("sub", x, _spread(c, c.cast(c.x(2), i32)))
    return c.emit("mul", c.cast(x, to), _spread(c, scale))


def _quantize(c: Call) -> Ref:
    """saturate(round half to even(x / scale) + zero)."""
    to: DType = u8
    if c.has(2):
        to = c.type(2).dtype
    elif c.integer("output_dtype", 0):
        to = dtype_of(c.integer("output_dtype"), "attribute 'output_dtype'", c.engine.node)
    scale = c.x(1)
    x = c.cast(c.x(0), f32)
    y = c.emit("round", c.emit("div", x, _spread(c, c.cast(scale, f32))))
    if c.has(2):
        y = c.emit("add", y, _spread(c, c.cast(c.x(2), f32)))
    if not to.is_int:
        raise c.fail(f"cannot quantize to {to}")
    info = np.iinfo(to.numpy)
    low, high = c.scalar(info.min, y), c.scalar(info.max, y)
    return c.cast(c.emit("clip", y, low, high), to)


def _scaled(c: Call, i: int, axis_length: int | None = None) -> Ref:
    """Input i with its scale i + 1 and zero point i + 2, as floats."""
    b = c.builder
    x, scale, zero = c.x(i), c.x(i + 1), c.x(i + 2)
    to = b.type_of(scale).dtype
    rank = b.type_of(x).rank

    def spread(ref: Ref) -> Ref:
        if b.type_of(ref).rank != 1 or axis_length is None or b.type_of(ref).shape[0].const_or_none == 1:
            return b.reshape(ref, ()) if all(d.const_or_none == 1 for d in b.type_of(ref).shape) else ref
        return b.reshape(ref, (*b.type_of(ref).shape, *(1,) * (rank - 1)))

    wide = c.emit("sub", b.cast(x, i32), spread(b.cast(zero, i32)))
    return c.emit("mul", b.cast(wide, to), spread(scale))


def _requantized(c: Call, y: Ref, i: int) -> Ref:
    """y as scale i and zero point i + 1 say."""
    b = c.builder
    to = b.type_of(c.x(i + 1)).dtype
    if not to.is_int:
        raise c.fail(f"cannot quantize to {to}")
    scale = b.cast(c.x(i), b.type_of(y).dtype)
    q = c.emit("round", c.emit("div", y, scale))
    q = c.emit("add", q, b.cast(c.x(i + 1), b.type_of(y).dtype))
    info = np.iinfo(to.numpy)
    return b.cast(c.emit("clip", q, c.scalar(info.min, q), c.scalar(info.max, q)), to)


def _q_linear_matmul(c: Call) -> Ref:
    return _requantized(c, c.emit("matmul", _scaled(c, 0), _scaled(c, 3)), 6)


def _q_linear_conv(c: Call) -> Ref:
    x, w = _scaled(c, 0), _scaled(c, 3, 0)
    bias = ""
    if c.has(8):  # its scale is the product of the others
        scale = c.emit("mul", c.x(1), c.x(4))
        bias = c.emit("mul", c.cast(c.x(8), c.builder.type_of(scale).dtype), scale)
    return _requantized(c, conv_of(c, x, w, bias, weight=3), 6)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("DequantizeLinear", 10, _dequantize),
    OnnxOp("QuantizeLinear", 10, _quantize),
    OnnxOp("QLinearMatMul", 10, _q_linear_matmul),
    OnnxOp("QLinearConv", 10, _q_linear_conv),
)
