"""Which runs take a lease, what they pay for it, and what the commands about leases say."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from forked import forked_smelt
from onnx import TensorProto, helper

import smelt
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import FenceFile, Stale
from smelt.devicefarm.health import Unwell
from smelt.devicefarm.inventory import Device, NoDevice, read_inventory, write_inventory
from smelt.devicefarm.leases.holder import QueueTimeout
from smelt.devicefarm.places import farm_rules, farm_url, host_fence
from smelt.leasing import HeldDevice, Wish, hold, open_desk
from smelt.running import running


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("leasing")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    return smelt.compile(str(folder / "m.onnx"), output=folder / "out")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of one's own, with two boards that are folders of this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SMELT_DEVICES", str(tmp_path / "devices.toml"))
    monkeypatch.delenv("SMELT_FARM", raising=False)
    boards = {n: Device(n, "local", "host", root=str(tmp_path / n), tags=("shelf",)) for n in ("one", "two")}
    write_inventory({**read_inventory(), **boards})
    return tmp_path


def cli(*words: str) -> tuple[int, dict[str, object], str]:
    done = forked_smelt(*words, "--json")
    return done.returncode, json.loads(done.stdout), done.stderr


LIST = """
import sys
from smelt.cli.main import main
main(sys.argv[1:])
print("loaded:", *sorted(m for m in sys.modules if m in ("sqlalchemy", "sqlite3", "getpass")))
"""


def loaded(*words: str) -> list[str]:
    argv = [sys.executable, "-P", "-c", LIST, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.rpartition("loaded:")[2].split()


def test_a_run_here_pays_nothing_for_leases(bundle: Bundle, home: Path) -> None:
    words = ["run", str(bundle.path), "--random", "--shape", "x:4"]
    assert "sqlalchemy" not in loaded(*words)
    assert "sqlalchemy" not in loaded(*words, "--device", "local")
    assert not (home / "state").exists()
    assert "sqlalchemy" in loaded(*words, "--device", "one")
    assert "sqlalchemy" not in loaded(*words)  # nobody has named a device
    assert "sqlalchemy" in loaded(*words, "--device", "local")  # there is a farm by now


def ran(client: smelt.devicefarm.client.RunnerClient) -> bool:
    x = np.float32([-1, 2])
    return bool(np.array_equal(client.run([x]).outputs["y"], np.maximum(x, 0)))


def test_a_named_device_is_leased_while_it_is_used(bundle: Bundle, home: Path) -> None:
    desk = open_desk()
    with closing(desk.database):
        with running(bundle, "one") as client:
            assert ran(client)
            (standing,) = desk.standings()
            assert standing.holder
            assert standing.fence == client.fence == host_fence("one").highest()
            assert FenceFile(home / "one" / "fence").highest() == client.fence
            with pytest.raises(QueueTimeout), running(bundle, Wish("one", timeout=0.1)):
                pass
            with running(bundle, "two") as other:
                assert ran(other)
        assert not desk.standings()[0].holder


def test_a_lease_that_is_taken_away_ends_the_work(bundle: Bundle) -> None:
    with running(bundle, "one") as client:
        assert ran(client)
        code, data, _ = cli("devices", "release", "one")
        assert (code, data["fence"]) == (0, client.fence)
        with running(bundle, "one") as newer, pytest.raises(SmeltError) as caught:
            assert ran(newer)
            client.run([np.float32([1])])
        assert caught.value.kind == "infra"
        assert isinstance(caught.value, Stale) or "lease" in str(caught.value)


def test_one_lease_for_several_runs(bundle: Bundle) -> None:
    with hold(["one"], Wish("one")) as held:
        fences = set()
        for _ in range(2):
            with running(bundle, held) as client:
                assert ran(client)
                fences.add(client.fence)
        assert len(fences) == 1
    with pytest.raises(SmeltError, match="released"), running(bundle, held):
        pass
    with running(bundle, HeldDevice("one")) as unclaimed:  # the caller's own risk
        assert unclaimed.fence == 0


def test_quarantine_and_back(bundle: Bundle) -> None:
    assert cli("devices", "quarantine", "one", "--reason", "fan broken")[0] == 0
    with pytest.raises(NoDevice, match="fan broken"), running(bundle, "one"):
        pass
    code, data, _ = cli("run", str(bundle.path), "--random", "--shape", "x:4", "--device", "one")
    assert code == 4
    assert "fan broken" in str(data["error"])
    (row,) = (d for d in cli("devices", "leases")[1]["devices"] if d["device"] == "one")  # type: ignore[attr-defined]
    assert (row["quarantined"], row["reason"]) == (True, "fan broken")
    assert cli("devices", "restore", "one")[1]["restored"] is True
    with running(bundle, "one") as client:
        assert ran(client)
    assert cli("devices", "restore", "nowhere")[0] == 4


def test_a_device_that_cannot_be_mended_is_put_into_quarantine(
    bundle: Bundle, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full for good: what a check finds is stored with the device."""
    monkeypatch.setattr("smelt.devicefarm.doctor.LEAST_FREE", 1 << 60)
    with pytest.raises(Unwell, match=r"disk: .* MiB free"), running(bundle, "one"):
        pass
    desk = open_desk()
    with closing(desk.database):
        (standing,) = desk.standings()
    assert standing.quarantined
    assert "MiB free" in standing.reason
    assert not standing.holder


def test_where_the_farm_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert farm_url() == f"sqlite:///{home}/state/smelt/farm.db"
    for named, url in (("/x/f.db", "sqlite:////x/f.db"), ("postgresql://h/d", "postgresql://h/d")):
        monkeypatch.setenv("SMELT_FARM", named)
        assert farm_url() == url
    monkeypatch.setenv("SMELT_FARM_RULES", "lease=5, cap=2")
    assert (farm_rules().lease, farm_rules().cap) == (5.0, 2)
    for wrong in ("lease", "lease=x", "speed=1", "lease=-1", "lease=0", "lease=nan"):
        monkeypatch.setenv("SMELT_FARM_RULES", wrong)
        with pytest.raises(SmeltError, match="SMELT_FARM_RULES"):
            farm_rules()
