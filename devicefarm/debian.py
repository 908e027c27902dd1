"""Names of Debian packages, a release and an architecture in; a folder with their files out.

The packages of another release or architecture than this machine's: apt works in a folder of its own, with
the mirror, keys and proxies that the system's apt has, and changes nothing of the system. No root is needed.
A folder that is there is used as it is; remove it to have newer packages.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.core.turns import take_turn

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIMIT = 600.0
"""Seconds that apt may take for all packages."""


@dataclass(frozen=True, slots=True)
class PackageSet:
    """Packages with all that they depend on; unpacked: what begins with one of these names, () for all.
    architecture: '' is this machine's."""

    suite: str
    architecture: str
    packages: tuple[str, ...]
    unpacked: tuple[str, ...] = ()


ADBD = PackageSet("trixie", "", ("adbd",))
"""A real adbd: bookworm has none. It runs by its own ld.so."""
BOARD = PackageSet(
    "bookworm", "arm64",
    ("linux-image-cloud-arm64", "busybox-static", "dropbear-bin", "openssh-sftp-server"),
    ("linux-image-", "busybox-static_", "dropbear-bin_", "openssh-sftp-server_", "libc6_", "libcrypt1_",
     "libtomcrypt1_", "libtommath1_", "libgmp10_", "zlib1g_"),
)  # fmt: skip
"""What a whole board is made of, without pinning the kernel's ABI."""
EMULATED_DRIVERS = PackageSet(
    "bookworm", "arm64",
    ("pocl-opencl-icd", "ocl-icd-libopencl1", "mesa-vulkan-drivers", "libvulkan1", "binutils"),
)  # fmt: skip
"""OpenCL and Vulkan on processors, and the linker that PoCL calls: 540 MB."""


def unpacked(wanted: PackageSet) -> Path:
    """The folder with the files of the packages, fetched at the first call. Raises SmeltError: 'device' on a
    system that is no Debian, 'infra' where the packages cannot be fetched."""
    architecture = wanted.architecture or _architecture()
    key = hashlib.sha256(repr((wanted.packages, wanted.unpacked)).encode()).hexdigest()[:12]
    base = cache_dir() / "debian"
    final = base / f"{wanted.suite}-{architecture}-{key}"
    if final.is_dir():
        return final
    base.mkdir(parents=True, exist_ok=True)
    with _alone(base / f"{final.name}.lock"):
        if not final.is_dir():
            _fetch(wanted, architecture, final)
    return final


def _fetch(wanted: PackageSet, architecture: str, final: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=final.parent) as folder:
        work, tree = Path(folder), Path(folder) / "tree"
        environment = _private_apt(work, wanted.suite, architecture)
        apt = ["apt-get", "-qq", "-y"]
        names = ", ".join(wanted.packages)
        _run([*apt, "update"], environment, f"the lists of Debian {wanted.suite} ({architecture})")
        get = [*apt, "install", "--download-only", *wanted.packages]
        _run(get, environment, f"{names} of {wanted.suite}")
        tree.mkdir()
        found = sorted((work / "archives").glob("*.deb"))
        chosen = [p for p in found if not wanted.unpacked or p.name.startswith(wanted.unpacked)]
        for package in chosen:
            _run(["dpkg-deb", "-x", str(package), str(tree)], environment, package.name)
        tree.replace(final)


def _private_apt(work: Path, suite: str, architecture: str) -> dict[str, str]:
    """The environment in which apt works in this folder alone."""
    for name in ("etc", "lists/partial", "archives/partial"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (work / "etc" / "sources.list").write_text(f"deb {signed}{_mirror()} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "etc" / "sources.list", "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-", "Dir::Etc::preferencesparts": "-",
        "Dir::State::lists": work / "lists", "Dir::State::status": work / "status",
        "Dir::State::extended_states": work / "extended_states", "Dir::Cache::archives": work / "archives",
        "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "", "APT::Architecture": architecture,
        "APT::Install-Recommends": "false", "APT::Sandbox::User": "", "Debug::NoLocking": "true",
    }  # fmt: skip
    text = "".join(f'{k} "{v}";\n' for k, v in settings.items())
    # a list is added to, so the architectures of the system are cleared first
    only = f'#clear APT::Architectures;\nAPT::Architectures {{ "{architecture}"; }};\n'
    (work / "apt.conf").write_text(only + text)
    own = {"APT_CONFIG": str(work / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    return {**os.environ, **own}


def _mirror() -> str:
    """The address from which this system's own packages come."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE) $(COMPONENT) $(RELEASE)", "Created-By: Packages"]
    lines = _run(asked, {**os.environ, "LC_ALL": "C"}, "the list of mirrors").splitlines()
    rows = [line.split() for line in lines if len(line.split()) == 3]
    found = [site for site, component, release in rows if component == "main" and _is_debian(site, release)]
    if not found:
        raise SmeltError(
            "this system's apt has no mirror of Debian", kind="device",
            hint="the emulated boards are made of Debian's packages: use a Debian system or container",
        )  # fmt: skip
    return found[0]


def _is_debian(site: str, release: str) -> bool:
    return site.rstrip("/").endswith("/debian") and "/" not in release and "-" not in release


def _architecture() -> str:
    return _run(["dpkg", "--print-architecture"], dict(os.environ), "this machine's architecture").strip()


def _run(argv: Sequence[str], environment: dict[str, str], what: str) -> str:
    if shutil.which(argv[0]) is None:
        raise SmeltError(
            f"{what} cannot be had without {argv[0]}", kind="device",
            hint="the emulated boards are made of Debian's packages: use a Debian system or container",
        )  # fmt: skip
    try:
        done = subprocess.run(
            list(argv), env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SmeltError(f"{what}: {argv[0]} took longer than {LIMIT:.0f} s", kind="infra") from error
    if done.returncode != 0:
        said = "; ".join(done.stderr.strip().splitlines()[-3:])
        hint = "is the Debian mirror of this machine reachable? `apt-get update` has to work"
        raise SmeltError(f"{what} cannot be fetched: {said}", kind="infra", hint=hint)
    return done.stdout


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as f:
        take_turn(f.fileno(), f.name, 2 * LIMIT)
        yield


if __name__ == "__main__":  # for .ci/emulators: fetch the sets that are named
    try:
        for name in sys.argv[1:]:
            unpacked({"adbd": ADBD, "board": BOARD, "drivers": EMULATED_DRIVERS}[name])
    except SmeltError as error:
        sys.exit(f"{error}")
