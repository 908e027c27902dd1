"""Loops of a kernel by the name of their variable: find, edit with facts in scope, guard, simplify."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from math import gcd
from operator import attrgetter
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.dim import YES, Dim, Facts, sym, to_dim
from smelt.core.ir.analysis.scope import enter, expressions, kernel_facts
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Call,
    Const,
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
from smelt.core.ir.rewrite import Body, bound_symbols, free_symbols, local_buffers, with_args, with_body


class ScheduleError(SmeltError):
    """A primitive that refuses: what it was asked, and why that is not provably legal."""

    def __init__(self, primitive: str, reason: str) -> None:
        super().__init__(f"{primitive}: {reason}", kind="internal")


def var_of(node: LoopNode) -> str:
    """The name a schedule calls a loop by: its variable, or the start of its tiles."""
    return node.var if isinstance(node, Loop) else node.start


def edit(kernel: Kernel, var: str, fn: Callable[[LoopNode, Facts], Stmt | Body], what: str) -> Kernel:
    """Every loop named var replaced by fn(loop, facts outside it). Refuses when there is none."""
    hits = 0

    def visit(s: Stmt, facts: Facts) -> Body:
        nonlocal hits
        if isinstance(s, Store):
            return (s,)
        if not isinstance(s, Block) and var_of(s) == var:
            hits += 1
            done = fn(s, facts)
            return done if isinstance(done, tuple) else (done,)
        if not any(isinstance(x, Loop | Tiles) and var_of(x) == var for x in walk(s.body)):
            return (s,)
        inner = enter(facts, s)
        return (with_body(s, tuple([x for c in s.body for x in visit(c, inner)])),)

    facts = kernel_facts(kernel)
    body = tuple(x for s in kernel.body for x in visit(s, facts))
    if not hits:
        raise ScheduleError(what, f"there is no loop '{var}'")
    return kernel.with_(body=body)


def closed(x: Stmt | Body | Kernel, known: Collection[str], what: str) -> None:
    """Refuse what has symbols that mean nothing there: a `let` of the expression around, for one."""
    loose = free_symbols(x).difference(known)
    if loose:
        raise ScheduleError(what, f"'{min(loose)}' means nothing outside of the expression that binds it")


def find(kernel: Kernel, var: str) -> tuple[tuple[Stmt, ...], LoopNode] | None:
    """(statements around it, outermost first; the loop) for the first loop of that name."""

    def visit(s: Stmt, path: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], LoopNode] | None:
        if isinstance(s, Store):
            return None
        if not isinstance(s, Block) and var_of(s) == var:
            return path, s
        for c in s.body:
            found = visit(c, (*path, s))
            if found is not None:
                return found
        return None

    for s in kernel.body:
        found = visit(s, ())
        if found is not None:
            return found
    return None


def chain(s: Stmt) -> tuple[tuple[LoopNode, ...], Body]:
    """The perfectly nested loops from s inward, and the body of the innermost."""
    nodes: list[LoopNode] = []
    body: Body = (s,)
    while len(body) == 1 and isinstance(body[0], Loop | Tiles):
        nodes.append(body[0])
        body = body[0].body
    return tuple(nodes), body


def rebuild(nodes: Iterable[LoopNode], body: Body) -> Body:
    """The loops around another body, outermost first."""
    for node in reversed(tuple(nodes)):
        body = (with_body(node, body),)
    return body


def stores(body: Body) -> tuple[Store, ...]:
    """Every store below."""
    return tuple(s for s in walk(body) if isinstance(s, Store))


def names_of(kernel: Kernel) -> set[str]:
    """Every name a new variable or buffer must differ from."""
    names = {d.name for d in kernel.dims} | set(kernel.buffers()) | bound_symbols(kernel.body)
    return names | {b.name for b in local_buffers(kernel.body)}


# ---------------------------------------------------------------- loads and stores with facts


LoadFn: TypeAlias = Callable[[Load, Facts], Expr]
StoreFn: TypeAlias = Callable[[Store, Facts], Stmt]


def map_loads(e: Expr, facts: Facts, fn: LoadFn) -> Expr:
    """fn(load, facts in scope) in the place of every load of e."""
    if isinstance(e, Load):
        other = None if e.otherwise is None else map_loads(e.otherwise, facts, fn)
        return fn(e if other is e.otherwise else replace(e, otherwise=other), facts)
    if isinstance(e, Call):
        return with_args(e, [map_loads(a, facts, fn) for a in e.args])
    if isinstance(e, Reduce):
        return replace(e, body=map_loads(e.body, enter(facts, e.axes), fn))
    if isinstance(e, Let):
        inner = map_loads(e.body, enter(facts, e), fn)
        return replace(e, value=map_loads(e.value, facts, fn), body=inner)
    return e


def map_accesses(body: Body, facts: Facts, load: LoadFn, store: StoreFn) -> Body:
    """load and store applied to every access below, with the facts in scope there."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Store):
            value = map_loads(s.value, facts, load)
            out.append(store(Store(s.buffer, s.index, value, s.accumulate, s.guard), facts))
            continue
        done = with_body(s, map_accesses(s.body, enter(facts, s), load, store))
        if isinstance(done, Block):
            done = replace(
                done, let=tuple((v, map_loads(x, facts, load), lo, hi) for v, x, lo, hi in done.let)
            )
        out.append(done)
    return tuple(out)


