"""Rows of the op table, scheduled for work-items or left naive, agree with their references on a device."""

from __future__ import annotations

import numpy as np
import op_cases as cases
import pytest
from opencl_run import OnDevice

from smelt.core.ir.kernel import Kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE

ROWS = [r for r in cases.rows() if cases.naive_kernel(r) is not None]
BY_OP = {r.op.name: r for r in reversed(ROWS)}
"""The first row of each op, whose kernel is scheduled for work-items."""

# Data movement and windows, where guards, negative indices and divisions are: every row, naive.
MOVEMENT = (
    "pad", "slice", "gather", "gather_nd", "gather_elements", "scatter_nd", "resize", "conv_transpose",
    "max_pool_indices", "topk", "non_zero",
)  # fmt: skip
NAIVE = [r for r in ROWS if r.op.name in MOVEMENT]


def naive(row: cases.Row) -> Kernel:
    kernel = cases.naive_kernel(row)
    assert kernel is not None
    return kernel


def check(row: cases.Row, kernel: Kernel) -> None:
    built = OnDevice(kernel)
    for env in cases.environments(row):
        inputs = cases.arrays(row, env)
        with np.errstate(all="ignore"):
            want = cases.reference(row, env, inputs)
        got = built([a for a in inputs if a is not None], env)
        for g, w in zip(got, want, strict=True):
            cases.close(g.reshape(w.shape), w, row.op.tolerance)


@pytest.mark.parametrize("name", sorted(BY_OP))
def test_scheduled(name: str) -> None:
    check(BY_OP[name], schedule_kernel(naive(BY_OP[name]), MACHINE))


@pytest.mark.parametrize("row", NAIVE, ids=[r.name for r in NAIVE])
def test_naive(row: cases.Row) -> None:
    check(row, naive(row))


def test_every_row_is_emitted() -> None:
    kernels = [naive(r).with_(name=r.name) for r in ROWS]
    source, parts = emit_program(kernels)
    assert all(p.lanes == 1 for p in parts.values())
    assert source.count("__kernel ") == len(parts)
    source, parts = emit_program([schedule_kernel(k, MACHINE) for k in kernels])
    assert sum(p.lanes > 1 for p in parts.values()) > len(parts) // 2
