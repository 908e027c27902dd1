"""If, Loop, Scan, functions and recurrent ops against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import agree, imported, info, model, ops_of, types_of

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

node = helper.make_node


def graph(
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    inputs: dict[str, tuple[str, Any]] | None = None,
    **types: str,
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "g", [info(k, d, s) for k, (d, s) in (inputs or {}).items()],
        [info(o, types.get(o, "f32"), None) for o in outputs],
    )  # fmt: skip


def if_model(
    then: onnx.GraphProto, other: onnx.GraphProto, *before: onnx.NodeProto, **constants: Any
) -> onnx.ModelProto:
    nodes = [*before, node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other)]
    inputs: dict[str, Any] = {"x": ("f32", ["n", "m"])}
    if not before:
        inputs["c"] = ("bool", [])
    return model(nodes, inputs, {"y": "f32"}, {k: np.asarray(v) for k, v in constants.items()})


def test_if_with_regions() -> None:
    m = if_model(graph([node("Neg", ["x"], ["a"])], ["a"]), graph([node("Exp", ["x"], ["b"])], ["b"]))
    module = imported(m)
    assert ops_of(module) == ["if"]
    assert types_of(module) == ["f32[n, m]"]
    for c in (True, False):
        agree(m, {"x": np.ones((2, 3), np.float32), "c": np.array(c)})


def test_if_whose_branches_differ_in_size() -> None:
    then = graph([node("Concat", ["x", "x"], ["a"], axis=0)], ["a"])
    m = if_model(then, graph([node("Identity", ["x"], ["b"])], ["b"]))
    (text,) = types_of(imported(m))
    assert text == "f32[if_size, m]"
    known = {s.name: (s.low, s.high) for s in imported(m, dims={"n": (2, 12)}).symbols}
    assert known["if_size"] == (2, 24)
    for c in (True, False):
        agree(m, {"x": np.ones((2, 3), np.float32), "c": np.array(c)})


def test_a_known_condition_leaves_one_branch() -> None:
    before = [node("Shape", ["x"], ["s"]), node("Size", ["s"], ["r"]), node("Equal", ["r", "two"], ["c"])]
    then = graph([node("Unsqueeze", ["x", "ax"], ["a"])], ["a"])
    m = if_model(then, graph([node("Identity", ["x"], ["b"])], ["b"]), *before, two=2, ax=[0])
    assert ops_of(imported(m)) == ["reshape"]
    agree(m, {"x": np.ones((2, 3), np.float32)})


def test_a_condition_that_decides_the_rank_is_taken_to_hold() -> None:
    """If(size == 1) Squeeze else Identity, which is how torch exports squeeze(1)."""
    before = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["k"]),
        node("Equal", ["k", "one"], ["c"]),
    ]
    then = graph([node("Squeeze", ["x", "ax"], ["a"])], ["a"])
    m = if_model(then, graph([node("Identity", ["x"], ["b"])], ["b"]), *before, one=1, ax=[1])
    module = imported(m)
    assert types_of(module) == ["f32[n]"]
    agree(m, {"x": np.ones((4, 1), np.float32)})
    with pytest.raises(SmeltError) as caught:
        run_module(module, {"x": np.ones((4, 2), np.float32)}, OPS)
    assert caught.value.kind == "shape"


def test_a_rank_that_a_run_decides_is_unsupported() -> None:
    then = graph([node("Unsqueeze", ["x", "ax"], ["a"])], ["a"])
    m = if_model(then, graph([node("Identity", ["x"], ["b"])], ["b"]))
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "ax"))
    with pytest.raises(SmeltError, match="outputs of different rank") as caught:
        import_model(m)
    assert (caught.value.kind, caught.value.node) == ("unsupported", "choice")


def test_checks_of_a_branch_bind_only_it() -> None:
    """The Add needs n == m; without it any sizes do."""
    then = graph([node("Transpose", ["x"], ["t"]), node("Add", ["x", "t"], ["a"])], ["a"])
    m = if_model(then, graph([node("Neg", ["x"], ["b"])], ["b"]))
    module = imported(m)
    assert [str(v.type) for v in module.main.inputs] == ["f32[n, m]", "bool[]"]
    agree(m, {"x": np.ones((2, 3), np.float32), "c": np.array(False)})
    agree(m, {"x": np.ones((3, 3), np.float32), "c": np.array(True)})
    with pytest.raises(SmeltError) as caught:
        run_module(module, {"x": np.ones((2, 3), np.float32), "c": np.array(True)}, OPS)
    assert caught.value.kind == "shape"


@pytest.mark.parametrize("holds", [True, False])
def test_a_branch_that_could_not_run_refuses_no_model(holds: bool) -> None:
    """With these sizes the Add could not; a run that takes its branch is told so. A node that is wrong with
    any sizes is refused wherever it stands."""
    arms = [
        graph([node("Transpose", ["x"], ["t"]), node("Add", ["x", "t"], ["a"])], ["a"]),
        graph([node("Neg", ["x"], ["b"])], ["b"]),
    ]
    m = if_model(*(arms if holds else arms[::-1]))
    module = imported(m, dims={"n": 2, "m": 3})
    x = np.ones((2, 3), np.float32)
    (y,) = run_module(module, {"x": x, "c": np.array(not holds)}, OPS)
    np.testing.assert_array_equal(y, -x)
    with pytest.raises(SmeltError, match="branch_in_which_all_nodes_can_run") as caught:
        run_module(module, {"x": x, "c": np.array(holds)}, OPS)
    assert caught.value.kind == "shape"
    arms[0].node[1].input.append("x")
    with pytest.raises(SmeltError, match="3 inputs") as caught:
        import_model(if_model(*arms), dims={"n": 2, "m": 3})
    assert caught.value.kind == "invalid"


def loop_body(*extra: onnx.NodeProto, state: list[Any], out: list[str]) -> onnx.GraphProto:
    nodes = [node("Identity", ["going"], ["on"]), *extra]
    return graph(
        nodes, ["on", *out], {"i": ("i64", []), "going": ("bool", []), "s": ("f32", state)}, on="bool"
    )


def test_loop_with_scan_outputs() -> None:
    body = loop_body(
        node("Cast", ["i"], ["f"], to=1), node("Add", ["s", "f"], ["t"]), node("Mul", ["t", "t"], ["q"]),
        state=["n"], out=["t", "q"],
    )  # fmt: skip
    nodes = [node("Loop", ["k", "", "x"], ["last", "y"], body=body)]
    m = model(nodes, {"x": ("f32", ["n"]), "k": ("i64", [])}, {"last": "f32", "y": "f32"})
    assert types_of(imported(m)) == ["f32[n]", "f32[trips, n]"]
    for k in (1, 4):  # without a round ONNX Runtime does not know the other extents of a stack
        feeds = {"x": np.ones(3, np.float32), "k": np.array(k)}
        agree(m, feeds)


def test_loop_that_grows_what_it_carries() -> None:
    body = loop_body(node("Concat", ["s", "x"], ["t"], axis=0), state=[None], out=["t"])
    m = model(
        [node("Loop", ["k", "", "x"], ["y"], body=body)],
        {"x": ("f32", ["n"]), "k": ("i64", [])},
        {"y": "f32"},
    )
    assert types_of(imported(m)) == ["f32[loop_size]"]
    agree(m, {"x": np.ones(3, np.float32), "k": np.array(3)})


def test_a_stack_of_what_is_chosen_inside_has_its_bound() -> None:
    small = graph([node("Identity", ["s"], ["b"])], ["b"])
    body = loop_body(
        node("ReduceSum", ["s"], ["f"], keepdims=0), node("Cast", ["f"], ["c"], to=9),
        node("If", ["c"], ["q"], then_branch=graph([node("Concat", ["s", "s"], ["a"], axis=0)], ["a"]),
             else_branch=small),
        state=["n"], out=["s", "q"],
    )  # fmt: skip
    nodes = [node("Loop", ["k", "", "x"], ["last", "y"], body=body)]
    m = model(nodes, {"x": ("f32", ["n"]), "k": ("i64", [])}, {"last": "f32", "y": "f32"})
    known = {s.name: (s.low, s.high) for s in imported(m, dims={"n": (2, 12)}).symbols}
    assert known["if_size"] == (2, 24) and known["stack_size"] == (0, 24)
    agree(m, {"x": np.ones(3, np.float32), "k": np.array(2)})


def test_loop_until_a_condition() -> None:
    body = graph(
        [
            node("Add", ["s", "s"], ["t"]),
            node("ReduceSum", ["t"], ["r"], keepdims=0),
            node("Less", ["r", "limit"], ["on"]),
        ],
        ["on", "t"], {"i": ("i64", []), "going": ("bool", []), "s": ("f32", ["n"])}, on="bool",
    )  # fmt: skip
    m = model(
        [node("Loop", ["", "true", "x"], ["y"], body=body)], {"x": ("f32", ["n"])}, {"y": "f32"},
        {"true": np.array(True), "limit": np.array(100, np.float32)},
    )  # fmt: skip
    agree(m, {"x": np.ones(3, np.float32)})


def test_scan() -> None:
    body = graph(
        [node("Add", ["s", "e"], ["t"]), node("Identity", ["t"], ["o"])], ["t", "o"],
        {"s": ("f32", [2]), "e": ("f32", [2])},
    )  # fmt: skip
    for directions in ([0], [1]):
        nodes = [
            node(
                "Scan",
                ["z", "x"],
                ["last", "y"],
                body=body,
                num_scan_inputs=1,
                scan_input_directions=directions,
            )
        ]
        m = model(nodes, {"z": ("f32", [2]), "x": ("f32", ["n", 2])}, {"last": "f32", "y": "f32"})
        for n in (1, 7):
            x = np.random.default_rng(n).random((n, 2), np.float32)
            agree(m, {"z": np.ones(2, np.float32), "x": x})


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("time", [3, 6])
def test_recurrent(op: str, direction: str, lengths: bool, time: int) -> None:
    rng = np.random.default_rng(3)
    d, g, h, i, batch = 2 if direction == "bidirectional" else 1, GATES[op], 4, 3, 2
    constants = {
        "w": rng.standard_normal((d, g * h, i)).astype(np.float32),
        "r": rng.standard_normal((d, g * h, h)).astype(np.float32),
        "b": rng.standard_normal((d, 2 * g * h)).astype(np.float32),
        "h0": rng.standard_normal((d, batch, h)).astype(np.float32),
    }
    names = ["x", "w", "r", "b", "len" if lengths else "", "h0"]
    inputs: dict[str, Any] = {"x": ("f32", ["time" if time > 4 else time, 2, 3])}
    feeds: dict[str, Any] = {"x": rng.standard_normal((time, 2, 3)).astype(np.float32)}
    if lengths:
        inputs["len"], feeds["len"] = ("i32", [2]), np.array([time, 2], np.int32)
    outputs = ["y", "yh", *(["yc"] if op == "LSTM" else [])]
    m = model(
        [node(op, names, outputs, direction=direction, hidden_size=h)],
        inputs,
        dict.fromkeys(outputs, "f32"),
        constants,
    )
    ops = ops_of(imported(m))
    assert ("loop" in ops) is (time > 4)
    agree(m, feeds, 1e-4)


@pytest.mark.parametrize("length", [0, "t"])
def test_no_steps(length: Any) -> None:
    rng = np.random.default_rng(3)
    weights = {
        k: rng.standard_normal(s).astype(np.float32) for k, s in {"w": (1, 8, 3), "r": (1, 8, 2)}.items()
    }
    m = model(
        [node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=2)],
        {"x": ("f32", [length, 2, 3])}, {"y": "f32", "h": "f32"}, weights,
    )  # fmt: skip
    agree(m, {"x": np.zeros((0, 2, 3), np.float32)})
    for shape in ((0, 3), (0, 0)):
        dims = shape if length == 0 else ("a", "b")
        m = model([node("Unique", ["x"], ["y", "i"], axis=1)], {"x": ("i64", dims)}, {"y": "i64", "i": "i64"})
        agree(m, {"x": np.zeros(shape, np.int64)})


def test_gru_linear_before_reset() -> None:
    rng = np.random.default_rng(3)
    shapes = {"w": (1, 12, 3), "r": (1, 12, 4), "b": (1, 24)}
    constants = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    nodes = [node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=4, linear_before_reset=1)]
    m = model(nodes, {"x": ("f32", ["t", "n", 3])}, {"y": "f32"}, constants)
    agree(m, {"x": rng.standard_normal((5, 2, 3)).astype(np.float32)}, 1e-4)


def local_function(*body: onnx.NodeProto, **attributes: Any) -> onnx.FunctionProto:
    ids = [helper.make_opsetid("", 17)]
    return helper.make_function(
        "my", "F", ["a"], ["b"], list(body), ids, list(attributes.get("names", [])),
        attributes.get("defaults", []),
    )  # fmt: skip


def test_local_functions_with_attributes() -> None:
    leaky = node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    f = local_function(leaky, defaults=[helper.make_attribute("slope", 0.5)])
    choices: tuple[dict[str, Any], ...] = ({}, {"slope": 0.25})
    for attributes in choices:
        m = model(
            [node("F", ["x"], ["y"], "f", domain="my", **attributes)], {"x": ("f32", ["n"])}, {"y": "f32"}
        )
        m.functions.append(f)
        m.opset_import.append(helper.make_opsetid("my", 1))
        module = imported(m)
        assert module.main.nodes[0].attrs["alpha"] == attributes.get("slope", 0.5)
        assert module.main.nodes[0].origin == "f/b"
        agree(m, {"x": np.array([-2, 3], np.float32)})


def test_composite_ops_by_their_own_definition() -> None:
    nodes = [node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"], reduction="mean")]
    m = model(nodes, {"x": ("f32", ["n", 5]), "t": ("i64", ["n"])}, {"y": "f32"})
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    agree(m, {"x": x, "t": np.array([0, 4, 2])})


def test_a_problem_inside_a_branch_is_reported_once() -> None:
    then = graph([node("Foo", ["x"], ["a"], "inner")], ["a"])
    m = if_model(then, graph([node("Neg", ["x"], ["b"])], ["b"]))
    with pytest.raises(SmeltError) as caught:
        import_model(m)
    assert [p.node for p in caught.value.problems] == ["inner"]


def test_a_carried_value_of_changing_rank_is_unsupported() -> None:
    body = loop_body(node("Unsqueeze", ["s", "ax"], ["t"]), state=None, out=["t"])  # type: ignore[arg-type]
    m = model(
        [node("Loop", ["k", "", "x"], ["y"], "round", body=body)],
        {"x": ("f32", ["n"]), "k": ("i64", [])},
        {"y": "f32"},
        {"ax": np.array([0])},
    )
    with pytest.raises(SmeltError, match="carried value 0 has rank 1 before and 2 after the body") as caught:
        import_model(m)
    assert (caught.value.kind, caught.value.node) == ("unsupported", "round")
