"""smelt check and smelt compile: an ONNX file -> every problem at once, or a bundle on disk."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from smelt.cli.common import (
    AddParser,
    Progress,
    Result,
    Usage,
    add_compile_options,
    check_target,
    command,
    count_bytes,
    dim_specs,
    profiled,
    state_pairs,
)
from smelt.cli.entries import add_models, chosen_models
from smelt.cli.finalise import add_bundle_options
from smelt.cli.sarif import log
from smelt.core.bundle import Bundle
from smelt.core.diag import Problem, SmeltError
from smelt.core.exits import OK, UNSUPPORTED
from smelt.core.manifest_schema import entry_views
from smelt.formula import memory_text

# kind of a problem -> what to do where the one who found it did not say
FIXES: Mapping[str, str] = MappingProxyType(
    {
        "unsupported": "express the node by other operators, or define it in a plug-in (docs/add-op.md)",
        "invalid": "check the node's attributes and inputs, and export the model again",
        "internal": "report it with the model",
    }
)


def register(add: AddParser) -> None:
    """Add both commands to the parser."""
    check = command(
        add, "check", run_check,
        "smelt check model.onnx --target arm64",
    )  # fmt: skip
    add_models(check, "model", "MODEL", "an ONNX file")
    check.add_argument("--sarif", action="store_true", help="print a SARIF 2.1.0 log of the problems")
    add_compile_options(check)
    comp = command(
        add, "compile", run_compile,
        "smelt compile model.onnx --target arm64 -o out --dim batch=1 --dim seq=1..512\n"
        "smelt compile prefill=prefill.onnx decode=decode.onnx -o out --name llm --state 'past_*=present_*'",
    )  # fmt: skip
    add_models(comp, "model", "MODEL", "an ONNX file, or a dump, which brings its options (docs/debug.md)")
    comp.add_argument("-o", "--output", default="out", metavar="DIR", help="the bundle (default: out)")
    comp.add_argument(
        "--portable", action="store_true",
        help="write a package of which 'smelt finalise' makes bundles for any target (docs/portable.md)",
    )  # fmt: skip
    add_bundle_options(comp)
    comp.add_argument(
        "--tap", action="append", default=[], metavar="NAME", help="also return this value of the model"
    )
    add_compile_options(comp)


def run_check(args: argparse.Namespace) -> Result:
    """List all problems of the import, with exit code 3 if there is one; else report the planned memory. No
    code is made."""
    if args.json and args.sarif:
        raise Usage("--json and --sarif are two forms of the one answer: pass one of them")
    check_target(args.target)
    problems = _problems(args)
    found = [p if p.hint else replace(p, hint=FIXES.get(p.kind)) for _, p in problems]
    rows = [
        {"kind": p.kind, "node": p.node, "message": p.message, "hint": p.hint, "inputs": list(p.inputs)}
        for p in found
    ]
    data: dict[str, Any] = {"model": args.model, "target": args.target, "problems": rows}
    code = UNSUPPORTED if found else OK
    if args.sarif:
        entries: dict[str, str] = getattr(args, "entries", {})
        first = next(iter(entries.values()), args.model)
        more = {n: file for n, (file, _) in enumerate(problems) if file not in (first, args.model)}
        return Result(code, data, json.dumps(log(first, found, code, more), indent=2))
    if not found:
        plan = _planned(args)
        data |= {k: plan[k] for k in ("memory", "parts", "symbols")}
        data["weights"] = plan["weights"]["bytes"]
        lines = [
            f"{args.model}: every node is supported for {args.target}",
            f"weights: {data['weights']:,} bytes",
        ]
        if several := plan.get("entries"):
            views = dict(zip((row["name"] for row in several), entry_views(plan), strict=True))
            data["entries"] = [
                {"name": name, "memory": view["memory"], "symbols": view["symbols"]}
                for name, view in views.items()
            ]
            lines += [f"entry {name}:\n{memory_text(view)}" for name, view in views.items()]
        else:
            lines.append(memory_text(plan))
        return Result(OK, data, "\n".join(lines))
    lines = [f"{args.model}: {len(found)} problem{'s' if len(found) > 1 else ''}"]
    for p in found:
        lines += [f"  {p}", *([f"      reads {', '.join(p.inputs)}"] if p.inputs else [])]
    return Result(code, data, "\n".join(lines))


def _problems(args: argparse.Namespace) -> list[tuple[str, Problem]]:
    """(file, problem) of each problem of the import. A dump has been imported."""
    from smelt.importer import check_model
    from smelt.stages import is_dump

    models = chosen_models(args)
    if any(is_dump(str(m)) for m in ([models] if isinstance(models, Path) else models.values())):
        return []
    # Reading a profile needs a model that can be imported, which is what check is to find out.
    dims = dict(dim_specs(args)) if not profiled(args) else {}
    if isinstance(models, Path):
        return [(args.model, p) for p in check_model(models, dims or None)]
    from smelt.entries import problem_of, requests_of
    from smelt.request import Request

    request = Request("", dims=dims, entries=tuple((name, str(path)) for name, path in models.items()))
    try:
        asked = requests_of(request)
    except SmeltError as e:
        return [(args.model, p) for p in e.problems]
    return [
        (args.entries[name], problem_of(name, p))
        for name, own in asked.items()
        for p in check_model(own.source, dict(own.dims))
    ]


def _planned(args: argparse.Namespace) -> dict[str, Any]:
    """The manifest's fields that a compile with these options would write before code generation."""
    from smelt.driver import planned

    progress = Progress(args)
    try:
        return planned(
            chosen_models(args), args.target, dim_specs(args), args.opt, args.fp16,
            libraries=args.libraries, time_limit=args.limit_seconds, memory_limit=args.limit_memory,
            place=args.place, fast_math=args.fast_math, keep_subnormals=args.keep_subnormals,
            state=state_pairs(args), schedules=args.schedules, progress=progress,
        )  # fmt: skip
    finally:
        progress.done()


