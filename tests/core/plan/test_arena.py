"""Offsets never overlap for storages that live together, whatever the symbols; and memory is reused."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.core.dim import Dim, Facts, ceildiv, sym, to_dim
from smelt.core.ir.analysis.samples import sample_points
from smelt.core.ir.graph import Symbol
from smelt.core.plan.arena import Arena, OrderedSizes, put
from smelt.core.plan.lifetime import ALIGNMENT, Storage

SYMBOLS = (Symbol("n", 0), Symbol("h", 1, 64), Symbol("s", 0, 512, 8))
FACTS = Facts().with_range("n", 0, None).with_range("h", 1, 64).with_range("s", 0, 512).with_divisor("s", 8)


def sizes() -> st.SearchStrategy[Dim]:
    n, h, s = sym("n"), sym("h"), sym("s")
    atoms = st.sampled_from([to_dim(1), n, h, s, n * h, n * s, ceildiv(h, 2), n * ceildiv(h, 2) * 4, s // 8])
    return st.builds(lambda a, k, b: a * k + b, atoms, st.integers(0, 300), atoms)


@st.composite
def storages(draw: st.DrawFn) -> list[Storage]:
    rows = []
    for k in range(draw(st.integers(1, 9))):
        first = draw(st.integers(0, 8))
        rows.append(Storage(f"%{k}", draw(sizes()), first, first + draw(st.integers(0, 4))))
    return rows


def arena_of(rows: list[Storage]) -> Arena:
    return put(rows, OrderedSizes(FACTS, sample_points(SYMBOLS)))


def check(rows: list[Storage], arena: Arena, env: Mapping[str, int]) -> None:
    spans = {r.root: (arena.offsets[r.root].evaluate(env), r.bytes.evaluate(env)) for r in rows}
    peak = arena.bytes.evaluate(env)
    for r in rows:
        offset, size = spans[r.root]
        assert offset % ALIGNMENT == 0
        assert offset + size <= peak
        for q in rows:
            together = q.first <= r.last and r.first <= q.last
            if q.root < r.root and together and size and spans[q.root][1]:
                a, b = spans[q.root]
                assert a + b <= offset or offset + size <= a, (env, r, q)


@settings(max_examples=120, deadline=None)
@given(storages(), st.integers(0, 40), st.integers(1, 64), st.integers(0, 64))
def test_live_storages_never_overlap(rows: list[Storage], n: int, h: int, s8: int) -> None:
    arena = arena_of(rows)
    for env in ({"n": n, "h": h, "s": 8 * s8}, {"n": 0, "h": 1, "s": 0}, {"n": 1, "h": 64, "s": 512}):
        check(rows, arena, env)


def test_a_chain_needs_two_buffers() -> None:
    n = sym("n")
    rows = [Storage(f"%{k}", n * 256, k, k + 1) for k in range(10)]
    arena = arena_of(rows)
    assert arena.bytes == n * 512


def test_a_smaller_buffer_fits_into_a_larger_ones_hole() -> None:
    n = sym("n")
    rows = [Storage("%big", n * 1024, 0, 1), Storage("%kept", n * 64, 0, 9), Storage("%small", n * 512, 2, 3)]
    arena = arena_of(rows)
    assert arena.bytes == n * 1088
    assert arena.offsets["%small"] == to_dim(0)


def test_sizes_that_cannot_be_compared_lie_apart() -> None:
    rows = [
        Storage("%a", sym("n") * 64, 0, 1),
        Storage("%b", sym("h") * 64, 1, 2),
        Storage("%c", sym("n") * 64, 2, 3),
    ]
    arena = arena_of(rows)
    for env in ({"n": 1, "h": 60, "s": 0}, {"n": 60, "h": 1, "s": 0}):
        check(rows, arena, env)


def test_empty_storages_cost_nothing() -> None:
    arena = arena_of([Storage("%a", to_dim(0), 0, 5), Storage("%b", to_dim(0), 0, 5)])
    assert arena.bytes == to_dim(0)


def test_a_divisor_that_is_zero_at_a_sample_is_no_matter() -> None:
    n, h = sym("n"), sym("h")
    rows = [Storage("%a", n * 4096 // ((n // 4) * (h // 16)), 0, 1), Storage("%b", h * 64, 1, 2)]
    arena = arena_of(rows)
    for env in ({"n": 4, "h": 16, "s": 0}, {"n": 60, "h": 64, "s": 8}):
        check(rows, arena, env)
