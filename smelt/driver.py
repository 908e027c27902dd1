"""The front of the compiler: an ONNX model and options in, a bundle on disk out, made in a child process.

Neither a hostile model nor a compiler bug can take the caller down, and no caller loads the compiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import smelt.fork_server  # noqa: F401  # with this module, so that no compile imports it while others fork
from smelt.arguments import checked, value_text
from smelt.core.bundle import MAIN, Bundle, read_bundle
from smelt.core.diag import Kind, Problem, SmeltError, SmeltWarning, limit_hint, reading
from smelt.core.naming import ALLOWED, is_entry
from smelt.core.package import Package, read_package
from smelt.core.scratch import no_room, scratch_folder
from smelt.core.staging import check_output, publish
from smelt.limits import MEMORY, SECONDS, Limits, address_space_hint, limits, out_of_memory
from smelt.request import DimSpec, OnProgress, Request
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
    keep_subnormals: bool = False,
    state: Mapping[str, str] | None = None,
    fallback: bool = False,
    choose: bool = False,
    schedules: str | os.PathLike[str] | None = None,
    progress: OnProgress | None = None,
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
    keep_subnormals: operands and results below the least normal number are kept; by default they are 0 to the
    arithmetic of kernels, which saves time on most processors.
    place: where kernels run, for a target with devices: {pattern: unit}, {"conv*": "cpu", "*": "opencl"}.
    The first pattern (with * and ?) that fits a kernel's name, its ONNX node's or the op type of a node that
    it does the work of decides; without one it is the target's first device. The unit 'auto' is the one that
    costs least (docs/units.md). `smelt inspect --kernels` shows names and units.
    state: inputs that outputs of the run before replace, by name ({'past': 'present'}; one '*' in each stands
    for any text): they stay in the session, are not fed and not returned (docs/state.md).
    fallback: the bundle has all code for the CPU as well, which a session turns to where the device or its
    driver is missing, or fails (docs/units.md).
    choose: the bundle has the whole model for each device of the target, and for the CPU; a session takes the
    first device whose driver works, in the target's order, else the CPU (docs/units.md).
    schedules: a file of schedules for kernels, by 'smelt tune' or by hand, which go before those that the
    strategies choose (docs/tune.md).
    plugins: Python files or modules that define ops of other domains (docs/add-op.md).
    time_limit: seconds of processor time, memory_limit: gigabytes that the compile may use; by default an
    hour and nine tenths of the memory (SMELT_COMPILE_SECONDS, SMELT_COMPILE_MEMORY).
    Raises SmeltError; its `problems` list every unsupported node. It is of kind 'invalid' for an argument
    that has another type or value than these, too; nothing else is raised, but by `progress`. The child may
    crash, the caller not.
    """
    options = checked({
        "target": target, "dims": dims, "threads": threads, "opt": opt, "output": output, "fp16": fp16,
        "fast_math": fast_math, "keep_subnormals": keep_subnormals, "static": static, "libraries": libraries,
        "name": name, "outputs": outputs, "plugins": plugins, "place": place, "state": state,
        "fallback": fallback, "choose": choose, "schedules": schedules,
    })  # fmt: skip
    _make(model, options, limits(memory_limit, time_limit), progress)
    return read_bundle(output)


