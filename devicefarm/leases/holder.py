"""A wish for a device -> a lease that a thread keeps alive while a block of code runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from smelt.core.diag import SmeltError
from smelt.devicefarm.inventory import NoDevice
from smelt.devicefarm.leases.database import process_name
from smelt.devicefarm.leases.desk import Desk, Grant, LeaseLost, Waiting

FIRST_POLL, LONGEST_POLL = 0.02, 0.5
"""Seconds between two polls of the queue."""
BEATS = 4
"""Heartbeats within a lease's life."""


class QueueTimeout(NoDevice):
    """No device became free in time: exit code 4."""


class Lease:
    """A device held by this process.

    `valid` is this process's own reckoning, on a clock that counts while it is stopped, from before the
    request of the last renewal: never later than the database's.
    """

    def __init__(self, desk: Desk, grant: Grant, asked: float) -> None:
        """asked: the clock's reading before the request that `grant` answers."""
        self.device, self.fence = grant.device, grant.fence
        self._desk = desk
        self._until = asked + grant.seconds
        self._over: SmeltError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name=f"lease of {self.device}")
        self._thread.start()

    @property
    def valid(self) -> bool:
        """Whether it is held for certain."""
        return self._over is None and _clock() < self._until

    def check(self) -> None:
        """Raise LeaseLost unless it is valid."""
        if self.valid:
            return
        if isinstance(self._over, LeaseLost):
            raise LeaseLost(self.device, self.fence, self._over.why)
        raise LeaseLost(self.device, self.fence, "it was not renewed in time")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release it; where the database cannot be reached, it expires by itself."""
        self._stop.set()
        self._thread.join()
        if isinstance(self._over, LeaseLost):
            return
        try:
            self._desk.release(self.device, self.fence)
        except SmeltError:
            return
        finally:
            self._over = self._over or LeaseLost(self.device, self.fence, "released")

    def _beat(self) -> None:
        pause = self._desk.rules.lease / BEATS
        while not self._stop.wait(pause):
            asked = _clock()
            try:
                self._until = asked + self._desk.renew(self.device, self.fence)
                self._over = None
            except LeaseLost as error:
                self._over = error
                return
            except SmeltError:
                # the database may come back before the lease expires
                continue


def _clock() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def take(
    desk: Desk,
    devices: Sequence[str],
    *,
    user: str,
    holder: str | None = None,
    priority: str = "normal",
    timeout: float | None = None,
    on_wait: Callable[[Waiting], None] = lambda w: None,
) -> Lease:
    """Wait for one of these devices.

    holder: a name that a later run of the same work has too, by which that takes over; None for one of this
    process alone. timeout: seconds, None for as long as it takes. on_wait: called when the place in the queue
    changes. Raises NoDevice, QueueTimeout, and SmeltError(kind='infra') where the database fails.
    """
    start = asked = _clock()
    found = desk.join(
        devices, holder=holder or process_name(), user=user, priority=priority, take_over=holder is not None
    )
    pause, told = FIRST_POLL, 0
    try:
        while isinstance(found, Waiting):
            if found.place != told:
                on_wait(found)
                told = found.place
            if timeout is not None and _clock() - start >= timeout:
                raise QueueTimeout(
                    f"none of {', '.join(devices)} became free within {timeout:g} s; "
                    f"place {found.place} in the queue"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL)
            asked = _clock()
            found = desk.poll(found.number)
    except BaseException:
        if isinstance(found, Waiting):
            _leave(desk, found.number)
        raise
    return Lease(desk, found, asked)


def _leave(desk: Desk, number: int) -> None:
    try:
        desk.leave(number)
    except SmeltError:
        return  # the place is lost by itself when nobody keeps it

