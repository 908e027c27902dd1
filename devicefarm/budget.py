"""Time limits of steps -> deadlines: every wait on a device ends at one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from smelt.core.diag import SmeltError


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How long each step may take, in seconds.

    upload_floor: the bytes per second that a link must reach at least; a transfer of n bytes may take
    `upload` + n / upload_floor. run: what a run may take beyond the times that its own plan allows for
    warm-up and samples. idle: a runner that receives nothing from its host for so long ends itself.
    grace: how much longer than the device's own deadline the host waits before it treats the link as lost.
    """

    connect: float = 15.0
    command: float = 20.0
    upload: float = 20.0
    upload_floor: float = 128 * 1024.0
    load: float = 120.0
    run: float = 300.0
    output: float = 60.0
    close: float = 5.0
    idle: float = 900.0
    grace: float = 5.0
    total: float = 3600.0


def infra(what: str, *, hint: str | None = None) -> SmeltError:
    """A SmeltError of kind 'infra': link, disk or board failed, which says nothing about the model."""
    return SmeltError(what, kind="infra", hint=hint)


@dataclass(frozen=True)
class Budget:
    """Limits and the moment from which they count; no deadline is later than `limits.total` after it."""

    limits: StepLimits = StepLimits()
    clock: Callable[[], float] = time.monotonic
    start: float = field(default=-1.0)

    def __post_init__(self) -> None:
        if self.start < 0:
            object.__setattr__(self, "start", self.clock())

    def deadline(self, seconds: float, size: int = 0) -> float:
        """The moment (of `clock`, in seconds) by which a step of `seconds` that transfers `size` bytes must
        end."""
        limit = seconds + size / self.limits.upload_floor
        return min(self.clock() + limit, self.start + self.limits.total)

    def left(self, deadline: float, step: str) -> float:
        """Seconds until deadline, always positive; SmeltError(kind='infra') naming the step when
        there are none.
        """
        left = deadline - self.clock()
        if left <= 0:
            raise infra(
                f"{step} took longer than its limit",
                hint="check the link to the device, or raise the limit",
            )
        return left
