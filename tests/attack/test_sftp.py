"""Hostile answers of sftp servers: fixed seeds of the campaign, and what no answer can make a client do."""

from __future__ import annotations

import struct
import tracemalloc

import attack_sftp as sftp
import pytest
from campaign import campaign

from smelt.devicefarm.sftp_wire import MOST_ANSWER, Answer, Nonsense, Packet, SftpRefused, SftpWire


def test_fixed_seeds() -> None:
    sftp.server()
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


def wire(*packets: bytes) -> SftpWire:
    made = SftpWire(Said(*packets))
    made.limit(60, 60)
    return made


MOST = 2**32 - 1


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">BII", Packet.NAME, 1, MOST),
        struct.pack(">BIII", Packet.NAME, 1, 1, MOST),
        struct.pack(">BII", Packet.NAME, 1, 2) + bytes(12),
        struct.pack(">BIIIIII", Packet.NAME, 1, 1, 0, 0, 1 << 31, MOST) + bytes(64),
    ],
)
def test_counts_that_do_not_fit_are_not_believed(answer: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Nonsense, match="too early"):
            list(wire(answer).ask(Packet.READDIR, b"h", of=Packet.NAME).names())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [0, 4, MOST_ANSWER + 1, MOST])
def test_packets_of_a_length_that_no_server_has(length: int) -> None:
    made = wire()
    made._stream.data = struct.pack(">I", length) + bytes(64)  # type: ignore[attr-defined]
    with pytest.raises(Nonsense, match=f"claims a packet of {length} bytes"):
        made.ask(Packet.STAT, b"/", of=Packet.ATTRS)


def test_answers_to_nobody_and_of_other_types() -> None:
    fine = struct.pack(">BII", Packet.STATUS, 1, 0)
    with pytest.raises(Nonsense, match="request 2, which nobody has made"):
        wire(struct.pack(">BII", Packet.STATUS, 2, 0)).ask(Packet.MKDIR, b"/", 0)
    with pytest.raises(Nonsense, match="packet of type 101, expected HANDLE"):
        wire(fine).ask(Packet.OPEN, b"/", 1, 0, of=Packet.HANDLE)
    twice = wire(fine, fine)
    twice.ask(Packet.MKDIR, b"/", 0)
    with pytest.raises(Nonsense, match="request 1, which nobody has made"):
        twice.ask(Packet.MKDIR, b"/", 0)
    with pytest.raises(Nonsense, match="ends 1 bytes too early"):
        wire(fine[:8]).ask(Packet.MKDIR, b"/", 0)


def test_what_a_server_refuses_leaves_it_usable() -> None:
    no = struct.pack(">BIII", Packet.STATUS, 1, 4, 2) + b"\xffx"
    made = wire(no, struct.pack(">BII", Packet.STATUS, 2, 0))
    with pytest.raises(SftpRefused, match="x"):
        made.ask(Packet.MKDIR, b"/", 0)
    made.ask(Packet.MKDIR, b"/", 0)
    assert Answer(b"\0\0\0\1y").string() == b"y"
