"""A model, dims with hot sizes and a shape -> what kernels of their own for these sizes cost and save.

usage: hot.py MODEL --dim N=1..512:opt=1 ... --shape N=1,... [--range NAME=LOW,HIGH ...] [--least US ...]

Three bundles are compiled in this process: with the ranges alone, with the hot sizes, and fixed to the shape.
A row has bytes of code, kernels for hot sizes, processor seconds of the compile, the shortest run time in ms
and the run time over that with the ranges alone: one process, in turns, medians of pairs; of one thread its
processor time. --least: further rows with another value of LEAST_SECONDS.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.core.schedule import hot as schedule_hot
from smelt.request import DimSpec, Request, bounds
from smelt.shapes import bind, case, parse_dim_spec, parse_shapes

TURNS = 61
TURN_SECONDS = 0.03


@dataclass(frozen=True)
class Build:
    """A bundle, and the processor seconds that its compile took."""

    label: str
    bundle: Bundle
    seconds: float


def build(label: str, model: Path, dims: Mapping[str, DimSpec], folder: Path) -> Build:
    """Compile the model with these dims."""
    start = time.process_time()
    made = compile_here(Request(str(model), dims=dims, output=str(folder / label.replace(" ", "-"))))
    return Build(label, made, time.process_time() - start)


def raced(builds: list[Build], threads: int, feed: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Milliseconds of each build, and its time over the first one's."""
    return by_turns([smelt.load(b.bundle, threads=threads) for b in builds], threads, feed)


class Runs(Protocol):
    """A session of either runtime."""

    def run(self, names: None, feed: Mapping[str, Any], /) -> object:
        """All outputs."""


def by_turns(sessions: Sequence[Runs], threads: int, feed: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Milliseconds of each session, and its time over the first one's."""
    clock = time.thread_time if threads == 1 else time.perf_counter

    def spent(session: Runs, rounds: int) -> float:
        start = clock()
        for _ in range(rounds):
            session.run(None, feed)
        return (clock() - start) / rounds

    rounds = max(1, int(TURN_SECONDS / min(spent(s, 1) for s in (*sessions, *sessions))))
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(TURNS):
        for n in random.sample(range(len(sessions)), len(sessions)):
            times[n].append(spent(sessions[n], rounds))
    pairs = [[a / b for a, b in zip(own, times[0], strict=True)] for own in times]
    return [(1e3 * min(own), median(ratios)) for own, ratios in zip(times, pairs, strict=True)]


def rows(builds: list[Build], threads: list[int], feed: Mapping[str, Any]) -> list[str]:
    """The table's rows."""
    found = [raced(builds, n, feed) for n in threads]
    made = []
    for n, b in enumerate(builds):
        code = (Path(b.bundle.path) / b.bundle.names.library).stat().st_size
        count = sum("hot" in k for k in b.bundle.manifest["kernels"])
        runs = [f"{own[n][0]:.2f} | {own[n][1]:.3f}" for own in found]
        made.append(f"| {b.label} | {code:,} | {count} | {b.seconds:.1f} | {' | '.join(runs)} |")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--range", action="append", default=[])
    parser.add_argument("--least", action="append", type=float, default=[])
    parser.add_argument("--threads", action="append", type=int, default=[])
    asked = parser.parse_args()
    dims = dict(map(parse_dim_spec, asked.dim))
    ranges = {n: bounds(d) for n, d in dims.items()}
    with tempfile.TemporaryDirectory(prefix="smelt-hot-") as name:
        folder = Path(name)
        plain = build("ranges", asked.model, ranges, folder)
        values = bind(plain.bundle, parse_shapes(asked.shape))
        builds = [plain, build("hot", asked.model, dims, folder)]
        builds += [build("fixed", asked.model, {n: values.get(n, d) for n, d in ranges.items()}, folder)]
        usual = schedule_hot.LEAST_SECONDS
        for least in asked.least:
            schedule_hot.LEAST_SECONDS = 1e-6 * least
            builds.append(build(f"hot, {least:g} us", asked.model, dims, folder))
        schedule_hot.LEAST_SECONDS = usual
        given = {n: tuple(map(float, s.split(","))) for n, _, s in (r.rpartition("=") for r in asked.range)}
        feed = case(plain.bundle, values, ranges={n: (low, high) for n, (low, high) in given.items()}).feed
        print(f"{asked.model.stem} at {asked.shape}:")
        print("\n".join(rows(builds, asked.threads or [1], feed)), flush=True)


if __name__ == "__main__":
    main()
