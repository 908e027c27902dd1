"""Models -> what symbolic dims cost: run times over those of bundles fixed to the shapes, and a new shape's.

usage: fixed.py MODEL...

Shapes are those of `shapes.toml`. A row has the milliseconds of both, one thread's processor time, the
shortest of many; the time with symbolic dims over the fixed one, medians of pairs in turns in one process;
and new shape: how much longer the first run at this shape takes than the later ones, in ms, all after one at
the largest shape (the median over sessions).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from hot import build, raced  # beside this file, as is:
from run import cases_of, name_of

import smelt
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.shapes import bind

SESSIONS = 9


def rows(model: Path, folder: Path) -> list[tuple[str, float]]:
    """The model's rows of the table; with each its ratio."""
    name = name_of(model)
    plain = build("symbolic", model, {}, folder)
    found = []
    cases = cases_of(plain.bundle, name)
    largest = max(cases, key=lambda c: sum(math.prod(shape) for shape in c.shapes.values()))
    for n, c in enumerate(cases):
        try:
            fixed = build(f"fixed-{n}", model, bind(plain.bundle, c.shapes), folder)
        except SmeltError as e:  # a branch that is not taken at this shape may be wrong at it
            print(f"| {name} | {c.label[:60]} | not fixed: {str(e)[:80]} | | |")
            continue
        (_, one), (ms, ratio) = raced([fixed, plain], 1, c.feed)
        extra = new_shape(plain.bundle, largest.feed, c.feed)
        cells = [name, c.label[:60], f"{ms:.3f}", f"{ratio / one:.3f}", f"{extra:.3f}"]
        found.append(("| " + " | ".join(cells) + " |", ratio / one))
    return found


def new_shape(bundle: Bundle, before: Mapping[str, Any], feed: Mapping[str, Any]) -> float:
    """Milliseconds that the first run at a shape takes more than later ones."""
    found = []
    for _ in range(SESSIONS):
        with contextlib.closing(smelt.load(bundle, threads=1)) as session:
            times = []
            for _ in range(6):
                session.run(None, before)
                start = time.perf_counter()
                session.run(None, feed)
                times.append(time.perf_counter() - start)
            found.append(1e3 * (times[0] - median(times[1:])))
    return median(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    print("| model | shape | ms | over fixed | new shape, ms |\n|---|---|---|---|---|")
    ratios = []
    for model in parser.parse_args().models:
        with tempfile.TemporaryDirectory(prefix="smelt-fixed-") as folder:
            for text, ratio in rows(model, Path(folder)):
                print(text, flush=True)
                ratios.append(ratio)
    print(f"| geometric mean | | | {geometric_mean(ratios):.3f} | |")


if __name__ == "__main__":
    main()
