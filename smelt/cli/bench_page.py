"""--html of `smelt bench`: its JSON with kernels and memory added, as a page; other runs beside it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smelt.cli.common import Progress, Usage, write_result
from smelt.cli.profile import with_kernels
from smelt.core.bundle import Bundle
from smelt.devicefarm.measure import TimingVerdict
from smelt.pages.bench import BenchRun, bench_page
from smelt.roofline import Peaks, measured_peaks, stated_peaks
from smelt.shapes import RunCase, bind

POINTS = 24
"""Points of a curve of memory."""
REACH = 4
"""How many times a size's value a curve reaches where the size has no bound."""


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Add --html and --beside."""
    parser.add_argument(
        "--html", metavar="FILE.html", help="also write a page: distributions, kernels, memory, telemetry"
    )
    parser.add_argument(
        "--beside", action="append", default=[], metavar="FILE.json",
        help="show the run that this file has (of bench --json) beside, on the page; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--peak", metavar="GFLOPS,GBPS", type=_peaks,
        help="with --html: what the device's processor does at most, float32 operations and bytes, on all "
        "threads of the model (default: measured where the device is this machine)",
    )  # fmt: skip


def _peaks(text: str) -> Peaks:
    try:
        return stated_peaks(text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(f"'{text:.40}': {why}") from None


def check_page_options(args: argparse.Namespace) -> list[BenchRun]:
    """The runs to show beside. Raises Usage before anything is measured."""
    if (args.beside or args.peak) and not args.html:
        raise Usage("--beside and --peak are about a page: say --html FILE.html")
    found = []
    for name in args.beside:
        try:
            data = json.loads(Path(name).read_text("utf-8"))
            labels = [c["label"] for c in data["cases"]]
            assert labels and all("latency_ns_p50" in c for c in data["cases"])
            assert all(TimingVerdict(c["timing"]) for c in data["cases"])
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            raise Usage(f"--beside {name}: this is no result of 'smelt bench --json'") from None
        found.append(BenchRun(Path(name).stem, data))
    return found


def page_data(
    args: argparse.Namespace, bundle: Bundle, cases: Sequence[RunCase], data: Mapping[str, Any],
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """The command's data with the kernels' times of each case, and what they took at least."""
    peaks, why = peaks_of(args, bundle, bool(data["emulated"]), progress)
    known = {"peaks": None if peaks is None else asdict(peaks), "peaks_unknown": why}
    return {**with_kernels(args, bundle, cases, data, progress, peaks), **known}


def peaks_of(
    args: argparse.Namespace, bundle: Bundle, emulated: bool, progress: Progress
) -> tuple[Peaks | None, str]:
    """What the device's processor does at most; or why that is not known."""
    if emulated:
        return None, "times of an emulated device say nothing about a processor"
    if args.peak is not None:
        return args.peak, ""
    if args.device not in (None, "local"):
        return None, f"nothing has measured what '{args.device}' does at most; --peak GFLOPS,GBPS states it"
    progress("peaks of this machine")
    threads = args.threads or bundle.manifest["options"].get("threads") or len(os.sched_getaffinity(0))
    return measured_peaks(threads), ""


def write_page(
    args: argparse.Namespace, bundle: Bundle, cases: Sequence[RunCase], data: Mapping[str, Any],
    beside: Sequence[BenchRun],
) -> None:  # fmt: skip
    """Write the page at --html. Raises SmeltError(kind='infra')."""
    name = str(bundle.manifest["model"]["name"])
    memory = list(memory_curves(bundle, cases, data["cases"]))
    page = bench_page(f"{name} for {bundle.target}", [BenchRun("this run", data), *beside], memory)
    write_result(args.html, page.encode(), ".html")


def memory_curves(
    bundle: Bundle, cases: Sequence[RunCase], rows: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """For each size that the inputs decide and the arena depends on: bytes against it, others as in the first
    case, and what was measured at cases that differ in that size alone."""
    names = {s["name"]: s for s in bundle.manifest["symbols"]}
    base = {n: v for n, v in bundle.bind(_shapes(bundle, cases[0])).items() if n in names}
    formula = " + ".join(bundle.manifest["memory"]["arenas"])
    for symbol in base:
        values = _values(names[symbol], base[symbol])
        points = [(v, bundle.peak_bytes(bind(bundle, {**base, symbol: v}))) for v in values]
        if len({b for _, b in points}) < 2:
            continue
        others = {n: v for n, v in base.items() if n != symbol}
        measured = []
        for case, row in zip(cases, rows, strict=True):
            own = bundle.bind(_shapes(bundle, case))
            if all(own.get(n) == v for n, v in others.items()):
                measured.append((own[symbol], row["arena_bytes"]))
        told = ", ".join(f"{n} = {v}" for n, v in others.items())
        yield {"symbol": symbol, "others": told, "formula": formula, "points": points, "measured": measured}


def _values(row: Mapping[str, Any], here: int) -> Sequence[int]:
    """Legal values of a size, some of them, from its lowest on."""
    low, unit = int(row["low"]), int(row["divisor"])
    high = int(row["high"]) if row["high"] is not None else max(REACH * here, 8)
    first = -(-low // unit) * unit
    return range(first, high + 1, max(unit, (high - low) // POINTS // unit * unit)) or [here]


def _shapes(bundle: Bundle, case: RunCase) -> dict[str, tuple[int, ...]]:
    return {r["name"]: case.shapes[r["name"]] for r in bundle.manifest["inputs"]}
