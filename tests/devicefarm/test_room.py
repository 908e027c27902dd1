"""Which of a device's stored files have to go for others, and which stay whatever comes."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from pathlib import Path

import pytest
from boards import need_qemu
from stored import BOARDS, LIMITS, MIB, with_weights

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.inventory import find_device, open_transport
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.room import CONTINUABLE, StoreRules
from smelt.devicefarm.verdict import Verdict, verdict_of_error


@pytest.mark.parametrize("kind", ["store", "ssh", "dropbear"])
def test_least_recently_used_bundles_go_first(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    board = BOARDS[kind](request, tmp_path / "root")
    bundles = [with_weights(board.bundle, tmp_path / str(i), 3 * MIB, i) for i in range(4)]
    rules = StoreRules(quota=9 * MIB, reserve=0)

    def deploy(bundle: Path) -> str:
        transport = board.open(rules=rules)
        home = transport.deploy(bundle, Budget(LIMITS))
        transport.close()
        return home

    first = deploy(bundles[0])
    second = deploy(bundles[1])
    for at, home in enumerate((first, second)):
        os.utime(home, (at, at))
    (board.root / "cas" / ("c" * 64)).write_bytes(b"of no bundle")
    assert deploy(bundles[0]) == first  # used again: now it is the younger one
    third = deploy(bundles[2])
    assert Path(first).exists() and Path(third).exists() and not Path(second).exists()
    assert len(board.stored()) == len(list(board.bundle.iterdir())) + 2  # shared files are kept
    assert not (board.root / "cas" / ("c" * 64)).exists()


@pytest.mark.parametrize("ahead", [0.0, 1e6, -1e6])
def test_bundles_in_use_are_kept(native_bundle: Path, tmp_path: Path, ahead: float) -> None:
    """ahead: seconds that the device's clock jumps by after the first deploy."""
    bundles = [with_weights(native_bundle, tmp_path / str(i), 3 * MIB, i) for i in range(3)]
    rules, root = StoreRules(quota=7 * MIB, reserve=0), tmp_path / "root"
    using = LocalTransport(store=root, rules=rules)
    home = using.deploy(bundles[0], Budget())
    for pin in (root / "use").iterdir():
        os.utime(pin, (time.time() - ahead, time.time() - ahead))
    for bundle in bundles[1:]:  # each takes the other's place
        other = LocalTransport(store=root, rules=rules)
        other.deploy(bundle, Budget())
        other.close()
        assert (Path(home) / "model.weights").exists()
    holding = LocalTransport(store=root, rules=rules)
    holding.deploy(bundles[1], Budget())
    full = LocalTransport("board", store=root, rules=rules)
    with pytest.raises(SmeltError, match=r"device 'board' has no room .* it needs 3.0 MiB more") as caught:
        full.deploy(bundles[2], Budget())
    assert verdict_of_error(caught.value) is Verdict.DISK_FULL
    using.close()
    full.deploy(bundles[2], Budget())
    for t in (holding, full):
        t.close()


def test_a_store_of_few_bytes_heals(native_bundle: Path, tmp_path: Path) -> None:
    """What is damaged is not counted beside what takes its place."""
    bundle, root = with_weights(native_bundle, tmp_path / "bundle", 3 * MIB), tmp_path / "root"
    whole = sum(p.stat().st_size for p in bundle.iterdir())
    rules = StoreRules(quota=whole, reserve=0)
    for _ in range(2):
        transport = LocalTransport(store=root, rules=rules)
        home = Path(transport.deploy(bundle, Budget()))
        transport.close()
        weights = home / "model.weights"
        assert weights.read_bytes() == (bundle / "model.weights").read_bytes()
        with weights.open("r+b") as f:
            f.write(bytes(MIB))


