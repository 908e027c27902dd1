"""A frame of the runner's protocol of which every part can be wrong -> its bytes; for both ends' attacks."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from smelt.devicefarm.frames import CRC, HEADER, MAGIC, VERSION


@dataclass
class Raw:
    """A frame as it is sent; None: what fits."""

    type: int
    payload: bytes
    job: int
    fence: int = 0
    magic: int = MAGIC
    version: int = VERSION
    flags: int = 0
    length: int | None = None
    head_crc: int | None = None
    crc: int | None = None

    def encode(self) -> bytes:
        length = len(self.payload) if self.length is None else self.length
        head = HEADER.pack(
            self.magic, self.version, self.type & 255, self.flags, self.job, self.fence, length
        )
        crcs = (
            zlib.crc32(data) if given is None else given
            for data, given in ((head, self.head_crc), (self.payload, self.crc))
        )
        return head + CRC.pack(next(crcs)) + self.payload + CRC.pack(next(crcs))
