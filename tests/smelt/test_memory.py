"""A model whose weights are larger than what a compile of it may need."""

from __future__ import annotations

import resource
import sys
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from isolated import isolated
from onnx import TensorProto, helper
from processes import measured

import smelt
from smelt.core.diag import SmeltError
from smelt.ports import address

WIDTH = 8192
COMPILE = "import sys, smelt; smelt.compile(sys.argv[1], 'host', output=sys.argv[2])"


def shuffling(folder: Path) -> Path:
    """y = x times a permutation of 268 MB, which are a hole in a file but for a megabyte."""
    with (folder / "w.bin").open("wb") as f:
        f.truncate(4 * WIDTH * WIDTH)
        for row in range(WIDTH):
            f.seek(4 * (row * WIDTH + 5 * row % WIDTH))
            f.write(np.float32(2).tobytes())
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="w.bin")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", WIDTH]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    onnx.save(model, str(path))
    return path


def test_a_compile_needs_less_memory_than_the_weights(tmp_path: Path) -> None:
    """The compiler and what it is made of take some 200 MB, the weights a few MB at a time."""
    done = measured(sys.executable, "-c", COMPILE, str(shuffling(tmp_path)), str(tmp_path / "out"))
    assert done.code == 0, done.complained
    assert done.peak < 4 * WIDTH * WIDTH + (32 << 20)
    x = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)
    (got,) = smelt.load(tmp_path / "out", threads=1).run(None, {"x": x})
    want = np.empty_like(x)
    want[:, 5 * np.arange(WIDTH) % WIDTH] = 2 * x
    np.testing.assert_array_equal(got, want)


def wide(folder: Path) -> Path:
    """A chain of products; its weights are inside the file and have 200 KB each."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(400):
        weights.append(onnx.numpy_helper.from_array(rng.random((50, 1000), np.float32), f"w{i}"))
        weights.append(onnx.numpy_helper.from_array(rng.random((1000, 50), np.float32), f"v{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("MatMul", [f"a{i}", f"v{i}"], [f"b{i}"]))
        nodes.append(helper.make_node("Softmax", [f"b{i}"], [f"c{i}"]))
        last = f"c{i}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 50])
    outs = [helper.make_tensor_value_info(f"c{i}", TensorProto.FLOAT, ["n", 50]) for i in range(0, 400, 9)]
    graph = helper.make_graph(nodes, "g", [given], outs, weights)
    path = folder / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_a_compile_peaks_under_twice_the_weights(tmp_path: Path) -> None:
    """160 MB of weights in one file, none of them large; 1200 launches."""
    model = wide(tmp_path)
    done = measured(sys.executable, "-c", COMPILE, str(model), str(tmp_path / "out"))
    assert done.code == 0, done.complained
    assert done.peak < 1.2 * model.stat().st_size


def test_a_weight_larger_than_the_addresses_is_the_error_of_memory(tmp_path: Path) -> None:
    """16 GB in a file with a hole, under 8 GB of addresses: mmap's refusal names the stage."""
    with (tmp_path / "w.bin").open("wb") as f:
        f.truncate(1 << 34)
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 32])
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="w.bin")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy")
    nodes = [
        helper.make_node("ReduceSum", ["w"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [w]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        with pytest.raises(SmeltError) as caught:
            smelt.compile(tmp_path / "m.onnx", output=tmp_path / "o")
        return f"{caught.value.kind}: {caught.value.message}"

    how, said = isolated(work)
    assert how == "ok" and said.startswith("infra: the compile used more than") and "stage '" in said, said


def test_outputs_that_nobody_holds_are_written_again_and_others_never(tmp_path: Path) -> None:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in ("y", "z")]
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [given], made))
    session = smelt.load(smelt.compile(model, output=tmp_path / "out"))

    def run(by: float) -> list[np.ndarray]:
        return session.run(None, {"x": np.full((3, 64), by, np.float32)})

    at = [address(a) for a in run(1)]
    assert [address(a) for a in run(2)] == at  # nobody holds them
    run(3)
    y, z = run(4)
    row, kept = y[1], memoryview(z)
    del y, z
    run(5)
    assert row[0] == -4 and np.asarray(kept)[1, 0] == 4  # a view and a buffer hold them
    del row, kept
    back = run(6)
    again = session.run(None, {"x": back[0]})  # what goes in is held by whoever gave it
    assert back[0][0, 0] == -6 and again[0][0, 0] == 6 and back[1][0, 0] == 6
    first = run(7)
    assert all(a.flags.writeable and a.flags.c_contiguous for a in first)
    memory = weakref.ref(run(8)[0].base)
    assert memory() is not None
    session.trim()
    assert memory() is None
    run(9)
    assert first[0][2, 63] == -7 and first[1][2, 63] == 7
    other = session.run(None, {"x": np.zeros((5, 64), np.float32)})
    assert other[0].shape == (5, 64) and first[0][0, 0] == -7
