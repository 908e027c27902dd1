"""smelt inspect: a model or bundle -> inputs, dims, kernels, size by cause, peak-memory formula."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from smelt.cli.common import (
    AddParser,
    Result,
    Usage,
    add_compile_options,
    add_shape_options,
    command,
    count_bytes,
    open_bundle,
    shape_specs,
    table,
)
from smelt.cli.compile import compile_args, described_args
from smelt.cli.entries import add_entry_option, add_models, chosen_entries
from smelt.cli.kernels import add_kernel_options, described_text, given_rates, with_costs
from smelt.core.bundle import Bundle, is_bundle
from smelt.core.exits import OK
from smelt.core.package import Package, is_package, read_package
from smelt.core.scratch import scratch_folder
from smelt.core.subnormals import keeps_subnormals
from smelt.formula import memory_text
from smelt.shapes import bind, label, shapes_at
from smelt.size import Sizes, sizes


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(
        add, "inspect", run,
        "smelt inspect out --kernels\nsmelt inspect model.onnx --target arm64 --shape batch=1,seq=128",
    )  # fmt: skip
    add_models(
        parser, "source", "MODEL|BUNDLE", "a model is compiled first, into a folder that is removed"
    )
    add_entry_option(parser, "all, one after the other")
    add_kernel_options(parser)
    parser.add_argument("--formula", action="store_true", help="the memory formula with all of its cases")
    parser.add_argument("--values", action="store_true", help="where every value lives in the arena")
    parser.add_argument("--verify", action="store_true", help="compare every file with its hash")
    add_compile_options(parser)
    add_shape_options(parser)


def run(args: argparse.Namespace) -> Result:
    """Describe a bundle by its manifest and its library's symbols, or a package, without running it."""
    if is_package(args.source):
        _refuse_without_model(args)
        return _package(read_package(args.source))
    described = None
    with scratch_folder("inspect") as folder:
        if is_bundle(args.source):
            bundle = open_bundle(args.source)
            bundle.verify(None if args.verify else ())
            _refuse_without_model(args)
        else:
            args.model = args.source
            bundle = compile_args(args, f"{folder}/out")
            described = described_args(args, args.sources) if args.kernels or args.sources else None
        found = sizes(bundle)
        views = chosen_entries(args, bundle)
        # shapes are those of one entry: of that which is named, else of the first
        first, specs = next(iter(views.values())), shape_specs(args)
        peaks = [(w, *_peak(first, w)) for w in specs]
        if described is not None:
            described = _with_costs(args, first, described)
    shown = bundle if args.entry is None else bundle.entry(args.entry)
    data = {
        **{k: v for k, v in shown.manifest.items() if k != "schema_version"},
        "digest": bundle.digest,
        "size": {
            "total": found.total,
            "without_weights": found.without_weights,
            "files": found.files,
            "code": found.code,
            "kernels": dict(found.kernels),
            "weights": dict(found.weights),
        },
        "peak_memory": [{"shapes": s, "bytes": n} for _, s, n in peaks],
    }
    data |= {} if described is None else {"described": described}
    parts = [_head(bundle)]
    for name, view in views.items():
        parts += [f"entry {name}:"] if len(bundle.entries) > 1 else []
        parts += [_dims(view), memory_text(view.manifest, exact=args.formula)]
    parts.append(size_text(found))
    for name, view in views.items():
        parts += [f"entry {name}:"] if len(bundle.entries) > 1 else []
        parts += [_kernels(view, args, described), *transfers_text(view)]
        parts += [*quantised_text(view), *fp16_text(view)]
        parts += [_values(view)] if args.values else []
    parts += [f"peak at {s}: {n:,} bytes" for _, s, n in peaks]
    return Result(OK, data, "\n".join(parts))


def _refuse_without_model(args: argparse.Namespace) -> None:
    """Raise Usage for what only a compile can tell."""
    given = {"--source": args.sources, "--peak": args.peak, "--bandwidth": args.bandwidth}
    for option in (o for o, words in given.items() if words):
        raise Usage(
            f"{option} is about the trees of kernels, which the files of a bundle or a package do not show; "
            "name the model, with the options of its compile"
        )


