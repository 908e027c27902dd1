"""What bisect has found -> a folder that shows the fault alone: a piece of the model, inputs, repro.sh."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smelt.bisect import Bisection, Divergence
from smelt.compare import validate
from smelt.core.bundle import Bundle, spelled_dim
from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.scratch import scratch_folder
from smelt.core.subnormals import keeps_subnormals
from smelt.devicefarm.verdict import Verdict
from smelt.driver import compile
from smelt.groups import GroupValue
from smelt.model_cut import Between, ModelGraph
from smelt.npz import write_npz
from smelt.own_reference import oracle
from smelt.request import DimSpec, spelled_spec
from smelt.script import SessionStep
from smelt.shapes import feed_case
from smelt.targets.platform import same_again

_Kind: TypeAlias = str
_NODES: _Kind = "the suspected nodes alone"
_UP_TO: _Kind = "the model up to the wrong value"
_WHOLE: _Kind = "the whole model"
_BUNDLE: _Kind = "the bundle itself, since a new compile does not show the fault"


@dataclass(frozen=True)
class BuildOptions:
    """How the bundle was made and is judged, as far as a second compile needs it."""

    target: str
    opt: int = 3
    fp16: bool = False
    fast_math: tuple[str, ...] = ()
    keep_subnormals: bool = False
    place: tuple[tuple[str, str], ...] = ()
    dims: tuple[tuple[str, DimSpec], ...] = ()
    device: str | None = None
    rtol: float | None = None
    atol: float | None = None
    threads: int = 0


@dataclass(frozen=True)
class Reproducer:
    """folder: of model.onnx, inputs.npz and repro.sh. kind: how much of the model it has. nodes: how many."""

    folder: Path
    kind: _Kind
    nodes: int


def options_of(
    bundle: Bundle, model: Path, device: str | None, rtol: float | None, atol: float | None, threads: int
) -> BuildOptions:
    """The options that a manifest remembers, and those of the comparison."""
    made: Mapping[str, Any] = bundle.manifest["options"]
    return BuildOptions(
        same_again(bundle.target), int(made["opt"]), bool(made.get("fp16")), tuple(made.get("fast_math", ())),
        keeps_subnormals(made),
        tuple((str(k), str(v)) for k, v in made.get("place", ())), tuple(_dims(bundle, model).items()),
        device, rtol, atol, threads,
    )  # fmt: skip


def _dims(bundle: Bundle, model: Path) -> dict[str, DimSpec]:
    """What the compile fixed or bounded of the sizes that the file names."""
    found: dict[str, DimSpec] = {}
    rows = {r["name"]: r for r in bundle.manifest["symbols"]}
    shapes = {r["name"]: r["shape"] for r in bundle.manifest["inputs"]}
    for name, axes in ModelGraph(model).named_axes().items():
        for axis, dim in axes.items():
            shape = shapes.get(name, ())
            if axis >= len(shape):
                continue
            known = spelled_dim(str(shape[axis]), bundle.manifest)
            if known.is_const:
                found[dim] = known.const
            elif str(known) in rows and _limited(rows[str(known)]):
                row = rows[str(known)]
                hot = tuple(row.get("hot", ()))
                found[dim] = (row["low"], row["high"], hot) if hot else (row["low"], row["high"])
    return found


def _limited(row: Mapping[str, Any]) -> bool:
    return row["high"] is not None or row["low"] > 1 or bool(row.get("hot"))


def write_reproducer(
    folder: Path, bundle: Bundle, model: Path, step: SessionStep, found: Bisection, options: BuildOptions,
    on_step: Callable[[str], None] = lambda text: None,
) -> Reproducer | None:  # fmt: skip
    """Write the smallest model that still shows the fault: each candidate is compiled and compared first.

    folder: new or empty. bundle, model: the entry that was wrong. None where no candidate shows the fault,
    for instance since it takes a state that earlier runs left. Raises SmeltError: 'infra' where the folder
    cannot be written, 'invalid' where it holds something.
    """
    first = found.first
    if first is None:
        return None
    _prepare(folder)
    graph = ModelGraph(model)
    feed = {**step.case.feed, **step.state}
    for kind, part in _candidates(graph, first.name, first.part):
        on_step(f"trying {kind}")
        with scratch_folder("repro") as scratch:
            given = _cut(graph, model, bundle, part, first.name, feed, Path(scratch))
            if given is None or not _shows(Path(scratch, "model.onnx"), given, options, Path(scratch)):
                continue
            _fill(folder, Path(scratch), given)
        _write_script(folder, first, options, kind)
        return Reproducer(folder, kind, len(part.nodes))
    return _of_bundle(folder, bundle, model, step, first, options)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = [p.name for p in folder.iterdir() if p.name not in ("model.onnx", "inputs.npz", "repro.sh")]
    except OSError as e:
        raise SmeltError(f"folder '{folder}': {e.strerror or e}", kind="infra") from None
    if strange:
        raise SmeltError(f"folder '{folder}' holds '{strange[0]}'; a reproducer wants an empty folder")


def _candidates(graph: ModelGraph, name: str, part: Between) -> Iterator[tuple[_Kind, Between]]:
    yield _NODES, part
    longer = graph.between([name])
    if longer != part:
        yield _UP_TO, longer
    whole = graph.between(graph.outputs)
    if whole not in (part, longer):
        yield _WHOLE, whole


def _cut(
    graph: ModelGraph, model: Path, bundle: Bundle, part: Between, name: str,
    feed: Mapping[str, GroupValue], folder: Path,
) -> dict[str, Array] | None:  # fmt: skip
    """Write the cut; the values that it reads, None where one of them is no tensor."""
    inner = [r for r in part.reads if r not in feed]
    known = dict(feed)
    if inner:
        if not graph.tensors.issuperset(inner):
            return None
        known |= oracle(model, bundle.manifest, inner).run(feed)
    given = {r: known[r] for r in part.reads}
    tensors = {n: a for n, a in given.items() if isinstance(a, np.ndarray)}
    if len(tensors) < len(given):
        return None
    graph.cut(part, [name], tensors, folder / "model.onnx")
    return tensors


def _shows(model: Path, given: Mapping[str, Array], options: BuildOptions, scratch: Path) -> bool:
    try:
        made = compile(
            str(model), options.target, dims_in(model, options.dims), opt=options.opt, fp16=options.fp16,
            fast_math=options.fast_math, keep_subnormals=options.keep_subnormals, place=dict(options.place),
            output=str(scratch / "out"),
        )  # fmt: skip
        found = validate(
            made, model, [feed_case(made, given)], device=options.device, rtol=options.rtol,
            atol=options.atol, threads=options.threads,
        )  # fmt: skip
    except SmeltError as e:
        if e.kind == "infra":
            raise
        return False
    return found.verdict is Verdict.MISMATCH


def dims_in(model: Path, dims: Sequence[tuple[str, DimSpec]]) -> dict[str, DimSpec]:
    """Those dims that the file names."""
    there = {d for axes in ModelGraph(model).named_axes().values() for d in axes.values()}
    return {name: spec for name, spec in dims if name in there}


def _fill(folder: Path, scratch: Path, given: Mapping[str, Array]) -> None:
    try:
        for file in scratch.glob("model.onnx*"):
            shutil.copyfile(file, folder / file.name)
    except OSError as e:
        raise SmeltError(f"the reproducer cannot be written: {e}", kind="infra") from None
    write_npz(folder / "inputs.npz", given)


def _of_bundle(
    folder: Path, bundle: Bundle, model: Path, step: SessionStep, first: Divergence, options: BuildOptions
) -> Reproducer | None:
    """A copy of the bundle, where its fault does not come back by a compile; not for a model with state."""
    tensors = {n: a for n, a in step.case.feed.items() if isinstance(a, np.ndarray)}
    if step.state or len(tensors) < len(step.case.feed):
        return None
    graph = ModelGraph(model)
    try:
        shutil.copytree(bundle.path, folder / "bundle")
    except OSError as e:
        raise SmeltError(f"the reproducer cannot be written: {e}", kind="infra") from None
    shutil.copyfile(model, folder / "model.onnx")
    write_npz(folder / "inputs.npz", tensors)
    _write_script(folder, first, options, _BUNDLE, "bundle")
    return Reproducer(folder, _BUNDLE, len(graph.between(graph.outputs).nodes))


def command_of(options: BuildOptions, source: str, dims: Mapping[str, DimSpec]) -> list[str]:
    """The words of the comparison after the program's name."""
    words = ["validate", source, "--inputs", "inputs.npz"]
    if source == "model.onnx":
        words += ["--target", options.target, f"-O{options.opt}"]
        words += ["--fp16"] if options.fp16 else []
        words += ["--fast-math", ",".join(options.fast_math)] if options.fast_math else []
        words += ["--keep-subnormals"] if options.keep_subnormals else []
        rules = ",".join(f"{k}={v}" for k, v in options.place)
        words += ["--place", rules] if rules else []
        for name, d in dims.items():
            words += ["--dim", f"{name}={spelled_spec(d)}"]
    else:
        words += ["--model", "model.onnx"]
    words += ["--device", options.device] if options.device else []
    words += ["--rtol", repr(options.rtol)] if options.rtol is not None else []
    words += ["--atol", repr(options.atol)] if options.atol is not None else []
    return words


def _write_script(
    folder: Path, first: Divergence, options: BuildOptions, kind: _Kind, source: str = "model.onnx"
) -> None:
    """repro.sh, with what is known as a comment at its head."""
    from smelt import __version__

    nodes = [f"#   {s}" for s in first.suspects[:20]]
    more = [f"#   and {len(first.suspects) - 20} more"] if len(first.suspects) > 20 else []
    words = command_of(options, source, dims_in(folder / "model.onnx", options.dims))
    lines = [
        "#!/bin/sh",
        f"# smelt {__version__} computes '{first.name}' wrongly: {first.error}",
        "# One of these nodes, or how they are compiled into one kernel:",
        *nodes, *more,
        f"# This folder has {kind}.",
        "# Exit code 1: the fault is there. 0: it is gone. SMELT: how to call smelt, if not by its name.",
        'cd "$(dirname "$0")" || exit 2',
        f"exec ${{SMELT:-smelt}} {shlex.join(words)}",
    ]  # fmt: skip
    script = folder / "repro.sh"
    script.write_text("\n".join(line.replace("\r", " ").replace("\n", " ") for line in lines) + "\n", "utf-8")
    script.chmod(0o755)
