"""Rows of NVIDIA's warp-level matrix instructions: what 32 lanes compute together out of their registers.

Where an element lies is an expression: lane (first axis) and place in the lane's registers (second axis), as
the PTX ISA gives the fragments of mma.m16n8k16 (section "Matrix Fragments for mma.m16n8k16 with
floating point type").
"""

from __future__ import annotations

from smelt.core.machine import Instruction

_M16N8K16 = """
kernel @mma.m16n8k16(a: f16[32, 8], b: f16[32, 4], c: f32[32, 4]) -> (d: f32[32, 4]) {
  serial l in 32 { serial r in 4 { d[l, r] = c[l, r] } }
  serial k in 16 { serial i in 16 { serial j in 8 {
    d[4*(i % 8) + j//2, 2*(i//8) + j % 2] fma=
      cast:f32(a[4*(i % 8) + (k % 8)//2, 4*(k//8) + 2*(i//8) + k % 2])
        * cast:f32(b[4*j + (k % 8)//2, 2*(k//8) + k % 2])
  } } }
}"""

ROWS: tuple[Instruction, ...] = (
    # 256 halves per cycle and tensor core, 4 of these in a streaming multiprocessor
    Instruction("mma.m16n8k16", _M16N8K16, 1024, 33, "NVIDIA A100 whitepaper; PTX ISA 8.5", ("sm_80",)),
)
