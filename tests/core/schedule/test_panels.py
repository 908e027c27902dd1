"""Weights in panels of one width for machines whose vectors differ: the same bytes, the kernels' meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kept_meaning import kept
from naive_kernels import check, op_kernel
from strategy_kernels import KERNELS

from smelt.core.dtype import i8, i32, u8
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.layout import Layout
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.strategies import draft
from smelt.targets.instructions import x86

PANEL = 256
PLAIN = tuple(Machine(f"of{bits}", bits, 16, masked=bits > 64) for bits in (64, 128, 256))
SHARING = tuple(replace(m, panel_bits=PANEL) for m in PLAIN)


def layouts(name: str, machine: Machine) -> tuple[Layout | None, ...]:
    naive, constants, _ = KERNELS[name]
    return tuple(b.layout for b in draft(naive, machine, frozenset(constants)).kernel.inputs)


PACKED = [name for name, (_, constants, _) in KERNELS.items() if constants and any(layouts(name, PLAIN[0]))]


@pytest.mark.parametrize("machine", SHARING, ids=lambda m: m.name)
@pytest.mark.parametrize("name", PACKED)
def test_meaning_is_kept(name: str, machine: Machine) -> None:
    """A tile reads a part of a panel, a whole one, or several side by side, the last of them padded."""
    kept(name, machine)


CUT = {"conv-grouped"}
"""Kernels whose groups of columns begin inside a panel: each machine has tiles there as it had alone."""


@pytest.mark.parametrize("name", PACKED)
def test_weights_lie_alike(name: str) -> None:
    if name in CUT:
        assert [layouts(name, m) for m in SHARING] == [layouts(name, m) for m in PLAIN]
    else:
        assert len({layouts(name, m) for m in SHARING}) == 1


def test_without_a_common_width_they_lie_as_each_is_fastest() -> None:
    assert any(len({layouts(name, m) for m in PLAIN}) > 1 for name in PACKED)


def widths(kernel: Kernel) -> set[int]:
    """Columns of the panels."""
    found = (b.layout.spec.dims[-1] for b in kernel.inputs if b.layout is not None)
    return {d.factor for d in found if d.part == "inner"}


def test_panels_have_the_width_of_their_elements() -> None:
    naive, constants, _ = KERNELS["matmul-packed"]
    for machine in SHARING:
        assert widths(draft(naive, machine, frozenset(constants)).kernel) == {PANEL // 32}


def test_any_number_of_columns_has_the_instruction_of_its_bytes() -> None:
    """But for one that is left alone inside a panel."""
    machine = Machine("words", 128, 16, panel_bits=2 * PANEL, instructions=x86.rows(4, frozenset({"sse4.1"})))
    for columns in range(2, 42):
        naive = op_kernel("matmul", [("m", 8), (8, columns)], ("m", columns), dtypes=[u8, i8], out_dtype=i32)
        d = draft(naive, machine, frozenset("b"))
        assert "replace" in d.kernel.schedule, columns
        verify_kernel(d.kernel, "scheduled", machine=machine)
        check(naive, d.kernel, {"m": 2}, rtol=0)


@pytest.mark.parametrize("machine", SHARING, ids=lambda m: m.name)
def test_any_number_of_columns_is_packed(machine: Machine) -> None:
    """One that is left alone inside a panel, too."""
    wide = replace(machine, panel_bits=2 * PANEL)
    for columns in range(2, 42):
        naive = op_kernel("matmul", [("m", 3), (3, columns)], ("m", columns))
        d = draft(naive, wide, frozenset("b"))
        assert widths(d.kernel), columns
        verify_kernel(d.kernel, "scheduled", machine=wide)
        check(naive, d.kernel, {"m": 2}, rtol=2e-5)
