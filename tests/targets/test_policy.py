"""Sessions with OpenCL and the CPU at once, each run bound to one of them: values, shares, what is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import decoder_models as decoders
import numpy as np
import onnx
import pytest
from boards import needs_opencl
from oracle import runtime_session

import smelt
from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 8] x, float[8, 8] w) => (float[n, 8] y, int64[k, 2] large) {
  a = MatMul (x, w)
  y = Softmax <axis = -1> (a)
  half = Constant <value = float {0.5}> ()
  b = Greater (y, half)
  c = NonZero (b)
  large = Transpose <perm = [1, 0]> (c)
}
"""
LAYERS = 1


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a size that a run decides, for OpenCL and the CPU."""
    made = tmp_path_factory.mktemp("net")
    onnx.save(onnx.parser.parse_model(NET), made / "m.onnx")
    compile_here(
        Request(source=str(made / "m.onnx"), target="x86+opencl", output=str(made / "out"), choose=True)
    )
    return made


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose cache is a state, for OpenCL and the CPU."""
    return decoders.choosing(tmp_path_factory.mktemp("decoder"), LAYERS, "x86+opencl")


def fed(n: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 8), np.float32), "w": 3 * rng.standard_normal((8, 8), np.float32)}


@needs_opencl
def test_results_agree_whichever_unit_runs(net: Path) -> None:
    """Shapes that change, an empty one among them; every unit has run, and the runs are counted."""
    oracle = runtime_session(net / "m.onnx")
    session = smelt.load(net / "out", policy="load")
    sizes = [(5, 64, 0, 1, 300)[k % 5] for k in range(80)]
    for k, n in enumerate(sizes):
        feed = fed(n, k)
        y, large = session.run(None, feed)
        wanted, where = oracle.run(None, feed)
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-6)
        assert large.shape == where.shape and (large == where).all()
    shares = session.units()
    assert [s.unit for s in shares][:1] == ["OpenCL"] and shares[-1].unit == "cpu"
    assert sum(s.runs for s in shares) == len(sizes) and all(s.runs >= 2 and s.open for s in shares)
    assert sum(s.explorations for s in shares) <= len(sizes) // 32
    assert [s.bound for s in shares].count(True) == 1 and all(s.expected and not s.why for s in shares)
    assert session.policy_note is None and session.fallback is None


@needs_opencl
def test_a_state_goes_along(decoder: Path) -> None:
    """Also to a fork of the session, which knows what is known."""
    session = smelt.load(decoder / "out", policy="load")
    oracle = runtime_session(decoder / "m.onnx")
    names = [o.name for o in oracle.get_outputs()]
    cache, past = dict(decoders.empty(LAYERS, 1)), 0
    for k in range(12):
        feed = decoders.step("grouped", 1, past, 3 if k == 0 else 1)
        if k == 8:
            session = session.fork()
        (found,) = session.run(["logits"], feed)
        wanted = dict(zip(names, oracle.run(None, {**feed, **cache}), strict=True))
        np.testing.assert_allclose(found, wanted["logits"], rtol=2e-3, atol=1e-4)
        cache = {n.replace("present", "past"): a for n, a in wanted.items() if n.startswith("present")}
        past += 3 if k == 0 else 1
        if k == 7:
            assert all(s.runs >= 2 for s in session.units())
    assert sum(s.runs for s in session.units()) == 4


