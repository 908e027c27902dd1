"""Seconds, or a number of measurements, in; whether another measurement may be made, out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class BudgetSpent(Exception):
    """There is no budget for another measurement."""


class TuneBudget:
    """Counts what a tuner may still do. seconds: of wall time from now on; measurements: of one kernel at one
    size, some runs each. clock: in seconds."""

    def __init__(
        self,
        seconds: float = math.inf,
        measurements: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._most = measurements
        self.done = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further measurement may be made."""
        return self.done >= self._most or self._clock() >= self._end

    def take(self) -> None:
        """Count a measurement that is about to be made. Raises BudgetSpent where none may be."""
        if self.is_spent:
            raise BudgetSpent
        self.done += 1
