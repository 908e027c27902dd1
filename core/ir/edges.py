"""Sibling statements in, dependence edges out: which pairs touch the same element in different instances.

A barrier is never written in the IR; it follows from these edges (ir.md section 3). Two instances of a
parallel node are kept apart by index expressions: `separated` proves that equal elements mean equal
parallel variables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard

from smelt.core.dim import NO, YES, Atom, Dim, Facts, FloorDiv, Mod, SymbolAtom, product, sym, to_dim
from smelt.core.dim.expr import atom_dim
from smelt.core.ir.analysis.scope import Access, Binder, accesses
from smelt.core.ir.kernel import Buffer, Let, Level, Loop, Stmt, Store, Tiles
from smelt.core.ir.rewrite import Body, bound_here, bound_symbols, freshen

PARALLEL: tuple[Level, ...] = ("unit", "group", "lane", "vector")
Parallel: TypeAlias = Loop | Tiles
EdgeKind = Literal["one_to_one", "all_to_all"]


@dataclass(frozen=True, slots=True)
class Edge:
    """Statement `later` needs what `earlier` did to `buffers` (indices into one body). one_to_one: only
    ever in the same parallel instance. all_to_all: a barrier, the end of a parallel region, a split."""

    earlier: int
    later: int
    kind: EdgeKind
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodePair:
    """A parallel node seen from two sides: the names of its variable in either statement, and, when it
    is made of tiles, the names of their sizes."""

    left: str
    right: str
    left_rows: str = ""
    right_rows: str = ""


def parallel_chain(s: Stmt) -> tuple[Parallel, ...]:
    """The directly nested parallel nodes at the top of s, all of one level (of the first one's)."""
    chain: list[Parallel] = []
    while isinstance(s, Loop | Tiles) and s.level in PARALLEL:
        if chain and s.level != chain[0].level:
            break
        chain.append(s)
        if len(s.body) != 1:
            break
        s = s.body[0]
    return tuple(chain)


def sibling_edges(body: Body, facts: Facts, shapes: Mapping[str, Buffer]) -> tuple[Edge, ...]:
    """The edges between the statements of a body, in order. shapes: every buffer by name. facts: what
    holds outside of the body."""
    found = []
    for later in range(len(body)):
        for earlier in range(later):
            edge = _edge(body[earlier], body[later], facts, shapes)
            if edge is not None:
                found.append(Edge(earlier, later, *edge))
    return tuple(found)


def _edge(
    a: Stmt, b: Stmt, facts: Facts, shapes: Mapping[str, Buffer]
) -> tuple[EdgeKind, tuple[str, ...]] | None:
    b = freshen(b, bound_symbols(a))
    conflicts = [(x, y) for x, y in _conflicts(a, b, frozenset()) if not _elsewhere(x, y, facts)]
    if not conflicts:
        return None
    names = tuple(sorted({x.buffer for x, _ in conflicts}))
    pairs = match_parallel(parallel_chain(a), parallel_chain(b))
    if pairs is None:
        return ("all_to_all", names)
    if all(separated(x, y, pairs, facts, shapes) for x, y in conflicts):
        return ("one_to_one", names)
    return ("all_to_all", names)


def _conflicts(a: Stmt, b: Stmt, private: frozenset[str]) -> Iterator[tuple[Access, Access]]:
    later = [y for y in accesses(b) if y.buffer not in private]
    for x in accesses(a):
        for y in later:
            if x.buffer == y.buffer and (x.is_store or y.is_store):
                yield x, y


def _elsewhere(a: Access, b: Access, facts: Facts) -> bool:
    """Whether the two touch different elements whatever their own variables are: halves of a tile that
    change places."""
    joint = b.facts(a.facts(facts))
    return any(joint.prove_eq(x, y) is NO for x, y in zip(a.index, b.index, strict=False) if _halves(x, y))


def _halves(x: Dim, y: Dim) -> bool:
    """Whether both are numbers, or a remainder is in both, which is a number less a division: others are not
    worth the proof."""
    if x.is_const and y.is_const:
        return True
    return all(any(isinstance(a, FloorDiv | Mod) for _, m in d.terms() for a, _ in m) for d in (x, y))


def match_parallel(a: Sequence[Parallel], b: Sequence[Parallel]) -> tuple[NodePair, ...] | None:
    """The parallel nodes of two siblings side by side; None when they do not run over the same space."""
    if len(a) != len(b):
        return None
    pairs = []
    for x, y in zip(a, b, strict=True):
        if x.level != y.level or x.extent != y.extent:
            return None
        if isinstance(x, Loop) and isinstance(y, Loop):
            pairs.append(NodePair(x.var, y.var))
        elif isinstance(x, Tiles) and isinstance(y, Tiles):
            if (x.sizes, x.mode) != (y.sizes, y.mode):
                return None
            pairs.append(NodePair(x.start, y.start, x.rows, y.rows))
        else:
            return None
    return tuple(pairs)


# ---------------------------------------------------------------- separation


def _variables(binders: Sequence[Binder]) -> set[str]:
    """Everything that the binders bind."""
    found: set[str] = set()
    for b in binders:
        if isinstance(b, tuple):
            found |= {a.var for a in b}
        elif isinstance(b, Let):
            found.add(b.var)
        else:
            found |= set(bound_here(b))
    return found


def separated(
    a: Access, b: Access, pairs: Sequence[NodePair], facts: Facts, shapes: Mapping[str, Buffer]
) -> bool:
    """Whether it is proved that a and b touch one element only when every pair has equal values.

    The variables of a and b must be named apart. For each pair some group of neighbouring axes, read as
    one row-major number, must be  c*v + rest  on both sides with the same c >= 1, where the two rests
    differ by less than c (by less than c*rows for tiles), or by that and a multiple of more than both can
    reach. A rest may depend on v, too.
    """
    if not pairs:
        return True
    buffer = shapes.get(a.buffer)
    if buffer is None or len(a.index) != len(b.index):
        return False
    if any(x.is_const and y.is_const and x != y for x, y in zip(a.index, b.index, strict=True)):
        return True  # no element is touched by both
    joint = b.facts(a.facts(facts))
    private = _variables(a.binders) | _variables(b.binders)
    a_index, joint = _by_guard(a, joint, "guard left", private)
    b_index, joint = _by_guard(b, joint, "guard right", private)
    left, right = _groups(a.index, buffer.shape), _groups(b.index, buffer.shape)
    if a.guard or b.guard:
        left += _groups(a_index, buffer.shape)
        right += _groups(b_index, buffer.shape)
    todo, same = list(pairs), dict[str, Dim]()
    while todo:
        done = next((p for p in todo if _determined(p, left, right, joint, same, private)), None)
        if done is None:
            return False
        todo.remove(done)
        same[done.right] = sym(done.left)
        private -= {done.left, done.left_rows}
        if done.left_rows:
            same[done.right_rows] = sym(done.left_rows)
    return True


def _by_guard(x: Access, facts: Facts, name: str, private: set[str]) -> tuple[tuple[Dim, ...], Facts]:
    """The index of x with a guarded part as one variable, low <= part < high: the last block of a loop
    that was cut in vectors is known to end where its guard says, whatever its own variables add up to."""
    index = list(x.index)
    for n, bound in enumerate(x.guard):
        for axis, d in enumerate(index):
            rest = d - bound.index
            if bound.index.symbols & d.symbols and len(rest.terms()) < len(d.terms()):
                part = f"{name} {n}"
                index[axis] = rest + sym(part)
                private.add(part)
                facts = facts.with_range(part, None, None).with_lower(part, bound.low)
                facts = facts.with_upper(part, bound.high - 1)
    return tuple(index), facts


def _groups(index: Sequence[Dim], shape: Sequence[Dim]) -> list[Dim]:
    """Each run of neighbouring axes as one row-major number; equal elements have equal numbers."""
    found = []
    for first in range(len(index)):
        total = to_dim(0)
        for axis in range(first, len(index)):
            total = total * shape[axis] + index[axis]
            found.append(total)
    return found


def _determined(
    p: NodePair,
    left: Sequence[Dim],
    right: Sequence[Dim],
    facts: Facts,
    same: Mapping[str, Dim],
    private: set[str],
) -> bool:
    if facts.prove_eq(sym(p.left), sym(p.right)) is YES:
        return True  # there is one instance only
    return any(
        _apart(p, x, y.substitute(same), facts, private)
        for x, y in zip(left, right, strict=True)
        if p.left in x.symbols
    )


def _apart(p: NodePair, x: Dim, y: Dim, facts: Facts, private: set[str]) -> bool:
    c, rest_a = _along(x, p.left)
    other, rest_b = _along(y, p.right)
    if c != other or c.symbols & private or facts.prove_le(1, c) is not YES:
        return False
    left_rows, right_rows = to_dim(1), to_dim(1)
    if p.left_rows:
        left_rows, right_rows = sym(p.left_rows), sym(p.right_rows)
    else:
        gap = rest_a - rest_b
        if facts.prove_lt(gap, c) is YES and facts.prove_lt(-gap, c) is YES:
            return True
        # c*(v - v') and the fine part of the gap are together a multiple of what divides the coarse one, but
        # too small for any but 0; and the fine part is smaller than c.
        step = c.const_or_none or 1
        small = [(k, mono) for k, mono in gap.terms() if abs(k) < step and _is_variable(mono)]
        fine = sum((sym(mono[0][0].name) * k for k, mono in small), to_dim(0))
        period = math.gcd(*(k for k, mono in gap.terms() if (k, mono) not in small))
        reach = c * (sym(p.left) - sym(p.right)) + fine
        apart = ((fine, c), (-fine, c), (reach, period), (-reach, period))
        if all(facts.prove_lt(less, more) is YES for less, more in apart):
            return True
    # Both lie in [shared, shared + c*rows), whatever the loops inside do. (Tiles: start + r, r < rows.)
    return any(
        facts.prove_le(shared, rest_a) is YES
        and facts.prove_le(shared, rest_b) is YES
        and facts.prove_lt(rest_a - shared, c * left_rows) is YES
        and facts.prove_lt(rest_b - shared, c * right_rows) is YES
        for shared in dict.fromkeys(_shared_parts(rest_a, private))
    )


def _is_variable(mono: Sequence[tuple[Atom, int]]) -> TypeGuard[Sequence[tuple[SymbolAtom, int]]]:
    return len(mono) == 1 and isinstance(mono[0][0], SymbolAtom) and mono[0][1] == 1


def _along(d: Dim, var: str) -> tuple[Dim, Dim]:
    """(c, rest) with d == c*var + rest. The rest may depend on var as well, in a minimum or a division: the
    end of a chunk, which is its own."""
    c = to_dim(0)
    for k, factors in _terms(d):
        others = [x for x in factors if x != sym(var)]
        if len(others) == len(factors) - 1 and not any(var in x.symbols for x in others):
            c = c + product((to_dim(k), *others))
    return c, d - c * sym(var)


def _shared_parts(d: Dim, private: set[str]) -> Iterator[Dim]:
    """What is left of d without private variables: where they are 0, and the terms that mention none."""
    yield d.substitute(dict.fromkeys(sorted(d.symbols & private), 0))
    terms = (product((to_dim(k), *factors)) for k, factors in _terms(d))
    yield sum((x for x in terms if not x.symbols & private), to_dim(0))


def _terms(d: Dim) -> Iterator[tuple[int, list[Dim]]]:
    """d as a sum: of each term the coefficient and the factors."""
    for k, factors in d.terms():
        yield k, [atom_dim(atom) for atom, power in factors for _ in range(power)]


def disjoint_writes(s: Parallel, facts: Facts, shapes: Mapping[str, Buffer]) -> tuple[str, ...]:
    """Buffers that different instances of a parallel node (with those nested directly in it) may both
    write, or one write and another read, without proof that they never meet. Buffers declared inside
    belong to one instance; vector instances that accumulate into one element are a declared reduction."""
    inside = frozenset(b.name for b in _declared(s))
    own: dict[str, list[Access]] = {}
    for x in accesses(s):
        if x.buffer not in inside:
            own.setdefault(x.buffer, []).append(x)
    chain = parallel_chain(s)
    open_ = {
        name for name, found in own.items()
        if any(x.is_store for x in found) and not _in_own_parts(found, chain, facts, shapes.get(name))
    }  # fmt: skip
    return tuple(sorted(n for n in open_ if not _apart_in_pairs(s, n, facts, shapes)))


def _apart_in_pairs(s: Parallel, buffer: str, facts: Facts, shapes: Mapping[str, Buffer]) -> bool:
    """Whether each two accesses of a buffer, one of them a store, are `separated`, or one is never made."""
    twin = freshen(s, bound_symbols(s))
    pairs = match_parallel(parallel_chain(s), parallel_chain(twin))
    assert pairs is not None
    left, right = (
        [x for x in accesses(t) if x.buffer == buffer and x.may_run(facts)] for t in (s, twin)
    )
    for n, x in enumerate(left):
        for m, y in enumerate(right):
            if not x.is_store or (y.is_store and m < n):
                continue  # the same two the other way round
            if s.level == "vector" and x.accumulate and y.accumulate:
                continue
            if not separated(x, y, pairs, facts, shapes):
                return False
    return True


def _in_own_parts(
    found: Sequence[Access], chain: Sequence[Parallel], facts: Facts, buffer: Buffer | None
) -> bool:
    """Whether each instance is proved to have a part of the buffer that all of its accesses keep to: the
    last clause of `_apart`, asked once of each access and not of each two."""
    if buffer is None or any(len(x.index) != len(buffer.shape) for x in found):
        return False
    views = []
    for x in found:
        private = _variables(x.binders)
        guarded, joint = _by_guard(x, x.facts(facts), "guard", private)
        views.append((_groups(x.index, buffer.shape) + _groups(guarded, buffer.shape), joint, private))
    todo, known = [bound_here(node)[0] for node in chain], set[str]()
    rows = {bound_here(node)[0]: bound_here(node)[1:] for node in chain}
    while todo:
        for var in todo:
            common = set.intersection(*(
                set(_parts(groups, var, rows[var], joint, private - known))
                for groups, joint, private in views
            ))
            if common:
                todo.remove(var)
                known |= {var, *rows[var]}
                break
        else:
            return False
    return True


def _parts(
    groups: Sequence[Dim], var: str, rows: Sequence[str], facts: Facts, private: set[str]
) -> Iterator[tuple[int, Dim, Dim]]:
    """(group, c, shared) where the number is proved to be in [shared + c*var, shared + c*(var + rows)), and
    neither c nor shared differs between instances."""
    for n, d in enumerate(groups):
        if var not in d.symbols:
            continue
        c, rest = _along(d, var)
        if c.symbols & private or facts.prove_le(1, c) is not YES:
            continue
        reach = c * sym(rows[0]) if rows else c
        step = c.const_or_none or 1
        for shared in _shared_parts(rest, private):
            # another access may begin elsewhere in the step
            start = shared - sum(k for k, mono in shared.terms() if not mono) % step
            if facts.prove_le(start, rest) is YES and facts.prove_lt(rest - start, reach) is YES:
                yield n, c, start


def _declared(s: Stmt) -> Iterator[Buffer]:
    if isinstance(s, Store):
        return
    yield from s.buffers
    for c in s.body:
        yield from _declared(c)
