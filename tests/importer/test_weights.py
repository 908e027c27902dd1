"""Weights: bytes in the file, spans of external files, and the ways both can lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model

from smelt.core.diag import SmeltError
from smelt.importer import import_model
from smelt.importer.weights import weight_of

ADD = [helper.make_node("Add", ["x", "w"], ["y"], "add")]


def with_weight(t: TensorProto) -> onnx.ModelProto:
    m = model(ADD, {"x": ("f32", ["n", 4])}, {"y": "f32"})
    m.graph.initializer.append(t)
    return m


def external(folder: Path, **entries: str) -> Path:
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        t.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(with_weight(t).SerializeToString())
    return path


def refused(source: object, *parts: str) -> None:
    with pytest.raises(SmeltError) as caught:
        import_model(source)  # type: ignore[arg-type]
    assert caught.value.kind == "invalid"
    for p in parts:
        assert p in str(caught.value), (p, str(caught.value))


def test_external_span(tmp_path: Path) -> None:
    data = np.arange(10, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(data.tobytes())
    module = import_model(external(tmp_path, location="w.bin", offset="8", length="16"))
    (w,) = module.weights.values()
    assert w.path is not None
    assert w.data is None  # mapped on use, not read
    np.testing.assert_array_equal(w.array(), data[2:6])


SMALL_BITS = {"INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2, "FLOAT4E2M1": 4, "FLOAT8E4M3FN": 8}


@pytest.mark.parametrize("name", SMALL_BITS)
@pytest.mark.parametrize("count", [7, 2**22 + 3])
def test_external_codes(tmp_path: Path, name: str, count: int) -> None:
    """As onnx itself reads them; also when a span is longer than what is read at a time."""
    kind = getattr(TensorProto, name)
    size = -(-count * SMALL_BITS[name] // 8)
    raw = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8).tobytes()
    inside = TensorProto(name="w", data_type=kind, dims=[count], raw_data=raw)
    (tmp_path / "w.bin").write_bytes(b"12345" + raw)
    outside = TensorProto(name="w", data_type=kind, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "5")):
        outside.external_data.add(key=key, value=value)
    got = weight_of(outside, "@w", (tmp_path,))
    assert got.data is None
    want = onnx.numpy_helper.to_array(inside)
    assert got.array().dtype == want.dtype
    np.testing.assert_array_equal(got.array().view(np.uint8), want.view(np.uint8))


def test_external_beyond_2_gib(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as f:
        f.seek(2**31 + 64)
        f.write(np.arange(4, dtype=np.float32).tobytes())
    module = import_model(external(tmp_path, location="w.bin", offset=str(2**31 + 64)))
    (w,) = module.weights.values()
    np.testing.assert_array_equal(w.array(), [0, 1, 2, 3])


def test_external_files_that_lie(tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (inside / "w.bin").write_bytes(bytes(20))
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    refused(external(inside, location="missing.bin"), "'missing.bin', which does not exist")
    refused(external(inside, location="../secret.bin"), "outside the model's folder")
    refused(external(inside, location=str(tmp_path / "secret.bin")), "wanted a path relative to the model")
    refused(external(inside, location="link.bin"), "outside the model's folder")
    refused(external(inside, location="a\0b"), "wanted a path relative")
    refused(external(inside, offset="0"), "names no file")
    refused(external(inside, location="w.bin", offset="8"), "ends at byte 24 of 'w.bin', which has 20")
    refused(external(inside, location="w.bin", offset="-4"), "external offset '-4'")
    refused(external(inside, location="w.bin", length="12"), "has 12 bytes", "wants 16")
    refused(external(inside, location="w.bin").read_bytes(), "came as bytes", "pass the path")


def test_data_that_does_not_fit() -> None:
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(15))
    refused(with_weight(t), "initializer 'w' holds 15 bytes", "wants 16")
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], float_data=[1, 2])
    refused(with_weight(t), "holds 2 elements", "wants 4")
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4], raw_data=b"")
    refused(with_weight(t), "negative dimension")


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint16", "uint64", "bool"]
)
def test_every_storage(dtype: str, raw: bool) -> None:
    a = np.array([[0, 1], [1, 0]], dtype) if dtype == "bool" else np.array([[1, 2], [3, 100]], dtype)
    if raw:
        t = onnx.numpy_helper.from_array(a, "w")
    else:
        bits = {"float16": np.uint16, "bool": np.uint8}.get(dtype, dtype)
        values = a.reshape(-1).view(bits).tolist()
        kind = helper.np_dtype_to_tensor_dtype(a.dtype)
        field = helper.tensor_dtype_to_field(kind)
        t = TensorProto(name="w", data_type=kind, dims=a.shape)
        getattr(t, field).extend(values)
    m = model([helper.make_node("Identity", ["w"], ["y"])], {}, {"y": "f32"})
    m.graph.output[0].type.tensor_type.elem_type = t.data_type
    m.graph.initializer.append(t)
    module = import_model(m)
    (w,) = module.weights.values()
    assert w.array().dtype == a.dtype
    np.testing.assert_array_equal(w.array(), a)


def test_initialisers_among_the_inputs() -> None:
    """Before IR 4 every initialiser was an input as well."""
    m = with_weight(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    m.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]))
    assert [v.origin for v in import_model(m).main.inputs] == ["x"]


def test_sparse_initialiser() -> None:
    values = onnx.numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    places = onnx.numpy_helper.from_array(np.array([1, 3], np.int64), "i")
    m = model(ADD, {"x": ("f32", ["n", 4])}, {"y": "f32"})
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    (w,) = import_model(m).weights.values()
    np.testing.assert_array_equal(w.array(), [0, 2, 0, 3])
    m.graph.sparse_initializer[0].dims[0] = 2
    refused(m, "indices outside its shape")


def test_the_names_of_weights_are_kept() -> None:
    m = model(
        [helper.make_node("Add", ["x", "layer/w:0"], ["y"])], {"x": ("f32", [4])}, {"y": "f32"},
        {"layer/w:0": np.ones(4, np.float32)},
    )  # fmt: skip
    (w,) = import_model(m).weights.values()
    assert (w.name, w.origin) == ("@layer_w_0", "layer/w:0")
