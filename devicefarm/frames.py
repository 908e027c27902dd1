"""Frames of the runner's protocol <-> bytes; malformed, truncated and oversized input raises an error.

The layout stands at the head of targets/runtime/runner_frames.h, which this file mirrors.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from smelt.devicefarm.budget import infra

MAGIC = 0x544C4D53  # "SMLT", little endian
VERSION = 3
MAX_PAYLOAD = 16 << 20
CHUNK = 1 << 20
HEADER = struct.Struct("<IBBHQQI")
CRC = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CRC.size


class FrameType(IntEnum):
    """What a frame is; requests of the host and answers of the runner share the numbers."""

    HELLO = 1
    LOAD = 2
    SETIN = 3
    DATA = 4
    RUN = 5
    SAMPLES = 6
    GETOUT = 7
    OUT = 8
    STAGE = 9
    LOG = 10
    CRASH = 11
    STATS = 12
    END = 13
    CANCEL = 14
    RESET = 15
    QUIT = 16
    STATE = 17
    ENTRY = 18
    PING = 19
    CONTROL = 20
    PROBE = 21


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. job: the number of the request that it belongs to; fence: the sender's fencing token (a
    runner refuses one below the highest that it has seen)."""

    type: FrameType
    payload: bytes = b""
    job: int = 0
    fence: int = 0


def encode(frame: Frame) -> bytes:
    """The frame's bytes; SmeltError(kind='infra') when the payload is longer than 16 MiB."""
    if len(frame.payload) > MAX_PAYLOAD:
        raise infra(f"a frame of {len(frame.payload)} bytes is longer than the limit {MAX_PAYLOAD}")
    head = HEADER.pack(MAGIC, VERSION, frame.type, 0, frame.job, frame.fence, len(frame.payload))
    return b"".join(
        (head, CRC.pack(zlib.crc32(head)), frame.payload, CRC.pack(zlib.crc32(frame.payload)))
    )


def decode_header(head: bytes) -> tuple[FrameType, int, int, int]:
    """(type, job, fence, payload length) of a whole header; SmeltError(kind='infra') when it is not one."""
    assert len(head) == HEADER_BYTES
    magic, version, kind, _flags, job, fence, length = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise infra(
            f"expected a frame of the runner, got {head[:16]!r}",
            hint="something else writes to the channel: a login banner, or a program that is no runner",
        )
    if zlib.crc32(head[: HEADER.size]) != CRC.unpack_from(head, HEADER.size)[0]:
        raise infra("the checksum of a frame header differs", hint="the link corrupts data")
    if version != VERSION:
        raise infra(
            f"the runner speaks protocol {version}, this side {VERSION}",
            hint="build the bundle again with this version of smelt",
        )
    if kind not in FrameType._value2member_map_:
        raise infra(f"frame type {kind} is unknown")
    if length > MAX_PAYLOAD:
        raise infra(f"a frame claims {length} bytes, the limit is {MAX_PAYLOAD}")
    return FrameType(kind), job, fence, length


class Decoder:
    """Bytes in any pieces -> whole frames. It holds at most one frame's bytes plus the last piece fed."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame that is complete with `data`; SmeltError(kind='infra') on a broken stream."""
        self._pending += data
        while (frame := self._next()) is not None:
            yield frame

    def finish(self) -> None:
        """Note the end of the stream. Raises SmeltError(kind='infra') if that is in the middle of a frame."""
        if self._pending:
            raise infra(f"the stream ended {len(self._pending)} bytes into a frame")

    def _next(self) -> Frame | None:
        if len(self._pending) < HEADER_BYTES:
            # say at once that this is no runner: a banner may be shorter than a header
            if self._pending and not MAGIC.to_bytes(4, "little").startswith(self._pending[:4]):
                raise infra(f"expected a frame of the runner, got {bytes(self._pending[:64])!r}")
            return None
        kind, job, fence, length = decode_header(bytes(self._pending[:HEADER_BYTES]))
        total = HEADER_BYTES + length + CRC.size
        if len(self._pending) < total:
            return None
        with memoryview(self._pending) as view:  # a slice of the bytearray would be a second copy
            payload = bytes(view[HEADER_BYTES : HEADER_BYTES + length])
        crc = CRC.unpack_from(self._pending, HEADER_BYTES + length)[0]
        del self._pending[:total]
        if zlib.crc32(payload) != crc:
            raise infra(
                f"the checksum of a {kind.name} frame differs", hint="the link corrupts data"
            )
        return Frame(kind, payload, job, fence)
