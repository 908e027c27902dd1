"""Sums with the halves of a number -> equal sums of fewer terms, or of halves rounded down alone.

A map that is halved again and again, rounded up each time, has sizes like x - x//2: as (x + 1)//2 each is one
term, and a product of three such sizes one instead of eight.
"""

from __future__ import annotations

from smelt.core.dim.atoms import FloorDiv, Mono, Poly, mono_mul
from smelt.core.dim.expr import Dim, make


def halves_joined(dim: Dim) -> Dim:
    """The sum with two terms as one, where two halves, or a number less its half, make one."""
    while (shorter := _join(dim)) is not None:
        dim = shorter
    return dim


def _join(dim: Dim) -> Dim | None:
    for mono, k in dim.sorted_items() if len(dim._poly) > 1 else ():
        for atom, power in mono:
            number = (atom.b.const_or_none or 1) if isinstance(atom, FloorDiv) else 1
            if power != 1 or number % 2:
                continue
            assert isinstance(atom, FloorDiv)
            half = number // 2
            # y//(2*h) + (y + h)//(2*h)  -->  y//h;   y//h - y//(2*h)  -->  (y + h)//(2*h)
            other = atom.a // half - (atom.a + half) // number
            found = dim - make({mono: k}) + _times(other, tuple(f for f in mono if f[0] is not atom), k)
            if len(found._poly) < len(dim._poly):
                return found
    return None


def _times(dim: Dim, others: Mono, k: int) -> Dim:
    poly: Poly = {mono_mul(n, others): j * k for n, j in dim._poly.items()}
    return make(poly)


def floored(dim: Dim) -> Dim:
    """For proofs: what can be joined is, and of what is left (x + 1)//2 --> x - x//2, so that an upper half
    is compared with a lower one."""
    total = dim = halves_joined(dim)
    for mono, k in dim.sorted_items():
        for atom, power in mono:
            if power == 1 and isinstance(atom, FloorDiv) and atom.b == 2 and atom.a._poly.get((), 0) == 1:
                x = atom.a - 1
                others = tuple(f for f in mono if f[0] is not atom)
                total = total - make({mono: k}) + _times(x - x // 2, others, k)
                break
    return total
