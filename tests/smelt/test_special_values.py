"""NaN, infinities, both zeros and subnormals: elementwise ops and reductions answer as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuzz_graph import build
from onnx import helper
from oracle import plain_session

import smelt
from smelt.compiler import compile_here
from smelt.core.subnormals import flushed
from smelt.driver import Request

Array = np.ndarray[Any, Any]
F32, F64, BOOL = np.dtype(np.float32), np.dtype(np.float64), np.dtype(bool)

# fmt: off
SPECIAL = np.array([
    0.0, -0.0, 1, -1, 0.5, -0.5, 2.5, 3.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-30,
    1e30, 3e38, -3e38,
    88.8, -88.8, 104, -104, 1e4, -1e4, 12, -12, 0.9999999, 1.0000001, 3.1415927, 1e6, -1e6, 2.0**31,
    -(2.0**31), 255.5,
], F32)
UNARY = (
    "Abs", "Neg", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Sin", "Cos", "Tan", "Asin",
    "Acos", "Atan",
    "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Floor", "Ceil", "Round", "Sigmoid", "Relu",
    "LeakyRelu", "Elu",
    "Celu", "Selu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "ThresholdedRelu", "Gelu", "Mish",
    "IsNaN", "IsInf",
)
BINARY = (
    "Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Mod", "Less", "Equal", "GreaterOrEqual",
    "PRelu",
)
ASKS_NO_MODE: Mapping[str, Any] = {"Mod": np.fmod, "Pow": np.power}
"""ONNX Runtime's are functions of the C library, which see subnormal numbers in any mode."""
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Softmax", "LogSoftmax",
)
ROWS = np.array([
    [1, 2, np.nan, 3], [np.inf, 1, 2, 3], [-np.inf, 1, 2, 3], [np.inf, -np.inf, 1, 2], [np.nan] * 4,
    [np.inf] * 4,
    [-np.inf] * 4, [0, -0.0, 0, 0], [1e30] * 4, [3e38] * 4, [-np.inf, np.nan, 0, 1], [np.nan, np.inf, 0, 1],
    [88, 89, 90, 91], [1e-40] * 4, [-200, -200, -300, -1000],
], F32)
# fmt: on


MODES = pytest.mark.parametrize("keep", [False, True], ids=["flushed", "kept"])


def both(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Mapping[str, np.dtype[Any]],
    folder: Path,
    constants: Mapping[str, Array] | None = None,
    keep: bool = False,
) -> list[tuple[str, Array, Array]]:
    """(name, ours, ONNX Runtime's) of every output. keep: subnormal numbers, in both."""
    inputs = [(n, a.dtype, [f"{n}{k}" for k in range(a.ndim)]) for n, a in feeds.items()]
    m = build(nodes, inputs, list(outputs.items()), constants or {}, 20)
    onnx.save(m, folder / "m.onnx")
    asked = Request(
        source=str(folder / "m.onnx"), output=str(folder / "out"), runner=False, keep_subnormals=keep
    )
    got = smelt.load(compile_here(asked), threads=1).run(None, dict(feeds))
    session = plain_session(m)
    with flushed(not keep):
        want = session.run(list(outputs), dict(feeds))
    return list(zip(outputs, got, want, strict=True))


def check(op: str, got: Array, want: Array, at: Array) -> None:
    g, w = got.astype(F64), want.astype(F64)
    with np.errstate(invalid="ignore"):
        near = np.isfinite(w) & (np.abs(g - w) <= 1e-4 * np.abs(w) + (1e-7 if op == "Sigmoid" else 1e-37))
    same = (g == w) | (np.isnan(g) & np.isnan(w)) | near
    bad = [(at[tuple(i[: at.ndim])], got[tuple(i)], want[tuple(i)]) for i in np.argwhere(~same)]
    assert not bad, (op, bad[:6])


@MODES
def test_unary(keep: bool, tmp_path: Path) -> None:
    nodes = [helper.make_node(op, ["x"], [op]) for op in UNARY]
    outputs = {op: BOOL if op in ("IsNaN", "IsInf") else F32 for op in UNARY}
    for op, got, want in both(nodes, {"x": SPECIAL}, outputs, tmp_path, keep=keep):
        if op == "Softsign" and not keep:  # ONNX Runtime multiplies by 1 / (1 + |x|), which may be subnormal
            want = SPECIAL / (1 + np.abs(SPECIAL))
        check(op, got, want, SPECIAL)


