"""Launches of a program become chains, each of them a part of two at most."""

from __future__ import annotations

import pytest

from smelt.core.ir.text import parse_kernel
from smelt.core.plan.chains import ROW_CHAINS, find_chains
from smelt.core.plan.program import Entry, Launch
from smelt.targets.opencl.machine import MACHINE

KERNEL = (
    "kernel @{name}(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8])"
    " {{ group i in n {{ lane j in 8 {{ y[i, j] = x[i, j] + 1.0: f32 }} }} }}"
)


def chained(order: str) -> list[str]:
    """The parts of each chain that a run of these kernels has, by letters."""
    names = sorted({*order})
    kernels = {name: parse_kernel(KERNEL.format(name=name)) for name in names}
    steps = [Launch(names.index(name), (), (), ()) for name in order]
    rows = [Entry(name, 0, 1) for name in names]
    found = find_chains([(steps, range(len(names)))], rows, kernels, [None, MACHINE])
    made: dict[int, dict[int, str]] = {}
    for row, parts in found.parts.items():
        assert len({p.chain for p in parts}) == len(parts) <= ROW_CHAINS
        for p in parts:
            made.setdefault(p.chain, {})[p.place.taking_part] = names[row]
    said = [k.schedule.removeprefix("chain ").replace(".0", "").replace(" ", "") for k in found.kernels]
    assert said == ["".join(own[n] for n in sorted(own)) for _, own in sorted(made.items())]
    return said


@pytest.mark.parametrize(
    ("order", "chains"),
    [
        ("abc", ["abc"]),
        ("abcabc", ["abc"]),  # what comes again is the chain of the first ones
        ("abcac", ["abc"]),
        ("abcbde", ["abc", "bde"]),
        ("abcbdebf", ["abc", "bde"]),  # b is in two
        ("abcdeacfg", ["abcde", "fg"]),  # a and c are a launch of the first
    ],
)
def test_what_is_in_which_chain(order: str, chains: list[str]) -> None:
    assert chained(order) == chains
