"""What is known about symbols -> bounds, simpler forms and proofs of Dims."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, reduce, wraps
from math import gcd, lcm
from types import MappingProxyType
from typing import Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from smelt.core.dim.atoms import Atom, Max, Min, SymbolAtom
from smelt.core.dim.budget import TooLarge
from smelt.core.dim.expr import (
    ZERO,
    Dim,
    DimLike,
    common_factor,
    divide_terms,
    dmin,
    product,
    rebuild_atom,
    sole_atom,
    sym,
    to_dim,
)
from smelt.core.dim.halves import floored, halves_joined
from smelt.core.dim.order import unfolded
from smelt.core.dim.solve import FEW_STEPS, Solver

Range: TypeAlias = tuple[int | None, int | None]  # inclusive low, high; None is unbounded

AnswerT = TypeVar("AnswerT")
ArgsT = ParamSpec("ArgsT")

SIZE: Final[Range] = (0, None)  # what a symbol is when nothing else is said


class Truth(Enum):
    """The answer of a proof: YES for all values the facts allow, NO for none of them, or UNKNOWN."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        raise TypeError("a Truth is not a bool; write `is YES`, so that UNKNOWN takes the safe path")


YES: Final = Truth.YES
NO: Final = Truth.NO
UNKNOWN: Final = Truth.UNKNOWN


MOST_GROWN: Final = 200
"""Facts with something more that one Facts keeps."""

MOST_ANSWERS: Final = 5000
"""Answers to questions of one kind that it keeps."""


class _Answers:
    """What was asked of Facts: whether Dims are 0, or 0 or more, their bounds, their simpler forms."""

    def __init__(self) -> None:
        self.equal: dict[Dim, Truth] = {}
        self.signs: dict[Dim, Truth] = {}
        self.ends: dict[Dim, Range] = {}
        self.simple: dict[Dim, Dim] = {}

    def room(self, answers: dict[Dim, AnswerT]) -> dict[Dim, AnswerT]:
        """The answers, where one more may come."""
        if len(answers) >= MOST_ANSWERS:
            answers.clear()
        return answers


def _kept(grow: Callable[Concatenate[Facts, ArgsT], Facts]) -> Callable[Concatenate[Facts, ArgsT], Facts]:
    """A with_... that makes the Facts of equal arguments once, so that the proofs inside serve whoever learns
    the same again: each access in a loop, and each step of a schedule, enters the loop anew."""

    @wraps(grow)
    def kept(self: Facts, /, *args: ArgsT.args, **named: ArgsT.kwargs) -> Facts:
        grown: dict[Hashable, Facts] = self.__dict__.setdefault("_grown", {})
        key = (grow.__name__, *args, *sorted(named.items()))
        found = grown.get(key)
        if found is None:
            if len(grown) >= MOST_GROWN:
                grown.clear()
            found = grow(self, *args, **named)
            if found is not self:
                grown[key] = found
        return found

    return kept


