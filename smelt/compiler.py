"""A request in, a bundle on disk out: the whole compiler, in the process that calls it.

smelt/driver.py runs it in a child process; a model that crashes `compile_here` crashes its caller.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.core.bundle import MAIN, Bundle, write_weights
from smelt.core.diag import printable
from smelt.core.ir.graph import Module
from smelt.core.ir.verify import module_facts
from smelt.core.machine import Machine
from smelt.core.naming import Names, name_from
from smelt.core.plan.link import Linked, link
from smelt.core.plan.program import HostProgram
from smelt.core.plan.state import with_state
from smelt.core.plan.weights import physical
from smelt.core.staging import Staging
from smelt.core.sums import NO_SUMS, weight_sums
from smelt.entries import errors_about, requests_of
from smelt.manifest import build_manifest
from smelt.model_header import model_header
from smelt.plugin import load_plugins
from smelt.request import Progress, Request
from smelt.stages import Compilation, imported, is_dump, resumed, shared_state
from smelt.targets.platform import TargetSpec, parse_target
from smelt.targets.registry import cpu_target, default_unit, devices, machines
from smelt.targets.toolchain import (
    build_library,
    build_runner,
    build_static,
    prepare,
    runtime_dir,
)


@dataclass(frozen=True)
class Lowered:
    """Planned models: the compile of each entry after its last pass, their linked host programs, the machine
    and the target that they are for."""

    compilations: tuple[Compilation, ...]
    linked: Linked
    machine: Machine
    spec: TargetSpec

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


def begin(request: Request) -> Compilation:
    """Import a model, or read a dump and continue its compile. Raises SmeltError."""
    load_plugins(request.plugins)
    return resumed(request) if is_dump(request.source) else imported(request)


def lower(
    request: Request, progress: Progress = lambda stage: None, begun: Compilation | None = None
) -> Lowered:
    """Import (unless `begun` is given), optimise, schedule and plan; code comes later. Raises SmeltError."""
    if request.entries:
        return _lower_entries(request, progress)
    if begun is None:
        progress("import")
        begun = begin(request)
    spec = parse_target(begun.request.target)
    units, default = machines(spec), default_unit(spec)
    begun = begun.finished(units, default, progress)
    progress("plan")
    # only here: passes and dumps have inputs and outputs in the model's order
    module, states = with_state(begun.module, begun.request.state, module_facts(begun.module))
    return Lowered((begun,), link([(MAIN, module, states)]), units[default], spec)


def _lower_entries(request: Request, progress: Progress) -> Lowered:
    """Lower several models, each on its own, then plan and link them together."""
    load_plugins(request.plugins)
    spec = parse_target(request.target)
    units, default = machines(spec), default_unit(spec)
    progress("import")
    begun: dict[str, Compilation] = {}
    for name, own in requests_of(request).items():
        with errors_about(name):
            begun[name] = imported(own)
    shared_state(begun, request.state)  # raises before the passes run
    for name, compilation in begun.items():
        with errors_about(name):
            begun[name] = compilation.finished(units, default, progress)
    progress("plan")
    arranged = shared_state(begun, request.state)
    linked = link([(name, *arranged[name]) for name in begun])
    return Lowered(tuple(begun.values()), linked, units[default], spec)


def compile_here(request: Request, progress: Progress = lambda stage: None) -> Bundle:
    """Compile in this process and write the bundle. Raises SmeltError. progress: called with each stage's
    name."""
    begun = None
    if is_dump(request.source):  # which says what it is for
        progress("read")
        begun = begin(request)
        request = begun.request
    with ThreadPoolExecutor(1) as background:
        # the first time for a platform its libc is built, which takes as long as a compile: beside it
        prepared = background.submit(prepare, parse_target(request.target))
        lowered = lower(request, progress, begun)
        with Staging(request.output) as stage:
            return _write(request, lowered, stage, progress, prepared, background)


def plan_here(request: Request, progress: Progress = lambda stage: None) -> dict[str, Any]:
    """The manifest's fields about module and plan, without making code. Raises SmeltError."""
    lowered = lower(request, progress)
    return build_manifest(lowered.linked, [{} for _ in lowered.compilations], {})


