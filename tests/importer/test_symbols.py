"""Names and ranges of sizes: from the file, from the user, from what the nodes need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_models import agree, imported, model, ops_of, types_of

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

RELU = [helper.make_node("Relu", ["x"], ["y"], "relu")]
ADD = [helper.make_node("Add", ["x", "z"], ["y"], "add")]


def ranges(m: Module) -> dict[str, tuple[int, int | None, int]]:
    return {s.name: (s.low, s.high, s.divisor) for s in m.symbols}


def test_names_arithmetic_and_unnamed_dims() -> None:
    dims = ["batch", "seq", "2*batch", "past + 1", None, "?", 3]
    m = imported(model(RELU, {"x": ("f32", dims), "p": ("f32", ["past"])}, {"y": "f32"}))
    assert types_of(m) == ["f32[batch, seq, 2*batch, past + 1, x_4, x_5, 3]"]
    assert [s.origin for s in m.symbols if s.name == "x_4"] == ["input x axis 4"]


def test_arithmetic_over_names_that_stand_nowhere_alone() -> None:
    m = imported(model(RELU, {"x": ("f32", ["2*n", "a.b", "a-b"])}, {"y": "f32"}))
    assert types_of(m) == ["f32[`2*n`, a.b, `a-b`]"]


def test_unnamed_dims_never_clash() -> None:
    m = imported(model(ADD, {"x": ("f32", ["x_1", None]), "z": ("f32", [1])}, {"y": "f32"}))
    assert types_of(m) == ["f32[x_1, x_1_1]"]


def test_dims_fix_and_bound() -> None:
    m = model(RELU, {"x": ("f32", ["batch", "seq", None, 4])}, {"y": "f32"})
    fixed = imported(m, dims={"batch": 2, "seq": (1, 512), "x:2": np.int64(8), "x:3": 4})
    assert types_of(fixed) == ["f32[2, seq, 8, 4]"]
    assert ranges(fixed) == {"seq": (1, 512, 1)}
    assert ranges(imported(m, dims={"x:1": (16, None)}))["seq"] == (16, None, 1)


def test_very_long_names() -> None:
    name, other = "n" * 1_000_000, "many words " * 100_000
    text = f"{name} + {name}"
    made = model(RELU, {"x": ("f32", [name, other, text])}, {"y": "f32"})
    a, b, c = (str(d) for d in imported(made).main.inputs[0].type.shape)
    assert len(a) < 200 and len(b) < 200 and a != b
    assert c == f"2*{a}"
    fixed = import_model(made, dims={name: 3, other: 5})
    assert [str(d) for d in fixed.main.inputs[0].type.shape] == ["3", "5", "6"]


@pytest.mark.parametrize("value", [-1, 2, 2**40])
def test_what_says_yes_or_no_says_nothing_else(value: int) -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], name="sum", keepdims=value)
    with pytest.raises(SmeltError, match=f"keepdims is {value}, wanted 0 or 1") as e:
        imported(model([node], {"x": ("f32", ["n", 4])}, {"y": "f32"}))
    assert e.value.kind == "invalid" and e.value.node == "sum"


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ({"sequence": 3}, "no symbol is called 'sequence'; the model's symbols are 'seq' (input x axis 0)"),
        ({"x:7": 3}, "no symbol is called 'x:7'"),
        ({"x:1": 5}, "'x:1' is always 4 in this model, found 5"),
        ({"seq": -1}, "wanted 0 <= low <= high"),
        ({"seq": 0}, "high at least 1"),
        ({"seq": (5, 2)}, "is (5, 2)"),
        ({"seq": (-3, 2)}, "is (-3, 2)"),
        ({"seq": 1.5}, "wanted a size or a pair"),
        ({"seq": True}, "wanted a size or a pair"),
        ({"seq": (1, 2, 3)}, "'seq' has hot sizes 3, wanted a list"),
        ({"seq": (1, 2, [1.5])}, "wanted a list of sizes"),
        ({"seq": (1, 2, [1], 3)}, "wanted a size or a pair"),
        ({"seq": (1, 9, [3, 10, 0])}, "hot sizes (opt) of 'seq' are outside of 1..9: 10, 0"),
        ({"seq": (3, None, [2])}, "outside of 3..*: 2"),
        ({"seq": (4, 4, [4])}, "'seq' is fixed to 4"),
        ({"x:1": (1, 9, [4])}, "'x:1' is always 4 in this model, hot sizes are of a range"),
        ({"k": (1, 9, [4])}, "(input x axis 0); data-dependent sizes have no hot ones"),
        ({"seq": (1, 9, [4]), "x:0": (1, 9)}, "has the range 1..9 with hot sizes 4 already"),
        ({"seq": 3, "x:0": 4}, "has the range 3 already"),
    ],
)
def test_dims_that_make_no_sense(dims: dict[str, Any], text: str) -> None:
    with pytest.raises(SmeltError) as caught:
        import_model(model(RELU, {"x": ("f32", ["seq", 4])}, {"y": "f32"}), dims=dims)
    assert caught.value.kind == "invalid"
    assert text in str(caught.value)


def test_an_equality_unifies_the_symbols_of_inputs() -> None:
    nodes = [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)]
    m = imported(model(nodes, {"x": ("f32", ["a", 8]), "z": ("f32", ["b", 8])}, {"y": "f32"}))
    assert types_of(m) == ["f32[a, 16]"]
    assert [str(v.type) for v in m.main.inputs] == ["f32[a, 8]", "f32[a, 8]"]
    assert ops_of(m) == ["concat"]
    with pytest.raises(SmeltError) as caught:
        run_module(m, {"x": np.zeros((2, 8), np.float32), "z": np.zeros((3, 8), np.float32)}, OPS)
    assert caught.value.kind == "shape"


def test_a_constant_settles_a_symbol_everywhere() -> None:
    """What the second node learns holds for the first one's type as well."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    m = imported(model(nodes, {"x": ("f32", ["n", "k"])}, {"y": "f32"}, {"w": np.ones((5, 2), np.float32)}))
    assert [str(v.type) for v in m.main.inputs] == ["f32[n, 5]"]
    assert types_of(m) == ["f32[n, 2]"]


