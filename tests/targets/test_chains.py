"""Small launches that follow each other become one at a driver: results, counts, and where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_opencl
from oracle import runtime_session

import smelt
from smelt.compiler import lower
from smelt.request import Request

pytestmark = needs_opencl
Array = np.ndarray[Any, Any]
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[n, 24] x, float[n, 24] h) => (float[n, 24] y, float[n, 24] g, int64[n] at)
<float[24, 24] v, float[24, 24] w>
{
  [one] a = MatMul (x, w)
  [two] p = Softmax (a)
  [three] b = MatMul (p, v)
  [four] q = LpNormalization <axis = -1> (b)
  [five] c = MatMul (q, w)
  [six] y = Softmax (c)
  [seven] g = Add (h, q)
  [eight] at = ArgMax <axis = 1, keepdims = 0> (y)
}
"""

MASKED = """
<ir_version: 10, opset_import: ["" : 23]>
m (float[b, h, t, d] q, float[b, h, s, d] k, float[b, h, s, e] v, float[b, h, t, s] m)
  => (float[b, h, t, e] y) { y = Attention (q, k, v, m) }
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    del made.graph.initializer[:]
    for name in ("v", "w"):
        weight = rng.standard_normal((24, 24)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path = tmp_path_factory.mktemp("chains") / "m.onnx"
    onnx.save(made, path)
    return path


@pytest.fixture(scope="module")
def bundle(model: Path) -> smelt.Bundle:
    return smelt.compile(model, target="x86+opencl", output=model.parent / "out", state={"h": "g"})


def rows(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n, 24)).astype(np.float32)


def launches(s: smelt.Session, x: Array) -> tuple[Sequence[Array], int]:
    before = s.memory().launches
    found = s.run(None, {"x": x})
    return found, s.memory().launches - before


@pytest.mark.parametrize("n", [0, 1, 3, 700])
def test_results_and_counts(n: int, model: Path, bundle: smelt.Bundle) -> None:
    """Also where the runs are lists of the driver, and where the state goes on."""
    s, oracle, h = smelt.load(bundle), runtime_session(onnx.load(model)), np.zeros((n, 24), np.float32)
    counts = []
    for seed in range(4):
        x = rows(n, seed)
        want_y, h, want_at = oracle.run(None, {"x": x, "h": h})
        (y, at), count = launches(s, x)
        np.testing.assert_allclose(y, want_y, rtol=1e-4, atol=1e-5)
        assert np.array_equal(at, want_at)
        counts.append(count)
    s.profile()
    (again, _), alone = launches(s, rows(n, 3))
    s.profile(False)
    np.testing.assert_allclose(again, want_y, rtol=1e-4, atol=1e-5)
    assert len({*counts}) == 1
    # few rows are one group's; many are launches of their own
    assert counts[0] < alone if n in (1, 3) else counts[0] <= alone
    watched = {name for name, (_, times) in s.kernel_times().items() if times}
    assert not any("chain" in name for name in watched)
    assert sum(times for _, times in s.kernel_times().values()) == alone


def test_a_part_of_one_lane_before_others(tmp_path: Path) -> None:
    """PoCL's code of such a chain had no end."""
    made = onnx.parser.parse_model(MASKED).SerializeToString()
    q, k, v, m = (rows(6 * n).reshape(2, 3, n, -1) for n in (4, 6, 6, 4))
    m = m[..., :6]
    s = smelt.load(smelt.compile(made, target="x86+opencl", output=tmp_path / "out"))
    weights = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + m)
    want = weights / weights.sum(-1, keepdims=True) @ v
    found = s.run(None, {"q": q, "k": k, "v": v, "m": m})[0]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_parts_of_chains_have_their_place_there(model: Path) -> None:
    linked = lower(Request(str(model), "x86+opencl")).linked
    program = linked.entries[0]
    chained = [(n, part) for n, parts in linked.chained.items() for part in parts]
    assert chained and max(n for n, _ in chained) < min(p.chain for _, p in chained)
    assert not {p.chain for _, p in chained} & {*program.kernels}
    for number, part in chained:
        chain, own = (linked.kernels[linked.rows[n].kernel] for n in (part.chain, number))
        place, names = part.place, [d.name.split(".")[0] for d in chain.dims]
        assert names[place.taking_part] == "on"
        assert {names[offset] for _, offset in place.buffers} == {"at"}
        assert len(place.buffers) == len(own.buffers())
        assert [names[n] for n in place.dims] == [d.name for d in own.dims]
        assert {*place.buffers} <= {*chain.lies}
    assert not lower(Request(str(model), "x86+vulkan")).linked.chained
