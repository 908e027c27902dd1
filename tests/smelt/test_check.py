"""smelt check: every problem with its node, the dims that it meets and a way out, as text, JSON and SARIF."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from processes import measured
from sample_models import MODELS, MORE, Model

from smelt.cli.main import main
from smelt.cli.sarif import RULES, log
from smelt.core.diag import Problem, SmeltError
from smelt.driver import compile


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Four nodes that cannot be: one unknown, one of a strange domain, one whose dims disagree, one refused;
    and one after them that is not to blame."""
    nodes = [
        helper.make_node("NoSuchOp", ["x"], ["a"], name="unknown"),
        helper.make_node("Fancy", ["x"], ["b"], name="strange", domain="my.ops"),
        helper.make_node("MatMul", ["x", "z"], ["m"], name="product"),
        helper.make_node("TfIdfVectorizer", ["z"], ["t"], name="words"),
        helper.make_node("Add", ["a", "x"], ["y"], name="last"),
    ]
    inputs = {"x": ["batch", "seq", "h", 6], "z": ["batch", 1, 4, 7]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in "ybmt"],
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("my.ops", 1)]
    path = tmp_path / "a model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def check(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main(["check", *map(str, words)])
    return code, capsys.readouterr().out


def test_every_problem_has_a_node_its_dims_and_a_way_out(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = check(capsys, broken, "--json")
    problems = {p["node"]: p for p in json.loads(text)["problems"]}
    assert code == 3
    assert {"unknown", "strange", "product"} <= problems.keys() and "last" not in problems
    assert problems["unknown"]["inputs"] == ["x: f32[batch, seq, h, 6]"]
    assert problems["product"]["kind"] == "invalid"
    assert "z: f32[batch, 1, 4, 7]" in problems["product"]["inputs"]
    assert "6 and 4" in problems["product"]["message"] or "4 and 6" in problems["product"]["message"]
    assert all(p["hint"] for p in problems.values())
    _, text = check(capsys, broken)
    assert "reads x: f32[batch, seq, h, 6]" in text and "plug-in" in text


def test_sarif_has_what_the_standard_requires(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, broken, "--sarif")
    found = json.loads(text)
    assert code == 3 and found["version"] == "2.1.0" and "sarif-2.1.0" in found["$schema"]
    (run,) = found["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "smelt" and run["invocations"][0]["executionSuccessful"] is True
    rules = [r["id"] for r in driver["rules"]]
    assert len(set(rules)) == len(rules) and all(r["shortDescription"]["text"] for r in driver["rules"])
    nodes = set()
    for r in run["results"]:
        assert rules[r["ruleIndex"]] == r["ruleId"] and r["level"] == "error" and r["message"]["text"]
        (place,) = r["locations"]
        where = place["physicalLocation"]["artifactLocation"]
        assert where["uri"] == run["artifacts"][where["index"]]["location"]["uri"]
        assert where["uri"].startswith("file:///") and where["uri"].endswith("a%20model.onnx")
        nodes |= {logical["name"] for logical in place["logicalLocations"]}
    assert {"unknown", "strange", "product"} <= nodes


def test_sarif_of_a_good_model_and_of_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    code, text = check(capsys, path, "--sarif")
    assert code == 0 and json.loads(text)["runs"][0]["results"] == []
    path.write_bytes(b"PK\x03\x04 something else")
    code, text = check(capsys, path, "--sarif")
    (result,) = json.loads(text)["runs"][0]["results"]
    assert code == 3 and "zip archive" in result["message"]["text"]
    assert "logicalLocations" not in result["locations"][0]
    assert check(capsys, path, "--sarif", "--json")[0] == 2


def test_sarif_knows_every_kind_and_relative_paths() -> None:
    problems = [Problem("m", kind=k, node="n") for k in RULES]  # type: ignore[arg-type]
    run = log("a/b c.onnx", problems, 3)["runs"][0]
    assert [r["ruleId"] for r in run["results"]] == list(RULES)
    assert run["artifacts"][0]["location"]["uri"] == "a/b%20c.onnx"


def test_compile_hands_the_dims_on(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(SmeltError) as e:
        compile(broken, output=tmp_path / "out")
    assert {p.node: p.inputs for p in e.value.problems}["strange"] == ("x: f32[batch, seq, h, 6]",)


@pytest.mark.parametrize(
    "words", [(), ("--dim", "n=1..64"), ("--dim", "n=7", "-O0"), ("--fp16", "--target", "armv7")], ids=str
)
def test_memory_is_what_the_bundle_says(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same formulas, bounds and bytes of weights as a compile by the same options."""
    rng = np.random.default_rng(0)
    held = [numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), n) for n in "uv"]
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Concat", ["a", "c"], ["y"], axis=1),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 64), ("y", 128))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], held)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    code, text = check(capsys, path, "--json", *words)
    found = json.loads(text)
    assert main(["compile", str(path), "-o", str(tmp_path / "b"), "--json", *words]) == code == 0
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert found["memory"] == manifest["memory"] and found["symbols"] == manifest["symbols"]
    assert found["weights"] == manifest["weights"]["bytes"] > 0
    _, text = check(capsys, path, *words)
    assert f"weights: {found['weights']:,} bytes" in text
    assert ("at most, reserved at open" in text) == ("n=1..64" in words)
    if "n=1..64" in words:
        assert f"{sum(found['memory']['most']):,} at most" in text


@pytest.mark.table(3)
@pytest.mark.parametrize("model", [*MODELS, *MORE], ids=lambda m: m.name)
def test_a_model_is_checked_in_seconds_and_little_memory(model: Model) -> None:
    """None of its weights is read, up to 540 MB. The limits are several times a quiet machine's."""
    done = measured(sys.executable, "-m", "smelt.cli", "check", str(model.path()), "--json")
    assert done.code == 0 and json.loads(done.said)["problems"] == [], done
    assert done.seconds < 10 and done.peak < 600 << 20
