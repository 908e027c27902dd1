"""Fixed seeds of extreme extents, and the cases that wrote outside of their memory or never ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sanitizer
from attack_extents import attack
from boards import needs_vulkan
from onnx import TensorProto, helper, numpy_helper, save_model
from opencl_run import context

import smelt
from smelt.core.diag import SmeltError

node = helper.make_node
F32, I64, U8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8
TURNS = 5.0
"""Seconds of processor time that no run of a small model takes; loops around nothing took years."""


def _model(
    folder: Path, nodes: Any, inputs: Any, results: Any, constants: Any = None, target: str = "host",
    opset: int = 20,
) -> Any:
    """A session. inputs, results: name -> (element type, dims); constants: name -> integers."""

    def values(given: Any) -> list[Any]:
        return [helper.make_tensor_value_info(n, *t) for n, t in given.items()]

    held = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(results), held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    folder.mkdir(exist_ok=True)
    save_model(made, folder / "m.onnx")
    return smelt.load(smelt.compile(folder / "m.onnx", target=target, output=folder / "out"), threads=1)


def _refused(session: Any, feed: dict[str, Any], kind: str, *words: str) -> None:
    with pytest.raises(SmeltError) as e:
        session.run(None, feed)
    assert e.value.kind == kind and all(w in str(e.value) for w in words), (e.value.kind, str(e.value))


@pytest.mark.parametrize("seed", [2, 5, 8, 110, 310])
def test_seeds(seed: int) -> None:
    outcome = attack(seed)
    assert not outcome.failed, f"{outcome.what}\n{outcome.detail}"


@pytest.mark.skipif(bool(sanitizer.missing()), reason=sanitizer.missing())
def test_a_sample_under_the_sanitizer() -> None:
    """`make sanitize forms=extents` runs them all."""
    count, found = sanitizer.campaign(("extents",), 0.4)
    assert not found, "\n".join(found.values())
    assert count > 3


def test_an_arena_of_n_cubed(tmp_path: Path) -> None:
    """4*n^3 bytes at n = 2^22 are 2^68, which was taken for 0."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Concat", ["s", "s", "s"], ["s3"], axis=0),
        node("Expand", ["x", "s3"], ["e"]),
        node("CumSum", ["e", "axis"], ["c"]),
        node("ReduceSum", ["c"], ["y"], keepdims=0),
    ]
    session = _model(tmp_path, nodes, {"x": (F32, ["n"])}, {"y": (F32, [])}, {"axis": 0})
    assert session.run(None, {"x": np.ones(3, np.float32)})[0] == 54
    large = {"x": np.ones(1 << 22, np.float32)}
    _refused(session, large, "shape", "n*n*n", "does not fit in 64 bits", "n = 4194304")
    _refused(session, {"x": np.ones(1 << 19, np.float32)}, "device", "1152921504606846976 bytes")
    assert session.run(None, {"x": np.ones(3, np.float32)})[0] == 54


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Reshape"])
def test_integers_that_multiply_to_nothing(tmp_path: Path, op: str) -> None:
    """2^21 * 2^21 * 2^22 is 2^64: a tensor of 0 bytes."""
    x = {} if op == "ConstantOfShape" else {"x": (F32, ["a", "b", "c"])}
    nodes = [node(op, [*x, "s"], ["e"]), node("CumSum", ["e", "axis"], ["c"]), node("Relu", ["c"], ["y"])]
    session = _model(tmp_path, nodes, {**x, "s": (I64, [3])}, {"y": (F32, None)}, {"axis": 0})
    given = {"x": np.ones((1, 1, 1), np.float32)} if x else {}
    small = [1, 1, 1] if op == "Reshape" else [2, 3, 2]
    assert session.run(None, {**given, "s": np.array(small)})[0].shape == tuple(small)
    for sizes in ([2**21, 2**21, 2**22], [2**31 - 1] * 3, [2**62, 2**62, 4], [-(2**63), 3, 2**40]):
        with pytest.raises(SmeltError) as e:
            session.run(None, {**given, "s": np.array(sizes, np.int64)})
        assert e.value.kind in ("shape", "device"), e.value
    assert session.run(None, {**given, "s": np.array(small)})[0].shape == tuple(small)


