"""Every row of the op table: its formula, run by the kernel interpreter, agrees with its NumPy reference."""

from __future__ import annotations

import numpy as np
import op_cases as cases
import pytest

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Call, Const, Reduce, Store, walk, walk_expr
from smelt.core.machine import FREE
from smelt.core.ops import OPS
from smelt.core.passes.equivalence import as_function
from tests.core.passes.build import Build

ROWS = cases.rows()


def test_every_op_has_cases() -> None:
    assert [op.name for op in OPS.values() if not op.cases] == []


def test_every_op_has_exactly_one_meaning() -> None:
    for op in OPS.values():
        assert sum(x is not None for x in (op.compute, op.nest, op.expand)) == 1, op.name


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_formula_agrees_with_reference(row: cases.Row) -> None:
    kernel = cases.naive_kernel(row)
    for env in cases.environments(row):
        inputs = cases.arrays(row, env)
        want = cases.reference(row, env, inputs)
        types = cases.concrete(cases.infer(row), env)
        for w, t in zip(want, types, strict=True):
            assert w.shape == tuple(d.const for d in t.shape), "type rule and reference disagree"
        if kernel is None:
            continue
        with np.errstate(all="ignore"):
            got = run_kernel(kernel, env, [a for a in inputs if a is not None])
        for g, w in zip(got, want, strict=True):
            cases.close(g, w, row.op.tolerance)


def test_ops_that_only_move_bring_no_minus_zero() -> None:
    """What rules believe that ask a trait whether a value can be -0 (core/passes/cleanup/arithmetic.py)."""
    plain = 0
    for row in ROWS:
        rule, kernel = row.op.compute, cases.naive_kernel(row)
        if kernel is None or not callable(rule):
            continue
        stores = [s.value for s in walk(kernel.body) if isinstance(s, Store)]
        found = {x for e in stores for x in walk_expr(e)}
        if any(isinstance(x, Reduce) or (isinstance(x, Call) and x.fn not in FREE) for x in found):
            continue
        plain += 1
        values = [x.value for x in found if isinstance(x, Const)]
        assert not any(v == 0 and np.signbit(v) for v in values), row.name
    assert plain > 20


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("size", [1e30, 1e-30, 3e38])
def test_norms_fold_as_they_run(op: str, size: float) -> None:
    """Squares of 1e30 overflow f32: a reference in f64 would fold a constant to what no run computes."""
    x = np.array([[1, -2, 3, 0]], np.float32) * np.float32(size / 3)
    b = Build("f32[1, 4]")
    attrs = {"axis": 1, "epsilon": 1e-5}
    module = b.done(b(op, b.inputs[0], **attrs))
    with np.errstate(all="ignore"):
        (folded,) = OPS[op].ref([x], attrs, [b.g.type_of(module.main.outputs[0])])
        (ran,) = as_function(module)({"x0": x})
    np.testing.assert_allclose(ran, folded, rtol=1e-5)
