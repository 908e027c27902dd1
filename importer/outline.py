"""A large model file in; its protobuf message without the large weights out, which are mapped from the file.

Parsing copies every byte of a message. A weight of 64 KB or more therefore becomes a reference to its span of
the very file, as if the model had been saved with external data: in all graphs, and where nodes hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LARGE = 1 << 16
"""Least bytes of a weight that is replaced by a reference."""

WORTH_REPLACING = 8 << 20
"""Least bytes of a file whose weights are replaced."""

READ_WINDOW = 1 << 12
"""Bytes that are read at once: the headers of several fields."""

# message -> number of a field -> the message in it: the ways from a model to its weights
INSIDE = {
    "Model": {7: "Graph"},
    "Graph": {1: "Node", 5: "Tensor"},
    "Node": {5: "Attribute"},
    "Attribute": {6: "Graph", 11: "Graph"},
    "Constant": {5: "Value"},
    "Value": {5: "Tensor"},
}
OP_TYPE = 4  # of a node; tensors in attributes of other nodes than Constant are small by their meaning
RAW_DATA, EXTERNAL_DATA, DATA_LOCATION = 9, 13, 14
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5


DEEPEST_MESSAGE = 200
"""Deepest nesting of messages; protobuf's parser accepts 100."""


class _Broken(Exception):
    """The bytes are no protobuf message; protobuf's parser will report the error."""


def outline(path: Path) -> bytes | None:
    """The message of a large file with references in place of large weights; None when the file is small or
    not a valid message."""
    if path.stat().st_size < WORTH_REPLACING:
        return None
    with path.open("rb") as f:
        try:
            return _Outliner(_Bytes(f), path.name).message("Model", 0, path.stat().st_size)
        except _Broken:
            return None


class _Bytes:
    """Random access to a file's bytes; single bytes are read with a window around them. (A mapping, with what
    the system reads ahead, would count as memory of the process.)"""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.start, self.window = 0, b""

    def __getitem__(self, at: int) -> int:
        if not 0 <= at - self.start < len(self.window):
            self.start, self.window = at, self.span(at, at + READ_WINDOW)
            if not self.window:
                raise _Broken
        return self.window[at - self.start]

    def span(self, start: int, end: int) -> bytes:
        """The bytes from start to end, fewer at the end of the file."""
        if self.start <= start and end <= self.start + len(self.window):
            return self.window[start - self.start : end - self.start]
        self.file.seek(start)
        return self.file.read(end - start)


class _Outliner:
    """Walks one file. name: what references call it."""

    def __init__(self, data: _Bytes, name: str) -> None:
        self.data = data
        self.name = name

    def message(self, kind: str, start: int, end: int, depth: int = 0) -> bytes:
        """A message of this kind, its large weights replaced."""
        if end - start < LARGE or depth > DEEPEST_MESSAGE:
            return self.data.span(start, end)
        if kind == "Tensor":
            return self._tensor(start, end)
        fields = list(self._fields(start, end))
        if kind == "Node":
            names = [self.data.span(first, last) for n, _, _, first, last in fields if n == OP_TYPE]
            kind = "Constant" if b"Constant" in names else kind
        parts = []
        for number, wire, at, first, last in fields:
            inner = INSIDE[kind].get(number)
            if inner is None or wire != LENGTH_DELIMITED:
                parts.append(self.data.span(at, last))
                continue
            body = self.message(inner, first, last, depth + 1)
            parts += [_tag(number, LENGTH_DELIMITED), _varint(len(body)), body]
        return b"".join(parts)

    def _tensor(self, start: int, end: int) -> bytes:
        """A tensor whose large raw data is a reference."""
        fields = list(self._fields(start, end))
        of_raw = (RAW_DATA, LENGTH_DELIMITED)
        raw = [(first, last) for n, kind, _, first, last in fields if (n, kind) == of_raw]
        plain = not any(n in (EXTERNAL_DATA, DATA_LOCATION) for n, *_ in fields)
        if not plain or len(raw) != 1 or raw[0][1] - raw[0][0] < LARGE:
            return self.data.span(start, end)
        first, last = raw[0]
        parts = [self.data.span(at, stop) for n, _, at, _, stop in fields if n != RAW_DATA]
        for key, value in (("location", self.name), ("offset", str(first)), ("length", str(last - first))):
            entry = b"".join(
                _tag(n, LENGTH_DELIMITED) + _varint(len(text)) + text
                for n, text in ((1, key.encode()), (2, value.encode()))
            )
            parts += [_tag(EXTERNAL_DATA, LENGTH_DELIMITED), _varint(len(entry)), entry]
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
            elif kind == LENGTH_DELIMITED:
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
