"""--fast-math from the command line to the manifest and back; what opt --validate says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx_models import model

from smelt.cli.main import main
from smelt.core.bundle import read_bundle

FORM = """module "m" {
  sym N in 1..*
  weight @c: f32[] = [1.0]

  graph @main(%x: f32[N, 4] from "x") -> (%log as "y") {
    %exp = exp(%x) : f32[N, 4]
    %add = add(%exp, @c) : f32[N, 4]
    %log = log(%add) : f32[N, 4]
  }
}
"""


def test_the_manifest_and_inspect_tell_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Add", ["e", "one"], ["s"]),
             helper.make_node("Log", ["s"], ["y"])]  # fmt: skip
    m = model(nodes, {"x": ("f32", ["n", 4])}, {"y": "f32"}, {"one": np.ones((), np.float32)})
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    asked = ["--fast-math", "overflow"]
    for parts, told in ((asked, "--fast-math overflow"), ([], "roundings and the order")):
        out = str(tmp_path / f"out{len(parts)}")
        assert main(["compile", str(path), "-o", out, *parts]) == 0
        assert read_bundle(out).manifest["options"]["fast_math"] == parts[1:]
        capsys.readouterr()
        assert main(["inspect", out]) == 0
        assert told in capsys.readouterr().out
        assert main(["run", out, "--random", "--val-range", "200,300", "--shape", "x:1x4"]) == 0
        assert ("inf" in capsys.readouterr().out) is not parts


def test_opt_validates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.smelt"
    path.write_text(FORM)
    assert main(["opt", str(path), "-p", "patterns", "--validate"]) == 0
    assert "softplus" not in capsys.readouterr().out
    assert main(["opt", str(path), "-p", "patterns", "--validate", "--fast-math", "overflow"]) == 0
    assert "softplus" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["opt", str(path), "-p", "patterns", "--fast-math", "speed"])
