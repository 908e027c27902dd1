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
    `upload` + n / upload_floor. hash_floor: the bytes per second at which a device must be able to read its
    files. run: what a run may take beyond the times that its own plan allows for warm-up and samples. idle: a
    runner that receives no request for so long ends itself. beat: how often host and runner show each other
    that they live; silence: after how long without a byte each takes the other for dead. grace: how much
    longer than the device's own deadline the host waits before it treats the link as lost.
    """

    connect: float = 15.0
    command: float = 20.0
    upload: float = 20.0
    upload_floor: float = 128 * 1024.0
    hash_floor: float = 4 * 1024.0 * 1024.0
    load: float = 120.0
    run: float = 300.0
    output: float = 60.0
    close: float = 5.0
    idle: float = 900.0
    beat: float = 5.0
    silence: float = 30.0
    grace: float = 5.0
    total: float = 3600.0


class InfraError(SmeltError):
    """Link, disk or board failed, which says nothing about the model. status: which of them (verdict.py)."""

    def __init__(self, message: str, *, hint: str | None = None, status: str = "infra") -> None:
        self.status = status
        super().__init__(message, kind="infra", hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.hint, self.status))


def _rebuild(message: str, hint: str | None, status: str) -> InfraError:
    return InfraError(message, hint=hint, status=status)


LINK_LOST, LINK_STALLED = "link lost", "link stalled"
DISK_FULL, READ_ONLY = "disk full", "read-only disk"
DAMAGED, KILLED = "damaged files", "killed"

HINTS = {
    LINK_LOST: "the connection ended; see the devices' doctor, then run again",
    LINK_STALLED: "the board hangs or the link is dead; see the devices' doctor, or raise the limit",
    DISK_FULL: "make room on the device's disk, or name another root for it in devices.toml",
    READ_ONLY: "look at its dmesg, as the disk may have failed, or name another root in devices.toml",
    DAMAGED: "the files were sent anew: run again; if it comes back, the device's disk or memory is failing",
    KILLED: "look at its dmesg; let the model use less memory, or the device run fewer programs",
}


def infra(what: str, *, hint: str | None = None, status: str = "infra") -> InfraError:
    """The error for a failure of link, disk or board. status: one of the above; it brings a hint of its
    own."""
    return InfraError(what, hint=hint or HINTS.get(status), status=status)


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
            raise infra(f"{step} took longer than its limit", status=LINK_STALLED)
        return left
