"""smelt bench NEW --baseline OLD: two builds -> how their times differ on a device, with a verdict."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from smelt.cli.common import Progress, Result, colour, milliseconds, table, wished
from smelt.core.bundle import Bundle
from smelt.core.exits import FAILED, INCONCLUSIVE, OK
from smelt.devicefarm.compare_builds import ERROR, Change
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.measure import RunPlan, median
from smelt.devicefarm.profiles import Gate, Profile
from smelt.paired import BuildLaunch, Compared, compare_builds
from smelt.shapes import RunCase

CODES_BY_GRAVITY = {
    Change.REGRESSION: FAILED,
    Change.INCONCLUSIVE: INCONCLUSIVE,
    Change.EMULATED: INCONCLUSIVE,
    Change.IMPROVEMENT: OK,
    Change.NO_DIFFERENCE: OK,
}
"""The first of these that a case has is the command's."""
COLOURS = {Change.REGRESSION: "red", Change.IMPROVEMENT: "green", Change.INCONCLUSIVE: "yellow"}


def compare(
    args: argparse.Namespace,
    new: Bundle,
    baseline: Bundle,
    cases: Sequence[RunCase],
    plan: RunPlan,
    choose: Callable[[Condition], Profile],
    gate: Gate,
) -> Result:
    """Compare; exit code 1 for a regression alone, 5 where nothing can be said."""
    progress = Progress(args)
    found = compare_builds(
        new, baseline, cases, device=wished(args), threads=args.threads or 0, plan=plan,
        choose=choose, gate=gate,
        on_pair=lambda done, most: progress(f"pair {done} of at most {most}"),
    )  # fmt: skip
    progress.done()
    changes = {c.comparison.change for c in found}
    change = next(c for c in CODES_BY_GRAVITY if c in changes)
    report = found[0].launches[0].report
    data = {
        "device": report.device,
        "emulated": report.emulated,
        "verdict": change.value,
        "new": str(new.path),
        "baseline": str(baseline.path),
        "conditions": asdict(found[0].conditions),
        "cases": [compared_data(c) for c in found],
    }
    return Result(CODES_BY_GRAVITY[change], data, compared_text(found))


def compared_data(c: Compared) -> dict[str, Any]:
    """The fields of --json; the raw samples of every launch among them. null: not known."""
    told = c.comparison

    def known(x: float) -> float | None:
        return x if math.isfinite(x) else None

    return {
        "label": c.label,
        "verdict": told.change.value,
        "ratio": known(told.ratio),
        "ratio_low": told.interval.low,
        "ratio_high": known(told.interval.high),
        "pairs": told.pairs,
        "reasons": list(told.reasons),
        "launches": [launch_data(launch) for launch in c.launches],
    }


def launch_data(launch: BuildLaunch) -> dict[str, Any]:
    """A launch of one case."""
    timing = launch.report.timing
    assert timing is not None
    return {
        "pair": launch.pair,
        "build": "new" if launch.new else "baseline",
        "first": launch.first,
        "load_ns": launch.load_ns,
        "first_ns": launch.report.first_ns,
        "latency_ns_p50": launch.median_ns,
        "samples_ns": list(launch.report.samples_ns),
        "timing": launch.verdict.value,
        "doubts": [{"kind": d.kind.value, "text": d.text} for d in timing.doubts],
    }


def compared_text(found: Sequence[Compared]) -> str:
    """A row per case, and why nothing is known where that is so."""
    rows = [["shapes", "new", "baseline", "ratio", f"{1 - ERROR:.0%} interval", "pairs", "verdict"]]
    notes = []
    for c in found:
        told = c.comparison
        of = [[x.median_ns for x in c.launches if x.new is new] for new in (True, False)]
        known = math.isfinite(told.ratio)
        rows.append(
            [
                c.label,
                *(milliseconds(median(times)) for times in of),
                f"{told.ratio:.3f}" if known else "-",
                f"{told.interval.low:.3f} to {told.interval.high:.3f}" if known else "-",
                str(told.pairs),
                colour(told.change.value, COLOURS.get(told.change, "bold")),
            ]
        )
        verdicts = Counter(x.verdict.value for x in c.launches)
        notes.append(f"  {c.label}: launches: " + ", ".join(f"{n} {v}" for v, n in verdicts.most_common()))
        notes += [f"  {c.label}: {why}" for why in told.reasons]
    report = found[0].launches[0].report
    mark = " (emulated: not the speed of any device)" if report.emulated else ""
    where = f"on {report.device}{mark}, {report.facts.cpu or report.facts.arch}"
    head = f"{where}; ratio above 1: the new build is slower"
    return "\n".join([head, table(rows), *notes, *found[0].conditions.lines()])
