"""A command line of smelt in, its exit code and what it prints out, run within this process.

Neither Python nor the server that compiles starts again. It is not for tests of what a fresh process does.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from smelt.cli.main import main


def smelt_says(
    *words: object, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """`smelt WORDS`, in the folder, with no other environment than this where one is given."""
    printed = io.StringIO()
    own = os.environ if environment is None else environment
    with (
        contextlib.chdir(folder or Path.cwd()),
        mock.patch.dict(os.environ, own, clear=True),
        contextlib.redirect_stdout(printed),
    ):
        code = main(list(map(str, words)))
    return code, printed.getvalue()
