"""Storages with lifetimes -> offsets in one arena, as Dims, valid for every value of the symbols in range.

Numbers choose, formulas decide. At one sample of the symbols, greedy by size (Pisarchyk & Lee, "Efficient
Memory Management for Deep Neural Net Inference", 2020) says which of two storages that live together is
the lower one. That order alone makes the plan: the offset of a storage is the greatest end of those below
it, so nothing overlaps whatever the symbols are, and at the sample the plan is the greedy one.

Offsets are sums and maxima of sizes, so sizes are named while they are placed (S0, S1, ..). Ends that are
provably under another one are left out of a maximum: because they lie below it, or because their terms
match, a + b <= c + d since a <= c and b <= d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.core.dim import YES, Dim, Facts, Max, SymbolAtom, align_up, dmax, sym, to_dim, value_at
from smelt.core.ir.graph import Symbol
from smelt.core.plan.lifetime import Storage
from smelt.core.plan.lives import Lives
from smelt.core.plan.terms import Terms

ALIGNMENT = 64
"""Bytes: a cache line and the widest vector."""

_SAMPLES = (1, 5, 37, 224)

_DIRECT_TERMS = 3
_PROOFS = 24
"""Questions to the general prover for one arena: a hard one takes 50 ms. Without an answer a maximum keeps
a term that it may not need, which is right, only longer."""


@dataclass(frozen=True, slots=True)
class Arena:
    """offsets: of each storage's root. bytes: the peak as a formula."""

    offsets: Mapping[str, Dim]
    bytes: Dim


@dataclass(frozen=True, slots=True)
class _Placed:
    """A storage with a place. offset, end: in the names of sizes. under: numbers of all that are below
    it, directly or through others."""

    number: int
    storage: Storage
    offset: Dim
    end: Dim
    under: frozenset[int]


