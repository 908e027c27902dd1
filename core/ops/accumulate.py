"""Operands of a product of bytes -> the largest sum that it can make, and whether 32 bits hold it.

The law: sum over k of (a[k] - za) * (b[k] - zb) is exact in i32 when terms * |a - za| * |b - zb| < 2^31.
What stands in between (sums of a and of b, times the zero points) may wrap: i32 adds and multiplies modulo
2^32, so that the end is right whenever the end fits. A sum that is defined to be i32 (MatMulInteger,
ConvInteger) may wrap; one that becomes a float or a byte (QLinear ops, DequantizeLinear around a product) may
not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import NO, UNKNOWN, YES, Dim, Facts, Truth
from smelt.core.dtype import Array, DType

I32_MAX = 2**31 - 1
"""The largest sum that i32 holds, on both sides of zero."""


def reach(dtype: DType, zero: Array | int | None = None) -> int:
    """The largest |x - zero| of an element of an integer type; zero: its zero points, None when unknown.

    >>> from smelt.core.dtype import i8, u8
    >>> reach(u8, 128), reach(u8, 0), reach(i8, 0), reach(u8)
    (128, 255, 128, 255)
    """
    low, high = dtype.limits
    if zero is None:
        return high - low
    every = np.asarray(zero).astype(object).ravel()
    return max((max(int(z) - low, high - int(z)) for z in every), default=0)


def most_terms(left: int, right: int, bias: int = 0) -> int:
    """How many products of at most left * right, and a bias, sum up to what i32 holds for sure."""
    return max(I32_MAX - abs(bias), 0) // max(left * right, 1)


def fits(facts: Facts, terms: Dim, left: int, right: int, bias: int = 0) -> Truth:
    """Whether i32 holds the sum of `terms` products. YES: for all sizes; NO: for none; UNKNOWN: for those
    of at most most_terms(left, right, bias), which a run must ask."""
    return facts.prove_le(terms, most_terms(left, right, bias))


def fits_constant(
    left: int, weight: Array, zero: Array | int, axes: Sequence[int], bias: Array | int = 0
) -> Truth:
    """As `fits`, for a right operand that is known: its own elements say how large its sums are, so that
    most weights of many terms fit. weight: integers; zero: broadcasts against it; axes: those that are summed
    over (K of [K, N]; all but the first of a convolution's); bias: i32 per sum, or 0. YES or NO."""
    own = np.abs(weight.astype(np.int64) - np.asarray(zero).astype(np.int64)).sum(axis=tuple(axes))
    totals = left * own + np.abs(np.asarray(bias).astype(np.int64))
    return YES if int(totals.max(initial=0)) <= I32_MAX else NO


__all__ = ["I32_MAX", "NO", "UNKNOWN", "YES", "fits", "fits_constant", "most_terms", "reach"]
