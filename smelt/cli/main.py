"""argv in, exit code out: the compiler is on its way while the command line is read."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

STARTING = ("check", "compile", "report")
"""Commands that compile whatever their arguments are."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code; never raises (but argparse's own SystemExit for usage)."""
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
