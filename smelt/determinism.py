"""A bundle and inputs -> whether the same inputs give the same bytes, twice and on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from smelt.core.bundle import Bundle
from smelt.core.dtype import Array
from smelt.leasing import Where
from smelt.running import running
from smelt.shapes import RunCase

RUNS = 2
"""Runs of each number of threads."""


@dataclass(frozen=True)
class Unsteady:
    """An output that differed. first, other: the two runs, in words. elements: how many differ in their bits;
    most: the largest distance of finite ones."""

    output: str
    first: str
    other: str
    elements: int
    most: float

    def __str__(self) -> str:
        return (
            f"'{self.output}' differs between {self.first} and {self.other}: {self.elements} elements, "
            f"by up to {self.most:.3g}"
        )


@dataclass(frozen=True)
class Determinism:
    """What a case's runs had in common. threads: the two numbers that were tried; 0: all that the device
    has."""

    label: str
    threads: tuple[int, ...]
    unsteady: tuple[Unsteady, ...]


def determinism(
    bundle: Bundle,
    cases: Iterable[RunCase],
    *,
    device: Where = None,
    on_case: Callable[[Determinism], None] = lambda found: None,
) -> list[Determinism]:
    """Run each case twice on one thread and twice on all, in fresh processes; state starts anew each time.

    Raises SmeltError as `running`, and for a run that fails.
    """
    wanted = list(cases)
    made: list[list[tuple[str, Mapping[str, Array]]]] = [[] for _ in wanted]
    tried = (1, 0)
    for threads in tried:
        with running(bundle, device, threads=threads) as client:
            for k, case in enumerate(wanted):
                for turn in range(1, RUNS + 1):
                    if client.model is not None and client.model.state:
                        client.reset_state()
                    who = f"run {turn} on {'one thread' if threads else 'all threads'}"
                    made[k].append((who, client.run(case.tensors).outputs))
    found = []
    for case, runs in zip(wanted, made, strict=True):
        found.append(Determinism(case.label, tried, tuple(_apart(runs))))
        on_case(found[-1])
    return found


def _apart(runs: list[tuple[str, Mapping[str, Array]]]) -> Iterable[Unsteady]:
    """Of each output, the first run that is not as the first one."""
    who, outputs = runs[0]
    for name, a in outputs.items():
        for other, b in ((w, o[name]) for w, o in runs[1:]):
            if a.shape == b.shape and a.tobytes() == b.tobytes():
                continue
            yield Unsteady(name, who, other, *_distance(a, b))
            break


def _distance(a: Array, b: Array) -> tuple[int, float]:
    if a.shape != b.shape:
        return max(a.size, b.size), float("inf")
    bits = (a.view(f"V{a.dtype.itemsize}") != b.view(f"V{a.dtype.itemsize}")) if a.ndim else a != b
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    gap = np.abs(x - y)[finite]
    return int(np.count_nonzero(bits)), float(gap.max()) if gap.size else 0.0
