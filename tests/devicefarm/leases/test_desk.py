"""Leases, queue and jobs on a virtual clock: what must hold whatever holders do and whenever they stop."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import sqlalchemy as sql
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from smelt.core.diag import SmeltError
from smelt.devicefarm.inventory import NoDevice
from smelt.devicefarm.leases.database import ClockReading, Database
from smelt.devicefarm.leases.desk import Desk, Grant, LeaseLost, Waiting
from smelt.devicefarm.leases.jobs import JobOutcome, Jobs
from smelt.devicefarm.leases.order import LeaseRules, Ticket, assign, in_order
from smelt.devicefarm.leases.tables import LEASE, RESULT
from smelt.devicefarm.verdict import Verdict

RULES = LeaseRules(lease=30.0, absent=10.0, window=1000.0, step=100.0, cap=2)


@dataclass
class Virtual:
    """A clock that moves when it is told."""

    seconds: float = 1000.0
    wall: float = 2000.0
    epoch: str = "boot 1"

    def __call__(self, connection: sql.Connection) -> ClockReading:
        return ClockReading(self.epoch, self.seconds, self.wall)


@dataclass
class Farm:
    clock: Virtual = field(default_factory=Virtual)
    rules: LeaseRules = RULES
    url: str = "sqlite://"

    def __post_init__(self) -> None:
        self.database = Database(self.url, self.clock)
        self.desk = Desk(self.database, self.rules)
        self.jobs = Jobs(self.database)

    def join(self, *devices: str, user: str = "ann", **more: object) -> Grant | Waiting:
        return self.desk.join(devices, holder=f"{user}'s", user=user, **more)  # type: ignore[arg-type]

    def grant(self, *devices: str, user: str = "ann") -> Grant:
        found = self.join(*devices, user=user)
        assert isinstance(found, Grant)
        return found

    def wait(self, *devices: str, user: str = "ann", **more: object) -> Waiting:
        found = self.join(*devices, user=user, **more)
        assert isinstance(found, Waiting)
        return found


@pytest.fixture
def farm() -> Farm:
    return Farm()


def test_a_device_is_held_by_one_and_fences_increase(farm: Farm) -> None:
    first = farm.grant("a")
    second = farm.wait("a", user="bob")
    assert (second.place, second.seconds) == (1, None)
    farm.desk.release("a", first.fence)
    given = farm.desk.poll(second.number)
    assert isinstance(given, Grant)
    assert given.fence > first.fence


def test_an_expired_lease_is_over_though_nobody_has_asked(farm: Farm) -> None:
    held = farm.grant("a")
    farm.clock.seconds += RULES.lease
    with pytest.raises(LeaseLost, match="expired"):
        farm.desk.renew("a", held.fence)
    assert farm.grant("a", user="bob").fence > held.fence


def test_a_heartbeat_keeps_it(farm: Farm) -> None:
    held = farm.grant("a")
    for _ in range(5):
        farm.clock.seconds += RULES.lease - 1
        farm.desk.renew("a", held.fence)
    farm.wait("a", user="bob")


def test_a_clock_that_jumps_back_keeps_no_lease_alive(farm: Farm) -> None:
    held = farm.grant("a")
    farm.clock.seconds -= 900
    farm.desk.renew("a", held.fence)
    farm.clock.seconds += RULES.lease
    with pytest.raises(LeaseLost):
        farm.desk.renew("a", held.fence)


def test_a_machine_that_restarts_has_no_holders(farm: Farm) -> None:
    held = farm.grant("a")
    waiting = farm.wait("a", user="bob")
    farm.clock.epoch, farm.clock.seconds = "boot 2", 5.0
    with pytest.raises(LeaseLost, match="restarted"):
        farm.desk.renew("a", held.fence)
    with pytest.raises(SmeltError, match="is lost"):
        farm.desk.poll(waiting.number)
    assert farm.grant("a").fence > held.fence


def test_a_database_that_was_lost_gives_newer_fences(farm: Farm) -> None:
    held = farm.grant("a")
    again = Farm()
    again.clock.wall = farm.clock.wall + 1
    assert again.grant("a").fence > held.fence


def test_whoever_comes_again_takes_over(farm: Farm) -> None:
    held = farm.grant("a")
    again = farm.join("a", take_over=True)
    assert isinstance(again, Grant)
    with pytest.raises(LeaseLost, match="taken over"):
        farm.desk.renew("a", held.fence)


def test_a_place_that_nobody_keeps_holds_up_nobody(farm: Farm) -> None:
    held = farm.grant("a")
    dead = farm.wait("a", user="bob")
    alive = farm.wait("a", user="eve")
    farm.clock.seconds += RULES.absent - 1
    assert isinstance(farm.desk.poll(alive.number), Waiting)
    farm.clock.seconds += 1
    farm.desk.release("a", held.fence)
    assert isinstance(farm.desk.poll(alive.number), Grant)
    with pytest.raises(SmeltError, match="was not kept"):
        farm.desk.poll(dead.number)


def test_the_wait_is_estimated_from_leases_that_ended(farm: Farm) -> None:
    held = farm.grant("a")
    farm.clock.seconds += 12
    farm.desk.release("a", held.fence)
    farm.grant("a")
    assert farm.wait("a", user="bob").seconds == 12
    assert farm.wait("a", user="eve").seconds == 24


def test_quarantine_is_told_at_once_with_its_reason(farm: Farm) -> None:
    farm.desk.quarantine("a", "it does not boot")
    farm.clock.seconds += 7
    with pytest.raises(NoDevice, match="'a' for 7 s: it does not boot"):
        farm.join("a")
    assert farm.grant("a", "b").device == "b"
    assert farm.desk.restore("a")
    assert not farm.desk.restore("a")
    assert farm.grant("a").device == "a"


def test_whoever_waits_for_a_device_learns_of_its_quarantine(farm: Farm) -> None:
    farm.grant("a")
    waiting = farm.wait("a", user="bob")
    farm.desk.quarantine("a", "smoke")
    with pytest.raises(NoDevice, match="smoke"):
        farm.desk.poll(waiting.number)


def test_nobody_has_more_devices_than_the_cap(farm: Farm) -> None:
    first = farm.grant("a")
    farm.grant("b")
    third = farm.wait("c")
    assert farm.grant("c", user="bob").device == "c"
    farm.desk.release("a", first.fence)
    assert isinstance(farm.desk.poll(third.number), Waiting)  # c is bob's now
    assert farm.grant("a", user="bob").device == "a"


def test_releasing_by_force_tells_the_holder(farm: Farm) -> None:
    held = farm.grant("a")
    assert farm.desk.revoke("a") == held.fence
    assert farm.desk.revoke("a") == 0
    with pytest.raises(LeaseLost, match="by its owner"):
        farm.desk.renew("a", held.fence)


# ---------------------------------------------------------------- the order


def ticket(number: int, user: str = "ann", rank: int = 1, since: float = 0.0, *devices: str) -> Ticket:
    return Ticket(number, user, rank, devices or ("a",), since)


def served(tickets: list[Ticket], used: dict[str, float], now: float = 0.0) -> list[int]:
    return [t.number for t in in_order(tickets, used, now, RULES)]


def test_classes_come_first_then_who_has_had_least_then_age() -> None:
    ordinary = ticket(1)
    assert served([ordinary, ticket(2, rank=0)], {}) == [2, 1]
    assert served([ordinary, ticket(2, user="bob")], {"ann": 5.0}) == [2, 1]
    assert served([ticket(1, since=2.0), ticket(2, since=1.0)], {}, 3.0) == [2, 1]


@settings(max_examples=200)
@given(
    st.integers(0, 2), st.integers(0, 2), st.floats(0, 1e6), st.floats(0, 1e6)
)
def test_nothing_waits_for_ever(own: int, other: int, used: float, less: float) -> None:
    """However the classes and shares are, a ticket comes before whatever arrives some steps later."""
    old = ticket(1, "old", own, 0.0)
    at = (own + 1) * RULES.step
    assert served([ticket(2, "new", other, at), old], {"old": used, "new": less}, at)[0] == 1


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("uvw"), st.sets(st.sampled_from("abcd"), min_size=1)), max_size=9),
    st.sets(st.sampled_from("abcd")),
    st.integers(0, 3),
)
def test_assignments_are_of_free_devices_and_within_the_cap(
    wishes: list[tuple[str, set[str]]], free: set[str], cap: int
) -> None:
    tickets = [Ticket(i, u, 1, tuple(sorted(d)), 0.0) for i, (u, d) in enumerate(wishes)]
    given = assign(tickets, free, {"u": 1}, LeaseRules(cap=cap))
    assert len(set(given.values())) == len(given)
    assert set(given.values()) <= free
    for number, device in given.items():
        assert device in tickets[number].devices
    if cap:
        for user in "uvw":
            has = sum(tickets[n].user == user for n in given) + (user == "u")
            assert has <= max(cap, user == "u")
    else:
        idle = free - set(given.values())
        assert all(t.number in given or not idle & set(t.devices) for t in tickets)


# ---------------------------------------------------------------- jobs


def finish(farm: Farm, job: str, number: int, g: Grant, verdict: Verdict = Verdict.PASS) -> Verdict | None:
    outcome = JobOutcome(verdict, fingerprint="f", samples={"n=1": (5, 6)})
    return farm.jobs.end(job, number, g.device, g.fence, outcome)


def test_a_job_ends_in_one_verdict_and_its_result_says_where(farm: Farm) -> None:
    job = farm.jobs.submit({"do": 1}, ["a"], user="ann", bundle="bb", model="mm")
    g = farm.grant("a")
    number = farm.jobs.begin(job, "a", g.fence)
    assert farm.jobs.waiting() == ()
    assert finish(farm, job, number, g) is Verdict.PASS
    with pytest.raises(SmeltError, match="not under way"):
        finish(farm, job, number, g)
    with pytest.raises(SmeltError, match="ended: pass"):
        farm.jobs.begin(job, "a", g.fence)
    (row,) = farm.jobs.results(job)
    assert {k: row[k] for k in ("job", "attempt", "device", "fence", "fingerprint", "bundle", "model")} == {
        "job": job, "attempt": 1, "device": "a", "fence": g.fence, "fingerprint": "f", "bundle": "bb",
        "model": "mm",
    }  # fmt: skip
    assert (row["verdict"], row["samples"]) == ("pass", {"n=1": [5, 6]})


def test_the_result_of_a_lease_that_is_over_is_refused(farm: Farm) -> None:
    job = farm.jobs.submit({}, ["a"], user="ann")
    old = farm.grant("a")
    number = farm.jobs.begin(job, "a", old.fence)
    farm.clock.seconds += RULES.lease
    assert [j.id for j in farm.jobs.waiting("a")] == [job]
    new = farm.grant("a", user="bob")
    again = farm.jobs.begin(job, "a", new.fence)
    with pytest.raises(LeaseLost):
        finish(farm, job, number, old, Verdict.MISMATCH)
    with pytest.raises(SmeltError, match="not under way"):
        finish(farm, job, number, new)
    finish(farm, job, again, new)
    assert [r["verdict"] for r in farm.jobs.results(job)] == ["pass"]


def test_infrastructure_that_fails_is_tried_again_and_then_told(farm: Farm) -> None:
    job = farm.jobs.submit({}, ["a"], user="ann", tries=2)
    g = farm.grant("a")
    assert finish(farm, job, farm.jobs.begin(job, "a", g.fence), g, Verdict.INFRA) is None
    assert farm.jobs.get(job).verdict is None
    assert finish(farm, job, farm.jobs.begin(job, "a", g.fence), g, Verdict.INFRA) is Verdict.INFRA


def test_a_job_whose_every_attempt_was_lost_ends_too(farm: Farm) -> None:
    job = farm.jobs.submit({}, ["a"], user="ann", tries=1)
    farm.jobs.begin(job, "a", farm.grant("a").fence)
    farm.clock.seconds += RULES.lease
    assert farm.jobs.waiting() == ()
    assert farm.jobs.get(job).verdict == "infra"


def test_a_job_whose_process_has_died_is_cancelled_once(farm: Farm) -> None:
    """Not one that waits in the queue, holds a lease, or was just submitted, nor the jobs of others."""
    for name in ("run-queue", "run-lease", "run-dead", "other"):
        farm.jobs.submit({}, ["a"], user="ann", id=name)
    assert farm.jobs.cancel_orphans("run-", 5.0) == ()
    desk = farm.desk
    lease = desk.join(["a"], holder="run-lease", user="ann")
    place = desk.join(["a"], holder="run-queue", user="ann")
    assert isinstance(lease, Grant) and isinstance(place, Waiting)
    dead = desk.join(["b"], holder="run-dead", user="ann")
    assert isinstance(dead, Grant)
    number = farm.jobs.begin("run-dead", "b", dead.fence)

    def later(seconds: float) -> tuple[str, ...]:
        for _ in range(int(seconds)):
            farm.clock.seconds += 1
            desk.poll(place.number)
            desk.renew("a", lease.fence)
        return farm.jobs.cancel_orphans("run-", 5.0)

    assert later(RULES.lease) == ()
    assert later(6.0) == ("run-dead",)
    assert later(6.0) == ()
    assert farm.jobs.get("run-dead").verdict == "cancelled"
    with pytest.raises(LeaseLost):  # it was only stopped, and goes on
        farm.jobs.end("run-dead", number, "b", dead.fence, JobOutcome(Verdict.PASS))
    assert [farm.jobs.get(j).verdict for j in ("run-queue", "run-lease", "other")] == [None] * 3
    desk.release("a", lease.fence)
    assert farm.jobs.cancel_orphans("run-", 5.0) == ()  # it takes another device at once
    farm.clock.seconds += 5
    assert "run-lease" in farm.jobs.cancel_orphans("run-", 5.0)


def test_a_job_that_is_submitted_twice_is_one(farm: Farm) -> None:
    assert farm.jobs.submit({"n": 1}, ["a"], user="ann", id="x") == "x"
    farm.jobs.submit({"n": 2}, ["a"], user="ann", id="x")
    assert farm.jobs.get("x").work == {"n": 1}


def test_results_cannot_be_changed(farm: Farm) -> None:
    job = farm.jobs.submit({}, ["a"], user="ann")
    g = farm.grant("a")
    finish(farm, job, farm.jobs.begin(job, "a", g.fence), g)
    for change in (sql.update(RESULT).values(verdict="mismatch"), sql.delete(RESULT)):
        with pytest.raises(SmeltError, match="never changed"), farm.database.transaction() as m:
            m.run(change)


# ---------------------------------------------------------------- everything at once

DEVICES, HOLDERS = ("a", "b", "c"), ("ann", "bob", "eve", "kim")


class Everything(RuleBasedStateMachine):
    """Holders that join, poll, renew, work, stop and wake in any order, while the clock runs and jumps.

    The model beside it knows only what was granted, and when by its own count of seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.farm = Farm()
        self.true_time = 0.0  # what has passed, jumps back left out
        self.granted: list[Grant] = []
        self.until: dict[tuple[str, int], float] = {}  # when each expires
        self.tickets: dict[str, int] = {}
        self.held: dict[str, list[Grant]] = {h: [] for h in HOLDERS}  # what they believe that they hold
        self.work: list[tuple[str, int, Grant]] = []
        self.verdicts: dict[str, list[str]] = {}

    def _take(self, holder: str, found: Grant | Waiting) -> None:
        if isinstance(found, Waiting):
            self.tickets[holder] = found.number
            return
        self.tickets.pop(holder, None)
        same = [g for g in self.granted if g.device == found.device]
        assert all(g.fence < found.fence for g in same), "fences increase"
        for g in same:
            assert self.until[g.device, g.fence] <= self.true_time, "nobody else holds it"
        self.granted.append(found)
        self.until[found.device, found.fence] = self.true_time + RULES.lease
        self.held[holder].append(found)

    @rule(holder=st.sampled_from(HOLDERS), devices=st.sets(st.sampled_from(DEVICES), min_size=1))
    def join(self, holder: str, devices: set[str]) -> None:
        if holder not in self.tickets:
            self._take(holder, self.farm.join(*sorted(devices), user=holder))

    @rule(holder=st.sampled_from(HOLDERS))
    def poll(self, holder: str) -> None:
        if holder in self.tickets:
            try:
                self._take(holder, self.farm.desk.poll(self.tickets[holder]))
            except SmeltError:
                del self.tickets[holder]

    @rule(holder=st.sampled_from(HOLDERS), pick=st.integers(0, 9))
    def renew(self, holder: str, pick: int) -> None:
        if not self.held[holder]:
            return
        g = self.held[holder][pick % len(self.held[holder])]
        valid = self.until[g.device, g.fence] > self.true_time
        try:
            self.farm.desk.renew(g.device, g.fence)
            assert valid, "what has expired cannot be renewed"
            self.until[g.device, g.fence] = self.true_time + RULES.lease
        except LeaseLost:
            assert not valid, "what is valid can be renewed"
            self.held[holder].remove(g)

    @rule(holder=st.sampled_from(HOLDERS), pick=st.integers(0, 9))
    def release(self, holder: str, pick: int) -> None:
        if self.held[holder]:
            g = self.held[holder].pop(pick % len(self.held[holder]))
            self.farm.desk.release(g.device, g.fence)
            self.until[g.device, g.fence] = min(self.until[g.device, g.fence], self.true_time)

    @rule(device=st.sampled_from(DEVICES))
    def submit(self, device: str) -> None:
        job = self.farm.jobs.submit({}, [device], user="ann", tries=3, id=f"j{len(self.verdicts)}")
        self.verdicts[job] = []

    @rule(holder=st.sampled_from(HOLDERS), pick=st.integers(0, 9))
    def begin(self, holder: str, pick: int) -> None:
        if not self.held[holder]:
            return
        g = self.held[holder][pick % len(self.held[holder])]
        waiting = self.farm.jobs.waiting(g.device)
        if waiting:
            try:
                number = self.farm.jobs.begin(waiting[0].id, g.device, g.fence)
            except LeaseLost:
                assert self.until[g.device, g.fence] <= self.true_time
                return
            assert self.until[g.device, g.fence] > self.true_time
            self.work.append((waiting[0].id, number, g))

    @precondition(lambda self: self.work)
    @rule(pick=st.integers(0, 99), verdict=st.sampled_from([Verdict.PASS, Verdict.CRASH, Verdict.INFRA]))
    def end(self, pick: int, verdict: Verdict) -> None:
        """Also by holders that have slept through the end of their lease."""
        job, number, g = self.work[pick % len(self.work)]
        try:
            final = finish(self.farm, job, number, g, verdict)
        except LeaseLost:
            assert self.until[g.device, g.fence] <= self.true_time, "who holds the device may tell its result"
            return
        except SmeltError:
            assert self.until[g.device, g.fence] > self.true_time
            return
        assert self.until[g.device, g.fence] > self.true_time, "a stale holder's result is refused"
        if final is not None:
            self.verdicts[job].append(final.value)

    @rule(seconds=st.sampled_from([0.5, 5.0, 9.0, 29.0, 31.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.farm.clock.seconds += seconds
        self.farm.clock.wall += seconds
        self.true_time += seconds

    @rule(seconds=st.sampled_from([0.1, 30.0, 5000.0]))
    def clock_falls_back(self, seconds: float) -> None:
        self.farm.desk.standings()  # the database has seen the time before
        self.farm.clock.seconds -= seconds
        self.farm.clock.wall -= 2 * seconds

    @rule()
    def machine_restarts(self) -> None:
        self.farm.clock.epoch += "'"
        self.farm.clock.seconds = 3.0
        for token in self.until:
            self.until[token] = min(self.until[token], self.true_time)
        self.tickets.clear()

    @invariant()
    def one_valid_fence_per_device(self) -> None:
        with self.farm.database.transaction() as m:
            rows = m.run(sql.select(LEASE).where(LEASE.c.ended.is_(None), LEASE.c.expires > m.now)).all()
        valid = {(r.device, r.fence) for r in rows}
        assert len({d for d, _ in valid}) == len(valid)
        assert valid == {token for token, until in self.until.items() if until > self.true_time}

    @invariant()
    def each_job_ends_once(self) -> None:
        assert all(len(verdicts) <= 1 for verdicts in self.verdicts.values())

    def teardown(self) -> None:
        """Nothing is lost: whatever is still open can be brought to its end."""
        self.farm.clock.seconds += 1000.0
        for _ in range(40):
            waiting = self.farm.jobs.waiting()
            if not waiting:
                break
            g = self.farm.grant(*waiting[0].devices, user="last")
            finish(self.farm, waiting[0].id, self.farm.jobs.begin(waiting[0].id, g.device, g.fence), g)
            self.farm.desk.release(g.device, g.fence)
        for job, verdicts in self.verdicts.items():
            found = self.farm.jobs.get(job).verdict
            assert found is not None
            assert verdicts in ([], [found])  # none was told where the last attempt was lost, or ended here
        self.farm.database.close()


TestEverything = Everything.TestCase
TestEverything.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE ticket SET devices = '[\"a'", "'[\"a' in the place of a JSON list of devices"),
        ("UPDATE ticket SET devices = '{\"a\": 1}'", "in the place of a JSON list of devices"),
        ("UPDATE ticket SET since = 'x'", "'x' in the place of a moment"),
        ("UPDATE lease SET expires = 9e999", "inf in the place of a moment"),
    ],
)
def test_a_damaged_database_is_named_with_what_it_holds(farm: Farm, statement: str, said: str) -> None:
    """SQLite keeps a value of any type in any column, and finds no flipped bit of a row."""
    farm.grant("a")
    waiting = farm.wait("a", user="bob")
    with farm.database.transaction() as m:
        m.run(sql.text(statement))
    for ask in (farm.desk.standings, lambda: farm.desk.poll(waiting.number)):
        with pytest.raises(SmeltError, match="'sqlite://' holds what smelt has not written") as caught:
            ask()
        assert said in str(caught.value)
        assert caught.value.kind == "infra"
        assert "move it away" in str(caught.value.hint)
