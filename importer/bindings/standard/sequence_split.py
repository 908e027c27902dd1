"""Bindings of SplitToSequence and ConcatFromSequence, for parts of known and of run-time sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from smelt.core.dim import ONE, ZERO, Dim, Truth, product, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer import sequences as sq
from smelt.importer.bindings.standard.sequence import joined, listed, made, sequence
from smelt.importer.call import Call, OnnxOp
from smelt.importer.ranges import span

MANY_PARTS = 64
"""Parts of one size: more than these are packed, so that the graph does not grow with them."""


def _split_to_sequence(c: Call) -> Ref:
    shape = c.shape()
    axis = c.axis(c.integer("axis", 0), len(shape))
    if not c.has(1):
        return _ones(c, axis, c.flag("keepdims", 1))
    t = c.type(1)
    if not t.dtype.is_int or t.rank > 1:
        raise c.fail(f"split is {t}, wanted integers of rank 0 or 1")
    if t.rank == 0:
        return _chunks(c, axis, sq.number(c.builder, c.x(1), "split", 1))
    if t.shape[0].is_const:
        return _parts(c, axis, c.builder.dims_of(c.x(1), "split"))
    low, high = span(c.builder, c.x(1))
    if low is not None and low == high and low.is_const and low.const > 0:
        c.engine.same(f"sizes of the parts against axis {axis}", t.shape[0] * low, shape[axis])
        return _chunks(c, axis, low)
    return _ragged(c, axis, c.cast(c.x(1), i64))


def _parts(c: Call, axis: int, sizes: Sequence[Dim]) -> Ref:
    """One part for each size."""
    b, x, at = c.builder, c.x(), ZERO
    total = c.engine.simplify(sum(sizes, ZERO))
    c.engine.same(f"sizes of the parts against axis {axis}", total, c.shape()[axis])
    items = []
    for d in sizes:
        items.append(b.slice_axis(x, axis, at, at + d))
        at = at + d
    return listed(c, c.type().dtype, items)


def _ones(c: Call, axis: int, keep: bool) -> Ref:
    """Parts of one index each; the axis stays or goes."""
    b, x, shape = c.builder, c.x(), c.shape()
    own = (*shape[:axis], *([ONE] if keep else []), *shape[axis + 1 :])
    n = shape[axis]
    if n.is_const and n.const <= MANY_PARTS:
        parts = [b.reshape(b.slice_axis(x, axis, k, k + 1), own) for k in range(n.const)]
        return listed(c, c.type().dtype, parts)
    first = b.transpose(x, [axis, *(a for a in range(len(shape)) if a != axis)])
    values = b.reshape(first, (product(shape),))
    return made(c, sq.Packed(c.type().dtype, values, _rows(c, own, n), own))


def _rows(c: Call, shape: Sequence[Dim], n: Dim) -> Ref:
    """i64[n, rank]: the same shape n times."""
    return c.builder.broadcast_to(c.builder.from_dims(list(shape), [len(shape)]), (n, len(shape)))


def _chunks(c: Call, axis: int, size: Dim) -> Ref:
    """Parts of one size; the last one is smaller when the size does not divide the axis."""
    b, x, shape, dtype = c.builder, c.x(), c.shape(), c.type().dtype
    n = shape[axis]
    full = c.engine.simplify(n // size)
    if n.is_const and size.is_const and full.const <= MANY_PARTS:
        ends = [*range(0, n.const, size.const), n.const] if n.const else [0]
        return listed(c, dtype, [b.slice_axis(x, axis, s, e) for s, e in pairwise(ends)])
    even = c.engine.simplify(full * size)
    left = c.engine.simplify(n - even)
    before, after = shape[:axis], shape[axis + 1 :]
    main = b.reshape(b.slice_axis(x, axis, ZERO, even), (*before, full, size, *after))
    main = b.transpose(main, [axis, *(a for a in range(len(shape) + 1) if a != axis)])
    values = b.reshape(main, (product((*before, even, *after)),))
    rows = _rows(c, (*before, size, *after), full)
    if c.engine.prove_eq(left, ZERO) is Truth.YES:
        return made(c, sq.Packed(dtype, values, rows, (*before, size, *after)))
    tail = b.slice_axis(x, axis, even, n)
    own = b.type_of(tail).shape
    more = sq.number(b, c.emit("min", b.from_dims([left], ()), b.from_dims([ONE], ())), "rest", 0, ONE)
    values = joined(c, [values, b.reshape(tail, (product(own),))])
    rows = joined(c, [rows, _rows(c, own, more)])
    return made(c, sq.Packed(dtype, values, rows, (*before, None, *after)))


def _ragged(c: Call, axis: int, lengths: Ref) -> Ref:
    """As many parts as a run says, of the sizes that it says."""
    b, x, shape = c.builder, c.x(), c.shape()
    (count,) = b.type_of(lengths).shape
    sq.refuse(b, c.emit("less", lengths, b.scalar(0, lengths)), "negative_sizes")
    total = sq.number(b, c.emit("reduce_sum", lengths, axes=(0,), keepdims=False), "parts")
    c.engine.same(f"sizes of the parts against axis {axis}", total, shape[axis])
    before, after = shape[:axis], shape[axis + 1 :]
    columns = [_rows(c, before, count), b.reshape(lengths, (count, 1)), _rows(c, after, count)]
    rows = joined(c, columns, 1)
    values = b.reshape(x, (product(shape),))
    if not _leading(before):
        places = _places(c, lengths, product(before), shape[axis], product(after))
        room = b.broadcast_to(b.scalar(0, x), (product(shape),))
        flat = b.reshape(places, (product(shape),))
        values = c.emit("scatter_elements", room, flat, values, axis=0, reduction="none")
    return made(c, sq.Packed(c.type().dtype, values, rows, (*before, None, *after)))


def _leading(before: Sequence[Dim]) -> bool:
    """Whether parts along an axis lie one after the other."""
    return all(d == ONE for d in before)


def _places(c: Call, lengths: Ref, before: Dim, total: Dim, after: Dim) -> Ref:
    """i64[before, total, after]: where the element at (o, t, r) of the whole tensor lies in its parts, which
    stand one after the other and have `lengths` of the middle axis.

    # before*after*start + o*length*after + (t - start)*after + r, with start and length of t's part
    """
    b = c.builder
    ends = c.emit("cumsum", lengths, axis=0, exclusive=False, reverse=False)
    steps = c.iota(total)
    (count,) = b.type_of(lengths).shape
    passed = c.emit("less_equal", b.reshape(ends, (1, count)), b.reshape(steps, (total, 1)))
    part = c.emit("reduce_sum", b.cast(passed, i64), axes=(1,), keepdims=False)
    length = c.emit("gather", lengths, part, axis=0)
    start = c.emit("sub", c.emit("gather", ends, part, axis=0), length)
    across = b.reshape(c.iota(before), (before, 1, 1))
    inner = b.reshape(c.iota(after), (1, 1, after))
    width, area = b.from_dims([after], ()), b.from_dims([c.engine.simplify(before * after)], ())
    within = c.emit("mul", c.emit("sub", steps, start), width)
    along = b.reshape(c.emit("add", c.emit("mul", start, area), within), (1, total, 1))
    stride = b.reshape(c.emit("mul", length, width), (1, total, 1))
    return c.emit("add", c.emit("add", along, c.emit("mul", across, stride)), inner)


# ---------------------------------------------------------------- concat


def _concat_from_sequence(c: Call) -> Ref:
    s, new = sequence(c), int(c.flag("new_axis"))
    if isinstance(s, sq.Listed):
        return _concat_list(c, s, new)
    if s.dims is None:
        s = _uniform(c, s, new)
    assert s.dims is not None
    rank = len(s.dims)
    axis = c.axis(c.integer("axis"), rank + new)
    c.engine.at_most("the sequence is empty: elements to concatenate", ONE, sq.length_of(c.builder, s))
    own = None if new else axis
    shape = [d if a == own else _shared(c, s, a) for a, d in enumerate(s.dims)]
    known = [d for d in shape if d is not None]
    return _varied(c, s, axis, shape) if len(known) < rank else _even(c, s, axis, known, new)


def _concat_list(c: Call, s: sq.Listed, new: int) -> Ref:
    b = c.builder
    if not s.items:
        raise c.fail("the sequence is empty, wanted at least one element")
    shapes = [b.type_of(r).shape for r in s.items]
    if any(len(d) != len(shapes[0]) for d in shapes):
        raise c.fail(f"elements of the ranks {', '.join(str(len(d)) for d in shapes)}")
    axis = c.axis(c.integer("axis"), len(shapes[0]) + new)
    if not new:
        return s.items[0] if len(s.items) == 1 else c.emit("concat", *s.items, axis=axis)
    rows = [b.reshape(r, (*d[:axis], 1, *d[axis:])) for r, d in zip(s.items, shapes, strict=True)]
    return rows[0] if len(rows) == 1 else c.emit("concat", *rows, axis=axis)


def _uniform(c: Call, s: sq.Packed, new: int) -> sq.Packed:
    """The sequence, whose elements must have the rank that the file's type of the result asks for."""
    b, found = c.builder, c.declared_rank()
    if found is None or found < new:
        raise c.unsupported(
            "the elements of the sequence have no common rank",
            try_="declaring the elements' shape in the type of the input, or that of the output",
        )
    rank, width = found - new, b.type_of(s.shapes).shape[1]
    c.engine.at_most("axes of the elements", to_dim(rank), width)
    rows, beyond = b.slice_axis(s.shapes, 1, 0, rank), b.slice_axis(s.shapes, 1, rank, width)
    sq.refuse(b, c.emit("less", rows, b.scalar(0, rows)), "elements_of_a_lower_rank")
    sq.refuse(b, c.emit("greater_equal", beyond, b.scalar(0, beyond)), "elements_of_a_higher_rank")
    return sq.Packed(s.dtype, s.values, rows, (None,) * rank)


