"""Processes that take leases: started by tests, which stop, kill and wake them.

    holders.py hold URL RULES DEVICE        take the device, say so, keep it until a line comes in; then tell
                                            whether it is still held, and whether a result is still taken
    holders.py turns URL RULES DEVICES N FOLDER    take one of the devices N times, and tell every fence
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import DeviceClaim, FenceFile
from smelt.devicefarm.client import open_session
from smelt.devicefarm.leases.database import Database
from smelt.devicefarm.leases.desk import Desk
from smelt.devicefarm.leases.holder import take
from smelt.devicefarm.leases.jobs import JobOutcome, Jobs
from smelt.devicefarm.leases.order import LeaseRules
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.verdict import Verdict


def say(**what: object) -> None:
    """One line of JSON."""
    print(json.dumps(what), flush=True)


def refusal(action) -> str:  # type: ignore[no-untyped-def]
    """What an action is refused with; '' where it is not."""
    try:
        action()
    except SmeltError as error:
        return str(getattr(error, "status", error.kind))
    return ""


def hold(desk: Desk, device: str, bundle: str = "", store: str = "") -> None:
    jobs = Jobs(desk.database)
    job = jobs.submit({}, [device], user="holder")
    with take(desk, [device], user="holder") as lease:
        number = jobs.begin(job, device, lease.fence)
        # without the own check of the holder: the others must refuse by themselves
        claim = DeviceClaim(lease.fence)
        host = FenceFile(Path(store).parent / "host-fence")
        host.admit(lease.fence)
        import numpy as np

        fed = [np.zeros((1, 1), np.float32), np.int32(0)]
        with open_session(LocalTransport("stored", store=Path(store)), Path(bundle), claim=claim) as client:
            client.run(fed)
            say(fence=lease.fence, job=job, pid=os.getpid())
            sys.stdin.readline()
            say(
                own=refusal(lease.check),
                host=refusal(lambda: host.admit(lease.fence)),
                runner=refusal(lambda: client.run(fed)),
                results=refusal(
                    lambda: jobs.end(job, number, device, lease.fence, JobOutcome(Verdict.MISMATCH))
                ),
            )
        say(again=refusal(lambda: once(store, bundle, claim, fed)))


def once(store: str, bundle: str, claim: DeviceClaim, fed: list[object]) -> None:
    with open_session(LocalTransport("stored", store=Path(store)), Path(bundle), claim=claim) as client:
        client.run(fed)  # type: ignore[arg-type]


def turns(desk: Desk, devices: list[str], count: int, folder: Path) -> None:
    for _ in range(count):
        with take(desk, devices, user=str(os.getpid())) as lease:
            inside = folder / lease.device
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # FileExistsError: somebody else is here
            say(device=lease.device, fence=lease.fence)
            time.sleep(0.002)
            inside.unlink()


if __name__ == "__main__":
    what, url, rules, *rest = sys.argv[1:]
    desk = Desk(Database(url), LeaseRules(**json.loads(rules)))
    if what == "hold":
        hold(desk, *rest)
    else:
        turns(desk, rest[0].split(","), int(rest[1]), Path(rest[2]))
