"""The hand-scheduled trees cross-compiled for each other architecture and run under qemu's user mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import need_qemu
from emulated import Board, build, run
from intrinsic_dtypes import ANY, EXACT, FLOATS
from intrinsic_kernels import (
    RTOL,
    applied,
    meaning,
    operand,
    operands,
    same,
    vector_kernel,
    without_libm,
)  # fmt: skip
from kernel_data import compare, inputs
from scheduled_trees import TREES

from smelt.core.dtype import DType, f64
from smelt.core.ir.interp_kernel import cast_array, run_kernel
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import Call
from smelt.core.ir.text import parse_kernel
from smelt.targets.llvm.machines import Cpu, cpu_for


def _cpu(triple: str, cpu: str, features: str = "") -> Cpu:
    return cpu_for(triple, cpu, features)


_RV = ("-target", "riscv64-linux-none")
BOARDS = {
    "cortex-a53": Board(
        _cpu("aarch64-unknown-linux-gnu", "cortex-a53"),
        ("-target", "aarch64-linux-none"),
        ("qemu-aarch64-static", "-cpu", "cortex-a53"),
    ),
    "cortex-a7": Board(
        _cpu("armv7-unknown-linux-gnueabihf", "cortex-a7", "+neon,+vfp4"),
        ("-target", "arm-linux-none", "-mcpu=cortex_a7"),
        ("qemu-arm-static", "-cpu", "cortex-a7"),
    ),
    "rv64gc": Board(
        _cpu("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c"),
        _RV,
        ("qemu-riscv64-static", "-cpu", "rv64"),
    ),
    "rv64gcv": Board(
        _cpu("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c,+v"),
        _RV,
        ("qemu-riscv64-static", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"),
    ),
}

# qemu 7.2 itself ends with a failed assertion (decode_save_opc) when it translates these vector casts
EMULATOR_FAILS = {("rv64gcv", d) for d in FLOATS}


@pytest.mark.parametrize("name", BOARDS)
def test_trees_under_emulation(name: str, tmp_path: Path) -> None:
    board = BOARDS[name]
    need_qemu(board.qemu[0])
    names = sorted(TREES)
    kernels = [parse_kernel(TREES[n][0]).with_(name=f"t{i}") for i, n in enumerate(names)]
    work = [
        (i, kernel, env, inputs(kernel, env))
        for i, (tree, kernel) in enumerate(zip(names, kernels, strict=True))
        for env in TREES[tree][1]
    ]
    found = run(board, build(board, kernels, tmp_path), work)
    for (i, kernel, env, arrays), got in zip(work, found, strict=True):
        try:
            compare(got, run_kernel(kernel, env, arrays))
        except AssertionError as e:
            raise AssertionError(f"{names[i]} {env}: {e}") from e


@pytest.mark.parametrize("name", ["cortex-a53", "cortex-a7", "rv64gcv"])
def test_intrinsics_under_emulation(name: str, tmp_path: Path) -> None:
    """All functions of a dtype and arity in one kernel, and all casts of a dtype in another."""
    board = BOARDS[name]
    need_qemu(board.qemu[0])
    groups = [
        (d, n, fns)
        for d in ANY
        for n in (1, 2, 3)
        if (fns := [f for f in without_libm(d) if INTRINSICS[f].arity == n])
    ]
    outputs = [[applied(f, d) for f in fns] for d, _, fns in groups]
    outputs += [[(f"y_{to}", to, Call("cast", (operand(0, d),), to)) for to in ANY] for d in ANY]
    inputs_ = [[d] * n for d, n, _ in groups] + [[d] for d in ANY]
    kernels = [
        vector_kernel(types, results, f"i{i}", (8, 1))
        for i, (types, results) in enumerate(zip(inputs_, outputs, strict=True))
    ]
    subnormals = board.cpu.index_bits == 64  # NEON of 32-bit Arm takes them for zero
    casts = [(i, d) for i, d in enumerate(ANY, len(groups)) if (name, d) not in EMULATOR_FAILS]
    fed = [(i, operands(arity, d, subnormals)) for i, (d, arity, _) in enumerate(groups)]
    fed += [(i, operands(1, d, subnormals)) for i, d in casts]
    work = [(i, kernels[i], {"n": len(args[0])}, args) for i, args in fed]
    found = run(board, build(board, kernels, tmp_path), work)
    of_casts = zip(casts, fed[len(groups) :], found[len(groups) :], strict=True)
    for (dtype, _, fns), (_, args), got in zip(groups, fed, found, strict=False):
        for fn, g in zip(fns, got, strict=True):
            # without fma the product is rounded
            loose = fn == "fma" or (fn not in EXACT and not board.cpu.fma)
            tolerance = 0 if fn in EXACT else RTOL.get(dtype, 0) * (4 if loose else 1)
            want = meaning(fn, dtype, args)
            _check(f"{fn} {dtype}", g, want, tolerance, applied(fn, dtype)[1], subnormals)
    for (_, dtype), (_, (x,)), got in of_casts:
        for to, g in zip(ANY, got, strict=True):
            with np.errstate(all="ignore"):
                want = cast_array(x, to)
            twice = dtype == f64 and to.is_float and to.bits == 16
            _check(f"{dtype} -> {to}", g, want, 1e-3 if twice else 0, to, subnormals)


def _check(what: str, got: Any, want: Any, rtol: float, dtype: DType, subnormals: bool) -> None:
    try:
        same(got, want, rtol, dtype, subnormals)
    except AssertionError as e:
        raise AssertionError(f"{what}: {e}") from e
