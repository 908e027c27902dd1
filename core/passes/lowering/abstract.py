"""Kernels in the sizes they see: every distinct extent becomes one dim, named in order of appearance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt.core.dim import (
    YES,
    Dim,
    Facts,
    FloorDiv,
    Max,
    Min,
    Mod,
    SymbolAtom,
    dmax,
    dmin,
    product,
    sym,
    to_dim,
)
from smelt.core.ir.analysis.scope import holding
from smelt.core.ir.kernel import Bound

FRESH_PREFIX = "~"
"""Begins the names that equations make up: no symbol of a model does, and one may be called d2."""

Factors = tuple[tuple[object, int], ...]


@dataclass(frozen=True, slots=True)
class Equation:
    """A size of the kernel: `stands` (a dim of its own, or a number) stands for `size`, and so its monomial
    `factors` for `value`."""

    stands: Dim
    size: Dim
    factors: Factors
    value: Dim

    @property
    def name(self) -> str:
        """The dim's name; '' for a number."""
        return next(iter(self.stands.symbols), "")


def equations(sizes: Iterable[Dim], facts: Facts) -> tuple[Equation, ...]:
    """One equation per distinct size that is no constant; sizes known to be equal share a name, and one that
    can only be one number is that.

    # (h - 1)//2 + 1 becomes ~0, and with it (h - 1)//2 becomes ~0 - 1 everywhere
    # k of which a check says k == 32 becomes 32
    """
    found: list[Equation] = []
    for size in sizes:
        if size.is_const or any(e.size == size for e in found):
            continue
        number = facts.number(size)
        if number is not None:
            stands = to_dim(number)
        else:
            same = (e.stands for e in found if e.name and facts.prove_eq(e.size, size) is YES)
            stands = next(same, sym(f"{FRESH_PREFIX}{len({e.name for e in found if e.name})}"))
        pivot = _pivot(size)
        if pivot is None:
            found.append(Equation(stands, size, (), stands))
            continue
        coefficient, factors = pivot
        rest = size - _monomial(factors) * coefficient
        found.append(Equation(stands, size, factors, (stands - rest) * coefficient))
    return tuple(found)


def independent(sizes: Iterable[Dim], facts: Facts) -> tuple[Equation, ...]:
    """As `equations`, but a size that the smaller ones give is no dim of its own.

    # (h + 3)//4 and 2*((h + 3)//4) become ~0 and 2*~0
    """
    chosen: list[Dim] = []
    for size in sorted(dict.fromkeys(sizes), key=lambda n: (len(str(n)), str(n))):
        found = equations(chosen, facts)
        left = Abstraction(found)(size).symbols - {e.name for e in found}
        if left:
            chosen.append(size)
    return equations(chosen, facts)


def _pivot(size: Dim) -> tuple[int, Factors] | None:
    """The term to solve for: the one of most factors among those with coefficient 1 or -1."""
    best: tuple[int, Factors] | None = None
    for coefficient, factors in size.terms():
        if factors and coefficient in (1, -1) and (best is None or len(factors) > len(best[1])):
            best = coefficient, factors
    return best


def _monomial(factors: Factors) -> Dim:
    return product(_atom(atom) for atom, power in factors for _ in range(power))


def _atom(atom: object) -> Dim:
    if isinstance(atom, SymbolAtom):
        return sym(atom.name)
    if isinstance(atom, FloorDiv):
        return atom.a // atom.b
    if isinstance(atom, Mod):
        return atom.a % atom.b
    assert isinstance(atom, Min | Max)
    return (dmin if isinstance(atom, Min) else dmax)(*atom.args)


class Abstraction:
    """Rewrites Dims of a kernel to its own dims; what no equation covers stays, as symbols."""

    def __init__(self, found: Sequence[Equation]) -> None:
        self.equations = tuple(found)
        self._exact = {e.size: e.stands for e in found}
        self._memo: dict[Dim, Dim] = {}
        self._settled: dict[int, Dim] = {}
        self._with: dict[object, list[int]] = {}  # by the first atom of their monomial
        for n, e in enumerate(found):
            if e.factors:
                self._with.setdefault(e.factors[0][0], []).append(n)

    def __call__(self, d: Dim) -> Dim:
        if d.is_const:
            return d
        if d not in self._memo:
            self._memo[d] = self._rewrite(d)
        return self._memo[d]

    def _rewrite(self, d: Dim) -> Dim:
        exact = self._exact.get(d)
        if exact is not None:
            return exact
        total = to_dim(0)
        for coefficient, factors in d.terms():
            total = total + self._term(factors) * coefficient
        return total

    def _term(self, factors: Factors) -> Dim:
        left = dict(factors)
        found = to_dim(1)
        for n in sorted(n for atom in left for n in self._with.get(atom, ())):
            e = self.equations[n]
            # values of equations may speak of raw symbols, and then of each other: only one replaces
            if all(left.get(atom, 0) >= power for atom, power in e.factors):
                for atom, power in e.factors:
                    left[atom] -= power
                if n not in self._settled:
                    self._settled[n] = self._settle(e)
                found = found * self._settled[n]
        for atom, power in left.items():
            if power:
                found = found * product([self._inside(atom)] * power)
        return found

    def _settle(self, e: Equation) -> Dim:
        rest = e.value - e.stands if e.size != _monomial(e.factors) else to_dim(0)
        if rest.is_const:
            return e.value
        # other terms of the size may be covered by earlier equations
        others = Abstraction([x for x in self.equations if x is not e])
        return others(e.value)

    def _inside(self, atom: object) -> Dim:
        exact = self._exact.get(_atom(atom))
        if exact is not None:
            return exact
        if isinstance(atom, FloorDiv):
            return self(atom.a) // self(atom.b)
        if isinstance(atom, Mod):
            return self(atom.a) % self(atom.b)
        if isinstance(atom, Min | Max):
            return (dmin if isinstance(atom, Min) else dmax)(*(self(x) for x in atom.args))
        return _atom(atom)


AccessPlace = tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Bound, ...], Facts]
"""An index, the shape it goes into, its guard, and what holds where it stands."""


def all_inside(places: Iterable[AccessPlace]) -> bool:
    """Whether every access is proved to stay inside."""
    asked: dict[tuple[Dim, Dim, tuple[Bound, ...], int], Facts] = {}  # with the facts: their ids stay taken
    for index, shape, guard, facts in places:
        for d, n in zip(index, shape, strict=True):
            # transforms of tiles read and write hundreds of elements at a few positions
            key = d, n, guard, id(facts)
            if key not in asked:
                asked[key] = facts
                if not _inside(d, n, guard, facts):
                    return False
    return True


def _inside(d: Dim, n: Dim, guard: tuple[Bound, ...], facts: Facts) -> bool:
    if d.is_const and n.is_const:
        return 0 <= d.const < n.const
    # most are a loop's variable over the whole axis, or exactly what the guard says
    if any(b.index == d and b.high == n and b.low.const_or_none == 0 for b in guard):
        return True
    if len(d.symbols) == 1:
        (v,) = d.symbols
        low = facts.ranges.get(v, (None, None))[0]
        if d == sym(v) and low is not None and low >= 0 and any(u == n - 1 for u in facts.uppers.get(v, ())):
            return True
    facts = holding(facts, guard)
    return facts.prove_le(0, d) is YES and facts.prove_lt(d, n) is YES


__all__ = ["Abstraction", "Equation", "all_inside", "equations", "independent"]
