"""A bundle's folder -> the same folder on a device, stored by content, verified there and mended.

A transport brings the few operations of `Files` below, on paths relative to the store's root; `DeviceStore`
makes the rest of them:

    cas/<sha256>                 files, shared by all bundles
    bundles/<identity>/<name>    links to them under the bundle's own names; `.listing` names all
    tmp/<sha256>.<token>         an upload under way, or one that was cut and may be continued
    use/<token>.<seconds>        what a session needs, which nobody removes while that lives

Paths are made of hashes, tokens (owners.py) and checked file names only. Every step ends in one rename, so
that a cut link leaves a file in tmp/, which is continued or swept (room.py), and never half a bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from smelt.core.bundle import RUNNER, hash_file
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import DAMAGED, LINK_LOST, LINK_STALLED, Budget, InfraError, infra
from smelt.devicefarm.owners import Owner
from smelt.devicefarm.room import LISTING, StoreRoom, StoreRules, listing_bytes

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
class StoredEntry:
    """A file or folder in a folder. modified: in seconds of the device's clock, which may be any."""

    name: str
    size: int
    modified: float
    folder: bool = False


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Of the disk under the store: free bytes, and whether nothing can be written."""

    free: int
    read_only: bool = False


def space_by_df(printed: str) -> DiskSpace | None:
    """What `df -Pk` of one folder says; None where it says something else."""
    fields = printed.splitlines()[-1].split() if printed.strip() else []
    known = len(fields) >= 4 and re.fullmatch(r"[0-9]{1,15}", fields[3])
    return DiskSpace(1024 * int(fields[3])) if known else None


class Files(Protocol):
    """What a transport can do with files on its device. Every operation ends within the budget, and raises
    SmeltError(kind='infra') (budget.infra) with the status that fits: 'link lost', 'link stalled',
    'disk full', 'read-only disk'.
    """

    @property
    def device(self) -> str:
        """The device's name, for messages."""

    def full_path(self, path: str) -> str:
        """The path on the device, for commands."""

    def entries(self, path: str, budget: Budget) -> tuple[StoredEntry, ...]:
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
        `source` from there. When it fails, the file has any number of them. Raises OSError where `source`
        cannot be opened. A transport that cannot append
        sends the piece as a file of its own and has the device concatenate it."""

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

    def space(self, budget: Budget) -> DiskSpace | None:
        """Of the disk under the store, None where the device does not tell."""


def bundle_listing(bundle: Path) -> dict[str, Content]:
    """file name -> content of every file of a bundle; links, folders and odd names are refused by name."""
    if not bundle.is_dir():
        raise SmeltError(f"bundle '{bundle}' is not a directory", kind="invalid")
    found = {}
    with _reading(bundle):
        entries = sorted(os.scandir(bundle), key=lambda e: e.name)
    for entry in entries:
        if not SENT_NAME.fullmatch(entry.name):
            raise SmeltError(
                f"bundle file {entry.name!r} has a name that is not deployed; "
                "allowed are letters, digits and ._+-",
                kind="invalid",
            )
        if not entry.is_file(follow_symlinks=False):
            raise SmeltError(f"bundle entry '{entry.name}' is not a plain file", kind="invalid")
        with _reading(Path(entry.path)):
            found[entry.name] = Content(hash_file(Path(entry.path)), entry.stat().st_size)
    if not found:
        raise SmeltError(f"bundle '{bundle}' is empty", kind="invalid")
    return found


def identity_of(listing: Mapping[str, Content]) -> str:
    """The name of a bundle's folder on devices."""
    text = json.dumps({name: c.sha256 for name, c in listing.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class DeviceStore:
    """One session's view of a device's store. What it deploys is there whole, as this machine has it, when
    `deploy` returns, and stays until `close`. Every method raises SmeltError(kind='infra').
    """

    def __init__(self, files: Files, *, rules: StoreRules | None = None, owner: Owner | None = None) -> None:
        self._files = files
        self._owner = owner or Owner()
        self._room = StoreRoom(files, self._owner, rules or StoreRules())
        self._used: dict[str, str] = {}
        self._own = ""
        self._sound: set[str] = set()

    def deploy(self, bundle: Path, budget: Budget) -> str:
        """Verify the bundle's files on the device, once in a session, and send those that are missing or
        damaged; the full path of its folder there."""
        listing = bundle_listing(bundle)
        home = f"bundles/{identity_of(listing)}"
        if home not in self._sound:
            self._hold(listing, budget)
            self._mend(bundle, home, listing, budget)
            self._sound.add(home)
        return self._files.full_path(home)

    def damaged(self, bundle: Path, budget: Budget) -> tuple[str, ...]:
        """Verify the bundle's files again; the names of those that were not as they should be. They are
        mended."""
        listing = bundle_listing(bundle)
        home = f"bundles/{identity_of(listing)}"
        self._sound.discard(home)
        self._hold(listing, budget)
        found = self._mend(bundle, home, listing, budget)
        self._sound.add(home)
        return found

    def close(self, budget: Budget) -> None:
        """Let others remove what was used; never raises."""
        if self._own:
            with contextlib.suppress(SmeltError):
                self._files.remove(f"use/{self._own}", budget)
        self._owner.close()

    # ---- inside ----

    def _hold(self, listing: Mapping[str, Content], budget: Budget) -> None:
        """Say what this session uses, and remove what dead ones have left."""
        if not self._own:
            for folder in ("tmp", "use", "cas", "bundles"):
                self._files.make_dirs(folder, budget)
        self._used |= {c.sha256: c.sha256 for c in listing.values()}
        before, self._own = self._own, f"{self._owner.token}.{int(budget.limits.total) + 60}"
        self._write(f"use/{self._own}", listing_bytes(self._used), budget)
        if before not in ("", self._own):
            self._files.remove(f"use/{before}", budget)
        self._room.sweep(self._own, budget)

    def _mend(
        self, bundle: Path, home: str, listing: Mapping[str, Content], budget: Budget
    ) -> tuple[str, ...]:
        """Make the folder what the listing says; the names of what was missing, wrong or too much in it."""
        found = self._files.entries(home, budget)
        there = {e.name: e for e in found if e.name != LISTING}
        wrong = self._wrong(home, listing, there, budget)
        extra = sorted(set(there) - set(listing))
        if wrong:
            self._send(bundle, {n: listing[n] for n in wrong}, budget)
        if found:
            for name in extra:
                remove = self._files.remove_folder if there[name].folder else self._files.remove
                remove(f"{home}/{name}", budget)
            for name in wrong:
                self._link(f"{home}/{name}", listing[name], budget)
            if wrong and (still := self._wrong(home, listing, listing, budget)):
                raise infra(
                    f"files on device '{self._files.device}' are damaged again right after they were sent: "
                    + ", ".join(still),
                    hint="the device's disk or memory is failing",
                    status=DAMAGED,
                )
        elif not self._build(home, listing, budget):
            return self._mend(bundle, home, listing, budget)  # another upload was faster
        names = {n: c.sha256 for n, c in listing.items()}
        self._write(f"{home}/{LISTING}", listing_bytes(names), budget)  # the folder's time: its last use
        return (*wrong, *extra)

    def _wrong(
        self, home: str, listing: Mapping[str, Content], there: Mapping[str, object], budget: Budget
    ) -> tuple[str, ...]:
        expected = {f"{home}/{n}": c for n, c in listing.items() if n in there}
        differing = self._files.differing(expected, budget) if expected else frozenset()
        return tuple(n for n in listing if n not in there or f"{home}/{n}" in differing)

    def _send(self, bundle: Path, wanted: Mapping[str, Content], budget: Budget) -> None:
        """Have these files in cas/."""
        differing = self._files.differing({f"cas/{c.sha256}": c for c in wanted.values()}, budget)
        missing = {c.sha256: n for n, c in wanted.items() if f"cas/{c.sha256}" in differing}
        if missing:
            self._room.make({sha256: wanted[n].size for sha256, n in missing.items()}, budget)
        for name in missing.values():
            self._upload(bundle / name, wanted[name], budget)

    def _upload(self, source: Path, content: Content, budget: Budget) -> None:
        part = f"tmp/{content.sha256}.{self._owner.token}"
        try:
            with _reading(source):
                self._append(source, content, part, budget)
        except InfraError as error:
            if error.status not in (LINK_LOST, LINK_STALLED):  # nothing comes of continuing it
                with contextlib.suppress(SmeltError):
                    self._files.remove(part, budget)
            raise
        self._files.set_executable(part, budget)
        self._files.rename(part, f"cas/{content.sha256}", budget)

    def _append(self, source: Path, content: Content, part: str, budget: Budget) -> None:
        """Have the whole file as `part`, from where an upload that was cut has left it."""
        done = self._claim(source, content, part, budget)
        deadline = budget.deadline(budget.limits.upload, content.size - done)
        if not content.size:
            self._files.write(part, b"", budget)
        while done < content.size:
            budget.left(deadline, f"uploading '{source.name}' to device '{self._files.device}'")
            count = min(PIECE, content.size - done)
            self._files.append(source, done, count, part, budget)
            done += count
        self._files.settle(part, budget)
        if self._files.differing({part: content}, budget):
            raise infra(
                f"'{source.name}' did not arrive on device '{self._files.device}' as it was sent",
                hint="its disk or the link corrupts data, or the file changed meanwhile",
                status=DAMAGED,
            )

    def _claim(self, source: Path, content: Content, part: str, budget: Budget) -> int:
        """Take over the longest upload of this file that was cut, as `part`; how many right bytes it has."""
        for found in self._room.parts(budget):
            if found.sha256 != content.sha256 or (found.alive and found.path != part):
                continue
            if source.name == RUNNER:  # a lost link may have it open there: then it could not be started
                self._files.remove(found.path, budget)
                continue
            if found.path != part:
                try:
                    self._files.rename(found.path, part, budget)
                except SmeltError:
                    if self._files.size(found.path, budget) is None:
                        continue  # another has taken it
                    raise
            size = self._files.size(part, budget) or 0
            if 0 < size <= content.size:
                start = Content(_hash_start(source, size), size)
                if not self._files.differing({part: start}, budget):
                    return size
            self._files.remove(part, budget)
        return 0

    def _build(self, home: str, listing: Mapping[str, Content], budget: Budget) -> bool:
        """Make the folder at once; False where another did it meanwhile."""
        building = f"tmp/{home.rpartition('/')[2]}.d.{self._owner.token}"
        self._files.remove_folder(building, budget)
        self._files.make_dirs(building, budget)
        for name, content in listing.items():
            self._files.link(f"../../cas/{content.sha256}", f"{building}/{name}", budget)
        try:
            self._files.rename(building, home, budget)
        except SmeltError:
            if not self._files.entries(home, budget):
                raise
            self._files.remove_folder(building, budget)
            return False
        return True

    def _link(self, path: str, content: Content, budget: Budget) -> None:
        temporary = f"tmp/link.{self._owner.token}"
        self._files.remove(temporary, budget)
        self._files.link(f"../../cas/{content.sha256}", temporary, budget)
        self._files.rename(temporary, path, budget)

    def _write(self, path: str, data: bytes, budget: Budget) -> None:
        temporary = f"tmp/text.{self._owner.token}"
        self._files.write(temporary, data, budget)
        self._files.rename(temporary, path, budget)


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Turn OSError, which is of this machine's files as devices raise SmeltError, into one too."""
    try:
        yield
    except OSError as error:
        what = f"the bundle's '{source}' cannot be read: {error.strerror}"
        raise infra(what, hint="was the bundle changed or removed while it was sent?") from error


def _hash_start(source: Path, size: int) -> str:
    """The sha256 of a file's first `size` bytes."""
    digest = hashlib.sha256()
    with source.open("rb") as f:
        while size and (data := f.read(min(size, 1 << 20))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()
