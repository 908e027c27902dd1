"""argv in, exit code out; the compiler's process starts while the command line is parsed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

STARTING = ("check", "compile", "report")
"""Commands that always compile."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code. Raises nothing but argparse's SystemExit for wrong usage."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in STARTING and not {"-h", "--help"} & set(words):
        from smelt.forks import COMPILER, SERVER

        SERVER.prepare(COMPILER)
    from smelt.cli.commands import execute  # takes as long to import as Python takes to start

    code = execute(words)
    if argv is None:
        gc.freeze()  # before it ends, the interpreter would look for cycles in all that there is
    return code


if __name__ == "__main__":
    sys.exit(main())
