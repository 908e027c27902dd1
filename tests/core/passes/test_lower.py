"""Every row of the op table lowered to a kernel gives what its reference gives."""

from __future__ import annotations

import itertools

import pytest

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import i64
from smelt.core.ops import OPS
from smelt.core.ops.table import Case
from smelt.core.passes.expand import expand
from smelt.core.passes.lower import lower
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from tests.core.passes.build import CONTEXT, Build, assert_same, case_module, feeds

SIZES = (2, 3, 5)
CASES = [(name, k, c) for name, op in OPS.items() for k, c in enumerate(op.cases)]


@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=f"{n}-{k}") for n, k, c in CASES])
def test_case(name: str, case: Case) -> None:
    before = case_module(name, case)
    after = lower(expand(before, CONTEXT), CONTEXT)
    assert all(n.op in ("call_kernel", "reshape", "reinterpret") for n in after.main.nodes)
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
