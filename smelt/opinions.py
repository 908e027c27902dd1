"""A difference from ONNX Runtime in; a ruling out, by other references and the reference's own sensitivity.

ONNX Runtime with its optimiser on is the reference, but not the specification: its optimiser fuses quantised
regions into kernels that round differently, so that its results differ from those without optimiser. Before
a difference counts against smelt, smelt is compared with ONNX Runtime that runs every node as written, the
same with subnormal numbers kept, as some units do, with ONNX's reference evaluator, and with the change of
the reference when its floats are perturbed by roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.lazily import Lazily
from smelt.difference import OutputError
from smelt.groups import GroupValue
from smelt.perturbed import move_sums, perturbed, weights
from smelt.reference import Reference, evaluated

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

Compare = Callable[[str, GroupValue, GroupValue], list[OutputError]]
"""(name, got, want) -> the differences, judged by the caller's tolerance."""

AS_WRITTEN = "onnxruntime with its optimiser off"
EVALUATOR = "onnx's evaluator"
SUBNORMALS_KEPT = f"{AS_WRITTEN} and subnormal numbers kept"
WITHIN = f"differ by no more than {AS_WRITTEN} itself moves when floats and sums move by 2^-20"
NUDGES = 4
"""Runs of the perturbed reference; each costs as much as a run of the reference."""
WIDTH = 2.0
"""How many times the distance of the farthest perturbed run smelt may have: few runs underestimate the
spread."""


@dataclass(frozen=True)
class Opinion:
    """The result of another reference. errors: smelt's differences from it. apart: the first reference's."""

    who: str
    errors: tuple[OutputError, ...]
    apart: tuple[OutputError, ...]

    def __str__(self) -> str:
        return f"{self.who}: {_told('smelt', self.errors)}; {_told('onnxruntime', self.apart)}"


@dataclass(frozen=True)
class Ruling:
    """Whether one output is right. why: a text that continues a list of outputs' names. errors: smelt's
    differences from the reference that decided."""

    right: bool
    why: str
    errors: tuple[OutputError, ...]
    opinions: tuple[Opinion, ...]


