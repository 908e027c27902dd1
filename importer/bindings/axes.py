"""Axes known only at run time: masks and sizes computed by core ops, bound as symbols where shapes need them.

An axis d is chosen when some element of the axes tensor is d or d - rank. The mask of chosen axes is a small
tensor, and so are the sizes that follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.core.dim import ONE, ZERO, Dim, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer.call import Call


def axis_is_chosen(c: Call, axes: Ref, rank: int) -> Ref:
    """bool[axes, rank]: whether element j of the axes is axis d."""
    b = c.builder
    axes = b.reshape(b.cast(axes, i64), (count(c, axes),))
    shifted = c.emit("add", axes, c.scalar(rank, axes))
    axes = c.emit("where", c.emit("less", axes, c.scalar(0, axes)), shifted, axes)
    every = c.iota(rank)
    return c.emit("equal", b.reshape(axes, (count(c, axes), 1)), b.reshape(every, (1, rank)))


def count(c: Call, axes: Ref) -> Dim:
    """How many axes there are."""
    shape = c.builder.type_of(axes).shape
    if len(shape) > 1:
        raise c.fail(f"axes have rank {len(shape)}, wanted 1")
    return shape[0] if shape else ONE


def mask(c: Call, axes: Ref, rank: int) -> Ref:
    """i64[rank]: 1 for chosen axes. Each element of the axes must choose one that no other chooses."""
    b = c.builder
    hits = b.cast(axis_is_chosen(c, axes, rank), i64)
    found = c.emit("reduce_sum", hits, axes=(0,), keepdims=False)
    flags = c.emit("min", found, c.scalar(1, found))
    total = c.emit("reduce_sum", flags, axes=(0,), keepdims=False)
    short = c.emit("sub", b.from_dims([count(c, axes)], []), total)
    b.bind(short, 0, "axes that do not fit or are named twice", 0, ZERO)
    return flags


def paired(c: Call, found: Ref, shape: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """For each axis of n elements the pair (1, n) if it is chosen, else (n, 1)."""
    sizes = c.builder.from_dims(shape, [len(shape)])
    one, some = c.scalar(1, sizes), c.emit("greater", found, c.scalar(0, found))
    outer = c.builder.dims_of(c.emit("where", some, one, sizes), "size of an axis that stays")
    inner = c.builder.dims_of(c.emit("where", some, sizes, one), "size of a chosen axis")
    return list(zip(outer, inner, strict=True))


def kept_sizes(c: Call, found: Ref, rank: int) -> tuple[Dim, ...]:
    """The sizes of input 0's axes that are not chosen, `rank` of them, in order."""
    b, shape = c.builder, c.shape(0)
    own = len(shape)
    keep = c.emit("sub", c.scalar(1, found), found)
    place = c.emit("mul", c.emit("cumsum", keep, axis=0, exclusive=False, reverse=False), keep)
    wanted = c.iota(rank, 1)
    hit = c.emit("equal", b.reshape(wanted, (rank, 1)), b.reshape(place, (1, own)))
    sizes = b.reshape(b.from_dims(shape, [own]), (1, own))
    picked = c.emit("where", hit, sizes, c.scalar(0, sizes))
    return b.dims_of(c.emit("reduce_sum", picked, axes=(1,), keepdims=False), "size of a kept axis")


def with_ones(c: Call, found: Ref, rank: int) -> tuple[Dim, ...]:
    """The sizes of input 0 with 1s put at the chosen axes of the result."""
    b, shape = c.builder, c.shape(0)
    if not shape:
        return (ONE,) * rank
    keep = c.emit("sub", c.scalar(1, found), found)
    place = c.emit("cumsum", keep, axis=0, exclusive=True, reverse=False)
    last = c.scalar(len(shape) - 1, place)
    sizes = c.emit("gather", b.from_dims(shape, [len(shape)]), c.emit("min", place, last), axis=0)
    sizes = c.emit("where", c.emit("greater", found, c.scalar(0, found)), c.scalar(1, sizes), sizes)
    return b.dims_of(sizes, "size beside a new axis")


def rank_without(c: Call, axes: Ref) -> int:
    """The rank of the result when the axes are removed."""
    return _rank(c, axes, -1)


def rank_with(c: Call, axes: Ref) -> int:
    """The rank of the result when the axes are inserted."""
    return _rank(c, axes, 1)


