"""The trial of docs/add-target.md: a target's folder copied under another name is a device of its own."""

from __future__ import annotations

from pathlib import Path

import onnx
from boards import needs_opencl
from checkouts import ROOT, checkout
from onnx import TensorProto, helper

NAME = "mydevice"


def renamed_copy(source: Path, to: Path) -> None:
    """A target's folder with its name replaced, in file names and in text."""
    to.mkdir()
    for path in source.iterdir():
        if path.is_file():
            made = to / path.name.replace(source.name, to.name)
            made.write_text(path.read_text("utf-8").replace(source.name, to.name), "utf-8")


@needs_opencl
def test_a_copied_target_is_a_device(tmp_path: Path) -> None:
    copy = checkout(tmp_path / "copy")
    renamed_copy(ROOT / "targets" / "opencl", copy.path / "targets" / NAME)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy")
    nodes = [helper.make_node("Softmax", ["x"], ["p"]), helper.make_node("Mul", ["x", "p"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, str(tmp_path / "model.onnx"))

    file, out = str(tmp_path / "model.onnx"), str(tmp_path / "out")
    made = copy.python("-m", "smelt.cli", "compile", file, "--target", f"x86+{NAME}", "-o", out)
    assert made.returncode == 0, made.stderr
    done = copy.python("-m", "smelt.cli", "validate", out, "--model", file)
    assert done.returncode == 0 and "pass: 3 of 3 shapes agree" in done.stdout, done.stdout + done.stderr
    library = (tmp_path / "out" / "libmodel.so").read_bytes()
    assert f"compile without +{NAME}".encode() in library, "its own driver is linked"
    assert b"compile without +opencl" not in library, "and no other"
