"""A statement with lane nodes in; where its threads meet, and which registers each has to itself, out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from smelt.core.dim import Facts
from smelt.core.ir.analysis.scope import enter, holding
from smelt.core.ir.barriers import (
    barriers_before,
    has_lanes,
    needs_barrier_after,
    own_indices,
    reads_what_it_writes,
)
from smelt.core.ir.kernel import Block, Buffer, Expr, Load, Loop, Stmt, Store, Tiles
from smelt.core.ir.rewrite import map_expr, map_stmt_exprs, map_stmts

Statements = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Meetings:
    """Where all threads of a group wait for each other. before: for a body (by identity), the positions in it
    before which they do. after: bodies of loops (by identity) of which one pass ends before the next begins.
    inside: bodies of blocks (by identity) that write what the block's indices were read from."""

    before: Mapping[int, frozenset[int]]
    after: frozenset[int]
    inside: frozenset[int]


def privatised(s: Stmt, lanes: int) -> tuple[Stmt, frozenset[str]]:
    """The statement with those register buffers that threads share by name, but never an element of, cut down
    to what one thread has; and their names. lanes: threads of a group."""
    found = dict(_own(s, lanes))

    def load(e: Expr) -> Expr:
        own = isinstance(e, Load) and e.buffer in found
        return replace(e, index=e.index[found[e.buffer] :]) if isinstance(e, Load) and own else e

    def buffer(b: Buffer) -> Buffer:
        return replace(b, shape=b.shape[found[b.name] :]) if b.name in found else b

    def statement(x: Stmt) -> Stmt:
        if isinstance(x, Store):
            return replace(x, index=x.index[found[x.buffer] :]) if x.buffer in found else x
        return replace(x, buffers=tuple(buffer(b) for b in x.buffers))

    if not found:
        return s, frozenset()
    (made,) = map_stmts((map_stmt_exprs(s, lambda e: map_expr(e, load)),), statement)
    return made, frozenset(found)


def _own(s: Stmt, lanes: int) -> Iterator[tuple[str, int]]:
    """(name, leading axes that name the thread) of each such buffer."""
    if isinstance(s, Store) or not has_lanes(s) or (not isinstance(s, Block) and s.level == "lane"):
        return
    for b in s.buffers:
        leading = own_indices(b, s.body, lanes) if b.space == "register" else None
        if leading is not None:
            yield b.name, leading
    for child in s.body:
        yield from _own(child, lanes)


def meetings(s: Stmt, facts: Facts, shapes: Mapping[str, Buffer], own: frozenset[str]) -> Meetings:
    """facts: what holds for the kernel's dims. shapes: the kernel's buffers. own: those of `privatised`."""
    before: dict[int, frozenset[int]] = {}
    after: set[int] = set()
    inside: set[int] = set()

    def visit(x: Stmt, facts: Facts, shapes: Mapping[str, Buffer], local: frozenset[str]) -> None:
        if isinstance(x, Store) or not has_lanes(x) or (not isinstance(x, Block) and x.level == "lane"):
            return
        facts = _inside(x, facts)
        shapes = {**shapes, **{b.name: b for b in x.buffers}}
        local = local | {b.name for b in x.buffers}
        before[id(x.body)] = barriers_before(x.body, facts, shapes, own)
        inner = local | {b.name for y in _nodes(x.body) for b in y.buffers}
        if not isinstance(x, Block) and needs_barrier_after(x.body, own, inner - own):
            after.add(id(x.body))
        if isinstance(x, Block) and reads_what_it_writes(x):
            inside.add(id(x.body))
        for child in x.body:
            visit(child, facts, shapes, local)

    visit(s, facts, shapes, frozenset())
    return Meetings(before, frozenset(after), frozenset(inside))


def _inside(x: Loop | Tiles | Block, facts: Facts) -> Facts:
    facts = enter(facts, x)
    return holding(facts, x.guard) if isinstance(x, Block) else facts


def _nodes(body: Statements) -> Iterator[Loop | Tiles | Block]:
    for s in body:
        if not isinstance(s, Store):
            yield s
            yield from _nodes(s.body)