def within(index: tuple[Dim, ...], shape: tuple[Dim, ...], facts: Facts) -> bool:
    """True when every index is proved to be inside its extent."""
    return all(
        facts.prove_le(0, i) is YES and facts.prove_lt(i, n) is YES
        for i, n in zip(index, shape, strict=True)
    )


def guard_body(kernel: Kernel, body: Body, facts: Facts, bound: Bound, tail: bool = False) -> Body:
    """body with the bound added to every store to memory, and to every load that depends on the
    bound's index and is not proved to stay inside its buffer without it (tail: none is)."""
    shapes = {b.name: b.shape for b in kernel.buffers().values()}
    names = bound.index.symbols

    def load(e: Load, inner: Facts) -> Expr:
        depends = any(d.symbols & names for d in e.index)
        if e.buffer not in shapes or not depends:
            return e
        if not tail and within(e.index, shapes[e.buffer], inner):
            return e
        return replace(e, guard=(*e.guard, bound))

    def store(s: Store, _: Facts) -> Stmt:
        return s if s.buffer not in shapes else replace(s, guard=(*s.guard, bound))

    return map_accesses(body, facts, load, store)


# ---------------------------------------------------------------- simplification


_DEPTH = attrgetter("depth")


def simplify_dim(d: Dim, facts: Facts) -> Dim:
    """d with what the facts decide about its divisions, minima and maxima."""
    return facts.simplify(d) if d.depth else d


def _guard(guard: tuple[Bound, ...], facts: Facts) -> tuple[Bound, ...] | None:
    """The bounds that are not proved, each once, simplified; None when one never holds."""
    if not guard:
        return guard
    kept: list[Bound] = []
    for b in guard:
        b = Bound(*(simplify_dim(d, facts) for d in (b.low, b.index, b.high)))
        if facts.prove_lt(b.index, b.low) is YES or facts.prove_le(b.high, b.index) is YES:
            return None
        sure = facts.prove_le(b.low, b.index) is YES and facts.prove_lt(b.index, b.high) is YES
        if not sure and b not in kept:
            kept.append(b)
    return tuple(kept)


