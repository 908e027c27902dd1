"""Portable packages: what is made of one is, byte for byte, the bundle that a compile of the model makes."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import needs_opencl, needs_vulkan
from entry_models import LLM, LLM_DIMS
from onnx import ModelProto, numpy_helper, parser
from state_models import DECODER_STATE

import smelt
from smelt import finalising
from smelt.cli.main import main
from smelt.core.bundle import Bundle, parse_manifest, sealed
from smelt.core.diag import SmeltError
from smelt.core.exits import OK, USAGE
from smelt.core.package import Package

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def network() -> ModelProto:
    """A product, a convolution-free head and weights of which two are equal: f32[n, 24] -> f32[n, 8]."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        HEAD + "(float[n,24] x) => (float[n,8] y) "
        "{ a = MatMul(x, w) b = Relu(a) c = MatMul(b, w2) d = MatMul(a, w3) e = Add(c, d) y = Softmax(e) }"
    )
    w, v = (rng.standard_normal(s).astype(np.float32) for s in ((24, 32), (32, 8)))
    for name, a in (("w", w), ("w2", v), ("w3", v)):
        model.graph.initializer.append(numpy_helper.from_array(a, name))
    return model


def files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return smelt.compile_portable(network(), output=tmp_path_factory.mktemp("package") / "net", name="net")


TARGETS: dict[str, dict[str, Any]] = {
    "host": {"threads": 2},
    "x86:x86-64-v2:x86-64-v4": {"static": True},
    "arm64": {},
    "armv7": {},
    "x86+opencl+vulkan": {"choose": True},
    "x86+opencl": {"place": {"Softmax": "cpu"}},
    "jetson": {"fallback": True},
}


@pytest.mark.parametrize("target", TARGETS)
def test_one_package_is_every_targets_bundle(target: str, package: Package, tmp_path: Path) -> None:
    made = smelt.finalise(package, target, tmp_path / "made", **TARGETS[target])
    same = smelt.compile(network(), target, output=tmp_path / "same", name="net", **TARGETS[target])
    assert files(made.path) == files(same.path)


