"""A seed and a number of faults -> a fleet of six emulated devices under them, and the logs of what happened.

    campaign.py --seed 0 --faults 500 --folder out    then check.py out

faults.jsonl has a line for each fault; agent-*.jsonl and coordinator.jsonl what the processes did;
database.json the farm's database at the end; end.json how the devices were then, and what was left. Times are
seconds of this machine's monotonic clock, but those in the database, which are of the lease clock that jumps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devicefarm"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import check
import numpy as np
import plan
import rig
import sqlalchemy as sql
import stations
from processes import started
from worker import BETWEEN_RUNS, RULES, SLOW, clock

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.client import open_session
from smelt.devicefarm.leases.database import Database
from smelt.devicefarm.leases.desk import Desk
from smelt.devicefarm.leases.jobs import Jobs
from smelt.devicefarm.leases.tables import ATTEMPT, JOB, LEASE, RESULT

HERE = Path(__file__).resolve().parent
AGENTS = 3
FAULTS_OF_MAKE = 500
BOOT = 60.0
"""Seconds for which a board may be away after its power was."""
SETTLE = 300.0
"""Seconds after which jobs must have ended once nothing is broken any more."""


@dataclass
class Campaign:
    """Everything that a fault can reach. heals: what is to be mended, and when."""

    folder: Path
    fleet: stations.Fleet
    rng: random.Random
    desk: Desk
    url: str
    unfenced: bool
    ahead: int  # how many jobs wait
    agents: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    coordinator: subprocess.Popen[bytes] | None = None
    started: int = 0
    heals: list[tuple[float, str, Callable[[], None], dict[str, Any]]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)

    # ---- processes ----

    def start_agent(self, k: int) -> None:
        self.started += 1
        log = self.folder / f"agent-{k}-{self.started}.jsonl"
        argv = [sys.executable, str(HERE / "worker.py"), str(self.folder / "stations.json"), self.url,
                str(self.folder / "offset"), str(log), str(self.rng.getrandbits(30))]  # fmt: skip
        self.agents[k] = self.spawn([*argv, *(["unfenced"] if self.unfenced else [])], f"agent-{k}")

    def start_coordinator(self) -> None:
        argv = [sys.executable, str(HERE / "coordinator.py"), str(self.folder / "plan.jsonl"), self.url,
                str(self.folder / "offset"), str(self.folder / "coordinator.jsonl"),
                str(self.folder / "stop"), str(self.ahead)]  # fmt: skip
        self.coordinator = self.spawn(argv, "coordinator")

    def spawn(self, argv: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.stderr").open("ab") as errors:
            return subprocess.Popen(argv, stdout=errors, stderr=errors)

    def keep_alive(self) -> None:
        """Start again what has died, mend what is due, give out again what is in quarantine."""
        for k, process in list(self.agents.items()):
            if process.poll() is not None:
                self.start_agent(k)
        done = self.coordinator is not None and self.coordinator.poll() == 0
        if not done and (self.coordinator is None or self.coordinator.poll() is not None):
            self.start_coordinator()
        for entry in [h for h in self.heals if h[0] <= time.monotonic()]:
            self.heals.remove(entry)
            entry[2]()
            entry[3]["until"] = time.monotonic()
        with contextlib.suppress(SmeltError):
            for s in self.desk.standings():
                if s.quarantined:
                    self.desk.restore(s.device)

    # ---- faults ----

    def later(self, seconds: float, what: str, heal: Callable[[], None], row: dict[str, Any]) -> None:
        self.heals.append((time.monotonic() + seconds, what, heal, row))

    def held(self, what: str) -> bool:
        """Whether a fault that must end first is on this part."""
        return any(h[1] == what for h in self.heals)

    def inject(self, kind: str) -> bool:
        """Cause one fault; whether there was something to break."""
        row: dict[str, Any] = {"t": time.monotonic(), "kind": kind}
        found = FAULTS[kind](self, row)
        if found is None:
            return False
        row |= found
        row.setdefault("until", time.monotonic())
        self.faults.append(row)
        return True

    def awaited(self, what: Callable[[], bool], seconds: float) -> bool:
        """Whether it comes about by then, while what dies is started again."""
        deadline = time.monotonic() + seconds
        while not (met := what()) and time.monotonic() < deadline:
            self.keep_alive()
            time.sleep(0.05)
        return met

    def pick(self, names: Any) -> str:
        return self.rng.choice(sorted(names))


def _link(do: Callable[[Campaign, stations.Link], None]) -> Callable[[Campaign, dict[str, Any]], Any]:
    def fault(c: Campaign, row: dict[str, Any]) -> dict[str, Any]:
        name = c.pick(c.fleet.links)
        do(c, c.fleet.links[name])
        return {"device": name}

    return fault


def _cut_upload(c: Campaign, row: dict[str, Any]) -> dict[str, Any]:
    name = c.pick(c.fleet.links)
    for part in ("bundles", "cas"):
        shutil.rmtree(Path(c.fleet.stations[name].root, part), ignore_errors=True)
    link = c.fleet.links[name]
    link.cut_at = link.sent + c.rng.randrange(1_000, 200_000)
    return {"device": name, "after": link.cut_at - link.sent}


def _stall(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    name = c.pick(c.fleet.links)
    link = c.fleet.links[name]
    if c.held(f"stall {name}"):
        return None
    link.stalled.set()
    c.later(c.rng.uniform(0.5, 6.0), f"stall {name}", link.stalled.clear, row)
    return {"device": name}


def _pipe(what: str) -> Callable[[Campaign, dict[str, Any]], Any]:
    def fault(c: Campaign, row: dict[str, Any]) -> dict[str, Any]:
        name = c.pick(n for n, s in c.fleet.stations.items() if s.relay)
        order = {"what": what, "after": c.rng.choice([0, 100, 2000, 6000])}
        place = Path(c.fleet.stations[name].relay)
        (place / "new").write_text(json.dumps(order))
        (place / "new").rename(place / "order")
        return {"device": name, **order}

    return fault


def _kill_runner(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    for name in c.rng.sample(sorted(c.fleet.stations), len(c.fleet.stations)):
        found = stations.runners(c.fleet.stations[name].root)
        if found:
            pid = c.rng.choice(found)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return {"device": name, "pid": pid}
    return None


def _kill_server(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    name = c.pick(c.fleet.servers)
    if c.held(f"server {name}"):
        return None
    server = c.fleet.servers[name]
    server.kill()
    c.later(c.rng.uniform(0.1, 2.0), f"server {name}", server.start, row)
    return {"device": name}


def _wrong_key(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    name = c.pick(c.fleet.servers)
    if c.held(f"server {name}"):
        return None
    server = c.fleet.servers[name]
    server.swap_keys()
    c.later(c.rng.uniform(0.5, 2.0), f"server {name}", server.swap_keys, row)
    return {"device": name}


def _kill_agent(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    k = c.rng.randrange(AGENTS)
    if c.held(f"agent {k}"):
        return None
    c.agents[k].kill()
    c.agents[k].wait()
    return {"device": "*", "agent": k}


def _stop_agent(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    """A holder that sleeps through the end of its leases and wakes up."""
    if c.unfenced:
        return _aim_at_holder(c, row)
    at_work = {s.holder.split("/")[1] for s in c.desk.standings() if s.holder}
    holding = [k for k, p in c.agents.items() if str(p.pid) in at_work and not c.held(f"agent {k}")]
    if not holding:
        return None
    k = c.rng.choice(holding)
    process = c.agents[k]
    process.send_signal(signal.SIGSTOP)
    seconds = RULES.lease + c.rng.uniform(0.2, 3.0)
    c.later(seconds, f"agent {k}", lambda: process.send_signal(signal.SIGCONT), row)
    return {"device": "*", "agent": k}


def _aim_at_holder(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    """A holder between its two runs, which sleeps until another agent has run on its device, and then runs
    again; None where that did not come about."""
    for k in c.agents:
        last = (_events(c, k) or [{}])[-1]
        if last.get("event") == "ran" and time.monotonic() - last["t"] <= BETWEEN_RUNS / 2 and not c.heals:
            return {"device": "*", "agent": k} if _overtaken(c, k, last) else None
    return None


def _overtaken(c: Campaign, k: int, last: dict[str, Any]) -> bool:
    """Stop an agent until another one has run on the device of its last run; whether it then ran again."""
    others = [n for n in c.agents if n != k]
    c.agents[k].send_signal(signal.SIGSTOP)
    passed = c.awaited(lambda: any(_ran(c, o, last, newer=True) for o in others), 16 * RULES.lease)
    c.agents[k].send_signal(signal.SIGCONT)
    return passed and c.awaited(lambda: _ran(c, k, last, newer=False), 4 * RULES.lease)


def _events(c: Campaign, k: int) -> list[dict[str, Any]]:
    """What the agent has written since it was started last."""
    log = max(c.folder.glob(f"agent-{k}-*.jsonl"), key=lambda p: p.stat().st_mtime, default=None)
    return list(check.rows(log)) if log else []


def _ran(c: Campaign, k: int, before: dict[str, Any], *, newer: bool) -> bool:
    """Whether the agent has run after that event on its device: with a newer lease, or with the same."""
    return any(
        e["event"] == "ran" and e["device"] == before["device"] and e["t"] > before["t"]
        and (e["fence"] > before["fence"] if newer else e["fence"] == before["fence"])
        for e in _events(c, k)
    )  # fmt: skip


def _kill_coordinator(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    if c.coordinator is None or c.coordinator.poll() is not None:
        return None
    c.coordinator.kill()
    c.coordinator.wait()
    return {"device": "*"}


def _full_disk(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    name = c.pick(c.fleet.disks)
    filler = c.fleet.disks[name] / "filler"
    if filler.exists():
        return None
    with filler.open("wb") as f, contextlib.suppress(OSError):
        for k in range(2 * stations.TMPFS_MB):
            os.posix_fallocate(f.fileno(), k << 20, 1 << 20)
    if c.rng.random() < 0.5:  # so that an upload is due
        for part in ("bundles", "cas"):
            shutil.rmtree(Path(c.fleet.stations[name].root, part), ignore_errors=True)
    c.later(c.rng.uniform(0.5, 3.0), f"disk {name}", lambda: filler.unlink(missing_ok=True), row)
    return {"device": name}


def _flip(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    name = c.pick(c.fleet.stations)
    with contextlib.suppress(OSError):
        what = stations.flip(c.fleet.stations[name].root, c.rng)
        return {"device": name, "what": what} if what else None
    return None


def _kill_adbd(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
    name = c.pick(c.fleet.phones)
    below = started(c.fleet.phones[name].pid)
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {"device": name} if below else None


def _pull_cable(c: Campaign, row: dict[str, Any]) -> dict[str, Any]:
    name = c.pick(c.fleet.phones)
    c.fleet.phones[name].cut()
    return {"device": name}


def _board(how: str) -> Callable[[Campaign, dict[str, Any]], Any]:
    """A fault of a whole machine, which boots again: its effect lasts as long as that takes."""

    def fault(c: Campaign, row: dict[str, Any]) -> dict[str, Any] | None:
        name = c.pick(c.fleet.boards)
        power = c.fleet.boards[name].power
        if c.held(f"board {name}") or not power.is_on():
            return None
        with contextlib.suppress(SmeltError):
            {"hang": power.hang, "panic": power.panic, "off": power.off, "reset": power.reset}[how]()
        heal = power.resume if how == "hang" else (lambda: None)
        c.later(c.rng.uniform(2.0, 8.0) if how == "hang" else BOOT, f"board {name}", heal, row)
        return {"device": name}

    return fault


def _clock_jump(c: Campaign, row: dict[str, Any]) -> dict[str, Any]:
    place = c.folder / "offset"
    ahead = float(place.read_text()) + c.rng.choice([-1, 1]) * c.rng.choice([1.0, 10.0, 500.0])
    (c.folder / "offset.new").write_text(str(ahead))
    (c.folder / "offset.new").rename(place)
    return {"device": "*", "ahead": ahead}


BOARDS = ("hung board", "panic", "power cut", "reset")
FAULTS: dict[str, Callable[[Campaign, dict[str, Any]], dict[str, Any] | None]] = {
    "cut link": _link(lambda c, link: link.cut()),
    "cut upload": _cut_upload,
    "stalled link": _stall,
    "garbled link": _link(lambda c, link: setattr(link, "garble", True)),
    "cut pipe": _pipe("cut"),
    "stalled pipe": _pipe("stall"),
    "garbled frame": _pipe("garble"),
    "oversized frame": _pipe("oversized"),
    "runner killed": _kill_runner,
    "server killed": _kill_server,
    "agent killed": _kill_agent,
    "coordinator killed": _kill_coordinator,
    "stale holder": _stop_agent,
    "full disk": _full_disk,
    "flipped bytes": _flip,
    "changed host key": _wrong_key,
    "clock jump": _clock_jump,
    "adbd killed": _kill_adbd,
    "cable pulled": _pull_cable,
    "hung board": _board("hang"),
    "panic": _board("panic"),
    "power cut": _board("off"),
    "reset": _board("reset"),
}
"""Kind -> what causes it: the fields of its line in the log, None where there was nothing to break."""


# ---------------------------------------------------------------- the whole


def campaign(
    folder: Path,
    seed: int,
    count: int,
    *,
    unfenced: bool = False,
    kinds: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    board: bool = False,
) -> None:
    """Run one; the logs are in the folder. unfenced: no token is compared, and no holder looks at its own
    lease. kinds: of faults, None for all. only: the devices that jobs are for, None for all.
    board: a whole emulated machine is among them."""
    folder.mkdir(parents=True, exist_ok=True)
    native, arm64 = bundles(folder, unfenced)
    url = f"sqlite:///{folder / 'farm.db'}"
    (folder / "offset").write_text("0.0")
    with stations.fleet(folder, native, arm64, board=board) as fleet:
        stations.write(folder / "stations.json", list(fleet.stations.values()))
        devices = sorted(only or fleet.stations)
        natives = [n for n in devices if fleet.stations[n].kind not in ("qemu", "board")]
        hostile = plan.hostile_bundles(folder, native)
        plan.write(folder / "plan.jsonl", 100 + 8 * count, seed, devices, natives, hostile)
        there = [k for k in FAULTS if (k != "full disk" or fleet.disks) and (board or k not in BOARDS)]
        chosen = [k for k in there if k in (kinds or there)]
        desk = Desk(Database(url, clock(folder / "offset")), RULES)
        c = Campaign(folder, fleet, random.Random(seed), desk, url, unfenced, 2 * len(devices))
        try:
            for k in range(AGENTS):
                c.start_agent(k)
            c.start_coordinator()
            break_things(c, count, chosen)
            settle(c)
        finally:
            stop(c)
            (folder / "faults.jsonl").write_text("".join(json.dumps(f) + "\n" for f in c.faults))
        finish(c, count, chosen)
        desk.database.close()


def bundles(folder: Path, unfenced: bool) -> tuple[Path, Path]:
    """The fake model for this machine and for arm64. unfenced: with runners that compare no tokens."""
    if unfenced:
        copy = folder / "runtime"
        shutil.copytree(rig.RUNTIME, copy)
        source = copy / "runner_fence.c"
        text = source.read_text()
        compared = "{ return token < highest; }"
        assert compared in text
        source.write_text(text.replace(compared, "{ (void)token, (void)highest; return 0; }"))
        rig.RUNTIME, rig.RUNNER = copy, [str(p) for p in sorted(copy.glob("runner*.c"))]
    (folder / "native").mkdir()
    (folder / "arm64").mkdir()
    return rig.build_native(folder / "native" / "bundle"), rig.build_arm64(folder / "arm64" / "bundle")


def break_things(c: Campaign, count: int, kinds: list[str]) -> None:
    """Inject the faults, each kind as often as the others, some moments apart."""
    deadline = time.monotonic() + 60
    while not c.desk.standings() and time.monotonic() < deadline:  # the first lease: there is work
        time.sleep(0.1)
    waiting: list[str] = []
    while len(c.faults) < count:
        if not waiting:
            waiting = c.rng.sample(kinds, len(kinds))
        kind = waiting.pop()
        for _ in range(40):
            if c.inject(kind):
                break
            time.sleep(0.1)
            c.keep_alive()
        time.sleep(c.rng.uniform(0.05, 0.7))
        c.keep_alive()


def settle(c: Campaign) -> None:
    """Mend everything, and let the agents end what there is."""
    (c.folder / "stop").touch()
    deadline = time.monotonic() + SETTLE
    while c.heals:
        c.keep_alive()
        time.sleep(0.1)
    for link in c.fleet.links.values():
        link.heal()
    for s in c.fleet.stations.values():
        if s.relay:
            Path(s.relay, "order").unlink(missing_ok=True)
    while time.monotonic() < deadline:
        c.keep_alive()
        with contextlib.suppress(SmeltError):
            if not Jobs(c.desk.database).waiting() and not any(s.holder for s in c.desk.standings()):
                return
        time.sleep(0.2)


def stop(c: Campaign) -> None:
    """End the processes."""
    for process in [*c.agents.values(), *([c.coordinator] if c.coordinator else [])]:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def finish(c: Campaign, count: int, kinds: list[str]) -> None:
    """Look at what is there now, and write it."""
    devices, left = {}, {}
    for name, s in c.fleet.stations.items():
        devices[name] = _well(s)
        for _ in range(50):  # runners of sessions that were killed end by themselves
            if not stations.runners(s.root):
                break
            time.sleep(0.2)
        left[f"runners of {name}"] = stations.runners(s.root)
        left[f"uploads on {name}"] = [p.name for p in Path(s.root, "tmp").glob("*")]
    standings = c.desk.standings()
    left["leases"] = [s.device for s in standings if s.holder]
    left["quarantine"] = [s.device for s in standings if s.quarantined]
    (c.folder / "end.json").write_text(
        json.dumps({"faults": count, "kinds": kinds, "devices": devices, "left": left}, indent=1)
    )
    with c.desk.database.transaction() as m:
        tables = (JOB, LEASE, ATTEMPT, RESULT)
        found = {t.name: [dict(r) for r in m.run(sql.select(t)).mappings()] for t in tables}
    (c.folder / "database.json").write_text(json.dumps(found))


def _well(s: stations.Station) -> str:
    """Run the model once more, without a lease."""
    transport = s.open()
    x = np.ones((2, 3), np.float32)
    try:
        with open_session(transport, Path(s.bundle), budget=Budget(SLOW)) as client:
            right = np.array_equal(client.run([x, np.int32(0)]).outputs["y"], 2 * x)
        return "pass" if right else "mismatch"
    except SmeltError as error:
        return str(error)
    finally:
        transport.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=FAULTS_OF_MAKE)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kind", action="append", choices=sorted(FAULTS), help="only these")
    parser.add_argument("--device", action="append", help="jobs are for these alone")
    parser.add_argument("--board", action="store_true", help="a whole emulated machine, too, which is slow")
    parser.add_argument("--unfenced", action="store_true", help="compare no fences: the checker must see it")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="smelt-chaos-"))
    start = time.monotonic()
    campaign(
        folder, args.seed, args.faults, unfenced=args.unfenced, kinds=args.kind, only=args.device,
        board=args.board,
    )  # fmt: skip
    found = list(check.problems(folder))
    jobs = json.loads((folder / "database.json").read_text())["job"]
    took = time.monotonic() - start
    print(f"seed {args.seed}: {args.faults} faults, {len(jobs)} jobs in {took:.0f} s; logs are in {folder}")
    for line in found[:40]:
        print(f"  {line}")
    print(f"{len(found)} problems" if found else "the fleet is whole, each job has one verdict")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
