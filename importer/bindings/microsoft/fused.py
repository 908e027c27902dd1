"""Bindings of com.microsoft ops that fuse norms, activations and embeddings, and of rotary positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import f32, i32, i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.indices import inside
from smelt.importer.bindings.standard.elementwise import same
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.domains import MS


def alike(c: Call, what: str, *places: tuple[int, int]) -> None:
    """The extents of these (input, axis) are one, for the inputs that are there and have the axis."""
    found = [(i, c.shape(i)[a]) for i, a in places if c.has(i) and a < c.type(i).rank]
    for i, extent in found[1:]:
        c.engine.same(f"{what} of inputs {found[0][0]} and {i}", found[0][1], extent)


# ---------------------------------------------------------------- norms


TINY_EPSILON = 1e-12
"""Default epsilon of the ops that add before they normalise."""


def _normed(
    c: Call,
    op: str,
    x: Ref,
    scale: Ref,
    bias: Ref = "",
    axis: int | None = None,
    epsilon: float = TINY_EPSILON,
) -> Ref:
    """layer_norm or rms_norm over axes axis .. (the last one), in a type that is wide enough."""
    t = c.builder.type_of(x)
    to = wide(t.dtype)
    at = t.rank - 1 if axis is None else axis
    parts = [c.cast(p, to) if p else "" for p in (scale, bias)]
    y = c.emit(op, c.cast(x, to), *(p for p in parts if p), axis=at, epsilon=c.number("epsilon", epsilon))
    return c.cast(y, t.dtype)


def _simplified_layer_norm(c: Call) -> tuple[Ref, ...]:
    """Output 1 is the reciprocal of the root of the mean square."""
    axis, to = c.axis(c.integer("axis", -1), c.type().rank), wide(c.type().dtype)
    y = c.cast(_normed(c, "rms_norm", c.x(), c.x(1), axis=axis, epsilon=1e-5), c.type(1).dtype)
    if not c.wants(1):
        return (y,)
    x = c.cast(c.x(), to)
    axes = tuple(range(axis, c.type().rank))
    square = c.emit("reduce_mean", c.emit("mul", x, x), axes=axes, keepdims=True)
    root = c.emit("sqrt", c.emit("add", square, c.scalar(c.number("epsilon", 1e-5), square)))
    return y, c.emit("reciprocal", root)


def _skip_norm(op: str, bias: int | None, skip_bias: int) -> Build:
    """op(input + skip + bias); outputs 1 and 2 are the mean and what the rest is multiplied by, 3 the sum."""

    def build(c: Call) -> tuple[Ref, ...]:
        total = c.emit("add", c.x(0), c.x(1))
        if c.has(skip_bias):
            total = c.emit("add", total, c.x(skip_bias))
        beta = "" if bias is None else c.optional(bias)
        mean, factor = _statistics(c, total, op == "layer_norm") if c.wants(1) or c.wants(2) else ("", "")
        return (_normed(c, op, total, c.x(2), beta), mean, factor, total)

    return build


def _statistics(c: Call, x: Ref, centred: bool) -> tuple[Ref, Ref]:
    """The mean of each row, 0 unless `centred`, and one over the root of the mean square about it."""
    axes = (c.builder.type_of(x).rank - 1,)
    x = c.cast(x, f32)
    mean = c.emit("reduce_mean", x, axes=axes, keepdims=True)
    mean = mean if centred else c.emit("mul", mean, c.scalar(0, mean))
    away = c.emit("sub", x, mean)
    square = c.emit("reduce_mean", c.emit("mul", away, away), axes=axes, keepdims=True)
    root = c.emit("sqrt", c.emit("add", square, c.scalar(c.number("epsilon", TINY_EPSILON), square)))
    return mean, c.emit("reciprocal", root)


def rows_at(c: Call, table: Ref, at: Ref, what: str) -> Ref:
    """Rows of a table by index, with a run-time check of the indices."""
    inside(c, at, c.builder.type_of(table).shape[0], what, wraps=False)
    return c.emit("gather", table, at, axis=0)


def embed_layer_norm(c: Call) -> tuple[Ref, ...]:
    """Norm of word + position + segment embeddings; output 1 counts the mask's ones, output 2 is the sum."""
    b = c.builder
    length = c.shape(0)[1]
    total = rows_at(c, c.x(2), c.x(0), "input_ids' element")
    places = c.x(3)
    if c.has(8):
        position = rows_at(c, places, c.x(8), "position_ids' element")
    else:
        c.engine.at_most("sequence length and position embeddings", length, b.type_of(places).shape[0])
        position = b.slice_axis(places, 0, 0, length)
    if c.has(4):
        if not c.has(1):
            raise c.fail("segment_embedding without segment_ids")
        total = c.emit("add", total, rows_at(c, c.x(4), c.x(1), "segment_ids' element"))
    total = c.emit("add", total, position)
    y = _normed(c, "layer_norm", total, c.x(5), c.x(6))
    batch = c.shape(0)[:1]
    if c.has(7):
        ones = c.emit("equal", c.x(7), c.scalar(1, c.x(7)))
        count = c.emit("reduce_sum", c.cast(ones, i32), axes=(1,), keepdims=False)
    else:
        zero = c.cast(b.from_dims([to_dim(0)], (1,)), i32)
        count = b.broadcast_to(zero, batch)
    return (y, count, total)


