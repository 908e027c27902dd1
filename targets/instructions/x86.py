"""Rows of x86-64: multiply-adds of floats and sums of products of bytes, for each width of register.

Costs are those of the slowest current core that has the instruction with full-width pipes (uops.info for
Ice Lake and Zen 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.core.machine import Instruction
from smelt.targets.instructions.meanings import dot, multiply_add

UOPS = "uops.info"


def _rows(lanes: int) -> dict[str, Instruction]:
    bits = 32 * lanes
    fused, vnni, pairs, plain = (f"{n}.{bits}" for n in ("vfmadd", "vpdpbusd", "vpmaddwd", "vpmulld"))
    words = f"vpmaddwd.i16.{bits}"
    vex = ("avxvnni",) if lanes == 8 else ("avx512vnni", "avx512vl")
    integers = ("sse4.1",) if lanes == 4 else ("avx2",)
    turned, turned_pairs = f"vpdpbusd.i8.{bits}", f"vpmaddwd.i8.{bits}"
    return {
        # two a cycle
        "vfmadd": Instruction(fused, multiply_add(fused, lanes), 2.0 * lanes, 4, UOPS, ("fma",)),
        "vpdpbusd": Instruction(vnni, dot(vnni, "u8", "i8", 4, lanes), 8.0 * lanes, 4, UOPS, vex),
        # the same with the bytes without a sign, weights of few bits, on the right
        "vpdpbusd.i8": Instruction(turned, dot(turned, "i8", "u8", 4, lanes), 8.0 * lanes, 4, UOPS, vex),
        # bytes 0 and 2, then 1 and 3, widened to 16 bits: two products, two sums, never saturating
        "vpmaddwd": Instruction(pairs, dot(pairs, "u8", "i8", 4, lanes), 2.0 * lanes, 7, UOPS, integers),
        "vpmaddwd.i8": Instruction(
            turned_pairs, dot(turned_pairs, "i8", "u8", 4, lanes), 2.0 * lanes, 7, UOPS, integers
        ),
        # the same of numbers that are 16 bits wide as they lie
        "vpmaddwd.i16": Instruction(
            words, dot(words, "i16", "i16", 2, lanes), 4.0 * lanes, 4, UOPS, integers
        ),
        # two steps of one pipe
        "vpmulld": Instruction(plain, multiply_add(plain, lanes, "u8", "i8"), 0.5 * lanes, 10, UOPS),
    }


REGISTERS: Mapping[int, Mapping[str, Instruction]] = MappingProxyType({n: _rows(n) for n in (16, 8, 4)})
"""Elements of 32 bits of a register -> its rows: 512 bits, 256 bits and 128 bits."""


def rows(lanes: int, features: frozenset[str]) -> tuple[Instruction, ...]:
    """The rows for registers of `lanes` elements of 32 bits: 16 (AVX-512), 8 (AVX2) or 4 (SSE4)."""
    return tuple(r for r in REGISTERS[lanes].values() if set(r.features) <= features)
