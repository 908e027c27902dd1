"""A compile request on stdin, stage names on stdout, the outcome in the file named by argv: the child."""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from smelt.core.diag import SmeltError

MEMORY_LIMIT = 0.9
"""Share of the machine's memory that a compile may map besides its weights' files."""


def main() -> int:
    """Exit status 0: the outcome is in the file (also when the compile failed)."""
    result = Path(sys.argv[1])
    try:
        outcome = _compile(sys.stdin.read())
    except SmeltError as e:
        outcome = _failure(e)
    except MemoryError:
        outcome = _failure(
            SmeltError("the compile ran out of memory", kind="infra", hint="close other programs")
        )
    except RecursionError:
        outcome = _failure(SmeltError("the model nests too deeply", kind="unsupported"))
    except Exception:
        text = f"the compiler failed:\n{traceback.format_exc()}"
        outcome = _failure(
            SmeltError(text, kind="internal", hint="this is a bug of smelt; report it with the model")
        )
    part = result.with_suffix(".part")
    part.write_text(json.dumps(outcome), "utf-8")
    os.replace(part, result)
    return 0


def _compile(text: str) -> dict[str, Any]:
    from smelt.driver import Request, compile_here

    _limit()
    compile_here(Request.from_json(text), progress=lambda stage: print(stage, flush=True))
    return {"ok": True}


def _limit() -> None:
    """No core files, and no more address space than is sane."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # mapped weights count as address space too: leave room for files as large as the memory
    limit = int(total * (1 + MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


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


if __name__ == "__main__":
    sys.exit(main())
