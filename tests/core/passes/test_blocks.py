"""Weights in blocks: packed, dequantised in products and behind lookups, as ONNX Runtime computes them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from oracle import plain_session
from qdq_models import Net, optimised

from smelt.compiler import compile_here
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.core.passes.quantized.quantize import quantized_products, quantized_summary
from smelt.driver import Request
from smelt.importer import import_model
from smelt.session import load

Array = np.ndarray[Any, Any]
KINDS = {
    "i4": (ml_dtypes.int4, -8, 8), "u4": (ml_dtypes.uint4, 0, 16), "i8": (np.int8, -128, 128),
    "u8": (np.uint8, 0, 256), "small i8": (np.int8, -2, 2), "small u8": (np.uint8, 0, 4),
    "i16": (np.int16, -999, 999),
}  # fmt: skip


def weight(net: Net, kind: str, shape: tuple[int, int], axis: int, size: int, zeros: bool) -> str:
    """A weight in blocks of `size` along the axis."""
    rng = np.random.default_rng(shape[0])
    dtype, low, high = KINDS[kind]
    blocks = tuple(-(-n // size) if a == axis else n for a, n in enumerate(shape))
    scale = rng.uniform(0.01, 0.03, blocks).astype(np.float32)
    zero = rng.integers(low, high, blocks).astype(dtype) if zeros else None
    return net.blocks(rng.integers(low, high, shape).astype(dtype), scale, zero, axis, size)


def finished(net: Net, result: str, **inputs: list[int | str]) -> onnx.ModelProto:
    model = net.model(result, **inputs)
    model.opset_import[0].version = 21
    model.ir_version = 10
    return model


def reference(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    session = plain_session(model)
    (y,) = session.run(None, feeds)
    return np.asarray(y)


def native(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    with tempfile.TemporaryDirectory(prefix="smelt-blocks-") as folder:
        source = Path(folder) / "model.onnx"
        source.write_bytes(model.SerializeToString())
        bundle = compile_here(Request(str(source), "host", output=str(Path(folder) / "out"), runner=False))
        session = load(bundle, threads=1)
    return np.asarray(session.run(None, feeds)[0])


def product(
    kind: str, zeros: bool = True, turned: bool = False, size: int = 16, depth: int = 64
) -> onnx.ModelProto:
    net = Net()
    shape, axis = ((24, depth), 1) if turned else ((depth, 24), 0)
    w = weight(net, kind, shape, axis, size, zeros)
    y = net.op("MatMul", "x", net.op("Transpose", w, perm=[1, 0]) if turned else w)
    return finished(net, y, x=["n", "m", depth])


FORMS = {
    **{
        f"{kind}, {'zeros' if z else 'no zeros'}{', turned' if t else ''}": product(kind, z, t)
        for kind in KINDS
        if kind != "i16"
        for z in (False, True)
        for t in (False, True)
    },
    "larger blocks": product("i4", size=32, depth=128),
    "a last block that is short": product("u4", depth=75),
    "one block": product("u4", size=64),
}


@pytest.mark.parametrize("name", FORMS)
def test_product(name: str) -> None:
    model = FORMS[name]
    depth = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    module = optimised(model)
    assert [n.op for n in module.main.nodes] == ["matmul_nbits"]
    found = quantized_summary(quantized_products(import_model(model)))
    assert found == {"integer": 0, "float": {}, "packed": 1}
    wide = 8 if name.startswith(("i8", "u8")) else 2 if name.startswith("small") else 4
    assert module.main.nodes[0].attrs["bits"] == wide
    for n, m in ((2, 3), (1, 1)):
        feeds = {"x": np.random.default_rng(n).standard_normal((n, m, depth)).astype(np.float32)}
        want = reference(model, feeds)
        np.testing.assert_allclose(run_module(module, feeds, OPS)[0], want, atol=2e-4 * np.abs(want).max())


@pytest.mark.parametrize("name", ["i4, zeros, turned", "u8, zeros", "small u8, no zeros"])
def test_compiled_product(name: str) -> None:
    model = FORMS[name]
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, 64)).astype(np.float32)}
    want = reference(model, feeds)
    np.testing.assert_allclose(native(model, feeds), want, atol=2e-4 * np.abs(want).max())


STEPS = {
    "4 bits": {"bits": 4, "block": 32, "depth": 96},
    "zeros": {"bits": 4, "block": 16, "depth": 80, "zeros": True},
    "a last block that is short": {"bits": 4, "block": 32, "depth": 70, "zeros": True},
    "8 bits": {"bits": 8, "block": 32, "depth": 64}, "2 bits": {"bits": 2, "block": 32, "depth": 96},
    "one block": {"bits": 4, "block": 64, "depth": 64},
}  # fmt: skip


def level_4(bits: int, block: int, depth: int, zeros: bool = False) -> onnx.ModelProto:
    """A product of activations that are rounded to bytes with packed weights for 40 columns."""
    rng, n, blocks = np.random.default_rng(bits), 40, -(-depth // block)
    arrays = {
        "q": rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.03, (n, blocks)).astype(np.float32),
        "z": rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8),
    }
    given = ["q", "s", *(["z"] if zeros else [])]
    node = helper.make_node(
        "MatMulNBits", ["x", *given], ["y"], domain="com.microsoft", K=depth, N=n, bits=bits,
        block_size=block, accuracy_level=4,
    )  # fmt: skip
    kind = onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(v, kind, ["n", k]) for v, k in (("x", depth), ("y", n)))
    weights = [numpy_helper.from_array(arrays[v], v) for v in given]
    graph = helper.make_graph([node], "g", [x], [y], weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


@pytest.mark.parametrize("name", STEPS)
def test_bytes_times_packed_weights(name: str) -> None:
    """As ONNX Runtime's integer kernels, also for rows that are 0, huge or no numbers: only these differ."""
    model = level_4(**STEPS[name])  # type: ignore[arg-type]
    depth = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    for rows in (1, 7, 0):
        x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
        x[1:2], x[2:3], x[3:4, 0], x[4:5, 0] = 0, x[2:3] * 1e30, np.nan, np.inf
        got, want = native(model, {"x": x}), reference(model, {"x": x})
        whole = np.isfinite(x).all(1)
        assert not np.isfinite(got[~whole]).any()
        for g, w in zip(got[whole], want[whole], strict=True):
            np.testing.assert_allclose(g, w, atol=1e-5 * np.abs(w).max(initial=0))


