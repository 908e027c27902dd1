"""A folder of a device as its store, over one sftp channel: what `DeviceStore` asks of a transport.

OpenSSH's extensions are used where the server has them: posix-rename replaces a file atomically, fsync and
statvfs say what the disk does. Version 3 of the protocol has no word for a full or read-only disk, so a
failure is looked into before it is reported.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import DISK_FULL, LINK_LOST, LINK_STALLED, READ_ONLY, Budget, InfraError, infra
from smelt.devicefarm.hashing import DeviceHashes
from smelt.devicefarm.store import PIECE, SMALL, Content, DiskSpace, StoredEntry
from smelt.devicefarm.transport import Completed

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Lazily("paramiko")

SFTP_PIECE = 32 * 1024
"""Bytes of one write or read: the most that every server takes."""
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_READ_ONLY_FLAG = 1


class SftpFiles:
    """`Files` over an open sftp channel. root: absolute. execute: runs a command on the device."""

    def __init__(
        self,
        device: str,
        sftp: paramiko.SFTPClient,
        root: str,
        execute: Callable[[list[str], Budget], Completed],
    ) -> None:
        self.device, self.root = device, root
        self._sftp, self._execute = sftp, execute
        self._hashes = DeviceHashes(execute, self._read_back)
        self._refused: set[str] = set()

    def full_path(self, path: str) -> str:
        """See Files; so are the others."""
        return f"{self.root}/{path}" if path else self.root

    def entries(self, path: str, budget: Budget) -> tuple[StoredEntry, ...]:
        with self._doing("listing", path, budget):
            try:
                found = self._sftp.listdir_attr(self.full_path(path))
            except FileNotFoundError:
                return ()
        return tuple(
            StoredEntry(e.filename, e.st_size or 0, float(e.st_mtime or 0), stat.S_ISDIR(e.st_mode or 0))
            for e in found
        )

    def size(self, path: str, budget: Budget) -> int | None:
        with self._doing("looking for", path, budget):
            try:
                return self._sftp.stat(self.full_path(path)).st_size or 0
            except FileNotFoundError:
                return None

    def make_dirs(self, path: str, budget: Budget) -> None:
        full = self.full_path(path)
        with self._doing("creating", path, budget):
            missing = [full]
            while not self._there(missing[-1]):
                above = missing[-1].rpartition("/")[0]
                if not above:
                    break
                missing.append(above)
            else:
                missing.pop()
            for folder in reversed(missing):
                self._make_dir(folder)

    def _there(self, full: str) -> bool:
        """Whether there is such a file, folder or link, wherever that leads."""
        try:
            self._sftp.lstat(full)
        except FileNotFoundError:
            return False
        return True

    def _make_dir(self, full: str) -> None:
        try:
            self._sftp.mkdir(full)
        except OSError:
            if not self._there(full):  # else somebody was faster
                raise

    def read(self, path: str, budget: Budget) -> bytes | None:
        with self._doing("reading", path, budget):
            try:
                with self._sftp.open(self.full_path(path), "rb") as f:
                    return bytes(f.read(SMALL))
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes, budget: Budget) -> None:
        with self._doing("writing", path, budget), self._sftp.open(self.full_path(path), "wb") as f:
            f.write(data)

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        deadline = budget.deadline(budget.limits.upload, count)
        with (
            self._doing(f"uploading '{source.name}' to", path, budget),
            source.open("rb") as reader,
            self._sftp.open(self.full_path(path), "r+b" if start else "wb") as writer,
        ):
            writer.set_pipelined(True)
            reader.seek(start)
            writer.seek(start)
            while count and (piece := reader.read(min(count, SFTP_PIECE))):
                budget.left(deadline, f"uploading '{source.name}' to device '{self.device}'")
                writer.write(piece)
                count -= len(piece)

    def settle(self, path: str, budget: Budget) -> None:
        with self._doing("writing", path, budget), self._sftp.open(self.full_path(path), "r+b") as f:
            self._extended("fsync@openssh.com", f.handle)

    def rename(self, old: str, new: str, budget: Budget) -> None:
        a, b = self.full_path(old), self.full_path(new)
        with self._doing("renaming", old, budget):
            if self._extended("posix-rename@openssh.com", a, b) is not None:
                return
            try:  # a server without the extension does not replace
                self._sftp.rename(a, b)
            except OSError:
                if not self._there(a):
                    raise
                self._sftp.remove(b)
                self._sftp.rename(a, b)

    def link(self, target: str, path: str, budget: Budget) -> None:
        with self._doing("linking", path, budget):
            self._sftp.symlink(target, self.full_path(path))

    def set_executable(self, path: str, budget: Budget) -> None:
        with self._doing("marking executable", path, budget):
            self._sftp.chmod(self.full_path(path), 0o755)

    def remove(self, path: str, budget: Budget) -> None:
        with self._doing("removing", path, budget), contextlib.suppress(FileNotFoundError):
            self._sftp.remove(self.full_path(path))

    def remove_folder(self, path: str, budget: Budget) -> None:
        for entry in self.entries(path, budget):
            if entry.folder:
                self.remove_folder(f"{path}/{entry.name}", budget)
            else:
                self.remove(f"{path}/{entry.name}", budget)
        with self._doing("removing", path, budget), contextlib.suppress(FileNotFoundError):
            self._sftp.rmdir(self.full_path(path))

    def differing(self, expected: Mapping[str, Content], budget: Budget) -> frozenset[str]:
        by_path = {self.full_path(p): p for p in expected}
        found = self._hashes.differing({f: expected[p] for f, p in by_path.items()}, budget)
        return frozenset(by_path[f] for f in found)

    def space(self, budget: Budget) -> DiskSpace | None:
        with self._doing("asking for free space of", "", budget):
            return self._statvfs() or self._by_df(budget)

    # ---- inside ----

    def _read_back(self, full: str, budget: Budget) -> str | None:
        digest = hashlib.sha256()
        with self._doing("reading", full, budget):
            try:
                with self._sftp.open(full, "rb") as reader:
                    reader.prefetch()
                    while piece := reader.read(SFTP_PIECE):
                        digest.update(piece)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EACCES):
                    return None
                raise
        return digest.hexdigest()

    def _extended(self, name: str, *arguments: str | bytes) -> Any:
        """The answer to an extension of the protocol, None from a server without it. paramiko can send any
        request, but has a public method for one extension only."""
        if name in self._refused:
            return None
        try:
            _, answer = self._sftp._request(paramiko.sftp.CMD_EXTENDED, name, *arguments)
        except OSError as error:
            if "unsupported" in str(error).lower():
                self._refused.add(name)
                return None
            raise
        return answer if answer is not None else b""

    def _statvfs(self) -> DiskSpace | None:
        at = self.root
        while True:
            try:
                answer = self._extended("statvfs@openssh.com", at)
                break
            except FileNotFoundError:  # the root is not made yet
                if at == "/":
                    return None
                at = at.rpartition("/")[0] or "/"
        if answer is None:
            return None
        numbers = [answer.get_int64() for _ in range(11)]
        return DiskSpace(numbers[4] * (numbers[1] or numbers[0]), bool(numbers[9] & _READ_ONLY_FLAG))

    def _by_df(self, budget: Budget) -> DiskSpace | None:
        for place in (self.root, "."):
            done = self._execute(["df", "-Pk", place], budget)
            fields = done.out.splitlines()[-1].split() if done.code == 0 and done.out.strip() else []
            if len(fields) >= 4 and fields[3].isdigit():
                return DiskSpace(1024 * int(fields[3]))
        return None

    @contextmanager
    def _doing(self, doing: str, path: str, budget: Budget) -> Iterator[None]:
        """Turn what paramiko and sockets raise into SmeltError(kind='infra') that says why."""
        channel = self._sftp.get_channel()
        if channel is not None:
            channel.settimeout(budget.limits.command)
        try:
            yield
        except (paramiko.SSHException, paramiko.SFTPError, OSError, EOFError) as error:
            shown = path if path.startswith("/") else self.full_path(path)
            what = f"{doing} '{shown}' failed on device '{self.device}'"
            raise self._explained(what, error, budget) from error

    def _explained(self, what: str, error: Exception, budget: Budget) -> InfraError:
        found = link_failure(self.device, what, error, budget.limits.command)
        if found is not None:
            return found
        if isinstance(error, OSError) and error.errno is None:  # the protocol's word for all that has no own
            status = self._disk_status(budget)
            if status:
                return infra(f"{what}: {status}", status=status)
        return infra(f"{what}: {error or type(error).__name__}")

    def _disk_status(self, budget: Budget) -> str:
        """DISK_FULL or READ_ONLY where the device's disk is so, else ''."""
        try:
            space = self._statvfs()
            if space is None:
                return self._complaint(budget)
        except (paramiko.SSHException, OSError, EOFError, InfraError):
            return ""
        if space.read_only:
            return READ_ONLY
        return DISK_FULL if space.free < PIECE else ""

    def _complaint(self, budget: Budget) -> str:
        """What the device's own tools say when they write there."""
        for argv in (["mkdir", "-p", self.root], ["touch", f"{self.root}/.touched"]):
            said = self._execute(argv, budget).err.lower()
            if "read-only" in said:
                return READ_ONLY
            if "no space" in said:
                return DISK_FULL
        return ""


def link_failure(device: str, what: str, error: Exception, limit: float) -> InfraError | None:
    """The error for a link that is lost or stalled, None for any other failure. limit: for how many seconds
    nothing had come when a wait was given up."""
    # paramiko has one class for a channel that is not opened in time and for one that is refused
    if isinstance(error, TimeoutError) or str(error).startswith("Timeout opening channel"):
        why = f"no byte came from the device for {limit:.0f} s"
        return infra(f"{what}: {why}", status=LINK_STALLED)
    said = str(error) or type(error).__name__
    lost = isinstance(error, EOFError | ConnectionError) or "dropped" in said or "is closed" in said
    if lost or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
        return infra(f"{what}: the link to device '{device}' was lost ({said})", status=LINK_LOST)
    return None
