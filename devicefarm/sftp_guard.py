"""The channel of an sftp server in; a stream for paramiko's client out, whose packets were checked before.

A device is not trusted, and paramiko's client trusts it: counts and lengths of which one can fill the memory,
answers of any type and in any order, names that need not be text, waits that begin anew with each byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smelt.core.lazily import Lazily

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Lazily("paramiko")

MOST_ANSWER = 1 << 18
"""Bytes of one packet, of OpenSSH's servers the most."""
RECEIVED = 32 * 1024
_ATTRIBUTES = ((1, 8), (2, 8), (4, 4), (8, 8))
"""A flag, and the bytes of the field that there is with it: size, owner, mode, times."""
_EXTENDED = 1 << 31


class Nonsense(Exception):
    """An answer that is none."""


class Answer:
    """A packet, read field by field. Raises Nonsense at its end, and so no count is believed for long."""

    def __init__(self, data: bytes) -> None:
        self.data, self._at = data, 0

    def taken(self, size: int) -> bytes:
        """The next bytes."""
        self._at += size
        if self._at > len(self.data):
            raise Nonsense(f"the sftp server's answer ends {self._at - len(self.data)} bytes too early")
        return self.data[self._at - size : self._at]

    def whole(self, size: int = 4) -> int:
        """An integer of so many bytes."""
        return int.from_bytes(self.taken(size), "big")

    def string(self) -> bytes:
        """Bytes with their length before them."""
        return self.taken(self.whole())

    # ---- what comes behind type and number, by the type, as paramiko is to have it ----

    def rest(self) -> bytes:
        """Whatever it is."""
        return self.data[self._at :]

    def one(self) -> bytes:
        """A string: a handle, or a piece of a file."""
        start = self._at
        self.string()
        return self.data[start : self._at]

    def status(self) -> bytes:
        """A code and a text, which old servers leave out."""
        code = self.taken(4)
        text = self.string() if self._at < len(self.data) else b""
        shown = text.decode("utf-8", "replace")[:200] or f"status {int.from_bytes(code, 'big')}"
        return code + _packed(shown.encode())

    def attributes(self) -> bytes:
        """Those of a file."""
        start, flags = self._at, self.whole()
        self.taken(sum(size for flag, size in _ATTRIBUTES if flags & flag))
        for _ in range(2 * self.whole() if flags & _EXTENDED else 0):
            self.string()
        return self.data[start : self._at]

    def names(self) -> bytes:
        """The entries of a folder. paramiko takes their names for text, which not all are: Latin-1 has a
        character for every byte (see `name_of`)."""
        found = []
        for _ in range(self.whole()):
            name = self.string().decode("latin-1").encode()
            self.string()  # the same as a line of ls
            found.append(_packed(name) + _packed(b"") + self.attributes())
        return len(found).to_bytes(4, "big") + b"".join(found)


def name_of(text: str) -> str:
    """A name of the device's that paramiko has given, as one of Python's; not all are UTF-8."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def _packed(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def _answers() -> dict[int, tuple[int, Callable[[Answer], bytes]]]:
    """What each request is answered with that is not refused, and what checks it."""
    of = paramiko.sftp
    done = (of.CMD_CLOSE, of.CMD_WRITE, of.CMD_REMOVE, of.CMD_MKDIR, of.CMD_RMDIR, of.CMD_RENAME,
            of.CMD_SYMLINK, of.CMD_SETSTAT)  # fmt: skip
    return {
        of.CMD_INIT: (of.CMD_VERSION, Answer.rest),
        **dict.fromkeys(done, (of.CMD_STATUS, Answer.status)),
        **dict.fromkeys((of.CMD_OPEN, of.CMD_OPENDIR), (of.CMD_HANDLE, Answer.one)),
        of.CMD_READ: (of.CMD_DATA, Answer.one),
        **dict.fromkeys((of.CMD_READDIR, of.CMD_REALPATH), (of.CMD_NAME, Answer.names)),
        **dict.fromkeys((of.CMD_STAT, of.CMD_LSTAT), (of.CMD_ATTRS, Answer.attributes)),
        of.CMD_EXTENDED: (of.CMD_EXTENDED_REPLY, Answer.rest),
    }


class SftpGuard:
    """What paramiko's client has for its channel. status: the last code that came. failure: what has made it
    of no use, which paramiko may drop: TimeoutError when the limit is over or nothing has come for `silence`
    seconds, EOFError and OSError when the channel has ended, Nonsense."""

    def __init__(self, stream: paramiko.Channel) -> None:
        self._stream, self._answers = stream, _answers()
        self._got, self._ready = bytearray(), memoryview(b"")
        self._asked: dict[int, int] = {}
        self._early: dict[int, bytes] = {}
        self._end = self._silence = 0.0
        self.failure: Exception | None = None
        self.status = 0

    def limit(self, seconds: float, silence: float) -> None:
        """Give what follows so many seconds, and each wait for a byte so many."""
        self._end, self._silence = time.monotonic() + seconds, silence

    # ---- what paramiko calls ----

    def get_name(self) -> str:
        """For its log."""
        return "sftp"

    def close(self) -> None:
        """Close the channel."""
        self._stream.close()

    def recv_ready(self) -> bool:
        """Whether it should take answers before it sends more than a hundred pieces of a file."""
        return True

    def send(self, data: bytes) -> int:
        """Send one packet."""
        with self._sound():
            self._asked[int.from_bytes(data[5:9], "big")] = data[4]
            self._wait()
            self._stream.sendall(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """The next bytes of the answers, which are given in the order of their requests."""
        if not self._ready:
            with self._sound():
                while (first := next(iter(self._asked))) not in self._early:
                    self._take()
            del self._asked[first]
            self._ready = memoryview(self._early.pop(first))
        piece, self._ready = self._ready[:size], self._ready[size:]
        return bytes(piece)

    # ---- inside ----

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """After a failure nothing is sent or waited for: a part of a packet may be under way."""
        if self.failure is not None:
            raise self.failure
        try:
            yield
        except BaseException as error:
            self.failure = error if isinstance(error, Exception) else EOFError("interrupted")
            raise

    def _take(self) -> None:
        """Receive and check a packet."""
        of, length = paramiko.sftp, int.from_bytes(self._read(4), "big")
        if not 5 <= length <= MOST_ANSWER:
            raise Nonsense(f"the sftp server claims a packet of {length} bytes")
        answer = Answer(self._read(length))
        kind, number = answer.whole(1), answer.whole()  # of INIT and VERSION it is the version
        if kind == of.CMD_VERSION and number not in self._asked:
            raise Nonsense(f"the sftp server speaks version {number} of the protocol, expected 3")
        if number not in self._asked or number in self._early:
            raise Nonsense(f"the sftp server answers request {number}, which nobody has made")
        wanted, check = self._answers[self._asked[number]]
        if kind == of.CMD_STATUS:
            self.status = int.from_bytes(answer.data[5:9], "big")
            if self.status != of.SFTP_OK or wanted == of.CMD_EXTENDED_REPLY:
                wanted, check = kind, Answer.status
        if kind != wanted:
            shown = of.CMD_NAMES.get
            raise Nonsense(f"the sftp server answers with {shown(kind, kind)}, expected {shown(wanted)}")
        self._early[number] = _packed(answer.data[:5] + check(answer))

    def _read(self, size: int) -> bytes:
        while len(self._got) < size:
            self._wait()
            piece = self._stream.recv(RECEIVED)
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