@needs_opencl
@needs_vulkan
def test_one_package_runs_on_three_devices(package: Package, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((5, 24)).astype(np.float32)
    found = {}
    for device in ("", "+opencl", "+vulkan"):
        bundle = smelt.finalise(package, f"x86{device}", tmp_path / f"out{device}")
        session = smelt.load(bundle)
        found[device] = session.run(None, {"x": x})[0]
        assert bool(device) == (session.memory().launches > 0)
        session.close()
    np.testing.assert_allclose(found["+opencl"], found[""], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["+vulkan"], found[""], rtol=1e-4, atol=1e-6)


def test_several_entries_with_state_share_what_is_equal(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dims": LLM_DIMS, "state": DECODER_STATE, "name": "llm"}
    package = smelt.compile_portable(LLM, output=tmp_path / "package", **options)
    made = smelt.finalise(package, "x86_64-linux", tmp_path / "made")
    same = smelt.compile(LLM, "x86_64-linux", output=tmp_path / "same", **options)
    assert files(made.path) == files(same.path)
    assert len({at for at, _ in package.manifest["weights"]["places"].values()}) < 2 * len(made.entries) + 9


EARLY: dict[str, Any] = {
    "fp16": True, "fast_math": True, "opt": 0, "dims": {"n": (1, 8)}, "outputs": ("b",)
}  # fmt: skip


@pytest.mark.parametrize("name", EARLY)
def test_what_a_package_was_made_with_holds(name: str, tmp_path: Path) -> None:
    options = {name: EARLY[name]}
    package = smelt.compile_portable(network(), output=tmp_path / "package", **options)
    made = smelt.finalise(package, "aarch64-linux", tmp_path / "made")
    same = smelt.compile(network(), "aarch64-linux", output=tmp_path / "same", **options)
    assert files(made.path) == files(same.path)


def test_outputs_that_are_constants(tmp_path: Path) -> None:
    """They are weights of the module: of a tensor, and of the tensors that stand for a sequence."""
    model = parser.parse_model(
        HEAD + "(float[n,2] x) => (float[n,2] y, float[2] k, seq(float[2]) s) { y = Relu(x) "
        "k = Constant <value = float[2] {1, 2}> () s = SequenceConstruct(k, k) }"
    )
    package = smelt.compile_portable(model, output=tmp_path / "package")
    made = smelt.finalise(package, output=tmp_path / "made")
    with contextlib.closing(smelt.load(made)) as session:
        y, k, s = session.run(None, {"x": np.ones((3, 2), np.float32)})
    assert y.shape == (3, 2) and k.tolist() == [1, 2] and [e.tolist() for e in s] == [[1, 2], [1, 2]]


def test_equal_weights_lie_there_once(package: Package) -> None:
    assert package.manifest["weights"]["bytes"] == 24 * 32 * 4 + 32 * 8 * 4
    assert package.weights is not None and package.weights.stat().st_size >= 24 * 32 * 4 + 32 * 8 * 4


# ---------------------------------------------------------------- what is refused


def test_a_package_is_no_bundle_and_a_bundle_no_package(package: Package, tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="is a portable package, not a bundle") as caught:
        smelt.load(package.path)
    assert "smelt finalise" in str(caught.value.hint)
    bundle = smelt.finalise(package, output=tmp_path / "out")
    with pytest.raises(SmeltError, match=r"is a bundle for .*, not a portable package"):
        smelt.finalise(bundle.path, output=tmp_path / "again")
    with pytest.raises(SmeltError, match=r"no portable package: it has no manifest\.json"):
        smelt.finalise(tmp_path, output=tmp_path / "again")


@pytest.mark.parametrize("name", ["manifest.json", "main.smelt", "net.weights"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_package_is_refused(name: str, how: str, package: Package, tmp_path: Path) -> None:
    place = tmp_path / "package"
    shutil.copytree(package.path, place)
    data = bytearray((place / name).read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        (place / name).unlink()
    else:
        (place / name).write_bytes(data if how == "flipped" else data[: len(data) // 2])
    with pytest.raises(SmeltError) as caught:
        smelt.finalise(place, output=tmp_path / "out")
    assert caught.value.kind == "invalid" and not (tmp_path / "out").exists()


WRONG: dict[str, Any] = {
    "two entries of one name": lambda m: m["entries"].append(m["entries"][0]),
    "a weight beyond the end": lambda m: m["weights"]["places"].update({"0" * 64: [1 << 40, 8]}),
    "a path for a file": lambda m: m["entries"][0].update(file="../main.smelt"),
    "a file that nobody names": lambda m: m["files"].update({"other.bin": "0" * 64}),
    "no entry": lambda m: m.update(entries=[]),
    "weights without a file": lambda m: m["weights"].update(file=None),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_manifest_that_was_forged(wrong: str, package: Package) -> None:
    manifest = json.loads(json.dumps(package.manifest))
    WRONG[wrong](manifest)
    with pytest.raises(ValueError, match="manifest"):
        parse_manifest(sealed(manifest)[1])


def test_a_package_replaces_only_what_is_smelts(package: Package, tmp_path: Path) -> None:
    place = tmp_path / "out"
    shutil.copytree(package.path, place)
    smelt.finalise(package, output=place)  # a bundle in the place of a package
    smelt.compile_portable(network(), output=place)  # and the other way round
    (place / "thesis.tex").write_text("mine")
    with pytest.raises(SmeltError, match=r"'thesis\.tex' is not of the bundle"):
        smelt.compile_portable(network(), output=place)


def test_a_dump_makes_no_package(package: Package, tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="portable: the passes of a dump"):
        smelt.compile_portable(package.entries["main"], output=tmp_path / "out")


# ---------------------------------------------------------------- for a device of the farm, and from a shell


def test_for_a_device_a_bundle_is_made_once(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finalising.finalise_for("local", package, tmp_path / "first")
    kept = finalising.finalise_for("local", package, tmp_path / "kept")
    assert (first.kept, kept.kept) == (False, True)
    assert files(first.bundle.path) == files(kept.bundle.path)
    assert files(kept.bundle.path) == files(smelt.finalise(package, output=tmp_path / "same").path)
    assert not finalising.finalise_for("local", package, tmp_path / "other", threads=1).kept
    kept_places = (tmp_path / "cache" / finalising.KEPT_FOR_DEVICES).iterdir()
    (place,) = (p for p in kept_places if p.is_dir() and files(p) == files(kept.bundle.path))
    (place / "net.h").write_text("damaged")
    assert not finalising.finalise_for("local", package, tmp_path / "mended").kept
    assert files(tmp_path / "mended") == files(kept.bundle.path)
    monkeypatch.setattr(finalising, "fingerprint_of", lambda device, target: "a new driver")
    assert not finalising.finalise_for("local", package, tmp_path / "changed").kept


def test_two_that_begin_with_a_cold_cache_share_one_bundle(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second asks while the first one's bundle is half made; it neither makes it again nor removes it."""
    made, second_asks = [], threading.Event()

    def fingerprint(device: object, target: str) -> str:
        if made:
            second_asks.set()
        return "a board"

    def make(*args: Any, **options: Any) -> Bundle:
        made.append(args)
        if len(made) == 1:
            other.start()
            assert second_asks.wait(60)
        return smelt.finalise(*args, **options)

    def ask(name: str) -> None:
        found[name] = finalising.finalise_for("local", package, tmp_path / name)

    found: dict[str, finalising.Finalised] = {}
    other = threading.Thread(target=ask, args=("second",))
    monkeypatch.setattr(finalising, "fingerprint_of", fingerprint)
    monkeypatch.setattr(finalising, "finalise", make)
    ask("first")
    other.join()
    assert len(made) == 1
    assert {n: f.kept for n, f in found.items()} == {"first": False, "second": True}
    assert files(tmp_path / "first") == files(tmp_path / "second")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles for devices are kept in a folder of the test's own."""
    monkeypatch.setattr(finalising, "cache_dir", lambda: tmp_path / "cache")


def test_from_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(network().SerializeToString())
    model, package, out = (str(tmp_path / n) for n in ("net.onnx", "package", "out"))
    assert main(["compile", model, "--portable", "-o", package]) == OK
    assert f"next: smelt finalise {package}" in capsys.readouterr().out
    assert main(["inspect", package]) == OK
    told = capsys.readouterr().out
    assert "portable package" in told and "f32" in told and "[n, 24]" in told
    assert main(["finalise", package, "--target", "arm64", "-o", out, "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["target"].startswith("aarch64-linux")
    assert main(["finalise", package, "--device", "local", "-o", out]) == OK
    assert main(["compile", model, "--portable", "--target", "arm64", "-o", package]) == USAGE
    assert "give --target to 'smelt finalise'" in capsys.readouterr().err
    assert main(["finalise", out, "-o", package]) not in (OK, USAGE)
