"""The least cut against all cuts, and assignments against all assignments of small problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.core.passes.lowering.assign import Assignment, Shared, UnitCosts, assigned
from smelt.core.passes.lowering.min_cut import SINK, SOURCE, Arc, least_cut

COSTS = st.integers(0, 30)


@st.composite
def problems(draw: st.DrawFn, units: int, most: int = 6) -> UnitCosts:
    """Things that may be at some of the units, and values that they share; a maker may read its own."""
    things = draw(st.integers(1, most))
    own = []
    for _ in range(things):
        allowed = draw(st.sets(st.integers(0, units - 1), min_size=1))
        own.append(tuple(draw(COSTS) if u in allowed else None for u in range(units)))
    numbers = st.integers(0, things - 1)
    shared = []
    for _ in range(draw(st.integers(0, 7))):
        moves = tuple(tuple(0 if a == b else draw(COSTS) for b in range(units)) for a in range(units))
        readers = draw(st.lists(numbers, min_size=1, max_size=4, unique=True))
        shared.append(Shared(draw(numbers), tuple(readers), moves))
    return UnitCosts(units, tuple(own), tuple(shared))


def everywhere(p: UnitCosts, units: Iterable[int]) -> list[Assignment]:
    """All assignments to these units; what can be at none of them is anywhere."""
    wanted = set(units)
    places = [{u for u, cost in enumerate(own) if cost is not None} for own in p.own]
    return list(product(*(sorted(found & wanted or found) for found in places)))


def best(p: UnitCosts, units: Iterable[int]) -> int:
    return min(map(p.cost, everywhere(p, units)))


@settings(max_examples=300, deadline=None)
@given(problems(2))
def test_two_units_are_exact(p: UnitCosts) -> None:
    assert p.cost(assigned(p)) == best(p, range(2))


@settings(max_examples=150, deadline=None)
@given(problems(3, 5))
def test_three_units_are_never_worse_than_two_of_them(p: UnitCosts) -> None:
    found = p.cost(assigned(p))
    assert found >= best(p, range(3))
    for unit in range(3):
        assert found <= p.cost(p.alone(unit))
    free = all(cost is not None for own in p.own for cost in own)
    for pair in ((0, 1), (0, 2), (1, 2)) if free else ():
        assert found <= best(p, pair)


def test_three_units_need_more_than_changes_between_two() -> None:
    """Changes between two units alone end at 35, with thing 1 at unit 1 and its readers at 0."""
    moves = ((0, 6, 6), (10, 0, 1), (8, 5, 0))
    p = UnitCosts(3, ((11, 18, None), (20, 6, 9), (8, None, 8)), (Shared(1, (0, 2), moves),))
    assert p.cost(assigned(p)) == best(p, range(3)) == 33


def test_three_units_begin_with_the_best_of_each_two() -> None:
    """From what each unit does alone on, changes end at 5."""
    p = UnitCosts(3, ((2, 1, 6), (3, 5, 3)), (Shared(1, (0,), ((0, 6, 4), (6, 0, 5), (3, 0, 0))),))
    assert p.cost(assigned(p)) == best(p, (1, 2)) == 4


def test_what_is_alone_somewhere_else() -> None:
    p = UnitCosts(2, ((5, 3), (None, 1), (2, None)), ())
    assert p.alone(0) == (0, 1, 0) and p.alone(1) == (1, 1, 0)


def test_a_value_moves_once_for_all_readers() -> None:
    p = UnitCosts(2, ((0, 9), (9, 0), (9, 0), (0, 9)), (Shared(0, (1, 2, 3), ((0, 5), (5, 0))),))
    assert assigned(p) == (0, 1, 1, 0) and p.cost((0, 1, 1, 0)) == 5


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[Arc]]:
    count = draw(st.integers(2, 7))
    nodes = st.integers(0, count - 1)
    arcs = draw(st.lists(st.tuples(nodes, nodes, st.integers(0, 20)), max_size=14))
    return count, list(arcs)


@settings(max_examples=300, deadline=None)
@given(networks())
def test_no_cut_is_smaller(network: tuple[int, list[Arc]]) -> None:
    """And of those that are as small, it has the smallest side."""
    count, arcs = network
    found = least_cut(count, arcs)
    assert SOURCE in found and SINK not in found
    least = min(size(arcs, side) for side in sides(count))
    assert size(arcs, found) == least
    assert all(found <= side for side in sides(count) if size(arcs, side) == least)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_cut_is_smaller_where_all_are_neighbours(data: st.DataObject) -> None:
    """No node has so few of them that it leaves before flow is sent."""
    count = data.draw(st.integers(5, 7))
    arcs: list[Arc] = [(a, b, data.draw(st.integers(1, 20))) for a in range(count) for b in range(count)]
    found = size(arcs, least_cut(count, arcs))
    assert found == min(size(arcs, side) for side in sides(count))


def sides(count: int) -> Iterator[frozenset[int]]:
    """All that a source's side may be."""
    for bits in product((False, True), repeat=count - 2):
        yield frozenset((SOURCE, *(n for n, x in enumerate(bits, 2) if x)))


def size(arcs: Iterable[Arc], side: frozenset[int]) -> int:
    """What a cut takes."""
    return sum(c or 0 for a, b, c in arcs if a in side and b not in side)


def test_an_arc_without_capacity_is_not_cut() -> None:
    arcs: list[Arc] = [(SOURCE, 2, 7), (2, 3, None), (3, SINK, 4)]
    assert least_cut(4, arcs) == frozenset({SOURCE, 2, 3})


def test_a_long_chain() -> None:
    """Longer than Python's stack is deep."""
    count = 20_000
    links: list[Arc] = [(n, n + 1, 3) for n in range(2, count - 1)]
    assert least_cut(count, [(SOURCE, 2, 2), *links, (count - 1, SINK, 9)]) == frozenset({SOURCE})
