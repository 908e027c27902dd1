"""Statements in; out, the extents that must be above 0 for them to do anything, and the extents of loops that
no stored tensor bounds.

A tensor of no elements may have an axis of 2^62 beside its axis of 0, so a nest that would turn 2^62 times
around a loop of no rounds has to be told before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from smelt.core.dim import Dim, Facts, SymbolAtom, dmin, product, sole_atom, sym, to_dim
from smelt.core.dim.expr import atom_dim
from smelt.core.ir.analysis.scope import accesses
from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Buffer,
    Kernel,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    walk,
    walk_expr,
)

Buffers: TypeAlias = Mapping[str, Buffer]

MANY_ROUNDS = 1 << 20
"""Rounds from which on it matters that they do nothing."""
MOST_UNSTORED = 1 << 36
"""Elements on an axis that is computed and stored nowhere: a minute of work. More would be a tensor that no
memory holds, were it not fused away."""


def needed(body: Iterable[Stmt], buffers: Buffers, local: Sequence[Buffer] = ()) -> frozenset[Dim]:
    """Extents of which each must be above 0 for the statements to store anything: of the loops around
    every store, of the axes of what is stored to. buffers: the kernel's own. local: those that nobody reads
    after the statements. The extents may speak of variables of loops inside."""
    found = _needed(tuple(body), buffers, frozenset(b.name for b in local))
    return frozenset() if found is None else frozenset(d for d in found if not _sure(d))


def needed_at_all(s: Stmt, kernel: Kernel) -> frozenset[Dim]:
    """The same of a top-level statement of a kernel: scratch that only this one touches is read by nobody
    after it."""
    others = {a.buffer for x in kernel.body if x is not s for a in accesses(x)}
    return needed((s,), kernel.buffers(), [b for b in kernel.scratch if b.name not in others])


def _needed(body: tuple[Stmt, ...], buffers: Buffers, local: frozenset[str]) -> frozenset[Dim] | None:
    """None: whatever the extents are, nothing is stored."""
    effects = [f for s in body if (f := _of(s, buffers, local)) is not None]
    return frozenset.intersection(*effects) if effects else None


def _of(s: Stmt, buffers: Buffers, local: frozenset[str]) -> frozenset[Dim] | None:
    if isinstance(s, Store):
        if s.buffer in local:
            return None
        return _zeros(*buffers[s.buffer].shape) if s.buffer in buffers else frozenset()
    inner = _needed(s.body, buffers, local | {b.name for b in s.buffers})
    if inner is None or isinstance(s, Block):
        return inner
    return inner | _zeros(s.extent)


def _zeros(*extents: Dim) -> frozenset[Dim]:
    """The extents, and the symbols that make one of them 0: those of n//64 and of n % 64 alike."""
    symbols = (sym(n) for d in extents for n in d.symbols if _nothing_at(d, n))
    return frozenset((*extents, *symbols))


def _nothing_at(d: Dim, symbol: str) -> bool:
    """Whether d is 0 where the symbol is; not so where it divides, which the symbol's range excludes."""
    try:
        return d.substitute({symbol: 0}) == 0
    except ZeroDivisionError:
        return False


def _sure(d: Dim) -> bool:
    return d.is_const and d.const > 0


def axes_needed(axes: Sequence[Axis]) -> frozenset[Dim]:
    """The extents of a reduction's axes."""
    return frozenset(a.extent for a in axes if not _sure(a.extent))


def guards(extent: Dim, others: Iterable[Dim], facts: Facts, known: Collection[str]) -> tuple[Dim, ...]:
    """Which of the others a loop of that extent has to ask about: those in known symbols that may be 0, where
    the loop may be long."""
    names = frozenset(known)
    high = facts.bounds(extent)[1] if extent.symbols <= names else None
    if high is not None and high <= MANY_ROUNDS:
        return ()
    return tuple(
        d for d in sorted(set(others), key=str) if d.symbols <= names and (facts.bounds(d)[0] or 0) < 1
    )


def busy(s: Stmt, kernel: Kernel) -> Dim:
    """A factor for the groups of a top-level statement: 1 where it may do something, 0 where an extent shows
    that it does not, other than those that make its groups none already."""
    names = frozenset(d.name for d in kernel.dims)
    groups = group_count(s)
    found = (d for d in needed_at_all(s, kernel) if d.symbols <= names and not _told(d, groups))
    return product(dmin(d, to_dim(1)) for d in sorted(found, key=str))


def unstored(s: Stmt, kernel: Kernel) -> tuple[Dim, ...]:
    """Extents of loops and reductions over what no buffer of the kernel has the size of: values that were
    fused into what reads them. Memory bounds the others."""
    names = frozenset(d.name for d in kernel.dims)
    stored = {n for b in kernel.buffers().values() for d in b.shape for n in d.symbols}
    found = {x.extent for x in walk((s,)) if isinstance(x, Loop | Tiles)}
    for x in walk((s,)):
        values = [x.value] if isinstance(x, Store) else [v for _, v, _, _ in getattr(x, "let", ())]
        for e in values:
            found |= {a.extent for r in walk_expr(e) if isinstance(r, Reduce) for a in r.axes}
    return tuple(d for d in sorted(found, key=str) if d.symbols <= names and d.symbols - stored)


def _told(d: Dim, groups: Dim) -> bool:
    """Whether there are no groups anyway where d is 0."""
    atom = sole_atom(d)
    if isinstance(atom, SymbolAtom):
        return _nothing_at(groups, atom.name)
    factors = _factors(d)
    if len(factors) > 1:
        return all(_told(f, groups) for f in factors)
    return d == groups or d in _factors(groups)


def _factors(d: Dim) -> tuple[Dim, ...]:
    """What d is a product of, where it is one."""
    terms = d.terms()
    return tuple(atom_dim(a) for a, _ in terms[0][1]) if len(terms) == 1 else ()
