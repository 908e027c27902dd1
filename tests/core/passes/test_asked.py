"""Passes before the schedule learn of a machine what their rows ask alone: equal answers, equal modules."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from dataclasses import fields, replace
from typing import Any, ClassVar

import pytest
from rule_forms import build

from smelt.core.ir.graph import Module
from smelt.core.ir.text import print_module
from smelt.core.machine import Machine
from smelt.core.passes.context import Context, Options, costs, nothing, places
from smelt.core.passes.manager import Pass, PassFn, run_pipeline, run_together
from smelt.core.passes.pipeline import PIPELINE
from smelt.targets.instructions import arm, nvidia, x86

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
    module = build(ast.parse(form.replace("[]", "[()]")))
    return print_module(run_pipeline(module, PIPELINE, context(machine)))


def context(machine: Machine) -> Context:
    return Context(machine, Options(), units={"cpu": machine}, unit="cpu")


def asked(machine: Machine) -> tuple[Hashable, ...]:
    """All that passes ask, but for the figures that `place` reads where a rule leaves kernels to costs."""
    return tuple(p.asks(context(machine)) for p in PIPELINE if p.asks is not places)


class Watched(Machine):
    """Notes which fields are read."""

    __slots__ = ()
    seen: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in {f.name for f in fields(Machine)}:
            Watched.seen.add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("machine", [
    Watched("watched", 256, 16, instructions=x86.rows(8, frozenset({"avx2"}))),
    Watched("in step", 0, 64, levels=("group", "lane"), max_lanes=64, shared_bytes=1 << 14, subgroup=32,
            instructions=nvidia.ROWS),
], ids=["vectors", "lanes"])  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
def test_no_pass_reads_a_field_that_it_does_not_ask(form: str, machine: Machine) -> None:
    module = build(ast.parse(form.replace("[]", "[()]")))
    for p in PIPELINE:
        Watched.seen.clear()
        p.asks(context(machine))
        asked = set(Watched.seen)
        Watched.seen.clear()
        module = p.run(module, context(machine))
        assert Watched.seen <= asked, p.name


def test_the_fields_that_are_read_are_what_is_asked() -> None:
    """A change of any of them changes the answer, and of any other does not."""
    machine = Machine("one", 256, 16)
    read = {
        "vector_bits": 0, "max_lanes": 8, "subgroup": 4, "cores": 64, "cache_bytes": (1, 1),
        "costs": {"exp": 1}, "transforms": (1, 2), "instructions": arm.rows(DOT),
    }  # fmt: skip
    for name, value in read.items():
        assert asked(replace(machine, **{name: value})) != asked(machine), name
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


@pytest.mark.parametrize("form", FORMS)
def test_machines_together_get_what_each_gets_alone(form: str) -> None:
    """Also those that part at `fuse`, and meet again where it made the same of both, and those that part for
    good at the first pass that asks."""
    first = Machine("first", 256, 16, instructions=x86.rows(8, frozenset({"avx2"})))
    near, apart = replace(first, cache_bytes=(32768, 1 << 20)), Machine("apart", 0, 32)
    tiny = replace(first, cache_bytes=(64, 64), instructions=arm.rows(DOT))
    machines = (first, near, apart, tiny)
    module = build(ast.parse(form.replace("[]", "[()]")))
    found = run_together(module, PIPELINE, [context(m) for m in machines])
    assert [print_module(m) for m in found] == [lowered(form, m) for m in machines]
    assert found[0] is found[1]


def test_passes_run_once_for_contexts_that_learn_the_same() -> None:
    """And once again for all where two have come to the same."""
    runs: list[str] = []

    def counted(name: str) -> PassFn:
        def run(module: Module, ctx: Context) -> Module:
            runs.append(f"{name} {ctx.machine.name}")
            return module.with_(name="two" if name == "parts" and ctx.machine.cores == 64 else module.name)

        return run

    passes = tuple(
        Pass(name, counted(name), asks=costs if name == "parts" else nothing) for name in ("a", "parts", "b")
    )
    cores = {"one": 4, "many": 64, "eight": 8}
    machines = [Machine(name, 256, 16, cores=n) for name, n in cores.items()]
    found = run_together(build(ast.parse(FORMS[3])), passes, [context(m) for m in machines])
    assert runs == ["a one", "parts one", "parts many", "parts eight", "b many", "b one"]
    assert found[0] is found[2]
    assert found[1].name == "two"


def test_hooks_and_dumps_are_called_for_each_context() -> None:
    called: list[tuple[str, str]] = []

    def noting(ctx: str) -> Context:
        return context(Machine(ctx, 256, 16)).with_(
            on_pass=(lambda before, name, after: called.append((ctx, name)),),
            dump=lambda module, name: called.append((ctx, f"dump {name}")),
        )

    passes = (Pass("only", lambda m, ctx: m),)
    run_together(build(ast.parse(FORMS[3])), passes, [noting("one"), noting("two")])
    assert called == [("one", "only"), ("one", "dump only"), ("two", "only"), ("two", "dump only")]


def test_instructions_for_other_bytes_are_another_answer() -> None:
    signed = Machine("signed", 128, 32, instructions=arm.rows(DOT))
    both = Machine("both", 128, 32, instructions=x86.rows(4, frozenset({"sse4.1"})))
    assert asked(signed) != asked(both)
    assert lowered(FORMS[4], signed) != lowered(FORMS[4], both)
