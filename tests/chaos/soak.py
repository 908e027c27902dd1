"""Many jobs over a fleet that nothing breaks -> what a job costs, and whether anything is left or grows.

    soak.py --jobs 1000        over all six devices at once
    soak.py --device bench-1   on one alone, for its time

Each job takes a lease, deploys, starts a runner, loads and runs the fake model twice and stores its result;
the model itself takes microseconds, so the rest is the farm's overhead. Every device has an agent here.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devicefarm"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np
import rig
import stations
from processes import started

from smelt.core.diag import SmeltError
from smelt.devicefarm.agent import Agent
from smelt.devicefarm.claim import DeviceClaim, FenceFile
from smelt.devicefarm.client import open_session
from smelt.devicefarm.leases.database import Database
from smelt.devicefarm.leases.desk import Desk
from smelt.devicefarm.leases.holder import Lease, take
from smelt.devicefarm.leases.jobs import Job, JobOutcome, Jobs
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.transport import Transport
from smelt.devicefarm.verdict import Verdict

GROWTH = 16 << 20
"""Bytes that this process may have grown by between the first tenth of the jobs and the last: pages."""
IN_USE = 1 << 20
"""The same of the bytes in use: without those that the C library holds free in arenas of threads that are
no more."""


class MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
        "keepcost",
    )]  # fmt: skip


def in_use() -> int:
    """Bytes that the C library has given out and not got back, and those of Python's own blocks, each taken
    for its mean size."""
    library = ctypes.CDLL("libc.so.6")
    library.mallinfo2.restype = MallInfo
    gc.collect()
    found = library.mallinfo2()
    return int(found.uordblks + found.hblkhd) + sys.getallocatedblocks() * BLOCK


BLOCK = 96
"""Bytes; Python's small blocks have 16 to 512."""


@dataclass
class Kept:
    """What this process holds: bytes of memory, files, sockets, threads, processes that it has started."""

    resident: int
    files: int
    sockets: int
    threads: int
    processes: int

    @staticmethod
    def now() -> Kept:
        """Look."""
        gc.collect()
        links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _open(n)]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sockets = sum(x.startswith("socket:") for x in links)
        size, alive = pages * os.sysconf("SC_PAGESIZE"), len(started(os.getpid()))
        return Kept(size, len(links) - sockets, sockets, threading.active_count(), alive)


def _open(n: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{n}")


@dataclass
class Soak:
    """The agents' common state. took: kind of a device -> ms of each job there."""

    stations: dict[str, stations.Station]
    desk: Desk
    folder: Path
    took: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, name: str, left: list[int]) -> None:
        """Do jobs on one device until none is left."""
        station = self.stations[name]
        transport = opened(station)  # one connection, as an agent keeps it
        jobs = Jobs(self.desk.database)

        def work(job: Job, lease: Lease, claim: DeviceClaim) -> JobOutcome:
            x = np.ones((2, 3), np.float32)
            with open_session(transport, Path(station.bundle), claim=claim) as client:
                for _ in range(2):
                    right = np.array_equal(client.run([x, np.int32(0)]).outputs["y"], 2 * x)
            return JobOutcome(Verdict.PASS if right else Verdict.MISMATCH, fingerprint=station.kind)

        agent = Agent(self.desk, jobs, work, lambda d: FenceFile(self.folder / "fences" / d))
        while True:
            with self.lock:
                if not left:
                    break
                number = left.pop()
            job = jobs.get(jobs.submit({"n": number}, [name], user="soak"))
            start = time.perf_counter()
            try:
                with take(self.desk, [name], user="soak") as lease:
                    verdict = agent.attempt(job, lease)
                problem = "" if verdict is Verdict.PASS else f"{name}: {jobs.results(job.id)[-1]['message']}"
            except SmeltError as error:
                problem = f"{name}: {error}"
            with self.lock:
                self.took.setdefault(station.kind, []).append((time.perf_counter() - start) * 1e3)
                self.failed += [problem] if problem else []
                if number % 20 == 0:
                    self.samples.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
                    self.used.append(in_use())
        transport.close()


def opened(station: stations.Station) -> Transport:
    """A transport to the station, without the relays and links that break things."""
    if station.kind == "local":
        return LocalTransport(station.name, store=Path(station.root))
    return station.open()


def soak(folder: Path, count: int, only: Sequence[str] = ()) -> dict[str, object]:
    """Run it; what was found. only: the devices that work, () for all."""
    native = rig.build_native(folder / "native" / "bundle")
    arm64 = rig.build_arm64(folder / "arm64" / "bundle")
    before = Kept.now()
    with stations.fleet(folder, native, arm64) as fleet:
        desk = Desk(Database(f"sqlite:///{folder / 'farm.db'}"))
        made = Soak(fleet.stations, desk, folder)
        left = list(range(count))
        agents = [threading.Thread(target=made.serve, args=(n, left)) for n in only or fleet.stations]
        for t in agents:
            t.start()
        for t in agents:
            t.join()
        runners = [p for s in fleet.stations.values() for p in stations.runners(s.root)]
        uploads = [p.name for s in fleet.stations.values() for p in Path(s.root, "tmp").glob("*")]
        uses = [p.name for s in fleet.stations.values() for p in Path(s.root, "use").glob("*")]
        held = [s.device for s in desk.standings() if s.holder]
        desk.database.close()
    for _ in range(50):  # threads of links end when their sockets do
        after = Kept.now()
        if after.threads <= before.threads and after.processes <= before.processes:
            break
        time.sleep(0.1)
    tenth = max(1, len(made.samples) // 10)
    grown = max(made.samples[-tenth:], default=0) - max(made.samples[: 2 * tenth], default=0)
    return {
        "jobs": count,
        "failed": made.failed,
        "median_ms": {k: round(statistics.median(v), 1) for k, v in made.took.items()},
        "grown_bytes": grown,
        "in_use_bytes": made.used[:: max(1, len(made.used) // 10)],
        "in_use_grown_bytes": round(_median(made.used[-tenth:]) - _median(made.used[: 2 * tenth])),
        "left": {
            "runners": runners, "uploads": uploads, "sessions": uses, "leases": held,
            "files": after.files - before.files, "sockets": after.sockets - before.sockets,
            "threads": after.threads - before.threads, "processes": after.processes - before.processes,
        },
    }  # fmt: skip


def _median(values: Sequence[int]) -> float:
    return statistics.median(values) if values else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--device", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smelt-soak-") as folder:
        found = soak(Path(folder), args.jobs, args.device)
    print(json.dumps(found, indent=1))
    left = found["left"]
    assert isinstance(left, dict)
    grown = found["grown_bytes"]
    assert isinstance(grown, int)
    used = found["in_use_grown_bytes"]
    assert isinstance(used, int)
    bad = found["failed"] or any(left.values()) or grown > GROWTH or used > IN_USE
    print("something is left, lost or growing" if bad else f"on {socket.gethostname()}: nothing is left")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
