"""Points at which knowledge holds: they satisfy all of it, and refute nothing that can be proved."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dim_strategies import DIMS, Env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt.core.dim import Dim, dmax, dmin, sym, to_dim
from smelt.core.dim.points import _FEW, _KINDS, FALLEN, Points, _Point
from smelt.core.dim.solve import Solver

NAMES = "abnm"
SOME = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Known = tuple[
    Mapping[str, tuple[int | None, int | None]],
    Mapping[str, tuple[Dim, ...]],
    Mapping[str, tuple[Dim, ...]],
    tuple[Dim, ...],
    tuple[Dim, ...],
]


@st.composite
def knowledge(draw: st.DrawFn) -> Known:
    """What holds at one drawn assignment, so that it does not contradict itself."""
    env: Env = {name: draw(st.integers(1, 12)) for name in NAMES}

    def side(sign: int) -> dict[str, tuple[Dim, ...]]:
        found: dict[str, tuple[Dim, ...]] = {}
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)):
            bound = draw(DIMS)
            value = _value(bound, env)
            if value is not None and name not in bound.symbols and sign * (value - env[name]) >= 0:
                found[name] = (bound,)
        return found

    ranges = {}
    for name in NAMES:
        low = max(1, env[name] - draw(st.integers(0, 3)))
        ranges[name] = (low, draw(st.sampled_from([None, env[name], env[name] + 5])))
    drawn = [(d, _value(d, env)) for d in draw(st.lists(DIMS, max_size=3))]
    zeros = tuple(d for d, v in drawn if v == 0 and d.symbols)
    nonneg = tuple(d for d, v in drawn if v is not None and v > 0 and d.symbols)
    return ranges, side(1), side(-1), zeros, nonneg


def _value(d: Dim, env: Mapping[str, int]) -> int | None:
    try:
        return d.evaluate(env)
    except ZeroDivisionError:
        return None


@given(knowledge(), DIMS)
@SOME
def test_no_point_refutes_what_is_proved(known: Known, q: Dim) -> None:
    assert Solver(*known).low(q) <= Points(*known).least(q)


@given(knowledge(), DIMS)
@SOME
def test_all_that_is_known_holds_at_every_point(known: Known, q: Dim) -> None:
    ranges, uppers, lowers, zeros, nonneg = known
    for kind in (*_KINDS, *_FEW):
        point = _Point(Points(*known), kind)
        if not point.holds() or (value := point.value(q)) is None:
            continue
        at = point.values
        assert value == q.evaluate(at)
        for name, (low, high) in ranges.items():
            assert name not in at or (low or 0) <= at[name] <= (math.inf if high is None else high)
        for sign, bounds in ((1, uppers), (-1, lowers)):
            for name in bounds.keys() & at.keys():
                assert all(sign * (d.evaluate(at) - at[name]) >= 0 for d in bounds[name])
        assert all(z.evaluate(at) == 0 for z in zeros) and all(n.evaluate(at) >= 0 for n in nonneg)


def test_what_does_not_hold_is_refuted() -> None:
    """At the first points already: that is what they are for."""
    n, m, part = sym("n"), sym("m"), sym("part")
    points = Points({"n": (1, None), "m": (1, 9)}, {"part": (n,)}, {}, (), ())
    for q in (m - n, n - 10_000, part - n, to_dim(5) - m, dmin(n, m) - m, -dmax(n, m), n - 2 * part):
        assert points.least(q) < 0, q
    for q in (n - 1, n - part, 9 - m, dmax(n, m) - m, n * m - n):
        assert points.least(q) >= 0, q


@given(knowledge(), DIMS)
@SOME
def test_what_has_a_bound_is_not_endless(known: Known, q: Dim) -> None:
    assert Solver(*known).interval(q)[0] < FALLEN or not Points(*known).endless(q)


def test_what_falls_without_end() -> None:
    n, m, part, i = sym("n"), sym("m"), sym("part"), sym("i")
    even = (n * sym("k")) % (3 * part)
    points = Points({"m": (1, 9)}, {"i": (n - 1,)}, {}, (even,), (n - i - 1,))
    for q in (-n, m - n * part, -i, m - n // part * n, -dmax(n, m), -(n // 9)):
        assert points.endless(q), q
    for q in (n, n - i, -m, -dmin(n, m), -(n % 7), m - n // n):
        assert not points.endless(q), q


def test_contradictions_refute_nothing() -> None:
    n = sym("n")
    for known in (
        Points({"n": (1, 5)}, {}, {"n": (to_dim(9),)}, (), ()),
        Points({"n": (1, 5)}, {}, {}, (n - 7,), ()),
        Points({"n": (1, 5)}, {}, {}, (), (n - 7,)),
    ):
        assert known.least(-n) == math.inf


def test_a_division_by_zero_is_no_value() -> None:
    n, z = sym("n"), sym("z")
    assert Points({"z": (0, 0)}, {}, {}, (), ()).least(n // z - 100) == math.inf


def test_a_nest_of_few_rows_has_points() -> None:
    """There are none but where n is 2 to 4; a tile of 4 of them may be cut short, one of 1 is not."""
    n, o, i = sym("n"), sym("o"), sym("i")
    rows = dmin(n, 4 * dmax(5 - n, 0), 4)
    for tile, cut in ((4, True), (1, False)):
        ranges = {"n": (2, None), "i": (0, tile - 1)}
        points = Points(ranges, {"o": ((rows + tile - 1) // tile - 1,)}, {}, (), ())
        assert (points.least(rows - 1 - tile * o - i) < 0) is cut
        assert points.least(o) < math.inf


def test_a_tile_of_many_rows_is_cut_short() -> None:
    n, o, i = sym("n"), sym("o"), sym("i")
    for tile in (4, 8, 16, 32, 64):
        points = Points({"i": (0, tile - 1)}, {"o": ((n + tile - 1) // tile - 1,)}, {}, (), ())
        assert points.least(n - 1 - tile * o - i) == 1 - tile
