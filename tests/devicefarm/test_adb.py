"""The adb transport's own promises: a private server, links whose end is seen, complaints that help."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import adbd as adbd_rig
import numpy as np
import pytest
import rig
from proxy import before

from smelt.core.diag import SmeltError
from smelt.devicefarm.adb import DEFAULT_PORT, AdbTransport, private_server
from smelt.devicefarm.adb_files import AdbFiles
from smelt.devicefarm.budget import DISK_FULL, LINK_LOST, LINK_STALLED, Budget, InfraError, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.doctor import examine, healthy
from smelt.devicefarm.store import Content
from smelt.devicefarm.transport import Completed
from smelt.devicefarm.verdict import verdict_of_error

LIMITS = StepLimits(connect=60, command=60, load=100, run=100, total=300)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
FINE, SPIN = np.int32(0), np.int32(3)


@pytest.fixture
def phone(adbd: adbd_rig.Adbd, tmp_path: Path) -> Iterator[AdbTransport]:
    made = AdbTransport("phone", adbd.serial, server=adbd.server, root=str(tmp_path / "root"))
    yield made
    made.close()


def test_a_command_that_is_cut_is_no_success(adbd: adbd_rig.Adbd, phone: AdbTransport) -> None:
    """adb's own exit code is 0 then."""
    assert phone.execute(["true"], Budget(LIMITS)).code == 0
    threading.Timer(0.5, adbd.cut).start()
    with pytest.raises(InfraError) as caught:
        phone.execute(["sleep", "100"], Budget(LIMITS))
    assert caught.value.status == LINK_LOST
    assert phone.execute(["true"], Budget(LIMITS)).code == 0  # it connects again


def test_a_link_that_is_cut_in_a_run_is_no_crash_of_the_model(
    adbd: adbd_rig.Adbd, phone: AdbTransport, native_bundle: Path
) -> None:
    with open_session(phone, native_bundle, budget=Budget(LIMITS)) as client:
        threading.Timer(0.5, adbd.cut).start()
        with pytest.raises(SmeltError) as caught:
            client.run([X, SPIN])
    assert isinstance(caught.value, InfraError)
    assert caught.value.status == LINK_LOST
    assert verdict_of_error(caught.value).exit_code == 6


def test_adbd_that_is_killed_in_a_run(tmp_path: Path, native_bundle: Path) -> None:
    with adbd_rig.start_adbd(tmp_path / "adbd") as device:
        transport = AdbTransport("phone", device.serial, server=device.server, root=str(tmp_path / "root"))
        with open_session(transport, native_bundle, budget=Budget(LIMITS)) as client:
            threading.Timer(0.5, os.kill, (device.pid, signal.SIGKILL)).start()
            with pytest.raises(InfraError) as caught:
                client.run([X, SPIN])
        assert caught.value.status == LINK_LOST
        findings = examine(transport, budget=Budget(replace(LIMITS, connect=5, command=5)))
        assert not healthy(findings)
        transport.close()


def test_adbd_that_hangs_meets_the_deadline(tmp_path: Path) -> None:
    with adbd_rig.start_adbd(tmp_path / "adbd") as device:
        transport = AdbTransport("phone", device.serial, server=device.server, root=str(tmp_path / "root"))
        assert transport.execute(["echo", "a"], Budget(LIMITS)).out == "a\n"
        os.kill(device.pid, signal.SIGSTOP)
        with pytest.raises(InfraError) as caught:
            transport.execute(["echo", "b"], Budget(replace(LIMITS, command=1)))
        assert caught.value.status == LINK_STALLED
        os.kill(device.pid, signal.SIGCONT)


def test_a_link_that_went_silent_is_made_anew(adbd: adbd_rig.Adbd, tmp_path: Path) -> None:
    """adb's server itself takes it for whole as long as it is open."""
    port = int(adbd.serial.rpartition(":")[2])
    with before(port) as link:
        serial = f"127.0.0.1:{link.port}"
        transport = AdbTransport("phone", serial, server=adbd.server, root=str(tmp_path / "root"))
        assert transport.execute(["true"], Budget(LIMITS)).code == 0
        link.stalled.set()
        with pytest.raises(InfraError) as caught:
            transport.execute(["true"], Budget(replace(LIMITS, command=1)))
        assert caught.value.status == LINK_STALLED
        link.forget()
        link.stalled.clear()
        assert transport.execute(["echo", "a"], Budget(replace(LIMITS, connect=3))).out == "a\n"
        transport.close()
        adbd.server.run(["disconnect", serial], 20)


def test_devices_that_are_not_there_are_explained(adbd: adbd_rig.Adbd, tmp_path: Path) -> None:
    for serial in ("R5CT0000000", f"127.0.0.1:{rig.free_port()}"):
        with pytest.raises(InfraError, match="adb does not find it") as caught:
            AdbTransport("phone", serial, server=adbd.server).execute(["true"], Budget(LIMITS))
        assert caught.value.hint is not None and "USB debugging" in caught.value.hint