def test_what_cannot_fit_removes_nothing(native_bundle: Path, tmp_path: Path) -> None:
    small, large = (with_weights(native_bundle, tmp_path / str(n), n * MIB) for n in (2, 9))
    rules, root = StoreRules(quota=8 * MIB, reserve=0), tmp_path / "root"

    def deploy(bundle: Path) -> Path:
        transport = LocalTransport("board", store=root, rules=rules)
        try:
            return Path(transport.deploy(bundle, Budget()))
        finally:
            transport.close()

    home = deploy(small)
    with pytest.raises(SmeltError, match=r"the store may hold 8\.0 MiB") as caught:
        deploy(large)
    assert verdict_of_error(caught.value) is Verdict.DISK_FULL
    assert (home / "model.weights").exists()


def test_uploads_that_were_cut_count(native_bundle: Path, tmp_path: Path) -> None:
    """Bytes of a cut upload are the quota's, too; where the file is sent at last they are not counted twice,
    and are not sent again."""
    bundle = with_weights(native_bundle, tmp_path / "bundle", 4 * MIB)
    data, root = (bundle / "model.weights").read_bytes(), tmp_path / "root"
    whole = sum(p.stat().st_size for p in bundle.iterdir())
    (root / "tmp").mkdir(parents=True)

    def part(digest: str, size: int) -> Path:
        made = root / "tmp" / f"{digest}.{'0' * 12}-{secrets.token_hex(8)}"
        made.write_bytes(data[:size])
        now = time.time() - CONTINUABLE / 2  # neither under way nor too old
        os.utime(made, (now, now))
        return made

    mine, other = part(hashlib.sha256(data).hexdigest(), 3 * MIB), part("a" * 64, MIB)
    inode = mine.stat().st_ino
    transport = LocalTransport(store=root, rules=StoreRules(quota=whole + MIB, reserve=0))
    home = Path(transport.deploy(bundle, Budget()))
    assert (home / "model.weights").stat().st_ino == inode and other.exists()
    transport.close()
    shutil.rmtree(root / "cas")
    transport = LocalTransport(store=root, rules=StoreRules(quota=whole, reserve=0))
    transport.deploy(bundle, Budget())
    assert not other.exists()
    transport.close()


@pytest.mark.parametrize("kind", ["local", "qemu-user", "ssh", "dropbear", "adb"])
def test_the_inventory_has_the_quota(
    kind: str, request: pytest.FixtureRequest, native_bundle: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A line of devices.toml, and what the store of the device that it is about removes."""
    if kind in ("ssh", "dropbear"):
        at = request.getfixturevalue({"ssh": "sshd"}.get(kind, kind)).address
        row = f"""transport = "ssh"\nhost = "{at.host}"\nport = {at.port}\nuser = "{at.user}"
host_key = "{at.host_key}"\nkey_file = "{at.key_file}\""""
    elif kind == "adb":
        phone = request.getfixturevalue("adbd")
        monkeypatch.setenv("SMELT_ADB_PORT", str(phone.server.port))
        row = f'transport = "adb"\nserial = "{phone.serial}"'
    else:
        need_qemu("qemu-aarch64-static")
        row = f'transport = "{kind}"\nemulator = "qemu-aarch64"'
    toml, root = tmp_path / "devices.toml", tmp_path / "root"
    text = f"""schema_version = 1\n[device.board]\nplatform = "x86_64-linux"\n{row}\nroot = "{root}\""""
    toml.write_text(f'{text}\nquota = "7 MiB"\n')
    bundles = [with_weights(native_bundle, tmp_path / str(i), 3 * MIB, i) for i in range(3)]
    homes = []
    for bundle in bundles:
        transport = open_transport(find_device("board", toml))
        homes.append(Path(transport.deploy(bundle, Budget(LIMITS))))
        transport.close()
        os.utime(homes[-1], (len(homes), len(homes)))
    assert [h.exists() for h in homes] == [False, True, True]
    assert sum(p.stat().st_size for p in (root / "cas").iterdir()) <= 7 * MIB
