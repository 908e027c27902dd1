"""An attack (a seed in, an Outcome out) -> a campaign over many seeds with its tally, and its command line.

Each class of attack is a generator tests/attack/attack_CLASS.py with a function `attack(seed)`;
tests/attack/test_CLASS.py runs a few fixed seeds of it and the cases it has found; `make fuzz` and
`make fuzz-farm` run many.
"""

from __future__ import annotations

import argparse
import collections
import math
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))  # as pytest has it, for generators run as scripts


@dataclass(frozen=True)
class Outcome:
    """What one attack did. what: its class, a short text that is counted ('agrees', 'refused: shape').
    failed: it is a defect of smelt. detail: for people, with all that shows it again."""

    what: str
    failed: bool = False
    detail: str = ""


@dataclass
class Tally:
    """What a campaign found."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    unrun: int = 0
    """Seeds that the time did not reach."""

    def report(self) -> str:
        """A line per kind of failure, the first seeds and the first detail of each."""
        lines = [f"# {self.counts.total()} seeds: {dict(self.counts)}"]
        if self.unrun:
            lines.append(f"# the time was over {self.unrun} seeds before the end")
        for what, found in sorted(self.failures.items(), key=lambda f: -len(f[1])):
            seeds = ", ".join(str(seed) for seed, _ in found[:8])
            lines.append(f"# {len(found):4d}x {what} (seeds {seeds})\n{found[0][1]}")
        return "\n".join(lines)


def campaign(
    attack: Callable[[int], Outcome], seeds: Sequence[int], seconds: float = math.inf, log: Any = None
) -> Tally:
    """Attack with each seed until the time is over."""
    tally, end = Tally(), time.monotonic() + seconds
    for done, seed in enumerate(seeds):
        if time.monotonic() > end:
            tally.unrun = len(seeds) - done
            break
        outcome = attack(seed)
        tally.counts[outcome.what] += 1
        if outcome.failed:
            tally.failures.setdefault(outcome.what, []).append((seed, outcome.detail))
            if log is not None:
                print(f"# seed {seed}: {outcome.what}\n{outcome.detail}", file=log, flush=True)
        if log is not None and tally.counts.total() % 100 == 0:
            print(f"# up to seed {seed}: {dict(tally.counts)}", file=log, flush=True)
    return tally


def apart(generator: str, count: int) -> Tally:
    """The campaign of `generator`'s first seeds in a Python process of its own: each attack may be a fork,
    which costs by what the process holds: 28 ms of processor time at 0.2 GB, 68 ms at 1.3 GB."""
    with tempfile.NamedTemporaryFile(prefix="tally-") as told:
        argv = [sys.executable, str(Path(__file__).with_name(f"{generator}.py"))]
        argv += ["--count", str(count), "--tally", told.name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert told.seek(0, 2), f"{argv}: {done.stdout}{done.stderr}"
        told.seek(0)
        tally: Tally = pickle.load(told)
    assert tally.counts.total() == count, tally.report()
    return tally


def main(attack: Callable[[int], Outcome], doc: str, count: int = 1000) -> int:
    """The command line of a generator; exit code 1 when something failed."""
    p = argparse.ArgumentParser(description=doc)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--count", type=int, default=count)
    p.add_argument("--seconds", type=float, default=math.inf)
    p.add_argument("--tally", type=Path, help="write what was found here, pickled")
    args = p.parse_args()
    tally = campaign(attack, range(args.seed, args.seed + args.count), args.seconds, sys.stdout)
    print(tally.report())
    if args.tally:
        args.tally.write_bytes(pickle.dumps(tally))
    return 1 if tally.failures else 0