def _decided(e: Call, facts: Facts) -> Expr:
    """Comparisons of indices that the facts decide, and what follows from them.

    le(i, j) -> true or false;  and(true, x) -> x;  select(true, x, y) -> x
    """
    if e.fn in ("le", "lt") and isinstance(e.args[0], Index) and isinstance(e.args[1], Index):
        a, b = e.args[0].dim, e.args[1].dim
        yes, no = (a, b), (b, a)
        if e.fn == "le":
            holds, fails = facts.prove_le(*yes), facts.prove_lt(*no)
        else:
            holds, fails = facts.prove_lt(*yes), facts.prove_le(*no)
        if YES in (holds, fails):
            return Const(holds is YES, e.dtype)
    if e.fn == "and":
        for x, y in (e.args, e.args[::-1]):
            if isinstance(x, Const) and x.value is True:
                return y
            if isinstance(x, Const) and x.value is False:
                return x
    if e.fn == "select" and isinstance(e.args[0], Const):
        return e.args[1] if e.args[0].value else e.args[2]
    return e


def tidy_expr(e: Expr, facts: Facts) -> Expr:
    """Index expressions simplified, guards that always hold dropped."""
    if isinstance(e, Load):
        if not e.guard and e.otherwise is None and not any(map(_DEPTH, e.index)):
            return e
        guard = _guard(e.guard, facts)
        if guard is None:
            zero = Const(0.0 if e.dtype.is_float else e.dtype.category != "bool" and 0, e.dtype)
            return zero if e.otherwise is None else tidy_expr(e.otherwise, facts)
        other = None if e.otherwise is None or not guard else tidy_expr(e.otherwise, facts)
        index = tuple([simplify_dim(d, facts) for d in e.index])
        return Load(e.buffer, index, e.dtype, guard, other)
    if isinstance(e, Index):
        return Index(simplify_dim(e.dim, facts), e.dtype)
    if isinstance(e, Call):
        return _decided(with_args(e, [tidy_expr(a, facts) for a in e.args]), facts)
    if isinstance(e, Reduce):
        axes = tuple(Axis(a.var, simplify_dim(a.extent, facts)) for a in e.axes)
        return replace(e, axes=axes, body=tidy_expr(e.body, enter(facts, axes)))
    if isinstance(e, Let):
        low, high = simplify_dim(e.low, facts), simplify_dim(e.high, facts)
        done = Let(e.var, tidy_expr(e.value, facts), low, high, e.body)
        return replace(done, body=tidy_expr(e.body, enter(facts, done)))
    return e


