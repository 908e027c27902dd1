"""A TensorProto in; a Weight out that holds the array or the span of the external file, after checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from smelt.core.diag import invalid, unsupported
from smelt.core.dtype import CODED, DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from smelt.core.ir.graph import FILE_PIECE, Ref, Weight
from smelt.core.ops.infer_node import MAX_RANK, MOST_ELEMENTS

DTYPE_OF: dict[int, DType] = {
    TensorProto.FLOAT: f32,
    TensorProto.DOUBLE: f64,
    TensorProto.FLOAT16: f16,
    TensorProto.BFLOAT16: bf16,
    TensorProto.INT64: i64,
    TensorProto.INT32: i32,
    TensorProto.INT16: i16,
    TensorProto.INT8: i8,
    TensorProto.UINT64: u64,
    TensorProto.UINT32: u32,
    TensorProto.UINT16: u16,
    TensorProto.UINT8: u8,
    TensorProto.BOOL: bool_,
}
DTYPE_OF |= {
    TensorProto.FLOAT8E4M3FN: CODED["f8e4m3fn"],
    TensorProto.FLOAT8E4M3FNUZ: CODED["f8e4m3fnuz"],
    TensorProto.FLOAT8E5M2: CODED["f8e5m2"],
    TensorProto.FLOAT8E5M2FNUZ: CODED["f8e5m2fnuz"],
    TensorProto.FLOAT8E8M0: CODED["f8e8m0"],
    TensorProto.FLOAT4E2M1: CODED["f4e2m1"],
    TensorProto.INT4: CODED["i4"],
    TensorProto.UINT4: CODED["u4"],
    TensorProto.INT2: CODED["i2"],
    TensorProto.UINT2: CODED["u2"],
}
ONNX_OF: dict[DType, int] = {d: n for n, d in DTYPE_OF.items()}

PACKED: dict[str, int] = {"i4": 4, "u4": 4, "f4e2m1": 4, "i2": 2, "u2": 2}
"""Bits of an element in a file, where several share a byte."""

# The typed field that holds elements outside raw_data, and the type its bits have there.
FIELD_OF: dict[int, tuple[str, Any]] = {
    TensorProto.FLOAT: ("float_data", np.float32),
    TensorProto.DOUBLE: ("double_data", np.float64),
    TensorProto.FLOAT16: ("int32_data", np.uint16),
    TensorProto.BFLOAT16: ("int32_data", np.uint16),
    TensorProto.INT64: ("int64_data", np.int64),
    TensorProto.INT32: ("int32_data", np.int32),
    TensorProto.INT16: ("int32_data", np.int16),
    TensorProto.INT8: ("int32_data", np.int8),
    TensorProto.UINT64: ("uint64_data", np.uint64),
    TensorProto.UINT32: ("uint64_data", np.uint32),
    TensorProto.UINT16: ("int32_data", np.uint16),
    TensorProto.UINT8: ("int32_data", np.uint8),
    TensorProto.BOOL: ("int32_data", np.bool_),
}


def dtype_of(elem_type: int, what: str, node: str | None = None) -> DType:
    """The element type of an ONNX enum value; refuses strings, complex numbers, 8- and 4-bit floats."""
    if elem_type in DTYPE_OF:
        return DTYPE_OF[elem_type]
    names = {v: k for k, v in TensorProto.DataType.items()}
    if elem_type in names and elem_type != TensorProto.UNDEFINED:
        raise unsupported(f"{what} has element type {names[elem_type].lower()}", node=node)
    raise invalid(f"{what} has no valid element type (found {elem_type})", node=node)


def weight_of(t: TensorProto, ref: Ref, folders: tuple[Path, ...], what: str | None = None) -> Weight:
    """The tensor as a Weight named `ref`. External data is checked, and mapped on use, never read here; its
    name counts from the first of the folders.

    Raises SmeltError(kind='invalid') when shape, type and data do not agree, or when the external file is
    missing, too short, or outside all `folders`.
    """
    what = what or f"initializer '{t.name}'"
    dtype = dtype_of(t.data_type, what)
    shape = tuple(t.dims)
    check_shape(shape, what)
    wanted = math.prod(shape) * dtype.bytes
    if t.data_location == TensorProto.EXTERNAL:
        bits = PACKED.get(dtype.name, dtype.bits)
        path, offset = _external(t, folders, -(-math.prod(shape) * bits // 8), what)
        if bits < 8:
            unpack = partial(_unpacked, path, offset, math.prod(shape), dtype)
            return Weight(ref, dtype, shape, recipe=unpack, origin=t.name)
        return Weight(ref, dtype, shape, path=path, offset=offset, origin=t.name)
    if dtype.coded:
        return Weight(ref, dtype, shape, data=_codes(t, dtype, shape, what), origin=t.name)
    return Weight(ref, dtype, shape, data=_elements(t, dtype, shape, wanted, what), origin=t.name)


def check_shape(shape: tuple[int, ...], what: str) -> None:
    """Raise SmeltError for an impossible shape, of a tensor without elements too."""
    if len(shape) > MAX_RANK:
        raise unsupported(f"{what} has rank {len(shape)}; tensors have at most {MAX_RANK} axes")
    if any(d < 0 for d in shape):
        raise invalid(f"{what} has a negative dimension in its shape {list(shape)}")
    if math.prod(d for d in shape if d) > MOST_ELEMENTS:
        raise unsupported(f"{what} of shape {list(shape)} fits no memory")


def array_of(t: TensorProto, what: str) -> np.ndarray[Any, Any]:
    """The elements of a small tensor inside the file (attributes)."""
    return weight_of(t, "@", (), what).array()


def _codes(t: TensorProto, dtype: DType, shape: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    """The codes of a tensor, a byte per element; the file packs formats of fewer than 8 bits."""
    try:
        array = np.ascontiguousarray(onnx.numpy_helper.to_array(t)).reshape(shape)
    except (ValueError, TypeError) as e:
        raise invalid(f"{what} does not hold what its shape {list(shape)} of {dtype} wants") from e
    array.flags.writeable = False
    return array


def _unpacked(path: Path, offset: int, count: int, dtype: DType) -> Iterator[np.ndarray[Any, Any]]:
    """The elements of a span that packs several into a byte, the first into its lowest bits."""
    bits = PACKED[dtype.name]
    per, most = 8 // bits, FILE_PIECE
    shifts = np.arange(per, dtype=np.uint8) * np.uint8(bits)
    for start in range(0, count, most):
        n = min(most, count - start)
        raw = np.fromfile(path, np.uint8, -(-n // per), offset=offset + start // per)
        fields = ((raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:n]
        if dtype.name[0] == "i":  # what stands for a sign is the highest bit
            half = np.int8(1 << (bits - 1))
            yield ((fields.astype(np.int8) ^ half) - half).astype(dtype.numpy)
        else:
            yield fields.view(dtype.numpy)


def _elements(
    t: TensorProto, dtype: DType, shape: tuple[int, ...], wanted: int, what: str
) -> np.ndarray[Any, Any]:
    if t.HasField("raw_data"):
        raw = t.raw_data
        if len(raw) != wanted:
            raise invalid(f"{what} holds {len(raw)} bytes, its shape {list(shape)} of {dtype} wants {wanted}")
        array = np.frombuffer(
            raw, dtype.numpy.newbyteorder("<") if dtype.bits > 8 and dtype != bf16 else dtype.numpy
        )
    else:
        field, bits = FIELD_OF[t.data_type]
        values = getattr(t, field)
        if len(values) != math.prod(shape):
            raise invalid(
                f"{what} holds {len(values)} elements, its shape {list(shape)} wants {math.prod(shape)}"
            )
        wide = np.array(values, dtype=np.int64) if field == "int32_data" else np.array(values, dtype=bits)
        array = wide.astype(bits)
        if dtype in (f16, bf16):
            array = array.view(dtype.numpy)
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _external(t: TensorProto, folders: tuple[Path, ...], wanted: int, what: str) -> tuple[Path, int]:
    entries = {e.key: e.value for e in t.external_data}
    location = entries.get("location", "")
    if not location:
        raise invalid(f"{what} is external but names no file")
    if not folders:
        raise invalid(
            f"{what} is in the external file '{location}', but the model came as bytes",
            hint="pass the path of the .onnx file",
        )
    path = _inside(folders, location, what)
    offset = _number(entries, "offset", 0, what)
    length = _number(entries, "length", wanted, what)
    size = path.stat().st_size
    if length != wanted:
        raise invalid(f"{what} has {length} bytes in '{location}', its type wants {wanted}")
    if offset + length > size:
        raise invalid(
            f"{what} ends at byte {offset + length} of '{location}', which has {size}",
            hint="check that the external file is complete",
        )
    return path, offset


def _inside(folders: tuple[Path, ...], location: str, what: str) -> Path:
    """The path of external data. Raises SmeltError where it is outside of the model's folders: an untrusted
    model must not read other files. There are two where the model is a link: a cache of downloads keeps all
    files in one folder, and names them by links in another."""
    base, *others = (f.resolve() for f in folders)
    if "\0" in location or Path(location).is_absolute() or "\\" in location:
        raise invalid(f"{what} names the external file {location!r}, wanted a path relative to the model")
    try:
        path = (base / location).resolve()
        there = path.is_file()
    except (OSError, RuntimeError) as e:  # a name too long, a link to itself
        reason = e.strerror if isinstance(e, OSError) else "a link leads to itself"
        raise invalid(f"{what} names the external file '{location}', which cannot be: {reason}") from e
    if not any(path.is_relative_to(f) for f in (base, *others)):
        raise invalid(f"{what} names the external file '{location}', which is outside the model's folder")
    if not there:
        raise invalid(
            f"{what} is in the external file '{location}', which does not exist",
            hint="put it next to the .onnx file",
        )
    return path


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise invalid(f"{what} has external {key} {text!r}, wanted a non-negative number")
    return int(text)


def dense(t: onnx.SparseTensorProto, what: str) -> TensorProto:
    """A sparse initialiser as a dense tensor. Raises SmeltError when its indices do not fit."""
    shape = tuple(t.dims)
    total = math.prod(shape)
    check_shape(shape, what)
    if total > 2**28:
        raise unsupported(f"{what} is sparse with {total} elements", try_="a dense initializer")
    values, where = array_of(t.values, what), array_of(t.indices, what).astype(np.int64)
    flat = np.zeros(total, values.dtype)
    if where.ndim == 2 and where.shape == (values.size, len(shape)):
        where = where @ np.array([math.prod(shape[a + 1 :]) for a in range(len(shape))], np.int64)
    if where.shape != (values.size,) or (where.size and not (where.min() >= 0 and where.max() < total)):
        raise invalid(f"{what} has indices outside its shape {list(shape)}")
    flat[where] = values.reshape(-1)
    return onnx.numpy_helper.from_array(flat.reshape(shape), t.values.name)
