"""Primitives on loops: Kernel -> Kernel. Each shows its rewrite as `before --> after` and refuses
(ScheduleError) what it cannot prove legal. Loops are named by their variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from smelt.core.dim import YES, Dim, DimLike, Facts, ceildiv, dmax, dmin, sym, to_dim
from smelt.core.ir.analysis.scope import accesses, enter, expressions, kernel_facts
from smelt.core.ir.kernel import (
    Axis,
    Bound,
    Buffer,
    Expr,
    Kernel,
    Level,
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
from smelt.core.ir.rewrite import (
    Body,
    bound_here,
    bound_symbols,
    free_symbols,
    fresh_name,
    map_expr,
    map_stmt_exprs,
    map_stmts,
    rename_vars,
    substitute_body,
    substitute_expr,
)
from smelt.core.schedule.tree import (
    ScheduleError,
    chain,
    edit,
    find,
    guard_body,
    is_parallel,
    is_static,
    map_accesses,
    names_of,
    rebuild,
    simplify_dim,
    tidy,
    var_of,
)


def normalise(kernel: Kernel) -> Kernel:
    """Unique variables, no loops of extent 1, no guards that always hold.

    for i in 1 { s }  -->  s[i := 0];   sum k in 1 { e }  -->  e[k := 0]
    """
    facts = kernel_facts(kernel)
    body = map_stmts(kernel.body, _drop_unit_loop)
    body = tuple(map_stmt_exprs(s, lambda e: map_expr(e, _drop_unit_axis)) for s in body)
    body = tidy(body, facts)
    taken = {d.name for d in kernel.dims} | set(kernel.buffers())
    out: list[Stmt] = []
    for s in body:  # siblings must not share names, so that a name means one loop
        clash = sorted(bound_symbols(s) & taken)
        occupied = taken | bound_symbols(s)
        renaming: dict[str, str] = {}
        for v in clash:
            renaming[v] = fresh_name(v, occupied)
            occupied = occupied | {renaming[v]}
        out.append(rename_vars(s, renaming) if renaming else s)
        taken = taken | bound_symbols(out[-1])
    return kernel.with_(body=tuple(out))


def enclose(kernel: Kernel, at: str, name: str) -> Kernel:
    """s  -->  for name in 1 { s }, for the loop `at` or the top-level statement of that number: a node to
    stage at."""
    what = f"enclose {at} {name}"
    new_names(kernel, what, name)
    if not at.isdigit():
        return edit(kernel, at, lambda node, _: Loop("serial", name, to_dim(1), (node,)), what)
    if int(at) >= len(kernel.body):
        raise ScheduleError(what, f"there are {len(kernel.body)} statements")
    body = list(kernel.body)
    body[int(at)] = Loop("serial", name, to_dim(1), (body[int(at)],))
    return kernel.with_(body=tuple(body))


def _drop_unit_loop(s: Stmt) -> Stmt | Body:
    if isinstance(s, Loop) and s.level == "serial" and not s.buffers and s.extent == 1:
        return substitute_body(s.body, {s.var: 0})
    return s


def _drop_unit_axis(e: Expr) -> Expr:
    if not isinstance(e, Reduce) or e.kind in ("argmax", "argmin"):
        return e
    units: Mapping[str, DimLike] = {a.var: 0 for a in e.axes if a.extent == 1}
    if not units:
        return e
    body = substitute_expr(e.body, units)
    kept = tuple(a for a in e.axes if a.var not in units)
    if not kept and body.dtype == e.dtype and e.kind in ("sum", "prod", "max", "min"):
        return body
    return replace(e, axes=kept, body=body) if kept else e


def serial_loop(node: LoopNode, what: str) -> Loop:
    if not isinstance(node, Loop) or node.level != "serial" or node.buffers:
        raise ScheduleError(what, f"loop '{var_of(node)}' is bound, tiled or owns buffers already")
    return node


def new_names(kernel: Kernel, what: str, *names: str) -> None:
    clash = sorted(set(names) & names_of(kernel))
    if clash or len(set(names)) < len(names):
        raise ScheduleError(what, f"name {clash or list(names)} is taken")


def split(
    kernel: Kernel, var: str, factor: int, outer: str, inner: str, guard: bool = False
) -> Kernel:
    """for v in n { s }  -->  for outer in n/f { for inner in f { s[v := outer*f + inner] } }

    n must be a multiple of f, unless guard: then the last block is masked by 0 <= v < n, in stores and
    in those loads that would leave their buffer.
    """
    what = f"split {var} {factor}"
    new_names(kernel, what, outer, inner)

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        loop = serial_loop(node, what)
        at = sym(outer) * factor + sym(inner)
        exact = facts.prove_divisible(loop.extent, factor) is YES
        if not exact and not guard:
            raise ScheduleError(what, f"extent {loop.extent} is not provably a multiple")
        body = substitute_body(loop.body, {var: at})
        blocks = ceildiv(loop.extent, factor)
        inside = facts.with_index(outer, blocks).with_range(inner, 0, factor - 1)
        body = tidy(body, inside)
        if not exact:
            body = guard_body(kernel, body, inside, Bound(to_dim(0), at, loop.extent))
        return Loop("serial", outer, blocks, (Loop("serial", inner, to_dim(factor), body),))

    return edit(kernel, var, rewrite, what)


def chunk(kernel: Kernel, var: str, size: int, outer: str) -> Kernel:
    """for v in n { s }
      -->  for outer in ceildiv(n, c) { for v in min(c, n - outer*c) { s[v := outer*c + v] } }"""
    what = f"chunk {var} {size}"
    new_names(kernel, what, outer)

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        loop = serial_loop(node, what)
        at = sym(outer) * size + sym(var)
        exact = facts.prove_divisible(loop.extent, size) is YES
        blocks = ceildiv(loop.extent, size)
        extent = to_dim(size) if exact else dmin(size, loop.extent - sym(outer) * size)
        body = substitute_body(loop.body, {var: at})
        inside = facts.with_index(outer, blocks).with_index(var, extent)
        return Loop("serial", outer, blocks, (Loop("serial", var, extent, tidy(body, inside)),))

    return edit(kernel, var, rewrite, what)


def tile(
    kernel: Kernel, var: str, sizes: tuple[int, ...], mode: str, start: str, rows: str, inner: str
) -> Kernel:
    """for v in n { s }
      -->  tiles (start, rows) in n sizes [..] { for inner in rows { s[v := start + inner] } }"""
    what = f"tile {var}"
    new_names(kernel, what, start, rows, inner)
    if list(sizes) != sorted(set(sizes), reverse=True) or not sizes or sizes[-1] < 1:
        raise ScheduleError(what, f"sizes {sizes} do not descend")

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        loop = serial_loop(node, what)
        if sizes[-1] != 1 and facts.prove_divisible(loop.extent, sizes[-1]) is not YES:
            raise ScheduleError(what, f"tiles of {sizes} do not provably cover {loop.extent}")
        if mode == "balanced" and sizes != tuple(range(sizes[0], 0, -1)):
            raise ScheduleError(what, f"balanced tiles need every size, found {sizes}")
        body = substitute_body(loop.body, {var: sym(start) + sym(inner)})
        block = Loop("serial", inner, sym(rows), body)
        kind: Literal["balanced", "greedy"] = "balanced" if mode == "balanced" else "greedy"
        tiles = Tiles("serial", start, rows, loop.extent, sizes, kind, (block,))
        inside = enter(enter(facts, tiles), block)
        return replace(tiles, body=(replace(block, body=tidy(body, inside)),))

    return edit(kernel, var, rewrite, what)


def order(kernel: Kernel, names: tuple[str, ...]) -> Kernel:
    """for a { for b { s } }  -->  for b { for a { s } }, for perfectly nested independent loops.

    The named loops take each other's places in the nest; others stay where they are. The innermost one may
    depend on its own earlier iterations: what does so has the same place in all the others.
    """
    what = f"order {' '.join(names)}"
    found = [find(kernel, n) for n in names]
    if any(f is None for f in found):
        raise ScheduleError(what, "no such loops")
    first = min((f for f in found if f is not None), key=lambda f: len(f[0]))[1]

    def rewrite(node: LoopNode, facts: Facts) -> Body:
        nodes, body = chain(node)
        by_name = {var_of(n): n for n in nodes}
        if not set(names) <= by_name.keys():
            raise ScheduleError(what, f"{sorted(set(names) - by_name.keys())} not perfectly nested here")
        inner = facts
        for n in nodes:
            if n.buffers or not (n is nodes[-1] or is_parallel(n, inner)):
                raise ScheduleError(what, f"loop '{var_of(n)}' owns buffers or is not parallel")
            inner = enter(inner, n)
        wanted = iter(names)
        done = [by_name[next(wanted)] if var_of(n) in names else n for n in nodes]
        _check_scopes(done, what)
        return rebuild(done, body)

    return edit(kernel, var_of(first), rewrite, what)


def _check_scopes(nodes: list[LoopNode], what: str) -> None:
    """Refuse an order in which an extent uses a variable that is bound further in."""
    for i, n in enumerate(nodes):
        later = bound_symbols(tuple(replace(m, body=()) for m in nodes[i:]))
        if n.extent.symbols & later:
            raise ScheduleError(what, f"extent {n.extent} of '{var_of(n)}' depends on an inner loop")


def peel(kernel: Kernel, var: str, at: DimLike, suffix: str) -> Kernel:
    """for v in n { s }  -->  for v in p { s }; for v' in n - p { s[v := p + v'] }, v' = v + suffix

    0 <= p <= n must be provable. All variables of the second part get the suffix.
    """
    what = f"peel {var} {at}"
    p = to_dim(at)

    def rewrite(node: LoopNode, facts: Facts) -> Body:
        loop = serial_loop(node, what)
        if facts.prove_le(0, p) is not YES or facts.prove_le(p, loop.extent) is not YES:
            raise ScheduleError(what, f"0 <= {p} <= {loop.extent} is not provable")
        renaming = {v: v + suffix for v in bound_symbols(loop)}
        new_names(kernel, what, *renaming.values())
        copy = rename_vars(loop, renaming)
        assert isinstance(copy, Loop)
        rest = facts.simplify(loop.extent - p)
        second = substitute_body(copy.body, {copy.var: p + sym(copy.var)})
        out: list[Stmt] = []
        if p != 0:
            inside = facts.with_index(var, p)
            out.append(replace(loop, extent=p, body=tidy(loop.body, inside)))
        if rest != 0:
            inside = facts.with_index(copy.var, rest)
            out.append(replace(copy, extent=rest, body=tidy(second, inside)))
        return tuple(out)

    return edit(kernel, var, rewrite, what)


def with_copy(kernel: Kernel, node: LoopNode, suffix: str, what: str) -> tuple[Loop, Loop]:
    """A serial loop and a copy of it, all of whose variables have the suffix."""
    loop = serial_loop(node, what)
    renaming = {v: v + suffix for v in bound_symbols(loop)}
    new_names(kernel, what, *renaming.values())
    copy = rename_vars(loop, renaming)
    assert isinstance(copy, Loop)
    return loop, copy


def part(kernel: Kernel, var: str, at: DimLike, suffix: str) -> Kernel:
    """for v in n { s }
      -->  for v in min(p, n) { s }; for v' in max(n - p, 0) { s[v := p + v'] },  p = max(at, 0)

    As `peel` where nothing is known of `at`, which a run may read from data. All variables of the second part
    get the suffix.
    """
    what = f"part {var} {at}"
    p = dmax(at, 0)
    around = find(kernel, var)
    known = {d.name for d in kernel.dims}.union(*map(bound_here, around[0] if around else ()))
    if p.symbols - known:
        raise ScheduleError(what, f"{sorted(p.symbols - known)} are not known around the loop")

    def rewrite(node: LoopNode, facts: Facts) -> Body:
        loop, copy = with_copy(kernel, node, suffix, what)
        few, rest = dmin(p, loop.extent), dmax(loop.extent - p, 0)
        second = substitute_body(copy.body, {copy.var: p + sym(copy.var)})
        return (
            replace(loop, extent=few, body=tidy(loop.body, facts.with_index(var, few))),
            replace(copy, extent=rest, body=tidy(second, facts.with_index(copy.var, rest))),
        )

    return edit(kernel, var, rewrite, what)


def divide(kernel: Kernel, var: str, most: int, suffix: str) -> Kernel:
    """for v in n { s }
      -->  for v in few { s }; for v' in n - few { s[v := v'] },  few = n if n <= most, else 0

    One of the two runs: what is fast for few iterations and what is fast for many, side by side. All
    variables of the second part get the suffix.
    """
    what = f"divide {var} {most}"

    def rewrite(node: LoopNode, facts: Facts) -> Body:
        loop, copy = with_copy(kernel, node, suffix, what)
        # most - n is below 0 for many, and most*1 is no less than n for few
        few = dmin(loop.extent, most, most * dmax(most + 1 - loop.extent, 0))
        many = loop.extent - few
        first = replace(loop, extent=few, body=tidy(loop.body, facts.with_index(var, few)))
        inside = facts.with_index(copy.var, many)
        return (first, replace(copy, extent=many, body=tidy(copy.body, inside)))

    return edit(kernel, var, rewrite, what)


def bind(kernel: Kernel, var: str, level: Level) -> Kernel:
    """for v in n { s }  -->  <level> v in n { s }

    group, lane and vector need independent iterations; vector and unroll a constant extent (or the rows
    of a tile).
    """
    what = f"bind {var} {level}"

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        if level in ("group", "lane", "vector", "unit") and not is_parallel(node, facts):
            raise ScheduleError(what, "iterations are not provably independent")
        if level in ("vector", "unroll") and not is_static(node.extent, kernel):
            raise ScheduleError(what, f"extent {node.extent} is not static")
        if level == "vector" and not all(isinstance(s, Store) for s in node.body):
            raise ScheduleError(what, "a vector loop holds stores only")
        return replace(node, level=level)

    return edit(kernel, var, rewrite, what)


def join(kernel: Kernel, a: str, b: str, into: str) -> Kernel:
    """for a in n { for b in m { s } }  -->  for into in n*m { s[a := into // m, b := into % m] }

    For two loops of known lengths, whatever is accessed.
    """
    what = f"join {a} {b}"
    new_names(kernel, what, into)
    extents = _adjacent_loops(kernel, a, b)
    if extents is None or not all(n.is_const and n.const > 0 for n in extents):
        raise ScheduleError(what, "not adjacent loops of known lengths")
    n, m = extents

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        inner = serial_loop(node, what).body[0]
        assert isinstance(inner, Loop)
        body = substitute_body(inner.body, {a: sym(into) // m, b: sym(into) % m})
        return Loop("serial", into, n * m, tidy(body, facts.with_index(into, n * m)))

    return edit(kernel, a, rewrite, what)


def unroll(kernel: Kernel, var: str) -> Kernel:
    """for v in n { s }  -->  unroll v in n { s }; axes of a Reduce cannot be unrolled, accumulate first."""
    return bind(kernel, var, "unroll")


def strip(kernel: Kernel, var: str, lanes: int, wide: int, masked: bool) -> Kernel:
    """An innermost parallel loop becomes vectors, its tail narrower vectors (W = wide*lanes, L = lanes):

    for v in n { s }  -->  for v.o in n // W { vector v in W { s[v := v.o*W + v] } };
                           constant n:  vector v in (rest in whole lanes) { .. }; vector v in rest { .. }
                           masked:      for v.p in ceildiv(n % W, L) { vector v in L { s, guarded } }
                                        (no guard, or no such loop, when n is a known multiple)
                           otherwise:   tiles (v.o, v.r) in n sizes [W, L, 1] { vector v in v.r { .. } }
    """
    what = f"strip {var}"
    o, p, r = f"{var}.o", f"{var}.p", f"{var}.r"
    new_names(kernel, what, o, p, r)

    def rewrite(node: LoopNode, facts: Facts) -> Body:
        loop = serial_loop(node, what)
        if not all(isinstance(s, Store) for s in loop.body) or not is_parallel(loop, facts):
            raise ScheduleError(what, "the loop is not an innermost parallel one")
        vectors = _Strips(kernel, loop, facts)
        n = loop.extent.const_or_none
        if n is not None:
            return vectors.constant(o, n, lanes, wide)
        if masked:
            return vectors.masked(o, p, lanes, wide)
        return vectors.tiles(o, r, lanes, wide)

    return edit(kernel, var, rewrite, what)


class _Strips:
    """The pieces of one stripped loop."""

    def __init__(self, kernel: Kernel, loop: Loop, facts: Facts) -> None:
        self.kernel, self.loop, self.facts = kernel, loop, facts

    def vector(self, base: Dim, width: Dim, facts: Facts, guarded: bool = False) -> Loop:
        """vector v in width { s[v := base + v] }"""
        v = self.loop.var
        at = base + sym(v)
        inside = facts.with_index(v, width)
        body = tidy(substitute_body(self.loop.body, {v: at}), inside)
        if guarded:
            bound = Bound(to_dim(0), simplify_dim(at, inside), self.loop.extent)
            body = guard_body(self.kernel, body, inside, bound, tail=True)
        return Loop("vector", v, width, body)

    def main(self, o: str, count: Dim, width: int) -> Loop:
        """for o in count { vector .. }"""
        facts = self.facts.with_index(o, count)
        return Loop("serial", o, count, (self.vector(sym(o) * width, to_dim(width), facts),))

    def constant(self, o: str, n: int, lanes: int, wide: int) -> Body:
        w = wide * lanes
        out: list[Stmt] = []
        done = n // w * w
        if done == w:
            out.append(self.vector(to_dim(0), to_dim(w), self.facts))
        elif done:
            out.append(self.main(o, to_dim(n // w), w))
        for width in ((n - done) // lanes * lanes, (n - done) % lanes):
            if width:
                out.append(self.vector(to_dim(done), to_dim(width), self.facts))
                done += width
        return tuple(out)

    def masked(self, o: str, p: str, lanes: int, wide: int) -> Body:
        w, n = wide * lanes, self.loop.extent
        main = self.main(o, n // w, w)
        if self.facts.prove_divisible(n, w) is YES:
            return (main,)
        cut = self.facts.prove_divisible(n, lanes) is not YES
        rest = ceildiv(n % w, lanes)
        facts = self.facts.with_index(p, rest)
        tail = self.vector(n // w * w + sym(p) * lanes, to_dim(lanes), facts, guarded=cut)
        return (main, Loop("serial", p, rest, (tail,)))

    def tiles(self, o: str, r: str, lanes: int, wide: int) -> Body:
        sizes = tuple(sorted({wide * lanes, lanes, 1}, reverse=True))
        tiles = Tiles("serial", o, r, self.loop.extent, sizes, "greedy", ())
        vector = self.vector(sym(o), sym(r), enter(self.facts, tiles))
        return (replace(tiles, body=(vector,)),)


# ---------------------------------------------------------------- collapse


def collapse(kernel: Kernel, a: str, b: str, into: str) -> Kernel:
    """for a in n { for b in m { x[a, b] } }  -->  for into in n*m { x'[into] }, x' = x with axes merged

    Buffers are reshaped (same bytes), unless another nest touches them. Also for two adjacent axes of one
    Reduce. Every access must become free of divisions by m.
    """
    what = f"collapse {a} {b}"
    new_names(kernel, what, into)
    reduce_axes = _adjacent_axes(kernel, a, b)
    extents = reduce_axes or _adjacent_loops(kernel, a, b)
    if extents is None:
        raise ScheduleError(what, "not adjacent loops or axes")
    n, m = extents
    if n == 0 or m == 0:
        raise ScheduleError(what, "an extent is 0")
    merged = _merge_buffers(kernel, a, b, m, into)
    if merged is None:
        raise ScheduleError(what, "an access does not follow both in row-major order")
    c = sym(into)
    env = {a: c // m, b: c % m}

    def axes(e: Expr) -> Expr:
        if not isinstance(e, Reduce) or not any(x.var == a for x in e.axes):
            return e
        i = next(i for i, x in enumerate(e.axes) if x.var == a)
        done = (*e.axes[:i], Axis(into, n * m), *e.axes[i + 2 :])
        return replace(e, axes=done, body=substitute_expr(e.body, env))

    if reduce_axes:
        body = tuple(map_stmt_exprs(s, lambda e: map_expr(e, axes)) for s in merged.body)
        return _facts_tidy(merged.with_(body=body))

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        inner = node.body[0]
        assert isinstance(inner, Loop)
        return Loop("serial", into, n * m, substitute_body(inner.body, env))

    return _facts_tidy(edit(merged, a, rewrite, what))


def _facts_tidy(kernel: Kernel) -> Kernel:
    return kernel.with_(body=tidy(kernel.body, kernel_facts(kernel)))


def _adjacent_loops(kernel: Kernel, a: str, b: str) -> tuple[Dim, Dim] | None:
    found = find(kernel, a)
    if found is None or not isinstance(found[1], Loop):
        return None
    outer = found[1]
    inner = outer.body[0] if len(outer.body) == 1 else None
    plain = isinstance(inner, Loop) and inner.var == b and inner.level == outer.level == "serial"
    if not plain or outer.buffers or inner is None or isinstance(inner, Store) or inner.buffers:
        return None
    assert isinstance(inner, Loop)
    return None if a in inner.extent.symbols else (outer.extent, inner.extent)


def _adjacent_axes(kernel: Kernel, a: str, b: str) -> tuple[Dim, Dim] | None:
    for whole in expressions(kernel.body):
        for e in walk_expr(whole):
            if isinstance(e, Reduce) and e.kind not in ("argmax", "argmin"):
                for x, y in zip(e.axes, e.axes[1:], strict=False):
                    if (x.var, y.var) == (a, b):
                        return x.extent, y.extent
    return None


def _merge_buffers(kernel: Kernel, a: str, b: str, m: Dim, into: str) -> Kernel | None:
    """kernel with the buffers that a and b walk together reshaped, or None when an access stands in the
    way. The loops themselves are not touched."""
    touched: dict[str, list[tuple[Dim, ...]]] = {}
    everything: dict[str, list[tuple[Dim, ...]]] = {}

    def note(buffer: str, index: tuple[Dim, ...]) -> None:
        everything.setdefault(buffer, []).append(index)
        if any(d.symbols & {a, b} for d in index):
            touched.setdefault(buffer, []).append(index)

    def load(e: Load, _: Facts) -> Expr:
        note(e.buffer, e.index)
        return e

    def store(s: Store, _: Facts) -> Stmt:
        note(s.buffer, s.index)
        return s

    map_accesses(kernel.body, Facts(), load, store)
    if _used_elsewhere(kernel, {a, b}):
        return None
    env = {a: sym(into) // m, b: sym(into) % m}
    merges: dict[str, int] = {}
    for name, indices in sorted(touched.items()):
        buffer = kernel.buffers().get(name)
        axis = None if buffer is None else _merge_axis(buffer, indices, m, env, into)
        # merged axes would make the indices of other nests harder to tell apart
        if axis is None or (axis >= 0 and _statements_with(kernel, name) > 1):
            return None
        merges[name] = axis
    return _reshape(kernel, merges)


def _statements_with(kernel: Kernel, buffer: str) -> int:
    """How many top-level statements touch a buffer."""
    return sum(any(x.buffer == buffer for x in accesses(s)) for s in kernel.body)


def _used_elsewhere(kernel: Kernel, names: set[str]) -> bool:
    """True when a name is used outside of indices: guards, Index values, bounds of lets, extents."""

    def bare(e: Load, _: Facts) -> Expr:
        other = e.otherwise
        return replace(e, index=(), otherwise=other)

    def store(s: Store, _: Facts) -> Stmt:
        return replace(s, index=())

    body = map_accesses(kernel.body, Facts(), bare, store)
    used: set[str] = set()
    for s in walk(body):
        if isinstance(s, Store):
            used |= free_symbols(s)
            used |= {v for e in (s.value,) for v in _all_dims(e)}
        elif isinstance(s, Loop | Tiles):
            used |= s.extent.symbols
    return bool(used & names)


def _all_dims(e: Expr) -> set[str]:
    """Symbols of an expression, those bound inside it included."""
    found: set[str] = set()
    for x in walk_expr(e):
        if isinstance(x, Reduce):
            found |= free_symbols(x.body)
        elif not isinstance(x, Load):
            continue
        else:
            found |= free_symbols(x)
    return found


def _merge_axis(
    buffer: Buffer, indices: list[tuple[Dim, ...]], m: Dim, env: Mapping[str, Dim], into: str
) -> int | None:
    """The axis p whose merge with p + 1 makes every index follow the collapsed variable (-1: none needs
    merging)."""
    if all(_follows(ix, env, into) for ix in indices):
        return -1
    for p in range(len(buffer.shape) - 1):
        if buffer.shape[p + 1] != m and not (buffer.shape[p + 1].is_const and m.is_const):
            continue
        if all(_clean(ix, p, buffer.shape[p + 1], env, into) for ix in indices):
            return p
    return None


def _clean(
    ix: tuple[Dim, ...], p: int, inner: Dim, env: Mapping[str, Dim], into: str
) -> bool:
    return _follows((*ix[:p], ix[p] * inner + ix[p + 1], *ix[p + 2 :]), env, into)


def _follows(ix: tuple[Dim, ...], env: Mapping[str, Dim], into: str) -> bool:
    for d in ix:
        done = d.substitute(env)
        if into in done.symbols and done.linear(into) is None:
            return False
    return True


def _reshape(kernel: Kernel, merges: Mapping[str, int]) -> Kernel:
    """Axes p and p + 1 of each named buffer merged, in its declaration and in every access."""
    old = kernel.buffers()

    def shape(b: Buffer) -> Buffer:
        if merges.get(b.name, -1) < 0:
            return b
        p = merges[b.name]
        return replace(b, shape=(*b.shape[:p], b.shape[p] * b.shape[p + 1], *b.shape[p + 2 :]))

    def index(name: str, ix: tuple[Dim, ...]) -> tuple[Dim, ...]:
        if merges.get(name, -1) < 0:
            return ix
        p = merges[name]
        return (*ix[:p], ix[p] * old[name].shape[p + 1] + ix[p + 1], *ix[p + 2 :])

    body = map_accesses(
        kernel.body,
        Facts(),
        lambda e, _: replace(e, index=index(e.buffer, e.index)),
        lambda s, _: replace(s, index=index(s.buffer, s.index)),
    )
    return kernel.with_(
        inputs=tuple(map(shape, kernel.inputs)),
        outputs=tuple(map(shape, kernel.outputs)),
        scratch=tuple(map(shape, kernel.scratch)),
        body=tuple(_with_shapes(s, shape) for s in body),
    )


def _with_shapes(s: Stmt, shape: Callable[[Buffer], Buffer]) -> Stmt:
    """s with the scratch of its groups in other shapes."""
    if not isinstance(s, Loop | Tiles) or s.level != "group":
        return s
    buffers = tuple(shape(b) if b.space == "scratch" else b for b in s.buffers)
    return replace(s, buffers=buffers, body=tuple(_with_shapes(x, shape) for x in s.body))


__all__ = [
    "bind", "chunk", "collapse", "divide", "enclose", "normalise", "order", "part", "peel", "split", "strip",
    "tile", "unroll",
]
