"""A bundle's way into a device's store: by content, refused when it is odd, without traces when it fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rig
from installed import program_path

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.ssh import SshTransport
from smelt.devicefarm.transport import Transport

LIMITS = StepLimits(connect=100, load=100, run=100, output=100, grace=5, total=600)
HANGS = 60.0


@pytest.mark.parametrize("kind", ["store", "ssh"])
def test_deploy_is_by_content(
    kind: str, request: pytest.FixtureRequest, native_bundle: Path, tmp_path: Path
) -> None:
    transport: Transport = LocalTransport(store=tmp_path / "store")
    if kind == "ssh":
        address = request.getfixturevalue("sshd").address
        transport = SshTransport("board", address, root=str(tmp_path / "root"))
    budget = Budget(LIMITS)
    first = transport.deploy(native_bundle, budget)
    stored = sorted(p for p in tmp_path.rglob("*") if p.parent.name == "cas")
    assert len(stored) == 2
    ages = [p.stat().st_mtime_ns for p in stored]
    copy = tmp_path / "another name"
    shutil.copytree(native_bundle, copy)
    assert transport.deploy(copy, budget) == first
    assert [p.stat().st_mtime_ns for p in stored] == ages
    (copy / "model.weights").write_bytes(b"w" * 100_000)
    second = transport.deploy(copy, budget)
    assert second != first
    assert (Path(second) / "model.weights").read_bytes() == b"w" * 100_000
    assert not list(tmp_path.rglob("tmp/*"))
    transport.close()


def test_odd_bundles_are_refused(native_bundle: Path, tmp_path: Path) -> None:
    transport = LocalTransport(store=tmp_path / "store")
    odd = tmp_path / "odd"
    with pytest.raises(SmeltError, match="not a directory"):
        transport.deploy(odd, Budget())
    odd.mkdir()
    with pytest.raises(SmeltError, match="is empty"):
        transport.deploy(odd, Budget())
    (odd / "libmodel.so").symlink_to("/etc/passwd")
    with pytest.raises(SmeltError, match="not a plain file"):
        transport.deploy(odd, Budget())
    (odd / "libmodel.so").unlink()
    (odd / "a b;c").write_text("")
    with pytest.raises(SmeltError, match="name that is not deployed"):
        transport.deploy(odd, Budget())


FULL_DISK = """
import sys
from pathlib import Path
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.local import LocalTransport
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    LocalTransport(store=Path(sys.argv[2])).deploy(Path(sys.argv[1]), Budget())
except SmeltError as error:
    print(error.kind, error.status, error)
"""


def test_full_disk_is_infra_and_leaves_no_half_file(native_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(native_bundle, bundle)
    (bundle / "model.weights").write_bytes(bytes(4 << 20))
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(bundle), str(tmp_path / "store")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("infra disk full writing '")
    assert not list((tmp_path / "store").rglob("tmp/*"))
    assert not list((tmp_path / "store").rglob("bundles/*"))


def test_full_disk_over_ssh(tmp_path: Path, native_bundle: Path) -> None:
    rig.need(program_path("prlimit"), "needs prlimit: apt-get install util-linux")
    bundle = tmp_path / "bundle"
    shutil.copytree(native_bundle, bundle)
    (bundle / "model.weights").write_bytes(bytes(4 << 20))
    with rig.start_sshd(tmp_path / "sshd") as server:
        subprocess.run(["prlimit", f"--pid={server.pid}", f"--fsize={1 << 20}"], check=True)
        transport = SshTransport("full", server.address, root=str(tmp_path / "root"))
        start = time.monotonic()
        with pytest.raises(SmeltError) as caught:
            transport.deploy(bundle, Budget(LIMITS))
        assert caught.value.kind == "infra"
        assert time.monotonic() - start < HANGS
        transport.close()
    assert not list((tmp_path / "root").rglob("bundles/*"))
