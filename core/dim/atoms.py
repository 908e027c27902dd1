"""The atoms of symbolic integers and their products, of which expr.py builds a Dim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from smelt.core.dim.budget import DEGREE, TooLarge, check
from smelt.core.dim.interned import Interned

if TYPE_CHECKING:
    from smelt.core.dim.expr import Dim

CACHE: Final = 1 << 15  # entries of each memo; a module of 7,000 nodes needs about 5,000

# -- atoms: one object per meaning, so identity is equality; take them from Dim.terms(), never build them


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class SymbolAtom:
    """A named unknown integer."""

    name: str
    key: tuple[int, str]
    nodes: int = 1
    depth: int = 0
    symbols: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class FloorDiv:
    """a // b, rounded towards minus infinity."""

    a: Dim
    b: Dim
    key: tuple[int, str]
    nodes: int = 1
    depth: int = 0
    symbols: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Mod:
    """a % b with the sign of b; occurs only in what terms() gives out."""

    a: Dim
    b: Dim
    key: tuple[int, str]
    nodes: int = 1
    depth: int = 0
    symbols: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Min:
    """The smallest of two or more args."""

    args: tuple[Dim, ...]
    key: tuple[int, str]
    nodes: int = 1
    depth: int = 0
    symbols: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Max:
    """The largest of two or more args."""

    args: tuple[Dim, ...]
    key: tuple[int, str]
    nodes: int = 1
    depth: int = 0
    symbols: frozenset[str] = frozenset()


Atom: TypeAlias = SymbolAtom | FloorDiv | Mod | Min | Max
Mono: TypeAlias = tuple[tuple[Atom, int], ...]  # product of atom ** power, sorted by atom.key; () is 1
Poly: TypeAlias = dict[Mono, int]  # no zero coefficients
Term: TypeAlias = tuple[int, Mono]

_ATOMS: Final[Interned[tuple[object, ...], Atom]] = Interned()

_RANK: Final[dict[type, int]] = {SymbolAtom: 0, FloorDiv: 1, Mod: 2, Min: 3, Max: 4}


def intern_atom(kind: Callable[..., Atom], *parts: object) -> Atom:
    """The one atom of this class with these fields; Dim.terms() is where others get theirs."""
    key = (kind, *parts)
    known = _ATOMS.refs.get(key)
    found = None if known is None else known()
    if found is not None:
        return found
    from smelt.core.dim.present import ATOM_TEXT

    bare = kind(*parts, (0, ""))
    nodes, depth = _extent(bare)
    check(0, nodes, depth)
    key_of = (_RANK[bare.__class__], ATOM_TEXT[bare.__class__](bare))
    return _ATOMS.add(key, kind(*parts, key_of, nodes, depth, _symbols(bare)))


def _extent(atom: Atom) -> tuple[int, int]:
    """Nodes of an atom written out, and how deep it nests."""
    if isinstance(atom, SymbolAtom):
        return 1, 0
    parts = atom.args if isinstance(atom, Min | Max) else (atom.a, atom.b)
    return 1 + sum(x.nodes for x in parts), 1 + max(x.depth for x in parts)


def _symbols(atom: Atom) -> frozenset[str]:
    if isinstance(atom, SymbolAtom):
        return frozenset((atom.name,))
    if isinstance(atom, Min | Max):
        return frozenset().union(*(x.symbols for x in atom.args))
    return atom.a.symbols | atom.b.symbols


# -- monomials


def _atom_key(item: tuple[Atom, int]) -> tuple[int, str]:
    return item[0].key


@lru_cache(CACHE)
def mono_key(mono: Mono) -> tuple[object, ...]:
    """Sort key: graded lexicographic, highest degree first; the constant comes last."""
    return (-sum([n for _, n in mono]), tuple([(a.key, -n) for a, n in mono]))


@lru_cache(CACHE)
def mono_mul(m: Mono, n: Mono) -> Mono:
    """The product of two monomials. Raises TooLarge."""
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    if sum(powers.values()) > DEGREE:
        raise TooLarge(f"{DEGREE} factors in a term")
    return tuple(sorted(powers.items(), key=_atom_key))


def mono_div(m: Mono, n: Mono) -> Mono | None:
    """m / n when n divides m."""
    if not n:
        return m
    powers = dict(m)
    for atom, power in n:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
        else:
            del powers[atom]
    return tuple(powers.items())


def mono_gcd(m: Mono, n: Mono) -> Mono:
    """The largest monomial that divides both."""
    if not m or not n:
        return ()
    if m == n:
        return m
    other = dict(n)
    return tuple([(a, min(p, other[a])) for a, p in m if a in other])
