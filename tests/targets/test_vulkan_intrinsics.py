"""Every intrinsic on every dtype it takes, at edge values, on a Vulkan device, against its NumPy meaning."""

from __future__ import annotations

import device_intrinsics as checks
import pytest
from intrinsic_dtypes import ANY, BY_FN
from vulkan_run import OnVulkan

from smelt.core.dtype import DType


@pytest.mark.parametrize("fn", sorted(BY_FN))
def test_intrinsic(fn: str) -> None:
    checks.check_intrinsic(OnVulkan, fn, fuses=False)


@pytest.mark.parametrize("source", ANY, ids=str)
def test_cast(source: DType) -> None:
    checks.check_cast(OnVulkan, source)


def test_cast_to_half_inside_an_expression() -> None:
    checks.check_cast_to_half_inside_an_expression(OnVulkan)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_bitcast(width: int) -> None:
    checks.check_bitcast(OnVulkan, width)


def test_literals() -> None:
    checks.check_literals(OnVulkan)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reduction(kind: str) -> None:
    checks.check_reduction(OnVulkan, kind)


def test_empty_reductions() -> None:
    checks.check_empty_reductions(OnVulkan)
