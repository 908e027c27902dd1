"""Jobs, their attempts under leases, and the results: each job ends in exactly one verdict, and nothing of a
lease that is over is stored.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sql

from smelt.core.diag import SmeltError
from smelt.devicefarm.leases.database import Database, Moment
from smelt.devicefarm.leases.desk import require
from smelt.devicefarm.leases.tables import ATTEMPT, JOB, LEASE, RESULT, TICKET
from smelt.devicefarm.verdict import INFRASTRUCTURE, Verdict


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work. devices: those that would do, best first. verdict: None until it has ended."""

    id: str
    work: Mapping[str, Any]
    devices: tuple[str, ...]
    bundle: str = ""
    model: str = ""
    verdict: str | None = None
    tries: int = 3


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What an attempt came to. fingerprint: of the device. samples: raw samples in ns, by case."""

    verdict: Verdict
    message: str = ""
    fingerprint: str = ""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Jobs:
    """The jobs of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def submit(
        self,
        work: Mapping[str, Any],
        devices: Sequence[str],
        *,
        user: str,
        bundle: str = "",
        model: str = "",
        tries: int = 3,
        id: str | None = None,
    ) -> str:
        """Add a job; its id. id: the caller's own; a job of that id that is there already stays as it is.
        bundle, model: sha256. tries: the most attempts that infrastructure may fail."""
        name = id or secrets.token_hex(8)
        with self.database.transaction() as m:
            if m.run(sql.select(JOB.c.id).where(JOB.c.id == name)).one_or_none() is None:
                row = {"id": name, "work": json.dumps(work), "user": user, "bundle": bundle, "model": model,
                       "devices": tuple(devices), "tries": tries, "since": m.now}  # fmt: skip
                m.run(sql.insert(JOB).values(row))
        return name

    def waiting(self, device: str | None = None) -> tuple[Job, ...]:
        """Jobs without a verdict that nobody works at, oldest first; those for this device alone, if named.
        Jobs whose last permitted attempt was lost end here, as failures of the infrastructure."""
        with self.database.transaction() as m:
            live = sql.select(ATTEMPT.c.job).join(LEASE).where(
                ATTEMPT.c.ended.is_(None), LEASE.c.ended.is_(None), LEASE.c.expires > m.now
            )  # fmt: skip
            open_ones = sql.select(JOB).where(JOB.c.verdict.is_(None), JOB.c.id.not_in(live))
            found = []
            for r in m.run(open_ones.order_by(JOB.c.since, JOB.c.id)).all():
                if _count(m, r.id) >= r.tries:
                    _finish(m, r.id, Verdict.INFRA)
                elif device is None or device in r.devices:
                    found.append(_job(r))
            return tuple(found)

    def begin(self, job: str, device: str, fence: int) -> int:
        """Start an attempt under a lease; its number. Raises LeaseLost, and SmeltError(kind='invalid') for a
        job that has ended, is under way elsewhere, or may not be tried any more."""
        with self.database.transaction() as m:
            require(m, device, fence)
            row = m.run(sql.select(JOB).where(JOB.c.id == job)).one_or_none()
            if row is None or row.verdict is not None:
                why = "does not exist" if row is None else f"ended: {row.verdict}"
                raise SmeltError(f"job {job} {why}")
            under_way = sql.select(ATTEMPT).join(LEASE).where(
                ATTEMPT.c.job == job, ATTEMPT.c.ended.is_(None), LEASE.c.ended.is_(None),
                LEASE.c.expires > m.now,
            )  # fmt: skip
            other = m.run(under_way).first()
            if other is not None:
                raise SmeltError(f"job {job} is under way on device '{other.device}'")
            lost = sql.and_(ATTEMPT.c.job == job, ATTEMPT.c.ended.is_(None))
            m.run(sql.update(ATTEMPT).where(lost).values(ended=m.now, outcome="lost"))
            number = _count(m, job) + 1
            if number > row.tries:
                raise SmeltError(f"job {job} was tried {row.tries} times")
            own = {"job": job, "number": number, "device": device, "fence": fence, "since": m.now}
            m.run(sql.insert(ATTEMPT).values(own))
            return number

    def end(self, job: str, attempt: int, device: str, fence: int, outcome: JobOutcome) -> Verdict | None:
        """Store the result of an attempt, and with it the job's verdict, if it has one now; that verdict.

        Raises LeaseLost for a token that is not the device's valid lease, and SmeltError(kind='invalid') for
        an attempt that is not the one under way.
        """
        with self.database.transaction() as m:
            require(m, device, fence)
            row = m.run(
                sql.select(ATTEMPT).where(
                    ATTEMPT.c.job == job, ATTEMPT.c.number == attempt, ATTEMPT.c.ended.is_(None)
                )
            ).one_or_none()
            if row is None or (row.device, row.fence) != (device, fence):
                raise SmeltError(f"attempt {attempt} of job {job} is not under way by fence {fence}")
            owner = m.run(sql.select(JOB).where(JOB.c.id == job)).one()
            said = outcome.verdict.value
            values = {"job": job, "attempt": attempt, "device": device, "fence": fence,
                      "fingerprint": outcome.fingerprint, "bundle": owner.bundle, "model": owner.model,
                      "verdict": said, "message": outcome.message[:4000],
                      "samples": json.dumps({k: list(v) for k, v in outcome.samples.items()}),
                      "at": m.now}  # fmt: skip
            m.run(sql.insert(RESULT).values(values))
            own = sql.and_(ATTEMPT.c.job == job, ATTEMPT.c.number == attempt)
            m.run(sql.update(ATTEMPT).where(own).values(ended=m.now, outcome=said))
            if outcome.verdict in INFRASTRUCTURE and attempt < owner.tries:  # says nothing about the model
                return None
            _finish(m, job, outcome.verdict)
            return outcome.verdict

    def give_up(self, job: str, verdict: Verdict) -> Verdict:
        """End a job that nobody will attempt any more (no device, cancelled); its verdict, which is an
        earlier one where it has ended already."""
        with self.database.transaction() as m:
            said = m.run(sql.select(JOB.c.verdict).where(JOB.c.id == job)).scalar_one()
            if said is not None:
                return Verdict(said)
            _finish(m, job, verdict)
            return verdict

    def cancel_orphans(self, mark: str, idle: float) -> tuple[str, ...]:
        """End the open jobs whose process has died; their ids.

        mark: how the ids begin of jobs that one process does itself, which holds tickets and leases under the
        job's id. idle: for how many seconds there was neither.
        """
        with self.database.transaction() as m:
            start = m.now - idle
            alive = sql.union_all(
                sql.select(TICKET.c.holder).where(TICKET.c.seen > start),
                sql.select(LEASE.c.holder).where(
                    LEASE.c.expires > start, sql.or_(LEASE.c.ended.is_(None), LEASE.c.ended > start)
                ),
            )  # fmt: skip
            orphans = sql.select(JOB.c.id).where(
                JOB.c.verdict.is_(None), JOB.c.id.startswith(mark, autoescape=True), JOB.c.since <= start,
                JOB.c.id.not_in(alive),
            )  # fmt: skip
            found = tuple(m.run(orphans).scalars().all())
            for job in found:
                _finish(m, job, Verdict.CANCELLED)
            return found

    def get(self, job: str) -> Job:
        """A job. Raises SmeltError where there is none of that id."""
        with self.database.transaction() as m:
            row = m.run(sql.select(JOB).where(JOB.c.id == job)).one_or_none()
            if row is None:
                raise SmeltError(f"there is no job {job}")
            return _job(row)

    def results(self, job: str | None = None) -> tuple[Mapping[str, Any], ...]:
        """Stored results as rows (see tables.RESULT), in the order in which they came; of one job, if named.
        """
        asked = sql.select(RESULT).order_by(RESULT.c.id)
        with self.database.transaction() as m:
            rows = m.run(asked if job is None else asked.where(RESULT.c.job == job)).mappings().all()
            return tuple({**r, "samples": json.loads(r["samples"])} for r in rows)


def _count(m: Moment, job: str) -> int:
    return int(m.run(sql.select(sql.func.count()).where(ATTEMPT.c.job == job)).scalar_one())


def _finish(m: Moment, job: str, verdict: Verdict) -> None:
    first = sql.and_(JOB.c.id == job, JOB.c.verdict.is_(None))
    done = m.run(sql.update(JOB).where(first).values(verdict=verdict.value, ended=m.now))
    if done.rowcount != 1:
        raise SmeltError(f"job {job} has a verdict already", kind="internal")


def _job(row: Any) -> Job:
    return Job(row.id, json.loads(row.work), row.devices, row.bundle, row.model, row.verdict, row.tries)
