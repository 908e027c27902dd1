"""An inequality d >= 0 -> Dims that are all >= 0 exactly where d is: of single symbols, if it comes apart."""

from __future__ import annotations

from collections.abc import Callable

from smelt.core.dim.atoms import FloorDiv, Max, Min, Mono
from smelt.core.dim.expr import Dim, atom_dim, make


def unfolded(d: Dim, natural: Callable[[Dim], bool]) -> tuple[Dim, ...]:
    """natural: whether a Dim is known to be 0 or more. What does not come apart is returned as it is."""
    parts = _of_extreme(d) or _of_term(d, natural)
    return tuple(p for part in parts for p in unfolded(part, natural)) if parts else (d,)


def _of_extreme(d: Dim) -> tuple[Dim, ...]:
    # c*min(x, y) + r >= 0  -->  c*x + r >= 0 and c*y + r >= 0    c > 0; with c < 0 so does a maximum
    found = [(mono, c) for mono, c in d.sorted_items() if any(isinstance(a, Min | Max) for a, _ in mono)]
    if len(found) != 1 or not _is_atom(found[0][0]):
        return ()
    mono, c = found[0]
    atom = mono[0][0]
    assert isinstance(atom, Min | Max)
    rest = d - make({mono: c})
    return tuple(c * x + rest for x in atom.args) if isinstance(atom, Min) == (c > 0) else ()


def _of_term(d: Dim, natural: Callable[[Dim], bool]) -> tuple[Dim, ...]:
    """Of c*term + k, k a number."""
    (mono, c), *others = d.sorted_items() or (((), 0),)
    if not mono or (others and others[0][0]):
        return ()
    k = others[0][1] if others else 0
    atom = mono[0][0]
    if _is_atom(mono):
        if not isinstance(atom, FloorDiv) or (atom.b.const_or_none or 0) <= 0:
            return ()
        # c*(e//n) + k >= 0  -->  e + n*(k//c) >= 0               c, n > 0
        # c*(e//n) + k >= 0  -->  n*(k//-c) + n - 1 - e >= 0      c < 0 < n
        return (atom.a + atom.b * (k // c) if c > 0 else atom.b * (k // -c) + atom.b - 1 - atom.a,)
    # c*x*y + k >= 0  -->  x - 1 >= 0 and y - 1 >= 0    -c <= k < 0 < c and x, y >= 0
    if -c <= k < 0 and all(natural(atom_dim(a)) for a, _ in mono):
        return tuple(atom_dim(a) - 1 for a, _ in mono)
    return ()


def _is_atom(mono: Mono) -> bool:
    return len(mono) == 1 == mono[0][1]
