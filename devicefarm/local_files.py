"""A folder of this machine as a device's store: what `DeviceStore` asks of a transport."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smelt.core.bundle import hash_file
from smelt.devicefarm.budget import DISK_FULL, READ_ONLY, Budget, infra
from smelt.devicefarm.store import SMALL, Content, DiskSpace, StoredEntry

COPY_PIECE = 1 << 20
STATUS = {
    errno.ENOSPC: DISK_FULL, errno.EDQUOT: DISK_FULL, errno.EFBIG: DISK_FULL, errno.EROFS: READ_ONLY,
}  # fmt: skip


@dataclass(frozen=True)
class LocalFiles:
    """`Files` of a store on this machine's disk."""

    device: str
    root: Path

    def full_path(self, path: str) -> str:
        """See Files; so are the others."""
        return str(self.root / path)

    def entries(self, path: str, budget: Budget) -> tuple[StoredEntry, ...]:
        with self._doing("listing", path):
            try:
                found = list(os.scandir(self.root / path))
            except FileNotFoundError:
                return ()
            made = []
            for e in found:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    seen = e.stat(follow_symlinks=False)
                    folder = e.is_dir(follow_symlinks=False)
                    made.append(StoredEntry(e.name, seen.st_size, seen.st_mtime, folder))
            return tuple(made)

    def size(self, path: str, budget: Budget) -> int | None:
        with self._doing("looking for", path):
            try:
                return (self.root / path).stat().st_size
            except FileNotFoundError:
                return None

    def make_dirs(self, path: str, budget: Budget) -> None:
        with self._doing("creating", path):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def read(self, path: str, budget: Budget) -> bytes | None:
        with self._doing("reading", path):
            try:
                with (self.root / path).open("rb") as f:
                    return f.read(SMALL)
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes, budget: Budget) -> None:
        with self._doing("writing", path):
            (self.root / path).write_bytes(data)

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if start else os.O_TRUNC)
        with source.open("rb") as reader, self._doing("writing", path):
            reader.seek(start)
            with open(os.open(self.root / path, flags, 0o644), "wb") as writer:
                writer.seek(start)
                while count and (piece := reader.read(min(count, COPY_PIECE))):
                    writer.write(piece)
                    count -= len(piece)

    def settle(self, path: str, budget: Budget) -> None:
        with self._doing("writing", path):
            fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def rename(self, old: str, new: str, budget: Budget) -> None:
        with self._doing("renaming", old):
            (self.root / old).replace(self.root / new)

    def link(self, target: str, path: str, budget: Budget) -> None:
        with self._doing("linking", path):
            (self.root / path).symlink_to(target)

    def set_executable(self, path: str, budget: Budget) -> None:
        with self._doing("marking executable", path):
            (self.root / path).chmod(0o755)

    def remove(self, path: str, budget: Budget) -> None:
        with self._doing("removing", path):
            (self.root / path).unlink(missing_ok=True)

    def remove_folder(self, path: str, budget: Budget) -> None:
        with self._doing("removing", path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root / path)

    def differing(self, expected: Mapping[str, Content], budget: Budget) -> frozenset[str]:
        return frozenset(p for p, c in expected.items() if not self._holds(self.root / p, c))

    def space(self, budget: Budget) -> DiskSpace | None:
        with self._doing("asking for free space of", ""):
            found = os.statvfs(self.root)
        return DiskSpace(found.f_bavail * found.f_frsize, bool(found.f_flag & os.ST_RDONLY))

    def _holds(self, path: Path, content: Content) -> bool:
        try:
            return path.stat().st_size == content.size and hash_file(path) == content.sha256
        except OSError:
            return False

    @contextmanager
    def _doing(self, doing: str, path: str) -> Iterator[None]:
        """Turn OSError into SmeltError(kind='infra') that says what was done to which path, and why it
        failed."""
        try:
            yield
        except OSError as error:
            what = f"{doing} '{self.full_path(path)}' failed on device '{self.device}': {error.strerror}"
            raise infra(what, status=STATUS.get(error.errno or 0, "infra")) from error
