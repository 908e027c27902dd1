"""A lock that the child of a fork finds free, with what it guards whole: the fork waits for the holder."""

from __future__ import annotations

import os
from _thread import RLock

FORK_PATIENCE = 10.0
"""Seconds that a fork waits at most: its thread may hold what the lock's holder waits for. What is held
takes milliseconds, an import a second on a busy machine."""


class ForkSafe:
    """A re-entrant lock for the whole process. A child of fork has only the thread that forked, so no lock
    that another one held would ever be released there."""

    def __init__(self) -> None:
        self._lock = RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._wait, after_in_parent=self._release, after_in_child=self._release_in_child
            )

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def _wait(self) -> None:
        self._lock.acquire(timeout=FORK_PATIENCE)

    def _release(self) -> bool:
        """Whether `_wait` got the lock."""
        try:
            self._lock.release()
        except RuntimeError:
            return False
        return True

    def _release_in_child(self) -> None:
        if not self._release():
            self._lock = RLock()


IMPORTS = ForkSafe()
"""Held while smelt imports modules on first use: Python's own locks of modules are not free in a child."""
