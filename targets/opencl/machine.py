"""What schedules may know about an OpenCL device that nobody has met yet: what all of them offer."""

from __future__ import annotations

from smelt.core.machine import Machine

MACHINE = Machine(
    "opencl",
    vector_bits=0,
    vector_registers=64,
    levels=("group", "lane"),
    max_lanes=64,
    shared_bytes=16 * 1024,
    cache_bytes=(16 * 1024, 256 * 1024),
    cores=8,
)
"""64 work-items are a wave or two warps everywhere, and 16 KiB of local memory the smallest in use. No
vectors: drivers make work-items of a group into SIMD themselves."""

PRIVATE_LIMIT = 64 * 1024
"""Bytes of private arrays that a work-item may have; more would overflow the stacks of CPU drivers."""
