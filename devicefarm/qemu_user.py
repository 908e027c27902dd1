"""User-mode emulators of this machine -> transports for other architectures, Android among them.

Emulation shows that the code is right, never how fast a device is: every such transport is marked `emulated`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.room import StoreRules

PACKAGE = "apt-get install qemu-user-static"
BIONIC_VARIABLE = "SMELT_BIONIC_ROOT"
SHIM_RUNNER = "smelt_run.shim"
GLIBC_ROOT = Path("/usr/aarch64-linux-gnu")
# bionic's names for glibc's libraries; an Android library has only unversioned symbols, which bind to either
SHIM_LINKS = {
    "libc.so": "libc.so.6",
    "libm.so": "libm.so.6",
    "libdl.so": "libdl.so.2",
}


def find_emulator(binary: str) -> str:
    """Full path of a qemu-user binary (qemu-aarch64); its static form is preferred. Raises
    SmeltError(kind='device') where neither is installed.
    """
    for candidate in (f"{binary}-static", binary):
        found = shutil.which(candidate)
        if found:
            return found
    raise SmeltError(f"{binary}-static is not installed", kind="device", hint=PACKAGE)


def qemu_user(
    name: str,
    binary: str,
    *,
    cpu: str | None = None,
    sysroot: Path | None = None,
    store: Path | None = None,
    rules: StoreRules | None = None,
    guest_env: dict[str, str] | None = None,
    runner: Path | None = None,
) -> LocalTransport:
    """A device emulated by `binary` (such as qemu-aarch64).

    cpu: qemu's -cpu, None for its default. sysroot: where dynamic runners find their libraries;
    static ones need none. guest_env: variables that only the emulated program sees. Raises
    SmeltError(kind='device') when qemu is not installed.
    """
    prefix = [find_emulator(binary)]
    if sysroot is not None:
        prefix += ["-L", str(sysroot)]
    if cpu:
        prefix += ["-cpu", cpu]
    for key, value in sorted((guest_env or {}).items()):
        prefix += ["-E", f"{key}={value}"]
    return LocalTransport(
        name=name, emulated=True, store=store, rules=rules, prefix=tuple(prefix), runner=runner
    )


def bionic_root() -> Path | None:
    """The arm64 bionic userland that $SMELT_BIONIC_ROOT names, None without it."""
    root = os.environ.get(BIONIC_VARIABLE)
    if not root:
        return None
    path = Path(root) / "arm64_android"
    if not (path / "system/bin/linker64").exists():
        raise SmeltError(
            f"${BIONIC_VARIABLE} is '{root}', but '{path}/system/bin/linker64' does not exist",
            kind="device",
        )
    return path


def make_shim(into: Path, sysroot: Path = GLIBC_ROOT) -> Path:
    """Fill a folder with links by which glibc's libraries of `sysroot` have their Android names; the
    folder."""
    into.mkdir(parents=True, exist_ok=True)
    for android, glibc in SHIM_LINKS.items():
        target = sysroot / "lib" / glibc
        if not target.exists():
            raise SmeltError(
                f"'{target}' does not exist",
                kind="device",
                hint="apt-get install libc6-dev-arm64-cross, or set $SMELT_BIONIC_ROOT",
            )
        link = into / android
        temporary = into / f"{android}.{os.getpid()}"
        temporary.symlink_to(target)
        temporary.replace(link)
    return into


def android_emulated(
    cache: Path,
    *,
    shim_runner: Path | None = None,
    store: Path | None = None,
    rules: StoreRules | None = None,
) -> LocalTransport:
    """An emulated Android device: real bionic if $SMELT_BIONIC_ROOT is set, else the bundle's
    library on glibc.

    shim_runner: for the second case, an aarch64 glibc runner (dynamic build); the bundle's own one needs
    bionic's linker. The device's name says which case it is.
    """
    bionic = bionic_root()
    if bionic is not None:
        name = "android-emulated (bionic)"
        return qemu_user(name, "qemu-aarch64", sysroot=bionic, store=store, rules=rules)
    if shim_runner is None or not shim_runner.exists():
        raise SmeltError(
            f"the glibc runner for Android libraries does not exist at '{shim_runner}'",
            kind="device",
            hint=f"compile for an android target, or set ${BIONIC_VARIABLE}",
        )
    shim = make_shim(cache / "android-shim")
    return qemu_user(
        "android-emulated (glibc shim, no bionic)",
        "qemu-aarch64",
        sysroot=GLIBC_ROOT,
        guest_env={"LD_LIBRARY_PATH": str(shim)},
        store=store,
        rules=rules,
        runner=shim_runner,
    )
