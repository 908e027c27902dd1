"""Bindings of ops of the standard domain that ONNX had as experiments: converters to opset 9 wrote them."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import ZERO, dmax, dmin, to_dim
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard import move
from smelt.importer.call import Build, Call, OnnxOp, standard


def _affine(c: Call) -> Ref:
    """alpha * x + beta"""
    x = c.x()
    y = c.emit("mul", x, c.scalar(c.number("alpha", 1.0), x))
    return c.emit("add", y, c.scalar(c.number("beta", 0.0), y))


def _around(op: str) -> Build:
    """alpha * op(beta * x)"""

    def build(c: Call) -> Ref:
        x = c.x()
        y = c.emit(op, c.emit("mul", x, c.scalar(c.number("beta"), x)))
        return c.emit("mul", y, c.scalar(c.number("alpha"), y))

    return build


def _scale(c: Call) -> Ref:
    return c.emit("mul", c.x(), c.scalar(c.number("scale", 1.0), c.x()))


def _image_scaler(c: Call) -> Ref:
    """scale * x + bias, the bias one number for each channel."""
    bias, shape = c.floats("bias"), c.shape()
    if len(shape) != 4 or not c.type().dtype.is_float:
        raise c.fail(f"input is {c.type()}, wanted floats of rank 4")
    c.engine.same("channels and entries of bias", shape[1], to_dim(len(bias)))
    own = np.array(bias, c.type().dtype.numpy).reshape(1, -1, 1, 1)
    return c.emit("add", _scale(c), c.builder.constant(own))


def _crop(c: Call) -> Ref:
    """Without border (left, top, right, bottom); or as large as scale (height, width) from its corner on."""
    b, shape, border, size = c.builder, c.shape(), c.ints("border"), c.ints("scale", ())
    if len(shape) != 4 or len(border) != 4 or len(size) not in (0, 2):
        found = f"rank {len(shape)}, border {list(border)} and scale {list(size)}"
        raise c.fail(f"found {found}, wanted rank 4, four and two numbers")
    y = c.x()
    for axis, before, after in ((2, border[1], border[3]), (3, border[0], border[2])):
        extent = shape[axis]
        end = before + to_dim(size[axis - 2]) if size else extent - after
        c.engine.at_most(f"border of axis {axis} in front", to_dim(before), dmin(extent, dmax(end, ZERO)))
        c.engine.at_most(f"the end of axis {axis}", end, extent)
        y = b.slice_axis(y, axis, before, end)
    return y


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Affine", 1, _affine),
    OnnxOp("ParametricSoftplus", 1, _around("softplus")),
    OnnxOp("ScaledTanh", 1, _around("tanh")),
    OnnxOp("Scale", 1, _scale),
    OnnxOp("ImageScaler", 1, _image_scaler),
    OnnxOp("Crop", 1, _crop),
    OnnxOp("DynamicSlice", 1, standard(move.ROWS, "Slice")),
)
