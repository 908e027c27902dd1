"""Launches of a program become chains, and none of them is in two."""

from __future__ import annotations

from smelt.core.ir.text import parse_kernel
from smelt.core.plan.chains import find_chains
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
    made: dict[int, str] = {}
    for row in sorted(found.parts, key=lambda n: found.parts[n].place.taking_part):
        made[found.parts[row].chain] = made.get(found.parts[row].chain, "") + names[row]
    said = [k.schedule.removeprefix("chain ").replace(".0", "").replace(" ", "") for k in found.kernels]
    assert said == [made[n] for n in sorted(made)]
    return said


def test_what_comes_again_is_in_one_chain() -> None:
    assert chained("abc") == ["abc"]
    assert chained("abcbd") == ["abc"]
    assert chained("abcbde") == ["abc", "de"]
    assert chained("abcacbde") == ["abc", "de"]
