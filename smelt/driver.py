"""The whole story in one function: an ONNX model in, a bundle on disk out.

`compile` runs `compile_here` in a child process, so that neither a hostile model nor a compiler bug can
take the caller down.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from smelt.core.bundle import Bundle, hash_file, read_bundle, write_weights
from smelt.core.diag import Problem, SmeltError, printable
from smelt.core.ir.graph import Module
from smelt.core.ir.text import print_module
from smelt.core.ir.verify import module_facts, verify
from smelt.core.machine import Machine
from smelt.core.naming import Names, check_name, name_from
from smelt.core.passes import half
from smelt.core.passes.context import Context, Options
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.numerics import fast_parts
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.quantize import regions, summary
from smelt.core.plan.build import make_plan
from smelt.core.plan.program import HostProgram
from smelt.core.schedule import schedule_module
from smelt.core.schedule.weights import pack_weights
from smelt.core.staging import Staging, check_output
from smelt.core.sums import NO_SUMS, weight_sums
from smelt.importer import import_model, interface
from smelt.importer.interface import stands_for_more
from smelt.limits import MEMORY, SECONDS, Limits, limits, out_of_memory
from smelt.manifest import build_manifest, group_rows
from smelt.model_header import model_header
from smelt.plugin import load_plugins
from smelt.supervise import Ended, run_child
from smelt.targets.platform import TargetSpec, parse_target
from smelt.targets.registry import target_for
from smelt.targets.toolchain import (
    build_library,
    build_runner,
    build_static,
    prepare,
    runtime_dir,
)

DimWish: TypeAlias = "int | tuple[int, int | None]"
Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to compile and how: the arguments of `compile`, checked and in one value. name: what the model is
    called in messages, '' after its file. prefix: of its C functions and files, '' made of the name."""

    source: str
    target: str = "host"
    dims: Mapping[str, DimWish] = field(default_factory=dict)
    threads: int | None = None
    opt: int = 3
    output: str = "out"
    fp16: bool = False
    fast_math: tuple[str, ...] = ()
    static: bool = False
    libraries: bool = False
    name: str = ""
    prefix: str = ""
    outputs: tuple[str, ...] = ()
    runner: bool = True
    plugins: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The request as text for the child."""
        return json.dumps({**self.__dict__, "dims": dict(self.dims)})

    @staticmethod
    def from_json(text: str) -> Request:
        """The inverse of to_json."""
        raw = json.loads(text)
        raw["dims"] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw["dims"].items()}
        raw["outputs"] = tuple(raw["outputs"])
        raw["plugins"] = tuple(raw["plugins"])
        raw["fast_math"] = tuple(raw["fast_math"])
        return Request(**raw)


@dataclass(frozen=True)
class Lowered:
    """A model on its way: the scheduled module, its host program, and whom it is for."""

    module: Module
    program: HostProgram
    machine: Machine
    spec: TargetSpec
    quantised: Mapping[str, Any] = field(default_factory=dict)
    halved: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- in this process


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


# ---------------------------------------------------------------- in a child process


def compile(
    model: Any,
    target: str = "host",
    dims: Mapping[str, DimWish] | None = None,
    threads: int | None = None,
    opt: int = 3,
    output: str | os.PathLike[str] = "out",
    fp16: bool = False,
    *,
    name: str | None = None,
    static: bool = False,
    libraries: bool = False,
    outputs: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
    time_limit: float | None = None,
    memory_limit: float | None = None,
    fast_math: bool | str | Iterable[str] = False,
    progress: Progress | None = None,
) -> Bundle:
    """Compile a model into a bundle directory and return it.

    model: path, bytes or onnx.ModelProto. dims: fix (4) or bound ((1, 512)) symbolic dims by name.
    name: of its C functions and files ('det': det_open, det.h, libdet.so, det.weights), at most 40 of a to z,
    0 to 9 and '_'; None makes it of the model's file.
    outputs: ONNX names of values to return besides the model's own outputs.
    fp16: weights and tensors between kernels are stored in float16; inputs and outputs keep their types, and
    kernels compute in float32. It halves memory, not always time (docs/fp16.md).
    fast_math: rewrites that may change what overflows and how sums are bracketed: True for all, or names of
    parts (docs/floating-point.md): reassociate, overflow, constants.
    plugins: Python files or modules that define ops of other domains (docs/add-op.md).
    time_limit: seconds of processor time, memory_limit: gigabytes that the compile may use; by default an
    hour and nine tenths of the memory (SMELT_COMPILE_SECONDS, SMELT_COMPILE_MEMORY).
    Raises SmeltError; its `problems` list every unsupported node. The child may crash, the caller not.
    """
    if not 0 <= opt <= 3:
        raise SmeltError(f"opt is {opt}, expected 0..3")
    if threads is not None and threads < 1:
        raise SmeltError(f"threads is {threads}, expected 1 or more")
    allowed = limits(memory_limit, time_limit)
    prefix = "" if name is None else check_name(name)
    check_output(output)  # before the work, not after it
    with tempfile.TemporaryDirectory(prefix="smelt-") as scratch:
        source, stem = _as_file(model, Path(scratch))
        request = Request(
            source=source, target=target, dims=dict(dims or {}), threads=threads, opt=opt,
            output=str(Path(output).absolute()), fp16=fp16, fast_math=fast_parts(fast_math),
            static=static, libraries=libraries,
            name=name or stem, prefix=prefix, outputs=tuple(outputs), plugins=tuple(plugins),
        )  # fmt: skip
        _run_child(request, allowed, Path(scratch), progress)
    return read_bundle(output)


def _as_file(model: Any, scratch: Path) -> tuple[str, str]:
    """(path, name) of the model; bytes and protos are written to a file first."""
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise SmeltError(f"no model file '{path}'", hint="check the path")
        return str(path.absolute()), path.stem
    data = model if isinstance(model, bytes) else model.SerializeToString()
    path = scratch / "model.onnx"
    path.write_bytes(data)
    return str(path), "model"


def _run_child(request: Request, allowed: Limits, scratch: Path, progress: Progress | None) -> None:
    result = scratch / "result.json"
    _report(
        result,
        run_child(request.to_json(), result, Path(request.output), allowed, progress),
        request,
        allowed,
    )


def _report(result: Path, ended: Ended, request: Request, allowed: Limits) -> None:
    """Raise what the child found; a child that died without a word, and at no limit, is an internal error."""
    if result.is_file():
        found = json.loads(result.read_text("utf-8"))
        if found["ok"]:
            return
        problems = tuple(Problem(**{**p, "inputs": tuple(p["inputs"])}) for p in found["problems"])
        raise SmeltError(
            found["message"], kind=found["kind"], node=found["node"], hint=found["hint"], problems=problems
        )
    stage = f"in stage '{ended.stage}'"
    if ended.cause in ("seconds", "stuck"):
        spent = (
            f"{allowed.seconds:g} s of processor time" if ended.cause == "seconds" else f"{allowed.wall:g} s"
        )
        raise SmeltError(
            f"the compile of '{request.source}' used more than {spent} {stage}",
            kind="infra",
            hint=f"allow more with --limit-seconds, time_limit= or {SECONDS}, or fix dims with --dim",
        )
    if ended.cause == "memory":
        raise out_of_memory(allowed, ended.stage)
    how = (
        f"was killed by {signal.Signals(-ended.status).name}"
        if ended.status < 0
        else f"ended with status {ended.status}"
    )
    tail = "\n".join(ended.said.strip().splitlines()[-12:])
    killed = ended.cause == "killed"
    raise SmeltError(
        f"the compiler {how} {stage} of '{request.source}'" + (f":\n{tail}" if tail else ""),
        kind="infra" if killed else "internal",
        hint=f"the system may have run out of memory; {MEMORY} sets a limit (in GB)"
        if killed
        else "this is a bug of smelt; report it with the model, or with SMELT_DEBUG=1's output",
    )


__all__ = ["Lowered", "Request", "compile", "compile_here", "lower"]
