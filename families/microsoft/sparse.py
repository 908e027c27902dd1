"""Binding of com.microsoft's SparseAttention: each row attends to blocks of columns that a mask names."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import bool_, i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.microsoft.attention import attend, head_count, join_heads, scale_of
from smelt.importer.bindings.microsoft.fused import alike
from smelt.importer.bindings.microsoft.grouped import past_lengths, query_key_value, rotated
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS


def _sparse_attention(c: Call) -> tuple[Ref, ...]:
    """Causal attention over a buffer of keys and values, where head h sees the blocks of layout h % layouts.

    The buffers stay where nothing new is written. key_total_sequence_lengths [B]: rows with the new ones.
    """
    b, block = c.builder, c.integer("sparse_block_size")
    if block < 1:
        raise c.fail(f"sparse_block_size is {block}, wanted at least 1")
    alike(c, "batch", *((i, 0) for i in (0, 1, 2, 3, 4, 8)))
    alike(c, "sequence", (0, 1), (1, 1), (2, 1))
    alike(c, "extent of the cache", (3, 2), (4, 2))
    heads, groups = head_count(c), head_count(c, "kv_num_heads")
    if heads % groups:
        raise c.fail(f"{heads} heads for {groups} groups of keys")
    q, k, v = query_key_value(c, heads, groups)
    batch, _, rows, size = b.type_of(q).shape
    extent = c.shape(3)[2]
    total = c.size(7, "total_sequence_length", 0, extent)
    before = past_lengths(c, c.cast(b.reshape(c.x(8), (batch,)), i64), rows, total)
    if c.flag("do_rotary"):
        q, k = rotated(c, (q, k), before, rows, cos=9, places=None)
    ends = c.emit("add", before, b.from_dims([rows], (1,)))
    held = c.emit("less", b.reshape(c.iota(extent), (1, 1, extent, 1)), b.reshape(ends, (batch, 1, 1, 1)))
    present = []
    for i, new in ((3, k), (4, v)):
        written = c.emit("append_rows", c.x(i), new, before, length=extent)
        present.append(c.emit("where", held, written, c.x(i)))
    keys, values = (b.slice_axis(x, 2, 0, total) for x in present)
    allowed = _seen(c, before, heads, rows, total, block)
    y, *_ = attend(c, q, keys, values, scale=scale_of(c, size, q), allowed=allowed)
    return (join_heads(c, y), *present)


def _seen(c: Call, before: Ref, heads: int, rows: Dim, total: Dim, block: int) -> Ref:
    """bool [B, H, S, T]: columns up to the row's own position, in blocks that its block sees."""
    b, (batch,) = c.builder, c.builder.type_of(before).shape
    layouts = _layouts(c)
    count = b.type_of(layouts).shape[0]
    c.engine.divides("layouts and heads", count, to_dim(heads))
    own = c.emit("add", b.reshape(before, (batch, 1)), b.reshape(c.iota(rows), (1, rows)))
    at = c.iota(total)
    size = c.scalar(block, at)
    seen = c.emit("gather", layouts, c.emit("div", own, size), axis=1)  # [layouts, B, S, blocks]
    seen = c.emit("gather", seen, c.emit("div", at, size), axis=3)
    seen = b.reshape(b.transpose(seen, (1, 0, 2, 3)), (batch, 1, count, rows, total))
    seen = b.broadcast_to(seen, (batch, c.engine.simplify(heads // count), count, rows, total))
    causal = c.emit("less_equal", b.reshape(at, (1, 1, 1, total)), b.reshape(own, (batch, 1, rows, 1)))
    return c.emit("and", b.reshape(seen, (batch, heads, rows, total)), causal)


def _layouts(c: Call) -> Ref:
    """bool [layouts, blocks, blocks]: which columns of blocks each row of them sees, of the compressed rows:
    where each begins in the list of columns, and where the last one ends."""
    b, (count, ends), (other, listed) = c.builder, c.shape(5), c.shape(6)
    c.engine.same("layouts of rows and of columns", count, other)
    blocks = c.engine.simplify(ends - 1)
    place = b.reshape(c.iota(listed), (1, listed, 1))
    begun = c.emit("greater_equal", place, b.reshape(c.cast(c.x(5), i64), (count, 1, ends)))
    row = c.emit("reduce_sum", c.cast(begun, i64), axes=(2,), keepdims=False)
    row = c.emit("sub", row, c.scalar(1, row))  # [layouts, listed]; that number of blocks: after the end
    column = c.cast(c.x(6), i64)
    wide = b.from_dims([blocks], (1, 1))
    there = c.emit("and", c.emit("less", row, wide), c.emit("greater_equal", column, c.scalar(0, column)))
    at = c.emit("add", c.emit("mul", row, wide), column)
    there = c.emit("and", there, c.emit("less", column, wide))  # a column that is none is not seen
    at = c.emit("where", there, at, c.scalar(0, at))
    area = c.engine.simplify(blocks * blocks)
    none = b.broadcast_to(b.constant(np.array(0, np.int64)), (count, area))
    seen = c.emit("scatter_elements", none, at, c.cast(there, i64), axis=1, reduction="max")
    return b.reshape(c.cast(seen, bool_), (count, blocks, blocks))


ROWS: tuple[OnnxOp, ...] = (OnnxOp("SparseAttention", 1, _sparse_attention, MS),)
