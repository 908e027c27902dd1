"""Lanes that run in any order between barriers mean what statements mean one after the other, and a
barrier that is left out is seen."""

# ruff: noqa: E501  (a table)

from __future__ import annotations

import numpy as np
import pytest
from ir_samples import gpu_gemm
from kernel_data import inputs

from smelt.core.diag import SmeltError
from smelt.core.ir.barriers import barriers_before
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.interp_lanes import run_lanes
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel

HEAD = "kernel @k(n: dim in 0..*, x: f32[n, 16]) -> (y: f32[n, 16])"
# name -> (body, whether a barrier stands in it)
TREES = {
    "exchange": ("shared a: f32[16] lane j in 16 { a[j] = x[i, j] } lane j in 16 { y[i, j] = a[15 - j] }", True),
    "registers-of-others": (
        "register a: f32[16] lane j in 16 { a[j] = x[i, j] } lane j in 16 { y[i, j] = a[15 - j] }", True),
    "own-registers": (
        "register a: f32[16] lane j in 16 { a[j] = x[i, j] } lane j in 16 { y[i, j] = a[j] }", False),
    "turns": ("shared a: f32[16] lane j in 16 { a[j] = x[i, j] } lane j in 16 { y[i, j] = a[(j + 1) % 16] }", True),
    "a-single-statement": ("shared a: f32[1] a[0] = x[i, 3] lane j in 16 { y[i, j] = a[0] }", True),
    "tree": (
        "shared a: f32[16] lane j in 16 { a[j] = x[i, j] } lane j in 8 { a[j] add= a[j + 8] }"
        " lane j in 4 { a[j] add= a[j + 4] } lane j in 16 { y[i, j] = a[j % 4] }", True),
    "passes": (
        "shared a: f32[16] lane j in 16 { a[j] = x[i, j] } serial k in 3 { shared b: f32[16]"
        " lane j in 16 { b[j] = a[15 - j] } lane j in 16 { a[j] = b[(j + 3) % 16] } }"
        " lane j in 16 { y[i, j] = a[j] }", True),
    "blocks": (
        "block if (0 <= i < n - 1) { shared a: f32[16] lane j in 16 { a[j] = x[i, j] }"
        " lane j in 16 { y[i, j] = a[15 - j] } } block if (n - 1 <= i < n) { lane j in 16 { y[i, j] = x[i, j] } }",
        True),
    "tiles": (
        "shared a: f32[16] tiles lane (j, r) in 16: balanced(3 .. 1) { unroll c in r { a[j + c] = x[i, j + c] } }"
        " lane j in 16 { y[i, j] = a[15 - j] }", True),
}  # fmt: skip


def kernel(name: str) -> Kernel:
    return parse_kernel(f"{HEAD} {{ group i in n {{ {TREES[name][0]} }} }}")


def same(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> bool:  # type: ignore[type-arg]
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("most", [16, 5])
@pytest.mark.parametrize("name", TREES)
def test_any_order_of_lanes_means_the_same(name: str, most: int) -> None:
    k = kernel(name)
    for n in (0, 1, 3):
        given = inputs(k, {"n": n})
        want = run_kernel(k, {"n": n}, given)
        assert all(same(run_lanes(k, {"n": n}, given, most, seed), want) for seed in range(4))


@pytest.mark.parametrize("name", TREES)
def test_a_missing_barrier_shows(name: str) -> None:
    k = kernel(name)
    given = inputs(k, {"n": 2})
    want = run_kernel(k, {"n": 2}, given)
    without = [run_lanes(k, {"n": 2}, given, 16, seed, lambda *_: frozenset()) for seed in range(4)]
    assert any(not same(got, want) for got in without) is TREES[name][1]


def test_a_tiled_product() -> None:
    k = gpu_gemm()
    for m in (1, 5, 16):
        given = inputs(k, {"m": m})
        want = run_kernel(k, {"m": m}, given)
        for seed in range(3):
            (got,) = run_lanes(k, {"m": m}, given, 32, seed)
            np.testing.assert_allclose(got, want[0], rtol=1e-6)


def test_lanes_that_come_to_different_barriers_are_an_error() -> None:
    """A placement that is not the same for all lanes, as of a condition that lanes see differently."""
    k, calls = kernel("exchange"), [0]

    def uneven(*about: object) -> frozenset[int]:
        calls[0] += 1
        return barriers_before(*about) if calls[0] % 2 else frozenset()  # type: ignore[arg-type]

    with pytest.raises(SmeltError, match="different barriers"):
        run_lanes(k, {"n": 1}, inputs(k, {"n": 1}), 16, 0, uneven)
