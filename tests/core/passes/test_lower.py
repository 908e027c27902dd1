"""Every row of the op table lowered to a kernel gives what its reference gives."""

from __future__ import annotations

import itertools

import pytest

from smelt.core.ops import OPS
from smelt.core.ops.table import Case
from smelt.core.passes.expand import expand
from smelt.core.passes.lower import lower
from tests.core.passes.build import CONTEXT, assert_same, case_module, feeds

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
