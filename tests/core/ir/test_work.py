"""The work of kernels against formulas that are known, and of all ops against what a run does."""

from __future__ import annotations

import numpy as np
import op_cases as cases
import pytest

from smelt.core.dim import parse_dim
from smelt.core.ir.analysis.work import work
from smelt.core.ir.text import parse_kernel


def found(text: str) -> tuple[str, str, str, str]:
    w = work(parse_kernel(text))
    return str(w.floating), str(w.integer), str(w.read), str(w.written)


def said(*formulas: str) -> tuple[str, ...]:
    return tuple(str(parse_dim(f)) for f in formulas)


def test_a_product_of_matrices() -> None:
    assert found("""
kernel @k(m: dim in 0..*, n: dim in 0..*, k: dim in 0..*, a: f32[m, k], b: f32[k, n]) -> (c: f32[m, n]) {
  serial i in m { serial j in n { c[i, j] = sum t in k { a[i, t] * b[t, j] } } }
}""") == said("2*m*n*k", "0", "4*m*k + 4*k*n", "4*m*n")


def test_a_softmax_does_what_a_row_needs_once_for_the_row() -> None:
    """For each element: the maximum, a difference, exp and a sum; then a difference, exp and a quotient."""
    assert found("""
kernel @k(n: dim in 0..*, x: f32[n, 48]) -> (y: f32[n, 48]) {
  serial i in n {
    serial j in 48 {
      y[i, j] = exp(x[i, j] - (max t in 48 { x[i, t] }))
        / (sum t in 48 { exp(x[i, t] - (max u in 48 { x[i, u] })) })
    }
  }
}""") == said("n*(48 + 3*48 + 48 + 3*48)", "0", "192*n", "192*n")


def test_functions_whose_cost_is_known_are_told_apart() -> None:
    """How often each is called on floats; sums of work and sizes of a launch go for them, too."""
    kernel = parse_kernel("""
kernel @k(n: dim in 0..*, x: f32[n], k: i32[n]) -> (y: f32[n], z: i32[n]) {
  serial i in n {
    y[i] = exp(x[i]) / tanh(exp(x[i]) + 1.0:f32)
    z[i] = div(k[i], 3:i32)
  }
}""")
    one = work(kernel)
    assert one is not None
    n = parse_dim("n")
    assert dict(one.functions) == {"exp": n, "div": n, "tanh": n}
    both = one + one.at(kernel, [parse_dim("3*m")])
    assert dict(both.functions) == dict.fromkeys(("exp", "div", "tanh"), parse_dim("3*m + n"))


def test_integers_apart_and_moves_not_at_all() -> None:
    assert found("""
kernel @k(n: dim in 0..*, x: i8[n], w: i8[n], f: f32[n]) -> (y: i32[n], z: f32[n]) {
  serial i in n {
    y[i] = cast:i32(x[i]) * cast:i32(w[i])
    z[i] = select(lt(f[i], 0.0:f32), 0.0:f32, f[i])
  }
}""") == said("0", "n", "6*n", "8*n")


def test_what_a_run_gathers_is_the_smaller_of_table_and_accesses() -> None:
    assert found("""
kernel @k(n: dim in 0..*, v: dim in 1..*, ids: i64[n], table: f32[v, 8]) -> (y: f32[n, 8]) {
  serial i in n { serial j in 8 { y[i, j] = let r = ids[i] in 0 .. v - 1 { table[r, j] } } }
}""") == said("0", "0", "8*n + 4*min(8*n, 8*v)", "32*n")


def test_a_part_of_a_buffer_is_no_more_than_the_part() -> None:
    assert found("""
kernel @k(x: f32[100]) -> (y: f32[10]) {
  serial i in 10 { y[i] = x[i + 50] }
}""") == said("0", "0", "40", "40")


def test_loops_of_growing_length_have_the_last_one_s() -> None:
    assert found("""
kernel @k(x: f32[16]) -> (y: f32[16]) {
  serial i in 16 { y[i] = sum t in i + 1 { x[t] } }
}""") == said("256", "0", "64", "64")


def test_sums_in_memory_count() -> None:
    """An accumulating store adds, and reads what is there."""
    assert found("""
kernel @k(n: dim in 1..*, x: f32[n]) -> (y: f32[]) {
  y[] = 0.0:f32
  serial i in n { y[] fma= x[i] * x[i] }
}""")[0] == str(parse_dim("2*n"))


ROWS = [r for r in cases.rows() if cases.naive_kernel(r) is not None]


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_every_op(row: cases.Row) -> None:
    """No kernel reads more than its inputs hold or writes more than its outputs, and formulas have values."""
    kernel = cases.naive_kernel(row)
    assert kernel is not None
    sizes = {p.name: max(p.low, 3 * p.divisor) for p in kernel.dims}
    w = work(kernel)
    inside = sum(int(np.prod([d.evaluate(sizes) for d in b.shape])) * b.dtype.bytes for b in kernel.inputs)
    scratch = [int(np.prod([d.evaluate(sizes) for d in b.shape])) * b.dtype.bytes for b in kernel.scratch]
    out = sum(int(np.prod([d.evaluate(sizes) for d in b.shape])) * b.dtype.bytes for b in kernel.outputs)
    assert 0 <= w.read.evaluate(sizes) <= inside + out + sum(scratch)
    assert 0 <= w.written.evaluate(sizes) <= out + sum(scratch)
    assert w.floating.evaluate(sizes) >= 0 and w.integer.evaluate(sizes) >= 0
