"""Sessions get code and weights of the bundle that they were asked for, whatever its folder becomes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt import library
from smelt.compiler import compile_here
from smelt.core.bundle import MANIFEST, Bundle, read_bundle, sealed
from smelt.core.diag import SmeltError
from smelt.core.staging import _exchange
from smelt.driver import Request

X = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles of y = k x w, all of one name: k is 1, 2, 3, and in the last one the graph has another node."""
    folder = tmp_path_factory.mktemp("models")
    made = []
    for k in (1, 2, 3):
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Abs" if k == 3 else "Relu", ["a"], ["y"]),
        ]
        weights = [numpy_helper.from_array(np.full((4, 4), k, np.float32), "w")]
        model = helper.make_model(
            helper.make_graph(nodes, "g", [x], [y], weights),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        source = folder / f"{k}" / "net.onnx"
        source.parent.mkdir()
        onnx.save(model, source)
        request = Request(source=str(source), output=str(folder / f"{k}" / "out"), runner=False)
        made.append(compile_here(request).path)
    return made


def put(bundle: Path, place: Path) -> Bundle:
    """A bundle in the place of another, as a compile does it: by renaming."""
    new = place.with_name("new")
    shutil.copytree(bundle, new)
    if place.exists():
        os.rename(place, place.with_name(f"old{len(os.listdir(place.parent))}"))
    os.rename(new, place)
    return read_bundle(place)


def told(session: smelt.Session) -> float:
    """k of the model that runs."""
    return float(session.run(None, {"x": X})[0][0, 0]) / 4


def test_what_was_compiled_last_is_what_runs(models: list[Path], tmp_path: Path) -> None:
    sessions = []
    for k in (1, 2, 3, 1, 2):
        sessions.append((k, smelt.load(put(models[k - 1], tmp_path / "out"))))
        assert [told(s) for _, s in sessions] == [k for k, _ in sessions]


def test_a_real_compile_into_one_folder_twice(tmp_path: Path, models: list[Path]) -> None:
    for k in (1, 2):
        source = models[k - 1].parent / "net.onnx"
        bundle = compile_here(Request(source=str(source), output=str(tmp_path / "out"), runner=False))
        assert told(smelt.load(bundle)) == told(smelt.load(tmp_path / "out")) == k


def test_a_bundle_that_was_read_before_is_not_mistaken_for_the_new_one(
    models: list[Path], tmp_path: Path
) -> None:
    first = put(models[0], tmp_path / "out")
    second = put(models[1], tmp_path / "out")
    with pytest.raises(SmeltError, match="does not hold the bundle any more"):
        smelt.load(first)
    assert told(smelt.load(second)) == 2


def test_the_current_folder_and_search_paths_decide_nothing(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = put(models[0], tmp_path / "a").path, put(models[1], tmp_path / "b").path
    monkeypatch.chdir(a)
    assert told(smelt.load(".")) == 1
    monkeypatch.chdir(b)
    assert told(smelt.load(".")) == told(smelt.load("../b/.")) == 2
    assert told(smelt.load(Path("..") / "a")) == 1
    call = "smelt.load('.').run(None, {'x': numpy.ones((2, 4), 'f')})"
    program = f"import smelt, numpy; print({call}[0][0, 0])"
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(a),
        "PYTHONPATH": os.pathsep.join(map(str, smelt.__path__[:0])),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=b, env=env, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == 8


@pytest.mark.parametrize("end", ["deleted", "truncated", "overwritten", "replaced"])
def test_a_session_outlives_its_folder(models: list[Path], tmp_path: Path, end: str) -> None:
    bundle = put(models[1], tmp_path / "out")
    session, weights = smelt.load(bundle), bundle.path / "net.weights"
    session.run(None, {"x": X})
    if end == "deleted":
        shutil.rmtree(bundle.path)
    elif end == "truncated":
        for file in bundle.path.iterdir():
            os.truncate(file, 0)
    elif end == "overwritten":
        weights.write_bytes(bytes(weights.stat().st_size))
    else:
        put(models[0], tmp_path / "out")
    assert told(session) == 2
    session.trim()
    assert session.run(None, {"x": np.ones((9, 4), np.float32)})[0].shape == (9, 4)


def test_sessions_of_the_same_bytes_share_code_and_weights(models: list[Path], tmp_path: Path) -> None:
    before = len(library._CODE)
    sessions = [smelt.load(put(models[2], tmp_path / f"{i}")) for i in range(3)]
    assert [told(s) for s in sessions] == [3, 3, 3]
    assert len(library._CODE) <= before + 1
    maps = Path("/proc/self/maps")
    if maps.exists():
        names = [line for line in maps.read_text().splitlines() if "smelt-net" in line]
        assert names, "debuggers and profilers see the model's name"


def test_a_folder_that_is_replaced_all_the_time_gives_one_bundle_or_another(
    models: list[Path], tmp_path: Path
) -> None:
    put(models[0], tmp_path / "out")
    shutil.copytree(models[1], tmp_path / "spare")
    stop = threading.Event()

    def swap() -> None:
        while not stop.wait(0.002):
            assert _exchange(tmp_path / "spare", tmp_path / "out")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = [told(smelt.load(tmp_path / "out")) for _ in range(60)]
    finally:
        stop.set()
        thread.join()
    assert set(seen) == {1.0, 2.0}


def test_without_files_in_memory_a_private_folder_does(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_memory_file", lambda name: None)
    monkeypatch.setattr(library, "_CODE", {})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for k in (1, 2, 3):
        assert told(smelt.load(put(models[k - 1], tmp_path / "place"))) == k
    assert not [n for n in os.listdir(tmp_path) if n.startswith("smelt-load")]


@pytest.mark.parametrize("version", [3, 5])
def test_a_bundle_of_another_version_is_not_called_damaged(
    models: list[Path], tmp_path: Path, version: int
) -> None:
    """Its manifest cannot be read, and may be whole: the smelt that reads it is named."""
    text = (models[0] / MANIFEST).read_bytes()
    other = json.loads(text) | {"schema_version": version, "smelt": "9.9"}
    (tmp_path / MANIFEST).write_bytes(sealed(other)[1])
    with pytest.raises(SmeltError, match=f"another version of smelt: it has schema version {version},") as e:
        smelt.load(tmp_path)
    assert "smelt 9.9 made it" in e.value.message and "use the smelt that made it" in str(e.value)
    (tmp_path / MANIFEST).write_bytes(sealed(other | {"schema_version": "5"})[1])
    with pytest.raises(SmeltError, match="is damaged: it has schema version '5'"):
        smelt.load(tmp_path)
