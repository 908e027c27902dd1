"""Bindings of com.microsoft ops on packed weights, and of products of quantised tensors."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import Dim, ceildiv, to_dim
from smelt.core.dtype import f32, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.contrib import MS
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.quant import dynamic_quantize, requantized, scaled
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
    x = in_steps(c, c.x(0), block) if _wants_bytes(c, bits, block) else c.x(0)
    y = c.emit("matmul_nbits", x, packed, scale, zero, group, bits=bits, block=block)
    return c.emit("add", y, c.x(5)) if c.has(5) else y


def _wants_bytes(c: Call, bits: int, block: int) -> bool:
    """Whether accuracy_level lets ONNX Runtime round activations to bytes, and its kernels have that form:
    of constant weights with whole zero points whose blocks stand in order."""
    whole = not c.has(3) or c.type(3).dtype == u8
    kernel = block >= 32 or bits > 2
    constant = c.builder.constant_of(c.x(1)) is not None
    return c.integer("accuracy_level", 0) == 4 and constant and whole and kernel and not c.has(4)


def in_steps(c: Call, x: Ref, block: int) -> Ref:
    """x with each block of its rows rounded to 127 steps on either side of zero."""
    b, dtype = c.builder, c.builder.type_of(x).dtype
    *rows, depth = b.type_of(x).shape
    blocks = ceildiv(depth, to_dim(block))
    x = c.cast(x, f32)
    if blocks * block != depth:
        ends = [to_dim(0)] * len(rows)
        x = c.emit(
            "pad", x, before=(*ends, to_dim(0)), after=(*ends, blocks * block - depth), mode="constant"
        )
    x = b.reshape(x, [*rows, blocks, block])
    most = c.emit("reduce_max", c.emit("abs", x), axes=(len(rows) + 1,), keepdims=True)
    zero, steps = c.scalar(0, x), c.scalar(127, x)
    inverse = c.emit("where", c.emit("equal", most, zero), zero, c.emit("div", steps, most))
    y = c.emit("mul", c.emit("round", c.emit("mul", x, inverse)), c.emit("div", most, steps))
    y = b.reshape(y, [*rows, blocks * block])
    return c.cast(b.slice_axis(y, len(rows), 0, depth), dtype)


def _is_plain(c: Call, block: int) -> bool:
    """Whether element k of a row belongs to block k // block_size."""
    if not c.has(4):
        return True
    given = c.builder.constant_of(c.x(4))
    return given is not None and bool((given.reshape(-1) == np.arange(given.size) // block).all())


def _gather_block_quantized(c: Call) -> Ref:
    """Rows of a table in blocks that share a scale, gathered first and dequantised then."""
    block, kind = c.integer("block_size", 128), c.type(0).dtype
    if block < 16 or block & (block - 1):
        raise c.fail(f"block_size is {block}, wanted a power of two of 16 or more")
    if kind.name not in ("u8", "u4", "i4"):
        raise c.unsupported(f"a table of {kind}")
    bits = _bits(c, 4) if kind == u8 else 8
    rank = c.type(0).rank
    gathered = c.axis(c.integer("gather_axis", 0), rank, "gather_axis")
    axis = c.axis(c.integer("quantize_axis", 1), rank, "quantize_axis")
    if bits < 8 and (gathered == rank - 1 or axis != rank - 1):
        raise c.unsupported("packed bytes along another axis than quantize_axis or along gather_axis")
    inside(c, c.x(1), c.shape(0)[gathered], f"index of axis {gathered}")
    q = c.emit("gather", c.x(0), c.x(1), axis=gathered)
    q = q if bits == 8 else c.emit("unpack_bits", q, bits=bits)
    to = c.type(2).dtype
    q = c.cast(q, to)
    scale = _blockwise(c, c.x(2), gathered, axis, block, q)
    if c.has(3):
        zero = c.x(3) if bits == 8 else c.emit("unpack_bits", c.x(3), bits=bits)
        zero = c.builder.slice_axis(zero, axis, 0, c.shape(2)[axis])
        origin = _blockwise(c, c.cast(zero, to), gathered, axis, block, q)
    else:
        whole = 1 << (_bits(c, 4) - 1) if kind == u8 else 0
        origin = c.scalar(whole, q)
    return c.emit("mul", c.emit("sub", q, origin), scale)


def _blockwise(c: Call, x: Ref, gathered: int, axis: int, block: int, like: Ref) -> Ref:
    """One value per block of the table along axis, as one per element of what is gathered, shaped as like."""
    b, at = c.builder, c.x(1)
    shape, index_rank = b.type_of(like).shape, c.type(1).rank
    blocks = b.type_of(x).shape[axis]
    c.engine.same("blocks of scales", blocks, ceildiv(_elements(c, axis), to_dim(block)))
    if gathered == axis:
        extent = c.cast(b.from_dims([c.shape(0)[axis]], ()), b.type_of(at).dtype)
        wrapped = c.emit("where", c.emit("less", at, c.scalar(0, at)), c.emit("add", at, extent), at)
        return c.emit("gather", x, c.emit("div", wrapped, c.scalar(block, at)), axis=axis)
    x = c.emit("gather", x, at, axis=gathered)
    where = axis if axis < gathered else axis + index_rank - 1
    own = b.type_of(x).shape
    one = b.reshape(x, (*own[: where + 1], 1, *own[where + 1 :]))
    wide = b.broadcast_to(one, (*own[: where + 1], block, *own[where + 1 :]))
    flat = b.reshape(wide, (*own[:where], blocks * block, *own[where + 1 :]))
    return b.slice_axis(flat, where, 0, shape[where])


def _elements(c: Call, axis: int) -> Dim:
    """The extent of the table's axis, in elements."""
    per = 8 // _bits(c, 4) if c.type(0).dtype == u8 and axis == c.type(0).rank - 1 else 1
    return c.shape(0)[axis] * per


# ---------------------------------------------------------------- products


def _q_gemm(c: Call) -> Ref:
    """alpha * A' B' + C, C of scale alpha * a_scale * b_scale; floats where the output has no scale."""
    b = c.builder
    left, right = scaled(c, c.x(0), c.x(1), c.x(2)), scaled(c, c.x(3), c.x(4), c.x(5), _columns(c))
    left = b.transpose(left, (1, 0)) if c.integer("transA", 0) else left
    right = b.transpose(right, (1, 0)) if c.integer("transB", 0) else right
    y = c.emit("matmul", left, right)
    alpha = c.number("alpha", 1.0)
    if alpha != 1.0:
        y = c.emit("mul", y, c.scalar(alpha, y))
    if c.has(6):
        scale = c.emit("mul", b.reshape(c.x(1), ()), c.x(4))
        if alpha != 1.0:
            scale = c.emit("mul", scale, c.scalar(alpha, scale))
        one = c.type(4).rank == 0 or c.shape(4)[0].const_or_none == 1
        scale = b.reshape(scale, ()) if one else scale
        y = c.emit("add", y, c.emit("mul", c.cast(c.x(6), f32), scale))
    return requantized(c, y, c.x(7), c.x(8)) if c.has(7) else y


def _columns(c: Call) -> int:
    """The axis of B that is one per column of the product."""
    return 0 if c.integer("transB", 0) else 1


def _integer_to_float(c: Call) -> Ref:
    """(A - a_zero) (B - b_zero) * a_scale * b_scale + bias"""
    a = scaled(c, c.x(0), c.x(2), c.optional(4))
    b = scaled(c, c.x(1), c.x(3), c.optional(5), c.type(1).rank - 1)
    y = c.emit("matmul", a, b)
    return c.emit("add", y, c.x(6)) if c.has(6) else y


def _dynamic_matmul(c: Call) -> Ref:
    """A quantised by its range, times B."""
    q, scale, zero = dynamic_quantize(c)
    b = scaled(c, c.x(1), c.x(2), c.optional(3), c.type(1).rank - 1)
    y = c.emit("matmul", scaled(c, q, scale, zero), b)
    return c.emit("add", y, c.x(4)) if c.has(4) else y


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("MatMulNBits", 1, _matmul_nbits, MS),
    OnnxOp("GatherBlockQuantized", 1, _gather_block_quantized, MS),
    OnnxOp("QGemm", 1, _q_gemm, MS),
    OnnxOp("MatMulIntegerToFloat", 1, _integer_to_float, MS),
    OnnxOp("DynamicQuantizeMatMul", 1, _dynamic_matmul, MS),
)
