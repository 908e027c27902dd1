"""What schedules may know about an OpenCL device that nobody has met yet: what all of them offer."""

from __future__ import annotations

from smelt.core.machine import Chaining, Machine

MACHINE = Machine(
    "opencl",
    vector_bits=512,
    vector_registers=64,
    levels=("group", "lane", "vector"),
    max_lanes=64,
    held_bytes=4,
    shared_bytes=16 * 1024,
    cache_bytes=(16 * 1024, 256 * 1024),
    cores=8,
    transforms=(20, 35),
    chaining=Chaining(work=800_000, words=127),
    lacks=frozenset({"f64"}),
)
"""64 work-items are a wave or two warps everywhere, and 16 KiB of local memory the smallest in use.
Vectors are the widest type of the language: on a processor's driver a register, on a GPU 16 of them. A
product of 1600x576 by 576x64 in tiles of 4x4, 8x8 and 8x16 computes 25.7, 50.7 and 117 GFLOP/s with
vectors of 4, 8 and 16 on PoCL 3.1 (one core of a Zen 5), and 5.9 with a tile in local memory; GPUs have not
been measured. So a work-item is taken for a task of its own (no `subgroup`), and an element of transformed
tiles costs what it costs processors with vectors. A launch takes PoCL's threads
10 to 40 us, in which a core does 250,000 to a million multiply-adds of small tiles; of devices that are no
processors the driver takes an eighth for worth it. 1024 bytes are the least that all devices take as
parameters. PoCL compiles chains in about the time of their parts, as long as no lane waits inside of one
(benchmarks/results/opencl.md). Doubles are an extension, which no phone's GPU has."""

PRIVATE_LIMIT = 64 * 1024
"""Bytes of private arrays that a work-item may have; more would overflow the stacks of CPU drivers."""
