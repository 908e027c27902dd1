"""Differences of arrays, and the standard ONNX backend interface."""

from __future__ import annotations

import os
from typing import Any

import front_models
import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx.numpy_helper import from_array

from smelt import onnx_backend
from smelt.core.diag import SmeltError
from smelt.devicefarm.measure import geomean
from smelt.difference import compare_arrays
from smelt.reference import Reference

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("got", "want", "bad"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.0005], [1.0, 2.0], 0),
        ([1.0, 2.1], [1.0, 2.0], 1),
        ([NAN, 2.0], [NAN, 2.0], 0),
        ([1.0, NAN], [1.0, 2.0], 1),
        ([1.0, 2.0], [1.0, NAN], 1),
        ([INF, -INF], [INF, -INF], 0),
        ([INF, INF], [INF, -INF], 1),
        ([1e30, 1.0], [INF, 1.0], 1),
        ([INF, 1.0], [1e30, 1.0], 1),
        ([], [], 0),
        ([0.0], [-0.0], 0),
    ],
)
def test_floats(got: list[float], want: list[float], bad: int) -> None:
    error = compare_arrays("y", np.array(got, np.float32), np.array(want, np.float32))
    assert error.bad == bad
    assert error.ok == (bad == 0)
    assert np.isfinite(error.max_abs)


def test_the_worst_element_is_named() -> None:
    want = np.zeros((3, 4), np.float32)
    got = want.copy()
    got[0, 1], got[2, 3] = 1.0, 5.0
    error = compare_arrays("y", got, want)
    assert (error.bad, error.worst, error.got, error.want) == (2, (2, 3), "5.0", "0.0")
    got[1, 0] = NAN
    assert compare_arrays("y", got, want).worst == (1, 0)


def test_integers_are_exact() -> None:
    big = np.array([2**62, 2**62 + 1], np.int64)
    assert compare_arrays("y", big, big).ok
    assert compare_arrays("y", big + np.array([0, 1]), big).bad == 1
    assert compare_arrays("y", np.array([True]), np.array([False])).bad == 1


def test_half_types_have_wider_tolerances() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        want = np.array([1.0, 2.0, 4.0], dtype)
        near = (want.astype(np.float32) * 1.004).astype(dtype)
        assert compare_arrays("y", near, want).ok
        assert not compare_arrays("y", (want.astype(np.float32) * 1.2).astype(dtype), want).ok


def test_another_shape_or_type_is_an_error() -> None:
    a = np.zeros((2, 3), np.float32)
    assert "expected float32[2, 3]" in str(compare_arrays("y", a.T, a))
    assert not compare_arrays("y", a.astype(np.float64), a).ok


def test_own_tolerances_replace_the_defaults() -> None:
    a, b = np.array([1.0, 1.0], np.float32), np.array([1.0, 1.01], np.float32)
    assert not compare_arrays("y", a, b).ok
    assert compare_arrays("y", a, b, atol=0.02).ok
    assert compare_arrays("y", a, b, rtol=0.02).ok
    assert not compare_arrays("y", b + np.float32(1e-6), b, rtol=0.0, atol=0.0).ok


def test_small_values_are_called_weak() -> None:
    tiny = np.full(4, 1e-6, np.float32)
    assert compare_arrays("y", tiny, tiny).weak
    assert not compare_arrays("y", tiny * 1e6, tiny * 1e6).weak


def test_geomean() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([3.0]) == pytest.approx(3.0)


# ---------------------------------------------------------------- the backend interface


def test_backend_runs_a_model() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype(np.float32)
    model = front_models.small()
    rep = onnx_backend.prepare(model)
    (y,) = rep.run([x])
    assert np.allclose(y, rep.run({"x": x})[0])
    assert np.allclose(y.sum(axis=1), 1, atol=1e-5)
    assert onnx_backend.is_compatible(model)
    assert not onnx_backend.is_compatible(front_models.unsupported())
    with pytest.raises(SmeltError, match="1 inputs, got 2"):
        rep.run([x, x])


def test_backend_runs_a_node() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([10, 20, 30])
    (y,) = onnx_backend.run_node(helper.make_node("Add", ["a", "b"], ["y"]), [a, b])
    assert (y == a + b).all()


def test_backend_supports_the_cpu_alone() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA")
    assert not onnx_backend.supports_device("toaster")
    with pytest.raises(SmeltError, match="no device 'CUDA'"):
        onnx_backend.prepare(front_models.small(), "CUDA")


def test_reference_refuses_in_its_own_words(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(front_models.small().SerializeToString())
    reference = Reference(path, outputs=["c"])
    assert list(reference.run({"x": np.zeros((1, 3, 4, 4), np.float32)})) == ["y", "c"]
    with pytest.raises(SmeltError, match="onnxruntime refuses"):
        reference.run({"x": np.zeros((1, 5, 4, 4), np.float32)})


def test_reference_reads_a_file_of_any_name(tmp_path: Any) -> None:
    path = tmp_path / os.fsdecode(b"m\xff.onnx")
    path.write_bytes(front_models.small().SerializeToString())
    feed = {"x": np.zeros((1, 3, 4, 4), np.float32)}
    assert Reference(path).run(feed)["y"].shape == Reference(path, outputs=["c"]).run(feed)["y"].shape


def test_weights_that_share_a_zero_point_are_no_reason_to_refuse(tmp_path: Any) -> None:
    """ONNX Runtime 1.32 refuses such models where products of bytes must not saturate on x86 without VNNI."""
    rng = np.random.default_rng(0)
    scale, zero = from_array(np.float32(0.05), "s"), from_array(np.uint8(128), "z")
    scales, zeros = from_array(np.full(8, 0.02, np.float32), "ws"), from_array(np.zeros(8, np.int8), "wz")
    whole = [scale, zero, scales, zeros]
    nodes, last = [], "x"
    for n in "ab":
        whole.append(from_array(rng.integers(-128, 128, (8, 8)).astype(np.int8), f"w{n}"))
        nodes += [
            helper.make_node("QuantizeLinear", [last, "s", "z"], [f"q{n}"]),
            helper.make_node("DequantizeLinear", [f"q{n}", "s", "z"], [f"d{n}"]),
            helper.make_node("DequantizeLinear", [f"w{n}", "ws", "wz"], [f"v{n}"], axis=1),
            helper.make_node("MatMul", [f"d{n}", f"v{n}"], [f"m{n}"]),
        ]
        last = f"m{n}"
    nodes += [helper.make_node("QuantizeLinear", [last, "s", "z"], ["q"]),
              helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, 1, ["N", 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], whole)
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    found = Reference(path).run({"x": np.ones((3, 8), np.float32)})
    assert found["y"].shape == (3, 8)
