"""Bindings of com.microsoft ops on parallel residual streams (branches), and of their gates."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import ONE, Dim, to_dim
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

LEAST = 1e-6
"""The least value that the square root in a gate is taken of."""


def _grouped(c: Call) -> Ref:
    """Input 0 as [.., branches, size], in a type that is wide enough; it may have both on one axis."""
    b, shape, count = c.builder, c.shape(0), c.integer("num_branches", 0)
    x = c.cast(c.x(0), wide(c.type(0).dtype))
    if count < 1:
        if len(shape) < 2:
            raise c.fail(f"input has rank {len(shape)}, wanted 2 or more")
        return x
    if not shape:
        raise c.fail("input has rank 0")
    c.engine.divides("num_branches and the last axis", to_dim(count), shape[-1])
    return b.reshape(x, (*shape[:-1], count, shape[-1] // count))


def _normed(c: Call, x: Ref) -> Ref:
    """Each row divided by the root of its mean square."""
    b = c.builder
    t = b.type_of(x)
    ones = b.broadcast_to(b.constant(np.ones((), t.dtype.numpy)), t.shape[-1:])
    return c.emit("rms_norm", x, ones, axis=t.rank - 1, epsilon=c.number("epsilon", 1e-5))


def _branchwise_norm(c: Call) -> Ref:
    """rms_norm of each branch, times a scale [size], [branches, size] or [branches * size]."""
    b, x = c.builder, _grouped(c)
    y, (branches, size) = _normed(c, x), b.type_of(x).shape[-2:]
    if c.has(1):
        scale = c.cast(c.x(1), b.type_of(x).dtype)
        own = c.shape(1)
        flat = len(own) == 1 and branches != ONE and not b.compare_dims(own[0], size)
        y = c.emit("mul", y, b.reshape(scale, (branches, size)) if flat else scale)
    return c.cast(b.reshape(y, c.shape(0)), c.type(0).dtype)


def _gate(c: Call, i: int, like: Ref) -> Ref:
    """Input i [.., branches], [.., branches, 1 or size] or [.., branches * size], so that it broadcasts."""
    b, t = c.builder, c.builder.type_of(like)
    own, (branches, size) = c.shape(i), t.shape[-2:]
    gate = c.cast(c.x(i), t.dtype)
    if len(own) == t.rank:
        return gate
    if len(own) != t.rank - 1:
        raise c.fail(f"the gates have rank {len(own)}, wanted {t.rank - 1} or {t.rank}")
    if c.integer("num_branches", 0) and size != ONE and b.compare_dims(own[-1], branches * size):
        return b.reshape(gate, (*own[:-1], branches, size))
    c.engine.same("gates and branches", own[-1], branches)
    return b.reshape(gate, (*own, 1))


def _reduced(c: Call) -> Ref:
    """reduction_scale * the sum of the branches times their gates"""
    x = _grouped(c)
    y = c.emit("mul", x, _gate(c, 1, x))
    y = c.emit("reduce_sum", y, axes=(c.builder.type_of(x).rank - 2,), keepdims=False)
    factor = c.number("reduction_scale", 1.0)
    y = y if factor == 1.0 else c.emit("mul", y, c.scalar(factor, y))
    return c.cast(y, c.type(0).dtype)


def _spread(c: Call) -> Ref:
    """The branches mixed by the transpose of a matrix, plus the block's output times the
    gate of each."""
    b, x = c.builder, _grouped(c)
    to = b.type_of(x).dtype
    block, own = c.cast(c.x(1), to), c.shape(1)
    y = c.emit("mul", b.reshape(block, (*own[:-1], ONE, own[-1])), _gate(c, 2, x))
    if c.has(3):
        rank = c.type(3).rank
        mix = b.transpose(c.cast(c.x(3), to), (*range(rank - 2), rank - 1, rank - 2))
        x = c.emit("matmul", mix, x)
    return c.cast(b.reshape(c.emit("add", x, y), c.shape(0)), c.type(0).dtype)


def _engram_gate(c: Call) -> tuple[Ref, ...]:
    """sigmoid(sign(d) sqrt(|d|)) times the value, d the product of normed keys and queries over the root of
    their size; and the result normed, times a scale."""
    b, dtype, shape = c.builder, c.type(0).dtype, c.shape(0)
    to = wide(dtype)
    key, query = (
        c.emit("mul", _normed(c, c.cast(c.x(i), to)), c.cast(c.x(scale), to)) for i, scale in ((0, 3), (1, 4))
    )
    d = c.emit("reduce_sum", c.emit("mul", key, query), axes=(len(shape) - 1,), keepdims=True)
    d = c.emit("div", d, c.emit("sqrt", c.cast(b.from_dims([shape[-1]], ()), to)))
    root = c.emit("sqrt", c.emit("max", c.emit("abs", d), c.scalar(LEAST, d)))
    gate = c.emit("sigmoid", c.emit("mul", c.emit("sign", d), root))
    own: tuple[Dim, ...] = c.shape(2)
    value = b.reshape(c.cast(c.x(2), to), (*own[:-1], ONE, own[-1]))
    y = c.emit("mul", gate, value)
    if not c.wants(1):
        return (c.cast(y, dtype),)
    return c.cast(y, dtype), c.cast(c.emit("mul", _normed(c, y), c.cast(c.x(5), to)), dtype)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("BranchwiseRMSNorm", 1, _branchwise_norm, MS),
    OnnxOp("HyperConnectionPreMix", 1, _reduced, MS),
    OnnxOp("HyperConnectionPostMix", 1, _spread, MS),
    OnnxOp("EngramGate", 1, _engram_gate, MS),
)
