"""Random kernels, compiled naive and scheduled, do here and on emulated boards what the interpreter does."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import strategies as gen
from boards import need_qemu
from guarded import Guard
from hypothesis import HealthCheck, given, settings
from isolated import isolated
from kernel_data import compare
from native_cpus import CPUS

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel
from smelt.core.schedule import schedule_kernel
from smelt.targets.llvm.machines import Cpu
from tests.targets.test_llvm_cross import BOARDS, build, run

ROUNDS = int(os.environ.get("SMELT_FUZZ_KERNELS", "16"))
"""Kernels per test; by hand, set it to hundreds."""

FIXED = settings(
    max_examples=ROUNDS, deadline=None, database=None, derandomize="SMELT_FUZZ_KERNELS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def forms(kernel: Kernel, cpu: Cpu) -> list[Kernel]:
    """As it is, and as the strategies schedule it."""
    return [kernel.with_(name="naive"), schedule_kernel(kernel, cpu.machine).with_(name="scheduled")]


def agree(got: list[np.ndarray], want: tuple[np.ndarray, ...]) -> None:
    """Scheduled kernels see buffers whose axes are collapsed."""
    compare([g.reshape(w.shape) for g, w in zip(got, want, strict=True)], want)


def agree_here(cpu: Cpu) -> None:
    @FIXED
    @given(gen.samples())
    def check(sample: gen.Sample) -> None:
        want = run_kernel(sample.kernel, sample.dims, list(sample.inputs))
        for kernel in forms(sample.kernel, cpu):
            agree(Guard(cpu)(kernel, sample.dims, sample.inputs), want)

    check()


@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
def test_here(cpu: Cpu) -> None:
    how, what = isolated(lambda: agree_here(cpu), 600)
    assert (how, what) == ("ok", None), (how, what)


@pytest.mark.parametrize("name", ["cortex-a53", "cortex-a7"])
def test_on_an_emulated_board(name: str, tmp_path: Path) -> None:
    board = BOARDS[name]
    need_qemu(board.qemu[0])
    samples: list[gen.Sample] = []

    @FIXED
    @given(gen.samples())
    def collect(sample: gen.Sample) -> None:
        samples.append(sample)

    collect()
    kernels = [
        k.with_(name=f"r{i}_{j}")
        for i, s in enumerate(samples)
        for j, k in enumerate(forms(s.kernel, board.cpu))
    ]
    fed = [[np.asarray(a, order="C") for a in s.inputs] for s in samples]
    work = [(i, kernel, samples[i // 2].dims, fed[i // 2]) for i, kernel in enumerate(kernels)]
    found = run(board, build(board, kernels, tmp_path), work)
    for (i, kernel, dims, inputs), got in zip(work, found, strict=True):
        sample = samples[i // 2]
        try:
            agree(got, run_kernel(sample.kernel, dims, inputs))
        except AssertionError as e:
            raise AssertionError(f"{kernel} {sample.dims}: {e}") from e
