"""A request in, a bundle on disk out: the whole compiler, in the process that calls it.

smelt/driver.py runs it in a child process; a model that crashes `compile_here` crashes its caller.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smelt.core.bundle import MAIN, Bundle, write_weights
from smelt.core.diag import SmeltError, printable, shortened
from smelt.core.dim.parts import LONGEST
from smelt.core.ir.dump import DUMP_SUFFIX
from smelt.core.ir.graph import Module, TensorType
from smelt.core.ir.store import pack_weights
from smelt.core.ir.verify import module_facts
from smelt.core.machine import CPU, Machine
from smelt.core.naming import Names, entry_part, name_from
from smelt.core.plan.link import Arranged, Linked, link
from smelt.core.plan.program import HostProgram
from smelt.core.plan.room import with_room
from smelt.core.plan.state import StateUse, with_state
from smelt.core.plan.weights import physical
from smelt.core.schedule.book import parse_book
from smelt.core.schedule.recall import Recalled, notes
from smelt.core.spread import SpreadOut, serially
from smelt.core.staging import Staging
from smelt.core.sums import NO_SUMS, Sums, weight_sums
from smelt.described import described
from smelt.entries import errors_about, requests_of
from smelt.manifest import build_manifest
from smelt.model_header import model_header
from smelt.plugin import load_plugins
from smelt.request import OnProgress, Request, bounds
from smelt.stages import (
    PORTABLE,
    Compilation,
    imported,
    is_dump,
    lowered_together,
    resumed,
    resumed_request,
    shared_state,
)
from smelt.targets.platform import TargetSpec, parse_target
from smelt.targets.registry import cpu_target, default_unit, devices, machines
from smelt.targets.toolchain import (
    build_library,
    build_runner,
    build_static,
    prepare,
    runtime_dir,
)
from smelt.work import linked_work

SHARED_PANEL_BITS = 512
"""The width of a panel of weights that entries and processors with vectors of different widths share: a line
of their caches, which is the widest vector. What it costs stands in benchmarks/results/levels.md."""


@dataclass(frozen=True)
class Lowered:
    """Planned models: the compile of each entry after its last pass, their linked host programs, the machine
    and the target that they are for, and of all entries of all variants the modules before the schedule and
    what that was asked."""

    compilations: tuple[Compilation, ...]
    linked: Linked
    machine: Machine
    spec: TargetSpec
    unscheduled: tuple[Module | None, ...] = ()
    asked: tuple[Recalled, ...] = ()

    @property
    def module(self) -> Module:
        """The scheduled module of the first entry."""
        return self.linked.entries[0].module

    @property
    def program(self) -> HostProgram:
        """The host program of the first entry."""
        return self.linked.entries[0].program

    @property
    def source(self) -> str:
        """SHA-256 of the model's file; of several entries, SHA-256 over those of all their files."""
        found = [c.source for c in self.compilations]
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def begin(request: Request) -> dict[str, Compilation]:
    """Import models, or read dumps and continue their compiles: one for each entry. Raises SmeltError."""
    load_plugins(request.plugins)
    if not request.entries:
        return {MAIN: resumed(request) if is_dump(request.source) else imported(request)}
    begun = {}
    for name, own in requests_of(request).items():
        with errors_about(name):
            begun[name] = resumed(own) if is_dump(own.source) else imported(own)
    return begun


