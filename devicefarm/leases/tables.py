"""The tables of the farm's database, in SQLAlchemy's terms, with what each dialect needs to keep them true.

All moments are seconds of the database's own clock (see `database`), all durations seconds.
"""

from __future__ import annotations

import json
import math
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    event,
    text,
)
from sqlalchemy.engine import Dialect

TABLES_VERSION = 1

METADATA = MetaData()
_COUNTED = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only where the type is INTEGER


class SecondsColumn(TypeDecorator[float]):
    """A moment. SQLite keeps a value of any type in any column; one that is none raises ValueError."""

    impl = Float
    cache_ok = True

    def process_result_value(self, value: object, dialect: Dialect) -> float | None:
        """The number, None where there is none."""
        if value is None:
            return None
        if not isinstance(value, float | int) or not math.isfinite(value):
            raise ValueError(f"{value!r:.60} in the place of a moment, a finite number of seconds")
        return float(value)


class NamesColumn(TypeDecorator[tuple[str, ...]]):
    """Names of devices, kept as JSON; what is read and is none raises ValueError."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> str:
        """Their text."""
        return json.dumps(list(value or ()))

    def process_result_value(self, value: object, dialect: Dialect) -> tuple[str, ...]:
        """The names."""
        try:
            found = json.loads(value) if isinstance(value, str) else None
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(n, str) for n in found):
            raise ValueError(f"{value!r:.60} in the place of a JSON list of devices")
        return tuple(found)


CLOCK = Table(
    "clock",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("epoch", Text, nullable=False),  # what the raw clock counts from: a boot id, or ''
    Column("raw", SecondsColumn, nullable=False),  # the highest reading of this epoch
    Column("shift", SecondsColumn, nullable=False),  # moment = reading + shift
    CheckConstraint("id = 1"),
)
"""One row, which every transaction locks first: on PostgreSQL that makes them wait for each other, as
SQLite's BEGIN IMMEDIATE does."""

FARM_DEVICE = Table(
    "device",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("fence", BigInteger, nullable=False),  # the highest token that was ever given out
    Column("quarantined", Boolean, nullable=False, default=False),
    Column("reason", Text, nullable=False, default=""),
    Column("since", SecondsColumn, nullable=False, default=0.0),  # when the quarantine began
    Column("examined", SecondsColumn, nullable=False, default=0.0),  # the last full check
    Column("boot_id", Text, nullable=False, default=""),
)

LEASE = Table(
    "lease",
    METADATA,
    Column("device", Text, ForeignKey("device.name"), primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("since", SecondsColumn, nullable=False),
    Column("expires", SecondsColumn, nullable=False),
    Column("ended", SecondsColumn),  # None while it is valid
    Column("why", Text, nullable=False, default=""),  # released, expired, taken over, revoked
)
Index(
    "one_lease_per_device", LEASE.c.device, unique=True,
    sqlite_where=text("ended IS NULL"), postgresql_where=text("ended IS NULL"),
)  # fmt: skip
Index("lease_by_end", LEASE.c.ended)

TICKET = Table(
    "ticket",
    METADATA,
    Column("id", _COUNTED, primary_key=True, autoincrement=True),
    Column("holder", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("rank", Integer, nullable=False),  # of the priority class; 0 comes first
    Column("devices", NamesColumn, nullable=False),  # JSON: those that would do, best first
    Column("since", SecondsColumn, nullable=False),
    Column("seen", SecondsColumn, nullable=False),  # the last poll
    sqlite_autoincrement=True,
)

JOB = Table(
    "job",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("work", Text, nullable=False),  # JSON, read by whoever runs it
    Column("user", Text, nullable=False),
    Column("bundle", Text, nullable=False),  # sha256
    Column("model", Text, nullable=False),  # sha256
    Column("devices", NamesColumn, nullable=False),  # JSON, as a ticket's
    Column("tries", Integer, nullable=False),  # the most attempts
    Column("since", SecondsColumn, nullable=False),
    Column("ended", SecondsColumn),
    Column("verdict", Text),  # None until it has ended
)
Index("job_by_end", JOB.c.ended)

ATTEMPT = Table(
    "attempt",
    METADATA,
    Column("job", Text, ForeignKey("job.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("device", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("since", SecondsColumn, nullable=False),
    Column("ended", SecondsColumn),
    Column("outcome", Text),  # a verdict, or 'lost' where its lease ended first
    ForeignKeyConstraint(["device", "fence"], ["lease.device", "lease.fence"]),
)
Index("attempt_by_lease", ATTEMPT.c.device, ATTEMPT.c.fence)

RESULT = Table(
    "result",
    METADATA,
    Column("id", _COUNTED, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("device", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("fingerprint", Text, nullable=False),  # of the device, as probed
    Column("bundle", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("samples", Text, nullable=False),  # JSON: raw samples in ns, by case
    Column("at", SecondsColumn, nullable=False),
    ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.number"]),
    sqlite_autoincrement=True,
)
Index("one_result_per_attempt", RESULT.c.job, RESULT.c.attempt, unique=True)

_SQLITE_APPEND_ONLY = (
    "CREATE TRIGGER result_{0} BEFORE {0} ON result "
    "BEGIN SELECT RAISE(ABORT, 'results are never changed'); END"
)
_POSTGRES_APPEND_ONLY = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'results are never changed'; END $$;
CREATE TRIGGER result_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON result EXECUTE FUNCTION refuse_change()
"""


def _after_create(dialect: str, statement: str) -> None:
    made: Any = DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(RESULT, "after_create", made.execute_if(dialect=dialect))


for _change in ("UPDATE", "DELETE"):
    _after_create("sqlite", _SQLITE_APPEND_ONLY.format(_change))
_after_create("postgresql", _POSTGRES_APPEND_ONLY)
