"""devices.toml <-> Device rows, and a Device -> its Transport; some devices are built in."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from smelt.core.bundle import replace_file
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.devicefarm.adb import ANDROID_ROOT, AdbTransport
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.qemu_board import BoardMachine, QemuBoardTransport
from smelt.devicefarm.qemu_user import (
    BIONIC_VARIABLE,
    GLIBC_ROOT,
    SHIM_RUNNER,
    android_emulated,
    qemu_user,
)
from smelt.devicefarm.room import StoreRules, byte_count
from smelt.devicefarm.ssh import DEFAULT_ROOT, SshAddress, SshTransport
from smelt.devicefarm.transport import Transport
from smelt.devicefarm.userland import userland

INVENTORY_VERSION = 1
DEVICE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Device:
    """One row of the inventory.

    platform: a target's name, such as 'aarch64-linux'. serial: of an adb device, or 'host:port'. root: where
    bundles go on it; quota: most bytes of them, None for StoreRules' own. pool, tags: what it can be chosen
    by. power: how its power is controlled. emulated: it is no real board; what the board says itself
    (DeviceFacts.emulation) cannot be taken back by a row.
    """

    name: str
    transport: str
    platform: str
    host: str = ""
    port: int = 22
    user: str = ""
    host_key: str = ""
    key_file: str = ""
    root: str = ""
    emulator: str = ""
    cpu: str = ""
    sysroot: str = ""
    serial: str = ""
    pool: str = ""
    power: str = ""
    quota: int | None = None
    emulated: bool = False
    tags: tuple[str, ...] = ()


BUILTIN = (
    Device("local", "local", "host", tags=("builtin",)),
    Device(
        "qemu-arm64", "qemu-user", "aarch64-linux", emulator="qemu-aarch64",
        cpu="max", sysroot=str(GLIBC_ROOT), tags=("builtin", "emulated"),
    ),
    Device(
        "qemu-armv7", "qemu-user", "armv7-linux", emulator="qemu-arm",
        cpu="max", tags=("builtin", "emulated"),
    ),
    Device(
        "qemu-riscv64", "qemu-user", "riscv64-linux", emulator="qemu-riscv64",
        cpu="rv64,v=true,vlen=128,vext_spec=v1.0", tags=("builtin", "emulated"),
    ),
    Device("arm64-units", "userland", "aarch64-linux", tags=("builtin", "emulated")),
    Device("android-emulated", "android", "aarch64-android", tags=("builtin", "emulated")),
    Device(
        "qemu-board", "qemu-board", "aarch64-linux", power="qemu-board:", emulated=True,
        tags=("builtin", "emulated"),
    ),
)  # fmt: skip

# the device that a platform is tried on when nobody names one: the first
DEFAULT_DEVICE = {d.platform: d.name for d in reversed(BUILTIN)}


def inventory_path() -> Path:
    """$SMELT_DEVICES, or devices.toml in the user's configuration directory."""
    named = os.environ.get("SMELT_DEVICES")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "smelt" / "devices.toml"


def read_inventory(path: Path | None = None) -> dict[str, Device]:
    """name -> Device of the file, over the built-in ones; SmeltError(kind='invalid') naming what
    is wrong with it.
    """
    path = path or inventory_path()
    devices = {d.name: d for d in BUILTIN}
    if not path.exists():
        return devices
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SmeltError(f"'{path}' cannot be read: {error}", kind="invalid") from error
    if data.get("schema_version") != INVENTORY_VERSION:
        raise SmeltError(
            f"'{path}' has schema_version {data.get('schema_version')!r}, wanted {INVENTORY_VERSION}",
            kind="invalid",
        )
    rows = data.get("device", {})
    if not isinstance(rows, dict):
        raise SmeltError(f"'{path}': [device.NAME] tables are wanted", kind="invalid")
    for name, row in rows.items():
        devices[name] = _parse_row(path, name, row)
    return devices


