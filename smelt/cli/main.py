"""argv in, exit code out; the compiler's process starts while the command line is parsed."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

STARTING = ("check", "compile", "finalise", "report")
"""Commands that always compile."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code. Raises nothing but argparse's SystemExit for wrong usage."""
    words = sys.argv[1:] if argv is None else argv
    _open_streams()
    if words and words[0] in STARTING and not {"-h", "--help"} & set(words):
        from smelt.forks import COMPILER, SERVER

        SERVER.prepare(COMPILER)
    from smelt.cli.commands import execute  # takes as long to import as Python takes to start

    code = execute(words)
    if argv is None:
        gc.freeze()  # before it ends, the interpreter would look for cycles in all that there is
    return code


def _open_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed, as '>&-' does. In this
    order each gets the descriptor of its own."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open to the end


if __name__ == "__main__":
    sys.exit(main())
