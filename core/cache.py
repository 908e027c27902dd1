"""The environment in, the folder out in which smelt keeps on this machine what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$SMELT_CACHE, else smelt's folder in $XDG_CACHE_HOME or ~/.cache; absolute; it may not exist yet."""
    chosen = os.environ.get("SMELT_CACHE")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "smelt"
