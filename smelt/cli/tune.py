"""smelt tune: a model -> the fastest of the schedules that strategies offer for its kernels, in a file."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    Usage,
    add_compile_options,
    add_shape_options,
    check_target,
    command,
    dim_specs,
    shape_specs,
    state_pairs,
    table,
    tolerance,
    whole,
)
from smelt.cli.compile import compile_args
from smelt.cli.entries import add_models, chosen_models
from smelt.core.diag import SmeltWarning
from smelt.core.exits import OK
from smelt.core.schedule.book import print_book
from smelt.core.scratch import scratch_folder
from smelt.request import Request
from smelt.tuning import TuneBudget, Tuned, find_jobs, listed, subject, tune
from smelt.tuning.store import check_writable, read_book


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "tune", run,
        "smelt tune model.onnx --budget 300 -o model.schedules --shape batch=1 --shape batch=8\n"
        "smelt compile model.onnx --schedules model.schedules",
    )  # fmt: skip
    add_models(parser, "model", "MODEL", "an ONNX file")
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help="the file of schedules, which what is found is added to (default: MODEL.schedules)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=tolerance, default=600.0, metavar="SECONDS",
        help="measure no longer than that (default: 600); a further call goes on where this one ends",
    )  # fmt: skip
    parser.add_argument("--measurements", type=whole(0, 10**9), metavar="N", help="and no oftener than that")
    parser.add_argument(
        "--list", action="store_true",
        help="print the strategies' schedules as entries by hand, to be edited, and measure nothing",
    )  # fmt: skip
    parser.add_argument(
        "--count", type=whole(1, 10_000), default=3, help="shapes to try when none are given (default: 3)"
    )
    add_compile_options(parser)
    add_shape_options(parser)


def run(args: argparse.Namespace) -> Result:
    """Compile the model, time its kernels, then measure candidates of each, the slowest kernel first."""
    if args.schedules:
        raise Usage("--schedules: what is tuned is compared with the strategies' own; -o names the file")
    request = _request(args)
    if args.list:
        text = print_book(listed(request))
        return Result(OK, {"schedules": text}, text.rstrip("\n"))
    whom = subject(request)
    path = Path(args.output or f"{Path(args.model).stem}.schedules").absolute()
    check_writable(path)
    for fault in read_book(path).faults:
        warnings.warn(f"'{path}': dropped an entry that cannot be read: {fault}", SmeltWarning, stacklevel=2)
    most = math.inf if args.measurements is None else args.measurements
    budget, progress = TuneBudget(args.budget, most), Progress(args)
    try:
        with scratch_folder("tune") as folder:
            bundle = compile_args(args, f"{folder}/out")
            specs = shape_specs(args)
            jobs = find_jobs(request, bundle, specs, count=args.count, seed=args.seed, on_case=progress)
        done = tune(whom, jobs, path, budget, on_kernel=progress)
    finally:
        progress.done()
    data = {
        "file": str(path), "machine": whom.called, "measurements": budget.done,
        "kernels": [_row(t) for t in done],
    }  # fmt: skip
    return Result(OK, data, _text(path, done, budget))


def _request(args: argparse.Namespace) -> Request:
    """What a compile with these options asks for."""
    models = chosen_models(args)
    entries = () if isinstance(models, Path) else tuple((name, str(file)) for name, file in models.items())
    source = str(models) if isinstance(models, Path) else entries[0][1]
    return Request(
        source, target=check_target(args.target), dims=dim_specs(args) or {}, threads=args.threads,
        opt=args.opt, fp16=args.fp16, fast_math=args.fast_math, keep_subnormals=args.keep_subnormals,
        libraries=args.libraries, place=tuple(args.place.items()), state=state_pairs(args) or {},
        entries=entries,
    )  # fmt: skip


def _row(t: Tuned) -> dict[str, Any]:
    at = [] if t.entry is None else [{"sizes": s, "ratio": r} for s, r in t.entry.at]
    return {
        "kernel": t.job.name, "digest": t.job.question.digest, "share": t.job.share, "status": t.status,
        "tried": t.tried, "ratio": t.ratio, "why": t.why, "failed": list(t.failed), "at": at,
    }  # fmt: skip


def _text(path: Path, done: Sequence[Tuned], budget: TuneBudget) -> str:
    rows = [["kernel", "share", "tried", "time", ""]]
    for t in done:
        time = f"{t.ratio:.2f}" if t.status == "faster" else "-"
        rows.append([t.job.name, f"{t.job.share:.0%}", str(t.tried or "-"), time, f"{t.status}: {t.why}"])
    left = sum(t.status == "unfinished" for t in done)
    told = [f"{path}: {budget.done} measurements; 'time' is that of the default's", table(rows)]
    told += [f"  {t.job.name}: not counted: {why}" for t in done for why in t.failed]
    if left:
        told.append(f"{left} kernels are left: the budget is spent; the same command goes on with them")
    return "\n".join(told)
