"""Bindings of com.microsoft ops that are standard ones with other inputs, and of a few small ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from onnx import helper

from smelt.core.dim import ZERO, dmax, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.microsoft.fused import rows_at
from smelt.importer.bindings.standard import move, select, shape
from smelt.importer.call import Call, OnnxOp, Results, standard
from smelt.importer.domains import MS

# ---------------------------------------------------------------- standard ops

_pad_of = standard(move.ROWS, "Pad")
_range_of = standard(shape.ROWS, "Range")
_unique_of = standard(select.ROWS, "Unique")


def _pad(c: Call) -> Results:
    """Pads [2 * rank] or [1, 2 * rank]."""
    pads = c.builder.reshape(c.x(1), (c.shape(1)[-1],))
    return _pad_of(replace(c, inputs=(c.x(0), pads, c.optional(2))))


def _range(c: Call) -> Results:
    """Start, limit, and a step that is 1 by default."""
    step = c.x(2) if c.has(2) else c.scalar(1, c.x(0))
    parts = [c.builder.reshape(x, ()) for x in (c.x(0), c.x(1), step)]
    return _range_of(replace(c, inputs=tuple(parts)))


def _unique(c: Call) -> Results:
    """The values in the order they appear in, where each element went, and how many there are of each."""
    every = ("values", "first", "inverse", "counts")
    attributes = {"sorted": helper.make_attribute("sorted", 0)}
    values, _, inverse, counts = _unique_of(replace(c, outputs=every, attributes=attributes))
    return (values, inverse, counts)


def _expand_dims(c: Call) -> Ref:
    rank = c.type(0).rank
    axis = c.builder.int_of(c.builder.reshape(c.x(1), (1,)), "axis")
    where = c.axis(axis, rank + 1)
    own = c.shape(0)
    return c.builder.reshape(c.x(0), (*own[:where], 1, *own[where:]))


def _embedding(c: Call) -> Ref:
    return rows_at(c, c.x(0), c.x(1), "index of axis 0")


def _unfolded(c: Call) -> Ref:
    """All slices of `size` elements along an axis, `step` apart; what is in them is a new last axis."""
    b, rank = c.builder, c.type(0).rank
    axis, size, step = c.axis(c.integer("dim", -1), rank), c.integer("size"), c.integer("step", 1)
    if size < 1 or step < 1:
        raise c.fail(f"size is {size} and step {step}, wanted at least 1")
    extent = c.shape(0)[axis]
    c.engine.at_most("size and the axis", to_dim(size), extent)
    count = c.engine.simplify((extent - size) // step + 1)
    first = c.emit("mul", c.iota(count), b.constant(np.array(step, np.int64)))
    at = c.emit("add", b.reshape(first, (count, 1)), b.reshape(c.iota(size), (1, size)))
    y = c.emit("gather", c.x(0), at, axis=axis)
    return b.transpose(y, (*range(axis + 1), *range(axis + 2, rank + 1), axis + 1))


# ---------------------------------------------------------------- distances


def _distances(c: Call) -> Ref:
    """Between each row of A [n, k] and each of B [m, k]."""
    metric = c.text("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise c.unsupported(f"metric '{metric}'", try_="euclidean or sqeuclidean")
    b, (n, depth), (m, other) = c.builder, c.shape(0), c.shape(1)
    c.engine.same("columns of A and B", depth, other)
    away = c.emit("sub", b.reshape(c.x(0), (n, 1, depth)), b.reshape(c.x(1), (1, m, other)))
    y = c.emit("reduce_sum", c.emit("mul", away, away), axes=(2,), keepdims=False)
    return c.emit("sqrt", y) if metric == "euclidean" else y


# ---------------------------------------------------------------- text


def _no_repeats(c: Call) -> Ref:
    """Scores [B, V], minus infinity for tokens that would repeat ngram_size of those in input_ids [B, L]."""
    b, size, ids = c.builder, c.integer("ngram_size"), c.x(0)
    if size < 1:
        raise c.fail(f"ngram_size is {size}, wanted at least 1")
    batch, length = c.extents(0, 2)
    prefix = to_dim(size - 1)
    count = c.engine.simplify(dmax(length - prefix, 0))  # places where such a sequence may have ended
    first = c.engine.simplify(length - count)  # prefix, or the length where that is less
    hits = c.emit("greater_equal", b.from_dims([count], ()), b.from_dims([ZERO], ()))
    hits = b.broadcast_to(hits, (batch, count))
    if size > 1:
        windows = c.emit("add", b.reshape(c.iota(count), (count, 1)), b.reshape(c.iota(first), (1, first)))
        seen = c.emit("gather", ids, windows, axis=1)
        own = b.reshape(b.slice_axis(ids, 1, length - first, length), (batch, 1, first))
        same = c.cast(c.emit("equal", seen, own), i64)
        agree = c.emit("reduce_min", same, axes=(2,), keepdims=False)
        hits = c.emit("greater", agree, c.scalar(0, agree))
    ends = b.slice_axis(ids, 1, first, length)
    inside(c, ends, c.shape(1)[1], "token", wraps=False)
    banned = c.emit("where", hits, c.scalar(-math.inf, c.x(1)), c.scalar(math.inf, c.x(1)))
    return c.emit("scatter_elements", c.x(1), ends, banned, axis=1, reduction="min")


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Pad", 1, _pad, MS),
    OnnxOp("Range", 1, _range, MS),
    OnnxOp("Unique", 1, _unique, MS),
    OnnxOp("Trilu", 1, standard(move.ROWS, "Trilu"), MS),
    OnnxOp("GatherND", 1, standard(move.ROWS, "GatherND"), MS),
    OnnxOp("ExpandDims", 1, _expand_dims, MS),
    OnnxOp("TorchEmbedding", 1, _embedding, MS),
    OnnxOp("UnfoldTensor", 1, _unfolded, MS),
    OnnxOp("CDist", 1, _distances, MS),
    OnnxOp("NGramRepeatBlock", 1, _no_repeats, MS),
)
