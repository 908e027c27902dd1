"""Requests for devices -> leases with strictly increasing fencing tokens; who holds what, and what is shut.

Every method is one transaction. A lease that has expired is over, whoever asks first, and nothing renews it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import admits
from smelt.devicefarm.inventory import NoDevice
from smelt.devicefarm.leases.database import Database, Moment
from smelt.devicefarm.leases.order import PRIORITIES, LeaseRules, Ticket, assign, estimate, in_order, position
from smelt.devicefarm.leases.tables import ATTEMPT, FARM_DEVICE, LEASE, TICKET

REMEMBERED = 20
"""Leases from whose durations the wait is estimated."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that was given. fence: its token. seconds: until it expires, from the moment of the answer."""

    device: str
    fence: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue, from 1. seconds: until it is served, None where nothing is known."""

    number: int
    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A device as `standings` shows it. holder: '' for a free one; left: seconds until its lease expires;
    since: how many seconds ago its quarantine began."""

    device: str
    fence: int
    holder: str = ""
    user: str = ""
    left: float = 0.0
    quarantined: bool = False
    reason: str = ""
    since: float = 0.0
    waiting: int = 0


class LeaseLost(SmeltError):
    """The lease has ended: it expired, was released by someone else, or taken over. The work must stop."""

    status = "stale"

    def __init__(self, device: str, fence: int, why: str) -> None:
        self.device, self.fence, self.why = device, fence, why
        super().__init__(
            f"the lease of device '{device}' (fence {fence}) is over: {why}", kind="infra",
            hint="another holder may have the device now; take a new lease and repeat the work",
        )  # fmt: skip

    def __reduce__(self) -> tuple[object, ...]:
        return (LeaseLost, (self.device, self.fence, self.why))


