"""A job and a lease -> one attempt at it, whose outcome is stored; the host's side of every job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import DeviceClaim, FenceFile
from smelt.devicefarm.health import Unwell
from smelt.devicefarm.leases.desk import Desk
from smelt.devicefarm.leases.holder import Lease
from smelt.devicefarm.leases.jobs import Job, JobOutcome, Jobs
from smelt.devicefarm.verdict import Verdict, verdict_of_error

Work = Callable[[Job, Lease, DeviceClaim], JobOutcome]
"""Does a job on the device of a lease, showing the claim; a SmeltError is an outcome, too."""


@dataclass(frozen=True)
class Agent:
    """Attempts jobs on this host. fence: the host's fence file of a device."""

    desk: Desk
    jobs: Jobs
    work: Work
    fence: Callable[[str], FenceFile]

    def claim(self, lease: Lease) -> DeviceClaim:
        """What sessions under the lease show; each request checks the lease and the host's fence first."""
        host = self.fence(lease.device)

        def check() -> None:
            lease.check()
            host.admit(lease.fence)

        return DeviceClaim(lease.fence, check, place=str(host.path))

    def attempt(self, job: Job, lease: Lease) -> Verdict | None:
        """Do the job once; its verdict, None where it has none yet and may be tried again.

        A device that could not be mended is put into quarantine. Raises SmeltError(kind='invalid') for a job
        that is under way elsewhere or has ended, and 'infra' where the database fails.
        """
        try:
            claim = self.claim(lease)
            claim.check()
            number = self.jobs.begin(job.id, lease.device, lease.fence)
            outcome = self._outcome(job, lease, claim)
            return self.jobs.end(job.id, number, lease.device, lease.fence, outcome)
        except SmeltError as error:
            if stale(error):
                return None  # the attempt was lost with the lease, and counts for nothing
            raise

    def _outcome(self, job: Job, lease: Lease, claim: DeviceClaim) -> JobOutcome:
        try:
            return self.work(job, lease, claim)
        except Unwell as error:
            self.desk.quarantine(lease.device, error.message)
            return JobOutcome(verdict_of_error(error), str(error))
        except SmeltError as error:
            if stale(error):
                raise
            return JobOutcome(verdict_of_error(error), str(error))


def stale(error: SmeltError) -> bool:
    """Whether the lease was over: what was done under it counts for nothing."""
    return getattr(error, "status", "") == "stale"
