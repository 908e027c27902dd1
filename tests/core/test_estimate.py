"""Occupancy against numbers of NVIDIA's occupancy calculator; the roofline against its two lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smelt.core.estimate import occupancy, roofline
from smelt.core.machine import Machine, Residency
from smelt.targets.cuda.machine import machine_of

PLAIN = Machine("plain", 0, 16)


@pytest.mark.parametrize(
    ("architecture", "lanes", "registers", "shared", "groups", "share", "limit"),
    [
        ("sm_80", 256, 32, 0, 8, 1.0, "lanes"),
        ("sm_80", 256, 64, 0, 4, 0.5, "registers"),
        ("sm_80", 128, 33, 0, 12, 0.75, "registers"),  # by 256 registers a warp: 40 of them a thread
        ("sm_80", 128, 32, 48 * 1024, 3, 0.1875, "shared memory"),  # 1 KiB each is the system's
        ("sm_72", 128, 32, 48 * 1024, 2, 0.125, "shared memory"),
        ("sm_87", 32, 16, 0, 16, 1 / 3, "groups"),
        ("sm_75", 1024, 64, 0, 1, 1.0, "lanes"),
        ("sm_90", 48, 16, 0, 32, 1.0, "lanes"),  # a warp that is not full takes the room of one
    ],
)
def test_occupancy(
    architecture: str, lanes: int, registers: int, shared: int, groups: int, share: float, limit: str
) -> None:
    found = occupancy(machine_of(architecture), lanes, registers, shared)
    assert found is not None
    assert (found.groups, found.share, found.limit) == (groups, pytest.approx(share), limit)


def test_what_does_not_fit_at_all_is_held_by_no_core() -> None:
    found = occupancy(machine_of("sm_53"), 1024, 255, 0)
    assert found is not None and found.groups == 0 and found.share == 0


def test_unknown_machines_have_no_occupancy() -> None:
    assert occupancy(PLAIN, 64, 32, 0) is None
    assert occupancy(machine_of("sm_121"), 64, 32, 0) is None, "nobody has looked that one up"
    one = replace(PLAIN, residency=Residency(lanes=4, groups=2, registers=64, shared_bytes=0))
    assert occupancy(one, 1, 0, 0) is not None


def test_roofline() -> None:
    machine = replace(PLAIN, operations=100.0, bandwidth=10.0)
    low, high = roofline(machine, 50, 100), roofline(machine, 5000, 100)
    assert low is not None and high is not None
    assert (low.bound, low.seconds, low.knee) == ("memory", 10.0, 10.0)
    assert (high.bound, high.seconds) == ("arithmetic", 50.0)
    assert roofline(PLAIN, 1, 1) is None
    assert roofline(replace(PLAIN, operations=1.0), 1, 1) is None
