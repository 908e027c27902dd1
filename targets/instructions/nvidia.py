"""Rows of NVIDIA's warp-level matrix instructions: what each of 32 lanes computes of what they do together.

The operands' order in registers is the emitter's business (targets/cuda/matrix.py); what a lane has of the
sum is that of the PTX ISA, section "Matrix Fragments for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from smelt.core.machine import Instruction

_M16N8K16 = """
kernel @{name}(a: {kind}[2, 16], b: {kind}[2, 16], c: f32[2, 2]) -> (d: f32[2, 2]) {{
  serial i in 2 {{ serial j in 2 {{ d[i, j] = c[i, j] }} }}
  serial k in 16 {{ serial i in 2 {{ serial j in 2 {{
    d[i, j] fma= cast:f32(a[i, k]) * cast:f32(b[j, k])
  }} }} }}
}}"""


def _row(name: str, kind: str) -> Instruction:
    # 256 halves per cycle and tensor core, 4 of these in a streaming multiprocessor
    source = "NVIDIA A100 whitepaper; PTX ISA 8.5"
    return Instruction(name, _M16N8K16.format(name=name, kind=kind), 1024, 33, source, ("sm_80",), (8, 4))


ROWS: tuple[Instruction, ...] = (_row("mma.m16n8k16.f16", "f16"), _row("mma.m16n8k16.bf16", "bf16"))


def rows(architecture: str) -> tuple[Instruction, ...]:
    """Those that an architecture such as 'sm_87' has."""

    def number(name: str) -> int:
        return int(name.removeprefix("sm_"))

    return tuple(r for r in ROWS if all(number(f) <= number(architecture) for f in r.features))