def write_inventory(devices: Mapping[str, Device], path: Path | None = None) -> Path:
    """Write every device that is not built in, or differs from its built-in form, atomically; the file's
    path."""
    path = path or inventory_path()
    own = [d for _, d in sorted(devices.items()) if d not in BUILTIN]
    text = "".join((f"schema_version = {INVENTORY_VERSION}\n", *(_row_text(d) for d in own)))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(Path(os.path.realpath(path)), text.encode())
    return path


def find_device(name: str, path: Path | None = None) -> Device:
    """The device of that name. Raises NoDevice, which lists those that exist."""
    devices = read_inventory(path)
    if name not in devices:
        raise NoDevice(f"no device is called '{name}'; there are {', '.join(sorted(devices))}")
    return devices[name]


def choose(
    devices: Iterable[Device], *, tags: Sequence[str] = (), pool: str = ""
) -> tuple[Device, ...]:
    """Those that have all of the tags and are in the pool, '' for any, by name. The transport and the
    platform of a device are tags of it, too."""
    found = [
        d for d in devices
        if set(tags) <= {*d.tags, d.transport, d.platform} and (not pool or d.pool == pool)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda d: d.name))


class NoDevice(SmeltError):
    """There is no such device: exit code 4."""

    def __init__(self, message: str) -> None:
        self.status = "no device"
        super().__init__(message, kind="infra", hint="smelt devices list shows them all")

    def __reduce__(self) -> tuple[object, ...]:
        return (NoDevice, (self.message,))


def open_transport(
    device: Device, *, bundle: Path | None = None, shim_runner: Path | None = None
) -> Transport:
    """The transport of a device. bundle and shim_runner: where to find the runner that the
    Android shim needs.
    """
    make = TRANSPORTS.get(device.transport)
    if make is None:
        raise SmeltError(
            f"device '{device.name}' has transport '{device.transport}'; there are "
            + ", ".join(sorted(TRANSPORTS)),
            kind="invalid",
        )
    beside = bundle / SHIM_RUNNER if bundle is not None else None
    return make(device, shim_runner or beside)


def describe(device: Device) -> str:
    """One line for people: where it is and what it stands for."""
    tell = DESCRIPTIONS.get(device.transport)
    return tell(device) if tell else device.transport


def _store(device: Device) -> Path | None:
    return Path(device.root) if device.root else None


def _rules(device: Device) -> StoreRules:
    return StoreRules() if device.quota is None else StoreRules(quota=device.quota)


def _local(device: Device, shim: Path | None) -> Transport:
    return LocalTransport(
        name=device.name, store=_store(device), rules=_rules(device), emulated=device.emulated
    )


def _qemu_user(device: Device, shim: Path | None) -> Transport:
    return qemu_user(
        device.name,
        device.emulator,
        cpu=device.cpu or None,
        sysroot=Path(device.sysroot) if device.sysroot else None,
        store=_store(device),
        rules=_rules(device),
    )


def _userland(device: Device, shim: Path | None) -> Transport:
    return userland(device.name, cpu=device.cpu or None, store=_store(device), rules=_rules(device))


def _android(device: Device, shim: Path | None) -> Transport:
    return android_emulated(
        cache_dir(), shim_runner=shim, store=_store(device), rules=_rules(device)
    )


def _ssh(device: Device, shim: Path | None) -> Transport:
    missing = [f for f in ("host", "user", "host_key", "key_file") if not getattr(device, f)]
    if missing:
        raise SmeltError(
            f"device '{device.name}' lacks {', '.join(missing)}",
            kind="invalid",
            hint="ssh devices are reached by a key file, and only if their host key is pinned",
        )
    address = SshAddress(
        device.host,
        device.port,
        device.user,
        device.host_key,
        Path(device.key_file).expanduser(),
    )
    root = device.root or DEFAULT_ROOT
    return SshTransport(
        device.name, address, root=root, rules=_rules(device), emulated=device.emulated
    )


