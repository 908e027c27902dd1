"""Kernels -> seeded inputs; the results of two executions -> their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.core.ir.kernel import Kernel

Array = np.ndarray[Any, Any]


def inputs(kernel: Kernel, env: dict[str, int], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    made = []
    for b in kernel.inputs:
        shape = [d.evaluate(env) for d in b.shape]
        if b.dtype.is_float:
            # sums of many small integers are exact in any order
            many = int(np.prod(shape)) > 10000
            values = rng.integers(-2, 3, shape) if many else rng.normal(size=shape)
            made.append(values.astype(b.dtype.numpy))
        else:
            made.append(rng.integers(0, 2 if b.dtype.name == "bool" else 9, shape).astype(b.dtype.numpy))
    return made


def compare(got: Sequence[Array], want: Sequence[Array]) -> None:
    for g, w in zip(got, want, strict=True):
        if g.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w)
            continue
        tolerance = 2e-3 if g.dtype == np.float16 else 1e-2 if g.dtype.itemsize == 2 else 3e-6
        a, b = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * 10)