def _write(
    request: Request,
    lowered: Lowered,
    stage: Staging,
    progress: Progress,
    prepared: Future[None],
    background: ThreadPoolExecutor,
) -> Bundle:
    from smelt import __version__

    linked, spec = lowered.linked, lowered.spec
    digest, sums = "", NO_SUMS
    called = request.name or Path(request.source).stem
    name = printable(called)
    names = Names(request.prefix or name_from(called), _identity(request, lowered))
    total = linked.weights_bytes
    if total:
        progress("weights")
        places = {w.offset: (e.module.weights[w.ref], w) for e in linked.entries for w in e.program.weights}
        rows = ((at, physical(weight, w.layout).pieces()) for at, (weight, w) in sorted(places.items()))
        digest = write_weights(stage.path / names.weights, rows, total)
        sums = weight_sums(stage.path / names.weights, total)
    progress("code")
    artifact = cpu_target().emit(
        linked,
        spec,
        name=name,
        prefix=names.prefix,
        threads=request.threads or 0,
        weights_sha256=bytes.fromhex(digest) if digest else bytes(32),
        weights_sums=sums,
        devices=devices(spec),
    )
    progress("link")
    prepared.result()
    runner = background.submit(build_runner, spec, artifact.object, stage.path) if request.runner else None
    build_library(spec, artifact.object, stage.path, names)
    if request.static:
        build_static(spec, artifact.object, stage.path, names)
    if runner is not None:
        runner.result()
    shutil.copyfile(runtime_dir() / "smelt.h", stage.path / "smelt.h")
    (stage.path / names.header).write_text(model_header(name, names, linked), "utf-8")
    _dump(artifact.dumps)
    compiler = {
        "smelt": __version__,
        "target": str(spec),
        "platform": spec.platform.name,
        "cpu": spec.cpu,
        "devices": list(spec.devices),
        "machine": lowered.machine.name,
        "options": {
            "opt": request.opt, "fp16": request.fp16, "threads": request.threads or 0,
            "fast_math": list(request.fast_math), "place": [list(rule) for rule in request.place],
        },
    }
    found = [_found(name, c, request.fp16) for c in lowered.compilations]
    manifest = build_manifest(linked, found, compiler)
    manifest["library"] = {
        "prefix": names.prefix,
        "identity": names.identity,
        "file": names.library,
        "static": names.archive if request.static else None,
        "header": names.header,
    }
    manifest["weights"] |= {"sha256": digest, "file": names.weights if digest else None}
    return stage.commit(manifest)


def _found(name: str, c: Compilation, fp16: bool) -> dict[str, Any]:
    """The fields of an entry in the manifest that its passes have found out."""
    groups = {} if c.groups is None else {"groups": dict(c.groups)}
    halved = {"fp16": dict(c.halved)} if fp16 else {}
    model = {"name": name, "sha256": c.source}
    return {"model": model, "quantised": dict(c.quantised), **groups, **halved}


def _identity(request: Request, lowered: Lowered) -> str:
    """Eight hex digits of a hash of the model and of the options that change its interface. Targets are not
    in it, since a program may be compiled for several of them with one header."""
    form = [lowered.source, sorted(request.dims.items()), request.outputs, request.fp16]
    form += [sorted(request.state.items())] if request.state else []
    form += [[name for name, _ in request.entries]] if request.entries else []
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:8]


def _dump(dumps: Mapping[str, Callable[[], str | bytes]]) -> None:
    folder = os.environ.get("SMELT_DUMP")
    for stage_name, make in dumps.items() if folder else ():
        content = make()
        data = content.encode() if isinstance(content, str) else content
        (Path(str(folder)) / stage_name).write_bytes(data)
