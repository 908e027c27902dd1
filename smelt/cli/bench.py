"""smelt bench: a model or bundle -> load, first and steady times, or a race with ONNX Runtime."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import islice
from typing import Any

from smelt.bench import PLANS, Measured, Pair, against, geomean, measure
from smelt.cli.bench_page import add_page_options, check_page_options, page_data, write_page
from smelt.cli.ci import Report, add_ci_options, add_timings, reporting
from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    Usage,
    add_trial_options,
    command,
    milliseconds,
    open_bundle,
    shape_specs,
    table,
    value_ranges,
)
from smelt.cli.compile import compile_args
from smelt.cli.entries import add_entry_option, add_models, chosen_entry
from smelt.cli.validate import bundle_and_models
from smelt.core.bundle import is_bundle
from smelt.core.exits import OK
from smelt.devicefarm.measure import median
from smelt.devicefarm.verdict import worst
from smelt.pages.bench import BenchRun
from smelt.shapes import RunCase, cases


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "bench", run,
        "smelt bench out --shape x:1x3x224x224\nsmelt bench model.onnx --against onnxruntime --threads 1",
    )  # fmt: skip
    add_models(parser, "source", "MODEL|BUNDLE", "a model is compiled first")
    parser.add_argument(
        "--model", dest="original", action="append", metavar="MODEL|NAME=MODEL",
        help="a bundle's ONNX file, for --against",
    )  # fmt: skip
    add_entry_option(parser, "the first")
    parser.add_argument("--against", choices=("onnxruntime",), help="race on this machine, in turns")
    parser.add_argument("--plan", choices=tuple(PLANS), default="steady", help="how long (default: steady)")
    add_page_options(parser)
    add_ci_options(parser)
    add_trial_options(parser, 2)


def run(args: argparse.Namespace) -> Result:
    """Measure every shape. Exit code 5: the times are inconclusive, or those of an emulated device."""
    beside = check_page_options(args)
    with (
        tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder,
        reporting(args, "bench", args.source) as report,
    ):
        return _race(args, folder) if args.against else _times(args, folder, report, beside)


def _times(args: argparse.Namespace, folder: str, ci: Report, beside: Sequence[BenchRun]) -> Result:
    if is_bundle(args.source):
        bundle = open_bundle(args.source)
    else:
        args.model = args.source
        bundle = compile_args(args, f"{folder}/out")
    bundle = chosen_entry(args, bundle)
    progress = Progress(args)
    wanted = _cases(args, bundle)
    found = measure(
        bundle, wanted, device=args.device, threads=args.threads or 0,
        plan=PLANS[args.plan], on_case=lambda m: progress(m.label),
    )  # fmt: skip
    verdict = worst([m.verdict for m in found])
    data: dict[str, Any] = {
        "device": found[0].report.device,
        "emulated": found[0].report.emulated,
        "verdict": verdict.value,
        "cases": [measured_data(m) for m in found],
    }
    add_timings(ci, data)
    if args.html:
        data = page_data(args, bundle, wanted, data, progress)
        write_page(args, bundle, wanted, data, beside)
    progress.done()
    return Result(verdict.exit_code, data, measured_text(found))


def _cases(args: argparse.Namespace, bundle: Any) -> list[RunCase]:
    specs = shape_specs(args)
    wanted = cases(bundle, specs, seed=args.seed, ranges=value_ranges(args))
    return list(islice(wanted, len(specs) or args.count))


def measured_data(m: Measured) -> dict[str, Any]:
    """The fields of --json; raw samples among them. Units are in the names."""
    t = m.report.timing
    assert t is not None
    return {
        "label": m.label,
        "load_ns": m.load_ns,
        "first_ns": m.report.first_ns,
        "latency_ns_p50": t.median,
        "latency_ns_p90": t.p90,
        "latency_ns_p99": t.p99,
        "latency_ns_min": t.min,
        "latency_ns_mean": t.mean,
        "latency_ns_mad": t.mad,
        "samples": t.n,
        "runs_per_sample": m.report.inner,
        "samples_ns": list(m.report.samples_ns),
        "arena_bytes": m.report.memory.arena_bytes,
        "per_run": dict(m.per_run),
        "unstable": list(t.unstable),
        "invalid": list(t.invalid),
        "verdict": m.verdict.value,
    }


def measured_text(found: tuple[Measured, ...]) -> str:
    """The table of times, followed by the reasons to doubt them."""
    rows = [["shapes", "load", "first", "p50", "p90", "p99", "samples"]]
    doubts: list[str] = []
    for m in found:
        t = m.report.timing
        assert t is not None
        # p99 needs a thousand samples to mean anything
        p99 = "-" if t.p99 is None else milliseconds(t.p99)
        times = [milliseconds(n) for n in (m.load_ns, m.report.first_ns, t.median, t.p90)]
        rows.append([m.label, *times, p99, str(t.n)])
        doubts += [f"{m.label}: {d}" for d in (*t.invalid, *t.unstable)]
    report = found[0].report
    mark = " (emulated: not the speed of any device)" if report.emulated else ""
    lines = [f"on {report.device}{mark}, {report.facts.cpu or report.facts.arch}:", table(rows)]
    for m in found:
        told = ", ".join(f"{count:g} {name}" for name, count in m.per_run.items())
        lines += [f"  {m.label}: a run has {told}"] if told else []
    return "\n".join(lines + [f"  inconclusive: {d}" for d in dict.fromkeys(doubts)])


def _race(args: argparse.Namespace, folder: str) -> Result:
    if args.device not in (None, "local"):
        raise Usage("--against runs both in this process, on this machine; leave --device out")
    bundle, models = bundle_and_models(args, folder)
    bundle = chosen_entry(args, bundle)
    model = models[bundle.entries[0]]
    progress = Progress(args)
    threads = args.threads or 1
    pairs = against(
        bundle,
        model,
        _cases(args, bundle),
        threads=threads,
        on_case=lambda p: progress(f"{p.label}: {p.ratio:.2f}"),
    )
    progress.done()
    mean = geomean([p.ratio for p in pairs])
    data = {
        "against": args.against,
        "threads": threads,
        "speed_ratio_geomean": mean,
        "cases": [race_data(p) for p in pairs],
    }
    return Result(OK, data, f"{race_table(pairs)}\ngeometric mean {mean:.2f}x, {threads} thread(s), in turns")


def race_data(p: Pair) -> dict[str, Any]:
    """The fields of --json."""
    return {
        "label": p.label,
        "smelt_ns_p50": median(p.smelt_ns),
        "onnxruntime_ns_p50": median(p.rival_ns),
        "speed_ratio": p.ratio,
        "smelt_samples_ns": list(p.smelt_ns),
        "onnxruntime_samples_ns": list(p.rival_ns),
    }


def race_table(pairs: tuple[Pair, ...]) -> str:
    """Medians of both, and how many times as fast smelt is (above 1: faster)."""
    rows = [["shapes", "smelt", "onnxruntime", "speed"]]
    for p in pairs:
        ours, theirs = milliseconds(median(p.smelt_ns)), milliseconds(median(p.rival_ns))
        rows.append([p.label, ours, theirs, f"{p.ratio:.2f}x"])
    return table(rows)
