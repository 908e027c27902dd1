"""Ranges, symbolic bounds and equalities -> lower bounds and simpler forms of Dims; what Facts asks.

A lower bound of q is found by replacing q, step by step, with something that is never larger and has fewer
unknowns, until plain interval arithmetic decides:

    symbol   A*v + B  with A >= 0  -->  A*low(v) + B; with A <= 0  -->  A*high(v) + B  (bounds may be Dims)
    x//c     c*q with c*(x//c) in x-c+1 .. x; the rounding of c*q back to integers recovers what that loses
    min      A*min(x, y) + B  -->  the smaller of A*x + B and A*y + B, or, for A <= 0, either one
    facts    q - k*n for a known n >= 0 (k > 0) and q + k*z for a known z == 0

Every step is sound by itself, so running out of steps makes an answer weaker, never wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Final, TypeAlias

from smelt.core.dim.atoms import Atom, FloorDiv, Max, Min, Mod, Mono, Poly, SymbolAtom, mono_div
from smelt.core.dim.expr import (
    ONE,
    ZERO,
    Dim,
    atom_dim,
    common_factor,
    divide_poly,
    divide_terms,
    dmax,
    dmin,
    make,
    product,
    rebuild_atom,
    sole_atom,
    to_dim,
)
from smelt.core.dim.points import Points

INF: Final = math.inf
Num: TypeAlias = int | float  # an int, or an infinity for "no bound"; never any other float
NumSpan: TypeAlias = tuple[Num, Num]
Goal: TypeAlias = tuple[int, tuple[Dim, ...]]  # (s, goals): s*q >= the smallest of the goals

MOST_RELAXATIONS: Final = 300  # for one question; every proof in the tests needs fewer than 100
FEW_STEPS: Final = 60  # and for the range of an atom, or whether the opposite holds
WORK: Final = 4000  # terms and atoms looked at for one question; a development model needs up to 1,627
GOAL_DEPTH: Final = 20
MEMO: Final = 20_000  # entries before a solver forgets


class Notes:
    """What proofs found: bounds, steps spent in vain, intervals, simpler forms."""

    def __init__(self) -> None:
        self.memo: dict[Dim, tuple[Num, bool]] = {}
        self.tried: dict[Dim, int] = {}
        self.spans: dict[Atom, NumSpan] = {}
        self.simple: dict[Dim, Dim] = {}


class Solver:
    """Lower bounds under fixed knowledge; symbols without a range are >= 0.

    ranges: name -> (low, high) inclusive, None for unbounded. uppers, lowers: name -> Dims that bound it.
    zeros: Dims known to be 0. nonneg: Dims known to be >= 0.
    """

    def __init__(
        self,
        ranges: Mapping[str, tuple[int | None, int | None]],
        uppers: Mapping[str, tuple[Dim, ...]],
        lowers: Mapping[str, tuple[Dim, ...]],
        zeros: tuple[Dim, ...],
        nonneg: tuple[Dim, ...],
    ) -> None:
        self.ranges = ranges
        self.uppers, self.lowers = _bounds_from(nonneg, uppers, lowers)
        self.zeros, self.nonneg = zeros, nonneg
        facts = (s for fact in (*zeros, *nonneg) for s in fact.symbols)
        self._bounded = frozenset((*self.uppers, *self.lowers, *facts))
        self._known: dict[Dim, Num] = {}  # what the facts say as they stand: a search may end before them
        for fact in nonneg:
            g, q, k = fact.primitive()
            if g:  # else it is a number
                self._known[q] = max(_ceil(-k, g), self._known.get(q, -INF))
        # monomial -> where it stands: which fact, zeros first, and which of its terms
        self._places: dict[Mono, list[tuple[int, int]]] = {}
        for place, fact in enumerate((*zeros, *nonneg)):
            for at, (mono, _) in enumerate(fact.sorted_items()):
                if mono:
                    self._places.setdefault(mono, []).append((place, at))
        sides = (*self.uppers.values(), *self.lowers.values())
        self._mentioned = self._bounded | {s for bounds in sides for x in bounds for s in x.symbols}
        self._points = Points(ranges, self.uppers, self.lowers, zeros, nonneg)
        self._shared = self._own = Notes()
        self._later: frozenset[str] = frozenset()
        self._active: set[Dim] = set()
        self._busy: set[Atom] = set()
        self._depth = 0
        self._steps = 0
        self._work = 0

    def with_symbol(
        self, name: str, given: tuple[int | None, int | None] | None, upper: Dim | None = None
    ) -> Solver | None:
        """The solver that knows a range, or an upper bound, of a symbol more; None when something here speaks
        of that symbol. What is found of Dims without it holds for both, and is noted once."""
        if name in self._mentioned:
            return None
        made = copy(self)
        if given is not None:
            made.ranges = {**self.ranges, name: given}
        if upper is not None:
            made.uppers = {**self.uppers, name: (upper,)}
            made._bounded = self._bounded | {name}
            made._mentioned = self._mentioned | {name} | upper.symbols
        made._points = Points(made.ranges, made.uppers, made.lowers, self.zeros, self.nonneg)
        made._own, made._later = Notes(), self._later | {name}
        made._active, made._busy = set(), set()
        made._depth = made._steps = 0
        return made

    def _notes(self, p: Dim) -> Notes:
        return self._shared if p.symbols.isdisjoint(self._later) else self._own

    # -- lower bounds

    def low(self, p: Dim, want: Num = INF, steps: int = MOST_RELAXATIONS) -> Num:
        """A lower bound of p; the search stops early at one that is >= want. -inf when none is found."""
        constant = p.const_or_none
        if constant is not None:
            return constant
        g, q, k = p.primitive()  # multiples and shifts of one q share what is found
        enough = _ceil(want - k, g)
        if not self._depth:
            notes = self._notes(q)
            known = notes.memo.get(q)
            if known is not None and notes.tried.get(q, 0) >= steps:
                return g * known[0] + k  # asking again will not help
            self._steps = steps
            if not self._busy:
                self._work = WORK
            if len(notes.memo) > MEMO:
                notes.memo.clear()
                notes.spans.clear()
                notes.tried.clear()
        found = self._low(q, enough)
        if not self._depth and found < enough and not self.refuted(q, enough):
            self._notes(q).tried[q] = steps
        return g * found + k

    def refuted(self, q: Dim, want: Num) -> bool:
        """Whether q is less than `want` for some values that are allowed."""
        return want < INF and self._points.least(q, want) < want

    def varies(self, q: Dim) -> bool:
        """Whether q has several values that are allowed."""
        return self._points.least(q) < -self._points.least(-q) < INF

    def high(self, p: Dim, want: Num = -INF, steps: int = MOST_RELAXATIONS) -> Num:
        """An upper bound of p; the search stops early at one that is <= want."""
        return -self.low(-p, -want, steps)

    def _low(self, q: Dim, want: Num) -> Num:
        memo = self._notes(q).memo
        found = memo.get(q)
        if found is None:
            if (known := self._known.get(q, -INF)) >= want:
                return known
            found = memo[q] = self._first(q)
        best, done = found
        spent = self._steps <= 0 or self._work <= 0
        if done or best >= want or q in self._active or self._depth >= GOAL_DEPTH or spent:
            return best
        least = self._points.least(q, want if isinstance(want, int) else -INF)
        endless = want == INF and self._points.endless(q)
        if best >= least or least < want < INF or endless:
            memo[q] = (best, endless or best >= least)
            return best
        self._work -= len(q._poly)
        self._active.add(q)
        self._depth += 1
        try:
            best = max(best, self._factored(q, want))
            for scale, goals in self._relaxations(q, want) if best < want else ():
                self._steps -= 1
                enough = scale * (want - 1) + 1  # rounding to an integer does the rest
                low: Num = INF
                for goal in goals:
                    low = min(low, self.low(goal, enough))
                    if low == -INF:
                        break
                best = max(best, _ceil(low, scale))
                if best >= min(want, least) or self._steps <= 0:
                    break
        finally:
            self._depth -= 1
            self._active.discard(q)
        memo[q] = (best, best >= least or (self._steps > 0 < self._work and best < want))
        return best

    def _first(self, q: Dim) -> tuple[Num, bool]:
        """The interval's bound of q, and whether there is no better one: a term that shares nothing with the
        rest, and has numbers as its only bounds, can go as far as those say."""
        best = max(self._interval(q), self._known.get(q, -INF))
        if self._independent(q):
            return best, True
        free = [m for m in q._poly if self._free(m) and _name(m) not in self._mentioned]
        if best == -INF and free:
            others = {s for m in q._poly if m not in free for atom, _ in m for s in atom.symbols}
            for mono in free:
                low, high = self._mono_span(mono)
                k = q._poly[mono]
                if _times(k, low if k > 0 else high) == -INF and _name(mono) not in others:
                    return best, True
        return best, False

    def _free(self, mono: Mono) -> bool:
        """Whether a monomial is a symbol that only numbers bound."""
        atom, power = mono[0]
        return len(mono) == 1 == power and isinstance(atom, SymbolAtom) and atom.name not in self._bounded

    def _independent(self, q: Dim) -> bool:
        """Whether q is a sum of multiples of symbols that only numbers bound: its interval is exact."""
        return all(map(self._free, q._poly))

    def _factored(self, q: Dim, want: Num) -> Num:
        """q == m*r with a monomial m >= 0: from the bounds of the two."""
        _, mono = common_factor(q)
        if not mono or len(q._poly) < 2:
            return -INF
        low, high = self._mono_span(mono)
        if low < 0:
            return -INF
        rest = self.low(divide_terms(q, 1, mono), 0 if want <= 0 else INF)
        return _times(low if rest >= 0 else high, rest)

    # -- intervals

    def interval(self, q: Dim) -> NumSpan:
        """The lower and the upper end of q, term by term."""
        return self._interval(q), -self._interval(-q)

    def _interval(self, q: Dim) -> Num:
        total: Num = 0
        for mono, k in q._poly.items():
            part = _times(k, self._mono_low(mono) if k > 0 else self._mono_span(mono)[1])
            if part == -INF:
                return part
            total += part
        return total

    def _mono_low(self, mono: Mono) -> Num:
        """The lower end; of a symbol without its upper end, which may take a search."""
        if len(mono) == 1 == mono[0][1]:
            atom = mono[0][0]
            if isinstance(atom, SymbolAtom) and atom.name not in self.lowers:
                return self._given(atom.name)[0]
        return self._mono_span(mono)[0]

    def _mono_span(self, mono: Mono) -> NumSpan:
        low: Num = 1
        high: Num = 1
        for atom, power in mono:
            a, b = self.span(atom)
            for _ in range(power):
                corners = (_times(low, a), _times(low, b), _times(high, a), _times(high, b))
                low, high = min(corners), max(corners)
            if power % 2 == 0 and a < 0 and len(mono) == 1:
                low = max(low, 0)
        return low, high

    def span(self, atom: Atom) -> NumSpan:
        """The interval of an atom."""
        later = self._later and not atom.symbols.isdisjoint(self._later)
        spans = (self._own if later else self._shared).spans
        found = spans.get(atom)
        if found is not None:
            return found
        if atom in self._busy:  # bounds that bound each other
            return self._given(atom.name) if isinstance(atom, SymbolAtom) else (-INF, INF)
        # a question of its own, with a budget of its own
        outer = self._depth, self._steps, self._active
        self._depth, self._active = 0, set()
        self._busy.add(atom)
        try:
            if isinstance(atom, SymbolAtom):
                low, high = self._given(atom.name)
                low = max(low, *(self._interval(x) for x in self.lowers.get(atom.name, ())), -INF)
                high = min(high, *(-self._interval(-x) for x in self.uppers.get(atom.name, ())), INF)
                found = low, high
            elif isinstance(atom, FloorDiv):
                found = self._quotient_span(atom)
            else:
                assert isinstance(atom, Min | Max)
                lows = [self.low(x, steps=FEW_STEPS) for x in atom.args]
                highs = [self.high(x, steps=FEW_STEPS) for x in atom.args]
                pick = min if isinstance(atom, Min) else max
                found = pick(lows), pick(highs)
        finally:
            self._busy.discard(atom)
            self._depth, self._steps, self._active = outer
        spans[atom] = found
        return found

    def _given(self, name: str) -> NumSpan:
        low, high = self.ranges.get(name, (0, None))
        return (-INF if low is None else low), (INF if high is None else high)

    def _quotient_span(self, atom: FloorDiv) -> NumSpan:
        b_low, b_high = self.low(atom.b, steps=FEW_STEPS), self.high(atom.b, steps=FEW_STEPS)
        if b_low < 0:
            return -INF, INF
        b_low, b_high = max(b_low, 1), max(b_high, 1)  # a divisor that is not negative is at least 1
        low, high = self.low(atom.a, steps=FEW_STEPS), self.high(atom.a, steps=FEW_STEPS)
        return _floor(low, b_low if low < 0 else b_high), _floor(high, b_high if high < 0 else b_low)

    # -- relaxations

    def _relaxations(self, q: Dim, want: Num) -> Iterator[Goal]:
        atoms = {atom: None for mono, _ in q.sorted_items() for atom, _ in mono}
        self._work -= len(atoms)  # each may ask for two signs, which have no steps of their own
        for atom in sorted(atoms, key=self._priority):
            parts = _split(q, atom)
            if isinstance(atom, SymbolAtom):
                yield from self._relax_symbol(atom, parts)
            elif len(parts) > (0 in parts) + 1 or 1 not in parts:
                continue  # a power of an atom
            elif isinstance(atom, FloorDiv):
                yield from self._relax_quotient(atom, parts[1], parts.get(0, ZERO), want)
            elif isinstance(atom, Min | Max):
                yield from self._relax_extreme(atom, parts[1], parts.get(0, ZERO))
        yield from self._relax_remainders(q)
        yield from self._use_facts(q)

    def _priority(self, atom: Atom) -> int:
        if isinstance(atom, SymbolAtom):
            return 2 if atom.name in self.uppers or atom.name in self.lowers else 3
        return 1 if isinstance(atom, FloorDiv) else 0

    def _sign(self, parts: list[Dim]) -> int:
        """1 when all parts are >= 0, -1 when all are <= 0, else 0."""
        if all(self.low(x, 0) >= 0 for x in parts):
            return 1
        return -1 if all(self.high(x, 0) <= 0 for x in parts) else 0

    def _relax_symbol(self, atom: SymbolAtom, parts: Mapping[int, Dim]) -> Iterator[Goal]:
        rest = parts.get(0, ZERO)
        coefs = {n: x for n, x in parts.items() if n}
        linear = coefs.keys() == {1}
        low, high = self.span(atom)
        if not linear and low < 0:
            return
        downs = [to_dim(low)] if isinstance(low, int) else []
        ups = [to_dim(high)] if isinstance(high, int) else []
        if linear:
            downs = [*self.lowers.get(atom.name, ()), *downs]
        ups = [*self.uppers.get(atom.name, ()), *ups]
        sign = self._sign(list(coefs.values()))

        def at(value: Dim) -> Dim:
            return sum((x * product([value] * n) for n, x in coefs.items()), rest)

        if sign:
            yield from ((1, (at(value),)) for value in (downs if sign > 0 else ups))
        elif linear:  # linear in v: smallest at one of the ends
            yield from ((1, (at(a), at(b))) for a in downs for b in ups)

    def _relax_quotient(self, atom: FloorDiv, coef: Dim, rest: Dim, want: Num) -> Iterator[Goal]:
        x, d = atom.a, atom.b
        sign = self._sign([coef])
        if not sign or self.low(d, 0) < 0:
            return
        bound = x - d + 1 if sign > 0 else x  # of d*(x//d)
        c = d.const_or_none
        if c is not None:
            yield c, (coef * bound + rest * c,)
        else:
            times, left = divide_poly(coef, d)
            if left == 0:
                yield 1, (times * bound + rest,)
            elif isinstance(want, int):
                # q >= want follows from d*(q - want) > -d, since d >= 1
                goal = coef * bound + (rest - want + 1) * d - 1
                if self.low(goal, 0) >= 0:
                    yield 1, (to_dim(want),)
            if sign < 0 and self.low(x, 0) >= 0:  # x//d <= x
                yield 1, (coef * x + rest,)
        low, high = self.span(atom)
        end = low if sign > 0 else high
        if isinstance(end, int):
            yield 1, (coef * end + rest,)

        yield from ((1, (coef * better + rest,)) for better in self._shifted(atom, sign < 0))

    def _shifted(self, atom: FloorDiv, up: bool) -> Iterator[Dim]:
        """Divisions that are never smaller (up; else never larger), by a symbolic bound of one symbol."""
        for name in sorted(atom.a.symbols):
            split = atom.a.linear(name)
            if split is None or split[0] == 0:
                continue
            coef, rest = split
            for side, sign in ((self.uppers, 1), (self.lowers, -1)):
                for bound in side.get(name, ()):
                    towards = coef * sign if up else -coef * sign
                    if name not in atom.b.symbols and self.low(towards, 0) >= 0:
                        yield (coef * bound + rest) // atom.b

    def _relax_remainders(self, q: Dim) -> Iterator[Goal]:
        """k*(y % d) lies in 0 .. k*(d - 1), whatever the y//d beside it is."""
        for k, mono in q.terms():
            mods = [atom for atom, _ in mono if isinstance(atom, Mod)]
            if len(mods) != 1 or self.low(mods[0].b, 0) < 0:
                continue
            y, d = mods[0].a, mods[0].b
            others = mono_div(mono, ((mods[0], 1),))
            assert others is not None
            if any(isinstance(atom, Mod) for atom, _ in others):
                continue
            coef = make({others: k})
            sign = self._sign([coef])
            if sign:
                yield 1, (q - coef * (y % d) + (coef * (d - 1) if sign < 0 else ZERO),)

    def _relax_extreme(self, atom: Min | Max, coef: Dim, rest: Dim) -> Iterator[Goal]:
        sign = self._sign([coef])
        goals = tuple(coef * x + rest for x in atom.args)
        if sign and (sign > 0) == isinstance(atom, Min):
            yield 1, goals
        elif sign:
            yield from ((1, (goal,)) for goal in goals)

    def _use_facts(self, q: Dim) -> Iterator[Goal]:
        found = sorted(x for mono in q._poly for x in self._places.get(mono, ()))
        for place, at in found:
            exact = place < len(self.zeros)
            fact = self.zeros[place] if exact else self.nonneg[place - len(self.zeros)]
            mono, n = fact.sorted_items()[at]
            k = q._poly[mono]
            if exact or k * n > 0:
                g = math.gcd(k, n)
                scale = abs(n) // g
                yield scale, (q * scale - fact * (k * scale // n),)

    # -- simpler forms

    def simplify(self, p: Dim) -> Dim:
        """An equal Dim with the divisions, minima and maxima gone that the bounds decide."""
        if all(isinstance(a, SymbolAtom) for m in p._poly for a, _ in m):
            return p
        simple = self._notes(p).simple
        found = simple.get(p)
        if found is None:
            found = p
            for _ in range(4):
                before = found
                found = _map_atoms(found, lambda a: rebuild_atom(a, self.simplify))
                found = _map_atoms(found, self._narrow)
                if found is before:
                    break
            if len(simple) > MEMO:
                simple.clear()
            simple[p] = found
        return found

    def _narrow(self, atom: Atom) -> Dim:
        if isinstance(atom, FloorDiv):
            return self._narrow_quotient(atom)
        if not isinstance(atom, Min | Max):
            return atom_dim(atom)
        sign = 1 if isinstance(atom, Min) else -1
        kept = list(atom.args)
        for x in atom.args:
            if any(y is not x and (self._covers(x, y) if sign > 0 else self._covers(y, x)) for y in kept):
                kept.remove(x)
        return (dmin if sign > 0 else dmax)(*kept)

    def _covers(self, x: Dim, y: Dim) -> bool:
        """Whether x >= y is proved."""
        a, b = sole_atom(x), sole_atom(y)
        if a is not None and b is not None and self._independent(x) and self._independent(y):
            return self.span(a)[0] >= self.span(b)[1]  # two symbols
        return self.low(x - y, 0) >= 0

    def _narrow_quotient(self, atom: FloorDiv) -> Dim:
        a, b = atom.a, atom.b
        low, high = self._quotient_span(atom)
        if low == high:
            return to_dim(int(low))
        c = b.const_or_none
        if c is None:
            if self.low(b, 0) < 0:
                return atom_dim(atom)
            for j in (0, -1):  # j*b <= a < (j+1)*b
                if self.low(a - b * j, 0) >= 0 and self.low(b * (j + 1) - a, 1) >= 1:
                    return to_dim(j)
        # (g*r + s)//(g*b)  -->  r//b  for 0 <= s < g
        tried: set[tuple[int, Mono]] = set()
        for mono, k in a.sorted_items():
            g = common_factor(make({mono: k}), b)
            if not mono or g == (1, ()) or g in tried:
                continue
            tried.add(g)
            number, factor = g
            rest = {m: j for m, j in a._poly.items() if j % number or mono_div(m, factor) is None}
            step, small = make({factor: number}), make(rest)
            times: Num = _floor(self.low(small), number) if not factor else 0
            if not isinstance(times, int) or self.low(small, times * number) < times * number:
                continue
            if self.high(small - step * times - step, -1) <= -1:
                return (a - small + step * times) // b
        return atom_dim(atom)


def _bounds_from(
    nonneg: tuple[Dim, ...], uppers: Mapping[str, tuple[Dim, ...]], lowers: Mapping[str, tuple[Dim, ...]]
) -> tuple[dict[str, tuple[Dim, ...]], dict[str, tuple[Dim, ...]]]:
    """The given bounds and those that follow from n >= 0 for a symbol whose coefficient in n is 1 or -1."""
    above, below = dict(uppers), dict(lowers)
    for fact in nonneg:
        seen = Counter(s for mono in fact._poly for s in {s for atom, _ in mono for s in atom.symbols})
        for mono, k in fact.sorted_items():
            if k not in (1, -1) or len(mono) != 1 or mono[0][1] != 1:
                continue
            atom = mono[0][0]
            if not isinstance(atom, SymbolAtom) or seen[atom.name] > 1:
                continue
            rest = {m: -n if k == 1 else n for m, n in fact._poly.items() if m != mono}
            side = below if k == 1 else above
            side[atom.name] = (*side.get(atom.name, ()), make(rest))
    return above, below


def _split(q: Dim, atom: Atom) -> dict[int, Dim]:
    """Power of the atom -> what it is multiplied with."""
    parts: dict[int, Poly] = {}
    for mono, k in q._poly.items():
        power = next((n for a, n in mono if a is atom), 0)
        others = tuple(x for x in mono if x[0] is not atom) if power else mono
        parts.setdefault(power, {})[others] = k
    return {power: make(parts[power]) for power in sorted(parts)}


def _map_atoms(p: Dim, change: Callable[[Atom], Dim]) -> Dim:
    total = ZERO
    for mono, k in p.sorted_items():
        part = ONE * k
        for atom, power in mono:
            value = atom_dim(atom) if isinstance(atom, SymbolAtom) else change(atom)
            for _ in range(power):
                part = part * value
        total = total + part
    return total


def _times(a: Num, b: Num) -> Num:
    if a == 0 or b == 0:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return INF if (a > 0) == (b > 0) else -INF


def _ceil(a: Num, b: int) -> Num:
    return -(-a // b) if isinstance(a, int) else a


def _floor(a: Num, b: Num) -> Num:
    """a // b for b >= 1."""
    if not isinstance(a, int):
        return a
    return a // b if isinstance(b, int) else (0 if a >= 0 else -1)


def _name(mono: Mono) -> str:
    atom = mono[0][0]
    assert isinstance(atom, SymbolAtom)
    return atom.name
