"""Sequences as run-time values against ONNX Runtime: each model is compiled once and run at several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from sequence_models import agree, body, model, opt, seq, tensor

node = helper.make_node
rng = np.random.default_rng(0)


def f32(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def i64(*values: int) -> Any:
    return np.array(values[0] if len(values) == 1 else values, np.int64)


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize("shape", [("n", 3), (2, 3), ()])
def test_at_a_run_time_position_of_a_list(shape: Any) -> None:
    nodes = [node("SequenceConstruct", ["a", "b", "c"], ["s"]), node("SequenceAt", ["s", "k"], ["y"])]
    t = tensor("f32", shape)
    m = model(nodes, {"a": t, "b": t, "c": t, "k": tensor("i64")}, {"y": tensor("f32", [None] * len(shape))})
    sizes = [2 if d == "n" else d for d in shape]
    feed = {name: f32(*sizes) for name in "abc"}
    agree(m, *({**feed, "k": i64(k)} for k in (-3, -1, 0, 1, 2)))


def test_at_a_position_of_elements_of_different_sizes() -> None:
    nodes = [node("SequenceConstruct", ["a", "b", "c"], ["s"]), node("SequenceAt", ["s", "k"], ["y"])]
    types = {n: tensor("f32", [f"{n}0", f"{n}1"]) for n in "abc"}
    m = model(nodes, {**types, "k": tensor("i64")}, {"y": tensor("f32", [None, None])})
    feed = {"a": f32(2, 3), "b": f32(0, 4), "c": f32(5, 1)}
    agree(m, *({**feed, "k": i64(k)} for k in (-3, -2, -1, 0, 1, 2)))


@pytest.mark.parametrize("dtype", ["f32", "i64", "bool", "f16", "u8"])
def test_at_of_an_input(dtype: str) -> None:
    nodes = [node("SequenceAt", ["s", "k"], ["y"]), node("SequenceLength", ["s"], ["n"])]
    m = model(
        nodes,
        {"s": seq(dtype, ["a", 2]), "k": tensor("i64")},
        {"y": tensor(dtype, [None, 2]), "n": tensor("i64")},
    )
    element = helper.tensor_dtype_to_np_dtype(m.graph.output[0].type.tensor_type.elem_type)
    s = [(rng.integers(0, 2, (n, 2))).astype(element) for n in (3, 0, 1)]
    agree(m, *({"s": s, "k": i64(k)} for k in (0, 1, 2, -1, -3)), {"s": s[:1], "k": i64(0)})


def test_elements_of_rank_0() -> None:
    nodes = [
        node("SequenceInsert", ["s", "x", "k"], ["t"]), node("SequenceAt", ["t", "j"], ["y"]),
        node("ConcatFromSequence", ["t"], ["z"], axis=0, new_axis=1),
    ]  # fmt: skip
    m = model(
        nodes, {"s": seq("f32", []), "x": tensor("f32"), "k": tensor("i64"), "j": tensor("i64")},
        {"t": seq("f32"), "y": tensor("f32"), "z": tensor("f32", [None])},
    )  # fmt: skip
    s = [f32() for _ in range(3)]
    agree(
        m,
        *({"s": s[:n], "x": f32(), "k": i64(k), "j": i64(-1)} for n, k in ((3, 0), (3, 3), (1, -1), (0, 0))),
    )


# ---------------------------------------------------------------- insert and erase


@pytest.mark.parametrize("dims", [["a", "b"], ["a", 2], [3, 2], None])
def test_insert_into_an_input(dims: Any) -> None:
    nodes = [
        node("SequenceInsert", ["s", "x"], ["t"]),
        node("SequenceInsert", ["t", "x", "k"], ["u"]),
        node("SequenceLength", ["u"], ["n"]),
    ]
    m = model(
        nodes, {"s": seq("f32", dims), "x": tensor("f32", ["n", 2]), "k": tensor("i64")},
        {"u": seq("f32"), "n": tensor("i64")},
    )  # fmt: skip
    s = [f32(3, 2) for _ in range(3)]
    agree(
        m, *({"s": s[:n], "x": f32(3, 2), "k": i64(k)} for n, k in ((3, 0), (3, -1), (3, 4), (1, 1), (0, 0)))
    )


def test_erase_from_an_input() -> None:
    nodes = [node("SequenceErase", ["s", "k"], ["t"]), node("SequenceErase", ["t"], ["u"])]
    m = model(nodes, {"s": seq("f32", ["a", "b"]), "k": tensor("i64")}, {"t": seq("f32"), "u": seq("f32")})
    s = [f32(2, 3), f32(0, 1), f32(4, 4)]
    agree(m, *({"s": s, "k": i64(k)} for k in (0, 1, 2, -1, -2, -3)), {"s": s[1:], "k": i64(1)})


def test_ranks_that_differ() -> None:
    """Elements of several ranks can be inserted, returned, and read where the file tells the rank."""
    nodes = [
        node("SequenceInsert", ["s", "x"], ["t"]),
        node("SequenceInsert", ["t", "y", "zero"], ["u"]),
        node("SequenceAt", ["u", "k"], ["z"]),
    ]
    m = model(
        nodes,
        {"s": seq("f32"), "x": tensor("f32", ["n"]), "y": tensor("f32", ["a", "b", "c"]), "k": tensor("i64")},
        {"u": seq("f32"), "z": tensor("f32", [None])}, {"zero": i64(0)},
    )  # fmt: skip
    feed = {"s": [f32(2, 3), f32(), f32(4)], "x": f32(3), "y": f32(2, 1, 2)}
    agree(m, {**feed, "k": i64(-1)}, {**feed, "k": i64(3)})


# ---------------------------------------------------------------- split and concat


@pytest.mark.table(2)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keep", [0, 1])
def test_split_into_ones(axis: int, keep: int) -> None:
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=axis, keepdims=keep),
        node("SequenceAt", ["s", "k"], ["y"]),
        node("ConcatFromSequence", ["s"], ["z"], axis=axis, new_axis=1 - keep),
    ]
    m = model(
        nodes, {"x": tensor("f32", ["a", "b", 3]), "k": tensor("i64")},
        {"s": seq("f32"), "y": tensor("f32", [None] * (2 + keep)), "z": tensor("f32", [None] * 3)},
    )  # fmt: skip
    agree(m, {"x": f32(2, 4, 3), "k": i64(-1)}, {"x": f32(1, 5, 3), "k": i64(0)})


@pytest.mark.table(2)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("given", ["constant", "run time"])
def test_split_into_chunks(axis: int, given: str) -> None:
    nodes = [
        node("SplitToSequence", ["x", "split"], ["s"], axis=axis),
        node("ConcatFromSequence", ["s"], ["y"], axis=axis),
        node("SequenceLength", ["s"], ["n"]),
    ]
    run = given != "constant"
    inputs = {"x": tensor("f32", ["a", "b", "c"]), **({"split": tensor("i64")} if run else {})}
    outputs = {"s": seq("f32"), "y": tensor("f32", [None] * 3), "n": tensor("i64")}
    m = model(nodes, inputs, outputs, {} if run else {"split": i64(3)})
    splits = (3, 1, 7) if run else (3,)
    shapes = ((6, 6, 6), (7, 8, 4), (2, 1, 3))
    agree(m, *({"x": f32(*s), **({"split": i64(k)} if run else {})} for s in shapes for k in splits))


@pytest.mark.table(2)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("length", [3, "parts"])
def test_split_into_parts_of_run_time_sizes(axis: int, length: Any) -> None:
    nodes = [
        node("SplitToSequence", ["x", "split"], ["s"], axis=axis),
        node("ConcatFromSequence", ["s"], ["y"], axis=axis),
        node("SequenceAt", ["s", "one"], ["z"]),
    ]
    m = model(
        nodes, {"x": tensor("f32", ["a", "b", "c"]), "split": tensor("i64", [length])},
        {"s": seq("f32"), "y": tensor("f32", [None] * 3), "z": tensor("f32", [None] * 3)}, {"one": i64(1)},
    )  # fmt: skip
    splits = [(2, 1, 3), (0, 6, 0), (4, 0, 2)] + ([] if length == 3 else [(1, 5), (1, 1, 1, 1, 1, 1)])
    shape = [2, 3, 4]
    shape[axis] = 6
    agree(m, *({"x": f32(*shape), "split": i64(*s)} for s in splits))


@pytest.mark.table(2)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("new", [0, 1])
def test_concat_of_an_input(axis: int, new: int) -> None:
    nodes = [node("ConcatFromSequence", ["s"], ["y"], axis=axis, new_axis=new)]
    m = model(nodes, {"s": seq("f32", ["a", "b"])}, {"y": tensor("f32", [None] * (2 + new))})
    feeds = [[f32(2, 3)] * 3, [f32(4, 1)]]
    if not new:
        feeds.append([f32(*((n, 3) if axis == 0 else (3, n))) for n in (2, 0, 4)])
    agree(m, *({"s": s} for s in feeds))


def test_concat_of_elements_without_a_declared_rank() -> None:
    nodes = [node("ConcatFromSequence", ["s"], ["y"], axis=0)]
    m = model(nodes, {"s": seq("f32")}, {"y": tensor("f32", [None, None])})
    agree(m, {"s": [f32(2, 3), f32(1, 3)]})


# ---------------------------------------------------------------- control flow


def appending(*extra: Any, x: str, state: Any) -> Any:
    return body(
        [*extra, node("SequenceInsert", ["q", x], ["r"]), node("Identity", ["going"], ["on"])],
        {"i": tensor("i64"), "going": tensor("bool"), "q": state}, {"on": tensor("bool"), "r": state},
    )  # fmt: skip


def test_loop_that_appends_slices() -> None:
    extra = [
        node("Add", ["i", "one"], ["next"]), node("Unsqueeze", ["next", "axis"], ["end"]),
        node("Slice", ["x", "zero", "end"], ["part"]),
    ]  # fmt: skip
    nodes = [
        node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["k", "", "q0"], ["s"], body=appending(*extra, x="part", state=seq("f32"))),
        node("SequenceLength", ["s"], ["n"]),
    ]
    m = model(
        nodes, {"x": tensor("f32", ["a", 2]), "k": tensor("i64")}, {"s": seq("f32"), "n": tensor("i64")},
        {"one": i64(1), "axis": np.array([0]), "zero": np.array([0])},
    )  # fmt: skip
    agree(m, *({"x": f32(5, 2), "k": i64(k)} for k in (0, 1, 4, 9)))


def test_greedy_decoder() -> None:
    """Tokens pile up until one is the last; how many there are, only the data says."""
    steps = [
        node("Gather", ["table", "token"], ["logits"]),
        node("ArgMax", ["logits"], ["next"], axis=-1, keepdims=0),
        node("SequenceInsert", ["q", "next"], ["r"]),
        node("Equal", ["next", "stop"], ["stopped"]),
        node("Squeeze", ["stopped"], ["flat"]),
        node("Not", ["flat"], ["on"]),
    ]
    loop = body(
        steps,
        {"i": tensor("i64"), "going": tensor("bool"), "token": tensor("i64", [1]), "q": seq("i64", [1])},
        {"on": tensor("bool"), "next": tensor("i64", [1]), "r": seq("i64", [1])},
    )  # fmt: skip
    nodes = [
        node("SequenceEmpty", [], ["empty"], dtype=TensorProto.INT64),
        node("Loop", ["most", "yes", "first", "empty"], ["last", "s"], body=loop),
        node("ConcatFromSequence", ["s"], ["tokens"], axis=0),
        node("SequenceLength", ["s"], ["n"]),
    ]
    m = model(
        nodes, {"table": tensor("f32", ["v", "v"]), "first": tensor("i64", [1])},
        {"tokens": tensor("i64", [None]), "last": tensor("i64", [1]), "n": tensor("i64")},
        {"most": i64(20), "yes": np.array(True), "stop": np.array([0])},
    )  # fmt: skip
    successor = np.zeros((7, 7), np.float32)
    for a, b in ((1, 3), (3, 5), (5, 2), (2, 0), (4, 4), (6, 0)):
        successor[a, b] = 1
    found = agree(m, *({"table": successor, "first": np.array([k])} for k in (1, 6, 4)))
    assert [len(f[0]) for f in found] == [4, 1, 20]


def test_loop_that_reads_what_it_carries() -> None:
    """Elements are replaced in turn: the length stays, the sizes change."""
    steps = [
        node("SequenceAt", ["q", "i"], ["a"]),
        node("Concat", ["a", "x"], ["b"], axis=0),
        node("SequenceErase", ["q", "i"], ["p"]),
        node("SequenceInsert", ["p", "b", "i"], ["r"]),
        node("Identity", ["going"], ["on"]),
    ]
    loop = body(
        steps, {"i": tensor("i64"), "going": tensor("bool"), "q": seq("f32", [None])},
        {"on": tensor("bool"), "r": seq("f32", [None])},
    )  # fmt: skip
    nodes = [
        node("SequenceConstruct", ["x", "y", "x"], ["q0"]),
        node("Loop", ["k", "", "q0"], ["s"], body=loop),
        node("ConcatFromSequence", ["s"], ["z"], axis=0),
    ]
    m = model(
        nodes, {"x": tensor("f32", ["n"]), "y": tensor("f32", ["m"]), "k": tensor("i64")},
        {"s": seq("f32"), "z": tensor("f32", [None])},
    )  # fmt: skip
    agree(m, *({"x": f32(2), "y": f32(3), "k": i64(k)} for k in (0, 1, 3)))


def test_if_with_sequences_of_different_lengths() -> None:
    t = body([node("SequenceConstruct", ["x", "y"], ["a"])], {}, {"a": seq("f32")})
    e = body([node("SequenceInsert", ["q", "y"], ["b"])], {}, {"b": seq("f32")})
    nodes = [
        node("SequenceConstruct", ["x"], ["q0"]), node("SequenceErase", ["q0"], ["q"]),
        node("If", ["c"], ["s"], then_branch=t, else_branch=e),
        node("SequenceLength", ["s"], ["n"]), node("SequenceAt", ["s", "k"], ["z"]),
    ]  # fmt: skip
    m = model(
        nodes,
        {"x": tensor("f32", ["a", 2]), "y": tensor("f32", ["b", 2]), "c": tensor("bool"), "k": tensor("i64")},
        {"s": seq("f32"), "n": tensor("i64"), "z": tensor("f32", [None, 2])},
    )  # fmt: skip
    feed = {"x": f32(3, 2), "y": f32(1, 2), "k": i64(-1)}
    agree(m, {**feed, "c": np.array(True)}, {**feed, "c": np.array(False)})


def test_if_inside_a_loop() -> None:
    """Only rounds whose number is even append."""
    t = body([node("SequenceInsert", ["q", "v"], ["p"])], {}, {"p": seq("f32", [None])})
    e = body([node("Identity", ["q"], ["p2"])], {}, {"p2": seq("f32", [None])})
    steps = [
        node("Mod", ["i", "two"], ["odd"]), node("Equal", ["odd", "zero"], ["even"]),
        node("SequenceAt", ["xs", "i"], ["v"]),
        node("If", ["even"], ["r"], then_branch=t, else_branch=e), node("Identity", ["going"], ["on"]),
    ]  # fmt: skip
    loop = body(
        steps, {"i": tensor("i64"), "going": tensor("bool"), "q": seq("f32", [None])},
        {"on": tensor("bool"), "r": seq("f32", [None])},
    )  # fmt: skip
    nodes = [
        node("SequenceLength", ["xs"], ["n"]), node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["n", "", "q0"], ["s"], body=loop),
    ]  # fmt: skip
    m = model(nodes, {"xs": seq("f32", ["a"])}, {"s": seq("f32")}, {"two": i64(2), "zero": i64(0)})
    agree(m, *({"xs": [f32(k % 4) for k in range(n)]} for n in (0, 1, 2, 7)))


def test_loops_inside_loops() -> None:
    """The inner loop appends to a sequence that the outer one carries, and starts one of its own."""
    inner = body(
        [
            node("Add", ["i", "j"], ["sum"]), node("SequenceInsert", ["p", "sum"], ["p2"]),
            node("SequenceInsert", ["own", "j"], ["own2"]), node("Identity", ["going2"], ["on2"]),
        ],
        {"j": tensor("i64"), "going2": tensor("bool"), "p": seq("i64", []), "own": seq("i64", [])},
        {"on2": tensor("bool"), "p2": seq("i64", []), "own2": seq("i64", [])},
    )  # fmt: skip
    outer = body(
        [
            node("SequenceEmpty", [], ["fresh"], dtype=TensorProto.INT64),
            node("Loop", ["i", "", "q", "fresh"], ["r", "mine"], body=inner),
            node("SequenceLength", ["mine"], ["count"]), node("Identity", ["going"], ["on"]),
        ],
        {"i": tensor("i64"), "going": tensor("bool"), "q": seq("i64", [])},
        {"on": tensor("bool"), "r": seq("i64", []), "count": tensor("i64")},
    )  # fmt: skip
    nodes = [
        node("SequenceEmpty", [], ["q0"], dtype=TensorProto.INT64),
        node("Loop", ["k", "", "q0"], ["s", "counts"], body=outer),
    ]
    m = model(nodes, {"k": tensor("i64")}, {"s": seq("i64"), "counts": tensor("i64", [None])})
    agree(m, *({"k": i64(k)} for k in (1, 2, 4)))


def test_sequence_map() -> None:
    each = body(
        [node("Add", ["e", "w"], ["sum"]), node("Shape", ["e"], ["shape"])],
        {"e": tensor("f32", ["a", 3]), "w": tensor("f32", [3])},
        {"sum": tensor("f32", ["a", 3]), "shape": tensor("i64", [2])},
    )  # fmt: skip
    nodes = [node("SequenceMap", ["xs", "v"], ["ys", "shapes"], body=each)]
    m = model(
        nodes, {"xs": seq("f32", ["a", 3]), "v": tensor("f32", [3])},
        {"ys": seq("f32"), "shapes": seq("i64")},
    )  # fmt: skip
    agree(m, *({"xs": [f32(k + 1, 3) for k in range(n)], "v": f32(3)} for n in (1, 4, 0)))


# ---------------------------------------------------------------- optionals


def test_optional_inputs() -> None:
    """What is not given takes the place of a default."""
    t = body([node("OptionalGetElement", ["o"], ["a"])], {}, {"a": tensor("f32", [None])})
    e = body([node("Identity", ["x"], ["b"])], {}, {"b": tensor("f32", [None])})
    nodes = [
        node("OptionalHasElement", ["o"], ["c"]), node("If", ["c"], ["y"], then_branch=t, else_branch=e),
    ]  # fmt: skip
    m = model(
        nodes, {"o": opt(tensor("f32", ["m"])), "x": tensor("f32", ["n"])},
        {"y": tensor("f32", [None]), "c": tensor("bool")}, opset=18,
    )  # fmt: skip
    agree(m, {"o": f32(3), "x": f32(2)}, {"o": None, "x": f32(2)})


# ---------------------------------------------------------------- outputs without a type


@pytest.mark.parametrize(
    "nodes",
    [
        [node("SplitToSequence", ["x"], ["y"], axis=0)],
        [node("SequenceEmpty", [], ["e"]), node("SequenceInsert", ["e", "x"], ["y"])],
        [node("ReduceSum", ["x"], ["r"], keepdims=0), node("SequenceConstruct", ["x", "r"], ["y"])],
        [node("Optional", ["x"], ["y"])],
    ],
)
def test_outputs_without_a_type(nodes: Any) -> None:
    """An output that the file gives no type has that of its node."""
    m = model([*nodes, node("Neg", ["x"], ["z"])], {"x": tensor("f32", ["n", 2])}, {}, opset=18)
    m.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in ("y", "z"))
    agree(m, {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}, {"x": f32(0, 2)})
