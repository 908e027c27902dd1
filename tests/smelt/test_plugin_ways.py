"""Ops of a plug-in behave like smelt's own, in whatever way they are defined."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnx
import pytest
from boards import need_emulator
from forked import forked_smelt
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.core.bundle import Bundle

PLUGIN = Path(__file__).parents[1] / "support" / "plugin_ways.py"
MINE = "my.domain"
SIZES = [helper.make_opsetid("", 17), helper.make_opsetid(MINE, 1)]
FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """A node of the plug-in's domain when its ops have the name."""
    mine = op in ("Gate", "Flip", "Twice", "Distance", "Parts", "Running", "Swish", "Softened")
    name = outputs.split()[0]
    return helper.make_node(op, inputs.split(), outputs.split(), name, domain=MINE if mine else "", **attrs)


def model(
    nodes: list[onnx.NodeProto], outputs: str, constants: dict[str, Any] | None = None, **more: Any
) -> onnx.ModelProto:
    """inputs: x f32[n, k], c f32[m, k] where a node reads it."""
    read = {i for n in nodes for i in n.input}
    ins = [
        helper.make_tensor_value_info(i, FLOAT, dims) for i, dims in (("x", ["n", "k"]), ("c", ["m", "k"]))
        if i in read
    ]  # fmt: skip
    outs = [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs.split()]
    kept = [numpy_helper.from_array(np.asarray(a), k) for k, a in (constants or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "g", ins, outs, kept), opset_imports=SIZES, ir_version=8, **more
    )


def every_way() -> onnx.ModelProto:
    """All of the plug-in's ops, with and without neighbours, and in a function that the file itself defines,
    of a domain of its own."""
    inner = [node("Gate", "a", "g", beta=1.5), node("Relu", "g", "r"), node("Add", "g r", "b")]
    wrapped = helper.make_function("their.domain", "Wrapped", ["a"], ["b"], inner, SIZES)
    nodes = [
        helper.make_node("Wrapped", ["x"], ["gated"], "wrapped", domain="their.domain"),
        node("Swish", "gated", "swished"),
        node("Flip", "swished", "flipped"), node("Twice", "flipped", "doubled"),
        node("Parts", "doubled", "floor rest"), node("Running", "rest", "ran"),
        node("Distance", "ran c", "far"), node("Softened", "far", "soft"),
        node("Add", "floor ran", "sum"), node("Shape", "x", "size"), node("Twice", "size", "size2"),
        node("Expand", "one size2", "wide"),
    ]  # fmt: skip
    m = model(nodes, "soft sum wide", {"one": np.ones((1, 1), np.float32)}, functions=[wrapped])
    m.opset_import.append(helper.make_opsetid("their.domain", 1))
    return m


def run(*words: str, plugin: bool = True) -> CompletedProcess[str]:
    """A command line of smelt, with the plug-in named by the environment or without."""
    env = {**os.environ} | ({"SMELT_PLUGINS": str(PLUGIN)} if plugin else {})
    return forked_smelt(*words, environment=env)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ways.onnx"
    onnx.save(every_way(), str(path))
    return path


def compiled(m: onnx.ModelProto, tmp_path: Path, **options: Any) -> Bundle:
    return smelt.compile(m, output=tmp_path / "out", plugins=(str(PLUGIN),), **options)


# ---------------------------------------------------------------- every target, every command


