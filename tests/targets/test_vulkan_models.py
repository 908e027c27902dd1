"""Whole models for x86+vulkan, compiled and run in a session, agree with ONNX Runtime at several shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_vulkan
from oracle import runtime_session

import smelt
from smelt.core.diag import SmeltError

pytestmark = needs_vulkan
Array = np.ndarray[Any, Any]

CONV = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, h, w] x) => (float[n, 5, p, q] z, float[n, 5] y)
{
  c = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, weight)
  z = Relu (c)
  g = GlobalAveragePool (z)
  f = Flatten (g)
  y = Softmax (f)
}
"""
TYPES = """
<ir_version: 8, opset_import: ["" : 17]>
net (double[n, 3] x, float16[n, 3] h, uint8[n, 3] u, int64[n, 3] i, int8[n, 3] s)
  => (double[n] a, float16[n, 3] b, int32[n, 3] c, bool[n, 3] d, int64[n, 3] e, int8[n, 6] f, int64[m, 2] g)
{
  axis = Constant <value = int64[1] {1}> ()
  a = ReduceSum <keepdims = 0> (x, axis)
  b = Tanh (h)
  c = Cast <to = 6> (x)
  two = Cast <to = 2> (h)
  d = Less (u, two)
  three = Constant <value = int64 {-3}> ()
  e = Div (i, three)
  f = Concat <axis = 1> (s, s)
  cells = NonZero (d)
  g = Transpose (cells)
}
"""
SORTED = """
<ir_version: 8, opset_import: ["" : 17]>
net (int64[n] x) => (int64[n] y, int64[n] z) { n = Shape (x) y, z = TopK (x, n) }
"""

FORMS_OF_DEVICES = ("", "int8=0,int16=0,halves=0", "storage8=0,storage16=0,int8=0,int16=0,halves=0")
"""For SMELT_VULKAN_WEAK: devices that take each form of kernels, the best first."""


def uniform(*shape: int) -> Array:
    return np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)


def check(
    model: onnx.ModelProto, out: Path, feeds: list[dict[str, Array]], place: dict[str, str] | None = None
) -> None:
    bundle = smelt.compile(model.SerializeToString(), target="x86+vulkan", output=out, place=place)
    try:
        session = smelt.load(bundle)
    except SmeltError as e:
        if "lacks the feature" not in str(e):
            raise
        pytest.skip(str(e))
    oracle = runtime_session(model)
    for feed in feeds:
        for got, want in zip(session.run(None, feed), oracle.run(None, feed), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            tolerance = 2e-3 if want.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_convolution_at_changing_shapes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CONV)
    model.graph.initializer.append(onnx.numpy_helper.from_array(uniform(5, 3, 3, 3), "weight"))
    sizes = [(1, 8, 8), (2, 7, 13), (1, 1, 1), (3, 30, 5), (1, 8, 8)]
    check(model, tmp_path / "b", [{"x": uniform(n, 3, h, w)} for n, h, w in sizes])


def test_a_convolution_into_few_channels(tmp_path: Path) -> None:
    """Tiles of many lines and few channels do not fit the memory of a group."""
    text = CONV.replace("[n, 3, h", "[n, 81, h").replace("[n, 5", "[n, 2").replace("strides = [2, 2], ", "")
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(uniform(2, 81, 3, 3), "weight"))
    check(model, tmp_path / "b", [{"x": uniform(n, 81, h, w)} for n, h, w in [(1, 8, 9), (2, 40, 13)]])


def test_elements_in_order(tmp_path: Path) -> None:
    """One invocation does a row: of as many rounds of loops as llvmpipe runs."""
    rows = [np.random.default_rng(n).permutation(n) - 50 for n in (7, 1, 0, 48, 49, 300)]
    check(onnx.parser.parse_model(SORTED), tmp_path / "b", [{"x": row} for row in rows])