class Desk:
    """Gives out devices from one database."""

    def __init__(self, database: Database, rules: LeaseRules | None = None) -> None:
        self.database = database
        self.rules = rules or LeaseRules()

    # ---- the queue ----

    def join(
        self,
        devices: Sequence[str],
        *,
        holder: str,
        user: str,
        priority: str = "normal",
        take_over: bool = False,
    ) -> Grant | Waiting:
        """Ask for one of these devices: a lease at once, or a place in the queue that `poll` keeps.

        devices: names, best first. take_over: a lease of the same holder, left by a run that died, ends now.
        Raises NoDevice where the list is empty, or all of them are in quarantine (it says why).
        """
        if priority not in PRIORITIES:
            raise SmeltError(f"priority '{priority}' is none of {', '.join(PRIORITIES)}")
        if not devices:
            raise NoDevice("no device was named that could be waited for")
        wanted = tuple(dict.fromkeys(devices))
        with self.database.transaction() as m:
            self._sweep(m)
            _know(m, wanted)
            _open_ones(m, wanted)
            if take_over:
                same = sql.and_(LEASE.c.holder == holder, LEASE.c.device.in_(wanted))
                self._end(m, same, "taken over by a new run of the same holder")
            row = {"holder": holder, "user": user, "rank": PRIORITIES.index(priority),
                   "devices": wanted, "since": m.now, "seen": m.now}  # fmt: skip
            made = m.run(sql.insert(TICKET).values(row)).inserted_primary_key
            assert made is not None
            return self._served(m, made[0])

    def poll(self, number: int) -> Grant | Waiting:
        """Keep a place in the queue; the lease, once it is served. Raises NoDevice where all of its devices
        are in quarantine by now, SmeltError(kind='infra') where the place was not kept in time."""
        with self.database.transaction() as m:
            self._sweep(m)
            row = m.run(sql.select(TICKET).where(TICKET.c.id == number)).one_or_none()
            if row is not None:
                m.run(sql.update(TICKET).where(TICKET.c.id == number).values(seen=m.now))
                _open_ones(m, row.devices)
                return self._served(m, number)
        raise SmeltError(
            f"the place in the queue was not kept for {self.rules.absent:g} s and is lost", kind="infra",
            hint="the process was stopped or starved; ask again",
        )  # fmt: skip

    def leave(self, number: int) -> None:
        """Give up a place in the queue."""
        with self.database.transaction() as m:
            m.run(sql.delete(TICKET).where(TICKET.c.id == number))

    # ---- leases ----

    def renew(self, device: str, fence: int) -> float:
        """Push a lease's expiry away; seconds until it. Raises LeaseLost."""
        with self.database.transaction() as m:
            require(m, device, fence)
            m.run(_lease(device, fence).values(expires=m.now + self.rules.lease))
            return self.rules.lease

    def release(self, device: str, fence: int) -> None:
        """End one's own lease; nothing where it is over already."""
        with self.database.transaction() as m:
            self._sweep(m)
            self._end(m, sql.and_(LEASE.c.device == device, LEASE.c.fence == fence), "released")

    def revoke(self, device: str, why: str = "released by its owner") -> int:
        """End the lease of a device, whoever holds it; its fence, 0 where nobody held it."""
        with self.database.transaction() as m:
            self._sweep(m)
            live = sql.and_(LEASE.c.device == device, LEASE.c.ended.is_(None))
            fence = m.run(sql.select(LEASE.c.fence).where(live)).scalar_one_or_none()
            self._end(m, live, why)
            return fence or 0

    # ---- devices ----

    def quarantine(self, device: str, reason: str) -> None:
        """Give a device to nobody any more, until `restore`. A lease on it goes on to its end."""
        with self.database.transaction() as m:
            _know(m, [device])
            values = {"quarantined": True, "reason": reason[:1000], "since": m.now}
            m.run(sql.update(FARM_DEVICE).where(FARM_DEVICE.c.name == device).values(values))

    def restore(self, device: str) -> bool:
        """Give it out again; whether it was in quarantine."""
        with self.database.transaction() as m:
            shut = sql.and_(FARM_DEVICE.c.name == device, FARM_DEVICE.c.quarantined)
            values = {"quarantined": False, "reason": "", "since": m.now}
            return m.run(sql.update(FARM_DEVICE).where(shut).values(values)).rowcount > 0

    def examined(self, device: str, boot_id: str) -> None:
        """Note that a full check went well, and on which boot of the device."""
        with self.database.transaction() as m:
            _know(m, [device])
            values = {"examined": m.now, "boot_id": boot_id}
            m.run(sql.update(FARM_DEVICE).where(FARM_DEVICE.c.name == device).values(values))

    def boot_of(self, device: str) -> str:
        """The boot id that the device had when it was examined last; '' where that is not known."""
        with self.database.transaction() as m:
            asked = sql.select(FARM_DEVICE.c.boot_id).where(FARM_DEVICE.c.name == device)
            return m.run(asked).scalar_one_or_none() or ""

    def unexamined_for(self, device: str) -> float:
        """Seconds since the last full check; infinite where there was none."""
        with self.database.transaction() as m:
            asked = sql.select(FARM_DEVICE.c.examined).where(FARM_DEVICE.c.name == device)
            at = m.run(asked).scalar_one_or_none()
            return m.now - at if at else float("inf")

    def standings(self) -> tuple[Standing, ...]:
        """Every device that was ever asked for, by name."""
        with self.database.transaction() as m:
            self._sweep(m)
            live = {r.device: r for r in m.run(sql.select(LEASE).where(LEASE.c.ended.is_(None)))}
            wanted = [set(t.devices) for t in _tickets(m)]
            found = []
            for d in m.run(sql.select(FARM_DEVICE).order_by(FARM_DEVICE.c.name)):
                lease, waiting = live.get(d.name), sum(d.name in w for w in wanted)
                shut = (d.quarantined, d.reason, m.now - d.since if d.quarantined else 0.0, waiting)
                if lease is None:
                    found.append(Standing(d.name, d.fence, "", "", 0.0, *shut))
                else:
                    left = lease.expires - m.now
                    found.append(Standing(d.name, lease.fence, lease.holder, lease.user, left, *shut))
            return tuple(found)

    # ---- inside ----

    def _sweep(self, m: Moment) -> None:
        """End what has expired: leases by their own expiry, places that nobody has kept."""
        self._end(m, LEASE.c.expires <= m.now, "expired")
        m.run(sql.delete(TICKET).where(TICKET.c.seen <= m.now - self.rules.absent))

    def _end(self, m: Moment, which: sql.ColumnElement[bool], why: str) -> None:
        live = sql.and_(which, LEASE.c.ended.is_(None))
        gone = m.run(sql.select(LEASE.c.device, LEASE.c.fence).where(live)).all()
        if not gone:
            return
        m.run(sql.update(LEASE).where(live).values(ended=m.now, why=why))
        for r in gone:
            own = sql.and_(ATTEMPT.c.device == r.device, ATTEMPT.c.fence == r.fence)
            open_ones = sql.update(ATTEMPT).where(own, ATTEMPT.c.ended.is_(None))
            m.run(open_ones.values(ended=m.now, outcome="lost"))

    def _served(self, m: Moment, number: int) -> Grant | Waiting:
        """The lease of this ticket if it is its turn. Others' turns are left to their own polls: whoever has
        died in the queue gets no device."""
        tickets = _tickets(m)
        ordered = in_order(tickets, self._used(m), m.now, self.rules)
        taken = {r.device: r.user for r in m.run(sql.select(LEASE).where(LEASE.c.ended.is_(None)))}
        closed = set(m.run(sql.select(FARM_DEVICE.c.name).where(FARM_DEVICE.c.quarantined)).scalars())
        free = {d for t in tickets for d in t.devices} - set(taken) - closed
        users = list(taken.values())
        given = assign(ordered, free, {u: users.count(u) for u in users}, self.rules)
        if number in given:
            return self._grant(m, number, given[number])
        place = position(ordered, number)
        own = next(t for t in tickets if t.number == number)
        some = sql.and_(LEASE.c.ended.is_not(None), LEASE.c.device.in_(own.devices))
        last = sql.select(LEASE.c.ended - LEASE.c.since).where(some).order_by(LEASE.c.ended.desc())
        durations = m.run(last.limit(REMEMBERED)).scalars().all()
        usable = [d for d in own.devices if d not in closed]
        return Waiting(number, place, estimate(place, usable, durations))

    def _grant(self, m: Moment, number: int, device: str) -> Grant:
        ticket = m.run(sql.select(TICKET).where(TICKET.c.id == number)).one()
        last = m.run(sql.select(FARM_DEVICE.c.fence).where(FARM_DEVICE.c.name == device)).scalar_one()
        # from the wall clock, so that a device which has obeyed a database that was lost obeys the next one
        fence = max(last + 1, m.wall_ms)
        m.run(sql.update(FARM_DEVICE).where(FARM_DEVICE.c.name == device).values(fence=fence))
        row = {"device": device, "fence": fence, "holder": ticket.holder, "user": ticket.user,
               "since": m.now, "expires": m.now + self.rules.lease}  # fmt: skip
        m.run(sql.insert(LEASE).values(row))
        m.run(sql.delete(TICKET).where(TICKET.c.id == number))
        return Grant(device, fence, self.rules.lease)

    def _used(self, m: Moment) -> dict[str, float]:
        """User -> device-seconds within the window."""
        start = m.now - self.rules.window
        recent = sql.or_(LEASE.c.ended.is_(None), LEASE.c.ended > start)
        found: dict[str, float] = {}
        for r in m.run(sql.select(LEASE.c.user, LEASE.c.since, LEASE.c.ended).where(recent)):
            until = m.now if r.ended is None else r.ended
            found[r.user] = found.get(r.user, 0.0) + until - max(start, r.since)
        return found


