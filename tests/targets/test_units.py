"""Models whose kernels alternate between units agree with ONNX Runtime; copies are those of crossing edges.

The units are the CPU, OpenCL, and a device that needs no hardware, a folder added to a copy of the sources.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from checkouts import FAKE, Checkout, checkout
from flow_models import flow_feeds, flow_model
from oracle import runtime_session

from smelt.core.dim import parse_dim

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[n, 24] x) => (float[n, 24] y, float[n, 1] s)
<float[24, 24] v, float[24, 24] w>
{
  [one] a = MatMul (x, w)
  [two] p = LpNormalization <axis = -1> (a)
  [three] b = MatMul (p, v)
  [four] y = MatMul (b, w)
  [five] s = ReduceSum (b, axes)
}
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
rounds (int64 k, float[n, 24] x) => (float[n, 24] y, float[k, n, 24] ys)
<float[24, 24] v, float[24, 24] w>
{
  [one] a = MatMul (x, w)
  [rounds] y, ys = Loop (k, , a) <
    body = body (int64 i, bool go, float[n, 24] h) => (bool on, float[n, 24] t, float[n, 24] u) {
      on = Identity (go)
      [two] p = LpNormalization <axis = -1> (h)
      [three] t = MatMul (p, v)
      [four] u = Add (p, a)
  }>
}
"""


SCRIPT = """
import json, os, pickle, sys, smelt
folder, target, place, envs = sys.argv[1:]
bundle = compiled(folder + "/model.onnx", target, output=folder + "/bundle", place=json.loads(place))
found = []
for env in json.loads(envs):
    os.environ.update(env)
    session, rows = smelt.load(bundle), []
    for feed in pickle.load(open(folder + "/feeds", "rb")):
        before, outputs, after = session.memory(), session.run(None, feed), session.memory()
        counted = ("crossings", "crossed_bytes", "shared", "shared_bytes")
        rows.append((outputs, [getattr(after, name) - getattr(before, name) for name in counted]))
    found.append(rows)
    session.close()
    for name in env:
        del os.environ[name]
pickle.dump((found, bundle.manifest), open(folder + "/rows", "wb"))
"""
OWN = {"SMELT_OPENCL_WEAK": "unified=0", "SMELT_VULKAN_WEAK": "visible=0"}
"""Devices that share the host's memory play ones that do not."""
SHARES = {"FAKE_SHARES": "apart"}
TARGETS = [
    "x86+fake",
    pytest.param("x86+opencl", marks=needs_opencl),
    pytest.param("x86+opencl+fake", marks=needs_opencl),
    pytest.param("x86+fake+opencl", marks=needs_opencl),
    pytest.param("x86+vulkan", marks=needs_vulkan),
    pytest.param("x86+vulkan+opencl", marks=[needs_opencl, needs_vulkan]),
]
ENVS = (OWN, SHARES, {"FAKE_SHARES": "idle"})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """smelt with one device more."""
    copy = checkout(tmp_path_factory.mktemp("units") / "copy")
    copy.add("fake", *FAKE)
    return copy


def crossed(
    sources: Checkout, folder: Path, model: onnx.ModelProto, target: str, place: Mapping[str, str],
    feeds: Sequence[Feed], envs: Sequence[Mapping[str, str]] = ({},),
) -> tuple[dict[str, Any], list[list[list[int]]]]:
    """The manifest, and of each environment and run: copies between units, their bytes, and what was handed
    over without one, its bytes; outputs are ONNX Runtime's."""
    onnx.save(model, str(folder / "model.onnx"))
    (folder / "feeds").write_bytes(pickle.dumps(list(feeds)))
    done = sources.script(SCRIPT, str(folder), target, json.dumps(place), json.dumps(envs))
    assert done.returncode == 0, done.stderr
    found, manifest = pickle.loads((folder / "rows").read_bytes())
    oracle = runtime_session(model)
    wanted = [oracle.run(None, dict(feed)) for feed in feeds]
    for rows in found:
        for want, (outputs, _) in zip(wanted, rows, strict=True):
            for got, expected in zip(outputs, want, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
    return manifest, [[counted for _, counted in rows] for rows in found]


def weighted(text: str) -> onnx.ModelProto:
    """The model with its weights."""
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    square = {n: rng.standard_normal((24, 24)).astype(np.float32) for n in "vw"}
    del made.graph.initializer[:]
    for name, value in {**square, "axes": np.array([1])}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return made


def rows_of(*counts: int) -> list[dict[str, Array]]:
    """An input with so many rows of 96 bytes, for each."""
    return [{"x": np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)} for n in counts]


def others(target: str) -> tuple[str, str]:
    """The unit that kernels run on unless a rule says something else, and another one."""
    devices = target.split("+")[1:]
    return devices[0], (*devices[1:], "cpu")[0]


