"""A call -> the same call every few seconds, so that a runner outlives a slow host and no dead one."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Heartbeat:
    """Calls `beat` every `seconds` until it is stopped, or `beat` returns False. A stopped or killed process
    sends nothing; one that computes, or waits, does."""

    def __init__(self, beat: Callable[[], bool], seconds: float) -> None:
        self._beat, self._seconds = beat, seconds
        self._stopped = threading.Event()
        threading.Thread(target=self._body, daemon=True, name="heartbeat").start()

    def stop(self) -> None:
        """Send no more; does not wait."""
        self._stopped.set()

    def _body(self) -> None:
        while not self._stopped.wait(self._seconds) and self._beat():
            pass
