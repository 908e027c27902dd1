"""Bindings of com.microsoft's ordinary ops on quantised tensors: QLinear ones, embeddings, LSTM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from smelt.core.dim import product, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.microsoft.fused import embed_layer_norm
from smelt.importer.bindings.standard.conv import on_first, pool_of
from smelt.importer.bindings.standard.quant import byte_range, q_linear_conv, requantized, scaled
from smelt.importer.bindings.standard.recurrent import CELL_KINDS, Product, recurrent
from smelt.importer.bindings.standard.scan import at
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.domains import MS


def _either(build: Build) -> Build:
    """The op, with its channels after the spatial axes where the node says so."""
    last = on_first(build)
    return lambda c: last(c) if c.flag("channels_last") else build(c)


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
    """Opsets before 13 took the axis and all after it as one."""
    b = c.builder
    shape = b.type_of(x).shape
    old = c.integer("opset", 13) < 13
    axis = c.axis(c.integer("axis", 1 if old else -1), len(shape))
    if not old:
        return c.emit("softmax", x, axis=axis)
    flat = b.reshape(x, (product(shape[:axis]), product(shape[axis:])))
    return b.reshape(c.emit("softmax", flat, axis=1), shape)


def _global_average(c: Call, x: Ref) -> Ref:
    rank = c.builder.type_of(x).rank
    if rank < 3:
        raise c.fail(f"input has rank {rank}, wanted [batch, channels, *spatial]")
    return c.emit("reduce_mean", x, axes=tuple(range(2, rank)), keepdims=True)


def _mean(c: Call, x: Ref) -> Ref:
    axes = c.axes(c.ints("axes"), c.type(0).rank)
    return c.emit("reduce_mean", x, axes=axes, keepdims=c.flag("keepdims", 1))


def _average(c: Call, x: Ref) -> Ref:
    return pool_of(c, "average_pool", x)


def _q_concat(c: Call) -> Ref:
    """Scale and zero point of the result, then of every input after it."""
    if len(c.inputs) % 3 != 2:
        raise c.fail(f"{len(c.inputs)} inputs, wanted 2 and then 3 for each tensor")
    parts = [scaled(c, c.x(i), c.x(i + 1), c.x(i + 2)) for i in range(2, len(c.inputs), 3)]
    axis = c.axis(c.integer("axis"), c.type(2).rank)
    return requantized(c, c.emit("concat", *parts, axis=axis), c.x(0), c.x(1))


def _where(c: Call) -> Ref:
    """Condition, X with its scale and zero point, Y with the same, those of Z."""
    x = scaled(c, c.x(1), c.x(2), c.optional(3))
    y = scaled(c, c.x(4), c.x(5), c.optional(6))
    return requantized(c, c.emit("where", c.x(0), x, y), c.x(7), c.optional(8), c.x(1))


# quantised tables of EmbedLayerNormalization's inputs 2 .. 6 -> their scale and zero point
TABLES = ((2, 8, 13), (3, 9, 14), (4, 10, 15), (5, 11, 16), (6, 12, 17))


def _embedding(c: Call) -> tuple[Ref, ...]:
    """EmbedLayerNormalization of tables in bytes."""
    inputs = [c.optional(i) for i in range(8)]
    for i, scale, zero in TABLES:
        if c.has(i):
            inputs[i] = scaled(c, c.x(i), c.x(scale), c.x(zero))
    return embed_layer_norm(replace(c, inputs=tuple(inputs)))


# ---------------------------------------------------------------- recurrent


def _by_ranges(c: Call, d: int, scale: int) -> Product:
    """x, quantised by its range, times weights in bytes with the scale and zero point of direction d."""
    outer = c.builder
    points = [at(outer, c.x(i), to_dim(d)) for i in (scale, scale + 1)]
    points = [outer.reshape(p, ()) if outer.type_of(p).shape == (to_dim(1),) else p for p in points]

    def multiply(b: GraphBuilder, x: Ref, w: Ref) -> Ref:
        left = b.emit("dequantize", byte_range(b, x), {"axis": -1})
        return b.emit("matmul", [left, b.emit("dequantize", [w, *points], {"axis": 1})])

    return multiply


def _dynamic_lstm(c: Call) -> Sequence[Ref]:
    """An LSTM whose weights are bytes [directions, input, gates * hidden]; each product rounds its input."""
    turned = [c.builder.transpose(c.x(i), (0, 2, 1)) for i in (1, 2)]
    build = recurrent(CELL_KINDS["LSTM"], lambda _, d: (_by_ranges(c, d, 8), _by_ranges(c, d, 10)))
    return build(replace(c, inputs=(_until_all_end(c), *turned, *c.inputs[3:8])))


def _until_all_end(c: Call) -> Ref:
    """The input with zeros after the longest sequence, so that its range is that of what counts."""
    if not c.has(4):
        return c.x(0)
    b, x = c.builder, c.x(0)
    longest = c.emit("reduce_max", c.cast(c.x(4), i64), axes=(0,), keepdims=False)
    live = c.emit("less", b.reshape(c.iota(c.shape(0)[0]), (c.shape(0)[0], 1, 1)), longest)
    return c.emit("where", live, x, c.scalar(0, x))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("QLinearAdd", 1, _binary("add"), MS),
    OnnxOp("QLinearMul", 1, _binary("mul"), MS),
    OnnxOp("QLinearSigmoid", 1, _unary(_sigmoid), MS),
    OnnxOp("QLinearLeakyRelu", 1, _unary(_leaky_relu), MS),
    OnnxOp("QLinearSoftmax", 1, _unary(_softmax), MS),
    OnnxOp("QLinearReduceMean", 1, _unary(_mean), MS),
    OnnxOp("QLinearGlobalAveragePool", 1, _either(_unary(_global_average)), MS),
    OnnxOp("QLinearAveragePool", 1, _either(_unary(_average)), MS),
    OnnxOp("QLinearConv", 1, _either(q_linear_conv), MS),
    OnnxOp("QLinearConcat", 1, _q_concat, MS),
    OnnxOp("QLinearWhere", 1, _where, MS),
    OnnxOp("QEmbedLayerNormalization", 1, _embedding, MS),
    OnnxOp("DynamicQuantizeLSTM", 1, _dynamic_lstm, MS),
)
