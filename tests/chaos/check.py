"""What a campaign has written -> what is wrong with it: check.py FOLDER prints that, and exits with 1.

It knows nothing of the farm's code: only the logs of faults, of agents and of the coordinator, and the rows
of the database as they were at the end.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

Row = dict[str, Any]
INFRASTRUCTURE = {
    "infra", "damaged files", "killed", "disk full", "read-only disk", "link lost", "link stalled",
}  # fmt: skip
ECHO = 20.0
"""Seconds for which the effect of a fault may last."""


def rows(path: Path) -> list[Row]:
    """The JSON lines of a file; the last one may be cut where its writer was killed."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def problems(folder: Path) -> Iterator[str]:
    """Everything that is wrong, a sentence each."""
    faults = rows(folder / "faults.jsonl")
    events = sorted((e for p in folder.glob("agent-*.jsonl") for e in rows(p)), key=lambda e: e["t"])
    submitted = rows(folder / "coordinator.jsonl")
    base = json.loads((folder / "database.json").read_text())
    end = json.loads((folder / "end.json").read_text())
    yield from _faults(faults, end)
    yield from _jobs(base, events, submitted, faults)
    yield from _leases(base["lease"], events)
    yield from _runs(events)
    yield from _results(base)
    yield from _whole(end)


def _faults(faults: list[Row], end: Row) -> Iterator[str]:
    if len(faults) != end["faults"]:
        yield f"{end['faults']} faults were asked for, {len(faults)} are in the log"
    missing = set(end["kinds"]) - {f["kind"] for f in faults}
    if missing and len(faults) >= 2 * len(end["kinds"]):
        yield f"no fault of kind {', '.join(sorted(missing))}"


def _jobs(base: Row, events: list[Row], submitted: list[Row], faults: list[Row]) -> Iterator[str]:
    stored = {j["id"]: j for j in base["job"]}
    if len(stored) != len(base["job"]):
        yield "a job is in the database twice"
    may = {e["job"]: e["may"] for e in submitted if e["event"] == "submitted"}
    for job in may:
        if job not in stored:
            yield f"job {job!r} was submitted and is lost"
    told = Counter(e["job"] for e in events if e["event"] == "ended" and e["verdict"])
    by_job = defaultdict(list)
    for e in events:
        if "job" in e:
            by_job[e["job"]].append(e)
    for id, job in stored.items():
        verdict = job["verdict"]
        if verdict is None:
            yield f"job {id!r} has no verdict"
            continue
        if told[id] > 1:
            yield f"job {id!r} ended {told[id]} times"
        for e in by_job[id]:
            if e["event"] == "ended" and e["verdict"] not in (None, verdict):
                yield f"job {id!r} ended as {e['verdict']} and is stored as {verdict}"
        if id in may and verdict not in INFRASTRUCTURE and verdict not in may[id]:
            yield f"job {id!r} may end as {may[id]} and ended as {verdict}"
        if verdict in INFRASTRUCTURE and by_job[id]:
            first, last = by_job[id][0]["t"] - ECHO, by_job[id][-1]["t"]
            if not any(f["t"] <= last and f["until"] >= first for f in faults):
                yield f"job {id!r} ended as {verdict} though nothing had failed"


def _leases(leases: list[Row], events: list[Row]) -> Iterator[str]:
    for device in {x["device"] for x in leases}:
        own = sorted((x for x in leases if x["device"] == device), key=lambda x: (x["since"], x["fence"]))
        for a, b in pairwise(own):
            if b["fence"] <= a["fence"]:
                yield f"fence {b['fence']} of {device} came after {a['fence']}"
            if a["ended"] is None or b["since"] < a["ended"]:
                yield f"fences {a['fence']} and {b['fence']} of {device} were valid at once"
    got = Counter((e["device"], e["fence"]) for e in events if e["event"] == "granted")
    for token, times in got.items():
        if times > 1:
            yield f"fence {token[1]} of {token[0]} was given out {times} times"
    known = {(x["device"], x["fence"]) for x in leases}
    for token in set(got) - known:
        yield f"fence {token[1]} of {token[0]} is not in the database"


def _runs(events: list[Row]) -> Iterator[str]:
    """A device that has worked for a fence must not work for an older one any more."""
    ran = sorted((e for e in events if e["event"] == "ran"), key=lambda e: e["t"])
    for device in {e["device"] for e in ran}:
        own = [e for e in ran if e["device"] == device]
        highest, since = 0, 0.0  # the newest fence of a run that has ended, and when it did first
        by_start = sorted(own, key=lambda e: e["began"])
        done = iter(own)
        pending = next(done, None)
        for e in by_start:
            while pending is not None and pending["t"] < e["began"]:
                if pending["fence"] > highest:
                    highest, since = pending["fence"], pending["t"]
                pending = next(done, None)
            if e["fence"] < highest:
                late = e["began"] - since
                yield f"{device} ran for fence {e['fence']} {late:.3f} s after it had for {highest}"


def _results(base: Row) -> Iterator[str]:
    leases = defaultdict(list)
    for x in base["lease"]:
        leases[x["device"]].append(x)
    seen = Counter((r["job"], r["attempt"]) for r in base["result"])
    for (job, attempt), times in seen.items():
        if times > 1:
            yield f"attempt {attempt} of job {job!r} has {times} results"
    verdicts = {j["id"]: j["verdict"] for j in base["job"]}
    last: dict[str, Row] = {}
    for r in base["result"]:
        last[r["job"]] = r
        own = [x for x in leases[r["device"]] if x["fence"] == r["fence"]]
        if len(own) != 1:
            yield f"a result of job {r['job']!r} has fence {r['fence']}, which nobody had"
            continue
        newer = [x for x in leases[r["device"]] if x["fence"] > r["fence"] and x["since"] < r["at"]]
        if newer or (own[0]["ended"] is not None and own[0]["ended"] < r["at"]):
            yield f"a result of job {r['job']!r} was taken from fence {r['fence']}, which was stale"
    for job, r in last.items():
        if r["verdict"] not in INFRASTRUCTURE and verdicts[job] != r["verdict"]:
            yield f"the last result of job {job!r} is {r['verdict']}, its verdict {verdicts[job]}"


def _whole(end: Row) -> Iterator[str]:
    for device, found in end["devices"].items():
        if found != "pass":
            yield f"{device} is not whole at the end: {found}"
    for what, kept in end["left"].items():
        if kept:
            yield f"left at the end: {what}: {kept}"


def main() -> int:
    found = list(problems(Path(sys.argv[1])))
    for line in found[:100]:
        print(line)
    print(f"{len(found)} problems" if found else "nothing is wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
