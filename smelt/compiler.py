"""A request in, a bundle on disk out: the whole compiler, in the process that calls it.

smelt/driver.py runs it in a child process; who calls `compile_here` takes the risks of the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smelt.core.bundle import Bundle, write_weights
from smelt.core.diag import printable
from smelt.core.ir.graph import Module
from smelt.core.ir.verify import module_facts
from smelt.core.machine import Machine
from smelt.core.naming import Names, name_from
from smelt.core.plan.build import make_plan
from smelt.core.plan.program import HostProgram
from smelt.core.plan.state import with_state
from smelt.core.plan.weights import physical
from smelt.core.staging import Staging
from smelt.core.sums import NO_SUMS, weight_sums
from smelt.driver import Progress, Request
from smelt.manifest import build_manifest
from smelt.model_header import model_header
from smelt.plugin import load_plugins
from smelt.stages import Compilation, imported, is_dump, resumed
from smelt.targets.platform import TargetSpec, parse_target
from smelt.targets.registry import cpu_target, devices, machines, usual_unit
from smelt.targets.toolchain import (
    build_library,
    build_runner,
    build_static,
    prepare,
    runtime_dir,
)


@dataclass(frozen=True)
class Lowered:
    """A model on its way: the compile after its last pass, the host program, and whom they are for."""

    compilation: Compilation
    program: HostProgram
    machine: Machine
    spec: TargetSpec

    @property
    def module(self) -> Module:
        """The scheduled module."""
        return self.compilation.module


def begin(request: Request) -> Compilation:
    """The compile of a model, or the one that a dump holds. Raises SmeltError."""
    load_plugins(request.plugins)
    return resumed(request) if is_dump(request.source) else imported(request)


def lower(
    request: Request, progress: Progress = lambda stage: None, begun: Compilation | None = None
) -> Lowered:
    """Import (unless it is begun), optimise, schedule and plan; no code yet."""
    if begun is None:
        progress("import")
        begun = begin(request)
    spec = parse_target(begun.request.target)
    units, usual = machines(spec), usual_unit(spec)
    machine = units[usual]
    begun = begun.finished(units, usual, progress)
    progress("plan")
    # only here: passes and dumps have inputs and outputs in the model's order
    facts = module_facts(begun.module)
    module, states = with_state(begun.module, begun.request.state, facts)
    program = make_plan(module, facts, states=states)
    return Lowered(replace(begun, module=module), program, machine, spec)


def compile_here(request: Request, progress: Progress = lambda stage: None) -> Bundle:
    """Compile in this process. Raises SmeltError."""
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
    """What a bundle's manifest would say of its module and plan; no code is made. Raises SmeltError."""
    lowered = lower(request, progress)
    return build_manifest(lowered.module, lowered.program, model={}, compiler={})


def _write(
    request: Request,
    lowered: Lowered,
    stage: Staging,
    progress: Progress,
    prepared: Future[None],
    background: ThreadPoolExecutor,
) -> Bundle:
    from smelt import __version__

    module, program, spec = lowered.module, lowered.program, lowered.spec
    digest, sums = "", NO_SUMS
    called = request.name or Path(request.source).stem
    name, source_sha = printable(called), lowered.compilation.source
    names = Names(request.prefix or name_from(called), _identity(request, source_sha))
    if program.weights:
        progress("weights")
        places = {w.offset: w for w in program.weights}
        rows = ((at, physical(module.weights[w.ref], w.layout).pieces()) for at, w in places.items())
        digest = write_weights(stage.path / names.weights, rows, program.weights_bytes)
        sums = weight_sums(stage.path / names.weights, program.weights_bytes)
    progress("code")
    artifact = cpu_target().emit(
        module,
        program,
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
    (stage.path / names.header).write_text(model_header(name, names, program), "utf-8")
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
    model = {"name": name, "sha256": source_sha}
    manifest = build_manifest(module, program, model=model, compiler=compiler)
    if lowered.compilation.groups is not None:
        manifest["groups"] = dict(lowered.compilation.groups)
    manifest["library"] = {
        "prefix": names.prefix,
        "identity": names.identity,
        "file": names.library,
        "static": names.archive if request.static else None,
        "header": names.header,
    }
    manifest["weights"] |= {"sha256": digest, "file": names.weights if digest else None}
    manifest["quantised"] = dict(lowered.compilation.quantised)
    if request.fp16:
        manifest["fp16"] = dict(lowered.compilation.halved)
    return stage.commit(manifest)


def _identity(request: Request, source_sha: str) -> str:
    """Eight hex digits that another model, or another form of it, has not; the same for every target, since
    programs are compiled for several with one header."""
    form = [source_sha, sorted(request.dims.items()), request.outputs, request.fp16]
    form += [sorted(request.state.items())] if request.state else []
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:8]


def _dump(dumps: Mapping[str, Callable[[], str | bytes]]) -> None:
    folder = os.environ.get("SMELT_DUMP")
    for stage_name, make in dumps.items() if folder else ():
        content = make()
        data = content.encode() if isinstance(content, str) else content
        (Path(str(folder)) / stage_name).write_bytes(data)
