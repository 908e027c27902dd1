"""Bindings of com.microsoft ops on quantised tensors: packed weights, and integer forms of ordinary ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.core.dim import ceildiv, product, to_dim
from smelt.core.dtype import f32, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.contrib import MS
from smelt.importer.bindings.conv import pool_of
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.quant import dynamic_quantize, requantized, scaled
from smelt.importer.call import Build, Call, OnnxOp

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
    x = _activations(c, block) if _wants_bytes(c, bits, block) else c.x(0)
    y = c.emit("matmul_nbits", x, packed, scale, zero, group, bits=bits, block=block)
    return c.emit("add", y, c.x(5)) if c.has(5) else y


def _wants_bytes(c: Call, bits: int, block: int) -> bool:
    """Whether accuracy_level lets ONNX Runtime round activations to bytes, and its kernels have that form:
    of constant weights with whole zero points whose blocks stand in order."""
    whole = not c.has(3) or c.type(3).dtype == u8
    kernel = block >= 32 or bits > 2
    constant = c.builder.constant_of(c.x(1)) is not None
    return c.integer("accuracy_level", 0) == 4 and constant and whole and kernel and not c.has(4)


def _activations(c: Call, block: int) -> Ref:
    """Input 0 with each block of its rows rounded to 127 steps on either side of zero."""
    b, dtype = c.builder, c.type(0).dtype
    *rows, depth = c.shape(0)
    blocks = ceildiv(depth, to_dim(block))
    x = c.cast(c.x(0), f32)
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

    inside(c, c.x(1), c.shape(0)[0], "index of axis 0")

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


# ---------------------------------------------------------------- ordinary ops on quantised tensors


def _binary(op: str) -> Build:
    """A, its scale and zero point, the same of B, and of C."""

    def build(c: Call) -> Ref:
        a = scaled(c, c.x(0), c.x(1), c.optional(2))
        b = scaled(c, c.x(3), c.x(4), c.optional(5))
        return requantized(c, c.emit(op, a, b), c.x(6), c.optional(7), c.x(0))

    return build


def _unary(make: Callable[[Call, Ref], Ref]) -> Build:
    """X, its scale and zero point, and those of Y."""

    def build(c: Call) -> Ref:
        y = make(c, scaled(c, c.x(0), c.x(1), c.optional(2)))
        return requantized(c, y, c.x(3), c.optional(4), c.x(0))

    return build


def _sigmoid(c: Call, x: Ref) -> Ref:
    return c.emit("sigmoid", x)


def _leaky_relu(c: Call, x: Ref) -> Ref:
    return c.emit("leaky_relu", x, alpha=c.number("alpha", 0.01))


def _softmax(c: Call, x: Ref) -> Ref:
    """Opsets before 13 took the axis and all behind it as one."""
    b = c.builder
    shape = b.type_of(x).shape
    old = c.integer("opset", 13) < 13
    axis = c.axis(c.integer("axis", 1 if old else -1), len(shape))
    if not old:
        return c.emit("softmax", x, axis=axis)
    flat = b.reshape(x, (product(shape[:axis]), product(shape[axis:])))
    return b.reshape(c.emit("softmax", flat, axis=1), shape)


def _first_channels(c: Call, x: Ref) -> tuple[Ref, int]:
    """x with its channels in front of its spatial axes, and how many of those there are."""
    rank = c.builder.type_of(x).rank
    if rank < 3:
        raise c.fail(f"input has rank {rank}, wanted [batch, channels, *spatial]")
    if c.integer("channels_last", 0):
        x = c.builder.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    return x, rank - 2


def _as_given(c: Call, y: Ref) -> Ref:
    rank = c.builder.type_of(y).rank
    return c.builder.transpose(y, (0, *range(2, rank), 1)) if c.integer("channels_last", 0) else y


def _global_average(c: Call, x: Ref) -> Ref:
    x, n = _first_channels(c, x)
    return _as_given(c, c.emit("reduce_mean", x, axes=tuple(range(2, n + 2)), keepdims=True))


def _average(c: Call, x: Ref) -> Ref:
    if c.integer("channels_last", 0):
        raise c.unsupported("channels_last")
    return pool_of(c, "average_pool", x)


def _q_concat(c: Call) -> Ref:
    """Scale and zero point of the result, then of every input behind it."""
    if len(c.inputs) % 3 != 2:
        raise c.fail(f"{len(c.inputs)} inputs, wanted 2 and then 3 for each tensor")
    parts = [scaled(c, c.x(i), c.x(i + 1), c.x(i + 2)) for i in range(2, len(c.inputs), 3)]
    axis = c.axis(c.integer("axis"), c.type(2).rank)
    return requantized(c, c.emit("concat", *parts, axis=axis), c.x(0), c.x(1))


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
    OnnxOp("QLinearAdd", 1, _binary("add"), MS),
    OnnxOp("QLinearMul", 1, _binary("mul"), MS),
    OnnxOp("QLinearSigmoid", 1, _unary(_sigmoid), MS),
    OnnxOp("QLinearLeakyRelu", 1, _unary(_leaky_relu), MS),
    OnnxOp("QLinearSoftmax", 1, _unary(_softmax), MS),
    OnnxOp("QLinearGlobalAveragePool", 1, _unary(_global_average), MS),
    OnnxOp("QLinearAveragePool", 1, _unary(_average), MS),
    OnnxOp("QLinearConcat", 1, _q_concat, MS),
    OnnxOp("QGemm", 1, _q_gemm, MS),
    OnnxOp("MatMulIntegerToFloat", 1, _integer_to_float, MS),
    OnnxOp("DynamicQuantizeMatMul", 1, _dynamic_matmul, MS),
)
