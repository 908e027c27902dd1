"""Attention over a sequence whose length a run decides needs memory that is linear in it, wherever its heads,
masks and scales stand."""

from __future__ import annotations

import ast

import pytest
from rule_forms import build

from smelt.core.ir.verify import module_facts
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.plan.build import make_plan
from smelt.core.schedule import schedule_module
from tests.core.passes.build import CONTEXT

FORMS = (
    "q: f32[8, N, 16]; k: f32[8, 16, N]; v: f32[8, N, 4]; matmul(softmax(matmul(q, k), axis=2), v)",
    "q: f32[8, N, 16]; k: f32[8, N, 16]; v: f32[8, N, 4]; m: f32[N]; "
    "matmul(softmax(add(mul(matmul(q, transpose(k, perm=(0, 2, 1))), 0.25), m), axis=2), v)",
    "q: f32[2, 6, N, 4]; k: f32[2, 2, 1, N, 4]; v: f32[2, 2, 1, N, 4]; "
    "p = softmax(matmul(q, transpose(reshape(broadcast_to(k, shape=(2, 2, 3, N, 4)), shape=(2, 6, N, 4)), "
    "perm=(0, 1, 3, 2))), axis=3); "
    "matmul(where(isnan(p), 0.0, p), reshape(broadcast_to(v, shape=(2, 2, 3, N, 4)), shape=(2, 6, N, 4)))",
)


@pytest.mark.parametrize("form", FORMS)
def test_memory_is_linear_in_the_sequence(form: str) -> None:
    module = schedule_module(run_pipeline(build(ast.parse(form)), PIPELINE, CONTEXT), CONTEXT.machine)
    (peak,) = make_plan(module, module_facts(module)).peak
    at = [peak.evaluate({"N": n}) for n in (1 << 16, 1 << 17, 1 << 18)]
    assert 0 < at[0] < (1 << 16) ** 2  # far below a byte for each score
    assert at[1] <= 2.01 * at[0]
    assert at[2] <= 2.01 * at[1]
