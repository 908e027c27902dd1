"""Rows of the op table in; on a device their kernels, naive or scheduled, give what their references say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import op_cases as cases

from smelt.core.ir.kernel import Kernel

Array = np.ndarray[Any, Any]
Built = TypeVar("Built", bound=Callable[..., list[Array]])

ROWS = [r for r in cases.rows() if cases.naive_kernel(r) is not None]
BY_OP = {r.op.name: r for r in reversed(ROWS)}
"""The first row of each op, whose kernel is scheduled."""
OTHER = [r for r in ROWS if BY_OP[r.op.name] is not r]

# Data movement and windows, where guards, negative indices and divisions are: every row, naive.
MOVEMENT = (
    "pad", "slice", "gather", "gather_nd", "gather_elements", "scatter_nd", "resize", "conv_transpose",
    "max_pool_indices", "topk", "non_zero",
)  # fmt: skip
NAIVE = {r.name: r for r in ROWS if r.op.name in MOVEMENT}


def naive(row: cases.Row) -> Kernel:
    kernel = cases.naive_kernel(row)
    assert kernel is not None
    return kernel


def check(build: Callable[[Kernel], Built], row: cases.Row, kernel: Kernel) -> Built:
    """What was built of the kernel, which is one of the row's."""
    built = build(kernel)
    for env in cases.environments(row):
        inputs = cases.arrays(row, env)
        with np.errstate(all="ignore"):
            want = cases.reference(row, env, inputs)
        got = built([a for a in inputs if a is not None], env)
        for g, w in zip(got, want, strict=True):
            cases.close(g.reshape(w.shape), w, row.op.tolerance)
    return built
