"""Times of kernels by the events of their device, which `bench --profile` shows beside the host's clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from installed import system_folder

import smelt
from smelt.cli.main import main
from smelt.kernel_names import kernel_names

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[n, 64] x) => (float[n, 64] y) <float[64, 64] w>
{
  [one] a = MatMul (x, w)
  [two] p = Softmax (a)
  [three] y = MatMul (p, w)
}
"""
HALVES = """
<ir_version: 8, opset_import: ["" : 17]>
model (float16[n, 64] x) => (float16[n, 64] y, float[n, 64] z)
{
  [one] y = Softmax (x)
  [two] a = Cast <to: int = 1> (x)
  [three] z = Softmax <axis: int = 0> (a)
}
"""
UNITS = [pytest.param("x86+opencl", marks=needs_opencl), pytest.param("x86+vulkan", marks=needs_vulkan)]
X = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)


def bundle(target: str, folder: Path, **more: object) -> smelt.Bundle:
    model = onnx.parser.parse_model(MODEL)
    weight = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / "m.onnx")
    return smelt.compile(folder / "m.onnx", target=target, output=folder / "out", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", UNITS)
def test_every_launch_has_a_time_of_its_device(target: str, tmp_path: Path) -> None:
    """No more than the host sees of it; results are those of a run without; nothing is counted after."""
    s = smelt.load(bundle(target, tmp_path))
    (plain,) = s.run(None, {"x": X})
    assert s.device_times() == {}
    for _ in range(2):  # again: it begins from zero
        s.profile()
        for _ in range(3):
            (timed,) = s.run(None, {"x": X})
        np.testing.assert_array_equal(plain, timed)
        host, own = s.kernel_times(), s.device_times()
        assert own and own.keys() == {name for name, (_, launches) in host.items() if launches}
        for name, (ns, launches) in own.items():
            assert launches == host[name][1] and launches % 3 == 0
            assert 0 <= ns <= host[name][0]
        assert sum(ns for ns, _ in own.values()) > 0
    s.profile(False)
    for _ in range(3):
        (after,) = s.run(None, {"x": X})
    np.testing.assert_array_equal(plain, after)
    assert s.device_times() == own


def test_the_processor_has_no_events(tmp_path: Path) -> None:
    s = smelt.load(bundle("host", tmp_path))
    s.profile()
    s.run(None, {"x": X})
    assert s.device_times() == {} and any(launches for _, launches in s.kernel_times().values())


@needs_opencl
def test_kernels_of_the_processor_between_those_of_a_device(tmp_path: Path) -> None:
    s = smelt.load(bundle("x86+opencl", tmp_path, place={"*softmax*": "cpu"}))
    s.profile()
    s.run(None, {"x": X})
    own = s.device_times()
    assert own and not any("softmax" in name for name in own)
    assert any("softmax" in name for name in s.kernel_times())


@needs_vulkan
def test_validation_layers_find_nothing(tmp_path: Path) -> None:
    if not list(system_folder("/usr/share/vulkan/explicit_layer.d").glob("*validation*.json")):
        pytest.skip("no validation layers: apt install vulkan-validationlayers")
    code = """
import sys, numpy as np, smelt
session = smelt.load(sys.argv[1])
for on in (True, False, True, True):
    session.profile(on)
    session.run(None, {"x": np.ones((300, 64), np.float32)})
print(len(session.device_times()))
session.close()
"""
    made = bundle("x86+vulkan", tmp_path)
    env = {**os.environ, "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation"}
    done = subprocess.run(
        [sys.executable, "-c", code, made.path], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr[-2000:]
    assert "VUID" not in done.stdout + done.stderr, done.stderr[:3000]


@pytest.mark.parametrize("target", UNITS)
def test_bench_shows_them(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the names and with the nodes of the manifest, whatever the driver calls its launches."""
    made = bundle(target, tmp_path)
    words = ["bench", str(made.path), "--plan", "quick", "--shape", "x:300x64", "--profile"]
    assert main([*words, "--json"]) in (0, 5)
    data = json.loads(capsys.readouterr().out)
    (case,) = data["cases"]
    unit = target.split("+")[1]
    assert [u["unit"] for u in data["units"]] == [unit] and data["units"][0]["device"]
    rows = {r["name"]: r for r in made.manifest["kernels"]}
    assert {k["name"] for k in case["kernels"]} == {n for n, r in rows.items() if r["unit"] == unit}
    for k in case["kernels"]:
        assert k["unit"] == unit and k["origin"] == rows[k["name"]]["origin"]
        assert k["device_ns"] > 0 and k["launches"] >= 1
    assert main(words) in (0, 5)
    assert "device events" in capsys.readouterr().out


@needs_vulkan
def test_the_forms_of_kernels_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which each kernel has got, why no better one, and how many have not the best."""
    onnx.save(onnx.parser.parse_model(HALVES), tmp_path / "m.onnx")
    made = smelt.compile(tmp_path / "m.onnx", target="x86+vulkan", output=tmp_path / "out")
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "storage16=0,halves=0")
    weak = smelt.load(made)
    forms, memory = weak.kernel_forms(), weak.memory()
    assert forms and len(forms) == memory.kernel_forms == memory.lesser_forms
    assert all(not f.asks and "storage16" in f.lesser for f in forms.values())
    words = ["bench", str(made.path), "--plan", "quick", "--shape", "x:300x64", "--profile"]
    done = subprocess.run(
        [sys.executable, "-m", "smelt.cli.main", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 5) and "plain" in done.stdout, done.stderr
    assert "a better form is not used: for storage16" in done.stdout
    monkeypatch.delenv("SMELT_VULKAN_WEAK")
    strong = smelt.load(made)
    best = [f for f in strong.kernel_forms().values() if not f.lesser]
    assert all(f.asks for f in best) and strong.memory().kernel_forms == len(forms)
    assert strong.memory().lesser_forms == len(forms) - len(best)


def test_a_processor_tells_no_forms(tmp_path: Path) -> None:
    s = smelt.load(bundle("host", tmp_path))
    assert s.kernel_forms() == {} and s.memory().kernel_forms == s.memory().lesser_forms == 0


def test_profile_is_of_one_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "out", "--profile", "--baseline", "other"]) == 2
    assert "--profile is about the runs of one build" in capsys.readouterr().err


def test_names_of_launches() -> None:
    rows = [
        {"name": "a", "unit": "cpu", "statements": 2},
        {"name": "b.c", "unit": "opencl", "statements": 2},
    ]
    assert kernel_names(rows) == {
        "a": "a", "a.0": "a", "a.1": "a", "b.c": "b.c", "k_b__c": "b.c", "k_b__c__1": "b.c",
    }  # fmt: skip