@dataclass(frozen=True)
class Facts:
    """Knowledge about symbols; every with_... gives a new Facts that knows more.

    ranges:   name -> inclusive constant range; a symbol without one is a size, 0 or more
    divisors: name -> d, name % d == 0
    uppers:   name -> Dims it never exceeds;  lowers: name -> Dims it never goes below
    equal:    name -> the Dim it was found to equal; such a name occurs nowhere else in the facts
    zeros:    Dims that are 0 (equalities that could not be solved for a symbol);  nonneg: Dims that are >= 0
    Facts that contradict each other allow no values at all, so that every proof may succeed. Proofs fill
    memos inside, so one Facts serves one thread at a time.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    divisors: Mapping[str, int] = field(default_factory=dict)
    uppers: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    lowers: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    equal: Mapping[str, Dim] = field(default_factory=dict)
    zeros: tuple[Dim, ...] = ()
    nonneg: tuple[Dim, ...] = ()

    def __hash__(self) -> int:
        maps = (self.ranges, self.divisors, self.uppers, self.lowers, self.equal)
        return hash((*(frozenset(m.items()) for m in maps), self.zeros, self.nonneg))

    def __reduce__(self) -> tuple[object, ...]:
        maps = (self.ranges, self.divisors, self.uppers, self.lowers, self.equal)
        return Facts, (*maps, self.zeros, self.nonneg)  # without what was worked out so far

    # -- learning

    @_kept
    def with_range(self, name: str, lo: int | None, hi: int | None) -> Facts:
        """lo <= name <= hi, None for unbounded.

        A first range replaces the 0..* of sizes, later ones narrow it.
        """
        if name in self.equal:
            facts = self if lo is None else self.with_le(lo, sym(name))
            return facts if hi is None else facts.with_le(sym(name), hi)
        if name in self.ranges:
            lo, hi = _meet(self.ranges[name], (lo, hi))
        return self._with_symbol(replace(self, ranges={**self.ranges, name: (lo, hi)}), name, (lo, hi))

    def _with_symbol(self, more: Facts, name: str, given: Range | None, upper: Dim | None = None) -> Facts:
        """`more`, which knows a range or an upper bound of `name` more, with the proofs found here."""
        solver = self.__dict__.get("_solver")
        if solver is not None and name not in self.divisors:
            bound = None if upper is None else self._inside(upper)
            made = solver.with_symbol(name, given, bound)
            if made is not None and (bound is None or name not in bound.symbols):
                more.__dict__["_solver"] = made
        return more

    @_kept
    def with_divisor(self, name: str, d: int) -> Facts:
        """name % d == 0, for d > 0; several divisors add up to their least common multiple."""
        assert d > 0, f"divisor {d} of {name}"
        if name in self.equal:
            whole = self.equal[name]
            atom = sole_atom(whole)
            if isinstance(atom, SymbolAtom):
                return self.with_divisor(atom.name, d)
            return self.with_equal(whole % d, 0)
        return replace(self, divisors={**self.divisors, name: lcm(d, self.divisors.get(name, 1))})

    @_kept
    def with_upper(self, name: str, hi: DimLike) -> Facts:
        """name <= hi; hi may mention other symbols (the last index of a loop with a symbolic extent)."""
        bound = self.substitute(hi)
        if bound.is_const or name in self.equal or name in bound.symbols:
            return self.with_le(sym(name), bound)
        more = replace(self, uppers={**self.uppers, name: _add(self.uppers.get(name, ()), bound)})
        return self._with_symbol(more, name, None, bound)

    @_kept
    def with_lower(self, name: str, lo: DimLike) -> Facts:
        """name >= lo; lo may mention other symbols."""
        bound = self.substitute(lo)
        if bound.is_const or name in self.equal or name in bound.symbols:
            return self.with_le(bound, sym(name))
        return replace(self, lowers={**self.lowers, name: _add(self.lowers.get(name, ()), bound)})

    def with_index(self, name: str, extent: DimLike) -> Facts:
        """0 <= name < extent: the variable of a loop. Where it has a value the extent is above 0, so that
        max(e, 0) is e."""
        return self.with_range(name, 0, None).with_upper(name, _above_zero(to_dim(extent)) - 1)

    @_kept
    def with_le(self, a: DimLike, b: DimLike) -> Facts:
        """a <= b, for any two Dims."""
        rest = self.substitute(to_dim(b) - a)
        terms = rest.sorted_items()
        k = terms[-1][1] if terms and not terms[-1][0] else 0
        if len(terms) == 1 + bool(k) and terms[0][0]:
            (mono, c) = terms[0]
            atom, power = mono[0]
            if isinstance(atom, SymbolAtom) and power == 1 and len(mono) == 1:  # c*name + k >= 0
                low, high = (-(k // c), None) if c > 0 else (None, k // -c)
                given = self.ranges.get(atom.name, SIZE)
                return replace(self, ranges={**self.ranges, atom.name: _meet(given, (low, high))})
        if self._plainly_natural(rest):
            return self
        parts = self.unfolded(rest)
        if parts != (rest,):
            return reduce(lambda facts, part: facts.with_le(0, part), parts, self)
        return self if rest.is_const and rest.const >= 0 else replace(self, nonneg=_add(self.nonneg, rest))

    def _plainly_natural(self, d: Dim) -> bool:
        """Whether d is a sum of products of symbols of which none is negative."""

        def natural(x: Atom) -> bool:
            low = self.ranges.get(x.name, SIZE)[0] if isinstance(x, SymbolAtom) else None
            return low is not None and low >= 0

        return all(k >= 0 and all(natural(x) for x, _ in mono) for mono, k in d.sorted_items())

    def unfolded(self, d: Dim) -> tuple[Dim, ...]:
        """Dims that are all 0 or more exactly where d is, simpler ones where there are any."""
        return unfolded(d, self.seems_natural)

    def with_equal(self, a: DimLike, b: DimLike, times: Mapping[str, int] = MappingProxyType({})) -> Facts:
        """a == b, learned. One symbol is solved for and replaced from then on: a's own name if a is a plain
        symbol, else b's, else the last by name; what cannot be solved is kept for proofs. Raises ValueError
        when prove_eq(a, b) is NO: ask first.

        times: when a run learns each symbol's value, 0 where nothing is said. Only a symbol of the latest
        time is solved for, so that nothing is replaced by what is not known yet.
        """
        left, right = self.substitute(a), self.substitute(b)
        rest = self._reduced(left - right)
        if rest == 0:
            return self
        if self.prove_eq(left, right) is NO:
            raise ValueError(f"{a} == {b} contradicts what is known")
        first = [x.name for x in map(sole_atom, (left, right)) if isinstance(x, SymbolAtom)]
        latest = max(times.get(s, 0) for s in rest.symbols)
        for name in (*first, *sorted(rest.symbols, reverse=True)):
            if times.get(name, 0) < latest:
                continue
            split = rest.linear(name)
            if split is None or split[0].const_or_none is None or split[0] == 0:
                continue
            c, others = split[0].const, split[1]
            value = -others if c == 1 else others // -c
            if abs(c) == 1 or self.prove_divisible(others, abs(c)) is YES:
                return self._solved(name, value)
        return replace(self, zeros=_add(self.zeros, rest))

    def _reduced(self, rest: Dim) -> Dim:
        """rest == 0 with common factors that cannot be 0 divided out."""
        number, mono = common_factor(rest)
        if not number:
            return rest
        mono = tuple((x, n) for x, n in mono if self._solver.span(x)[0] > 0)
        return divide_terms(rest, number, mono)

    def _solved(self, name: str, value: Dim) -> Facts:
        """Replace `name` by `value` everywhere; what was known of the name becomes knowledge of the value."""
        swap = {name: value}

        def out(bounds: Mapping[str, tuple[Dim, ...]]) -> dict[str, tuple[Dim, ...]]:
            return {n: tuple(x.substitute(swap) for x in xs) for n, xs in bounds.items() if n != name}

        facts = Facts(
            {n: r for n, r in self.ranges.items() if n != name},
            {n: d for n, d in self.divisors.items() if n != name},
            out(self.uppers),
            out(self.lowers),
            {**{n: x.substitute(swap) for n, x in self.equal.items()}, name: value},
            tuple(x.substitute(swap) for x in self.zeros),
            tuple(x.substitute(swap) for x in self.nonneg),
        )
        low, high = self.ranges.get(name, SIZE)
        atom = sole_atom(value)
        if isinstance(atom, SymbolAtom):  # the looser of two ranges goes, 0..* included
            given = _meet((low, high), self.ranges.get(atom.name, SIZE))
            facts = replace(facts, ranges={**facts.ranges, atom.name: given})
        else:
            facts = facts if low is None else facts.with_le(low, value)
            facts = facts if high is None else facts.with_le(value, high)
        for bound in self.uppers.get(name, ()):
            facts = facts.with_le(value, bound)
        for bound in self.lowers.get(name, ()):
            facts = facts.with_le(bound, value)
        return facts.with_divisor(name, self.divisors[name]) if name in self.divisors else facts

    # -- asking

    def substitute(self, dim: DimLike) -> Dim:
        """dim with the symbols replaced that equalities were solved for."""
        return to_dim(dim).substitute(self.equal)

    def bounds(self, dim: DimLike) -> Range:
        """An inclusive constant range that holds dim, as tight as is found; None where there is none."""
        dim = to_dim(dim)
        if dim.const_or_none is not None:
            return dim.const_or_none, dim.const_or_none
        found = self._answers.ends.get(dim)
        if found is None:
            found = self._answers.room(self._answers.ends)[dim] = self._bounds(dim)
        return found

    def _bounds(self, dim: Dim) -> Range:
        try:
            inside = self._inside(dim)
            low, high = self._solver.low(inside), self._solver.high(inside)
        except TooLarge:
            return None, None
        return (low if isinstance(low, int) else None), (high if isinstance(high, int) else None)

    def number(self, dim: DimLike) -> int | None:
        """The one value that dim can have, where that is found. Most have several: points tell at once."""
        try:
            inside = self._inside(dim)
            if inside.const_or_none is None and self._solver.varies(inside):
                return None
        except TooLarge:
            return None
        low, high = self.bounds(dim)
        return low if low == high else None

    def simplify(self, dim: DimLike) -> Dim:
        """An equal Dim, with equalities applied and the min, max, // and % gone that the facts decide; the
        number where they leave but one."""
        dim = to_dim(dim)
        if dim.const_or_none is not None:
            return dim
        found = self._answers.simple.get(dim)
        if found is None:
            found = self._answers.room(self._answers.simple)[dim] = self._simplified(dim)
        return found

    def _simplified(self, dim: Dim) -> Dim:
        try:
            found = self._solver.simplify(self._inside(dim))
            if found.const_or_none is None:
                low, high = self._solver.interval(found)
                found = to_dim(low) if isinstance(low, int) and low == high != 0 else found
            return halves_joined(self._outside(found))
        except TooLarge:
            return self.substitute(dim)

    def prove_eq(self, a: DimLike, b: DimLike) -> Truth:
        """a == b?"""
        try:
            difference = to_dim(a) - b
            found = self._answers.equal.get(difference)
            if found is None:
                found = self._prove_eq(difference)
                self._answers.room(self._answers.equal)[difference] = found
            return found
        except TooLarge:
            return UNKNOWN

    def _prove_eq(self, difference: Dim) -> Truth:
        rest = self._inside(difference)
        if rest == 0:
            return YES
        rest = floored(self._solver.simplify(rest))
        constant = rest.const_or_none
        if constant is not None:
            return YES if constant == 0 else NO
        k = rest.sorted_items()[-1][1] if not rest.sorted_items()[-1][0] else 0
        if k % common_factor(rest - k)[0]:  # as 2*n + 1 == 0
            return NO
        low_zero, high_zero = self._solver.low(rest, 1, FEW_STEPS), self._solver.high(rest, -1, FEW_STEPS)
        if low_zero > 0 or high_zero < 0:
            return NO
        low, high = self._solver.low(rest, 0, FEW_STEPS), self._solver.high(rest, 0, FEW_STEPS)
        return YES if low == 0 == high else UNKNOWN

    def prove_le(self, a: DimLike, b: DimLike) -> Truth:
        """a <= b?"""
        try:
            difference = to_dim(b) - a
            constant = difference.const_or_none
            if constant is not None:
                return YES if constant >= 0 else NO
            found = self._answers.signs.get(difference)
            if found is None:
                found = self._not_negative(difference)
                self._answers.room(self._answers.signs)[difference] = found
            return found
        except TooLarge:
            return UNKNOWN

    @cached_property
    def _answers(self) -> _Answers:
        return _Answers()

    def _not_negative(self, difference: Dim) -> Truth:
        rest = self._inside(difference)
        if self._solver.low(rest, 0) >= 0:
            return YES
        if self._solver.refuted(rest, 0) and self._solver.refuted(-rest, 1):
            return UNKNOWN
        simple = floored(self._solver.simplify(rest))
        if simple is not rest and self._solver.low(simple, 0) >= 0:
            return YES
        return NO if self._solver.high(simple, -1, FEW_STEPS) < 0 else UNKNOWN

    def prove_lt(self, a: DimLike, b: DimLike) -> Truth:
        """a < b?"""
        return self.prove_le(to_dim(a) + 1, b)

    def seems_natural(self, dim: DimLike) -> bool:
        """Whether 0 <= dim is proved in a few steps: for what a proof makes better, and none wrong."""
        try:
            return self._solver.low(self._inside(dim), 0, FEW_STEPS) >= 0
        except TooLarge:
            return False

    def interval(self, dim: DimLike) -> Range:
        """As bounds, by plain interval arithmetic alone: wider, and quick for large formulas."""
        try:
            low, high = self._solver.interval(self._inside(dim))
        except TooLarge:
            return None, None
        return (low if isinstance(low, int) else None), (high if isinstance(high, int) else None)

    def prove_divisible(self, a: DimLike, d: DimLike) -> Truth:
        """a % d == 0? d == 0 divides nothing."""
        try:
            return self._prove_divisible(a, d)
        except TooLarge:
            return UNKNOWN

    def _prove_divisible(self, a: DimLike, d: DimLike) -> Truth:
        divisor = self._inside(d)
        if divisor == 0:
            return NO
        rest = floored(self._solver.simplify(self._inside(a) % divisor))
        constant = rest.const_or_none
        if constant is not None:
            return YES if constant == 0 else NO
        if any(divisor == z or -divisor == z for z in self.zeros):
            return UNKNOWN
        apart = self._solver.low(rest, 1, FEW_STEPS) > 0 or self._solver.high(rest, -1, FEW_STEPS) < 0
        return NO if apart else UNKNOWN

    # -- the solver's own symbols: a name with divisor d is d times a hidden symbol

    @cached_property
    def _pinned(self) -> dict[str, Dim]:
        """The names that range and divisor leave one value: k in 64..67 with k % 4 == 0. One that can only
        be 0 stays: so can the variable of a loop of one round, and schedules find loops by such names."""
        found = {}
        for name, (low, high) in self.ranges.items():
            if low is not None and high is not None:
                d = self.divisors.get(name, 1)
                if (first := -(-low // d) * d) == high // d * d != 0:
                    found[name] = to_dim(first)
        return found

    @cached_property
    def _hidden(self) -> dict[str, tuple[str, int]]:
        divisors = self.divisors.items()
        return {n: (f"\0{d} {n}", d) for n, d in divisors if d > 1 and n not in self._pinned}

    @cached_property
    def _swap(self) -> dict[str, Dim]:
        multiples = {name: sym(hidden) * d for name, (hidden, d) in self._hidden.items()}
        multiples.update(self._pinned)
        return {**multiples, **{n: x.substitute(multiples) for n, x in self.equal.items()}}

    @cached_property
    def _solver(self) -> Solver:
        ranges = {n: r for n, r in self.ranges.items() if n not in self._hidden}
        uppers = {n: tuple(map(self._inside, xs)) for n, xs in self.uppers.items()}
        lowers = {n: tuple(map(self._inside, xs)) for n, xs in self.lowers.items()}
        for name, (hidden, d) in self._hidden.items():
            low, high = self.ranges.get(name, SIZE)
            ranges[hidden] = (
                (None if low is None else -(-low // d)),
                (None if high is None else high // d),
            )
            uppers[hidden] = tuple(x // d for x in uppers.pop(name, ()))
            lowers[hidden] = tuple((x + d - 1) // d for x in lowers.pop(name, ()))
        inside = (tuple(map(self._inside, xs)) for xs in (self.zeros, self.nonneg))
        return Solver(ranges, uppers, lowers, *inside)

    def _inside(self, dim: DimLike) -> Dim:
        return to_dim(dim).substitute(self._swap)

    def _outside(self, dim: Dim) -> Dim:
        """The hidden symbols undone: with name == 8*h, 8*h --> name, 2*h --> name//4."""
        if not any(hidden in dim.symbols for hidden, _ in self._hidden.values()):
            return dim
        names = {hidden: (name, d) for name, (hidden, d) in self._hidden.items()}
        total = ZERO
        for mono, k in dim.sorted_items():
            factors: list[Dim] = []
            for atom, power in mono:
                if not isinstance(atom, SymbolAtom) or atom.name not in names:
                    factors += [rebuild_atom(atom, self._outside)] * power
                    continue
                name, d = names[atom.name]
                for _ in range(power):
                    g = d if k % d == 0 else gcd(k, d) if len(mono) == 1 == power else 1
                    k //= g
                    factors.append(sym(name) // (d // g))
            total = total + product(factors) * k
        return total


def _above_zero(extent: Dim) -> Dim:
    """The extent of a loop that has iterations: min(n, max(e, 0)) --> min(n, e)."""
    atom = sole_atom(extent)
    if isinstance(atom, Min):
        return dmin(*map(_above_zero, atom.args))
    if isinstance(atom, Max):
        some = [a for a in atom.args if not a.is_const or a.const > 0]
        return _above_zero(some[0]) if len(some) == 1 else extent
    return extent


def _meet(a: Range, b: Range) -> Range:
    lows = [x for x in (a[0], b[0]) if x is not None]
    highs = [x for x in (a[1], b[1]) if x is not None]
    return (max(lows) if lows else None), (min(highs) if highs else None)


def _add(known: tuple[Dim, ...], new: Dim) -> tuple[Dim, ...]:
    return known if new in known else (*known, new)
