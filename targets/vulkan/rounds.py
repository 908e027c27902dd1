"""Extents of loops in; polynomials that their rounds do not exceed, in 1 / ROUND and positive, out."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.core.dim import YES, Atom, Dim, Facts, FloorDiv, Min, Mod, SymbolAtom, sym, to_dim
from smelt.targets.vulkan.index import magnitude

ROUND = 1 << 12
"""One round, as rounds are counted: a part of a loop's range has a fraction of its rounds."""


def rounds(extent: Dim, reaches: Mapping[str, Dim], facts: Facts) -> Dim:
    """What an extent, which is no less than 0, does not exceed. reaches: what the sizes of symbols do not
    exceed that are no dims of the kernel."""
    total = to_dim(0)
    for coefficient, factors in extent.terms():
        atoms = [atom for atom, power in factors for _ in range(power)]
        if coefficient < 0 and all(_is_positive(a, facts) for a in atoms):
            continue
        term = to_dim(abs(coefficient) * ROUND)
        for a in atoms:
            term = times(term, _of_atom(a, reaches, facts))
        total = total + term
    return total


def times(a: Dim, b: Dim) -> Dim:
    """The product of two such numbers."""
    return divided(a * b, ROUND)


def divided(d: Dim, by: int) -> Dim:
    """No less than d / by."""
    if by == 1:
        return d
    total = to_dim(0)
    for coefficient, factors in d.terms():
        term = to_dim(-(-coefficient // by))
        for atom, power in factors:
            assert isinstance(atom, SymbolAtom), d
            for _ in range(power):
                term = term * sym(atom.name)
        total = total + term
    return total


def _is_positive(a: Atom, facts: Facts) -> bool:
    return isinstance(a, SymbolAtom) and facts.prove_le(0, sym(a.name)) is YES


def _of_atom(a: Atom, reaches: Mapping[str, Dim], facts: Facts) -> Dim:
    match a:
        case SymbolAtom():
            return magnitude(sym(a.name), reaches, facts) * ROUND
        case FloorDiv():
            by = a.b.const_or_none
            return divided(rounds(a.a, reaches, facts), by if by and by > 0 else 1)
        case Mod():
            return rounds(a.b, reaches, facts)
        case Min():
            known = [d for d in a.args if d.const_or_none is not None]
            return rounds((known or a.args)[0], reaches, facts)
    return sum((rounds(d, reaches, facts) for d in a.args), to_dim(0))