def compile_portable(
    model: Any,
    dims: Mapping[str, DimSpec] | None = None,
    opt: int = 3,
    output: str | os.PathLike[str] = "out",
    fp16: bool = False,
    *,
    name: str | None = None,
    outputs: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
    time_limit: float | None = None,
    memory_limit: float | None = None,
    fast_math: bool | str | Iterable[str] = False,
    keep_subnormals: bool = False,
    state: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> Package:
    """Compile a model as far as no target has a say, into a portable package, and return that: `finalise`
    makes bundles of it (docs/portable.md). Arguments and errors are those of `compile`, of which the ones
    that are about a target are left to `finalise`."""
    options = checked({
        "dims": dims, "opt": opt, "output": output, "fp16": fp16, "name": name, "outputs": outputs,
        "plugins": plugins, "fast_math": fast_math, "keep_subnormals": keep_subnormals,
        "state": state, "portable": True,
    })  # fmt: skip
    _make(model, options, limits(memory_limit, time_limit), progress)
    return read_package(output)


def finalise(
    package: str | os.PathLike[str],
    target: str = "host",
    output: str | os.PathLike[str] = "out",
    *,
    threads: int | None = None,
    name: str | None = None,
    static: bool = False,
    libraries: bool = False,
    plugins: tuple[str, ...] = (),
    time_limit: float | None = None,
    memory_limit: float | None = None,
    place: Mapping[str, str] | None = None,
    fallback: bool = False,
    choose: bool = False,
    schedules: str | os.PathLike[str] | None = None,
    progress: OnProgress | None = None,
) -> Bundle:
    """Make of a portable package the bundle that `compile` makes of its model for this target, byte for byte,
    and return it. Arguments and errors are those of `compile`; plug-ins that the model needs are named again.
    """
    options = checked({
        "target": target, "output": output, "threads": threads, "name": name, "static": static,
        "libraries": libraries, "plugins": plugins, "place": place, "fallback": fallback, "choose": choose,
        "schedules": schedules,
    })  # fmt: skip
    entries = read_package(package).entries
    model = entries[MAIN] if [*entries] == [MAIN] else entries
    _make(model, options, limits(memory_limit, time_limit), progress)
    return read_bundle(output)


def _make(model: Any, options: Mapping[str, Any], allowed: Limits, progress: OnProgress | None) -> None:
    """Have a child write what these options ask for, and put it in its place."""
    check_output(options["output"])  # before the work, not after it
    with _scratch() as scratch:
        request = _asked(model, scratch, {**options, "prefix": options["name"]})
        made = _run_child(request, allowed, scratch, progress)
        publish(str(made.get("folder")), options["output"])
    if note := made.get("note"):
        warnings.warn(note, SmeltWarning, stacklevel=3)


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
    keep_subnormals: bool = False,
    state: Mapping[str, str] | None = None,
    schedules: str | os.PathLike[str] | None = None,
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """The fields of the manifest that are known before there is code, as `compile` with these arguments would
    write them: memory, weights (but for their hash), symbols, inputs, outputs, values, kernels.
    Raises SmeltError; the child may crash, the caller not."""
    options = checked({
        "target": target, "dims": dims, "opt": opt, "fp16": fp16, "fast_math": fast_math,
        "keep_subnormals": keep_subnormals,
        "libraries": libraries, "plugins": plugins, "place": place, "plan_only": True, "state": state,
        "schedules": schedules,
    })  # fmt: skip
    allowed = limits(memory_limit, time_limit)
    with _scratch() as scratch:
        request = _asked(model, scratch, {**options, "output": str(scratch / "none")})
        return _run_child(request, allowed, scratch, progress)


def described(
    model: Any,
    target: str = "host",
    dims: Mapping[str, DimSpec] | None = None,
    threads: int | None = None,
    opt: int = 3,
    fp16: bool = False,
    *,
    listings: tuple[str, ...] = (),
    libraries: bool = False,
    plugins: tuple[str, ...] = (),
    time_limit: float | None = None,
    memory_limit: float | None = None,
    place: Mapping[str, str] | None = None,
    fast_math: bool | str | Iterable[str] = False,
    keep_subnormals: bool = False,
    state: Mapping[str, str] | None = None,
    schedules: str | os.PathLike[str] | None = None,
    progress: OnProgress | None = None,
) -> list[dict[str, Any]]:
    """A row for each kernel that `compile` with these arguments makes: its tree, how it is bound, what it
    takes and does, as formulas in the model's dims (smelt/described.py). listings: kernels whose source or
    assembly is wanted, by name (with * and ?). Raises as `planned`."""
    options = checked({
        "target": target, "dims": dims, "threads": threads, "opt": opt, "fp16": fp16, "fast_math": fast_math,
        "keep_subnormals": keep_subnormals, "libraries": libraries, "plugins": plugins, "place": place,
        "plan_only": True, "state": state,
        "listings": listings, "schedules": schedules,
    })  # fmt: skip
    options["describe"] = True
    allowed = limits(memory_limit, time_limit)
    with _scratch() as scratch:
        request = _asked(model, scratch, {**options, "output": str(scratch / "none")})
        found: list[dict[str, Any]] = _run_child(request, allowed, scratch, progress)["described"]
        return found


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for temporary files, which goes with the block. Raises SmeltError(kind='infra') where there
    can be none."""
    with contextlib.ExitStack() as stack:
        try:
            name = stack.enter_context(scratch_folder("compile"))
        except OSError as e:
            raise no_room(os.environ.get("TMPDIR", "/tmp"), e) from None
        yield Path(name)


def _asked(model: Any, scratch: Path, options: Mapping[str, Any]) -> Request:
    """The request; a model given as bytes or proto is written to a file in `scratch`. Raises SmeltError."""
    called = options.get("name")
    if not isinstance(model, Mapping):
        source, stem = _as_file(model, scratch)
        return Request(source=source, **{**options, "name": called or stem})
    with reading("model", kind="invalid"):
        models = tuple(model.items())
    entries = tuple((_entry_name(n), _as_file(m, scratch, f"{n}.onnx")[0]) for n, m in models)
    if not entries:
        raise SmeltError("there is no model: the dict of entries is empty")
    dumps = [name for name, path in entries if path.endswith(".smelt")]
    if 0 < len(dumps) < len(entries):
        what = f"entries that are dumps ({', '.join(dumps)}) and others that are none"
        raise SmeltError(what, hint="name models only, or a dump of each entry")
    name = called or "_".join(n for n, _ in entries)
    return Request(source=entries[0][1], entries=entries, **{**options, "name": name})


def _entry_name(text: object) -> str:
    """The name that a user chose for an entry. Raises SmeltError."""
    if isinstance(text, str) and is_entry(text):
        return text
    raise SmeltError(f"{text!r:.80} cannot be an entry's name: {ALLOWED}")


def _as_file(model: Any, scratch: Path, name: str = "model.onnx") -> tuple[str, str]:
    """(path, name) of the model; bytes and protos are written to a file of this name first."""
    if isinstance(model, str | os.PathLike):
        with reading("model", kind="invalid"):
            path = Path(os.fsdecode(model))
        if not os.path.isfile(path):
            raise SmeltError(f"no model file '{path}'", hint="check the path")
        return os.path.abspath(path), path.stem
    path = scratch / name
    try:
        path.write_bytes(_as_bytes(model))
    except OSError as e:
        raise no_room(scratch, e) from None
    return str(path), "model"


def _as_bytes(model: Any) -> bytes:
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if not hasattr(model, "SerializeToString"):
        wanted = "a path, bytes, a ModelProto or a dict of these"
        raise SmeltError(f"model: expected {wanted}, got {value_text(model)}")
    try:
        return bytes(model.SerializeToString())
    except Exception as e:  # protobuf's own kinds, one for a model of 2 GiB
        raise SmeltError(f"model: it cannot be written as bytes: {e}", hint="pass a path") from None


LONGEST_REPORT = 1 << 28
"""Bytes of a child's report that are read: a plan with a million rows has fewer."""


def _run_child(
    request: Request, allowed: Limits, scratch: Path, progress: OnProgress | None
) -> dict[str, Any]:
    result = scratch / "result.json"
    try:
        ended = run_child(request.to_json(), result, Path(request.output), allowed, progress)
    except OSError as e:
        hint = limit_hint(e.__cause__) or limit_hint(e) or address_space_hint()
        raise SmeltError(str(e), kind="infra", hint=hint) from e
    return _report(result, ended, request, allowed)


def _report(result: Path, ended: Ended, request: Request, allowed: Limits) -> dict[str, Any]:
    """What the child has written to `result`. Raises the SmeltError that it reports there; one of a limit
    that it reached; one of kind 'internal' where it died without a report."""
    # a child that a model has taken over may write anything, as much as a file may have
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with open(result, "rb") as file:  # a read makes room for all that it is asked for
            size = min(os.fstat(file.fileno()).st_size, LONGEST_REPORT)
            found: dict[str, Any] = json.loads(file.read(size))
        if found["ok"] is True:
            return found
        raise _reported(found)
    stage = f"in stage '{ended.stage}'"
    if ended.cause in ("seconds", "stuck"):
        spent = (
            f"{allowed.seconds:g} s of processor time" if ended.cause == "seconds" else f"{allowed.wall:g} s"
        )
        raise SmeltError(
            f"the compile of '{request.source}' used more than {spent} {stage}",
            kind="infra",
            hint=f"allow more with --limit-seconds, time_limit= or {SECONDS} (and by 'ulimit -t', where the "
            "caller is limited), or fix dims with --dim",
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


def _reported(found: Mapping[str, Any]) -> SmeltError:
    """The error in a child's report. Raises KeyError or TypeError where it is no such report."""
    problems = tuple(Problem(**{**p, "inputs": tuple(p["inputs"])}) for p in found["problems"])
    message, kind, node, hint = (found[name] for name in ("message", "kind", "node", "hint"))
    texts = all(t is None or isinstance(t, str) for t in (node, hint))
    if not isinstance(message, str) or kind not in get_args(Kind) or not texts:
        raise TypeError
    return SmeltError(message, kind=kind, node=node, hint=hint, problems=problems)