def _shared(c: Call, s: sq.Packed, axis: int) -> Dim:
    """The extent of an axis on which all elements must agree."""
    assert s.dims is not None
    d = s.dims[axis]
    if d is not None:
        return d
    b, column = c.builder, sq.column(c.builder, s, axis)
    first = b.reshape(b.slice_axis(column, 0, 0, 1), ())
    sq.refuse(b, c.emit("not_equal", column, first), f"elements_that_differ_on_axis_{axis}")
    return sq.number(b, first, "extent")


def _even(c: Call, s: sq.Packed, axis: int, shape: Sequence[Dim], new: int) -> Ref:
    """All elements have one shape."""
    b, rank = c.builder, len(shape)
    whole = sq.table(b, s, shape)
    moved = b.transpose(whole, [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)])
    if new:
        return moved
    return b.reshape(moved, (*shape[:axis], sq.length_of(b, s) * shape[axis], *shape[axis + 1 :]))


def _varied(c: Call, s: sq.Packed, axis: int, shape: Sequence[Dim | None]) -> Ref:
    """Elements of different extents on the axis."""
    b, lengths = c.builder, sq.column(c.builder, s, axis)
    total = sq.number(b, c.emit("reduce_sum", lengths, axes=(0,), keepdims=False), "extent")
    before = [d for d in shape[:axis] if d is not None]
    after = [d for d in shape[axis + 1 :] if d is not None]
    whole = (*before, total, *after)
    c.engine.same("values of the sequence", sq.total_of(b, s), c.engine.simplify(product(whole)))
    if _leading(before):
        return b.reshape(s.values, whole)
    places = _places(c, lengths, product(before), total, product(after))
    return b.reshape(c.emit("gather", s.values, places, axis=0), whole)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("SplitToSequence", 11, _split_to_sequence),
    OnnxOp("ConcatFromSequence", 11, _concat_from_sequence),
)