def sample_points(symbols: Sequence[Symbol]) -> tuple[Mapping[str, int], ...]:
    """A few assignments inside the symbols' ranges: small, odd, usual and large sizes."""
    points = []
    for base in _SAMPLES:
        point = {}
        for n, s in enumerate(symbols):
            value = (base + n) * s.divisor
            high = s.high if s.high is not None else value
            point[s.name] = max(s.low, min(value, high // s.divisor * s.divisor))
        points.append(point)
    return tuple(points)


def place(storages: Sequence[Storage], facts: Facts, samples: Sequence[Mapping[str, int]]) -> Arena:
    """Offsets for all storages; two that live at the same time never overlap.

    The last sample chooses who lies below whom. Raises KeyError when a size has a symbol that no sample
    assigns.
    """
    sizes = _Sizes(facts, samples)
    sized = [(s, sizes.name(facts.simplify(s.bytes))) for s in storages]
    at = _greedy([(s, max(sizes.at(size)[-1], ALIGNMENT)) for s, size in sized])
    placed: list[_Placed] = []
    lives = Lives()
    for number in sorted(range(len(sized)), key=lambda n: (at[n], n)):
        s, size = sized[number]
        below = [p for p in map(placed.__getitem__, lives.beside(s)) if p.end is not p.offset]
        lives.add(s)
        under = frozenset(p.number for p in below).union(*(p.under for p in below))
        # what lies below a storage that is itself below cannot be the highest
        inner = frozenset().union(*(p.under for p in below)) if below else frozenset()
        offset = _highest([p.end for p in below if p.number not in inner], sizes)
        placed.append(_Placed(number, s, offset, offset + size, under))
    inner = frozenset().union(*(p.under for p in placed)) if placed else frozenset()
    peak = _highest([p.end for p in placed if p.number not in inner], sizes)
    return Arena({p.storage.root: sizes.real(p.offset) for p in placed}, sizes.real(peak))


def _greedy(rows: Sequence[tuple[Storage, int]]) -> list[int]:
    """Offsets in numbers: the largest first, each in the lowest gap that is wide enough."""
    at = [0] * len(rows)
    done: list[int] = []
    lives = Lives()
    for n in sorted(range(len(rows)), key=lambda n: (-rows[n][1], rows[n][0].first, rows[n][0].root)):
        s, size = rows[n]
        spans = sorted((at[k], at[k] + rows[k][1]) for k in map(done.__getitem__, lives.beside(s)))
        start = 0
        for low, high in spans:
            if start + size <= low:
                break
            start = max(start, high)
        at[n] = start
        done.append(n)
        lives.add(s)
    return at


def _highest(ends: Sequence[Dim], sizes: _Sizes) -> Dim:
    """The greatest end; ends that another one provably dominates are left out of the formula."""
    rows = {e: sizes.at(e) for e in dict.fromkeys(ends)}
    kept: list[Dim] = []
    for e in sorted(rows, key=lambda d: (rows[d][::-1], str(d)), reverse=True):
        if not any(_below(rows[e], rows[k]) and sizes.le(e, k) for k in kept):
            kept.append(e)
    return dmax(*kept) if kept else to_dim(0)


def _below(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


@dataclass
class _Sizes:
    """Distinct sizes under short names, and what is proved about their order; lives for one `place`."""

    facts: Facts
    samples: Sequence[Mapping[str, int]]
    names: dict[Dim, Dim] = field(default_factory=dict)
    reals: dict[str, Dim] = field(default_factory=dict)
    raw: dict[str, Dim] = field(default_factory=dict)
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    known: dict[tuple[Dim, Dim], bool] = field(default_factory=dict)
    budget: int = _PROOFS

    def __post_init__(self) -> None:
        self.terms = Terms(self.facts, self.samples)

    def name(self, count: Dim) -> Dim:
        """The name of so many bytes, rounded up to the alignment; a constant is its own."""
        size = align_up(count, ALIGNMENT)
        if size.is_const:
            return size
        if size not in self.names:
            name = f"S{len(self.names)}"
            self.names[size] = sym(name)
            self.reals[name], self.raw[name] = size, count
            self.values[name] = tuple(value_at(size, p) for p in self.samples)
        return self.names[size]

    def real(self, d: Dim) -> Dim:
        """A sum of names as a formula in the module's symbols."""
        return d.substitute(self.reals)

    def at(self, d: Dim) -> tuple[int, ...]:
        """The value at each sample."""
        columns = {name: self.values[name] for name in d.symbols}
        return tuple(
            value_at(d, {name: v[n] for name, v in columns.items()}) for n in range(len(self.samples))
        )

    def le(self, a: Dim, b: Dim) -> bool:
        """Proved: a <= b for all values of the symbols."""
        key = (a, b)
        if key not in self.known:
            self.known[key] = self._le(a, b)
        return self.known[key]

    def _le(self, a: Dim, b: Dim) -> bool:
        if a is b:
            return True
        over = _a_max(a)
        if over is not None:
            # c * max(x, y) + r <= b  <==  c * x + r <= b and c * y + r <= b
            count, top = over
            return all(self.le(a + count * (arg - dmax(*top.args)), b) for arg in top.args)
        under = _a_max(b)
        if under is not None:
            # a <= c * max(x, y) + r  <==  a <= c * x + r or a <= c * y + r
            count, top = under
            return any(self.le(a, b + count * (arg - dmax(*top.args))) for arg in top.args)
        return self._matched(b - a)

    def _matched(self, rest: Dim) -> bool:
        """rest >= 0: every negative term has a positive one of its own that is no smaller."""
        positive, negative, constant = _signed(rest)
        for n in sorted(negative, key=lambda t: self.values[t][::-1], reverse=True):
            fits = [p for p in positive if _below(self.values[n], self.values[p]) and self._ordered(n, p)]
            if not fits:
                return self._directly(positive, negative, constant)
            positive.remove(min(fits, key=lambda t: (self.values[t][::-1], t)))
            negative = negative[:]
            negative.remove(n)
        return constant >= 0

    def _ordered(self, small: str, large: str) -> bool:
        """Rounding up keeps the order, so the bytes before it are compared: simpler formulas."""
        key = (sym(small), sym(large))
        if key not in self.known:
            self.known[key] = self._prove(self.raw[small], self.raw[large])
        return self.known[key]

    def _prove(self, a: Dim, b: Dim) -> bool:
        """Term by term where that is enough, else the prover's word as long as the budget lasts."""
        if self.terms.le(a, b):
            return True
        if self.budget <= 0:
            return False
        self.budget -= 1
        return self.facts.prove_le(a, b) is YES

    def _directly(self, positive: list[str], negative: list[str], constant: int) -> bool:
        """The prover's word on what matching left over; only for a few terms, it is slow."""
        if len(positive) + len(negative) > _DIRECT_TERMS:
            return False
        left = sum((self.reals[n] for n in negative), to_dim(0))
        right = sum((self.reals[p] for p in positive), to_dim(constant))
        return self._prove(left, right)


def _a_max(d: Dim) -> tuple[int, Max] | None:
    """A max that is a term of its own in a sum, and how often it is there."""
    for coefficient, powers in d.terms():
        if coefficient > 0 and len(powers) == 1 and powers[0][1] == 1 and isinstance(powers[0][0], Max):
            return coefficient, powers[0][0]
    return None


def _signed(d: Dim) -> tuple[list[str], list[str], int]:
    """Names with positive and with negative sign, repeated by their coefficients, and the constant."""
    positive: list[str] = []
    negative: list[str] = []
    constant = 0
    for coefficient, powers in d.terms():
        if not powers:
            constant += coefficient
            continue
        ((atom, power),) = powers
        assert power == 1 and isinstance(atom, SymbolAtom), d
        (positive if coefficient > 0 else negative).extend([atom.name] * abs(coefficient))
    return positive, negative, constant
