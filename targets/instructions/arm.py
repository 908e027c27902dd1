"""Rows of Arm's NEON: multiply-adds of floats, products of pairs of bytes, dot products and tiles of bytes.

Costs are those of the software optimization guides of the first core that has the instruction: Cortex-A72 for
fmla, smull and smlal, Cortex-A76 for sdot and udot, Neoverse V1 for i8mm. Cores with fewer or more pipes have
their own (PACES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from smelt.core.ir.instructions import meaning
from smelt.core.machine import Instruction
from smelt.targets.instructions.meanings import dot, matrix, multiply_add

A72, A76, V1 = (f"Software Optimization Guide, {x}" for x in ("Cortex-A72", "Cortex-A76", "Neoverse V1"))
A9 = "LLVM's table of the Cortex-A9"

ROWS: tuple[Instruction, ...] = (
    Instruction("fmla", multiply_add("fmla", 4), 8, 4, A76),
    Instruction("sdot", dot("sdot", "i8", "i8", 4, 4), 32, 2, A76, ("dotprod",)),
    Instruction("udot", dot("udot", "u8", "u8", 4, 4), 32, 2, A76, ("dotprod",)),
    Instruction("usdot", dot("usdot", "u8", "i8", 4, 4), 32, 3, V1, ("i8mm",)),
    Instruction("smmla", matrix("smmla", "i8", "i8", 2, 8, 2), 64, 3, V1, ("i8mm",)),
    Instruction("ummla", matrix("ummla", "u8", "u8", 2, 8, 2), 64, 3, V1, ("i8mm",)),
    Instruction("usmmla", matrix("usmmla", "u8", "i8", 2, 8, 2), 64, 3, V1, ("i8mm",)),
    # pairs of bytes: products of 16 bits, then sums of neighbours into 32; neither overflows
    Instruction("smull", dot("smull", "i8", "i8", 2, 4), 8, 4, A72),
    # by halves of 16 bits, widened before
    Instruction("smlal", multiply_add("smlal", 4, "u8", "i8"), 4, 4, A72),
    Instruction("smlal.i8", multiply_add("smlal.i8", 4, "i8", "i8"), 4, 4, A72),
)

ROWS_32: tuple[Instruction, ...] = (
    Instruction("vmull.s8", dot("vmull.s8", "i8", "i8", 2, 4), 4, 4, A9),
)
"""The pairs of bytes on 32-bit processors."""

Pace: TypeAlias = Mapping[str, tuple[float, int]]
"""Start of a row's name -> how many start in a cycle, and the cycles from one sum to the next that needs
it."""

_A53: Pace = MappingProxyType({"fmla": (1, 10), "smull": (0.5, 6), "smlal": (1, 6)})
_A55: Pace = MappingProxyType({
    "fmla": (1, 4), "sdot": (1, 4), "udot": (1, 4), "smull": (0.5, 4), "smlal": (1, 4),
})  # fmt: skip
_FOUR_PIPES: Pace = MappingProxyType({
    "fmla": (4, 4), "smull": (2, 4), "smlal": (2, 4),
    **dict.fromkeys(("sdot", "udot", "usdot", "smmla", "ummla", "usmmla"), (4, 3)),
})  # fmt: skip
PACES: Mapping[str, Pace] = MappingProxyType({
    **dict.fromkeys(("cortex-a34", "cortex-a35", "cortex-a53"), _A53),
    "cortex-a55": _A55,
    **{f"cortex-{name}": _FOUR_PIPES for name in ("x1", "x1c", "x2", "x3", "x4", "x925")},
    **{f"neoverse-{name}": _FOUR_PIPES for name in ("v1", "v2", "v3")},
})  # fmt: skip
"""LLVM's name of a core whose vector pipes are not two -> its pace, by LLVM's tables
(benchmarks/results/arm.md)."""


def rows(features: frozenset[str], cpu: str = "") -> tuple[Instruction, ...]:
    """The rows of a 64-bit processor with these features, at its pace."""
    pace = PACES.get(cpu, {})
    return tuple(_at_pace(r, pace) for r in ROWS if set(r.features) <= features)


def _at_pace(row: Instruction, pace: Pace) -> Instruction:
    """The row with the costs of a core."""
    found = pace.get(row.name.partition(".")[0])
    if found is None:
        return row
    want = meaning(row)
    return replace(row, macs=found[0] * want.rows * want.columns * want.depth, latency=found[1])
