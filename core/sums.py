"""A weights file in, the two sums by which a device sees cheaply whether it is whole: of all, and of samples.

A sum is Fletcher's over 32-bit words w[1..n], little-endian, with zeros up to a whole word: the sum of w[i]
and the sum of i*w[i], modulo 2**64. It finds every change of one or two words, others but for one in 2**64.
It guards against damage, not against an attacker: SHA-256 is there for that. runtime/weights.c has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

SUM_SAMPLES: Final = 64
SAMPLE_BYTES: Final = 4096
_CHUNK: Final = 1 << 20
_MASK: Final = (1 << 64) - 1

Sums = tuple[int, int, int, int]
"""The two halves of the sum of all bytes, and of that of the samples."""
NO_SUMS: Final[Sums] = (0, 0, 0, 0)


def weight_sums(path: Path, total: int) -> Sums:
    """The sums of the first `total` bytes of a file."""
    with path.open("rb") as f:
        samples = (p for at in sample_offsets(total) for p in _pieces(f, at, min(SAMPLE_BYTES, total - at)))
        return (*_sum(_pieces(f, 0, total)), *_sum(samples))


def sample_offsets(total: int) -> list[int]:
    """Where the samples start: blocks of a grid, the first and the last among them."""
    blocks = -(-total // SAMPLE_BYTES)
    places = range(SUM_SAMPLES if blocks else 0)
    return [i * (blocks - 1) // (SUM_SAMPLES - 1) * SAMPLE_BYTES for i in places]


def _pieces(f: BinaryIO, at: int, size: int) -> Iterator[bytes]:
    f.seek(at)
    for done in range(0, size, _CHUNK):
        yield f.read(min(_CHUNK, size - done))


def _sum(pieces: Iterable[bytes]) -> tuple[int, int]:
    """Each piece but the last of its run is whole words long."""
    first = second = count = 0
    index = np.arange(1, _CHUNK // 4 + 1, dtype=np.uint64)
    for raw in pieces:
        words = np.frombuffer(raw.ljust(-(-len(raw) // 4) * 4, b"\0"), "<u4").astype(np.uint64)
        own = int(words.sum())
        second += count * own + int((words * index[: words.size]).sum())
        first += own
        count += words.size
    return first & _MASK, second & _MASK