def lower(
    request: Request,
    progress: OnProgress = lambda stage: None,
    begun: Mapping[str, Compilation] | None = None,
    spread: SpreadOut = serially,
) -> Lowered:
    """Import (unless `begun` is given), optimise, schedule and plan, a dump with its own options; code comes
    later. spread: computes the schedules. Raises SmeltError."""
    if begun is None:
        progress("import")
        begun = begin(request)
        if is_dump(request.source):
            request = resumed_request(request, begun)
    spec = parse_target(request.target)
    default = default_unit(spec)
    if request.state:
        begun = _with_room(request, begun)
    # the first variant is made last: its dumps are those that are kept
    variants = _variants(request, spec, default)[::-1]
    lowered = _lowered(request, begun, variants, progress)
    own = [(v, {name: cs[k] for name, cs in lowered.items()}) for k, v in enumerate(variants)]
    made = _scheduled(request, own, progress, spread)[::-1]
    progress("plan")
    units = {unit: machine for v in variants for unit, machine in v.units.items()}
    linked = link([(f.processor, _arranged(request, f.done)) for f in made], units)
    every = [c for f in made for c in f.done.values()]
    before, asked = tuple(c.unscheduled for c in every), tuple(a for c in every for a in c.asked.values())
    return Lowered(tuple(made[0].done.values()), linked, made[0].machine, spec, before, asked)


@dataclass(frozen=True)
class VariantSpec:
    """What the model is compiled for once. level: the processor. units: its machine and those of devices, by
    name; unit: that of the kernels, unless they are placed elsewhere."""

    level: TargetSpec
    units: Mapping[str, Machine]
    unit: str


def _variants(request: Request, spec: TargetSpec, default: str) -> list[VariantSpec]:
    """The variants, the best first: one for all devices, or one for each, and then those for the CPU alone.
    Raises SmeltError."""
    levels, option = spec.levels(), "choose" if request.choose else "fallback"
    # a prefill and a decode step would choose panels of their own for the same weights
    shared = len(levels) > 1 or len(request.entries) > 1
    alone = [VariantSpec(level, _machines(level, shared), CPU) for level in levels]
    if default == CPU:
        if request.choose or request.fallback:
            raise SmeltError(
                f"{option}: the target has no unit besides the CPU", hint=f"leave --{option} out"
            )
        return alone
    least, units = levels[-1], _machines(levels[-1], shared)
    if not request.choose:
        return [VariantSpec(least, units, default), *(alone if request.fallback else [])]
    if request.place:
        raise SmeltError("choose: one device gets all kernels", hint="leave --place or --choose out")
    return [*(VariantSpec(least, {CPU: units[CPU], d: units[d]}, d) for d in spec.devices), *alone]


def _machines(level: TargetSpec, several: bool) -> dict[str, Machine]:
    """The machines of a processor and of its devices. several: the weights are those of others too."""
    own = dict(machines(level))
    if several:
        own[CPU] = replace(own[CPU], panel_bits=SHARED_PANEL_BITS)
    return own


@dataclass(frozen=True)
class Finished:
    """The finished compiles of all entries for one processor. machine: that of the unit that kernels
    run on."""

    processor: str
    machine: Machine
    done: Mapping[str, Compilation]


def _lowered(
    request: Request,
    begun: Mapping[str, Compilation],
    variants: Sequence[VariantSpec],
    progress: OnProgress,
) -> dict[str, list[Compilation]]:
    """The compiles of each entry for the variants up to the schedule. Raises SmeltError where a processor or
    a device has already had a say."""
    spec = parse_target(request.target)
    alone = any(v.unit == CPU and spec.devices for v in variants)
    if (alone or spec.better or request.choose) and any(c.place > PORTABLE for c in begun.values()):
        raise SmeltError(
            "a dump has no passes left for several variants of the code", hint="compile the model's file"
        )
    done = {}
    for name, c in begun.items():
        with errors_about(name if request.entries else ""):
            own = [(_of_variant(c, v, spec), v.units, v.unit) for v in variants]
            done[name] = lowered_together(own, progress)
    return done


def _of_variant(c: Compilation, v: VariantSpec, spec: TargetSpec) -> Compilation:
    """The compile before its first pass for a variant, with tables of its own."""
    own = replace(c.request, place=()) if v.unit == CPU and spec.devices else c.request
    level = str(v.level) if spec.better else ""
    return replace(
        c, request=own, level=level,
        halved=dict(c.halved), work=dict(c.work), asked=dict(c.asked), idle=dict(c.idle),
    )  # fmt: skip


