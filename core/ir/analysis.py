"""Kernel trees in, facts about them out: access maps, kind, cost, footprints. Index expressions only.

Kinds, from cheap to opaque (the kind of an expression is that of its index expressions, never a name):

    elementwise  every load at the output index, up to dropped axes and axes read at 0; at least one load
                 follows every output axis (or there is no load)
    broadcast    as elementwise, but no load follows every output axis
    injective    O(1) loads, at most one place per buffer, by index arithmetic (transpose, slice, reshape,
                 concat by guards)
    gather       O(1) loads at positions that depend on data, or several places of one buffer
    reduction    contains a Reduce
    contraction  a sum of products whose factors share the summed variables and have output variables of
                 their own (matmul, convolution; not depthwise convolution or matrix-vector products)
    opaque       not one naive nest of serial loops around one store
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from smelt.core.dim import Dim, Facts, Min, product, sym, to_dim, value_at
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Call,
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
    walk_expr,
)
from smelt.core.ir.rewrite import Body, local_buffers

Kind = Literal[
    "elementwise", "broadcast", "injective", "gather", "reduction", "contraction", "opaque"
]
KINDS: tuple[Kind, ...] = (
    "elementwise", "broadcast", "injective", "gather", "reduction", "contraction", "opaque"
)
Binder: TypeAlias = "Loop | Tiles | Block | Let | tuple[Axis, ...]"
"""What binds variables on the way to an access."""


# ---------------------------------------------------------------- facts in scope


def kernel_facts(k: Kernel) -> Facts:
    """Ranges and divisors of the kernel's dims."""
    facts = Facts()
    for d in k.dims:
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


# ---------------------------------------------------------------- kind of an expression


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum over `axes` of left * right. shared: output variables that index both factors (batch), and
    those of one factor alone; names in the order of the output index."""

    reduce: Reduce
    left: Expr
    right: Expr
    shared: tuple[str, ...]
    left_vars: tuple[str, ...]
    right_vars: tuple[str, ...]


def strip_casts(e: Expr) -> Expr:
    """e without the casts around it."""
    while isinstance(e, Call) and e.fn == "cast":
        e = e.args[0]
    return e


def _index_symbols(e: Expr) -> set[str]:
    found: set[str] = set()
    for x in walk_expr(e):
        if isinstance(x, Load):
            found.update(*(d.symbols for d in x.index))
    return found


def find_contraction(e: Expr, out: Sequence[str]) -> Contraction | None:
    """The first reduction in e that contracts two factors, with respect to the output variables."""
    for r in walk_expr(e):
        if not isinstance(r, Reduce) or r.kind != "sum":
            continue
        body = strip_casts(r.body)
        if not isinstance(body, Call) or body.fn != "mul":
            continue
        left, right = body.args
        a, b = _index_symbols(left), _index_symbols(right)
        if not any(x.var in a and x.var in b for x in r.axes):
            continue
        only_a = tuple(v for v in out if v in a and v not in b)
        only_b = tuple(v for v in out if v in b and v not in a)
        if only_a and only_b:
            shared = tuple(v for v in out if v in a and v in b)
            return Contraction(r, left, right, shared, only_a, only_b)
    return None


def expr_kind(e: Expr, out: Sequence[str], extents: Sequence[Dim] | None = None) -> Kind:
    """Kind of the expression of the element at output index `out` (names of plain variables, one per
    axis). extents: the output's shape; axes of constant extent 1 need not be followed."""
    if any(isinstance(x, Reduce) for x in walk_expr(e)):
        return "contraction" if find_contraction(e, out) else "reduction"
    if any(isinstance(x, Let) for x in walk_expr(e)):
        return "gather"
    loads = [x for x in walk_expr(e) if isinstance(x, Load)]
    wide = [
        v for n, v in enumerate(out) if extents is None or extents[n].const_or_none != 1
    ]
    followed = [_aligned(x, out) for x in loads if not x.guard]
    if len(followed) == len(loads) and all(f is not None for f in followed):
        full = not loads or any(f is not None and set(wide) <= set(f) for f in followed)
        return "elementwise" if full else "broadcast"
    places: dict[str, set[tuple[Dim, ...]]] = {}
    for x in loads:
        places.setdefault(x.buffer, set()).add(x.index)
    return "injective" if all(len(p) == 1 for p in places.values()) else "gather"


def _aligned(x: Load, out: Sequence[str]) -> tuple[str, ...] | None:
    """Output variables that the load's axes follow one by one, in order, or None when some axis is
    indexed otherwise. An axis read at 0, or at min(variable, extent - 1), follows nothing."""
    followed: list[str] = []
    at = 0
    for d in x.index:
        name = variable(d)
        if name in out and out.index(name) >= at:
            at = out.index(name) + 1
            followed.append(name)
        elif d.const_or_none != 0 and not _clamped_variable(d, out):
            return None
    return tuple(followed)


def variable(d: Dim) -> str:
    """The name when d is one plain symbol, else ''."""
    if len(d.symbols) != 1:
        return ""
    (name,) = d.symbols
    return name if d == sym(name) else ""


def _clamped_variable(d: Dim, out: Sequence[str]) -> bool:
    terms = d.terms()
    if len(terms) != 1 or terms[0][0] != 1 or len(terms[0][1]) != 1:
        return False
    atom, power = terms[0][1][0]
    return power == 1 and isinstance(atom, Min) and any(variable(a) in out for a in atom.args)


# ---------------------------------------------------------------- naive nests


