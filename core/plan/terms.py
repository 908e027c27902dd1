"""Is one size formula at most another, term by term: quick, sound, enough for most of a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from smelt.core.dim import (
    YES,
    Atom,
    Dim,
    Facts,
    FloorDiv,
    Max,
    Min,
    Mod,
    SymbolAtom,
    dmax,
    dmin,
    sym,
    value_at,
)

TermProduct: TypeAlias = tuple[Atom, ...]
"""Factors of a term, repeated by their powers."""


@dataclass
class Terms:
    """Compares sums of products of sizes; remembers how single factors compare. Lives for one plan.

    c * x * y <= d * u * v holds where c <= d and the factors pair up with x <= u and y <= v, all of them
    not negative; a sum is at most another when its terms can be paid for by the other's, each once.
    """

    facts: Facts
    samples: Sequence[Mapping[str, int]]
    factors: dict[tuple[Atom, Atom], bool] = field(default_factory=dict)
    natural: dict[Atom, bool] = field(default_factory=dict)

    def le(self, a: Dim, b: Dim) -> bool:
        """Proved: a <= b wherever the facts hold. False says nothing."""
        rest = b - a
        credit = [(c, _flat(m)) for c, m in rest.terms() if c > 0]
        left = [c for c, _ in credit]
        for c, m in sorted(((c, _flat(m)) for c, m in rest.terms() if c < 0), key=lambda t: -len(t[1])):
            if not self._paid(-c, m, credit, left):
                return False
        return all(self._natural(f) for _, m in credit for f in m)

    def _paid(
        self, owed: int, term: TermProduct, credit: Sequence[tuple[int, TermProduct]], left: list[int]
    ) -> bool:
        """Take `owed` times the term from terms that are no smaller; `left` is what each still has."""
        for n, (_, other) in enumerate(credit):
            if left[n] and self._covers(other, term):
                taken = min(owed, left[n])
                left[n], owed = left[n] - taken, owed - taken
                if not owed:
                    return True
        return False

    def _covers(self, large: tuple[Atom, ...], small: tuple[Atom, ...]) -> bool:
        """The product of `small` is at most that of `large`: same length, factors pair up in order."""
        if len(large) != len(small):
            return False
        left = list(large)
        for f in small:
            # the same factor first, so that it is not spent on another
            fits = [g for g in left if g is f] or [g for g in left if self._factor(f, g)]
            if not fits or not self._natural(f):
                return False
            left.remove(fits[0])
        return True

    def _factor(self, a: Atom, b: Atom) -> bool:
        key = (a, b)
        if key not in self.factors:
            x, y = as_dim(a), as_dim(b)
            likely = all(value_at(x, p) <= value_at(y, p) for p in self.samples)
            self.factors[key] = likely and self.facts.prove_le(x, y) is YES
        return self.factors[key]

    def _natural(self, a: Atom) -> bool:
        if a not in self.natural:
            low = self.facts.bounds(as_dim(a))[0]
            self.natural[a] = low is not None and low >= 0
        return self.natural[a]


def _flat(powers: tuple[tuple[Atom, int], ...]) -> tuple[Atom, ...]:
    """x^2 y as x, x, y."""
    return tuple(a for a, n in powers for _ in range(n))


def as_dim(a: Atom) -> Dim:
    """The atom as an expression of its own."""
    match a:
        case SymbolAtom():
            return sym(a.name)
        case FloorDiv():
            return a.a // a.b
        case Mod():
            return a.a % a.b
        case Min():
            return dmin(*a.args)
        case Max():
            return dmax(*a.args)
