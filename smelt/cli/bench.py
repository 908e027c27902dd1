"""smelt bench: a model or bundle -> load, first and steady times, a race, or a comparison with a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from smelt.bench import PLANS, Measured, Pair, against, measure
from smelt.cli.bench_page import add_page_options, check_page_options, page_data, write_page
from smelt.cli.ci import Report, add_changes, add_ci_options, add_race, add_timings, reporting
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
    tolerance,
    value_ranges,
    whole,
    wished,
)
from smelt.cli.compile import compile_args
from smelt.cli.entries import add_entry_option, add_models, chosen_entry
from smelt.cli.paired import compare
from smelt.cli.profile import profile_text, with_kernels
from smelt.cli.validate import bundle_and_models
from smelt.core.bundle import is_bundle
from smelt.core.diag import SmeltError
from smelt.core.exits import OK
from smelt.core.policies import POLICIES, STATIC
from smelt.core.scratch import scratch_folder
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.measure import Sustained, geomean, gravest, median
from smelt.devicefarm.profiles import AS_SHIPPED, GATE, PROFILES, Gate, Profile, controlled, processors
from smelt.devicefarm.report import RunReport, UnitRuns
from smelt.devicefarm.verdict import worst
from smelt.pages.bench import BenchRun
from smelt.shapes import RunCase, cases


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "bench", run,
        "smelt bench out --shape x:1x3x224x224\nsmelt bench new --baseline old --device board\n"
        "smelt bench model.onnx --against onnxruntime --threads 1",
    )  # fmt: skip
    add_models(parser, "source", "MODEL|BUNDLE", "a model is compiled first")
    parser.add_argument(
        "--model", dest="original", action="append", metavar="MODEL|NAME=MODEL",
        help="a bundle's ONNX file, for --against",
    )  # fmt: skip
    add_entry_option(parser, "the first")
    parser.add_argument("--against", choices=("onnxruntime",), help="race on this machine, in turns")
    parser.add_argument(
        "--baseline", metavar="BUNDLE", help="another build of the model, to be compared in pairs of launches"
    )
    parser.add_argument(
        "--plan", choices=tuple(PLANS),
        help="how long (default: steady; of each launch with --baseline: quick)",
    )  # fmt: skip
    parser.add_argument(
        "--profile", action="store_true",
        help="also each kernel's time, on a device by the device's own events",
    )  # fmt: skip
    parser.add_argument(
        "--policy", choices=POLICIES, default=STATIC,
        help="what binds each run to a unit of a bundle that was compiled with --choose or --fallback "
        "(default: static, the first that works)",
    )  # fmt: skip
    add_condition_options(parser)
    add_page_options(parser)
    add_ci_options(parser)
    add_trial_options(parser, 2)


def add_condition_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about the conditions under which times are taken (docs/timing.md)."""
    parser.add_argument(
        "--conditions", choices=PROFILES, default=AS_SHIPPED.name,
        help="controlled: the governor 'performance' and the fastest processors, set back afterwards "
        "(default: as_shipped, which changes nothing)",
    )  # fmt: skip
    parser.add_argument("--cores", default="", metavar="0-3,6", help="the processors that may run the model")
    parser.add_argument(
        "--khz", type=whole(0, 10**9), default=0, metavar="N", help="a fixed frequency, with controlled"
    )
    parser.add_argument(
        "--cool", type=tolerance, default=GATE.degrees, metavar="C",
        help=f"degrees C at which times may be taken; hotter devices are waited for "
        f"(default: {GATE.degrees:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--cool-wait", type=tolerance, default=GATE.most_wait, metavar="S",
        help=f"how long at most (default: {GATE.most_wait:.0f} s); times are then called too hot",
    )  # fmt: skip


def chosen_profile(args: argparse.Namespace) -> Callable[[Condition], Profile]:
    """The profile that the options ask for, of a device in that condition. Raises Usage."""
    try:
        cpus = processors(args.cores)
    except SmeltError as e:
        raise Usage(f"--cores: {e}") from None
    if args.conditions == AS_SHIPPED.name and (cpus or args.khz):
        raise Usage("--cores and --khz are controlled conditions; add --conditions controlled")
    if args.conditions == AS_SHIPPED.name:
        return lambda now: AS_SHIPPED
    return lambda now: controlled(now, khz=args.khz, cpus=cpus)