def test_a_window_needs_elements() -> None:
    m = imported(
        model(
            [helper.make_node("Conv", ["x", "w"], ["y"])], {"x": ("f32", [1, 1, "n"])}, {"y": "f32"},
            {"w": np.ones((1, 1, 5), np.float32)},
        )
    )  # fmt: skip
    assert ranges(m) == {"n": (4, None, 1)}  # at 4 no window fits, and the result is empty
    assert types_of(m) == ["f32[1, 1, n - 4]"]


def test_a_position_table_bounds_the_length() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "s"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    constants = {"table": np.zeros((512, 4), np.float32), "zero": np.array([0])}
    m = imported(model(nodes, {"x": ("f32", ["b", "seq", 4])}, {"y": "f32"}, constants))
    assert ranges(m)["seq"] == (0, 512, 1)
    assert types_of(m) == ["f32[b, seq, 4]"]


def test_a_reshape_into_groups_makes_a_divisor() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    m = imported(model(nodes, {"x": ("f32", ["b", "n"])}, {"y": "f32"}, {"s": np.array([0, -1, 8])}))
    assert ranges(m)["n"] == (0, None, 8)
    assert types_of(m) == ["f32[b, n//8, 8]"]
    assert ops_of(m) == ["reshape"]


def test_what_cannot_be_solved_is_checked() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1], strides=[2]),
        helper.make_node("Concat", ["p", "z"], ["y"], "cat", axis=1),
    ]
    m = imported(model(nodes, {"x": ("f32", [1, 1, "n"]), "z": ("f32", [1, 1, "m"])}, {"y": "f32"}))
    assert types_of(m) == ["f32[1, 2, (n + 1)//2]"]  # m is solved: the input is bound to it
    nodes[1] = helper.make_node("Concat", ["p", "q"], ["y"], "cat", axis=1)
    nodes.append(helper.make_node("MaxPool", ["z"], ["q"], kernel_shape=[1], strides=[3]))
    m = imported(model(nodes, {"x": ("f32", [1, 1, "n"]), "z": ("f32", [1, 1, "m"])}, {"y": "f32"}))
    (check,) = [n for n in m.main.nodes if n.op == "check"]
    assert "node 'cat' (Concat): axis 2" in str(check.attrs["text"])
    assert {str(check.attrs["left"]), str(check.attrs["right"])} == {"(n + 1)//2", "(m + 2)//3"}


def test_contradictions_name_the_node() -> None:
    with pytest.raises(SmeltError) as caught:
        import_model(model(ADD, {"x": ("f32", ["n", 3]), "z": ("f32", [4])}, {"y": "f32"}))
    assert (caught.value.kind, caught.value.node) == ("invalid", "add")
    assert "found 3 and 4" in str(caught.value)


