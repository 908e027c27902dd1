"""A compile's files in, a bundle in its place out: whole or not at all, and nobody else's file is lost.

What may be replaced is a folder in which every entry is a plain file that a sealed manifest beside it names
and whose content that manifest knows, or of which nothing is lost since the new bundle's file begins with it.
Files are removed one by one under these names; no tree ever is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from smelt.core.bundle import (
    MANIFEST,
    SCHEMA_VERSION,
    Bundle,
    hash_file,
    open_regular,
    parse_manifest,
    read_manifest,
    sealed,
)
from smelt.core.diag import SmeltError, limit_hint
from smelt.core.manifest_schema import FILE_NAME

_OWNER: Final = ".smelt-compile"
"""In a folder that a compile works in: it is smelt's, and whoever holds the folder's lock works there."""
_MADE: Final = re.compile(rf"\.?({FILE_NAME.pattern}|{re.escape(MANIFEST)})(\.\d+)?")
"""Names of what a compile writes into that folder, those of half-written files among them."""
_UNIQUE: Final = re.compile(r"\d+-[0-9a-f]{8}")
"""How the name of such a folder ends: the process and a random number."""
_TRIES: Final = 64
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_ANOTHER_PLACE: Final = "choose another folder with -o (output=)"
_ANOTHER: Final = f"{_ANOTHER_PLACE}, or move your files away"


class Staging:
    """A folder beside the bundle's place that becomes the bundle when the `with` block ends well, and
    vanishes otherwise. A link in the place of `out` is followed. The folder is locked, so that other compiles
    let it be. there: the folder that existed, in which it is or its parents are made."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.out = _place(out)
        self.path = self.out.parent / f"{_start(self.out)}{os.getpid()}-{os.urandom(4).hex()}"
        self.there = next((p for p in self.out.parents if os.path.isdir(p)), self.out)
        self._lock = -1

    def __enter__(self) -> Staging:
        check_output(self.out)
        try:
            sweep(self.out)
            for _ in range(_TRIES - 1):
                with contextlib.suppress(FileNotFoundError):
                    return self._begin()
            return self._begin()  # a file system such as /proc, which takes no folders, says so this way too
        except OSError as e:
            raise _disk(self.out, e) from None

    def _begin(self) -> Staging:
        """Make the folder and lock it. Raises FileNotFoundError when a sweep took it, still empty, for a
        killed compile's."""
        try:
            self.path.mkdir(parents=True)  # in the loop: a compile that fails removes parents that it made
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self.path / _OWNER).touch()
        except FileNotFoundError:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None:
            self.discard()
        os.close(self._lock)
        if isinstance(error, OSError):
            raise _disk(self.out, error) from error

    def discard(self) -> None:
        """Remove the folder, and those that were made to hold it."""
        _remove_made(self.path)
        for folder in itertools.takewhile(lambda p: p != self.there, self.out.parents):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def seal(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Hash every file into the manifest and write it: what is left is to `put` the folder in its place.
        The manifest with its seal."""
        names = sorted(p.name for p in self.path.iterdir() if p.name != _OWNER)
        full, raw = sealed(
            {
                **manifest,
                "schema_version": SCHEMA_VERSION,
                "files": {n: hash_file(self.path / n) for n in names},
            }
        )
        parse_manifest(raw)  # what would be refused later must not be written
        (self.path / MANIFEST).write_bytes(raw)
        (self.path / _OWNER).unlink()
        return full

    def commit(self, manifest: dict[str, Any]) -> Bundle:
        """`seal`, then `put`."""
        full = self.seal(manifest)
        publish(self.path.name, self.out)
        return Bundle(self.out, full)


def publish(name: str, out: str | os.PathLike[str]) -> None:
    """Move the sealed folder of this name, which a Staging has made beside `out`, to its place.

    Raises SmeltError when what lies there is not smelt's to replace; it is then as it was, and the folder is
    removed.
    """
    place = _place(out)
    path = place.parent / name
    if not (name.startswith(_start(place)) and _UNIQUE.fullmatch(name[len(_start(place)) :])):
        what = f"'{out}' is another place than when the compile began: {name!r} was not made for '{place}'"
        raise SmeltError(what, kind="infra", hint="compile again, while nobody else changes that folder")
    try:
        for _ in range(_TRIES):
            if _put(path, place):
                return
        raise _busy(place)
    except OSError as e:
        _remove_made(path)
        raise _disk(place, e) from e
    except BaseException:
        _remove_made(path)
        raise


def _put(path: Path, out: Path) -> bool:
    """One try; False when others were there between two steps of it."""
    try:
        os.rename(path, out)  # where there is nothing, or an empty folder
        return True
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    check_place(out)
    old = owned(out, path)
    if not old or not _exchange(path, out):
        return False
    if _seen(path) != old:  # a file came or changed since the look: back with it, and look again
        _exchange(path, out)
        return False
    (path / _OWNER).touch()  # if this process is killed here, another can go on
    _remove(path, (*old, _OWNER))
    return True


# ---------------------------------------------------------------- whose is it?


def check_output(out: str | os.PathLike[str]) -> None:
    """Raises SmeltError when no bundle can be put at `out`, as far as can be told without the new one."""
    place = _place(out)
    check_place(place)
    if os.path.lexists(place):
        owned(place)


def _place(out: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.realpath(out))
    except ValueError as e:
        raise SmeltError(
            f"{os.fspath(out)!r} is no name of a folder: {e}", hint="choose another -o"
        ) from None


def check_place(out: Path) -> None:
    """Raises SmeltError for places that cannot be replaced in one step."""
    try:
        here = Path(os.path.realpath(os.getcwd()))
    except OSError:
        here = Path("/")  # the current folder has been removed: there is none to lose
    if out in (here, *here.parents):
        raise SmeltError(
            f"'{out}' holds the current folder, which cannot be replaced",
            hint="choose a folder inside it with -o",
        )
    if os.path.ismount(out):
        raise SmeltError(
            f"a file system is mounted at '{out}', which cannot be replaced",
            hint=f"choose a folder inside it, such as -o {out / 'model'}",
        )


Seen: TypeAlias = "Mapping[str, tuple[int, int, int] | None]"
"""Name in a folder -> inode, length and time of change of a plain file, None of anything else."""


def owned(folder: Path, new: Path | None = None) -> Seen:
    """The files of the bundle in a folder; none when there is no folder or nothing in it.

    new: the folder that is to take its place, without which contents are not looked at.
    Raises SmeltError naming the first entry that is not smelt's.
    """
    for _ in range(_TRIES):
        before = _identity(folder)
        try:
            return _owned(folder, new)
        except (SmeltError, OSError) as e:
            if _identity(folder) != before:
                continue  # another compile has replaced the folder while this one looked at its files
            if isinstance(e, OSError):
                raise _disk(folder, e) from None
            raise
    raise _busy(folder)


def _identity(folder: Path) -> tuple[int, int]:
    try:
        s = os.lstat(folder)
    except OSError:
        return 0, 0
    return s.st_ino, s.st_ctime_ns


def _owned(folder: Path, new: Path | None) -> Seen:
    """One look of `owned`. Raises OSError as well, where files vanish."""
    if os.path.islink(folder) or (os.path.lexists(folder) and not os.path.isdir(folder)):
        raise _kept(folder, "it is no folder")
    try:
        names, seen = sorted(os.listdir(folder)), _seen(folder)
    except FileNotFoundError:
        return {}
    if not names:
        return {}
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SmeltError(f"'{folder}' is not yours to write", kind="infra", hint=_ANOTHER)
    known = _files_of(folder, names)
    for name in names:
        if name not in known or seen.get(name) is None:
            raise _kept(folder, f"'{name}' is not of the bundle in it")
    for name in names:
        if new is None or not known[name] or hash_file(folder / name) == known[name]:
            continue
        if not _continues(new, folder / name):
            raise _kept(folder, f"'{name}' is not as it was compiled; if it is damaged, remove it")
    return seen


def _seen(folder: Path) -> Seen:
    found: dict[str, tuple[int, int, int] | None] = {}
    for e in os.scandir(folder):
        s = e.stat(follow_symlinks=False)
        found[e.name] = (s.st_ino, s.st_size, s.st_mtime_ns) if stat.S_ISREG(s.st_mode) else None
    return found


def _files_of(folder: Path, names: list[str]) -> dict[str, str]:
    """Name -> SHA-256 of the files of a bundle, '' for the manifest itself."""
    try:
        with open_regular(folder / MANIFEST) as f:
            raw = read_manifest(f)
        manifest = parse_manifest(raw)
    except SmeltError:
        first = next((n for n in names if n != MANIFEST), MANIFEST)
        raise _kept(folder, f"'{first}' is not smelt's (there is no {MANIFEST} that names it)") from None
    except ValueError as e:
        raise _kept(folder, f"'{MANIFEST}' is none that this smelt wrote: {e}") from None
    return {**manifest["files"], MANIFEST: ""}


def _continues(new: Path, old: Path) -> bool:
    """Whether the new bundle's file begins with all of the old one, a truncated one: then nothing is lost."""
    try:
        with open_regular(new / old.name) as a, open_regular(old) as b:
            while part := b.read(1 << 20):
                if a.read(len(part)) != part:
                    return False
    except SmeltError:
        return False
    return True


def _kept(folder: Path, why: str) -> SmeltError:
    return SmeltError(f"'{folder}' will not be overwritten: {why}", hint=_ANOTHER)


# ---------------------------------------------------------------- putting and removing


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step where the system can; else in two, and back if the second fails."""
    with contextlib.suppress(OSError, AttributeError):
        call = ctypes.CDLL(None, use_errno=True).renameat2  # glibc from 2.28 on
        at, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if call(at, os.fsencode(a), at, os.fsencode(b), swap) == 0:
            return True
        if ctypes.get_errno() == errno.ENOENT:
            return False
    aside = a.with_name(a.name + ".old")
    try:
        os.rename(b, aside)
    except FileNotFoundError:
        return False
    try:
        os.rename(a, b)
    except OSError:
        os.rename(aside, b)
        raise
    os.rename(aside, a)
    return True


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files by name and then the folder, which stays when it holds anything else."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(folder / name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _remove_made(folder: Path) -> None:
    """Remove what a compile has made in its own folder."""
    with contextlib.suppress(OSError):
        made = [e.name for e in os.scandir(folder) if e.is_file(follow_symlinks=False)]
        _remove(folder, (n for n in made if _MADE.fullmatch(n)))
        if os.listdir(folder) == [_OWNER]:
            _remove(folder, (_OWNER,))


def sweep(out: Path) -> None:
    """Remove what killed compiles into `out` have left; those that live hold a lock, and are let be. A
    compile that was killed at its first or its last step leaves an empty folder."""
    start = _start(out)
    try:
        found = [e.path for e in os.scandir(out.parent) if e.name.startswith(start)]
    except OSError:
        return
    for path in found:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                marked = os.path.isfile(os.path.join(path, _OWNER))
                empty = not os.listdir(fd) and _UNIQUE.fullmatch(os.path.basename(path)[len(start) :])
                if (marked or empty) and _locked(fd):
                    _remove_made(Path(path)) if marked else os.rmdir(path)
            finally:
                os.close(fd)


def _locked(fd: int) -> bool:
    """Lock an open folder for as long as it stays open; False when somebody else has, or nobody can."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _start(out: Path) -> str:
    """How names of folders begin that compiles into `out` work in: with its own name, cut so that a longer
    one still is a file name (255 bytes)."""
    return f".{os.fsdecode(os.fsencode(out.name)[:200])}.part-"


def _busy(out: Path) -> SmeltError:
    return SmeltError(f"'{out}' is being replaced by others all the time", kind="infra", hint=_ANOTHER)


def _disk(out: Path, e: OSError) -> SmeltError:
    return SmeltError(
        f"cannot write the bundle '{out}': {e.strerror or e}",
        kind="infra",
        hint=limit_hint(e)
        or ("free some space or choose another -o" if e.errno in _FULL else _ANOTHER_PLACE),
    )
