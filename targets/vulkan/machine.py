"""What schedules may know about a Vulkan device that nobody has met yet: what Vulkan 1.1 promises."""

from __future__ import annotations

from smelt.core.machine import Machine

MACHINE = Machine(
    "vulkan",
    vector_bits=0,
    vector_registers=64,
    levels=("group", "lane"),
    max_lanes=64,
    shared_bytes=16 * 1024,
    subgroup=32,
    held_bytes=4,
    cache_bytes=(16 * 1024, 256 * 1024),
    cores=8,
    lacks=frozenset({"f64"}),
)
"""64 invocations are a subgroup or two everywhere, of the 128 that every device has; 16 KiB of shared memory
is the least that one may have. No vectors: drivers make invocations into SIMD themselves. Subgroups have 16
to 64 invocations on the GPUs that are known; 32 in a line fill a transaction of 128 bytes. No phone's GPU has
doubles."""

PRIVATE_LIMIT = 64 * 1024
"""Bytes of private arrays that an invocation may have; more would overflow the stacks of CPU drivers."""
