"""8-, 4- and 2-bit formats through the importer, against ml_dtypes and the ONNX package."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from smelt.core.diag import SmeltError
from smelt.core.dtype import CODED, DType
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model
from smelt.importer.coded import decoding, encoding

FLOATS = np.array(
    [0, -0.0, 1, -1.25, 0.0019, 3.5, 7.75, -6, 17.3, 447.9, 464, 480.1, -1e4, 1e-9, np.inf, -np.inf, np.nan],
    np.float32,
)


def cast(array: np.ndarray[Any, Any], to: int, **attrs: Any) -> Any:
    node = helper.make_node("Cast", ["x"], ["y"], to=to, **attrs)
    source = helper.np_dtype_to_tensor_dtype(array.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", source, ["n"])],
        [helper.make_tensor_value_info("y", to, ["n"])],
    )
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    return run_module(import_model(m), {"x": array}, OPS)[0]


@pytest.mark.parametrize("dtype", CODED.values(), ids=str)
def test_decoding(dtype: DType) -> None:
    codes = np.arange(2 ** (4 if "4" in dtype.name[:2] else 2 if dtype.name[1] == "2" else 8), dtype=np.uint8)
    x = codes.view(dtype.numpy)
    np.testing.assert_array_equal(cast(x, TensorProto.FLOAT), x.astype(np.float32))
    assert decoding(dtype).shape == (256,)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"])
def test_rounding_once(name: str, saturate: int) -> None:
    """Random bits and halfway points: the table of upper halves rounds as the whole number does."""
    dtype = CODED[name]
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    halves = np.arange(-600, 600, dtype=np.float32) / 16
    near = np.concatenate([np.nextafter(halves, np.float32(s)) for s in (-np.inf, np.inf)])
    x = np.concatenate([FLOATS, bits, halves, near])
    with np.errstate(all="ignore"):
        from onnx.reference.ops.op_cast import cast_to

        to = helper.np_dtype_to_tensor_dtype(dtype.numpy)
        wanted = cast_to(x, to, bool(saturate)).view(np.uint8)
    found = cast(x, to, saturate=saturate).view(np.uint8)
    np.testing.assert_array_equal(found, wanted)
    assert encoding(dtype, bool(saturate), "up").shape == (65536,)


def test_packed_initialisers() -> None:
    values = np.array([-8, 7, 3, -1, 0], np.int8)
    weight = helper.make_tensor("w", TensorProto.INT4, [5], values)
    nodes = [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.INT32)]
    graph = helper.make_graph([*nodes], "g", [], [helper.make_tensor_value_info("y", 6, [5])], [weight])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (found,) = run_module(import_model(m), {}, OPS)
    np.testing.assert_array_equal(found, values)


def test_arithmetic_on_codes_is_refused() -> None:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT8E5M2, [2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", info[:1], info[1:])
    m: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with pytest.raises(SmeltError) as caught:
        import_model(m)
    assert caught.value.kind == "invalid"  # no version of Neg takes it
