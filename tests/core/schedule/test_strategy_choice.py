"""Golden texts of strategies: which kernels of strategy_kernels.py each takes, which it declines and why, and
what it makes of a few."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pytest
from strategy_kernels import KERNELS, MACHINES

from smelt.core.ir.barriers import has_lanes
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import print_kernel
from smelt.core.machine import Machine
from smelt.core.schedule import strategies
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.tree import ScheduleError

IN_STEP = tuple(s.__name__ for s in strategies.IN_STEP)
NAMES = (*IN_STEP, *(s.__name__ for s in strategies.STRATEGIES))
# strategy -> kernels whose schedule is shown; of others the first that they take
SHOWN = {
    "elementwise": ("add-row", "transpose", "transpose-2d", "concat-middle"),
    "row_product": ("softmax-matmul", "norm-matmul", "attention"),
    "contraction": ("matmul-packed", "vector-matrix", "conv-3x3"),
    "picked": ("matmul-experts",),
    "short_rows": ("argmax-of-4",),
    "rows_together": ("dots-that-share", "max-of-blocks"),
    "rows": ("sum-2", "softmax"),
    "columns": ("sum-0", "max-pool"),
    "gathered_rows": ("softmax-of-a-transpose",),
    "recurrence": ("running-rows", "running-middle"),
    "outer_groups": ("scan",),
    "lane_softmax": ("attention-masked",),
    "lane_products": ("matmul-packed", "vector-matrix", "matmul-decoded"),
    "lane_rows": ("softmax", "sum-012"),
    "lane_columns": ("sum-0", "max-pool", "softmax-middle"),
}
WITH_LANES = ("matmul-packed", "conv-3x3", "softmax", "sum-0", "add-row", "softmax-matmul", "attention")
VECTORS = next(m for m in MACHINES if m.name == "two")
LANES = next(m for m in MACHINES if m.max_lanes > 1)
STEP = next(m for m in MACHINES if m.in_step)


@dataclass(frozen=True)
class Tried:
    """A strategy on a nest of a kernel. declined: why not; '' where it was taken."""

    strategy: str
    kernel: str
    declined: str = ""


@lru_cache
def tried(machine: Machine) -> tuple[tuple[Tried, ...], dict[str, Kernel]]:
    """Every strategy that was asked about a nest, kernel by kernel, and the scheduled kernels."""
    seen: list[Tried] = []

    def watched(strategy: strategies.Strategy) -> strategies.Strategy:
        def run(d: Draft, root: str) -> None:
            try:
                strategy(d, root)
            except ScheduleError as e:
                seen.append(Tried(strategy.__name__, name, str(e)))
                raise
            seen.append(Tried(strategy.__name__, name))

        return run

    done = {}
    with pytest.MonkeyPatch.context() as patch:
        for table in ("STRATEGIES", "IN_STEP"):
            patch.setattr(strategies, table, tuple(map(watched, getattr(strategies, table))))
        for name, (kernel, constants, _) in KERNELS.items():
            done[name] = strategies.draft(kernel, machine, frozenset(constants)).kernel
    return tuple(seen), done


def written(strategy: str) -> Iterator[str]:
    """The golden file of a strategy, line by line."""
    machine = STEP if strategy in IN_STEP else VECTORS
    seen, done = tried(machine)
    lanes = f"{machine.subgroup} lanes in step" if machine.in_step else f"{machine.lanes(32)} lanes"
    yield f"strategy {strategy}, on a machine of {lanes}"
    reasons: dict[str, list[str]] = {}
    for t in seen:
        if t.strategy == strategy:
            names = reasons.setdefault(t.declined, [])
            names += [t.kernel] if t.kernel not in names else []
    for why in sorted(reasons):
        yield ""
        yield f"declines: {why}" if why else "takes"
        yield textwrap.fill(", ".join(reasons[why]), 100, initial_indent="  ", subsequent_indent="  ",
                            break_on_hyphens=False)  # fmt: skip
    for name in SHOWN.get(strategy, reasons.get("", [])[:1]):
        yield ""
        yield f"makes of {name}"
        yield print_kernel(done[name]).rstrip().replace("; ", ";\n        ")


def test_golden_of_lanes(golden: Callable[[str, str], None]) -> None:
    """What becomes of the strategies' groups on a machine with lanes, and which kernels keep groups alone."""
    _, done = tried(LANES)
    lines = [f"groups over lanes, on a machine of {LANES.max_lanes} lanes of {LANES.lanes(32)} elements"]
    for what, some in (("lanes in every statement", all), ("lanes in some", any), ("groups alone", bool)):
        names = [n for n, k in done.items() if some(map(has_lanes, k.body))] if some is not bool else [*done]
        names = [n for n in names if not any(n in x.split(", ") for x in lines)]
        lines += ["", what, ", ".join(names)]
    lines = [textwrap.fill(x, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
             if ", " in x and i else x for i, x in enumerate(lines)]  # fmt: skip
    for name in WITH_LANES:
        lines += ["", f"makes of {name}", print_kernel(done[name]).rstrip().replace("; ", ";\n        ")]
    golden("schedules/lanes.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("strategy", NAMES)
def test_golden(strategy: str, golden: Callable[[str, str], None]) -> None:
    golden(f"schedules/{strategy}.txt", "\n".join(written(strategy)) + "\n")


def test_every_strategy_was_taken_and_declined() -> None:
    """Counted where they are called. The last one of a table declines nothing: it is what every kernel can
    have."""
    last = {NAMES[-1]}
    for strategy in NAMES:
        seen, _ = tried(STEP if strategy in IN_STEP else VECTORS)
        mine = [t for t in seen if t.strategy == strategy]
        assert any(not t.declined for t in mine), f"{strategy} takes no kernel of the table"
        assert any(t.declined for t in mine) is (strategy not in last), strategy
        assert {*SHOWN.get(strategy, ())} <= {t.kernel for t in mine if not t.declined}, strategy
