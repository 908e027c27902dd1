"""Element types: a frozen row each, with its NumPy counterpart and its width in bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from smelt.core.lazily import Lazily

if TYPE_CHECKING:
    import ml_dtypes
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]
else:
    ml_dtypes, np = Lazily("ml_dtypes"), Lazily("numpy")
    Array: TypeAlias = Any

Category = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `name` is its spelling in IR text; `bits` its storage width (bool is 8).

    scalar: the type of its elements in NumPy, or in the module that it names.
    coded: elements are codes in bytes (8-, 4- and 2-bit formats), which ops move and tables translate."""

    name: str
    category: Category
    bits: int
    scalar: str
    coded: bool = False

    @property
    def numpy(self) -> np.dtype[Any]:
        """Its counterpart in NumPy."""
        return _numpy(self.scalar)

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


@cache
def _numpy(scalar: str) -> np.dtype[Any]:
    module, _, name = scalar.rpartition(".")
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes if module else np, name))
    return found


f64 = DType("f64", "float", 64, "float64")
f32 = DType("f32", "float", 32, "float32")
f16 = DType("f16", "float", 16, "float16")
bf16 = DType("bf16", "float", 16, "ml_dtypes.bfloat16")
i64 = DType("i64", "int", 64, "int64")
i32 = DType("i32", "int", 32, "int32")
i16 = DType("i16", "int", 16, "int16")
i8 = DType("i8", "int", 8, "int8")
u64 = DType("u64", "uint", 64, "uint64")
u32 = DType("u32", "uint", 32, "uint32")
u16 = DType("u16", "uint", 16, "uint16")
u8 = DType("u8", "uint", 8, "uint8")
bool_ = DType("bool", "bool", 8, "bool_")

INT64 = 2**63 - 1
"""The largest i64."""
BYTES = (i8, u8)

DTYPES: dict[str, DType] = {
    d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_)
}

# Formats of less than 16 bits, a byte per element: arithmetic is on what they stand for.
CODED: dict[str, DType] = {
    name: DType(name, "uint", 8, f"ml_dtypes.{scalar}", coded=True)
    for name, scalar in (
        ("f8e4m3fn", "float8_e4m3fn"),
        ("f8e4m3fnuz", "float8_e4m3fnuz"),
        ("f8e5m2", "float8_e5m2"),
        ("f8e5m2fnuz", "float8_e5m2fnuz"),
        ("f8e8m0", "float8_e8m0fnu"),
        ("f4e2m1", "float4_e2m1fn"),
        ("i4", "int4"),
        ("u4", "uint4"),
        ("i2", "int2"),
        ("u2", "uint2"),
    )
}
ALL: dict[str, DType] = {**DTYPES, **CODED}


@cache
def _by_numpy(own: bool) -> dict[np.dtype[Any], DType]:
    """Those of NumPy's own, or the others, which take importing a module more."""
    return {d.numpy: d for d in ALL.values() if own == ("." not in d.scalar)}


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy dtype; KeyError when there is none."""
    found = np.dtype(dtype)
    return _by_numpy(found.type.__module__ == "numpy")[found]


def finfo(dtype: Any) -> Any:
    """NumPy's finfo (eps, tiny, max, nmant, smallest_subnormal) of a NumPy float type, bfloat16 included."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
