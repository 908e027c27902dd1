"""smelt opt: IR text (or a model) through any slice of the pipeline -> IR text."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from smelt.arguments import checked
from smelt.cli.common import (
    AddParser,
    Result,
    Usage,
    add_dims,
    add_numbers,
    add_rules,
    add_schedules,
    check_target,
    command,
    given_dims,
    write_result,
)
from smelt.compile_child import DEEPEST_STACK
from smelt.core.diag import SmeltError
from smelt.core.exits import OK
from smelt.core.ir.dump import DUMP_SUFFIX
from smelt.core.ir.graph import Module
from smelt.core.ir.store import WeightStore
from smelt.core.ir.verify import verify
from smelt.core.passes.context import Context, Hook
from smelt.core.passes.equivalence import validator
from smelt.core.passes.manager import Pass, PassTiming, pick, run_timed
from smelt.core.passes.numerics import EXACT, REASSOCIATE
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule.module import hot_reasons
from smelt.request import Request
from smelt.stages import PASSES, Compilation, imported, resumed
from smelt.targets.platform import parse_target
from smelt.targets.registry import default_unit, machines


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "opt", run,
        "smelt opt module.smelt -p fold,fuse\nsmelt opt model.onnx -p '' -o module.smelt\n"
        "smelt opt model.onnx --why",
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE.smelt|MODEL.onnx|-", help="- reads IR text from stdin")
    parser.add_argument(
        "-p", "--passes", metavar="P,P,...", help="passes in order (default: what is left of the pipeline)"
    )
    parser.add_argument(
        "--target", default="host", metavar="T", help="whose machine passes ask (default: host)"
    )
    add_dims(parser)
    parser.add_argument("-O", dest="opt", type=int, choices=range(4), default=3)
    parser.add_argument("--fp16", action="store_true", help="let 'half' store tensors in float16")
    add_numbers(parser)
    add_rules(parser)
    add_schedules(parser)
    parser.add_argument(
        "--validate", action="store_true",
        help="run the module before and after each pass on ordinary and special numbers, and compare",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.smelt",
        help="write here instead of stdout, and large weights beside it",
    )
    parser.add_argument(
        "--why", action="store_true",
        help="instead of the module: which nodes became one kernel, which did not, and for which reasons; "
        "with a rule '=auto' of --place also what kernels cost at each unit, and why they are where they "
        "are; with hot sizes (--dim N=1..512:opt=128) also which kernels are scheduled again for these",
    )
    parser.add_argument("--list", action="store_true", help="list the passes and stop")


def run(args: argparse.Namespace) -> Result:
    """Print the module after the passes. It is verified before them and after each of them."""
    if args.list:
        names = list(dict.fromkeys(p.name for p in PASSES))
        return Result(OK, {"passes": names, "pipeline": [p.name for p in PIPELINE]}, "\n".join(names))
    sys.setrecursionlimit(DEEPEST_STACK)
    named = _named(args.passes)
    begun = _read(args)
    chosen = PIPELINE[begun.place :] if named is None else named
    chosen = begun.own(tuple(p for p in chosen if p.level <= begun.request.opt))
    ctx, reasons = _context(args, begun), list[str]()
    if args.why:
        ctx = ctx.with_(on_pass=(*ctx.on_pass, _reasons(chosen, ctx, reasons)))
    done, timings = run_timed(begun.module, chosen, ctx)
    for p in chosen:
        begun = begun.advanced(p.name, done)
    if args.why and begun.place == len(PIPELINE) and any(s.hot for s in done.symbols):
        reasons += hot_reasons(done, ctx.machine, ctx.units)  # of the next step
    text = begun.dump()
    if args.output:
        weights = done.weights.values()
        write_result(args.output, text.encode(), DUMP_SUFFIX, lambda home: WeightStore(home).keep(weights))
    if args.verbose:
        print(_times(timings), file=sys.stderr)
    rows = [{"pass": t.name, "seconds": t.seconds, "nodes": t.nodes} for t in timings]
    shown = "\n".join(reasons) if args.why else "" if args.output else text.rstrip("\n")
    return Result(OK, {"passes": rows, "module": text, "why": reasons}, shown)


def _reasons(passes: Sequence[Pass], ctx: Context, found: list[str]) -> Hook:
    """A hook that appends to `found`, after each pass with explanations, the reasons of what it did not
    do."""
    why = {p.name: p.why for p in passes if p.why is not None}

    def note(before: Module, name: str, after: Module) -> None:
        if name in why:
            found.extend(why[name](before, ctx))

    return note


def _named(names: str | None) -> tuple[Pass, ...] | None:
    if names is None:
        return None
    try:
        return pick(PASSES, [n for n in names.split(",") if n])
    except SmeltError as e:
        raise Usage(str(e)) from None


def _read(args: argparse.Namespace) -> Compilation:
    request = Request(
        source=args.file, target=check_target(args.target), opt=args.opt, fp16=args.fp16,
        fast_math=args.fast_math, keep_subnormals=args.keep_subnormals, libraries=args.libraries,
        place=tuple(args.place.items()), dims=given_dims(args),
        **checked({"schedules": args.schedules}),
    )  # fmt: skip
    if args.file == "-":
        return resumed(request, sys.stdin.read())
    if not os.path.isfile(args.file):
        raise Usage(f"no file '{args.file}'")
    if Path(args.file).suffix != ".onnx":
        return resumed(request)
    begun = imported(request)
    verify(begun.module)
    return begun


def _context(args: argparse.Namespace, begun: Compilation) -> Context:
    spec = parse_target(begun.request.target)
    context = begun.context(machines(spec), default_unit(spec))
    fast = begun.request.fast_math
    kinds = {p.name: REASSOCIATE if fast and p.kind != EXACT else p.kind for p in PASSES if p.kind}
    hooks = (validator(kinds),) if args.validate else ()
    return context.with_(on_pass=(*context.on_pass, *hooks), verify=True)


def _times(timings: tuple[PassTiming, ...]) -> str:
    return "\n".join(f"[{t.seconds:8.3f} s] {t.name}: {t.nodes} nodes" for t in timings)
