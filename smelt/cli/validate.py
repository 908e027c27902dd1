"""smelt validate: a model or bundle -> error per output against ONNX Runtime, on the device."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    Usage,
    add_trial_options,
    colour,
    command,
    dim_specs,
    open_bundle,
    profiled,
    shape_specs,
    tolerance,
    value_ranges,
    wished,
)
from smelt.cli.compile import compile_args
from smelt.cli.entries import (
    add_entry_option,
    add_models,
    chosen_entry,
    chosen_models,
    original_models,
)
from smelt.compare import CaseResult, Divergence, Validation, bisect, validate, validate_entries
from smelt.core.bundle import Bundle, hash_file, is_bundle
from smelt.core.diag import SmeltError
from smelt.core.scratch import scratch_folder
from smelt.devicefarm.verdict import worst
from smelt.difference import OutputError
from smelt.opinions import Opinion
from smelt.shapes import bind, case, cases, trials

MOST_OPINIONS = 6
"""How many opinions the text lists per case; --json has them all."""


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "validate", run,
        "smelt validate model.onnx --target arm64 --shape x:1x3x224x224 --shape x:2x3x97x131\n"
        "smelt validate out --model model.onnx --bisect",
    )  # fmt: skip
    add_models(parser, "source", "MODEL|BUNDLE", "a model is compiled first")
    parser.add_argument(
        "--model", dest="original", action="append", metavar="MODEL|NAME=MODEL",
        help="the ONNX file that a bundle was made of; one for each of its entries",
    )  # fmt: skip
    add_entry_option(parser, "all, each going on from what those before have left in the state")
    parser.add_argument("--rtol", type=tolerance, help="relative tolerance of an element")
    parser.add_argument("--atol", type=tolerance, help="absolute tolerance of an element")
    parser.add_argument(
        "--bisect", action="store_true", help="name the first value that is wrong, by its ONNX name"
    )
    add_trial_options(parser, 3)


def run(args: argparse.Namespace) -> Result:
    """Compare every case with ONNX Runtime; exit code 1 if an error is outside the tolerance."""
    stateless = Usage("--bisect runs a model once, so it takes no state: leave --state out")
    if args.bisect and _compiles(args) and args.state:
        raise stateless
    with scratch_folder("validate") as folder:
        bundle, models = bundle_and_models(args, folder)
        if len(bundle.entries) > 1 and args.entry is None:
            return _all_entries(args, bundle, models)
        bundle = chosen_entry(args, bundle)
        model = models[bundle.entries[0]]
        if args.bisect and bundle.manifest["state"]:
            raise stateless
        progress = Progress(args)
        specs = [] if _compiles(args) and not args.shape and profiled(args) else shape_specs(args)
        wanted = cases(bundle, specs, count=args.count, seed=args.seed, ranges=value_ranges(args))
        found = validate(
            bundle, model, wanted, device=wished(args), rtol=args.rtol, atol=args.atol,
            threads=args.threads or 0, enough=None if specs else args.count,
            on_case=lambda c: progress(f"{c.label}: {c.status}"),
        )  # fmt: skip
        first = _bisect(args, bundle, model, found, progress) if args.bisect else None
        progress.done()
    data = validation_data(found)
    lines = [validation_text(found)]
    if args.bisect:
        data["first_bad"] = None if first is None else {**asdict(first), "error": asdict(first.error)}
        lines.append(_bisect_text(first, found))
    return Result(found.verdict.exit_code, data, "\n".join(lines))


def _all_entries(args: argparse.Namespace, bundle: Bundle, models: Mapping[str, Path]) -> Result:
    """Validate every entry, in sessions that run all of them one after another."""
    if args.bisect or args.shape:
        raise Usage(f"--bisect and --shape are about one entry: say --entry {bundle.entries[0]}, for one")
    progress = Progress(args)
    found = validate_entries(
        bundle, models, device=wished(args), rtol=args.rtol, atol=args.atol, threads=args.threads or 0,
        count=args.count, seed=args.seed, ranges=value_ranges(args),
        on_case=lambda c: progress(f"{c.label}: {c.status}"),
    )  # fmt: skip
    progress.done()
    verdict = worst([v.verdict for v in found.values()])
    data = {"verdict": verdict.value, "entries": {name: validation_data(v) for name, v in found.items()}}
    text = "\n".join(f"entry {name} {validation_text(v)}" for name, v in found.items())
    return Result(verdict.exit_code, data, text)


def _compiles(args: argparse.Namespace) -> bool:
    return not is_bundle(args.source)


def bundle_and_models(args: argparse.Namespace, folder: str) -> tuple[Bundle, dict[str, Path]]:
    """args.source as a bundle (compiled into the folder if it is a model) and the ONNX files that it is made
    of, by entry."""
    if not is_bundle(args.source):
        args.model = args.source
        found = chosen_models(args)
        bundle = compile_args(args, f"{folder}/out")
        return bundle, {bundle.entries[0]: found} if isinstance(found, Path) else found
    bundle = open_bundle(args.source)
    models = original_models(args, bundle)
    for name, model in models.items():
        if hash_file(model) != bundle.entry(name).manifest["model"]["sha256"]:
            raise SmeltError(f"bundle '{args.source}' was made of another file than '{model}'")
    args.model, args.target = str(next(iter(models.values()))), bundle.target
    return bundle, models


def _bisect(
    args: argparse.Namespace, bundle: Bundle, model: Path, found: Validation, progress: Progress
) -> Divergence | None:
    bad = [i for i, c in enumerate(found.cases) if c.status == "mismatch"]
    if not bad:
        return None
    specs = shape_specs(args)
    values = trials(bundle) if not specs else [bind(bundle, w) for w in specs]
    chosen = case(bundle, values[bad[0]], seed=args.seed, ranges=value_ranges(args))
    return bisect(
        model, chosen, target=args.target, dims=dim_specs(args), device=wished(args), opt=args.opt,
        fp16=bool(bundle.manifest["options"].get("fp16")),
        fast_math=bundle.manifest["options"].get("fast_math", ()), rtol=args.rtol, atol=args.atol,
        place=dict(bundle.manifest["options"].get("place", ())), on_step=progress,
    )  # fmt: skip


def _bisect_text(first: Divergence | None, found: Validation) -> str:
    if first is None and found.verdict.exit_code == 0:
        return "nothing to bisect: every output agrees"
    if first is None:
        return "bisect: every value that can be made visible agrees; the error is in the last step"
    how = "" if first.alone else " (only while other values are visible too)"
    return f"first bad value: '{first.name}' of node '{first.node}' ({first.op}){how}\n  {first.error}"


def validation_data(found: Validation) -> dict[str, Any]:
    """The fields of --json."""
    return {
        "device": found.device,
        "emulated": found.emulated,
        **asdict(found.origin),
        "reference": found.reference,
        "verdict": found.verdict.value,
        "cases": [
            {
                "label": c.label,
                "status": c.status,
                "why": c.why,
                "arena_bytes": c.arena_bytes,
                "outputs": [{**asdict(o), "ok": o.ok} for o in c.outputs],
                "opinions": {n: [_opinion_data(o) for o in heard] for n, heard in c.opinions.items()},
            }
            for c in found.cases
        ],
    }


def _opinion_data(o: Opinion) -> dict[str, Any]:
    def rows(errors: tuple[OutputError, ...]) -> list[dict[str, Any]]:
        return [{**asdict(e), "ok": e.ok} for e in errors]

    return {"who": o.who, "smelt": rows(o.errors), "onnxruntime": rows(o.apart)}


def validation_text(found: Validation) -> str:
    """A line per case and one per output."""
    mark = " (emulated)" if found.emulated else ""
    lines = [f"against {found.reference} on {found.device}{mark}:"]
    for c in found.cases:
        lines += case_lines(c)
    passed = sum(c.status == "pass" for c in found.cases)
    told = sum(c.status != "skipped" for c in found.cases)
    if not told:
        none = colour("nothing was compared", "red")
        lines.append(f"{none}: {found.reference} refused all inputs; name sizes that it takes with --shape")
        return "\n".join(lines)
    word = colour(found.verdict.value, "green" if found.verdict.exit_code == 0 else "red")
    lines.append(f"{word}: {passed} of {told} shapes agree")
    return "\n".join(lines)


def case_lines(c: CaseResult) -> list[str]:
    """The lines of one case: its result and the errors of its outputs."""
    marks = {"pass": "green", "mismatch": "red", "failed": "red", "skipped": "yellow"}
    lines = [f"  {colour(c.status.ljust(8), marks[c.status])} {c.label}" + (f": {c.why}" if c.why else "")]
    lines += [f"             {o.name}: {o}" for o in c.outputs]
    heard = [(name, o) for name, opinions in c.opinions.items() for o in opinions]
    return lines + [f"             {name}: {o}" for name, o in heard[:MOST_OPINIONS]]