def _scheduled(
    request: Request,
    variants: Sequence[tuple[VariantSpec, Mapping[str, Compilation]]],
    progress: OnProgress,
    spread: SpreadOut,
) -> list[Finished]:
    """The compiles of the entries for each variant, scheduled."""
    several = bool(parse_target(request.target).better)
    progress("schedule")
    found = []
    for v, lowered in variants:
        done: dict[str, Compilation] = {}
        for name, c in lowered.items():
            with errors_about(name if request.entries else ""):
                done[name] = _at_level(c, v, several).scheduled(v.units, v.unit, spread)
        found.append(Finished(v.level.processor, v.units[v.unit], done))
    return found


def _at_level(c: Compilation, v: VariantSpec, several: bool) -> Compilation:
    """The compile for the processor of a variant."""
    return replace(c, request=replace(c.request, target=str(v.level))) if several else c


def _with_room(request: Request, begun: Mapping[str, Compilation]) -> dict[str, Compilation]:
    """The compiles with their states, before their first pass with room where these grow where they lie; one
    that goes on from a dump after that keeps what it has. Raises SmeltError for impossible states."""
    uses = {name: states for name, (_, states) in _with_state(request, begun).items()}
    known = {name: replace(c, states=uses[name]) for name, c in begun.items()}
    if any(c.place for c in begun.values()):
        return known
    modules = {name: c.module for name, c in begun.items()}
    grown = with_room(modules, uses, {name: module_facts(m) for name, m in modules.items()})
    return {name: replace(c, module=grown[name]) for name, c in known.items()}


def _with_state(
    request: Request, done: Mapping[str, Compilation]
) -> dict[str, tuple[Module, tuple[StateUse, ...]]]:
    if request.entries:
        return shared_state(done, request.state)
    alone = done[MAIN].module
    return {MAIN: with_state(alone, request.state, module_facts(alone))}


def _arranged(request: Request, done: Mapping[str, Compilation]) -> list[Arranged]:
    """What is linked: the modules with their states. Not before, since passes and dumps have inputs and
    outputs in the model's order."""
    if not done:
        return []
    found = _with_state(request, done)
    return [(name, *found[name]) for name in done]


def compile_here(request: Request, progress: OnProgress = lambda stage: None) -> Bundle:
    """Compile in this process and write the bundle. Raises SmeltError. progress: called with each stage's
    name."""
    with Staging(request.output) as stage:
        return stage.commit(compile_into(stage, request, progress))


def compile_into(
    stage: Staging, request: Request, progress: OnProgress, spread: SpreadOut = serially
) -> dict[str, Any]:
    """Compile in this process and write the bundle's files into the folder of `stage`; its manifest. spread:
    computes the code of kernels. Raises SmeltError."""
    begun = None
    if is_dump(request.source):  # which says what it is for
        progress("read")
        begun = begin(request)
        request = resumed_request(request, begun)
    with ThreadPoolExecutor(1) as background:
        # the first time for a platform its libc is built, which takes as long as a compile: beside it
        prepared = background.submit(prepare, parse_target(request.target))
        lowered = lower(request, progress, begun, spread)
        return _write(request, lowered, stage.path, progress, prepared, background, spread)


def package_into(stage: Staging, request: Request, progress: OnProgress) -> dict[str, Any]:
    """Write the files of a portable package into the folder of `stage`; its manifest. Raises SmeltError."""
    from smelt import __version__

    if any(map(is_dump, (request.source, *dict(request.entries).values()))):
        raise SmeltError("portable: the passes of a dump may have asked a machine", hint="name the model")
    progress("import")
    begun = begin(request)
    if request.state:
        begun = _with_room(request, begun)
    progress("optimise")
    made = {name: c.portable() for name, c in begun.items()}
    progress("weights")
    places, total, rows = pack_weights(c.module for c in made.values())
    called = request.name or Path(request.source).stem
    weights = f"{request.prefix or name_from(called)}.weights" if total else None
    if weights:
        write_weights(stage.path / weights, rows, total)
    for name, c in made.items():
        (stage.path / f"{name}{DUMP_SUFFIX}").write_text(c.dump(), "utf-8")
    return {
        "kind": "package",
        "smelt": __version__,
        "name": printable(called),
        "prefix": request.prefix,
        "entries": [_package_entry(name, c) for name, c in made.items()],
        "weights": {"file": weights, "bytes": total, "places": places},
    }


