"""Every row of every instruction set: its meaning runs, is a product of matrices, and is found in kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.dim import Facts
from smelt.core.ir.instructions import Match, match, meaning
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Loop, walk
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Instruction, Machine
from smelt.core.schedule.schedule import apply, parse
from smelt.core.schedule.tree import ScheduleError
from smelt.targets.cpu_features import ASKED
from smelt.targets.instructions import arm, nvidia, x86
from smelt.targets.instructions.meanings import dot
from smelt.targets.llvm.instructed import code_of
from smelt.targets.llvm.machines import machine_for

CPU_ROWS = (*(row for table in x86.REGISTERS.values() for row in table.values()), *arm.ROWS, *arm.ROWS_32)
ROWS = {r.name: r for r in (*CPU_ROWS, *nvidia.ROWS)}


def registers(row: Instruction) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(len(row.name))
    found = []
    for b in meaning(row).kernel.inputs:
        low = 0 if b.dtype.category == "uint" else -99
        found.append(rng.integers(low, 99, [d.const for d in b.shape]).astype(b.dtype.numpy))
    return found


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_is_a_kernel(row: Instruction) -> None:
    want = meaning(row)
    verify_kernel(want.kernel, "lowered", strict=True)
    assert want.kernel.name == row.name
    assert isinstance(match(want.kernel.body[-1:], row, Facts()), Match)
    assert row.macs > 0 and row.latency > 0 and row.source


@pytest.mark.parametrize("row", CPU_ROWS, ids=[r.name for r in CPU_ROWS])
def test_a_row_multiplies_a_matrix(row: Instruction) -> None:
    a, b, c = registers(row)
    (got,) = run_kernel(meaning(row).kernel, {}, [a, b, c])
    depth = meaning(row).depth
    left, right = (x.astype(c.dtype).reshape(-1, depth) for x in (a, b))
    shape = (len(left), len(right))
    np.testing.assert_array_equal(got.reshape(shape), left @ right.T + c.reshape(shape))


@pytest.mark.parametrize("row", CPU_ROWS, ids=[r.name for r in CPU_ROWS])
def test_a_row_that_sums_several_terms_has_code(row: Instruction) -> None:
    assert meaning(row).depth == 1 or code_of(row.name)
    arch = "aarch64" if row in arm.ROWS else "x86_64"
    assert set(row.features) <= set(ASKED[arch])  # asked for before any code runs


def _words(bits: int) -> set[str]:
    return {f"{n}.{bits}" for n in ("vpmaddwd", "vpmaddwd.i8", "vpmaddwd.i16")}


LEVELS = {
    ("x86_64-linux", "x86-64-v2", ""): _words(128),
    ("x86_64-linux", "x86-64-v3", ""): {"vfmadd.256", *_words(256)},
    ("x86_64-linux", "x86-64-v3", "+avxvnni"): {
        "vfmadd.256", *_words(256), "vpdpbusd.256", "vpdpbusd.i8.256",
    },
    ("x86_64-linux", "alderlake", ""): {
        "vfmadd.256", *_words(256), "vpdpbusd.256", "vpdpbusd.i8.256",
    },
    ("x86_64-linux", "x86-64-v4", ""): {"vfmadd.512", *_words(512)},
    ("x86_64-linux", "icelake-server", ""): {
        "vfmadd.512", *_words(512), "vpdpbusd.512", "vpdpbusd.i8.512",
    },
    ("aarch64-linux", "cortex-a53", ""): {"fmla", "smull"},
    ("aarch64-linux", "cortex-a76", ""): {"fmla", "smull", "sdot", "udot"},
    ("aarch64-linux", "cortex-a76", "-dotprod"): {"fmla", "smull"},
    ("aarch64-linux", "cortex-x2", ""): {
        "fmla", "smull", "sdot", "udot", "usdot", "smmla", "ummla", "usmmla",
    },
    ("armv7-linux", "cortex-a7", ""): {"vmull.s8"},
    ("armv7-linux", "cortex-a7", "-neon"): set(),
}


@pytest.mark.parametrize("level", LEVELS, ids=lambda x: f"{x[1]}{x[2]}")
def test_rows_of_a_processor(level: tuple[str, str, str]) -> None:
    plain = ("vpmulld", "smlal")
    found = {r.name for r in machine_for(*level).instructions}
    assert {n for n in found if not n.startswith(plain)} == LEVELS[level]


WORDS = """
kernel @words(a: u8[9], b: i8[4, 4]) -> (y: i32[4]) {
  serial k in 4 { serial j in 4 { y[j] add= cast:i32((a[k + 3] if (GUARD))) * cast:i32(b[j, k]) } }
}"""
GUARDS = {
    "none": ("0 <= 3 < 9", True),
    "all": ("0 <= k < 4", True),
    "the first": ("0 <= k < 3", True),
    "the first two": ("0 <= k < 3, 0 <= 3*k < 5", True),
    "one": ("0 <= k + 5 < 6", True),
    "not one": ("4 <= k < 9", True),
    "of the other axis": ("0 <= j < 3", False),
    "the last": ("1 <= k < 4", False),
    "the last, downwards": ("0 <= 2 - k < 2", False),
    "the middle": ("1 <= k < 3", False),
    "the last, by two": ("0 <= k < 3, 1 <= k < 4", False),
}


@pytest.mark.parametrize("name", GUARDS)
def test_words_are_the_first_terms_of_a_guard(name: str) -> None:
    """A guarded operand is read as one word with zeros above: a guard that begins later is refused."""
    guard, fits = GUARDS[name]
    kernel = parse_kernel(WORDS.replace("GUARD", guard))
    row = replace(x86.REGISTERS[8]["vpdpbusd"], meaning=dot("narrow", "u8", "i8", 4, 4))
    found = match(kernel.body, row, Facts())
    assert isinstance(found, Match) == fits, found


FIELDS = """
kernel @fields(a: i8[32], b: u8[4, 8], y: i32[4]) -> (d: i32[4]) {
  unroll h in 2 { serial k in 4 { serial j in 4 {
    d[j] add= cast:i32(a[4*h + k]) * and(shr(cast:i32(b[j, k]), [SHIFT]:i32), MASK:i32)
  } } }
}"""
PARTS = {
    "halves": ("4*h", 15, ""), "halves of signed bytes": ("4*h", 15, "i8"), "one bit": ("h + 6", 1, ""),
    "beyond the byte": ("4*h + 1", 15, "not one of each byte"), "below it": ("h - 1", 1, "not one of each"),
    "of each byte another": ("k", 1, "not one of each"), "not the lowest bits": ("4*h", 14, "product of"),
    "all": ("0*h", 255, ""), "a sign": ("0*h", 255, "i8, product of"),
}  # fmt: skip
"""where a field starts, its mask, and why it is no operand; or that the row's right operand has a sign."""


