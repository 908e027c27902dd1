"""The front of the compiler: an ONNX model and options in, a bundle on disk out, made in a child process.

Neither a hostile model nor a compiler bug can take the caller down, and no caller loads the compiler.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from smelt.core.bundle import Bundle, read_bundle
from smelt.core.diag import Problem, SmeltError
from smelt.core.naming import ALLOWED, check_name, is_entry
from smelt.core.passes.numerics import fast_parts
from smelt.core.staging import check_output
from smelt.limits import MEMORY, SECONDS, Limits, limits, out_of_memory
from smelt.request import DimSpec, Progress, Request
from smelt.supervise import Ended, run_child


def compile(
    model: Any,
    target: str = "host",
    dims: Mapping[str, DimSpec] | None = None,
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
    place: Mapping[str, str] | None = None,
    fast_math: bool | str | Iterable[str] = False,
    state: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Compile a model into a bundle directory and return it.

    model: path, bytes or onnx.ModelProto; or the path of a dump (x.smelt, docs/debug.md), whose own options
    hold where an argument is left at its default. A dict of models by name makes a bundle with several
    entries, {'prefill': ..., 'decode': ...} (docs/entries.md): the names in dims, outputs, place and state
    then stand for all entries that have them, 'decode/seq' for one of them.
    dims: fix (4) or bound ((1, 512)) symbolic dims by name.
    name: of its C functions and files ('det': det_open, det.h, libdet.so, det.weights), at most 40 of a to z,
    0 to 9 and '_'; None makes it of the model's file.
    outputs: ONNX names of values to return besides the model's own outputs.
    fp16: weights and tensors between kernels are stored in float16; inputs and outputs keep their types, and
    kernels compute in float32. It halves memory, not always time (docs/fp16.md).
    fast_math: rewrites that may change what overflows and how sums are bracketed: True for all, or names of
    parts (docs/floating-point.md): reassociate, overflow, constants.
    place: where kernels run, for a target with devices: {pattern: unit}, {"conv*": "cpu", "*": "opencl"}.
    The first pattern (with * and ?) that fits a kernel's name or its ONNX node's decides; without one it is
    the target's first device. `smelt inspect --kernels` shows names and units.
    state: inputs that outputs of the run before replace, by name ({'past': 'present'}; one '*' in each stands
    for any text): they stay in the session, are not fed and not returned (docs/state.md).
    plugins: Python files or modules that define ops of other domains (docs/add-op.md).
    time_limit: seconds of processor time, memory_limit: gigabytes that the compile may use; by default an
    hour and nine tenths of the memory (SMELT_COMPILE_SECONDS, SMELT_COMPILE_MEMORY).
    Raises SmeltError; its `problems` list every unsupported node. The child may crash, the caller not.
    """
    check_output(output)  # before the work, not after it
    with tempfile.TemporaryDirectory(prefix="smelt-") as scratch:
        request = _asked(
            model, Path(scratch), target=target, dims=dict(dims or {}), threads=threads, opt=opt,
            output=str(Path(output).absolute()), fp16=fp16, fast_math=fast_parts(fast_math), static=static,
            libraries=libraries, name=name or "", prefix="" if name is None else check_name(name),
            outputs=tuple(outputs), plugins=tuple(plugins), place=tuple((place or {}).items()),
            state=_names(state or {}),
        )  # fmt: skip
        _run_child(request, limits(memory_limit, time_limit), Path(scratch), progress)
    return read_bundle(output)


def planned(
    model: Any,
    target: str = "host",
    dims: Mapping[str, DimSpec] | None = None,
    opt: int = 3,
    fp16: bool = False,
    *,
    libraries: bool = False,
    plugins: tuple[str, ...] = (),
    time_limit: float | None = None,
    memory_limit: float | None = None,
    place: Mapping[str, str] | None = None,
    fast_math: bool | str | Iterable[str] = False,
    state: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The fields of the manifest that are known before there is code, as `compile` with these arguments would
    write them: memory, weights (but for their hash), symbols, inputs, outputs, values, kernels.
    Raises SmeltError; the child may crash, the caller not."""
    with tempfile.TemporaryDirectory(prefix="smelt-") as scratch:
        request = _asked(
            model, Path(scratch), target=target, dims=dict(dims or {}), opt=opt, fp16=fp16,
            output=str(Path(scratch) / "none"), fast_math=fast_parts(fast_math), libraries=libraries,
            plugins=tuple(plugins), place=tuple((place or {}).items()), plan_only=True,
            state=_names(state or {}),
        )  # fmt: skip
        return _run_child(request, limits(memory_limit, time_limit), Path(scratch), progress)


def _asked(model: Any, scratch: Path, **given: Any) -> Request:
    """The request; a model given as bytes or proto is written to a file in `scratch`. Raises SmeltError for
    options that no compile takes."""
    opt, threads = given["opt"], given.get("threads")
    if not 0 <= opt <= 3:
        raise SmeltError(f"opt is {opt}, expected 0..3")
    if threads is not None and threads < 1:
        raise SmeltError(f"threads is {threads}, expected 1 or more")
    if isinstance(model, Mapping):
        entries = tuple((_entry_name(n), _as_file(m, scratch, f"{n}.onnx")[0]) for n, m in model.items())
        if not entries:
            raise SmeltError("there is no model: the dict of entries is empty")
        if dump := next((path for _, path in entries if path.endswith(".smelt")), None):
            raise SmeltError(f"'{dump}' is a dump, which is compiled alone", hint="name ONNX models")
        name = given.get("name") or "_".join(n for n, _ in entries)
        return Request(source=entries[0][1], entries=entries, **{**given, "name": name})
    source, stem = _as_file(model, scratch)
    return Request(source=source, **{**given, "name": given.get("name") or stem})


def _entry_name(text: object) -> str:
    """The name that a user chose for an entry. Raises SmeltError."""
    if isinstance(text, str) and is_entry(text):
        return text
    raise SmeltError(f"{text!r:.80} cannot be an entry's name: {ALLOWED}")


def _names(state: Mapping[str, str]) -> dict[str, str]:
    """The pairs as a dict. Raises SmeltError where they are not strings."""
    if not isinstance(state, Mapping) or not all(isinstance(x, str) for pair in state.items() for x in pair):
        raise SmeltError(f"state is {state!r:.80}, expected names of outputs by names of inputs")
    return dict(state)


def _as_file(model: Any, scratch: Path, name: str = "model.onnx") -> tuple[str, str]:
    """(path, name) of the model; bytes and protos are written to a file of this name first."""
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise SmeltError(f"no model file '{path}'", hint="check the path")
        return str(path.absolute()), path.stem
    data = model if isinstance(model, bytes) else model.SerializeToString()
    path = scratch / name
    path.write_bytes(data)
    return str(path), "model"


def _run_child(request: Request, allowed: Limits, scratch: Path, progress: Progress | None) -> dict[str, Any]:
    result = scratch / "result.json"
    try:
        ended = run_child(request.to_json(), result, Path(request.output), allowed, progress)
    except OSError as e:
        raise SmeltError(str(e), kind="infra", hint="the system may be out of processes or memory") from e
    return _report(result, ended, request, allowed)


def _report(result: Path, ended: Ended, request: Request, allowed: Limits) -> dict[str, Any]:
    """What the child has written to `result`. Raises the SmeltError that it reports there; one of a limit
    that it reached; one of kind 'internal' where it died without a report."""
    if result.is_file():
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        if found["ok"]:
            return found
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

