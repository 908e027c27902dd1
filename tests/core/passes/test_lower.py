"""Every row of the op table lowered to a kernel gives what its reference gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.text import parse_module
from smelt.core.ir.units import VIEWS
from smelt.core.ops import OPS
from smelt.core.ops.table import Case
from smelt.core.passes.lowering.lower import lower
from smelt.core.passes.manager import pick, run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.whole_graph.expand import expand
from tests.core.passes.build import CONTEXT, Build, assert_same, case_module, feeds

SIZES = (2, 3, 5)
CASES = [(name, k, c) for name, op in OPS.items() for k, c in enumerate(op.cases)]


@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=f"{n}-{k}") for n, k, c in CASES])
def test_case(name: str, case: Case) -> None:
    before = case_module(name, case)
    after = lower(expand(before, CONTEXT), CONTEXT)
    assert all(n.op in ("call_kernel", *VIEWS) for n in after.main.nodes)
    symbols = [s.name for s in before.symbols]
    sizes = list(itertools.islice(itertools.permutations(SIZES, len(symbols)), 2))
    if case.zero and symbols:
        sizes.append((0, *SIZES[1 : len(symbols)]))
    for values in sizes:
        inputs = feeds(before, dict(zip(symbols, values, strict=True)), low=case.low, high=case.high)
        assert_same(before, after, inputs, OPS[name].tolerance)


@pytest.mark.parametrize("name", ["d0", "d1", "d2", "d3"])
def test_a_model_may_call_its_sizes_as_kernels_do(name: str) -> None:
    """The rows of an [n, n, w] tensor tiled: n stays in the index, beside dims named for n*n and 2*n."""
    b = Build(f"u8[{name}, {name}, w]")
    (x,) = b.inputs
    n, w = sym(name), sym("w")
    rows = b("reshape", b("iota", shape=(n * n,), start=to_dim(0), step=to_dim(1), dtype=i64), shape=(n, n))
    rows = b("tile", rows, repeats=(to_dim(2), to_dim(2)))
    before = b.done(b("gather", b("reshape", x, shape=(n * n, w)), rows, axis=0))
    after = run_pipeline(before, PIPELINE, CONTEXT)
    for size in (1, 2, 3):
        assert_same(before, after, feeds(before, {name: size, "w": 3}))


def test_kernels_know_what_a_check_makes_sure_of() -> None:
    """A size that a run decides and a check holds to 32 is 32 in every kernel after it, and so is what it
    gives; sizes that a check holds equal are one dim."""
    before = parse_module("""
module "test" {
  sym N in 1..*
  sym a in 0..*
  sym b in 0..*
  weight @w: f32[32, 1] = [WEIGHTS]
  graph @main(
    %s: i64[2] from "s", %x: f32[N, 32] from "x", %z: f32[N, 16] from "z"
  ) -> (%y as "y", %t as "t") {
    bind(%s) {symbol = "a", index = 0, low = dim 0, high = dim 1000}
    bind(%s) {symbol = "b", index = 1, low = dim 0, high = dim 1000}
    check() {left = dim N, relation = "==", right = dim a, text = "rows"}
    check() {left = dim b, relation = "==", right = dim 32, text = "columns"}
    %r = reshape(%x) {shape = [a, b]} : f32[a, b]
    %e = exp(%r) : f32[a, b]
    %y = matmul(%e, @w) : f32[a, 1]
    %h = slice(%r) {starts = (dim 0, dim 0), ends = (dim a, dim b//2), steps = (1, 1)} : f32[a, b//2]
    %t = add(%h, %z) : f32[N, 16]
  }
}""".replace("WEIGHTS", ", ".join(["0.5"] * 32)))
    after = run_pipeline(before, pick(PIPELINE, ["fuse", "lower"]), CONTEXT)
    for kernel in after.kernels.values():
        assert all(d.is_const for b in (*kernel.inputs, *kernel.outputs) for d in b.shape[1:])
        assert len(kernel.dims) <= 1
    inputs = {**feeds(before, {"N": 3}), "s": np.asarray([3, 32])}
    assert_same(before, after, inputs)
