"""A process id -> the processes that it has started, read from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, path.read_text().split())
    return [p for p in found if _lives(p)]


def started(pid: int) -> list[int]:
    """Those, and what they have started; outermost first."""
    found = children(pid)
    return found + [q for p in found for q in started(p)]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
