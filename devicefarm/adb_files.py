"""A folder of a device as its store, by its shell's commands: the operations that `DeviceStore` wants.

Files go through `cat`, not through adb's push, which can neither continue a file nor say that the disk is
full.
The commands are those that coreutils, busybox and toybox have.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from smelt.devicefarm.budget import DISK_FULL, READ_ONLY, Budget, infra
from smelt.devicefarm.hashing import DeviceHashes
from smelt.devicefarm.store import SMALL, Content, DiskSpace, StoredEntry, space_by_df
from smelt.devicefarm.transport import Completed

_ENTRY = re.compile(r"([0-9]{1,18}) ([0-9]{1,18}) ([0-9a-f]{1,8}) (.+)")
_COMPLAINTS = {"no space left": DISK_FULL, "quota exceeded": DISK_FULL, "file too large": DISK_FULL,
               "file size limit": DISK_FULL,
               "read-only file system": READ_ONLY}  # fmt: skip
_BLOCK, _BLOCKS = 1 << 20, 16
"""Bytes, and how many such blocks, that are read back at a time."""
_MISSING = 44
"""Exit code of our own commands for a file that is not there."""


class Shell(Protocol):
    """Runs a text of the device's shell: exit code, output, errors. size: bytes that go in or come out."""

    def __call__(
        self, text: str, budget: Budget, source: bytes | None = None, size: int = 0
    ) -> tuple[int, bytes, str]: ...


