"""Element types: a frozen row each, with its NumPy counterpart and its width in bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Category = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `name` is its spelling in IR text; `bits` its storage width (bool is 8).

    coded: elements are codes in bytes (8-, 4- and 2-bit formats), which ops move and tables translate."""

    name: str
    category: Category
    bits: int
    numpy: np.dtype[Any]
    coded: bool = False

    @property
    def bytes(self) -> int:
        """Storage of one element in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.category == "float"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer (not bool)."""
        return self.category in ("int", "uint") and not self.coded

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest element of an integer type. Raises ValueError for others."""
        if not self.is_int:
            raise ValueError(f"{self.name} is no integer type")
        signed = self.category == "int"
        return (-1 << self.bits - 1, (1 << self.bits - 1) - 1) if signed else (0, (1 << self.bits) - 1)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


def _row(name: str, category: Category, bits: int, numpy: Any) -> DType:
    return DType(name, category, bits, np.dtype(numpy))


f64 = _row("f64", "float", 64, np.float64)
f32 = _row("f32", "float", 32, np.float32)
f16 = _row("f16", "float", 16, np.float16)
bf16 = _row("bf16", "float", 16, ml_dtypes.bfloat16)
i64 = _row("i64", "int", 64, np.int64)
i32 = _row("i32", "int", 32, np.int32)
i16 = _row("i16", "int", 16, np.int16)
i8 = _row("i8", "int", 8, np.int8)
u64 = _row("u64", "uint", 64, np.uint64)
u32 = _row("u32", "uint", 32, np.uint32)
u16 = _row("u16", "uint", 16, np.uint16)
u8 = _row("u8", "uint", 8, np.uint8)
bool_ = _row("bool", "bool", 8, np.bool_)

BYTES = (i8, u8)

DTYPES: dict[str, DType] = {
    d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_)
}

# Formats of less than 16 bits, a byte per element: arithmetic is on what they stand for.
CODED: dict[str, DType] = {
    name: DType(name, "uint", 8, np.dtype(numpy), coded=True)
    for name, numpy in (
        ("f8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("f8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("f8e5m2", ml_dtypes.float8_e5m2),
        ("f8e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        ("f8e8m0", ml_dtypes.float8_e8m0fnu),
        ("f4e2m1", ml_dtypes.float4_e2m1fn),
        ("i4", ml_dtypes.int4),
        ("u4", ml_dtypes.uint4),
        ("i2", ml_dtypes.int2),
        ("u2", ml_dtypes.uint2),
    )
}
ALL: dict[str, DType] = {**DTYPES, **CODED}
_BY_NUMPY = {d.numpy: d for d in ALL.values()}


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy dtype; KeyError when there is none."""
    return _BY_NUMPY[np.dtype(dtype)]


def finfo(dtype: Any) -> Any:
    """NumPy's finfo (eps, tiny, max, nmant, smallest_subnormal) of a NumPy float type, bfloat16 included."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