def counts(copies: int, size: int, shared: bool) -> list[int]:
    """Of a run that moves so many values of these bytes between the host and units."""
    moved = [copies, copies * size]
    return [0, 0, *moved] if shared else [*moved, 0, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_alternate(target: str, sources: Checkout, tmp_path: Path) -> None:
    usual, other = others(target)
    feeds = rows_of(1, 5, 33, 5)
    place = {"one": other, "three": other}
    manifest, found = crossed(sources, tmp_path, weighted(CHAIN), target, place, feeds, ENVS)
    for env, crossings in zip(ENVS, found, strict=True):
        # a goes there, p back, b there: it is read by two. From one device to another they are copied.
        shared = env is not OWN and other == "cpu"
        assert crossings == [counts(3, 96 * len(f["x"]), shared) for f in feeds], env
    ways = [(t["name"], t["from"], t["to"]) for t in manifest["transfers"]]
    assert ways == [("a", other, usual), ("p", usual, other), ("b", other, usual)]
    assert {parse_dim(t["bytes"]).evaluate({"n": 5}) for t in manifest["transfers"]} == {480}
    assert {k["unit"] for k in manifest["kernels"]} == {usual, other}
    assert [manifest[side][0]["unit"] for side in ("inputs", "outputs")] == [other, usual]


@pytest.mark.parametrize("target", [t for t in TARGETS if str(t).count("+") > 1])
def test_three_units_alternate(target: str, sources: Checkout, tmp_path: Path) -> None:
    first, second = target.split("+")[1:]
    feeds = rows_of(1, 5, 33, 5)
    place = {"one": first, "two": second, "three": "cpu", "four": first, "five": second}
    manifest, (crossings,) = crossed(sources, tmp_path, weighted(CHAIN), target, place, feeds, (OWN,))
    assert crossings == [counts(4, 96 * len(f["x"]), False) for f in feeds]
    ways = [(t["name"], t["from"], t["to"]) for t in manifest["transfers"]]
    assert ways == [("a", first, second), ("p", second, "cpu"), ("b", "cpu", first), ("b", "cpu", second)]
    assert {k["unit"] for k in manifest["kernels"]} == {first, second, "cpu"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_crosses_at_each_round(target: str, sources: Checkout, tmp_path: Path) -> None:
    _, other = others(target)
    feeds = [{**f, "k": np.array(k)} for k, f in enumerate(rows_of(5, 2, 7, 5), 1)]
    _, found = crossed(sources, tmp_path, weighted(LOOP), target, {"two": other}, feeds, ENVS)
    for env, crossings in zip(ENVS, found, strict=True):
        # h goes there and p back, in each round
        shared = env is not OWN and other == "cpu"
        assert crossings == [counts(2 * int(f["k"]), 96 * len(f["x"]), shared) for f in feeds], env


@pytest.mark.parametrize("target", TARGETS)
def test_all_on_one_unit(target: str, sources: Checkout, tmp_path: Path) -> None:
    """The first device without a rule; a device without a kernel is not in the model, nor is a second copy of
    the weights in its file."""
    usual, _ = others(target)
    sizes = []
    for name, place, unit in (("a", {}, usual), ("b", {"*": "cpu"}, "cpu")):
        folder = tmp_path / name
        folder.mkdir()
        manifest, (crossings,) = crossed(sources, folder, weighted(CHAIN), target, place, rows_of(3, 4))
        assert crossings == [[0] * 4] * 2 and manifest["transfers"] == []
        assert {k["unit"] for k in manifest["kernels"]} == {unit}
        sizes.append(manifest["weights"]["bytes"])
    assert sizes == [8192, 8192]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("target", TARGETS)
def test_any_kernel_anywhere(target: str, seed: int, sources: Checkout, tmp_path: Path) -> None:
    """Branches and loops in each other, whose kernels are anywhere by their names."""
    units = ["cpu", *target.split("+")[1:]]
    rng = np.random.default_rng(seed)
    letters = {f"{c}*": units[rng.integers(len(units))] for c in "abcdefghijklmnopqrstuvwxyz"}
    numbers = {f"*_{k}": units[rng.integers(len(units))] for k in range(2, 20)}
    feeds = [flow_feeds(k, n) for k, n in enumerate((2, 5, 1, 5))]
    crossed(sources, tmp_path, flow_model(seed), target, {**numbers, **letters}, feeds, ENVS)


def test_an_unknown_unit(sources: Checkout, tmp_path: Path) -> None:
    onnx.save(weighted(CHAIN), str(tmp_path / "model.onnx"))
    words = ("-m", "smelt.cli", "compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "out"))
    refused = sources.python(*words, "--target", "x86+fake", "--place", "one=gpu,*=cpu")
    assert refused.returncode == 3, refused.stderr
    assert "'one=gpu' names no unit of the target, which has cpu, fake" in refused.stderr
    refused = sources.python(*words, "--target", "x86+fake", "--place", "one")
    assert refused.returncode == 2 and "'one' is not of the form NAME=UNIT" in refused.stderr