class AdbFiles:
    """`Files` by a shell. root: absolute. execute: runs a command there."""

    def __init__(
        self, device: str, root: str, shell: Shell, execute: Callable[[list[str], Budget], Completed]
    ) -> None:
        self.device, self.root = device, root
        self._shell = shell
        self._hashes = DeviceHashes(execute, self._read_back)

    def full_path(self, path: str) -> str:
        """See Files; so are the others."""
        return f"{self.root}/{path}" if path else self.root

    def entries(self, path: str, budget: Budget) -> tuple[StoredEntry, ...]:
        at = self._quoted(path)
        # of patterns that match nothing, and of files that are removed meanwhile, stat only complains
        text = f"cd {at} 2>/dev/null || exit 0; stat -c '%s %Y %f %n' -- * .[!.]* 2>/dev/null; exit 0"
        told = (self._do("listing", path, text, budget) or b"").decode("utf-8", "surrogateescape")
        found = [m for line in told.split("\n") if (m := _ENTRY.fullmatch(line))]
        return tuple(StoredEntry(m[4], int(m[1]), float(m[2]), stat.S_ISDIR(int(m[3], 16))) for m in found)

    def size(self, path: str, budget: Budget) -> int | None:
        at = self._quoted(path)
        text = f"[ -e {at} ] || exit {_MISSING}; stat -L -c %s -- {at}"
        out = self._do("looking for", path, text, budget, missing=True)
        if out is not None and not re.fullmatch(rb"[0-9]{1,18}", out.strip()):
            raise infra(f"device '{self.device}' tells no size of '{self.full_path(path)}': {out[:80]!r}")
        return int(out) if out is not None else None

    def make_dirs(self, path: str, budget: Budget) -> None:
        self._do("creating", path, f"mkdir -p -- {self._quoted(path)}", budget)

    def read(self, path: str, budget: Budget) -> bytes | None:
        at = self._quoted(path)
        text = f"[ -e {at} ] || exit {_MISSING}; head -c {SMALL} -- {at}"
        return self._do("reading", path, text, budget, size=SMALL, missing=True)

    def write(self, path: str, data: bytes, budget: Budget) -> None:
        self._do("writing", path, f"cat >{self._quoted(path)}", budget, source=data)

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        with source.open("rb") as f:
            f.seek(start)
            data = f.read(count)
        at = self._quoted(path)
        # a file that was cut while it was sent may be longer than what the store counts on
        other = f'echo "its size is not {start}" >&2; exit 1'
        there = f'[ "$(stat -L -c %s -- {at})" = {start} ] || {{ {other}; }}; '
        text = f"{there}cat >>{at}" if start else f"cat >{at}"
        self._do(f"uploading '{source.name}' to", path, text, budget, source=data)

    def settle(self, path: str, budget: Budget) -> None:
        at = self._quoted(path)  # Android's toybox has fsync, others let sync take files, all have sync
        self._do("writing", path, f"fsync {at} 2>/dev/null || sync {at} 2>/dev/null || sync", budget)

    def rename(self, old: str, new: str, budget: Budget) -> None:
        a, b = self._quoted(old), self._quoted(new)
        # a mv that knows no -T moves into a folder that is there
        taken = f"[ -d {b} ] && [ ! -h {b} ] && {{ echo 'there is such a folder' >&2; exit 1; }}"
        text = f"mv -fT -- {a} {b} 2>/dev/null || {{ {taken}; mv -f -- {a} {b}; }}"
        self._do("renaming", old, text, budget)

    def link(self, target: str, path: str, budget: Budget) -> None:
        self._do("linking", path, f"ln -s -- {shlex.quote(target)} {self._quoted(path)}", budget)

    def set_executable(self, path: str, budget: Budget) -> None:
        self._do("marking executable", path, f"chmod 755 {self._quoted(path)}", budget)

    def remove(self, path: str, budget: Budget) -> None:
        self._do("removing", path, f"rm -f -- {self._quoted(path)}", budget)

    def remove_folder(self, path: str, budget: Budget) -> None:
        self._do("removing", path, f"rm -rf -- {self._quoted(path)}", budget)

    def differing(self, expected: Mapping[str, Content], budget: Budget) -> frozenset[str]:
        by_path = {self.full_path(p): p for p in expected}
        found = self._hashes.differing({f: expected[p] for f, p in by_path.items()}, budget)
        return frozenset(by_path[f] for f in found)

    def space(self, budget: Budget) -> DiskSpace | None:
        at = self._quoted("")
        up = 'while [ ! -d "$d" ] && [ "$d" != / ]; do d=$(dirname "$d"); done'
        text = f'd={at}; {up}; df -Pk "$d"'
        code, out, _ = self._shell(text, budget)
        return space_by_df(out.decode("utf-8", "replace")) if code == 0 else None

    # ---- inside ----

    def _quoted(self, path: str) -> str:
        return shlex.quote(path if path.startswith("/") else self.full_path(path))

    def _read_back(self, full: str, size: int, budget: Budget) -> str | None:
        """The sha256 of a file of at most `size` bytes and a few more."""
        digest, at = hashlib.sha256(), 0
        while True:
            text = f"dd if={shlex.quote(full)} bs={_BLOCK} skip={at} count={_BLOCKS} 2>/dev/null"
            code, out, _ = self._shell(text, budget, size=_BLOCK * _BLOCKS)
            if code != 0:
                return None
            digest.update(out)
            at += _BLOCKS
            if len(out) < _BLOCK * _BLOCKS or at * _BLOCK > size:
                return digest.hexdigest()

    def _do(
        self, doing: str, path: str, text: str, budget: Budget, *, source: bytes | None = None, size: int = 0,
        missing: bool = False,
    ) -> bytes | None:  # fmt: skip
        """The output of a text of the shell. missing: None where it says that there is no such file. Raises
        SmeltError(kind='infra') with the status that its complaint has."""
        code, out, err = self._shell(text, budget, source, size or len(source or b""))
        if code == 0:
            return out
        if missing and code == _MISSING:
            return None
        said = err.strip().splitlines()[-1:] or [f"exit code {code}"]
        status = next((s for word, s in _COMPLAINTS.items() if word in err.lower()), "infra")
        what = f"{doing} '{self.full_path(path)}' failed on device '{self.device}'"
        raise infra(f"{what}: {said[0][-300:]}", status=status)
