"""devices.toml: what is written is read back, and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.core.diag import SmeltError
from smelt.devicefarm.inventory import (
    BUILTIN,
    DEFAULT_DEVICE,
    Device,
    choose,
    describe,
    find_device,
    open_transport,
    read_inventory,
    write_inventory,
)
from smelt.devicefarm.verdict import Verdict, verdict_of_error

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
DEVICES = st.builds(
    Device,
    name=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True),
    transport=st.sampled_from(["ssh", "local", "adb"]),
    platform=st.just("aarch64-linux"),
    host=TEXT,
    port=st.integers(1, 65535),
    key_file=TEXT,
    serial=TEXT,
    pool=TEXT,
    power=TEXT,
    quota=st.none() | st.integers(1, 2**63 - 1),
    emulated=st.booleans(),
    tags=st.lists(TEXT, max_size=3).map(tuple),
)


@given(st.lists(DEVICES, max_size=4, unique_by=lambda d: d.name))
def test_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, devices: list[Device]
) -> None:
    path = tmp_path_factory.mktemp("inventory") / "devices.toml"
    write_inventory({d.name: d for d in devices}, path)
    assert read_inventory(path) == {d.name: d for d in BUILTIN} | {d.name: d for d in devices}


def test_built_in_devices_need_no_file(tmp_path: Path) -> None:
    devices = read_inventory(tmp_path / "none.toml")
    assert {"local", "qemu-arm64", "qemu-armv7", "android-emulated"} <= set(devices)
    assert DEFAULT_DEVICE["aarch64-android"] == "android-emulated"
    assert "this machine" in describe(devices["local"])
    assert all("emulated" in describe(d) for d in devices.values() if d.name != "local")


def test_android_says_which_way(monkeypatch: pytest.MonkeyPatch) -> None:
    device = find_device("android-emulated")
    monkeypatch.delenv("SMELT_BIONIC_ROOT", raising=False)
    assert "glibc" in describe(device)
    monkeypatch.setenv("SMELT_BIONIC_ROOT", "/nowhere")
    assert "real bionic" in describe(device)
    with pytest.raises(SmeltError, match="linker64"):
        open_transport(device)


def test_no_such_device(tmp_path: Path) -> None:
    with pytest.raises(
        SmeltError, match="no device is called 'pixel'; there are android-emulated"
    ) as caught:
        find_device("pixel", tmp_path / "none.toml")
    assert verdict_of_error(caught.value) is Verdict.NO_DEVICE
    assert Verdict.NO_DEVICE.exit_code == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema_version = 2\n", "schema_version 2, wanted 1"),
        ("", "schema_version None"),
        ("schema_version = [", "cannot be read"),
        ("schema_version = 1\ndevice = 3\n", "tables are wanted"),
        ("schema_version = 1\n[device.Bad]\ntransport='ssh'\nplatform='x'\n", "lower-case"),
        ("schema_version = 1\n[device.a]\ntransport='ssh'\n", "platform is missing"),
        (
            "schema_version = 1\n[device.a]\ntransport='ssh'\nplatform='x'\nport=0\n",
            "port cannot be 0",
        ),
        (
            "schema_version = 1\n[device.a]\ntransport='ssh'\nplatform='x'\nport=true\n",
            "port cannot be True",
        ),
        (
            "schema_version = 1\n[device.a]\ntransport='ssh'\nplatform='x'\ntags='y'\n",
            "tags cannot be",
        ),
        (
            "schema_version = 1\n[device.a]\ntransport='ssh'\nplatform='x'\nhots='y'\n",
            "unknown hots",
        ),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(text)
    with pytest.raises(SmeltError, match=message) as caught:
        read_inventory(path)
    assert caught.value.kind == "invalid"


def test_ssh_needs_a_pinned_key() -> None:
    device = Device("board", "ssh", "aarch64-linux", host="h", user="u", key_file="k")
    with pytest.raises(SmeltError, match="lacks host_key"):
        open_transport(device)
    assert open_transport(replace(device, host_key="ssh-ed25519 AAAA")).name == "board"


def test_unknown_transport() -> None:
    with pytest.raises(SmeltError, match="there are adb, android, local, qemu-board, qemu-user, ssh"):
        open_transport(Device("x", "carrier-pigeon", "aarch64-linux"))


def row(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "devices.toml"
    path.write_text(f"schema_version = 1\n[device.b1]\nplatform = 'aarch64-linux'\n{text}\n")
    return path


def test_a_board_can_be_called_emulated_and_never_real(tmp_path: Path) -> None:
    ssh = "transport = 'ssh'\nhost = 'h'\nuser = 'u'\nkey_file = 'k'\nhost_key = 'ssh-ed25519 A'\n"
    for text, expected in ((ssh, False), (f"{ssh}emulated = true", True)):
        device = find_device("b1", row(tmp_path, text))
        assert open_transport(device).emulated == expected
        assert ("emulated" in describe(device)) == expected
    for wrong in ("false", "'no'", "0"):
        with pytest.raises(SmeltError, match="device 'b1': emulated can"):
            read_inventory(row(tmp_path, f"{ssh}emulated = {wrong}"))


def test_devices_are_chosen_by_all_of_their_tags() -> None:
    rows = [
        Device("a", "ssh", "aarch64-linux", tags=("big", "lab"), pool="ci"),
        Device("b", "ssh", "aarch64-linux", tags=("lab",)),
        Device("c", "adb", "aarch64-android", tags=("big",), pool="ci"),
    ]

    def names(*tags: str, pool: str = "") -> str:
        return "".join(d.name for d in choose(rows, tags=tags, pool=pool))

    assert names() == "abc"
    assert (names("big"), names("lab"), names("big", "lab"), names("none")) == ("ac", "ab", "a", "")
    assert (names("ssh"), names("aarch64-android")) == ("ab", "c")
    assert (names("big", pool="ci"), names(pool="x")) == ("ac", "")


def test_an_adb_device_needs_its_serial(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="lacks its serial") as caught:
        open_transport(find_device("b1", row(tmp_path, "transport = 'adb'")))
    assert caught.value.hint is not None and "adb devices" in caught.value.hint


def test_the_whole_board_is_there_and_nobodys_default(tmp_path: Path) -> None:
    board = find_device("qemu-board", tmp_path / "none.toml")
    assert board.emulated and "qemu-system" in describe(board)
    assert DEFAULT_DEVICE["aarch64-linux"] == "qemu-arm64"
    transport = open_transport(board)  # which starts nothing
    assert transport.emulated
    transport.close()


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("'2 GiB'", 2 << 30), ("'2GiB'", 2 << 30), ("'1.5 gib'", 3 << 29), ("'500 MB'", 500_000_000),
        ("'0.001 kB'", 1), ("'7 B'", 7), ("4096", 4096), ("'1 TiB'", 1 << 40),
    ],
)  # fmt: skip
def test_a_quota_is_a_size(tmp_path: Path, written: str, size: int) -> None:
    devices = read_inventory(row(tmp_path, f"transport = 'local'\nroot = '/r'\nquota = {written}"))
    device = devices["b1"]
    assert device.quota == size
    write_inventory(devices, tmp_path / "again.toml")
    assert read_inventory(tmp_path / "again.toml")["b1"] == device


@pytest.mark.parametrize(
    "written",
    ["'2 GiBs'", "'2 G'", "'GiB'", "'-1 GiB'", "0", "-5", "true", "1.5", "[]", "''", "'0.1 B'", "'1e3 MB'",
     "'٢ GiB'", "'999999999999999 TiB'", "'1 000 MB'"],
)  # fmt: skip
def test_a_quota_that_is_none_is_named_with_file_and_key(tmp_path: Path, written: str) -> None:
    path = row(tmp_path, f"transport = 'local'\nquota = {written}")
    with pytest.raises(SmeltError, match=r"quota cannot be .* such as '2 GiB'") as caught:
        read_inventory(path)
    assert caught.value.kind == "invalid"
    assert str(path) in str(caught.value) and "device 'b1'" in str(caught.value)
