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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.core.bundle import Bundle, hash_file, write_weights
from smelt.core.diag import printable
from smelt.core.ir.graph import Module
from smelt.core.ir.text import print_module
from smelt.core.ir.verify import module_facts, verify
from smelt.core.machine import Machine
from smelt.core.naming import Names, name_from
from smelt.core.passes import half
from smelt.core.passes.context import Context, Options
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.quantize import regions, summary
from smelt.core.plan.build import make_plan
from smelt.core.plan.program import HostProgram
from smelt.core.schedule import schedule_module
from smelt.core.schedule.weights import pack_weights
from smelt.core.staging import Staging
from smelt.core.sums import NO_SUMS, weight_sums
from smelt.driver import Progress, Request
from smelt.importer import import_model, interface
from smelt.importer.interface import stands_for_more
from smelt.manifest import build_manifest, group_rows
from smelt.model_header import model_header
from smelt.plugin import load_plugins
from smelt.targets.platform import TargetSpec, parse_target
from smelt.targets.registry import target_for
from smelt.targets.toolchain import (
    build_library,
    build_runner,
    build_static,
    prepare,
    runtime_dir,
)


@dataclass(frozen=True)
class Lowered:
    """A model on its way: the scheduled module, its host program, and whom it is for."""

    module: Module
    program: HostProgram
    machine: Machine
    spec: TargetSpec
    quantised: Mapping[str, Any] = field(default_factory=dict)
    halved: Mapping[str, Any] = field(default_factory=dict)


def lower(request: Request, progress: Progress = lambda stage: None) -> Lowered:
    """Import, optimise, schedule and plan; no code yet."""
    spec = parse_target(request.target)
    target = target_for(spec)
    load_plugins(request.plugins)
    progress("import")
    module = import_model(request.source, dict(request.dims), outputs=request.outputs)
    options = Options(
        level=request.opt, fp16=request.fp16, libraries=request.libraries, fast=request.fast_math
    )
    context = Context(machine=target.machine(spec), options=options).from_environment()
    quantised = summary(regions(module))
    halved: dict[str, Any] = {}
    if request.fp16:
        context = context.with_(on_pass=(*context.on_pass, half.reporter(halved)))
    progress("optimise")
    module = run_pipeline(module, PIPELINE, context)
    verify(module, "lowered")  # 1 to 3 % of a compile; a size read before it is known would be a wrong answer
    progress("schedule")
    naive = module
    module = pack_weights(schedule_module(naive, context.machine), naive)
    if context.dump is not None:
        (context.dump / "99-scheduled.smelt").write_text(print_module(module), "utf-8")
    progress("plan")
    return Lowered(module, make_plan(module, module_facts(module)), context.machine, spec, quantised, halved)


def compile_here(request: Request, progress: Progress = lambda stage: None) -> Bundle:
    """Compile in this process. Raises SmeltError."""
    with ThreadPoolExecutor(1) as background:
        # the first time for a platform its libc is built, which takes as long as a compile: beside it
        prepared = background.submit(prepare, parse_target(request.target))
        lowered = lower(request, progress)
        with Staging(request.output) as stage:
            return _write(request, lowered, stage, progress, prepared)


def _write(
    request: Request, lowered: Lowered, stage: Staging, progress: Progress, prepared: Future[None]
) -> Bundle:
    from smelt import __version__

    module, program, spec = lowered.module, lowered.program, lowered.spec
    digest, sums = "", NO_SUMS
    called = request.name or Path(request.source).stem
    name, source_sha = printable(called), hash_file(Path(request.source))
    names = Names(request.prefix or name_from(called), _identity(request, source_sha))
    if program.weights:
        progress("weights")
        rows = ((w.offset, module.weights[w.ref].pieces()) for w in program.weights)
        digest = write_weights(stage.path / names.weights, rows, program.weights_bytes)
        sums = weight_sums(stage.path / names.weights, program.weights_bytes)
    progress("code")
    artifact = target_for(spec).emit(
        module,
        program,
        spec,
        name=name,
        prefix=names.prefix,
        threads=request.threads or 0,
        weights_sha256=bytes.fromhex(digest) if digest else bytes(32),
        weights_sums=sums,
    )
    progress("link")
    prepared.result()
    build_library(spec, artifact.object, stage.path, names)
    if request.runner:
        build_runner(spec, artifact.object, stage.path)
    if request.static:
        build_static(spec, artifact.object, stage.path, names)
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
            "fast_math": list(request.fast_math),
        },
    }
    model = {"name": name, "sha256": source_sha}
    manifest = build_manifest(module, program, model=model, compiler=compiler)
    tensors = (t.name for t in (*program.inputs, *program.outputs))
    # what a model calls so itself is a plain tensor to `interface`; without such names it need not be asked
    if any(map(stands_for_more, tensors)):
        manifest["groups"] = group_rows(*interface(request.source))
    manifest["library"] = {
        "prefix": names.prefix,
        "identity": names.identity,
        "file": names.library,
        "static": names.archive if request.static else None,
        "header": names.header,
    }
    manifest["weights"] |= {"sha256": digest, "file": names.weights if digest else None}
    manifest["quantised"] = dict(lowered.quantised)
    if request.fp16:
        manifest["fp16"] = dict(lowered.halved)
    return stage.commit(manifest)


def _identity(request: Request, source_sha: str) -> str:
    """Eight hex digits that another model, or another form of it, has not; the same for every target, since
    programs are compiled for several with one header."""
    form = [source_sha, sorted(request.dims.items()), request.outputs, request.fp16]
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:8]


def _dump(dumps: Mapping[str, Callable[[], str | bytes]]) -> None:
    folder = os.environ.get("SMELT_DUMP")
    for stage_name, make in dumps.items() if folder else ():
        content = make()
        data = content.encode() if isinstance(content, str) else content
        (Path(str(folder)) / stage_name).write_bytes(data)
