"""Bindings of com.microsoft's recurrent ops over tokens, and of rotary embeddings over three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, product, to_dim
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.microsoft.fused import alike, rotary_by, rotary_length, rows_at
from smelt.importer.bindings.standard.scan import at, counted
from smelt.importer.bindings.wide import wide
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

# ---------------------------------------------------------------- linear attention

# update_rule -> (whether the state decays, whether what it holds for the key is taken off the value)
RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def _linear_attention(c: Call) -> tuple[Ref, Ref]:
    """S = exp(g) S + k (v - S' k) beta', o = scale q' S, token by token; parts of it by update_rule.

    query [B, T, heads * d], key [B, T, heads * d], value [B, T, groups * e], state [B, groups, d, e].
    """
    rule = c.text("update_rule", "gated_delta")
    if rule not in RULES:
        raise c.fail(f"update_rule '{rule}' is none of {', '.join(RULES)}")
    if c.integer("state_window", 0):
        raise c.unsupported("state_window")
    decays, takes = RULES[rule]
    alike(c, "batch", *((i, 0) for i in range(6)))
    alike(c, "sequence", (0, 1), (1, 1), (2, 1), (4, 1), (5, 1))
    b = c.builder
    to = wide(c.type(0).dtype)
    heads, groups = c.integer("q_num_heads"), c.integer("kv_num_heads")
    if min(heads, groups) < 1 or max(heads, groups) % min(heads, groups):
        raise c.fail(f"{heads} heads of queries and {groups} of values")
    q = _per_head(c, c.cast(c.x(0), to), to_dim(heads), "query")
    size = b.type_of(q).shape[3]
    c.engine.divides("head size and the width of key", size, c.shape(1)[2])
    k = _per_head(c, c.cast(c.x(1), to), c.shape(1)[2] // size, "key")
    v = _per_head(c, c.cast(c.x(2), to), to_dim(groups), "value")
    time, batch, _, width = b.type_of(v).shape
    count = max(heads, groups)
    q, k = _repeated(c, q, to_dim(count)), _repeated(c, k, to_dim(groups))
    gates = [_gate(c, i, to) for i, used in ((4, decays), (5, takes)) if used]
    state = c.cast(c.x(3), to) if c.has(3) else b.broadcast_to(c.scalar(0, v), (batch, groups, size, width))
    scale = c.number("scale", 0.0)

    def step(g: GraphBuilder, i: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        (s,) = states
        query, key, value, *own = (at(g, x, i) for x in (q, k, v, *gates))
        row = g.reshape(key, (batch, groups, 1, size))
        if decays:
            s = g.emit("mul", [s, g.emit("exp", [own.pop(0)])])
        value = g.reshape(value, (batch, groups, 1, width))
        if takes:
            value = g.emit("mul", [g.emit("sub", [value, g.emit("matmul", [row, s])]), own.pop(0)])
        s = g.emit("add", [s, g.emit("mul", [g.reshape(key, (batch, groups, size, 1)), value])])
        rows = g.reshape(query, (batch, groups, count // groups, size))
        return [s], [g.reshape(g.emit("matmul", [rows, s]), (batch, count * width))]

    (state,), (y,) = counted(c, time, [state], step)
    if scale or size.is_const:
        factor = c.scalar(scale or 1 / math.sqrt(max(size.const, 1)), y)
    else:
        factor = c.emit("reciprocal", c.emit("sqrt", c.cast(b.from_dims([size], ()), to)))
    y = b.transpose(c.emit("mul", y, factor), (1, 0, 2))
    return c.cast(y, c.type(0).dtype), c.cast(state, c.type(3).dtype if c.has(3) else to)


def _per_head(c: Call, x: Ref, heads: Dim, what: str) -> Ref:
    """[B, T, heads * n] as [T, B, heads, n]."""
    b, shape = c.builder, c.builder.type_of(x).shape
    if len(shape) != 3:
        raise c.fail(f"{what} has rank {len(shape)}, wanted 3")
    c.engine.divides(f"heads and the width of {what}", heads, shape[2])
    return b.transpose(b.reshape(x, (shape[0], shape[1], heads, shape[2] // heads)), (1, 0, 2, 3))


def _repeated(c: Call, x: Ref, count: Dim) -> Ref:
    """Each head of [T, B, heads, n] as often as it takes to have `count`."""
    b = c.builder
    time, batch, heads, size = b.type_of(x).shape
    if b.compare_dims(heads, count):
        return x
    c.engine.divides("heads", heads, count)
    each = count // heads
    x = b.broadcast_to(b.reshape(x, (time, batch, heads, 1, size)), (time, batch, heads, each, size))
    return b.reshape(x, (time, batch, count, size))


def _gate(c: Call, i: int, to: object) -> Ref:
    """Input i [B, T, groups or 1, times d] as [T, B, groups or 1, d or 1, 1]."""
    b, groups = c.builder, to_dim(c.integer("kv_num_heads"))
    if not c.has(i):
        raise c.fail(f"update_rule '{c.text('update_rule', 'gated_delta')}' without input {i}")
    batch, time, width = c.extents(i, 3)
    x = b.transpose(c.cast(c.x(i), wide(c.type(i).dtype)), (1, 0, 2))
    if b.compare_dims(width, ONE):
        return b.reshape(x, (time, batch, 1, 1, 1))
    c.engine.divides("heads and the width of a gate", groups, width)
    return b.reshape(x, (time, batch, groups, width // groups, 1))


# ---------------------------------------------------------------- causal convolution


def _causal_conv(c: Call) -> tuple[Ref, Ref]:
    """(each channel convolved along time with the rows before it, the new state: the last of these rows)."""
    if c.integer("ndim", 1) != 1 or c.integer("state_window", 0):
        raise c.unsupported("ndim above 1 or state_window")
    activation = c.text("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise c.fail(f"activation '{activation}' is none of none, silu, swish")
    alike(c, "batch", (0, 0), (3, 0))
    b, dilation = c.builder, c.integer("dilation", 1)
    channels, _, taps = c.extents(1, 3)
    if not channels.is_const:
        raise c.unsupported(f"{channels} channels, whose number is not static")
    last = c.flag("channels_last")
    before = c.engine.simplify((taps - 1) * dilation)
    if not c.type(0).rank:
        raise c.fail(f"the input is {c.type(0)}, wanted [batch, channels, length]")
    x = _time_last(c, c.x(0), channels) if last else c.x(0)
    batch = b.type_of(x).shape[0]
    if c.has(3):
        state = _time_last(c, c.x(3), channels) if last else c.x(3)
    else:
        state = b.broadcast_to(c.scalar(0, x), (batch, channels, before))
    if b.type_of(state).rank != 3:
        raise c.fail(f"the past state is {b.type_of(state)}, wanted rank 3")
    c.engine.same("rows of the past state", b.type_of(state).shape[2], before)
    both = c.emit("concat", state, x, axis=2)
    y = c.emit(
        "conv", both, c.x(1), c.optional(2), strides=(1,), dilations=(dilation,), pads_begin=(ZERO,),
        pads_end=(ZERO,), group=channels.const, channels_last=False,
    )  # fmt: skip
    y = y if activation == "none" else c.emit("silu", y)
    total = b.type_of(both).shape[2]
    kept = b.slice_axis(both, 2, total - before, total)
    if not last:
        return y, kept
    tail = c.shape(0)[2:]
    found = [b.reshape(b.transpose(r, (0, 2, 1)), (batch, b.type_of(r).shape[2], *tail)) for r in (y, kept)]
    return found[0], found[1]


def _time_last(c: Call, x: Ref, channels: Dim) -> Ref:
    """[B, T, *channels] as [B, channels, T]."""
    b, shape = c.builder, c.builder.type_of(x).shape
    c.engine.same("channels of input and weight", product(shape[2:]), channels)
    return b.transpose(b.reshape(x, (shape[0], shape[1], channels)), (0, 2, 1))


# ---------------------------------------------------------------- positions of time, height and width


def _three_rotary(c: Call) -> Ref:
    """Rotary positions [3, B, S]: each angle reads the cache at one of the three."""
    b = c.builder
    sections = c.ints("mrope_section")
    half = c.shape(2)[1]
    if len(sections) != 3 or not half.is_const:
        raise c.fail(f"mrope_section has {len(sections)} entries, wanted 3 for a cache of static width")
    if sum(sections) != half.const:
        raise c.fail(f"mrope_section {list(sections)} adds up to {sum(sections)}, the cache has {half}")
    streams = _streams(sections, c.flag("mrope_layout"))
    alike(c, "batch", (0, 0), (1, 1))
    c.engine.same("sequence of inputs 0 and 1", rotary_length(c), c.shape(1)[2])
    _, batch, length = c.extents(1, 3)
    tables = []
    for i in (2, 3):
        rows = [
            rows_at(c, c.x(i), b.reshape(b.slice_axis(c.x(1), 0, a, a + 1), (batch, length)), "position")
            for a in range(3)
        ]
        table = rows[0]
        for a in (1, 2):
            table = c.emit("where", b.constant(streams == a), rows[a], table)
        tables.append(table)
    scale = c.number("scale", 1.0)
    if scale != 1.0:  # ONNX Runtime 1.31: of what is turned, not of the channels handed on
        tables = [c.emit("mul", t, c.scalar(scale, t)) for t in tables]
    return rotary_by(c, tables)


def _streams(sections: Sequence[int], interleaved: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which of the three positions each angle takes: in runs, or every third by turns."""
    half = sum(sections)
    if not interleaved:
        return np.repeat(np.arange(3), sections)
    found = np.zeros(half, np.int64)
    for a in (1, 2):
        found[a : min(sections[a] * 3, half) : 3] = a
    return found


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("LinearAttention", 1, _linear_attention, MS),
    OnnxOp("CausalConvWithState", 1, _causal_conv, MS),
    OnnxOp("MRotaryEmbedding", 1, _three_rotary, MS),
)
