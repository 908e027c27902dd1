"""Random models, compiled once, run at several sizes against ONNX Runtime; what disagrees is shrunk, printed.

python tests/support/fuzzer.py --seed 0 --count 200 --seconds 600 [--one SEED]
Each model is drawn and judged in a forked child, so that a crash or a hang is a finding like any other.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from drawn_builds import hot_dims, sizes_of, small_kernels_too
from fuzz_doubt import contested, difference, unstable
from fuzz_draw import draw
from fuzz_graph import Array, Found
from fuzz_shrink import script, shrink
from fuzz_ways import WAYS, Call, Feed, Way, plainly, way_of
from isolated import HANG, isolated
from oracle import plain_session

from smelt.request import Request


@dataclass(frozen=True)
class Options:
    """How to compile and run: what a verdict depends on besides the model. hot: with hot sizes. twice: as two
    entries of a bundle, one of which is for the first size alone. way: one of WAYS, drawn from the salt; ''
    is a plain session."""

    opt: int = 3
    threads: int = 1
    target: str = "host"
    hot: bool = False
    twice: bool = False
    way: str = ""
    salt: int = 0


@dataclass(frozen=True)
class Verdict:
    """ok, unstable (ONNX Runtime moves as far when its inputs do by a bit), contested (ONNX's own evaluator
    sides with smelt), none (nothing was drawn), refused (a SmeltError), mismatch, internal, crash, hang.

    what: a short text that stays the same while a failing model is shrunk. detail: for people.
    """

    outcome: str
    what: str = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome not in ("ok", "unstable", "contested", "none")


# ---------------------------------------------------------------- one model


def judge(found: Found, options: Options = Options()) -> Verdict:
    """Compile, run at every size and at the first again, compare. Raises nothing of smelt's."""
    from smelt.core.diag import SmeltError

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, contextlib.ExitStack() as stack:
        path = f"{folder}/m.onnx"
        try:
            stack.enter_context(small_kernels_too())
            way = _way(found, options, path, f"{folder}/out")
            found, request = way.found, way.request
            way.save()
            calls = stack.enter_context(way.open(request, options.threads))
        except SmeltError as e:
            outcome = "internal" if e.kind == "internal" else "refused"
            return Verdict(outcome, f"compile {e.kind}: {e.message.splitlines()[0][:150]}", str(e))
        except Exception as e:
            return Verdict("internal", f"compile {type(e).__name__} {_site(e)}", traceback.format_exc())
        oracle = plain_session(found.model)
        names = [o.name for o in found.model.graph.output]
        for call, feed in _runs(calls, found.feeds, options):
            wanted = oracle.run(names, feed)
            try:
                got = call(names, feed)
            except SmeltError as e:
                return Verdict("refused", f"run {e.kind}: {e.message[:150]}", f"{e}\nshapes {_shapes(feed)}")
            for name, g, w in zip(names, got, wanted, strict=True):
                text = difference(g, w)
                if text and unstable(found, oracle, feed, name, w, g):
                    return Verdict("unstable", name)
                if text and contested(found, feed, name, g):
                    return Verdict("contested", name)
                if text:
                    return Verdict("mismatch", "mismatch", f"output '{name}' at {_shapes(feed)}: {text}")
    return Verdict("ok")


def _way(found: Found, options: Options, path: str, output: str) -> Way:
    """How to go about it: that of the options, where the model has what it needs, else a session's calls."""
    request = _request(found, options, path, output)
    special = way_of(options.way, options.salt, found, request) if options.way else None
    return special or Way(found, request, plainly)


def _runs(calls: Sequence[Call], feeds: Sequence[Feed], options: Options) -> list[tuple[Call, Feed]]:
    """Every call at every size and at the first again; of two entries the second at the first size alone."""
    if not options.twice:
        return [(call, feed) for call in calls for feed in (*feeds, feeds[0])]
    runs = [(calls[0], feed) for feed in (*feeds, feeds[0])]
    return [*runs[:2], (calls[1], feeds[0]), *runs[2:]]


def _request(found: Found, options: Options, path: str, output: str) -> Request:
    """The compile of a model in a file."""
    sizes = sizes_of(found.model, found.feeds)
    rng = random.Random(str(sizes))
    dims = hot_dims(rng, sizes) if options.hot else {}
    if options.twice:
        dims |= {f"one/{name}": own[0] for name, own in sizes.items() if own[0]}  # a range ends at 1 or more
    entries = (("any", path), ("one", path)) if options.twice else ()
    return Request(
        path, options.target, dims=dims, opt=options.opt, output=output, runner=False, entries=entries
    )


def _site(e: BaseException) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.name}"


def _shapes(feed: dict[str, Array]) -> str:
    return ", ".join(f"{n}{list(a.shape)}" for n, a in feed.items())


# ---------------------------------------------------------------- in a child


def judged(found: Found, options: Options) -> Verdict:
    """judge in a child."""
    how, result = isolated(lambda: judge(found, options))
    return result if how == "ok" else Verdict(how, str(result))


