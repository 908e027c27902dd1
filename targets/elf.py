"""Bytes of an ELF file in, what a linker and a loader see in it out; little-endian, 32 and 64 bit."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from smelt.core.diag import SmeltError

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_GNU_STACK, _PT_GNU_RELRO = 1, 2, 3, 0x6474E551, 0x6474E552
_SHT_SYMTAB, _SHT_NOBITS, _SHT_DYNSYM = 2, 8, 11
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_TEXTREL, _DT_FLAGS, _DT_FLAGS_1 = 1, 5, 14, 22, 30, 0x6FFFFFFB
_VERSIONED = (0x6FFFFFFE, 0x6FFFFFFF, 0x6FFFFFF0)  # DT_VERNEED, DT_VERNEEDNUM, DT_VERSYM
_LOCAL, _UNDEFINED, _HIDDEN = 0, 0, 2


@dataclass(frozen=True, slots=True)
class Elf:
    """machine: e_machine. kind: 1 relocatable, 2 executable, 3 shared (or PIE). needed, soname,
    interpreter: as the dynamic section says. exports, imports: global names of the dynamic symbol
    table. page: the least alignment of a loaded segment, 0 when none is loaded."""

    bits: int
    machine: int
    kind: int
    needed: tuple[str, ...] = ()
    soname: str | None = None
    interpreter: str | None = None
    exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    page: int = 0
    binds_now: bool = False
    relro: bool = False
    executable_stack: bool = False
    text_relocations: bool = False
    versioned: bool = False


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int
    entry: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """struct formats of the tables, by word size; st: (name, info, shndx) places in a symbol."""

    header: str
    program: str
    section: str
    symbol: str
    word: str
    order: tuple[int, int, int]


_LAYOUTS = {
    1: _Layout("<HHIIIIIHHHHHH", "<IIIIIIII", "<IIIIIIIIII", "<IIIBBH", "<ii", (0, 3, 5)),
    2: _Layout("<HHIQQQIHHHHHH", "<IIQQQQQQ", "<IIQQQQIIQQ", "<IBBHQQ", "<qQ", (0, 1, 3)),
}


class _File:
    """The header and tables of one file."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 52 or data[:4] != b"\x7fELF" or data[4] not in _LAYOUTS or data[5] != 1:
            raise SmeltError("not a little-endian ELF file", kind="invalid")
        self.data = data
        self.bits = 32 * data[4]
        self.layout = _LAYOUTS[data[4]]
        head = struct.unpack_from(self.layout.header, data, 16)
        self.kind, self.machine = head[0], head[1]
        self.program_at, self.section_at = head[4], head[5]
        self.program_entry, self.programs, self.section_entry, self.section_count = head[8:12]

    def segments(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(type, flags, offset, address, file size, alignment)"""
        for i in range(self.programs):
            at = self.program_at + i * self.program_entry
            f = struct.unpack_from(self.layout.program, self.data, at)
            if self.bits == 32:
                yield f[0], f[6], f[1], f[2], f[4], f[7]
            else:
                yield f[0], f[1], f[2], f[3], f[5], f[7]

    @cached_property
    def sections(self) -> list[_Section]:
        """All of them, by number."""
        rows = []
        for i in range(self.section_count):
            at = self.section_at + i * self.section_entry
            f = struct.unpack_from(self.layout.section, self.data, at)
            rows.append(_Section(kind=f[1], offset=f[4], size=f[5], link=f[6], info=f[7], entry=f[9]))
        return rows

    def symbols(self, kind: int, local: bool = True) -> Iterator[tuple[int, str, int, bool]]:
        """(file offset of the entry, name, binding, defined) of each symbol of a table, where local ones come
        first."""
        sections = self.sections
        for table in (s for s in sections if s.kind == kind):
            strings = sections[table.link]
            first = table.offset + (0 if local else table.info * table.entry)
            for at in range(first, table.offset + table.size, table.entry):
                fields = struct.unpack_from(self.layout.symbol, self.data, at)
                name, info, section = (fields[i] for i in self.layout.order)
                yield at, self.text(strings.offset + name), info >> 4, section != _UNDEFINED

    def text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode("utf-8", "replace")

    def dynamic(self) -> list[tuple[int, int]]:
        found = next(((s[2], s[4]) for s in self.segments() if s[0] == _PT_DYNAMIC), (0, 0))
        size = struct.calcsize(self.layout.word)
        rows = []
        for at in range(found[0], found[0] + found[1], size):
            tag, value = struct.unpack_from(self.layout.word, self.data, at)
            rows.append((tag, value))
            if tag == 0:
                break
        return rows

    def offset(self, address: int) -> int:
        """File offset of a loaded address."""
        for kind, _, offset, start, size, _ in self.segments():
            if kind == _PT_LOAD and start <= address < start + size:
                return int(offset + address - start)
        raise SmeltError(f"address {address:#x} is in no loaded segment", kind="invalid")


def read_elf(data: bytes) -> Elf:
    """Raises SmeltError(kind='invalid') when data is not an ELF file or is cut short."""
    try:
        return _read(_File(data))
    except (struct.error, ValueError, IndexError) as error:
        raise SmeltError(f"broken ELF file: {error}", kind="invalid") from error


def _read(file: _File) -> Elf:
    segments = list(file.segments())
    dynamic = file.dynamic()
    tags = dict(dynamic)
    strings = file.offset(tags[_DT_STRTAB]) if _DT_STRTAB in tags else 0
    interp = next((s[2] for s in segments if s[0] == _PT_INTERP), None)
    symbols = [s for s in file.symbols(_SHT_DYNSYM) if s[1] and s[2] != _LOCAL]
    return Elf(
        bits=file.bits,
        machine=file.machine,
        kind=file.kind,
        needed=tuple(file.text(strings + v) for t, v in dynamic if t == _DT_NEEDED),
        soname=file.text(strings + tags[_DT_SONAME]) if _DT_SONAME in tags else None,
        interpreter=None if interp is None else file.text(interp),
        exports=tuple(sorted(name for _, name, _, defined in symbols if defined)),
        imports=tuple(sorted(name for _, name, _, defined in symbols if not defined)),
        page=min((s[5] for s in segments if s[0] == _PT_LOAD), default=0),
        binds_now=bool(tags.get(_DT_FLAGS, 0) & 8 or tags.get(_DT_FLAGS_1, 0) & 1),
        relro=any(s[0] == _PT_GNU_RELRO for s in segments),
        executable_stack=any(s[0] == _PT_GNU_STACK and s[1] & 1 for s in segments),
        text_relocations=_DT_TEXTREL in tags or bool(tags.get(_DT_FLAGS, 0) & 4),
        versioned=any(tag & 0xFFFFFFFF in _VERSIONED for tag in tags),
    )


def symbol_sizes(data: bytes) -> tuple[tuple[str, int], ...]:
    """(name, bytes in the file) of every symbol that has some, from the full symbol table if there is one.

    Raises SmeltError(kind='invalid') when data is not an ELF file.
    """
    file = _File(data)
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


def global_symbols(data: bytes) -> frozenset[str]:
    """Names that an object file defines for others."""
    symbols = _File(data).symbols(_SHT_SYMTAB, local=False)
    return frozenset(name for _, name, _, defined in symbols if defined)


def rename_symbols(data: bytes, names: Mapping[str, str], hidden: frozenset[str] = frozenset()) -> bytes:
    """The same object file in which each global symbol of `names`, defined here or elsewhere, has its new
    name. hidden: new names that only the program or library sees that the object is linked into.

    A symbol's name is an offset into a string table; the new table is the old one with the new names after
    it, at the end of the file, so that every other offset stays true.
    """
    file = _File(data)
    out, at_name = bytearray(data), {}
    word, other_at = struct.Struct("<I"), 5 if file.bits == 64 else 13
    for table in (s for s in file.sections if s.kind == _SHT_SYMTAB):
        strings = file.sections[table.link]
        text = bytearray(data[strings.offset : strings.offset + strings.size])
        for at, name, _, _ in file.symbols(_SHT_SYMTAB, local=False):
            if name not in names:
                continue
            new = names[name]
            if new not in at_name:
                at_name[new] = len(text)
                text += new.encode() + b"\0"
            word.pack_into(out, at, at_name[new])
            if new in hidden:
                out[at + other_at] = out[at + other_at] & ~3 | _HIDDEN
        size = struct.Struct("<II" if file.bits == 32 else "<QQ")
        header = file.section_at + table.link * file.section_entry
        size.pack_into(out, header + (16 if file.bits == 32 else 24), len(out), len(text))
        out += text
    made = bytes(out)
    left = [n for _, n, _, defined in _File(made).symbols(_SHT_SYMTAB, local=False) if defined]
    assert len(left) == len(set(left)), "two symbols got one name"
    return made
