"""The name of a program, library or folder of the system in; where it is, and how to skip without it, out.

Tests ask here alone, so that .ci/emulators can be held against the packages of this table.
"""

from __future__ import annotations

import platform
import shutil
from ctypes.util import find_library
from pathlib import Path
from types import MappingProxyType

import pytest

PACKAGES = MappingProxyType({
    "gcc": "gcc",
    "g++": "g++",
    "nm": "gcc",  # by way of binutils
    "qemu-aarch64": "qemu-user-static",
    "qemu-aarch64-static": "qemu-user-static",
    "qemu-system-aarch64": "qemu-system-arm",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-server",
    "sftp-server": "openssh-server",
    "dropbear": "dropbear-bin",
    "dropbearkey": "dropbear-bin",
    "nss_wrapper": "libnss-wrapper",
    "adb": "adb",
    "prlimit": "",
    "unshare": "",
    "openblas": "libopenblas0-pthread",
    "blas": "libopenblas0-pthread",
    "OpenCL": "ocl-icd-libopencl1",
    "/etc/OpenCL/vendors": "pocl-opencl-icd",
    "/usr/aarch64-linux-gnu": "libc6-arm64-cross",
    "vulkan": "libvulkan1",
    "/usr/share/vulkan/icd.d": "mesa-vulkan-drivers",
    "/usr/share/vulkan/explicit_layer.d": "vulkan-validationlayers",
    "spirv-val": "spirv-tools",
    "spirv-dis": "spirv-tools",
    "chromium-headless-shell": "chromium-headless-shell",
    "initdb": "postgresql",
    "postgres": "postgresql",
})  # fmt: skip
"""Program, library or folder -> the Debian package that brings it, or one that depends on that; '' for what
every Debian has."""


def program_path(name: str) -> str | None:
    """The path of a program; None without it. Emulators of other processors have no tests that need them."""
    assert name in PACKAGES or name.startswith("qemu-"), name
    postgres = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    beside = [folder / name for folder in (Path("/usr/sbin"), Path("/usr/lib/openssh"), *postgres)]
    return shutil.which(name) or next((str(p) for p in beside if p.exists()), None)


def needed(name: str) -> str:
    """The path of a program; a test is skipped without it."""
    found = program_path(name)
    if found is None:
        pytest.skip(f"no {name}: apt install {PACKAGES[name]}")
    return found


def library_name(name: str) -> str | None:
    """The file name of a shared library; None without it."""
    assert name in PACKAGES, name
    return find_library(name)


def preload_path(name: str) -> str | None:
    """The path of a library that programs of this machine are started with (LD_PRELOAD); None without it."""
    assert name in PACKAGES, name
    found = Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / f"lib{name}.so"
    return str(found) if found.exists() else None


def system_folder(name: str) -> Path:
    """A folder of the system, which may not be there."""
    assert name in PACKAGES, name
    return Path(name)
