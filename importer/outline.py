"""A large model file in; its protobuf message without the large weights out, which are mapped from the file.

Parsing copies every byte of a message. A weight of a megabyte or more therefore becomes a reference to its
span of the very file, as if the model had been saved with external data.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

LARGE = 1 << 20
"""Bytes of a weight from which it is referred to; files of fewer than eight times as many are read whole."""

# field numbers: ModelProto.graph, GraphProto.initializer, and those of TensorProto
GRAPH, INITIALIZER = 7, 5
RAW_DATA, EXTERNAL_DATA, DATA_LOCATION = 9, 13, 14
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class _Broken(Exception):
    """The bytes are no protobuf message; the real parser will say what is wrong."""


def outline(path: Path) -> bytes | None:
    """The message of a large file with references in place of large weights; None when there is nothing to
    gain or the file is not what it seems."""
    if path.stat().st_size < 8 * LARGE or path.is_symlink():  # references may not leave the folder
        return None
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Outliner(data, path.name).model()
        except _Broken:
            return None


class _Outliner:
    """Walks one mapped file. name: what references call it."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data = data
        self.name = name

    def model(self) -> bytes:
        return self._rewritten(0, len(self.data), GRAPH, self._graph)

    def _graph(self, start: int, end: int) -> bytes:
        return self._rewritten(start, end, INITIALIZER, self._tensor)

    def _rewritten(self, start: int, end: int, field: int, inner: Callable[[int, int], bytes]) -> bytes:
        """The message with every occurrence of one message field replaced by inner(its span)."""
        parts = []
        for number, kind, at, first, last in self._fields(start, end):
            if number == field and kind == BYTES:
                body = inner(first, last)
                parts += [_tag(number, BYTES), _varint(len(body)), body]
            else:
                parts.append(self.data[at:last])
        return b"".join(parts)

    def _tensor(self, start: int, end: int) -> bytes:
        """A tensor whose large raw data is a reference."""
        if end - start < LARGE:
            return self.data[start:end]
        fields = list(self._fields(start, end))
        raw = [(first, last) for n, kind, _, first, last in fields if n == RAW_DATA and kind == BYTES]
        plain = not any(n in (EXTERNAL_DATA, DATA_LOCATION) for n, *_ in fields)
        if not plain or len(raw) != 1 or raw[0][1] - raw[0][0] < LARGE:
            return self.data[start:end]
        first, last = raw[0]
        parts = [self.data[at:stop] for n, _, at, _, stop in fields if n != RAW_DATA]
        for key, value in (("location", self.name), ("offset", str(first)), ("length", str(last - first))):
            entry = b"".join(
                _tag(n, BYTES) + _varint(len(text)) + text
                for n, text in ((1, key.encode()), (2, value.encode()))
            )
            parts += [_tag(EXTERNAL_DATA, BYTES), _varint(len(entry)), entry]
        parts += [_tag(DATA_LOCATION, VARINT), _varint(1)]
        return b"".join(parts)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(number, wire type, start with the tag, start of the content, end) of each field."""
        at = start
        while at < end:
            tag, first = self._read_varint(at, end)
            number, kind = tag >> 3, tag & 7
            if kind == VARINT:
                _, last = self._read_varint(first, end)
            elif kind == BYTES:
                length, first = self._read_varint(first, end)
                last = first + length
            elif kind in (FIXED32, FIXED64):
                last = first + (4 if kind == FIXED32 else 8)
            else:
                raise _Broken
            if last > end:
                raise _Broken
            yield number, kind, at, first, last
            at = last

    def _read_varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for k in range(10):
            if at + k >= end:
                break
            byte = self.data[at + k]
            value |= (byte & 127) << (7 * k)
            if byte < 128:
                return value, at + k + 1
        raise _Broken


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
