"""Tensors that stay at a unit between runs, from Python: values, what crosses, and what is refused."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan

import smelt
from smelt import capsules
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


# ---------------------------------------------------------------- other libraries


def test_memory_at_the_host_is_handed_over(tmp_path: Path) -> None:
    """NumPy sees the tensor's own bytes, for longer than its name and the session's; a capsule that nobody
    takes is no loss, and a consumer that lets go twice none either."""
    s = session("host", tmp_path)
    a, b = s.tensor("x", X), s.tensor("y", X.shape)
    assert a.__dlpack_device__() == (1, 0)
    seen, made = np.from_dlpack(a), np.from_dlpack(b)  # type: ignore[arg-type]
    s.run_into({"y": b}, {"x": a, "k": K})
    assert (made == 2 * X).all() and (seen == X).all()
    b.__dlpack__()
    kept = len(capsules._given)
    del a, b, s, seen
    gc.collect()
    assert (made == 2 * X).all() and len(capsules._given) == kept - 1
    del made
    gc.collect()
    assert not capsules._given


@pytest.mark.parametrize(
    ("target", "kind"),
    [pytest.param("x86+opencl", 4, marks=needs_opencl), pytest.param("x86+vulkan", 7, marks=needs_vulkan)],
)
def test_memory_of_one_context_stays_there(target: str, kind: int, tmp_path: Path) -> None:
    """Others are told what and where it is; that of another session is refused, and so is a feed of it."""
    s = session(target, tmp_path)
    a = s.tensor("x", X)
    assert a.__dlpack_device__() == (kind, 0)
    taken = capsules.Taken(a)
    assert taken.tensor.data and list(taken.tensor.shape[:2]) == [3, 4] and taken.tensor.dtype.bits == 32
    taken.let_go()
    taken.let_go()
    words = rf"memory of DLPack device type {kind}, device 0, .* each session has .* of its own"
    with pytest.raises(SmeltError, match=words):
        s.tensor("x", a)
    with pytest.raises(SmeltError, match=r"tensor 'k': expected rank 1 .* of int64, got \[3, 4\] of type"):
        s.tensor("k", a)
    with pytest.raises(SmeltError, match=rf"input 'x': it lies on a device \(DLPack's type {kind}, number 0"):
        s.run(None, {"x": Elsewhere((kind, 0)), "k": K})
    gc.collect()
    assert not capsules._given
    assert (s.run(None, {"x": a, "k": K})[0] == 2 * X).all()


class Elsewhere:
    """Another library's tensor on a device."""

    def __init__(self, device: tuple[int, int]) -> None:
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self) -> object:
        return object()


def test_no_capsule_is_no_tensor(tmp_path: Path) -> None:
    s = session("host", tmp_path)
    with pytest.raises(SmeltError, match=r"Elsewhere.__dlpack__ gave no capsule of a tensor"):
        s.tensor("x", Elsewhere((2, 0)))
