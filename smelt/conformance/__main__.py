"""`python -m smelt.conformance`: all cases in all forms, the table, and news against the known failures."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from smelt.conformance.cases import FORMS, bucket
from smelt.conformance.judge import BAD, Result
from smelt.conformance.pool import TIME_LIMIT, every, run
from smelt.conformance.report import failures_text, known, news, ops_page, summary


def main(argv: list[str] | None = None) -> int:
    """0 when nothing fails that is not listed; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m smelt.conformance", description=__doc__)
    parser.add_argument("--form", choices=FORMS, action="append", help="default: all three")
    parser.add_argument("--sample", type=int, default=100, help="per cent of the cases, chosen by hash")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="seconds for one case")
    parser.add_argument("--page", type=Path, help="write the table of operators here (docs/ops.md)")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--known", type=Path, help="tests/known_failures.txt")
    parser.add_argument("--bless", action="store_true", help="write the known failures anew")
    args = parser.parse_args(argv)
    wanted = [
        (name, form)
        for name, form in every(tuple(args.form or FORMS))
        if bucket(name) < args.sample and args.only in name
    ]
    results = run(wanted, args.jobs, args.limit, _Progress(len(wanted)))
    print(summary(results))
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", "utf-8")
    if args.page:
        args.page.write_text(ops_page(results), "utf-8")
    if args.known and args.bless:
        args.known.write_text(failures_text(results), "utf-8")
    if not args.known:
        return 0
    worse, better = news(results, known(args.known))
    for line in worse:
        print(f"new failure: {line}")
    for line in better:
        print(f"passes now, take it off the list: {line}")
    return 1 if worse or better else 0


class _Progress:
    """Says what went badly at once, and every half minute how far it is."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._said = total, 0, time.monotonic()

    def __call__(self, r: Result) -> None:
        self._done += 1
        if r.outcome in BAD:
            print(f"{r.id}: {r.outcome}: {r.reason}", file=sys.stderr, flush=True)
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            print(f"{self._done} of {self._total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
