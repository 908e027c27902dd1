"""Equal keys give one object as long as somebody holds it, and what is gone leaves the table."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from smelt.core.dim import YES, Facts, sym
from smelt.core.dim.facts import MOST_ANSWERS, MOST_GROWN
from smelt.core.dim.interned import FIRST_SWEEP, NEWEST, Interned


class Thing:
    """May be referred to weakly."""


def test_one_object_stays_for_a_key() -> None:
    table: Interned[str, Thing] = Interned()
    first, second = Thing(), Thing()
    assert table.add("a", first) is first
    assert table.add("a", second) is first
    known = table.refs["a"]
    assert known() is first


def test_the_newest_stay_and_older_ones_go() -> None:
    table: Interned[int, Thing] = Interned()
    for k in range(NEWEST + 10):
        table.add(k, Thing())
    gc.collect()
    alive = [k for k, r in table.refs.items() if r() is not None]
    assert alive == list(range(10, NEWEST + 10))
    again = Thing()
    assert table.add(3, again) is again  # the first one is gone


def test_entries_of_what_is_gone_are_swept() -> None:
    table: Interned[int, Thing] = Interned()
    held = [table.add(k, Thing()) for k in range(100)]
    for k in range(100, 10 * FIRST_SWEEP):
        table.add(k, Thing())
    assert len(table.refs) <= FIRST_SWEEP
    assert all(table.refs[k]() is thing for k, thing in enumerate(held))


def test_threads_get_one_object() -> None:
    table: Interned[int, Thing] = Interned()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda k: table.add(k % 50, Thing()), range(4000)))
    assert all(thing is found[k % 50] for k, thing in enumerate(found))


@given(st.integers(-40, 40), st.integers(-40, 40), st.integers(-9, 9))
def test_a_dim_is_a_multiple_of_its_primitive_part(a: int, b: int, c: int) -> None:
    d = a * sym("n") * sym("m") + b * sym("m") + c
    g, q, k = d.primitive()
    assert g * q + k == d
    assert k == c
    assert q.primitive()[1:] == (q, 0) or (g == 0 and q == 0)
    if g:
        assert q.primitive()[0] == 1


def test_facts_learn_the_same_once() -> None:
    facts = Facts()
    more = facts.with_range("n", 1, 9).with_index("i", sym("n"))
    assert facts.with_range("n", 1, 9).with_index("i", sym("n")) is more
    assert facts.with_range("n", 1, 8) is not facts.with_range("n", 1, 9)
    assert facts.with_upper("n", 3) == facts.with_le(sym("n"), 3)


def test_facts_forget_before_they_grow_without_end() -> None:
    facts = Facts()
    for k in range(3 * MOST_GROWN):
        facts.with_range("n", 0, k)
    assert len(facts.__dict__["_grown"]) <= MOST_GROWN
    for k in range(MOST_ANSWERS + 10):
        assert facts.prove_le(-k - 1, sym("n")) is YES
    assert len(facts._answers.signs) <= MOST_ANSWERS
