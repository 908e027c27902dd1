"""The environment in, the folder out in which smelt keeps on this machine what it can make again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from smelt.core.diag import SmeltError


def cache_dir() -> Path:
    """$SMELT_CACHE, else smelt's folder in $XDG_CACHE_HOME or ~/.cache; absolute; it may not exist yet.
    Raises SmeltError for a user without a home, as containers run programs."""
    chosen = os.environ.get("SMELT_CACHE")
    if chosen:
        return Path(chosen).absolute()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        what = "this user has no home folder in which smelt could keep what it builds once"
        raise SmeltError(what, kind="infra", hint="name a folder with SMELT_CACHE") from None
    return Path(base).absolute() / "smelt"


def try_cache() -> None:
    """Write a file there, and remove it. Raises OSError where the folder takes none."""
    kept = cache_dir()
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=kept) as f:
        f.write(bytes(1 << 16))
