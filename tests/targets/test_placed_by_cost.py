"""Kernels that costs put on the CPU and on OpenCL agree with ONNX Runtime; copies are the manifest's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from boards import needs_opencl
from oracle import runtime_session

import smelt
from smelt.core.bundle import Bundle
from smelt.core.dim import parse_dim

Array = np.ndarray[Any, Any]
pytestmark = needs_opencl

MIDDLE = """
<ir_version: 8, opset_import: ["" : 17]>
middle (float[n, 64] x) => (float[n, 64] y) <float[64, 64] v, float[64, 64] w>
{
  [first] a = Softmax (x)
  [two] b = MatMul (a, v)
  [three] c = MatMul (b, w)
  [last] y = Softmax (c)
}
"""
ROUNDS = """
<ir_version: 8, opset_import: ["" : 17]>
rounds (int64 k, float[n, 64] x) => (float[n, 64] y) <float[64, 64] v, float[64, 64] w>
{
  [first] a = Softmax (x)
  [rounds] r = Loop (k, , a) <
    body = body (int64 i, bool go, float[n, 64] h) => (bool on, float[n, 64] t) {
      on = Identity (go)
      [two] p = MatMul (h, v)
      [between] q = Softmax (p)
      [three] t = MatMul (q, w)
  }>
  [last] y = Softmax (r)
}
"""
FIGURES = (
    "cpu.operations=1e9;cpu.bandwidth=1e10;cpu.launch=1e-7;opencl.operations=1e12;opencl.bandwidth=1e8;"
    "opencl.launch=1e-7;opencl.link=1e10;opencl.copy=1e-7"
)
"""Of a device whose memory is slow: what has much to compute with few bytes is for it."""


def model(text: str) -> onnx.ModelProto:
    """The model with its weights."""
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    del made.graph.initializer[:]
    for name in "vw":
        square = rng.standard_normal((64, 64)).astype(np.float32) / 4
        made.graph.initializer.append(onnx.numpy_helper.from_array(square, name))
    return made


def rows(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)


def compiled(source: Any, out: Path, place: Mapping[str, str]) -> Bundle:
    return smelt.compile(source, "x86+opencl", output=out, place=place)


def units(bundle: Bundle) -> dict[str, str]:
    """Of kernels, the first node that is one of each -> the unit."""
    return {str(k["origin"]): str(k["unit"]) for k in bundle.manifest["kernels"]}


def agrees(
    session: smelt.Session, manifest: Mapping[str, Any], source: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Array]],
) -> None:  # fmt: skip
    """Each run gives what ONNX Runtime does, and moves what the manifest lists, each row once: without a copy
    where the device has the host's memory."""
    oracle, moves = runtime_session(source), manifest["transfers"]
    for feed in feeds:
        before, found, after = session.memory(), session.run(None, dict(feed)), session.memory()
        for got, want in zip(found, oracle.run(None, dict(feed)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
        sizes = [parse_dim(t["bytes"]).evaluate({"n": len(feed["x"])}) for t in moves]
        copied, shared = after.crossings - before.crossings, after.shared - before.shared
        assert copied + shared == len(moves)
        copied_bytes = after.crossed_bytes - before.crossed_bytes
        assert copied_bytes + after.shared_bytes - before.shared_bytes == sum(sizes)


def test_the_heavy_middle_goes_over(tmp_path: Path) -> None:
    """It was weighed at 64 rows, and is right with any number of them."""
    bundle = compiled(model(MIDDLE).SerializeToString(), tmp_path / "b", {"*": f"auto@{FIGURES};n=64"})
    assert units(bundle) == {"first": "cpu", "two": "opencl"}
    ways = [(t["name"], t["from"], t["to"]) for t in bundle.manifest["transfers"]]
    assert ways == [("a", "cpu", "opencl"), ("c", "opencl", "cpu")]
    feeds = [{"x": rows(n)} for n in (64, 1, 33, 300, 64)]
    agrees(smelt.load(bundle), bundle.manifest, model(MIDDLE), feeds)
    assert bundle.manifest["options"]["place"] == [["*", f"auto@{FIGURES};n=64"]]


def test_a_loop_has_what_it_carries_on_one_unit(tmp_path: Path) -> None:
    """However often it runs, so many values are copied: none in a round, though one of its kernels would be
    faster at the CPU."""
    figures = FIGURES.replace("opencl.copy=1e-7", "opencl.copy=5e-4")
    source = model(ROUNDS)
    bundle = compiled(source.SerializeToString(), tmp_path / "b", {"*": f"auto@{figures};n=512"})
    found = {k["name"]: k["unit"] for k in bundle.manifest["kernels"]}
    assert found == {"softmax": "cpu", "softmax_2": "opencl", "matmul": "opencl"}
    assert len(bundle.manifest["transfers"]) == 2
    feeds = [{"k": np.array(k), "x": rows(n)} for k, n in ((1, 64), (5, 3), (2, 65), (9, 1))]
    agrees(smelt.load(bundle), bundle.manifest, source, feeds)


STEP = """
<ir_version: 8, opset_import: ["" : 17]>
step (float[n, 64] x, float[n, 64] past) => (float[n, 1] y, float[n, 64] present)
<int64[1] axes = {1}>
{
  [mix] s = Add (x, past)
  [next] present = Softmax (s)
  [sum] y = ReduceMax <axes = [1]> (present)
}
"""


def test_a_state_is_no_reason_to_copy(tmp_path: Path) -> None:
    """Fed and returned, it keeps all at the CPU; as state it stays at the device, which is faster."""
    source = onnx.parser.parse_model(STEP)
    del source.graph.initializer[:]
    figures = (
        "cpu.operations=1e9;cpu.bandwidth=1e9;cpu.launch=0;opencl.operations=1e12;opencl.bandwidth=1e12;"
        "opencl.launch=0;opencl.link=2e9;opencl.copy=7e-5;n=64"
    )
    place = {"*": f"auto@{figures}"}
    fed = smelt.compile(source, "x86+opencl", output=tmp_path / "fed", place=place)
    kept = smelt.compile(
        source, "x86+opencl", output=tmp_path / "kept", place=place, state={"past": "present"}
    )
    assert set(units(fed).values()) == {"cpu"} and set(units(kept).values()) == {"opencl"}
    session, oracle = smelt.load(kept), runtime_session(source)
    past = np.zeros((5, 64), np.float32)
    for k in range(3):
        x = np.roll(rows(5), k)
        (y,) = session.run(None, {"x": x})
        want, past = oracle.run(None, {"x": x, "past": past})
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-6)
    assert session.memory().crossings == 0


def test_entries_are_weighed_each_at_its_sizes(tmp_path: Path) -> None:
    """With many rows a copy pays that costs what a few rows do not save."""
    source, figures = model(MIDDLE), FIGURES.replace("opencl.copy=1e-7", "opencl.copy=1e-4")
    place = {"one/*": f"auto@{figures};n=1", "many/*": f"auto@{figures};n=512"}
    onnx.save(source, str(tmp_path / "m.onnx"))
    both = {"one": tmp_path / "m.onnx", "many": tmp_path / "m.onnx"}
    bundle = compiled(both, tmp_path / "b", place)
    session = smelt.load(bundle)
    for name, copies in (("one", 0), ("many", 2)):
        manifest = bundle.entry(name).manifest
        assert len(manifest["transfers"]) == copies
        agrees(session.entry(name), manifest, source, [{"x": rows(n)} for n in (1, 70, 512)])