# ---------------------------------------------------------------- activations


def _biased_gelu(approximate: str) -> Build:
    """gelu(x + bias); the bias is optional."""

    def build(c: Call) -> Ref:
        x = c.emit("add", c.x(0), c.x(1)) if c.has(1) else c.x(0)
        return c.emit("gelu", x, approximate=approximate)

    return build


def _quick_gelu(c: Call) -> Ref:
    """x * sigmoid(alpha * x)"""
    x, alpha = c.x(), c.number("alpha", 1.702)
    if alpha == 1.0:
        return c.emit("silu", x)
    return c.emit("mul", x, c.emit("sigmoid", c.emit("mul", x, c.scalar(alpha, x))))


def _bias_add(c: Call) -> Ref:
    """input + bias + skip, the skip optional."""
    y = c.emit("add", c.x(0), c.x(1))
    return c.emit("add", y, c.x(2)) if c.has(2) else y


def _bias_dropout(c: Call) -> Ref:
    if c.wants(1):
        raise c.unsupported("the mask as an output", try_="exporting for inference")
    return _bias_add(c)


def _bias_split_gelu(c: Call) -> Ref:
    """Of input + bias: the left half times gelu of the right one."""
    b, y = c.builder, c.emit("add", c.x(0), c.x(1))
    shape = b.type_of(y).shape
    axis = len(shape) - 1
    c.engine.divides("halves", to_dim(2), shape[axis])
    half = shape[axis] // 2
    left, right = b.slice_axis(y, axis, 0, half), b.slice_axis(y, axis, half, half * 2)
    return c.emit("mul", left, c.emit("gelu", right, approximate="none"))


def _scaled_silu(c: Call) -> Ref:
    """silu(scale * x), the scale an input or the attribute alpha."""
    dtype = c.type(0).dtype
    x = c.cast(c.x(0), wide(dtype))
    by = c.cast(c.x(1), wide(dtype)) if c.has(1) else c.scalar(c.number("alpha", 1.0), x)
    return c.cast(c.emit("silu", c.emit("mul", x, by)), dtype)


GATES: Mapping[str, str] = MappingProxyType({"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"})


