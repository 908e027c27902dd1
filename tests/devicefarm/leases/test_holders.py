"""Real processes that hold leases, in both databases: killed, stopped, woken, and many at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from clean import clear
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_desk import Everything, Farm, Virtual

from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import DeviceClaim, FenceFile
from smelt.devicefarm.client import open_session
from smelt.devicefarm.inventory import NoDevice
from smelt.devicefarm.leases.database import Database
from smelt.devicefarm.leases.desk import Desk, Waiting
from smelt.devicefarm.leases.holder import QueueTimeout, take
from smelt.devicefarm.leases.jobs import JobOutcome, Jobs
from smelt.devicefarm.leases.order import LeaseRules
from smelt.devicefarm.leases.tables import CLOCK, RESULT
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.verdict import Verdict, verdict_of_error

HOLDERS = Path(__file__).with_name("holders.py")
SHORT = {"lease": 3.0, "absent": 5.0}


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, str(HOLDERS), *words]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def told(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, f"it ended with {child.wait()}"
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture
def desk(url: str) -> Iterator[Desk]:
    database = Database(url)
    yield Desk(database, LeaseRules(**SHORT))
    database.close()


def test_many_processes_take_turns(url: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    words = ("turns", url, json.dumps({}), "a,b", "6", str(tmp_path / "inside"))
    fences: dict[str, list[int]] = {"a": [], "b": []}
    with process(*words) as one, process(*words) as two, process(*words) as three:
        for child in (one, two, three):
            said, _ = child.communicate(timeout=120)
            assert child.returncode == 0
            lines = [json.loads(line) for line in said.splitlines()]
            assert len(lines) == 6
            for device in fences:
                own = [x["fence"] for x in lines if x["device"] == device]
                assert own == sorted(own)
                fences[device] += own
    assert all(len(set(f)) == len(f) for f in fences.values())


def test_a_killed_holder_frees_its_device_when_the_lease_expires(
    desk: Desk, url: str, native_bundle: Path, tmp_path: Path
) -> None:
    with process("hold", url, json.dumps(SHORT), "a", str(native_bundle), str(tmp_path / "s")) as child:
        old = told(child)
        child.kill()
        child.wait()
        with take(desk, ["a"], user="next") as lease:  # waits without a limit: it must come free
            assert lease.fence > old["fence"]
    (standing,) = desk.standings()
    assert standing.holder == ""


def test_a_holder_that_was_stopped_is_refused_by_all(
    desk: Desk, url: str, native_bundle: Path, tmp_path: Path
) -> None:
    """By its own reckoning, its host, the runner that it had, every later runner, and the results."""
    store = tmp_path / "s"
    with process("hold", url, json.dumps(SHORT), "a", str(native_bundle), str(store)) as child:
        old = told(child)
        os.kill(child.pid, signal.SIGSTOP)
        jobs = Jobs(desk.database)
        with take(desk, ["a"], user="next") as lease:
            claim = DeviceClaim(lease.fence, lease.check)
            FenceFile(tmp_path / "host-fence").admit(lease.fence)
            transport = LocalTransport("stored", store=store)
            with open_session(transport, native_bundle, claim=claim) as client:
                number = jobs.begin(old["job"], "a", lease.fence)
                os.kill(child.pid, signal.SIGCONT)
                assert child.stdin is not None
                print(file=child.stdin, flush=True)
                answers = told(child) | told(child)
                assert answers == dict.fromkeys(("own", "host", "runner", "results", "again"), "stale")
                assert client.model is not None
                jobs.end(old["job"], number, "a", lease.fence, JobOutcome(Verdict.PASS))
    assert [(r["verdict"], r["attempt"]) for r in jobs.results()] == [("pass", 2)]


def test_the_queue_times_out_with_exit_code_4(desk: Desk) -> None:
    seen: list[Waiting] = []
    with take(desk, ["a"], user="ann"):
        with pytest.raises(QueueTimeout, match=r"within 0.3 s; place 1") as caught:
            take(desk, ["a"], user="bob", timeout=0.3, on_wait=seen.append)
        assert verdict_of_error(caught.value).exit_code == 4
        assert [w.place for w in seen] == [1]
        assert desk.standings()[0].waiting == 0
    with pytest.raises(NoDevice):
        take(desk, [], user="bob")


def test_a_lease_is_kept_by_its_heartbeat(desk: Desk) -> None:
    with take(desk, ["a"], user="ann") as lease:
        time.sleep(SHORT["lease"] + 1)
        lease.check()
    assert not lease.valid
    with pytest.raises(SmeltError, match="released"):
        lease.check()


def test_a_lease_that_is_taken_away_is_noticed(desk: Desk) -> None:
    with take(desk, ["a"], user="ann", holder="ci/17") as lease:
        with take(desk, ["a"], user="ann", holder="ci/17") as again:
            while lease.valid:
                time.sleep(0.05)
            with pytest.raises(SmeltError, match="taken over"):
                lease.check()
        assert again.fence > lease.fence


def test_results_cannot_be_changed_in_either(desk: Desk) -> None:
    jobs = Jobs(desk.database)
    job = jobs.submit({}, ["a"], user="ann")
    with take(desk, ["a"], user="ann") as lease:
        jobs.end(job, jobs.begin(job, "a", lease.fence), "a", lease.fence, JobOutcome(Verdict.PASS))
    for change in (sql.update(RESULT).values(verdict="mismatch"), sql.delete(RESULT)):
        with pytest.raises(SmeltError, match="never changed"), \
                desk.database.transaction() as m:  # fmt: skip
            m.run(change)
    assert len(jobs.results(job)) == 1


def test_everything_holds_in_postgresql_too(postgres: str) -> None:
    def machine() -> Everything:
        made = Everything()
        made.farm.database.close()
        clear(postgres)
        made.farm = Farm(url=postgres)
        return made

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=8, stateful_step_count=30, deadline=None)
    )


# ---------------------------------------------------------------- databases that fail


def test_a_database_of_another_version_is_refused(url: str) -> None:
    database = Database(url)
    with database.transaction() as m:
        m.run(sql.update(CLOCK).values(schema_version=99))
    database.close()
    with pytest.raises(SmeltError, match="schema version 99, wanted 1"):
        Database(url)


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "farm.db"
    damaged.write_bytes(b"this is text, of which there is enough for a page" * 100)
    (tmp_path / "file").write_text("")
    for url, kind, what in (
        (f"sqlite:///{damaged}", "infra", "not a database"),
        (f"sqlite:///{tmp_path}/file/farm.db", "infra", "cannot be made"),
        ("farm.db", "invalid", "no URL"),
        ("mysql://host/x", "invalid", "neither SQLite nor"),
        ("sqlite", "invalid", "no URL"),
        ("postgresql://farm:secret@127.0.0.1:1/x", "infra", "failed"),
    ):
        with pytest.raises(SmeltError, match=what) as caught:
            Database(url)
        assert caught.value.kind == kind
        assert "secret" not in str(caught.value)


def test_a_transaction_that_fails_leaves_nothing(url: str) -> None:
    database = Database(url, Virtual() if url.startswith("sqlite") else None)
    desk = Desk(database)
    with pytest.raises(ZeroDivisionError), database.transaction() as m:
        m.run(sql.text("DELETE FROM ticket"))
        m.run(sql.text("INSERT INTO device (name, fence, quarantined, reason, since, examined, boot_id) "
                       "VALUES ('x', 1, false, '', 0, 0, '')"))  # fmt: skip
        raise ZeroDivisionError
    assert desk.standings() == ()
    database.close()