def run(args: argparse.Namespace) -> Result:
    """Measure every shape, or compare with a baseline. Exit code 5: the times are inconclusive, or those of
    an emulated device."""
    if args.against and args.baseline:
        raise Usage("--against and --baseline are two comparisons; choose one")
    if args.baseline and args.plan == "sustained":
        raise Usage("--plan sustained is about one build; each launch of a comparison is short")
    for option in ("html", "profile"):
        if getattr(args, option) and (args.baseline or args.against):
            raise Usage(f"--{option} is about the runs of one build; leave out --baseline and --against")
    if args.policy != STATIC and (args.baseline or args.against):
        raise Usage("--policy is about the runs of one build; leave out --baseline and --against")
    beside = check_page_options(args)
    subject = f"{args.source} against {args.baseline}" if args.baseline else args.source
    with (
        scratch_folder("bench") as folder,
        reporting(args, "bench", subject) as report,
    ):
        return _race(args, folder, report) if args.against else _times(args, folder, report, beside)


def _times(args: argparse.Namespace, folder: str, ci: Report, beside: Sequence[BenchRun]) -> Result:
    if is_bundle(args.source):
        bundle = open_bundle(args.source)
    else:
        args.model = args.source
        bundle = compile_args(args, f"{folder}/out")
    bundle = chosen_entry(args, bundle)
    choose, gate = chosen_profile(args), Gate(degrees=args.cool, most_wait=args.cool_wait)
    if args.baseline:
        baseline = chosen_entry(args, open_bundle(args.baseline))
        plan = PLANS[args.plan or "quick"]
        compared = compare(args, bundle, baseline, _cases(args, bundle), plan, choose, gate)
        add_changes(ci, compared.data)
        return compared
    progress = Progress(args)
    wanted = _cases(args, bundle)
    found = measure(
        bundle, wanted, device=wished(args), threads=args.threads or 0,
        plan=PLANS[args.plan or "steady"], choose=choose, gate=gate, policy=args.policy,
        on_case=lambda m: progress(m.label),
    )  # fmt: skip
    verdict = worst([m.verdict for m in found])
    data: dict[str, Any] = {
        "device": found[0].report.device,
        "emulated": found[0].report.emulated,
        **asdict(found[0].report.origin),
        "verdict": verdict.value,
        "conditions": asdict(found[0].conditions),
        "policy": args.policy,
        "cases": [measured_data(m) for m in found],
    }
    add_timings(ci, data)
    text = measured_text(found)
    if args.html or args.profile:
        more = page_data if args.html else with_kernels
        data = more(args, bundle, wanted, data, progress)
    if args.html:
        write_page(args, bundle, wanted, data, beside)
    if args.profile:
        text += f"\n{profile_text(data)}"
    progress.done()
    return Result(verdict.exit_code, data, text)


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
        "runs_per_sample": m.report.samples.inner,
        "samples_ns": list(m.report.samples_ns),
        "samples_raw": samples_data(m.report),
        "telemetry": [asdict(r) for r in m.report.telemetry],
        "before": asdict(m.report.before),
        "after": asdict(m.report.after),
        "arena_bytes": m.report.memory.arena_bytes,
        "per_run": dict(m.per_run),
        "shares": [asdict(s) for s in m.report.shares],
        "timing": t.verdict.value,
        "doubts": [{"kind": d.kind.value, "text": d.text} for d in t.doubts],
        "verdict": m.verdict.value,
        "sustained": sustained_data(m.sustained),
    }


def sustained_data(s: Sustained | None) -> dict[str, Any] | None:
    """The two ends of a sustained run; None for any other."""
    if s is None:
        return None
    ends = {f"{name}_ns_p50": t.median for name, t in (("cold", s.cold), ("steady", s.steady))}
    return {**ends, "share": s.share, "timing": s.steady.verdict.value}


def samples_data(report: RunReport) -> dict[str, Any]:
    """The columns of the raw samples: each of `runs_per_sample` runs, with what the model was refused
    then."""
    columns = asdict(report.samples)
    return {name: list(columns[name]) for name in ("ns", "cpu_ns", "wait_ns", "preempted", "cpu")}


