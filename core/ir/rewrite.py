"""Expressions and statements in, rewritten ones out: mapping, substitution, renaming, free symbols."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import TypeAlias, cast

from smelt.core.dim import Dim, DimLike, sym
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Call,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    LoopNode,
    Reduce,
    Stmt,
    Store,
    Tiles,
    walk,
    walk_expr,
)

Body: TypeAlias = tuple[Stmt, ...]
DimFn: TypeAlias = Callable[[Dim], Dim]


# ---------------------------------------------------------------- expressions


def with_children(e: Expr, children: tuple[Expr, ...]) -> Expr:
    """e with other direct sub-expressions, in the order of `kernel.children`."""
    if isinstance(e, Call):
        return e if children == e.args else Call(e.fn, children, e.dtype)
    if isinstance(e, Reduce):
        return Reduce(e.kind, e.axes, children[0], e.dtype, e.last)
    if isinstance(e, Let):
        return Let(e.var, children[0], e.low, e.high, children[1])
    if isinstance(e, Load) and e.otherwise is not None:
        return Load(e.buffer, e.index, e.dtype, e.guard, children[0])
    assert not children, e
    return e


def map_expr(e: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """fn applied bottom-up to every sub-expression and then to the rebuilt whole."""
    if isinstance(e, Call):
        return fn(Call(e.fn, tuple([map_expr(a, fn) for a in e.args]), e.dtype))
    if isinstance(e, Reduce):
        return fn(Reduce(e.kind, e.axes, map_expr(e.body, fn), e.dtype, e.last))
    if isinstance(e, Let):
        return fn(Let(e.var, map_expr(e.value, fn), e.low, e.high, map_expr(e.body, fn)))
    if isinstance(e, Load) and e.otherwise is not None:
        return fn(Load(e.buffer, e.index, e.dtype, e.guard, map_expr(e.otherwise, fn)))
    return fn(e)


def with_args(e: Call, args: Sequence[Expr]) -> Call:
    """The call with these arguments; itself where they are its own, since to make one takes a microsecond."""
    return e if all(map(is_, args, e.args)) else Call(e.fn, tuple(args), e.dtype)


def map_expr_dims(e: Expr, fn: DimFn) -> Expr:
    """fn applied to every Dim of an expression: indices, guards, axis extents, clamps."""
    if isinstance(e, Index):
        return Index(fn(e.dim), e.dtype)
    if isinstance(e, Load):
        other = None if e.otherwise is None else map_expr_dims(e.otherwise, fn)
        return Load(e.buffer, _dims(e.index, fn), e.dtype, map_guard(e.guard, fn), other)
    if isinstance(e, Call):
        return with_args(e, [map_expr_dims(a, fn) for a in e.args])
    if isinstance(e, Reduce):
        axes = tuple([Axis(a.var, fn(a.extent)) for a in e.axes])
        return Reduce(e.kind, axes, map_expr_dims(e.body, fn), e.dtype, e.last)
    if isinstance(e, Let):
        value, body = map_expr_dims(e.value, fn), map_expr_dims(e.body, fn)
        return Let(e.var, value, fn(e.low), fn(e.high), body)
    return e


def substitute_expr(e: Expr, mapping: Mapping[str, DimLike]) -> Expr:
    """Symbols of every Dim in e replaced. Variables that e itself binds shadow the mapping. The caller
    sees to it that no replacement mentions a variable bound inside e (see `freshen`); asserted."""
    if not mapping:
        return e
    if isinstance(e, Index):
        return Index(e.dim.substitute(mapping), e.dtype)
    if isinstance(e, Load):
        index = tuple([d.substitute(mapping) for d in e.index])
        if not e.guard and e.otherwise is None and all(map(is_, index, e.index)):
            return e
        other = None if e.otherwise is None else substitute_expr(e.otherwise, mapping)
        return Load(e.buffer, index, e.dtype, substitute_guard(e.guard, mapping), other)
    if isinstance(e, Call):
        return with_args(e, [substitute_expr(a, mapping) for a in e.args])
    if isinstance(e, Reduce):
        # An axis' extent is outside the scope of the axes.
        axes = tuple([Axis(a.var, a.extent.substitute(mapping)) for a in e.axes])
        inner = _shadow(mapping, (a.var for a in e.axes))
        return Reduce(e.kind, axes, substitute_expr(e.body, inner), e.dtype, e.last)
    if isinstance(e, Let):
        low, high = e.low.substitute(mapping), e.high.substitute(mapping)
        body = substitute_expr(e.body, _shadow(mapping, (e.var,)))
        return Let(e.var, substitute_expr(e.value, mapping), low, high, body)
    return e


def substitute_guard(guard: tuple[Bound, ...], mapping: Mapping[str, DimLike]) -> tuple[Bound, ...]:
    """Symbols in bounds replaced."""
    return map_guard(guard, lambda d: d.substitute(mapping)) if mapping and guard else guard


def map_guard(guard: tuple[Bound, ...], fn: DimFn) -> tuple[Bound, ...]:
    """fn applied to the three Dims of every bound."""
    return tuple([Bound(fn(b.low), fn(b.index), fn(b.high)) for b in guard]) if guard else guard


def _dims(dims: Iterable[Dim], fn: DimFn) -> tuple[Dim, ...]:
    return tuple([fn(d) for d in dims])


def _shadow(mapping: Mapping[str, DimLike], bound: Iterable[str]) -> Mapping[str, DimLike]:
    """mapping without the names bound here; asserts that nothing would be captured."""
    names = set(bound)
    if names & mapping.keys():
        mapping = {k: v for k, v in mapping.items() if k not in names}
    for v in mapping.values():
        assert not isinstance(v, Dim) or not (v.symbols & names), f"{v} captured by {sorted(names)}"
    return mapping


# ---------------------------------------------------------------- statements


def with_body(s: Stmt, body: Body) -> Stmt:
    """A loop, tiles or block with another body."""
    if isinstance(s, Loop):
        return Loop(s.level, s.var, s.extent, body, s.buffers)
    if isinstance(s, Block):
        return Block(body, s.buffers, s.let, s.guard, s.by, s.ordered)
    assert isinstance(s, Tiles)
    return Tiles(s.level, s.start, s.rows, s.extent, s.sizes, s.mode, body, s.buffers)


def map_stmts(body: Body, fn: Callable[[Stmt], Stmt | Body]) -> Body:
    """fn applied bottom-up to every statement; a tuple is spliced in its place (empty: removed)."""
    out: list[Stmt] = []
    for s in body:
        done = fn(s if isinstance(s, Store) else with_body(s, map_stmts(s.body, fn)))
        out.extend(done) if isinstance(done, tuple) else out.append(done)
    return tuple(out)


def map_stmt_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """fn applied to each whole expression (stored values, values of lets) of s and its body."""
    if isinstance(s, Store):
        return Store(s.buffer, s.index, fn(s.value), s.accumulate, s.guard)
    body = tuple([map_stmt_exprs(c, fn) for c in s.body])
    if isinstance(s, Block):
        let = tuple([(v, fn(x), low, high) for v, x, low, high in s.let])
        return Block(body, s.buffers, let, s.guard, s.by, s.ordered)
    return with_body(s, body)


def map_buffer_dims(b: Buffer, fn: DimFn) -> Buffer:
    """fn applied to the extents of a buffer."""
    return Buffer(b.name, b.dtype, _dims(b.shape, fn), b.space, b.layout, b.ahead)


def map_stmt_dims(s: Stmt, fn: DimFn) -> Stmt:
    """fn applied to every Dim of a statement: indices, guards, extents, buffer shapes."""
    if isinstance(s, Store):
        index, guard = _dims(s.index, fn), map_guard(s.guard, fn)
        return Store(s.buffer, index, map_expr_dims(s.value, fn), s.accumulate, guard)
    body = tuple([map_stmt_dims(c, fn) for c in s.body])
    buffers = tuple([map_buffer_dims(b, fn) for b in s.buffers])
    if isinstance(s, Block):
        let = tuple([(v, map_expr_dims(x, fn), fn(lo), fn(hi)) for v, x, lo, hi in s.let])
        return Block(body, buffers, let, map_guard(s.guard, fn), s.by, s.ordered)
    return _loop(s, fn(s.extent), body, buffers)


def _loop(s: LoopNode, extent: Dim, body: Body, buffers: tuple[Buffer, ...]) -> LoopNode:
    """The loop or tiles with these in place of its own."""
    if isinstance(s, Loop):
        return Loop(s.level, s.var, extent, body, buffers)
    return Tiles(s.level, s.start, s.rows, extent, s.sizes, s.mode, body, buffers)


def substitute_stmt(s: Stmt, mapping: Mapping[str, DimLike]) -> Stmt:
    """Symbols replaced in indices, guards, extents and buffer shapes of s. Shadowing and capture as in
    `substitute_expr`."""
    if not mapping:
        return s
    if isinstance(s, Store):
        index = tuple([d.substitute(mapping) for d in s.index])
        value, guard = substitute_expr(s.value, mapping), substitute_guard(s.guard, mapping)
        return Store(s.buffer, index, value, s.accumulate, guard)
    if isinstance(s, Block):
        return _substitute_block(s, mapping)
    extent = s.extent.substitute(mapping)
    inner = _shadow(mapping, bound_here(s))
    buffers = tuple([map_buffer_dims(b, lambda d: d.substitute(inner)) for b in s.buffers])
    return _loop(s, extent, substitute_body(s.body, inner), buffers)


def _substitute_block(s: Block, mapping: Mapping[str, DimLike]) -> Block:
    let: list[tuple[str, Expr, Dim, Dim]] = []
    inner = mapping
    for var, value, low, high in s.let:  # each let sees those before it
        bounds = (low.substitute(inner), high.substitute(inner))
        let.append((var, substitute_expr(value, inner), *bounds))
        inner = _shadow(inner, (var,))
    buffers = tuple([map_buffer_dims(b, lambda d: d.substitute(inner)) for b in s.buffers])
    guard = substitute_guard(s.guard, inner)
    return Block(substitute_body(s.body, inner), buffers, tuple(let), guard, s.by, s.ordered)


def substitute_body(body: Body, mapping: Mapping[str, DimLike]) -> Body:
    """`substitute_stmt` for each statement."""
    return tuple([substitute_stmt(s, mapping) for s in body]) if mapping else body


# ---------------------------------------------------------------- names


def bound_here(s: Stmt) -> tuple[str, ...]:
    """Variables that the statement itself binds for its body."""
    if isinstance(s, Loop):
        return (s.var,)
    if isinstance(s, Tiles):
        return (s.start, s.rows)
    if isinstance(s, Block):
        return tuple(v for v, *_ in s.let)
    return ()


def bound_symbols(x: Expr | Stmt | Body) -> frozenset[str]:
    """Every variable bound anywhere inside: loops, tiles, lets, reduction axes."""
    found: set[str] = set()
    if not isinstance(x, tuple | Store | Loop | Tiles | Block):
        _bound_in(x, found)
        return frozenset(found)
    for s in walk(x if isinstance(x, tuple) else (x,)):
        if isinstance(s, Store):
            _bound_in(s.value, found)
            continue
        found.update(bound_here(s))
        for _, e, *_ in s.let if isinstance(s, Block) else ():
            _bound_in(e, found)
    return frozenset(found)


def _bound_in(e: Expr, found: set[str]) -> None:
    for x in walk_expr(e):
        if isinstance(x, Reduce):
            found.update([a.var for a in x.axes])
        elif isinstance(x, Let):
            found.add(x.var)


def alpha(e: Expr) -> Expr:
    """e with its bound variables named by position, so that equal meanings compare equal."""
    names: dict[str, str] = {}
    for x in walk_expr(e):
        bound = [a.var for a in x.axes] if isinstance(x, Reduce) else []
        bound += [x.var] if isinstance(x, Let) else []
        for v in bound:
            names.setdefault(v, f"$.{len(names)}")
    return rename_vars_expr(e, names) if names else e


def free_symbols(x: Expr | Stmt | Body | Kernel) -> frozenset[str]:
    """Symbols used but not bound inside. A well-formed kernel has none (its dims are bound)."""
    if isinstance(x, Kernel):
        used = set(free_symbols(x.body))
        for b in x.buffers().values():
            used |= _of(b.shape)
        return frozenset(used - {d.name for d in x.dims})
    if isinstance(x, tuple):
        return frozenset().union(*[free_symbols(s) for s in x])
    if isinstance(x, Store | Loop | Tiles | Block):
        return frozenset(_free_stmt(x))
    found: set[str] = set()
    _free_expr(x, found)
    return frozenset(found)


def _of(dims: Iterable[Dim]) -> set[str]:
    return set().union(*[d.symbols for d in dims])


def _of_guard(guard: tuple[Bound, ...]) -> set[str]:
    return _of(d for b in guard for d in (b.low, b.index, b.high))


def _free_expr(e: Expr, found: set[str]) -> None:
    """Add what is free in e. One set for all of an expression, but for what binds names."""
    if isinstance(e, Load):
        for d in e.index:
            if d.const_or_none is None:
                found |= d.symbols
        if e.guard:
            found |= _of_guard(e.guard)
        if e.otherwise is not None:
            _free_expr(e.otherwise, found)
    elif isinstance(e, Call):
        for a in e.args:
            _free_expr(a, found)
    elif isinstance(e, Index):
        found |= e.dim.symbols
    elif isinstance(e, Reduce):
        inner: set[str] = set()
        _free_expr(e.body, inner)
        found |= inner.difference([a.var for a in e.axes])
        found |= _of(a.extent for a in e.axes)
    elif isinstance(e, Let):
        _free_expr(e.value, found)
        found |= _of((e.low, e.high))
        inside: set[str] = set()
        _free_expr(e.body, inside)
        found |= inside - {e.var}


def _free_stmt(s: Stmt) -> set[str]:
    if isinstance(s, Store):
        found = _of(s.index) | _of_guard(s.guard)
        _free_expr(s.value, found)
        return found
    inner = set(free_symbols(s.body)) | _of(d for b in s.buffers for d in b.shape)
    if isinstance(s, Block):
        inner |= _of_guard(s.guard)
        for var, value, low, high in reversed(s.let):
            inner = (inner - {var}) | _of((low, high))
            _free_expr(value, inner)
        return inner
    return (inner - set(bound_here(s))) | s.extent.symbols


def rename_buffers_expr(e: Expr, names: Mapping[str, str]) -> Expr:
    """Buffers of loads renamed."""

    def visit(x: Expr) -> Expr:
        if isinstance(x, Load) and x.buffer in names:
            return replace(x, buffer=names[x.buffer])
        return x

    return map_expr(e, visit)


def rename_vars_expr(e: Expr, names: Mapping[str, str]) -> Expr:
    """Variables renamed both where they are bound and where they are used."""
    mapping = {a: sym(b) for a, b in names.items()}
    return _rename_bound(map_expr_dims(e, lambda d: d.substitute(mapping)), names)


def _rename_bound(e: Expr, names: Mapping[str, str]) -> Expr:
    """Variables renamed where they are bound."""

    def visit(x: Expr) -> Expr:
        if isinstance(x, Reduce):
            axes = tuple(replace(a, var=names.get(a.var, a.var)) for a in x.axes)
            return replace(x, axes=axes)
        return replace(x, var=names.get(x.var, x.var)) if isinstance(x, Let) else x

    binds = any(isinstance(x, Reduce | Let) for x in walk_expr(e))
    return map_expr(e, visit) if binds else e


def rename_vars(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """Variables of a statement renamed both where they are bound and where they are used."""
    mapping = {a: sym(b) for a, b in names.items()}

    def visit(x: Stmt) -> Stmt:
        if isinstance(x, Loop):
            return replace(x, var=names.get(x.var, x.var))
        if isinstance(x, Tiles):
            return replace(
                x, start=names.get(x.start, x.start), rows=names.get(x.rows, x.rows)
            )
        if isinstance(x, Block):
            return replace(x, let=tuple((names.get(v, v), e, lo, hi) for v, e, lo, hi in x.let))
        return x

    s = map_stmt_dims(s, lambda d: d.substitute(mapping))
    s = map_stmt_exprs(s, lambda e: _rename_bound(e, names))
    (done,) = cast("tuple[Stmt]", map_stmts((s,), visit))
    return done


def fresh_name(base: str, taken: Container[str]) -> str:
    """base, or base1, base2, ...: the first that is not taken. Digits at base's end are dropped first
    when it is taken (k1 becomes k2, not k11)."""
    if base not in taken:
        return base
    stem = base.rstrip("0123456789") or base
    n = 1
    while f"{stem}{n}" in taken:
        n += 1
    return f"{stem}{n}"


def _renaming(x: Expr | Stmt, taken: Iterable[str]) -> dict[str, str]:
    """New names for the variables bound in x that are taken; none meets another name in x."""
    occupied, bound = set(taken), bound_symbols(x)
    used = occupied | bound | free_symbols(x)
    names = {}
    for v in sorted(bound & occupied):
        names[v] = fresh_name(v, used)
        used.add(names[v])
    return names


def freshen(s: Stmt, taken: Iterable[str]) -> Stmt:
    """s with every variable it binds renamed away from `taken` (alpha-equivalent)."""
    names = _renaming(s, taken)
    return rename_vars(s, names) if names else s


def local_buffers(body: Body) -> tuple[Buffer, ...]:
    """Buffers declared by the statements of a body, outer first."""
    return tuple(b for s in walk(body) if not isinstance(s, Store) for b in s.buffers)
