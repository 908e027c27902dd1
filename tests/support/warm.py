"""Scripts as lines of JSON -> each runs in a fork of this process, which has smelt; its status is a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import smelt.session  # for all scripts at once, as what follows
import smelt.targets.llvm.target
import smelt.targets.opencl.target
import smelt.targets.vulkan.target  # noqa: F401
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.request import Request


def compiled(
    model: str, target: str, output: str, place: Mapping[str, str] | None = None, **options: Any
) -> Bundle:
    """What smelt.compile makes, in this process."""
    asked = Request(model, target, output=output, place=tuple((place or {}).items()), **options)
    return compile_here(asked)


def run(work: dict[str, Any]) -> None:
    """work: the 'code', its 'arguments', its 'environment', and the file that its 'output' goes to."""
    os.environ.clear()
    os.environ.update(work["environment"])
    os.dup2(os.open(work["output"], os.O_WRONLY), 2)
    os.dup2(2, 1)
    sys.argv = ["script", *work["arguments"]]
    exec(compile(work["code"], "script", "exec"), {"__name__": "__main__", "compiled": compiled})


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
