"""The closed set of scalar intrinsics: for each its arity, result type rule and exact NumPy meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

ResultRule = Literal["same", "bool", "explicit"]


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One scalar function. result: 'same' (dtype of the first argument), 'bool', or 'explicit' (given by
    the Call: cast, bitcast, select). meaning works on NumPy scalars and arrays elementwise."""

    name: str
    arity: int
    result: ResultRule
    meaning: Callable[..., Any]


def _erf(x: Any) -> Any:
    a = np.asarray(x)
    return np.vectorize(math.erf, otypes=[np.float64])(a).astype(a.dtype)


def _div(a: Any, b: Any) -> Any:
    """Float division, or C's truncating integer division; x / 0 is 0 for integers (never a trap)."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    q = np.floor_divide(a, safe)
    up = (np.remainder(a, safe) != 0) & ((a < 0) ^ (safe < 0))
    return np.where(b == 0, np.zeros_like(q), q + up.astype(q.dtype)).astype(a.dtype)


def _mod(a: Any, b: Any) -> Any:
    """Python's remainder (sign of the divisor); 0 for an integer divisor of 0."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return np.remainder(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    return np.where(b == 0, np.zeros_like(a), np.remainder(a, safe))


def _fmod(a: Any, b: Any) -> Any:
    """C's fmod (sign of the dividend)."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    return np.where(b == 0, np.zeros_like(a), np.fmod(a, safe))


def _pow(a: Any, b: Any) -> Any:
    """Floats as C's pow. Integers wrap; a negative exponent leaves only the powers of 1 and -1, as 0 is the
    nearest integer to the others (of 0, too)."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    y = np.power(a, np.maximum(b, 0))
    if a.dtype.kind == "u":
        return y
    odd = (b & 1) != 0
    of_units = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0)).astype(y.dtype)
    return np.where(b < 0, of_units, y)


def _bits(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: fn(np.asarray(a), np.asarray(b))


def _shift(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def meaning(a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        width = a.dtype.itemsize * 8
        over = b >= width
        return np.where(over, np.zeros_like(a), fn(a, np.where(over, np.zeros_like(b), b)))

    return meaning


def _propagating(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """min and max: NaN in, NaN out (as ONNX Runtime does)."""
    return lambda a, b: fn(np.asarray(a), np.asarray(b))


def _saturate(x: Any) -> Any:
    """Finite numbers beyond the largest of f16 become it; infinities and NaN stay."""
    a = np.asarray(x)
    return np.where(np.isfinite(a), np.clip(a, -65504, 65504), a).astype(a.dtype)


_TABLE: tuple[Intrinsic, ...] = (
    # arithmetic
    Intrinsic("add", 2, "same", np.add),
    Intrinsic("sub", 2, "same", np.subtract),
    Intrinsic("mul", 2, "same", np.multiply),
    Intrinsic("div", 2, "same", _div),
    Intrinsic("mod", 2, "same", _mod),
    Intrinsic("fmod", 2, "same", _fmod),
    Intrinsic("fma", 3, "same", lambda a, b, c: np.add(np.multiply(a, b), c)),
    Intrinsic("min", 2, "same", _propagating(np.minimum)),
    Intrinsic("max", 2, "same", _propagating(np.maximum)),
    Intrinsic("neg", 1, "same", np.negative),
    Intrinsic("abs", 1, "same", np.abs),
    Intrinsic("pow", 2, "same", _pow),
    # transcendental
    *(
        Intrinsic(name, 1, "same", getattr(np, name))
        for name in ("exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")
    ),
    *(
        Intrinsic(name, 1, "same", getattr(np, np_name))
        for name, np_name in (
            ("asin", "arcsin"),
            ("acos", "arccos"),
            ("atan", "arctan"),
            ("asinh", "arcsinh"),
            ("acosh", "arccosh"),
            ("atanh", "arctanh"),
        )
    ),
    Intrinsic("erf", 1, "same", _erf),
    # rounding: 'round' is half to even
    Intrinsic("floor", 1, "same", np.floor),
    Intrinsic("ceil", 1, "same", np.ceil),
    Intrinsic("round", 1, "same", np.rint),
    Intrinsic("trunc", 1, "same", np.trunc),
    Intrinsic("sign", 1, "same", np.sign),
    Intrinsic("saturate", 1, "same", _saturate),
    # comparison
    Intrinsic("eq", 2, "bool", np.equal),
    Intrinsic("ne", 2, "bool", np.not_equal),
    Intrinsic("lt", 2, "bool", np.less),
    Intrinsic("le", 2, "bool", np.less_equal),
    Intrinsic("gt", 2, "bool", np.greater),
    Intrinsic("ge", 2, "bool", np.greater_equal),
    Intrinsic("isnan", 1, "bool", np.isnan),
    Intrinsic("isinf", 1, "bool", np.isinf),
    # logic and bits ('and' of bools is logical)
    Intrinsic("and", 2, "same", _bits(np.bitwise_and)),
    Intrinsic("or", 2, "same", _bits(np.bitwise_or)),
    Intrinsic("xor", 2, "same", _bits(np.bitwise_xor)),
    Intrinsic("not", 1, "same", np.invert),
    Intrinsic("shl", 2, "same", _shift(np.left_shift)),
    Intrinsic("shr", 2, "same", _shift(np.right_shift)),
    # typed
    Intrinsic("select", 3, "explicit", np.where),
    Intrinsic("cast", 1, "explicit", None),  # type: ignore[arg-type]  # by dtype, see interp
    Intrinsic("bitcast", 1, "explicit", None),  # type: ignore[arg-type]
)

INTRINSICS: dict[str, Intrinsic] = {i.name: i for i in _TABLE}

REDUCE_FN: Mapping[str, str] = MappingProxyType({
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and",
})  # fmt: skip
"""The kind of a reduction -> the intrinsic that it repeats."""