@MODES
def test_binary(keep: bool, tmp_path: Path) -> None:
    a, b = (np.ascontiguousarray(m) for m in np.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    extra: dict[str, dict[str, int]] = {"Mod": {"fmod": 1}}
    nodes = [helper.make_node(op, ["a", "b"], [op], **extra.get(op, {})) for op in BINARY]
    outputs = {op: BOOL if op in ("Less", "Equal", "GreaterOrEqual") else F32 for op in BINARY}
    for op, got, want in both(nodes, {"a": a, "b": b}, outputs, tmp_path, keep=keep):
        if op in ASKS_NO_MODE and not keep:
            with np.errstate(all="ignore"):
                want = ASKS_NO_MODE[op](*(np.where(np.abs(v) < 1.2e-38, v * F32.type(0), v) for v in (a, b)))
        check(op, got, want, np.stack([a, b], -1))


@MODES
@pytest.mark.parametrize("length", [8, 24])
def test_reductions(length: int, keep: bool, tmp_path: Path) -> None:
    """ONNX Runtime's max and min lose a NaN or keep it by where it stands; ours keep it, as NumPy does."""
    rows = np.concatenate([ROWS, ROWS[:, ::-1]], 1)
    x = np.ascontiguousarray(np.tile(rows, (1, length // 8)))
    nodes = [
        helper.make_node(op, ["x", "axes"], [op])
        if op.startswith("Reduce")
        else helper.make_node(op, ["x"], [op], axis=1)
        for op in REDUCTIONS
    ]
    axes = {"axes": np.array([1], np.int64)}
    for op, got, want in both(nodes, {"x": x}, dict.fromkeys(REDUCTIONS, F32), tmp_path, axes, keep):
        if op in ("ReduceMax", "ReduceMin"):
            want = (np.max if op == "ReduceMax" else np.min)(x, axis=1, keepdims=True)
        check(op, got, want, x)


@pytest.mark.parametrize("op", ["MatMul", "Conv", "ReduceSum"])
def test_zeros_of_tiny_products_are_as_written(op: str, tmp_path: Path) -> None:
    """-1e-30 * 1e-30 + 0, rounded once, is -0, and + 0 makes 0 of it: nothing may leave that out."""
    x, w = np.full((3, 4, 8), -1e-30, F32), np.full((8, 4, 8), 1e-30, F32)
    made = {
        "MatMul": [helper.make_node("MatMul", ["x", "w"], ["s"])],
        "Conv": [helper.make_node("Conv", ["x", "w"], ["s"])],
        "ReduceSum": [
            helper.make_node("Mul", ["x", "w"], ["p"]),
            helper.make_node("ReduceSum", ["p", "axes"], ["s"]),
        ],
    }
    nodes = [*made[op], helper.make_node("Add", ["s", "zero"], ["y"])]
    weight = {"MatMul": w[0, :, :1].repeat(8, 0)[:8], "Conv": w[:, :, :3], "ReduceSum": w[0]}[op]
    given = {"w": weight, "zero": np.zeros(1, F32), "axes": np.array([2], np.int64)}
    ((_, got, want),) = both(nodes, {"x": x}, {"y": F32}, tmp_path, given)
    assert not np.signbit(got).any() and not got.any()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [0, 3])
def test_products_of_no_terms_are_zeros(rows: int, tmp_path: Path) -> None:
    """The input's second extent is a dim whose only value is that of the weight."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = tmp_path / "m.onnx"
    f32 = onnx.TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", f32, ["n", "k"])
    y = helper.make_tensor_value_info("y", f32, None)
    w = helper.make_tensor("w", f32, [0, 17], [])
    onnx.save(
        helper.make_model(
            helper.make_graph(nodes, "g", [x], [y], [w]),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        ),
        path,
    )
    made = compile_here(Request(source=str(path), output=str(tmp_path / "out")))
    (got,) = smelt.load(made.path).run(None, {"x": np.zeros((rows, 0), np.float32)})
    np.testing.assert_array_equal(got, np.zeros((rows, 17), np.float32))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)], ids=str)
def test_weights_of_no_elements_displace_no_others(order: tuple[int, ...], tmp_path: Path) -> None:
    """Such a weight takes no room in the file, and so begins where another one does."""
    held = [np.zeros(0, np.int64), np.arange(10) * 1.5 + 1, np.zeros((3, 0), np.int16)]
    given = {f"c{n}": held[n] for n in order}
    nodes = [helper.make_node("Identity", [name], [f"y{name}"]) for name in given]
    outputs = [onnx.ValueInfoProto(name=n.output[0]) for n in nodes]
    weights = [onnx.numpy_helper.from_array(a, name) for name, a in given.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [], outputs, weights),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.save(model, str(tmp_path / "m.onnx"))
    session = smelt.load(compile_here(Request(str(tmp_path / "m.onnx"), output=str(tmp_path / "out"))))
    for found, wanted in zip(session.run(None, {}), given.values(), strict=True):
        np.testing.assert_array_equal(found, wanted)