def tidy(body: Body, facts: Facts) -> Body:
    """tidy_expr everywhere, and extents simplified."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Store):
            index = tuple([simplify_dim(d, facts) for d in s.index])
            guard = _guard(s.guard, facts)
            if guard is not None:
                out.append(Store(s.buffer, index, tidy_expr(s.value, facts), s.accumulate, guard))
        elif isinstance(s, Block):
            let = tuple((v, tidy_expr(x, facts), lo, hi) for v, x, lo, hi in s.let)
            inner = enter(facts, s)
            guard = _guard(s.guard, inner)
            if guard is not None:
                out.append(Block(tidy(s.body, inner), s.buffers, let, guard, s.by, s.ordered))
        else:
            done = replace(s, extent=simplify_dim(s.extent, facts))
            out.append(with_body(done, tidy(s.body, enter(facts, done))))
    return tuple(out)


# ---------------------------------------------------------------- legality


def _reaches(d: Dim, inner: dict[str, Dim]) -> dict[str, tuple[int, Dim]] | None:
    """Inner variable -> (its coefficient in d, what it adds at most); None when d is not linear in them."""
    found: dict[str, tuple[int, Dim]] = {}
    for name in sorted(d.symbols & inner.keys()):
        linear = d.linear(name)
        if linear is None or not linear[0].is_const:
            return None
        step = abs(linear[0].const)
        found[name] = (step, step * (inner[name] - 1))
    return found


def _inner_extents(body: Body) -> dict[str, Dim]:
    found: dict[str, Dim] = {}
    for s in walk(body):
        if isinstance(s, Loop):
            found[s.var] = s.extent
        elif isinstance(s, Tiles):
            found[s.start] = s.extent
    return found


def distinct_axes(node: LoopNode, index: tuple[Dim, ...], facts: Facts) -> tuple[int, ...]:
    """The axes along which different iterations of node touch disjoint positions, whatever the loops
    inside it do: c*v + fine + coarse, where fine stays below c, and coarse moves in multiples of more
    than c*v + fine ever reaches."""
    inner = _inner_extents(node.body)
    var = var_of(node)
    rows = to_dim(1) if isinstance(node, Loop) else sym(node.rows)
    inside = enter(facts, node)
    found = []
    for axis, d in enumerate(index):
        linear = d.linear(var) if var in d.symbols else None
        if linear is None or not linear[0].is_const:
            continue
        reaches = _reaches(linear[1], inner)
        if reaches is not None and _apart(abs(linear[0].const), rows, node.extent, reaches, inside):
            found.append(axis)
    return tuple(found)


def _apart(step: int, rows: Dim, extent: Dim, reaches: dict[str, tuple[int, Dim]], facts: Facts) -> bool:
    fine = to_dim(0)
    for _, reach in reaches.values():
        fine = fine + reach
    if facts.prove_lt(fine, step * rows) is YES:
        return True
    # with a coarse part: only those that move by more than the rest can reach
    coarse = [c for c, _ in reaches.values() if c > step]
    fine = to_dim(0)
    for c, reach in reaches.values():
        fine = fine + (reach if c <= step else 0)
    period = gcd(*coarse) if coarse else 0
    return (
        facts.prove_lt(fine, step * rows) is YES
        and facts.prove_lt(step * (extent - 1) + fine, period) is YES
    )


def is_parallel(node: LoopNode, facts: Facts) -> bool:
    """True when the iterations of node are proved independent: each writes its own elements, and what
    one writes no other reads. Buffers declared inside are private."""
    if node.extent == 1 or node.extent == 0:
        return True
    private = {b.name for b in (*node.buffers, *local_buffers(node.body))}
    written: dict[str, set[tuple[int, Dim]]] = {}
    for s in stores(node.body):
        if s.buffer in private:
            continue
        own = {(a, _coarse(s.index[a], node)) for a in distinct_axes(node, s.index, facts)}
        if s.buffer in written:
            # two stores are apart when they share an axis on which both have the same index, or are in the
            # same steps of the loop (4 * i + 1 and 4 * i + 3)
            own &= written[s.buffer]
        if not own:
            return False
        written[s.buffer] = own
    for e in expressions(node.body):
        for x in walk_expr(e):
            mine = written.get(x.buffer) if isinstance(x, Load) else None
            if mine is None or not isinstance(x, Load):
                continue
            if not mine & {(a, _coarse(d, node)) for a, d in enumerate(x.index)}:
                return False
    return True


def _coarse(d: Dim, node: LoopNode) -> Dim:
    """The index without what is less than one step of the loop, where all else moves in whole steps: 4 * i
    for 4 * i + 3, and 4 * i + 4 for 4 * i + 6."""
    found = d.linear(var_of(node)) if isinstance(node, Loop) else None
    step = None if found is None else found[0].const_or_none
    if found is None or step is None or step < 2 or any(k % step for k, mono in found[1].terms() if mono):
        return d
    return d - sum(k for k, mono in found[1].terms() if not mono) % step


def is_static(extent: Dim, kernel: Kernel) -> bool:
    """A constant, or the size of a tile around it: the only symbols that emitters make constant."""
    if extent.is_const:
        return True
    return any(extent == sym(s.rows) for s in walk(kernel.body) if isinstance(s, Tiles))


def declare(node: LoopNode, buffers: tuple[Buffer, ...]) -> LoopNode:
    """node with further buffers of its own."""
    return replace(node, buffers=(*node.buffers, *buffers))
