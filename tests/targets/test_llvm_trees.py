"""Hand-scheduled trees, compiled for each instruction set that runs here, agree with the interpreter."""

from __future__ import annotations

import pytest
from kernel_data import compare, inputs
from native_cpus import CPUS
from scheduled_trees import TREES

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.text import parse_kernel
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


@pytest.mark.parametrize("name", sorted(TREES))
def test_text_is_deterministic(name: str) -> None:
    from smelt.targets.llvm.emit import emit_module

    kernel = parse_kernel(TREES[name][0])
    assert emit_module([kernel], CPUS[0]) == emit_module([parse_kernel(TREES[name][0])], CPUS[0])
