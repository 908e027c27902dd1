"""Symbolic integers: canonical expressions, what is known about their symbols, and proofs about them.

interned.py the tables in which equal ones are one object
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
from smelt.core.dim.budget import TooLarge, large
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
    product,
    sole_atom,
    sym,
    to_dim,
)
from smelt.core.dim.facts import NO, UNKNOWN, YES, Facts, Range, Truth
from smelt.core.dim.parse import MAX_TEXT, dim_from_param, parse_dim
from smelt.core.dim.parts import Parts, asked_parts, named_dims
from smelt.core.dim.points import value_at

__all__ = [
    "MAX_TEXT",
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
    "Parts",
    "Range",
    "SymbolAtom",
    "TooLarge",
    "Truth",
    "align_up",
    "asked_parts",
    "ceildiv",
    "dim_from_param",
    "dmax",
    "dmin",
    "large",
    "named_dims",
    "parse_dim",
    "product",
    "sole_atom",
    "sym",
    "to_dim",
    "value_at",
]
