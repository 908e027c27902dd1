"""A compile request on stdin, stage names on stdout, the outcome in the file named by argv: the child."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from smelt.core.diag import SmeltError, limit_hint
from smelt.core.lazily import only
from smelt.core.scratch import kept_folder
from smelt.core.spread import by_forks
from smelt.core.staging import Staging
from smelt.limits import CONFINE, Limits, apply, apply_to_system, out_of_memory
from smelt.request import OnProgress, Request

DEEPEST_STACK = 5000
"""Python's recursion limit: a fused kernel nests at most 600 expressions, of a few calls each."""


def preload() -> None:
    """Import what every compile needs, and make the tables that no compile changes: those of this machine's
    processor, since few compiles are for another."""
    only("onnx", "onnx_ml_pb2", "defs")
    import smelt.compiler
    import smelt.confine
    import smelt.plugin  # noqa: F401
    from smelt.importer.signature import signature
    from smelt.targets.platform import parse_target
    from smelt.targets.registry import machines

    signature("", "Identity", 1)  # onnx makes the definitions of all ops when it is first asked for one
    with contextlib.suppress(SmeltError):  # a machine that smelt has no code for can compile for others
        machines(parse_target("host"))


def preload_rest() -> None:
    """Import what larger models need besides, and find the files that all bundles share."""
    import onnx.helper  # noqa: F401

    from smelt.confine import installed
    from smelt.targets.platform import parse_target
    from smelt.targets.toolchain import look_up

    installed()
    with contextlib.suppress(SmeltError):  # as above
        look_up(parse_target("host"))


def main(result: str) -> int:
    """Exit status 0: the outcome is in the file (also when the compile failed)."""
    sys.setrecursionlimit(DEEPEST_STACK)
    gc.set_threshold(200_000, 20, 20)  # looking for cycles took a sixth of the time, and there are few
    stages = os.dup(1)
    os.dup2(2, 1)  # what a library or a plug-in prints names no stage
    memory, seconds, request = json.loads(_line(0))
    limits = Limits(memory, seconds)
    apply(limits)
    reached = ["start"]

    def progress(stage: str) -> None:
        reached[0] = stage
        os.write(stages, f"{stage}\n".encode())

    asked = Request.from_json(request)
    try:
        outcome = _compile(asked, progress, Path(result).parent)
    except MemoryError:
        outcome = _failure(out_of_memory(limits, reached[0]))
    except RecursionError:
        outcome = _failure(SmeltError("the model nests too deeply", kind="unsupported"))
    except Exception as e:
        outcome = _failure(_error(e, limits, reached[0]))
    part = Path(result).with_suffix(".part")
    part.write_text(json.dumps(outcome), "utf-8")
    os.replace(part, result)
    return 0


def _error(e: Exception, limits: Limits, stage: str) -> SmeltError:
    """The error that an exception of that stage is reported as."""
    from smelt.confine import refusal

    if _is_confined() and (refused := refusal(e)):
        return refused
    if isinstance(e, SmeltError):
        return e
    if hint := limit_hint(e):
        return SmeltError(f"stage '{stage}': {e}", kind="infra", hint=hint)
    # CPython 3.11 forgets the MemoryError where there is no memory for a generator's frame
    if isinstance(e, SystemError) and _data() > 0.9 * limits.memory:
        return out_of_memory(limits, stage)
    text = f"the compiler failed in stage '{stage}':\n{traceback.format_exc()}"
    return SmeltError(text, kind="internal", hint="this is a bug of smelt; report it with the model")


def _is_confined() -> bool:
    return os.environ.get(CONFINE) != "0"


def _data() -> int:
    """Bytes of data of this process, which its limit counts."""
    with open("/proc/self/status") as status:
        return next((1024 * int(line.split()[1]) for line in status if line.startswith("VmData:")), 0)


def _line(fd: int) -> str:
    """The first line of the descriptor; the bytes after it are left for `_watch`."""
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = os.read(fd, 1 << 16)
        if not piece:
            os._exit(1)  # the caller is gone before it asked
        data += piece
    return data.decode()


def _compile(request: Request, progress: OnProgress, scratch: Path) -> dict[str, Any]:
    """Compile or plan, confined to what the request needs before the model is read. scratch: a folder for all
    temporary files. The outcome: the name of the bundle's folder, or the fields of a plan."""
    from smelt.compiler import compile_into, package_into, plan_here
    from smelt.plugin import look_here

    look_here(request.plugins)
    if request.plan_only:
        _begin(request, scratch, None)
        return {"ok": True, **plan_here(request, progress)}
    note = _prepared(request, scratch)
    with Staging(request.output) as stage:
        _begin(request, scratch, stage)
        make = package_into if request.portable else partial(compile_into, spread=by_forks)
        made = make(stage, request, progress)
        stage.seal(made)
    told = [note] if note else []
    told += [*made.get("schedules", {}).get("notes", []), *made.get("notes", [])]
    return {"ok": True, "folder": stage.path.name, "note": "\n".join(told)}


def _prepared(request: Request, scratch: Path) -> str:
    """Make what is kept for all compiles, so that from then on it can only be read; a dump says itself what
    it is for, so for one the cache folder is only tried. Where that takes no file, this user's folder among
    the temporary ones is used, else one in `scratch`, and the text says so; else ''. Raises SmeltError."""
    from smelt.core.cache import cache_dir, try_cache
    from smelt.stages import is_dump
    from smelt.targets.platform import parse_target
    from smelt.targets.toolchain import prepare

    spec = None if is_dump(request.source) or request.portable else parse_target(request.target)
    make = try_cache if spec is None else partial(prepare, spec)
    try:
        make()
        return ""
    except (SmeltError, OSError) as e:
        found, kept = e, cache_dir()
    reason = found.message if isinstance(found, SmeltError) else found.strerror or str(found)
    without = f"compiled without the cache folder '{kept}'"
    with contextlib.suppress(SmeltError, OSError):
        os.environ["SMELT_CACHE"] = instead = kept_folder("cache")
        make()
        return f"{without}, with '{instead}' in its place: {reason:.300}"
    os.environ["SMELT_CACHE"] = str(scratch / "cache")
    make()  # what failed for another reason fails again
    return f"{without}, which takes much longer: {reason:.300}"


def _begin(request: Request, scratch: Path, stage: Staging | None) -> None:
    """Confine this process, and end it when its caller has ended."""
    if _is_confined():
        from smelt.confine import confine, largest_file

        apply_to_system(largest_file(request))
        confine(request, scratch, stage)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # its number is written to `tell`
    threading.Thread(target=_watch, args=(stage, told, os.getppid()), daemon=True).start()


def _watch(stage: Staging | None, told: int, parent: int) -> None:
    """End this process and its group, without leaving files, when the caller has ended. Then its end of stdin
    closes, unless a fork of the caller holds that open; the keeper sends SIGTERM, which `told` receives; or
    the keeper has been killed too, and the parent's process id is another."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0, told], [], [], 1.0)
        if told in ready or (0 in ready and not os.read(0, 1 << 16)):
            break
    if stage is not None:
        stage.discard()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _failure(e: SmeltError) -> dict[str, Any]:
    return {
        "ok": False,
        "message": e.message,
        "kind": e.kind,
        "node": e.node,
        "hint": e.hint,
        "problems": [
            {"message": p.message, "kind": p.kind, "node": p.node, "hint": p.hint, "inputs": p.inputs}
            for p in e.problems
        ],
    }
