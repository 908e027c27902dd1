"""A model, a file of schedules and shapes -> the model's time with the schedules over that without them.

    .venv/bin/python benchmarks/tuned.py MODEL.onnx MODEL.schedules SHAPES ...

Both bundles run in turns in this process on one thread; the median ratio of their processor time is printed
for each of the shapes, written as for `smelt run --shape`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import smelt
from smelt.devicefarm.measure import geomean, median
from smelt.shapes import RunCase, bind, case, parse_shapes

TURNS = 31


def ratio(default: smelt.Session, tuned: smelt.Session, c: RunCase) -> tuple[float, float]:
    """(milliseconds of the default, the other's time over it)."""
    sessions = (default, tuned)
    for s in sessions:
        s.run(None, c.feed)
    taken: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for k in (0, 1) if turn % 2 else (1, 0):
            start = time.thread_time_ns()
            sessions[k].run(None, c.feed)
            taken[k].append(time.thread_time_ns() - start)
    return median(taken[0]) / 1e6, median([b / a for a, b in zip(*taken, strict=True)])


def main(model: str, schedules: str, *shapes: str) -> None:
    """Print a row for each of the shapes, and the mean."""
    with tempfile.TemporaryDirectory() as folder:
        default = smelt.compile(model, threads=1, output=Path(folder) / "default")
        tuned = smelt.compile(model, threads=1, output=Path(folder) / "tuned", schedules=schedules)
        sessions = smelt.load(default, threads=1), smelt.load(tuned, threads=1)
        found = []
        for text in shapes:
            ms, by = ratio(*sessions, case(default, bind(default, parse_shapes(text))))
            print(f"| {Path(model).stem} | {text} | {ms:.2f} | {by:.3f} |", flush=True)
            found.append(by)
        print(f"geometric mean {geomean(found):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