def test_ranges_follow_a_solved_symbol() -> None:
    m = model(ADD, {"x": ("f32", ["a", 8]), "z": ("f32", ["b", 8])}, {"y": "f32"})
    assert ranges(imported(m, dims={"b": (2, 9), "a": (4, 100)})) == {"a": (4, 9, 1)}
    with pytest.raises(SmeltError, match="found a and b, which differ"):
        import_model(m, dims={"b": (2, 3), "a": (4, 100)})


def hot(m: Module) -> dict[str, tuple[int, ...]]:
    return {s.name: s.hot for s in m.symbols}


def test_hot_sizes_are_the_symbols() -> None:
    m = model(RELU, {"x": ("f32", ["seq", None])}, {"y": "f32"})
    assert hot(imported(m, dims={"seq": (1, 512, [1, 128, 1]), "x:1": (0, None, (np.int64(7),))})) == {
        "seq": (1, 128), "x_1": (7,),
    }  # fmt: skip


def test_hot_sizes_follow_a_solved_symbol() -> None:
    """b == 2*a: what b has is half as much of a."""
    reshape = helper.make_node("Reshape", ["x", "two"], ["r"], "flat")
    two = {"two": np.array([-1], np.int64)}
    m = model([reshape, helper.make_node("Add", ["r", "z"], ["y"], "add")],
              {"x": ("f32", ["a", 2]), "z": ("f32", ["b"])}, {"y": "f32"}, two)  # fmt: skip
    found = imported(m, dims={"b": (4, 64, [8, 16]), "a": (2, 32, [4, 5])})
    assert hot(found) == {"a": (4, 5, 8)} and ranges(found) == {"a": (2, 32, 1)}
    with pytest.raises(SmeltError, match=r"'b' is 2\*a in this model, and its hot sizes have 9"):
        import_model(m, dims={"b": (4, 64, [8, 9]), "a": (2, 32)})


def test_hot_sizes_that_the_model_never_takes() -> None:
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["y"], "rows")]
    m = model(nodes, {"x": ("f32", ["n"])}, {"y": "f32"}, {"rows": np.array([-1, 32], np.int64)})
    assert hot(imported(m, dims={"n": (0, 512, [64])})) == {"n": (64,)}
    with pytest.raises(SmeltError, match="multiples of 32 for 'n', its hot sizes have 65, 66"):
        import_model(m, dims={"n": (0, 512, [64, 65, 66])})
    fixed = model(ADD, {"x": ("f32", ["n", 3]), "z": ("f32", [4, 3])}, {"y": "f32"})
    with pytest.raises(SmeltError, match="its hot sizes have 5"):
        import_model(fixed, dims={"n": (2, 9, [5])})


def test_output_names_of_run_time_sizes() -> None:
    nodes = [helper.make_node("Range", ["zero", "n", "one"], ["y"])]
    m = model(nodes, {"n": ("i64", [])}, {"y": "i64"}, {"zero": np.array(0), "one": np.array(1)})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 7, ["steps"]))
    assert types_of(imported(m)) == ["i64[steps]"]
    agree(m, {"n": np.array(5)})


def test_inputs_with_initialisers_are_constants() -> None:
    nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["y"])]
    m = model(nodes, {"x": ("f32", ["n"]), "axes": ("i64", [1])}, {"y": "f32"})
    assert len(imported(m).main.inputs) == 2
    agree(m, {"x": np.arange(3, dtype=np.float32), "axes": np.array([-1])})
    m.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    module = imported(m)
    assert types_of(module) == ["f32[1, n]"]
    assert len(module.main.inputs) == 1


def test_further_outputs() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
    m = model(nodes, {"x": ("f32", ["n"])}, {"y": "f32"})
    module = imported(m, outputs=["r"])
    assert module.main.output_names == ("y", "r")
    with pytest.raises(SmeltError, match="no value of the main graph is called 'q'"):
        import_model(m, outputs=["q"])


def test_same_model_same_module() -> None:
    m = model(ADD, {"x": ("f32", ["a", None]), "z": ("f32", ["b", 8])}, {"y": "f32"})
    assert import_model(m) == import_model(m)


@pytest.mark.parametrize("attribute", [{"softcap": -1.0}, {"softcap": float("nan")}, {"is_causal": 2}])
def test_attributes_of_ops_that_functions_spell_out(attribute: dict[str, Any]) -> None:
    node = helper.make_node("Attention", ["q", "q", "q"], ["y"], name="heads", **attribute)
    with pytest.raises(SmeltError, match=f"{next(iter(attribute))} is .*, wanted 0 to") as e:
        imported(model([node], {"q": ("f32", ["n", 2, "s", 4])}, {"y": "f32"}, opset=23))
    assert e.value.kind == "invalid" and e.value.node == "heads"