def described_args(args: argparse.Namespace, listings: Sequence[str]) -> list[dict[str, Any]]:
    """What smelt/described.py says of the kernels of args.model, compiled with the options of
    add_compile_options. Raises Usage and SmeltError."""
    from smelt.driver import described

    progress = Progress(args)
    try:
        return described(
            chosen_models(args), check_target(args.target), dim_specs(args), args.threads, args.opt,
            args.fp16, listings=tuple(listings), libraries=args.libraries, time_limit=args.limit_seconds,
            memory_limit=args.limit_memory, place=args.place, fast_math=args.fast_math,
            keep_subnormals=args.keep_subnormals,
            state=state_pairs(args), schedules=args.schedules, progress=progress,
        )  # fmt: skip
    finally:
        progress.done()


def run_compile(args: argparse.Namespace) -> Result:
    """Compile in a child process and report on the bundle, or the package."""
    if args.portable:
        return _run_portable(args)
    start = time.monotonic()
    bundle = compile_args(args, args.output)
    seconds = time.monotonic() - start
    files = {
        n: (bundle.path / n).stat().st_size for n in sorted([*bundle.manifest["files"], "manifest.json"])
    }
    data = {
        "bundle": str(bundle.path),
        "digest": bundle.digest,
        "target": bundle.target,
        "seconds": round(seconds, 3),
        "files": files,
        "inputs": bundle.manifest["inputs"],
        "outputs": bundle.manifest["outputs"],
        "state": bundle.manifest["state"],
        "parts": bundle.manifest["parts"],
        "peak_memory": bundle.manifest["memory"]["arenas"],
    }
    if len(bundle.entries) > 1:
        fields = ("inputs", "outputs", "state")
        views = [bundle.entry(name).manifest for name in bundle.entries]
        data["entries"] = [
            {"name": n, **{k: m[k] for k in fields}, "peak_memory": m["memory"]["arenas"]}
            for n, m in zip(bundle.entries, views, strict=True)
        ]
    code = sum(n for name, n in files.items() if name != bundle.names.weights)
    text = (
        f"compiled {args.model} for {bundle.target} in {seconds:.1f} s: {bundle.path} "
        f"({count_bytes(code)} and {count_bytes(files.get(bundle.names.weights, 0))} of weights)"
    )
    return Result(OK, data, text)


# options of a compile that are about a target, and what each is without it
_OF_TARGETS: Mapping[str, Any] = MappingProxyType({
    "target": "host", "threads": None, "static": False, "libraries": False, "place": {}, "fallback": False,
    "choose": False, "schedules": None,
})  # fmt: skip


def _run_portable(args: argparse.Namespace) -> Result:
    from smelt.driver import compile_portable

    early = [name for name, plain in _OF_TARGETS.items() if getattr(args, name) != plain]
    if early:
        raise Usage(f"--portable: a package is for any target; give --{early[0]} to 'smelt finalise'")
    start, progress = time.monotonic(), Progress(args)
    try:
        package = compile_portable(
            chosen_models(args), dim_specs(args), args.opt, args.output, args.fp16, name=args.name,
            outputs=tuple(args.tap), time_limit=args.limit_seconds, memory_limit=args.limit_memory,
            fast_math=args.fast_math, keep_subnormals=args.keep_subnormals, state=state_pairs(args),
            progress=progress,
        )  # fmt: skip
    finally:
        progress.done()
    seconds = time.monotonic() - start
    weights = package.manifest["weights"]["bytes"]
    data = {
        "package": str(package.path), "digest": package.digest, "seconds": round(seconds, 3),
        "entries": package.manifest["entries"], "weights": weights,
    }  # fmt: skip
    text = f"packed {args.model} in {seconds:.1f} s: {package.path} ({count_bytes(weights)} of weights)"
    return Result(OK, data, f"{text}\nnext: smelt finalise {package.path} --target T -o DIR")


def compile_args(args: argparse.Namespace, output: str) -> Bundle:
    """Compile args.model with the options of add_compile_options. Raises Usage and SmeltError."""
    from smelt.driver import compile

    target = check_target(args.target)
    model = chosen_models(args)
    progress = Progress(args)
    try:
        return compile(
            model, target, dim_specs(args), args.threads, args.opt, output, args.fp16,
            name=getattr(args, "name", None), static=getattr(args, "static", False), libraries=args.libraries,
            outputs=tuple(getattr(args, "tap", ())), progress=progress,
            time_limit=args.limit_seconds, memory_limit=args.limit_memory,
            fast_math=args.fast_math, keep_subnormals=args.keep_subnormals, place=args.place,
            state=state_pairs(args),
            fallback=getattr(args, "fallback", False), choose=getattr(args, "choose", False),
            schedules=args.schedules,
        )  # fmt: skip
    finally:
        progress.done()
