"""Dim -> terms and text: the canonical polynomial with its remainders found again, in one stated order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

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
    mono_key,
    mono_mul,
)
from smelt.core.dim.expr import Dim, to_dim

PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# names that the parser takes for functions; as symbols they are quoted
DIM_FUNCTIONS: Final = frozenset(
    ("min", "max", "floor", "ceil", "ceiling", "mod", "Min", "Max", "Mod", "FloorDiv", "CeilDiv")
)
ESCAPES: Final = {"\\": "\\\\", "`": "\\`", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


MOST_TRIED: Final = 1 << 14
"""Trial divisors of a coefficient."""


def present(dim: Dim) -> tuple[Term, ...]:
    """The terms of dim in printing order, with x - c*(x//c) written as x % c where all of it is there."""
    poly = dict(dim.sorted_items())
    if any(isinstance(a, FloorDiv) for m in poly for a, _ in m):
        while (shorter := _find_remainder(poly)) is not None:
            poly = shorter
        return tuple((poly[m], m) for m in sorted(poly, key=mono_key))
    return tuple((k, m) for m, k in dim.sorted_items())


def _find_remainder(poly: Poly) -> Poly | None:
    """poly with one more Mod in it, or None when there is none to find."""
    for mono in sorted(poly, key=mono_key):
        for atom, power in mono:
            if power != 1 or not isinstance(atom, FloorDiv):
                continue
            others = mono_div(mono, ((atom, 1),))
            assert others is not None
            for factor, coef, divisor in _readings(atom, others, poly[mono]):
                y, remainder = _remainder(atom, divisor)
                spelt = _spelt(poly, factor, coef, remainder)
                if spelt is not None and mono in spelt:
                    return _replace(poly, spelt, (factor, coef), intern_atom(Mod, y, divisor))
    return None


def _readings(atom: FloorDiv, others: Mono, coef: int) -> list[tuple[Mono, int, Dim]]:
    """Ways (factor, k, d) to read coef*others*atom as the -k*factor*d*(y//d) of a k*factor*(y % d)."""
    c = atom.b.const_or_none
    if c is None:
        lead, k = atom.b.sorted_items()[0]
        left = mono_div(others, lead)
        return [] if left is None or coef % k else [(left, -coef // k, atom.b)]
    # x//c is also (x//(c/d))//d for every d that divides c
    return [(others, -coef // d, to_dim(d)) for d in _divisors(math.gcd(c, coef))]


@lru_cache(1 << 10)
def _divisors(n: int) -> tuple[int, ...]:
    """Those above 1, the largest first."""
    # an upper end: a number of twenty digits is no size that anyone reads
    small = [n // i for i in range(1, min(math.isqrt(n), MOST_TRIED) + 1) if n % i == 0]
    return tuple(d for d in sorted({*small, *(n // d for d in small)}, reverse=True) if d > 1)


@lru_cache(CACHE)
def _remainder(atom: FloorDiv, divisor: Dim) -> tuple[Dim, tuple[tuple[Mono, int], ...]]:
    """y and the terms of y % divisor, spelt with //, where the atom is y//divisor."""
    c, d = atom.b.const_or_none, divisor.const_or_none
    y = atom.a if c is None or d is None else atom.a // (c // d)
    return y, tuple((y - divisor * (y // divisor)).sorted_items())


def _spelt(poly: Poly, factor: Mono, coef: int, remainder: tuple[tuple[Mono, int], ...]) -> Poly | None:
    """The terms of coef*factor*remainder; None where one of them, but for a number, is not in poly."""
    spelt: Poly = {}
    for m, k in remainder:
        mono = mono_mul(factor, m) if factor and m else factor or m
        if mono and not _covers(poly.get(mono, 0), coef * k):
            return None
        spelt[mono] = coef * k
    return spelt


def _covers(have: int, want: int) -> bool:
    return have * want > 0 and abs(have) >= abs(want)


def _replace(poly: Poly, spelt: Poly, factor: tuple[Mono, int], atom: Atom) -> Poly:
    result = dict(poly)
    added = {mono_mul(factor[0], ((atom, 1),)): factor[1]}
    for change, sign in ((spelt, -1), (added, 1)):
        for m, k in change.items():
            result[m] = result.get(m, 0) + sign * k
    return {m: k for m, k in result.items() if k}


# -- text


def terms_text(terms: tuple[Term, ...]) -> str:
    """`4*batch*seq + (h + 1)//2 - n % 3`; parse_dim reads it back."""
    if not terms:
        return "0"
    out = _term(*terms[0], leading=True)
    for k, mono in terms[1:]:
        out += f" {'-' if k < 0 else '+'} {_term(abs(k), mono, leading=False)}"
    return out


def _term(k: int, mono: Mono, leading: bool) -> str:
    if not mono:
        return str(k)
    # alone, `a//b` needs no brackets, but -a//b would be (-a)//b
    alone = len(mono) == 1 and mono[0][1] == 1 and (k == 1 or (k == -1 and not leading))
    factors = [_factor(atom, alone) for atom, power in mono for _ in range(power)]
    sign = "-" if k == -1 else "" if k == 1 else f"{k}*"
    return sign + "*".join(factors)


def _factor(atom: Atom, alone: bool) -> str:
    body = ATOM_TEXT[atom.__class__](atom)
    return body if alone or not isinstance(atom, FloorDiv | Mod) else f"({body})"


def _operand(dim: Dim) -> str:
    terms = dim.terms()
    bare = not terms or (
        len(terms) == 1
        and terms[0][0] > 0
        and (not terms[0][1] or (terms[0][0] == 1 and _is_bare(terms[0][1])))
    )
    return str(dim) if bare else f"({dim})"


def _is_bare(mono: Mono) -> bool:
    return len(mono) == 1 and mono[0][1] == 1 and not isinstance(mono[0][0], FloorDiv | Mod)


def _name(name: str) -> str:
    if PLAIN.fullmatch(name) and name not in DIM_FUNCTIONS:
        return name
    escaped = (ESCAPES.get(c, c) if c.isprintable() or c in ESCAPES else f"\\u{ord(c):06x}" for c in name)
    return "`" + "".join(escaped) + "`"


ATOM_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {
    SymbolAtom: lambda atom: _name(atom.name),
    FloorDiv: lambda atom: f"{_operand(atom.a)}//{_operand(atom.b)}",
    Mod: lambda atom: f"{_operand(atom.a)} % {_operand(atom.b)}",
    Min: lambda atom: f"min({', '.join(map(str, atom.args))})",
    Max: lambda atom: f"max({', '.join(map(str, atom.args))})",
}