def feed_of(n: int) -> dict[str, Array]:
    x, rng = 100 * uniform(n, 3), np.random.default_rng(n)
    return {
        "x": x.astype(np.float64), "h": np.abs(x / 50).astype(np.float16), "u": (x > 0).astype(np.uint8),
        "i": rng.integers(-(1 << 62), 1 << 62, (n, 3)), "s": rng.integers(-128, 128, (n, 3), np.int8),
    }  # fmt: skip


def test_every_kind_of_type(tmp_path: Path) -> None:
    check(onnx.parser.parse_model(TYPES), tmp_path / "b", [feed_of(n) for n in (1, 5, 33)], {"*": "vulkan"})


def test_modules_are_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "dump"))
    model = onnx.parser.parse_model(TYPES).SerializeToString()
    smelt.compile(model, target="x86+vulkan", output=tmp_path / "b")
    found = list((tmp_path / "dump").rglob("*.spv"))
    assert found and all(p.read_bytes()[:4] == b"\x03\x02\x23\x07" for p in found)


def test_doubles_are_the_processors_where_devices_may_lack_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone: the other kernels run on the device. A rule that names the device puts them there."""
    model = onnx.parser.parse_model(TYPES)
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "float64=0")
    check(model, tmp_path / "a", [feed_of(n) for n in (1, 5, 33)])
    kernels = smelt.load(tmp_path / "a").kernel_forms()
    assert "k_tanh" in kernels and not kernels.keys() & {"k_reduce_sum", "k_cast"}
    bundle = smelt.compile(
        model.SerializeToString(), target="x86+vulkan", output=tmp_path / "b", place={"*": "vulkan"}
    )
    with pytest.raises(SmeltError, match="lacks the feature shaderFloat64"):
        smelt.load(bundle)


HALVES = """
<ir_version: 8, opset_import: ["" : 17]>
net (float16[n, 96] x, int8[n, 96] s) => (float16[n, 80] y, int8[n, 96] t)
{
  a = MatMul (x, weight)
  y = Relu (a)
  t = Abs (s)
}
"""


def test_numbers_of_8_and_16_bits_on_devices_with_and_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bundle; a session takes the forms that its device has."""
    model = onnx.parser.parse_model(HALVES)
    weight = (uniform(96, 80) / 4).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    bundle = smelt.compile(model.SerializeToString(), target="x86+vulkan", output=tmp_path / "b")
    monkeypatch.setenv("SMELT_VULKAN_TRUST", "halves")
    for weak in FORMS_OF_DEVICES:
        monkeypatch.setenv("SMELT_VULKAN_WEAK", weak)
        session = smelt.load(bundle)
        for n in (1, 33):
            x, s = uniform(n, 96).astype(np.float16), (100 * uniform(n, 96)).astype(np.int8)
            y, t = session.run(None, {"x": x, "s": s})
            want = np.maximum(x.astype(np.float32) @ weight.astype(np.float32), 0)
            np.testing.assert_allclose(y.astype(np.float32), want, rtol=1e-3, atol=1e-5)
            np.testing.assert_array_equal(t, np.abs(s))


ATTENTION = """
<ir_version: 11, opset_import: ["" : 23]>
net (float[b, 4, t, 16] q, float[b, 2, s, 16] k, float[b, 2, s, 24] v, float[t, s] m)
  => (float[b, 4, t, 24] y)
{
  y = Attention (q, k, v, m)
}
"""


def test_attention_is_one_kernel(tmp_path: Path) -> None:
    """Of few rows and of many, which are made in blocks; rows whose mask hides all, or all of a block."""
    feeds = []
    for b, t, s in ((2, 1, 9), (1, 3, 700), (1, 37, 70), (1, 20, 1), (1, 8, 64)):
        mask = uniform(t, s)
        mask[t // 2 :, : s // 2] = mask[-1] = -np.inf
        k, v = uniform(b, 2, s, 16), uniform(b, 2, s, 24)
        feeds.append({"q": uniform(b, 4, t, 16), "k": k, "v": v, "m": mask})
    check(onnx.parser.parse_model(ATTENTION), tmp_path / "b", feeds)
    assert len(json.loads((tmp_path / "b" / "manifest.json").read_text())["kernels"]) == 1
