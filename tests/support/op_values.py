"""An element type in; its extreme and special values, and arrays of them, out."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.5, 0.25, 2.0, 3.0, -3.0, 7.0, 10.0, -0.75, 0.9999999,
    1.0000001, 1e-3, 1e-7, 3.1415927, 88.8, -88.8, -104.0, 127.5, 128.5, 254.5, 255.5, 256.0, -128.5, -129.0,
    32767.5, 65504.0, 65520.0, 16777216.0, 16777217.0, 16777219.0, -16777217.0, 2.0**31, -(2.0**31), 2.0**32,
    2.0**53 + 2, 2.0**63, 2.0**64, 1e10, -1e10, 1e-10, 1e19, 1e20, -1e20, 3e38,
)  # fmt: skip
_INTS = (
    0, 1, -1, 2, -2, 3, -3, 5, 7, -7, 10, 31, 32, 33, 63, 64, 100, 127, 128, -128, -129, 255, 256, 32767,
    32768, 65535, 46341, 1 << 24, (1 << 24) + 1, -(1 << 24) - 1, (1 << 24) + 3, (1 << 31) - 1, 1 << 31,
    1 << 32, 3037000500, (1 << 53) + 1, (1 << 63) - 1,
)  # fmt: skip


def kind(dtype: Any) -> str:
    """'f', 'i', 'u' or 'b'; bfloat16 and its kin are 'f', the 4- and 2-bit integers by their names."""
    d = np.dtype(dtype)
    if d.kind in "fiub":
        return d.kind
    return {"i": "i", "u": "u"}.get(d.name[0], "f")


def edges(dtype: Any) -> Array:
    """The values at the edges of a type, those of wider types that it holds in some form, and ties."""
    d = np.dtype(dtype)
    if d == np.bool_:
        return np.array([False, True])
    if kind(d) == "f":
        info: Any = ml_dtypes.finfo(d)
        own = [
            float(v) for v in (info.max, -info.max, info.tiny, -info.tiny, info.eps, info.smallest_subnormal)
        ]
        own += [own[0] / 2, -own[0] / 2, own[2] / 4, -own[5], 1 + own[4], 1 - own[4]]
        with np.errstate(all="ignore"):
            return np.array([*_FLOATS, *own, np.inf, -np.inf, np.nan]).astype(d)
    info = ml_dtypes.iinfo(d)
    low, high = int(info.min), int(info.max)
    own = [low, low + 1, high, high - 1, low // 2, high // 2]
    return np.array([v for v in (*_INTS, *own) if low <= v <= high], object).astype(d)


def plain(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Values in the middle: floats around 1, small integers."""
    d = np.dtype(dtype)
    if d == np.bool_:
        return rng.random(shape) < 0.5
    if kind(d) == "f":
        return np.asarray(rng.normal(size=shape) * 3).astype(d)
    return np.asarray(rng.integers(0 if kind(d) == "u" else -4, 5, shape)).astype(d)


def mild(rng: np.random.Generator, a: Array, share: float = 0.3) -> Array:
    """The array with about `share` of its floats replaced by those at the edges whose sums and products stay
    far from the largest: zeros of both signs, ones, halves, the least normal and subnormal numbers."""
    found: Any = np.array(a)
    if kind(a.dtype) == "f" and a.dtype.itemsize > 1:
        info: Any = ml_dtypes.finfo(a.dtype)
        pool = np.array([0, -0.0, 1, -1, 0.5, info.tiny, -info.tiny, info.smallest_subnormal]).astype(a.dtype)
        flat = found.reshape(-1)
        at = rng.random(flat.size) < share
        flat[at] = pool[rng.integers(len(pool), size=int(at.sum()))]
    return found


def special(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], share: float = 0.7) -> Array:
    """Values of which about `share` lie at the edges, in any order."""
    y = np.array(plain(rng, dtype, shape))
    flat, pool = y.reshape(-1), edges(dtype)
    order = rng.permutation(len(pool))
    for n in range(flat.size):
        if rng.random() < share:
            flat[n] = pool[order[n % len(order)]]
    return flat.reshape(shape)