def _adb(device: Device, shim: Path | None) -> Transport:
    if not device.serial:
        raise SmeltError(
            f"device '{device.name}' lacks its serial", kind="invalid",
            hint="`adb devices` shows it; of a device that is reached by TCP it is host:port",
        )  # fmt: skip
    root = device.root or ANDROID_ROOT
    return AdbTransport(
        device.name, device.serial, root=root, rules=_rules(device), emulated=device.emulated
    )


def _qemu_board(device: Device, shim: Path | None) -> Transport:
    machine = BoardMachine(device.name, cpu=device.cpu)
    return QemuBoardTransport(
        device.name, machine, root=device.root or DEFAULT_ROOT, rules=_rules(device)
    )


TRANSPORTS: dict[str, Callable[[Device, Path | None], Transport]] = {
    "local": _local,
    "qemu-user": _qemu_user,
    "userland": _userland,
    "android": _android,
    "ssh": _ssh,
    "adb": _adb,
    "qemu-board": _qemu_board,
}

DESCRIPTIONS: dict[str, Callable[[Device], str]] = {
    "local": lambda d: "this machine",
    "qemu-user": lambda d: f"{d.emulator} on this machine (emulated)",
    "userland": lambda d: "Debian's arm64 drivers of OpenCL and Vulkan under qemu-aarch64 (emulated)",
    "android": lambda d: (
        "real bionic under qemu-aarch64 (emulated)"
        if os.environ.get(BIONIC_VARIABLE)
        else f"glibc standing in for bionic under qemu-aarch64 (emulated; set ${BIONIC_VARIABLE} for bionic)"
    ),
    "ssh": lambda d: f"{d.user}@{d.host}:{d.port}" + (" (emulated)" if d.emulated else ""),
    "adb": lambda d: f"adb -s {d.serial}" + (" (emulated)" if d.emulated else ""),
    "qemu-board": lambda d: "a whole arm64 machine under qemu-system-aarch64 on this machine (emulated)",
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is wanted")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(t, str) for t in value):
        raise ValueError("a list of texts is wanted")
    return tuple(value)


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65536:
        raise ValueError("a number from 1 to 65535 is wanted")
    return value


def _emulated(value: Any) -> bool:
    if value is not True:
        raise ValueError("whether a board is a real one, it says itself; leave the line out")
    return True


_READERS: dict[str, Callable[[Any], Any]] = {
    "tags": _texts, "emulated": _emulated, "port": _port, "quota": byte_count,
}  # fmt: skip
"""Keys whose values are no texts -> what reads them; they raise ValueError that says what is wanted."""


def _parse_row(path: Path, name: str, row: Any) -> Device:
    where = f"'{path}', device '{name}'"
    if not DEVICE_NAME.fullmatch(name):
        raise SmeltError(f"{where}: names are lower-case letters, digits and ._-", kind="invalid")
    known = {f.name: f for f in fields(Device) if f.name != "name"}
    if not isinstance(row, dict):
        raise SmeltError(f"{where}: a table is wanted", kind="invalid")
    unknown = sorted(set(row) - set(known))
    if unknown:
        raise SmeltError(
            f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}", kind="invalid"
        )
    for key in ("transport", "platform"):
        if key not in row:
            raise SmeltError(f"{where}: {key} is missing", kind="invalid")
    values: dict[str, Any] = {}
    for key, value in row.items():
        try:
            read: Callable[[Any], Any] = _READERS.get(key, _text)
            values[key] = read(value)
        except ValueError as why:
            raise SmeltError(f"{where}: {key} cannot be {value!r}: {why}", kind="invalid") from None
    return Device(name, **values)


def _row_text(device: Device) -> str:
    lines = [f"\n[device.{json.dumps(device.name)}]"]
    for f in fields(Device):
        value = getattr(device, f.name)
        if f.name == "name" or value == f.default:
            continue
        # JSON strings without non-ASCII escapes are TOML basic strings, except for DEL
        shown = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
        lines.append(f"{f.name} = {shown.replace(chr(127), chr(92) + 'u007f')}")
    return "\n".join(lines) + "\n"
