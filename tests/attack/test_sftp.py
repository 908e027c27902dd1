"""Hostile answers of sftp servers: fixed seeds of the campaign, and what no answer can make a client do."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable

import attack_sftp as sftp
import paramiko
import pytest
from campaign import campaign
from installed import needed
from paramiko.sftp import CMD_ATTRS, CMD_HANDLE, CMD_NAME, CMD_STATUS, CMD_VERSION

from smelt.devicefarm.sftp_guard import MOST_ANSWER, Nonsense, SftpGuard, name_of


def test_fixed_seeds() -> None:
    needed("sftp-server")
    tally = campaign(sftp.attack, range(30))
    assert not tally.failures, tally.report()
    assert tally.counts["deployed"] > 4 and tally.counts["told: infra"] > 4


class Said:
    """A server that says this, whatever it is asked, in pieces of one byte."""

    def __init__(self, *packets: bytes) -> None:
        self.data = b"".join(map(sftp.framed, packets))

    def settimeout(self, timeout: float | None) -> None: ...

    def sendall(self, s: bytes) -> None: ...

    def close(self) -> None: ...

    def recv(self, nbytes: int) -> bytes:
        piece, self.data = self.data[:1], self.data[1:]
        return piece


def limited(stream: Said) -> SftpGuard:
    guard = SftpGuard(stream)
    guard.limit(60, 60)
    return guard


def client(*packets: bytes) -> tuple[paramiko.SFTPClient, SftpGuard]:
    """paramiko's, to which a server says this after they have agreed on a version."""
    guard = limited(Said(VERSION, *packets))
    return paramiko.SFTPClient(guard), guard  # type: ignore[arg-type]


MOST = 2**32 - 1
VERSION = struct.pack(">BI", CMD_VERSION, 3)
HANDLE = struct.pack(">BII", CMD_HANDLE, 1, 1) + b"h"


def status(number: int, code: int, text: bytes = b"") -> bytes:
    return struct.pack(">BIII", CMD_STATUS, number, code, len(text)) + text


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">BII", CMD_NAME, 2, MOST),
        struct.pack(">BIII", CMD_NAME, 2, 1, MOST),
        struct.pack(">BII", CMD_NAME, 2, 2) + bytes(12),
        struct.pack(">BII", CMD_NAME, 2, 1) + bytes(8),
        struct.pack(">BIIIIII", CMD_NAME, 2, 1, 0, 0, 1 << 31, MOST) + bytes(64),
        struct.pack(">BIIIIIII", CMD_NAME, 2, 1, 0, 0, 1 << 31, 1, MOST) + bytes(64),
    ],
)
def test_counts_that_do_not_fit_are_not_believed(answer: bytes) -> None:
    made, guard = client(HANDLE, answer)
    tracemalloc.start()
    try:
        with pytest.raises(Nonsense, match="too early"):
            made.listdir_attr("/")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(guard.failure, Nonsense)


@pytest.mark.parametrize(
    ("answer", "ask"),
    [
        (struct.pack(">BII", CMD_HANDLE, 1, MOST) + bytes(64), lambda c: c.open("/")),
        (struct.pack(">BIII", CMD_STATUS, 1, 4, 9) + bytes(8), lambda c: c.mkdir("/")),
        (struct.pack(">BI", CMD_STATUS, 1) + bytes(3), lambda c: c.mkdir("/")),
        (struct.pack(">BII", CMD_ATTRS, 1, 15) + bytes(27), lambda c: c.stat("/")),
    ],
)
def test_fields_that_do_not_fit(answer: bytes, ask: Callable[[paramiko.SFTPClient], object]) -> None:
    with pytest.raises(Nonsense, match="too early"):
        ask(client(answer)[0])


@pytest.mark.parametrize("length", [0, 4, MOST_ANSWER + 1, MOST])
def test_packets_of_a_length_that_no_server_has(length: int) -> None:
    stream = Said(VERSION)
    made = paramiko.SFTPClient(limited(stream))  # type: ignore[arg-type]
    stream.data = struct.pack(">I", length) + bytes(64)
    with pytest.raises(Nonsense, match=f"claims a packet of {length} bytes"):
        made.stat("/")


def test_answers_to_nobody_and_of_other_types() -> None:
    with pytest.raises(Nonsense, match="version 2 of the protocol, expected 3"):
        paramiko.SFTPClient(limited(Said(struct.pack(">BI", CMD_VERSION, 2))))  # type: ignore[arg-type]
    with pytest.raises(Nonsense, match="request 2, which nobody has made"):
        client(status(2, 0))[0].mkdir("/")
    with pytest.raises(Nonsense, match="with status, expected handle"):
        client(status(1, 0))[0].open("/")
    made, _ = client(status(1, 0), status(1, 0))
    made.mkdir("/")
    with pytest.raises(Nonsense, match="request 1, which nobody has made"):
        made.mkdir("/")


def test_what_a_server_refuses_leaves_it_usable() -> None:
    made, guard = client(status(1, 8, b"\xffx"), status(2, 2), struct.pack(">BII", CMD_STATUS, 3, 0))
    with pytest.raises(OSError, match="x"):
        made.mkdir("/")
    assert guard.status == 8
    with pytest.raises(FileNotFoundError):
        made.mkdir("/")
    made.mkdir("/")  # told in no words, as old servers do
    assert guard.failure is None


def test_a_failure_that_paramiko_drops_stays() -> None:
    """It says nothing of what happens while a file is closed."""
    made, guard = client(HANDLE)
    file = made.open("/")
    guard.limit(0, 60)
    file.close()
    assert isinstance(guard.failure, TimeoutError)
    guard.limit(60, 60)
    with pytest.raises(TimeoutError):
        made.mkdir("/")


def test_answers_in_another_order_reach_those_who_asked() -> None:
    made, guard = client(HANDLE, status(3, 4, b"full"), status(2, 0), status(4, 0))
    file = made.open("/", "w")
    file.set_pipelined(True)
    file.write(b"a")
    file.set_pipelined(False)
    with pytest.raises(OSError, match="full"):
        file.write(b"b")
    file.close()
    assert guard.failure is None


def test_names_that_are_no_text_are_kept() -> None:
    name = b"\xff/\xc3\xa4"
    listed = struct.pack(">BIII", CMD_NAME, 2, 1, len(name)) + name + bytes(8)
    made, _ = client(HANDLE, listed, status(3, 1), status(4, 0))
    assert [name_of(n).encode("utf-8", "surrogateescape") for n in made.listdir("/")] == [name]


def test_every_wait_ends_at_the_limit_of_the_whole() -> None:
    class Dripping(Said):
        def recv(self, nbytes: int) -> bytes:
            time.sleep(0.01)
            return super().recv(nbytes)

    made, guard = client()
    guard._stream = Dripping(struct.pack(">BII", CMD_HANDLE, 1, 1000) + bytes(1000))
    guard.limit(0.05, 60)
    with pytest.raises(TimeoutError):
        made.open("/")
    with pytest.raises(TimeoutError):  # without a word to the server, of which a part may be under way
        made.mkdir("/")
