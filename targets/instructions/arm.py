"""Rows of AArch64's NEON: multiply-adds of floats, dot products of bytes, tiles of bytes.

Costs are those of the software optimization guides of the first core that has the instruction: Cortex-A72 for
fmla and smlal, Cortex-A76 for sdot and udot, Neoverse V1 for i8mm.
"""

from __future__ import annotations

from smelt.core.machine import Instruction
from smelt.targets.instructions.meanings import dot, matrix, multiply_add

A72, A76, V1 = (f"Software Optimization Guide, {x}" for x in ("Cortex-A72", "Cortex-A76", "Neoverse V1"))

ROWS: tuple[Instruction, ...] = (
    Instruction("fmla", multiply_add("fmla", 4), 8, 4, A76),
    Instruction("sdot", dot("sdot", "i8", "i8", 4, 4), 32, 2, A76, ("dotprod",)),
    Instruction("udot", dot("udot", "u8", "u8", 4, 4), 32, 2, A76, ("dotprod",)),
    Instruction("usdot", dot("usdot", "u8", "i8", 4, 4), 32, 3, V1, ("i8mm",)),
    Instruction("smmla", matrix("smmla", "i8", "i8", 2, 8, 2), 64, 3, V1, ("i8mm",)),
    Instruction("ummla", matrix("ummla", "u8", "u8", 2, 8, 2), 64, 3, V1, ("i8mm",)),
    Instruction("usmmla", matrix("usmmla", "u8", "i8", 2, 8, 2), 64, 3, V1, ("i8mm",)),
    # by halves of 16 bits, widened before
    Instruction("smlal", multiply_add("smlal", 4, "u8", "i8"), 4, 4, A72),
    Instruction("smlal.i8", multiply_add("smlal.i8", 4, "i8", "i8"), 4, 4, A72),
)


def rows(features: frozenset[str]) -> tuple[Instruction, ...]:
    """The rows of a processor with these features."""
    return tuple(r for r in ROWS if set(r.features) <= features)