@pytest.mark.parametrize(
    ("target", "more"),
    [("x86", ()), ("host", ("-O0",)), ("host", ("--fp16",)), ("x86+opencl", ()), ("aarch64-linux", ()),
     ("armv7", ()), ("riscv64-linux", ())],
)  # fmt: skip
def test_every_target(target: str, more: tuple[str, ...], file: Path) -> None:
    """The compiled model agrees with the plug-in's references, at several sizes; 0 rows among them."""
    need_emulator(target)
    shapes = [w for n, m in ((3, 2), (1, 1), (0, 4), (5, 3)) for w in ("--shape", f"x:{n}x7,c:{m}x7")]
    done = run("validate", str(file), "--target", target, *more, *shapes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass: 4 of 4 shapes agree" in done.stdout
    assert "the references of its ops" in done.stdout


def test_a_wrong_op_is_a_mismatch(tmp_path: Path) -> None:
    """The reference decides: a formula that differs from it is found, and the bisection suspects the op."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PLUGIN.read_text().replace('call("sub", x[i], call("floor", x[i]))', "x[i]"))
    onnx.save(every_way(), str(tmp_path / "m.onnx"))
    env = {**os.environ, "SMELT_PLUGINS": str(wrong)}
    words = ("validate", tmp_path / "m.onnx", "--bisect", "--shape", "x:3x4,c:2x4")
    done = forked_smelt(*words, environment=env)
    assert done.returncode == 1, done.stdout + done.stderr
    first, said = done.stdout.partition("first bad value: ")[2].partition("right:")[::2]
    # among the nodes of the kernel that wrote the first wrong value
    assert "'floor' (Parts)" in first and said
    assert "differ from the references of its ops" in done.stdout and "onnxruntime" not in done.stdout


def test_check(file: Path) -> None:
    assert run("check", str(file)).returncode == 0
    without = run("check", str(file), plugin=False)
    assert without.returncode == 3 and "try a plug-in that defines it" in without.stdout


def test_text_of_passes(file: Path, tmp_path: Path) -> None:
    """The imported module as text is read again, and every pass keeps what it means."""
    text = tmp_path / "ways.smelt"
    assert run("opt", str(file), "-p", "", "-o", str(text)).returncode == 0
    words = set(text.read_text().replace("(", " ").split())
    assert {"way_gate", "way_parts", "way_running", "way_swish"} <= words
    again = run("opt", str(text), "-p", "")
    assert again.stdout.strip() == text.read_text().strip()
    done = run("opt", str(text), "--validate")
    assert done.returncode == 0, done.stderr
    assert "way_swish" not in done.stdout, "an op in other ops is expanded"
    refused = run("opt", str(text), plugin=False)
    assert refused.returncode != 0 and "way_" in refused.stderr


def test_report_and_bench(file: Path, tmp_path: Path) -> None:
    told = run("report", str(file), "--target", "host", "--shape", "x:3x4,c:2x4", "-o", str(tmp_path / "out"))
    assert told.returncode == 0, told.stderr
    assert "PASS: 1 of 1 shapes agree with the references of its ops" in told.stdout
    timed = run("bench", str(tmp_path / "out"), "--shape", "x:3x4,c:2x4", "--json", plugin=False)
    assert timed.returncode in (0, 5), timed.stderr  # 5: this machine is too busy to time anything
    assert run("inspect", str(tmp_path / "out"), "--kernels", plugin=False).returncode == 0


# ---------------------------------------------------------------- what the compiler knows of them


def test_sizes_are_known_when_the_model_is_compiled(tmp_path: Path) -> None:
    """By the formula (Twice), by a rule of its own (Running), and by both through smelt's ops."""
    nodes = [
        node("Shape", "x", "size"), node("Twice", "size", "a"), node("Expand", "one a", "wide"),
        node("Running", "size", "b"), node("Add", "b a", "e"), node("Expand", "one e", "both"),
    ]  # fmt: skip
    bundle = compiled(model(nodes, "wide both", {"one": np.ones((1, 1), np.float32)}), tmp_path)
    shapes = [row["shape"] for row in bundle.manifest["outputs"]]
    assert shapes == [["2*n", "2*k"], ["3*n", "2*k + max(k, n)"]]
    wide, both = smelt.load(bundle).run(None, {"x": np.zeros((3, 5), np.float32)})
    assert wide.shape == (6, 10) and both.shape == (9, 15)


@pytest.mark.parametrize(
    ("op", "kernels"),
    [("Gate", 1), ("Flip", 2), ("Twice", 1), ("Swish", 1), ("Softened", 1), ("Running", 3)],
)
def test_fusion(op: str, kernels: int, tmp_path: Path) -> None:
    """Between two sums a formula is one kernel with them, as a built-in is; statements are on their own."""
    nodes = [node("Add", "x one", "a"), node(op, "a", "b"), node("Mul", "b two", "y")]
    bundle = compiled(model(nodes, "y", {"one": np.float32(1), "two": np.float32(2)}), tmp_path)
    assert len(bundle.manifest["kernels"]) == kernels


@pytest.mark.parametrize(
    ("nodes", "outputs", "kernels", "wanted"),
    [
        # each output with what comes before it and what comes after it
        ([node("Mul", "p two", "y"), node("Mul", "q two", "z")], "y z", 2, lambda p, q: (2 * p, 2 * q)),
        ([node("Add", "p q", "y")], "y", 1, lambda p, q: (p + q,)),
        ([node("Mul", "q two", "y")], "y", 1, lambda p, q: (2 * q,)),
        # both are stored as they are: each is a kernel with the sum before it
        ([], "p q", 2, lambda p, q: (p, q)),
        # p is stored, so nobody computes it again
        ([node("Mul", "p two", "s"), node("Add", "s q", "y")], "p y", 2, lambda p, q: (p, 2 * p + q)),
    ],
)
def test_fusion_of_several_outputs(
    nodes: list[onnx.NodeProto], outputs: str, kernels: int, wanted: Callable[..., Any], tmp_path: Path
) -> None:
    """Each output of a formula with several is fused as if it were a node of its own."""
    made = [node("Add", "x half", "a"), node("Parts", "a", "p q"), *nodes]
    bundle = compiled(model(made, outputs, {"half": np.float32(0.5), "two": np.float32(2)}), tmp_path)
    assert len(bundle.manifest["kernels"]) == kernels
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    floor = np.floor(x + 0.5)
    found = smelt.load(bundle).run(None, {"x": x})
    for got, want in zip(found, wanted(floor, x + 0.5 - floor), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("op", "moves"), [("Flip", True), ("Gate", False), ("Twice", False)])
def test_bytes_are_moved(op: str, moves: bool, tmp_path: Path) -> None:
    """An op whose formula only moves needs no floats between two quantised tensors."""
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node(op, "d", "e"),
        node("QuantizeLinear", "e s z", "r"), node("Identity", "r", "y"),
    ]  # fmt: skip
    m = model(nodes, "y", {"s": np.float32(0.05), "z": np.uint8(128)})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", UINT8, None))
    onnx.save(m, str(tmp_path / "m.onnx"))
    done = run("opt", str(tmp_path / "m.onnx"), "-p", "quantize,dce")
    assert done.returncode == 0, done.stderr
    assert ("dequantize" not in done.stdout) is moves


def test_faults_name_the_node(tmp_path: Path) -> None:
    """A type rule that refuses says so of the ONNX node, and what a run breaks is checked there."""
    nodes = [node("Gate", "x", "g"), node("Distance", "g w", "far")]
    m = model(nodes, "far", {"w": np.zeros((2, 3), np.float32)})
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    with pytest.raises(smelt.SmeltError, match="width") as caught:
        compiled(m, tmp_path)
    assert caught.value.node == "far" and caught.value.kind == "invalid"
    bundle = compiled(model([node("Distance", "x c", "far")], "far"), tmp_path)
    with pytest.raises(smelt.SmeltError, match="got 3") as caught:
        smelt.load(bundle).run(None, {"x": np.zeros((2, 4), np.float32), "c": np.zeros((2, 3), np.float32)})
    assert caught.value.kind == "shape"
