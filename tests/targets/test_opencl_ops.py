"""Rows of the op table, scheduled for work-items or left naive, agree with their references on a device."""

from __future__ import annotations

import pytest
from device_ops import BY_OP, NAIVE, ROWS, check, naive
from opencl_run import OnDevice

from smelt.core.schedule.module import schedule_kernel
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE


@pytest.mark.table(3, 0)  # the other devices' tests run the others
@pytest.mark.parametrize("name", sorted(BY_OP))
def test_scheduled(name: str) -> None:
    check(OnDevice, BY_OP[name], schedule_kernel(naive(BY_OP[name]), MACHINE))


@pytest.mark.parametrize("name", NAIVE)
def test_naive(name: str) -> None:
    check(OnDevice, NAIVE[name], naive(NAIVE[name]))


@pytest.mark.table(2, 0)  # Vulkan's test emits others, by what the two emitters share
@pytest.mark.parametrize("slice_", range(6))
def test_every_row_is_emitted(slice_: int) -> None:
    kernels = [naive(r).with_(name=r.name) for r in ROWS[slice_::6]]
    source, parts = emit_program(kernels)
    assert all(p.lanes == 1 for p in parts.values())
    assert source.count("__kernel ") == len(parts)
    source, parts = emit_program([schedule_kernel(k, MACHINE) for k in kernels])
    assert sum(p.lanes > 1 for p in parts.values()) > len(parts) // 2
