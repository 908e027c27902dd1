"""Index expressions (Dims) in, values of 32 bits out, and how large the numbers on the way may become.

Sums and products wrap, so that an address is right whenever its buffer is below 4 GiB. What is compared or
divided must fit 31 bits: `magnitude` bounds it by a polynomial in the kernel's dims, which the driver
evaluates before each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from smelt.core.dim import YES, Atom, Dim, Facts, FloorDiv, Max, Min, Mod, SymbolAtom, product, sym, to_dim
from smelt.core.dim.expr import atom_dim
from smelt.targets.vulkan import wide
from smelt.targets.vulkan.code import Code, V

Env: TypeAlias = Mapping[str, "V | int"]
"""Symbol -> the value or the number that it stands for."""

MOST = (1 << 31) - 1


def numbered(d: Dim, env: Env) -> Dim:
    """d with the symbols replaced that are numbers."""
    known = {s: v for s in d.symbols if isinstance(v := env[s], int)}
    return d.substitute(known) if known else d


def _parts(a: Atom) -> tuple[Dim, ...]:
    match a:
        case FloorDiv() | Mod():
            return (a.a, a.b)
        case Min() | Max():
            return a.args
    return ()


def _constants(d: Dim) -> Iterator[int]:
    for coefficient, factors in d.terms():
        yield coefficient
        for atom, _ in factors:
            for part in _parts(atom):
                yield from _constants(part)


def fits(d: Dim, facts: Facts) -> bool:
    """Whether d is known to fit 31 bits."""
    low, high = facts.bounds(d)
    return low is not None and high is not None and max(-low, high) <= MOST


def is_wide(d: Dim, env: Env, facts: Facts) -> bool:
    """Whether d is to be computed in 64 bits: a number or a symbol in it has more than 31."""
    large = any(abs(n) > MOST for n in _constants(d))
    wider = (n for n in d.symbols if isinstance(v := env[n], V) and v.kind == "w")
    return large or any(not fits(sym(n), facts) for n in wider)


def narrow_index(code: Code, d: Dim, env: Env, facts: Facts, reach: Callable[[Dim], None]) -> V:
    """d in 32 bits. env has every symbol of d; reach is told what must fit 31 bits."""
    return _Narrow(code, env, facts, reach).value(numbered(d, env))


def wide_index(code: Code, d: Dim, env: Env) -> V:
    """d in 64 bits."""
    return _Wide(code, env).value(numbered(d, env))


class _Narrow:
    def __init__(self, code: Code, env: Env, facts: Facts, reach: Callable[[Dim], None]) -> None:
        self.code, self.env, self.facts, self.reach = code, env, facts, reach

    def value(self, d: Dim) -> V:
        if d.is_const:
            return self.code.u(d.const)
        total: V | None = None
        constant = 0
        for coefficient, factors in d.terms():
            if not factors:
                constant = coefficient
                continue
            term: V | None = None
            for atom, power in factors:
                for _ in range(power):
                    value = self.atom(atom)
                    term = value if term is None else term * value
            assert term is not None
            if total is None:
                total = term if coefficient == 1 else term * coefficient
            elif coefficient == -1:
                total = total - term
            else:
                total = total + (term if coefficient == 1 else term * coefficient)
        assert total is not None
        return total + constant if constant else total

    def atom(self, a: Atom) -> V:
        c = self.code
        if isinstance(a, SymbolAtom):
            v = self.env[a.name]
            assert isinstance(v, V)
            return v.low if v.kind == "w" else v
        for part in _parts(a):
            self.reach(part)
        values = [self.value(part) for part in _parts(a)]
        if isinstance(a, FloorDiv | Mod):
            return self.division(a, *values)
        total = values[0]
        for v in values[1:]:
            total = c.select(total < v if isinstance(a, Min) else total > v, total, v)
        return total

    def division(self, a: FloorDiv | Mod, left: V, right: V) -> V:
        c = self.code
        if self.facts.prove_le(0, a.a) is YES and self.facts.prove_le(1, a.b) is YES:
            return c.pure("UDiv" if isinstance(a, FloorDiv) else "UMod", "u", left, right)
        name, build = ("floordiv", _floordiv) if isinstance(a, FloorDiv) else ("floormod", _floormod)
        return c.call(name, "u", build, left, right)


def _floordiv(a: V, b: V) -> V:
    """Towards minus infinity; a divisor of 0 occurs only where the result is not used."""
    c = a.code
    b = c.select(b.equals(0), 1, b)
    q = c.pure("SDiv", "u", a, b)
    off = (q * b).differs(a) & ((a ^ b) < 0)
    return c.select(off, q - 1, q)


def _floormod(a: V, b: V) -> V:
    return a - _floordiv(a, b) * b


class _Wide:
    def __init__(self, code: Code, env: Env) -> None:
        self.code, self.env = code, env

    def value(self, d: Dim) -> V:
        total = self.code.constant("w", 0)
        for coefficient, factors in d.terms():
            term = self.code.constant("w", coefficient)
            for atom, power in factors:
                for _ in range(power):
                    term = wide.mul(term, self.atom(atom))
            total = wide.add(total, term)
        return total

    def atom(self, a: Atom) -> V:
        if isinstance(a, SymbolAtom):
            v = self.env[a.name]
            assert isinstance(v, V)
            return v if v.kind == "w" else wide.extend(v, True)
        values = [self.value(part) for part in _parts(a)]
        if isinstance(a, FloorDiv | Mod):
            return (wide.floordiv if isinstance(a, FloorDiv) else wide.floormod)(*values)
        total = values[0]
        for v in values[1:]:
            first = wide.less(total, v, True) if isinstance(a, Min) else wide.less(v, total, True)
            total = self.code.select(first, total, v)
        return total


def magnitude(d: Dim, reaches: Mapping[str, Dim], facts: Facts) -> Dim:
    """No less than |d|: a polynomial with positive coefficients in the symbols that reaches does not have,
    whose sizes are meant. reaches: what the size of each other symbol does not exceed, where facts do not
    know better."""
    total = to_dim(0)
    for coefficient, factors in d.terms():
        term = to_dim(abs(coefficient))
        for atom, power in factors:
            for _ in range(power):
                term = term * _atom_magnitude(atom, reaches, facts)
        total = total + term
    return total


def _atom_magnitude(a: Atom, reaches: Mapping[str, Dim], facts: Facts) -> Dim:
    if isinstance(a, SymbolAtom | Min | Max):
        low, high = facts.bounds(atom_dim(a))
        if low is not None and high is not None:
            return to_dim(max(-low, high))
    match a:
        case SymbolAtom():
            return reaches.get(a.name, sym(a.name))
        case FloorDiv():
            return magnitude(a.a, reaches, facts) + 1
        case Mod():
            return magnitude(a.b, reaches, facts)
    total = to_dim(0)
    for part in _parts(a):
        total = total + magnitude(part, reaches, facts)
    return total


class Largest:
    """Polynomials with positive coefficients, one by one, and a polynomial that is no less than any of them:
    it has the largest coefficient of each monomial."""

    def __init__(self) -> None:
        self._terms: dict[tuple[str, ...], int] = {}

    def add(self, d: Dim) -> None:
        """d, too."""
        for coefficient, names in monomials(d):
            self._terms[names] = max(self._terms.get(names, 0), coefficient)

    def covers(self, d: Dim) -> bool:
        """Whether d would change nothing."""
        return all(coefficient <= self._terms.get(names, 0) for coefficient, names in monomials(d))

    def polynomial(self) -> Dim:
        """What is no less than each."""
        return sum((product(map(sym, names)) * n for names, n in self._terms.items()), to_dim(0))


def monomials(d: Dim) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The terms of a polynomial without divisions: (coefficient, the symbol of each factor)."""
    for coefficient, factors in d.terms():
        names = []
        for atom, power in factors:
            assert isinstance(atom, SymbolAtom), d
            names += [atom.name] * power
        yield coefficient, tuple(names)