@pytest.mark.parametrize("name", PARTS)
def test_a_field_of_each_byte_is_an_operand(name: str) -> None:
    shift, mask, why = PARTS[name]
    kernel = parse_kernel(FIELDS.replace("SHIFT", shift).replace("MASK", str(mask)))
    right, why = ("i8", why[2:].lstrip(", ")) if why.startswith("i8") else ("u8", why)
    row = replace(x86.REGISTERS[8]["vpdpbusd"], meaning=dot("narrow", "i8", right, 4, 4))
    (outer,) = kernel.body
    assert isinstance(outer, Loop)
    found = match(outer.body, row, Facts({"h": (0, 1)}))
    if why:
        assert isinstance(found, str) and why in found, found
    else:
        assert isinstance(found, Match) and found.fields[1] is not None, found
        assert found.fields[0] is None and found.fields[1].mask == mask


WARP = """
kernel @warp(n: dim in 0..*, a: f16[16, 16], b: f16[16, 8]) -> (y: f32[16, 8]) {
  group g in 1 {
    register s: f32[8, 4, 2, 2]
    lane u in 8 { lane v in 4 { unroll i in 2 { unroll j in 2 { s[u, v, i, j] = 0.0:f32 } } } }
    lane u in 8 { lane v in 4 { unroll k in 16 { unroll i in 2 { unroll j in 2 {
      s[u, v, i, j] fma= cast:f32(a[8*i + u, k]) * cast:f32(b[k, 2*v + j])
    } } } } }
    lane u in 8 { lane v in 4 { unroll i in 2 { unroll j in 2 { y[8*i + u, 2*v + j] = s[u, v, i, j] } } } }
  }
}"""
GPU = Machine("gpu", 0, 64, levels=("group", "lane"), max_lanes=32, instructions=nvidia.ROWS)
BY = "replace k mma.m16n8k16.f16"


def test_a_warp_multiplies_matrices() -> None:
    """The rows and columns of a lane are those that PTX gives it, the product put in by `replace`."""
    done = apply(parse_kernel(WARP), parse(BY), GPU.instructions)
    assert [getattr(s, "by", "") for s in walk(done.body)].count("mma.m16n8k16.f16") == 1
    assert parse_kernel(print_kernel(done)) == done
    verify_kernel(done, "scheduled", machine=GPU)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float16) for s in ((16, 16), (16, 8)))
    (got,) = run_kernel(done, {"n": 1}, [a, b])
    np.testing.assert_allclose(got, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a[8*i + u, k]", "a[2*u + i, k]"),
        ("a[8*i + u, k]", "a[8*i + u, min(k, v + 12)]"),
        ("b[k, 2*v + j]", "b[k, 4*j + v]"),
        ("a[8*i + u, k]", "a[8*i + 2*v, k]"),
        ("lane u in 8 { lane v in 4 { unroll k", "lane v in 4 { lane u in 8 { unroll k"),
    ],
)
def test_lanes_that_have_other_rows_are_refused(old: str, new: str) -> None:
    with pytest.raises(ScheduleError, match=r"as the row says|are not of 8 and 4"):
        apply(parse_kernel(WARP.replace(old, new)), parse(BY), GPU.instructions)


def test_lanes_must_come_together() -> None:
    """Inside of a guard some lanes may be missing."""
    done = print_kernel(apply(parse_kernel(WARP), parse(BY), GPU.instructions))
    apart = done.replace("block by mma", "block if (0 <= u < n) { block by mma", 1)
    at = apart.index("block by mma")
    end = at + apart[at:].index("lane u in 8")
    kernel = parse_kernel(apart[:end] + "}" + apart[end:])
    with pytest.raises(SmeltError, match="its lanes may not all come here"):
        verify_kernel(kernel, "scheduled", machine=GPU)
