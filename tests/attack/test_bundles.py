"""Damaged, swapped and changed bundles, to Python and to C: the right answer or a refusal, nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import attack_bundles as attacks
import numpy as np
import onnx
import pytest
from boards import need_qemu
from installed import program_path
from isolated import isolated
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import MANIFEST, read_bundle, sealed
from smelt.core.diag import SmeltError
from smelt.core.sums import SAMPLE_BYTES, sample_offsets
from smelt.driver import Request
from smelt.library import COPIED, Held

FEED = attacks.FEED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundle, to do anything to."""
    return Path(shutil.copytree(attacks.bundles()[0], tmp_path / "bundle"))


@pytest.mark.table(2)
@pytest.mark.parametrize("seed", range(64))
def test_seeds(seed: int) -> None:
    outcome = attacks.attack(seed)
    assert not outcome.failed, outcome.detail


def refused(folder: Path, **options: bool) -> SmeltError:
    """What a load raises, in a child that may die."""

    def load() -> SmeltError | None:
        try:
            smelt.load(folder, **options).run(None, {"x": FEED})
        except SmeltError as e:
            return e
        return None

    how, error = isolated(load)
    assert how == "ok" and error is not None, (how, error)
    return error


# ---------------------------------------------------------------- manifests whose seal fits


def _put(way: str, value: object) -> Callable[[dict[str, object]], None]:
    def change(manifest: dict[str, object]) -> None:
        *rest, last = [int(w) if w.isdigit() else w for w in way.split(".")]
        inside: object = manifest
        for k in rest:
            inside = inside[k]  # type: ignore[index]
        inside[last] = value  # type: ignore[index]

    return change


MAPS = {"name": "y", "kind": "maps", "parts": ["y"], "shape": None}


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        ("inputs.0.dtype", "f64", "other inputs"),  # wider: the code would read beyond the array
        ("outputs.0.dtype", "f64", "other outputs"),
        ("outputs.0.dtype", "f16", "other outputs"),  # narrower: it would write beyond it
        ("outputs.0.dtype", "complex64", "name of an element type"),
        ("inputs.0.shape", ["n", 16, 1], "other inputs"),
        ("inputs.0.shape", ["(" * 100, 16], "nests"),
        ("inputs.0.shape", ["m", 16], "unknown sizes"),
        ("inputs", [], "other inputs"),
        ("inputs", "x", "a list"),
        ("files", {"../../thesis": "0" * 64}, "name of a file"),
        ("files", {"libprobe.so": 7}, "SHA-256"),
        ("library.prefix", "../x", "a name that a model can have"),
        ("weights.bytes", -1, "whole number"),
        ("weights.bytes", 1 << 90, "whole number"),
        ("memory.arenas", [], "list of 1"),
        ("groups", {"inputs": [], "outputs": [MAPS]}, "keys"),
        ("model", None, "table of fields"),
        ("model.name", "a\0b", "printable"),
        ("inputs.0.unit", "cpu\n", "printable"),
    ],
)  # fmt: skip
def test_a_manifest_made_by_hand_is_refused_whatever_it_says(
    folder: Path, way: str, value: object, said: str
) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    _put(way, value)(manifest)
    (folder / MANIFEST).write_bytes(sealed(manifest)[1])
    assert said in str(refused(folder))


