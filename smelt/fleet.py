"""A bundle and some devices -> the same work on all of them at once: jobs with a verdict each, in the farm's
database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.agent import Agent, Work
from smelt.devicefarm.inventory import Device, NoDevice, choose, read_inventory
from smelt.devicefarm.leases.database import process_name
from smelt.devicefarm.leases.desk import Desk, Waiting
from smelt.devicefarm.leases.holder import Lease, take
from smelt.devicefarm.leases.jobs import Job, Jobs
from smelt.devicefarm.places import host_fence
from smelt.devicefarm.verdict import Verdict, verdict_of_error
from smelt.leasing import user_name
from smelt.targets.platform import host_platform_name

OWN_JOB = "run-"
"""How the ids begin of jobs that end with the process which submitted them."""


@dataclass(frozen=True)
class FleetPart:
    """What came of the work on one device. device: '' where none was had."""

    job: str
    device: str
    verdict: Verdict
    message: str = ""
    attempts: int = 0


@dataclass(frozen=True)
class Crowd:
    """Which devices do the work. slots: for each, the devices of which one will do; no two get the same."""

    slots: tuple[tuple[str, ...], ...]


def named(names: Sequence[str]) -> Crowd:
    """All of these devices. Raises NoDevice for a name that there is not."""
    known = read_inventory()
    missing = [n for n in names if n not in known]
    if missing:
        raise NoDevice(f"no device is called '{missing[0]}'; there are {', '.join(sorted(known))}")
    return Crowd(tuple((n,) for n in dict.fromkeys(names)))


def tagged(platform: str, tags: Sequence[str], count: int | None, pool: str = "") -> Crowd:
    """`count` of the devices of the platform that have all of these tags and are in the pool ('': any), None
    for all of them. Raises NoDevice where there are fewer."""
    chosen = choose(read_inventory().values(), tags=tags, pool=pool)
    fits = [d.name for d in chosen if _fits(d, platform)]
    if len(fits) < (count or 1):
        what = (f" with tag {', '.join(tags)}" if tags else "") + (f" in pool {pool}" if pool else "")
        wish = f"{count or 1} devices of platform '{platform}'{what}"
        raise NoDevice(f"{wish} are wanted; there are {len(fits)}")
    if count is None:
        return Crowd(tuple((n,) for n in sorted(fits)))
    return Crowd((tuple(sorted(fits)),) * count)


def _fits(device: Device, platform: str) -> bool:
    return (host_platform_name() if device.platform == "host" else device.platform) == platform


class Fleet:
    """One piece of work on several devices. Every device's part runs in a thread of its own."""

    def __init__(
        self,
        desk: Desk,
        bundle: Bundle,
        crowd: Crowd,
        work: Work,
        *,
        what: Mapping[str, Any],
        priority: str = "normal",
        timeout: float | None = None,
        tries: int = 3,
        on_wait: Callable[[str, Waiting], None] = lambda d, w: None,
        on_part: Callable[[FleetPart], None] = lambda p: None,
    ) -> None:
        """what: the work as stored with its jobs. timeout: seconds to wait for a device. tries: how often
        infrastructure may fail a part. on_wait, on_part: called from the parts' threads."""
        self._desk, self._jobs = desk, Jobs(desk.database)
        self._agent = Agent(desk, self._jobs, work, host_fence)
        self._crowd, self._priority, self._timeout = crowd, priority, timeout
        self._on_wait, self._on_part = on_wait, on_part
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._leases: list[Lease] = []
        self._jobs.cancel_orphans(OWN_JOB, desk.rules.lease + desk.rules.absent)
        own = process_name()
        self._ids = [
            self._jobs.submit(
                what, slot, user=user_name(), bundle=bundle.digest,
                model=str(bundle.manifest["model"]["sha256"]), tries=tries,
                id=f"{OWN_JOB}{own}/{k}",
            )
            for k, slot in enumerate(crowd.slots)
        ]  # fmt: skip

    def run(self) -> tuple[FleetPart, ...]:
        """Do all parts; what came of each, in the order of the slots. An interrupt gives the devices back and
        cancels what has not ended."""
        found: dict[int, FleetPart] = {}

        def body(k: int) -> None:
            try:
                found[k] = self._part(k)
            except SmeltError as error:  # the database takes no verdict: a later run cancels the job
                found[k] = FleetPart(self._ids[k], "", verdict_of_error(error), str(error))
            self._on_part(found[k])

        threads = [threading.Thread(target=body, args=(k,), daemon=True) for k in range(len(self._ids))]
        try:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        except KeyboardInterrupt:
            for job in self._ids:
                self._jobs.give_up(job, Verdict.CANCELLED)
            for lease in self._leases:
                lease.close()
            raise
        return tuple(found[k] for k in range(len(threads)))

    def _part(self, k: int) -> FleetPart:
        job, failed = self._jobs.get(self._ids[k]), set[str]()
        device, attempts, message = "", 0, ""
        while True:
            lease: Lease | None = None
            verdict: Verdict | None = None
            try:
                lease = self._take(job.id, self._crowd.slots[k], failed)
                device, attempts = lease.device, attempts + 1
                verdict = self._agent.attempt(job, lease)
                rows = self._jobs.results(job.id)
                message = str(rows[-1]["message"]) if rows else ""
            except Exception as error:  # a thread's error would be lost with it
                found = error if isinstance(error, SmeltError) else _internal(error)
                verdict, message = self._gave_up(job, found)
            finally:
                if lease is not None:
                    self._give_back(lease, again=verdict is None)
            if verdict is None and attempts >= job.tries:
                verdict = self._jobs.give_up(job.id, Verdict.INFRA)
            if verdict is not None:
                return FleetPart(job.id, device, verdict, message, attempts)
            failed.add(device)

    def _gave_up(self, job: Job, error: SmeltError) -> tuple[Verdict, str]:
        """The verdict of a job that cannot go on: where its devices were lost to quarantine, what they failed
        with."""
        rows = self._jobs.results(job.id)
        if isinstance(error, NoDevice) and rows:
            return self._jobs.give_up(job.id, Verdict(rows[-1]["verdict"])), str(rows[-1]["message"])
        return self._jobs.give_up(job.id, verdict_of_error(error)), str(error)

    def _take(self, job: str, slot: Sequence[str], failed: set[str]) -> Lease:
        """A device of the slot for the job, which no other part has, if possible one that has not failed."""
        while True:
            with self._lock:
                left = [d for d in slot if d not in self._used]
            fresh = [d for d in left if d not in failed] or left
            lease = take(
                self._desk, fresh, user=user_name(), holder=job, priority=self._priority,
                timeout=self._timeout, on_wait=partial(self._on_wait, ", ".join(fresh)),
            )  # fmt: skip
            with self._lock:
                mine = lease.device not in self._used
                if mine:
                    self._used.add(lease.device)
                    self._leases.append(lease)
            if mine:
                return lease
            lease.close()

    def _give_back(self, lease: Lease, again: bool) -> None:
        lease.close()
        with self._lock:
            self._leases.remove(lease)
            if again:
                self._used.remove(lease.device)


def _internal(error: Exception) -> SmeltError:
    return SmeltError(f"{type(error).__name__}: {error}", kind="internal")