def drawn(seed: int, without: frozenset[str] = frozenset()) -> Found | None:
    """The model of a seed. Drawn, and run by ONNX Runtime, in a child: that crashes now and then."""
    return _from_child(lambda: _answered(draw(seed, without)))


def _answered(found: Found | None) -> Found | None:
    """The model, if ONNX Runtime runs it."""
    if found is not None:
        oracle = plain_session(found.model)
        for feed in found.feeds:
            oracle.run(None, feed)
    return found


def _from_child(make: Callable[[], Found | None], seconds: float = HANG) -> Found | None:
    how, result = isolated(lambda: _as_bytes(make()), seconds)
    if how != "ok" or result is None:
        return None
    data, feeds, loose = result
    return Found(onnx.ModelProto.FromString(data), feeds, loose)


def _as_bytes(f: Found | None) -> Any:
    return None if f is None else (f.model.SerializeToString(), f.feeds, f.loose)


def options_of(seed: int) -> Options:
    """Levels, threads, instruction sets, hot sizes, entries and ways take turns."""
    level = (3, 3, 3, 3, 3, 0, 1, 2)[seed % 8]
    target = "x86_64-linux:x86-64-v3" if seed % 5 == 1 and os.uname().machine == "x86_64" else "host"
    if seed % 11 == 3 and target == "host" and os.uname().machine == "x86_64":
        target = "x86"  # for several processors
    way = list(WAYS)[seed // 7 % len(WAYS)] if seed % 7 == 6 else ""
    target = "host" if way else target
    twice = seed % 13 == 5 and not way
    return Options(level, 2 if seed % 3 == 1 else 1, target, seed % 3 == 2, twice, way, seed)


# ---------------------------------------------------------------- many models


@dataclass
class Tally:
    """What a campaign found."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    scripts: dict[tuple[str, str], str] = field(default_factory=dict)


def campaign(
    seeds: Iterator[int],
    seconds: float,
    shrinking: float = 60.0,
    log: Any = None,
    without: frozenset[str] = frozenset(),
    way: str = "",
) -> Tally:
    """Judge models until the time is over; each kind of failure is shrunk, for so many seconds. way: all go
    that one."""
    tally, end = Tally(), time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            break
        found = drawn(seed, without)
        options = options_of(seed)
        if way:
            options = replace(options, target="host", twice=False, way=way)
        verdict = Verdict("none") if found is None else judged(found, options)
        tally.counts[verdict.outcome] += 1
        if log is not None and tally.counts.total() % 50 == 0:
            print(f"# up to seed {seed}: {dict(tally.counts)}", file=log, flush=True)
        if log is not None and verdict.outcome == "contested":
            print(f"# seed {seed}: contested: '{verdict.what}'", file=log, flush=True)
        if not verdict.failed or found is None:
            continue
        key = (verdict.outcome, verdict.what)
        tally.failures.setdefault(key, []).append(seed)
        if len(tally.failures[key]) > (5 if verdict.outcome in ("mismatch", "crash") else 1):
            continue
        refused = verdict.what.startswith("compile unsupported")
        text = explain(seed, found, options, verdict, 0 if refused else shrinking)
        tally.scripts.setdefault(key, text)
        if log is not None:
            print(text, file=log, flush=True)
    return tally


def explain(seed: int, found: Found, options: Options, verdict: Verdict, seconds: float) -> str:
    """The failure shrunk, as a Python script that shows it again."""

    def same(candidate: Found) -> bool:
        v = judged(candidate, options)
        return v.outcome == verdict.outcome and (v.what == verdict.what or v.outcome == "mismatch")

    small = _from_child(lambda: shrink(found, same, seconds), seconds + HANG) if seconds > 0 else None
    small = small or found
    again = judged(small, options)
    head = f"# seed {seed}, {options}: {again.outcome}: {again.what}\n"
    detail = "".join(f"# {line}\n" for line in again.detail.splitlines()[-12:])
    return f"{'#' * 100}\n{head}{detail}{script(small)}"


def main() -> int:
    """The command line; exit code 1 when something failed."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--step", type=int, default=1)
    p.add_argument("--count", type=int, default=1000)
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--shrink", type=float, default=60, help="seconds for each failure")
    p.add_argument("--without", default="", help="op types that are not drawn, with commas between")
    p.add_argument("--way", default="", choices=("", *WAYS), help="all models go this way")
    p.add_argument("--one", type=int, help="judge the model of this seed and print it as a script")
    args = p.parse_args()
    with contextlib.suppress(ImportError):
        import smelt.compiler
        import smelt.session  # noqa: F401  imported once, before the forks
    if args.one is not None:
        seeds: Iterator[int] = iter([args.one])
    else:
        seeds = iter(range(args.seed, args.seed + args.count * args.step, args.step))
    without = frozenset(args.without.split(","))
    tally = campaign(seeds, args.seconds, args.shrink, sys.stdout, without, args.way)
    print(f"{'#' * 100}\n# {dict(tally.counts)}")
    for (outcome, what), found in sorted(tally.failures.items(), key=lambda f: -len(f[1])):
        print(f"# {len(found):4d}x {outcome}: {what}  (seeds {', '.join(map(str, found[:8]))})")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