@pytest.mark.parametrize(
    "field", ["inputs", "symbols", "files", "weights", "model", "target", "seal", "kernels"]
)
def test_a_missing_field_is_told(folder: Path, field: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest[field]
    (folder / MANIFEST).write_bytes(json.dumps(manifest).encode())
    assert "damaged" in str(refused(folder))
    if field != "seal":
        (folder / MANIFEST).write_bytes(sealed(manifest)[1])
        assert f"'{field}' is missing" in str(refused(folder))


# ---------------------------------------------------------------- weights


def test_weights_of_another_model_are_refused_by_python_and_by_a_c_program(folder: Path) -> None:
    other = attacks.bundles()[1] / "probe.weights"
    assert other.stat().st_size == (folder / "probe.weights").stat().st_size
    shutil.copy(other, folder / "probe.weights")
    assert "another model" in str(refused(folder))
    done = run_c(folder)
    assert done.returncode > 0 and "another model" in done.stdout + done.stderr


def run_c(folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """The bundle's own C program."""
    words = [*before, str(folder / "smelt_run"), str(folder), "--shape", "x:2x16"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("damage", range(len(attacks.DAMAGES)))
def test_every_damage_of_small_weights_is_seen_in_c(folder: Path, damage: int) -> None:
    file = folder / "probe.weights"
    data, other = file.read_bytes(), (attacks.bundles()[1] / "probe.weights").read_bytes()
    tries = (attacks.DAMAGES[damage](random.Random(seed), data, other) for seed in range(100))
    made = next(t for t in tries if t != data)  # two equal words may be swapped
    file.write_bytes(made)
    done = run_c(folder)
    assert done.returncode > 0 and "copy the bundle again" in done.stdout + done.stderr


def test_a_bundle_for_other_processors_is_refused_before_its_code_runs(tmp_path: Path) -> None:
    """With the emulators that the cross tests use: SIGILL was what these gave."""
    source = attacks.bundles()[0].parent / "0.onnx"
    cases = [
        ("x86_64-linux", ("qemu-x86_64-static", "-cpu", "Nehalem"), "avx2"),
        ("arm64:cortex-a76", ("qemu-aarch64-static", "-cpu", "cortex-a53"), "dotprod"),
    ]
    need_qemu(*(c[1][0] for c in cases))
    cases = [c for c in cases if program_path(c[1][0])]
    for target, emulator, lacks in cases:
        out = tmp_path / target.replace(":", "-")
        compile_here(Request(source=str(source), target=target, output=str(out)))
        done = run_c(out, *emulator)
        assert done.returncode > 0, done
        assert lacks in done.stdout + done.stderr and "(device)" in done.stdout + done.stderr


# ---------------------------------------------------------------- large weights, which are mapped


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose weights are too many to be copied: y = x + w[index]."""
    folder = tmp_path_factory.mktemp("large")
    w = np.arange(COPIED // 4 + 5000, dtype=np.float32).reshape(-1, 8)
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "x"], ["y"])], "g", [x], [y], [numpy_helper.from_array(w, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "big.onnx")
    request = Request(source=str(folder / "big.onnx"), output=str(folder / "out"), runner=False)
    return compile_here(request).path


def own_copy(large: Path, to: Path) -> Path:
    """A copy that shares the files but the weights."""
    to.mkdir()
    for p in large.iterdir():
        (shutil.copy if p.suffix == ".weights" else os.link)(p, to / p.name)
    return to


def test_large_weights_that_change_under_a_session_end_runs_not_the_process(
    large: Path, tmp_path: Path
) -> None:
    folder = own_copy(large, tmp_path / "bundle")
    (file,) = folder.glob("*.weights")
    feed = {"x": np.array([0, COPIED // 32], np.int64)}

    def shrink() -> list[str]:
        session, told = smelt.load(folder), []
        assert session.run(None, feed)[0][1, 0] == COPIED // 4
        for change in (lambda: os.utime(file, ns=(1, 1)), lambda: os.truncate(file, 1)):
            change()
            with pytest.raises(SmeltError) as caught:
                session.run(None, feed)
            told.append(str(caught.value))
        return told

    how, told = isolated(shrink)
    assert how == "ok" and all("written to after it was opened" in t for t in told), (how, told)
    assert "is damaged" in str(refused(folder))
    assert "has 1 bytes" in str(refused(folder, verify=False))


def test_any_bit_of_large_weights_is_seen_where_they_are_new(large: Path, tmp_path: Path) -> None:
    """One that no sample has: smelt_open alone does not see it, the first load on a machine does."""
    folder = own_copy(large, tmp_path / "bundle")
    (file,) = folder.glob("*.weights")
    sampled = {b + i for b in sample_offsets(file.stat().st_size - 32) for i in range(0, SAMPLE_BYTES, 4)}
    at = next(a for a in range(COPIED // 2, COPIED, 4) if a not in sampled)
    with file.open("r+b") as f:
        f.seek(at)
        f.write(b"\xff")
    with Held(read_bundle(folder)) as held, pytest.raises(SmeltError, match="is not what was compiled"):
        held.verify(None)
    with pytest.raises(SmeltError, match="is not what was compiled"):
        smelt.load(folder, verify=True)
    smelt.load(folder, verify=False)  # as promised: sums of samples only
    with file.open("r+b") as f:
        f.write(b"\xff")
    with pytest.raises(SmeltError, match="their sum differs"):
        smelt.load(folder, verify=False)
