"""Kernels and a processor in, a program for it and its outputs under qemu's user mode out."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.workspace import workspace
from smelt.targets.llvm.compile import compile_object
from smelt.targets.llvm.emit import emit_module, function_name
from smelt.targets.llvm.machines import Cpu
from smelt.targets.platform import parse_target, zig_directory
from smelt.targets.toolchain import _builtins

HERE = Path(__file__).parents[1] / "targets" / "llvm_c"


@dataclass(frozen=True)
class Board:
    """A processor, the compiler's name for it, and the emulator."""

    cpu: Cpu
    zig: tuple[str, ...]
    qemu: tuple[str, ...]

    def more(self) -> list[str]:
        """Where 64-bit division is a call, what is called."""
        return [str(_builtins(parse_target("armv7").platform))] if self.cpu.index_bits == 32 else []


def build(board: Board, kernels: list[Kernel], folder: Path) -> Path:
    """A static program with a table of these kernels."""
    code = compile_object(emit_module(kernels, board.cpu), board.cpu)
    (folder / "model.o").write_bytes(code)
    lines = ['#include <stdint.h>', "typedef void (*kernel_fn)(const int64_t *, int64_t, int64_t, int64_t);"]
    rows = []
    for k, kernel in enumerate(kernels):
        for i in range(len(kernel.body)):
            lines.append(f'extern void k{k}_{i}(const int64_t *, int64_t, int64_t, int64_t)'
                         f' __asm__("{function_name(kernel.name, i)}");')  # fmt: skip
        entries = ", ".join(f"k{k}_{i}" for i in range(len(kernel.body)))
        lines.append(f"static const kernel_fn row{k}[] = {{{entries}}};")
        rows.append(f"row{k}")
    lines.append(f"const kernel_fn *const kernel_table[] = {{{', '.join(rows)}}};")
    (folder / "table.c").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.copy(HERE / "harness.c", folder)
    flags = ["-O1", "-fno-sanitize=all", "-fno-stack-protector", "-nostdlib", "-static", "-fno-builtin"]
    zig = [str(zig_directory() / "zig"), "cc", *board.zig, *flags, "-o", "program"]
    sources = ["harness.c", "table.c", "model.o", *board.more()]
    done = subprocess.run([*zig, *sources], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "program"


Work = tuple[int, Kernel, dict[str, int], list[Any]]
"""A kernel's number in the program's table, the kernel, sizes, and inputs."""


def run(board: Board, program: Path, work: list[Work]) -> list[list[Any]]:
    """Outputs of each run, one after the other in one start of the emulator."""
    placed, data = [], b""
    for number, kernel, env, arrays in work:
        made = [np.zeros([d.evaluate(env) for d in b.shape], b.dtype.numpy)
                for b in (*kernel.outputs, *workspace(kernel))]  # fmt: skip
        placed.append(buffers := [*arrays, *made])
        groups = [group_count(s).evaluate(env) for s in kernel.body]
        words = [number, len(buffers), len(kernel.dims), len(groups), *(b.nbytes for b in buffers)]
        words += [*(env[d.name] for d in kernel.dims), *groups]
        data += np.array(words, np.int64).tobytes()
        data += b"".join(b.tobytes().ljust(-(-b.nbytes // 64) * 64, b"\0") for b in buffers)
    done = subprocess.run([*board.qemu, str(program)], input=data, capture_output=True, timeout=120)
    found, at = [], 0
    for (_, kernel, env, arrays), buffers in zip(work, placed, strict=True):
        out = []
        for b in buffers:
            room = -(-b.nbytes // 64) * 64
            assert at + room <= len(done.stdout), (kernel.name, env, done.returncode, done.stderr[-500:])
            out.append(np.frombuffer(done.stdout[at : at + b.nbytes], b.dtype).reshape(b.shape))
            at += room
        found.append(out[len(arrays) : len(arrays) + len(kernel.outputs)])
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    return found
