"""A model and a target -> compiled, run on the device, compared and timed: a ModelReport."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.bench import Measured, measure
from smelt.compare import Validation, validate, validate_entries
from smelt.core.bundle import Bundle
from smelt.devicefarm.measure import QUICK, SHOWN
from smelt.devicefarm.profiles import Gate
from smelt.devicefarm.verdict import Verdict
from smelt.driver import compile
from smelt.request import DimSpec
from smelt.shapes import RunCase, ShapeSpec, case, cases, trials
from smelt.size import Sizes, sizes
from smelt.targets.platform import BOARDS, CHOICES

COOL = Gate(most_wait=60.0)  # a page for people does not keep them waiting for long


@dataclass(frozen=True)
class ModelReport:
    """The results of one model on one device. seconds: wall time of the compile."""

    model: Path
    bundle: Bundle
    compile_seconds: float
    validation: Validation
    times: tuple[Measured, ...]
    sizes: Sizes

    @property
    def verdict(self) -> Verdict:
        """The verdict of the comparison; times do not change it."""
        return self.validation.verdict


def make_report(
    model: Path,
    target: str,
    output: Path,
    *,
    dims: Mapping[str, DimSpec] | None = None,
    specs: Sequence[ShapeSpec] = (),
    device: str | None = None,
    count: int = 3,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda text: None,
) -> ModelReport:
    """Compile for the target, deploy to its device, compare at `count` shapes (or at those of specs), time.

    seed: of the random inputs. on_step: called with the name of each step.

    Raises SmeltError when there is no result: the model does not compile, no device, a lost link.
    """
    start = time.monotonic()
    # a board whose GPU cannot be emulated shows the path that it takes without one
    bundle = compile(
        model, CHOICES.get(target, target), dims, output=str(output), fallback=target in BOARDS,
        choose=target in CHOICES, progress=on_step,
    )  # fmt: skip
    seconds = time.monotonic() - start
    wanted = cases(bundle, specs, count=count, seed=seed)
    on_step("comparing")
    found = validate(
        bundle, model, wanted, device=device, enough=None if specs else count,
        on_case=lambda c: on_step(f"comparing: {c.label}: {c.status}"),
    )  # fmt: skip
    good = {c.label for c in found.cases if c.status == "pass"}
    again = [c for c in _again(bundle, specs, seed) if c.label in good]
    plan = SHOWN if found.emulated else QUICK
    on_step("timing")
    times = measure(bundle, again, device=device, threads=1, plan=plan, gate=COOL) if again else ()
    return ModelReport(model, bundle, seconds, found, times, sizes(bundle))


def make_entry_reports(
    models: Mapping[str, Path],
    target: str,
    output: Path,
    *,
    dims: Mapping[str, DimSpec] | None = None,
    state: Mapping[str, str] | None = None,
    device: str | None = None,
    count: int = 3,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda text: None,
) -> tuple[ModelReport, ...]:
    """The reports of a bundle with several entries: of one compile, and of sessions that run all entries. An
    entry is timed at the start of the state. Raises SmeltError as `make_report`."""
    start = time.monotonic()
    bundle = compile(models, target, dims, state=state, output=str(output), progress=on_step)
    seconds = time.monotonic() - start
    on_step("comparing")
    found = validate_entries(
        bundle, models, device=device, count=count, seed=seed,
        on_case=lambda c: on_step(f"comparing: {c.label}: {c.status}"),
    )  # fmt: skip
    reports, size = [], sizes(bundle)
    for name, validation in found.items():
        view, plan = bundle.entry(name), SHOWN if validation.emulated else QUICK
        on_step(f"timing {name}")
        good = validation.verdict is Verdict.PASS
        first = _again(view, (), seed)[:1] if good else []
        times = measure(view, first, device=device, threads=1, plan=plan, gate=COOL) if first else ()
        reports.append(ModelReport(models[name], view, seconds, validation, times, size))
    return tuple(reports)


def _again(bundle: Bundle, specs: Sequence[ShapeSpec], seed: int) -> list[RunCase]:
    if specs:
        return list(cases(bundle, specs, seed=seed))
    return [case(bundle, values, seed=seed) for values in trials(bundle)]
