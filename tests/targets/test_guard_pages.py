"""Compiled kernels touch nothing outside their buffers: each buffer begins, and ends, at a forbidden page."""

from __future__ import annotations

import faulthandler
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from guarded import Guard
from isolated import isolated
from native_cpus import CPUS

from smelt.core.dtype import from_numpy
from smelt.core.ir import interp_graph
from smelt.core.ir.graph import Module
from smelt.core.ops import OPS
from smelt.core.ops.rows import sample
from smelt.core.ops.table import Case, Op
from smelt.core.passes.context import Context
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module
from smelt.targets.llvm.machines import Cpu
from tests.core.passes.build import case_module, feeds, run
from tests.core.passes.random_graphs import Random

PROCESSORS = (CPUS[0], *CPUS[1:4:2])
"""The widest vectors with masks, and narrow ones without."""

SIZES = {"N": 2, "M": 3, "K": 2, "H": 5, "W": 17, "S": 3}


def scheduled(module: Module, cpu: Cpu) -> Module:
    """As the driver does it."""
    lowered = run_pipeline(module, PIPELINE, Context(cpu.machine))
    return schedule_module(lowered, cpu.machine)


def guarded(module: Module, inputs: dict[str, np.ndarray], guard: Guard) -> None:
    """Run with every kernel between forbidden pages. A SIGSEGV is the finding."""
    interp_graph.run_kernel = guard  # type: ignore[assignment]
    run(module, inputs)


def survives(work: object) -> None:
    how, what = isolated(work, 120)  # type: ignore[arg-type]
    assert (how, what) == ("ok", None), (how, what)


EXTREMES = (
    -(2**63), 2**63 - 1, -(2**62) - 1, 2**62, 2**32, -(2**31), 2**31 - 1, 2**31, 65_536, 100, -100, -1, 0,
)  # fmt: skip
"""Numbers that would lead far outside as indices, and the next ones after wrapping to fewer bits."""
FAR = (np.nan, np.inf, -np.inf, 1e30, -1e30, 1e10, -1e10, -0.5, 1e-30)
"""Coordinates that no integer holds."""


def extreme(module: Module, inputs: dict[str, np.ndarray], round_: int) -> dict[str, np.ndarray]:
    """The same inputs with extreme numbers: each alone, then mixed."""
    rng, found = np.random.default_rng(round_), {}
    for v in module.main.inputs:
        name, dtype = v.origin or v.name[1:], v.type.dtype
        found[name] = inputs[name]
        if dtype.coded or dtype.name == "bool":
            continue
        choice = np.array(EXTREMES if dtype.is_int else FAR)
        shape = inputs[name].shape
        drawn = np.full(shape, choice[round_]) if round_ < len(choice) else rng.choice(choice, shape)
        with np.errstate(over="ignore"):
            found[name] = drawn.astype(dtype.numpy)
    return found


def as_type(x: object) -> str:
    """An array's type as text, so that it is fed instead of folded."""
    if isinstance(x, str):
        return x
    a = np.asarray(x)
    return f"{from_numpy(a.dtype)}[{', '.join(map(str, a.shape))}]"


def takes_integers(op: Op) -> bool:
    types = (as_type(x) for case in op.cases for x in case.inputs)
    return any(re.match(r"[iu](8|16|32|64)\[", t) for t in types)


EXTREME = {n for n, op in OPS.items() if takes_integers(op)} | {op.name for op in sample.ROWS}
"""Ops that also get numbers far outside of anything."""


@dataclass(frozen=True)
class Walk:
    """A case of an op, compiled once for all inputs."""

    module: Module
    after: Module

    @staticmethod
    def of(op: Op, case: Case, cpu: Cpu) -> Walk:
        module = case_module(op.name, case)
        return Walk(module, scheduled(module, cpu))

    def inputs(self, size: int, n: int, case: Case) -> dict[str, np.ndarray]:
        return feeds(self.module, {s.name: size for s in self.module.symbols}, n, case.low, case.high)


def walk_op(op: Op, cpu: Cpu) -> None:
    """All cases of an op at a few sizes; where numbers may lead outside, with operands that are all fed.
    Random graphs run optimised; here each access that a kernel writes down is made."""
    guard = Guard(cpu, opt=0)
    for n, case in enumerate(op.cases):
        own = Walk.of(op, case, cpu)
        for size in (1, 7, 17, *((0,) if case.zero else ())):
            print(op.name, n, size, flush=True)  # what was running when a signal came
            guarded(own.after, own.inputs(size, n, case), guard)
        if op.name not in EXTREME:
            continue
        fed = replace(case, inputs=tuple(map(as_type, case.inputs)))
        is_fed = all(isinstance(x, str) for x in case.inputs)
        far = own if is_fed else Walk.of(op, fed, cpu)
        inputs = far.inputs(7, n, case)
        for k in range(len(EXTREMES) + 3):
            print(op.name, n, "extreme", k, flush=True)
            guarded(far.after, extreme(far.module, inputs, k), guard)


@pytest.mark.parametrize("name", sorted(OPS))
def test_op(name: str) -> None:
    """No size and no number leads a kernel outside, whatever it is used for."""
    survives(lambda: walk_op(OPS[name], PROCESSORS[len(name) % len(PROCESSORS)]))


def walk_graph(seed: int, cpu: Cpu) -> None:
    module = Random(seed).module()
    after, guard = scheduled(module, cpu), Guard(cpu)
    for env in (SIZES, {s: n + 4 for s, n in SIZES.items()}):
        known = {s.name for s in module.symbols}
        guarded(after, feeds(module, {s: n for s, n in env.items() if s in known}, seed), guard)


@pytest.mark.parametrize("seed", range(0, 64, 11))
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
