"""What a schedule may ask about the hardware: lanes, registers, caches, limits. No names of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

FREE = frozenset({"cast", "bitcast"})
COSTS: Mapping[str, int] = MappingProxyType({
    "div": 3, "sqrt": 8, "exp": 13, "erf": 14, "tanh": 14, "log": 28, "sin": 41, "cos": 42,
    "atan": 31, "acos": 31, "asin": 38, "pow": 62, "mod": 890, "fmod": 890, "log1p": 475, "tan": 516,
    "cosh": 492, "acosh": 541, "sinh": 752, "atanh": 908, "asinh": 925,
})  # fmt: skip
"""What an element of a scalar function takes, in multiply-adds; others take one. From 400 on they are calls
of libm, an element at a time. The mean of the processors in benchmarks/results/intrinsics.md."""
HEAVY = 12
"""The cost from which a function rules its loop: its latency, not its loads and stores."""

BLOCK_ROWS = 48
"""Rows that are made at a time for the product that follows. benchmarks/results/choices.md has its worth."""

CPU = "cpu"
"""The name of the unit that the host code runs on; others are called as their device is."""

ANY_UNIT = "auto"
"""The word that stands for a unit in a rule of placement: whichever costs least (system.py)."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A row of an instruction set: the loops that one instruction means, and what it costs.

    meaning: the text of a kernel (see core/ir/instructions.py). Its last statement is the loops; its buffers
    are the registers, elements in row-major order, the accumulator last among the inputs. macs: multiply-adds
    per cycle of one core. latency: cycles from one sum to the next one that needs it. source: where these two
    come from. features: what the processor must have, by LLVM's names.

    lanes: (Y, X) of an instruction that Y*X lanes compute together, each of which has the row's results: row
    i and column j of lane y*X + x are row i*Y + y and column x*J + j of the product, J the row's columns.
    """

    name: str
    meaning: str
    macs: float
    latency: int
    source: str
    features: tuple[str, ...] = ()
    lanes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Residency:
    """What a core holds at a time. lanes, groups: so many at most. registers: of 32 bits, in so many `parts`,
    which a subgroup gets by `register_step`. shared_bytes: memory of groups, which they get by `shared_step`,
    `shared_reserved` bytes more each than they ask for."""

    lanes: int
    groups: int
    registers: int
    shared_bytes: int
    parts: int = 1
    register_step: int = 1
    shared_step: int = 1
    shared_reserved: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What kernels and copies get from a unit, by which placement weighs them (system.py): measured, and no
    bounds. operations, bandwidth: arithmetic operations, and bytes of its memory, in a second of a large
    kernel. launch: seconds that a launch takes besides. link: bytes in a second of a copy from or to the
    host's memory, and copy: seconds that one takes besides; infinite and 0 where the host's memory is its
    own."""

    operations: float
    bandwidth: float
    launch: float
    link: float = math.inf
    copy: float = 0.0


@dataclass(frozen=True, slots=True)
class Chaining:
    """When launches that follow each other are done as one launch of one group (schedule/chain.py). work:
    multiply-adds that a group does while a launch is begun, on the devices where that takes longest. words:
    of 8 bytes that a launch's parameters may take."""

    work: int
    words: int


@dataclass(frozen=True, slots=True)
class Machine:
    """One unit that kernels are mapped onto; strategies ask it and nothing else.

    vector_bits: width of a SIMD register (0: none; loops stay scalar or become lanes).
    vector_registers: how many there are. fma: fused multiply-add is one instruction.
    levels: which of group/lane/vector the machine has, outermost first.
    max_lanes: work-items of a group (1 on a CPU). shared_bytes: per-group memory (0: none).
    subgroup: neighbouring lanes that run in step: what they access is one transaction if it lies side by
    side, and shared memory is nearer than caches. 1: a lane is a task of its own, with vectors to be fast.
    held_bytes: what an element takes in shared memory at least: 4 where halves are floats but in memory.
    lane_bytes: neighbours that such a lane reads, or copies to shared memory, at once, in bytes (0: an
    element).
    lane_operands: a multiply-add takes one lane of a register for all lanes of another, so that elements
    which multiply whole vectors are loaded several at a time.
    ahead: how many bytes after a vector of a packed weight the cache is asked for more of it; 0: the
    processor's own prefetcher does as well, or nobody has measured it. ahead_of_stores: the same of an output
    that nests without costly functions write.
    cache_bytes: private L1 and L2 in bytes. masked: masked vector loads and stores are cheap.
    instructions: the rows that sum products here; what has no row is computed element by element.
    costs: what scalar functions take; those of COSTS where nobody has measured others.
    panel_bits: the width of a panel of packed weights, the same on machines that read the same ones; 0: that
    of the tiles that are fastest here.
    residency, operations, bandwidth: what a core holds, and arithmetic operations and bytes of memory in a
    second of all cores; None: nobody knows. Estimates read them (estimate.py), no schedule does.
    transforms: what an element of a convolution's transformed tile costs beside its products, in
    multiply-adds, where tiles have 4 or 6 elements on an axis; None: what it costs processors with vectors,
    and on machines with lanes convolutions stay as they are.
    figures: what placement takes it for; None: nobody has measured it.
    chaining: when small launches are worth being one; None: never, as far as anybody has measured.
    lacks: dtypes, by name, with which some devices that this stands for do not compute.
    """

    name: str
    vector_bits: int
    vector_registers: int
    fma: bool = True
    masked: bool = False
    lane_operands: bool = False
    ahead: int = 0
    ahead_of_stores: int = 0
    instructions: tuple[Instruction, ...] = ()
    levels: tuple[str, ...] = ("group", "vector")
    max_lanes: int = 1
    shared_bytes: int = 0
    subgroup: int = 1
    held_bytes: int = 1
    lane_bytes: int = 0
    cache_bytes: tuple[int, int] = (32 * 1024, 512 * 1024)
    cores: int = 4
    costs: Mapping[str, int] = field(default_factory=lambda: COSTS, hash=False)
    panel_bits: int = 0
    residency: Residency | None = None
    operations: float | None = None
    bandwidth: float | None = None
    transforms: tuple[int, int] | None = None
    figures: Figures | None = None
    chaining: Chaining | None = None
    lacks: frozenset[str] = frozenset()

    @property
    def has_lanes(self) -> bool:
        """Whether groups are more than one lane wide."""
        return self.max_lanes > 1

    @property
    def in_step(self) -> bool:
        """Whether neighbouring lanes are fast together, and not each by itself."""
        return self.subgroup > 1

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` width a vector holds; at least 1."""
        return max(1, self.vector_bits // bits)

    def held(self, size: int) -> int:
        """Bytes that an element of `size` bytes takes in the memory of a group."""
        return max(self.held_bytes, size)

    def row_block(self, size: int | None) -> int:
        """How many rows of `size` bytes (None: unknown) are made at a time for the product that follows: half
        of the second-level cache holds them."""
        most = BLOCK_ROWS if size is None else self.cache_bytes[1] // 2 // max(size, 1)
        return max(1, min(BLOCK_ROWS, most))

    def cost(self, work: Mapping[str, int]) -> int:
        """What so many calls of scalar functions take, in multiply-adds of one element; casts are free."""
        return sum(n * self.costs.get(fn, 1) for fn, n in work.items() if fn not in FREE)

    def heavy(self, fn: str) -> bool:
        """Whether a loop that calls the function is bound by it."""
        return self.costs.get(fn, 1) >= HEAVY