def _package_entry(name: str, c: Compilation) -> dict[str, Any]:
    """The row of an entry in a package's manifest."""

    def row(name: str, t: TensorType) -> dict[str, Any]:
        shape = [d.const if d.is_const else shortened(str(d), LONGEST) for d in t.shape]
        return {"name": name, "dtype": t.dtype.name, "shape": shape}

    g, types = c.module.main, c.module.output_types()
    return {
        "name": name,
        "file": f"{name}{DUMP_SUFFIX}",
        "model": c.source,
        "inputs": [row(v.origin or v.name, v.type) for v in g.inputs],
        "outputs": [row(n, t) for n, t in zip(g.output_names, types, strict=True)],
    }


def plan_here(request: Request, progress: OnProgress = lambda stage: None) -> dict[str, Any]:
    """The manifest's fields about module and plan, without making code. Raises SmeltError."""
    lowered = lower(request, progress)
    plan = build_manifest(lowered.linked, [{} for _ in lowered.compilations], {})
    if request.describe:
        progress("describe")
        spec, units = lowered.spec, machines(lowered.spec)
        plan["described"] = described(
            lowered.linked, lowered.unscheduled, spec, units, request.listings
        )
    return plan


def _write(
    request: Request,
    lowered: Lowered,
    folder: Path,
    progress: OnProgress,
    prepared: Future[None],
    background: ThreadPoolExecutor,
    spread: SpreadOut,
) -> dict[str, Any]:
    """The files of a bundle, and its manifest. prepared: of the toolchain, which `background` starts."""
    linked, spec = lowered.linked, lowered.spec
    called = request.name or Path(request.source).stem
    names = Names(request.prefix or name_from(called), _identity(request, lowered))
    if linked.weights_bytes:
        progress("weights")
    digest, sums = _write_weights(linked, folder / names.weights)
    progress("code")
    artifact = cpu_target().emit(
        linked,
        spec,
        name=printable(called),
        prefix=names.prefix,
        threads=request.threads or 0,
        keep_subnormals=request.keep_subnormals,
        weights_sha256=bytes.fromhex(digest) if digest else bytes(32),
        weights_sums=sums,
        devices=devices(spec),
        spread=spread,
    )
    progress("link")
    prepared.result()
    runner = background.submit(build_runner, spec, artifact.object, folder) if request.runner else None
    build_library(spec, artifact.object, folder, names)
    if request.static:
        build_static(spec, artifact.object, folder, names)
    if runner is not None:
        runner.result()
    shutil.copyfile(runtime_dir() / "smelt.h", folder / "smelt.h")
    (folder / names.header).write_text(model_header(printable(called), names, linked), "utf-8")
    _dump(artifact.dumps)
    return _manifest(request, lowered, names, digest)


def _write_weights(linked: Linked, path: Path) -> tuple[str, Sums]:
    """The SHA-256 in hex of the file of weights and the sums of its parts; '' and none without weights."""
    if not linked.weights_bytes:
        return "", NO_SUMS
    whole = linked.all_entries
    # one without bytes lies where another one begins
    places = {w.offset: (e.module.weights[w.ref], w) for e in whole for w in e.program.weights if w.bytes}
    rows = ((at, physical(weight, w.layout).pieces()) for at, (weight, w) in sorted(places.items()))
    digest = write_weights(path, rows, linked.weights_bytes)
    return digest, weight_sums(path, linked.weights_bytes)


