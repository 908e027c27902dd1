"""A process that works on a device's store -> a token in the names of its files there; a token -> whether its
owner lives.

Owners of one cache folder know each other by locks in it, which end with their process, however that ends. Of
others only the age of a file tells.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from pathlib import Path

from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError

TOKEN = re.compile(r"([0-9a-f]{12})-([0-9a-f]{16})")
STRANGER = 60.0
"""Seconds for which a file of an owner of another cache folder counts as being worked on."""


class Owner:
    """Holds a lock in `<cache>/farm/owners` until it is closed or the process ends. token: 12 hexadecimal
    digits of the cache folder, '-', 16 of the owner. Where the cache folder cannot be written, it is a
    stranger to all others.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._number = secrets.token_hex(8)
        self._lock = -1
        self._folder: Path | None = None
        self._home = secrets.token_hex(6)
        with contextlib.suppress(OSError, SmeltError):
            base = (folder or cache_dir()) / "farm"
            (base / "owners").mkdir(parents=True, exist_ok=True)
            home = _home_of(base)
            self._lock = _own(base / "owners" / self._number)
            self._home, self._folder = home, base / "owners"
        self.token = f"{self._home}-{self._number}"

    def alive(self, token: str, age: float) -> bool:
        """Whether the owner of a file on the device may still work on it. age: of the file, in seconds."""
        found = TOKEN.fullmatch(token)
        if found is None or self._folder is None or not self.knows(token):
            return age < STRANGER
        return found[2] == self._number or _is_locked(self._folder / found[2])

    def knows(self, token: str) -> bool:
        """Whether it is an owner of this cache folder, whose end is seen at once."""
        return self._folder is not None and token.startswith(f"{self._home}-")

    def close(self) -> None:
        """Let go: files of this token that are left on the device are free for others."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / self._number).unlink(missing_ok=True)
            _sweep(self._folder)


def _home_of(base: Path) -> str:
    """The number of this cache folder, made by whoever comes first."""
    place = base / "id"
    own = base / f"id.{secrets.token_hex(8)}"
    if not place.exists():
        own.write_text(secrets.token_hex(6))
        with contextlib.suppress(FileExistsError):
            os.link(own, place)
        own.unlink()
    found = place.read_text()
    if not re.fullmatch("[0-9a-f]{12}", found):
        raise OSError(f"'{place}' holds no number")
    return found


def _own(path: Path) -> int:
    """An open, locked file at this path: a sweep may take one that is made and not locked yet."""
    while True:
        fd = _locked(path, os.O_CREAT)
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                return fd
        os.close(fd)


def _locked(path: Path, flags: int = 0) -> int:
    """An open file with its lock. Raises OSError, BlockingIOError where another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_locked(path: Path) -> bool:
    """Also where it cannot be known, on a file system without locks: nothing is taken from the living."""
    try:
        os.close(_locked(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _sweep(folder: Path) -> None:
    """Remove files of owners that were killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                fd = _locked(folder / entry.name)
                (folder / entry.name).unlink()
                os.close(fd)
