"""A file of schedules and a new entry in; the file with the entry out, whole, whoever else writes to it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smelt.core.bundle import replace_file
from smelt.core.diag import SmeltError
from smelt.core.schedule.book import Book, BookEntry, parse_book, print_book
from smelt.core.turns import take_turn

ADD_LIMIT = 30.0
"""Seconds that others may take to add to a file in the same folder, which takes them milliseconds."""


def read_book(path: Path) -> Book:
    """The book in a file; an empty one where there is no file yet. Raises SmeltError for a file that is none,
    or cannot be read."""
    try:
        return parse_book(path.read_text("utf-8", "replace"))
    except FileNotFoundError:
        return Book()
    except OSError as e:
        raise SmeltError(f"cannot read '{path}': {e.strerror or e}", kind="infra") from None
    except SmeltError as e:
        raise SmeltError(f"'{path}': {e.message}", kind=e.kind, hint=e.hint) from None


def check_writable(path: Path) -> None:
    """Raises SmeltError where the folder takes no file of schedules: before they are measured, not after."""
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise _unwritable(path, e) from None


def _unwritable(path: Path, e: OSError) -> SmeltError:
    hint = "name another file with -o"
    return SmeltError(f"cannot write '{path}': {e.strerror or e}", kind="infra", hint=hint)


def add_entries(path: Path, *entries: BookEntry) -> Book:
    """Put entries into the file, beside what others have put there meanwhile; what is there now. Entries that
    cannot be read go. Raises SmeltError as `read_book`, where the file cannot be written, and where another
    process keeps the folder locked for ADD_LIMIT."""
    with _alone(path.parent):
        book = read_book(path)
        made = book.with_entries(entries)
        try:
            replace_file(path, print_book(made).encode())
        except OSError as e:
            raise _unwritable(path, e) from None
        return made


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time. The folder is locked, since the file is another one after each write."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise SmeltError(f"cannot open the folder '{folder}': {e.strerror or e}", kind="infra") from None
    try:
        take_turn(fd, str(folder), ADD_LIMIT)
        yield
    finally:
        os.close(fd)
