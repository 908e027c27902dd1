"""What a System says that kernels and copies take, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from smelt.core.machine import COSTS, Figures, Machine
from smelt.core.system import System, Weighing, is_auto, system_of, weighing_of

PLAIN = Machine("plain", 0, 16)
UNITS = {
    "cpu": replace(PLAIN, figures=Figures(100.0, 10.0, 0.5)),
    "gpu": replace(PLAIN, figures=Figures(1000.0, 100.0, 2.0, link=5.0, copy=1.0)),
    "npu": replace(PLAIN, figures=Figures(math.inf, math.inf, 0.0)),
}
SYSTEM = System(UNITS)


def test_kernels_take_the_longer_of_arithmetic_and_memory() -> None:
    assert SYSTEM.kernel_seconds("cpu", 500, 20) == 0.5 + 5
    assert SYSTEM.kernel_seconds("cpu", 50, 20) == 0.5 + 2
    assert SYSTEM.kernel_seconds("npu", 10**30, 10**30) == 0


def test_functions_take_as_many_multiply_adds_as_the_machine_says() -> None:
    calls = {"exp": 10}
    assert SYSTEM.kernel_seconds("cpu", 10, 0, calls) == 0.5 + 10 * 2 * COSTS["exp"] / 100
    own = System({"cpu": replace(UNITS["cpu"], costs={"exp": 2})})
    assert own.kernel_seconds("cpu", 10, 0, calls) == 0.5 + 10 * 2 * 2 / 100


def test_copies_between_devices_go_through_the_host() -> None:
    assert SYSTEM.copy_seconds("cpu", "gpu", 20) == SYSTEM.copy_seconds("gpu", "cpu", 20) == 1 + 4
    assert SYSTEM.copy_seconds("cpu", "npu", 20) == 0, "its memory is the host's"
    assert SYSTEM.copy_seconds("npu", "gpu", 20) == 5
    two = System({**UNITS, "npu": UNITS["gpu"]})
    assert two.copy_seconds("npu", "gpu", 20) == 10
    assert two.copy_seconds("gpu", "gpu", 20) == 0


def test_figures_that_are_given_stand_in_the_place_of_known_ones() -> None:
    found = system_of(UNITS, {"gpu.copy": 0.25})
    assert found.machines["gpu"].figures == Figures(1000.0, 100.0, 2.0, link=5.0, copy=0.25)
    assert found.machines["cpu"] == UNITS["cpu"]
    rates = {"cpu.operations": 1.0, "cpu.bandwidth": 2.0, "cpu.launch": 3.0}
    assert system_of({"cpu": PLAIN}, rates).machines["cpu"].figures == Figures(1.0, 2.0, 3.0)


def test_what_a_rule_says() -> None:
    assert is_auto("auto") and is_auto("auto@n=3") and not is_auto("autobus") and not is_auto("cpu")
    assert weighing_of("auto", UNITS) == Weighing({}, {})
    assert weighing_of("auto@gpu.link=8e9;n=3", UNITS) == Weighing({"gpu.link": 8e9}, {"n": 3})


@pytest.mark.parametrize("name", ["seq", "DynamicDimension.0", "a=b"])
def test_dims_have_any_name(name: str) -> None:
    assert weighing_of(f"auto@{name}=7;", UNITS) == Weighing({}, {name: 7})


def test_the_first_of_two_holds() -> None:
    first = Weighing({"gpu.link": 1.0}, {"n": 3})
    then = Weighing({"gpu.link": 2.0, "gpu.copy": 3.0}, {"m": 4})
    assert first | then == Weighing({"gpu.link": 1.0, "gpu.copy": 3.0}, {"n": 3, "m": 4})