def _with_costs(
    args: argparse.Namespace, bundle: Bundle, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The kernels that --source names, or all, with costs at the shapes of --shape."""
    units = list(dict.fromkeys(row["unit"] for row in rows))
    peak, bandwidth = (given_rates(getattr(args, o), f"--{o}", units) for o in ("peak", "bandwidth"))
    at = []
    for spec in shape_specs(args):
        values = bind(bundle, spec)
        shapes = shapes_at(bundle, values)
        at.append((label(shapes), {**bundle.bind(shapes), **values}))
    named = [r for r in rows if not args.sources or any(fnmatchcase(r["name"], p) for p in args.sources)]
    return with_costs(named, at, peak, bandwidth)


def _package(package: Package) -> Result:
    m = package.manifest
    lines = [
        f"{m['name']}: a portable package, smelt {m['smelt']} (next: smelt finalise)",
        f"  package       {package.digest}",
        f"  weights       {count_bytes(m['weights']['bytes'])}, {len(m['weights']['places'])} of them",
    ]
    for row in m["entries"]:
        lines += [f"entry {row['name']}:", f"  model sha256  {row['model']}"]
        for side in ("inputs", "outputs"):
            cells = [[r["name"], r["dtype"], _shape(r["shape"])] for r in row[side]]
            lines += [f"{side}:", table(cells, indent="  ")] if cells else [f"{side}: none"]
    return Result(OK, {**m, "digest": package.digest}, "\n".join(lines))


def _peak(bundle: Bundle, spec: Mapping[str, Any]) -> tuple[str, int]:
    values = bind(bundle, spec)
    return label(shapes_at(bundle, values)), bundle.peak_bytes(values)


def _head(bundle: Bundle) -> str:
    m = bundle.manifest
    return (
        f"{m['model']['name']} for {bundle.target} ({m['machine']}), "
        f"smelt {m['smelt']}, -O{m['options']['opt']}{', fp16' if m['options'].get('fp16') else ''}\n"
        f"  numbers       {_numbers(m['options'])}\n"
        f"{_variants(m.get('variants', []))}"
        f"  model sha256  {m['model']['sha256']}\n  bundle        {bundle.digest}"
    )


def _variants(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line with the variants of the code, the best first; '' where there is but one."""
    texts = ["+".join((row["processor"], *row["units"])) for row in rows]
    return f"  variants      {', '.join(texts)}\n" if texts else ""


def _numbers(options: Mapping[str, Any]) -> str:
    """What was allowed of floating-point arithmetic, as text (docs/floating-point.md)."""
    parts = options.get("fast_math")
    if parts is None:
        return "not recorded"
    rewrites = f"--fast-math {','.join(parts)}" if parts else "roundings and the order of sums only"
    return f"{rewrites}; subnormals {'kept' if keeps_subnormals(options) else 'are 0'}"


def _dims(bundle: Bundle) -> str:
    m = bundle.manifest
    lines = []
    for kind in ("inputs", "outputs"):
        rows = [[r["name"], r["dtype"], _shape(r["shape"])] for r in m[kind]]
        lines += [f"{kind}:", table(rows, indent="  ")] if rows else [f"{kind}: none"]
    rows = [
        [s["name"], s["dtype"], _shape(s["shape"]), s["output"] or "-", _shape(s["next"]), _shape(s["start"])]
        for s in m["state"]
    ]
    head = ["state", "", "", "next", "", "start"]
    lines += [table([head, *rows])] if rows else []
    rows = [[s["name"], _range(s), s["origin"]] for s in m["symbols"]]
    lines += ["dims:", table(rows, indent="  ")] if rows else ["dims: all fixed"]
    return "\n".join(lines)


def _shape(extents: Sequence[int | str] | None) -> str:
    """The extents as text; '-' for None: a state that the entry does not read, or does not replace."""
    return "-" if extents is None else "[" + ", ".join(map(str, extents)) + "]"


def _range(s: Mapping[str, Any]) -> str:
    high = "" if s["high"] is None else s["high"]
    step = f", multiples of {s['divisor']}" if s["divisor"] != 1 else ""
    hot = f", fast at {', '.join(map(str, s['hot']))}" if s.get("hot") else ""
    return f"{s['low']}..{high}{step}{hot}"


def transfers_text(bundle: Bundle) -> list[str]:
    """Lines about what goes from one unit to another; none for a model on one unit."""
    rows = [[t["name"], f"{t['from']} -> {t['to']}", t["bytes"]] for t in bundle.manifest["transfers"]]
    head = "between units, copied where their memory is not the host's (value, way, bytes):\n"
    return [head + table(rows, indent="  ")] if rows else []


def quantised_text(bundle: Bundle) -> list[str]:
    """Lines that say how many quantised convolutions and products became integer kernels, and why the others
    did not; none for a model without any."""
    found = bundle.manifest.get("quantised") or {}
    left, packed = found.get("float", {}), found.get("packed", 0)
    total = found.get("integer", 0) + packed + len(left)
    if not total:
        return []
    lines = [f"quantised: {found['integer']} of {total} convolutions and products are integer kernels"]
    if packed:
        lines.append(f"  {packed} read weights packed in blocks")
    return ["\n".join(lines + [f"  {node}: {reason}" for node, reason in left.items()])]


def fp16_text(bundle: Bundle) -> list[str]:
    """Lines that say how many tensors between kernels are in float16, and why the others are not; none
    without fp16."""
    found = bundle.manifest.get("fp16")
    if not found:
        return []
    total = found["half"] + sum(found["float"].values())
    lines = [f"fp16: {found['half']} of {total} tensors that kernels make, and {found['weights']} weights"]
    return ["\n".join(lines + [f"  {n} in float32: {reason}" for reason, n in found["float"].items()])]


def size_text(found: Sizes) -> str:
    """Bytes by file, and of the library by cause."""
    rows = [[n, f"{b:,}"] for n, b in found.files.items()]
    rows.append(["total", f"{found.total:,}"])
    code = [[n, f"{b:,}"] for n, b in found.code.items()]
    lines = ["size, in bytes:", table(rows, indent="  ")]
    lines += [f"  of {found.names.library}:", table(code, indent="    ")]
    if found.kernels:
        name, n = found.kernels[0]
        lines.append(f"    (largest kernel: {name}, {count_bytes(n)})")
    return "\n".join(lines)


def _kernels(
    bundle: Bundle, args: argparse.Namespace, described: Sequence[dict[str, Any]] | None
) -> str:
    rows = bundle.manifest["kernels"]
    hot = sum("hot" in k for k in rows)
    count = f"{len(rows) - hot}, and {hot} for hot sizes" if hot else f"{len(rows)}"
    lines = [f"kernels: {count}, launched {sum(k['launches'] for k in rows if 'hot' not in k)} times"]
    if described is not None:
        about = {k["name"]: k for k in rows}
        own = [r for r in described if r["name"] in about or len(bundle.entries) == 1]
        return "\n".join([*lines, described_text(own, about, whole=bool(args.sources))])
    if not args.kernels:
        return lines[0] + " (--kernels shows them)"
    for k in rows:
        where = f" on {k['unit']}" if "unit" in k else ""
        lines.append(f"  {k['name']}{where} x{k['launches']}, {k['statements']} statement(s)")
        if "hot" in k:
            at = ", ".join(f"{d} = {n}" for d, n in k["hot"]["dims"].items())
            lines.append(f"    instead   of {k['hot']['of']} where {at}")
        lines += [f"    from      {k['origin']}", f"    schedule  {k['schedule']}"]
    return "\n".join(lines)


def _values(bundle: Bundle) -> str:
    rows = [
        [v["name"], f"arena {v['arena']} + {v['offset']}", v["bytes"], f"{v['live'][0]}-{v['live'][1]}"]
        for v in bundle.manifest["values"]
    ]
    return "values (name, place, bytes, steps alive):\n" + table(rows, indent="  ")
