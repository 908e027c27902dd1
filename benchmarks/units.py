"""Units of a target, measured -> the figures by which placement weighs them; `python benchmarks/units.py`.

Prints what `--place '*=auto@..'` takes (docs/units.md), and rows for benchmarks/results/units.md. A large
product and a large sum tell how fast a unit computes and how fast its memory is, by the unit's own events.
Chains of small products tell what one launch more takes, and one copy more, by the time of a whole run: what
a run takes in any case is the same for a long chain and a short one. A large input tells how fast copies are,
by a run that copies it and one that has it at the unit. Of several turns the shortest counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import smelt
from smelt.core.machine import CPU, Figures
from smelt.targets.platform import parse_target
from smelt.targets.registry import machines

Array = np.ndarray[Any, Any]
TURNS, MOST_TURNS, SECONDS = 15, 1000, 3
"""At least, and at most, and how long where these are not over."""
SIDE = 512
"""Rows and columns of the product that tells operations: it ends within a turn of the scheduler."""
ELEMENTS = 1 << 23
"""Of each operand of the sum that tells bandwidth: 32 MiB, more than caches hold."""
WIDTH = 8
"""Columns of the products in chains."""
LONG, SHORT = 34, 2
"""Products in a chain."""
MANY_ROWS = 1 << 21
"""Rows of the input, of 64 MiB, that tells how fast copies are."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every unit was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="host+opencl", help="with the units to measure")
    args = parser.parse_args(argv)
    units = machines(parse_target(args.target))
    with tempfile.TemporaryDirectory(prefix="smelt-units-") as scratch:
        bench = Bench(args.target, Path(scratch))
        found = {unit: figures(bench, unit) for unit in units}
    names = [f.name for f in fields(Figures)]
    said = [
        f"{unit}.{n}={getattr(f, n):.3g}"
        for unit, f in found.items()
        for n in names
        if unit != CPU or n not in ("link", "copy")
    ]
    print(f"--place '*=auto@{';'.join(said)}'\n")
    print(f"| unit | machine | {' | '.join(names)} |\n|{'---|' * (2 + len(names))}")
    for unit, f in found.items():
        numbers = " | ".join(f"{getattr(f, n):.3g}" for n in names)
        print(f"| {unit} | {units[unit].name} | {numbers} |")
    return 0


class Bench:
    """Compiles for a target, with nodes 'host..' at the CPU and nodes 'unit..' at a unit, and measures."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.count = 0

    def session(self, graph: str, unit: str) -> smelt.Session:
        self.count += 1
        source, out = self.folder / f"{self.count}.onnx", self.folder / str(self.count)
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}'), str(source))
        place = {"host?*": CPU, "unit?*": unit}
        return smelt.load(smelt.compile(str(source), self.target, output=out, place=place))

    def kernel(self, graph: str, unit: str, feeds: Mapping[str, Array]) -> float:
        """Seconds of the one kernel of a graph, least of some, by the device's events if it has some."""
        with closing(self.session(graph, unit)) as session:

            def turn() -> float:
                session.profile()
                session.run(None, feeds)
                times = session.device_times() or session.kernel_times()
                session.profile(False)
                return sum(ns for ns, _ in times.values()) / 1e9

            return least(turn)

    def step(self, unit: str, alternate: bool = False) -> float:
        """Seconds of one product more in a chain; alternate: of two, one at the CPU and one at the unit."""
        x, w = np.ones((1, WIDTH), np.float32), np.eye(WIDTH, dtype=np.float32)
        seconds = []
        for count in (SHORT, LONG):
            with closing(self.session(chain(count, alternate), unit)) as session:
                seconds.append(least(clocked(partial(session.run, None, {"x": x, "w": w}))))
        return max(seconds[1] - seconds[0], 0.0) / (LONG - SHORT) * (1 + alternate)

    def upload(self, unit: str) -> float:
        """Seconds that a large input more takes that is not at the unit yet."""
        x, w = np.ones((MANY_ROWS, WIDTH), np.float32), np.eye(WIDTH, dtype=np.float32)
        with closing(self.session(chain(1, False), unit)) as session:
            at_unit = session.tensor("x", x)
            into = {"y": session.tensor("y", x.shape)}
            there, fed = (partial(session.run_into, into, {"x": t, "w": w}) for t in (at_unit, x))
            return least(clocked(fed)) - least(clocked(there))


def least(turn: Callable[[], float]) -> float:
    """The least of what some turns return; the first one does not count."""
    turn()
    found, begin = list[float](), time.perf_counter()
    while len(found) < TURNS or (len(found) < MOST_TURNS and time.perf_counter() < begin + SECONDS):
        found.append(turn())
    return min(found)


def clocked(call: Callable[[], object]) -> Callable[[], float]:
    """A turn that calls and returns how many seconds that took."""

    def turn() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return turn


def chain(count: int, alternate: bool) -> str:
    """Products one after the other, of which each waits for the one before."""
    names = ["x", *(f"t{k}" for k in range(1, count)), "y"]
    nodes = [
        f"[{'host' if alternate and k % 2 == 0 else 'unit'}{k}] {names[k + 1]} = MatMul({names[k]}, w)"
        for k in range(count)
    ]
    head = f"(float[n,{WIDTH}] x, float[{WIDTH},{WIDTH}] w) => (float[n,{WIDTH}] y)"
    return f"{head} {{ {' '.join(nodes)} }}"


def figures(bench: Bench, unit: str) -> Figures:
    """Those of a unit; of copies those between it and the host."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIDE, SIDE), np.float32) for _ in range(2))
    product = bench.kernel(
        "(float[m,k] a, float[k,n] b) => (float[m,n] y) { [unit0] y = MatMul(a, b) }", unit, {"a": a, "b": b}
    )
    x, z = (rng.standard_normal(ELEMENTS, np.float32) for _ in range(2))
    total = bench.kernel("(float[n] x, float[n] z) => (float[n] y) { [unit0] y = Add(x, z) }", unit,
                         {"x": x, "z": z})  # fmt: skip
    launch = bench.step(unit)
    rates = 2 * SIDE**3 / product, 3 * x.nbytes / total
    if unit == CPU:
        return Figures(*rates, launch)
    copy = max(bench.step(unit, alternate=True) - launch - bench.step(CPU), 0.0) / 2
    moved = bench.upload(unit)
    if moved <= 0:
        raise SystemExit(f"{unit}: other work on this machine is in the way; run again")
    return Figures(*rates, launch, 4 * MANY_ROWS * WIDTH / moved, copy)


if __name__ == "__main__":
    sys.exit(main())
