"""A reduction's kind and dtype in; what it starts from out."""

from __future__ import annotations

import math

import numpy as np

from smelt.core.dtype import DType, bool_


def lowest(dtype: DType) -> int | float:
    """What max starts from."""
    if dtype.is_float:
        return -math.inf
    return 0 if dtype == bool_ else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> int | float:
    """What min starts from."""
    if dtype.is_float:
        return math.inf
    return 1 if dtype == bool_ else int(np.iinfo(dtype.numpy).max)


def neutral(kind: str, dtype: DType) -> int | float:
    """What a reduction of nothing gives."""
    if kind in ("max", "min"):
        return lowest(dtype) if kind == "max" else highest(dtype)
    return {"sum": 0, "prod": 1, "any": 0, "all": 1}[kind]
