"""Requests of the sftp protocol (version 3) in; their answers out, each within a limit and checked.

A device is not trusted: paramiko's own client believes the counts and lengths that it is told, of which one
can fill the memory, decodes names that need not be text, and begins to wait anew with each byte.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias

SFTP_VERSION = 3
MOST_ANSWER = 1 << 18
"""Bytes of one packet, of OpenSSH's servers the most."""
DATA_PIECE = 32 * 1024
"""Bytes of one write or read: the most that every server takes."""
UNDER_WAY = 128
"""Requests that may be under way at a time."""


class Packet(IntEnum):
    """What a packet is."""

    INIT = 1
    VERSION = 2
    OPEN = 3
    CLOSE = 4
    READ = 5
    WRITE = 6
    LSTAT = 7
    SETSTAT = 9
    OPENDIR = 11
    READDIR = 12
    REMOVE = 13
    MKDIR = 14
    RMDIR = 15
    REALPATH = 16
    STAT = 17
    RENAME = 18
    SYMLINK = 20
    STATUS = 101
    HANDLE = 102
    DATA = 103
    NAME = 104
    ATTRS = 105
    EXTENDED = 200
    EXTENDED_REPLY = 201


class OpenFlag(IntEnum):
    """How a file is opened."""

    READ = 1
    WRITE = 2
    CREATE = 8
    TRUNCATE = 16


class SftpStatus(IntEnum):
    """Codes of refusals, as far as they are told apart here."""

    OK = 0
    END_OF_FILE = 1
    NO_SUCH_FILE = 2
    PERMISSION_DENIED = 3
    UNSUPPORTED = 8


_HAS_SIZE, _HAS_OWNER, _HAS_MODE, _HAS_TIMES = 1, 2, 4, 8


