"""A crash on a device that adb reaches comes with what the device's own log says of it. The adbd here is
real, its logcat a small program on its PATH."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import adbd as adbd_rig
import numpy as np
import pytest
from processes import children

from smelt.devicefarm import logcat
from smelt.devicefarm.adb import AdbTransport
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.report import Crash, RunnerError

LIMITS = StepLimits(connect=60, command=60, load=100, run=100, total=300)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
FINE, SEGFAULT, SPIN = np.int32(0), np.int32(1), np.int32(3)
# as logd's: a line is a time, a process, a priority and a text; -T chooses by time, and the rest is refused
LOGCAT = """#!{python}
import sys, time
told, since = sys.argv[1:-1], float(sys.argv[-1])
assert told == ["-d", "-v", "threadtime", "-T"] and "." in sys.argv[-1], sys.argv
{first}
print("--------- beginning of main")
for line in open({log!r}, errors="replace"):
    at, pid, rest = line.rstrip("\\n").split(" ", 2)
    if float(at) >= since:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(float(at)))
        print(f"{{stamp}}.{{int(float(at) % 1 * 1000):03}}  {{pid:>5}} {{pid:>5}} {{rest}}")
"""


class Phone:
    """An adbd whose log the test writes."""

    def __init__(self, device: adbd_rig.Adbd, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.program, self.log = folder / "bin" / "logcat", folder / "log"

    def install(self, first: str = "") -> None:
        self.log.touch()
        text = LOGCAT.format(python=sys.executable, log=str(self.log), first=first)
        self.program.write_text(text)
        self.program.chmod(0o755)

    def write(self, pid: int, text: str, ago: float = 0.0) -> None:
        with self.log.open("a") as f:
            f.write(f"{time.time() - ago:.3f} {pid} {text}\n")

    def crash(self, bundle: Path, when: str = "run") -> Crash:
        """The crash of one session: the model's own, or one by a signal from outside while it runs."""
        transport = AdbTransport(
            "phone", self.device.serial, server=self.device.server, root=str(self.folder / "root")
        )
        try:
            with open_session(transport, bundle, budget=Budget(LIMITS)) as client:
                assert client.facts is not None
                self.write(7, "E before: the run before was no better")
                client.run([X, FINE])
                time.sleep(1.0)  # the run's start is known up to the time of a command
                (worker,) = children(client.facts.pid)
                if when == "outside":
                    threading.Timer(0.5, self._strike, [client.facts.pid, worker]).start()
                with pytest.raises(RunnerError) as caught:
                    client.run([X, SPIN if when == "outside" else SEGFAULT])
                crash = caught.value.crash
                assert crash is not None and crash.signal == signal.SIGSEGV and crash.pid == worker
                self.said = str(caught.value)
                return crash
        finally:
            transport.close()

    def _strike(self, runner: int, worker: int) -> None:
        self.write(worker, "I Adreno  : this process has lost its context")
        self.write(4242, "I launcher: an icon was drawn")
        self.write(4243, f"W lmkd    : watching {worker} closely")
        self.write(4244, f"I other   : x{worker}0 is another number")
        self.write(4245, "F auditd  : avc: denied { read } for dev=kgsl")
        self.write(4246, "I DEBUG   : >>> /data/local/tmp/smelt_run <<<")
        while worker in children(runner):  # the handler returns once, as nothing is wrong where it was
            os.kill(worker, signal.SIGSEGV)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phone]:
    folder = tmp_path_factory.mktemp("phone")
    (folder / "bin").mkdir()
    with adbd_rig.start_adbd(folder / "adbd", folder / "bin") as device:
        yield Phone(device, folder)


@pytest.fixture
def phone(device: Phone) -> Iterator[Phone]:
    device.log.unlink(missing_ok=True)
    yield device
    device.program.unlink(missing_ok=True)


def test_lines_about_the_process_since_its_run_began(phone: Phone, native_bundle: Path) -> None:
    phone.install()
    phone.write(7, "E before: smelt_run of yesterday", ago=86400)
    crash = phone.crash(native_bundle, "outside")
    told = [line.split(None, 4)[4] for line in crash.device_log.splitlines()]
    assert told == [
        "I Adreno  : this process has lost its context", f"W lmkd    : watching {crash.pid} closely",
        "F auditd  : avc: denied { read } for dev=kgsl", "I DEBUG   : >>> /data/local/tmp/smelt_run <<<",
    ]  # fmt: skip
    assert "the device's log says" in phone.said and "smelt_run <<<" in phone.said
    assert {"the device's log:", "stage: run: first"} <= set(crash.lines())


def test_a_device_without_logcat(phone: Phone, native_bundle: Path) -> None:
    assert phone.crash(native_bundle).device_log == ""


@pytest.mark.parametrize(
    "first",
    [
        "time.sleep(30)",
        "sys.exit('logcat: read: Permission denied')",
        "sys.stdout.buffer.write(bytes(range(256)) * 64); sys.exit()",
    ],
)
def test_a_logcat_that_hangs_or_fails_costs_no_crash(
    phone: Phone, native_bundle: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(logcat, "LOGCAT_WAIT", 2.0)
    phone.install(first)
    assert phone.crash(native_bundle).device_log == ""


def test_a_log_that_is_flooded(
    phone: Phone, native_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device sends the end of it, and the last lines are kept."""
    monkeypatch.setattr(logcat, "LOGCAT_WAIT", 20.0)
    sent, about = list[int](), logcat.about

    def counted(text: str, pid: int) -> str:
        sent.append(len(text))
        return about(text, pid)

    monkeypatch.setattr(logcat, "about", counted)
    line = "f'11-24 10:00:00.000  9  9 E flood   : {n} ' + 'x' * 100"
    phone.install(f"for n in range(20_000): print({line})\nsys.exit()")  # eleven times LOGCAT_READ
    kept = phone.crash(native_bundle).device_log
    assert sent == [logcat.LOGCAT_READ]
    assert logcat.LOGCAT_KEPT - 200 < len(kept) <= logcat.LOGCAT_KEPT
    assert "19999" in kept.splitlines()[-1] and "199" in kept.splitlines()[0][:40]


def test_a_clock_without_fractions() -> None:
    asked = []

    def shell(text: str, budget: Budget) -> str:
        asked.append(text)
        return {"date": "1700000000.%N\n"}.get(text.split()[0], "11-24 10:00:00.000  9  9 E a: b\n")

    assert logcat.read_log(shell, 2.0, 9).endswith("E a: b")
    assert "-T 1699999997." in asked[1] or "-T 1699999998." in asked[1]
    assert logcat.read_log(lambda text, budget: "no date", 2.0, 9) == ""


def test_what_is_kept_is_bounded_whatever_comes() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        heads = (f"11-24 10:00:00.000 {p:5} 10 {kind} t: " for p, kind in zip((9, 10) * 20, "VIWEF" * 8))
        lines = [head + "ü" * chance.randrange(3000) for head in heads]
        text = logcat.about("\n".join(lines), 9)
        assert len(text.encode()) <= logcat.LOGCAT_KEPT
        assert all(line in lines for line in text.splitlines())
    assert logcat.about("\x1b[31mrm -rf\n" * 5, 0) == ""
