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

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from smelt.core.dim import YES, Dim, Facts, Max, SymbolAtom, align_up, dmax, sym, to_dim, value_at
from smelt.core.plan.lifetime import ALIGNMENT, Storage
from smelt.core.plan.lives import Lives
from smelt.core.plan.terms import Terms

_DIRECT_TERMS = 3
_PROOFS = 24
"""Questions to the general prover for one arena: a hard one takes 50 ms. Without an answer a maximum keeps
a term that it may not need, which is right, only longer."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A storage with a place. offset, end: in the names of sizes. under: numbers of all that are below
    it, directly or through others."""

    number: int
    storage: Storage
    offset: Dim
    end: Dim
    under: frozenset[int]


@dataclass(frozen=True, slots=True)
class Arena:
    """offsets: of each storage's root. bytes: the peak as a formula, also of what was there before. own:
    without that. top, placed: the peak and what may still live, in the names of sizes."""

    offsets: Mapping[str, Dim]
    bytes: Dim
    own: Dim
    top: Dim = field(repr=False, compare=False)
    placed: tuple[_Placed, ...] = field(repr=False, compare=False)

    def since(self, position: int) -> Arena:
        """Without what is dead there."""
        return replace(self, placed=tuple(p for p in self.placed if p.storage.last >= position))


def put(
    storages: Sequence[Storage], sizes: OrderedSizes, onto: Arena | None = None, later: Sequence[int] = ()
) -> Arena:
    """Offsets for storages in an arena that has others already, whose offsets stay. Two that live at the same
    time never overlap; the last sample of the sizes chooses who lies below whom.

    What lives beside one of the others lies above it, or below it where that is proved for all sizes. later:
    positions at which more may come; what lives through most of these lies lowest. sizes: of all that is in
    the arena.
    """
    sized = [(s, sizes.of(s.bytes)) for s in storages]
    held = onto.placed if onto else ()
    placed, lives = [*held], Lives()
    for p in held:
        lives.add(p.storage)
    at = _greedy([(s, max(sizes.at(size)[-1], ALIGNMENT)) for s, size in sized], held, sizes, later)
    for s, size in (sized[n] for n in sorted(range(len(sized)), key=lambda n: (at[n], n))):
        beside = [placed[k] for k in lives.beside(s)]
        lives.add(s)
        placed.append(_above(s, size, [p for p in beside if p.end is not p.offset], held, sizes))
    added = placed[len(held) :]
    inner = _covered(added, sizes)
    own = _highest([p.end for p in added if p.number not in inner], sizes)
    top = _highest([own, onto.top], sizes) if onto else own
    real = {p.storage.root: sizes.real(p.offset) for p in added}
    return Arena(real, sizes.real(top), sizes.real(own), top, tuple(placed))


def _above(
    s: Storage, size: Dim, beside: Sequence[_Placed], held: Sequence[_Placed], sizes: OrderedSizes
) -> _Placed:
    """A storage at the lowest place above what was put before it, of what lives beside it. What was held
    from the start may also lie above, where the order is proved."""
    early = {p.number for p in held}
    below = [p for p in beside if p.number not in early]
    open_ = [p for p in beside if p.number in early]
    while True:
        # what lies below a storage that is itself below cannot be the highest
        inner = _covered(below, sizes)
        offset = _highest([p.end for p in below if p.number not in inner], sizes)
        open_ = [p for p in open_ if p.number not in inner]
        end = offset + size
        hit = [p for p in open_ if not sizes.le(end, p.offset)]
        if not hit:
            under = inner.union(p.number for p in below)
            return _Placed(next(sizes.numbers), s, offset, end, under)
        below += hit  # what is hit now would be hit by a higher place too
        numbers = {p.number for p in hit}
        open_ = [p for p in open_ if p.number not in numbers]


def _covered(placed: Sequence[_Placed], sizes: OrderedSizes) -> frozenset[int]:
    """The numbers of all that lies below one of these. From the top down, since what lies below one that is
    itself covered has been counted with that: of n that live together one is looked into, not all."""
    inner: set[int] = set()
    for p in sorted(placed, key=lambda p: sizes.at(p.end)[-1], reverse=True):
        if p.number not in inner:
            inner |= p.under
    return frozenset(inner)


def _greedy(
    rows: Sequence[tuple[Storage, int]], held: Sequence[_Placed], sizes: OrderedSizes, later: Sequence[int]
) -> list[int]:
    """Offsets in numbers, of storages with their bytes, beside those held. Those that live through most of
    the later positions first, of these the largest, each in the lowest gap that is wide enough."""
    spans = [(sizes.at(p.offset)[-1], sizes.at(p.end)[-1]) for p in held]
    at = [0] * len(rows)
    lives = Lives()
    for p in held:
        lives.add(p.storage)
    through = [bisect_right(later, s.last) - bisect_right(later, s.first) for s, _ in rows]
    first = [(-n, -size, s.first, s.root) for n, (s, size) in zip(through, rows, strict=True)]
    for n in sorted(range(len(rows)), key=first.__getitem__):
        s, size = rows[n]
        start = 0
        for low, high in sorted(map(spans.__getitem__, lives.beside(s))):
            if start + size <= low:
                break
            start = max(start, high)
        at[n] = start
        spans.append((start, start + size))
        lives.add(s)
    return at


def _highest(ends: Sequence[Dim], sizes: OrderedSizes) -> Dim:
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
class OrderedSizes:
    """Distinct sizes under short names, and what is proved about their order; lives for one plan."""

    facts: Facts
    samples: Sequence[Mapping[str, int]]
    names: dict[Dim, Dim] = field(default_factory=dict)
    reals: dict[str, Dim] = field(default_factory=dict)
    raw: dict[str, Dim] = field(default_factory=dict)
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    known: dict[tuple[Dim, Dim], bool] = field(default_factory=dict)
    found: dict[Dim, tuple[int, ...]] = field(default_factory=dict)
    budget: int = _PROOFS
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.terms = Terms(self.facts, self.samples)

    def of(self, bytes_: Dim) -> Dim:
        """The name of so many bytes, rounded up to the alignment; a constant is its own."""
        exact = self.facts.simplify(bytes_)
        size = align_up(exact, ALIGNMENT)
        if size.is_const:
            return size
        if size not in self.names:
            name = f"S{len(self.names)}"
            self.names[size] = sym(name)
            self.reals[name], self.raw[name] = size, exact
            self.values[name] = tuple(value_at(size, p) for p in self.samples)
        return self.names[size]

    def real(self, d: Dim) -> Dim:
        """A sum of names as a formula in the module's symbols."""
        return d.substitute(self.reals)

    def at(self, d: Dim) -> tuple[int, ...]:
        """The value at each sample."""
        if d not in self.found:
            columns = {name: self.values[name] for name in d.symbols}
            points = ({name: v[n] for name, v in columns.items()} for n in range(len(self.samples)))
            self.found[d] = tuple(value_at(d, p) for p in points)
        return self.found[d]

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
            rest = a - count * dmax(*top.args)
            return all(self.le(rest + count * arg, b) for arg in top.args)
        under = _a_max(b)
        if under is not None:
            # a <= c * max(x, y) + r  <==  a <= c * x + r or a <= c * y + r
            count, top = under
            rest = b - count * dmax(*top.args)
            return any(self.le(a, rest + count * arg) for arg in top.args)
        return self._matched(b - a)

    def _matched(self, rest: Dim) -> bool:
        """rest >= 0: every negative term has a positive one of its own that is no smaller."""
        if min(self.at(rest), default=0) < 0:
            return False
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
