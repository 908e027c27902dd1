"""Models -> what several levels of processors in one bundle cost: sizes, processor seconds, run times.

usage: levels.py sizes MODEL... | levels.py races LEVEL MODEL...

sizes: bytes of code and weights, processor seconds and seconds of a compile for `x86_64-linux`, one level,
and for `x86`, which has three. races: the run time of a level in the bundle for `x86` over that of one for
this level alone: one thread, one process, in turns, random inputs. Both compile in this process.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import smelt
from smelt.compiler import compile_here, compile_into
from smelt.core.diag import SmeltError
from smelt.core.spread import by_forks
from smelt.core.staging import Staging
from smelt.request import Request
from smelt.session import Session
from smelt.shapes import cases

TURNS = 41
TURN_SECONDS = 0.03
WITHOUT = {"x86-64-v4-vnni": "", "x86-64-v3": "avx512f", "x86-64-v2": "avx"}
"""Level -> the features without which it is the best one."""


def used() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in found)


def sizes(model: Path, folder: Path) -> str:
    """A row of the table."""
    cells = [model.stem]
    for target in ("x86_64-linux", "x86"):
        start, began = used(), time.perf_counter()
        with Staging(str(folder / target)) as stage:
            request = Request(str(model), target, output=str(folder / target))
            made = stage.commit(compile_into(stage, request, lambda stage: None, by_forks))
        seconds, wall = used() - start, time.perf_counter() - began
        code = (Path(made.path) / made.names.library).stat().st_size
        cells += [f"{code:,}", f"{made.manifest['weights']['bytes']:,}", f"{seconds:.1f}", f"{wall:.1f}"]
    return "| " + " | ".join(cells) + " |"


def loaded(model: Path, target: str, cpu: str, out: Path) -> Session:
    """A session of the bundle that runs the code for this level."""
    os.environ["SMELT_CPU_WITHOUT"] = WITHOUT[cpu]
    session = smelt.load(compile_here(Request(str(model), target, output=str(out))), threads=1)
    assert session.variant in (cpu, ""), f"this processor runs {session.variant}"
    return session


def races(model: Path, cpu: str, folder: Path) -> list[float]:
    """The ratios at three shapes, printed."""
    alone = compile_here(Request(str(model), f"x86:{cpu}", output=str(folder / "cases")))
    sessions = [loaded(model, target, cpu, folder / target) for target in (f"x86:{cpu}", "x86")]
    found = []
    for case in cases(alone, count=3):
        def spent(session: Session, rounds: int, feed: Mapping[str, Any] = case.feed) -> float:
            start = time.thread_time()
            for _ in range(rounds):
                session.run(None, feed)
            return (time.thread_time() - start) / rounds

        try:
            one = min(spent(session, 1) for session in sessions * 2)
        except SmeltError:
            continue  # the model has no answer at this shape
        rounds, ratios = max(1, int(TURN_SECONDS / one)), []
        for _ in range(TURNS):
            got = {n: spent(sessions[n], rounds) for n in random.sample((0, 1), 2)}
            ratios.append(got[1] / got[0])
        found.append(median(ratios))
        print(f"| {model.stem} | {case.label} | {1e3 * one:.2f} | {found[-1]:.3f} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sizes", "races"))
    parser.add_argument("words", nargs="+")
    asked = parser.parse_args()
    words = asked.words[asked.what == "races" :]
    ratios: list[float] = []
    for word in words:
        with tempfile.TemporaryDirectory(prefix="smelt-levels-") as folder:
            if asked.what == "sizes":
                print(sizes(Path(word), Path(folder)), flush=True)
            else:
                ratios += races(Path(word), asked.words[0], Path(folder))
    if ratios:
        print(f"geometric mean {geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