def measured_text(found: tuple[Measured, ...]) -> str:
    """The table of times, followed by the reasons to doubt them."""
    rows = [["shapes", "load", "first", "p50", "p90", "p99", "samples", "verdict"]]
    for m in found:
        t = m.report.timing
        assert t is not None
        # p99 needs a thousand samples to mean anything
        p99 = "-" if t.p99 is None else milliseconds(t.p99)
        times = [milliseconds(n) for n in (m.load_ns, m.report.first_ns, t.median, t.p90)]
        rows.append([m.label, *times, p99, str(t.n), t.verdict.value])
    report = found[0].report
    mark = " (emulated: not the speed of any device)" if report.emulated else ""
    lines = [f"on {report.device}{mark}, {report.facts.cpu or report.facts.arch}:", table(rows)]
    for m in found:
        told = ", ".join(f"{count:g} {name}" for name, count in m.per_run.items())
        lines += [f"  {m.label}: a run has {told}"] if told else []
        if m.report.shares:
            lines.append(f"  {m.label}: so far {', '.join(map(share_text, m.report.shares))}")
        if m.sustained:
            lines.append(sustained_line(m, m.sustained))
    return "\n".join([*lines, *doubt_lines(found), *found[0].conditions.lines()])


def share_text(s: UnitRuns) -> str:
    """A unit with its runs, and why it is left."""
    expected = f", expected {milliseconds(s.expected_ns)}" if s.expected_ns else ""
    return f"{s.unit} ({s.processor}) {s.runs} runs{expected}" + (f" [{s.why}]" if s.why else "")


def sustained_line(m: Measured, s: Sustained) -> str:
    """Both ends of a sustained run with their verdicts, and how hot it became."""
    ends = (f"{milliseconds(t.median)} ({t.verdict.value})" for t in (s.cold, s.steady))
    hottest = max((r.degrees for r in m.report.telemetry if r.degrees is not None), default=None)
    heat = "" if hottest is None else f", at most {hottest:.0f} degrees C"
    return f"  {m.label}: sustained: from {' to '.join(ends)}: {s.share:.0%} of the cold speed{heat}"


def doubt_lines(found: Sequence[Measured]) -> list[str]:
    """Why times are not valid, each reason once with the shapes that it is about."""
    about: dict[str, list[str]] = {}
    for m in found:
        for doubt in m.report.timing.doubts if m.report.timing else ():
            about.setdefault(str(doubt), []).append(m.label)
    alone = len(found) == 1
    return [f"  {d}" + ("" if alone else f" ({'; '.join(labels)})") for d, labels in about.items()]


def _race(args: argparse.Namespace, folder: str, ci: Report) -> Result:
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
    add_race(ci, data)
    worth = gravest([d for p in pairs for d in p.doubts]).value
    told = f"geometric mean {mean:.2f}x ({worth}), {threads} thread(s), in turns"
    return Result(OK, data, f"{race_table(pairs)}\n{told}")


def race_data(p: Pair) -> dict[str, Any]:
    """The fields of --json."""
    return {
        "label": p.label,
        "smelt_ns_p50": median(p.smelt_ns),
        "onnxruntime_ns_p50": median(p.rival_ns),
        "speed_ratio": p.ratio,
        "smelt_samples_ns": list(p.smelt_ns),
        "onnxruntime_samples_ns": list(p.rival_ns),
        "timing": p.verdict.value,
        "doubts": [{"kind": d.kind.value, "text": d.text} for d in p.doubts],
    }


def race_table(pairs: tuple[Pair, ...]) -> str:
    """Medians of both, and how many times as fast smelt is (above 1: faster)."""
    rows = [["shapes", "smelt", "onnxruntime", "speed", "verdict"]]
    for p in pairs:
        ours, theirs = milliseconds(median(p.smelt_ns)), milliseconds(median(p.rival_ns))
        rows.append([p.label, ours, theirs, f"{p.ratio:.2f}x", p.verdict.value])
    return "\n".join([table(rows), *(f"  {p.label}: {d}" for p in pairs for d in p.doubts)])
