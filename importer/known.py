"""Small tensors whose elements are known as sizes: the kinds of elements, conversion from and to arrays.

A `Known` is an object array of the tensor's shape. Its elements are Dims (integers), Ratios (floats that are
exact fractions of sizes, such as a Resize scale), bools, undecided Equalities, or None where unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from smelt.core.dim import ONE, Dim, to_dim
from smelt.core.dtype import Array, DType
from smelt.core.ir.graph import TensorType

MOST_KNOWN = 256
"""Most elements of a Known: a larger tensor is data, not a shape."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """num / den, with den > 0: the exact value of a float made of sizes."""

    num: Dim
    den: Dim = ONE

    @property
    def const(self) -> Fraction | None:
        """The value when no symbol is in it."""
        if self.num.is_const and self.den.is_const:
            return Fraction(self.num.const, self.den.const)
        return None


@dataclass(frozen=True, slots=True)
class Equality:
    """The bool a == b, where that is undecided."""

    a: Dim
    b: Dim


Element: TypeAlias = "Dim | Ratio | Equality | bool | None"
Known: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"


def full(shape: Sequence[int], elements: Sequence[Element]) -> Known:
    """An object array from its elements in row-major order."""
    flat = np.empty(len(elements), object)
    for i, e in enumerate(elements):
        flat[i] = e
    return flat.reshape(tuple(shape))


def from_array(array: Array) -> Known:
    """The elements of a constant."""
    kind = array.dtype.kind
    convert: Callable[[Any], Element] = (
        bool
        if kind == "b"
        else (lambda v: to_dim(int(v)))
        if kind in "iu"
        else lambda v: fraction(float(v), array.dtype)
    )
    return full(array.shape, [convert(v) for v in array.reshape(-1)])


def to_array(known: Known, dtype: DType) -> Array | None:
    """The constant, when every element is one."""
    values: list[int | float | bool] = []
    for e in known.reshape(-1):
        if isinstance(e, Dim) and e.is_const:
            values.append(e.const)
        elif isinstance(e, bool):
            values.append(e)
        elif isinstance(e, Ratio) and e.const is not None:
            values.append(float(e.const))
        else:
            return None
    return np.array(values, dtype=dtype.numpy).reshape(known.shape)


def complete(known: Known) -> bool:
    """Whether no element is unknown."""
    return all(isinstance(e, Dim | Ratio | bool) for e in known.reshape(-1))


def unknown(t: TensorType) -> Known | None:
    """A Known with no element known, when the shape is static and small."""
    if not all(d.is_const for d in t.shape):
        return None
    shape = [d.const for d in t.shape]
    return full(shape, [None] * math.prod(shape)) if math.prod(shape) <= MOST_KNOWN else None


@lru_cache(maxsize=1024)  # a formula's own constants come with each element
def fraction(value: float, dtype: np.dtype[Any]) -> Ratio | None:
    """The fraction that a float constant stands for: the short one that rounds to it (0.7 is 7/10), else its
    exact value. None for infinities, NaN, and fractions of more than 40 bits in the denominator or 60 in
    the numerator."""
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 2**53:
        return Ratio(to_dim(int(value)))
    exact = Fraction(value)
    short = exact.limit_denominator(4096)
    if dtype.type(float(short)) == dtype.type(value):
        exact = short
    if exact.denominator.bit_length() > 40 or abs(exact.numerator).bit_length() > 60:
        return None
    return Ratio(to_dim(exact.numerator), to_dim(exact.denominator))