def test_arguments_are_not_shell_text(phone: AdbTransport) -> None:
    done = phone.execute(["printf", "%s|", "$HOME; rm -rf *", "'", 'a "b" \\', "ü\n"], Budget(LIMITS))
    assert (done.code, done.out) == (0, "$HOME; rm -rf *|'|a \"b\" \\|ü\n|")
    assert phone.execute(["sh", "-c", "echo x; echo y >&2; exit 7"], Budget(LIMITS)).code == 7
    assert phone.execute(["printf", "no newline"], Budget(LIMITS)).out == "no newline"


def test_a_cut_upload_is_continued(
    adbd: adbd_rig.Adbd, phone: AdbTransport, native_bundle: Path, tmp_path: Path
) -> None:
    """What the device has of it is not sent again."""
    bundle = tmp_path / "bundle"
    shutil.copytree(native_bundle, bundle)
    size = 96 << 20
    (bundle / "model.weights").write_bytes(np.random.default_rng(3).bytes(size))
    tmp = tmp_path / "root" / "tmp"

    def long(path: Path) -> bool:
        try:
            return path.stat().st_size > 20 << 20
        except FileNotFoundError:  # a smaller file, which has its place by now
            return False

    def cut() -> None:
        while not any(map(long, tmp.glob("*"))):
            time.sleep(0.002)
        adbd.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(InfraError) as caught:
        phone.deploy(bundle, Budget(LIMITS))
    cutter.join(60)
    assert caught.value.status == LINK_LOST
    phone.close()
    (part,) = (p for p in tmp.glob("*") if p.stat().st_size > 1 << 20)
    kept, inode = part.stat().st_size, part.stat().st_ino
    assert 20 << 20 < kept < size
    again = AdbTransport("phone", adbd.serial, server=adbd.server, root=str(tmp_path / "root"))
    home = Path(again.deploy(bundle, Budget(LIMITS)))
    assert (home / "model.weights").stat().st_size == size
    assert (home / "model.weights").stat().st_ino == inode  # the same file, grown
    again.close()


def test_full_disk(tmp_path: Path, native_bundle: Path) -> None:
    """adbd's own children may write small files only, as on a disk that is full."""
    bundle = tmp_path / "bundle"
    shutil.copytree(native_bundle, bundle)
    (bundle / "model.weights").write_bytes(bytes(4 << 20))
    with adbd_rig.start_adbd(tmp_path / "adbd") as device:
        rig.run(["prlimit", f"--pid={device.pid}", f"--fsize={1 << 20}"])
        transport = AdbTransport("phone", device.serial, server=device.server, root=str(tmp_path / "root"))
        with pytest.raises(InfraError) as caught:
            transport.deploy(bundle, Budget(LIMITS))
        assert caught.value.status == DISK_FULL, caught.value
        assert not list((tmp_path / "root").glob("bundles/*"))
        transport.close()


SAID = (b"", b"\xff\n", b"9" * 5000, b"\xc2\xb2 \xc2\xb2 1 a\n", b"1 2 3\n" * 9, b"-1", b"a a a 9" * 5000,
        b"99999999999999999999 1 ffffffffffff \xff", b"1 1 ffffffff \xff")  # fmt: skip


@pytest.mark.parametrize("code", [0, 1, 44])
@pytest.mark.parametrize("said", SAID)
def test_a_shell_that_says_anything(said: bytes, code: int) -> None:
    """Each operation has a result, or says that the device is to blame: adb's protocol has no checksums."""
    text, budget = said.decode("latin-1"), Budget(LIMITS)
    done = Completed(code, text, text)
    files = AdbFiles("phone", "/x", lambda *_, **more: (code, said, text), lambda argv, budget: done)
    for ask in (
        lambda: files.entries("a", budget), lambda: files.size("a", budget), lambda: files.read("a", budget),
        lambda: files.space(budget), lambda: files.differing({"a": Content("0" * 64, 3)}, budget),
        lambda: files.rename("a", "b", budget),
    ):  # fmt: skip
        with contextlib.suppress(InfraError):
            ask()


def test_the_server_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rig.need(rig.program_path("adb"), "needs adb: apt-get install adb")
    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "5037")
    monkeypatch.setenv("ANDROID_SERIAL", "somebody's phone")
    monkeypatch.delenv("SMELT_ADB_PORT", raising=False)
    server = private_server()
    assert server.port == DEFAULT_PORT != 5037
    assert server.command("devices")[1:3] == ["-P", str(DEFAULT_PORT)]
    assert not [k for k in server.environment() if k.startswith("ANDROID_")]
    assert server.environment()["HOME"] == str(tmp_path / "adb")
    for wrong in ("5037", "0", "x", "99999"):
        monkeypatch.setenv("SMELT_ADB_PORT", wrong)
        with pytest.raises(SmeltError, match="no private port"):
            private_server()
