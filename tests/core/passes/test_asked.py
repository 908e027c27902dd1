"""Passes before the schedule learn of a machine what `asked` says alone: equal answers, equal modules."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from typing import Any

import pytest
from rule_forms import build

from smelt.core.ir.text import print_module
from smelt.core.machine import Machine
from smelt.core.passes.context import Context, Options, asked
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.targets.instructions import arm, x86

READ = {"vector_bits", "max_lanes", "cores", "cache_bytes", "costs", "instructions"}
WAYS = {"has_lanes", "row_block", "cost", "heavy"}
"""Methods that read those fields."""
FORMS = (
    "x: f32[N, 8, M, K]; v: f32[N, 8, K, 64]; matmul(softmax(x, axis=3), v)",
    "x: f32[N, M, 768]; s: f32[768] = draw; b: f32[768] = draw; layer_norm(x, s, b, axis=2, epsilon=1e-5)",
    "x: f32[N, 3, H, K]; w: f32[32, 3, 3, 3] = draw; relu(conv(x, w, pads_begin=(1, 1), pads_end=(1, 1)))",
    "x: f32[7, 256]; reduce_mean(gelu(x, approximate=\"none\"), axes=(1,), keepdims=False)",
    "x: u8[M, 256]; z: u8[] = 100; w: i8[256, 64] = draw; t: u8[] = 3; quantize(matmul(dequantize(x, 0.05,"
    " z, axis=-1), dequantize(w, 0.02, axis=-1)), 0.1, t, axis=-1, to=u8)",
    "x: u8[N, 3, H, K]; z: u8[] = 100; w: i8[48, 3, 3, 3] = draw; t: u8[] = 3; quantize(conv(dequantize(x,"
    " 0.05, z, axis=-1), dequantize(w, 0.02, axis=-1)), 0.1, t, axis=-1, to=u8)",
)
DOT = frozenset({"dotprod"})


def lowered(form: str, machine: Machine) -> str:
    context = Context(machine, Options(), units={"cpu": machine}, unit="cpu")
    return print_module(run_pipeline(build(ast.parse(form.replace("[]", "[()]"))), PIPELINE, context))


@pytest.mark.parametrize("form", FORMS)
def test_no_pass_reads_another_field(form: str) -> None:
    seen: set[str] = set()

    class Watched(Machine):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("__"):
                seen.add(name)
            return super().__getattribute__(name)

    machine = Watched("watched", 256, 16, instructions=x86.rows(8, frozenset({"avx2"})))
    assert lowered(form, machine)
    assert seen <= READ | WAYS, "`asked` does not say this"


def test_the_fields_that_are_read_are_what_is_asked() -> None:
    """A change of any of them changes the answer, and of any other does not."""
    machine = Machine("one", 256, 16)
    other = {
        "vector_bits": 0, "max_lanes": 8, "cores": 64, "cache_bytes": (1, 1), "costs": {"exp": 1},
        "instructions": arm.rows(DOT),
    }  # fmt: skip
    for f in fields(Machine):
        if f.name in READ:
            assert asked(replace(machine, **{f.name: other[f.name]})) != asked(machine), f.name
    others = {
        "name": "two", "vector_bits": 128, "vector_registers": 32, "fma": False, "masked": True,
        "panel_bits": 512, "instructions": x86.rows(8, frozenset({"fma"})),
    }  # fmt: skip
    assert asked(replace(machine, **others)) == asked(machine)


@pytest.mark.parametrize("form", FORMS)
def test_equal_answers_are_equal_modules(form: str) -> None:
    wide = Machine("wide", 512, 32, masked=True, instructions=x86.rows(16, frozenset({"fma", "avx2"})))
    narrow = Machine("narrow", 128, 16, fma=False, instructions=x86.rows(4, frozenset({"sse4.1"})))
    assert asked(wide) == asked(narrow)
    assert lowered(form, wide) == lowered(form, narrow)


def test_instructions_for_other_bytes_are_another_answer() -> None:
    signed = Machine("signed", 128, 32, instructions=arm.rows(DOT))
    both = Machine("both", 128, 32, instructions=x86.rows(4, frozenset({"sse4.1"})))
    assert asked(signed) != asked(both)
    assert lowered(FORMS[4], signed) != lowered(FORMS[4], both)