def _manifest(request: Request, lowered: Lowered, names: Names, digest: str) -> dict[str, Any]:
    """What a bundle's manifest says, besides the sums of its files. digest: of the file of weights."""
    linked, made = lowered.linked, lowered.compilations
    name = printable(request.name or Path(request.source).stem)
    found = [_found(name, c, request.fp16) for c in made]
    work = [
        linked_work(e.module, c.module.kernels, c.work) for e, c in zip(linked.entries, made, strict=True)
    ]
    manifest = build_manifest(linked, found, _made_by(request, lowered), work)
    manifest["library"] = {
        "prefix": names.prefix,
        "identity": names.identity,
        "file": names.library,
        "static": names.archive if request.static else None,
        "header": names.header,
    }
    manifest["weights"] |= {"sha256": digest, "file": names.weights if digest else None}
    return manifest


def _made_by(request: Request, lowered: Lowered) -> dict[str, Any]:
    """The field of the manifest about the compiler, its target and its options."""
    from smelt import __version__

    spec = lowered.spec
    return {
        "smelt": __version__,
        "target": str(spec),
        "platform": spec.platform.name,
        "cpu": spec.cpu,
        "devices": list(spec.devices),
        "machine": lowered.machine.name,
        "options": {
            "opt": request.opt,
            "fp16": request.fp16,
            "threads": request.threads or 0,
            "fast_math": list(request.fast_math),
            "keep_subnormals": request.keep_subnormals,
            "place": [rule for c in lowered.compilations for rule in c.placed()],
            "fallback": request.fallback,
            "choose": request.choose,
        },
        **_recalled(request, lowered),
        **_idle(request, lowered),
    }


def _recalled(request: Request, lowered: Lowered) -> dict[str, Any]:
    """The field of the manifest about schedules that were given; none without them."""
    if not request.schedules:
        return {}
    told = {
        "sha256": hashlib.sha256(request.schedules.encode()).hexdigest(),
        "kernels": sum(a.entry is not None for a in lowered.asked),
        "notes": list(notes(parse_book(request.schedules), lowered.asked)),
    }
    return {"schedules": told}


def _idle(request: Request, lowered: Lowered) -> dict[str, Any]:
    """The field of the manifest about rules of placement that decide nothing; none without them."""
    names = [name for name, _ in request.entries]
    notes = []
    for rule, unit in request.place:
        entry, pattern = entry_part(rule, names)
        asked = [c for c in lowered.compilations if entry in (None, c.request.entry)]
        if not any(pattern in dict(c.request.place) and pattern not in c.idle for c in asked):
            notes.append(f"place: no kernel fits '{rule}={unit}'")
    return {"notes": notes} if notes else {}


def _found(name: str, c: Compilation, fp16: bool) -> dict[str, Any]:
    """The fields of an entry in the manifest that its passes have found out."""
    groups = {} if c.groups is None else {"groups": dict(c.groups)}
    halved = {"fp16": dict(c.halved)} if fp16 else {}
    model = {"name": name, "sha256": c.source}
    return {"model": model, "quantised": dict(c.quantised), **groups, **halved}


def _identity(request: Request, lowered: Lowered) -> str:
    """Eight hex digits of a hash of the model and of the options that change its interface. Targets are not
    in it, since a program may be compiled for several of them with one header."""
    asked = [
        [sorted((name, bounds(d)) for name, d in c.request.dims.items()), c.request.outputs]
        for c in lowered.compilations
    ]
    form = [lowered.source, asked, request.fp16]
    form += [sorted(request.state.items())] if request.state else []
    form += [[name for name, _ in request.entries]] if request.entries else []
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:8]


def _dump(dumps: Mapping[str, Callable[[], str | bytes]]) -> None:
    folder = os.environ.get("SMELT_DUMP")
    for stage_name, make in dumps.items() if folder else ():
        content = make()
        data = content.encode() if isinstance(content, str) else content
        path = Path(str(folder)) / stage_name
        try:
            path.write_bytes(data)
        except OSError as e:
            raise SmeltError(
                f"cannot write '{path}': {e.strerror or e}",
                kind="infra",
                hint="free some space, or choose another folder with SMELT_DUMP",
            ) from e
