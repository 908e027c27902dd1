"""Models -> a table of speedups over other runtimes on this machine, in turns; `make bench`.

Also the 768x768x768 matrix product as a share of the multiply-add peak that this processor reaches in the
same minute. Numbers come from this machine alone and are printed with its name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from rivals import RIVALS  # beside this file

from smelt.bench import Pair, against
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.measure import geomean, median
from smelt.driver import compile
from smelt.samples import SAMPLES, fetch
from smelt.shapes import RunCase, bind, case, cases

SHAPES = Path(__file__).with_name("shapes.toml")
SLOWEST = 0.5
"""Goal: the least speedup over ONNX Runtime of every model."""
GOAL = 0.8
"""Goal: the least geometric mean of all speedups."""
MATMUL_GOAL = 0.8
WIDTH = 72
"""Most characters of a row's shapes in the table."""


@dataclass(frozen=True)
class Row:
    """One model against one rival: its measured pairs, or the reason why there is none."""

    name: str
    rival: str
    pairs: tuple[Pair, ...] = ()
    why: str = ""

    @property
    def ratio(self) -> float:
        """Geometric mean over the shapes."""
        return geomean([p.ratio for p in self.pairs])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every model ran; 1 when one did not. Missing a goal is printed, not an error."""
    args = _arguments(argv)
    rivals = args.rival or ["onnxruntime"]
    rows = [row for path in _models(args) for row in _race(path, rivals, args)]
    print(_table(rows))
    done = [r for r in rows if r.pairs]
    for rival in rivals:
        own = [r for r in done if r.rival == rival]
        print(_summary(own, rival, args.threads) if own else f"\n{rival}: no model ran")
    if len(rivals) > 1 and done:
        print(_against_the_best(done))
    share = None if args.no_matmul else _matmul()
    if args.json:
        Path(args.json).write_text(json.dumps(_data(rows, share), indent=2), "utf-8")
    return 0 if len(done) == len(rows) and done else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", metavar="FOLDER", help="ONNX files to race (default: samples that pip fetches)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only these models")
    parser.add_argument(
        "--rival", action="append", choices=RIVALS, help="again for more of them (default: onnxruntime)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each runtime (default: 1)")
    parser.add_argument("--seconds", type=float, default=4.0, help="per shape (default: 4)")
    parser.add_argument("--no-matmul", action="store_true", help="leave the matrix product out")
    parser.add_argument("--json", metavar="FILE", help="also write all samples")
    return parser.parse_args(argv)


def _models(args: argparse.Namespace) -> list[Path]:
    """The files, and what lies in folders of its own with its weights beside it: FOLDER/NAME/model.onnx."""
    folder = Path(args.models or ".")
    there = sorted([*folder.glob("*.onnx"), *folder.glob("*/model.onnx")], key=name_of)
    found = there if args.models else [fetch(n) for n in SAMPLES]
    return [p for p in found if not args.only or name_of(p) in args.only]


def name_of(path: Path) -> str:
    """A model's name, as `shapes.toml` has it: its file's, or its folder's."""
    return path.parent.name if path.name == "model.onnx" else path.stem


