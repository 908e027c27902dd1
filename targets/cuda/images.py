"""Images of kernels in, one piece of bytes out, of which the driver loads those that fit its device.

A header of 16 bytes: "SMELTCU1", the number of batches and of images, u32 each. Then a row of 32 bytes for
each image: its batch, its kind (1 PTX, 2 cubin) and its architecture (87 for sm_87), u32 each, 4 bytes of 0,
the offset from the start and the length, u64 each. Then the images, on 16 bytes each; PTX ends with a 0 that
counts. A driver needs one image of each batch. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

IMAGES_MAGIC = b"SMELTCU1"
PTX, CUBIN = 1, 2
_HEADER, _ROW = struct.Struct("<8sII"), struct.Struct("<IIIIQQ")


@dataclass(frozen=True, slots=True)
class Image:
    """The kernels of a batch for an architecture. kind: PTX or CUBIN."""

    batch: int
    kind: int
    architecture: str
    content: bytes


def packed(images: Sequence[Image]) -> bytes:
    """All of them, in order."""
    rows, parts = [], []
    at = _aligned(_HEADER.size + _ROW.size * len(images))
    for image in images:
        content = image.content + (b"\0" if image.kind == PTX else b"")
        number = int(image.architecture.removeprefix("sm_"))
        rows.append(_ROW.pack(image.batch, image.kind, number, 0, at, len(content)))
        parts.append(content.ljust(_aligned(len(content)), b"\0"))
        at += len(parts[-1])
    batches = 1 + max((i.batch for i in images), default=-1)
    head = _HEADER.pack(IMAGES_MAGIC, batches, len(images)) + b"".join(rows)
    return head.ljust(_aligned(len(head)), b"\0") + b"".join(parts)


def _aligned(n: int) -> int:
    return (n + 15) // 16 * 16
