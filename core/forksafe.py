"""A lock that the child of a fork finds free, with what it guards whole: the fork waits for the holder."""

from __future__ import annotations

import os
import time
from _thread import RLock

FORK_PATIENCE = 10.0
"""Seconds that a fork waits at most: its thread may hold what the lock's holder waits for. What is held
takes milliseconds, an import a second on a busy machine."""


class ForkSafe:
    """A re-entrant lock for the whole process, which it outlives. A child of fork has only the thread that
    forked, so no lock that another one held would ever be released there."""

    def __init__(self) -> None:
        self.lock = RLock()
        _ALL.append(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self.lock.release()


_ALL: list[ForkSafe] = []
"""One hook takes them all. With a hook each, a fork that waits for another thread's import would not know of
the locks that this import makes: Python reads the list of hooks before it calls the first."""


def _take_all() -> None:
    """Before a fork: none is held while it waits for another, whose holder may want that one too. After
    FORK_PATIENCE, those that are free."""
    end = time.monotonic() + FORK_PATIENCE
    while (busy := _take_free()) is not None and (left := end - time.monotonic()) > 0:
        _release_all()
        if busy.lock.acquire(timeout=left):
            busy.lock.release()


def _take_free() -> ForkSafe | None:
    """Take those that are free; one that is not, if any."""
    busy = None
    for one in _ALL:  # another thread may add to it meanwhile
        if not one.lock.acquire(blocking=False):
            busy = one
    return busy


def _release_all() -> None:
    for one in _ALL:
        _released(one)


def _released(one: ForkSafe) -> bool:
    """Whether this thread had it."""
    try:
        one.lock.release()
    except RuntimeError:
        return False
    return True


def _release_in_child() -> None:
    for one in _ALL:
        if not _released(one):
            one.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_in_child)

IMPORTS = ForkSafe()
"""Held while smelt imports modules on first use: Python's own locks of modules are not free in a child."""
