"""Every row of the op table with all of its sizes fixed to 0, and to 1, goes through the whole pipeline."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import op_cases as cases
import pytest

from smelt.core.ops import OPS
from smelt.core.ops.table import Case
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module
from tests.core.passes.build import CONTEXT, case_module, feeds, run

# the interpreter has no first of nothing, although nobody would read it
SKIPPED = {("hardmax", 0)}


def fixed(row: cases.Row, size: int) -> Case:
    """The case with a number in the place of every symbol."""
    env = dict.fromkeys(row.symbols, size)

    def text(t: str) -> str:
        shape = ", ".join(str(d.evaluate(env)) for d in cases.parse_type(t).shape)
        return re.sub(r"\[.*\]", f"[{shape}]", t)

    inputs = tuple(text(x) if isinstance(x, str) and x != "-" else x for x in row.case.inputs)
    return replace(row.case, inputs=inputs, attrs=cases.evaluated(row.case.attrs, env))


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", sorted(OPS))
def test_op(name: str, size: int) -> None:
    if (name, size) in SKIPPED:
        pytest.skip("the interpreter has no first of nothing")
    for row in (r for r in cases.rows() if r.op.name == name and r.symbols):
        if size == 0 and not row.case.zero:
            continue
        module = case_module(name, fixed(row, size))
        inputs = feeds(module, {}, 0, row.case.low, row.case.high)
        lowered = run_pipeline(module, PIPELINE, CONTEXT)
        after = schedule_module(lowered, CONTEXT.machine)
        for got, want in zip(run(after, inputs), run(module, inputs), strict=True):
            cases.close(np.asarray(got), np.asarray(want), row.op.tolerance)
