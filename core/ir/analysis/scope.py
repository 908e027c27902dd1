"""Kernel trees in; every access, what is known of the variables around it, and every buffer out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from smelt.core.dim import YES, Dim, Facts, sym, to_dim
from smelt.core.dtype import DType
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    DimParam,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
    walk,
    walk_expr,
)
from smelt.core.ir.rewrite import Body, local_buffers

Binder: TypeAlias = "Loop | Tiles | Block | Let | tuple[Axis, ...]"
"""What binds variables on the way to an access."""


# ---------------------------------------------------------------- facts in scope


def kernel_facts(k: Kernel) -> Facts:
    """Ranges and divisors of the kernel's dims."""
    return _facts_of(k.dims, threading.get_ident())


@lru_cache(maxsize=4)
def _facts_of(dims: tuple[DimParam, ...], thread: int) -> Facts:
    """Kept from step to step of a schedule with the proofs inside; `thread`, because these serve one thread
    at a time."""
    facts = Facts()
    for d in dims:
        facts = facts.with_range(d.name, d.low, d.high)
        if d.divisor > 1:
            facts = facts.with_divisor(d.name, d.divisor)
    return facts


def enter(facts: Facts, binder: Binder) -> Facts:
    """facts inside the body of a loop, tiles, block, let or reduction."""
    if isinstance(binder, tuple):
        for a in binder:
            facts = _below(facts, a.var, a.extent)
        return facts
    if isinstance(binder, Loop):
        return _below(facts, binder.var, binder.extent)
    if isinstance(binder, Tiles):
        facts = facts.with_range(binder.rows, 1, binder.sizes[0])
        facts = facts.with_range(binder.start, 0, None)
        return facts.with_upper(binder.start, binder.extent - sym(binder.rows))
    if isinstance(binder, Let):
        return _clamped(facts, binder.var, binder.low, binder.high)
    for var, _, low, high in binder.let:
        facts = _clamped(facts, var, low, high)
    return facts


def holding(facts: Facts, guard: Iterable[Bound]) -> Facts:
    """facts where every bound of a guard holds."""
    for b in guard:
        facts = facts.with_le(b.low, b.index).with_le(b.index + 1, b.high)
    return facts


def _below(facts: Facts, var: str, extent: Dim) -> Facts:
    n = extent.const_or_none
    return facts.with_range(var, 0, n - 1) if n is not None else facts.with_index(var, extent)


def _clamped(facts: Facts, var: str, low: Dim, high: Dim) -> Facts:
    facts = facts.with_range(var, low.const_or_none, high.const_or_none)
    facts = facts if low.is_const else facts.with_lower(var, low)
    return facts if high.is_const else facts.with_upper(var, high)


# ---------------------------------------------------------------- accesses


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store. binders: what encloses it, outer first. guard: its own bounds and those of the
    blocks around it. accumulate: a store that also reads the element."""

    buffer: str
    index: tuple[Dim, ...]
    guard: tuple[Bound, ...]
    is_store: bool
    binders: tuple[Binder, ...] = ()
    accumulate: bool = False

    def facts(self, facts: Facts) -> Facts:
        """facts at the access, given those outside of all binders."""
        for b in self.binders:
            facts = enter(facts, b)
        return facts

    def may_run(self, facts: Facts) -> bool:
        """False when some loop around the access is proved empty; facts are those outside of all binders."""
        for b in self.binders:
            extents: list[Dim] = []
            if isinstance(b, tuple):
                extents = [x.extent for x in b]
            elif isinstance(b, Loop | Tiles):
                extents = [b.extent]
            if any(facts.prove_le(x, to_dim(0)) is YES for x in extents):
                return False
            facts = enter(facts, b)
        return True


def expr_accesses(
    e: Expr, binders: tuple[Binder, ...] = (), guard: tuple[Bound, ...] = ()
) -> Iterator[Access]:
    """Every load of an expression, with the reductions and lets around it."""
    if isinstance(e, Load):
        yield Access(e.buffer, e.index, (*guard, *e.guard), False, binders)
        if e.otherwise is not None:
            yield from expr_accesses(e.otherwise, binders, guard)
    elif isinstance(e, Reduce):
        yield from expr_accesses(e.body, (*binders, e.axes), guard)
    elif isinstance(e, Let):
        yield from expr_accesses(e.value, binders, guard)
        yield from expr_accesses(e.body, (*binders, e), guard)
    else:
        for c in children(e):
            yield from expr_accesses(c, binders, guard)


def accesses(
    body: Body | Stmt, binders: tuple[Binder, ...] = (), guard: tuple[Bound, ...] = ()
) -> Iterator[Access]:
    """Every load and store of statements, in execution order of the text (value before store)."""
    if isinstance(body, tuple):
        for s in body:
            yield from accesses(s, binders, guard)
    elif isinstance(body, Store):
        inner = (*guard, *body.guard)
        # A value is computed also where the store's guard fails unless the guard is hoisted above it;
        # evaluators skip it, so the guard protects the loads.
        yield from expr_accesses(body.value, binders, inner)
        yield Access(body.buffer, body.index, inner, True, binders, body.accumulate is not None)
    elif isinstance(body, Block):
        for n, (_, value, *_) in enumerate(body.let):
            outer = (*binders, Block((), let=body.let[:n])) if n else binders
            yield from expr_accesses(value, outer, guard)
        yield from accesses(body.body, (*binders, body), (*guard, *body.guard))
    else:
        yield from accesses(body.body, (*binders, body), guard)


# ---------------------------------------------------------------- buffers


def expressions(body: Body) -> tuple[Expr, ...]:
    """Every whole expression below: stored values and values of lets."""
    found: list[Expr] = []
    for s in walk(body):
        if isinstance(s, Store):
            found.append(s.value)
        elif isinstance(s, Block):
            found += [x for _, x, *_ in s.let]
    return tuple(found)


def kernel_dtypes(k: Kernel) -> frozenset[DType]:
    """Every dtype that a kernel computes with."""
    values = (x for e in expressions(k.body) for x in walk_expr(e))
    return frozenset({*(b.dtype for b in kernel_buffers(k).values()), *(x.dtype for x in values)})


def kernel_buffers(k: Kernel) -> dict[str, Buffer]:
    """Every buffer by name: parameters, scratch and local ones."""
    return {**k.buffers(), **{b.name: b for b in local_buffers(k.body)}}


def written(body: Iterable[Stmt]) -> frozenset[str]:
    """Buffers that statements store to."""
    return frozenset(a.buffer for s in body for a in accesses(s) if a.is_store)
