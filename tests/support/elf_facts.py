"""Bytes of an ELF file in, what a loader sees in it out; and what is wrong with it for a platform."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.targets.elf import LOCAL, ElfFile
from smelt.targets.platform import Platform
from smelt.targets.stubs import libraries

LOAD, DYNAMIC, INTERP, GNU_STACK, GNU_RELRO = 1, 2, 3, 0x6474E551, 0x6474E552  # PT_*
DYNSYM = 11  # SHT_*
NEEDED, STRTAB, SONAME, TEXTREL, FLAGS, FLAGS_1 = 1, 5, 14, 22, 30, 0x6FFFFFFB  # DT_*
VERSIONED = (0x6FFFFFFE, 0x6FFFFFFF, 0x6FFFFFF0)  # DT_VERNEED, DT_VERNEEDNUM, DT_VERSYM
PROGRAM = {32: "<IIIIIIII", 64: "<IIQQQQQQ"}
DYNAMIC_ROW = {32: "<ii", 64: "<qQ"}


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
class Segment:
    """A row of the program header table."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int
    alignment: int


def segments(file: ElfFile) -> list[Segment]:
    """The rows of the program header table."""
    entry, count = file.header[8:10]
    rows = []
    for i in range(count):
        f = struct.unpack_from(PROGRAM[file.bits], file.data, file.header[4] + i * entry)
        # the flags stand second in files of 64 bits, second last in those of 32
        kind, *rest = f if file.bits == 64 else (f[0], f[6], *f[1:6], f[7])
        flags, offset, address, _, size, _, alignment = rest
        rows.append(Segment(kind, flags, offset, address, size, alignment))
    return rows


def dynamic(file: ElfFile) -> list[tuple[int, int]]:
    """(tag, value) of each row of the dynamic section."""
    found = next((s for s in segments(file) if s.kind == DYNAMIC), None)
    if found is None:
        return []
    part = file.data[found.offset : found.offset + found.size]
    rows = list(struct.iter_unpack(DYNAMIC_ROW[file.bits], part))
    ends = [i for i, (tag, _) in enumerate(rows) if tag == 0]
    return rows[: ends[0] + 1] if ends else rows


def place(file: ElfFile, address: int) -> int:
    """File offset of a loaded address."""
    for s in segments(file):
        if s.kind == LOAD and s.address <= address < s.address + s.size:
            return s.offset + address - s.address
    raise SmeltError(f"address {address:#x} is in no loaded segment", kind="invalid")


def read_elf(data: bytes) -> Elf:
    """Raises SmeltError(kind='invalid') when data is not an ELF file or is cut short."""
    try:
        return _read(ElfFile(data))
    except (struct.error, ValueError, IndexError) as error:
        raise SmeltError(f"broken ELF file: {error}", kind="invalid") from error


def _read(file: ElfFile) -> Elf:
    found, rows = segments(file), dynamic(file)
    tags = dict(rows)
    strings = place(file, tags[STRTAB]) if STRTAB in tags else 0
    interp = next((s.offset for s in found if s.kind == INTERP), None)
    symbols = [s for s in file.symbols(DYNSYM) if s[1] and s[2] != LOCAL]
    return Elf(
        bits=file.bits,
        machine=file.header[1],
        kind=file.header[0],
        needed=tuple(file.text(strings + v) for t, v in rows if t == NEEDED),
        soname=file.text(strings + tags[SONAME]) if SONAME in tags else None,
        interpreter=None if interp is None else file.text(interp),
        exports=tuple(sorted(name for _, name, _, defined in symbols if defined)),
        imports=tuple(sorted(name for _, name, _, defined in symbols if not defined)),
        page=min((s.alignment for s in found if s.kind == LOAD), default=0),
        binds_now=bool(tags.get(FLAGS, 0) & 8 or tags.get(FLAGS_1, 0) & 1),
        relro=any(s.kind == GNU_RELRO for s in found),
        executable_stack=any(s.kind == GNU_STACK and s.flags & 1 for s in found),
        text_relocations=TEXTREL in tags or bool(tags.get(FLAGS, 0) & 4),
        versioned=any(tag & 0xFFFFFFFF in VERSIONED for tag in tags),
    )


def check_elf(path: Path, platform: Platform) -> Elf:
    """Read a library or program and hold it against its platform.

    Raises SmeltError(kind='internal') listing all that is wrong: another machine, libraries other
    than libc's, too small an alignment for the platform's pages, an executable stack, text
    relocations, symbol versions, another dynamic linker.
    """
    elf = read_elf(path.read_bytes())
    allowed = libraries(platform)
    findings = {
        f"machine {elf.machine}, wanted {platform.machine}": elf.machine != platform.machine,
        f"{elf.bits} bit, wanted {platform.bits}": elf.bits != platform.bits,
        f"needs {', '.join(elf.needed)}, allowed {', '.join(allowed)}": set(elf.needed) - set(allowed),
        f"segments aligned to {elf.page}, wanted {platform.page}": elf.needed and elf.page < platform.page,
        "an executable stack": elf.executable_stack,
        "text relocations": elf.text_relocations,
        "symbol versions": elf.versioned,
        f"dynamic linker {elf.interpreter}, wanted {platform.loader}": elf.interpreter
        and elf.interpreter != platform.loader,
    }
    wrong = [text for text, found in findings.items() if found]
    if wrong:
        raise SmeltError(f"{path.name} for {platform.name}: {'; '.join(wrong)}", kind="internal")
    return elf
