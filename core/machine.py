"""What a schedule may ask about the hardware: lanes, registers, caches, limits. No names of targets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """One unit that kernels are mapped onto; strategies ask it and nothing else.

    vector_bits: width of a SIMD register (0: none; loops stay scalar or become lanes).
    vector_registers: how many there are. fma: fused multiply-add is one instruction.
    levels: which of group/lane/vector the machine has, outermost first.
    max_lanes: work-items of a group (1 on a CPU). shared_bytes: per-group memory (0: none).
    cache_bytes: private L1 and L2 in bytes. masked: masked vector loads and stores are cheap.
    dot4: sums of four products of bytes are cheap.
    tail_lanes: vector widths in elements of 4 bytes that a tail may use, widest first, ends in 1.
    """

    name: str
    vector_bits: int
    vector_registers: int
    fma: bool = True
    masked: bool = False
    dot4: bool = False
    levels: tuple[str, ...] = ("group", "vector")
    max_lanes: int = 1
    shared_bytes: int = 0
    cache_bytes: tuple[int, int] = (32 * 1024, 512 * 1024)
    cores: int = 4

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` width a vector holds; at least 1."""
        return max(1, self.vector_bits // bits)
