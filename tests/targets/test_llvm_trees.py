"""Trees that hands or a strategy scheduled, compiled for each instruction set that runs here, agree with the
interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_data import compare, inputs
from native_cpus import CPUS
from scheduled_trees import TREES
from strategy_kernels import KERNELS

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule import schedule_kernel
from smelt.targets.llvm.emit import emit_kernel
from smelt.targets.llvm.jit import jit
from smelt.targets.llvm.machines import Cpu


@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
@pytest.mark.parametrize("name", sorted(TREES))
def test_tree(name: str, cpu: Cpu) -> None:
    text, sizes = TREES[name]
    kernel = parse_kernel(text)
    compiled = jit(kernel, cpu)
    for env in sizes:
        arrays = inputs(kernel, env)
        want = run_kernel(kernel, env, arrays)
        compare(compiled(arrays, env), want)


ROW_PRODUCTS = [name for name, (kernel, *_) in KERNELS.items() if kernel.name == "row_product"]


@pytest.mark.table(6)
@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
@pytest.mark.parametrize("name", ROW_PRODUCTS)
def test_row_product(name: str, cpu: Cpu) -> None:
    """One kernel, compiled once, at all sizes; what is not finite stays in its row."""
    naive, _, sizes = KERNELS[name]
    compiled = jit(schedule_kernel(naive, cpu.machine), cpu)
    for env in sizes:
        arrays = inputs(naive, env)
        for odd in (0.0, np.inf, -np.inf, np.nan):
            arrays[0].reshape(-1)[3:4] = odd
            with np.errstate(invalid="ignore"):
                want = run_kernel(naive, env, arrays)
            compare(compiled(arrays, env), want)


@pytest.mark.parametrize("name", sorted(TREES))
def test_text_is_deterministic(name: str) -> None:
    from smelt.targets.llvm.emit import emit_module

    kernel = parse_kernel(TREES[name][0])
    assert emit_module([kernel], CPUS[0]) == emit_module([parse_kernel(TREES[name][0])], CPUS[0])


PANEL_BITS = 512
PACKED = [name for name, (_, constants, _) in KERNELS.items() if constants and name not in ROW_PRODUCTS]


@pytest.mark.table(6)
@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
@pytest.mark.parametrize("name", PACKED)
def test_panels_of_one_width(name: str, cpu: Cpu) -> None:
    """Vectors that lie in one panel are loaded whole: there is no more code than for panels of the tile's own
    width, but for what finds the panel."""
    naive, constants, sizes = KERNELS[name]
    own, shared = (
        schedule_kernel(naive, replace(cpu.machine, panel_bits=bits), frozenset(constants))
        for bits in (0, PANEL_BITS)
    )
    assert emit_kernel(shared, cpu).size <= 1.25 * emit_kernel(own, cpu).size
    compiled = jit(shared, cpu)
    for env in sizes:
        arrays = inputs(shared, env)
        compare(compiled(arrays, env), run_kernel(shared, env, arrays))