@dataclass(frozen=True, slots=True)
class Nest:
    """A naive statement: perfectly nested serial loops around one store."""

    loops: tuple[Loop, ...]
    store: Store

    @property
    def vars(self) -> tuple[str, ...]:
        return tuple(x.var for x in self.loops)

    @property
    def extents(self) -> tuple[Dim, ...]:
        return tuple(x.extent for x in self.loops)


def as_nest(s: Stmt) -> Nest | None:
    """The nest when s is one, else None."""
    loops: list[Loop] = []
    while isinstance(s, Loop) and s.level == "serial" and len(s.body) == 1 and not s.buffers:
        loops.append(s)
        s = s.body[0]
    return Nest(tuple(loops), s) if isinstance(s, Store) else None


def stmt_kind(s: Stmt) -> Kind:
    """Kind of a naive nest's value relative to the index it stores at; 'opaque' for anything else, and
    for a nest that accumulates or does not store at plain distinct variables (or 0)."""
    nest = as_nest(s)
    if nest is None or nest.store.accumulate:
        return "opaque"
    names, extents = dict(zip(nest.vars, nest.extents, strict=True)), []
    out: list[str] = []
    for d in nest.store.index:
        name = variable(d)
        if name in names and name not in out:
            out.append(name)
            extents.append(names[name])
        elif d.const_or_none is None:
            return "opaque"
    if any(v not in out for v in nest.vars):
        return "opaque"
    if nest.store.buffer in {a.buffer for a in expr_accesses(nest.store.value)}:
        return "opaque"
    return expr_kind(nest.store.value, out, extents)


def kernel_kind(k: Kernel) -> Kind:
    """The most demanding kind among the kernel's top-level statements."""
    kinds = [stmt_kind(s) for s in k.body]
    return max(kinds, key=KINDS.index, default="elementwise")


# ---------------------------------------------------------------- cost

# Rough weights in multiply-add units: a transcendental is a polynomial of about this many steps.
FLOPS: Mapping[str, int] = {
    **dict.fromkeys(("exp", "tanh", "erf", "log", "log1p", "sin", "cos"), 10),
    **dict.fromkeys(("tan", "sinh", "cosh", "asin", "acos", "atan"), 15),
    **dict.fromkeys(("asinh", "acosh", "atanh"), 20),
    **dict.fromkeys(("pow", "fmod", "mod"), 20),
    **dict.fromkeys(("div", "sqrt"), 4),
    **dict.fromkeys(("cast", "bitcast", "select"), 1),
    "fma": 2,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: arithmetic of one run (weighted, see FLOPS). bytes: least traffic, every global buffer
    touched once. Their quotient is the arithmetic intensity."""

    flops: Dim
    bytes: Dim

    def intensity(self, env: Mapping[str, int]) -> float:
        """flops per byte at given dims."""
        return value_at(self.flops, env) / max(1, value_at(self.bytes, env))


def expr_flops(e: Expr) -> Dim:
    """Arithmetic operations to evaluate e once (weights in FLOPS)."""
    if isinstance(e, Reduce):
        return product(a.extent for a in e.axes) * (expr_flops(e.body) + 1)
    own = FLOPS.get(e.fn, 1) if isinstance(e, Call) else 0
    return sum((expr_flops(c) for c in children(e)), start=to_dim(own))


def stmt_flops(body: Body | Stmt) -> Dim:
    """Arithmetic operations of one execution; loop variables in extents count at their upper end."""
    if isinstance(body, tuple):
        return sum((stmt_flops(s) for s in body), start=to_dim(0))
    if isinstance(body, Store):
        extra = 0 if body.accumulate is None else 2 if body.accumulate == "fma" else 1
        saved = 1 if body.accumulate == "fma" else 0  # the product is part of the fma
        return expr_flops(body.value) + extra - saved
    if isinstance(body, Tiles):
        # Every row is covered once: what one row costs, times rows.
        inner = stmt_flops(body.body)
        per = inner.linear(body.rows)
        if per is not None and per[1].const_or_none == 0:
            return _without(per[0], body.start, body.extent) * body.extent
        return _without(inner.substitute({body.rows: 1}), body.start, body.extent) * body.extent
    inner = stmt_flops(body.body)
    if isinstance(body, Block):
        return inner + sum((expr_flops(v) for _, v, *_ in body.let), start=to_dim(0))
    return _without(inner, body.var, body.extent) * body.extent


def _without(d: Dim, var: str, extent: Dim) -> Dim:
    return d.substitute({var: extent - 1}) if var in d.symbols else d


def kernel_cost(k: Kernel) -> Cost:
    """Flops and least traffic of a kernel, as formulas in its dims."""
    touched = {a.buffer for a in accesses(k.body)}
    buffers = [*k.inputs, *k.outputs]
    size = sum(
        (product(b.shape) * b.dtype.bytes for b in buffers if b.name in touched), start=to_dim(0)
    )
    return Cost(stmt_flops(k.body), size)


def read_count(e: Expr, buffer: str, outputs: Dim) -> Dim:
    """How many elements of `buffer` are read when e is evaluated for `outputs` elements."""
    if isinstance(e, Reduce):
        return read_count(e.body, buffer, outputs * product(a.extent for a in e.axes))
    own = outputs if isinstance(e, Load) and e.buffer == buffer else to_dim(0)
    return sum((read_count(c, buffer, outputs) for c in children(e)), start=own)


def kernel_buffers(k: Kernel) -> dict[str, Buffer]:
    """Every buffer by name: parameters, scratch and local ones."""
    return {**k.buffers(), **{b.name: b for b in local_buffers(k.body)}}


def written(body: Iterable[Stmt]) -> frozenset[str]:
    """Buffers that statements store to."""
    return frozenset(a.buffer for s in body for a in accesses(s) if a.is_store)
