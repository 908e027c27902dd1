"""Integers and other Dims -> Dim, a canonical symbolic integer whose equal spellings are one object.

A Dim is a polynomial with int coefficients over atoms: symbols, floor divisions, minima and maxima. Inside,
`x % c` is x - c*(x//c), so that c*(x//c) + x%c == x and (x//2) % 3 == (x % 6)//2 hold by construction;
`terms()` and `str` find the remainders again (present.py).

What is assumed, and nothing more: `//` and `%` floor, as in Python; a division by an expression that is zero
has no value, so common factors cancel; and a symbolic divisor with only positive coefficients is positive
(sizes are), which (x//a)//b == x//(a*b) needs. Everything else holds for all integers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias, final

from smelt.core.dim.atoms import (
    CACHE,
    Atom,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mono,
    Poly,
    SymbolAtom,
    Term,
    intern_atom,
    mono_div,
    mono_gcd,
    mono_key,
    mono_mul,
)
from smelt.core.dim.budget import (
    BITS,
    MOST_PRODUCTS,
    TooLarge,
    check,
)
from smelt.core.dim.interned import Interned


class SupportsIndex(Protocol):
    """An int of any make, NumPy's included."""

    def __index__(self) -> int: ...


_DIMS: Final[Interned[frozenset[tuple[Mono, int]], Dim]] = Interned()