def _race(path: Path, rivals: Sequence[str], args: argparse.Namespace) -> list[Row]:
    name = name_of(path)
    print(f"{name} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        try:
            bundle = compile(str(path), "host", output=f"{folder}/out")
        except SmeltError as e:
            return [Row(name, rival, why=_why(e)) for rival in rivals]
        return [_row(bundle, path, rival, args) for rival in rivals]


def _row(bundle: Bundle, path: Path, rival: str, args: argparse.Namespace) -> Row:
    name, threads = name_of(path), args.threads
    try:
        other = RIVALS[rival](path, threads)
        pairs = against(
            bundle, path, cases_of(bundle, name), rival=other, threads=threads, seconds=args.seconds
        )
        return Row(name, rival, pairs)
    except SmeltError as e:
        return Row(name, rival, why=_why(e))


def _why(e: SmeltError) -> str:
    return str(e).splitlines()[0][:120]


def cases_of(bundle: Bundle, name: str) -> list[RunCase]:
    """The shapes of shapes.toml, or two default ones."""
    known: Mapping[str, Any] = tomllib.loads(SHAPES.read_text("utf-8")).get(name, {})
    if not known:
        return [c for c, _ in zip(cases(bundle), range(2))]
    ranges = {n: (float(low), float(high)) for n, (low, high) in known.get("ranges", {}).items()}
    specs = [{k: v if isinstance(v, int) else tuple(v) for k, v in w.items()} for w in known["shapes"]]
    return [case(bundle, bind(bundle, w), ranges=ranges) for w in specs]


def _table(rows: Sequence[Row]) -> str:
    cells = [("model", "shapes", "rival", "smelt ms", "rival ms", "speed", "verdict")]
    for r in rows:
        cells += [(r.name, f"not run: {r.why}", r.rival, "", "", "", "")] if r.why else []
        cells += [
            (
                r.name,
                shorten(p.label, WIDTH, placeholder=" ..."),
                r.rival,
                f"{median(p.smelt_ns) / 1e6:.3f}",
                f"{median(p.rival_ns) / 1e6:.3f}",
                f"{p.ratio:.2f}x",
                p.verdict.value,
            )
            for p in r.pairs
        ]
    widths = [max(len(c[i]) for c in cells) for i in range(7)]
    return "\n".join(
        "  ".join(
            c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def _summary(done: Sequence[Row], rival: str, threads: int) -> str:
    mean = geomean([r.ratio for r in done])
    slowest = min(done, key=lambda r: r.ratio)
    doubted = [p for r in done for p in r.pairs if p.doubts]
    worth = f"; {len(doubted)} of the ratios are not valid" if doubted else ""
    return (
        f"\ngeometric mean over {len(done)} models: {mean:.2f}x of {rival}'s speed, "
        f"{'above' if mean >= GOAL else 'BELOW'} {GOAL}; slowest: {slowest.name} {slowest.ratio:.2f}x, "
        f"{'above' if slowest.ratio >= SLOWEST else 'BELOW'} {SLOWEST}\n"
        f"threads: {threads}, in turns, medians; load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores{worth}"
    )


def _against_the_best(done: Sequence[Row]) -> str:
    """Each model against that rival which is the fastest for it."""
    names = dict.fromkeys(r.name for r in done)
    best = [min((r for r in done if r.name == name), key=lambda r: r.ratio) for name in names]
    slowest = min(best, key=lambda r: r.ratio)
    mean = geomean([r.ratio for r in best])
    return (
        f"\ngeometric mean over {len(best)} models: {mean:.2f}x of the fastest rival's "
        f"speed; slowest: {slowest.name} {slowest.ratio:.2f}x of {slowest.rival}'s"
    )


def _matmul() -> float | None:
    from peak import matmul_share  # beside this file

    found = matmul_share()
    verdict = "above" if found.share >= MATMUL_GOAL else "BELOW"
    print(
        f"matmul 768x768x768: {found.gflops:.0f} of {found.peak:.0f} GFLOP/s, {found.share:.0%} of the "
        f"measured peak of one core ({found.machine}), {verdict} {MATMUL_GOAL:.0%}"
    )
    return found.share


def _data(rows: Sequence[Row], share: float | None) -> dict[str, Any]:
    return {
        "schema_version": 2,
        "matmul_share_of_peak": share,
        "models": [
            {
                "name": r.name,
                "rival": r.rival,
                "why": r.why,
                "cases": [
                    {
                        "label": p.label,
                        "speed_ratio": p.ratio,
                        "smelt_ns": p.smelt_ns,
                        "rival_ns": p.rival_ns,
                        "timing": p.verdict.value,
                    }
                    for p in r.pairs
                ],
            }
            for r in rows
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
