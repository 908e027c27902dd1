"""Damaged models and inputs in, an answer or a SmeltError out; never a traceback, a crash or a hang."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuzz_graph import build
from fuzzer import drawn
from isolated import isolated
from mutate import damaged
from onnx import helper

import smelt
from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request
from smelt.importer import import_model

F32 = np.dtype(np.float32)
I64 = np.dtype(np.int64)


def outcome(data: bytes) -> str:
    """The kind of error, or 'ran': compiled, and called at a few sizes."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        try:
            bundle = compile_here(Request(source=str(path), output=f"{folder}/out", runner=False))
            session = smelt.load(bundle, threads=1)
        except SmeltError as e:
            assert not list(Path(folder).glob("out*")), "something was left behind"
            return e.kind
        for size in (1, 3, 0):
            call(session, bundle.manifest, size)
        session.close()
        return "ran"


def call(session: smelt.Session, manifest: Any, size: int) -> None:
    from smelt.core.dtype import DTYPES

    rng = np.random.default_rng(size)
    feeds = {}
    for row in manifest["inputs"]:
        shape = [n if isinstance(n, int) else size for n in row["shape"]]
        if np.prod(shape, dtype=float) > 1e6:
            return
        feeds[row["name"]] = rng.integers(0, 3, shape).astype(DTYPES[row["dtype"]].numpy)
    try:
        session.run(None, feeds)
    except SmeltError as e:
        if e.kind not in ("shape", "device"):
            raise


@pytest.mark.parametrize("seed", [3, 12, 50, 202])
def test_damaged_models(seed: int) -> None:
    found = drawn(seed)
    assert found is not None
    for k in range(4):
        how, kind = isolated(lambda k=k: outcome(damaged(found.model, seed * 100 + k)), 60)
        assert how == "ok", (k, how, kind)
        assert kind in ("ran", "invalid", "unsupported", "shape"), (k, kind)


def refused(m: onnx.ModelProto) -> SmeltError:
    with pytest.raises(SmeltError) as e, tempfile.TemporaryDirectory() as folder:
        onnx.save(m, f"{folder}/m.onnx")
        compile_here(Request(source=f"{folder}/m.onnx", output=f"{folder}/out", runner=False))
    return e.value


def test_sizes_beyond_any_memory() -> None:
    pads = {"p": np.array([0, 2**62])}
    m = build([helper.make_node("Pad", ["x", "p"], ["y"])], [("x", F32, ["N"])], [("y", F32)], pads, 18)
    assert refused(m).kind == "unsupported"
    m = build([helper.make_node("Abs", ["x"], ["y"])], [("x", F32, [2**62, 4, "N"])], [("y", F32)], {}, 18)
    assert refused(m).kind == "unsupported"
    shape = {"s": np.array([-1, 2**63 - 1])}
    m = build([helper.make_node("Reshape", ["x", "s"], ["y"])], [("x", F32, ["N"])], [("y", F32)], shape, 18)
    assert refused(m).kind in ("unsupported", "invalid")


# ---------------------------------------------------------------- indices without an element


def runs(m: onnx.ModelProto, folder: Path) -> smelt.Session:
    onnx.save(m, folder / "m.onnx")
    source = str(folder / "m.onnx")
    return smelt.load(
        compile_here(Request(source=source, output=str(folder / "out"), runner=False)), threads=1
    )


def fails(session: smelt.Session, feeds: dict[str, np.ndarray], *words: str) -> None:
    with pytest.raises(SmeltError) as e:
        session.run(None, feeds)
    assert e.value.kind == "shape"
    for word in words:
        assert word in str(e.value), str(e.value)


