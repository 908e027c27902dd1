"""Which loop of an assembly text is the busiest, what counts as its arithmetic, and what as a spill."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks/arm_loops.py"


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    spec = importlib.util.spec_from_file_location("arm_loops", FILE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["arm_loops"] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


PRODUCT = """
f:
.LBB0_1:                                // outer
\tadd\tx9, x9, #1
.LBB0_2:                                // inner
\tldr\tq1, [x8], #16
\tldr\tq2, [sp, #32]
\tfmla\tv0.4s, v1.4s, v2.s[1]
\tfmla\tv3.4s, v1.4s, v2.s[2]
\tb.lt\t.LBB0_2
\tfmla\tv4.4s, v1.4s, v2.s[2]
\tfmla\tv5.4s, v1.4s, v2.s[2]
\tfmla\tv6.4s, v1.4s, v2.s[2]
\tcbnz\tx9, .LBB0_1
.LBB0_3:
\tfadd\tv0.4s, v1.4s, v2.4s
\tfadd\tv0.4s, v1.4s, v2.4s
\tdup\tv7.4s, v1.s[0]
\tfadd\tv0.4s, v1.4s, v2.4s
\tbl\texpf
\tb.ne\t.LBB0_3
\tret
"""


def test_the_inner_loop_with_most_products_is_found(loops: ModuleType) -> None:
    loop = loops.busiest(PRODUCT)
    assert [loops.mnemonic(x) for x in loop.lines] == ["ldr", "ldr", "fmla", "fmla", "b.lt"]
    assert (len(loop.arithmetic), loop.spills, loop.calls) == (2, 1, False)


def test_other_arithmetic_counts_where_nothing_multiplies_and_adds(loops: ModuleType) -> None:
    loop = loops.busiest(PRODUCT.replace("fmla", "ldr"))
    assert [loops.mnemonic(x) for x in loop.arithmetic] == ["fadd"] * 3
    assert loop.calls and not loop.spills


def test_no_loop_is_none(loops: ModuleType) -> None:
    assert loops.busiest("f:\n\tfmla\tv0.4s, v1.4s, v2.4s\n\tret\n") is None
    assert loops.busiest("f:\n.LBB0_1:\n\tadd\tx0, x0, #1\n\tb.lt\t.LBB0_1\n") is None


def test_every_core_has_a_source(loops: ModuleType) -> None:
    assert {c.compiled for c in loops.CORES.values()} == set(loops.CORES)
    assert all(c.model and c.why for c in loops.CORES.values())
