"""Symbolic integers: canonical expressions, what is known about their symbols, and proofs about them.

atoms.py   symbols, divisions, minima and maxima, and products of them
expr.py    Dim: polynomials over atoms, and the rules that make them canonical
present.py Dim -> terms and text; finds the `x % c` that a canonical form spells as x - c*(x//c)
budget.py  how large a Dim may get
parse.py   text -> Dim
facts.py   Facts: ranges, divisors, bounds and equalities; simplify and prove
solve.py   the lower bounds that proofs rest on
"""

from __future__ import annotations

from smelt.core.dim.atoms import Atom, FloorDiv, Max, Min, Mod, SymbolAtom
from smelt.core.dim.budget import TooLarge
from smelt.core.dim.expr import (
    ONE,
    TWO,
    ZERO,
    Dim,
    DimLike,
    align_up,
    ceildiv,
    dmax,
    dmin,
    large,
    product,
    sole_atom,
    sym,
    to_dim,
    value_at,
)
from smelt.core.dim.facts import NO, UNKNOWN, YES, Facts, Range, Truth
from smelt.core.dim.parse import dim_from_param, parse_dim

__all__ = [
    "NO",
    "ONE",
    "TWO",
    "UNKNOWN",
    "YES",
    "ZERO",
    "Atom",
    "Dim",
    "DimLike",
    "Facts",
    "FloorDiv",
    "Max",
    "Min",
    "Mod",
    "Range",
    "SymbolAtom",
    "TooLarge",
    "Truth",
    "align_up",
    "ceildiv",
    "dim_from_param",
    "dmax",
    "dmin",
    "large",
    "parse_dim",
    "product",
    "sole_atom",
    "sym",
    "to_dim",
    "value_at",
]
