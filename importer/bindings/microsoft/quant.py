"""Bindings of com.microsoft ops on packed weights, and of products of quantised tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smelt.core.dim import Dim, Truth, ceildiv, product, to_dim
from smelt.core.dtype import f32, i8, i64, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard.quant import dynamic_quantize, requantized, scaled
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS
from smelt.importer.ranges import span

# ---------------------------------------------------------------- packed weights

PACKED_BITS = (2, 4, 8)
FLOATS = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1")
"""Most codes that a table may hold."""


def _bits(c: Call, default: int) -> int:
    bits = c.integer("bits", default)
    if bits not in PACKED_BITS:
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
    """Whether ONNX Runtime rounds activations to bytes here: accuracy_level allows it, and the weights and
    integer zero points are constant with blocks in order."""
    whole = not c.has(3) or c.type(3).dtype == u8
    kernel = block >= 32 or bits > 2
    constant = c.builder.constant_of(c.x(1)) is not None
    return c.integer("accuracy_level", 0) == 4 and constant and whole and kernel and not c.has(4)


def in_steps(c: Call, x: Ref, block: int) -> Ref:
    """x with each block of its rows rounded to 127 steps on either side of zero; behind its end zeros fill
    the last block."""
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
    codes = c.cast(c.emit("round", c.emit("mul", x, inverse)), i8)
    step = c.emit("div", most, steps)
    y = c.emit("dequantize_blocks", codes, step, axis=len(rows) + 1, block=block)
    return c.cast(b.reshape(y, [*rows, blocks * block]), dtype)


def _is_plain(c: Call, block: int) -> bool:
    """Whether element k of a row belongs to block k // block_size."""
    if not c.has(4):
        return True
    given = c.builder.constant_of(c.x(4))
    return given is not None and bool((given.reshape(-1) == np.arange(given.size) // block).all())


def _gather_block_quantized(c: Call) -> Ref:
    """Rows of a table in blocks that share a scale, gathered first and dequantised then; 0 for rows that are
    not there."""
    kind, rank, to = c.type(0).dtype, c.type(0).rank, c.type(2).dtype
    if kind.name not in ("u8", "u4", "i4") and kind.name not in FLOATS:
        raise c.unsupported(f"a table of {kind}")
    block = c.integer("block_size", 128)
    if not (block == 0 and kind.name in FLOATS) and (block < 16 or block & (block - 1)):
        raise c.fail(f"block_size is {block}, wanted a power of two of 16 or more")
    bits = _bits(c, 4) if kind == u8 else 8
    gathered = c.axis(c.integer("gather_axis", 0), rank, "gather_axis")
    axis = c.axis(c.integer("quantize_axis", 1), rank, "quantize_axis")
    if bits < 8 and (gathered == rank - 1 or axis != rank - 1):
        raise c.unsupported("packed bytes along another axis than quantize_axis or along gather_axis")
    there, c = _positions(c, gathered)
    q = c.emit("gather", c.x(0), c.x(1), axis=gathered)
    q = q if bits == 8 else c.emit("unpack_bits", q, bits=bits)
    q = c.cast(q, to)
    scale = _blockwise(c, c.x(2), gathered, axis, block, q)
    if c.has(3) and kind.name in FLOATS:
        raise c.fail(f"zero_points for a table of {kind}")
    if c.has(3):
        c.extents(3, rank)
        zero = c.x(3) if bits == 8 else c.emit("unpack_bits", c.x(3), bits=bits)
        zero = c.builder.slice_axis(zero, axis, 0, c.shape(2)[axis])
        q = c.emit("sub", q, _blockwise(c, c.cast(zero, to), gathered, axis, block, q))
    elif kind == u8:
        q = c.emit("sub", q, c.scalar(1 << (bits - 1), q))
    y = c.emit("mul", q, scale)
    return c.emit("where", there, y, c.scalar(0, y)) if there else y


def _positions(c: Call, axis: int) -> tuple[Ref, Call]:
    """Which indices of that axis are there, so that it broadcasts over what is gathered ('': all of them);
    and the call with indices that are."""
    b, at, extent = c.builder, c.x(1), c.shape(0)[axis]
    low, high = span(b, at)
    if low is not None and high is not None:
        sure = (c.engine.prove_le(-extent, low), c.engine.prove_le(high + 1, extent))
        if all(t is Truth.YES for t in sure):
            return "", c if c.engine.prove_le(to_dim(0), low) is Truth.YES else replace(
                c, inputs=(c.x(0), _counted(c, extent), *c.inputs[2:])
            )
    size, zero = c.cast(b.from_dims([extent], ()), b.type_of(at).dtype), c.scalar(0, at)
    at = _counted(c, extent)
    there = c.emit("and", c.emit("greater_equal", at, zero), c.emit("less", at, size))
    one = to_dim(1)
    shape = (*[one] * axis, *c.shape(1), *[one] * (c.type(0).rank - axis - 1))
    at = c.emit("where", there, at, zero)
    return b.reshape(there, shape), replace(c, inputs=(c.x(0), at, *c.inputs[2:]))


def _counted(c: Call, extent: Dim) -> Ref:
    """The indices with those from the end, which are negative, counted from the start."""
    at = c.x(1)
    size, zero = c.cast(c.builder.from_dims([extent], ()), c.type(1).dtype), c.scalar(0, at)
    return c.emit("where", c.emit("less", at, zero), c.emit("add", at, size), at)


def _blockwise(c: Call, x: Ref, gathered: int, axis: int, block: int, like: Ref) -> Ref:
    """One value per block of the table along axis, as one per element of what is gathered, shaped as like.

    block 0: the axis is one block. An axis of one value has it for all.
    """
    b, at = c.builder, c.x(1)
    shape, index_rank = b.type_of(like).shape, c.type(1).rank
    own = b.type_of(x).shape
    if len(own) != c.type(0).rank:
        raise c.fail(f"scales have rank {len(own)}, the table {c.type(0).rank}")
    blocks = own[axis]
    whole = _elements(c, axis)
    c.engine.same("blocks of scales", blocks, ceildiv(whole, to_dim(block)) if block else to_dim(1))
    if gathered == axis and block:
        x = c.emit("gather", x, c.emit("div", at, c.scalar(block, at)), axis=axis)
    elif own[gathered] == to_dim(1):
        x = b.reshape(x, (*own[:gathered], *[1] * index_rank, *own[gathered + 1 :]))
    else:
        x = c.emit("gather", x, at, axis=gathered)
    if gathered != axis and block:
        x = _repeated(c, x, axis if axis < gathered else axis + index_rank - 1, block)
        x = b.slice_axis(x, axis if axis < gathered else axis + index_rank - 1, 0, whole)
    return b.broadcast_to(x, shape)


def _repeated(c: Call, x: Ref, axis: int, times: int) -> Ref:
    """Each element so many times along the axis."""
    b, own = c.builder, c.builder.type_of(x).shape
    one = b.reshape(x, (*own[: axis + 1], 1, *own[axis + 1 :]))
    wide = b.broadcast_to(one, (*own[: axis + 1], times, *own[axis + 1 :]))
    return b.reshape(wide, (*own[:axis], own[axis] * times, *own[axis + 1 :]))


def _elements(c: Call, axis: int) -> Dim:
    """The extent of the table's axis, in elements."""
    per = 8 // _bits(c, 4) if c.type(0).dtype == u8 and axis == c.type(0).rank - 1 else 1
    return c.shape(0)[axis] * per


# ---------------------------------------------------------------- weights of 4-bit floats

EIGHTS = (0.0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
NORMAL = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
)  # fmt: skip
FOURS = ((*EIGHTS, *(-v for v in EIGHTS)), NORMAL)
"""What the codes of quant_type 0 (FP4) and 1 (NF4) stand for, as bitsandbytes defines them."""


def _matmul_bnb4(c: Call) -> Ref:
    """x times the transpose of weights [N, K]: consecutive 4-bit codes, scaled by the greatest magnitude of
    each block; transB = 0: times the weights themselves."""
    kind, block = c.integer("quant_type"), c.integer("block_size")
    if kind not in (0, 1):
        raise c.fail(f"quant_type is {kind}, wanted 0 or 1")
    if block < 16 or block & (block - 1):
        raise c.fail(f"block_size is {block}, wanted a power of two of 16 or more")
    depth, columns = c.integer("K"), c.integer("N")
    b, count = c.builder, to_dim(depth * columns)
    c.engine.same("bytes of weights", _size(c, 1), ceildiv(count, to_dim(2)))
    c.engine.same("blocks of weights", _size(c, 2), ceildiv(count, to_dim(block)))
    packed = b.reshape(c.x(1), (_size(c, 1), 1))
    pair = [
        c.emit("shift_right", packed, c.scalar(4, packed)),
        c.emit("bit_and", packed, c.scalar(15, packed)),
    ]
    codes = b.reshape(c.emit("concat", *pair, axis=1), (_size(c, 1) * 2,))
    codes = c.cast(b.slice_axis(codes, 0, 0, count), i64)
    dtype = c.type(0).dtype
    table = b.constant(np.array(FOURS[kind], np.float32).astype(dtype.numpy))
    scale = _repeated(c, b.reshape(c.x(2), (_size(c, 2),)), 0, block)
    w = c.emit("mul", c.emit("gather", table, codes, axis=0), b.slice_axis(scale, 0, 0, count))
    w = b.reshape(w, (columns, depth))
    return c.emit("matmul", c.x(0), b.transpose(w, (1, 0)) if c.flag("transB", 1) else w)


def _size(c: Call, i: int) -> Dim:
    return c.engine.simplify(product(c.shape(i)))


# ---------------------------------------------------------------- products


def _q_gemm(c: Call) -> Ref:
    """alpha * A' B' + C, C of scale alpha * a_scale * b_scale; floats where the output has no scale."""
    b = c.builder
    left, right = scaled(c, c.x(0), c.x(1), c.x(2)), scaled(c, c.x(3), c.x(4), c.x(5), _columns(c))
    left = b.transpose(left, (1, 0)) if c.flag("transA") else left
    right = b.transpose(right, (1, 0)) if c.flag("transB") else right
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
    return 0 if c.flag("transB") else 1


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
    OnnxOp("MatMulBnb4", 1, _matmul_bnb4, MS),
    OnnxOp("QGemm", 1, _q_gemm, MS),
    OnnxOp("MatMulIntegerToFloat", 1, _integer_to_float, MS),
    OnnxOp("DynamicQuantizeMatMul", 1, _dynamic_matmul, MS),
)
