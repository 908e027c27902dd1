"""The trial of docs/add-target.md: a target's folder copied under another name is a device of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from boards import needs_opencl
from onnx import TensorProto, helper

ROOT = Path(__file__).parents[2]
NAME = "mydevice"


def renamed_copy(source: Path, to: Path) -> None:
    """A target's folder with its name replaced, in file names and in text."""
    to.mkdir()
    for path in source.iterdir():
        if path.is_file():
            made = to / path.name.replace(source.name, to.name)
            made.write_text(path.read_text("utf-8").replace(source.name, to.name), "utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources with one folder more."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for floor in ("core", "importer", "families", "targets", "devicefarm", "smelt"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / floor, copy / floor, symlinks=True, ignore=left_out)
    renamed_copy(copy / "targets" / "opencl", copy / "targets" / NAME)
    return copy


@needs_opencl
def test_a_copied_target_is_a_device(checkout: Path, tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy")
    nodes = [helper.make_node("Softmax", ["x"], ["p"]), helper.make_node("Mul", ["x", "p"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, str(tmp_path / "model.onnx"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        return subprocess.run(
            [sys.executable, "-m", "smelt.cli", *words], cwd=checkout, env=env, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip

    file, out = str(tmp_path / "model.onnx"), str(tmp_path / "out")
    made = run("compile", file, "--target", f"x86+{NAME}", "-o", out)
    assert made.returncode == 0, made.stderr
    done = run("validate", out, "--model", file)
    assert done.returncode == 0 and "pass: 3 of 3 shapes agree" in done.stdout, done.stdout + done.stderr
    library = (tmp_path / "out" / "libmodel.so").read_bytes()
    assert f"compile without +{NAME}".encode() in library, "its own driver is linked"
    assert b"compile without +opencl" not in library, "and no other"
    refused = run("compile", file, "--target", f"x86+{NAME}+opencl", "-o", "two")
    assert refused.returncode == 3 and "names several devices" in refused.stderr