@final
class Dim:
    """An immutable symbolic integer; `==` and hash agree with int for constants."""

    __slots__ = (
        "__weakref__", "_hash", "_poly", "_primitive", "_sorted", "_symbols", "_terms", "_text",
        "const_or_none", "depth", "nodes",
    )  # fmt: skip
    __array_ufunc__ = None  # NumPy scalars on the left leave the operation to us

    _poly: Poly
    _hash: int
    _primitive: tuple[int, Dim | None, int] | None
    _sorted: tuple[tuple[Mono, int], ...] | None
    _symbols: frozenset[str] | None
    _terms: tuple[Term, ...] | None
    _text: str | None
    const_or_none: int | None
    """The value when no symbol is left, else None."""
    nodes: int
    """Of the expression written out: symbols, operators, numbers."""
    depth: int
    """Divisions, minima and maxima inside each other."""

    def __init__(self) -> None:
        raise TypeError("build a Dim with sym(), to_dim() or arithmetic")

    # -- what it is

    @property
    def is_const(self) -> bool:
        """True when no symbol is left."""
        return self.const_or_none is not None

    @property
    def const(self) -> int:
        """The value; asserts that no symbol is left."""
        value = self.const_or_none
        assert value is not None, f"{self} is not a constant"
        return value

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols, those inside divisions and minima included."""
        found = self._symbols
        if found is None:
            found = frozenset().union(*[a.symbols for m in self._poly for a, _ in m])
            self._symbols = found
        return found

    def sorted_items(self) -> tuple[tuple[Mono, int], ...]:
        """Monomials and coefficients of the canonical polynomial (no Mod), highest degree first."""
        found = self._sorted
        if found is None:
            items = self._poly.items()
            found = tuple(sorted(items, key=item_key) if len(items) > 1 else items)
            self._sorted = found
        return found

    def primitive(self) -> tuple[int, Dim, int]:
        """(g, q, k) with self == g*q + k; q has no constant and no common factor. g is 0 for a number."""
        found = self._primitive
        if found is None:
            k = self._poly.get((), 0)
            moving = self._poly.items() if not k else [item for item in self._poly.items() if item[0]]
            g = math.gcd(*[n for _, n in moving])
            # itself is not noted: an object that holds itself stays until cycles are looked for
            q = None if not k and g == 1 else make({m: n // g for m, n in moving})
            found = self._primitive = g, q, k
        g, q, k = found
        return g, self if q is None else q, k

    def terms(self) -> tuple[Term, ...]:
        """The sum as (coefficient, ((atom, power), ...)) in the order that str prints; for emitters."""
        found = self._terms
        if found is None:
            from smelt.core.dim.present import present

            found = self._terms = present(self)
        return found

    def linear(self, name: str) -> tuple[Dim, Dim] | None:
        """(c, r) with self == c*name + r, neither containing `name`; None when there are none."""
        if name not in self.symbols:
            return ZERO, self
        coef: Poly = {}
        rest: Poly = {}
        for mono, k in self._poly.items():
            others: list[tuple[Atom, int]] = []
            found = False
            for atom, power in mono:
                if isinstance(atom, SymbolAtom) and atom.name == name:
                    if power != 1:
                        return None
                    found = True
                elif name in atom.symbols:
                    return None
                else:
                    others.append((atom, power))
            (coef if found else rest)[tuple(others)] = k
        return make(coef), make(rest)

    # -- arithmetic

    def __add__(self, other: DimLike) -> Dim:
        if not isinstance(other, Dim):
            if not hasattr(other, "__index__"):
                return NotImplemented
            other = to_dim(other)
        big, small = self._poly, other._poly
        if len(big) < len(small):
            big, small = small, big
        if not small:
            return other if big is other._poly else self
        poly = dict(big)
        for mono, k in small.items():
            total = poly.get(mono, 0) + k
            if total:
                poly[mono] = total
            else:
                del poly[mono]
        return make(poly)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return make({m: -k for m, k in self._poly.items()})

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: DimLike) -> Dim:
        if not isinstance(other, Dim):
            if not hasattr(other, "__index__"):
                return NotImplemented
            other = to_dim(other)
        if self is other:
            return ZERO
        poly = dict(self._poly)
        for mono, k in other._poly.items():
            total = poly.get(mono, 0) - k
            if total:
                poly[mono] = total
            else:
                del poly[mono]
        return make(poly)

    def __rsub__(self, other: DimLike) -> Dim:
        return to_dim(other) - self if hasattr(other, "__index__") else NotImplemented

    def __mul__(self, other: DimLike) -> Dim:
        if not isinstance(other, Dim):
            if not hasattr(other, "__index__"):
                return NotImplemented
            other = to_dim(other)
        c = other.const_or_none
        if c is not None:
            return self if c == 1 else make({m: k * c for m, k in self._poly.items()} if c else {})
        poly: Poly = {}
        if len(self._poly) * len(other._poly) > MOST_PRODUCTS:
            raise TooLarge(f"{MOST_PRODUCTS} products of terms")
        for m, j in self._poly.items():
            for n, k in other._poly.items():
                mono = mono_mul(m, n) if m and n else m or n
                total = poly.get(mono, 0) + j * k
                if total:
                    poly[mono] = total
                else:
                    del poly[mono]
        return make(poly)

    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> Dim:
        if not isinstance(other, Dim) and not hasattr(other, "__index__"):
            return NotImplemented
        return _floordiv(self, to_dim(other))

    def __rfloordiv__(self, other: DimLike) -> Dim:
        return _floordiv(to_dim(other), self) if hasattr(other, "__index__") else NotImplemented

    def __mod__(self, other: DimLike) -> Dim:
        if not isinstance(other, Dim) and not hasattr(other, "__index__"):
            return NotImplemented
        other = to_dim(other)
        return self - _floordiv(self, other) * other

    def __rmod__(self, other: DimLike) -> Dim:
        return to_dim(other) % self if hasattr(other, "__index__") else NotImplemented

    # -- meaning

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The value for these symbols. Raises KeyError (a symbol is missing), ZeroDivisionError."""
        total = 0
        for mono, k in self._poly.items():
            for atom, power in mono:
                if atom.__class__ is SymbolAtom:
                    value = env[atom.name]
                else:
                    value = _EVALUATE[atom.__class__](atom, env)
                k *= value if power == 1 else value**power
            total += k
        return total

    def substitute(self, mapping: Mapping[str, DimLike]) -> Dim:
        """All symbols of `mapping` replaced at once, and the result canonical again."""
        names = self.symbols
        if names.isdisjoint(mapping):
            return self
        if len(names) == 1:
            (name,) = names
            return _substitute(self, ((name, to_dim(mapping[name])),))
        some, others = (names, mapping) if len(mapping) > len(names) else (mapping, names)
        return _substitute(self, tuple([(n, to_dim(mapping[n])) for n in sorted(some) if n in others]))

    # -- identity

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other.__class__ is Dim:
            return False  # equal Dims are one object
        if isinstance(other, int):
            return self.const_or_none == other
        try:
            return self.const_or_none == operator.index(other)  # type: ignore[arg-type]
        except TypeError:
            return NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"a Dim has no truth value ({self}); compare with == or ask Facts.prove_...")

    def __str__(self) -> str:
        found = self._text
        if found is None:
            from smelt.core.dim.present import terms_text

            found = self._text = terms_text(self.terms())
        return found

    def __repr__(self) -> str:
        return f"<Dim {self}>"

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        from smelt.core.dim.parse import parse_dim

        return (parse_dim, (str(self), None))


