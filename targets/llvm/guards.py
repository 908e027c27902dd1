"""A body with guarded loads in; the bounds to test once, so that a copy of the body needs no checks, out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from smelt.core.dim import Dim
from smelt.core.ir.kernel import (
    Block,
    Bound,
    Expr,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
    walk,
)
from smelt.targets.llvm.index import Env

WORTH = 16
"""Iterations of loops that a guard does not mention, from which on its check costs nothing: it is made
once before them."""


@dataclass(frozen=True)
class InnerBound:
    """A bound over inner variables, which holds for all of them where it holds at both `ends`."""

    bound: Bound
    ends: tuple[Bound, Bound]

    @property
    def undecided(self) -> bool:
        """Whether a run decides: a guard of constants is decided where its loops are unrolled."""
        return any(not d.is_const for end in self.ends for d in (end.low, end.index, end.high))


def inner_bounds(body: Sequence[Stmt], env: Env) -> list[InnerBound]:
    """The bounds of guarded loads in a body whose variables run over constant ranges there, in order;
    empty when checking them where they stand costs little, or when one of the loads has a bound that
    cannot be decided before the body."""
    numbers = {n: v for n, v in env.items() if isinstance(v, int)}
    known = frozenset(env)
    found: dict[Bound, InnerBound] = {}
    pays = False
    vectors = frozenset(s.var for s in walk(tuple(body)) if isinstance(s, Loop) and s.level == "vector")
    for load, extents in _loads(body, {}, numbers):
        for bound in load.guard:
            if bound not in found:
                made = _inner_bound(bound, extents, known)
                if made is None:
                    return []
                if made.undecided:
                    found[bound] = made
        pays = pays or _iterations(load, extents, vectors) < WORTH
    return list(found.values()) if pays else []


def checks(s: Stmt, bounds: Collection[Bound]) -> bool:
    """Whether a load in the statement is guarded by one of the bounds."""
    return any(b in bounds for load, _ in _loads((s,), {}, {}) for b in load.guard)


def _iterations(load: Load, extents: Mapping[str, int | None], vectors: frozenset[str]) -> int:
    """How often the address is used for one check: loops that the index has and the guard has not. A
    vector is one access."""
    guarded = {n for b in load.guard for d in (b.low, b.index, b.high) for n in d.symbols}
    indexed = {n for d in load.index for n in d.symbols}
    times = 1
    for name, extent in extents.items():
        if name not in guarded and name in indexed and name not in vectors:
            times *= WORTH if extent is None else extent
    return times


def _inner_bound(
    bound: Bound, extents: Mapping[str, int | None], known: frozenset[str]
) -> InnerBound | None:
    if not (bound.low.symbols | bound.high.symbols) <= known:
        return None
    low = high = bound.index
    for name in sorted(bound.index.symbols - known):
        extent = extents.get(name)
        split = bound.index.linear(name)
        step = None if split is None else split[0].const_or_none
        if extent is None or step is None or extent < 1:
            return None
        first, last = sorted((0, extent - 1), key=lambda at: step * at)
        low, high = low.substitute({name: first}), high.substitute({name: last})
    if not (low.symbols | high.symbols) <= known:
        return None
    return InnerBound(bound, (Bound(bound.low, low, bound.high), Bound(bound.low, high, bound.high)))


def _loads(
    body: Sequence[Stmt], extents: Mapping[str, int | None], numbers: Mapping[str, int]
) -> Iterator[tuple[Load, Mapping[str, int | None]]]:
    """Guarded loads, each with the inner loops around it and their extents (None: not constant)."""
    for s in body:
        if isinstance(s, Store):
            yield from _expr_loads(s.value, extents, numbers)
            continue
        if isinstance(s, Block):
            for _, value, _, _ in s.let:
                yield from _expr_loads(value, extents, numbers)
            inner = {**extents, **{v: None for v, *_ in s.let}}
        elif isinstance(s, Tiles):
            inner = {**extents, s.start: None, s.rows: None}
        else:
            inner = {**extents, s.var: _number(s.extent, numbers)}
        yield from _loads(s.body, inner, numbers)


def _expr_loads(
    e: Expr, extents: Mapping[str, int | None], numbers: Mapping[str, int]
) -> Iterator[tuple[Load, Mapping[str, int | None]]]:
    if isinstance(e, Load) and e.guard:
        yield e, extents
    if isinstance(e, Reduce):
        extents = {**extents, **{a.var: _number(a.extent, numbers) for a in e.axes}}
    for c in children(e):
        yield from _expr_loads(c, extents, numbers)


def _number(d: Dim, numbers: Mapping[str, int]) -> int | None:
    return d.evaluate(numbers) if d.symbols <= numbers.keys() else None
