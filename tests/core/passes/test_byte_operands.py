"""Operands of products of bytes are brought into the form that instructions of the machine take, no other."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from rule_forms import build
from rule_text import text_of

from smelt.core.machine import Instruction, Machine
from smelt.core.passes.quantized.byte_operands import channels, signs, words
from smelt.targets.instructions.meanings import dot
from smelt.targets.llvm.machines import machine_for
from tests.core.passes.build import CONTEXT

X86, ARM = "x86_64-linux", "aarch64-linux"
MACHINES = {
    "none": Machine("none", 256, 16),
    "pairs": machine_for(ARM, "cortex-a53", ""),  # i8 by i8, u8 by u8, two at a time
    "dotprod": machine_for(ARM, "cortex-a76", ""),  # the same, four at a time
    "i8mm": machine_for(ARM, "cortex-x2", ""),  # and u8 by i8
    "sse": machine_for(X86, "x86-64-v2", ""),  # u8 by i8
    "avx2": machine_for(X86, "x86-64-v3", ""),
    "avx512": machine_for(X86, "icelake-server", ""),
    "eight": Machine("eight", 128, 32, instructions=(
        Instruction("eight", dot("eight", "u8", "i8", 8, 4), 32, 4, "a test"),
    )),
}  # fmt: skip
PRODUCT = "x: {}[N, 10]; w: i8[10, 4] = draw; matmul(x, w)"
CONV = "x: {}[N, H, {}]; w: i8[3, {}, 4] = draw; conv(x, w, channels_last=True)"


def changed(run: object, form: str, machine: str) -> bool:
    before = build(ast.parse(form))
    assert callable(run)
    return text_of(run(before, replace(CONTEXT, machine=MACHINES[machine]))) != text_of(before)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("form", [PRODUCT, CONV.replace("{}]", "6]").replace("3, {}", "3, 6")])
def test_bytes_are_signed_where_only_signed_ones_have_a_row(form: str, machine: str) -> None:
    assert changed(signs, form.format("u8"), machine) == (machine in {"pairs", "dotprod"})
    assert not changed(signs, form.format("i8"), machine)


FILLED = {
    ("u8", 3): {"i8mm", "sse", "avx2", "avx512"},
    ("i8", 3): {"dotprod", "i8mm"},
    ("u8", 7): {"eight"},
    ("u8", 4): set[str](),
    ("i8", 1): set[str](),
}
"""(the bytes, how many channels) -> the machines with a row whose depth is one more, which saves a load."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", FILLED, ids=lambda c: f"{c[0]}-{c[1]}")
def test_channels_fill_the_depth_of_a_row(case: tuple[str, int], machine: str) -> None:
    dtype, n = case
    assert changed(channels, CONV.format(dtype, n, n), machine) == (machine in FILLED[case])


NBITS = (
    "x: i8[N, 2, 16]; t: f32[N, 2, 1]; q: u8[4, 2, {}] = draw(0, 255); s: f32[4, 2] = draw; "
    "matmul_nbits(reshape(dequantize_blocks(x, t, axis=2, block=16), shape=(N, 32)), q, s, bits={}, block=16)"
)
X86_MACHINES = {"sse", "avx2", "avx512"}
SIGNED_MACHINES = {*X86_MACHINES, "pairs", "dotprod", "i8mm"}
IN_WORDS = {2: SIGNED_MACHINES, 4: SIGNED_MACHINES, 8: X86_MACHINES}
"""Bits of packed weights -> the machines with a row for i8 times their bytes, or times fields of these."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("bits", IN_WORDS)
def test_packed_weights_come_in_words_where_a_row_takes_them(bits: int, machine: str) -> None:
    assert changed(words, NBITS.format(2 * bits, bits), machine) == (machine in IN_WORDS[bits])
