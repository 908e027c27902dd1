"""Waiting tickets and free devices -> who gets which, and how long the others wait; pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from smelt.devicefarm.measure import median

PRIORITIES = ("high", "normal", "low")
"""Classes, the first served first."""


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """How leases and queue behave; times in seconds.

    lease: how long a lease lives without a heartbeat. absent: how long a place in the queue does. window: how
    far back a user's device-seconds count. step: after each so long a ticket rises by one class, past the
    highest, so that nothing waits for ever. cap: the most devices that a user holds at once, 0 for no limit.
    """

    lease: float = 30.0
    absent: float = 10.0
    window: float = 3600.0
    step: float = 600.0
    cap: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the queue. rank: of its class. devices: those that would do, best first."""

    number: int
    user: str
    rank: int
    devices: tuple[str, ...]
    since: float


def in_order(
    tickets: Sequence[Ticket], used: Mapping[str, float], now: float, rules: LeaseRules
) -> tuple[Ticket, ...]:
    """The tickets, first served first: by class and age, then by who has had least, then by arrival.

    used: user -> device-seconds within the window.
    """

    def key(t: Ticket) -> tuple[float, float, float, int]:
        risen = max(0.0, now - t.since) // rules.step
        return (t.rank - risen, used.get(t.user, 0.0), t.since, t.number)

    return tuple(sorted(tickets, key=key))


def assign(
    ordered: Sequence[Ticket], free: Collection[str], held: Mapping[str, int], rules: LeaseRules
) -> dict[int, str]:
    """Number of a ticket -> the free device that it gets now. held: user -> how many devices it has."""
    left, has = set(free), dict(held)
    found: dict[int, str] = {}
    for t in ordered:
        if rules.cap and has.get(t.user, 0) >= rules.cap:
            continue
        device = next((d for d in t.devices if d in left), None)
        if device is not None:
            left.remove(device)
            has[t.user] = has.get(t.user, 0) + 1
            found[t.number] = device
    return found


def position(ordered: Sequence[Ticket], number: int) -> int:
    """The place of a ticket among those that want one of its devices, from 1."""
    own = next(t for t in ordered if t.number == number)
    ahead = ordered[: ordered.index(own)]
    return 1 + sum(not set(t.devices).isdisjoint(own.devices) for t in ahead)


def estimate(place: int, devices: Sequence[str], durations: Sequence[float]) -> float | None:
    """Seconds until the ticket at that place is served, if leases go on taking what the last ones took; None
    where none has ended yet."""
    if not durations:
        return None
    return median(durations) * place / max(1, len(devices))
