"""Daemons and scripts close standard descriptors: a compile works, and a command ends with its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import helper
from onnx_models import model as onnx_model

COMPILES = """
import os, sys
{closed}
import smelt
smelt.compile("m.onnx", output="out")
for n in {numbers}:
    try:
        os.fstat(n)
    except OSError:
        continue
    sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = onnx_model([helper.make_node("Neg", ["x"], ["y"])], {"x": ("f32", ["n"])}, {"y": "f32"})
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    return tmp_path


@pytest.mark.parametrize("numbers", [(0, 1), (1, 2), (0, 1, 2), (2,)])
def test_a_daemon_compiles(folder: Path, numbers: tuple[int, ...]) -> None:
    """And no pipe has taken the place of what it closed."""
    text = COMPILES.format(closed="\n".join(f"os.close({n})" for n in numbers), numbers=numbers)
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, timeout=300, check=False)
    assert done.returncode == 0 and (folder / "out" / "manifest.json").is_file()


@pytest.mark.table(2)
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("compile m.onnx -o out", 0), ("check nothing.onnx", 2)])
def test_a_command_ends_with_its_code(folder: Path, closed: str, words: str, code: int) -> None:
    line = f"exec '{sys.executable}' -m smelt.cli {words} {closed}"
    assert subprocess.run(["sh", "-c", line], cwd=folder, timeout=300, check=False).returncode == code


def test_a_full_disk_is_told(folder: Path) -> None:
    line = f"exec '{sys.executable}' -m smelt.cli check m.onnx > /dev/full"
    done = subprocess.run(["sh", "-c", line], cwd=folder, timeout=300, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 6 and b"cannot write the result: No space left" in done.stderr
