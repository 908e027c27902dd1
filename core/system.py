"""The machines of a target's units, and figures that a user gives -> a System: what kernels and copies take.

Placement by cost asks it (core/passes/lowering/place.py). Nothing here is measured when compiling: a unit has
the figures of its Machine, or those that a rule gives, as `--place '*=auto@gpu.link=8e9;seq=128'` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from smelt.core.diag import SmeltError
from smelt.core.estimate import roofline
from smelt.core.machine import ANY_UNIT, CPU, Figures, Machine

_NAMES = tuple(f.name for f in fields(Figures))
_WANTED = {True: ("operations", "bandwidth", "launch"), False: _NAMES}
"""Whether a unit is the CPU -> the figures that it must have."""


@dataclass(frozen=True, slots=True)
class System:
    """The units that kernels may run on, by name, each with its figures. Copies between two devices go
    through the host's memory."""

    machines: Mapping[str, Machine]

    def kernel_seconds(
        self, unit: str, operations: int, moved: int, functions: Mapping[str, int] | None = None
    ) -> float:
        """What a launch takes that computes so much and moves so many bytes. functions: how often it calls
        which scalar functions, each of which is one of the operations."""
        machine = self.machines[unit]
        figures = self._figures(unit)
        # a cost is in multiply-adds, of two operations each
        more = sum(n * (2 * machine.costs.get(fn, 1) - 1) for fn, n in (functions or {}).items())
        line = roofline(figures, operations + more, moved)
        assert line is not None, unit
        return figures.launch + line.seconds

    def copy_seconds(self, source: str, target: str, size: int) -> float:
        """What a copy of `size` bytes takes from one unit's memory to another's; 0 within one."""
        if source == target:
            return 0.0
        ends = [self._figures(unit) for unit in (source, target) if unit != CPU]
        return sum(f.copy + size / f.link for f in ends)

    def _figures(self, unit: str) -> Figures:
        found = self.machines[unit].figures
        assert found is not None, unit
        return found


def system_of(machines: Mapping[str, Machine], given: Mapping[str, float]) -> System:
    """The System of these units. given: 'unit.figure' -> a number in the place of what the machine has.

    Raises SmeltError that lists the figures that are missing."""
    known: dict[str, dict[str, float]] = {}
    for unit, m in machines.items():
        own = {} if m.figures is None else {n: getattr(m.figures, n) for n in _NAMES}
        known[unit] = own | {n: given[f"{unit}.{n}"] for n in _NAMES if f"{unit}.{n}" in given}
    missing = [f"{u}.{n}" for u, own in known.items() for n in _WANTED[u == CPU] if n not in own]
    if missing:
        units = ", ".join(dict.fromkeys(f"'{name.split('.')[0]}'" for name in missing))
        raise SmeltError(
            f"place: nobody has measured {units}, so that costs are unknown; missing: {', '.join(missing)}",
            hint=f"write '*=auto@{missing[0]}=NUMBER;..', with the numbers that benchmarks/units.py prints "
            "on the device (docs/units.md)",
        )
    return System({u: replace(m, figures=Figures(**known[u])) for u, m in machines.items()})


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a rule says after 'auto@'. figures: 'unit.figure' -> number; sizes: of the model's dims."""

    figures: Mapping[str, float]
    sizes: Mapping[str, int]

    def __or__(self, later: Weighing) -> Weighing:
        """Both, the first one's where they differ."""
        return Weighing({**later.figures, **self.figures}, {**later.sizes, **self.sizes})


def is_auto(unit: str) -> bool:
    """Whether the text that a rule has for a unit leaves the choice to costs."""
    return unit == ANY_UNIT or unit.startswith(f"{ANY_UNIT}@")


def weighing_of(unit: str, units: Mapping[str, Machine]) -> Weighing:
    """The figures and sizes in the text 'auto' or 'auto@NAME=NUMBER;..': a name of a figure begins with that
    of a unit, as gpu.link; other names are of dims. Raises SmeltError for what is neither."""
    figures, sizes = dict[str, float](), dict[str, int]()
    for word in filter(None, unit.removeprefix(ANY_UNIT).removeprefix("@").split(";")):
        name, _, number = word.rpartition("=")
        owner, _, figure = name.rpartition(".")
        if owner in units and figure in _NAMES:
            figures[name] = _figure(word, figure, number)
        elif name and owner not in units and number.isascii() and number.isdigit() and len(number) < 20:
            sizes[name] = int(number)
        else:
            raise SmeltError(
                f"place: cannot read '{word:.80}' of '{unit:.80}'",
                hint=f"write auto@UNIT.FIGURE=NUMBER;DIM=SIZE with units {', '.join(units)} and figures "
                f"{', '.join(_NAMES)}",
            )
    return Weighing(figures, sizes)


def _figure(word: str, figure: str, number: str) -> float:
    """A rate is above 0, and may be infinite; a time is not below 0."""
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    rate = figure not in ("launch", "copy")
    if not (value > 0 if rate else 0 <= value < math.inf):
        wanted = "bytes or operations in a second, above 0" if rate else "seconds, from 0"
        raise SmeltError(f"place: '{word:.80}' is no such figure; wanted are {wanted}")
    return value
