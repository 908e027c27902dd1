"""A device's store under faults: flipped bytes, bad links, clients that die, full and read-only disks."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import proxy
import pytest
import rig
from processes import children, lives
from stored import BOARDS, FINE, LIMITS, LINKED, MIB, SLEEP, Board, X, with_weights

from smelt.core.bundle import hash_file
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.client import open_session
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.local_files import LocalFiles
from smelt.devicefarm.owners import Owner
from smelt.devicefarm.room import CONTINUABLE, StoreRoom, StoreRules
from smelt.devicefarm.sftp import SftpFiles
from smelt.devicefarm.ssh import SshTransport
from smelt.devicefarm.store import Content, DeviceStore
from smelt.devicefarm.verdict import Verdict, verdict_of_error


@pytest.fixture(params=list(BOARDS))
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    return BOARDS[request.param](request, tmp_path / "root")


@pytest.fixture(params=list(LINKED))
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    return LINKED[request.param](request, tmp_path / "root")


def damage(path: Path, chance: random.Random) -> str:
    """Change a file in place, as a failing disk does; how."""
    for _ in range(200):
        try:
            path.open("r+b").close()
        except OSError:  # a runner of the last session is about to end
            time.sleep(0.05)
    size = path.stat().st_size
    at, count = chance.randrange(size), chance.choice((1, 64, 32 * 1024))
    with path.open("r+b") as f:
        how = chance.choice(("flip", "zero", "cut"))
        if how == "cut":
            f.truncate(at)
        else:
            f.seek(at)
            old = f.read(count)
            f.seek(at)
            f.write(bytes(b ^ 0x5A for b in old) if how == "flip" else bytes(len(old)))
    return f"{how} {path.name[:8]} at {at}"


# ---- damaged files ----


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_between_sessions_are_mended(board: Board, seed: int) -> None:
    chance = random.Random(seed)
    board.run()
    for _ in range(2):
        damage(chance.choice(board.stored()), chance)
        board.run()


@pytest.mark.parametrize("how", ["removed", "cut", "changed", "grown"])
def test_a_bundle_that_changes_while_it_is_sent(
    board: Board, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = with_weights(board.bundle, tmp_path / "bundle", 100_000)
    weights, make = bundle / "model.weights", StoreRoom.make

    def change(self: StoreRoom, wanted: dict[str, int], budget: Budget) -> None:
        make(self, wanted, budget)
        data = weights.read_bytes()
        weights.unlink()
        if how != "removed":
            weights.write_bytes({"cut": data[:99], "changed": data[::-1], "grown": data * 2}[how])

    monkeypatch.setattr(StoreRoom, "make", change)
    transport = board.open()
    if how == "grown":  # the bytes that were there are
        transport.deploy(bundle, Budget(LIMITS))
    else:
        with pytest.raises(SmeltError, match=r"model.weights' (cannot be read|did not arrive)") as caught:
            transport.deploy(bundle, Budget(LIMITS))
        assert verdict_of_error(caught.value) is (Verdict.INFRA if how == "removed" else Verdict.DAMAGED)
    transport.close()
    assert board.left("tmp") == board.left("use") == []


def test_other_damage_to_the_bundles_folder_is_mended(board: Board) -> None:
    board.run()
    (home,) = (board.root / "bundles").iterdir()
    library, other = home / "libmodel.so", board.root / "other"
    other.write_bytes(b"no library")
    for harm in (
        library.unlink,
        lambda: (library.unlink(), library.symlink_to(other)),
        lambda: (library.unlink(), library.symlink_to("/nowhere")),
        lambda: (library.unlink(), library.write_bytes(b"")),
        lambda: (home / "libsecond.so").write_bytes(b"\x7fELF"),
        lambda: (home / os.fsdecode(b"\xff'\n")).write_bytes(b"a name of bytes"),
        lambda: (home / ".listing").write_bytes(b"{"),
        lambda: [p.unlink() for p in home.iterdir() if p.name != ".listing"],
        lambda: [p.unlink() for p in home.iterdir()],
        lambda: shutil.rmtree(home),
        lambda: shutil.rmtree(board.root / "cas"),
        lambda: shutil.rmtree(board.root),
    ):
        harm()
        board.run()
        assert not [p for p in home.iterdir() if not p.name.isascii()]


@pytest.mark.table(2)
@pytest.mark.parametrize("seed", range(8))
def test_bytes_flipped_while_a_session_runs_are_never_the_models_fault(board: Board, seed: int) -> None:
    """After the files were verified: where the bytes matter, the disk is to blame."""
    chance = random.Random(100 + seed)
    transport = board.open()
    opened = transport.open_runner

    def open_damaged(remote: str, budget: Budget) -> object:
        for _ in range(3):
            damage(chance.choice(board.stored()), chance)
        return opened(remote, budget)

    transport.open_runner = open_damaged  # type: ignore[method-assign,assignment]
    verdict, right = Verdict.PASS, True
    try:
        with open_session(transport, board.bundle, budget=Budget(replace(LIMITS, run=5, load=20))) as client:
            right = np.array_equal(client.run([X, FINE]).outputs["y"], 2 * X)
            if not right:
                client.confirm()
    except SmeltError as error:
        verdict = verdict_of_error(error)
    assert verdict in (Verdict.PASS, Verdict.DAMAGED, Verdict.LINK_STALLED)  # a damaged runner can hang, too
    assert right or verdict is Verdict.DAMAGED
    transport.close()
    board.run()


def test_a_damaged_runner_that_talks_nonsense_is_named(board: Board) -> None:
    """It starts and answers in good frames, with facts that cannot be read."""
    transport = board.open()
    opened = transport.open_runner

    def open_damaged(remote: str, budget: Budget) -> object:
        stored = board.root / "cas" / hash_file(board.bundle / "smelt_run")
        whole = stored.read_bytes()
        assert b',"libc":' in whole
        stored.write_bytes(whole.replace(b',"libc":', b',"libc";'))
        return opened(remote, budget)

    transport.open_runner = open_damaged  # type: ignore[method-assign,assignment]
    with (
        pytest.raises(SmeltError, match="smelt_run; with them, the runner sent JSON") as caught,
        open_session(transport, board.bundle, budget=Budget(LIMITS)),
    ):
        pass
    assert verdict_of_error(caught.value) is Verdict.DAMAGED
    transport.close()
    board.run()


def test_wrong_output_is_confirmed_or_not(board: Board) -> None:
    transport = board.open()
    with open_session(transport, board.bundle, budget=Budget(LIMITS)) as client:
        client.confirm()
        library = board.root / "cas" / hash_file(board.bundle / "libmodel.so")
        damage(library, random.Random(5))  # the runner's file cannot be written while it runs
        with pytest.raises(SmeltError, match="files of the bundle are damaged on device") as caught:
            client.confirm()
        assert verdict_of_error(caught.value) is Verdict.DAMAGED
        assert "libmodel.so" in str(caught.value)
        client.confirm()  # they were mended
    transport.close()


def test_device_without_sha256sum(linked: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner computes hashes, once it was read back and is right; without it, all is read back."""
    asked: list[str] = []
    monkeypatch.setattr("smelt.devicefarm.hashing.PROGRAMS", (("no-such-sha256sum",),))
    execute = SshTransport.execute

    def watched(self: SshTransport, argv: list[str], budget: Budget) -> object:
        asked.append(argv[0])
        return execute(self, argv, budget)

    monkeypatch.setattr(SshTransport, "execute", watched)
    linked.run()
    asked.clear()
    linked.run()
    assert [a for a in asked if a.endswith("/smelt_run")]
    chance = random.Random(3)
    for stored in linked.stored():
        damage(stored, chance)
        linked.run()


