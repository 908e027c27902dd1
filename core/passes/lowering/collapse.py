"""Naive nests with fewer loops: axes of 1 go, axes that are only iterated together become one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from smelt.core.dim import Dim, sym
from smelt.core.ir.kernel import (
    Axis,
    Buffer,
    Call,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Reduce,
    children,
    walk_expr,
)
from smelt.core.ir.rewrite import map_expr, substitute_expr


@dataclass(frozen=True, slots=True)
class NestForm:
    """One output: buffer[index] = value for all values of the variables, outermost first."""

    variables: tuple[tuple[str, Dim], ...]
    output: Buffer
    index: tuple[Dim, ...]
    value: Expr
    inputs: tuple[Buffer, ...]


def drop_units(nest: NestForm) -> NestForm:
    """x[1, n] at [0, i]  -->  x[n] at [i]"""
    kept = {
        b.name: [a for a, d in enumerate(b.shape) if d.const_or_none != 1]
        for b in (*nest.inputs, nest.output)
    }

    def visit(e: Expr) -> Expr:
        if isinstance(e, Load):
            index = tuple(e.index[a] for a in kept[e.buffer])
            return Load(e.buffer, index, e.dtype, e.guard, e.otherwise)
        return e

    def buffer(b: Buffer) -> Buffer:
        return Buffer(b.name, b.dtype, tuple(b.shape[a] for a in kept[b.name]), b.space)

    index = tuple(nest.index[a] for a in kept[nest.output.name])
    return NestForm(
        nest.variables, buffer(nest.output), index, map_expr(nest.value, visit),
        tuple(buffer(b) for b in nest.inputs),
    )


def drop_unit_axes(e: Expr) -> Expr:
    """sum a in 1, b in n { f(a, b) }  -->  sum b in n { f(0, b) };  sum over nothing { x }  -->  x"""

    def visit(x: Expr) -> Expr:
        if not isinstance(x, Reduce):
            return x
        ones = [a.var for a in x.axes if a.extent.const_or_none == 1]
        if not ones:
            return x
        if x.kind in ("argmax", "argmin"):
            return Const(0, x.dtype)
        body = substitute_expr(x.body, dict.fromkeys(ones, 0))
        axes = tuple(a for a in x.axes if a.var not in ones)
        if axes:
            return Reduce(x.kind, axes, body, x.dtype, x.last)
        return body if body.dtype == x.dtype else Call("cast", (body,), x.dtype)

    return map_expr(e, visit)


NamePair = tuple[str, str]
NestAccess = tuple[str, tuple[Dim, ...]]


def collapse_nest(nest: NestForm) -> NestForm:
    """y[b, s, n] = sum k: x[b, s, k] * w[k, n]  -->  y[m, n] = sum k: x[m, k] * w[k, n], m = b * s

    Two neighbouring variables (of the loops, or of one reduction) become one where every access that uses
    them has them side by side over whole axes, and nothing else speaks of them."""
    while True:
        for pair in _pairs(nest):
            merged = _merge(nest, pair)
            if merged is not None:
                nest = merged
                break
        else:
            return nest


def _pairs(nest: NestForm) -> list[NamePair]:
    names = [v for v, _ in nest.variables]
    found = list(itertools.pairwise(names))
    for axes in _reductions(nest.value):
        mine = [a.var for a in axes]
        found += [p for p in itertools.pairwise(mine) if p not in found]
    return found


def _reductions(e: Expr) -> Iterator[tuple[Axis, ...]]:
    if isinstance(e, Reduce):
        yield e.axes
    for c in children(e):
        yield from _reductions(c)


def _merge(nest: NestForm, first: NamePair) -> NestForm | None:
    """The nest with this pair merged and every pair that this forces, or None."""
    extents = dict(nest.variables)
    for axes in _reductions(nest.value):
        extents.update((a.var, a.extent) for a in axes)
    neighbours = set(_pairs(nest))
    shapes = {b.name: b.shape for b in (*nest.inputs, nest.output)}
    accesses: list[NestAccess] = [(nest.output.name, nest.index)]
    accesses += [(e.buffer, e.index) for e in walk_expr(nest.value) if isinstance(e, Load)]
    elsewhere = _spoken_elsewhere(nest.value)

    wanted, places, todo = {first}, set[tuple[str, int]](), [first]
    while todo:
        a, b = todo.pop()
        if {a, b} & elsewhere or (a, b) not in neighbours:
            return None
        for name, index in accesses:
            at = _position(index, a, b)
            if at is None:
                continue
            shape = shapes[name]
            if at < 0 or shape[at] != extents[a] or shape[at + 1] != extents[b]:
                return None
            places.add((name, at))
        for name, index in accesses:
            for place, at in places:
                if place != name:
                    continue
                forced = _pair_at(index, at, extents)
                if forced is None:
                    return None
                if forced not in wanted:
                    wanted.add(forced)
                    todo.append(forced)
    used = [v for p in wanted for v in p]
    if len(set(used)) != len(used):
        return None
    return _apply(nest, wanted, places, extents)


def _spoken_elsewhere(e: Expr) -> set[str]:
    """Variables that guards, values, extents and clamps mention."""
    found: set[str] = set()
    for x in walk_expr(e):
        if isinstance(x, Index):
            found |= x.dim.symbols
        elif isinstance(x, Load):
            for b in x.guard:
                found |= b.low.symbols | b.index.symbols | b.high.symbols
        elif isinstance(x, Reduce):
            for axis in x.axes:
                found |= axis.extent.symbols
            if x.kind in ("argmax", "argmin"):
                found |= {axis.var for axis in x.axes}
        elif isinstance(x, Let):
            found |= x.low.symbols | x.high.symbols
    return found


def _position(index: tuple[Dim, ...], a: str, b: str) -> int | None:
    """Where a and b stand side by side in an index; None when neither occurs, -1 when they are used
    in any other way."""
    uses = [p for p, d in enumerate(index) if a in d.symbols or b in d.symbols]
    if not uses:
        return None
    at = uses[0]
    good = len(uses) == 2 and uses[1] == at + 1 and index[at] == sym(a) and index[at + 1] == sym(b)
    return at if good else -1


def _pair_at(index: tuple[Dim, ...], at: int, extents: Mapping[str, Dim]) -> NamePair | None:
    """The two variables at a place, when plain variables stand there."""
    names = []
    for d in index[at : at + 2]:
        mine = [s for s in d.symbols if s in extents]
        if len(mine) != 1 or d != sym(mine[0]):
            return None
        names.append(mine[0])
    return names[0], names[1]


def _apply(
    nest: NestForm, pairs: set[NamePair], places: set[tuple[str, int]], extents: Mapping[str, Dim]
) -> NestForm:
    """Each pair (a, b) as the one variable a over the product; each place as one axis."""
    second = {b: a for a, b in pairs}
    size = {a: extents[a] * extents[b] for a, b in pairs}

    def drop(name: str, items: tuple[Dim, ...], product: bool) -> tuple[Dim, ...]:
        out = []
        p = 0
        while p < len(items):
            if (name, p) in places:
                out.append(items[p] * items[p + 1] if product else items[p])
                p += 2
            else:
                out.append(items[p])
                p += 1
        return tuple(out)

    def buffer(b: Buffer) -> Buffer:
        return Buffer(b.name, b.dtype, drop(b.name, b.shape, True), b.space)

    def visit(e: Expr) -> Expr:
        if isinstance(e, Load):
            return Load(e.buffer, drop(e.buffer, e.index, False), e.dtype, e.guard, e.otherwise)
        if isinstance(e, Reduce):
            axes = tuple(
                Axis(a.var, size.get(a.var, a.extent)) for a in e.axes if a.var not in second
            )
            return Reduce(e.kind, axes, e.body, e.dtype, e.last)
        return e

    variables = tuple((v, size.get(v, d)) for v, d in nest.variables if v not in second)
    return NestForm(
        variables, buffer(nest.output), drop(nest.output.name, nest.index, False),
        map_expr(nest.value, visit), tuple(buffer(b) for b in nest.inputs),
    )


def read_buffers(e: Expr) -> set[str]:
    """The buffers that an expression loads from."""
    return {x.buffer for x in walk_expr(e) if isinstance(x, Load)}
