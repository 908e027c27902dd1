"""smelt report: a model -> compiled, deployed, compared, timed, in one readable page (`make target=...`)."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

from smelt.cli.bench import doubt_lines, measured_data
from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    Usage,
    add_trial_options,
    check_target,
    colour,
    command,
    dim_specs,
    milliseconds,
    model_file,
    shape_specs,
    state_pairs,
    table,
)
from smelt.cli.entries import add_models, chosen_models
from smelt.cli.inspect import size_text
from smelt.cli.validate import case_lines, validation_data
from smelt.devicefarm.inventory import describe
from smelt.devicefarm.verdict import worst
from smelt.formula import memory_text
from smelt.report import ModelReport, make_entry_reports, make_report
from smelt.running import device_for
from smelt.samples import DEFAULT, SAMPLES, fetch

_NEXT_DIM = re.compile(r",(?=\s*[^\s,=]+=)")
"""A comma before the next dim, as opposed to one between hot sizes."""


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "report", run,
        "smelt report --target arm64\nsmelt report model.onnx --target android --dims 'batch=1 seq=1..512'",
    )  # fmt: skip
    about = f"an ONNX file or a sample ({', '.join(SAMPLES)}; default: {DEFAULT})"
    add_models(parser, "model", "MODEL", about, least=0)
    parser.add_argument(
        "-o", "--output", default="", metavar="DIR", help="the bundle (default: out/MODEL-TARGET)"
    )
    parser.add_argument(
        "--dims", default="", metavar="'N=4 M=1..512'", help="several --dim in one word, for make"
    )
    add_trial_options(parser, 3)


def run(args: argparse.Namespace) -> Result:
    """Compile, deploy, compare, time; the exit code is that of the comparison."""
    target = check_target(args.target)
    args.dim += [d for d in shlex.split(re.sub(_NEXT_DIM, " ", args.dims)) if d]
    progress = Progress(args)
    if getattr(args, "entries", None):
        return _entries(args, target, progress)
    name = args.model or DEFAULT
    if not os.path.exists(name) and name in SAMPLES:
        progress(f"fetching {name}")
        args.model = str(fetch(name))
    model = model_file(args.model)
    output = Path(args.output or f"out/{model.stem}-{args.target.replace(':', '-').replace('+', '-')}")
    output.parent.mkdir(parents=True, exist_ok=True)
    made = make_report(
        model, target, output, dims=dim_specs(args), specs=shape_specs(args), device=args.device,
        count=args.count, seed=args.seed, on_step=progress,
    )  # fmt: skip
    progress.done()
    return Result(made.verdict.exit_code, report_data(made), report_text(made, args.device))


def _entries(args: argparse.Namespace, target: str, progress: Progress) -> Result:
    """Report on every entry of a bundle."""
    models = chosen_models(args)
    assert isinstance(models, dict)
    if args.shape:
        raise Usage("--shape is about one entry; a report of several chooses shapes that fit each other")
    name = f"out/{'_'.join(models)}-{args.target.replace(':', '-').replace('+', '-')}"
    output = Path(args.output or name)
    output.parent.mkdir(parents=True, exist_ok=True)
    found = make_entry_reports(
        models, target, output, dims=dim_specs(args), state=state_pairs(args), device=args.device,
        count=args.count, seed=args.seed, on_step=progress,
    )  # fmt: skip
    progress.done()
    verdict = worst([s.verdict for s in found])
    data = {"verdict": verdict.value, "entries": {s.bundle.chosen: report_data(s) for s in found}}
    text = "\n\n".join(f"entry {s.bundle.chosen}\n{report_text(s, args.device)}" for s in found)
    return Result(verdict.exit_code, data, text)


def report_data(s: ModelReport) -> dict[str, Any]:
    """The fields of --json."""
    m = s.bundle.manifest
    return {
        "model": str(s.model),
        "target": s.bundle.target,
        "bundle": str(s.bundle.path),
        "compile_seconds": round(s.compile_seconds, 3),
        "symbols": m["symbols"],
        "parts": m["parts"],
        "peak_memory": m["memory"]["arenas"],
        "validation": validation_data(s.validation),
        "times": [measured_data(t) for t in s.times],
        "size": {"files": s.sizes.files, "code": s.sizes.code},
    }


def report_text(s: ModelReport, device: str | None) -> str:
    """The report."""
    m = s.bundle.manifest
    where = device_for(str(m["platform"]), device)
    dims = [f"  {d['name']}: {_range(d)}  ({d['origin']})" for d in m["symbols"]]
    kernels = sum(k["launches"] for k in m["kernels"])
    several = ", ".join(dict.fromkeys(v["processor"] for v in m["variants"]))
    lines = [
        colour(f"{m['model']['name']} on {s.bundle.target}", "bold"),
        f"  model    {s.model} (sha256 {m['model']['sha256'][:16]})",
        f"  bundle   {s.bundle.path}, compiled in {s.compile_seconds:.1f} s for "
        + (several or f"{m['cpu']} ({m['machine']})"),
        f"  kernels  {len(m['kernels'])}, launched {kernels} times",
        f"  device   {s.validation.device or where.name}: {describe(where)}",
        *([f"  units    no {', '.join(m['devices'])} there: the CPU ran its own code"] if _by_cpu(s) else []),
        "",
        "dims",
        *(dims or ["  all fixed"]),
        "",
        *_memory(s),
        "",
        f"error per output, against {s.validation.reference}",
        *(line for c in s.validation.cases for line in case_lines(c)),
        "",
        *_times(s),
        "",
        size_text(s.sizes),
        "",
    ]
    passed = sum(c.status == "pass" for c in s.validation.cases)
    told = sum(c.status != "skipped" for c in s.validation.cases)
    good = s.verdict.exit_code == 0
    word = colour("PASS" if good else s.verdict.value.upper(), "green" if good else "red")
    found = s.validation
    lines.append(f"{word}: {passed} of {told} shapes agree with {found.reference} on {found.device}")
    return "\n".join(lines)


def _by_cpu(s: ModelReport) -> bool:
    """Whether the model ran on an emulated board without the device that it is compiled for."""
    options = s.bundle.manifest["options"]
    both = options.get("fallback") or options.get("choose")
    return bool(s.validation.emulated and s.bundle.manifest["devices"] and both)


def _range(d: dict[str, Any]) -> str:
    high = "any size" if d["high"] is None and d["low"] <= 1 else f"{d['low']}..{d['high'] or ''}"
    return high + (f", multiples of {d['divisor']}" if d["divisor"] != 1 else "")


def _memory(s: ModelReport) -> list[str]:
    """The peak-memory formula, with the cases that dominate at the shapes that ran, and what was measured
    there."""
    ran = [c for c in s.validation.cases if c.arena_bytes]
    lines = [memory_text(s.bundle.manifest, [s.bundle.bind(c.shapes) for c in ran])]
    return lines + [f"  measured at {c.label}: {c.arena_bytes:,} bytes" for c in ran]


def _times(s: ModelReport) -> list[str]:
    if not s.times:
        return ["times: none, since no shape agrees"]
    mark = ""
    if s.validation.emulated:
        mark = ", EMULATED: they show that it runs, and nothing about the speed of a device"
    rows = [["shapes", "load", "first", "p50", "p90", "verdict"]]
    for t in s.times:
        timing = t.report.timing
        assert timing is not None
        times = (t.load_ns, t.report.first_ns, timing.median, timing.p90)
        rows.append([t.label, *map(milliseconds, times), timing.verdict.value])
    return [f"times, one thread{mark}", table(rows, indent="  "), *doubt_lines(s.times)]
