"""An agent of the campaign, which attempts jobs until it is killed: worker.py STATIONS URL OFFSET LOG SEED
[unfenced].

It writes what it does into a log of its own, a JSON line each: leases that it got, runs on devices that went
well and when they began, verdicts that it had stored. Half of its attempts do not look at their own lease
before they work: then host, device and results have to refuse what is stale.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import sqlalchemy as sql

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devicefarm"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import stations

from smelt.core.diag import SmeltError
from smelt.devicefarm import claim as claims
from smelt.devicefarm.agent import Agent
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.claim import DeviceClaim, FenceFile
from smelt.devicefarm.client import open_session
from smelt.devicefarm.health import Ladder, Patient, ensure_well
from smelt.devicefarm.inventory import NoDevice
from smelt.devicefarm.leases import desk as desks
from smelt.devicefarm.leases import jobs as job_store
from smelt.devicefarm.leases.database import ClockReading, Database, machine_clock
from smelt.devicefarm.leases.desk import Desk
from smelt.devicefarm.leases.holder import Lease, take
from smelt.devicefarm.leases.jobs import Job, JobOutcome, Jobs
from smelt.devicefarm.leases.order import LeaseRules
from smelt.devicefarm.verdict import Verdict

RULES = LeaseRules(lease=2.5, absent=4.0)
LIMITS = StepLimits(
    connect=6, command=6, upload=8, load=10, run=2.5, output=8, close=1.5, idle=20, beat=0.5, silence=3,
    grace=2, total=40,
)  # fmt: skip
SLOW = replace(LIMITS, connect=30, command=30, upload=60, load=60, run=20, output=30, silence=15, total=150)
"""Of a whole emulated machine."""
BETWEEN_RUNS = 0.8
"""Seconds between the two runs of an agent without fences, in which the campaign stops it."""
EATEN = 256 << 20
THREADS = 2


class Log:
    """Lines of JSON that survive the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def __call__(self, event: str, **what: object) -> None:
        with self._lock:
            self._file.write(json.dumps({"t": time.monotonic(), "event": event, **what}) + "\n")


def clock(offset: Path):  # type: ignore[no-untyped-def]
    """The lease clock, which the campaign makes jump."""

    def read(connection: sql.Connection) -> ClockReading:
        found = machine_clock(connection)
        try:
            ahead = float(offset.read_text() or 0)
        except (OSError, ValueError):
            ahead = 0.0
        return replace(found, seconds=found.seconds + ahead, wall=found.wall + ahead)

    return read


class Worker:
    """One agent's threads."""

    def __init__(self, place: Path, url: str, offset: Path, log: Path, seed: int, share: float) -> None:
        self.stations = stations.read(place)
        self.desk = Desk(Database(url, clock(offset)), RULES)
        self.jobs = Jobs(self.desk.database)
        self.log, self.seed = Log(log), seed
        hosts = place.parent / "host-fences"
        self.agent = Agent(self.desk, self.jobs, self.work, lambda d: FenceFile(hosts / d))
        self.naive = threading.local()
        self.share = share

    def work(self, job: Job, lease: Lease, claim: DeviceClaim) -> JobOutcome:
        """Two sessions, as a comparison of two builds has them."""
        if self.naive.now:
            claim = replace(claim, check=lambda: FenceFile(Path(claim.place)).admit(lease.fence))
        station = self.stations[lease.device]
        transport = station.open()
        try:
            if job.work.get("careful"):
                ladder = Ladder(total=8.0, boot=5.0, look=0.2)
                ensure_well(Patient(transport, station.root), ladder=ladder)
            bundle = Path(str(job.work.get("bundle") or station.bundle))
            for _ in range(2):
                self.session(job, lease, transport, bundle, claim)
                time.sleep(BETWEEN_RUNS if self.share == 1.0 else 0.0)
            return JobOutcome(Verdict.PASS, fingerprint=station.kind)
        finally:
            transport.close()

    def session(self, job: Job, lease: Lease, transport, bundle: Path, claim: DeviceClaim) -> None:  # type: ignore[no-untyped-def]
        mode, rows = int(job.work["mode"]), int(job.work["rows"])
        x = np.full((rows, 3), rows, np.float32)
        eats = EATEN if mode == 5 else 0
        budget = Budget(SLOW if self.stations[lease.device].kind == "board" else LIMITS)
        with open_session(transport, bundle, budget=budget, claim=claim, memory_limit=eats) as client:
            began = time.monotonic()
            report = client.run([x, np.int32(mode)])
            if not np.array_equal(report.outputs["y"], 2 * x):
                client.confirm()
                raise SmeltError("the output is wrong", kind="shape")
            self.log("ran", device=lease.device, fence=lease.fence, job=job.id, began=began)

    def attempt(self, rng: random.Random) -> None:
        waiting = self.jobs.waiting()
        if not waiting:
            time.sleep(0.05)
            return
        job = waiting[rng.randrange(min(len(waiting), 8))]
        with take(self.desk, job.devices, user=f"user {job.id[:1]}", timeout=4) as lease:
            self.log("granted", device=lease.device, fence=lease.fence, job=job.id)
            self.naive.now = rng.random() < self.share
            verdict = self.agent.attempt(job, lease)
            self.log("ended", device=lease.device, fence=lease.fence, job=job.id,
                     verdict=verdict.value if verdict else None)  # fmt: skip

    def loop(self, k: int) -> None:
        rng = random.Random(self.seed * 31 + k)
        while True:
            try:
                self.attempt(rng)
            except NoDevice:
                continue
            except SmeltError as error:  # another agent was faster, or the database is busy
                self.log("refused", why=str(error)[:200])
                time.sleep(0.05)


def unfenced() -> None:
    """Take every comparison of fences out, as the test of the checker wants it."""
    claims.admits = desks.admits = lambda highest, fence: True
    job_store.require = lambda m, device, fence: None  # type: ignore[assignment]


def main() -> None:
    place, url, offset, log, seed, *more = sys.argv[1:]
    if more == ["unfenced"]:
        unfenced()
    share = 1.0 if more else 0.5
    worker = Worker(Path(place), url, Path(offset), Path(log), int(seed), share)
    for k in range(THREADS):
        threading.Thread(target=worker.loop, args=(k,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()


