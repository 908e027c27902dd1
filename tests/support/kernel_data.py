"""Kernels -> seeded inputs, memories with margins; the results of two executions -> their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from smelt.core.ir.kernel import Kernel
from smelt.core.ir.workspace import workspace

Array = np.ndarray[Any, Any]
BORDER = b"\x5a"


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


def memories(kernel: Kernel, given: Sequence[Array], dims: Mapping[str, int]) -> list[Array]:
    """An array for each buffer, of the inputs that are given and of what is to be overwritten."""
    arrays = []
    for a, b in zip(given, kernel.inputs, strict=True):
        assert a.size == prod(d.evaluate(dims) for d in b.shape) and a.dtype == b.dtype.numpy, b.name
        arrays.append(np.asarray(a, order="C"))  # schedules drop axes of one: same memory, other shape
    for b in (*kernel.outputs, *workspace(kernel)):
        shape = [d.evaluate(dims) for d in b.shape]
        arrays.append(np.full(shape, 0 if b.dtype.name == "bool" else 77, b.dtype.numpy))
    return arrays


def bordered(a: Array, margin: int) -> bytearray:
    """The bytes of an array with a margin before and after them."""
    return bytearray(BORDER * margin + a.tobytes() + BORDER * margin)


def outputs(
    kernel: Kernel, after: Sequence[Array], arrays: Sequence[Array], margins: Sequence[int]
) -> list[Array]:
    """What a kernel has written. after: the bytes of `bordered` memories; nothing beside them may change."""
    found = []
    for i, (b, a, margin) in enumerate(zip(after, arrays, margins, strict=True)):
        beside = np.concatenate([b[:margin], b[margin + a.nbytes :]])
        assert (beside == BORDER[0]).all(), f"wrote beside buffer {i}"
        found.append(b[margin : margin + a.nbytes].copy().view(a.dtype).reshape(a.shape))
    first = len(kernel.inputs)
    return found[first : first + len(kernel.outputs)]


def compare(got: Sequence[Array], want: Sequence[Array]) -> None:
    for g, w in zip(got, want, strict=True):
        if g.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w)
            continue
        tolerance = 2e-3 if g.dtype == np.float16 else 1e-2 if g.dtype.itemsize == 2 else 3e-6
        a, b = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * 10)
