"""smelt opt: IR text (or a model) through any slice of the pipeline -> IR text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from smelt.cli.common import OK, AddParser, Result, Usage, add_fast_math, check_target, command, write_result
from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.core.passes.context import Context, Options
from smelt.core.passes.editor import STRUCTURAL
from smelt.core.passes.equivalence import validator
from smelt.core.passes.manager import Pass, Timing, pick, run_timed
from smelt.core.passes.numerics import EXACT, REASSOCIATE
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module

SCHEDULE = Pass("schedule", lambda module, ctx: schedule_module(module, ctx.machine), level=0)
PASSES = (*PIPELINE, SCHEDULE)
"""What -p may name: the pipeline's passes, and the scheduling that follows it."""


def register(add: AddParser) -> None:
    """The command."""
    parser = command(
        add, "opt", run, "run passes on IR text",
        "smelt opt module.smelt -p fold,fuse\nsmelt opt model.onnx -p '' > module.smelt",
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE.smelt|MODEL.onnx|-", help="- reads IR text from stdin")
    parser.add_argument(
        "-p", "--passes", metavar="P,P,...", help="passes in order (default: the whole pipeline)"
    )
    parser.add_argument(
        "--target", default="host", metavar="T", help="whose machine passes ask (default: host)"
    )
    parser.add_argument("-O", dest="opt", type=int, choices=range(4), default=3)
    parser.add_argument("--fp16", action="store_true", help="let 'half' store tensors in float16")
    add_fast_math(parser)
    parser.add_argument(
        "--validate", action="store_true",
        help="run the module before and after each pass on ordinary and special numbers, and compare",
    )
    parser.add_argument("-o", "--output", metavar="OUT.smelt", help="write here instead of stdout")
    parser.add_argument("--list", action="store_true", help="list the passes and stop")


def run(args: argparse.Namespace) -> Result:
    """The module after the passes; verified before, and after each of them."""
    if args.list:
        names = list(dict.fromkeys(p.name for p in PASSES))
        return Result(OK, {"passes": names, "pipeline": [p.name for p in PIPELINE]}, "\n".join(names))
    chosen = _chosen(args.passes)
    module = _read(args.file)
    verify(module)
    done, timings = run_timed(module, chosen, _context(args))
    text = print_module(done)
    if args.output:
        write_result(args.output, text.encode(), ".smelt")
    if args.verbose:
        print(_times(timings), file=sys.stderr)
    rows = [{"pass": t.name, "seconds": t.seconds, "nodes": t.nodes} for t in timings]
    return Result(OK, {"passes": rows, "module": text}, "" if args.output else text.rstrip("\n"))


def _chosen(names: str | None) -> tuple[Pass, ...]:
    if names is None:
        return PIPELINE
    try:
        return pick(PASSES, [n for n in names.split(",") if n])
    except SmeltError as e:
        raise Usage(str(e)) from None


def _read(name: str) -> Module:
    if name == "-":
        return _with_its_ops(parse_module(sys.stdin.read()))
    path = Path(name)
    if not path.is_file():
        raise Usage(f"no file '{name}'")
    if path.suffix == ".onnx":
        from smelt.importer import import_model

        return import_model(path)
    try:
        return _with_its_ops(parse_module(path.read_text("utf-8")))
    except UnicodeDecodeError:
        raise Usage(f"'{name}' is no text; models end in .onnx") from None


def _with_its_ops(module: Module) -> Module:
    """The module, whose ops are in the table where a family or a plug-in has them."""
    used = {n.op for g in module.graphs.values() for n in g.walk()}
    if used - OPS.keys() - STRUCTURAL:
        from smelt.importer.families import core_op

        for name in sorted(used):
            core_op(name)
    return module


def _context(args: argparse.Namespace) -> Context:
    from smelt.targets.platform import parse_target
    from smelt.targets.registry import target_for

    spec = parse_target(check_target(args.target))
    machine = target_for(spec).machine(spec)
    options = Options(level=args.opt, fp16=args.fp16, fast=args.fast_math)
    kinds = {p.name: REASSOCIATE if args.fast_math and p.kind != EXACT else p.kind for p in PASSES if p.kind}
    hooks = (validator(kinds),) if args.validate else ()
    return Context(machine, options, on_pass=hooks, verify=True).from_environment()


def _times(timings: tuple[Timing, ...]) -> str:
    return "\n".join(f"[{t.seconds:8.3f} s] {t.name}: {t.nodes} nodes" for t in timings)
