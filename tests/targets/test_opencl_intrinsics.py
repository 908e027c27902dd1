"""Every intrinsic on every dtype it takes, at edge values, on an OpenCL device, against its NumPy meaning."""

from __future__ import annotations

import device_intrinsics as checks
import pytest
from intrinsic_dtypes import ANY, BY_FN
from opencl_run import OnDevice

from smelt.core.dtype import DType


@pytest.mark.parametrize("fn", sorted(BY_FN))
def test_intrinsic(fn: str) -> None:
    checks.check_intrinsic(OnDevice, fn)


@pytest.mark.parametrize("source", ANY, ids=str)
def test_cast(source: DType) -> None:
    checks.check_cast(OnDevice, source)


def test_cast_to_half_inside_an_expression() -> None:
    checks.check_cast_to_half_inside_an_expression(OnDevice)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_bitcast(width: int) -> None:
    checks.check_bitcast(OnDevice, width)


def test_literals() -> None:
    checks.check_literals(OnDevice)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reduction(kind: str) -> None:
    checks.check_reduction(OnDevice, kind)


def test_empty_reductions() -> None:
    checks.check_empty_reductions(OnDevice)
