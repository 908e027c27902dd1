"""Bytes of an ELF file in, its symbols out, or the file with others; little-endian, 32 and 64 bit."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from smelt.core.diag import SmeltError

_SHT_SYMTAB, _SHT_NOBITS, _SHT_DYNSYM = 2, 8, 11
_PT_LOAD, _FUNCTION, _EM_ARM = 1, 2, 40
LOCAL = 0  # a symbol that only its own object file sees
_UNDEFINED, _HIDDEN = 0, 2


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int
    info: int
    entry: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """struct formats of a file's tables. order: where name, info and section index stand in a symbol."""

    header: str
    section: str
    symbol: str
    order: tuple[int, int, int]


_LAYOUTS = {
    1: _Layout("<HHIIIIIHHHHHH", "<IIIIIIIIII", "<IIIBBH", (0, 3, 5)),  # 32 bits
    2: _Layout("<HHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IBBHQQ", (0, 1, 3)),  # 64 bits
}


class ElfFile:
    """The header (its fields after e_ident, in order) and the tables of one file."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 52 or data[:4] != b"\x7fELF" or data[4] not in _LAYOUTS or data[5] != 1:
            raise SmeltError("not a little-endian ELF file", kind="invalid")
        self.data = data
        self.bits = 32 * data[4]
        self.layout = _LAYOUTS[data[4]]
        self.header = struct.unpack_from(self.layout.header, data, 16)
        self.section_at = self.header[5]
        self.section_entry, self.section_count = self.header[10:12]

    @cached_property
    def sections(self) -> list[_Section]:
        """All of them, by number."""
        form, at = struct.Struct(self.layout.section), self.section_at
        rows = [form.unpack_from(self.data, at + i * self.section_entry) for i in range(self.section_count)]
        return [_Section(f[1], f[4], f[5], f[6], f[7], f[9]) for f in rows]

    def symbols(self, kind: int, local: bool = True) -> Iterator[tuple[int, str, int, bool]]:
        """(file offset of the entry, name, binding, defined) of each symbol of a table, where local ones come
        first."""
        form, (name, info, section) = struct.Struct(self.layout.symbol), self.layout.order
        for table in (s for s in self.sections if s.kind == kind):
            strings = self.sections[table.link].offset
            first = table.offset + (0 if local else table.info * table.entry)
            for at in range(first, table.offset + table.size, table.entry):
                f = form.unpack_from(self.data, at)
                yield at, self.text(strings + f[name]), f[info] >> 4, f[section] != _UNDEFINED

    def segments(self) -> tuple[tuple[int, int, int], ...]:
        """(address, place in the file, bytes in the file) of each part that is loaded."""
        at, size, count = self.header[4], self.header[8], self.header[9]
        form, place, address, length = ("<IIQQQQQQ", 2, 3, 5) if self.bits == 64 else ("<8I", 1, 2, 4)
        rows = [struct.unpack_from(form, self.data, at + n * size) for n in range(count)]
        return tuple((r[address], r[place], r[length]) for r in rows if r[0] == _PT_LOAD)

    def text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode("utf-8", "replace")


def symbol_sizes(data: bytes) -> tuple[tuple[str, int], ...]:
    """(name, bytes in the file) of every symbol that has some, from the full symbol table if there is one.

    Raises SmeltError(kind='invalid') when data is not an ELF file.
    """
    file = ElfFile(data)
    sections = file.sections
    size_at, section_at = 5 if file.bits == 64 else 2, file.layout.order[2]
    kind = _SHT_SYMTAB if any(s.kind == _SHT_SYMTAB for s in sections) else _SHT_DYNSYM
    rows = []
    for at, name, _, _ in file.symbols(kind):
        fields = struct.unpack_from(file.layout.symbol, data, at)
        section, size = fields[section_at], int(fields[size_at])
        if size and 0 < section < len(sections) and sections[section].kind != _SHT_NOBITS:
            rows.append((name, size))
    return tuple(rows)


@dataclass(frozen=True)
class MachineCode:
    """The functions of a library or program. starts: their addresses, in order; ends, names: of the same.
    data: the file; segments: (address, place in the file, bytes) of what is loaded; machine: of the
    header."""

    data: bytes
    machine: int
    segments: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    names: tuple[str, ...]

    def function_at(self, offset: int) -> str:
        """The function at a position that counts from where the file begins in memory; '' for none."""
        at = self.base + offset
        n = bisect_right(self.starts, at) - 1
        return self.names[n] if n >= 0 and at < self.ends[n] else ""

    def follows_call(self, offset: int) -> bool:
        """Whether a call ends right before the position, so that it can be a return address; True where the
        processor's calls are not known here."""
        end = self.place(self.base + offset)
        return end is None or self.machine not in _CALLS or _CALLS[self.machine](self.data[end - 8 : end])

    @property
    def base(self) -> int:
        """The address where the file begins in memory, as it was linked: 0 of a library."""
        return min((address - place for address, place, _ in self.segments), default=0)

    def place(self, address: int) -> int | None:
        """Where in the file an address lies."""
        found = ((a, p) for a, p, size in self.segments if a <= address < a + size)
        return next((p + address - a for a, p in found), None)


