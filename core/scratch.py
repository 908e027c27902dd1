"""A purpose in; a folder for temporary files out, which goes with the block, or with the next one of that
purpose where the process was killed meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.core.diag import SmeltError, limit_hint
from smelt.core.forksafe import ForkSafe

_FINDING = ForkSafe()
"""Held while `tempfile` looks, once, for the folder of temporary files, which it writes to: a fork in that
moment would leave its own lock taken in the child for ever."""


@contextmanager
def scratch_folder(purpose: str) -> Iterator[str]:
    """The path of a new folder, for this user alone. It is locked, which shows others that it is used. Raises
    OSError where there can be none."""
    prefix = f"smelt-{purpose}-"
    _sweep(prefix)
    path, lock = _made(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def kept_folder(purpose: str) -> str:
    """The path of this user's own folder of that purpose among the temporary ones, which stays, for the next
    process. Raises OSError where it cannot be made, or where what has its name may be another user's."""
    with _FINDING:
        path = os.path.join(tempfile.gettempdir(), f"smelt-kept-{purpose}-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a folder of this user alone", path)
    return path


def no_room(folder: str | os.PathLike[str], e: OSError) -> SmeltError:
    """The error of a folder for temporary files that takes no file."""
    return SmeltError(
        f"cannot write to the temporary folder '{os.fspath(folder)}': {e.strerror or e}",
        kind="infra",
        hint=limit_hint(e) or "free some space, or name another one with TMPDIR",
    )


def private_folder(prefix: str) -> str:
    """The path of a new folder for this user alone, which stays until it is removed. Raises OSError where it
    cannot be made."""
    with _FINDING:
        return tempfile.mkdtemp(prefix=prefix)


def _made(prefix: str) -> tuple[str, int]:
    """A folder and its lock; another one where a sweep took it before it was locked."""
    while True:
        path = private_folder(prefix)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(lock, fcntl.LOCK_EX)
                os.stat(path)
                return path, lock
            except BaseException:
                os.close(lock)
                raise


def _sweep(prefix: str) -> None:
    """Remove folders of this user with such a name that nobody holds."""
    with contextlib.suppress(OSError):
        with _FINDING:
            top = tempfile.gettempdir()
        for entry in os.scandir(top):
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove(entry.path)


def _remove(path: str) -> None:
    """Raises OSError where it is in use, or is no folder of this user."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid == os.getuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(fd)