def _around_nothing(folder: Path, target: str) -> None:
    """A sum over nothing for each row, and tensors of nothing with rows without number."""
    nodes = [
        node("ReduceSum", ["x", "axes"], ["s"], keepdims=0),
        node("Softmax", ["x"], ["p"]),
        node("CumSum", ["x", "one"], ["c"]),
        node("Transpose", ["x"], ["t"], perm=[2, 1, 0]),
        node("Concat", ["x", "x"], ["w"], axis=1),
    ]
    results = dict.fromkeys("spctw", (F32, None))
    session = _model(
        folder, nodes, {"x": (F32, ["a", "b", "c"])}, results, {"axes": [1, 2], "one": 1}, target
    )
    good = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    before = session.run(None, {"x": good})
    start = time.process_time()
    for shape in (
        (3, 2**58, 0),
        (3, 0, 2**58),
        (2, 0, 2**40),
        (5, 2**32, 0),
        (0, 2**30, 2**29),
        (0, 2**58, 3),
    ):
        s, p, c, t, w = session.run(None, {"x": np.zeros(shape, np.float32)})
        assert s.shape == shape[:1] and not s.any()
        assert p.shape == c.shape == shape and t.shape == shape[::-1]
        assert w.shape == (shape[0], 2 * shape[1], shape[2])
    assert time.process_time() - start < TURNS
    for a, b in zip(before, session.run(None, {"x": good}), strict=True):
        np.testing.assert_array_equal(a, b)


def test_loops_around_nothing_do_not_turn(tmp_path: Path) -> None:
    _around_nothing(tmp_path, "host")


def test_loops_around_nothing_do_not_turn_on_a_device(tmp_path: Path) -> None:
    context()  # skips where there is none
    _around_nothing(tmp_path, "x86+opencl")


@needs_vulkan
def test_loops_around_nothing_do_not_turn_on_a_vulkan_device(tmp_path: Path) -> None:
    _around_nothing(tmp_path, "x86+vulkan")


def test_an_axis_of_2_to_the_62(tmp_path: Path) -> None:
    """The longest axis there is, beside one of nothing; one more is refused."""
    nodes = [node("Max", ["x", "x"], ["y"])]
    session = _model(tmp_path, nodes, {"x": (U8, ["a", "b"])}, {"y": (U8, None)})
    for shape in ((2**62, 0), (0, 2**62)):
        assert session.run(None, {"x": np.zeros(shape, np.uint8)})[0].shape == shape
    _refused(session, {"x": np.zeros((0, 2**62 + 1), np.uint8)}, "shape", "axis 1", "longest axis")


