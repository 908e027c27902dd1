"""`python -m smelt.conformance`: all cases and sweeps, the table of operators, unexpected failures."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from smelt.conformance import table
from smelt.conformance.cases import FORMS, bucket
from smelt.conformance.judge import BAD, JudgedCase
from smelt.conformance.keys import SWEEPS, every
from smelt.conformance.pool import TIME_LIMIT, run
from smelt.conformance.report import failures_text, known, summary, unexpected


def main(argv: list[str] | None = None) -> int:
    """Run the cases; exit code 0 when all failures are listed, else 1."""
    args = _arguments(argv)
    wanted = [k for k in every(tuple(args.form or FORMS)) if sampled(k, args.sample) and args.only in k]
    results = run(wanted, args.jobs, args.limit, _Progress(len(wanted)), args.target)
    print(summary(results))
    every_one = _merged(args.json, results) if args.json else results
    if args.page:
        made = table.build(every_one)
        args.page.write_text(table.page(made, every_one), "utf-8")
        table.PATH.write_text(table.text(made), "utf-8")
    if not args.known:
        return 0
    listed = known(args.known)
    if args.bless:
        args.known.write_text(failures_text(results, listed), "utf-8")
        return 0
    worse, better = unexpected(results, listed)
    for line in worse:
        print(f"new failure: {line}")
    for line in better:
        print(f"passes now, take it off the list: {line}")
    return 1 if worse or better else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m smelt.conformance", description=__doc__)
    parser.add_argument("--form", choices=(*FORMS, *SWEEPS), action="append", help="default: the three forms")
    parser.add_argument("--target", default="host", help="compile for this, run here or emulated")
    parser.add_argument("--sample", type=int, default=100, help="per cent of the cases, chosen by hash")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="seconds for one case")
    parser.add_argument("--page", type=Path, help="write the table of operators here, and table.json")
    parser.add_argument("--json", type=Path, help="put the results into this file, those of other cases stay")
    parser.add_argument("--known", type=Path, help="tests/known_failures.txt")
    parser.add_argument("--bless", action="store_true", help="write the known failures anew")
    return parser.parse_args(argv)


def sampled(key: str, sample: int) -> bool:
    """Whether a key belongs to the sample of so many per cent; all forms of a case do or none."""
    kind, rest = key.split(":", 1)
    return bucket(rest if kind in FORMS else key) < sample


def _merged(path: Path, results: Sequence[JudgedCase]) -> list[JudgedCase]:
    """The results together with the file's results of other cases; the file is updated."""
    before = [JudgedCase(**row) for row in json.loads(path.read_text("utf-8"))] if path.is_file() else []
    new = {r.id for r in results}
    found = [*(r for r in before if r.id not in new), *results]
    path.write_text(json.dumps([asdict(r) for r in found], indent=1) + "\n", "utf-8")
    return found


class _Progress:
    """Prints failures at once, and every half minute the number of finished cases."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._said = total, 0, time.monotonic()

    def __call__(self, r: JudgedCase) -> None:
        self._done += 1
        if r.outcome in BAD:
            print(f"{r.id}: {r.outcome}: {r.reason}", file=sys.stderr, flush=True)
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            print(f"{self._done} of {self._total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