def test_server_without_openssh_extensions(linked: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """No atomic replacement, no fsync, no word about the disk but that of df."""
    monkeypatch.setattr(SftpFiles, "_extended", lambda self, name, *arguments: None)
    linked.run()
    chance = random.Random(4)
    for stored in linked.stored():
        damage(stored, chance)
        linked.run()
    transport = linked.open()
    free = transport.free_bytes(Budget(LIMITS))
    assert free is not None
    assert abs(free - shutil.disk_usage(linked.root).free) < 1 << 30  # others write there, too
    transport.close()


# ---- several clients, and clients that die ----


def test_two_clients_that_send_one_bundle_at_once_both_succeed(board: Board, tmp_path: Path) -> None:
    bundle = with_weights(board.bundle, tmp_path / "large", 12 * MIB)
    board.bundle = bundle
    failures: list[BaseException] = []

    def session() -> None:
        try:
            board.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=session) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert len(board.stored()) == 3
    assert board.left("tmp") == board.left("use") == []


UPLOAD = """
import sys
from dataclasses import replace
from pathlib import Path
from smelt.devicefarm.budget import Budget
from smelt.devicefarm import store, local_files
bundle, root, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
from smelt.devicefarm.inventory import find_device, open_transport
from smelt.devicefarm.local import LocalTransport
class Slow(local_files.LocalFiles):
    def append(self, source, start, count, path, budget):
        if start <= most < start + count:
            super().append(source, start, most - start, path, budget)
            print("there", flush=True)
            sys.stdin.read()
        super().append(source, start, count, path, budget)
import smelt.devicefarm.local
smelt.devicefarm.local.LocalFiles = Slow
LocalTransport(store=root).deploy(bundle, Budget())
"""


