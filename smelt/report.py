"""A model and a target -> compiled, run on the device, compared, timed: one Story, and its text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.bench import Measured, measure
from smelt.compare import Validation, validate, validate_entries
from smelt.core.bundle import Bundle
from smelt.devicefarm.measure import QUICK, RunPlan
from smelt.devicefarm.verdict import Verdict
from smelt.driver import compile
from smelt.request import DimWish
from smelt.shapes import Case, Wish, case, cases, trials
from smelt.size import Sizes, sizes

# emulated runs show the path, not the speed: a few are enough
EMULATED = RunPlan(warmup_runs=0, warmup_min=0.0, warmup_max=0.0, samples=3, min_time=0.0, max_time=5.0)


@dataclass(frozen=True)
class Story:
    """Everything that happened to one model on one device."""

    model: Path
    bundle: Bundle
    compile_seconds: float
    validation: Validation
    times: tuple[Measured, ...]
    sizes: Sizes

    @property
    def verdict(self) -> Verdict:
        """That of the comparison: times are information here."""
        return self.validation.verdict


def tell(
    model: Path,
    target: str,
    output: Path,
    *,
    dims: Mapping[str, DimWish] | None = None,
    wishes: Sequence[Wish] = (),
    device: str | None = None,
    count: int = 3,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda text: None,
) -> Story:
    """Compile for the target, deploy to its device, compare at `count` shapes (or at those wished), time.

    Raises SmeltError when there is nothing to tell: the model does not compile, no device, a lost link.
    """
    start = time.monotonic()
    bundle = compile(model, target, dims, output=str(output), progress=on_step)
    seconds = time.monotonic() - start
    wanted = cases(bundle, wishes, count=count, seed=seed)
    on_step("comparing")
    found = validate(
        bundle, model, wanted, device=device, enough=None if wishes else count,
        on_case=lambda c: on_step(f"comparing: {c.label}: {c.status}"),
    )  # fmt: skip
    good = {c.label for c in found.cases if c.status == "pass"}
    again = [c for c in _again(bundle, wishes, seed) if c.label in good]
    plan = EMULATED if found.emulated else QUICK
    on_step("timing")
    times = measure(bundle, again, device=device, threads=1, plan=plan) if again else ()
    return Story(model, bundle, seconds, found, times, sizes(bundle))


def tell_entries(
    models: Mapping[str, Path],
    target: str,
    output: Path,
    *,
    dims: Mapping[str, DimWish] | None = None,
    state: Mapping[str, str] | None = None,
    device: str | None = None,
    count: int = 3,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda text: None,
) -> tuple[Story, ...]:
    """The same of a bundle with several entries: a story for each, of one compile and of sessions that go
    through all of them. An entry is timed at the start of the state."""
    start = time.monotonic()
    bundle = compile(models, target, dims, state=state, output=str(output), progress=on_step)
    seconds = time.monotonic() - start
    on_step("comparing")
    found = validate_entries(
        bundle, models, device=device, count=count, seed=seed,
        on_case=lambda c: on_step(f"comparing: {c.label}: {c.status}"),
    )  # fmt: skip
    stories, size = [], sizes(bundle)
    for name, validation in found.items():
        view, plan = bundle.entry(name), EMULATED if validation.emulated else QUICK
        on_step(f"timing {name}")
        good = validation.verdict is Verdict.PASS
        first = _again(view, (), seed)[:1] if good else []
        times = measure(view, first, device=device, threads=1, plan=plan) if first else ()
        stories.append(Story(models[name], view, seconds, validation, times, size))
    return tuple(stories)


def _again(bundle: Bundle, wishes: Sequence[Wish], seed: int) -> list[Case]:
    if wishes:
        return list(cases(bundle, wishes, seed=seed))
    return [case(bundle, values, seed=seed) for values in trials(bundle)]
