"""Triple, cpu and features in; the processor's description for the emitter and for schedules out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from smelt.core.diag import SmeltError
from smelt.core.machine import Figures, Machine
from smelt.targets.cpu_features import features_of
from smelt.targets.instructions import arm, x86


@dataclass(frozen=True, slots=True)
class Cpu:
    """One processor as the emitter sees it.

    machine: what schedules see. index_bits: width of addresses. half: f16 <-> f32 are instructions.
    propagating: llvm.maximum and llvm.minimum are one instruction. rounding: floor, round etc. are.
    remainder: LLVM's frem is exact. saturates: converting vectors, floats out of range become the
    nearest integer. features: LLVM's feature string. abi: LLVM's ABI name, where one must be given.
    """

    triple: str
    cpu: str
    machine: Machine
    features: str = ""
    index_bits: int = 64
    half: bool = True
    propagating: bool = False
    rounding: bool = True
    remainder: bool = True
    saturates: bool = True
    abi: str = ""

    @property
    def fma(self) -> bool:
        return self.machine.fma


def _simd(name: str, bits: int, registers: int, **more: object) -> Machine:
    return replace(Machine(name, bits, registers), **more)  # type: ignore[arg-type]


AHEAD = 4096
"""How far after what an x86 processor reads of a weight its cache is asked for more, in bytes: one page
(benchmarks/results/choices.md)."""

AHEAD_OF_STORES = 1024
"""The same of what it writes: the core owns the lines then before the stores wait for them, and of a chunk of
16 KB no more than a sixteenth is another core's (benchmarks/results/choices.md)."""

# figures: benchmarks/results/units.md
_AVX512 = _simd(
    "avx512", 512, 32, masked=True, cache_bytes=(32 * 1024, 1024 * 1024),
    figures=Figures(operations=2.04e11, bandwidth=2.91e10, launch=1.32e-8),
)  # fmt: skip
_AVX2 = _simd("avx2", 256, 16, masked=True, figures=Figures(1.52e11, 1.85e10, 1.66e-8))
_SSE4 = _simd("sse4.2", 128, 16, fma=False)
_NEON64 = _simd("neon", 128, 32, lane_operands=True)
_NEON32 = _simd("neon32", 128, 16)
_RISCV = _simd("rv64", 0, 32)
_RVV = _simd("rv64v", 128, 32)

_TUNED = {"cortex-a55": "+slow-paired-128"}
"""A core's name -> how LLVM is to write code for it beyond what its own tables make it do. The A55's table
has 6 cycles for a pair of 128-bit loads and 1 for each alone, but pairs are made without asking it
(benchmarks/results/arm.md)."""
_RISCV_V = ("spacemit-x60", "sifive-x280", "sifive-p670", "tt-ascalon-d8")


def cpu_for(triple: str, cpu: str, features: str | Mapping[str, bool] = "") -> Cpu:
    """The row for an LLVM triple, cpu name and features (a string, or names with truth values).

    Raises SmeltError(kind='unsupported') for an architecture that has no row.
    """
    flags = _flags(features)
    text = ",".join(("+" if on else "-") + name for name, on in sorted(flags.items()))
    arch = triple.split("-")[0]
    row = _ROWS.get(arch)
    if row is None:
        known = ", ".join(sorted(_ROWS))
        raise SmeltError(f"no code generator for '{arch}'; there is {known}", kind="unsupported")
    return row(triple, cpu, text, flags)


def machine_for(triple: str, cpu: str, features: str | Mapping[str, bool] = "") -> Machine:
    """The processor's Machine, for schedules. Raises as `cpu_for`."""
    return cpu_for(triple, cpu, features).machine


def _flags(features: str | Mapping[str, bool]) -> dict[str, bool]:
    if not isinstance(features, str):
        return dict(features)
    return {f[1:]: f[0] == "+" for f in features.split(",") if f}


def _x86(triple: str, cpu: str, text: str, flags: dict[str, bool]) -> Cpu:
    there = features_of("x86_64", cpu, flags)
    wide, middle = there >= {"avx512f", "avx512vl"}, there >= {"avx2", "fma"}
    row, lanes = (_AVX512, 16) if wide else (_AVX2, 8) if middle else (_SSE4, 4)
    rows = x86.rows(lanes, there)
    machine = replace(row, instructions=rows, ahead=AHEAD, ahead_of_stores=AHEAD_OF_STORES)
    if middle:
        return Cpu(triple, cpu, machine, text, half=wide or "f16c" in there, saturates=False)
    return Cpu(triple, cpu, machine, text, half=False, rounding=cpu != "x86-64", saturates=False)


def _aarch64(triple: str, cpu: str, text: str, flags: dict[str, bool]) -> Cpu:
    machine = replace(_NEON64, instructions=arm.rows(features_of("aarch64", cpu, flags), cpu))
    text = ",".join(filter(None, (text, _TUNED.get(cpu, ""))))
    return Cpu(triple, cpu, machine, text, propagating=True)


def _armv7(triple: str, cpu: str, text: str, flags: dict[str, bool]) -> Cpu:
    # vfp4 brings fused multiply-add and conversions of halves; without it fma would be libm calls.
    fused = flags.get("vfp4", cpu in ("cortex-a7", "cortex-a15", "cortex-a17"))
    vectors = replace(_NEON32, instructions=arm.ROWS_32) if flags.get("neon", True) else replace(
        _NEON32, vector_bits=0
    )
    machine = replace(vectors, fma=fused)
    return Cpu(triple, cpu, machine, text, index_bits=32, half=False, rounding=False)


def _riscv64(triple: str, cpu: str, text: str, flags: dict[str, bool]) -> Cpu:
    machine = _RVV if flags.get("v", cpu in _RISCV_V) else _RISCV
    return Cpu(triple, cpu, machine, text, half=False, rounding=False, abi="lp64d")


_ROWS = {
    "x86_64": _x86,
    "aarch64": _aarch64,
    "arm64": _aarch64,
    "armv7": _armv7,
    "armv7a": _armv7,
    "arm": _armv7,
    "thumbv7": _armv7,
    "riscv64": _riscv64,
}


def host() -> Cpu:
    """The processor that this process runs on."""
    import llvmlite.binding as llvm

    # LLVM names features of its newest tables; those that are off say nothing that a cpu name does not.
    on = {name: True for name, there in llvm.get_host_cpu_features().items() if there}
    return cpu_for(llvm.get_process_triple(), llvm.get_host_cpu_name(), on)
