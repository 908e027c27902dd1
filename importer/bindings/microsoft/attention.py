"""Bindings of com.microsoft's attention ops and their caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.microsoft.fused import alike
from smelt.importer.bindings.standard.quant import scaled
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

MASKED = -10000.0


def attend(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    *,
    scale: Ref,
    softcap: float = 0.0,
    allowed: Ref = "",
    bias: Sequence[Ref] = (),
    sink: Ref = "",
) -> tuple[Ref, Ref, Ref]:
    """softmax(scale * q k' + bias) v, as [B, H, S, size of v]; scores [B, H, S, T] before softmax and after.

    q [B, H, S, D], k [B, G, T, D], v [B, G, T, E] where G divides H; allowed: bool, bias: floats, each
    broadcast over [B, H, S, T]; every row has an allowed position. sink [H]: a score of its own per head
    that takes part in the softmax and has no value.
    """
    b = c.builder
    dtype = b.type_of(q).dtype
    batch, heads, rows, size = b.type_of(q).shape
    groups, columns = b.type_of(k).shape[1:3]
    of_group = (batch, groups, (heads // groups) * rows)
    s = c.emit("matmul", b.reshape(q, (*of_group, size)), b.transpose(k, (0, 1, 3, 2)))
    s = c.cast(b.reshape(s, (batch, heads, rows, columns)), wide(dtype))
    s = c.emit("mul", s, scale)
    if softcap:
        s = c.emit("mul", c.emit("tanh", c.emit("div", s, c.scalar(softcap, s))), c.scalar(softcap, s))
    for term in bias:
        s = c.emit("add", s, c.cast(term, wide(dtype)))
    before = c.cast(s, dtype)
    if allowed:
        s = c.emit("where", allowed, s, c.scalar(-math.inf, s))
    if sink:
        one = b.broadcast_to(b.reshape(c.cast(sink, wide(dtype)), (1, heads, 1, 1)), (batch, heads, rows, 1))
        p = c.emit("softmax", c.emit("concat", one, s, axis=3), axis=3)
        p = b.slice_axis(p, 3, 1, columns + 1)
    else:
        p = c.emit("softmax", s, axis=3)
    p = c.cast(p, dtype)
    y = c.emit("matmul", b.reshape(p, (*of_group, columns)), v)
    return b.reshape(y, (batch, heads, rows, b.type_of(v).shape[3])), before, p


def split_heads(c: Call, x: Ref, heads: int, what: str) -> Ref:
    """[B, S, heads * size] as [B, heads, S, size]."""
    b = c.builder
    shape = b.type_of(x).shape
    if len(shape) != 3:
        raise c.fail(f"{what} has rank {len(shape)}, wanted 3")
    c.engine.divides(f"heads and the width of {what}", to_dim(heads), shape[2])
    return b.transpose(b.reshape(x, (shape[0], shape[1], heads, shape[2] // heads)), (0, 2, 1, 3))


def join_heads(c: Call, y: Ref) -> Ref:
    """[B, heads, S, size] as [B, S, heads * size]."""
    batch, heads, rows, size = c.builder.type_of(y).shape
    return c.builder.reshape(c.builder.transpose(y, (0, 2, 1, 3)), (batch, rows, heads * size))


def scale_of(c: Call, size: Dim, like: Ref) -> Ref:
    """The attribute, or 1 / sqrt(head size), as a scalar of the type that scores of `like` have."""
    dtype = wide(c.builder.type_of(like).dtype)
    given = c.number("scale", 0.0)
    if not given and size.is_const:
        given = 1 / math.sqrt(max(size.const, 1))
    if given:
        return c.builder.constant(np.array(given, dtype.numpy))
    root = c.emit("sqrt", c.cast(c.builder.from_dims([size], ()), dtype))
    return c.emit("reciprocal", root)


def _causal(c: Call, rows: Dim, columns: Dim) -> Ref:
    """bool [S, T]: the last row sees all columns, each row before one less."""
    b = c.builder
    i = b.reshape(c.iota(rows, columns - rows), (rows, 1))
    return c.emit("less_equal", b.reshape(c.iota(columns), (1, columns)), i)


def head_count(c: Call, name: str = "num_heads") -> int:
    n = c.integer(name)
    if n < 1:
        raise c.fail(f"{name} is {n}, wanted at least 1")
    return n


# ---------------------------------------------------------------- masks


def _filtered(c: Call, kept: Ref, like: Ref) -> Ref:
    """0 where kept, else mask_filter_value: a bias."""
    value = c.scalar(c.number("mask_filter_value", MASKED), like)
    return c.emit("where", kept, c.scalar(0, like), value)


def _padding(c: Call, i: int, batch: Dim, rows: Dim, columns: Dim, like: Ref) -> Ref:
    """The bias [B, 1, S or 1, T] of a mask: one per position, or lengths [B], or ends and starts [2B], or
    lengths and then more that is not read [3B + 2]."""
    b, mask, shape = c.builder, c.x(i), c.shape(i)
    if len(shape) == 2:
        c.engine.same("mask length and total length", shape[1], columns)
        c.engine.same("batch of the mask", shape[0], batch)
        return _filtered(c, b.reshape(_positive(c, mask), (shape[0], 1, 1, columns)), like)
    if len(shape) == 3:
        c.engine.same("mask length and total length", shape[2], columns)
        c.engine.same("batch of the mask", shape[0], batch)
        c.engine.same("rows of the mask", shape[1], rows)
        return _filtered(c, b.reshape(_positive(c, mask), (shape[0], 1, *shape[1:])), like)
    if len(shape) != 1:
        raise c.unsupported(f"a mask of rank {len(shape)}", try_="a mask [batch, total length]")
    at = c.cast(b.reshape(c.iota(columns), (1, 1, 1, columns)), b.type_of(mask).dtype)
    lengths = b.compare_dims(shape[0], batch) or b.compare_dims(shape[0], batch * 3 + 2)
    c.engine.at_most("batch and mask entries", batch, shape[0])
    ends = b.reshape(b.slice_axis(mask, 0, 0, batch), (batch, 1, 1, 1))
    held = c.emit("less", at, ends)
    if lengths:
        return _filtered(c, held, like)
    c.engine.at_most("mask entries and three for each of the batch, and 2", shape[0], batch * 3 + 2)
    starts = b.reshape(b.slice_axis(mask, 0, shape[0] - batch, shape[0]), (batch, 1, 1, 1))
    if not b.compare_dims(shape[0], batch * 2):  # whether there are starts is seen when the model runs
        sizes = [b.from_dims([d], ()) for d in (shape[0], c.engine.simplify(batch * 2))]
        starts = c.emit("where", c.emit("equal", *sizes), starts, c.scalar(0, starts))
    return _filtered(c, c.emit("and", held, c.emit("greater_equal", at, starts)), like)


def _is_dummy(c: Call, i: int) -> bool:
    """Whether a mask has one number per batch entry, or one in all: then it masks nothing."""
    return c.type(i).rank == 2 and c.shape(i)[1] == ONE


def _positive(c: Call, mask: Ref) -> Ref:
    return c.emit("greater", mask, c.scalar(0, mask))


# ---------------------------------------------------------------- Attention


def _attention(c: Call) -> tuple[Ref, ...]:
    """One projection into queries, keys and values, then attention with an optional past [2, B, H, P, D]."""
    if c.flag("do_rotary") or c.flag("past_present_share_buffer"):
        raise c.unsupported("do_rotary or past_present_share_buffer")
    alike(c, "batch", (0, 0), (4, 1))
    heads = head_count(c)
    y = c.emit("matmul", c.x(0), c.x(1))
    if c.has(2):
        y = c.emit("add", y, c.x(2))
    parts = _projections(c, y, heads)
    return _with_past(c, parts, mask=3, past=4, bias=5)


def _quantised_attention(c: Call) -> tuple[Ref, ...]:
    """As Attention, of input and weight in bytes with a scale and a zero point each."""
    if c.flag("do_rotary") or c.flag("past_present_share_buffer"):
        raise c.unsupported("do_rotary or past_present_share_buffer")
    alike(c, "batch", (0, 0), (8, 1))
    x = scaled(c, c.x(0), c.x(3), c.optional(6))
    w = scaled(c, c.x(1), c.x(4), c.optional(7), 1)
    y = c.emit("add", c.emit("matmul", x, w), c.x(2))
    heads = head_count(c)
    return _with_past(c, _projections(c, y, heads), mask=5, past=8, bias=9)


def _projections(c: Call, y: Ref, heads: int) -> list[Ref]:
    """Queries, keys and values [B, H, S, size] of [B, S, their widths side by side]."""
    b = c.builder
    total = b.type_of(y).shape[2]
    sizes: Sequence[Dim | int] = c.ints("qkv_hidden_sizes", ())
    if not sizes:
        c.engine.divides("projections", to_dim(3), total)
        sizes = (total // 3,) * 3
    if len(sizes) != 3:
        raise c.fail(f"qkv_hidden_sizes has {len(sizes)} entries, wanted 3")
    parts, at = [], ZERO
    for size, what in zip(sizes, ("query", "key", "value"), strict=True):
        parts.append(split_heads(c, b.slice_axis(y, 2, at, at + size), heads, what))
        at = at + size
    return parts


def _with_past(c: Call, parts: Sequence[Ref], *, mask: int, past: int, bias: int) -> tuple[Ref, ...]:
    """The rest of Attention, from queries, keys and values [B, H, S, size]."""
    b = c.builder
    q, k, v = parts
    outputs: list[Ref] = []
    if c.has(past):
        shape = c.shape(past)
        if len(shape) != 5:
            raise c.fail(f"past has rank {len(shape)}, wanted 5")
        old = [b.reshape(b.slice_axis(c.x(past), 0, h, h + 1), shape[1:]) for h in (0, 1)]
        k, v = (c.emit("concat", o, n, axis=2) for o, n in zip(old, (k, v), strict=True))
    if c.wants(1):
        both = [b.reshape(x, (1, *b.type_of(x).shape)) for x in (k, v)]
        outputs.append(c.emit("concat", *both, axis=0))
    batch, _, rows, size = b.type_of(q).shape
    columns = b.type_of(k).shape[2]
    terms = [c.x(bias)] if c.has(bias) else []
    if c.has(mask) and not _is_dummy(c, mask):
        terms.append(_padding(c, mask, batch, rows, columns, q))
    allowed = _causal(c, rows, columns) if c.flag("unidirectional") else ""
    y, _, _ = attend(c, q, k, v, scale=scale_of(c, size, q), allowed=allowed, bias=terms)
    return (join_heads(c, y), *outputs)


# ---------------------------------------------------------------- MultiHeadAttention


@dataclass(frozen=True)
class _Places:
    """The number of an input, by what it is; the values of the past stand after its keys."""

    bias: int
    mask: int
    added: int
    past: int
    length: int
    beams: int


def _multi_head(c: Call) -> tuple[Ref, ...]:
    """Queries, keys and values as three tensors, as [.., 3, size] in one, or with keys and values packed."""
    return _attended(c, _Places(bias=3, mask=4, added=5, past=6, length=8, beams=9))


def _masked_multi_head(c: Call) -> tuple[Ref, ...]:
    """As MultiHeadAttention, of one row, where the past is a buffer whose length stands in an input."""
    places = _Places(bias=10, mask=3, added=4, past=5, length=7, beams=9)
    c.engine.same("rows of the query and 1", c.shape(0)[1], ONE)
    if c.has(places.past) and not c.has(places.length):
        raise c.unsupported("past_key without past_sequence_length", try_="past_present_share_buffer = 1")
    return _attended(c, places)


def _attended(c: Call, p: _Places) -> tuple[Ref, ...]:
    b = c.builder
    heads = head_count(c)
    alike(c, "batch", (0, 0), (1, 0), (2, 0), (p.past, 0), (p.past + 1, 0))
    for i in (1, p.past):
        if c.has(i) and c.has(i + 1):
            axes = [2 if c.type(k).rank == 4 else 1 for k in (i, i + 1)]
            alike(c, "length", (i, axes[0]), (i + 1, axes[1]))
    q, k, v = _packed_inputs(c, heads, p.bias)
    if c.has(p.past) != c.has(p.past + 1):
        raise c.fail("past_key and past_value go together")
    batch, _, rows, size = b.type_of(q).shape
    present = [k, v]
    if c.has(p.past):
        (k, v), present = _cached(c, p, (k, v), rows)
    columns = b.type_of(k).shape[2]
    terms = [c.x(p.added)] if c.has(p.added) else []
    if c.has(p.mask):
        terms.append(_padding(c, p.mask, batch, rows, columns, q))
    allowed = _causal(c, rows, columns) if c.flag("unidirectional") else ""
    y, scores, _ = attend(c, q, k, v, scale=scale_of(c, size, q), allowed=allowed, bias=terms)
    return (join_heads(c, y), *present, scores)


def _cached(c: Call, p: _Places, new: Sequence[Ref], rows: Dim) -> tuple[list[Ref], list[Ref]]:
    """(keys and values after those of the past [B, H, P, size], the outputs of both).

    With a length the past is a buffer that holds so many rows: the new ones go after those, into the buffer.
    Without one ONNX Runtime does not read which beam a row is of.
    """
    b = c.builder
    read: list[Ref] = []
    present: list[Ref] = []
    extent = count = c.shape(p.past)[2]
    if c.has(p.length):
        (count,) = b.dims_of(b.reshape(c.x(p.length), ()), "past_sequence_length", 0, extent)
        c.engine.at_most("rows that there are and the buffer's extent", count + rows, extent)
    for i, n in zip((p.past, p.past + 1), new, strict=True):
        held = b.slice_axis(c.x(i), 2, 0, count)
        if not c.has(p.length):
            present.append(c.emit("concat", held, n, axis=2))
            read.append(present[-1])
            continue
        rest = b.slice_axis(c.x(i), 2, count + rows, extent)
        present.append(c.emit("concat", held, n, rest, axis=2))
        held = _by_beam(c, held, p.beams, rows) if c.has(p.beams) else held
        read.append(c.emit("concat", held, n, axis=2))
    return read, present


def _by_beam(c: Call, x: Ref, i: int, rows: Dim) -> Ref:
    """Rows [B, H, P, size] of the beam that input i [B / beams, beams, max] names, where it is one step."""
    b = c.builder
    batch, heads, count, size = b.type_of(x).shape
    if b.compare_dims(rows, ONE) is False:
        return x
    if c.type(i).rank != 3:
        raise c.fail(f"cache_indirection has rank {c.type(i).rank}, wanted 3")
    groups, beams, extent = c.extents(i, 3)
    c.engine.same("batch and beams", batch, groups * beams)
    c.engine.at_most("rows of the past and cache_indirection", count, extent)
    named = b.slice_axis(b.reshape(c.cast(c.x(i), i64), (batch, extent)), 1, 0, count)
    inside(c, named, beams, "beam", wraps=False)
    own = b.reshape(c.iota(batch), (batch, 1))
    wide = b.from_dims([beams], (1, 1))
    at = c.emit("add", c.emit("mul", c.emit("div", own, wide), wide), named)
    if not b.compare_dims(rows, ONE):
        single = c.emit("equal", b.from_dims([rows], (1, 1)), b.from_dims([ONE], (1, 1)))
        at = c.emit("where", single, at, own)
    at = b.broadcast_to(b.reshape(at, (batch, 1, count, 1)), (batch, heads, count, size))
    return c.emit("gather_elements", x, at, axis=0)


def _packed_inputs(c: Call, heads: int, bias: int) -> tuple[Ref, Ref, Ref]:
    """Queries, keys and values [B, H, S, size], the bias of their projections added."""
    b = c.builder
    if c.type(0).rank == 5:
        given = [_unpacked(c, c.x(0), part) for part in range(3)]
    elif c.type(1).rank == 5:
        given = [c.x(0), *(_unpacked(c, c.x(1), part) for part in range(2))]
    else:
        given = [c.x(i) for i in range(3)]
    found, at = [], ZERO
    for i, (x, what) in enumerate(zip(given, ("query", "key", "value"), strict=True)):
        shape = b.type_of(x).shape
        if len(shape) == 4 and c.has(i) and x == c.x(i):  # the keys of another layer: no bias of their own
            found.append(x)
            continue
        width = c.engine.simplify(shape[1] * shape[3]) if len(shape) == 4 else shape[-1]
        if c.has(bias):
            part = b.slice_axis(c.x(bias), 0, at, at + width)
            x = c.emit("add", x, b.reshape(part, (1, shape[1], 1, shape[3])) if len(shape) == 4 else part)
            at = at + width
        found.append(x if len(shape) == 4 else split_heads(c, x, heads, what))
    q, k, v = found
    return q, k, v


def _unpacked(c: Call, x: Ref, part: int) -> Ref:
    """Part `part` of [B, S, H, parts, size], as [B, H, S, size]."""
    b = c.builder
    shape = b.type_of(x).shape
    one = b.reshape(b.slice_axis(x, 3, part, part + 1), (*shape[:3], shape[4]))
    return b.transpose(one, (0, 2, 1, 3))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Attention", 1, _attention, MS),
    OnnxOp("QAttention", 1, _quantised_attention, MS),
    OnnxOp("MultiHeadAttention", 1, _multi_head, MS),
    OnnxOp("DecoderMaskedMultiHeadAttention", 1, _masked_multi_head, MS),
)
