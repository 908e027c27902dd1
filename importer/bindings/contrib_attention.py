"""Bindings of com.microsoft's attention ops and their caches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import Dim, dmax, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.contrib import MS, alike, rotate, rows_at
from smelt.importer.bindings.quant import scaled
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Call, OnnxOp

ZERO, ONE = to_dim(0), to_dim(1)
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


def _scale(c: Call, size: Dim, like: Ref) -> Ref:
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


def _heads(c: Call, name: str = "num_heads") -> int:
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
    """The bias [B, 1, S or 1, T] of a mask: one per position, or lengths [B], or ends and starts [2B]."""
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
    if b.compare_dims(shape[0], batch):
        return _filtered(c, c.emit("less", at, b.reshape(mask, (batch, 1, 1, 1))), like)
    c.engine.at_most("batch and mask entries", batch, shape[0])
    c.engine.at_most("mask entries and twice the batch", shape[0], batch * 2)
    ends, starts = (
        b.reshape(b.slice_axis(mask, 0, first, first + batch), (batch, 1, 1, 1))
        for first in (ZERO, shape[0] - batch)
    )
    if not b.compare_dims(shape[0], batch * 2):  # whether there are starts is seen when the model runs
        sizes = [b.from_dims([d], ()) for d in (shape[0], batch)]
        starts = c.emit("where", c.emit("greater", *sizes), starts, c.scalar(0, starts))
    inside = c.emit("and", c.emit("less", at, ends), c.emit("greater_equal", at, starts))
    return _filtered(c, inside, like)


def _positive(c: Call, mask: Ref) -> Ref:
    return c.emit("greater", mask, c.scalar(0, mask))


# ---------------------------------------------------------------- Attention


def _attention(c: Call) -> tuple[Ref, ...]:
    """One projection into queries, keys and values, then attention with an optional past [2, B, H, P, D]."""
    if c.integer("do_rotary", 0) or c.integer("past_present_share_buffer", 0):
        raise c.unsupported("do_rotary or past_present_share_buffer")
    alike(c, "batch", (0, 0), (4, 1))
    heads = _heads(c)
    y = c.emit("matmul", c.x(0), c.x(1))
    if c.has(2):
        y = c.emit("add", y, c.x(2))
    parts = _projections(c, y, heads)
    return _with_past(c, parts, heads, mask=3, past=4, bias=5)


def _quantised_attention(c: Call) -> tuple[Ref, ...]:
    """As Attention, of input and weight in bytes with a scale and a zero point each."""
    if c.integer("do_rotary", 0) or c.integer("past_present_share_buffer", 0):
        raise c.unsupported("do_rotary or past_present_share_buffer")
    alike(c, "batch", (0, 0), (8, 1))
    x = scaled(c, c.x(0), c.x(3), c.optional(6))
    w = scaled(c, c.x(1), c.x(4), c.optional(7), 1)
    y = c.emit("add", c.emit("matmul", x, w), c.x(2))
    heads = _heads(c)
    return _with_past(c, _projections(c, y, heads), heads, mask=5, past=8, bias=9)


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


def _with_past(
    c: Call, parts: Sequence[Ref], heads: int, *, mask: int, past: int, bias: int
) -> tuple[Ref, ...]:
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
    if c.has(mask):
        terms.append(_padding(c, mask, batch, rows, columns, q))
    allowed = _causal(c, rows, columns) if c.integer("unidirectional", 0) else ""
    y, _, _ = attend(c, q, k, v, scale=_scale(c, size, q), allowed=allowed, bias=terms)
    return (join_heads(c, y), *outputs)


# ---------------------------------------------------------------- MultiHeadAttention


def _multi_head(c: Call) -> tuple[Ref, ...]:
    """Queries, keys and values as three tensors, as [.., 3, size] in one, or with keys and values packed."""
    for i, what in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if c.has(i):
            raise c.unsupported(f"input '{what}'")
    b = c.builder
    heads = _heads(c)
    alike(c, "batch", (0, 0), (1, 0), (2, 0), (6, 0), (7, 0))
    for i, j in ((1, 2), (6, 7)):
        if c.has(i) and c.has(j):
            axes = [2 if c.type(k).rank == 4 else 1 for k in (i, j)]
            alike(c, "length", (i, axes[0]), (j, axes[1]))
    q, k, v = _packed_inputs(c, heads)
    if c.has(6) != c.has(7):
        raise c.fail("past_key and past_value go together")
    if c.has(6):
        k, v = (c.emit("concat", c.x(i), n, axis=2) for i, n in ((6, k), (7, v)))
    batch, _, rows, size = b.type_of(q).shape
    columns = b.type_of(k).shape[2]
    terms = [c.x(5)] if c.has(5) else []
    if c.has(4):
        terms.append(_padding(c, 4, batch, rows, columns, q))
    allowed = _causal(c, rows, columns) if c.integer("unidirectional", 0) else ""
    y, scores, _ = attend(c, q, k, v, scale=_scale(c, size, q), allowed=allowed, bias=terms)
    return (join_heads(c, y), k, v, scores)


def _packed_inputs(c: Call, heads: int) -> tuple[Ref, Ref, Ref]:
    """Queries, keys and values [B, H, S, size], the bias of their projections added."""
    b = c.builder
    rank = c.type(0).rank
    if rank == 5:
        if c.has(3):
            raise c.unsupported("a bias for packed queries, keys and values")
        q, k, v = (_unpacked(c, c.x(0), p) for p in range(3))
        return q, k, v
    if c.has(3):
        width = c.shape(0)[2]
        q = split_heads(c, c.emit("add", c.x(0), b.slice_axis(c.x(3), 0, 0, width)), heads, "query")
    else:
        q = split_heads(c, c.x(0), heads, "query")
    if c.type(1).rank == 5:
        if c.has(3):
            raise c.unsupported("a bias for packed keys and values")
        return q, _unpacked(c, c.x(1), 0), _unpacked(c, c.x(1), 1)
    found, at = [], c.shape(0)[2]
    for i, what in ((1, "key"), (2, "value")):
        x = c.x(i)
        if c.type(i).rank == 4:  # the keys of another layer, in heads already
            found.append(x)
            continue
        if c.has(3):
            x = c.emit("add", x, b.slice_axis(c.x(3), 0, at, at + c.shape(i)[2]))
            at = at + c.shape(i)[2]
        found.append(split_heads(c, x, heads, what))
    return q, found[0], found[1]


def _unpacked(c: Call, x: Ref, part: int) -> Ref:
    """Part `part` of [B, S, H, parts, size], as [B, H, S, size]."""
    b = c.builder
    shape = b.type_of(x).shape
    one = b.reshape(b.slice_axis(x, 3, part, part + 1), (*shape[:3], shape[4]))
    return b.transpose(one, (0, 2, 1, 3))


# ---------------------------------------------------------------- GroupQueryAttention

REFUSED_INPUTS = {12: "k_scale", 13: "v_scale"}


def _group_query(c: Call) -> tuple[Ref, ...]:
    """Causal attention over a cache that may be longer than what it holds; rows of the cache are appended.

    seqlens_k [B] is each batch's total length less 1; total_sequence_length the longest of them. A prompt is
    what is as long as the total: then nothing of the cache is read.
    """
    for i, what in REFUSED_INPUTS.items():
        if c.has(i):
            raise c.unsupported(f"input '{what}'")
    if c.integer("sliding_window_cache", 0) or c.text("k_quant_type", "NONE") != "NONE":
        raise c.unsupported("a sliding or quantised cache")
    b = c.builder
    alike(c, "batch", *((i, 0) for i in range(6)))
    alike(c, "sequence", (0, 1), (1, 1), (2, 1), (9, 1))
    alike(c, "extent of the cache", (3, 2), (4, 2))
    heads, groups = _heads(c), _heads(c, "kv_num_heads")
    if heads % groups:
        raise c.fail(f"{heads} heads for {groups} groups of keys")
    q, k, v = _query_key_value(c, heads, groups)
    if c.has(14) or c.has(15):
        q, k = (_head_norm(c, x, i) for x, i in ((q, 14), (k, 15)))
    batch, _, rows, size = b.type_of(q).shape
    (total,) = b.dims_of(c.x(6), "total_sequence_length")
    before = _past_lengths(c, batch, rows, total)
    if c.integer("do_rotary", 0):
        q, k = _rotated(c, (q, k), before, rows)
    keys, values = (_appended(c, i, n, before, total) for i, n in ((3, k), (4, v)))
    outputs = (keys, values)
    keys, values = (b.slice_axis(x, 2, 0, total) for x in (keys, values))
    allowed = _window(c, before, batch, rows, total)
    y, *scores = attend(
        c, q, keys, values,
        scale=_scale(c, size, q),
        softcap=c.number("softcap", 0.0),
        allowed=allowed,
        bias=[b.slice_axis(c.x(10), 3, 0, total)] if c.has(10) else [],
        sink=_sink(c, heads, q),
    )  # fmt: skip
    which = c.integer("qk_output", 0)
    if c.wants(3) and which not in (1, 2):
        raise c.fail(f"output_qk is asked for and qk_output is {which}, wanted 1 or 2")
    if which == 1:  # zero where the row does not look
        scores[0] = c.emit("where", allowed, scores[0], c.scalar(0, scores[0]))
    return (join_heads(c, y), *outputs, scores[which - 1])


def _head_norm(c: Call, x: Ref, i: int) -> Ref:
    """x [B, H, S, size] divided by the root of the mean square of each row, times input i [size]."""
    dtype = c.builder.type_of(x).dtype
    to = wide(dtype)
    epsilon = c.number("qk_norm_epsilon", 1e-6)
    y = c.emit("rms_norm", c.cast(x, to), c.cast(c.x(i), to), axis=3, epsilon=epsilon)
    return c.cast(y, dtype)


def _query_key_value(c: Call, heads: int, groups: int) -> tuple[Ref, Ref, Ref]:
    b = c.builder
    if c.has(1):
        return (
            split_heads(c, c.x(0), heads, "query"),
            split_heads(c, c.x(1), groups, "key"),
            split_heads(c, c.x(2), groups, "value"),
        )
    if c.type(0).rank != 3:
        raise c.fail(f"query has rank {c.type(0).rank}, wanted 3")
    width = c.shape(0)[2]
    c.engine.divides("heads and the width of query", to_dim(heads + 2 * groups), width)
    size = width // (heads + 2 * groups)
    found, at = [], ZERO
    for n, what in ((heads, "query"), (groups, "key"), (groups, "value")):
        found.append(split_heads(c, b.slice_axis(c.x(0), 2, at, at + size * n), n, what))
        at = at + size * n
    return found[0], found[1], found[2]


def _past_lengths(c: Call, batch: Dim, rows: Dim, total: Dim) -> Ref:
    """i64 [B]: rows of the cache that each batch has; 0 for a prompt."""
    b = c.builder
    lengths = c.cast(b.reshape(c.x(5), (batch,)), i64)
    count = b.from_dims([rows], (1,))
    before = c.emit("sub", c.emit("add", lengths, c.scalar(1, lengths)), count)
    if b.compare_dims(rows, total):
        return c.emit("mul", before, c.scalar(0, before))
    prompt = c.emit("equal", b.from_dims([total], (1,)), count)
    return c.emit("where", prompt, c.scalar(0, before), before)


def _rotated(c: Call, parts: Sequence[Ref], before: Ref, rows: Dim) -> tuple[Ref, ...]:
    b = c.builder
    (batch,) = b.type_of(before).shape
    if c.has(9):
        places = _given_places(c, rows)
    else:
        places = c.emit("add", b.reshape(before, (batch, 1)), b.reshape(c.iota(rows), (1, rows)))
    tables = []
    for i in (7, 8):
        t = rows_at(c, c.x(i), places, "position")
        tables.append(b.reshape(t, (b.type_of(t).shape[0], 1, rows, c.shape(i)[1])))
    interleaved = bool(c.integer("rotary_interleaved", 0))
    return tuple(rotate(c, x, tables[0], tables[1], interleaved) for x in parts)


def _given_places(c: Call, rows: Dim) -> Ref:
    """Input position_ids [B, S]. Of several rows the operator reads the first entry alone."""
    b, ids = c.builder, c.x(9)
    if b.compare_dims(rows, ONE):
        return ids
    first = b.slice_axis(b.slice_axis(ids, 0, 0, 1), 1, 0, 1)
    run = c.emit("add", first, c.cast(b.reshape(c.iota(rows), (1, rows)), b.type_of(ids).dtype))
    if b.compare_dims(rows, ONE) is False:
        return run
    single = c.emit("equal", b.from_dims([rows], (1, 1)), c.scalar(1, b.from_dims([rows], (1, 1))))
    return c.emit("where", single, ids, run)


def _appended(c: Call, past: int, new: Ref, before: Ref, total: Dim) -> Ref:
    """The cache with the new rows behind those that it has: max(its extent, total) rows."""
    if not c.has(past):
        shape = c.builder.type_of(new).shape
        if c.builder.compare_dims(shape[2], total):
            return new
        none = c.builder.constant(np.zeros((1, 1, 1, 1), c.builder.type_of(new).dtype.numpy))
        empty = c.builder.broadcast_to(none, (*shape[:2], 1, shape[3]))
        empty = c.builder.slice_axis(empty, 2, 0, 0)
        return c.emit("append_rows", empty, new, before, length=total)
    if c.type(past).rank != 4:
        raise c.fail(f"past has rank {c.type(past).rank}, wanted 4")
    length = c.engine.simplify(dmax(c.shape(past)[2], total))
    return c.emit("append_rows", c.x(past), new, before, length=length)


def _window(c: Call, before: Ref, batch: Dim, rows: Dim, total: Dim) -> Ref:
    """bool [B, 1, S, T]: at most the row's own position (causal), else of the batch's own length; and within
    the local window."""
    b = c.builder
    window = c.integer("local_window_size", -1)
    at = b.reshape(c.iota(total), (1, 1, 1, total))
    if not c.integer("causal", 1):
        if window >= 0:
            raise c.fail(f"local_window_size is {window} and causal is 0")
        ends = c.emit("add", before, b.from_dims([rows], (1,)))
        return c.emit("less", at, b.reshape(ends, (batch, 1, 1, 1)))
    own = c.emit("add", b.reshape(before, (batch, 1, 1, 1)), b.reshape(c.iota(rows), (1, 1, rows, 1)))
    allowed = c.emit("less_equal", at, own)
    if window < 0:
        return allowed
    first = c.emit("sub", own, c.scalar(window, own))
    return c.emit("and", allowed, c.emit("greater", at, first))


def _sink(c: Call, heads: int, like: Ref) -> Ref:
    if c.has(11):
        return c.x(11)
    if not c.integer("smooth_softmax", 0):
        return ""
    return c.builder.broadcast_to(c.scalar(0, like), (heads,))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Attention", 1, _attention, MS),
    OnnxOp("QAttention", 1, _quantised_attention, MS),
    OnnxOp("MultiHeadAttention", 1, _multi_head, MS),
    OnnxOp("GroupQueryAttention", 1, _group_query, MS),
)
