"""Minimal filtering: the matrices in exact numbers, and what is no tile."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.core.ops.rows.winograd import (
    INTERPOLATION_POINTS,
    Matrix,
    excess,
    transformed_weight,
    transforms,
    whole_transforms,
)

PAIRS = [(m, r) for m in range(1, 6) for r in range(1, 6) if m + r - 2 <= len(INTERPOLATION_POINTS)]
numbers = st.fractions(-9, 9, max_denominator=7)


def _times(a: Matrix, x: list[Fraction]) -> list[Fraction]:
    return [sum((p * q for p, q in zip(row, x, strict=True)), Fraction(0)) for row in a]


@pytest.mark.parametrize(("tile", "taps"), PAIRS)
@settings(max_examples=20)
@given(data=st.data())
def test_products_of_transforms_are_the_convolution(tile: int, taps: int, data: st.DataObject) -> None:
    """Without roundings: A^T (G w * B^T x) is what the taps make of x."""
    n = tile + taps - 1
    x = data.draw(st.lists(numbers, min_size=n, max_size=n))
    w = data.draw(st.lists(numbers, min_size=taps, max_size=taps))
    f = transforms(tile, taps)
    products = [a * b for a, b in zip(_times(f.weight, w), _times(f.data, x), strict=True)]
    assert _times(f.back, products) == [sum(w[k] * x[i + k] for k in range(taps)) for i in range(tile)]


@pytest.mark.parametrize(("tile", "taps"), PAIRS)
def test_tiles_are_transformed_by_integers(tile: int, taps: int) -> None:
    """So that only products and sums of inputs are rounded; no row is nothing."""
    data = transforms(tile, taps).data
    assert all(c.denominator == 1 for row in data for c in row) and all(any(row) for row in data)


@pytest.mark.parametrize(("tile", "taps"), PAIRS)
@settings(max_examples=20)
@given(data=st.data())
def test_integers_give_a_multiple(tile: int, taps: int, data: st.DataObject) -> None:
    """Of matrices of integers alone, whose rows have no factor in common."""
    n = tile + taps - 1
    bytes_ = st.integers(-255, 255).map(Fraction)
    x = data.draw(st.lists(bytes_, min_size=n, max_size=n))
    w = data.draw(st.lists(bytes_, min_size=taps, max_size=taps))
    f, factor = whole_transforms(tile, taps)
    assert all(c.denominator == 1 for m in (f.back, f.weight, f.data) for row in m for c in row)
    assert all(gcd(*(int(c) for c in row)) == 1 for row in f.weight)
    products = [a * b for a, b in zip(_times(f.weight, w), _times(f.data, x), strict=True)]
    wanted = [factor * sum(w[k] * x[i + k] for k in range(taps)) for i in range(tile)]
    assert _times(f.back, products) == wanted


@pytest.mark.parametrize(("tile", "kernel"), [((4, 4), (3, 3)), ((2,), (3,)), ((2, 2, 2), (3, 3, 3))])
def test_the_excess_goes_modulo_2_to_the_32(tile: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    factor = prod(whole_transforms(m, r)[1] for m, r in zip(tile, kernel, strict=True))
    inverse, bits = excess(tile, kernel)
    for y in (0, 1, -1, 12345, -(1 << 31 - bits), (1 << 31 - bits) - 1):
        found = y * factor * inverse & 0xFFFFFFFF
        assert (found - (found >> 31 << 32)) >> bits == y


def test_points_end() -> None:
    with pytest.raises(KeyError, match="tiles of 5 with 3 taps want 6 points"):
        transforms(5, 3)


def test_a_weight_is_not_rounded_on_the_way() -> None:
    w = np.random.default_rng(0).standard_normal((3, 1, 2, 5)).astype(np.float32)
    found = transformed_weight(w, (4, 1))
    g = np.array(transforms(4, 3).weight, np.float64)
    wanted = np.einsum("nr,rcm->ncm", g, w[:, 0].astype(np.float64))
    assert found.shape == (6, 2, 5) and found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
