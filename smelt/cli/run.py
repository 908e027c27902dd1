"""smelt run: a bundle and inputs -> outputs, on the bundle's device."""

from __future__ import annotations

import argparse
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from smelt.cli.common import (
    AddParser,
    Result,
    Usage,
    add_device_options,
    add_shape_options,
    command,
    milliseconds,
    open_bundle,
    shape_specs,
    table,
    value_ranges,
    whole,
    wished,
    write_result,
)
from smelt.cli.entries import add_entry_option, chosen_entry
from smelt.core.bundle import Bundle
from smelt.core.dtype import Array
from smelt.core.exits import OK
from smelt.core.lazily import Lazily
from smelt.groups import GroupValue, groups, named_arrays, unpacked
from smelt.limits import MOST_THREADS
from smelt.running import running
from smelt.shapes import RunCase, bind, case, feed_case

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "run", run,
        "smelt run out --input x=image.npy -o result.npz\nsmelt run out --random --shape x:1x3x224x224",
    )  # fmt: skip
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=file.npy",
        help="an input from a .npy file, a sequence from an .npz file",
    )  # fmt: skip
    parser.add_argument("--random", action="store_true", help="inputs that are not given are random")
    parser.add_argument("-o", "--output", metavar="out.npz", help="write the outputs into this file")
    parser.add_argument("--threads", type=whole(0, MOST_THREADS), default=0, metavar="N")
    parser.add_argument(
        "--verify", action="store_true", help="compare all of the weights with their hash first"
    )
    add_entry_option(parser, "the first")
    add_shape_options(parser)
    add_device_options(parser)


def run(args: argparse.Namespace) -> Result:
    """Run once on the device; a line about each output."""
    bundle = chosen_entry(args, open_bundle(args.bundle))
    chosen = _case(args, bundle)
    with running(bundle, wished(args), threads=args.threads, verify=args.verify or None) as client:
        report = client.run(chosen.tensors)
    outputs = named_arrays(unpacked(groups(bundle.manifest, "outputs"), report.outputs))
    if args.output:
        # strings as NumPy's own; the stub takes any name for an option
        plain = {n: a.astype(str) if a.dtype == object else a for n, a in outputs.items()}
        made = io.BytesIO()
        np.savez(made, **plain)  # type: ignore[arg-type]
        write_result(args.output, made.getvalue(), ".npz")
    rows = [_row(n, a) for n, a in outputs.items()]
    data = {
        "device": report.device,
        "emulated": report.emulated,
        **asdict(report.origin),
        "inputs": {n: list(s) for n, s in chosen.shapes.items()},
        "outputs": rows,
        "first_ns": report.first_ns,
        "arena_bytes": report.memory.arena_bytes,
        "file": args.output,
    }
    cells = [["output", "type", "shape", "min", "mean", "max"]]
    cells += [
        [r["name"], r["dtype"], str(r["shape"]), *(_short(r[k]) for k in ("min", "mean", "max"))]
        for r in rows
    ]
    worth = "emulated: no device's speed" if report.emulated else "not a measurement, see 'smelt bench'"
    first = f"ran {chosen.label} on {report.device} in {milliseconds(report.first_ns)} (first run, {worth})"
    return Result(OK, data, f"{first}\n{table(cells)}")


def _case(args: argparse.Namespace, bundle: Bundle) -> RunCase:
    given = _given(args.input)
    specs = {k: v for w in shape_specs(args) for k, v in w.items()}  # one --shape per input
    names = [g.name for g in groups(bundle.manifest, "inputs")]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise Usage(f"there is no input {', '.join(map(repr, unknown))}; there are: {', '.join(names)}")
    missing = [n for n in names if n not in given]
    if missing and not (args.random or specs):
        raise Usage(
            f"no value for input {', '.join(map(repr, missing))}; give --input NAME=file.npy or --random"
        )
    spec = {**{n: a.shape for n, a in given.items() if not isinstance(a, list)}, **specs}
    if not missing:
        # the device checks extents itself, and says it better than we could
        return feed_case(bundle, given)
    return case(bundle, bind(bundle, spec), seed=args.seed, given=given, ranges=value_ranges(args))


def _given(texts: list[str]) -> dict[str, GroupValue]:
    """Input -> array; the arrays of an .npz file, in its order, are a sequence."""
    found: dict[str, GroupValue] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            raise Usage(f"cannot read the input '{text}'; write NAME=file.npy")
        try:
            read = np.load(file, allow_pickle=False)
            found[name] = read if isinstance(read, np.ndarray) else list(read.values())
        except Exception as e:  # the file's bytes decide what NumPy and zipfile raise
            raise Usage(f"cannot read '{file}' as .npy: {e!s:.500}") from None
    return found


def _row(name: str, a: Array) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "dtype": str(a.dtype), "shape": list(a.shape)}
    if a.dtype == object:
        return {**row, "dtype": "string", "min": None, "mean": None, "max": None}
    values = a.astype(np.float64)
    stats = {"min": values.min(), "mean": values.mean(), "max": values.max()} if a.size else {}
    return {**row, **{k: float(stats[k]) if k in stats else None for k in ("min", "mean", "max")}}


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
