"""Rows of the op table, scheduled for threads or left naive, in the code for CUDA lowered to this machine."""

from __future__ import annotations

import pytest
from cuda_run import OnHost
from device_ops import BY_OP, NAIVE, check, naive

from smelt.core.schedule.module import schedule_kernel
from smelt.targets.cuda.machine import MACHINE


@pytest.mark.table(3, 1)  # the other devices' tests run the others
@pytest.mark.parametrize("name", sorted(BY_OP))
def test_scheduled(name: str) -> None:
    check(OnHost, BY_OP[name], schedule_kernel(naive(BY_OP[name]), MACHINE))


@pytest.mark.parametrize("name", NAIVE)
def test_naive(name: str) -> None:
    check(OnHost, NAIVE[name], naive(NAIVE[name]))
