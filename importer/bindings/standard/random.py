"""Bindings of random ops. The generator is smelt's own: a hash of the node's seed, the element's position and
the rounds of the loops around, so that every run repeats. Without a seed a run draws a number for it at each
node, and at each again in every round."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import DType, bool_, f32, f64
from smelt.core.ir.graph import Attr, Ref
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.weights import dtype_of


def _seed(c: Call, stream: int) -> int:
    """A seed of 31 bits; different streams give different sequences."""
    own = b""
    if c.given("seed"):  # Dropout's is an integer, the others' a float
        a = c.attributes["seed"]
        own = struct.pack("<f", c.number("seed")) if a.HasField("f") else str(c.integer("seed")).encode()
    return zlib.crc32(own + bytes([stream])) & 0x7FFFFFFF


def uniform(c: Call, shape: Sequence[Dim], dtype: DType = f32, stream: int = 0) -> Ref:
    """Uniform numbers in [0, 1)."""
    b = c.builder
    attrs: dict[str, Attr] = {"shape": tuple(shape), "dtype": dtype, "seed": _seed(c, stream)}
    if c.given("seed"):
        return b.emit("random_uniform", b.rounds_around(), attrs)
    return b.emit("random_uniform", (), {**attrs, "draw": b.draw()})


def _scaled(c: Call, shape: Sequence[Dim], dtype: DType, normal: bool) -> Ref:
    work = f64 if dtype == f64 else f32
    u = uniform(c, shape, work)
    if not normal:
        low, high = c.number("low", 0.0), c.number("high", 1.0)
        y = c.emit("add", c.emit("mul", u, c.scalar(high - low, u)), c.scalar(low, u))
        return c.cast(y, dtype)
    # Box and Muller: sqrt(-2 ln(1 - u)) cos(2 pi v)
    v = uniform(c, shape, work, 1)
    length = c.emit("sqrt", c.emit("mul", c.emit("log", c.emit("sub", c.scalar(1, u), u)), c.scalar(-2, u)))
    wave = c.emit("cos", c.emit("mul", v, c.scalar(2 * math.pi, v)))
    spread = c.emit("mul", c.emit("mul", length, wave), c.scalar(c.number("scale", 1.0), u))
    return c.cast(c.emit("add", spread, c.scalar(c.number("mean", 0.0), u)), dtype)


def _given(normal: bool) -> Build:
    def build(c: Call) -> Ref:
        dtype = dtype_of(c.integer("dtype", 1), "attribute 'dtype'", c.engine.node)
        return _scaled(c, [to_dim(n) for n in c.ints("shape")], dtype, normal)

    return build


def _like(normal: bool) -> Build:
    def build(c: Call) -> Ref:
        dtype = c.type().dtype
        if c.given("dtype"):
            dtype = dtype_of(c.integer("dtype"), "attribute 'dtype'", c.engine.node)
        return _scaled(c, c.shape(), dtype, normal)

    return build


def _bernoulli(c: Call) -> Ref:
    """1 with the probability that the input says."""
    own = c.type().dtype
    dtype = dtype_of(c.integer("dtype"), "attribute 'dtype'", c.engine.node) if c.given("dtype") else own
    p = c.cast(c.x(), f64 if own == f64 else f32)
    return c.cast(c.emit("less", uniform(c, c.shape(), c.builder.type_of(p).dtype), p), dtype)


def _multinomial(c: Call) -> Ref:
    """Draws of classes from unnormalised log probabilities: how many running sums lie below u * total."""
    batch, classes = c.extents(0, 2)
    count = to_dim(c.integer("sample_size", 1))
    x = c.cast(c.x(), f32)
    weights = c.emit("exp", c.emit("sub", x, c.emit("reduce_max", x, axes=(1,), keepdims=True)))
    sums = c.emit("cumsum", weights, axis=1, exclusive=False, reverse=False)
    total = c.emit("reduce_sum", weights, axes=(1,), keepdims=True)
    mark = c.emit("mul", uniform(c, (batch, count)), total)
    b = c.builder
    below = c.emit("less_equal", b.reshape(sums, (batch, 1, classes)), b.reshape(mark, (batch, count, 1)))
    dtype = dtype_of(c.integer("dtype", 6), "attribute 'dtype'", c.engine.node)
    found = c.emit("reduce_sum", b.cast(below, dtype), axes=(2,), keepdims=False)
    return c.emit("min", found, b.cast(b.from_dims([classes - 1], []), dtype))


def _dropout(c: Call) -> tuple[Ref, ...]:
    """The input outside of training; in training, elements are dropped with probability `ratio`."""
    b, shape, x = c.builder, c.shape(0), c.x(0)
    always = b.broadcast_to(b.constant(np.array(True)), shape)
    mode = b.constant_of(c.x(2)) if c.has(2) else np.array(False)
    if mode is not None and not mode.reshape(-1)[:1].any():
        return (x, always if c.wants(1) else "")
    own = c.type(0).dtype
    x = b.cast(x, f32) if own.coded else x
    dtype = b.type_of(x).dtype
    ratio = b.cast(b.reshape(c.x(1), ()), f32) if c.has(1) else b.constant(np.array(0.5, np.float32))
    kept = c.emit("greater_equal", uniform(c, shape), ratio)
    grown = c.emit("div", x, b.cast(c.emit("sub", c.scalar(1, ratio), ratio), dtype))
    y = c.emit("where", kept, grown, c.scalar(0, x))
    if mode is None:
        training = b.reshape(c.x(2), ())
        y, kept = c.emit("where", training, y, x), c.emit("or", kept, c.emit("not", training))
    return (b.cast(y, own), b.cast(kept, bool_))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("RandomUniform", 1, _given(False)),
    OnnxOp("RandomNormal", 1, _given(True)),
    OnnxOp("RandomUniformLike", 1, _like(False)),
    OnnxOp("RandomNormalLike", 1, _like(True)),
    OnnxOp("Bernoulli", 15, _bernoulli),
    OnnxOp("Multinomial", 7, _multinomial),
    OnnxOp("Dropout", 12, _dropout),
)
