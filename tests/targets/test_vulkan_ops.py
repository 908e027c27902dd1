"""Rows of the op table, scheduled or naive, agree with their references on a Vulkan device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from device_ops import BY_OP, NAIVE, OTHER, check, naive
from op_cases import Row
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


def check_validity(rows: Sequence[Row]) -> None:
    parts = 0
    for row in rows:
        for kernel in (naive(row), schedule_kernel(naive(row), MACHINE)):
            for p in emit_parts([kernel.with_(name=row.name)]).values():
                valid(p.words)
                parts += 1
    assert parts >= len(rows)


@pytest.mark.skipif(VALIDATOR is None, reason=NO_VALIDATOR)
def test_every_op_is_valid() -> None:
    check_validity(list(BY_OP.values()))


@pytest.mark.skipif(VALIDATOR is None, reason=NO_VALIDATOR)
@pytest.mark.table(3, 2)  # OpenCL's test emits others, by what the two emitters share
@pytest.mark.parametrize("slice_", range(6))
def test_every_row_is_valid(slice_: int) -> None:
    check_validity(OTHER[slice_::6])
