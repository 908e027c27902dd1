"""Bindings of com.microsoft ops on quantised tensors: packed weights, and integer forms of ordinary ops."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import ceildiv, to_dim
from smelt.core.dtype import u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.contrib import MS
from smelt.importer.call import Call, OnnxOp

# ---------------------------------------------------------------- packed weights

BITS = (2, 4, 8)


def _bits(c: Call, default: int) -> int:
    bits = c.integer("bits", default)
    if bits not in BITS:
        raise c.unsupported(f"weights of {bits} bits")
    return bits


def _matmul_nbits(c: Call) -> Ref:
    """x times weights [N, blocks, bytes] of few bits with a scale and a zero point per block."""
    if c.integer("weight_prepacked", 0):
        raise c.unsupported("weight_prepacked")
    b = c.builder
    bits, block = _bits(c, 4), c.integer("block_size")
    depth, columns = to_dim(c.integer("K")), to_dim(c.integer("N"))
    c.engine.same("K", depth, c.shape(0)[-1])
    if block < 16 or block & (block - 1):
        raise c.fail(f"block_size is {block}, wanted a power of two of 16 or more")
    blocks = ceildiv(depth, to_dim(block))
    packed = b.reshape(c.x(1), (columns, blocks, block * bits // 8))
    scale = b.reshape(c.x(2), (columns, blocks))
    zero = ""
    if c.has(3):
        zero = c.x(3)
        if c.type(3).dtype == u8:
            width = ceildiv(blocks * bits, to_dim(8))
            zero = b.reshape(zero, (columns, width))
            zero = zero if bits == 8 else c.emit("unpack_bits", zero, bits=bits)
            zero = b.slice_axis(zero, 1, 0, blocks)
        else:
            zero = b.reshape(zero, (columns, blocks))
    group = "" if _is_plain(c, block) else c.x(4)
    if group and not zero:
        zero = b.broadcast_to(b.constant(np.array(1 << (bits - 1), np.uint8)), (columns, blocks))
    inputs = [c.x(0), packed, scale, zero, group]
    y = c.emit("matmul_nbits", *inputs, bits=bits, block=block)
    return c.emit("add", y, c.x(5)) if c.has(5) else y


def _is_plain(c: Call, block: int) -> bool:
    """Whether element k of a row belongs to block k // block_size."""
    if not c.has(4):
        return True
    given = c.builder.constant_of(c.x(4))
    return given is not None and bool((given.reshape(-1) == np.arange(given.size) // block).all())


def _gather_block_quantized(c: Call) -> Ref:
    """Rows of a packed table, gathered first and dequantised then."""
    b = c.builder
    bits, block = _bits(c, 4), c.integer("block_size", 128)
    if c.type(0).dtype != u8:
        raise c.unsupported(f"a table of {c.type(0).dtype}")
    rank, index_rank = c.type(0).rank, c.type(1).rank
    gather_axis = c.axis(c.integer("gather_axis", 0), rank, "gather_axis")
    axis = c.axis(c.integer("quantize_axis", 1), rank, "quantize_axis")
    if gather_axis != 0 or axis != rank - 1 or (rank < 2):
        raise c.unsupported("gather_axis that is not the first or quantize_axis that is not the last")
    if block < 16 or block & (block - 1):
        raise c.fail(f"block_size is {block}, wanted a power of two of 16 or more")

    def rows(i: int) -> Ref:
        return c.emit("gather", c.x(i), c.x(1), axis=0)

    def unpacked(ref: Ref) -> Ref:
        return ref if bits == 8 else c.emit("unpack_bits", ref, bits=bits)

    scale = rows(2)
    to = b.type_of(scale).dtype
    q = c.cast(unpacked(rows(0)), to)
    shape, blocks = b.type_of(q).shape, b.type_of(scale).shape
    assert len(shape) == rank + index_rank - 1
    c.engine.same("blocks of scales", blocks[-1], ceildiv(shape[-1], to_dim(block)))

    def spread(ref: Ref) -> Ref:
        wide = b.broadcast_to(b.reshape(ref, (*blocks, 1)), (*blocks, block))
        return b.slice_axis(b.reshape(wide, (*blocks[:-1], blocks[-1] * block)), len(shape) - 1, 0, shape[-1])

    if c.has(3):
        zero = b.slice_axis(unpacked(rows(3)), len(shape) - 1, 0, blocks[-1])
        origin = spread(c.cast(zero, to))
    else:
        origin = c.scalar(1 << (bits - 1), q)
    return c.emit("mul", c.emit("sub", q, origin), spread(scale))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("MatMulNBits", 1, _matmul_nbits, MS),
    OnnxOp("GatherBlockQuantized", 1, _gather_block_quantized, MS),
)
