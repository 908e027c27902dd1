"""A device's store -> the same without what dead owners left, and with room for what is to come.

What a living session needs (its file in use/) stays, whatever else has to go: uploads that were cut, files of
no bundle, then bundles, the least recently used first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.devicefarm.budget import DISK_FULL, Budget, infra
from smelt.devicefarm.owners import TOKEN, Owner

if TYPE_CHECKING:
    from smelt.devicefarm.store import Files, StoredEntry

LISTING = ".listing"
CONTINUABLE = 3600.0
"""Seconds for which an upload that was cut can be continued."""
_PART = re.compile(rf"([0-9a-f]{{64}})\.({TOKEN.pattern})")
_PIN = re.compile(rf"({TOKEN.pattern})\.(\d{{1,9}})")
_HASH = re.compile("[0-9a-f]{64}")
_AMOUNT = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))? ?([a-z]+)", re.ASCII | re.IGNORECASE)
_UNITS = {
    f"{letter}{ending}".lower(): base**power
    for power, letter in enumerate(("", "k", "M", "G", "T"))
    for ending, base in (("B", 1000), ("iB", 1024))
    if letter or ending == "B"
}
_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoreRules:
    """quota: most bytes that a store may hold. reserve: bytes that it leaves free on its disk."""

    quota: int = 16 << 30
    reserve: int = 32 << 20


def byte_count(value: object) -> int:
    """An amount of bytes as people write it: a number of them, or '2 GiB', '1.5GB', '500 MB', rounded down.
    Raises ValueError for what is none, or is less than a byte."""
    found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if found is not None and found[3].lower() in _UNITS:
        part = found[2] or "0"
        value = int(found[1] + part) * _UNITS[found[3].lower()] // 10 ** len(part)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST:
        raise ValueError("wanted is a number of bytes, or one with a unit, such as '2 GiB' or '500 MB'")
    return value


@dataclass(frozen=True, slots=True)
class UploadPart:
    """An upload in tmp/, under way or cut."""

    path: str
    sha256: str
    size: int
    alive: bool


class StoreRoom:
    """What is in the store besides the files of one session; every method raises as `Files` does."""

    def __init__(self, files: Files, owner: Owner, rules: StoreRules) -> None:
        self._files, self._owner, self._rules = files, owner, rules
        self._now = 0.0

    def sweep(self, own: str, budget: Budget) -> None:
        """Remove what dead owners have left in tmp/ and use/: of uploads those that are old, or of files that
        are there by now. own: the session's file in use/, written just now, which tells the device's time."""
        used = self._files.entries("use", budget)
        self._now = next((e.modified for e in used if e.name == own), 0.0)
        for entry in used:
            if entry.name != own and not self._in_use(entry):
                self._drop(f"use/{entry.name}", entry, budget)
        stored: set[str] | None = None
        for entry in self._files.entries("tmp", budget):
            part = self._part(entry)
            age = self._now - entry.modified
            if part is not None and not part.alive:
                if stored is None:  # few sessions find such a part, and need the list
                    stored = {e.name for e in self._files.entries("cas", budget)}
                if age > CONTINUABLE or part.sha256 in stored:
                    self._files.remove(part.path, budget)
            elif part is None and not self._owner.alive(entry.name.rpartition(".")[2], age):
                self._drop(f"tmp/{entry.name}", entry, budget)

    def parts(self, budget: Budget) -> tuple[UploadPart, ...]:
        """The uploads that were cut or are under way, the longest first."""
        found = [p for e in self._files.entries("tmp", budget) if (p := self._part(e))]
        return tuple(sorted(found, key=lambda p: -p.size))

    def make(self, wanted: Mapping[str, int], budget: Budget) -> None:
        """Have room for files: sha256 -> bytes. Where not even removing all that may go would do, nothing is
        removed. Raises SmeltError(kind='infra', status 'disk full') that says who has the rest."""
        need = sum(wanted.values())
        stored = {e.name: e.size for e in self._files.entries("cas", budget) if _HASH.fullmatch(e.name)}
        begun, parts = self._begun(wanted, budget)
        space = self._files.space(budget)
        held = sum(size for name, size in stored.items() if name not in wanted) + sum(p.size for p in parts)
        over = held + need - self._rules.quota
        if space is not None:
            over = max(over, need - begun + self._rules.reserve - space.free)
        if over <= 0:
            return
        kept = self._pinned(budget)
        dead = [p for p in parts if not p.alive]
        loose = sum(size for name, size in stored.items() if name not in kept) + sum(p.size for p in dead)
        if over > loose:
            raise self._too_full(need, stored, kept, space.free if space else None)
        for part in dead:
            self._files.remove(part.path, budget)
            over -= part.size
        bundles = [e for e in self._files.entries("bundles", budget) if _HASH.fullmatch(e.name)]
        bundles.sort(key=lambda e: e.modified)
        holds = {e.name: self._listing(e.name, budget) for e in bundles}
        over -= self._remove_files(set(stored) - kept - set().union(*holds.values()), stored, budget)
        for entry in bundles:
            if over <= 0:
                return
            mine = holds[entry.name]
            if mine and mine <= kept:
                continue
            self._drop(f"bundles/{entry.name}", entry, budget)
            del holds[entry.name]
            kept |= self._pinned(budget)
            over -= self._remove_files(mine - kept - set().union(*holds.values()), stored, budget)
        if over > 0:
            raise self._too_full(need, stored, kept, space.free if space else None)

    # ---- inside ----

    def _begun(self, wanted: Mapping[str, int], budget: Budget) -> tuple[int, list[UploadPart]]:
        """Bytes of these files that earlier uploads have brought, and the uploads that none of these files
        comes of."""
        longest: dict[str, int] = {}
        others = []
        for part in self.parts(budget):
            own = not part.alive or part.path.endswith(self._owner.token)
            if part.sha256 in wanted and own and part.sha256 not in longest:
                longest[part.sha256] = min(part.size, wanted[part.sha256])
            elif part.sha256 not in wanted or not part.alive:
                others.append(part)
        return sum(longest.values()), others

    def _too_full(
        self, need: int, stored: Mapping[str, int], kept: set[str], free: int | None
    ) -> Exception:
        used = sum(size for name, size in stored.items() if name in kept)
        told = f"{_mib(free)} free on its disk, " if free is not None else ""
        where = f"device '{self._files.device}' has no room for the bundle in '{self._files.full_path('')}'"
        return infra(
            f"{where}: it needs {_mib(need)} more; {told}the store may hold {_mib(self._rules.quota)} and "
            f"leaves {_mib(self._rules.reserve)} free, sessions use {_mib(used)} of it",
            status=DISK_FULL,
        )

    def _remove_files(self, names: set[str], stored: Mapping[str, int], budget: Budget) -> int:
        for name in sorted(names & set(stored)):
            self._files.remove(f"cas/{name}", budget)
        return sum(stored.get(name, 0) for name in names)

    def _part(self, entry: StoredEntry) -> UploadPart | None:
        found = _PART.fullmatch(entry.name)
        if found is None or entry.folder:
            return None
        alive = self._owner.alive(found[2], self._now - entry.modified)
        return UploadPart(f"tmp/{entry.name}", found[1], entry.size, alive)

    def _in_use(self, entry: StoredEntry) -> bool:
        """A session's file, while its owner lives; of an owner whose end is not seen here, as long as the
        session may last. A file from the future is one of a clock that was set back, and counts as new."""
        found = _PIN.fullmatch(entry.name)
        age = max(0.0, self._now - entry.modified)
        if found is None or not self._owner.knows(found[1]):
            return found is not None and age <= int(found[4])
        return self._owner.alive(found[1], age)  # a board without a battery may learn the date meanwhile

    def _pinned(self, budget: Budget) -> set[str]:
        kept: set[str] = set()
        for entry in self._files.entries("use", budget):
            if self._in_use(entry):
                kept |= _hashes(self._files.read(f"use/{entry.name}", budget))
        return kept

    def _listing(self, identity: str, budget: Budget) -> set[str]:
        return _hashes(self._files.read(f"bundles/{identity}/{LISTING}", budget))

    def _drop(self, path: str, entry: StoredEntry, budget: Budget) -> None:
        if entry.folder:
            self._files.remove_folder(path, budget)
        else:
            self._files.remove(path, budget)


def listing_bytes(names: Mapping[str, str]) -> bytes:
    """name -> sha256 as the text of `.listing` and of files in use/."""
    return json.dumps(names, sort_keys=True).encode()


def _hashes(data: bytes | None) -> set[str]:
    """The hashes in such a text; what is no such text has none."""
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return set()
    values = found.values() if isinstance(found, dict) else ()
    return {v for v in values if isinstance(v, str) and _HASH.fullmatch(v)}


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
