"""Random ops: with a seed every run repeats, without one no run and no round gives what another gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import smelt

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
FIVE = "five = Constant<value_int = 5>()"
YES = "yes = Constant<value = bool {1}>()"
BODY = "<body = b (int64 i, bool go) => (bool on, float[300] r) { on = Identity(go) r = %s }>"
# name: (inputs, nodes, feed); every model gives y f32[K, 300], whose rows should all differ
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "two nodes alike": (
        "",
        "a = %(uniform)s  b = %(uniform)s  y = Concat<axis = 0>(a, b)",
        {},
    ),
    "rounds of a loop": ("int64 n", f"{YES} y = Loop(n, yes) {BODY % '%(row)s'}", {"n": np.array(6)}),
    "rounds that are written out": ("", f"{YES} {FIVE} y = Loop(five, yes) {BODY % '%(row)s'}", {}),
    "a loop in a loop": (
        "int64 n",
        f"{YES} z = Loop(n, yes) <body = o (int64 k, bool h) => (bool also, float[R, 300] s) "
        f"{{ also = Identity(h) s = Loop(n, yes) {BODY % '%(row)s'} }}> "
        "shape = Constant<value_ints = [-1, 300]>() y = Reshape(z, shape)",
        {"n": np.array(5)},
    ),
    "a scan": (
        "float[N, 1] x",
        "y = Scan<num_scan_inputs = 1, body = b (float[1] e) => (float[300] r) { r = %(row)s }>(x)",
        {"x": np.zeros((7, 1), np.float32)},
    ),
}


def model(name: str, seed: str) -> onnx.ModelProto:
    given, nodes, _ = MODELS[name]
    made = {
        "uniform": f"RandomNormal<shape = [1, 300]{seed}>()",
        "row": f"RandomUniform<shape = [300]{seed}>()",
    }
    return onnx.parser.parse_model(f"{HEAD}g ({given}) => (float[K, 300] y) {{ {nodes % made} }}")


def runs(made: onnx.ModelProto, feed: dict[str, Any], folder: Path) -> list[Any]:
    """Two runs of one session and one of another."""
    bundle = smelt.compile(made, target="host", output=folder / "m")
    one, other = smelt.load(bundle), smelt.load(bundle)
    try:
        return [s.run(None, feed)[0] for s in (one, one, other)]
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("name", MODELS)
def test_without_a_seed_no_numbers_come_back(name: str, tmp_path: Path) -> None:
    rows = np.concatenate(runs(model(name, ""), MODELS[name][2], tmp_path))
    assert len({r.tobytes() for r in rows}) == len(rows)
    apart = np.corrcoef(rows.astype(np.float64))
    assert np.abs(apart - np.eye(len(rows))).max() < 0.35  # 6 standard deviations of 300 numbers


@pytest.mark.parametrize("name", MODELS)
def test_with_a_seed_runs_repeat_and_rounds_differ(name: str, tmp_path: Path) -> None:
    first, *others = runs(model(name, ", seed = 3.0"), MODELS[name][2], tmp_path)
    for y in others:
        np.testing.assert_array_equal(y, first)
    alike = 1 if name == "two nodes alike" else len(first)  # one seed, one sequence: as ONNX Runtime
    assert len({r.tobytes() for r in first}) == alike


OPS = {
    "RandomUniformLike": ("y0 = RandomUniformLike<low = -1.0, high = 3.0>(x)", 1.0, 4 / 12**0.5),
    "RandomNormalLike": ("y1 = RandomNormalLike<mean = 1.0, scale = 2.0>(x)", 1.0, 2.0),
    "Bernoulli": ("h = Constant<value_float = 0.25>() p = Add(x, h) y2 = Bernoulli(p)", 0.25, 0.1875**0.5),
    "Dropout": (
        "o = Constant<value_float = 1.0>() q = Add(x, o) r = Constant<value_float = 0.5>() "
        "t = Constant<value = bool {1}>() y3 = Dropout(q, r, t)",
        1.0,
        1.0,
    ),
    "Multinomial": (
        "s = Constant<value_ints = [1, 500]>() l = Reshape(x, s) m = Multinomial<sample_size = 500>(l) "
        "c = Cast<to = 1>(m) e = Constant<value_ints = [500]>() y4 = Reshape(c, e)",
        249.5,
        500 / 12**0.5,
    ),
}
"""name: nodes from x f32[500] of zeros to an output; its mean and standard deviation"""


def test_each_run_draws_from_the_distribution_again(tmp_path: Path) -> None:
    outputs = ", ".join(f"float[500] y{k}" for k in range(len(OPS)))
    nodes = " ".join(n for n, _, _ in OPS.values())
    made = onnx.parser.parse_model(f"{HEAD}g (float[500] x) => ({outputs}) {{ {nodes} }}")
    bundle = smelt.compile(made, target="host", output=tmp_path / "m")
    session = smelt.load(bundle)
    found = [session.run(None, {"x": np.zeros(500, np.float32)}) for _ in range(3)]
    session.close()
    for k, (op, (_, mean, deviation)) in enumerate(OPS.items()):
        assert len({y[k].tobytes() for y in found}) == 3, op
        every = np.concatenate([y[k] for y in found])
        assert abs(every.mean() - mean) < 6 * deviation / len(every) ** 0.5, op
        assert abs(every.std() - deviation) < 0.25 * deviation, op
