"""Compiled models and the runtime make no report under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import sanitizer
from onnx import helper
from sanitizer import Work, Workshop, campaign, findings

pytestmark = pytest.mark.skipif(bool(sanitizer.missing()), reason=sanitizer.missing())


def test_a_sample_of_the_backend_cases() -> None:
    """`make sanitize` runs them all."""
    count, found = campaign(("static", "strict"), 0.25)
    assert not found, "\n".join(found.values())
    assert count > 10


def test_the_sanitizer_is_awake(tmp_path: Path) -> None:
    """An arena that is too small by a cache line is noticed: by the code that was generated."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"]),
        helper.make_node("MatMul", ["s", "x"], ["y"]),
    ]
    g = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", 1, ["N", "N"])],
        [helper.make_tensor_value_info("y", 1, None)],
    )  # fmt: skip
    made = helper.make_model(g, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 8
    onnx.save(made, tmp_path / "m.onnx")
    shop = Workshop(tmp_path, 64)
    shop.bundle(tmp_path / "m.onnx", tmp_path / "out")
    found = findings([Work("model", str(tmp_path / "out"), ({"x": np.ones((32, 32), np.float32)},))])
    assert "AddressSanitizer: heap-buffer-overflow" in found["model"]
    assert "in k." in found["model"]