def test_rounds_around_nothing_end(tmp_path: Path) -> None:
    """A loop of more rounds than any may have is refused before the first."""
    info, flag = helper.make_tensor_value_info, TensorProto.BOOL
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["v", "v"], ["u"])],
        "body",
        [info("i", I64, []), info("c", flag, []), info("v", F32, ["n"])],
        [info("d", flag, []), info("u", F32, ["n"])],
    )
    nodes = [node("Loop", ["trips", "", "x"], ["y"], body=body)]
    session = _model(tmp_path, nodes, {"trips": (I64, []), "x": (F32, ["n"])}, {"y": (F32, None)})
    (y,) = session.run(None, {"trips": np.array(3), "x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(y, [8, 8])
    start = time.process_time()
    _refused(
        session, {"trips": np.array(2**62), "x": np.ones(0, np.float32)}, "invalid", "4611686018427387904"
    )
    assert time.process_time() - start < TURNS


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64])
def test_a_range_of_no_step(tmp_path: Path, dtype: Any) -> None:
    """Known to the run alone."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [node("Range", ["a", "b", "c"], ["y"], name="steps")]
    session = _model(tmp_path, nodes, {n: (kind, []) for n in "abc"}, {"y": (kind, None)})

    def feed(*numbers: int) -> dict[str, Any]:
        return {n: np.array(v, dtype) for n, v in zip("abc", numbers, strict=True)}

    for ends in ((0, 5), (0, 0), (5, 0)):
        _refused(session, feed(*ends, 0), "shape", "steps", "delta is 0")
    assert session.run(None, feed(0, 5, 2))[0].tolist() == [0, 2, 4]
    assert session.run(None, feed(0, 5, -1))[0].tolist() == []


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_positions_in_an_image_of_nothing(tmp_path: Path, padding: str) -> None:
    nodes = [node("GridSample", ["x", "g"], ["y"], name="grid", padding_mode=padding)]
    inputs = {"x": (F32, ["n", "c", "h", "w"]), "g": (F32, ["n", "p", "q", 2])}
    session = _model(tmp_path, nodes, inputs, {"y": (F32, None)})
    x, g = np.zeros((1, 1, 3, 0), np.float32), np.zeros((1, 2, 4, 2), np.float32)
    _refused(session, {"x": x, "g": g}, "shape", "grid", "no elements")
    assert session.run(None, {"x": x, "g": g[:, :0]})[0].shape == (1, 1, 0, 4)


def test_operands_that_are_too_short(tmp_path: Path) -> None:
    """What an op reads at fixed places of an operand, or group by group, has to be there."""
    gru = [node("GRU", ["x", "w", "r", "b"], ["", "y"], name="gru", hidden_size=5)]
    inputs = {"x": (F32, ["t", "n", 3]), "w": (F32, [1, 15, 3]), "r": (F32, [1, 15, 5])}
    inputs["b"] = (F32, ["d", "k"])
    feed = {n: np.zeros(s, np.float32) for n, s in (("x", (2, 1, 3)), ("w", (1, 15, 3)), ("r", (1, 15, 5)))}
    session = _model(tmp_path / "gru", gru, inputs, {"y": (F32, None)})
    for shape in ((0, 0), (1, 0), (1, 29), (1, 31), (2, 30)):
        _refused(session, {**feed, "b": np.zeros(shape, np.float32)}, "shape", "'b' axis")
    assert session.run(None, {**feed, "b": np.zeros((1, 30), np.float32)})[0].shape == (1, 1, 5)

    hot = [node("OneHot", ["i", "d", "v"], ["y"], name="hot")]
    session = _model(
        tmp_path / "hot", hot, {"i": (I64, ["n"]), "d": (I64, []), "v": (F32, ["k"])}, {"y": (F32, None)}
    )
    for k in (0, 1, 3):
        feed = {"i": np.zeros(3, np.int64), "d": np.array(2), "v": np.zeros(k, np.float32)}
        _refused(session, feed, "shape", "'v' axis 0")

    deform = [node("DeformConv", ["x", "w", "o"], ["y"], name="deform", offset_group=2)]
    inputs = {"x": (F32, ["n", "c", "h", "l"]), "w": (F32, ["m", "c", 2, 2]), "o": (F32, ["n", 16, 3, 3])}
    session = _model(tmp_path / "deform", deform, inputs, {"y": (F32, None)})
    for c in (1, 3):
        feed = {"x": np.zeros((1, c, 4, 4), np.float32), "w": np.zeros((1, c, 2, 2), np.float32)}
        _refused(session, {**feed, "o": np.zeros((1, 16, 3, 3), np.float32)}, "shape", "c is")


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_an_axis_that_there_is_not(tmp_path: Path, op: str) -> None:
    """Known to the run alone."""
    nodes = [node(op, ["x", "a"], ["y"], name="total")]
    made = {"x": (TensorProto.DOUBLE, ["n", "m"]), "a": (TensorProto.INT32, [])}
    session = _model(tmp_path, nodes, made, {"y": (TensorProto.DOUBLE, None)}, opset=26)
    for x in (np.ones((2, 3)), np.ones((0, 65536))):
        for a in (2, -3, -(2**31)):
            _refused(session, {"x": x, "a": np.array(a, np.int32)}, "shape", "total", "the axis is")
        for a in (-2, -1, 0, 1):
            want = (np.cumsum if op == "CumSum" else np.cumprod)(x, a)
            np.testing.assert_array_equal(session.run(None, {"x": x, "a": np.array(a, np.int32)})[0], want)
