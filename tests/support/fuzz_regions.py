"""A random graph under construction in, one more step out: bodies of If, Loop and Scan; sequences, RNNs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from fuzz_graph import Graph, TooLarge, Value, element
from fuzz_steps import Step
from onnx import helper

MS: dict[str, Any] = {"domain": "com.microsoft"}


def _of(n: Any, like: Value, k: int = 0) -> Value:
    return Value(n.output[k], like.arrays, like.exact)


def _info(name: str, dtype: np.dtype[Any], rank: int | None = None) -> onnx.ValueInfoProto:
    dims = None if rank is None else [None] * rank
    return helper.make_tensor_value_info(name, element(dtype), dims)


@contextlib.contextmanager
def inside(g: Graph, *inputs: Value) -> Iterator[list[onnx.NodeProto]]:
    """Steps go into a body with these inputs; what they make does not outlive it."""
    nodes, values = g.nodes, g.values
    g.nodes, g.values = [], [*values, *inputs]
    g.depth += 1
    try:
        yield g.nodes
    finally:
        g.nodes, g.values = nodes, values
        g.depth -= 1


def grown(g: Graph, x: Value, count: int) -> list[Value]:
    """x, and what a few drawn steps make from it."""
    made = [x]
    for _ in range(count * 3):
        if len(made) > count:
            break
        with contextlib.suppress(TooLarge):
            made += g.step(g, made[-1])
    return made


def _scalar(g: Graph, x: Value) -> tuple[list[Any], Value] | None:
    """Nodes, and a condition that data decides."""
    if g.chance(0.4):
        flags = [np.array(g.chance(0.5)) for _ in range(3)]
        return [], g.given(flags, [])
    if not x.exact or x.dtype != np.float32:
        return None
    total = g.node("ReduceSum", x, keepdims=0)
    n = g.node("Less", _of(total, x), g.constant(np.float32(g.pick((0, 1, 5)))))
    return [total, n], Value(n.output[0], (np.array(True),) * 3, True)


def branch(g: Graph, x: Value) -> list[Value]:
    """If: both arms compute from what is around them."""
    condition = _scalar(g, x)
    if condition is None or g.depth > 1:
        return []
    before, flag = condition
    with inside(g) as first:
        t = g.pick(grown(g, x, g.number(1, 3))[1:] or [x])
    with inside(g) as second:
        others = [v for v in grown(g, g.pick(g.values[-3:]), 3) if v.dtype == t.dtype and v.rank == t.rank]
        e = g.pick(others) if others else (t if t is x else None)
        if e is None:
            if x.dtype != t.dtype or x.rank != t.rank:
                return []
            e = x
    arms = []
    for name, nodes, v in (("then", first, t), ("else", second, e)):
        end = g.node("Identity", v)
        arms.append(helper.make_graph([*nodes, end], name, [], [_info(end.output[0], v.dtype)]))
    n = g.node("If", flag, then_branch=arms[0], else_branch=arms[1])
    return g.add(*before, n, exact=t.exact and e.exact)


def ranks(g: Graph, x: Value) -> list[Value]:
    """A value whose rank a run decides, some nodes, and the rank that a reshape gives it."""
    condition = _scalar(g, x)
    if condition is None or g.depth > 1 or g.opset < 13 or x.dtype != np.float32 or x.rank > 4:
        return []
    before, flag = condition
    if g.chance(0.4):
        nodes = [g.node("Squeeze", x)]
    else:
        wide, same = (
            g.node("Unsqueeze", x, g.constant(np.array([g.number(0, x.rank)]))),
            g.node("Identity", x),
        )
        arms = [
            helper.make_graph([n], name, [], [_info(n.output[0], x.dtype)])
            for name, n in (("wide", wide), ("same", same))
        ]
        first, second = g.pick((arms, arms[::-1]))
        nodes = [*before, g.node("If", flag, then_branch=first, else_branch=second)]
    for _ in range(g.number(0, 3)):
        nodes.append(g.node(g.pick(("Relu", "Neg", "Abs")), _of(nodes[-1], x)))
    nodes.append(g.node("Reshape", _of(nodes[-1], x), g.constant(np.array([-1]))))
    return g.add(*nodes, exact=x.exact)


def _counter(g: Graph) -> Value:
    return Value(g.name("i"), (np.array(0),) * 3, True)


def loop(g: Graph, x: Value) -> list[Value]:
    """A state that the rounds change, now and then in size, and a slice of each round."""
    if g.depth > 1 or not x.size() or x.rank > 4:
        return []
    i, going, state = (
        _counter(g),
        Value(g.name("c"), (np.array(True),) * 3, True),
        Value(g.name("s"), x.arrays, x.exact),
    )
    with inside(g, state) as nodes:
        made = grown(g, state, g.number(1, 4))
        same = [v for v in made[1:] if v.dtype == x.dtype and v.shape() == x.shape()]
        if not same:
            return []
        after, slice_ = g.pick(same), g.pick(made[1:])
        if x.rank and g.chance(0.15):  # it grows
            n = g.node("Concat", after, after, axis=g.number(0, x.rank - 1))
            nodes.append(n)
            after = _of(n, x)
            slice_ = same[-1] if x.rank == 0 else None
        ends = [g.node("Identity", after)]
        if slice_ is not None:
            ends.append(g.node("Identity", slice_))
        if g.chance(0.5):
            stop = g.node("Identity", going)
        else:
            stop = g.node("Less", i, g.constant(np.array(g.number(0, 3))))
        inputs = [
            _info(i.name, np.dtype(np.int64), 0),
            _info(going.name, np.dtype(bool), 0),
            _info(state.name, x.dtype),
        ]
        results = [_info(stop.output[0], np.dtype(bool)), _info(ends[0].output[0], x.dtype)]
        if slice_ is not None:
            results.append(_info(ends[1].output[0], slice_.dtype))
        body = helper.make_graph([*nodes, *ends, stop], "body", inputs, results)
    # of no rounds ONNX Runtime does not know how many axes a slice has
    trips = [np.array(g.number(0 if slice_ is None else 1, 3)) for _ in range(3)]
    count = g.pick((g.constant(np.array(2)), g.operand(trips)))
    flag = g.constant(np.array(True)) if g.chance(0.5) else None
    return g.add(g.node("Loop", count, flag, x, outputs=len(results) - 1, body=body))


def scan(g: Graph, x: Value) -> list[Value]:
    """Rows of x one by one, with a sum that runs along."""
    if g.depth > 0 or g.opset < 9 or x.dtype != np.float32 or not 1 <= x.rank <= 4 or 0 in x.extent(0):
        return []
    row = Value(g.name("r"), tuple(a[0] for a in x.arrays), x.exact)
    state = Value(g.name("s"), row.arrays, x.exact)
    with inside(g, row) as nodes:
        made = g.pick(grown(g, row, g.number(1, 3)))
        total, out = g.node("Add", state, row), g.node("Identity", made)
        body = helper.make_graph(
            [*nodes, total, out], "body",
            [_info(state.name, x.dtype), _info(row.name, x.dtype)],
            [_info(total.output[0], x.dtype, row.rank), _info(out.output[0], made.dtype, made.rank)],
        )  # fmt: skip
    first = g.node("Gather", x, g.constant(np.array(0)), axis=0)
    way = {"scan_input_directions": [g.number(0, 1)], "scan_output_directions": [g.number(0, 1)]}
    n = g.node("Scan", _of(first, row), x, outputs=2, body=body, num_scan_inputs=1, **way)
    return g.add(first, n)


def sequence(g: Graph, x: Value) -> list[Value]:
    """Split into a sequence, edited, joined again."""
    if g.opset < 11 or not x.rank or min(min(e) for e in x.shape()) == 0:
        return []
    axis = g.number(0, x.rank - 1)
    way = g.number(0, 4)
    zero = g.constant(np.array(0))
    if way == 0:
        s = g.node("SplitToSequence", x, g.constant(np.array(g.number(1, 3))), axis=axis)
        return g.add(s, g.node("ConcatFromSequence", _of(s, x), axis=axis), exact=x.exact)
    if way == 1:
        s = g.node("SplitToSequence", x, axis=axis, keepdims=g.number(0, 1))
        return g.add(s, g.node("SequenceAt", _of(s, x), g.constant(np.array(g.pick((0, -1))))), exact=x.exact)
    if way == 2:
        s = g.node("SequenceConstruct", x, x, x)
        e = g.node("SequenceErase", _of(s, x), zero)
        return g.add(
            s, e, g.node("ConcatFromSequence", _of(e, x), axis=axis, new_axis=g.number(0, 1)), exact=x.exact
        )
    if way == 3:
        s = g.node("SequenceEmpty", dtype=element(x.dtype))
        e = g.node("SequenceInsert", _of(s, x), x)
        f = g.node("SequenceInsert", _of(e, x), x, zero)
        return g.add(s, e, f, g.node("ConcatFromSequence", _of(f, x), axis=axis), exact=x.exact)
    s = g.node("SplitToSequence", x, axis=axis)
    return g.add(s, g.node("SequenceLength", _of(s, x)), exact=True)


def optional(g: Graph, x: Value) -> list[Value]:
    """An optional that holds something."""
    if g.opset < 15:
        return []
    o = g.node("Optional", x)
    if g.chance(0.5):
        return g.add(o, g.node("OptionalHasElement", _of(o, x)), exact=True)
    return g.add(o, g.node("OptionalGetElement", _of(o, x)), exact=x.exact)


# ---------------------------------------------------------------- recurrent ops, attention


def recurrent(g: Graph, x: Value) -> list[Value]:
    if x.dtype != np.float32 or x.rank != 3 or not x.static(2) or min(min(e) for e in x.shape()) == 0:
        return []
    op, direction = g.pick(("RNN", "GRU", "LSTM")), g.pick(("forward", "reverse", "bidirectional"))
    gates, ways, width, hidden = (
        {"RNN": 1, "GRU": 3, "LSTM": 4}[op],
        1 + (direction == "bidirectional"),
        x.static(2),
        3,
    )
    inputs: list[Value | None] = [
        x,
        g.weight(x, ways, gates * hidden, width or 1),
        g.weight(x, ways, gates * hidden, hidden),
    ]
    inputs.append(g.weight(x, ways, 2 * gates * hidden) if g.chance(0.6) else None)
    if g.chance(0.3):
        lengths = [g.rng.integers(1, a.shape[0] + 1, a.shape[1]).astype(np.int32) for a in x.arrays]
        inputs.append(g.given(lengths, [x.static(1)]))
    flags: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if op == "GRU":
        flags["linear_before_reset"] = g.number(0, 1)
    return g.add(g.node(op, *inputs, outputs=g.number(1, 2), **flags))


def attention(g: Graph, x: Value) -> list[Value]:
    """Attention of the standard and of com.microsoft, on x as queries, keys and values."""
    if x.dtype != np.float32 or x.rank != 3 or min(min(e) for e in x.shape()) == 0:
        return []
    width = x.static(2) or 0
    if width % 8 or not width:
        return []
    op = g.pick(
        ("Attention", "MultiHeadAttention", "ms", "RotaryEmbedding", "QAttention", "GroupQueryAttention")
    )
    if op == "Attention":
        flags = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": g.number(0, 1)}
        return g.add(g.node(op, x, x, x, **flags)) if g.opset >= 23 else []
    if op == "MultiHeadAttention":
        return g.add(g.node(op, x, x, x, num_heads=2, **MS))
    if op == "ms":
        flags = {"num_heads": 2, "unidirectional": g.number(0, 1)}
        return g.add(
            g.node("Attention", x, g.weight(x, width, 3 * width), g.weight(x, 3 * width), **flags, **MS)
        )
    if op == "QAttention":
        return []
    half = width // 4
    angles = g.rng.uniform(-1, 1, (64, half)).astype(np.float32)
    tables = [g.constant(f(angles), exact=False) for f in (np.cos, np.sin)]
    if op == "RotaryEmbedding":
        places = g.given([np.tile(np.arange(a.shape[1]), (a.shape[0], 1)) for a in x.arrays], [None, None])
        return g.add(g.node(op, x, places, *tables, num_heads=2, **MS))
    lengths = g.given([np.full(a.shape[0], a.shape[1] - 1, np.int32) for a in x.arrays], [None])
    totals = g.given([np.array(a.shape[1], np.int32) for a in x.arrays], [])
    flags = {"num_heads": 2, "kv_num_heads": 2}
    inputs = [x, x, x, None, None, lengths, totals]
    return g.add(g.node(op, *inputs, outputs=3, **flags, **MS))


FLOW: tuple[tuple[int, Step], ...] = (
    (5, branch), (2, ranks), (6, loop), (3, scan), (3, sequence), (1, optional), (3, recurrent),
    (4, attention),
)  # fmt: skip
