"""Hand-scheduled trees, compiled for each instruction set that runs here, agree with the interpreter."""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from scheduled_trees import TREES

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel
from smelt.targets.llvm.jit import jit
from smelt.targets.llvm.machines import Cpu, cpu_for, host

Array = np.ndarray[Any, Any]


def cpus() -> list[Cpu]:
    """The host, and the narrower instruction sets that it can run as well."""
    found = [host()]
    if platform.machine() == "x86_64":
        has = llvm.get_host_cpu_features()
        names = ["x86-64", "x86-64-v2", *(["x86-64-v3"] if has.get("avx2") else [])]
        names += ["x86-64-v4"] if has.get("avx512vl") else []
        found += [cpu_for("x86_64-unknown-linux-gnu", n) for n in names]
    return found


def inputs(kernel: Kernel, env: dict[str, int], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    made = []
    for b in kernel.inputs:
        shape = [d.evaluate(env) for d in b.shape]
        if b.dtype.is_float:
            # sums of many small integers are exact in any order
            many = int(np.prod(shape)) > 10000
            values = rng.integers(-2, 3, shape) if many else rng.normal(size=shape)
            made.append(values.astype(b.dtype.numpy))
        else:
            made.append(rng.integers(0, 2 if b.dtype.name == "bool" else 9, shape).astype(b.dtype.numpy))
    return made


def compare(got: list[Array], want: list[Array]) -> None:
    for g, w in zip(got, want, strict=True):
        if g.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w)
            continue
        tolerance = 2e-3 if g.dtype == np.float16 else 1e-2 if g.dtype.itemsize == 2 else 3e-6
        a, b = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * 10)


CPUS = cpus()


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
