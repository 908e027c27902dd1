"""A folder of a device as its store, over one sftp channel: what `DeviceStore` asks of a transport.

OpenSSH's extensions are used where the server has them: posix-rename replaces a file atomically, fsync and
statvfs say what the disk does. Version 3 of the protocol has no word for a full or read-only disk, so a
failure is looked into before it is reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from smelt.core.diag import printable
from smelt.devicefarm.budget import DISK_FULL, READ_ONLY, Budget, InfraError, infra
from smelt.devicefarm.hashing import DeviceHashes
from smelt.devicefarm.sftp_wire import (
    DATA_PIECE,
    UNDER_WAY,
    Answer,
    At,
    Attributes,
    Nonsense,
    OpenFlag,
    Packet,
    SftpRefused,
    SftpStatus,
    SftpStream,
    SftpWire,
)
from smelt.devicefarm.ssh_link import SshLink, link_failure
from smelt.devicefarm.store import PIECE, SMALL, Content, DiskSpace, StoredEntry, space_by_df
from smelt.devicefarm.transport import Completed

_OWN_WORDS = (SftpStatus.END_OF_FILE, SftpStatus.NO_SUCH_FILE, SftpStatus.PERMISSION_DENIED)
"""What a server has a word of its own for; there is one for all else."""
_READ_ONLY_FLAG = 1
_MODE_GIVEN = 4
_CREATE = OpenFlag.WRITE | OpenFlag.CREATE | OpenFlag.TRUNCATE


class SftpFiles:
    """`Files` over a channel on which the device has started its sftp server, as long as it is `usable`.
    root: absolute, or in the folder in which a login begins. execute: runs a command on the device."""

    def __init__(
        self,
        link: SshLink,
        channel: SftpStream,
        root: str,
        execute: Callable[[list[str], Budget], Completed],
        budget: Budget,
    ) -> None:
        """Raises SmeltError(kind='infra')."""
        self.device, self.root = link.device, root
        self._link, self._execute = link, execute
        self._wire = SftpWire(channel)
        self._hashes = DeviceHashes(execute, self._read_back)
        self._refused: set[str] = set()
        self.usable = True
        with self._doing("opening", root, budget):
            self._wire.begin()
            if not root.startswith("/"):
                home, _ = next(self._wire.ask(Packet.REALPATH, b".", of=Packet.NAME).names(), (b"", None))
                self.root = f"{_text(home)}/{root}"

    def close(self) -> None:
        """End the device's sftp server, which may take any time."""
        self._wire.close()

    def full_path(self, path: str) -> str:
        """See Files; so are the others."""
        return f"{self.root}/{path}" if path else self.root

    def entries(self, path: str, budget: Budget) -> tuple[StoredEntry, ...]:
        with self._doing("listing", path, budget):
            try:
                handle = self._wire.ask(Packet.OPENDIR, self._at(path), of=Packet.HANDLE).string()
            except SftpRefused as error:
                if error.code == SftpStatus.NO_SUCH_FILE:
                    return ()
                raise
            with self._closing(handle):
                found = tuple(self._listed(handle))
        return tuple(
            StoredEntry(_text(name), a.size, float(a.modified), stat.S_ISDIR(a.mode))
            for name, a in found
            if name not in (b".", b"..")
        )

    def size(self, path: str, budget: Budget) -> int | None:
        with self._doing("looking for", path, budget):
            found = self._seen(Packet.STAT, self._at(path))
            return found.size if found is not None else None

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

    def read(self, path: str, budget: Budget) -> bytes | None:
        with self._doing("reading", path, budget):
            try:
                return b"".join(self._pieces(self._at(path), SMALL))
            except SftpRefused as error:
                if error.code == SftpStatus.NO_SUCH_FILE:
                    return None
                raise

    def write(self, path: str, data: bytes, budget: Budget) -> None:
        pieces = (data[at : at + DATA_PIECE] for at in range(0, len(data), DATA_PIECE))
        with self._doing("writing", path, budget):
            self._fill(path, _CREATE, 0, pieces)

    def append(self, source: Path, start: int, count: int, path: str, budget: Budget) -> None:
        doing, limit = f"uploading '{source.name}' to", budget.limits.upload
        with source.open("rb") as reader, self._doing(doing, path, budget, limit=limit, size=count):
            reader.seek(start)
            left = count

            def read() -> Iterator[bytes]:
                nonlocal left
                while left and (piece := reader.read(min(left, DATA_PIECE))):
                    left -= len(piece)
                    yield piece

            self._fill(path, OpenFlag.WRITE if start else _CREATE, start, read())

    def settle(self, path: str, budget: Budget) -> None:
        with self._doing("writing", path, budget), self._opened(self._at(path), OpenFlag.WRITE) as handle:
            self._extended("fsync@openssh.com", Packet.STATUS, handle)

    def rename(self, old: str, new: str, budget: Budget) -> None:
        a, b = self._at(old), self._at(new)
        with self._doing("renaming", old, budget):
            if self._extended("posix-rename@openssh.com", Packet.STATUS, a, b) is not None:
                return
            try:  # a server without the extension does not replace
                self._wire.ask(Packet.RENAME, a, b)
            except SftpRefused:
                if self._seen(Packet.LSTAT, a) is None:
                    raise
                self._wire.ask(Packet.REMOVE, b)
                self._wire.ask(Packet.RENAME, a, b)

    def link(self, target: str, path: str, budget: Budget) -> None:
        with self._doing("linking", path, budget):  # servers take these two in OpenSSH's order
            self._wire.ask(Packet.SYMLINK, _bytes(target), self._at(path))

    def set_executable(self, path: str, budget: Budget) -> None:
        with self._doing("marking executable", path, budget):
            self._wire.ask(Packet.SETSTAT, self._at(path), _MODE_GIVEN, 0o755)

    def remove(self, path: str, budget: Budget) -> None:
        with self._doing("removing", path, budget), _perhaps_missing():
            self._wire.ask(Packet.REMOVE, self._at(path))

    def remove_folder(self, path: str, budget: Budget) -> None:
        for entry in self.entries(path, budget):
            if entry.folder:
                self.remove_folder(f"{path}/{entry.name}", budget)
            else:
                self.remove(f"{path}/{entry.name}", budget)
        with self._doing("removing", path, budget), _perhaps_missing():
            self._wire.ask(Packet.RMDIR, self._at(path))

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

    def _seen(self, kind: Packet, full: bytes) -> Attributes | None:
        """What STAT or LSTAT says of a file; None where there is none."""
        try:
            return self._wire.ask(kind, full, of=Packet.ATTRS).attributes()
        except SftpRefused as error:
            if error.code == SftpStatus.NO_SUCH_FILE:
                return None
            raise

    def _there(self, full: str) -> bool:
        """Whether there is such a file, folder or link, wherever that leads."""
        return self._seen(Packet.LSTAT, _bytes(full)) is not None

    def _make_dir(self, full: str) -> None:
        try:
            self._wire.ask(Packet.MKDIR, _bytes(full), 0)
        except SftpRefused:
            if not self._there(full):  # else somebody was faster
                raise

    def _listed(self, handle: bytes) -> Iterator[tuple[bytes, Attributes]]:
        while True:
            try:
                answer = self._wire.ask(Packet.READDIR, handle, of=Packet.NAME)
            except SftpRefused as error:
                if error.code == SftpStatus.END_OF_FILE:
                    return
                raise
            yield from answer.names()

    @contextmanager
    def _opened(self, full: bytes, flags: int) -> Iterator[bytes]:
        handle = self._wire.ask(Packet.OPEN, full, flags, 0, of=Packet.HANDLE).string()
        with self._closing(handle):
            yield handle

    @contextmanager
    def _closing(self, handle: bytes) -> Iterator[None]:
        """Close a handle, also after a refusal; after anything else there is nobody to ask."""
        try:
            yield
        except SftpRefused:
            with contextlib.suppress(SftpRefused):
                self._wire.drain()
                self._wire.ask(Packet.CLOSE, handle)
            raise
        self._wire.ask(Packet.CLOSE, handle)

    def _fill(self, path: str, flags: int, start: int, pieces: Iterator[bytes]) -> None:
        """Write the pieces one behind the other, from `start`."""
        with self._opened(self._at(path), flags) as handle:
            for piece in pieces:
                if self._wire.under_way == UNDER_WAY:
                    self._wire.answer()
                self._wire.request(Packet.WRITE, handle, At(start), piece)
                start += len(piece)
            while self._wire.under_way:
                self._wire.answer()

    def _pieces(self, full: bytes, most: int) -> Iterator[bytes]:
        """The first `most` bytes of a file."""
        with self._opened(full, OpenFlag.READ) as handle:
            at = 0
            while at < most and (found := self._some(handle, at, most)):
                at += sum(map(len, found))
                yield from found

    def _some(self, handle: bytes, start: int, most: int) -> list[bytes]:
        """The next pieces of a file, asked for at once; none at its end."""
        wanted = range(start, most, DATA_PIECE)[:UNDER_WAY]
        sizes = [min(DATA_PIECE, most - at) for at in wanted]
        numbers = [
            self._wire.request(Packet.READ, handle, At(at), size)
            for at, size in zip(wanted, sizes, strict=True)
        ]
        answers, found = self._wire.answers(Packet.DATA), []
        for number, size in zip(numbers, sizes, strict=True):
            answer = answers[number]
            if isinstance(answer, SftpRefused):
                if answer.code == SftpStatus.END_OF_FILE:
                    break
                raise answer
            piece = answer.string()
            if not 0 < len(piece) <= size:
                raise Nonsense(f"the sftp server gives {len(piece)} bytes of {size}")
            found.append(piece)
            if len(piece) < size:  # what comes behind it is asked for once more
                break
        return found

    def _read_back(self, full: str, size: int, budget: Budget) -> str | None:
        """The sha256 of a file of at most `size` bytes and one more."""
        digest = hashlib.sha256()
        with self._doing("reading", full, budget, size=size):
            try:
                for piece in self._pieces(_bytes(full), size + 1):
                    digest.update(piece)
            except SftpRefused as error:
                if error.code in (SftpStatus.NO_SUCH_FILE, SftpStatus.PERMISSION_DENIED):
                    return None
                raise
        return digest.hexdigest()

    def _extended(self, name: str, of: Packet, *fields: bytes) -> Answer | None:
        """The answer to an extension of the protocol, None from a server without it."""
        if name in self._refused:
            return None
        try:
            return self._wire.ask(Packet.EXTENDED, name.encode(), *fields, of=of)
        except SftpRefused as error:
            if error.code == SftpStatus.UNSUPPORTED:
                self._refused.add(name)
                return None
            raise

    def _statvfs(self) -> DiskSpace | None:
        at = self.root
        while True:
            try:
                answer = self._extended("statvfs@openssh.com", Packet.EXTENDED_REPLY, _bytes(at))
                break
            except SftpRefused as error:  # the root is not made yet
                if error.code != SftpStatus.NO_SUCH_FILE:
                    raise
                if at == "/":
                    return None
                at = at.rpartition("/")[0] or "/"
        if answer is None:
            return None
        numbers = [answer.whole(8) for _ in range(11)]
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
        self._wire.limit(left, command)
        refused: SftpRefused | None = None
        with self._link.within(left) as late:
            try:
                yield
            except SftpRefused as error:
                refused = error
            except Exception as error:
                self.usable = False
                found = TimeoutError() if late.is_set() else error
                if isinstance(found, TimeoutError):
                    self._link.doubt()
                known = link_failure(self.device, what, found, min(left, command))
                raise known or infra(f"{what}: {error or type(error).__name__}") from error
            except BaseException:  # a packet may be cut in two
                self.usable = False
                raise
        if refused is not None:
            raise self._explained(what, refused, budget) from refused

    def _explained(self, what: str, error: SftpRefused, budget: Budget) -> InfraError:
        if error.code not in _OWN_WORDS:
            status = self._disk_status(budget)
            if status:
                return infra(f"{what}: {status}", status=status)
        return infra(f"{what}: {printable(str(error))}")

    def _disk_status(self, budget: Budget) -> str:
        """DISK_FULL or READ_ONLY where the device's disk is so, else ''."""
        with self._doing("asking for free space of", "", budget):
            try:
                space = self._statvfs()
            except SftpRefused:
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


@contextmanager
def _perhaps_missing() -> Iterator[None]:
    try:
        yield
    except SftpRefused as error:
        if error.code != SftpStatus.NO_SUCH_FILE:
            raise


def _text(name: bytes) -> str:
    """A name of the device's as one of Python's; not all are UTF-8."""
    return name.decode("utf-8", "surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
