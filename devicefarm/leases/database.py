"""A URL -> the farm's database: transactions that exclude each other, each at one moment of the database's
clock.

The clock of a SQLite file is that of its machine since boot, which no change of the date moves; a PostgreSQL
server's is its wall clock. Where a reading falls behind an earlier one, moments go on from the later one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from smelt.core.diag import SmeltError
from smelt.core.turns import holder
from smelt.devicefarm.budget import infra
from smelt.devicefarm.leases.tables import CLOCK, LEASE, METADATA, TABLES_VERSION, TICKET

BUSY_SECONDS = 30.0
"""How long a transaction waits for the others."""
DIALECTS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A look at a clock. epoch: what `seconds` counts from; a new one ends all leases. wall: seconds since
    1970."""

    epoch: str
    seconds: float
    wall: float


Clock = Callable[[sql.Connection], ClockReading]


@dataclass(frozen=True, slots=True)
class Moment:
    """An open transaction and its time. wall_ms: milliseconds since 1970, from which fences start."""

    connection: sql.Connection
    now: float
    wall_ms: int

    def run(self, statement: sql.Executable) -> sql.CursorResult[Any]:
        """Execute a statement in the transaction."""
        return self.connection.execute(statement)


def machine_clock(_: sql.Connection) -> ClockReading:
    """This machine's clock since boot, which runs while it sleeps."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = ""
    seconds = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    return ClockReading(boot, seconds, time.time())


def server_clock(connection: sql.Connection) -> ClockReading:
    """The wall clock of a PostgreSQL server."""
    found = connection.execute(sql.text("SELECT extract(epoch FROM clock_timestamp())::float8")).scalar_one()
    return ClockReading("", float(found), float(found))


CLOCKS: dict[str, Clock] = {"sqlite": machine_clock, "postgresql": server_clock}


class Database:
    """The farm's database, opened and of the right schema. One object may serve several threads."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        """Open it, and make its tables where they are missing.

        clock: None takes that of the database's kind. Raises SmeltError: 'invalid' for a URL that is none or
        a database of another version, 'infra' where it cannot be opened.
        """
        self.url = url
        with _naming(url):
            self._engine = _engine(url)
        self._clock = clock or CLOCKS[self._engine.dialect.name]
        with _naming(url):
            self._create()

    @contextmanager
    def transaction(self) -> Iterator[Moment]:
        """A transaction that excludes all others; committed at the end of the block, rolled back by an
        exception.

        Raises SmeltError(kind='infra') where the database cannot be reached or stays locked.
        """
        with _naming(self.url), self._engine.begin() as connection:
            yield self._moment(connection)

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    def _moment(self, connection: sql.Connection) -> Moment:
        row = connection.execute(sql.select(CLOCK).with_for_update()).one()
        found = self._clock(connection)  # after the lock: else an earlier moment could come later
        shift = row.shift
        if found.epoch != row.epoch or found.seconds < row.raw:
            shift = row.shift + row.raw - found.seconds
        now = found.seconds + shift
        values = {"epoch": found.epoch, "raw": found.seconds, "shift": shift}
        connection.execute(sql.update(CLOCK).values(values))
        if found.epoch != row.epoch:  # the machine has started anew: none of its processes is left
            ended = {"ended": now, "why": "the machine restarted"}
            connection.execute(sql.update(LEASE).where(LEASE.c.ended.is_(None)).values(ended))
            connection.execute(sql.delete(TICKET))
        return Moment(connection, now, int(found.wall * 1000))

    def _create(self) -> None:
        with self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # one at a time
                connection.execute(sql.text("SELECT pg_advisory_xact_lock(7302914)"))
            METADATA.create_all(connection)
            row = connection.execute(sql.select(CLOCK)).one_or_none()
            if row is None:
                found = self._clock(connection)
                first = {"id": 1, "schema_version": TABLES_VERSION, "epoch": found.epoch,
                         "raw": found.seconds, "shift": -found.seconds}  # fmt: skip
                connection.execute(sql.insert(CLOCK).values(first))
        if row is not None and row.schema_version != TABLES_VERSION:
            raise SmeltError(
                f"the farm's database '{shown(self.url)}' has schema version {row.schema_version}, wanted "
                f"{TABLES_VERSION}", kind="invalid", hint="use the smelt that made it, or name another file",
            )  # fmt: skip


def _engine(url: str) -> sql.Engine:
    kind, separator, rest = url.partition("://")
    if not separator:
        raise SmeltError(f"'{shown(url)}' is no URL of a database", kind="invalid")
    made = sql.make_url(f"{DIALECTS.get(kind, kind)}://{rest}")
    if made.get_backend_name() not in CLOCKS:
        raise SmeltError(f"'{shown(url)}' is neither SQLite nor PostgreSQL", kind="invalid")
    if made.get_backend_name() != "sqlite":
        return sql.create_engine(made, pool_pre_ping=True)
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS, "isolation_level": None}}
    if made.database in (None, "", ":memory:"):
        options |= {"poolclass": StaticPool}
        options["connect_args"]["check_same_thread"] = False
    else:
        _make_folder(Path(str(made.database)).parent)
    engine = sql.create_engine(made, **options)

    @sql.event.listens_for(engine, "connect")
    def _prepare(raw: Any, _: object) -> None:
        # FULL: a lost commit could bring back a fence that was given out. 256 KiB of cached pages: the 2 MiB
        # that are usual fill over thousands of jobs, and save no time at the size of these tables
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-256"):
            raw.execute(f"PRAGMA {pragma}").close()

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise infra(
            f"the folder of the farm's database, '{folder}', cannot be made: {error.strerror}",
            hint="name another file or a database's URL with SMELT_FARM",
        ) from error


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Turn what SQLAlchemy raises into SmeltErrors that name the database, without its password."""
    try:
        yield
    except SmeltError:
        raise
    except ModuleNotFoundError as error:
        raise SmeltError(
            f"the driver of the farm's database is not installed: {error.name}",
            kind="invalid", hint="pip install 'psycopg[binary]'",
        ) from error  # fmt: skip
    except ValueError as error:  # of the types in `tables`, of JSON, and of text that is not UTF-8
        raise infra(
            f"the farm's database '{shown(url)}' holds what smelt has not written: {error}",
            hint="its file is damaged: move it away, so that a new one is made, or set SMELT_FARM",
        ) from error
    except SQLAlchemyError as error:
        origin = str(error.orig if isinstance(error, DBAPIError) else error)
        if "database is locked" in origin:
            what = f"has been locked for {BUSY_SECONDS:g} s by {_writer(url)}"
            raise infra(
                f"the farm's database '{shown(url)}' {what}",
                hint="it hangs, or was stopped: let it go on (kill -CONT) or end it, then run again",
            ) from error
        raise infra(
            f"the farm's database '{shown(url)}' failed: {' '.join(origin.split())[:300]}",
            hint="is its disk full, its file damaged or its server down? SMELT_FARM names another one",
        ) from error


def _writer(url: str) -> str:
    """Who has the lock of a SQLite file. Nothing is opened: as this process closes it, its locks would go."""
    try:
        return holder(os.stat(f"{sql.make_url(url).database}-shm"))
    except OSError:
        return "another process"


def shown(url: str) -> str:
    """The URL without its password."""
    try:
        return sql.make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url


def process_name() -> str:
    """A name for the holder of a lease that no other process has."""
    return f"{os.uname().nodename}/{os.getpid()}/{os.urandom(4).hex()}"
