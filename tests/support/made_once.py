"""What something is made of in, a folder with it out: made by the first of all processes that want it.

Several processes run the tests, and each would compile the runtime for itself. The folders lie in .cache, by
the content of what they are made of, so that the next run finds them, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MADE = Path(__file__).resolve().parents[2] / ".cache" / "made"
KEPT = 7 * 24 * 3600.0
"""Seconds that a folder stays after its last use."""


def made_once(make: Callable[[Path], None], *of: str | Path, place: Path = MADE) -> Path:
    """A folder that `make` has filled, which nobody changes. of: all that decides what is in it: words,
    files, and folders, of which the C sources count. What `make` raises leaves no folder."""
    home = place / _digest(of)
    with _held(place, home.name):
        if not home.is_dir():
            _sweep(place)
            with tempfile.TemporaryDirectory(dir=place, prefix="new-") as scratch:
                (made := Path(scratch) / "made").mkdir()
                make(made)
                made.rename(home)
        os.utime(home)
    return home


def program_and_age(path: str | None) -> str:
    """A word for a program that changes when it is replaced."""
    if path is None:
        return "none"
    found = os.stat(path)
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _digest(of: tuple[str | Path, ...]) -> str:
    digest = hashlib.sha256()
    for part in of:
        words = [str(part).encode()]
        if isinstance(part, Path):
            files = sorted(part.rglob("*.[ch]")) if part.is_dir() else [part]
            words += [w for p in files for w in (str(p).encode(), p.read_bytes())]
        for word in words:
            digest.update(len(word).to_bytes(8, "little") + word)
    return digest.hexdigest()[:32]


@contextmanager
def _held(place: Path, name: str) -> Iterator[None]:
    """Alone with this folder among all processes."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(place: Path) -> None:
    """Remove what has not been used for long. The locks stay: another process may wait for one."""
    for old in place.iterdir():
        with contextlib.suppress(OSError):  # another process removes it, too
            if old.is_dir() and old.stat().st_mtime < time.time() - KEPT:
                shutil.rmtree(old, ignore_errors=True)
