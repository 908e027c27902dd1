"""Bindings of ops that select elements by value: NonZero, Compress, TopK, Unique, NonMaxSuppression.

The selected elements are counted first, the count is bound to a symbol, and all results have that size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ONE, Dim, dmin, product, to_dim
from smelt.core.dtype import bool_, f32, i64
from smelt.core.ir.graph import Attr, Ref
from smelt.importer.bindings.standard.scan import at, counted
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp


def positions(c: Call, x: Ref) -> Ref:
    """i64[rank, n]: where x is not zero, in row-major order."""
    b, t = c.builder, c.builder.type_of(x)
    known = b.constant_of(x)
    if known is not None:
        found = np.stack(np.nonzero(known)) if known.ndim else np.zeros((0, int(known != 0)), np.int64)
        return b.constant(found.astype(np.int64))
    hit = x if t.dtype == bool_ else c.emit("not_equal", x, b.scalar(0, x))
    count = b.cast(hit, i64)
    if t.rank:
        count = c.emit("reduce_sum", count, axes=tuple(range(t.rank)), keepdims=False)
    n = b.bind(count, 0, "non_zero", 0, product(t.shape))
    return c.emit("non_zero", x, count=n)


def flat_positions(c: Call, x: Ref) -> Ref:
    """i64[n]: where a tensor of rank 1 is not zero."""
    found = positions(c, x)
    return c.builder.reshape(found, c.builder.type_of(found).shape[1:])


def _non_zero(c: Call) -> Ref:
    return positions(c, c.x())


def _compress(c: Call) -> Ref:
    """The slices of the axis (of the flat input) where the condition holds."""
    x = c.x(0)
    axis = c.axis(c.integer("axis"), c.type(0).rank) if c.given("axis") else 0
    if not c.given("axis"):
        x = c.builder.reshape(x, (product(c.shape(0)),))
    if c.type(1).rank != 1:
        raise c.fail(f"the condition has rank {c.type(1).rank}, wanted 1")
    c.engine.at_most("length of the condition", c.shape(1)[0], c.builder.type_of(x).shape[axis])
    return c.emit("gather", x, flat_positions(c, c.x(1)), axis=axis)


def _top_k(c: Call) -> tuple[Ref, ...]:
    axis = c.axis(c.integer("axis", -1), c.type().rank)
    n = c.shape()[axis]
    if c.given("k"):
        k = to_dim(c.integer("k"))
    else:
        k = c.builder.dims_of(c.builder.reshape(c.x(1), ()), "k", 0, n)[0]
    c.engine.at_most("k", k, n)
    return sorted_by(c, c.x(), k, axis, c.flag("largest", 1), c.flag("sorted", 1))


def sorted_by(
    c: Call, x: Ref, k: Dim, axis: int = 0, largest: bool = False, ordered: bool = True
) -> tuple[Ref, ...]:
    """(values, positions) of the first k elements along an axis, which is brought last, so that the elements
    of a row are neighbours; equal ones stay in order."""
    b, last = c.builder, c.builder.type_of(x).rank - 1
    perm = [*(a for a in range(last + 1) if a != axis), axis]
    attrs: dict[str, Attr] = {"k": k, "axis": last, "largest": largest, "sorted": ordered}
    back = [perm.index(a) for a in range(last + 1)]
    found = c.emit_many("topk", [b.transpose(x, perm)], attrs)
    return tuple(b.transpose(y, back) for y in found)


# ---------------------------------------------------------------- unique


def _size(c: Call, n: Dim) -> Ref:
    return c.builder.from_dims([n], [])


def _unique(c: Call) -> Sequence[Ref]:
    """Sort, mark where a run of equal elements (slices of the axis) starts, and take the starts."""
    b, x, shape, dtype = c.builder, c.x(), c.shape(), c.type().dtype
    axis = c.axis(c.integer("axis"), len(shape)) if c.given("axis") else None
    if dtype == bool_:
        x = b.cast(x, i64)
    if axis is None:
        items = b.reshape(x, (product(shape), ONE))
        rest: tuple[Dim, ...] = ()
    else:
        front = b.transpose(x, [axis, *(a for a in range(len(shape)) if a != axis)])
        rest = b.type_of(front).shape[1:]
        items = b.reshape(front, (shape[axis], product(rest)))
    n, width = b.type_of(items).shape
    order = _lexical(c, items, n, width)
    ordered = c.emit("gather", items, order, axis=0)
    zero, one = b.constant(np.zeros((), np.int64)), b.constant(np.ones((), np.int64))
    places = c.iota(n)
    before = c.emit("gather", ordered, c.emit("max", c.emit("sub", places, one), zero), axis=0)
    differs = b.cast(c.emit("not_equal", ordered, before), i64)
    some = c.emit("greater", c.emit("reduce_sum", differs, axes=(1,), keepdims=False), zero)
    opens = c.emit("or", some, c.emit("equal", places, zero))
    starts = flat_positions(c, opens)
    (m,) = b.type_of(starts).shape
    values = c.emit("gather", ordered, starts, axis=0)
    first = c.emit("gather", order, starts, axis=0)
    counts = _gaps(c, starts, m, n)
    group = c.emit("cumsum", b.cast(opens, i64), axis=0, exclusive=False, reverse=False)
    inverse = _scattered(c, order, c.emit("sub", group, one), n)
    if not c.flag("sorted", 1):  # in the order of their first appearance
        _, rank = sorted_by(c, first, m)
        values, first, counts = (c.emit("gather", v, rank, axis=0) for v in (values, first, counts))
        inverse = c.emit("gather", _scattered(c, rank, c.iota(m), m), inverse, axis=0)
    values = b.cast(b.reshape(values, (m, *rest)), dtype)
    if axis is not None:
        values = b.transpose(values, [*range(1, axis + 1), 0, *range(axis + 1, len(shape))])
    return (values, first, inverse, counts)[: len(c.outputs)]


def _lexical(c: Call, items: Ref, n: Dim, width: Dim) -> Ref:
    """The order of the rows by their elements, the first one first: stable sorts from the last to the
    first."""

    def step(b: GraphBuilder, k: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        column = at(b, items, width - 1 - k, 1)
        keys = b.emit("gather", [column, states[0]], {"axis": 0})
        attrs: dict[str, Attr] = {"k": n, "axis": 0, "largest": False, "sorted": True}
        _, rank = b.emit_many("topk", [keys], attrs)
        return [b.emit("gather", [states[0], rank], {"axis": 0})], []

    return counted(c, width, [c.iota(n)], step)[0][0]


def _gaps(c: Call, starts: Ref, m: Dim, n: Dim) -> Ref:
    """starts[i + 1] - starts[i], the last one up to n."""
    one = c.builder.constant(np.ones((), np.int64))
    following = c.emit("add", c.iota(m), one)
    inner = c.emit("less", following, _size(c, m))
    at = c.emit("min", following, c.emit("sub", _size(c, m), one))
    after = c.emit("where", inner, c.emit("gather", starts, at, axis=0), _size(c, n))
    return c.emit("sub", after, starts)


def _scattered(c: Call, to: Ref, values: Ref, n: Dim) -> Ref:
    """y with y[to[i]] = values[i]."""
    empty = c.builder.broadcast_to(c.builder.constant(np.zeros((), np.int64)), (n,))
    return c.emit("scatter_elements", empty, to, values, axis=0, reduction="none")


# ---------------------------------------------------------------- boxes


def _non_max_suppression(c: Call) -> Ref:
    """(batch, class, box) of the boxes that are kept, the best first within batch and class."""
    b, boxes, scores = c.builder, c.x(0), c.x(1)
    if c.type(0).dtype != f32 or c.type(1).dtype != f32 or (c.type(0).rank, c.type(1).rank) != (3, 3):
        raise c.fail(f"boxes {c.type(0)} and scores {c.type(1)}, wanted f32 of rank 3")
    c.engine.same("coordinates of a box", c.shape(0)[2], to_dim(4))
    c.engine.same("batch of boxes and scores", c.shape(0)[0], c.shape(1)[0])
    n = c.engine.same("number of boxes", c.shape(0)[1], c.shape(1)[2])
    limits = [_scalar(c, 3, np.zeros((), np.float32))]
    limits += [b.reshape(c.x(4), ())] if c.has(4) else []  # without one -inf is as good a score as any
    room = _room(c, n)
    attrs: dict[str, Attr] = {"room": room, "centred": c.flag("center_point_box")}
    places, count = c.emit_many("nms_keep", [boxes, scores, *limits], attrs)
    total = c.emit("reduce_sum", count, axes=(0, 1), keepdims=False)
    found = b.bind(total, 0, "boxes", 0, product((*c.shape(1)[:2], room)))
    return c.emit("nms_listed", places, count, count=found)


def _room(c: Call, n: Dim) -> Dim:
    """How many boxes of a class may stay: at most as many as there are, and none where none is asked for."""
    b, most = c.builder, c.builder.cast(_scalar(c, 2, np.zeros((), np.int64)), i64)
    known = b.constant_of(most)
    if known is not None:
        return c.engine.simplify(dmin(to_dim(max(int(known), 0)), n))
    most = c.emit("min", c.emit("max", most, c.scalar(0, most)), b.from_dims([n], []))
    return b.dims_of(most, "max_output_boxes_per_class", 0, n)[0]


def _scalar(c: Call, i: int, default: np.ndarray[tuple[()], np.dtype[np.generic]]) -> Ref:
    return c.builder.reshape(c.x(i), ()) if c.has(i) else c.builder.constant(default)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("NonZero", 9, _non_zero),
    OnnxOp("Compress", 9, _compress),
    OnnxOp("TopK", 1, _top_k),
    OnnxOp("Unique", 11, _unique),
    OnnxOp("NonMaxSuppression", 10, _non_max_suppression),
)
