"""A command line of smelt in, its exit code and what it prints out, run in a fork of this process.

What it changes of the process is gone with the fork: plug-ins that it loads, above all. Neither Python nor
the server that compiles starts again. It is not for tests of what a fresh process does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from smelt import forks
from smelt.cli.main import main


def forked_smelt(
    *words: object, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """`smelt WORDS`, in the folder, with no other environment than this where one is given."""
    forks.SERVER.prepare(forks.COMPILER)
    assert forks.SERVER.requests is not None
    kept = vars(forks.SERVER) | {"requests": forks.SERVER.requests.dup()}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            vars(forks.SERVER).update(kept)  # which a fork has forgotten
            for number, file in ((1, out), (2, err)):
                os.dup2(file.fileno(), number)
            _become([str(w) for w in words], folder, environment)
        kept["requests"].close()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told = [(file.seek(0), file.read().decode("utf-8"))[1] for file in (out, err)]
    return CompletedProcess(words, code, *told)


def _become(words: list[str], folder: Path | None, environment: Mapping[str, str] | None) -> None:
    """Run the command, and end the process with its code."""
    code = 70
    try:
        os.chdir(folder or Path.cwd())
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
        try:
            code = main(words)
        except SystemExit as e:  # argparse's
            code = int(e.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