def _gated_rms_norm(c: Call) -> Ref:
    """rms_norm of each group of as many elements as the scale has, times an activation of the gate."""
    name = c.text("activation", "silu")
    if name not in GATES:
        raise c.fail(f"activation '{name}' is none of {', '.join(GATES)}")
    b, dtype, shape = c.builder, c.type(0).dtype, c.shape(0)
    (size,) = c.shape(1)
    c.engine.divides("scale and the last axis", size, shape[-1])
    x = b.reshape(c.cast(c.x(0), wide(dtype)), (*shape[:-1], shape[-1] // size, size))
    scale = c.cast(c.x(1), wide(dtype))
    y = c.emit("rms_norm", x, scale, axis=len(shape), epsilon=c.number("epsilon", 1e-5))
    gate = c.emit(GATES[name], c.cast(c.x(2), wide(dtype)))
    return c.cast(c.emit("mul", b.reshape(y, shape), gate), dtype)


def _gated_add(c: Call) -> Ref:
    """x + y * gate"""
    return c.emit("add", c.x(0), c.emit("mul", c.x(1), c.x(2)))


def _linear_attention_gate(c: Call) -> tuple[Ref, ...]:
    """scale * softplus(a + bias), and sigmoid(b)."""
    dtype = c.type(0).dtype
    y = c.emit("softplus", c.emit("add", c.cast(c.x(0), wide(dtype)), c.x(1)))
    decay = c.cast(c.emit("mul", y, c.x(2)), dtype)
    if not c.wants(1):
        return (decay,)
    return decay, c.cast(c.emit("sigmoid", c.cast(c.x(3), wide(dtype))), dtype)


# ---------------------------------------------------------------- rotary embedding


def rotate(c: Call, x: Ref, cos: Ref, sin: Ref, interleaved: bool) -> Ref:
    """x[.., d] turned in the planes that pair its first 2 * h elements; cos, sin [.., h] broadcast over x.

    Pairs are (k, k + h), or (2k, 2k + 1) when interleaved; elements after 2 * h stay.
    """
    b = c.builder
    shape = b.type_of(x).shape
    axis = len(shape) - 1
    half = b.type_of(cos).shape[-1]
    turned = b.slice_axis(x, axis, 0, half * 2)
    if interleaved:
        paired = b.reshape(turned, (*shape[:-1], half, 2))
        one, two = (b.reshape(b.slice_axis(paired, axis + 1, k, k + 1), (*shape[:-1], half)) for k in (0, 1))
    else:
        one, two = b.slice_axis(turned, axis, 0, half), b.slice_axis(turned, axis, half, half * 2)
    real = c.emit("sub", c.emit("mul", one, cos), c.emit("mul", two, sin))
    imaginary = c.emit("add", c.emit("mul", one, sin), c.emit("mul", two, cos))
    if interleaved:
        pair = [b.reshape(r, (*shape[:-1], half, 1)) for r in (real, imaginary)]
        y = b.reshape(c.emit("concat", *pair, axis=axis + 1), (*shape[:-1], half * 2))
    else:
        y = c.emit("concat", real, imaginary, axis=axis)
    if b.compare_dims(half * 2, shape[-1]):
        return y
    c.engine.at_most("rotary dimension and head size", half * 2, shape[-1])
    return c.emit("concat", y, b.slice_axis(x, axis, half * 2, shape[-1]), axis=axis)


def _rotary(c: Call) -> Ref:
    """x [B, S, heads * size] or [B, heads, S, size], positions [B, S] or one offset, caches [max, half]."""
    b, length = c.builder, rotary_length(c)
    places = c.cast(c.x(1), i64)
    if c.type(1).rank == 1:
        steps = c.iota(length)
        places = b.reshape(c.emit("add", steps, b.reshape(places, ())), (1, length))
    # `scale` is left alone: ONNX Runtime 1.31 reads it and does nothing with it here
    return rotary_by(c, [rows_at(c, c.x(i), places, "position") for i in (2, 3)])


def rotary_length(c: Call) -> Dim:
    """Positions of input 0."""
    shape = c.shape(0)
    if len(shape) not in (3, 4):
        raise c.fail(f"input has rank {len(shape)}, wanted 3 or 4")
    return shape[2] if len(shape) == 4 else shape[1]


def rotary_by(c: Call, tables: Sequence[Ref]) -> Ref:
    """Input 0 turned by cosines and sines [B or 1, S, half]."""
    b, x, shape, length = c.builder, c.x(0), c.shape(0), rotary_length(c)
    half = b.type_of(tables[0]).shape[-1]
    heads_first = len(shape) == 4
    if not heads_first:
        size, heads = half * 2, c.integer("num_heads", 0)
        if heads < 1 and c.integer("rotary_embedding_dim", 0):
            raise c.fail("rotary_embedding_dim needs num_heads")
        if heads > 0:
            c.engine.divides("num_heads", to_dim(heads), shape[2])
            size = shape[2] // heads
        c.engine.divides("head size", size, shape[2])
        x = b.reshape(x, (shape[0], length, shape[2] // size, size))
    spread = []
    for t in tables:
        n = b.type_of(t).shape[0]
        spread.append(b.reshape(t, (n, 1, length, half) if heads_first else (n, length, 1, half)))
    return b.reshape(rotate(c, x, spread[0], spread[1], c.flag("interleaved")), shape)


def _bias_softmax(c: Call) -> Ref:
    """softmax(x + bias) over axes axis .. as one."""
    b = c.builder
    y = c.emit("add", c.x(0), c.x(1))
    shape = b.type_of(y).shape
    axis = c.axis(c.integer("axis", 1), len(shape))
    rest = to_dim(1)
    for d in shape[axis:]:
        rest = rest * d
    flat = b.reshape(y, (*shape[:axis], rest))
    return b.reshape(c.emit("softmax", flat, axis=axis), shape)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("SimplifiedLayerNormalization", 1, _simplified_layer_norm),
    OnnxOp("SimplifiedLayerNormalization", 1, _simplified_layer_norm, MS),
    OnnxOp("SkipLayerNormalization", 1, _skip_norm("layer_norm", 3, 4), MS),
    OnnxOp("SkipSimplifiedLayerNormalization", 1, _skip_norm("rms_norm", None, 3), MS),
    OnnxOp("EmbedLayerNormalization", 1, embed_layer_norm, MS),
    OnnxOp("Gelu", 1, same("gelu", 1, approximate="none"), MS),
    OnnxOp("FastGelu", 1, _biased_gelu("tanh"), MS),
    OnnxOp("BiasGelu", 1, _biased_gelu("none"), MS),
    OnnxOp("QuickGelu", 1, _quick_gelu, MS),
    OnnxOp("BiasSoftmax", 1, _bias_softmax, MS),
    OnnxOp("BiasAdd", 1, _bias_add, MS),
    OnnxOp("BiasDropout", 1, _bias_dropout, MS),
    OnnxOp("BiasSplitGelu", 1, _bias_split_gelu, MS),
    OnnxOp("ScaledSiLU", 1, _scaled_silu, MS),
    OnnxOp("GatedRMSNorm", 1, _gated_rms_norm, MS),
    OnnxOp("GatedAdd", 1, _gated_add, MS),
    OnnxOp("LinearAttentionGate", 1, _linear_attention_gate, MS),
    OnnxOp("RotaryEmbedding", 1, _rotary, MS),
)
