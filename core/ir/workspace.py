"""A kernel in; out, the memory that the planner owns for a call of it: its scratch, and what its groups have
of their own, once for each thread that may run some of them at a time.

A buffer of space `scratch` at a node of groups lives in one group, like any local buffer, and may be of a
size that dims decide. A thread runs one group after the other, so all of its groups have one place in memory.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import Dim, align_up, dmin, product
from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Buffer, Kernel, own_scratch

MOST_PLACES = 128
"""As many as a session has threads at most: SMELT_MAX_THREADS of the runtime."""
LINE = 64
"""Bytes that the places of two threads are a multiple of apart, so that they share no line of a cache."""


def place_bytes(b: Buffer) -> Dim:
    """The bytes between the places that two threads have for their groups' buffer."""
    return align_up(product(b.shape) * b.dtype.bytes, LINE)


def workspace(kernel: Kernel) -> tuple[Buffer, ...]:
    """Scratch of the kernel, then what its groups have, statement after statement: a place for each thread,
    of which no more have one than there are groups. In this order their addresses follow the outputs'."""
    found = list(kernel.scratch)
    for s in kernel.body:
        places = dmin(group_count(s), MOST_PLACES)
        found += [replace(b, shape=(places, place_bytes(b) // b.dtype.bytes)) for b in own_scratch(s)]
    return tuple(found)


__all__ = ["MOST_PLACES", "place_bytes", "workspace"]
