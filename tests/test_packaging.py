"""A clean copy of the checkout -> a wheel with every floor and the C runtime; it works on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("core", "importer", "families", "targets", "devicefarm")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tracked files alone, without a network."""
    version = pytest.importorskip("setuptools").__version__
    if int(version.split(".")[0]) < 77:
        pytest.skip(f"setuptools {version} is too old; pip install 'setuptools>=77'")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    copy = tmp_path_factory.mktemp("source")
    for name in done.stdout.splitlines():
        source = ROOT / name
        if name.startswith("tests/") or not (source.is_file() or source.is_symlink()):
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy / name, follow_symlinks=False)
    out = tmp_path_factory.mktemp("wheel")
    build = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(out)!r}))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-3000:]
    (found,) = out.glob("*.whl")
    return found


def test_wheel_holds_every_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for floor in FLOORS:
        for path in (ROOT / floor).rglob("*.py"):
            assert f"smelt/{path.relative_to(ROOT)}" in names
    for path in (ROOT / "smelt").glob("cli/*.py"):
        assert f"smelt/cli/{path.name}" in names


def test_wheel_holds_the_runtime_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = (ROOT / "targets").glob("*/*.[ch]")
    for path in sources:
        assert f"smelt/{path.relative_to(ROOT)}" in names
    assert "smelt/py.typed" in names
    for path in (ROOT / "smelt/pages/templates").iterdir():
        assert f"smelt/pages/templates/{path.name}" in names


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {n.split("/")[0] for n in zipfile.ZipFile(wheel).namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"smelt"}


def test_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    text = "import smelt, smelt.core.dim, smelt.cli.main; print(smelt.__file__); smelt.compile; smelt.load"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


FAMILY = """
import sys, numpy, smelt
from onnx import parser
head = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g (float[n, 2] x) => (float[n, 2] y)'
model = parser.parse_model(head + "{ y = ai.onnx.ml.Binarizer <threshold = 0.5> (x) }")
smelt.compile(model, output=sys.argv[1])
print(smelt.load(sys.argv[1]).run(None, {"x": numpy.array([[0, 1]], numpy.float32)})[0].tolist())
import smelt.importer.plugins as plugins
plugins.load_all()
print(*sorted(m.__file__ for name, m in sys.modules.items() if name.startswith("smelt.families.")), sep="\\n")
"""


def test_families_are_found_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """By the child that compiles, and by name."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", FAMILY, str(tmp_path / "out")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result, *files = done.stdout.splitlines()
    assert result == "[[0.0, 1.0]]"
    assert len(files) > 10
    assert all(f.startswith(str(tmp_path / "site")) for f in files)


def test_a_folder_of_its_name_hides_nothing(tmp_path: Path) -> None:
    """Beside a clone called smelt, `import smelt` would find that folder: a package without contents."""
    (tmp_path / "smelt").mkdir()
    code = "import smelt, smelt.core.ops; print(smelt.__version__)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
