"""One command, several devices: all at once, each with its own verdict, and nothing held when it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
import pytest
from boards import need_qemu
from forked import forked_smelt
from onnx import TensorProto, helper

import smelt
from smelt.cli.farm import _text
from smelt.core.bundle import Bundle
from smelt.devicefarm.claim import DeviceClaim
from smelt.devicefarm.inventory import Device, read_inventory, write_inventory
from smelt.devicefarm.leases import database
from smelt.devicefarm.leases.holder import Lease, take
from smelt.devicefarm.leases.jobs import Job, JobOutcome, Jobs
from smelt.devicefarm.leases.tables import JOB
from smelt.devicefarm.verdict import Verdict
from smelt.fleet import OWN_JOB, Fleet, named
from smelt.leasing import open_desk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fleet")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, made / "model.onnx")
    return made


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    """For arm64: its devices are emulated."""
    need_qemu("qemu-aarch64-static")
    return smelt.compile(str(folder / "model.onnx"), "aarch64-linux", output=folder / "out")


BOARDS = ("one", "two", "three", "four")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SMELT_DEVICES", str(tmp_path / "devices.toml"))
    monkeypatch.setenv("SMELT_FARM", str(tmp_path / "farm.db"))
    monkeypatch.setenv("SMELT_FARM_RULES", "lease=3")
    emulated = read_inventory()["qemu-arm64"]
    boards = {
        n: Device(
            n, "qemu-user", emulated.platform, emulator=emulated.emulator, cpu=emulated.cpu,
            sysroot=emulated.sysroot, root=str(tmp_path / n), tags=("shelf", f"number-{n}"),
        )
        for n in BOARDS
    }  # fmt: skip
    write_inventory({**read_inventory(), **boards})
    return tmp_path


def farm(*words: str) -> tuple[int, dict[str, Any], str]:
    done = forked_smelt("farm", "run", *words, "--json")
    return done.returncode, json.loads(done.stdout), done.stderr


def stored() -> list[dict[str, Any]]:
    desk = open_desk()
    with closing(desk.database):
        assert not any(s.holder for s in desk.standings())
        return [dict(r) for r in Jobs(desk.database).results()]


def test_four_emulated_devices_in_parallel_from_one_command(bundle: Bundle, folder: Path) -> None:
    source = [str(bundle.path), "--model", str(folder / "model.onnx")]
    code, data, _ = farm(*source, "--device", ",".join(BOARDS), "--count", "2")
    assert code == 0, data
    assert [p["device"] for p in data["parts"]] == list(BOARDS)
    assert {p["verdict"] for p in data["parts"]} == {"pass"}
    rows = stored()
    assert {r["device"] for r in rows} == set(BOARDS)
    assert all(r["bundle"] == bundle.digest and r["model"] and r["fingerprint"] for r in rows)
    # each began before any other had ended, once at least: on a quick machine they take a third of a second
    for _ in range(5):
        if not all_overlap():
            assert farm(*source, "--device", ",".join(BOARDS), "--count", "2")[0] == 0
    assert all_overlap()


def all_overlap() -> bool:
    """Whether the last lease of each board began before any other of these ended."""
    from smelt.devicefarm.leases.tables import LEASE

    desk = open_desk()
    with closing(desk.database), desk.database.transaction() as m:
        leases = sorted(m.run(LEASE.select()).all(), key=lambda r: r.since)[-len(BOARDS) :]
    return bool(max(r.since for r in leases) < min(r.ended for r in leases))


def test_some_devices_of_a_tag_and_their_times(bundle: Bundle, folder: Path) -> None:
    source = [str(bundle.path), "--model", str(folder / "model.onnx")]
    words = ["--tag", "shelf", "--devices", "2", "--bench", "--plan", "quick", "--count", "1"]
    code, data, _ = farm(*source, *words)
    assert len({p["device"] for p in data["parts"]} & set(BOARDS)) == 2
    assert (code, data["verdict"]) == (5, "invalid")  # emulated: no times of any device
    assert all(len(next(iter(r["samples"].values()))) > 0 for r in stored())


def test_what_cannot_be_had_is_told_at_once(bundle: Bundle, folder: Path) -> None:
    source = [str(bundle.path), "--model", str(folder / "model.onnx")]
    for words, code, what in (
        (("--device", "one,nowhere"), 4, "no device is called 'nowhere'"),
        (("--tag", "shelf", "--devices", "9"), 4, "9 devices of platform 'aarch64-linux' with tag shelf"),
        (("--tag", "nothing"), 4, "there are 0"),
        (("--tag", "shelf", "--device", "one"), 2, "not both"),
    ):
        found, data, _ = farm(*source, *words)
        assert found == code
        assert what in data["error"]["message"]
    assert stored() == []


def test_the_page_on_the_farm(bundle: Bundle, folder: Path) -> None:
    """Its commands, in their order, with boards of other names."""
    text = (Path(__file__).parents[2] / "docs" / "farm.md").read_text("utf-8")
    lines = re.findall(r"^smelt (.*?)(?:  +\S.*)?$", text, re.M)
    assert len(lines) == 7
    for line in lines:
        line = line.replace("pi4", "two").replace("pi5", "one")
        done = forked_smelt(*shlex.split(line), folder=folder)
        emulated = 5 if "--bench" in line else 0  # whose times are of no device
        assert done.returncode == emulated, f"{line}: {done.stdout}{done.stderr}"


def test_one_bad_device_does_not_spoil_the_others(bundle: Bundle, folder: Path, home: Path) -> None:
    (home / "two").write_text("where the store should be, there is a file")
    words = [str(bundle.path), "--model", str(folder / "model.onnx"), "--device", "one,two", "--count", "1"]
    code, data, _ = farm(*words, "--tries", "2")
    assert code == 6, data
    verdicts = {p["device"]: p["verdict"] for p in data["parts"]}
    assert verdicts["one"] == "pass"
    assert {r["device"]: r["verdict"] for r in stored()}["one"] == "pass"


def test_a_busy_device_is_waited_for_and_told(bundle: Bundle, folder: Path) -> None:
    words = [str(bundle.path), "--model", str(folder / "model.onnx"), "--device", "one", "--count", "1"]
    desk = open_desk()
    with closing(desk.database), take(desk, ["one"], user="other"):
        code, data, said = farm(*words, "--wait", "0.5")
    assert code == 4
    assert "place 1 in the queue" in said
    assert data["parts"][0]["verdict"] == "no device"


def test_a_client_that_is_killed_frees_its_board(bundle: Bundle, folder: Path) -> None:
    argv = [sys.executable, "-P", "-m", "smelt.cli", "validate", str(bundle.path),
            "--model", str(folder / "model.onnx"), "--device", "one", "--count", "10000"]  # fmt: skip
    desk = open_desk()
    with closing(desk.database):
        client = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        try:
            while not any(s.holder for s in desk.standings()):
                assert client.poll() is None
                time.sleep(0.05)
        finally:
            os.kill(client.pid, signal.SIGKILL)
            client.wait()
        (standing,) = desk.standings()
        assert standing.holder
        assert standing.left <= desk.rules.lease
        time.sleep(standing.left)
        assert [s.holder for s in desk.standings()] == [""]
        with take(desk, ["one"], user="next", timeout=0) as lease:
            assert lease.fence > standing.fence
    source = [str(bundle.path), "--model", str(folder / "model.onnx")]
    code, data, _ = farm(*source, "--device", "one", "--count", "1")
    assert code == 0, data


def test_a_run_that_is_killed_loses_no_job_and_ends_none_twice(
    bundle: Bundle, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At three moments: in the queue, at work, and whenever. The next run ends what it has left."""
    monkeypatch.setenv("SMELT_FARM_RULES", "lease=1,absent=1")
    argv = [sys.executable, "-P", "-m", "smelt.cli", "farm", "run", str(bundle.path), "--model",
            str(folder / "model.onnx"), "--device", "one,two", "--count", "10000"]  # fmt: skip
    desk = open_desk()
    with closing(desk.database):

        def verdicts() -> list[str | None]:
            with desk.database.transaction() as m:
                return [r.verdict for r in m.run(JOB.select())]

        known = 0
        for moment in (0.0, 0.3, 1.0):
            client = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                while len(verdicts()) < known + 2:
                    assert client.poll() is None
                    time.sleep(0.02)
                time.sleep(moment)
            finally:
                client.kill()
                client.wait()
            known += 2
            time.sleep(desk.rules.lease + desk.rules.absent)
        code, data, _ = farm(*argv[6:10], "one,two", "--count", "1")
        assert code == 0, data
        found = verdicts()
        assert (len(found), set(found)) == (known + 2, {"cancelled", "pass"})  # a quick one may have ended
        passed = [r["job"] for r in Jobs(desk.database).results()]
        assert sorted(passed) == sorted(set(passed)) and len(passed) == found.count("pass")