class SftpRefused(Exception):
    """A status other than OK. code: of SftpStatus, or another."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text or f"status {code}")


class Nonsense(Exception):
    """An answer that is none."""


@dataclass(frozen=True, slots=True)
class At:
    """A place in a file, as a field of a request."""

    offset: int


Field: TypeAlias = "int | bytes | At"
"""Of a request: an integer of 32 bits, a string, a place."""


def _packed(value: Field) -> bytes:
    if isinstance(value, At):
        return value.offset.to_bytes(8, "big")
    return value.to_bytes(4, "big") if isinstance(value, int) else len(value).to_bytes(4, "big") + value


@dataclass(frozen=True, slots=True)
class Attributes:
    """Of a file: size, mode and time of its last change, 0 where the server does not tell."""

    size: int = 0
    mode: int = 0
    modified: int = 0


class Answer:
    """The rest of a packet, read field by field. Raises Nonsense at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._data) - self._at

    def whole(self, size: int = 4) -> int:
        """An integer of so many bytes."""
        return int.from_bytes(self._taken(size), "big")

    def string(self) -> bytes:
        """Bytes with their length before them."""
        return self._taken(self.whole())

    def attributes(self) -> Attributes:
        """Of a file; what extensions say of it is the end of the answer, and dropped."""
        flags = self.whole()
        size = self.whole(8) if flags & _HAS_SIZE else 0
        if flags & _HAS_OWNER:
            self._taken(8)
        mode = self.whole() if flags & _HAS_MODE else 0
        modified = struct.unpack(">II", self._taken(8))[1] if flags & _HAS_TIMES else 0
        if flags >> 31:
            for _ in range(min(self.whole(), self.left // 8 + 1)):
                self.string()
                self.string()
        return Attributes(size, mode, modified)

    def names(self) -> Iterator[tuple[bytes, Attributes]]:
        """The entries of a folder."""
        for _ in range(min(self.whole(), self.left // 12 + 1)):  # more would not fit
            name = self.string()
            self.string()  # the same as a line of ls
            yield name, self.attributes()

    def _taken(self, size: int) -> bytes:
        if size > self.left:
            raise Nonsense(f"the sftp server's answer ends {size - self.left} bytes too early")
        self._at += size
        return self._data[self._at - size : self._at]


class SftpStream(Protocol):
    """paramiko's channel, as far as it is used here."""

    def settimeout(self, timeout: float | None) -> None: ...
    def recv(self, nbytes: int) -> bytes: ...
    def sendall(self, s: bytes) -> None: ...
    def close(self) -> None: ...


class SftpWire:
    """The client's end of a channel. Its methods raise TimeoutError when the limit is over or nothing has
    come for `silence` seconds, EOFError and OSError when the channel has ended, SftpRefused, and Nonsense.
    After all but SftpRefused it is of no use: a part of a packet may be under way."""

    def __init__(self, stream: SftpStream) -> None:
        self._stream = stream
        self._got = bytearray()
        self._last = 0
        self._open: set[int] = set()
        self._end = self._silence = 0.0

    def limit(self, seconds: float, silence: float) -> None:
        """Give what follows so many seconds, and each wait for a byte so many."""
        self._end, self._silence = time.monotonic() + seconds, silence

    def close(self) -> None:
        """Close the channel."""
        self._stream.close()

    def begin(self) -> None:
        """Agree on the version."""
        self._send(struct.pack(">BI", Packet.INIT, SFTP_VERSION))
        kind, answer = self._packet()
        if kind != Packet.VERSION or answer.whole() < SFTP_VERSION:
            raise Nonsense("the sftp server does not speak version 3")

    def ask(self, kind: Packet, *fields: Field, of: Packet = Packet.STATUS) -> Answer:
        """Send a request and wait for its answer, which must be a packet of the type `of`. Raises
        SftpRefused."""
        self.request(kind, *fields)
        return self.answer(of)

    def request(self, kind: Packet, *fields: Field) -> int:
        """Send a request whose answer is taken later, no more than UNDER_WAY at a time; its number."""
        self._last = (self._last + 1) % (1 << 32)
        self._send(struct.pack(">BI", kind, self._last) + b"".join(map(_packed, fields)))
        self._open.add(self._last)
        return self._last

    @property
    def under_way(self) -> int:
        """Requests whose answers were not taken yet."""
        return len(self._open)

    def answer(self, of: Packet = Packet.STATUS) -> Answer:
        """The next answer to a request that is under way. Raises SftpRefused."""
        _, found = self._next(of)
        if isinstance(found, SftpRefused):
            raise found
        return found

    def answers(self, of: Packet) -> dict[int, Answer | SftpRefused]:
        """The answers to all that is under way, by their numbers."""
        found = {}
        while self._open:
            number, answer = self._next(of)
            found[number] = answer
        return found

    def drain(self) -> None:
        """Take the answers to all that is under way, whatever they are."""
        while self._open:
            _, answer = self._packet()
            self._open.discard(answer.whole())

    # ---- inside ----

    def _next(self, of: Packet) -> tuple[int, Answer | SftpRefused]:
        kind, answer = self._packet()
        number = answer.whole()
        if number not in self._open:
            raise Nonsense(f"the sftp server answers request {number}, which nobody has made")
        self._open.discard(number)
        if kind == Packet.STATUS:
            code = answer.whole()
            if code != SftpStatus.OK:
                text = answer.string() if answer.left else b""
                return number, SftpRefused(code, text.decode("utf-8", "replace")[:200])
        if kind != of:
            raise Nonsense(f"the sftp server answers with a packet of type {kind}, expected {of.name}")
        return number, answer

    def _send(self, packet: bytes) -> None:
        self._wait()
        self._stream.sendall(len(packet).to_bytes(4, "big") + packet)

    def _packet(self) -> tuple[int, Answer]:
        length = int.from_bytes(self._read(4), "big")
        if not 5 <= length <= MOST_ANSWER:
            raise Nonsense(f"the sftp server claims a packet of {length} bytes")
        packet = self._read(length)
        return packet[0], Answer(packet[1:])

    def _read(self, size: int) -> bytes:
        while len(self._got) < size:
            self._wait()
            piece = self._stream.recv(DATA_PIECE)
            if not piece:
                raise EOFError
            self._got += piece
        data = bytes(self._got[:size])
        del self._got[:size]
        return data

    def _wait(self) -> None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._stream.settimeout(min(left, self._silence))
