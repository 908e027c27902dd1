"""Bindings of com.microsoft's mixtures of experts: each token goes through its highest-scored experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.core.dim import Dim, ceildiv, product, to_dim
from smelt.core.dtype import i64, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.microsoft.quant import in_steps
from smelt.importer.bindings.standard.select import sorted_by
from smelt.importer.bindings.wide import wide
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "identity": ""}


@dataclass(frozen=True)
class _Layer:
    """The indices of one layer's inputs: weights [experts, out, in], bias, and scales and zero points of
    packed weights.

    bits: of a packed weight; 0: a float.
    """

    weight: int
    bias: int
    scale: int = -1
    zero: int = -1
    bits: int = 0


PLAIN = (_Layer(2, 3), _Layer(4, 5), _Layer(6, 7))
PACKED = (_Layer(2, 4, 3, 11), _Layer(5, 7, 6, 12), _Layer(8, 10, 9, 13))


def _mixture(c: Call) -> Ref:
    return _mixed(c, PLAIN)


def _packed_mixture(c: Call) -> Ref:
    """As MoE, of weights of few bits with a scale per row or per block."""
    if c.text("quant_type", "int") != "int":
        raise c.unsupported(f"quant_type '{c.text('quant_type')}'")
    if c.integer("weights_prepacked", -1) == 1:
        raise c.unsupported("weights_prepacked")
    every = c.integer("expert_weight_bits", 4)
    each = [c.integer(f"fc{n}_expert_weight_bits", every) for n in (1, 2, 3)]
    for bits in each:
        if bits not in (2, 4, 8):
            raise c.unsupported(f"weights of {bits} bits")
    return _mixed(c, tuple(replace(layer, bits=bits) for layer, bits in zip(PACKED, each, strict=True)))


def _mixed(c: Call, layers: tuple[_Layer, ...]) -> Ref:
    """The sum of the chosen experts' results, weighted by the router."""
    if c.flag("use_sparse_mixer"):
        raise c.unsupported("use_sparse_mixer")
    b, dtype, shape, chosen = c.builder, c.type(0).dtype, c.shape(0), to_dim(c.integer("k", 1))
    if len(shape) not in (2, 3) or c.type(1).rank != 2:
        raise c.fail(f"input is {c.type(0)} and router_probs {c.type(1)}, wanted rank 2 or 3, and rank 2")
    tokens = c.engine.same("tokens of input and router_probs", product(shape[:-1]), c.shape(1)[0])
    c.engine.at_most("k and the number of experts", chosen, c.shape(1)[1])
    to = wide(dtype)
    x = b.reshape(c.cast(c.x(0), to), (tokens, 1, shape[-1]))
    x = b.reshape(b.broadcast_to(x, (tokens, chosen, shape[-1])), (tokens * chosen, shape[-1]))
    which, share = _routed(c, c.cast(c.x(1), to), chosen, bool(layers[0].bits))
    which = b.reshape(which, (tokens * chosen,))
    y = _activated(c, x, which, layers)
    y = _through(c, y, which, layers[1])
    y = c.emit("mul", y, b.reshape(share, (tokens * chosen, 1)))
    y = c.emit("reduce_sum", b.reshape(y, (tokens, chosen, shape[-1])), axes=(1,), keepdims=False)
    return c.cast(b.reshape(y, shape), dtype)


def _routed(c: Call, scores: Ref, chosen: Dim, packed: bool) -> tuple[Ref, Ref]:
    """Experts [T, k] of the highest scores and their shares, which of packed ones add up to 1 always, unless
    input 14 gives other shares. Of equal ones (scores of packed ones, else what softmax leaves of them) the
    last expert's counts first, as in ONNX Runtime."""
    if not packed:
        values, which = _highest(c, c.emit("softmax", scores, axis=1), chosen)
        return which, _of_one(c, values) if c.flag("normalize_routing_weights") else values
    values, which = _highest(c, scores, chosen)
    if not c.has(14):
        return which, c.emit("softmax", values, axis=1)
    every = c.cast(c.x(14), c.builder.type_of(scores).dtype)
    share = c.emit("gather_elements", every, which, axis=1)
    return which, _of_one(c, share) if c.flag("normalize_routing_weights") else share


def _highest(c: Call, values: Ref, chosen: Dim) -> tuple[Ref, Ref]:
    """The highest values [T, k] and their positions; of equal ones those at the end first."""
    b, last = c.builder, c.builder.type_of(values).shape[1] - 1
    found, place = sorted_by(c, b.slice_axis(values, 1, last, -1, -1), chosen, 1, True, True)
    return found, c.emit("sub", b.from_dims([last], []), place)


def _of_one(c: Call, share: Ref) -> Ref:
    return c.emit("div", share, c.emit("reduce_sum", share, axes=(1,), keepdims=True))