def test_a_database_that_fails_as_the_work_ends_is_told_of_each_part(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped in a transaction keeps the database locked: it is named."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    desk = open_desk()
    code = "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE')"
    argv = [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(600)", os.environ["SMELT_FARM"]]
    both, done = threading.Barrier(2), threading.Event()
    stopped: list[subprocess.Popen[bytes]] = []

    def work(job: Job, lease: Lease, claim: DeviceClaim) -> JobOutcome:
        if both.wait() == 0:
            stopped.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
            assert stopped[0].stdout is not None and stopped[0].stdout.readline()
            stopped[0].send_signal(signal.SIGSTOP)
            done.set()
        assert done.wait(60)
        return JobOutcome(Verdict.PASS)

    with closing(desk.database):
        try:
            parts = Fleet(desk, bundle, named(["one", "two"]), work, what={}).run()
        finally:
            for child in stopped:
                child.kill()
                child.wait()
        assert [p.verdict for p in parts] == [Verdict.INFRA] * 2
        assert all(f"locked for 0.2 s by process {stopped[0].pid} (" in p.message for p in parts), [
            p.message for p in parts
        ]
        shown = _text(parts, {p.job: "all cases agree" for p in parts})
        assert shown.count("locked for") == 2  # beside what the work has found
        jobs = Jobs(desk.database)
        assert [jobs.get(p.job).verdict for p in parts] == [None, None]
        time.sleep(desk.rules.lease)
        assert len(jobs.cancel_orphans(OWN_JOB, 0.0)) == 2
