"""The coordinator of a campaign submits its jobs. It may be killed at any moment: they have ids of their own.

coordinator.py PLAN URL OFFSET LOG STOP AHEAD takes the plan's jobs in order until the file STOP exists, so
that AHEAD of them wait for an agent.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from worker import RULES, Log, clock

from smelt.core.diag import SmeltError
from smelt.devicefarm.leases.database import Database
from smelt.devicefarm.leases.desk import Desk
from smelt.devicefarm.leases.jobs import Jobs


def main() -> None:
    plan, url, offset, log, stop, ahead = sys.argv[1:]
    desk = Desk(Database(url, clock(Path(offset))), RULES)
    jobs, note = Jobs(desk.database), Log(Path(log))
    lines = (json.loads(line) for line in Path(plan).read_text().splitlines())
    for row in lines:
        while len(jobs.waiting()) >= int(ahead):
            if Path(stop).exists():
                return
            time.sleep(0.1)
        if Path(stop).exists():
            return
        note("submitting", job=row["id"])
        jobs.submit(row["work"], row["devices"], user=row["id"], bundle="b", model="m", tries=4, id=row["id"])
        note("submitted", job=row["id"], may=row["may"])


if __name__ == "__main__":
    while True:
        try:
            main()
            break
        except SmeltError:  # the database is busy for once
            time.sleep(0.2)
