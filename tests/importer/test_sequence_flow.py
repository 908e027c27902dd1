"""Sequences and optionals through If, Loop and Scan, and what is refused, against ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TypeProto, helper
from sequence_models import agree, body, compiled, model, opt, seq, tensor

from smelt.core.diag import SmeltError
from smelt.importer import import_model

node = helper.make_node
rng = np.random.default_rng(1)
FLAT = tensor("f32", [None])
GOING = node("Identity", ["going"], ["on"])


def f32(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def i64(value: int) -> Any:
    return np.array(value, np.int64)


def arm(nodes: Sequence[NodeProto], name: str, t: TypeProto) -> GraphProto:
    return body(nodes, {}, {name: t})


def rounds(nodes: Sequence[NodeProto], states: dict[str, TypeProto], out: dict[str, TypeProto]) -> GraphProto:
    return body(
        nodes, {"i": tensor("i64"), "going": tensor("bool"), **states}, {"on": tensor("bool"), **out}
    )


# ---------------------------------------------------------------- optionals


def maybe_x() -> NodeProto:
    own = opt(tensor("f32", ["n"]))
    t = arm([node("Optional", ["x"], ["a"])], "a", own)
    e = arm([node("Optional", [], ["b"], type=tensor("f32", ["n"]))], "b", own)
    return node("If", ["c"], ["o"], then_branch=t, else_branch=e)


def test_branches_that_give_optionals() -> None:
    nodes = [maybe_x(), node("OptionalHasElement", ["o"], ["h"])]
    m = model(
        nodes, {"x": tensor("f32", ["n"]), "c": tensor("bool")},
        {"o": opt(tensor("f32", ["n"])), "h": tensor("bool")}, opset=18,
    )  # fmt: skip
    agree(m, {"x": f32(3), "c": np.array(True)}, {"x": f32(3), "c": np.array(False)})


def test_the_element_of_an_empty_optional_is_an_error() -> None:
    nodes = [maybe_x(), node("OptionalGetElement", ["o"], ["y"], "get")]
    m = model(nodes, {"x": tensor("f32", ["n"]), "c": tensor("bool")}, {"y": FLAT}, opset=18)
    agree(m, {"x": f32(3), "c": np.array(True)})
    with tempfile.TemporaryDirectory() as folder, pytest.raises(SmeltError, match="node 'get'") as caught:
        compiled(m, folder).run(None, {"x": f32(3), "c": np.array(False)})
    assert caught.value.kind == "shape"


def test_an_optional_sequence() -> None:
    get = [node("OptionalGetElement", ["o"], ["g"]), node("SequenceInsert", ["g", "x"], ["a"])]
    t = arm(get, "a", seq("f32"))
    e = arm([node("SequenceConstruct", ["x"], ["b"])], "b", seq("f32"))
    nodes = [
        node("OptionalHasElement", ["o"], ["c"]),
        node("If", ["c"], ["s"], then_branch=t, else_branch=e),
        node("SequenceLength", ["s"], ["n"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
        node("Identity", ["o"], ["p"]),
    ]
    m = model(
        nodes, {"o": opt(seq("f32", ["a"])), "x": tensor("f32", ["n"])},
        {"s": seq("f32"), "n": tensor("i64"), "y": FLAT, "p": opt(seq("f32", ["a"]))}, opset=18,
    )  # fmt: skip
    agree(m, *({"o": o, "x": f32(3)} for o in ([f32(2), f32(1)], None, [])))


def test_an_optional_that_is_always_empty() -> None:
    nodes = [
        node("Optional", [], ["o"], type=tensor("f32", ["n", 2])),
        node("OptionalHasElement", ["o"], ["h"]), node("Identity", ["x"], ["y"]),
    ]  # fmt: skip
    m = model(
        nodes, {"x": tensor("f32", ["n"])},
        {"o": opt(tensor("f32", ["n", 2])), "y": FLAT, "h": tensor("bool")}, opset=18,
    )  # fmt: skip
    agree(m, {"x": f32(2)})


# ---------------------------------------------------------------- branches


def test_an_empty_branch() -> None:
    t = arm([node("SequenceEmpty", [], ["a"])], "a", seq("f32"))
    e = arm([node("SequenceConstruct", ["x", "x"], ["b"])], "b", seq("f32"))
    nodes = [
        node("If", ["c"], ["s"], then_branch=t, else_branch=e),
        node("SequenceLength", ["s"], ["n"]), node("SequenceInsert", ["s", "x"], ["r"]),
        node("ConcatFromSequence", ["r"], ["y"], axis=0, new_axis=1),
    ]  # fmt: skip
    m = model(
        nodes, {"x": tensor("f32", ["n"]), "c": tensor("bool")},
        {"s": seq("f32"), "n": tensor("i64"), "y": tensor("f32", [None, None])},
    )  # fmt: skip
    agree(m, {"x": f32(3), "c": np.array(True)}, {"x": f32(3), "c": np.array(False)})


def test_a_branch_of_a_tensor_and_one_of_a_sequence() -> None:
    t = arm([node("SequenceConstruct", ["x"], ["a"])], "a", seq("f32"))
    e = arm([node("Identity", ["x"], ["b"])], "b", FLAT)
    m = model(
        [node("If", ["c"], ["s"], "choice", then_branch=t, else_branch=e)],
        {"x": tensor("f32", ["n"]), "c": tensor("bool")}, {"s": seq("f32")},
    )  # fmt: skip
    with pytest.raises(SmeltError, match="output 0 is a tensor on one side and") as caught:
        import_model(m)
    assert (caught.value.kind, caught.value.node) == ("invalid", "choice")


# ---------------------------------------------------------------- loops


def test_a_loop_until_the_data_says() -> None:
    steps = [
        node("Add", ["v", "v"], ["v2"]), node("SequenceInsert", ["q", "v2"], ["r"]),
        node("ReduceSum", ["v2"], ["sum"], keepdims=0), node("Less", ["sum", "most"], ["on"]),
    ]  # fmt: skip
    v, q = tensor("f32", ["n"]), seq("f32", ["n"])
    loop = rounds(steps, {"v": v, "q": q}, {"v2": v, "r": q})
    nodes = [
        node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["", "yes", "x", "q0"], ["l", "s"], body=loop),
        node("SequenceAt", ["s", "last"], ["y"]),
        node("ConcatFromSequence", ["s"], ["z"], axis=-1),
        node("ConcatFromSequence", ["s"], ["w"], axis=0, new_axis=1),
    ]
    m = model(
        nodes, {"x": v}, {"l": v, "s": seq("f32"), "y": FLAT, "z": FLAT, "w": tensor("f32", [None, None])},
        {"yes": np.array(True), "most": np.float32(100), "last": i64(-1)},
    )  # fmt: skip
    ones = [np.ones(3, np.float32), np.ones(1, np.float32), np.full(2, 1000, np.float32)]
    agree(m, *({"x": x} for x in ones))


@pytest.mark.parametrize("shape", [("a", "b"), (3, 5), (2, "b")])
def test_chunks_in_a_loop(shape: Any) -> None:
    """Split, work on each part, concatenate: the last part is shorter."""
    steps = [
        node("SequenceAt", ["parts", "i"], ["part"]),
        node("ReduceSum", ["part", "axis"], ["sum"]),
        node("Div", ["part", "sum"], ["share"]),
        node("SequenceInsert", ["q", "share"], ["r"]),
        GOING,
    ]
    nodes = [
        node("SplitToSequence", ["x", "two"], ["parts"], axis=1),
        node("SequenceLength", ["parts"], ["k"]), node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["k", "", "q0"], ["s"], body=rounds(steps, {"q": seq("f32")}, {"r": seq("f32")})),
        node("ConcatFromSequence", ["s"], ["y"], axis=1),
    ]  # fmt: skip
    m = model(
        nodes, {"x": tensor("f32", shape)}, {"y": tensor("f32", [None, None])},
        {"two": i64(2), "axis": np.array([1])},
    )  # fmt: skip
    a, b = (d if isinstance(d, int) else 2 for d in shape)
    sizes = [(a, b)] if b == 5 else [(a, 6), (a, 5), (a, 1)]
    agree(m, *({"x": np.abs(f32(*s)) + 1} for s in sizes))


def test_a_loop_that_erases() -> None:
    t = arm([node("SequenceErase", ["q"], ["a"])], "a", seq("f32"))
    e = arm([node("Identity", ["q"], ["b"])], "b", seq("f32"))
    steps = [
        node("SequenceLength", ["q"], ["n"]), node("Greater", ["n", "one"], ["c"]),
        node("If", ["c"], ["r"], then_branch=t, else_branch=e), GOING,
    ]  # fmt: skip
    out = {"r": seq("f32"), "n": tensor("i64")}
    nodes = [
        node("SequenceConstruct", ["x", "x", "x"], ["q0"]),
        node("Loop", ["k", "", "q0"], ["s", "ns"], body=rounds(steps, {"q": seq("f32")}, out)),
    ]
    m = model(
        nodes, {"x": tensor("f32", ["n"]), "k": tensor("i64")},
        {"s": seq("f32"), "ns": tensor("i64", [None])}, {"one": i64(1)},
    )  # fmt: skip
    agree(m, *({"x": f32(2), "k": i64(k)} for k in (1, 2, 5)))


def test_a_state_that_is_empty_before_the_loop_is_read_in_it() -> None:
    """The rank of its elements is learnt from the body; a guard keeps the first round from reading."""
    t = arm([node("SequenceAt", ["q", "last"], ["l"]), node("Add", ["l", "x"], ["a"])], "a", FLAT)
    e = arm([node("Identity", ["x"], ["b"])], "b", FLAT)
    steps = [
        node("SequenceLength", ["q"], ["n"]), node("Greater", ["n", "zero"], ["c"]),
        node("If", ["c"], ["v"], then_branch=t, else_branch=e),
        node("SequenceInsert", ["q", "v"], ["p"]), node("SequenceAt", ["p", "i"], ["w"]),
        node("SequenceInsert", ["p", "w", "zero"], ["r"]), GOING,
    ]  # fmt: skip
    nodes = [
        node("SequenceEmpty", [], ["q0"]),
        node("Loop", ["k", "", "q0"], ["s"], body=rounds(steps, {"q": seq("f32")}, {"r": seq("f32")})),
    ]
    m = model(
        nodes, {"x": tensor("f32", ["n"]), "k": tensor("i64")}, {"s": seq("f32")},
        {"last": i64(-1), "zero": i64(0)},
    )  # fmt: skip
    agree(m, *({"x": f32(2), "k": i64(k)} for k in (0, 1, 4)))


@pytest.mark.parametrize(
    ("extra", "carried"),
    [
        ([], 1),  # x alone: the sequence is a stack
        ([node("SequenceLength", ["q"], ["n"]), node("Cast", ["n"], ["w"], to=1)], 3),  # its length is read
        ([node("SequenceAt", ["r", "zero"], ["e"]), node("ReduceSum", ["e"], ["w"], keepdims=0)], 3),
    ],
)
def test_what_rounds_only_append_to_is_not_carried(extra: list[NodeProto], carried: int) -> None:
    step = [] if extra else [node("Identity", ["half"], ["w"])]
    steps = [
        node("SequenceInsert", ["q", "v"], ["r"]), *extra, *step, node("Mul", ["v", "w"], ["v2"]), GOING,
    ]  # fmt: skip
    v = tensor("f32", ["n", 2])
    out = {"v2": v, "r": seq("f32")}
    nodes = [
        node("SequenceInsert", ["q0", "x"], ["q1"]),
        node("Loop", ["k", "", "x", "q1"], ["l", "s"], body=rounds(steps, {"v": v, "q": seq("f32")}, out)),
        node("ConcatFromSequence", ["s"], ["y"], axis=1),
    ]
    m = model(
        nodes, {"x": v, "q0": seq("f32", ["a", 2]), "k": tensor("i64")},
        {"l": v, "s": seq("f32"), "y": tensor("f32", [None, None])},
        {"half": np.float32(0.5), "zero": i64(0)},
    )  # fmt: skip
    (loop,) = [n for n in import_model(m).main.nodes if n.op == "loop"]
    assert len(loop.inputs) - 2 == carried
    agree(m, *({"x": f32(3, 2), "q0": [f32(3, 2)] * n, "k": i64(k)} for n, k in ((0, 0), (0, 4), (2, 3))))


def test_a_scan_that_reads_a_sequence_around_it() -> None:
    steps = [
        node("SequenceAt", ["s", "j"], ["v"]), node("Add", ["state", "v"], ["next"]),
        node("Identity", ["next"], ["out"]),
    ]  # fmt: skip
    each = body(steps, {"state": FLAT, "j": tensor("i64")}, {"next": FLAT, "out": FLAT})
    nodes = [
        node("SequenceConstruct", ["a", "b"], ["s"]),
        node("Scan", ["a", "js"], ["last", "all"], body=each, num_scan_inputs=1),
    ]
    t = tensor("f32", ["n"])
    m = model(
        nodes, {"a": t, "b": t, "js": tensor("i64", ["k"])},
        {"last": FLAT, "all": tensor("f32", [None, None])},
    )  # fmt: skip
    agree(m, *({"a": f32(3), "b": f32(3), "js": np.array(js)} for js in ([0, 1, 1, 0, -1], [1])))


# ---------------------------------------------------------------- refusals


def picked(k: Any = None) -> onnx.ModelProto:
    inputs = {"s": seq("f32", ["a", 2])} | ({"k": tensor("i64")} if k is None else {})
    constants = {} if k is None else {"k": i64(k)}
    nodes = [node("SequenceAt", ["s", "k"], ["y"], "pick")]
    return model(nodes, inputs, {"y": tensor("f32", [None, 2])}, constants)


@pytest.mark.parametrize("constant", [False, True])
def test_positions_outside_are_errors_when_it_runs(constant: bool) -> None:
    s = [f32(2, 2), f32(1, 2)]
    for k, length in ((2, 2), (-3, 2), (0, 0)):
        feed = {"s": s[:length], **({} if constant else {"k": i64(k)})}
        with tempfile.TemporaryDirectory() as folder:
            session = compiled(picked(k if constant else None), folder)
            with pytest.raises(SmeltError) as caught:
                session.run(None, feed)
            assert caught.value.kind == "shape"


@pytest.mark.parametrize(
    ("nodes", "outputs", "text", "kind"),
    [
        (
            [node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "five"], ["y"], "bad")],
            {"y": FLAT}, "position: 5 is more than 0", "invalid",
        ),
        (
            [node("SequenceEmpty", [], ["s"]), node("SequenceErase", ["s"], ["t"], "bad")],
            {"t": seq("f32")}, "an element of an empty sequence is asked for", "invalid",
        ),
        (
            [node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], "bad", axis=0)],
            {"y": FLAT}, "the sequence is empty", "invalid",
        ),
        (
            [node("SequenceEmpty", [], ["s"], dtype=7), node("SequenceInsert", ["s", "x"], ["t"], "bad")],
            {"t": seq("i64")}, "a f32 tensor does not fit a sequence of i64", "invalid",
        ),
        (
            [node("SequenceConstruct", ["x"], ["s"]), node("Relu", ["s"], ["y"], "bad")],
            {"y": FLAT}, "found a sequence of 1 f32 tensors where a tensor", "invalid",
        ),
        ([node("SequenceLength", ["x"], ["y"], "bad")], {"y": FLAT}, "input 0 is a tensor", "invalid"),
        (
            [node("Optional", [], ["o"], type=FLAT), node("OptionalGetElement", ["o"], ["y"], "bad")],
            {"y": FLAT}, "the optional is empty", "invalid",
        ),
        (
            [node("SequenceAt", ["q", "five"], ["y"], "bad")],
            {"y": tensor("f32", None)}, "no common rank", "unsupported",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_when_compiling(nodes: Any, outputs: Any, text: str, kind: str) -> None:
    m = model(nodes, {"x": tensor("f32", ["n"]), "q": seq("f32")}, outputs, {"five": i64(5)}, opset=18)
    with pytest.raises(SmeltError, match=text) as caught:
        import_model(m)
    assert (caught.value.kind, caught.value.node) == (kind, "bad")


def test_sequences_of_maps_are_refused() -> None:
    t = helper.make_sequence_type_proto(onnx.TypeProto(map_type=onnx.TypeProto.Map(key_type=7)))
    with pytest.raises(SmeltError, match="input 's") as caught:
        import_model(model([node("SequenceLength", ["s"], ["n"])], {"s": t}, {"n": tensor("i64")}))
    assert caught.value.kind == "unsupported"