def require(m: Moment, device: str, fence: int) -> None:
    """Raise LeaseLost unless that lease is valid at this moment: not ended, not expired, and the device's
    newest."""
    found = sql.select(LEASE, FARM_DEVICE.c.fence.label("highest")).join(FARM_DEVICE)
    row = m.run(found.where(LEASE.c.device == device, LEASE.c.fence == fence)).one_or_none()
    if row is None:
        raise LeaseLost(device, fence, "there never was such a lease")
    if row.ended is not None:
        raise LeaseLost(device, fence, row.why)
    if row.expires <= m.now:
        raise LeaseLost(device, fence, f"it expired {m.now - row.expires:.1f} s ago")
    if not admits(row.highest, fence):
        raise LeaseLost(device, fence, f"fence {row.highest} has been given out since")


def _lease(device: str, fence: int) -> sql.Update:
    return sql.update(LEASE).where(LEASE.c.device == device, LEASE.c.fence == fence)


def _tickets(m: Moment) -> list[Ticket]:
    rows: list[Any] = list(m.run(sql.select(TICKET)))
    return [Ticket(r.id, r.user, r.rank, r.devices, r.since) for r in rows]


def _know(m: Moment, devices: Sequence[str]) -> None:
    known = set(m.run(sql.select(FARM_DEVICE.c.name).where(FARM_DEVICE.c.name.in_(devices))).scalars())
    for name in devices:
        if name not in known:
            m.run(sql.insert(FARM_DEVICE).values(name=name, fence=0))


def _open_ones(m: Moment, devices: Sequence[str]) -> None:
    """Raise NoDevice where each of them is in quarantine."""
    rows = m.run(sql.select(FARM_DEVICE).where(FARM_DEVICE.c.name.in_(devices))).all()
    if all(r.quarantined for r in rows):
        why = "; ".join(f"'{r.name}' for {m.now - r.since:.0f} s: {r.reason}" for r in rows)
        raise NoDevice(f"every device that would do is in quarantine ({why})")
