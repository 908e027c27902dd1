"""CUDA for tests/targets/runtime_c/fake_cuda.c: for machine code of sm_87, a library of this machine.

It takes the place of targets/cuda/target.py in a copy of the sources, where that is real_target.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.targets.cuda.cuda_host import host_text
from smelt.targets.cuda.real_target import CudaDevice

from smelt.targets.cuda.emit import Program
from smelt.targets.cuda.images import CUBIN, PTX, Image
from smelt.targets.cuda.ptx import module, ptx
from smelt.targets.llvm.compile import parse, target_machine
from smelt.targets.llvm.machines import host


def library(program: Program) -> bytes:
    """A shared library with the kernels. It is kept in $FAKE_CUDA_KEEP, if that is set."""
    machine = target_machine(host(), 0)  # what is proved holds at any level, and this takes a third
    made = parse(host_text(program))
    made.data_layout = str(machine.target_data)
    with tempfile.TemporaryDirectory(prefix="smelt-fake-cuda-") as folder:
        source, out = Path(folder) / "model.o", Path(folder) / "model.so"
        source.write_bytes(machine.emit_object(made))
        subprocess.run(["gcc", "-shared", source, "-o", out, "-lm"], check=True)
        if kept := os.environ.get("FAKE_CUDA_KEEP"):
            shutil.copy(out, kept)
        return out.read_bytes()


@dataclass(frozen=True, slots=True)
class FakeCuda(CudaDevice):
    """An image of PTX for sm_53, and one that runs here."""

    def images(self, program: Program, batch: int, named: Sequence[str]) -> list[Image]:
        text = ptx(module(program), "sm_53").encode("ascii") if os.environ.get("FAKE_CUDA_KEEP") else b"//"
        return [Image(batch, PTX, "sm_53", text), Image(batch, CUBIN, "sm_87", library(program))]


TARGET = FakeCuda()