class Opinions:
    """Further references of a model, each of them run only when those before did not decide.

    outputs: names of inner values to judge besides the model's own outputs. spread: whether the reference's
    own spread excuses a difference; False where the caller names a tolerance. first: the name of the first
    reference in messages. flush: subnormal numbers are 0 to the references.
    """

    def __init__(
        self, model: Path, compare: Compare, outputs: Sequence[str] = (), *, spread: bool = True,
        first: str = "onnxruntime", flush: bool = False,
    ) -> None:  # fmt: skip
        self._model, self._compare, self._outputs = model, compare, tuple(outputs)
        self._spread, self._first, self._flush = spread, first, flush
        self._common: dict[str, Any] = {"outputs": self._outputs, "optimise": False, "flush": flush}

    def rule(
        self, feed: Mapping[str, GroupValue], got: Mapping[str, GroupValue], want: Mapping[str, GroupValue]
    ) -> dict[str, Ruling]:
        """A ruling on each output of `got`, which differs from the first reference's `want`. An output with
        which no reference agrees is wrong."""
        rulings: dict[str, Ruling] = {}
        opinions: dict[str, list[Opinion]] = {name: [] for name in got}

        def hear(who: str, said: Mapping[str, GroupValue]) -> None:
            for name in [n for n in got if n not in rulings and n in said]:
                errors, apart = (tuple(self._compare(name, a[name], said[name])) for a in (got, want))
                opinions[name].append(Opinion(who, errors, apart))
                if all(e.ok for e in errors):
                    why = f"agree with {who}, from which {self._first} differs"
                    rulings[name] = Ruling(True, why, errors, tuple(opinions[name]))

        written = self._run(self._as_written, feed)
        hear(AS_WRITTEN, written)
        if len(rulings) < len(got) and self._flush:  # units may keep what the CPU takes for 0
            kept = self._run(self._reference(flush=False), feed)
            other = [n for n in kept if n in written and not self._alike(n, kept[n], written[n])]
            hear(SUBNORMALS_KEPT, {n: kept[n] for n in other})
        if len(rulings) < len(got) and not self._outputs:
            hear(EVALUATOR, evaluated(self._model, list(got), feed, self._flush) or {})
        disputed = [n for n in got if n not in rulings and n in written and self._spread]
        spreads = self._spreads(feed, {n: written[n] for n in disputed}) if disputed else {}
        for name in [n for n in got if n not in rulings]:
            errors = tuple(self._compare(name, got[name], want[name]))
            if name in spreads and spreads[name].covers(got[name], written[name]):
                rulings[name] = Ruling(True, WITHIN, errors, tuple(opinions[name]))
            else:
                why = _nobody(self._first, opinions[name])
                rulings[name] = Ruling(False, why, errors, tuple(opinions[name]))
        return rulings

    @cached_property
    def _as_written(self) -> Reference | None:
        return self._reference()

    def _reference(self, **options: Any) -> Reference | None:
        try:
            return Reference(self._model, **{**self._common, **options})
        except SmeltError:
            return None  # it has no opinion: some contrib ops exist only as what the optimiser makes

    def _run(self, reference: Reference | None, feed: Mapping[str, GroupValue]) -> dict[str, GroupValue]:
        try:
            return {} if reference is None else reference.run(feed)
        except SmeltError:
            return {}

    def _alike(self, name: str, a: GroupValue, b: GroupValue) -> bool:
        return all(e.ok for e in self._compare(name, a, b))

    def _spreads(self, feed: Mapping[str, GroupValue], base: Mapping[str, GroupValue]) -> dict[str, Spread]:
        """How far each value moves when float inputs, weights, scales and sums are perturbed."""
        rng, own = np.random.default_rng(0), weights(self._model)
        found = {name: Spread() for name, value in base.items() if isinstance(value, np.ndarray)}
        for seed in range(NUDGES):
            instead = {name: perturbed(rng, a) for name, a in own.items()}
            nudged = self._reference(instead=instead, edit=partial(move_sums, seed=seed))
            nudged = nudged or self._reference(instead=instead)
            moved = self._run(nudged, {n: perturbed(rng, a) for n, a in feed.items()})
            for name in found.keys() & moved.keys():
                found[name] = found[name].wider(moved[name], base[name])
        return found


@dataclass(frozen=True)
class Spread:
    """How far a value moves: the largest change of an element, and the root of the mean square over all."""

    most: float = 0.0
    rms: float = 0.0

    def wider(self, moved: GroupValue, base: Array) -> Spread:
        """The spread over one more run, `moved`."""
        other = _spread(moved, base)
        return self if other is None else Spread(max(self.most, other.most), max(self.rms, other.rms))

    def covers(self, got: GroupValue, base: Array) -> bool:
        """Whether `got` is not much farther from `base` than the runs were: neither at its worst element nor
        on the whole, and never infinite or NaN where `base` is not."""
        other = _spread(got, base)
        return other is not None and other.most <= WIDTH * self.most and other.rms <= WIDTH * self.rms


def _spread(a: GroupValue, b: Array) -> Spread | None:
    """The distance of two arrays; None where they differ in kind or shape, or are infinite or NaN at
    different places."""
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype or b.dtype.kind in "OSU":
        return None
    wide, base = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(base)
    if not np.array_equal(wide[~finite], base[~finite], equal_nan=True):
        return None
    if not np.isfinite(wide[finite]).all():
        return None
    gap = np.abs(wide[finite] - base[finite])
    return Spread(float(gap.max()), float(np.sqrt(np.mean(gap * gap)))) if gap.size else Spread()


def _told(who: str, errors: Sequence[OutputError]) -> str:
    bad = [e for e in errors if not e.ok]
    worst: Any = max(errors, key=lambda e: e.max_abs, default=None)
    return f"{who} agrees (max error {worst.max_abs:.3g})" if not bad else f"{who} differs ({bad[0]})"


def _nobody(first: str, opinions: Sequence[Opinion]) -> str:
    asked = ", ".join(o.who for o in opinions)
    return f"differ from {first}" + (f" and are not defended by {asked}" if asked else "")
