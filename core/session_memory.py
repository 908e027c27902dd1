"""What a session says of its memory: the fields of smelt.h's smelt_memory, by which all others go.

ctypes, the runner's records and reports are made of these names; tests hold the C side against them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: what the last run needed, the high-water marks, and how often memory was asked for. crossings:
    how many copies from one unit of the device to another all runs made, of how many bytes. shared: values
    that were handed over without a copy, since the unit's memory is the host's. state_capacity: of what runs
    leave for the next one, both buffers of each state.

    Of units besides the CPU, by all runs: launches of kernels; submits, how often a driver was told to begin
    what had been asked for; uploads and reads, transfers from and to the host; waits of the host for one.
    cache_hits and cache_misses: binaries of their code that were found in a file at open, or were not.
    kernel_forms: kernels that their code has in several forms; lesser_forms: those that have not the best."""

    arena_bytes: int
    arena_capacity: int
    output_capacity: int
    weights_bytes: int
    allocations: int
    runs: int
    crossings: int
    crossed_bytes: int
    shared: int
    shared_bytes: int
    state_capacity: int
    launches: int
    submits: int
    uploads: int
    uploaded_bytes: int
    reads: int
    read_bytes: int
    waits: int
    cache_hits: int
    cache_misses: int
    kernel_forms: int
    lesser_forms: int


MEMORY_FIELDS: Final[tuple[str, ...]] = tuple(f.name for f in fields(Memory))
"""In the order of the struct: 64 bits each."""
