"""A bundle's folder -> the same folder on a device, stored by content; the interface of all transports.

On the device: cas/ab/<sha256> holds files, bundles/<sha256> holds links to them under the bundle's
own names. Remote paths are made of hashes and of checked file names only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from smelt.core.bundle import hash_file
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.channel import Channel

SENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished command on the device. code: its exit code, None where the transport does not know it."""

    code: int | None
    out: str
    err: str


class Transport(Protocol):
    """A way to a device. Only the runner's END frame tells about a model; exit codes of
    transports are never trusted.
    """

    @property
    def name(self) -> str: ...
    @property
    def emulated(self) -> bool: ...

    def deploy(self, bundle: Path, budget: Budget) -> str:
        """Make the bundle's files available; their folder on the device. Raises SmeltError(kind='infra').
        """

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        """Start `<remote>/smelt_run --serve`."""

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        """Run a small command (health checks); its output is cut at 64 KiB."""

    def free_bytes(self, budget: Budget) -> int | None:
        """Free bytes where bundles are stored, None where the device does not report them."""

    def close(self) -> None:
        """Close the connection, within a time limit and without exceptions."""


class Files(Protocol):
    """The few file operations that `deploy_files` needs on a device. Paths are relative to the
    store's root.
    """

    def exists(self, path: str, budget: Budget) -> bool: ...
    def make_dirs(self, path: str, budget: Budget) -> None: ...
    def put(self, source: Path, path: str, budget: Budget) -> None: ...
    def sha256(self, path: str, budget: Budget) -> str: ...
    def rename(self, old: str, new: str, budget: Budget) -> None: ...
    def link(self, target: str, path: str, budget: Budget) -> None: ...
    def set_executable(self, path: str, budget: Budget) -> None: ...
    def remove(self, path: str, budget: Budget) -> None: ...
    def full_path(self, path: str) -> str: ...


def bundle_listing(bundle: Path) -> dict[str, str]:
    """file name -> sha256 of every file of a bundle; links, folders and odd names are refused by name."""
    if not bundle.is_dir():
        raise SmeltError(f"bundle '{bundle}' is not a directory", kind="invalid")
    found = {}
    for entry in sorted(os.scandir(bundle), key=lambda e: e.name):
        if not SENT_NAME.fullmatch(entry.name):
            raise SmeltError(
                f"bundle file {entry.name!r} has a name that is not deployed; "
                "allowed are letters, digits and ._+-",
                kind="invalid",
            )
        if not entry.is_file(follow_symlinks=False):
            raise SmeltError(f"bundle entry '{entry.name}' is not a plain file", kind="invalid")
        found[entry.name] = hash_file(Path(entry.path))
    if not found:
        raise SmeltError(f"bundle '{bundle}' is empty", kind="invalid")
    return found


def deploy_files(files: Files, bundle: Path, budget: Budget) -> str:
    """Upload what is missing, verify it on the device, and link the bundle together; its full path there.

    Every step ends in one rename, so a cut link leaves a stray temporary file and never half a bundle.
    """
    listing = bundle_listing(bundle)
    identity = hashlib.sha256(json.dumps(listing, sort_keys=True).encode()).hexdigest()
    home = f"bundles/{identity}"
    if files.exists(f"{home}/.complete", budget):
        return files.full_path(home)
    for folder in ("tmp", "bundles"):
        files.make_dirs(folder, budget)
    for name, digest in listing.items():
        _store(files, bundle / name, digest, budget)
    building = f"tmp/{identity}.{secrets.token_hex(4)}"
    files.make_dirs(building, budget)
    for name, digest in listing.items():
        files.link(f"../../cas/{digest[:2]}/{digest}", f"{building}/{name}", budget)
    files.make_dirs(f"{building}/.complete", budget)
    try:
        files.rename(building, home, budget)
    except SmeltError:
        if not files.exists(f"{home}/.complete", budget):  # else another upload was faster
            raise
    return files.full_path(home)


def _store(files: Files, source: Path, digest: str, budget: Budget) -> None:
    """Upload one file into the content-addressed store, unless it is there."""
    folder, final = f"cas/{digest[:2]}", f"cas/{digest[:2]}/{digest}"
    if files.exists(final, budget):
        return
    files.make_dirs(folder, budget)
    temporary = f"tmp/{digest}.{secrets.token_hex(4)}"
    try:
        files.put(source, temporary, budget)
        arrived = files.sha256(temporary, budget)
        if arrived != digest:
            raise infra(
                f"'{source.name}' arrived with sha256 {arrived[:12]}, sent was {digest[:12]}",
                hint="the device's disk may be full or the link corrupts data",
            )
        files.set_executable(temporary, budget)
        files.rename(temporary, final, budget)
    except SmeltError:
        with contextlib.suppress(SmeltError):  # the first error says more
            files.remove(temporary, budget)
        raise
