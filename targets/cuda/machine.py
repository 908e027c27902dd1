"""What schedules may know about an NVIDIA GPU, and the processor that the emitter compiles for."""

from __future__ import annotations

from smelt.core.machine import Machine
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
    cache_bytes=(48 * 1024, 256 * 1024),
    cores=8,
)
"""What every architecture from Maxwell on has: 48 KiB of shared memory that a kernel may take without
asking, 255 registers for a thread, an L1 of 48 KiB or more; a Jetson Orin has
8 to 16 cores. A group is four warps of 32 threads."""

PRIVATE_LIMIT = 64 * 1024
"""Bytes of private arrays that a thread may have: they are taken for each thread that a device can hold, up
to 2048 on each core."""


def cpu_for(architecture: str) -> Cpu:
    """The emitter's description of an architecture such as 'sm_87'. Floats convert to halves and back, and
    are rounded to integers, by single instructions from sm_53 on; there is no libm."""
    return Cpu(TRIPLE, architecture, MACHINE, remainder=False)
