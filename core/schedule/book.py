"""The text of a file of schedules in, its entries out; and back, sorted, so that equal books have equal
texts.

    smelt schedules 1

    kernel 4e9e6f43ff9f98e5c78dbe172642e127 matmul_add
      machine x86_64-linux:znver4 avx512 3b1f00d2 threads default
      by tune
      against 0c9a11f4
      why tile 12x32, not 6x64
      at d0=8: 0.91
      schedule
        normalise
        pack x1 (1/32, 0, 1%32)

An entry is the answer to one question (question.py) on one machine; what follows the digest is a name for
people. docs/tune.md says what each line is for. Lines that begin with # belong to the entry after them, and
stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from smelt.core.diag import SmeltError

BOOK_HEAD = "smelt schedules 1"
ANY_MACHINE = "any"
"""The machine of an entry that holds for all of them."""
HAND, TUNE = "hand", "tune"
_KERNEL = re.compile(r"kernel ([0-9a-f]{32})(?: (.*))?")
_AT = re.compile(r"(\S.*): (\d+(?:\.\d+)?(?:e-?\d+)?)")
_AGAINST = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class BookEntry:
    """kernel: the digest of a question. name: what the kernel was called, for people. machine: whose answer
    it is. schedule: steps, separated by ';'. by: HAND or TUNE. against: of a tuned one, `mark` of the
    schedule that it was compared with. why: in what they differ. at: (the kernel's dims, ratio of the times
    there); empty: it was not measured. remarks: lines of comment above it."""

    kernel: str
    machine: str
    schedule: str
    name: str = ""
    by: str = HAND
    against: str = ""
    why: str = ""
    at: tuple[tuple[str, float], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """There is one entry of a key."""
        return self.kernel, self.machine, self.by


@dataclass(frozen=True)
class Book:
    """Entries, sorted, and what could not be read: a text for each such entry."""

    entries: tuple[BookEntry, ...] = ()
    faults: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, str, str], BookEntry]:
        return {e.key: e for e in self.entries}

    @cached_property
    def _machines(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for e in self.entries:
            found.setdefault(e.kernel, set()).add(e.machine)
        return {kernel: frozenset(machines) for kernel, machines in found.items()}

    def find(self, kernel: str, machine: str) -> BookEntry | None:
        """The entry for a kernel on a machine: what was written by hand goes before what was measured, an
        entry for the machine before one for any."""
        keys = ((kernel, m, by) for by in (HAND, TUNE) for m in (machine, ANY_MACHINE))
        return next((self._by_key[k] for k in keys if k in self._by_key), None)

    def machines(self, kernel: str) -> frozenset[str]:
        """For which machines there are entries."""
        return self._machines.get(kernel, frozenset())

    def with_entries(self, entries: Iterable[BookEntry]) -> Book:
        """The book with these in the place of those of the same key."""
        every = {**self._by_key, **{e.key: e for e in entries}}
        return Book(tuple(sorted(every.values(), key=lambda e: e.key)))


def mark(schedule: str) -> str:
    """Eight hex digits by which a tuned entry tells what it was compared with."""
    return hashlib.sha256(schedule.encode()).hexdigest()[:8]


def print_book(book: Book) -> str:
    """The text of a book; `parse_book` is the inverse."""
    return "\n\n".join((BOOK_HEAD, *("\n".join(_lines(e)) for e in book.entries))) + "\n"


def _lines(e: BookEntry) -> Iterator[str]:
    yield from e.remarks
    yield f"kernel {e.kernel} {e.name}".rstrip()
    for word, value in (("machine", e.machine), ("by", e.by), ("against", e.against), ("why", e.why)):
        if value:
            yield f"  {word} {value}"
    for sizes, ratio in e.at:
        yield f"  at {sizes}: {ratio:.4g}"
    yield "  schedule"
    yield from (f"    {step.strip()}" for step in e.schedule.split(";"))


def parse_book(text: str) -> Book:
    """The entries of a text. One that cannot be read is a fault, of which the book tells; what somebody wrote
    by hand is no accident, so there it is an error. Raises SmeltError(kind='invalid')."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != BOOK_HEAD:
        found = lines[0].strip()[:60] if lines else ""
        raise SmeltError(
            f"this is no file of schedules: its first line is '{found}', wanted '{BOOK_HEAD}'",
            hint="name a file that 'smelt tune -o FILE' has written",
        )
    entries: dict[tuple[str, str, str], BookEntry] = {}
    faults: list[str] = []
    for at, block in _blocks(lines[1:]):
        try:
            e = _entry(block)
            if e.key in entries:
                raise ValueError(f"there is another entry by {e.by} for this kernel and machine")
            entries[e.key] = e
        except ValueError as wrong:
            said = f"line {at}: {wrong}"
            if any(line.split() == ["by", HAND] for line in block):
                hint = "correct the entry, or delete it"
                raise SmeltError(f"schedules: an entry by hand, {said}", hint=hint) from None
            faults.append(said)
    return Book(tuple(sorted(entries.values(), key=lambda e: e.key)), tuple(faults))


def _blocks(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, lines) of each entry: comments right above it, and all up to the next
    one."""
    block: list[str] = []
    start, is_said = 2, False
    for number, line in enumerate(lines, 2):
        if is_said and line.startswith(("kernel", "#")):
            yield start, block
            block, is_said = [], False
        if line.strip():
            start = start if block else number
            block.append(line.rstrip())
            is_said = is_said or not line.startswith("#")
    if is_said:
        yield start, block


def _entry(block: list[str]) -> BookEntry:
    """The entry of a block. Raises ValueError with what is wrong."""
    count = next((i for i, line in enumerate(block) if not line.startswith("#")), 0)
    head = _KERNEL.fullmatch(block[count])
    if head is None:
        raise ValueError(f"'{block[count][:60]}' is not of the form: kernel DIGEST NAME")
    said: dict[str, str] = {}
    at: list[tuple[str, float]] = []
    body = block[count + 1 :]
    end = next((i for i, line in enumerate(body) if line.strip() == "schedule"), None)
    if end is None:
        raise ValueError(f"kernel {head[1]} has no line 'schedule'")
    for line in body[:end]:
        word, _, value = line.strip().partition(" ")
        if word == "at":
            sizes = _AT.fullmatch(value)
            if sizes is None:
                raise ValueError(f"'{line.strip()[:60]}' is not of the form: at DIM=SIZE: RATIO")
            at.append((sizes[1], float(sizes[2])))
        elif word in ("machine", "by", "against", "why") and value and word not in said:
            said[word] = value
        else:
            raise ValueError(f"'{line.strip()[:60]}' is no line of an entry, or comes twice")
    steps = [s.strip() for line in body[end + 1 :] for s in line.split(";") if s.strip()]
    if "machine" not in said or said.get("by") not in (HAND, TUNE) or not steps:
        raise ValueError(f"kernel {head[1]} lacks a machine, 'by {HAND}' or 'by {TUNE}', or steps")
    if said["by"] == TUNE and not (_AGAINST.fullmatch(said.get("against", "")) and at):
        raise ValueError(f"kernel {head[1]} lacks what it was compared with, or where")
    return BookEntry(
        head[1], said["machine"], "; ".join(steps), head[2] or "", said["by"], said.get("against", ""),
        said.get("why", ""), tuple(at), tuple(block[:count]),
    )  # fmt: skip
