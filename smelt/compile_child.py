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
from pathlib import Path
from typing import Any

from smelt.core.diag import SmeltError
from smelt.core.lazily import only
from smelt.limits import Limits, apply, out_of_memory

DEEPEST = 5000
"""Python's recursion limit: a fused kernel nests at most 600 expressions, of a few calls each."""


def preload() -> None:
    """Import what every compile needs, and make the tables that no compile changes: those of this machine's
    processor, since few compiles are for another."""
    only("onnx", "onnx_ml_pb2", "defs")
    import smelt.compiler
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

    from smelt.targets.toolchain import look_up

    look_up()


def main(result: str) -> int:
    """Exit status 0: the outcome is in the file (also when the compile failed)."""
    sys.setrecursionlimit(DEEPEST)
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

    try:
        outcome = _compile(request, progress)
    except SmeltError as e:
        outcome = _failure(e)
    except MemoryError:
        outcome = _failure(out_of_memory(limits, reached[0]))
    except RecursionError:
        outcome = _failure(SmeltError("the model nests too deeply", kind="unsupported"))
    except Exception as e:
        text = f"the compiler failed in stage '{reached[0]}':\n{traceback.format_exc()}"
        bug = SmeltError(text, kind="internal", hint="this is a bug of smelt; report it with the model")
        # CPython 3.11 forgets the MemoryError where there is no memory for a generator's frame
        full = isinstance(e, SystemError) and _data() > 0.9 * limits.memory
        outcome = _failure(out_of_memory(limits, reached[0]) if full else bug)
    part = Path(result).with_suffix(".part")
    part.write_text(json.dumps(outcome), "utf-8")
    os.replace(part, result)
    return 0


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


def _compile(text: str, progress: Any) -> dict[str, Any]:
    from smelt.compiler import compile_here, plan_here
    from smelt.plugin import look_here
    from smelt.request import Request

    request = Request.from_json(text)
    look_here(request.plugins)
    threading.Thread(target=_watch, args=(Path(request.output), os.getppid()), daemon=True).start()
    if request.plan_only:
        return {"ok": True, **plan_here(request, progress)}
    compile_here(request, progress)
    return {"ok": True}


def _watch(out: Path, parent: int) -> None:
    """End this process and its group when the caller has ended. Then its end of stdin closes, unless a fork
    of the caller holds that open; so the parent's process id is polled too."""
    from smelt.core.staging import sweep

    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], 1.0)
        if ready and not os.read(0, 1 << 16):
            break
    sweep(Path(os.path.realpath(out)), own=os.getpid())
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
