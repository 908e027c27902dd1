"""A bundle's folder -> the same folder on a device, stored by content, verified there and mended.

A transport brings the few operations of `Files` below, on paths relative to the store's root; `Store` makes
the rest of them:

    cas/<sha256>                 files, shared by all bundles
    bundles/<identity>/<name>    links to them under the bundle's own names; `.listing` says what should be there
    tmp/<sha256>.<token>         an upload under way, or one that was cut and may be continued
    use/<token>.<seconds>        what a session needs: nobody removes that while the session lives

Paths are made of hashes, tokens (owners.py) and checked file names only. Every step ends in one rename, so
that a cut link leaves a file in tmp/, which is continued or swept (room.py), and never half a bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from smelt.core.bundle import hash_file
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget

SENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
PIECE = 8 << 20
"""Bytes that `Files.append` is given at a time."""
SMALL = 256 << 10
"""Most bytes of a file that `Files.write` and `Files.read` are for."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds: its sha256 in hexadecimal and its bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in a folder. modified: in seconds of the device's clock, which may be any."""

    name: str
    size: int
    modified: float
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """Of the disk under the store: free bytes, and whether nothing can be written."""

    free: int
    read_only: bool = False


class Files(Protocol):
    """What a transport can do with files on its device. Every operation ends within the budget, and raises
    SmeltError(kind='infra') (budget.infra) with the status that fits: 'link lost', 'link stalled', 'disk full',
    'read-only disk'; what is said not to exist raises nothing.
    """

    @property
    def device(self) -> str:
        """The device's name, for messages."""

    def full_path(self, path: str) -> str:
        """The path on the device, for commands."""

    def list(self, path: str, budget: Budget) -> tuple[Entry, ...]:
        """A folder's entries; none where there is no such folder. Links have the size of what they are."""

    def size(self, path: str, budget: Budget) -> int | None:
        """Bytes of a file, None where there is none."""

    def make_dirs(self, path: str, budget: Budget) -> None:
        """Make a folder and those above it, unless they are there."""

    def read(self, path: str, budget: Budget) -> bytes | None:
        """The first SMALL bytes of a file, None where there is none."""

    def write(self, path: str, data: bytes, budget: Budget) -> None:
        """Make a small file, or replace its content; not atomic."""

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        """Make the file at `path`, which has `start` bytes (0: it need not exist), longer by `count` bytes of
        `source` from there. When it fails, the file has any number of them. Transports that cannot append send
        the piece as a file of its own and have the device concatenate it."""

    def settle(self, path: str, budget: Budget) -> None:
        """Have a file's bytes on the disk itself (fsync), where the device can."""

    def rename(self, old: str, new: str, budget: Budget) -> None:
        """Move a file, link or folder; atomic, and in the place of a file or link that is there."""

    def link(self, target: str, path: str, budget: Budget) -> None:
        """Make a symbolic link."""

    def set_executable(self, path: str, budget: Budget) -> None:
        """Mode 0755."""

    def remove(self, path: str, budget: Budget) -> None:
        """Remove a file or link, if it is there."""

    def remove_folder(self, path: str, budget: Budget) -> None:
        """Remove a folder and the files and links in it, if it is there."""

    def differing(self, expected: Mapping[str, Content], budget: Budget) -> frozenset[str]:
        """Those of the files (links are followed) that do not hold what is expected; missing and unreadable
        ones are among them. Computed on the device where it can (hashing.py helps)."""

    def space(self, budget: Budget) -> Space | None:
        """Of the disk under the store, None where the device does not tell."""


def bundle_listing(bundle: Path) -> dict[str, Content]:
    """file name -> content of every file of a bundle; links, folders and odd names are refused by name."""
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
        found[entry.name] = Content(hash_file(Path(entry.path)), entry.stat().st_size)
    if not found:
        raise SmeltError(f"bundle '{bundle}' is empty", kind="invalid")
    return found


def identity_of(listing: Mapping[str, Content]) -> str:
    """The name of a bundle's folder on devices."""
    text = json.dumps({name: c.sha256 for name, c in listing.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