def _rank(c: Call, axes: Ref, sign: int) -> int:
    """rank + sign * axes; from their number, or from what the file declares."""
    n, rank = count(c, axes), c.type(0).rank
    if n.is_const:
        return rank + sign * n.const
    declared = c.declared_rank()
    if declared is None:
        raise c.unsupported(f"the number of axes is {n}, which decides the rank", try_="a constant")
    c.engine.same("axes", n, to_dim(sign * (declared - rank)))
    return declared


def reduced(c: Call, op: str, x: Ref, axes: Ref, keep: bool, none_is_all: bool) -> Ref:
    """A reduction over axes known only at run time: each axis of n is split into a pair (1, n) or (n, 1), and
    the second of each pair is reduced."""
    b, shape = c.builder, c.builder.type_of(x).shape
    rank = len(shape)
    result = rank if keep else rank_without(c, axes)
    found = mask(c, axes, rank)
    if none_is_all and not count(c, axes).is_const:
        none = c.emit("equal", b.from_dims([count(c, axes)], []), c.builder.from_dims([ZERO], []))
        found = c.emit("where", none, c.scalar(1, found), found)
    pairs = [d for pair in paired(c, found, shape) for d in pair]
    y = c.emit(op, b.reshape(x, pairs), axes=tuple(range(1, 2 * rank, 2)), keepdims=False)
    return y if keep else b.reshape(y, kept_sizes(c, found, result))


def spread(c: Call, values: Ref, hits: Ref, otherwise: Sequence[Dim]) -> Ref:
    """i64[rank]: the value of a chosen axis, else `otherwise`. hits: bool[axes, rank]."""
    b, rank = c.builder, len(otherwise)
    n = b.type_of(hits).shape[0]
    column = b.reshape(b.cast(values, i64), (n, 1))
    own = c.emit("reduce_sum", c.emit("where", hits, column, c.scalar(0, column)), axes=(0,), keepdims=False)
    some = c.emit("reduce_sum", b.cast(hits, i64), axes=(0,), keepdims=False)
    rest = b.from_dims(otherwise, [rank])
    return c.emit("where", c.emit("greater", some, c.scalar(0, some)), own, rest)


def sliced(c: Call, starts: Ref, ends: Ref, axes: Ref, steps: Ref) -> Ref:
    """Input 0 sliced where axes and steps are only known at run time too: a gather per axis. axes, steps: ''
    for the first axes, and for 1."""
    b, shape = c.builder, c.shape(0)
    rank, n = len(shape), count(c, starts)
    for ref, what in ((ends, "ends"), (axes, "axes"), (steps, "steps")):
        if ref:
            c.engine.same(f"the number of {what} and of starts", count(c, ref), n)
    if not axes:
        axes = c.iota(n)
    hits = axis_is_chosen(c, axes, rank)
    mask(c, axes, rank)  # refuses axes that do not fit
    by = spread(c, steps, hits, (ONE,) * rank) if steps else b.from_dims((ONE,) * rank, [rank])
    zero, one = c.scalar(0, by), c.scalar(1, by)
    up = c.emit("greater", by, zero)
    size = b.from_dims(shape, [rank])
    last = c.emit("where", up, size, c.emit("sub", size, one))
    lowest = c.emit("where", up, zero, c.emit("neg", one))

    def place(values: Ref, default: Sequence[Dim]) -> Ref:
        v = spread(c, values, hits, default)
        v = c.emit("where", c.emit("less", v, zero), c.emit("add", v, size), v)
        return c.emit("min", c.emit("max", v, lowest), last)

    start, end = place(starts, (ZERO,) * rank), place(ends, shape)
    span = c.emit("max", c.emit("mul", c.emit("sub", end, start), c.emit("sign", by)), zero)
    pace = c.emit("abs", by)
    many = c.emit("div", c.emit("add", span, c.emit("sub", pace, one)), pace)
    y = c.x(0)
    for axis in range(rank):
        (extent,) = b.dims_of(b.reshape(b.slice_axis(many, 0, axis, axis + 1), ()), "slice", 0, shape[axis])
        first, step = (b.slice_axis(v, 0, axis, axis + 1) for v in (start, by))
        steps_up = c.iota(extent)
        y = c.emit("gather", y, c.emit("add", c.emit("mul", steps_up, step), first), axis=axis)
    return y
