"""Subnormal numbers: 0 to kernels and to what is folded, or kept, on processors and devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from boards import need_emulator, needs_opencl
from onnx import helper
from onnx_models import model

import smelt
from smelt.cli.main import main
from smelt.compare import validate
from smelt.core.bundle import Bundle
from smelt.core.subnormals import flush_is_possible
from smelt.devicefarm.verdict import Verdict
from smelt.difference import compare_values
from smelt.opinions import SUBNORMALS_KEPT, Opinions
from smelt.reference import Reference
from smelt.running import running
from smelt.shapes import feed_case

X = np.array([1e-40, 2e-38, 1e-30, -3e-39], np.float32)
HALF = np.array([0.5], np.float32)
KEPT = np.log(X.astype(np.float64) * 0.5, where=X > 0, out=np.full(4, np.nan))
FLUSHED = np.array([-np.inf, -np.inf, KEPT[2], -np.inf])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """z = log(x * h), and its twin w of constants; e = (x * h == 0)."""
    nodes = [
        helper.make_node("Mul", ["x", "h"], ["y"]), helper.make_node("Log", ["y"], ["z"]),
        helper.make_node("Equal", ["y", "zero"], ["e"]),
        helper.make_node("Mul", ["k", "half"], ["c"]), helper.make_node("Log", ["c"], ["lc"]),
        helper.make_node("Mul", ["lc", "h2"], ["w"]),
    ]  # fmt: skip
    weights = {"zero": np.zeros((), np.float32), "k": X, "half": HALF}
    m = model(
        nodes, {"x": ("f32", ["n"]), "h": ("f32", [1]), "h2": ("f32", [1])},
        {"z": "f32", "e": "bool", "w": "f32"}, weights,
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    return path


FEED = {"x": X, "h": HALF, "h2": np.ones(1, np.float32)}


def found(bundle: Bundle) -> dict[str, np.ndarray]:
    with running(bundle) as client:
        return dict(client.run(FEED).outputs)


def check(got: dict[str, np.ndarray], keep: bool) -> None:
    want = KEPT if keep else FLUSHED
    np.testing.assert_allclose(got["z"], want, rtol=1e-6)
    assert (got["e"] == (not keep and np.abs(X) < 3e-38)).all()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("target", ["host", "aarch64-linux", "armv7"])
def test_on_processors(target: str, keep: bool, source: Path, tmp_path: Path) -> None:
    """What is folded is what would be computed. NEON of 32 bits has no other mode."""
    need_emulator(target)
    bundle = smelt.compile(str(source), target, output=tmp_path / "out", keep_subnormals=keep)
    got = found(bundle)
    if target != "armv7" or not keep:
        check(got, keep)
    if flush_is_possible():
        np.testing.assert_allclose(got["w"], KEPT if keep else FLUSHED, rtol=1e-6)


@needs_opencl
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("place", [{}, {"*": "cpu"}], ids=["opencl", "cpu"])
def test_with_a_device(place: dict[str, str], keep: bool, source: Path, tmp_path: Path) -> None:
    """On PoCL, and in kernels of the CPU in a session that has a device."""
    bundle = smelt.compile(
        str(source), "host+opencl", output=tmp_path / "out", keep_subnormals=keep, place=place
    )
    check(found(bundle), keep)


def test_a_callers_mode_stays(source: Path, tmp_path: Path) -> None:
    session = smelt.load(smelt.compile(str(source), output=tmp_path / "out"))
    session.run(None, FEED)
    assert (X * np.float32(1) != 0).all()


@pytest.mark.parametrize("keep", [False, True])
def test_the_reference_computes_alike(keep: bool, source: Path, tmp_path: Path) -> None:
    bundle = smelt.compile(str(source), output=tmp_path / "out", keep_subnormals=keep)
    (case,) = (done := validate(bundle, source, [feed_case(bundle, FEED)])).cases
    assert done.verdict is Verdict.PASS and "opinion" not in str(case.why), case


def test_units_may_keep_them(source: Path) -> None:
    """What a unit kept is right; what is neither is wrong."""
    judged = Opinions(source, compare_values, flush=True)
    want = Reference(source, flush=True).run(FEED)
    kept = Reference(source).run(FEED)
    assert np.isinf(want["z"]).sum() == 3 and np.isfinite(kept["z"]).sum() == 3
    right = judged.rule(FEED, {"z": kept["z"]}, want)["z"]
    assert right.right and SUBNORMALS_KEPT in right.why
    assert not judged.rule(FEED, {"z": kept["z"] + 1}, want)["z"].right


def test_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (([], "subnormals are 0"), (["--keep-subnormals"], "subnormals kept")):
        out = str(tmp_path / f"out{len(words)}")
        assert main(["compile", str(source), "-o", out, *words]) == 0
        capsys.readouterr()
        assert main(["inspect", out]) == 0
        assert told in capsys.readouterr().out
    dump = str(tmp_path / "m.smelt")
    assert main(["opt", str(source), "-p", "fold", "--keep-subnormals", "-o", dump]) == 0
    assert main(["compile", dump, "-o", str(tmp_path / "again")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "again")]) == 0
    assert "subnormals kept" in capsys.readouterr().out


def test_packages_remember(source: Path, tmp_path: Path) -> None:
    smelt.compile_portable(str(source), output=tmp_path / "p", keep_subnormals=True)
    bundle = smelt.finalise(tmp_path / "p", "host", output=tmp_path / "out")
    assert bundle.manifest["options"]["keep_subnormals"]
    check(found(bundle), True)
