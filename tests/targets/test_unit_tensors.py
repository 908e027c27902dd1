"""Tensors that stay at a unit between runs, from Python: values, what crosses, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from boards import needs_opencl

import smelt
from smelt.core.diag import SmeltError

STEP = """
<ir_version: 8, opset_import: ["" : 17]>
step (float[n, 4] x, int64[n] k) => (float[n, 4] y, int64[n] twice) {
  two = Constant <value = float {2.0}> ()
  y = Mul (x, two)
  twice = Add (k, k)
}
"""
X = np.arange(12, dtype=np.float32).reshape(3, 4)
K = np.array([1, 2, 3])


def session(target: str, folder: Path) -> smelt.Session:
    onnx.save(onnx.parser.parse_model(STEP), folder / "m.onnx")
    return smelt.load(smelt.compile(folder / "m.onnx", target=target, output=folder / "out"))


@pytest.mark.parametrize("target", ["host", pytest.param("x86+opencl", marks=needs_opencl)])
def test_an_output_is_the_next_input(target: str, tmp_path: Path) -> None:
    """Two tensors in turn, which never cross. The same calls serve where all is host memory."""
    s = session(target, tmp_path)
    a, b = s.tensor("x", X), s.tensor("y", X.shape)
    assert a.unit == b.unit == (target != "host") and a.shape == (3, 4)
    s.run_into({"y": b}, {"x": a, "k": K})
    before = s.memory()
    for given, made in ((b, a), (a, b)):
        y, twice = s.run_into({"y": made}, {"x": given, "k": K})
        assert y is made and (twice == 2 * K).all()
    after = s.memory()
    assert (b.numpy() == 8 * X).all()
    if target != "host":
        assert (after.uploads - before.uploads, after.reads - before.reads) == (2, 2)  # k and twice
        assert after.read_bytes - before.read_bytes == 2 * K.nbytes
    found = s.run(None, {"x": b, "k": K})  # an array again
    assert (found[0] == 16 * X).all() and (s.run(None, {"x": X, "k": K})[0] == 2 * X).all()
    flat = np.zeros((4, 1 << 20), np.float32).T  # the run reads a compact copy
    flat[:] = np.arange(1 << 20)[:, None]
    (y, _) = s.run_into({}, {"x": flat, "k": np.zeros(1 << 20, np.int64)})
    assert (y == 2 * flat).all()
    a.write(X + 1)
    assert (s.run(["y"], {"x": a, "k": K})[0] == 2 * X + 2).all()

    a.free()
    with pytest.raises(SmeltError, match="the tensor 'x' was freed"):
        s.run(None, {"x": a, "k": K})
    with pytest.raises(SmeltError, match="the tensor 'x' was freed"):
        a.numpy()
    with pytest.raises(SmeltError, match="share memory"):
        s.run_into({"y": b}, {"x": b, "k": K})
    with pytest.raises(SmeltError, match=r"has another type"):
        s.run(None, {"x": X, "k": b})
    with pytest.raises(SmeltError, match="is one of another session"):
        s.fork().run(None, {"x": b, "k": K})
    with pytest.raises(SmeltError, match=r"outputs \['z'\] are not among those of the model: y, twice"):
        s.run_into({"z": b}, {"x": X, "k": K})
    with pytest.raises(SmeltError, match=r"your tensor has 3, the model computes 2"):
        s.run_into({"y": b}, {"x": X[:2], "k": K[:2]})
    with pytest.raises(SmeltError, match=r"expected shape \[3, 4\], got \[2, 4\]"):
        b.write(X[:2])
    with pytest.raises(SmeltError, match="no tensor is named 'q'"):
        s.tensor("q", (1,))
    for bad in ((3,), (3, -1), (1 << 32, 1 << 32), (1 << 64, 0)):
        with pytest.raises(SmeltError, match="expected a possible shape of rank 2"):
            s.tensor("x", bad)
    with pytest.raises(SmeltError, match="output 'y': expected a UnitTensor, got ndarray"):
        s.run_into({"y": X}, {"x": X, "k": K})  # type: ignore[dict-item]
    with pytest.raises(SmeltError, match="the tensor 'x' was freed"):
        s.run_into({"y": b, "twice": a}, {"x": X, "k": K})
    assert (s.run(None, {"x": b, "k": K})[0] == 16 * X).all()
    s.close()
    with pytest.raises(SmeltError, match="the session is closed"):
        b.numpy()
