"""Every row of the op table, compiled from a naive and from a vector tree, agrees with its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import op_cases as cases
import pytest

from smelt.core.dim import sym
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel, Loop, Stmt, Tiles
from smelt.core.ir.rewrite import substitute_body
from smelt.targets.llvm.jit import Jitted, jit

ROWS = [r for r in cases.rows() if cases.naive_kernel(r) is not None]


def vectorised(kernel: Kernel) -> Kernel:
    """The outermost loop over groups, the innermost in vectors with smaller tiles for the rest."""
    return kernel.with_(body=tuple(_outer(s) for s in kernel.body))


def _outer(s: Stmt) -> Stmt:
    if not isinstance(s, Loop):
        return s
    if isinstance(s.body[0], Loop):
        return Loop("group", s.var, s.extent, tuple(_inner(c) for c in s.body), s.buffers)
    return _inner(s)


def _inner(s: Stmt) -> Stmt:
    if not isinstance(s, Loop):
        return s
    if any(isinstance(c, Loop) for c in s.body):
        return Loop("serial", s.var, s.extent, tuple(_inner(c) for c in s.body), s.buffers)
    start, rows, lane = f"{s.var}_o", f"{s.var}_n", f"{s.var}_i"
    body = substitute_body(s.body, {s.var: sym(start) + sym(lane)})
    inner = Loop("vector", lane, sym(rows), body)
    return Tiles("serial", start, rows, s.extent, (20, 4, 1), "greedy", (inner,), s.buffers)


def check(row: cases.Row, kernel: Kernel, compiled: Jitted) -> None:
    for env in cases.environments(row):
        inputs = cases.arrays(row, env)
        with np.errstate(all="ignore"):
            want = cases.reference(row, env, inputs)
        got: list[Any] = compiled([a for a in inputs if a is not None], env)
        for g, w in zip(got, want, strict=True):
            cases.close(g, w, row.op.tolerance)


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_naive(row: cases.Row) -> None:
    kernel = cases.naive_kernel(row)
    assert kernel is not None
    check(row, kernel, jit(kernel))


VECTOR_ROWS = [r for r in ROWS if r.op.nest is None]


@pytest.mark.parametrize("row", VECTOR_ROWS, ids=[r.name for r in VECTOR_ROWS])
def test_vector(row: cases.Row) -> None:
    kernel = cases.naive_kernel(row)
    assert kernel is not None
    tree = vectorised(kernel)
    if row.name == f"{row.op.name}-0":  # the interpreter takes such a tree of each op
        env = next(iter(cases.environments(row)))
        inputs = [a for a in cases.arrays(row, env) if a is not None]
        with np.errstate(all="ignore"):
            assert len(run_kernel(tree, env, inputs)) == len(kernel.outputs)
    check(row, tree, jit(tree))
