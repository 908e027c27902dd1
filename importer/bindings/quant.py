"""Bindings of linear quantisation, as the float arithmetic that defines it."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import Dim, ceildiv, to_dim
from smelt.core.dtype import DType, f32, i32, u8
from smelt.core.ir.graph import Ref
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
    info = np.iinfo(to.numpy)
    low, high = c.scalar(info.min, y), c.scalar(info.max, y)
    return c.cast(c.emit("clip", y, low, high), to)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("DequantizeLinear", 10, _dequantize),
    OnnxOp("QuantizeLinear", 10, _quantize),
)
