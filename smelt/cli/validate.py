"""smelt validate: a model or bundle -> error per output against ONNX Runtime, on the device."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smelt.cli.ci import add_cases, add_ci_options, reporting
from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    Usage,
    add_trial_options,
    colour,
    command,
    open_bundle,
    profiled,
    shape_specs,
    tolerance,
    value_ranges,
    wished,
)
from smelt.cli.compile import compile_args
from smelt.cli.diagnosis import bisected, determined
from smelt.cli.entries import (
    add_entry_option,
    add_models,
    chosen_entry,
    chosen_models,
    original_models,
)
from smelt.compare import CaseResult, Validation, validate, validate_entries
from smelt.core.bundle import Bundle, hash_file, is_bundle
from smelt.core.diag import SmeltError
from smelt.core.dtype import ALL
from smelt.core.scratch import scratch_folder
from smelt.devicefarm.verdict import Verdict, worst
from smelt.difference import OutputError
from smelt.npz import read_npz
from smelt.opinions import Opinion
from smelt.shapes import RunCase, ShapeSpec, cases, feed_case
from smelt.targets.platform import same_again

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
        "--bisect", action="store_true",
        help="name the first stored value that is wrong, by its ONNX name, and the nodes that make it",
    )  # fmt: skip
    parser.add_argument(
        "--repro", metavar="DIR",
        help="bisect, and write the smallest model that shows the fault, with a script",
    )  # fmt: skip
    parser.add_argument(
        "--inputs", metavar="FILE.npz", help="the inputs of the one run, by name, instead of random ones"
    )
    parser.add_argument(
        "--determinism", action="store_true",
        help="also run the same inputs twice, on one thread and on all, and compare the bytes",
    )  # fmt: skip
    add_ci_options(parser, located=True)
    add_trial_options(parser, 3)


def run(args: argparse.Namespace) -> Result:
    """Compare every case with ONNX Runtime; exit code 1 if an error is outside the tolerance."""
    _check(args)
    with (
        scratch_folder("validate") as folder,
        reporting(args, "validate", args.source) as report,
    ):
        bundle, models = bundle_and_models(args, folder)
        progress = Progress(args)
        if len(bundle.entries) > 1 and args.entry is None:
            found = _all_entries(args, bundle, models, progress)
        else:
            bundle = chosen_entry(args, bundle)
            found = {"": _one_entry(args, bundle, models[bundle.entries[0]], progress)}
        verdict = worst([v.verdict for v in found.values()])
        data, parts = _told(found, verdict)
        for name, v in found.items():
            add_cases(report, v, name)
        code = verdict.exit_code
        if args.bisect or args.repro:
            finding = bisected(args, bundle, models, found, progress)
            data |= finding.data
            parts.append(finding.text)
            report.located(finding)
        if args.determinism:
            steady = determined(args, bundle, models, _cases(args, bundle), progress)
            data["determinism"] = steady.data
            parts.append(steady.text)
            report.add(steady.case)
            code = code or steady.exit_code
        progress.done()
        report.exit_code = code
    return Result(code, data, "\n".join(parts))


def _check(args: argparse.Namespace) -> None:
    several = len(getattr(args, "entries", {})) > 1
    if args.inputs and (args.shape or args.val_range or several):
        raise Usage("--inputs has the inputs of one run of one entry: leave --shape and --val-range out")
    if args.determinism and several and args.entry is None:
        raise Usage("--determinism is about one entry: name it with --entry")


def _told(found: Mapping[str, Validation], verdict: Verdict) -> tuple[dict[str, Any], list[str]]:
    if list(found) == [""]:
        return validation_data(found[""]), [validation_text(found[""])]
    data = {"verdict": verdict.value, "entries": {name: validation_data(v) for name, v in found.items()}}
    return data, [f"entry {name} {validation_text(v)}" for name, v in found.items()]


def _cases(args: argparse.Namespace, bundle: Bundle) -> Iterable[RunCase]:
    """What to run: the given inputs, the shapes asked for, or shapes that the model's dims allow."""
    if args.inputs:
        types = {r["name"]: ALL[r["dtype"]].numpy for r in bundle.manifest["inputs"]}
        return [feed_case(bundle, read_npz(Path(args.inputs), types))]
    return cases(bundle, _specs(args), count=args.count, seed=args.seed, ranges=value_ranges(args))


def _specs(args: argparse.Namespace) -> list[ShapeSpec]:
    return [] if _compiles(args) and not args.shape and profiled(args) else shape_specs(args)


def _one_entry(
    args: argparse.Namespace, bundle: Bundle, model: Path, progress: Progress
) -> Validation:
    return validate(
        bundle, model, _cases(args, bundle), device=wished(args), rtol=args.rtol, atol=args.atol,
        threads=args.threads or 0, enough=None if args.inputs or _specs(args) else args.count,
        on_case=lambda c: progress(f"{c.label}: {c.status}"),
    )  # fmt: skip


def _all_entries(
    args: argparse.Namespace, bundle: Bundle, models: Mapping[str, Path], progress: Progress
) -> dict[str, Validation]:
    """Validate every entry, in sessions that run all of them one after another."""
    if args.shape or args.inputs:
        raise Usage(f"--shape and --inputs are about one entry: say --entry {bundle.entries[0]}, for one")
    return validate_entries(
        bundle, models, device=wished(args), rtol=args.rtol, atol=args.atol, threads=args.threads or 0,
        count=args.count, seed=args.seed, ranges=value_ranges(args),
        on_case=lambda c: progress(f"{c.label}: {c.status}"),
    )  # fmt: skip


def _compiles(args: argparse.Namespace) -> bool:
    return not is_bundle(args.source)


def bundle_and_models(args: argparse.Namespace, folder: str) -> tuple[Bundle, dict[str, Path]]:
    """args.source as a bundle (compiled into the folder if it is a model) and the ONNX files that it is made
    of, by entry."""
    if not is_bundle(args.source):
        from smelt.stages import is_dump

        args.model = args.source
        found = chosen_models(args)
        if is_dump(args.source):
            raise Usage(f"'{args.source}' is a dump: compile it, and validate the bundle with --model MODEL")
        bundle = compile_args(args, f"{folder}/out")
        return bundle, {bundle.entries[0]: found} if isinstance(found, Path) else found
    bundle = open_bundle(args.source)
    models = original_models(args, bundle)
    for name, model in models.items():
        if hash_file(model) != bundle.entry(name).manifest["model"]["sha256"]:
            raise SmeltError(f"bundle '{args.source}' was made of another file than '{model}'")
    args.model, args.target = str(next(iter(models.values()))), same_again(bundle.target)
    return bundle, models


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
                "crash": asdict(c.crash) if c.crash else None,
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
