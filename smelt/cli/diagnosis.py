"""A comparison -> where it went wrong: the text, JSON and located finding of --bisect and --determinism."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.cli.ci import CiCase
from smelt.cli.common import Progress, wished
from smelt.compare import CaseResult, Validation
from smelt.core.bundle import Bundle
from smelt.core.exits import FAILED, OK
from smelt.devicefarm.verdict import Verdict
from smelt.shapes import RunCase

if TYPE_CHECKING:  # with the compiler's interpreters, which a comparison that finds nothing does without
    from smelt.bisect import Bisection, Divergence
    from smelt.determinism import Determinism
    from smelt.reproducer import Reproducer

MOST_SUSPECTS = 12
"""How many suspects the text lists; --json has them all."""


@dataclass(frozen=True)
class Located:
    """A finding with a place: the names of the nodes that it is about, in a model."""

    text: str
    data: dict[str, Any]
    model: str = ""
    nodes: tuple[str, ...] = ()
    message: str = ""


def bisected(
    args: argparse.Namespace, bundle: Bundle, models: Mapping[str, Path],
    found: Mapping[str, Validation], progress: Progress,
) -> Located:  # fmt: skip
    """Bisect the first case that is a mismatch, and write its reproducer where --repro asks for one."""
    from smelt.bisect import bisect
    from smelt.reproducer import options_of, write_reproducer

    name, bad = _first_mismatch(found)
    if bad is None:
        none = "nothing to bisect: every output agrees"
        wrong = any(v.verdict is not Verdict.PASS for v in found.values())
        text = "nothing to bisect: no output was compared and wrong" if wrong else none
        return Located(text, {"first_bad": None})
    what = bisect(
        bundle, models, bad.script, bad.wrong, device=wished(args), threads=args.threads or 0, rtol=args.rtol,
        atol=args.atol, on_step=progress,
    )  # fmt: skip
    step = bad.script[what.step]
    model = models[step.entry or name or bundle.entries[0]]
    repro = None
    if args.repro:
        view = bundle.entry(step.entry or name or None)
        options = options_of(view, model, args.device, args.rtol, args.atol, args.threads or 0)
        repro = write_reproducer(Path(args.repro), view, model, step, what, options, on_step=progress)
    first = None if what.first is None else _data(what.first)
    data = {"first_bad": first, "bisect": {**_about(what), "entry": step.entry}}
    if args.repro:
        data["repro"] = None if repro is None else {"folder": str(repro.folder), "has": repro.kind}
    lines = [bisect_text(what)]
    if what.step < len(bad.script) - 1:
        where = f" of entry '{step.entry}'" if step.entry else ""
        left = f"it left a wrong state, which '{bad.label}' begins with"
        lines.append(f"  the fault is in run {what.step + 1}{where}: {left}")
    lines += [_repro_text(repro)] if args.repro else []
    nodes = () if what.first is None else tuple(s.name or s.output for s in what.first.suspects)
    message = lines[0].splitlines()[0]
    return Located("\n".join(lines), data, str(model), nodes, message if what.first else "")


def _first_mismatch(found: Mapping[str, Validation]) -> tuple[str, CaseResult | None]:
    for name, v in found.items():
        for c in v.cases:
            if c.status == "mismatch":
                return name, c
    return "", None


def _about(what: Bisection) -> dict[str, Any]:
    return {
        "launches": what.launches, "right": len(what.right), "skipped": dict(what.skipped), "cut": what.cut,
        "repeated": what.repeated, "step": what.step,
    }  # fmt: skip


def _data(first: Divergence) -> dict[str, Any]:
    lone = first.suspects[0] if len(first.suspects) == 1 else None
    return {
        "name": first.name,
        "node": lone.name if lone else "",
        "op": lone.op if lone else "",
        "suspects": [asdict(s) for s in first.suspects],
        "kernel": first.kernel,
        "kernels": list(first.kernels),
        "unit": first.unit,
        "inside": first.inside,
        "round": first.round,
        "error": asdict(first.error),
    }


def bisect_text(what: Bisection) -> str:
    """The finding, and what it does not know."""
    first = what.first
    lines = []
    if first is None and not what.repeated:
        lines.append("bisect: the probed run was right: the fault does not repeat; --determinism tells more")
    elif first is None:
        lines.append("bisect: every stored value that could be compared is right")
    else:
        lines += _first_text(first)
    if what.cut:
        lines.append(
            f"  the run has more launches than were noted: only the first {what.launches} were looked at"
        )
    left = ", ".join(f"{n} {why}" for why, n in what.skipped.items())
    lines.append(
        f"  right: {len(what.right)} stored values before it" + (f"; not compared: {left}" if left else "")
    )
    return "\n".join(lines)


def _first_text(first: Divergence) -> list[str]:
    where = f", which kernel '{first.kernel}' writes" if first.kernel else ""
    where += f" on {first.unit}" if first.unit not in ("", "cpu") else ""
    if len(first.suspects) == 1:
        s = first.suspects[0]
        lines = [f"first bad value: '{first.name}' of node '{s.name}' ({s.op}){where}", f"  {first.error}"]
    else:
        hidden = f"one of these {len(first.suspects)} nodes, whose values in between are stored nowhere"
        lines = [f"first bad value: '{first.name}'{where}", f"  {first.error}", f"  {hidden}:"]
        lines += [f"    {s}" for s in first.suspects[:MOST_SUSPECTS]]
        more = len(first.suspects) - MOST_SUSPECTS
        lines += [f"    and {more} more"] if more > 0 else []
    if first.inside:
        lines.append(f"  inside it '{first.inside}' is wrong first, in round {first.round}")
    if len(first.kernels) > 1:
        lines.append(f"  they run in the kernels {', '.join(first.kernels)}")
    return lines


def _repro_text(repro: Reproducer | None) -> str:
    if repro is None:
        return "no reproducer: no model without the runs before it shows the fault"
    return f"reproducer: {repro.folder}/repro.sh has {repro.kind} ({repro.nodes} nodes)"


# ---------------------------------------------------------------- determinism


@dataclass(frozen=True)
class Steadiness:
    """What --determinism found."""

    text: str
    data: dict[str, Any]
    exit_code: int
    case: CiCase = field(default_factory=lambda: CiCase("determinism"))


def determined(
    args: argparse.Namespace, bundle: Bundle, models: Mapping[str, Path], cases: Iterable[RunCase],
    progress: Progress,
) -> Steadiness:  # fmt: skip
    """Compare the bytes of repeated runs; a model that draws random numbers is not asked."""
    from smelt.determinism import determinism
    from smelt.model_cut import ModelGraph

    drawn = ModelGraph(models[bundle.entries[0]]).random_nodes()
    if drawn:
        why = f"the model draws random numbers: {', '.join(map(str, drawn[:3]))}"
        case = CiCase("determinism", outcome="skipped", message=why)
        return Steadiness(f"determinism: not compared: {why}", {"skipped": why}, OK, case)
    found = determinism(
        bundle, list(islice(cases, args.count)), device=wished(args),
        on_case=lambda d: progress(f"{d.label}: {'steady' if not d.unsteady else 'unsteady'}"),
    )  # fmt: skip
    bad = [(d, u) for d in found for u in d.unsteady]
    rows = [{"label": d.label, "unsteady": [asdict(u) for u in d.unsteady]} for d in found]
    if not bad:
        text = f"determinism: {len(found)} shapes give the same bytes twice, on one thread and on all"
        return Steadiness(text, {"cases": rows}, OK)
    text = "\n".join(["determinism: the same inputs give different bytes", *(_line(d, u) for d, u in bad)])
    case = CiCase(
        "determinism", outcome="failure", kind="unsteady", message=text.splitlines()[1].strip(), text=text
    )
    return Steadiness(text, {"cases": rows}, FAILED, case)


def _line(d: Determinism, u: Any) -> str:
    return f"  {d.label}: {u}"
