"""A size at a call -> the kernel's dim argument for it, with the range and divisor that are known of it."""

from __future__ import annotations

from math import gcd, lcm

from smelt.core.dim import Dim, Facts, SymbolAtom
from smelt.core.ir.kernel import DimParam


def parameter(name: str, size: Dim, facts: Facts) -> DimParam:
    """The dim argument for a size, with the range and divisor that are known of it."""
    low, high = facts.bounds(size)
    divisor = 0
    for coefficient, factors in size.terms():
        divisor = gcd(divisor, coefficient * _divisor(factors, facts))
    return DimParam(name, max(low or 0, 0), high, max(divisor, 1))


def _divisor(factors: tuple[tuple[object, int], ...], facts: Facts) -> int:
    known = 1
    for atom, power in factors:
        if isinstance(atom, SymbolAtom):
            known *= facts.divisors.get(atom.name, 1) ** power
    return known


def union(a: DimParam, b: DimParam) -> DimParam:
    """The parameter that admits what either admits."""
    high = None if a.high is None or b.high is None else max(a.high, b.high)
    return DimParam(a.name, min(a.low, b.low), high, gcd(a.divisor, b.divisor))


def intersection(a: DimParam, b: DimParam) -> DimParam:
    """What is known where either is."""
    highs = [p.high for p in (a, b) if p.high is not None]
    return DimParam(a.name, max(a.low, b.low), min(highs, default=None), lcm(a.divisor, b.divisor))
