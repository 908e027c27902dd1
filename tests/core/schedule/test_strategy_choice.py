"""Golden texts of strategies: which kernels of strategy_kernels.py each takes, which it declines and why, and
what it makes of a few."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pytest
from strategy_kernels import KERNELS, MACHINES

from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import print_kernel
from smelt.core.machine import Machine
from smelt.core.schedule import strategies
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.tree import ScheduleError

NAMES = tuple(dict.fromkeys(s.__name__ for s in (*strategies.VECTORS, *strategies.LANES)))
# strategy -> kernels whose schedule is shown; of others the first that they take
SHOWN = {
    "elementwise": ("add-row", "transpose-2d", "concat-middle"),
    "row_product": ("softmax-matmul", "norm-matmul"),
    "contraction": ("matmul-packed", "vector-matrix", "conv-3x3"),
    "rows": ("sum-2", "softmax"),
    "columns": ("sum-0", "max-pool"),
    "gathered_rows": ("softmax-of-a-transpose",),
    "outer_groups": ("scan",),
    "lanes": ("matmul-packed", "softmax", "sum-0", "add-row"),
}
VECTORS = next(m for m in MACHINES if m.name == "two")
LANES = next(m for m in MACHINES if m.max_lanes > 1)


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
        for table in ("VECTORS", "LANES"):
            patch.setattr(strategies, table, tuple(map(watched, getattr(strategies, table))))
        for name, (kernel, constants, _) in KERNELS.items():
            done[name] = strategies.draft(kernel, machine, frozenset(constants)).kernel
    return tuple(seen), done


def machine_of(strategy: str) -> Machine:
    """The small machine that a strategy is shown on."""
    return VECTORS if strategy in {s.__name__ for s in strategies.VECTORS} else LANES


def written(strategy: str) -> Iterator[str]:
    """The golden file of a strategy, line by line."""
    machine = machine_of(strategy)
    seen, done = tried(machine)
    yield f"strategy {strategy}, on a machine of {max(machine.lanes(32), machine.max_lanes)} lanes"
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


@pytest.mark.parametrize("strategy", NAMES)
def test_golden(strategy: str, golden: Callable[[str, str], None]) -> None:
    golden(f"schedules/{strategy}.txt", "\n".join(written(strategy)) + "\n")


def test_every_strategy_was_taken_and_declined() -> None:
    """Counted where they are called. The last one of a table declines nothing: it is what every kernel can
    have."""
    last = {strategies.VECTORS[-1].__name__, strategies.LANES[-1].__name__}
    for strategy in NAMES:
        seen, _ = tried(machine_of(strategy))
        mine = [t for t in seen if t.strategy == strategy]
        assert any(not t.declined for t in mine), f"{strategy} takes no kernel of the table"
        assert any(t.declined for t in mine) is (strategy not in last), strategy
        assert {*SHOWN.get(strategy, ())} <= {t.kernel for t in mine if not t.declined}, strategy