def test_rows_are_gathered_first() -> None:
    net = Net()
    w = weight(net, "u4", (9, 32), 1, 16, True)
    ids = net.op("Cast", "x", to=onnx.TensorProto.INT64)
    model = finished(net, net.op("Gather", w, ids, axis=0), x=["n"])
    module = optimised(model)
    found = [n.op for n in module.main.nodes]
    assert found.index("gather") < found.index("dequantize_blocks")
    feeds = {"x": np.array([3, 0, 8, 3], np.float32)}
    np.testing.assert_allclose(run_module(module, feeds, OPS)[0], reference(model, feeds), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "axis", "reason"),
    [("i8", 1, "the blocks of the weight are not along what is summed"), ("i16", 0, "the weight is i16")],
)
def test_what_stays_float_says_why(kind: str, axis: int, reason: str) -> None:
    net = Net()
    model = finished(net, net.op("MatMul", "x", weight(net, kind, (32, 32), axis, 16, False)), x=["n", 32])
    assert list(quantized_summary(quantized_products(import_model(model)))["float"].values()) == [reason]  # type: ignore[attr-defined]
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)}
    want = reference(model, feeds)
    np.testing.assert_allclose(
        run_module(optimised(model), feeds, OPS)[0], want, atol=1e-5 * np.abs(want).max()
    )
