"""Binding of com.microsoft's GroupQueryAttention, its cache and its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, to_dim
from smelt.core.dtype import f32, i8, i64, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.microsoft.attention import attend, head_count, join_heads, scale_of, split_heads
from smelt.importer.bindings.microsoft.fused import alike, rotate, rows_at
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS


@dataclass(frozen=True)
class _Code:
    """How rows of a cache are stored: in whole steps of a scale, [] or [1, G, 1, size], of 8 or 4 bits."""

    scale: Ref
    bits: int


def _group_query(c: Call) -> tuple[Ref, ...]:
    """Causal attention over a cache that may be longer than what it holds; rows of the cache are appended.

    seqlens_k [B] is each batch's total length less 1; total_sequence_length the longest of them. A prompt is
    what is as long as the total: then nothing of the cache is read.
    """
    b = c.builder
    alike(c, "batch", *((i, 0) for i in range(6)))
    alike(c, "sequence", (0, 1), (1, 1), (2, 1), (9, 1))
    alike(c, "extent of the cache", (3, 2), (4, 2))
    heads, groups = head_count(c), head_count(c, "kv_num_heads")
    if heads % groups:
        raise c.fail(f"{heads} heads for {groups} groups of keys")
    q, k, v = query_key_value(c, heads, groups)
    if c.has(14) or c.has(15):
        q, k = (_head_norm(c, x, i) for x, i in ((q, 14), (k, 15)))
    rows, size = b.type_of(q).shape[2:]
    total = c.size(6, "total_sequence_length")
    lengths = c.cast(b.reshape(c.x(5), b.type_of(q).shape[:1]), i64)
    lengths = c.emit("add", lengths, c.scalar(1, lengths))
    before = past_lengths(c, lengths, rows, total)
    if c.flag("do_rotary"):
        q, k = rotated(c, (q, k), before, rows, cos=7, places=9)
    codes = [_code(c, name, i, groups, size) for name, i in (("k", 12), ("v", 13))]
    new = [_stored(c, n, code) for n, code in zip((k, v), codes, strict=True)]
    bias = c.optional(10)
    if c.flag("sliding_window_cache"):
        staged, present, held, bias = _sliding(c, new, lengths, before, rows, bias)
    else:
        present = [_appended(c, i, n, before, total) for i, n in ((3, new[0]), (4, new[1]))]
        staged, held = [b.slice_axis(x, 2, 0, total) for x in present], before
        bias = b.slice_axis(bias, 3, 0, total) if bias else ""
    keys, values = (_read(c, x, code, q) for x, code in zip(staged, codes, strict=True))
    allowed = _window(c, held, rows, b.type_of(keys).shape[2])
    y, *scores = attend(
        c, q, keys, values,
        scale=scale_of(c, size, q),
        softcap=c.number("softcap", 0.0),
        allowed=allowed,
        bias=[bias] if bias else [],
        sink=_sink(c, heads, q),
    )  # fmt: skip
    return (join_heads(c, y), *present, _scores(c, scores, allowed))


def _scores(c: Call, scores: list[Ref], allowed: Ref) -> Ref:
    """Output 3: the scores before softmax, zero where the row does not look, or those after it."""
    which = c.integer("qk_output", 0)
    if not c.wants(3):
        return ""
    if which not in (1, 2):
        raise c.fail(f"output_qk is asked for and qk_output is {which}, wanted 1 or 2")
    if c.flag("sliding_window_cache"):
        raise c.unsupported("output_qk of a sliding cache")
    return scores[1] if which == 2 else c.emit("where", allowed, scores[0], c.scalar(0, scores[0]))


# ---------------------------------------------------------------- caches in few bits


def _code(c: Call, name: str, i: int, groups: int, size: Dim) -> _Code | None:
    """How the keys' or values' cache is stored; None: as floats."""
    kind = c.text(f"{name}_quant_type", "NONE")
    if kind == "NONE":
        return None
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        raise c.fail(f"{name}_quant_type '{kind}' is none of NONE, PER_TENSOR, PER_CHANNEL")
    own = c.type(3).dtype
    bits = c.integer("kv_cache_bit_width", 4 if own == u8 else 8)
    if (own, bits) not in ((i8, 8), (u8, 4)):
        raise c.unsupported(f"a cache of {own} of {bits} bits", try_="int8 of 8 bits, or uint8 of 4")
    scale = c.cast(c.x(i), f32)
    shape = () if kind == "PER_TENSOR" else (1, groups, 1, size)
    return _Code(c.builder.reshape(scale, shape), bits)


def _stored(c: Call, x: Ref, code: _Code | None) -> Ref:
    """New rows [B, G, S, size] as the cache holds them; of 4 bits the first of a pair in the lower half."""
    if code is None:
        return x
    b, top = c.builder, 1 << (code.bits - 1)
    y = c.emit("round", c.emit("div", c.cast(x, f32), code.scale))
    y = c.emit("clip", y, c.scalar(-top, y), c.scalar(top - 1, y))
    if code.bits == 8:
        return c.cast(y, i8)
    *outer, size = b.type_of(y).shape
    c.engine.divides("head size", to_dim(2), size)
    pairs = b.reshape(c.cast(c.emit("add", y, c.scalar(top, y)), u8), (*outer, size // 2, 2))
    low, high = (b.reshape(b.slice_axis(pairs, 4, n, n + 1), (*outer, size // 2)) for n in (0, 1))
    return c.emit("add", low, c.emit("mul", high, c.scalar(16, high)))


def _read(c: Call, x: Ref, code: _Code | None, like: Ref) -> Ref:
    """Rows of the cache as floats of the type of `like`."""
    if code is None:
        return x
    y = c.cast(c.emit("unpack_bits", x, bits=4) if code.bits == 4 else x, f32)
    y = c.emit("sub", y, c.scalar(8, y)) if code.bits == 4 else y
    return c.cast(c.emit("mul", y, code.scale), c.builder.type_of(like).dtype)


# ---------------------------------------------------------------- caches as long as the window


def _sliding(
    c: Call, new: Sequence[Ref], lengths: Ref, before: Ref, rows: Dim, bias: Ref
) -> tuple[list[Ref], list[Ref], Ref, Ref]:
    """Keys and values that are read, [B, G, C + S, size], the new caches [B, G, C, size], how many rows each
    batch had [B], and the bias by their columns. C, the extent of the caches, is at least the window W.

    Of T positions a cache holds the last T, or where those are more than C, T less the least multiple of
    C - W + 1 that leaves no more than C; rows after are 0.
    """
    b, window = c.builder, c.integer("local_window_size", -1)
    if window < 1:
        raise c.fail(f"sliding_window_cache with a local_window_size of {window}, wanted at least 1")
    for i, what in ((3, "past_key"), (4, "past_value")):
        if not c.has(i) or c.type(i).rank != 4:
            raise c.fail(f"sliding_window_cache without a {what} of rank 4")
    batch, capacity = b.type_of(before).shape[0], c.shape(3)[2]
    c.engine.at_most("local_window_size and the cache's extent", to_dim(window), capacity)
    step = c.engine.simplify(capacity - window + 1)

    def kept(seen: Ref) -> Ref:
        over = c.emit("max", c.emit("sub", seen, one(capacity)), c.scalar(0, seen))
        rounds = c.emit("div", c.emit("add", over, one(step - 1)), one(step))
        return c.emit("sub", seen, c.emit("mul", rounds, one(step)))

    def one(d: Dim) -> Ref:
        return b.from_dims([c.engine.simplify(d)], (1,))

    held = kept(before)
    columns = c.engine.simplify(capacity + rows)
    staged = [
        c.emit("append_rows", c.x(i), n, held, length=columns) for i, n in zip((3, 4), new, strict=True)
    ]
    stays = kept(lengths)
    gone = c.emit("sub", c.emit("sub", c.emit("add", held, lengths), before), stays)
    place = b.reshape(c.iota(capacity), (1, 1, capacity, 1))
    full = c.emit("less", place, b.reshape(stays, (batch, 1, 1, 1)))
    at = c.emit("min", c.emit("add", b.reshape(gone, (batch, 1, 1, 1)), place), one(columns - 1))
    present = []
    for x in staged:
        shape = b.type_of(x).shape
        index = b.broadcast_to(at, (*shape[:2], capacity, shape[3]))
        y = c.emit("gather_elements", x, index, axis=2)
        present.append(c.emit("where", full, y, c.scalar(0, y)))
    return staged, present, held, _bias_of(c, bias, c.emit("sub", before, held), rows, columns)


def _bias_of(c: Call, bias: Ref, gone: Ref, rows: Dim, columns: Dim) -> Ref:
    """The bias [B or 1, H or 1, S, total] by columns of a cache whose first one is position `gone` [B]."""
    if not bias:
        return ""
    b, (batch,) = c.builder, c.builder.type_of(gone).shape
    _, heads, _, total = b.type_of(bias).shape
    at = c.emit("add", b.reshape(gone, (batch, 1, 1, 1)), b.reshape(c.iota(columns), (1, 1, 1, columns)))
    last = b.from_dims([total - 1], ())
    at = b.broadcast_to(c.emit("min", at, last), (batch, heads, rows, columns))
    return c.emit("gather_elements", b.broadcast_to(bias, (batch, heads, rows, total)), at, axis=3)


# ---------------------------------------------------------------- queries, keys and values


def _head_norm(c: Call, x: Ref, i: int) -> Ref:
    """x [B, H, S, size] divided by the root of the mean square of each row, times input i [size]."""
    dtype = c.builder.type_of(x).dtype
    to = wide(dtype)
    epsilon = c.number("qk_norm_epsilon", 1e-6)
    y = c.emit("rms_norm", c.cast(x, to), c.cast(c.x(i), to), axis=3, epsilon=epsilon)
    return c.cast(y, dtype)


def query_key_value(c: Call, heads: int, groups: int) -> tuple[Ref, Ref, Ref]:
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


def past_lengths(c: Call, lengths: Ref, rows: Dim, total: Dim) -> Ref:
    """i64 [B]: rows of the cache that each batch has, of i64 [B] with the new ones; 0 for a prompt."""
    b = c.builder
    count = b.from_dims([rows], (1,))
    before = c.emit("sub", lengths, count)
    if b.compare_dims(rows, total):
        return c.emit("mul", before, c.scalar(0, before))
    prompt = c.emit("equal", b.from_dims([total], (1,)), count)
    return c.emit("where", prompt, c.scalar(0, before), before)


def rotated(
    c: Call, parts: Sequence[Ref], before: Ref, rows: Dim, cos: int, places: int | None
) -> tuple[Ref, ...]:
    """Queries and keys turned by their positions, those of input `places` or the ones after `before`.

    cos: the input with the cosines; the sines stand after it.
    """
    b = c.builder
    (batch,) = b.type_of(before).shape
    if places is not None and c.has(places):
        at = _given_places(c, c.x(places), rows)
    else:
        at = c.emit("add", b.reshape(before, (batch, 1)), b.reshape(c.iota(rows), (1, rows)))
    tables = []
    for i in (cos, cos + 1):
        t = rows_at(c, c.x(i), at, "position")
        tables.append(b.reshape(t, (b.type_of(t).shape[0], 1, rows, c.shape(i)[1])))
    interleaved = c.flag("rotary_interleaved")
    return tuple(rotate(c, x, tables[0], tables[1], interleaved) for x in parts)


def _given_places(c: Call, ids: Ref, rows: Dim) -> Ref:
    """Positions [B, S]. Of several rows the operator reads the first entry alone."""
    b = c.builder
    if b.compare_dims(rows, ONE):
        return ids
    first = b.slice_axis(b.slice_axis(ids, 0, 0, 1), 1, 0, 1)
    run = c.emit("add", first, c.cast(b.reshape(c.iota(rows), (1, rows)), b.type_of(ids).dtype))
    if b.compare_dims(rows, ONE) is False:
        return run
    single = c.emit("equal", b.from_dims([rows], (1, 1)), c.scalar(1, b.from_dims([rows], (1, 1))))
    return c.emit("where", single, ids, run)


def _appended(c: Call, past: int, new: Ref, before: Ref, total: Dim) -> Ref:
    """The cache with the new rows after those that it has: max(its extent, total) rows."""
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


def _window(c: Call, before: Ref, rows: Dim, total: Dim) -> Ref:
    """bool [B, 1, S, T]: at most the row's own position (causal), else of the batch's own length; and within
    the local window."""
    b, (batch,) = c.builder, c.builder.type_of(before).shape
    window = c.integer("local_window_size", -1)
    at = b.reshape(c.iota(total), (1, 1, 1, total))
    if not c.flag("causal", 1):
        if window > 0:
            raise c.fail(f"local_window_size is {window} and causal is 0")
        ends = c.emit("add", before, b.from_dims([rows], (1,)))
        return c.emit("less", at, b.reshape(ends, (batch, 1, 1, 1)))
    own = c.emit("add", b.reshape(before, (batch, 1, 1, 1)), b.reshape(c.iota(rows), (1, 1, rows, 1)))
    allowed = c.emit("less_equal", at, own)
    if window == 0:
        raise c.unsupported("a local_window_size of 0, in which no row looks anywhere", try_="-1: no window")
    if window < 0:
        return allowed
    first = c.emit("sub", own, c.scalar(window, own))
    return c.emit("and", allowed, c.emit("greater", at, first))


def _sink(c: Call, heads: int, like: Ref) -> Ref:
    if c.has(11):
        return c.x(11)
    if c.integer("smooth_softmax", -1) != 1:
        return ""
    return c.builder.broadcast_to(c.scalar(0, like), (heads,))


ROWS: tuple[OnnxOp, ...] = (OnnxOp("GroupQueryAttention", 1, _group_query, MS),)
