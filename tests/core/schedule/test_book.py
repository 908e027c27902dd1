"""Files of schedules: text and entries are inverses; what cannot be read is told; whose entry goes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.core.diag import SmeltError
from smelt.core.schedule.book import (
    ANY_MACHINE,
    BOOK_HEAD,
    HAND,
    TUNE,
    Book,
    BookEntry,
    mark,
    parse_book,
    print_book,
)

A, B = "a" * 32, "b" * 32
MACHINE = "x86_64-linux:znver4 avx512 3b1f00d2 threads default"
HERE = BookEntry(
    A, MACHINE, "normalise; bind i0 group", "matmul", TUNE, mark("x"), "tile 1", (("d0=8", 0.91),)
)
BY_HAND = BookEntry(A, MACHINE, "normalise", "matmul", HAND, remarks=("# because of the board",))

_WORDS = st.text("abcdefgh 0123=.:-_", min_size=1, max_size=20).map(str.strip).filter(bool)
_STEPS = st.lists(st.sampled_from(["normalise", "bind i0 group", "pack x1 (1/32, 0, 1%32)"]), min_size=1)
_ENTRIES = st.builds(
    BookEntry, st.sampled_from([A, B, "0" * 32]), _WORDS, _STEPS.map("; ".join), _WORDS, st.just(TUNE),
    _WORDS.map(mark), _WORDS, st.tuples(st.tuples(_WORDS, st.sampled_from([0.5, 0.9312, 1.0]))),
)  # fmt: skip


@given(st.lists(_ENTRIES, max_size=5))
def test_text_and_entries_are_inverses(entries: list[BookEntry]) -> None:
    book = Book().with_entries(entries)
    assert parse_book(print_book(book)) == book
    assert print_book(Book().with_entries(reversed(book.entries))) == print_book(book)


def test_the_text_is_for_people() -> None:
    assert (
        print_book(Book().with_entries([BY_HAND, HERE]))
        == f"""{BOOK_HEAD}

# because of the board
kernel {A} matmul
  machine {MACHINE}
  by hand
  schedule
    normalise

kernel {A} matmul
  machine {MACHINE}
  by tune
  against {mark("x")}
  why tile 1
  at d0=8: 0.91
  schedule
    normalise
    bind i0 group
"""
    )


def test_remarks_stay_with_their_entry() -> None:
    book = Book().with_entries([BY_HAND, HERE])
    assert parse_book(print_book(book)).entries[0].remarks == ("# because of the board",)


def test_entries_by_hand_go_first_and_those_for_the_machine_before_those_for_any() -> None:
    for_any = BookEntry(A, ANY_MACHINE, "normalise", by=HAND)
    assert Book().with_entries([HERE]).find(A, MACHINE) == HERE
    assert Book().with_entries([HERE, for_any]).find(A, MACHINE) == for_any
    assert Book().with_entries([HERE, for_any, BY_HAND]).find(A, MACHINE) == BY_HAND
    assert Book().with_entries([HERE]).find(A, "another") is None
    assert Book().with_entries([HERE]).find(B, MACHINE) is None


def test_an_entry_that_cannot_be_read_is_told_and_the_others_are_there() -> None:
    text = print_book(Book().with_entries([HERE]))
    good = text.split("\n", 2)[2]
    damaged = (
        "kernel 12\n  by tune\n",
        f"kernel {B}\n  by tune\n  schedule\n    normalise\n",
        "@@ garbage\n",
        f"kernel {B}\n  machine m\n  by tune\n  at nothing\n  schedule\n    normalise\n",
    )
    for bad in damaged:
        book = parse_book(f"{BOOK_HEAD}\n\n{bad}\n{good}")
        assert book.entries == (HERE,), bad
        (fault,) = book.faults
        assert fault.startswith("line 3: "), fault


def test_the_same_key_twice_is_a_fault() -> None:
    text = print_book(Book().with_entries([HERE]))
    assert "another entry by tune" in parse_book(text + text.split("\n", 1)[1]).faults[0]


def test_an_entry_by_hand_that_cannot_be_read_is_an_error() -> None:
    text = f"{BOOK_HEAD}\n\nkernel {A} matmul\n  machine any\n  by hand\n  shedule\n    normalise\n"
    with pytest.raises(SmeltError, match=r"an entry by hand, line 3: .*no line 'schedule'") as e:
        parse_book(text)
    assert e.value.kind == "invalid"


@pytest.mark.parametrize("text", ["", "{}", "smelt schedules 2\n", "\x00\xff"])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(SmeltError, match="no file of schedules"):
        parse_book(text)


@given(st.integers(0, 400), st.sampled_from(["", "\n", "x", "kernel ", "  by tune", "\x00"]))
def test_damage_is_a_fault_or_another_entry_and_never_a_crash(at: int, put: str) -> None:
    """Bytes put in place of others behind the first line."""
    text = print_book(Book().with_entries([HERE, BookEntry(B, MACHINE, "normalise", by=TUNE, against=mark(""),
                                                       at=(("fixed", 1.0),))]))  # fmt: skip
    at += len(BOOK_HEAD) + 1
    book = parse_book(text[:at] + put + text[at + 2 * len(put) :])
    assert len(book.entries) + len(book.faults) >= 1