def _x86_call(code: bytes) -> bool:
    """call rel32, or call of a register or of memory, whose length is 2 to 7."""
    if code[-5:-4] == b"\xe8":
        return True
    return any(code[-n] == 0xFF and code[1 - n] & 0x38 == 0x10 for n in range(2, 8) if n <= len(code))


def _arm64_call(code: bytes) -> bool:
    """bl, or blr of a register."""
    word = int.from_bytes(code[-4:], "little")
    return word & 0xFC000000 == 0x94000000 or word & 0xFFFFFC1F == 0xD63F0000


_CALLS: Mapping[int, Callable[[bytes], bool]] = {62: _x86_call, 183: _arm64_call}  # EM_X86_64, EM_AARCH64


def code_of(data: bytes) -> MachineCode:
    """The functions of a linked file. Raises SmeltError(kind='invalid') when it is no ELF file."""
    file = ElfFile(data)
    value_at, size_at = (4, 5) if file.bits == 64 else (1, 2)
    info_at = file.layout.order[1]
    rows = set()
    for at, name, _, defined in file.symbols(_SHT_SYMTAB):
        fields = struct.unpack_from(file.layout.symbol, data, at)
        if defined and fields[info_at] & 15 == _FUNCTION and fields[size_at]:
            start = fields[value_at] & ~1 if file.header[1] == _EM_ARM else fields[value_at]  # Thumb's mark
            rows.add((start, start + fields[size_at], name))
    starts, ends, names = zip(*sorted(rows), strict=True) if rows else ((), (), ())
    return MachineCode(data, file.header[1], file.segments(), starts, ends, names)


class ObjectFile:
    """An object file whose symbols can be renamed. shared: (file offset of the entry, name, defined here) of
    each symbol that other files see."""

    def __init__(self, data: bytes) -> None:
        self.file = ElfFile(data)
        found = self.file.symbols(_SHT_SYMTAB, local=False)
        self.shared = tuple((at, name, defined) for at, name, _, defined in found)

    @cached_property
    def defined(self) -> frozenset[str]:
        """The names that it has for others."""
        return frozenset(name for _, name, defined in self.shared if defined)

    def renamed(self, names: Mapping[str, str], hidden: frozenset[str] = frozenset()) -> bytes:
        """The same file in which each shared symbol of `names`, defined here or elsewhere, has its new name.
        hidden: new names that only the program or library sees that the object is linked into.

        A symbol's name is an offset into a string table; the new table is the old one with the new names
        after it, at the end of the file, so that every other offset stays true.
        """
        left = [names.get(name, name) for _, name, defined in self.shared if defined]
        assert len(left) == len(set(left)), "two symbols got one name"
        file, wide = self.file, self.file.bits == 64
        table = next((s.link for s in file.sections if s.kind == _SHT_SYMTAB), None)
        if table is None:
            return file.data
        strings, out, at_name = file.sections[table], bytearray(file.data), {}
        text = bytearray(file.data[strings.offset : strings.offset + strings.size])
        for at, name, _ in self.shared:
            new = names.get(name)
            if new is None:
                continue
            if new not in at_name:
                at_name[new] = len(text)
                text += new.encode() + b"\0"
            struct.pack_into("<I", out, at, at_name[new])
            if new in hidden:
                other = at + (5 if wide else 13)
                out[other] = out[other] & ~3 | _HIDDEN
        place = file.section_at + table * file.section_entry + (24 if wide else 16)
        struct.pack_into("<QQ" if wide else "<II", out, place, len(out), len(text))
        return bytes(out + text)
