"""What schedules may know about an NVIDIA GPU, and the processor that the emitter compiles for."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.machine import Machine, Residency
from smelt.targets.instructions.nvidia import rows
from smelt.targets.llvm.machines import Cpu

TRIPLE = "nvptx64-nvidia-cuda"

MACHINE = Machine(
    "cuda",
    vector_bits=0,
    vector_registers=255,
    levels=("group", "lane"),
    max_lanes=128,
    shared_bytes=48 * 1024,
    subgroup=32,
    lane_bytes=16,
    cache_bytes=(48 * 1024, 256 * 1024),
    cores=8,
    transforms=(31, 34),
)
"""What every architecture from Maxwell on has: 48 KiB of shared memory that a kernel may take without
asking, 255 registers for a thread, an L1 of 48 KiB or more; a Jetson Orin has
8 to 16 cores. A group is four warps of 32 threads. A transformed element is written and read, with a part of
the image: 9 or 10 bytes, in whose time as many multiply-adds are done where products reach 30 TFLOP/s and
memory 4.3 TB/s (benchmarks/results/cuda.md)."""

_RESIDENT = {
    **dict.fromkeys(("sm_53", "sm_60", "sm_62"), (2048, 32, 64)),
    "sm_61": (2048, 32, 96), "sm_70": (2048, 32, 96), "sm_72": (2048, 32, 96), "sm_75": (1024, 16, 64),
    "sm_80": (2048, 32, 164), "sm_86": (1536, 16, 100), "sm_87": (1536, 16, 164), "sm_89": (1536, 24, 100),
    "sm_90": (2048, 32, 228), "sm_100": (2048, 32, 228),
}  # fmt: skip
"""Architecture -> threads, groups and KiB of shared memory of a multiprocessor, by the table of technical
specifications in NVIDIA's CUDA C++ Programming Guide. Of architectures that are missing nobody has looked it
up."""

_PARTS = {"sm_60": 2}
"""Parts of a multiprocessor with registers of their own, where they are not four."""


def machine_of(architecture: str) -> Machine:
    """The machine of one architecture: that of all, and what a multiprocessor holds."""
    row = _RESIDENT.get(architecture)
    if row is None:
        return replace(MACHINE, name=architecture)
    threads, groups, shared = row
    ampere = int(architecture.removeprefix("sm_")) >= 80
    holds = Residency(
        threads, groups, registers=64 * 1024, shared_bytes=shared * 1024,
        parts=_PARTS.get(architecture, 4), register_step=256, shared_step=128 if ampere else 256,
        shared_reserved=1024 if ampere else 0,
    )  # fmt: skip
    return replace(MACHINE, name=architecture, residency=holds)


_CORES = {
    "sm_53": 1, "sm_62": 2, "sm_72": 8, "sm_80": 108, "sm_86": 84, "sm_87": 16, "sm_89": 144, "sm_90": 132,
    "sm_100": 148, "sm_110": 20,
}  # fmt: skip
"""Architecture -> multiprocessors of the largest device that has it, by NVIDIA's data sheets."""


def scheduled_for(architecture: str) -> Machine:
    """What schedules may know of a device that has this architecture or a later one."""
    cores = _CORES.get(architecture, MACHINE.cores)
    found = replace(MACHINE, instructions=rows(architecture), cores=cores)
    if not found.instructions:
        return found
    return replace(found, shared_bytes=ASKED_BYTES)


STATIC_BYTES = MACHINE.shared_bytes
"""Shared memory of a group that kernels declare; more is asked for at each launch."""
ASKED_BYTES = 99 * 1024
"""What every architecture from sm_80 on gives a group that asks: sm_86, sm_89 and sm_120 no more than this,
by the table of technical specifications in NVIDIA's CUDA C++ Programming Guide."""


PRIVATE_LIMIT = 64 * 1024
"""Bytes of private arrays that a thread may have: they are taken for each thread that a device can hold, up
to 2048 on each core."""


def cpu_for(architecture: str) -> Cpu:
    """The emitter's description of an architecture such as 'sm_87'. Floats convert to halves and back, and
    are rounded to integers, by single instructions from sm_53 on; there is no libm."""
    return Cpu(TRIPLE, architecture, scheduled_for(architecture), remainder=False)
