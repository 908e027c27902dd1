"""Derived cases: their types, opsets and answers; the table and the page that are made from results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from smelt.conformance import dtypes, opsets, table
from smelt.conformance.cases import Shipped
from smelt.conformance.judge import JudgedCase
from smelt.conformance.keys import derived, every, judge_key
from smelt.conformance.report import failures_text, known, parsed, summary, unexpected
from smelt.conformance.single import history, node_of


def case(key: str) -> Shipped:
    found = derived(key)
    assert isinstance(found, Shipped), found
    return found


def test_answers_of_halves_are_rounded_once() -> None:
    found = case("dtype:Sin:T:float16")
    ((x,), (y,)) = found.data[0]
    assert x.dtype == y.dtype == np.float16
    np.testing.assert_array_equal(y, np.sin(x.astype(np.float64)).astype(np.float16))
    assert found.model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_integers_divide_by_none() -> None:
    for dtype in ("int8", "uint64"):
        (a, b), (y,) = case(f"dtype:Div:T:{dtype}").data[0]
        assert a.dtype == b.dtype == y.dtype == np.dtype(dtype)
        assert (b != 0).all()


def test_attributes_decide_a_type() -> None:
    found = case("dtype:Cast:T2:uint8")
    assert found.data[0][1][0].dtype == np.uint8
    (to,) = (a.i for a in found.model.graph.node[0].attribute if a.name == "to")
    assert to == onnx.TensorProto.UINT8


def test_variables_are_those_that_inputs_decide() -> None:
    assert set(dtypes.variables("Gather")) == {"T", "Tind"}
    assert set(dtypes.variables("TopK")) == {"T"}  # its indices are i64 always
    assert dtypes.variables("If") == {}
    assert "bfloat16" in dtypes.variables("Add")["T"]


@pytest.mark.parametrize(
    ("key", "inputs", "attributes"),
    [
        ("opset:Slice:7", 1, {"starts", "ends"}),
        ("opset:Slice:10", 4, set()),
        ("opset:Squeeze:11", 1, {"axes"}),
        ("opset:Clip:7", 1, {"min", "max"}),
        ("opset:Pad:7", 1, {"pads"}),
        ("opset:Dropout:7", 1, set()),
        ("opset:Resize:10", 2, set()),
        ("opset:Resize:11", 3, set()),
    ],
)
def test_inputs_become_attributes(key: str, inputs: int, attributes: set[str]) -> None:
    _, op, version = key.split(":")
    made = case(key)
    node = node_of(made.model, op)
    assert node is not None
    onnx.checker.check_model(made.model)
    assert made.model.opset_import[0].version == int(version)
    assert len(node.input) >= inputs and attributes <= {a.name for a in node.attribute}
    assert len(made.model.graph.input) == len(made.data[0][0])


def test_versions_are_those_in_force() -> None:
    assert opsets.versions("Relu") == (7, 13, 14)
    assert opsets.versions("Scatter") == (9,)  # deprecated since
    assert opsets.versions("Gelu") == (20,)


def test_an_old_softmax_is_the_old_one() -> None:
    """Before opset 13 the tensor was flattened: the answer of the new form would be another."""
    made = case("opset:Softmax:11")
    assert history("Softmax")[-1].since_version == 13
    assert judge_key("opset:Softmax:11").outcome == "pass"
    assert made.data[0][1][0].shape == made.data[0][0][0].shape


def test_wrong_types_are_seen() -> None:
    """A key judged by a wrong answer fails: the sweep can fail."""
    result = judge_key("dtype:Relu:T:bfloat16")
    assert result.outcome == "pass", result.reason
    assert judge_key("dtype:Identity:V:complex64").outcome == "unsupported"


RESULTS = [
    JudgedCase("static:test_relu", "pass"),
    JudgedCase("dynamic:test_relu", "unsupported", "a reason of 'x' with 3 sizes"),
    JudgedCase("arm64/static:test_relu", "pass"),
    JudgedCase("dtype:Relu:T:float", "pass"),
    JudgedCase("dtype:Relu:T:int8", "pass", "static only: because"),
    JudgedCase("dtype:Relu:T:string", "unsupported", "no strings"),
    JudgedCase("opset:Relu:13", "pass"),
    JudgedCase("opset:Relu:14", "untested", "no case"),
]


def test_the_table_and_the_page() -> None:
    made = table.build(RESULTS)
    assert json.loads(table.text(made)) == json.loads(json.dumps(made))
    row = made["operators"]["Relu"]
    assert row["types"] == {"T": {"yes": "f32", "static": "i8", "no strings": "string"}}
    assert row["opsets"] == {"yes": "13", "untested": "14"}
    assert row["forms"] == {"static": (1, 1), "dynamic": (0, 1)} and row["targets"] == {"arm64": (1, 1)}
    (line,) = (x for x in table.page(made, RESULTS).splitlines() if x.startswith("| Relu"))
    assert line == (
        "| Relu | 13; not tested: 14 | T: f32, i8 static only, no string | yes (1) | 0 of 1 | - | yes (1) "
        "| a reason of '_' with # sizes (1); string: no strings |"
    )


def test_ids() -> None:
    assert parsed("arm64/dtype:Relu:T:int8").target == "arm64"
    assert parsed("static:test_x/y").target == "host"
    assert "| opset | 1 | 1 | 100.0 % |" in summary(RESULTS)


def test_reasons_by_hand_stay(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("static:a wrong because of this\nstatic:b wrong found\nstatic:gone wrong x\n", "utf-8")
    rows = [JudgedCase(f"static:{n}", "wrong", "new") for n in "ab"]
    text = failures_text([*rows, JudgedCase("static:gone", "pass")], known(file))
    assert "static:a wrong because of this" in text and "static:b wrong wrong: new" in text
    assert "static:gone" not in text


def test_other_targets_may_fail_as_this_one() -> None:
    rows = [JudgedCase("arm64/static:a", "unsupported"), JudgedCase("arm64/static:b", "crash")]
    worse, better = unexpected(rows, {"static:a": ("unsupported", ""), "static:b": ("unsupported", "")})
    assert len(worse) == 1 and "static:b" in worse[0] and not better


def test_keys_are_unique() -> None:
    keys = every(("dtype", "opset"))
    assert len(keys) == len(set(keys)) > 2000