@needs_opencl
def test_what_python_says_and_refuses(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a policy nothing is opened but what runs; a policy is set, changed and ended later."""
    monkeypatch.setenv("SMELT_SYSFS", str(tmp_path))
    for name, text in (("type", "GPU-thermal"), ("temp", "91000")):
        (tmp_path / "class/thermal/thermal_zone3").mkdir(parents=True, exist_ok=True)
        (tmp_path / "class/thermal/thermal_zone3" / name).write_text(text + "\n")
    session = smelt.load(net / "out")
    session.run(None, fed(5))
    first, *_, cpu = session.units()
    assert (first.runs, cpu.runs, first.bound, first.expected, first.degrees) == (1, 0, True, None, None)
    zones = {"OpenCL": ["gpu-"], "cpu": ["cpu"]}
    session.set_policy(smelt.UnitPolicy("thermal", limit=90, cooled=2.5, zones=zones))
    for _ in range(8):
        session.run(None, fed(5))
    first, *_, cpu = session.units()
    assert first.degrees == 91 and "91.0 degrees, limit 90.0" in first.why and cpu.bound and cpu.runs == 8
    assert "no thermal zone tells the heat of cpu" in (session.policy_note or "")
    session.set_policy("battery")
    session.run(None, fed(5))
    assert "does not tell whether a battery feeds it" in (session.policy_note or "")
    session.set_policy("static")
    assert session.policy_note is None
    with pytest.raises(SmeltError, match="expected one of static, load, thermal, battery, got 'fast'"):
        smelt.load(net / "out", policy="fast")
    with pytest.raises(SmeltError, match="limit: expected degrees from 0 to 1000, got -1"):
        smelt.UnitPolicy("thermal", limit=-1)
    for odd in ({"cpu": ["a;b"]}, {"": ["a"]}, {"cpu": [""]}, {"cpu": [1]}):
        with pytest.raises(SmeltError, match="zones: expected names of units"):
            smelt.UnitPolicy("thermal", zones=odd)  # type: ignore[arg-type]
    with pytest.raises(SmeltError, match="zones is longer than 255 characters"):
        session.set_policy(smelt.UnitPolicy("thermal", zones={"cpu": ["x" * 300]}))


@needs_opencl
def test_a_model_of_one_kernel_has_both_units(tmp_path: Path) -> None:
    """The CPU's code needs no device, so that the first run there opens none."""
    text = NET.split("net (")[0] + "net (float[n, 8] x) => (float[n, 8] y) { y = Relu (x) }"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    out = str(tmp_path / "out")
    compile_here(Request(source=str(tmp_path / "m.onnx"), target="x86+opencl", output=out, choose=True))
    session, x = smelt.load(out, policy="load"), fed(5)["x"]
    for _ in range(6):
        assert (session.run(None, {"x": x})[0] == np.maximum(x, 0)).all()
    assert {s.unit: s.runs >= 2 for s in session.units()} == {"OpenCL": True, "cpu": True}


def test_a_bundle_for_the_cpu_alone_has_one_unit(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "m.onnx")
    compile_here(Request(source=str(tmp_path / "m.onnx"), output=str(tmp_path / "out")))
    session = smelt.load(tmp_path / "out", policy="load")
    for _ in range(40):
        session.run(None, fed(5))
    (only,) = session.units()
    assert (only.unit, only.runs, only.explorations, only.bound) == ("cpu", 40, 0, True)


def benched(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "smelt.cli", "bench", str(bundle), "--plan", "quick", "--count", "1"]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=300)


@needs_opencl
def test_bench_measures_runs_that_are_bound(net: Path) -> None:
    """By the bundle's own program; each unit has run, and what they did is told."""
    done = benched(net / "out", "--policy", "load", "--json")
    assert done.returncode in (0, 5), done.stderr
    data = json.loads(done.stdout)
    (case,) = data["cases"]
    assert data["policy"] == "load" and [s["unit"] for s in case["shares"]] == ["OpenCL", "cpu"]
    assert all(s["runs"] >= 2 and s["expected_ns"] > 0 and not s["why"] for s in case["shares"])
    alone = benched(net / "out", "--policy", "load", "--baseline", str(net / "out"))
    assert alone.returncode == 2 and "--policy is about the runs of one build" in alone.stderr
    wrong = benched(net / "out", "--policy", "fast")
    assert wrong.returncode == 2 and "invalid choice: 'fast'" in wrong.stderr


def test_bench_wants_a_choice(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "m.onnx")
    compile_here(Request(source=str(tmp_path / "m.onnx"), output=str(tmp_path / "out")))
    done = benched(tmp_path / "out", "--policy", "thermal")
    assert done.returncode not in (0, 5)
    assert "policy 'thermal' has nothing to choose from" in done.stderr and "--choose" in done.stderr
