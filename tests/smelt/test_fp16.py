"""Models compiled with fp16: types of the interface, half the memory, results near ONNX Runtime's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model
from oracle import runtime_session

import smelt
from smelt.cli.inspect import fp16_text
from smelt.cli.main import main
from smelt.difference import compare_arrays

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
node = helper.make_node


def near(m: onnx.ModelProto, session: Any, feed: Mapping[str, Array]) -> None:
    oracle = runtime_session(m)
    for want, got in zip(oracle.run(None, dict(feed)), session.run(None, dict(feed)), strict=True):
        error = compare_arrays("y", got, want, half=True)
        assert error.ok, str(error)


def convolutions() -> onnx.ModelProto:
    """Three layers whose inner tensors are much larger than what goes in and out."""
    w = [RNG.normal(0, 0.2, s).astype(np.float32) for s in ((64, 3, 3, 3), (64, 64, 3, 3), (4, 64, 1, 1))]
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Add", ["s1", "r0"], ["a1"]),
        node("Conv", ["a1", "w2"], ["y"]),
    ]
    constants = {f"w{k}": a for k, a in enumerate(w)} | {"b0": RNG.normal(0, 1, 64).astype(np.float32)}
    return model(nodes, {"x": ("f32", ["n", 3, "h", "w"])}, {"y": "f32"}, constants)


def attention() -> onnx.ModelProto:
    """Self-attention with a mask of the lowest float32, made of lengths as exporters do."""
    w = {f"w{k}": RNG.normal(0, 0.15, (96, 96)).astype(np.float32) for k in "qkv"}
    nodes = [
        *(node("MatMul", ["x", f"w{k}"], [k]) for k in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        node("Sub", ["one", "m"], ["away"]),
        node("Mul", ["away", "lowest"], ["bias"]),
        node("Unsqueeze", ["bias", "axis"], ["bias3"]),
        node("Add", ["scores", "bias3"], ["masked"]),
        node("Softmax", ["masked"], ["p"]),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    constants = w | {
        "one": np.float32(1), "lowest": np.finfo(np.float32).min, "axis": np.array([1], np.int64)
    }  # fmt: skip
    inputs = {"x": ("f32", ["n", "s", 96]), "mask": ("i64", ["n", "s"])}
    return model(nodes, inputs, {"y": "f32"}, constants)


def loop() -> onnx.ModelProto:
    """A state of 96 features that a loop carries and stacks, and a branch on its sum."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["hw"]), node("Tanh", ["hw"], ["t"]), node("Add", ["t", "x"], ["next"]),
         node("Identity", ["go"], ["still"]), node("Relu", ["next"], ["scan"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("h", TensorProto.FLOAT, None)],
        [info("still", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, None),
         info("scan", TensorProto.FLOAT, None)],
    )  # fmt: skip
    arms = [
        helper.make_graph([node(op, ["last"], [op[0]])], op, [], [info(op[0], TensorProto.FLOAT, None)])
        for op in ("Sigmoid", "Tanh")
    ]
    nodes = [
        node("Relu", ["x"], ["h0"]),
        node("Loop", ["count", "", "h0"], ["last", "all"], body=body),
        node("ReduceSum", ["last"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["up"]),
        node("If", ["up"], ["picked"], then_branch=arms[0], else_branch=arms[1]),
        node("MatMul", ["picked", "w"], ["y"]),
        node("Neg", ["all"], ["z"]),
    ]
    constants = {"w": RNG.normal(0, 0.1, (96, 96)).astype(np.float32), "zero": np.float32(0)}
    inputs: dict[str, Any] = {"x": ("f32", ["n", 96]), "count": ("i64", [])}
    return model(nodes, inputs, {"y": "f32", "z": "f32"}, constants)


def _feed(name: str, n: int, s: int) -> dict[str, Array]:
    if name == "convolutions":
        return {"x": RNG.normal(0, 1, (n, 3, s, s + 2)).astype(np.float32)}
    if name == "attention":
        mask = (np.arange(s) < np.arange(1, n + 1)[:, None]).astype(np.int64)
        mask[0] = 0  # a row with nothing left
        return {"x": RNG.normal(0, 1, (n, s, 96)).astype(np.float32), "mask": mask}
    return {"x": RNG.normal(0, 1, (n, 96)).astype(np.float32), "count": np.array(s, np.int64)}


MODELS = {"convolutions": convolutions, "attention": attention, "loop": loop}


@pytest.mark.parametrize("name", MODELS)
def test_halved_models_agree(name: str, tmp_path: Path) -> None:
    m = MODELS[name]()
    wide = smelt.compile(m, output=tmp_path / "wide")
    bundle = smelt.compile(m, output=tmp_path / "half", fp16=True)
    assert bundle.manifest["options"]["fp16"] is True
    assert bundle.manifest["fp16"]["half"] > 0
    assert bundle.manifest["fp16"]["weights"] == sum(len(i.dims) > 1 for i in m.graph.initializer) - (
        2 if name == "convolutions" else 0  # the first and the last are small
    )
    for k in ("inputs", "outputs"):
        assert bundle.manifest[k] == wide.manifest[k]
    assert bundle.manifest["weights"]["bytes"] < 0.6 * wide.manifest["weights"]["bytes"]
    session, other = smelt.load(bundle, threads=1), smelt.load(wide, threads=1)
    for n, s in ((2, 5), (1, 1), (3, 17)):
        feed = _feed(name, n, s)
        near(m, session, feed)
        other.run(None, feed)
        assert session.memory().arena_bytes <= other.memory().arena_bytes


def test_memory_is_half_and_the_formula_holds(tmp_path: Path) -> None:
    m = convolutions()
    # -O1: f32 has no transformed tiles of convolutions then, as 16 bits have none
    bundles = [smelt.compile(m, output=tmp_path / str(k), fp16=k, opt=1) for k in (False, True)]
    for n, h, w in ((1, 32, 40), (3, 64, 33)):
        values = {"n": n, "h": h, "w": w}
        wide, half = (b.peak_bytes(values) for b in bundles)
        assert 0.45 * wide < half < 0.55 * wide
        session = smelt.load(bundles[1], threads=1)
        session.run(None, {"x": RNG.normal(0, 1, (n, 3, h, w)).astype(np.float32)})
        assert session.memory().arena_bytes == half


def test_quantised_parts_stay_what_they_are(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], ["xq"]),
        node("DequantizeLinear", ["xq", "step", "zero"], ["xd"]),
        node("DequantizeLinear", ["q", "scale"], ["w"]),
        node("MatMul", ["xd", "w"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    constants = {
        "q": RNG.integers(-127, 128, (96, 96)).astype(np.int8), "scale": np.float32(0.01),
        "step": np.float32(0.02), "zero": np.uint8(128), "v": RNG.normal(0, 0.1, (96, 96)).astype(np.float32),
    }  # fmt: skip
    m = model(nodes, {"x": ("f32", ["n", 96])}, {"y": "f32"}, constants)
    wide = smelt.compile(m, output=tmp_path / "wide")
    bundle = smelt.compile(m, output=tmp_path / "out", fp16=True)
    assert bundle.manifest["quantised"] == wide.manifest["quantised"]
    assert bundle.manifest["quantised"]["integer"] == 1
    assert bundle.manifest["fp16"]["weights"] == 1
    near(m, smelt.load(bundle), {"x": RNG.normal(0, 1, (4, 96)).astype(np.float32)})


def test_what_is_quantised_next_stays(tmp_path: Path) -> None:
    """Numbers between two steps go to the same one as without fp16."""
    nodes = [
        node("MatMul", ["x", "v"], ["a"]),
        node("DynamicQuantizeLinear", ["a"], ["q", "step", "zero"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["y"]),
    ]
    constants = {"v": RNG.normal(0, 0.1, (96, 96)).astype(np.float32)}
    m = model(nodes, {"x": ("f32", ["n", 96])}, {"y": "f32"}, constants)
    bundle = smelt.compile(m, output=tmp_path / "out", fp16=True)
    assert "quantised next" in bundle.manifest["fp16"]["float"]
    session = smelt.load(bundle)
    near(m, session, {"x": RNG.normal(0, 1, (4, 96)).astype(np.float32)})


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(convolutions(), path)
    assert main(["compile", str(path), "--fp16", "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["validate", str(tmp_path / "out"), "--model", str(path), "--count", "1", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["cases"][0]["outputs"]
    assert 0 < output["max_abs"] <= 2e-2 * output["largest"]
    assert main(["inspect", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert ", fp16" in said
    assert re.search(r"fp16: [1-9]\d* of \d+ tensors that kernels make, and 1 weights", said)
    assert "1 in float32: the model's interface" in said


def test_inspect_says_nothing_without_fp16(tmp_path: Path) -> None:
    bundle = smelt.compile(attention(), output=tmp_path / "out")
    assert fp16_text(bundle) == []


def test_the_tolerance_of_halves_is_no_free_pass() -> None:
    want = np.linspace(-1, 1, 11, dtype=np.float32)
    assert compare_arrays("y", want + np.float32(5e-3), want, half=True).ok
    assert not compare_arrays("y", want + np.float32(5e-3), want).ok
    assert not compare_arrays("y", want + np.float32(3e-2), want, half=True).ok
    counts = np.arange(3)
    assert not compare_arrays("y", counts + 1, counts, half=True).ok
