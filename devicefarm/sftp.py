"""A folder of a device as its store, over one sftp channel: what `DeviceStore` asks of a transport.

OpenSSH's extensions are used where the server has them: posix-rename replaces a file atomically, fsync and
statvfs say what the disk does. Version 3 of the protocol has no word for a full or read-only disk, so a
failure is looked into before it is reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from smelt.core.diag import printable
from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import DISK_FULL, READ_ONLY, Budget, InfraError, infra
from smelt.devicefarm.hashing import DeviceHashes
from smelt.devicefarm.sftp_guard import Nonsense, SftpGuard, name_of
from smelt.devicefarm.ssh_link import SshLink, link_failure
from smelt.devicefarm.store import PIECE, SMALL, Content, DiskSpace, StoredEntry, space_by_df
from smelt.devicefarm.transport import Completed

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Lazily("paramiko")

SFTP_PIECE = 32 * 1024
"""Bytes of one write or read: the most that every server takes."""
UNDER_WAY = 128
"""Pieces of a file that are asked for at once."""
_READ_ONLY_FLAG = 1


class SftpFiles:
    """`Files` over a channel on which the device has started its sftp server, as long as it is `usable`.
    root: absolute, or in the folder in which a login begins. execute: runs a command on the device."""

    def __init__(
        self,
        link: SshLink,
        channel: paramiko.Channel,
        root: str,
        execute: Callable[[list[str], Budget], Completed],
        budget: Budget,
    ) -> None:
        """Raises SmeltError(kind='infra')."""
        self.device, self.root = link.device, root
        self._link, self._execute = link, execute
        self._guard = SftpGuard(channel)
        self._hashes = DeviceHashes(execute, self._read_back)
        self._refused: set[str] = set()
        self.usable = True
        with self._doing("opening", root, budget):
            self._sftp = paramiko.SFTPClient(self._guard)
            if not root.startswith("/"):
                self.root = f"{name_of(self._sftp.normalize('.'))}/{root}"

    def close(self) -> None:
        """End the device's sftp server, which may take any time."""
        self._sftp.close()

    def full_path(self, path: str) -> str:
        """See Files; so are the others."""
        return f"{self.root}/{path}" if path else self.root

    def entries(self, path: str, budget: Budget) -> tuple[StoredEntry, ...]:
        with self._doing("listing", path, budget):
            try:
                found = self._sftp.listdir_attr(self._at(path))
            except FileNotFoundError:
                return ()
        return tuple(
            StoredEntry(
                name_of(e.filename), e.st_size or 0, float(e.st_mtime or 0), stat.S_ISDIR(e.st_mode or 0)
            )
            for e in found
        )

    def size(self, path: str, budget: Budget) -> int | None:
        with self._doing("looking for", path, budget):
            try:
                return self._sftp.stat(self._at(path)).st_size or 0
            except FileNotFoundError:
                return None

    def make_dirs(self, path: str, budget: Budget) -> None:
        full = self.full_path(path)
        with self._doing("creating", path, budget):
            missing = [full]
            while not self._there(_bytes(missing[-1])):
                above = missing[-1].rpartition("/")[0]
                if not above:
                    break
                missing.append(above)
            else:
                missing.pop()
            for folder in reversed(missing):
                self._make_dir(folder)

    def read(self, path: str, budget: Budget) -> bytes | None:
        with self._doing("reading", path, budget):
            try:
                with self._sftp.open(self._at(path), "rb") as reader:
                    return bytes(reader.read(SMALL))
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes, budget: Budget) -> None:
        pieces = (data[at : at + SFTP_PIECE] for at in range(0, len(data), SFTP_PIECE))
        with self._doing("writing", path, budget):
            self._fill(path, "wb", 0, pieces)

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        doing, limit = f"uploading '{source.name}' to", budget.limits.upload
        with source.open("rb") as reader, self._doing(doing, path, budget, limit=limit, size=count):
            reader.seek(start)
            left = count

            def read() -> Iterator[bytes]:
                nonlocal left
                while left and (piece := reader.read(min(left, SFTP_PIECE))):
                    left -= len(piece)
                    yield piece

            self._fill(path, "r+b" if start else "wb", start, read())

    def settle(self, path: str, budget: Budget) -> None:
        with self._doing("writing", path, budget), self._sftp.open(self._at(path), "r+b") as writer:
            self._extended("fsync@openssh.com", "status", writer.handle)

    def rename(self, old: str, new: str, budget: Budget) -> None:
        a, b = self._at(old), self._at(new)
        with self._doing("renaming", old, budget):
            if self._extended("posix-rename@openssh.com", "status", a, b) is not None:
                return
            try:  # a server without the extension does not replace
                self._sftp.rename(a, b)
            except (OSError, EOFError):
                if not self._there(a):
                    raise
                self._sftp.remove(b)
                self._sftp.rename(a, b)

    def link(self, target: str, path: str, budget: Budget) -> None:
        with self._doing("linking", path, budget):
            self._sftp.symlink(_bytes(target), self._at(path))

    def set_executable(self, path: str, budget: Budget) -> None:
        with self._doing("marking executable", path, budget):
            self._sftp.chmod(self._at(path), 0o755)

    def remove(self, path: str, budget: Budget) -> None:
        with self._doing("removing", path, budget), contextlib.suppress(FileNotFoundError):
            self._sftp.remove(self._at(path))

    def remove_folder(self, path: str, budget: Budget) -> None:
        for entry in self.entries(path, budget):
            if entry.folder:
                self.remove_folder(f"{path}/{entry.name}", budget)
            else:
                self.remove(f"{path}/{entry.name}", budget)
        with self._doing("removing", path, budget), contextlib.suppress(FileNotFoundError):
            self._sftp.rmdir(self._at(path))

    def differing(self, expected: Mapping[str, Content], budget: Budget) -> frozenset[str]:
        by_path = {self.full_path(p): p for p in expected}
        found = self._hashes.differing({f: expected[p] for f, p in by_path.items()}, budget)
        return frozenset(by_path[f] for f in found)

    def space(self, budget: Budget) -> DiskSpace | None:
        with self._doing("asking for free space of", "", budget):
            found = self._statvfs()
        return found or self._by_df(budget)

    # ---- requests ----

    def _at(self, path: str) -> bytes:
        return _bytes(path if path.startswith("/") else self.full_path(path))

    def _there(self, full: bytes) -> bool:
        """Whether there is such a file, folder or link, wherever that leads."""
        try:
            self._sftp.lstat(full)
        except FileNotFoundError:
            return False
        return True

    def _make_dir(self, full: str) -> None:
        try:
            self._sftp.mkdir(_bytes(full))
        except (OSError, EOFError):
            if not self._there(_bytes(full)):  # else somebody was faster
                raise

    def _fill(self, path: str, mode: str, start: int, pieces: Iterator[bytes]) -> None:
        """Write the pieces one behind the other, from `start`."""
        with self._sftp.open(self._at(path), mode) as writer:
            writer.seek(start)
            writer.set_pipelined(True)
            last = b""
            for piece in pieces:
                writer.write(last)
                last = piece
            writer.set_pipelined(False)  # the last one waits for the answers to all: closing does not
            writer.write(last)

    def _pieces(self, full: bytes, most: int) -> Iterator[bytes]:
        """The first `most` bytes of a file, of which many pieces are asked for at once. paramiko's `prefetch`
        does so in a thread: an answer that is there before the next request ends it, and all that has been
        asked for since is sent twice."""
        of, at = paramiko.sftp, 0
        with self._sftp.open(full, "rb") as reader:
            while at < most:
                asked = {}
                for place in range(at, most, SFTP_PIECE)[:UNDER_WAY]:
                    read = (of.CMD_READ, reader.handle, of.int64(place), min(SFTP_PIECE, most - place))
                    asked[self._sftp._async_request(type(None), *read)] = read[-1]
                for number, size in asked.items():
                    try:
                        piece = bytes(self._sftp._read_response(number)[1].get_binary())
                    except EOFError:
                        return
                    if not 0 < len(piece) <= size:
                        raise Nonsense(f"the sftp server gives {len(piece)} bytes of {size}")
                    at += len(piece)
                    yield piece
                    if len(piece) < size:  # what comes behind it is asked for once more
                        break

    def _read_back(self, full: str, size: int, budget: Budget) -> str | None:
        """The sha256 of a file of at most `size` bytes and one more."""
        digest = hashlib.sha256()
        with self._doing("reading", full, budget, size=size):
            try:
                for piece in self._pieces(_bytes(full), size + 1):
                    digest.update(piece)
            except (FileNotFoundError, PermissionError):
                return None
        return digest.hexdigest()

    def _extended(self, name: str, of: str, *arguments: bytes) -> bytes | None:
        """The answer to an extension of the protocol, None from a server without it. paramiko can send any
        request, but has a public method for one extension only. of: the answer's type."""
        if name in self._refused:
            return None
        commands = paramiko.sftp
        try:
            kind, answer = self._sftp._request(commands.CMD_EXTENDED, name, *arguments)
        except (OSError, EOFError):
            if self._guard.status == commands.SFTP_OP_UNSUPPORTED:
                self._refused.add(name)
                return None
            raise
        if (shown := commands.CMD_NAMES[kind]) != of:
            raise Nonsense(f"the sftp server answers with {shown}, expected {of}")
        return bytes(answer.get_remainder())

    def _statvfs(self) -> DiskSpace | None:
        at = self.root
        while True:
            try:
                answer = self._extended("statvfs@openssh.com", "extended_reply", _bytes(at))
                break
            except FileNotFoundError:  # the root is not made yet
                if at == "/":
                    return None
                at = at.rpartition("/")[0] or "/"
        if answer is None:
            return None
        if len(answer) < 88:
            raise Nonsense(f"the sftp server tells of its disk in {len(answer)} bytes, expected 88")
        numbers = struct.unpack_from(">11Q", answer)
        return DiskSpace(numbers[4] * (numbers[1] or numbers[0]), bool(numbers[9] & _READ_ONLY_FLAG))

    def _by_df(self, budget: Budget) -> DiskSpace | None:
        for place in (self.root, "."):
            done = self._execute(["df", "-Pk", place], budget)
            found = space_by_df(done.out) if done.code == 0 else None
            if found is not None:
                return found
        return None

    # ---- failures ----

    @contextmanager
    def _doing(
        self, doing: str, path: str, budget: Budget, *, limit: float | None = None, size: int = 0
    ) -> Iterator[None]:
        """Give the block its time, that of a command unless a limit is named, and turn what it raises into
        SmeltError(kind='infra') that says why. size: bytes that it transfers."""
        shown = printable(path if path.startswith("/") else self.full_path(path))
        what, command = f"{doing} '{shown}' failed on device '{self.device}'", budget.limits.command
        left = budget.left(budget.deadline(command if limit is None else limit, size), f"{doing} '{shown}'")
        self._guard.limit(left, command)
        refused: OSError | EOFError | None = None
        with self._link.within(left) as late:
            try:
                yield
                if self._guard.failure is not None:  # paramiko drops what it is told while it closes a file
                    raise self._guard.failure
            except Exception as error:
                if self._guard.failure is None and isinstance(error, OSError | EOFError):
                    refused = error
                else:
                    found = TimeoutError() if late.is_set() else self._guard.failure or error
                    raise self._failed(what, found, min(left, command)) from error
            except BaseException:  # a packet may be cut in two
                self.usable = False
                raise
        if refused is not None:
            raise self._explained(what, refused, budget) from refused

    def _failed(self, what: str, error: Exception, limit: float) -> InfraError:
        self.usable = False
        if isinstance(error, TimeoutError):
            self._link.doubt()
        known = link_failure(self.device, what, error, limit)
        return known or infra(f"{what}: {printable(str(error)) or type(error).__name__}")

    def _explained(self, what: str, error: OSError | EOFError, budget: Budget) -> InfraError:
        if isinstance(error, OSError) and error.errno is None:  # the protocol's word for all without its own
            status = self._disk_status(budget)
            if status:
                return infra(f"{what}: {status}", status=status)
        return infra(f"{what}: {printable(getattr(error, 'strerror', None) or str(error))}")

    def _disk_status(self, budget: Budget) -> str:
        """DISK_FULL or READ_ONLY where the device's disk is so, else ''."""
        with self._doing("asking for free space of", "", budget):
            try:
                space = self._statvfs()
            except (OSError, EOFError):
                return ""
        if space is None:
            return self._complaint(budget)
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


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
