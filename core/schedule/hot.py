"""A kernel, its schedule for any sizes and a point where some sizes are numbers, in; the kernel scheduled
again for the point out, or why there is none.

A point is what the hot values of a module's symbols (`--dim 'seq=1..512:opt=1,128'`) make of the dims at a
call. The plan, the weights and their layouts are made for the kernel of all sizes, so what is made for a
point takes these as they are (core/ir/hot.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as every
from math import prod
from typing import Final

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim
from smelt.core.dtype import f32
from smelt.core.ir.analysis.samples import sample_points
from smelt.core.ir.analysis.work import amounts, work
from smelt.core.ir.graph import Symbol
from smelt.core.ir.hot import admits, misfit, pinned
from smelt.core.ir.kernel import DimParam, Kernel
from smelt.core.ir.layout import Layout
from smelt.core.machine import Figures, Machine
from smelt.core.system import System

MOST_POINTS = 8
"""Points at which a kernel may be scheduled again: each is code of its own, and a launch that may be
empty."""
LEAST_SECONDS = 5e-6
"""What a launch takes at least that is scheduled again. benchmarks/results/hot.md has its worth."""
UNMEASURED: Final = Figures(operations=1.52e11, bandwidth=1.85e10, launch=1.66e-8)
"""What a unit is taken for whose figures nobody has measured: the slowest one that somebody has
(benchmarks/results/units.md)."""

Drafted = Callable[[Kernel, Machine], Kernel]
"""Schedules a naive kernel for a machine."""


@dataclass(frozen=True, slots=True)
class Point:
    """Values of a kernel's dims, by number. said: the values of the model's symbols that make them."""

    values: tuple[tuple[int, int], ...]
    said: str = field(default="", compare=False)

    def of(self, kernel: Kernel) -> dict[str, int]:
        """The values by the names of the kernel's dims."""
        return {kernel.dims[k].name: n for k, n in self.values}


def points(
    sizes: Sequence[Dim], dims: Sequence[DimParam], hot: Mapping[str, Sequence[int]], where: str
) -> tuple[Point, ...]:
    """The points of a call: dims that are numbers when all symbols with hot values have one of them.

    sizes: the dims at the call; dims: what is known of these. hot: symbol -> its values. where: the ONNX
    node. Raises SmeltError (invalid) where there are more than MOST_POINTS."""
    names = [s for s in hot if any(s in d.symbols for d in sizes)]
    count = prod(len(hot[s]) for s in names)
    if count > MOST_POINTS:
        said = ", ".join(f"{s} ({', '.join(map(str, hot[s]))})" for s in names)
        raise SmeltError(
            f"dims: {count} combinations of hot sizes, at most {MOST_POINTS} are compiled: {said}",
            node=where or None, kind="invalid", hint="name fewer values after :opt= of these dims",
        )  # fmt: skip
    found: dict[Point, None] = {}
    for values in every(*(hot[s] for s in names)):
        env = dict(zip(names, values, strict=True))
        numbers = [(k, d.substitute(env).const_or_none) for k, d in enumerate(sizes) if not d.is_const]
        known = tuple((k, n) for k, n in numbers if n is not None and dims[k].low != dims[k].high)
        if known and all(admits(dims[k], n) for k, n in known):
            found.setdefault(Point(known, ", ".join(f"{s}={n}" for s, n in env.items())))
    return tuple(found)


def least_points(sizes: Sequence[Dim]) -> tuple[Point, ...]:
    """For each dim at a call what it is where the one symbol that it grows with is 1: the `3*seq` rows that
    share a head's keys are 3 in a step of a decoder."""
    found = ((k, d.substitute(dict.fromkeys(d.symbols, 1)).const_or_none) for k, d in enumerate(sizes)
             if len(d.symbols) == 1)  # fmt: skip
    return tuple(Point(((k, n),)) for k, n in found if n is not None)


def steps(kernel: Kernel, machine: Machine, least: Iterable[Point]) -> tuple[Point, ...]:
    """Those of the least points of a scheduled kernel at which it copies an operand as large as before: a
    step of a decoder multiplies one row by keys whose copy takes longer than the product. Lanes read operands
    as they lie."""
    copied = {s for b in kernel.scratch for d in b.shape for s in d.symbols}
    if not kernel.scratch or machine.has_lanes:
        return ()
    at = ((p, kernel.dims[k], n) for p in least for k, n in p.values)
    return tuple(p for p, d, n in at if d.name not in copied and d.low != d.high and admits(d, n))


def all_points(found: Iterable[Sequence[Point]]) -> tuple[Point, ...]:
    """All of them, each once: those of more dims first, since the first that fits is taken."""
    return tuple(sorted(dict.fromkeys(p for own in found for p in own), key=lambda p: -len(p.values)))


def specialised(
    naive: Kernel, scheduled: Kernel, point: Point, machine: Machine, drafted: Drafted
) -> Kernel | str:
    """The kernel for the point, or the reason why the scheduled one serves there too."""
    values = point.of(naive)
    at = pinned(naive, values)
    takes = _seconds(at, machine)
    if takes < LEAST_SECONDS:
        return f"takes {takes * 1e6:.2g} us, less than {LEAST_SECONDS * 1e6:.2g}"
    why = ""
    for m in (machine, *_as_laid(scheduled, machine)):
        found = drafted(at, m)
        why = misfit(scheduled, found, values)
        if not why:
            break
    if why:
        return why
    outside = pinned(scheduled, values)
    same = (found.body, found.scratch) == (outside.body, outside.scratch)
    return "its schedule is the same there" if same else found


def _as_laid(scheduled: Kernel, machine: Machine) -> tuple[Machine, ...]:
    """The machine with panels as wide as those of the kernel's weights, where these have one width."""
    laid = ((b.layout, b.dtype.bits) for b in scheduled.inputs)
    # sums of narrower numbers have 32 bits
    widths = {_panel(layout) * max(bits, f32.bits) for layout, bits in laid if layout is not None}
    return tuple(replace(machine, panel_bits=n) for n in widths if n) if len(widths) == 1 else ()


def _panel(layout: Layout) -> int:
    """How many columns the panels of a layout have; 0 where there are none."""
    return next((p.factor for p in layout.spec.dims if p.part == "outer"), 0)


def _seconds(kernel: Kernel, machine: Machine) -> float:
    """What a launch of the naive kernel takes by the table of costs; a dim that is no number is of a usual
    size."""
    usual = sample_points([Symbol(p.name, p.low, p.high, p.divisor) for p in kernel.dims])[-1]
    unit = System({"": replace(machine, figures=machine.figures or UNMEASURED)})
    return unit.kernel_seconds("", *amounts(kernel, work(kernel), usual))


__all__ = ["Point", "all_points", "least_points", "points", "specialised", "steps"]