def test_gather_from_an_empty_axis(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    session = runs(build([node], [("x", F32, ["N", 3]), ("i", I64, ["K"])], [("y", F32)], {}, 18), tmp_path)
    x, i = np.ones((0, 3), np.float32), np.zeros(2, np.int64)
    fails(session, {"x": x, "i": i}, "axis 0", "no elements")
    assert session.run(None, {"x": x, "i": i[:0]})[0].shape == (0, 3)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    (y,) = session.run(None, {"x": x, "i": np.array([-1, -2, 1, 0])})
    np.testing.assert_array_equal(y, x[[1, 0, 1, 0]])


def test_scatter_indices_stay_inside(tmp_path: Path) -> None:
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"])
    inputs = [("x", F32, ["N", "M"]), ("i", I64, ["K", "L"]), ("u", F32, ["K", "L"])]
    session = runs(build([node], inputs, [("y", F32)], {}, 18), tmp_path)

    def feeds(*sizes: int) -> dict[str, np.ndarray]:
        n, m, k, l = sizes
        return {"x": np.ones((n, m), np.float32), "i": np.zeros((k, l), I64), "u": np.zeros((k, l), F32)}

    assert session.run(None, feeds(2, 3, 3, 3))[0].shape == (2, 3)
    fails(session, feeds(2, 3, 1, 4), "axis 1 of the indices")
    fails(session, feeds(0, 3, 1, 2), "no elements")
    assert session.run(None, feeds(0, 3, 0, 2))[0].shape == (0, 3)


def test_resize_and_pad_of_nothing(tmp_path: Path) -> None:
    sizes = {"s": np.array([4, 4])}
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="nearest")
    session = runs(build([node], [("x", F32, ["N", "M"])], [("y", F32)], sizes, 18), tmp_path)
    fails(session, {"x": np.ones((0, 3), np.float32)}, "axis 0", "N is 0")


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_division(name: str, tmp_path: Path) -> None:
    """By zero is an error; the lowest number by -1, which traps on x86, wraps. In vectors and behind them."""
    dtype = np.dtype(name)
    least, minus = np.iinfo(dtype).min, -1 if dtype.kind == "i" else 1
    nodes = [
        helper.make_node("Div", ["x", "y"], ["q"]),
        helper.make_node("Mod", ["x", "y"], ["r"]),
        helper.make_node("Mod", ["x", "y"], ["f"], fmod=1),
    ]
    inputs = [("x", dtype, ["N"]), ("y", dtype, ["N"])]
    session = runs(build(nodes, inputs, [(n, dtype) for n in "qrf"], {}, 18), tmp_path)
    x = np.array([7, least, least, 9, 0] * 7, dtype)
    y = np.array([1, minus, 3, minus * 2, minus] * 7, dtype)
    q, r, f = session.run(None, {"x": x, "y": y})
    assert q[:5].tolist() == [7, least, -(-least // 3), -4 if minus < 0 else 4, 0]
    assert r[:5].tolist() == [0, 0, least % 3, -1 if minus < 0 else 1, 0]
    assert f[:5].tolist() == [0, 0, int(np.fmod(least, 3)), 1, 0]
    for k in (1, 33):  # in a vector, and in what is left
        zero = y.copy()
        zero[k] = 0
        fails(session, {"x": x, "y": zero}, "an integer is divided by 0")
    assert session.run(None, {"x": x[:0], "y": y[:0]})[0].shape == (0,)


def test_divisors_that_are_known(tmp_path: Path) -> None:
    def count(node: Any, constants: Any, **dims: Any) -> int:
        inputs = [("x", I64, ["N"]), *((n, I64, d) for n, d in dims.items())]
        module = import_model(build([*node], inputs, [("y", I64)], constants, 18))
        return sum(n.op == "bind" for n in module.main.walk())

    div = helper.make_node("Div", ["x", "d"], ["y"])
    assert count([div], {}, d=["N"]) == 1
    assert count([div], {"d": np.array([-3])}) == 0
    assert count([helper.make_node("Clip", ["e", "one"], ["d"]), div], {"one": np.array(1)}, e=["N"]) == 0
    assert count([helper.make_node("Size", ["x"], ["d"]), div], {}) == 0  # N becomes 1 at least
    with pytest.raises(SmeltError, match="the divisor is the constant 0"):
        count([div], {"d": np.array([3, 0])[:, None]})
