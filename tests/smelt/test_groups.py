"""Sequences and optionals at the borders: sessions, cases, validation, the command line and the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from sequence_models import body, info, model, opt, seq, tensor

from smelt.cli.main import main
from smelt.compare import validate
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.difference import compare_values
from smelt.driver import Request
from smelt.groups import groups, packed, unpacked
from smelt.session import NodeArg, load
from smelt.shapes import cases

node = helper.make_node


def mapped() -> onnx.ModelProto:
    """ys: xs with v added to each element; y: o where it is given, else x; all: o and xs as they are."""
    each = body(
        [node("Add", ["e", "w"], ["sum"])],
        {"e": tensor("f32", ["a", 3]), "w": tensor("f32", [3])}, {"sum": tensor("f32", ["a", 3])},
    )  # fmt: skip
    t = body([node("OptionalGetElement", ["o"], ["a"])], {}, {"a": tensor("f32", [None])})
    e = body([node("Identity", ["x"], ["b"])], {}, {"b": tensor("f32", [None])})
    nodes = [
        node("SequenceMap", ["xs", "v"], ["ys"], body=each),
        node("OptionalHasElement", ["o"], ["c"]),
        node("If", ["c"], ["y"], then_branch=t, else_branch=e),
        node("Identity", ["o"], ["p"]),
    ]
    inputs = {
        "xs": seq("f32", ["a", 3]), "v": tensor("f32", [3]), "o": opt(tensor("f32", ["n"])),
        "x": tensor("f32", ["n"]),
    }  # fmt: skip
    outputs = {"ys": seq("f32", [None, 3]), "y": tensor("f32", [None]), "p": opt(tensor("f32", ["n"]))}
    return model(nodes, inputs, outputs, opset=18)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("groups")
    (folder / "model.onnx").write_bytes(mapped().SerializeToString())
    return compile_here(Request(str(folder / "model.onnx"), output=str(folder / "out")))


def test_the_manifest_says_what_belongs_together(bundle: Bundle) -> None:
    names = [row["name"] for row in bundle.manifest["inputs"]]
    assert names == ["xs.values", "xs.shapes", "v", "o.given", "o.value", "x"]
    found = bundle.manifest["groups"]
    assert found["inputs"] == [
        {"name": "xs", "kind": "sequence", "parts": ["xs.values", "xs.shapes"], "shape": ["a", 3]},
        {"name": "o", "kind": "optional tensor", "parts": ["o.given", "o.value"], "shape": ["n"]},
    ]
    assert [g["name"] for g in found["outputs"]] == ["ys", "p"]
    header = (Path(bundle.path) / "model.h").read_text()
    assert "MODEL_INPUT_XS_SHAPES = 1" in header
    assert "MODEL_OUTPUT_P_GIVEN = 3" in header


def test_a_session_speaks_as_onnxruntime_does(bundle: Bundle) -> None:
    session = load(bundle, threads=1)
    assert session.get_inputs() == [
        NodeArg("xs", [], "seq(tensor(float))"),
        NodeArg("v", [3], "tensor(float)"),
        NodeArg("o", ["n"], "optional(tensor(float))"),
        NodeArg("x", ["n"], "tensor(float)"),
    ]
    xs = [np.ones((2, 3), np.float32), np.zeros((0, 3), np.float32)]
    feed: dict[str, Any] = {"xs": xs, "v": np.arange(3, dtype=np.float32), "x": np.ones(2, np.float32)}
    ys, y, p = session.run(None, {**feed, "o": None})
    assert [a.tolist() for a in ys] == [[[1, 2, 3], [1, 2, 3]], []]
    assert ys[1].shape == (0, 3)
    assert (y.tolist(), p) == ([1, 1], None)
    (p,) = session.run(["p"], {**feed, "o": np.full(2, 7, np.float32)})
    assert p.tolist() == [7, 7]
    assert session.run(["ys"], {**feed, "o": None, "xs": []}) == [[]]


BAD: list[tuple[Any, str]] = [
    ({"xs": np.ones((2, 3), np.float32)}, "input 'xs': expected a list of arrays, got ndarray"),
    ({"xs": None}, "expected a list of arrays, got NoneType"),
    ({"xs": [np.ones((2, 3))]}, "expected float32 elements, got float64 in array 0"),
    ({"xs": [np.ones((1, 3), np.float32), np.ones(3, np.float32)]}, "of rank 2, got rank 1 in array 1"),
    ({"xs": [np.ones((1, 4), np.float32)]}, "elements_without_3_on_axis_1 is 1"),
    ({"o": np.ones(3, np.float32)}, "input 'x' axis 0: expected 3"),
    ({"z": []}, "unknown input 'z'"),
]


@pytest.mark.parametrize(("wrong", "text"), BAD)
def test_feeds_that_do_not_fit(bundle: Bundle, wrong: dict[str, Any], text: str) -> None:
    good = {"xs": [], "v": np.ones(3, np.float32), "x": np.ones(2, np.float32), "o": None}
    with pytest.raises(SmeltError) as caught:
        load(bundle, threads=1).run(None, {**good, **wrong})
    assert caught.value.kind == "shape"
    assert text in str(caught.value)


def test_shapes_that_lie_about_the_values(bundle: Bundle) -> None:
    """C callers pack for themselves: what the rows of shapes claim is checked against the values."""
    takes = groups(bundle.manifest, "inputs")
    feed = {"xs": [np.ones((2, 3), np.float32)], "v": np.ones(3, np.float32), "x": np.ones(2, np.float32)}
    session = load(bundle, threads=1)
    for rows, text in (([[3, 3]], "values of sequence"), ([[-2, 3]], "negative_extents is 1")):
        tensors = packed(takes, {**feed, "o": None}, bundle.manifest)
        tensors["xs.shapes"] = np.array(rows, np.int64)
        with pytest.raises(SmeltError) as caught:
            session._run(tensors)
        assert text in str(caught.value), str(caught.value)


def test_packing_is_undone_by_unpacking() -> None:
    rows = [
        {"name": "s.values", "dtype": "i64", "shape": ["a"]},
        {"name": "s.shapes", "dtype": "i64", "shape": ["b", "c"]},
    ]
    own = [{"name": "s", "kind": "sequence", "parts": ["s.values", "s.shapes"], "shape": None}]
    found = groups({"inputs": rows, "groups": {"inputs": own}}, "inputs")
    lists: tuple[list[Any], ...] = ([], [np.array(3)], [np.ones((2, 0), int), np.array(1), np.arange(3)])
    for value in lists:
        tensors = packed(found, {"s": value}, {})
        again = unpacked(found, tensors)["s"]
        assert [(a.shape, a.tolist()) for a in again] == [(a.shape, a.tolist()) for a in value]


def test_validate_and_run(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(bundle.path).parent / "model.onnx"
    found = validate(bundle, source, cases(bundle, count=2), enough=2)
    assert found.verdict.exit_code == 0
    names = [o.name for o in found.cases[0].outputs]
    assert names == ["ys[0]", "ys[1]", "ys[2]", "y", "p"]
    np.savez(tmp_path / "xs.npz", np.ones((2, 3), np.float32), np.ones((1, 3), np.float32))
    np.save(tmp_path / "v.npy", np.ones(3, np.float32))
    given = ["--input", f"xs={tmp_path}/xs.npz", "--input", f"v={tmp_path}/v.npy", "--random"]
    assert main(["run", str(bundle.path), *given, "-o", str(tmp_path / "out.npz")]) == 0
    capsys.readouterr()
    out = np.load(tmp_path / "out.npz")
    assert out["ys[1]"].tolist() == [[2, 2, 2]]


def test_values_of_other_kinds_differ() -> None:
    a = np.ones(2, np.float32)
    assert all(e.ok for e in compare_values("y", None, None))
    assert all(e.ok for e in compare_values("y", [], []))
    for got, want in ((None, a), (a, None), ([a], a), ([a], [a, a]), ([], None), ([a], [a * 2])):
        assert not all(e.ok for e in compare_values("y", got, want)), (got, want)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (helper.make_sequence_type_proto(tensor("f32", None)), ""),
        (tensor("f32", [None]), "output 'y' is declared as tensor of float"),
        (seq("i64"), "is declared as sequence of int64, its node makes a sequence of 1 f32 tensors"),
    ],
)
def test_outputs_are_what_they_are_declared_as(declared: onnx.TypeProto, text: str) -> None:
    from smelt.importer import import_model

    m = model([node("SequenceConstruct", ["x"], ["y"])], {"x": tensor("f32", ["n"])}, {})
    m.graph.output.append(info("y", declared))
    if not text:
        assert import_model(m).main.output_names == ("y.values", "y.shapes")
        return
    with pytest.raises(SmeltError, match=text) as caught:
        import_model(m)
    assert caught.value.kind == "invalid"
