"""Bindings of forms that opsets below 7 had: broadcasting by attribute, shapes and scales in attributes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from smelt.core.dim import to_dim
from smelt.core.dtype import bool_
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import divides
from smelt.importer.bindings.standard.resize import upsampled
from smelt.importer.bindings.standard.shape import reshaped
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.weights import dtype_of

OLD_BINARY: tuple[tuple[str, str], ...] = (
    ("Add", "add"),
    ("Sub", "sub"),
    ("Mul", "mul"),
    ("Div", "div"),
    ("Pow", "pow"),
    ("And", "and"),
    ("Or", "or"),
    ("Xor", "xor"),
    ("Equal", "equal"),
    ("Less", "less"),
    ("Greater", "greater"),
)


def _aligned(c: Call, a: int, b: int) -> Ref:
    """Input b with 1s after, so that its axes start at attribute `axis` of input a; by default they end
    where a's end, as in NumPy."""
    ref, rank, own = c.x(b), c.type(a).rank, c.shape(b)
    if not c.flag("broadcast") or not c.given("axis"):
        return ref
    behind = rank - c.axis(c.integer("axis"), rank) - len(own)
    if behind < 0:
        raise c.fail(f"axis {c.integer('axis')} leaves no room for rank {len(own)} in rank {rank}")
    return c.builder.reshape(ref, (*own, *(1,) * behind))


def _binary(op: str) -> Build:
    def build(c: Call) -> Ref:
        x, y = c.x(0), _aligned(c, 0, 1)
        if op == "equal" and c.type(0).dtype == bool_:
            return c.emit("not", c.emit("xor", x, y))
        if op == "div":
            divides(c, y)
        return c.emit(op, x, y)

    return build


def _cast(c: Call) -> Ref:
    """The type by name."""
    name = c.text("to")
    types = dict(TensorProto.DataType.items())
    if name not in types:
        raise c.fail(f"'{name}' is no element type")
    return c.cast(c.x(), dtype_of(types[name], "attribute 'to'", c.engine.node))


def _reshape(c: Call) -> Ref:
    return reshaped(c, c.builder.constant(np.array(c.ints("shape"), np.int64)))


def _tile(c: Call) -> Ref:
    """input 1: how often; input 2: along which axis."""
    rank = c.type(0).rank
    axis = c.builder.int_of(c.x(2), "axis")
    (times,) = c.builder.dims_of(c.x(1), "tiles")
    at = c.axis(axis, rank)
    return c.emit("tile", c.x(0), repeats=tuple(times if a == at else to_dim(1) for a in range(rank)))


def _upsample(c: Call) -> Ref:
    return upsampled(c, [1.0, 1.0, c.number("height_scale"), c.number("width_scale")])


ROWS: tuple[OnnxOp, ...] = (
    *(OnnxOp(name, 1, _binary(op)) for name, op in OLD_BINARY),
    OnnxOp("Cast", 1, _cast),
    OnnxOp("Reshape", 1, _reshape),
    OnnxOp("Tile", 1, _tile),
    OnnxOp("Upsample", 1, _upsample),
)