DimLike: TypeAlias = Dim | int


def make(poly: Poly) -> Dim:
    """The one Dim of a polynomial without zero coefficients; the dict is given away. Raises TooLarge."""
    key = frozenset(poly.items())
    known = _DIMS.refs.get(key)
    if known is not None and (found := known()) is not None:
        return found
    nodes = depth = 0
    for mono, k in poly.items():
        nodes += 1
        for atom, _ in mono:
            nodes += atom.nodes
            if atom.depth > depth:
                depth = atom.depth
        if k.bit_length() > BITS:
            raise TooLarge(f"{BITS} bits in a number")
    check(len(poly), nodes, depth)
    dim = object.__new__(Dim)
    dim.nodes, dim.depth = nodes, depth
    dim._poly = poly
    dim._primitive = dim._sorted = dim._symbols = dim._terms = dim._text = None
    value = poly.get(()) if poly else 0
    dim.const_or_none = value if len(poly) <= 1 else None
    dim._hash = hash(key) if dim.const_or_none is None else hash(value)
    return _DIMS.add(key, dim)


# -- construction


@lru_cache(CACHE)
def _constant(value: int) -> Dim:
    return make({(): value} if value else {})


ZERO: Final = _constant(0)
ONE: Final = _constant(1)
TWO: Final = _constant(2)


def to_dim(x: DimLike | SupportsIndex) -> Dim:
    """x itself, or the constant x (any int, NumPy's included); raises TypeError for anything else."""
    return x if isinstance(x, Dim) else _constant(int(operator.index(x)))


@lru_cache(CACHE)
def sym(name: str) -> Dim:
    """The symbol of that name; any string will do (odd ones print in backquotes)."""
    return atom_dim(intern_atom(SymbolAtom, name))


class DividedByZero(ZeroDivisionError):
    """A formula of a model's numbers divides by 0."""


def product(xs: Iterable[DimLike]) -> Dim:
    """The product of all xs; 1 when there are none."""
    result = ONE
    for x in xs:
        result = result * x
    return result


