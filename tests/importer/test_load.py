"""What is not a model, or a broken one, is refused with what, where, found, wanted and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model

from smelt.core.diag import SmeltError
from smelt.importer import check_model, import_model, import_named

RELU = [helper.make_node("Relu", ["x"], ["y"], "relu")]


def relu() -> onnx.ModelProto:
    return model(RELU, {"x": ("f32", ["n"])}, {"y": "f32"})


def refused(source: object, *parts: str, kind: str = "invalid", node: str | None = None) -> SmeltError:
    with pytest.raises(SmeltError) as caught:
        import_model(source)  # type: ignore[arg-type]
    e = caught.value
    assert e.kind == kind, e
    for p in parts:
        assert p in str(e), (p, str(e))
    if node is not None:
        assert e.node == node
    assert not e.message.endswith(".")
    return e


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        (b"\x18\x00\x00\x00TFL3", "TensorFlow Lite"),
        (b"GGUF....", "GGUF"),
        (b"<!doctype html>", "markup"),
        (b"\xff" * 40, "broken or cut short"),
        (b"\x08\x07", "graph is missing"),
    ],
)
def test_wrong_files(data: bytes, text: str, tmp_path: Path) -> None:
    refused(
        data, text, "wanted an ONNX model" if data and "broken" not in text and "graph" not in text else ""
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    refused(path, text, str(path))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(tmp_path / "no.onnx", "does not exist")
    refused(tmp_path, "is not a file")


def test_oversized_file(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    with path.open("wb") as f:
        f.truncate(2**31 + 10)  # sparse: takes no room
    refused(path, "2147483658 bytes", "external data")


def test_truncated_everywhere() -> None:
    data = relu().SerializeToString()
    for n in range(len(data)):
        with pytest.raises(SmeltError):
            import_model(data[:n])


def test_accepts_path_bytes_and_proto(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(relu().SerializeToString())
    by_path = import_model(path)
    assert by_path.main == import_model(str(path)).main == import_model(relu()).main
    assert by_path.name == "m"
    assert import_model(path.read_bytes()).main == by_path.main


def test_old_and_new_opsets() -> None:
    assert import_model(model(RELU, {"x": ("f32", [1])}, {"y": "f32"}, opset=1)).main.nodes
    newest = onnx.defs.onnx_opset_version()
    refused(model(RELU, {"x": ("f32", [1])}, {"y": "f32"}, opset=newest + 1), "newer", kind="unsupported")


def broken(change: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    m = relu()
    change(m)
    return m


def test_undefined_input() -> None:
    m = broken(lambda m: m.graph.node[0].input.__setitem__(0, "w"))
    refused(m, "input 'w' is not defined", "weight may be missing", node="relu")


def test_undefined_output() -> None:
    m = broken(lambda m: setattr(m.graph.output[0], "name", "z"))
    refused(m, "graph output 'z' is not defined")


def test_outputs_asked_for_twice_are_returned_once() -> None:
    assert import_model(relu(), outputs=("y", "x", "x")).main.output_names == ("y", "x")


def test_duplicate_names() -> None:
    m = relu()
    m.graph.node.append(helper.make_node("Abs", ["x"], ["y"], "abs"))
    refused(m, "value 'y' is defined twice", "'relu'", node="abs")
    m = relu()
    m.graph.input.append(m.graph.input[0])
    refused(m, "input 'x' is declared twice")
    m = relu()
    m.graph.output.append(m.graph.output[0])
    refused(m, "graph output 'y' is declared twice", "another name")
    m = relu()
    for _ in range(2):
        m.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    refused(m, "initializer 'w' is defined twice")


def test_cycle() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], "first"),
        helper.make_node("Abs", ["a"], ["b"], "second"),
    ]
    refused(model(nodes, {"x": ("f32", [1])}, {"b": "f32"}), "cycle through 'first', 'second'")


def test_nodes_in_any_order() -> None:
    nodes = [helper.make_node("Abs", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    m = import_model(model(nodes, {"x": ("f32", [1])}, {"y": "f32"}))
    assert [n.op for n in m.main.nodes] == ["neg", "abs"]


def test_no_outputs_no_rank_no_type() -> None:
    refused(broken(lambda m: m.graph.ClearField("output")), "no outputs")
    refused(
        broken(lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")),
        "'x' has no rank",
        kind="unsupported",
    )
    refused(broken(lambda m: m.graph.input[0].ClearField("type")), "'x' has no type")
    m = broken(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING))
    refused(m, "found a tensor of strings where", kind="unsupported", node="relu")


def test_names_that_are_not_text() -> None:
    data = relu().SerializeToString().replace(b"relu", b"\xff\xfe\xfd\xfc")
    refused(data, "not UTF-8")


def test_all_unsupported_nodes_at_once() -> None:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], "one"),
        helper.make_node("Abs", ["a"], ["b"], "fine"),
        helper.make_node("Baz", ["x", "b"], ["c"], "two"),
        helper.make_node("Bar", ["c"], ["y"], "three", domain="my.ops"),
    ]
    m = model(nodes, {"x": ("f32", ["n"])}, {"y": "f32"})
    m.opset_import.append(helper.make_opsetid("my.ops", 3))
    problems = check_model(m)
    assert [p.node for p in problems] == ["one", "two", "three"]
    assert all(p.kind == "unsupported" for p in problems)
    assert "no such operator in opset 17" in problems[0].message
    assert "domain 'my.ops', version 3" in problems[2].message
    e = refused(m, "3 problems", "'one'", "'three'", kind="unsupported")
    assert len(e.problems) == 3
    assert check_model(relu()) == []


def test_domain_without_an_opset() -> None:
    m = model([helper.make_node("Bar", ["x"], ["y"], "bar", domain="d")], {"x": ("f32", [1])}, {"y": "f32"})
    refused(m, "no operator set for domain 'd'", node="bar")


@pytest.mark.parametrize("declared", [["n", 5], ["n"], [2, 4, 1], []])
def test_declared_shapes_that_contradict_are_ignored(declared: list[int | str]) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    m = model(nodes, {"x": ("f32", ["n", 4])}, {"y": "f32"})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, declared))
    m.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, declared))
    module = import_model(m)
    assert str(module.main.values()[module.main.outputs[0]].type) == "f32[n, 4]"


def test_declared_element_type_that_contradicts() -> None:
    m = model(RELU, {"x": ("f32", ["n", 4])}, {"y": "f32"})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 4]))
    refused(m, "declared as i64")


def test_attribute_of_another_type() -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], "cat", axis=1.0)]
    refused(
        model(nodes, {"x": ("f32", [2, 2])}, {"y": "f32"}),
        "attribute 'axis' is FLOAT, wanted INT",
        node="cat",
    )


def test_an_integer_type_to_divide_in() -> None:
    own = {"precision": TensorProto.INT32, "output_dtype": TensorProto.UINT8}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["y"], "quantize", **own)]
    m = model(nodes, {"x": ("f32", ["n"]), "s": ("f32", [])}, {"y": "u8"}, opset=23)
    refused(m, "attribute 'precision' is i32, wanted a float type", node="quantize")


def test_missing_attribute_and_input() -> None:
    m = model([helper.make_node("Cast", ["x"], ["y"], "c")], {"x": ("f32", [2])}, {"y": "f32"})
    refused(m, "attribute 'to' is missing", node="c")
    m = model([helper.make_node("Add", ["x"], ["y"], "a")], {"x": ("f32", [2])}, {"y": "f32"})
    refused(m, "input 1 is missing", node="a")


def test_op_types_and_functions_name_their_nodes() -> None:
    """Those inside calls and branches as well, by the names that messages have for them."""
    made = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
      g (float[n] x, bool q) => (float[n] y, float[n] z) {
        y = own.twice (x)
        z = If (q) <
          then_branch = g1 () => (float[n] t) { t = Relu (y) },
          else_branch = g2 () => (float[n] e) { [low] e = Tanh (y) }
        >
      }
      <domain: "own", opset_import: ["" : 17]> twice (a) => (c) { [in] b = Relu (a) c = own.once (b) }
      <domain: "own", opset_import: ["" : 17]> once (a) => (b) { b = Abs (a) }''')
    for f in made.functions:
        f.opset_import.append(onnx.helper.make_opsetid("own", 1))
    module, named = import_named(made)
    assert {op_type: set(names) for op_type, names in named.items()} == {
        "Relu": {"y/in", "t"},
        "Abs": {"y/c/b"},
        "Tanh": {"low"},
        "If": {"z"},
        "twice": {"y", "y/in", "y/c", "y/c/b"},
        "once": {"y/c", "y/c/b"},
    }
    made_of = {n.origin for n in module.main.walk() if n.op in ("relu", "abs", "tanh")}
    assert made_of == {"y/in", "y/c/b", "t", "low"}


def test_recursive_functions() -> None:
    m = model([helper.make_node("F", ["x"], ["y"], "f", domain="d")], {"x": ("f32", [1])}, {"y": "f32"})
    body = [helper.make_node("F", ["a"], ["b"], "again", domain="d")]
    ids = [helper.make_opsetid("d", 1)]
    m.functions.append(helper.make_function("d", "F", ["a"], ["b"], body, ids))
    m.opset_import.extend(ids)
    refused(m, "calls itself")
