"""Large weights of one file are mapped, not copied; whatever else the file holds stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model
from smelt.importer.outline import outline


def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1500, 2000)).astype(np.float32)
    b = rng.standard_normal(2000).astype(np.float32)
    f32 = onnx.TensorProto.FLOAT
    g = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", f32, ["n", 1500])],
        [helper.make_tensor_value_info("y", f32, ["n", 2000])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    made = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.metadata_props.add(key="who", value="a test")
    return made


def test_a_large_weight_is_a_span_of_the_file(tmp_path: Path) -> None:
    path, m = tmp_path / "m.onnx", model()
    onnx.save(m, path)
    short = outline(path)
    assert short is not None and len(short) < 50_000
    parsed = onnx.ModelProto.FromString(short)
    assert parsed.metadata_props[0].value == "a test"
    assert parsed.graph.node[0] == m.graph.node[0]
    module = import_model(str(path))
    spans = [w for w in module.weights.values() if w.path is not None]
    assert [w.shape for w in spans] == [(1500, 2000)]
    x = np.ones((2, 1500), np.float32)
    np.testing.assert_array_equal(
        run_module(module, {"x": x}, OPS), run_module(import_model(m), {"x": x}, OPS)
    )


def test_small_files_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    m = model()
    del m.graph.initializer[:]
    onnx.save(m, path)
    assert outline(path) is None


@pytest.mark.parametrize("cut", [100, 5_000_000])
def test_a_file_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.onnx"
    data = model().SerializeToString()
    path.write_bytes(data[: len(data) - cut] if cut > 100 else b"\xff" * (9 << 20))
    with pytest.raises(SmeltError, match="not an ONNX model"):
        import_model(str(path))


def test_weights_of_branches_and_constants_stay_in_the_file(tmp_path: Path) -> None:
    """An initialiser of a subgraph and a Constant are found by their nodes; other attributes are kept."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((1000, 1200)).astype(np.float32) for _ in range(2))
    f32 = onnx.TensorProto.FLOAT
    out = helper.make_tensor_value_info("t", f32, None)
    then = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["t"])], "then", [], [out], [numpy_helper.from_array(a, "a")]
    )
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(b))
    other = helper.make_graph([constant, helper.make_node("MatMul", ["x", "k"], ["t"])], "other", [], [out])
    g = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        "g",
        [
            helper.make_tensor_value_info("x", f32, ["n", 1000]),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", f32, ["n", 1200])],
    )
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    short = outline(path)
    assert short is not None and len(short) < 2000
    module = import_model(str(path))
    assert sorted(w.path is not None for w in module.weights.values()) == [True, True]
    for c in (True, False):
        x = {"x": rng.standard_normal((2, 1000)).astype(np.float32), "c": np.array(c)}
        np.testing.assert_array_equal(run_module(module, x, OPS), run_module(import_model(m), x, OPS))
