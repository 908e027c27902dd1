"""Sequences and optionals of strings as run-time values against ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from sequence_models import body, compiled, model, opt, seq, tensor

node = helper.make_node
STRING = TensorProto.STRING


def text(shape: Any = ()) -> onnx.TypeProto:
    """The type of a tensor of strings."""
    return helper.make_tensor_type_proto(STRING, shape)


def texts(shape: Any = None) -> onnx.TypeProto:
    """The type of a sequence of them."""
    return helper.make_sequence_type_proto(text(shape))


def words(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    letters = list("abcdéxyz")
    found = ["".join(rng.choice(letters, rng.integers(0, 6))) for _ in range(int(np.prod(shape)))]
    return np.array(found, object).reshape(shape)


def i64(*values: int) -> Any:
    return np.array(values[0] if len(values) == 1 else values, np.int64)


def same(got: Any, want: Any) -> None:
    if isinstance(want, list) or isinstance(got, list):
        assert len(got) == len(want), (len(got), len(want))
        for g, w in zip(got, want, strict=True):
            same(g, w)
    elif want is None:
        assert got is None
    else:
        want = np.asarray(want)
        assert got.shape == want.shape, (got.shape, want.shape)
        np.testing.assert_array_equal(got, want)


def agree(m: onnx.ModelProto, *feeds: Mapping[str, Any], wanted: Any = None) -> None:
    """Compiled once, the model gives what ONNX Runtime gives for each feed, or what `wanted` says."""
    theirs = None
    if wanted is None:
        theirs = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:
        session = compiled(m, folder)
        for feed in feeds:
            want = wanted(feed) if theirs is None else theirs.run(None, dict(feed))
            for g, w in zip(session.run(None, feed), want, strict=True):
                same(g, w)


# ---------------------------------------------------------------- inside


@pytest.mark.parametrize("split", [None, [], [3]])
@pytest.mark.parametrize("axis", [0, 1])
def test_split_and_joined(split: list[int] | None, axis: int) -> None:
    """Parts of one, of a size, and of sizes; one of them; and all of them again."""
    more = ["k"] if split is not None else []
    parts = node("SplitToSequence", ["x", *more], ["s"], axis=axis, **({} if more else {"keepdims": 1}))
    nodes = [
        parts,
        node("SequenceAt", ["s", "p"], ["y"]),
        node("ConcatFromSequence", ["s"], ["z"], axis=axis),
        node("SequenceLength", ["s"], ["n"]),
    ]
    inputs = {"x": text(["a", "b"]), "p": tensor("i64")}
    inputs |= {"k": tensor("i64", split)} if split is not None else {}
    outputs = {"y": text([None, None]), "z": text([None, None]), "n": tensor("i64")}
    m = model(nodes, inputs, outputs)
    feeds = []
    for shape in ((6, 6), (9, 9)):
        n = shape[axis]
        sizes = {} if split is None else {"k": i64(2) if not split else i64(1, n - 3, 2)}
        feeds += [{"x": words(*shape), "p": i64(p), **sizes} for p in (0, 2, -1)]
    agree(m, *feeds)


def test_rows_without_their_axis() -> None:
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0),
        node("SequenceAt", ["s", "p"], ["y"]),
        node("ConcatFromSequence", ["s"], ["z"], axis=1, new_axis=1),
    ]
    m = model(
        nodes, {"x": text(["a", "b"]), "p": tensor("i64")}, {"y": text([None]), "z": text([None, None])}
    )
    agree(m, *({"x": words(n, 4), "p": i64(p)} for n, p in ((3, 0), (5, -1), (1, 0))))


def test_made_changed_and_erased() -> None:
    nodes = [
        node("SequenceConstruct", ["a", "b"], ["s"]),
        node("SequenceInsert", ["s", "c", "k"], ["t"]),
        node("SequenceErase", ["t", "k"], ["u"]),
        node("SequenceInsert", ["u", "c"], ["v"]),
        node("SequenceAt", ["v", "k"], ["y"]),
        node("ConcatFromSequence", ["v"], ["z"], axis=0),
    ]
    inputs = {n: text([n]) for n in "abc"} | {"k": tensor("i64")}
    m = model(nodes, inputs, {"y": text([None]), "z": text([None])})
    agree(m, *({"a": words(2), "b": words(3), "c": words(1), "k": i64(k)} for k in (0, 1, -1)))


def test_from_nothing() -> None:
    nodes = [
        node("SequenceEmpty", [], ["e"], dtype=STRING),
        node("SequenceInsert", ["e", "a"], ["s"]),
        node("SequenceInsert", ["s", "b"], ["t"]),
        node("ConcatFromSequence", ["t"], ["z"], axis=0),
        node("SequenceLength", ["e"], ["n"]),
    ]
    m = model(nodes, {n: text([n]) for n in "ab"}, {"z": text([None]), "n": tensor("i64")})
    agree(m, {"a": words(2), "b": words(0)}, {"a": words(1), "b": words(5)})


def test_in_a_loop_and_a_branch() -> None:
    """Rows are put into a sequence one by one, each doubled; a branch takes it, or the one from before."""
    inner = body(
        [
            node("Gather", ["x", "i"], ["row"]),
            node("StringConcat", ["row", "row"], ["twice"]),
            node("SequenceInsert", ["s", "twice"], ["s2"]),
            node("Identity", ["c"], ["c2"]),
        ],
        {"i": tensor("i64"), "c": tensor("bool"), "s": texts([None])},
        {"c2": tensor("bool"), "s2": texts([None])},
    )
    first = body([node("Identity", ["t"], ["r1"])], {}, {"r1": texts([None])})
    other = body([node("Identity", ["s0"], ["r2"])], {}, {"r2": texts([None])})
    nodes = [
        node("SequenceConstruct", ["a"], ["s0"]),
        node("Loop", ["n", "", "s0"], ["t"], body=inner),
        node("If", ["yes"], ["r"], then_branch=first, else_branch=other),
        node("ConcatFromSequence", ["r"], ["y"], axis=0),
        node("SequenceLength", ["r"], ["count"]),
    ]
    inputs = {"x": text(["m", "w"]), "a": text(["w0"]), "n": tensor("i64"), "yes": tensor("bool")}
    m = model(nodes, inputs, {"y": text([None]), "count": tensor("i64")}, opset=20)

    def wanted(feed: Mapping[str, Any]) -> list[Any]:
        rows = [feed["a"], *(feed["x"][k] * 2 for k in range(int(feed["n"])))]
        rows = rows if feed["yes"] else rows[:1]
        return [np.concatenate(rows), i64(len(rows))]

    feeds = [
        {"x": words(4, 3), "a": words(2), "n": i64(n), "yes": np.array(yes)}
        for n in (0, 1, 4)
        for yes in (False, True)
    ]
    agree(m, *feeds, wanted=wanted)


# ---------------------------------------------------------------- across the border


@pytest.mark.parametrize("shape", [["a", 2], None])
def test_inputs_and_outputs(shape: Any) -> None:
    nodes = [
        node("SequenceInsert", ["s", "x", "k"], ["t"]),
        node("SequenceLength", ["t"], ["n"]),
        node("SequenceErase", ["s"], ["u"]),
    ]
    inputs = {"s": texts(shape), "x": text(["b", 2]), "k": tensor("i64")}
    m = model(nodes, inputs, {"t": texts(), "n": tensor("i64"), "u": texts()})
    items = [words(n, 2, seed=n) for n in (3, 0, 1)]

    def wanted(feed: Mapping[str, Any]) -> list[Any]:
        s, k = list(feed["s"]), int(feed["k"])
        s.insert(k, feed["x"])
        return [s, i64(len(s)), list(feed["s"])[:-1]]

    feeds = [{"s": items, "x": words(2, 2), "k": i64(k)} for k in (0, 1, 3)]
    agree(m, *feeds, {"s": items[:1], "x": words(1, 2), "k": i64(1)}, wanted=wanted)


def test_parts_as_an_output() -> None:
    nodes = [node("SplitToSequence", ["x", "k"], ["s"], axis=0)]
    m = model(nodes, {"x": text(["a"]), "k": tensor("i64", ["p"])}, {"s": texts()})
    cuts = lambda feed: [np.split(feed["x"], np.cumsum(feed["k"])[:-1])]
    agree(m, {"x": words(6), "k": i64(1, 3, 2)}, {"x": words(2), "k": i64(0, 2)}, wanted=cuts)


def test_optional_strings() -> None:
    nodes = [node("OptionalHasElement", ["x"], ["h"]), node("OptionalGetElement", ["x"], ["y"])]
    m = model(nodes, {"x": opt(text(["n"]))}, {"h": tensor("bool"), "y": text(["n"])}, opset=18)
    agree(m, {"x": words(3)}, {"x": words(0)}, wanted=lambda feed: [np.array(True), feed["x"]])
    m = model(
        [node("OptionalHasElement", ["x"], ["h"])], {"x": opt(texts())}, {"h": tensor("bool")}, opset=18
    )
    agree(m, {"x": None}, {"x": [words(2)]}, wanted=lambda feed: [np.array(feed["x"] is not None)])


def test_numbers_stay_numbers() -> None:
    """A sequence of numbers beside one of strings."""
    nodes = [
        node("SequenceAt", ["s", "k"], ["y"]),
        node("SequenceAt", ["v", "k"], ["z"]),
    ]
    inputs = {"s": texts(["a"]), "v": seq("i64", ["a"]), "k": tensor("i64")}
    m = model(nodes, inputs, {"y": text([None]), "z": tensor("i64", [None])})
    s, v = [words(2), words(1)], [i64(1, 2), i64(3).reshape(1)]
    agree(m, {"s": s, "v": v, "k": i64(1)}, wanted=lambda feed: [s[1], v[1]])


@pytest.mark.parametrize("op", ["Identity", "SequenceConstruct"])
def test_outputs_without_a_type(op: str) -> None:
    """A tensor of strings and a sequence of them, of which the file does not say what they are."""
    m = model([node(op, ["x"], ["y"])], {"x": text(["n"])}, {})
    m.graph.output.append(helper.make_empty_tensor_value_info("y"))
    agree(m, {"x": words(3)}, {"x": words(0)})
