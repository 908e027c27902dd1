"""An element type in; its code in DLPack out, which the C interface and the frames of the farm have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.core.dtype import ALL, DType, bf16

_CATEGORIES = {"int": 0, "uint": 1, "float": 2, "bool": 6}

DLPACK: Mapping[DType, tuple[int, int]] = MappingProxyType({
    **{d: (_CATEGORIES[d.category], d.bits) for d in ALL.values()},
    bf16: (4, 16),
})  # fmt: skip
"""Element type -> DLPack's type code, and bits."""