def ceildiv(a: DimLike, b: DimLike) -> Dim:
    """a / b rounded up, for b > 0 (a symbolic b is taken to be)."""
    a, b = to_dim(a), to_dim(b)
    return -(-a // b) if (b.const_or_none or 0) < 0 else (a + b - 1) // b


def align_up(a: DimLike, b: DimLike) -> Dim:
    """The smallest multiple of b (> 0) that is >= a."""
    return ceildiv(a, b) * b


def dmin(*xs: DimLike) -> Dim:
    """The smallest of one or more."""
    return _extreme(True, tuple(map(to_dim, xs)))


def dmax(*xs: DimLike) -> Dim:
    """The largest of one or more."""
    return _extreme(False, tuple(map(to_dim, xs)))


def atom_dim(atom: Atom) -> Dim:
    """The Dim that is just this atom; of a remainder, which `terms` has and polynomials do not, its canonical
    form."""
    return atom.a % atom.b if isinstance(atom, Mod) else make({((atom, 1),): 1})


_EVALUATE: Final[Mapping[type, Callable[[Any, Mapping[str, int]], int]]] = {
    SymbolAtom: lambda atom, env: env[atom.name],
    FloorDiv: lambda atom, env: atom.a.evaluate(env) // atom.b.evaluate(env),
    Mod: lambda atom, env: atom.a.evaluate(env) % atom.b.evaluate(env),
    Min: lambda atom, env: min(x.evaluate(env) for x in atom.args),
    Max: lambda atom, env: max(x.evaluate(env) for x in atom.args),
}


# -- polynomials


def item_key(item: tuple[Mono, int]) -> tuple[object, ...]:
    """Sort key of a term: see mono_key."""
    return mono_key(item[0])


def common_factor(*dims: Dim) -> tuple[int, Mono]:
    """The largest (integer > 0, monomial) that divides every term of all dims; (0, ()) for zeros."""
    number = 0
    mono: Mono | None = None
    for dim in dims:
        for m, k in dim.sorted_items():
            number = math.gcd(number, k)
            mono = m if mono is None else mono_gcd(mono, m)
    return number, mono or ()


def divide_terms(dim: Dim, number: int, mono: Mono) -> Dim:
    """dim / (number*mono), which must divide every term."""
    if number == 1 and not mono:
        return dim
    poly: Poly = {}
    for m, k in dim._poly.items():
        quotient = mono_div(m, mono)
        assert quotient is not None and k % number == 0
        poly[quotient] = k // number
    return make(poly)


def divide_poly(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """(q, r) with a == q*b + r, and no term of r a multiple of b's leading term."""
    lead, k_lead = b.sorted_items()[0]
    if k_lead < 0:
        q, r = divide_poly(a, -b)
        return -q, r
    quotient: Poly = {}
    rest: Poly = {}
    work = dict(a._poly)
    tail = b.sorted_items()[1:]
    steps = 0
    while work:
        steps += 1
        if steps * (len(work) if tail else 1) > MOST_PRODUCTS:
            raise TooLarge(f"{MOST_PRODUCTS} products of terms")
        m = min(work, key=mono_key) if tail else next(iter(work))
        k = work.pop(m)
        part = mono_div(m, lead)
        times, left = divmod(k, k_lead) if part is not None else (0, k)
        if left:
            rest[m] = left
        if part is None or not times:
            continue
        quotient[part] = times
        for n, j in tail:
            mono = mono_mul(part, n)
            total = work.get(mono, 0) - times * j
            if total:
                work[mono] = total
            else:
                work.pop(mono, None)
    return make(quotient), make(rest)


# -- floor division


@lru_cache(CACHE)
def _floordiv(a: Dim, b: Dim) -> Dim:
    number = b.const_or_none
    if number is not None:
        if number == 0:
            raise DividedByZero(f"division of {a} by zero")
        return _div_int(a, number) if number > 0 else _div_int(-a, -number)
    if all(k < 0 for k in b._poly.values()):
        a, b = -a, -b
    # (q*b + r)//b  -->  q + r//b
    q, r = divide_poly(a, b)
    if not r._poly:
        return q
    # (f*r)//(f*b)  -->  r//b
    number, mono = common_factor(r, b)
    r, b = divide_terms(r, number, mono), divide_terms(b, number, mono)
    if mono or number > 1:
        return q + _floordiv(r, b)
    if all(k > 0 for k in b._poly.values()):
        # (g*r + k)//(g*b)  -->  (r + k//g)//b
        k = r._poly.get((), 0)
        number, _ = common_factor(r - k, b)
        if number > 1:
            r = divide_terms(r - k, number, ()) + k // number
            return q + _floordiv(r, divide_terms(b, number, ()))
        # (x//y + e)//b  -->  (x + e*y)//(y*b)
        merged = _merge_nested(r, b)
        if merged is not None:
            return q + merged
    return q + atom_dim(intern_atom(FloorDiv, r, b))


def _div_int(a: Dim, c: int) -> Dim:
    if c == 1:
        return a
    # (c*q + r)//c  -->  q + r//c, every coefficient of r in [0, c)
    quotient: Poly = {}
    rest: Poly = {}
    common = c
    for m, k in a._poly.items():
        times, left = divmod(k, c)
        if times:
            quotient[m] = times
        if left:
            rest[m] = left
            if m:
                common = math.gcd(common, left)
    if common == c:  # only a constant in [0, c) is left
        return make(quotient)
    # (g*r + k)//(g*c)  -->  (r + k//g)//c
    if common > 1:
        small = {m: k // common for m, k in rest.items() if k >= common}
        return make(quotient) + _div_int(make(small), c // common)
    merged = _merge_nested(a, to_dim(c))
    if merged is not None:
        return merged
    # x//c == L - y//c where y = c*L + c-1 - x; of x and y, the one with the smaller coefficients stays
    r = make(rest)
    coefs = [k for m, k in r.sorted_items() if m]
    if coefs > [c - k for k in coefs]:
        y = {m: c - k for m, k in rest.items() if m}
        bound = c - 1 - rest.get((), 0)
        if bound:
            y[()] = bound
        return make(quotient) + make(dict.fromkeys((m for m in rest if m), 1)) - _div_int(make(y), c)
    return make(quotient) + atom_dim(intern_atom(FloorDiv, r, to_dim(c)))


def _merge_nested(a: Dim, b: Dim) -> Dim | None:
    """One division for two, when exactly one term of `a` is a division that can swallow b (> 0)."""
    # (x//y + e)//b  -->  (x + e*y)//(y*b);   (e - x//y)//b  -->  (y-1-x + e*y)//(y*b), y an int
    c = b.const_or_none
    found: list[tuple[FloorDiv, int, int]] = []
    for mono, k in a.sorted_items():
        if len(mono) != 1 or mono[0][1] != 1 or not isinstance(mono[0][0], FloorDiv):
            continue
        atom = mono[0][0]
        whole = atom.b.is_const
        if k == -1 and whole:
            found.append((atom, -1, k))
        elif k == 1 or (c and k % c == 1):
            found.append((atom, 1, k))
        elif c and whole and k % c == c - 1:
            found.append((atom, -1, k))
    if len(found) != 1:
        return None
    atom, sign, k = found[0]
    e, extra = a - k * atom_dim(atom), ZERO
    if c:  # multiples of c leave the division
        extra = ((k - sign) // c) * atom_dim(atom) + make({m: j // c for m, j in e._poly.items() if j // c})
        e = make({m: j % c for m, j in e._poly.items() if j % c})
    if not atom.b.is_const and not e.is_const:
        return None
    top = atom.a if sign > 0 else atom.b - 1 - atom.a
    return extra + _floordiv(top + e * atom.b, atom.b * b)


# -- minima and maxima


@lru_cache(CACHE)
def _extreme(smallest: bool, xs: tuple[Dim, ...]) -> Dim:
    assert xs, "a minimum or maximum of nothing"
    pick = min if smallest else max
    # min(x, x + 1)  -->  x: of args that differ by a constant one stays
    best: dict[Dim, int] = {}
    for x in (part for whole in xs for part in _flat(smallest, whole)):
        k = x._poly.get((), 0)
        moving = x - k
        best[moving] = pick(best[moving], k) if moving in best else k
    args = [moving + k for moving, k in best.items()]
    args = [x for x in args if not _absorbed(smallest, x, args)]
    if len(args) == 1:
        return args[0]
    # min(a + b, a + c)  -->  a + min(b, c);   min(4*a, 8)  -->  4*min(a, 2)
    shift = _common_part(args)
    args = [x - shift for x in args]
    number, _ = common_factor(*args)
    if number > 1:
        args = [divide_terms(x, number, ()) for x in args]
    # what is left may absorb more: min(n, max(n, 2*n))  -->  n + min(0, max(0, n))  -->  n
    if shift != 0 or number > 1:
        return shift + number * _extreme(smallest, tuple(args))
    # min(-a, -b)  -->  -max(a, b)
    if all(k < 0 for x in args for k in x._poly.values()):
        return -_extreme(not smallest, tuple(-x for x in args))
    args.sort(key=lambda x: (x.is_const, str(x)))
    return atom_dim(intern_atom(Min if smallest else Max, tuple(args)))


def _flat(smallest: bool, x: Dim) -> Iterator[Dim]:
    """The args that x stands for: min(a, b) + e inside a min is a + e and b + e."""
    nested = [
        (mono, k)
        for mono, k in x.sorted_items()
        if len(mono) == 1 and mono[0][1] == 1 and isinstance(mono[0][0], Min | Max)
    ]
    if len(nested) == 1:
        mono, k = nested[0]
        atom = mono[0][0]
        assert isinstance(atom, Min | Max)
        if (isinstance(atom, Min) == smallest) == (k > 0):
            rest = x - make({mono: k})
            for arg in atom.args:
                yield from _flat(smallest, k * arg + rest)
            return
    yield x


def _absorbed(smallest: bool, x: Dim, args: list[Dim]) -> bool:
    """True for max(a, ..) beside a in a min (and the other way round): it never decides."""
    atom = sole_atom(x)
    if not isinstance(atom, Max if smallest else Min):
        return False
    return any(y in atom.args for y in args if y is not x)


def _common_part(args: list[Dim]) -> Dim:
    shift: Poly = {}
    for mono in args[0]._poly:
        if not mono and any(x.is_const for x in args):
            continue
        coefs = [x._poly.get(mono, 0) for x in args]
        if all(k > 0 for k in coefs):
            shift[mono] = min(coefs)
        elif all(k < 0 for k in coefs):
            shift[mono] = max(coefs)
    return make(shift)


def sole_atom(x: Dim) -> Atom | None:
    """The atom that x is, when x is exactly one atom."""
    if len(x._poly) != 1:
        return None
    ((mono, k),) = x._poly.items()
    return mono[0][0] if k == 1 and len(mono) == 1 and mono[0][1] == 1 else None


# -- substitution


@lru_cache(CACHE)
def _substitute(dim: Dim, chosen: tuple[tuple[str, Dim], ...]) -> Dim:
    mapping = dict(chosen)
    total = ZERO
    kept: Poly = {}
    for mono, k in dim._poly.items():
        if all(a.symbols.isdisjoint(mapping) for a, _ in mono):
            kept[mono] = k
            continue
        part = to_dim(k)
        for atom, power in mono:
            value = _substitute_atom(atom, mapping)
            for _ in range(power):
                part = part * value
        total = total + part
    return total + make(kept)


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, SymbolAtom):
        found = mapping.get(atom.name)
        return atom_dim(atom) if found is None else found
    return rebuild_atom(atom, lambda x: x.substitute(mapping))


def rebuild_atom(atom: Atom, change: Callable[[Dim], Dim]) -> Dim:
    """The atom with `change` applied to its operands, canonical again; a symbol stays."""
    if isinstance(atom, SymbolAtom):
        return atom_dim(atom)
    if isinstance(atom, Min | Max):
        return _extreme(isinstance(atom, Min), tuple(map(change, atom.args)))
    a, b = change(atom.a), change(atom.b)
    return a // b if isinstance(atom, FloorDiv) else a % b