def _activated(c: Call, x: Ref, which: Ref, layers: tuple[_Layer, ...]) -> Ref:
    """The first layer and its activation, or with the third layer the gated one."""
    name, fused = c.text("activation_type", "relu"), c.integer("swiglu_fusion", 0)
    first = _through(c, x, which, layers[0])
    gated = c.has(layers[2].weight)
    if name == "swiglu":
        if fused == 0:
            if not gated:
                raise c.fail("activation_type 'swiglu' without fc3_experts_weights, and swiglu_fusion is 0")
            return _swiglu(c, first, _through(c, x, which, layers[2]))
        return _swiglu(c, *_halves(c, first, interleaved=fused == 1))
    if name not in ACTIVATIONS:
        raise c.fail(f"activation_type '{name}' is none of {', '.join((*ACTIVATIONS, 'swiglu'))}")
    attrs = {"approximate": "tanh"} if name == "gelu" else {}
    y = c.emit(ACTIVATIONS[name], first, **attrs) if ACTIVATIONS[name] else first
    return c.emit("mul", y, _through(c, x, which, layers[2])) if gated else y


def _halves(c: Call, y: Ref, interleaved: bool) -> tuple[Ref, Ref]:
    """Gates and values of rows that hold both."""
    b, (rows, width) = c.builder, c.builder.type_of(y).shape
    c.engine.divides("gates and values", to_dim(2), width)
    half = width // 2
    if not interleaved:
        return b.slice_axis(y, 1, 0, half), b.slice_axis(y, 1, half, half * 2)
    pairs = b.reshape(y, (rows, half, 2))
    gate, value = (b.reshape(b.slice_axis(pairs, 2, k, k + 1), (rows, half)) for k in (0, 1))
    return gate, value


def _swiglu(c: Call, gate: Ref, value: Ref) -> Ref:
    """g * sigmoid(alpha g) * (l + beta), both clamped where there is a limit."""
    if c.given("swiglu_limit"):
        limit = c.number("swiglu_limit")
        gate = c.emit("min", gate, c.scalar(limit, gate))
        value = c.emit("clip", value, c.scalar(-limit, value), c.scalar(limit, value))
    alpha, beta = c.number("activation_alpha", 1.0), c.number("activation_beta", 0.0)
    soft = c.emit("sigmoid", c.emit("mul", gate, c.scalar(alpha, gate)))
    return c.emit("mul", c.emit("mul", gate, soft), c.emit("add", value, c.scalar(beta, value)))


def _through(c: Call, x: Ref, which: Ref, layer: _Layer) -> Ref:
    """Each row times the transposed weights of its expert, plus their bias."""
    b, to = c.builder, c.builder.type_of(x).dtype
    if not layer.bits:
        y = c.emit("matmul_experts", x, which, c.cast(c.x(layer.weight), to), bits=0, block=0)
    else:
        y = _packed_product(c, x, which, layer)
    if c.has(layer.bias):
        y = c.emit("add", y, c.emit("gather", c.cast(c.x(layer.bias), to), which, axis=0))
    assert b.type_of(which).dtype == i64
    return y


def _packed_product(c: Call, x: Ref, which: Ref, layer: _Layer) -> Ref:
    b, bits = c.builder, layer.bits
    experts, rows, _ = c.shape(layer.weight)
    depth = b.type_of(x).shape[1]
    if c.type(layer.weight).dtype != u8:
        raise c.fail(f"packed weights are {c.type(layer.weight)}, wanted u8")
    block = c.integer("block_size", 0)
    level = bits == 8 or (bits == 4 and c.integer("accuracy_level", 0) == 4)
    if block > 0 and level and b.constant_of(c.x(layer.weight)) is not None:
        # the kernels of ONNX Runtime for these take bytes
        x = b.slice_axis(in_steps(c, x, block), 1, 0, depth)
    if block < 1:
        if not depth.is_const:
            raise c.unsupported(f"one scale per row of {depth} weights, whose number is not static")
        block = -(-depth.const * bits // 8) * 8 // bits
    blocks = ceildiv(depth, to_dim(block))
    scale = b.reshape(c.x(layer.scale), (experts, rows, blocks))
    inputs = [x, which, c.x(layer.weight), scale]
    if c.has(layer.zero):
        zero = c.x(layer.zero)
        if c.type(layer.zero).rank == 2:  # one per row, packed along the rows
            zero = zero if bits == 8 else c.emit("unpack_bits", zero, bits=bits)
            zero = b.reshape(b.slice_axis(zero, 1, 0, rows), (experts, rows, 1))
        else:
            zero = zero if bits == 8 else c.emit("unpack_bits", zero, bits=bits)
            zero = b.slice_axis(zero, 2, 0, blocks)
        inputs.append(zero)
    return c.emit("matmul_experts", *inputs, bits=bits, block=block)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("MoE", 1, _mixture, MS),
    OnnxOp("QMoE", 1, _packed_mixture, MS),
)
