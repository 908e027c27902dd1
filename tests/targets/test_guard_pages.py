"""Compiled kernels touch nothing outside their buffers: each buffer begins, and ends, at a forbidden page."""

from __future__ import annotations

import faulthandler

import numpy as np
import pytest
from guarded import Guard
from isolated import isolated
from native_cpus import CPUS

from smelt.core.ir import interp_graph
from smelt.core.ir.graph import Module
from smelt.core.ops import OPS
from smelt.core.ops.table import Op
from smelt.core.passes.context import Context
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module
from smelt.core.schedule.weights import pack_weights
from smelt.targets.llvm.machines import Cpu
from tests.core.passes.build import case_module, feeds, run
from tests.core.passes.random_graphs import Random

PROCESSORS = (CPUS[0], *CPUS[1:4:2])
"""The widest vectors with masks, and narrow ones without."""

SIZES = {"N": 2, "M": 3, "K": 2, "H": 5, "W": 17, "S": 3}


def scheduled(module: Module, cpu: Cpu) -> Module:
    """As the driver does it."""
    lowered = run_pipeline(module, PIPELINE, Context(cpu.machine))
    return pack_weights(schedule_module(lowered, cpu.machine), lowered)


def guarded(module: Module, inputs: dict[str, np.ndarray], guard: Guard) -> None:
    """Run with every kernel between forbidden pages. A SIGSEGV is the finding."""
    interp_graph.run_kernel = guard  # type: ignore[assignment]
    run(module, inputs)


def survives(work: object) -> None:
    how, what = isolated(work, 120)  # type: ignore[arg-type]
    assert (how, what) == ("ok", None), (how, what)


def walk_op(op: Op, cpu: Cpu) -> None:
    """All cases of an op at a few sizes."""
    for n, case in enumerate(op.cases):
        module = case_module(op.name, case)
        after, guard = scheduled(module, cpu), Guard(cpu)
        for size in (1, 7, 17, *((0,) if case.zero else ())):
            env = {s.name: size for s in module.symbols}
            inputs = feeds(module, env, n, case.low, case.high)
            print(op.name, n, size, flush=True)  # what was running when a signal came
            guarded(after, inputs, guard)


@pytest.mark.parametrize("name", sorted(OPS))
def test_op(name: str) -> None:
    survives(lambda: walk_op(OPS[name], PROCESSORS[len(name) % len(PROCESSORS)]))


def walk_graph(seed: int, cpu: Cpu) -> None:
    module = Random(seed).module()
    after, guard = scheduled(module, cpu), Guard(cpu)
    for env in (SIZES, {s: n + 4 for s, n in SIZES.items()}):
        known = {s.name for s in module.symbols}
        guarded(after, feeds(module, {s: n for s, n in env.items() if s in known}, seed), guard)


@pytest.mark.parametrize("seed", range(0, 64, 4))
def test_random_graph(seed: int) -> None:
    survives(lambda: walk_graph(seed, PROCESSORS[seed % len(PROCESSORS)]))


def test_the_guard_is_awake() -> None:
    from smelt.core.ir.text import parse_kernel

    kernel = parse_kernel(
        "kernel @over(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {\n  serial i in n { y[i] = x[i + 1] }\n}\n"
    )

    def overrun() -> object:
        faulthandler.disable()  # a report of what is meant to happen is noise
        return Guard()(kernel, {"n": 1024}, [np.ones(1024, np.float32)])

    how, what = isolated(overrun, 60)
    assert (how, what) == ("crash", "SIGSEGV")