@pytest.fixture
def uploader(native_bundle: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """A client that has sent 20 of 40 MiB and goes on when its stdin ends; its bundle and store."""
    bundle, root = with_weights(native_bundle, tmp_path / "large", 40 * MIB), tmp_path / "root"
    client = subprocess.Popen(
        [sys.executable, "-c", UPLOAD, str(bundle), str(root), str(20 * MIB)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert client.stdout is not None
    assert client.stdout.readline() == b"there\n"
    yield client, bundle, root
    client.kill()
    client.wait()
    client.stdout.close()


class Counting(LocalFiles):
    """Adds up what is sent."""

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        SENT.append(count)
        super().append(source, start, count, path, budget)


SENT: list[int] = []


CLIENT = """
import sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.inventory import find_device, open_transport
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.ssh import SshAddress, SshTransport
bundle, root, *address = sys.argv[1:]
limits = StepLimits(silence=3, beat=0.3)
if address:
    host, port, user, key, file = address
    transport = SshTransport("board", SshAddress(host, int(port), user, key, Path(file)), root=root)
else:
    transport = LocalTransport(store=Path(root))
with open_session(transport, Path(bundle), budget=Budget(limits)) as client:
    print(client.facts.pid, flush=True)
    client.run([np.ones((2, 3), np.float32), np.int32(3)])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", ["store", "ssh", "dropbear"])
def test_client_that_is_killed_or_stopped_loses_its_runner(
    kind: str, number: signal.Signals, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In the middle of a run that would go on for minutes. The next session sweeps what it had in use."""
    board = BOARDS[kind](request, tmp_path / "root")
    transport, where = board.open(), []
    if isinstance(transport, SshTransport):
        a = transport.address
        where = [a.host, str(a.port), a.user, a.host_key, str(a.key_file)]
    argv = [sys.executable, "-c", CLIENT, str(board.bundle), str(board.root), *where]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            runner = int(client.stdout.readline())
            made = [runner, *children(runner)]
            assert len(made) == 2
            client.send_signal(number)
            end = time.monotonic() + 60
            while any(map(lives, made)) and time.monotonic() < end:
                time.sleep(0.05)
            assert not any(map(lives, made))
            assert len(board.left("use")) == 1
        finally:
            client.kill()  # a stopped one would be waited for, for ever
    board.run()
    assert board.left("tmp") == board.left("use") == []


def test_upload_of_a_killed_client_is_continued(
    uploader: tuple[subprocess.Popen[bytes], Path, Path],
) -> None:
    client, bundle, root = uploader
    client.kill()
    client.wait()
    SENT.clear()
    store = DeviceStore(Counting("device", root))
    store.deploy(bundle, Budget())
    store.close(Budget())
    assert 20 * MIB <= sum(SENT) < 21 * MIB  # and the other files of the bundle
    assert list((root / "tmp").iterdir()) == list((root / "use").iterdir()) == []


def test_a_runner_that_a_lost_link_has_open_is_sent_anew(board: Board) -> None:
    """Its server does not know yet that it is lost, and no program starts while somebody may write it."""
    owner, runner = Owner(), board.bundle / "smelt_run"
    owner.close()
    part = board.root / "tmp" / f"{hash_file(runner)}.{owner.token}"
    part.parent.mkdir(parents=True)
    part.write_bytes(runner.read_bytes()[:1000])
    with part.open("r+b"):
        board.run()
    assert board.left("tmp") == []


def test_upload_of_a_living_client_is_left_alone(
    uploader: tuple[subprocess.Popen[bytes], Path, Path],
) -> None:
    """However long it sleeps: its lock shows that it lives."""
    client, bundle, root = uploader
    (part,) = (p for p in (root / "tmp").iterdir() if p.stat().st_size > MIB)
    (pin,) = (root / "use").iterdir()
    os.utime(part, (1, 1))
    client.send_signal(signal.SIGSTOP)
    SENT.clear()
    store = DeviceStore(Counting("device", root))
    store.deploy(bundle, Budget())
    store.close(Budget())
    assert sum(SENT) > 40 * MIB
    assert part.exists() and pin.exists()
    client.send_signal(signal.SIGCONT)
    assert client.stdin is not None
    client.stdin.close()
    assert client.wait(60) == 0
    assert not part.exists()


def test_what_dead_clients_left_is_swept(tmp_path: Path, native_bundle: Path) -> None:
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "use").mkdir()
    dead, live, stranger = Owner(), Owner(), "0" * 12 + "-" + "1" * 16
    dead.close()
    now, old = time.time(), time.time() - CONTINUABLE - 10
    some, there = "a" * 64, "c" * 64
    (root / "cas").mkdir()
    (root / "cas" / there).write_bytes(b"{}")
    rows = {  # path -> (age, whether it stays)
        f"tmp/{there}.{dead.token}": (now, False), f"tmp/{there}.{live.token}": (old, True),
        f"tmp/{some}.{dead.token}": (now, True), f"tmp/{'b' * 64}.{dead.token}": (old, False),
        f"tmp/{some}.{live.token}": (old, True),
        f"tmp/{some}.{stranger}": (now, True), f"tmp/{'b' * 64}.{stranger}": (old, False),
        f"tmp/text.{dead.token}": (now, False), f"tmp/text.{live.token}": (old, True),
        f"tmp/text.{stranger}": (now, True), f"tmp/link.{stranger}": (old, False),
        f"use/{dead.token}.600": (now, False), f"use/{live.token}.99999": (old, True),
        f"use/{stranger}.600": (now, True), f"use/{stranger}.5": (old, False),
        f"use/{stranger}.6000": (now + 1e6, True), "use/nonsense": (now, False), "tmp/nonsense": (old, False),
    }  # fmt: skip
    for name, (age, _) in rows.items():
        (root / name).write_bytes(b"{}")
        os.utime(root / name, (age, age))
    (root / f"tmp/{some}.d.{dead.token}").mkdir()
    transport = LocalTransport(store=root)
    transport.deploy(native_bundle, Budget())
    assert {n: (root / n).exists() for n in rows} == {n: stays for n, (_, stays) in rows.items()}
    assert not (root / f"tmp/{some}.d.{dead.token}").exists()
    transport.close()
    live.close()


# ---- links ----


@pytest.mark.parametrize(("kind", "seed"), [("ssh", 0), ("ssh", 1), ("ssh", 2), ("dropbear", 0)])
def test_cut_upload_resends_less_than_what_was_missing_and_16_mib(
    kind: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Indeed less than what was missing and 1 MiB, in which the session's other bytes are."""
    size, linked = 20 * MIB, BOARDS[kind](request, tmp_path / "root")
    bundle = with_weights(linked.bundle, tmp_path / "large", size, seed)
    at = random.Random(seed).randrange(MIB, size)
    with proxy.before(linked.port) as link:
        link.cut_after = at
        transport = linked.open(port=link.port)
        with pytest.raises(SmeltError) as caught:
            transport.deploy(bundle, Budget(LIMITS))
        assert verdict_of_error(caught.value) is Verdict.LINK_LOST, caught.value
        transport.close()
        before = link.sent
        transport = linked.open(port=link.port)
        transport.deploy(bundle, Budget(LIMITS))
        transport.close()
        assert link.sent - before < size - at + MIB
        assert link.sent - before > size - at - MIB  # less would not do: the proxy counts
    assert linked.left("tmp") == linked.left("use") == []
    assert len(linked.stored()) == 3


def test_stalled_upload_is_named(linked: Board, tmp_path: Path) -> None:
    bundle = with_weights(linked.bundle, tmp_path / "large", 4 * MIB)
    limits = replace(LIMITS, connect=2, command=2, upload=2, close=1)
    with proxy.before(linked.port) as link:
        transport = linked.open(port=link.port)
        transport.free_bytes(Budget(LIMITS))
        threading.Timer(0.1, link.stalled.set).start()  # in the upload or, on a busy machine, before it
        with pytest.raises(SmeltError, match=r"no byte came from the device for 2 s|longer than") as caught:
            transport.deploy(bundle, Budget(limits))
        assert verdict_of_error(caught.value) is Verdict.LINK_STALLED
        transport.close()


def test_a_link_that_stalls_before_a_channel_opens_is_named(linked: Board) -> None:
    limits = replace(LIMITS, connect=2, command=2, close=1)
    with proxy.before(linked.port) as link:
        transport = linked.open(port=link.port)
        transport.deploy(linked.bundle, Budget(LIMITS))
        link.stalled.set()
        with pytest.raises(SmeltError, match="no byte came from the device for 2 s") as caught:
            transport.execute(["true"], Budget(limits))
        assert verdict_of_error(caught.value) is Verdict.LINK_STALLED
        transport.close()


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_link_that_fails_during_a_run_is_named(linked: Board, how: str) -> None:
    with proxy.before(linked.port) as link:
        transport = linked.open(port=link.port)
        limits = replace(LIMITS, beat=0.2, silence=3, close=1)
        with open_session(transport, linked.bundle, budget=Budget(limits)) as client:
            assert client.facts is not None
            threading.Timer(0.5, link.cut if how == "cut" else link.stalled.set).start()
            with pytest.raises(SmeltError) as caught:
                client.run([X, SLEEP])
            wanted = Verdict.LINK_LOST if how == "cut" else Verdict.LINK_STALLED
            assert verdict_of_error(caught.value) is wanted, caught.value
            assert "board" in str(caught.value)
        transport.close()


# ---- disks ----

DEPLOY = """
import sys
from pathlib import Path
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.inventory import find_device, open_transport
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.verdict import verdict_of_error
try:
    LocalTransport(store=Path(sys.argv[2])).deploy(Path(sys.argv[1]), Budget())
except SmeltError as error:
    print(verdict_of_error(error).value, verdict_of_error(error).exit_code, error)
"""
DISKS = {
    "small": ("size=12m", Verdict.DISK_FULL),
    "read-only": ("ro", Verdict.READ_ONLY),
    # full all of a sudden: what is free was asked when there was room
    "lying": ("size=60m", Verdict.DISK_FULL),
}


@pytest.mark.parametrize("kind", ["small", "read-only"])
def test_bad_disk_of_this_machine(kind: str, native_bundle: Path, tmp_path: Path) -> None:
    options, wanted = DISKS[kind]
    bundle, root = with_weights(native_bundle, tmp_path / "large", 20 * MIB), tmp_path / "disk"
    root.mkdir()
    argv = [sys.executable, "-c", DEPLOY, str(bundle), str(root)]
    with rig.disk(root, options) as there:
        done = subprocess.run([*there, *argv], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{wanted.value} 6 "), done.stdout + done.stderr
    assert "device 'local'" in done.stdout


@pytest.mark.parametrize("kind", list(DISKS))
def test_bad_disk_over_ssh(kind: str, native_bundle: Path, tmp_path: Path) -> None:
    options, wanted = DISKS[kind]
    size = 100 if kind == "lying" else 20
    bundle, root = with_weights(native_bundle, tmp_path / "large", size * MIB), tmp_path / "disk"
    root.mkdir()
    with rig.disk(root, options) as there, rig.start_sshd(tmp_path / "sshd", there) as server:
        rules = StoreRules(reserve=-1000 * MIB) if kind == "lying" else StoreRules()
        transport = SshTransport("full", server.address, root=str(root / "farm"), rules=rules)
        with pytest.raises(SmeltError) as caught:
            transport.deploy(bundle, Budget(LIMITS))
        transport.close()
    assert verdict_of_error(caught.value) is wanted, caught.value
    assert verdict_of_error(caught.value).exit_code == 6
    assert "device 'full'" in str(caught.value) and str(root) in str(caught.value)
    if kind == "small":
        assert "needs 20" in str(caught.value) and "free on its disk" in str(caught.value)


# ---- its parts ----


def test_owner_dies_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from smelt.devicefarm.owners import Owner\n"
        "o = Owner(Path(sys.argv[1])); print(o.token, flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    token = other.stdout.readline().strip()
    mine = Owner(tmp_path)
    assert mine.knows(token)
    assert mine.alive(token, 1e9)
    other.kill()
    other.communicate()
    assert not mine.alive(token, 0)
    mine.close()
    assert list((tmp_path / "farm" / "owners").iterdir()) == []


def test_owner_without_a_cache_is_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "farm").write_text("")
    odd, mine = Owner(tmp_path), Owner(tmp_path / "other")
    assert not mine.knows(odd.token)
    assert mine.alive(odd.token, 1) and not mine.alive(odd.token, 1e6)
    for o in (odd, mine):
        o.close()


def test_runner_hashes_as_sha256sum(native_bundle: Path, tmp_path: Path) -> None:
    paths = []
    for size in (0, 1, 55, 56, 63, 64, 65, 65536, 200_001):
        paths.append(tmp_path / f"of {size}")
        paths[-1].write_bytes(random.Random(size).randbytes(size))
    said = [
        subprocess.run([*program, *map(str, paths)], capture_output=True, text=True, check=True).stdout
        for program in ([str(native_bundle / "smelt_run"), "--hash"], ["sha256sum"])
    ]
    assert said[0] == said[1]
    argv = [str(native_bundle / "smelt_run"), "--hash", "/nowhere", str(paths[1])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "/nowhere: cannot be read" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_listing_is_what_the_store_keeps(native_bundle: Path, tmp_path: Path) -> None:
    transport = LocalTransport(store=tmp_path)
    home = Path(transport.deploy(native_bundle, Budget()))
    kept = json.loads((home / ".listing").read_bytes())
    assert sorted(kept) == sorted(p.name for p in native_bundle.iterdir())
    files = LocalFiles("x", tmp_path)
    whole = {f"cas/{v}": Content(v, (tmp_path / "cas" / v).stat().st_size) for v in kept.values()}
    assert not files.differing(whole, Budget())
    transport.close()
