"""Rows of the op table, scheduled or naive, agree with their references on a Vulkan device."""

from __future__ import annotations

import pytest
from device_ops import BY_OP, NAIVE, ROWS, check, naive
from spirv_checks import NO_VALIDATOR, VALIDATOR, valid
from vulkan_run import Failed, OnVulkan

from smelt.core.schedule.module import schedule_kernel
from smelt.targets.vulkan.emit import emit_parts
from smelt.targets.vulkan.machine import MACHINE


@pytest.mark.table(3, 2)  # the other devices' tests run the others
@pytest.mark.parametrize("name", sorted(BY_OP))
def test_scheduled(name: str) -> None:
    check(OnVulkan, BY_OP[name], schedule_kernel(naive(BY_OP[name]), MACHINE)).session.close()


@pytest.mark.parametrize("name", NAIVE)
def test_naive(name: str) -> None:
    """One invocation does all, which may be more rounds of loops than llvmpipe runs: then it is refused."""
    try:
        check(OnVulkan, NAIVE[name], naive(NAIVE[name])).session.close()
    except Failed as e:
        if "-1004" not in str(e):
            raise
        pytest.skip("more rounds of loops than llvmpipe runs")


@pytest.mark.skipif(VALIDATOR is None, reason=NO_VALIDATOR)
@pytest.mark.parametrize("eighth", range(8))
def test_every_row_is_valid(eighth: int) -> None:
    parts = 0
    for row in ROWS[eighth::8]:
        for kernel in (naive(row), schedule_kernel(naive(row), MACHINE)):
            for p in emit_parts([kernel.with_(name=row.name)]).values():
                valid(p.words)
                parts += 1
    assert parts >= len(ROWS) // 8
