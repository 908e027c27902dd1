"""Primitives for machines with lanes: Kernel -> Kernel. Loops spread over lanes, tiles of operands in shared
memory, reductions split over lanes. Each shows its rewrite and refuses what it cannot prove.

Barriers are never written: they follow from which statements of a group touch which elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from smelt.core.dim import YES, Dim, Facts, ceildiv, dmin, sym, to_dim
from smelt.core.ir.analysis.scope import enter, expressions, kernel_facts
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Const,
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
    free_symbols,
    fresh_name,
    map_expr,
    map_stmt_exprs,
    rename_vars,
    substitute_body,
    substitute_expr,
)
from smelt.core.schedule.loops import new_names, serial_loop
from smelt.core.schedule.reductions import UPDATE, edit_stage, start_value, update_of
from smelt.core.schedule.tree import (
    ScheduleError,
    chain,
    declare,
    edit,
    find,
    is_parallel,
    is_static,
    names_of,
    rebuild,
    stores,
    tidy,
    var_of,
)
from smelt.core.schedule.view import flat_stride


def spread(kernel: Kernel, var: str, width: int, outer: str, inner: str) -> Kernel:
    """group v in n { s }
      -->  group outer in ceildiv(n, w) { lane inner in w { block if (0 <= v < n) { s } } }
           with v := outer*w + inner

    The last lanes of the last group do nothing. The block goes where n is a multiple of w. Lanes directly
    inside stay so: the block is inside of them. Buffers of v become each lane's own.
    """
    what = f"spread {var} {width}"
    new_names(kernel, what, outer, inner)

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        loop = node
        shared = any(b.space != "register" for b in loop.buffers)
        if not isinstance(loop, Loop) or loop.level != "group" or shared:
            raise ScheduleError(what, "it is no loop over groups, or has buffers that lanes would share")
        lanes: list[Loop] = []
        last = loop
        while not last.buffers and len(last.body) == 1:
            deeper = last.body[0]
            if not isinstance(deeper, Loop) or deeper.level != "lane":
                break
            lanes.append(deeper)
            last = deeper
        leaf = last.body
        if any(x.level in ("group", "lane") for x in _loops(leaf)):
            raise ScheduleError(what, "there are groups inside, or lanes but directly")
        at, blocks = sym(outer) * width + sym(inner), ceildiv(loop.extent, width)
        inside = facts.with_index(outer, blocks).with_range(inner, 0, width - 1)
        for x in lanes:
            inside = enter(inside, x)
        exact = facts.prove_divisible(loop.extent, width) is YES
        known = inside if exact else inside.with_le(at + 1, loop.extent)
        body = tidy(substitute_body(leaf, {var: at}), known)
        if not exact:
            body = (Block(body, guard=(Bound(to_dim(0), at, loop.extent),)),)
        body = rebuild(lanes, body)
        buffers = loop.buffers if not lanes else ()
        return Loop("group", outer, blocks, (Loop("lane", inner, to_dim(width), body, buffers),))

    return edit(kernel, var, rewrite, what)


def split_clamped(kernel: Kernel, var: str, factor: int, outer: str, inner: str) -> Kernel:
    """for v in n { y[v] = x[v] }
      -->  for outer in ceildiv(n, f) { for inner in f { y[v] = x[min(v, n - 1)] if (0 <= v < n) } }
           with v = outer*f + inner

    As `split`, but the last block computes the last element again where there is none, so that loads need no
    guards. Stores go to the kernel's buffers only, and none of these is read.
    """
    what = f"split_clamped {var} {factor}"
    new_names(kernel, what, outer, inner)
    shapes = kernel.buffers()

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        loop = serial_loop(node, what)
        at, blocks = sym(outer) * factor + sym(inner), ceildiv(loop.extent, factor)
        inside = facts.with_index(outer, blocks).with_range(inner, 0, factor - 1)
        twice = Loop("serial", outer, blocks, (Loop("serial", inner, to_dim(factor), ()),))
        if facts.prove_divisible(loop.extent, factor) is YES:
            return _filled(twice, tidy(substitute_body(loop.body, {var: at}), inside))
        found = stores(loop.body)
        written = {s.buffer for s in found}
        reads = {x.buffer for e in expressions(loop.body) for x in walk_expr(e) if isinstance(x, Load)}
        if any(isinstance(s, Block) for s in walk(loop.body)) or written - shapes.keys() or written & reads:
            raise ScheduleError(what, "it holds blocks, local stores, or reads what it writes")
        if any(var in x.extent.symbols for x in walk(loop.body) if isinstance(x, Loop | Tiles)):
            raise ScheduleError(what, "an extent inside depends on it")
        last = {var: dmin(at, loop.extent - 1)}
        bound = Bound(to_dim(0), at, loop.extent)

        def clamped(s: Stmt) -> Stmt:
            if not isinstance(s, Store):
                return replace(s, body=tuple(map(clamped, s.body)))
            index = tuple(d.substitute({var: at}) for d in s.index)
            guard = tuple(Bound(*(d.substitute(last) for d in (b.low, b.index, b.high))) for b in s.guard)
            return replace(s, index=index, value=substitute_expr(s.value, last), guard=(*guard, bound))

        return _filled(twice, tidy(tuple(map(clamped, loop.body)), inside))

    return edit(kernel, var, rewrite, what)


def _filled(twice: Loop, body: Body) -> Loop:
    (inner,) = twice.body
    assert isinstance(inner, Loop)
    return replace(twice, body=(replace(inner, body=body),))


# ---------------------------------------------------------------- shared memory


def fetch(kernel: Kernel, var: str, buffer: str, name: str, pad: int) -> Kernel:
    """<v> { lane r in R { for k in K { s(x[i + r, j + k]) } } }
      -->  <v> { shared t[R, K + pad]; lane a in R { lane b in K { t[a, b] = x[i + a, j + b] } };
                 lane r in R { for k in K { s(t[r, k]) } } }

    A tile of x is copied by all lanes of the group before they use it, guards included. t has an axis for
    each loop inside v that x's index follows, and one for several that follow each other along an axis of x;
    the one along which x is contiguous is the last, so that neighbouring lanes copy neighbours. pad: elements
    left out at the end of a row of t, against bank conflicts. All loads of x inside v must be one and the
    same, in loops of constant extents; x is written nowhere. """
    what = f"fetch {var} {buffer} {name}"
    taken = names_of(kernel)
    place = find(kernel, var)
    if name in taken or place is None:
        raise ScheduleError(what, f"name '{name}' is taken, or there is no loop '{var}'")
    levels = [x.level for x in (*place[0], place[1]) if isinstance(x, Loop | Tiles)]
    if "group" not in levels or set(levels) & {"lane", "vector"}:
        raise ScheduleError(what, "the loop is not one that all lanes of a group run together")
    if buffer not in kernel.buffers() or any(s.buffer == buffer for s in stores(kernel.body)):
        raise ScheduleError(what, "no buffer of the kernel that nobody writes has that name")

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        found = {
            x for e in expressions(node.body) for x in walk_expr(e)
            if isinstance(x, Load) and x.buffer == buffer
        }  # fmt: skip
        if len(found) != 1:
            raise ScheduleError(what, f"{len(found)} different loads of it inside the loop, wanted one")
        (load,) = found
        other = load.otherwise
        if not isinstance(other, Const | None) or not any(x.level == "lane" for x in _loops(node.body)):
            raise ScheduleError(what, "its loads have a computed other value, or no lanes use it")
        axes = _runs(load, _tile_axes(kernel, node, load, what))
        extents = [prod(n for _, n in run) for run in axes]
        tile = Buffer(name, load.dtype, (*map(to_dim, extents[:-1]), to_dim(extents[-1] + pad)), "shared")
        copied = [fresh_name(f"{name}.{i}", taken) for i in range(len(axes))]
        env = {v: sym(c) if i == len(run) - 1 else to_dim(0)
               for run, c in zip(axes, copied, strict=True) for i, (v, _) in enumerate(run)}  # fmt: skip
        copy = Store(name, tuple(map(sym, copied)), substitute_expr(load, env))
        lanes = [Loop("lane", c, to_dim(n), ()) for c, n in zip(copied, extents, strict=True)]
        (fill,) = tidy(rebuild(lanes, (copy,)), enter(facts, node))
        there = Load(name, tuple(map(_position, axes)), load.dtype)
        rest = tuple(map_stmt_exprs(s, lambda e: map_expr(e, lambda x: there if x == load else x))
                     for s in node.body)  # fmt: skip
        return declare(replace(node, body=(fill, *rest)), (tile,))

    return edit(kernel, var, rewrite, what)


AxisRun: TypeAlias = "list[tuple[str, int]]"
"""(variable, extent) of loops, of which each has the elements of the next ones between two of its own."""


def _runs(load: Load, axes: AxisRun) -> list[AxisRun]:
    """Neighbours among the axes that are one run of an axis of what is loaded, put together."""
    dims = [*load.index, *(d for b in load.guard for d in (b.low, b.index, b.high))]

    def follows(a: tuple[str, int], b: tuple[str, int]) -> bool:
        found = [(d.linear(a[0]), d.linear(b[0])) for d in dims if {a[0], b[0]} & d.symbols]
        return all(x is not None and y is not None and x[0] == y[0] * b[1] for x, y in found)

    runs: list[AxisRun] = []
    for a in axes:
        if runs and follows(runs[-1][-1], a):
            runs[-1].append(a)
        else:
            runs.append([a])
    return runs


def _position(run: AxisRun) -> Dim:
    """Where the loops of a run stand in it."""
    at = to_dim(0)
    for v, n in run:
        at = at * n + sym(v)
    return at


def pipeline(kernel: Kernel, var: str, name: str, stages: int) -> Kernel:
    """for v in n { shared t[K]; fill(t, v); s(t) }
      -->  block { shared t[S, K]; fill(t[0], 0) if 0 < n; .. fill(t[S - 2], S - 2) if S - 2 < n;
             for v in n { fill(t[(v + S-1) % S], v + S-1) if v + S-1 < n; s(t[v % S]) } }

    Slices are copied while others are used: what fills and what reads are in different parts, so that lanes
    meet once for each slice. The first statement that has t is the only one that writes it, for all lanes
    together.
    """
    what = f"pipeline {var} {name} {stages}"

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        tile = next((b for b in node.buffers if b.name == name), None)
        if not isinstance(node, Loop) or node.level != "serial" or tile is None or tile.space != "shared":
            raise ScheduleError(what, "no loop that all lanes run together has a shared buffer of that name")
        number = next((i for i, s in enumerate(node.body) if _touches(s, name)), 0)
        fill, rest = node.body[number], (*node.body[:number], *node.body[number + 1 :])
        written = {(s.buffer, s.accumulate) for s in stores((fill,))}
        again = name in _loaded((fill,)) or any(s.buffer == name for s in stores(rest))
        if written != {(name, None)} or again or stages < 2:
            raise ScheduleError(what, "not one statement fills it before others read it")
        if _loaded((fill,)) & {s.buffer for s in stores(node.body)}:
            raise ScheduleError(what, "what it is filled with changes meanwhile")
        n, ahead, taken = node.extent, sym(var) + (stages - 1), names_of(kernel)
        first: list[Stmt] = []
        for i in range(stages - 1):
            one: Body = _in_part(substitute_body((fill,), {var: i}), name, to_dim(i))
            if facts.prove_lt(i, n) is not YES:
                one = (Block(one, guard=(Bound(to_dim(0), to_dim(i), n),)),)
            first += (rename_vars(s, _ahead(s, taken)) for s in tidy(one, facts))
        inside = enter(facts, node)
        next_one = Block(_in_part(substitute_body((fill,), {var: ahead}), name, ahead % stages),
                         guard=(Bound(to_dim(0), ahead, n),))  # fmt: skip
        body = (*node.body[:number], next_one, *node.body[number + 1 :])
        used = tuple(s if s is next_one else _in_part((s,), name, sym(var) % stages)[0] for s in body)
        left = tuple(b for b in node.buffers if b.name != name)
        loop = replace(node, body=tidy(used, inside), buffers=left)
        return Block((*first, loop), (replace(tile, shape=(to_dim(stages), *tile.shape)),))

    return edit(kernel, var, rewrite, what)


def copy_wide(kernel: Kernel, name: str, wide: int) -> Kernel:
    """lane a in m { lane b in n { t[a, b] = x[.., b, ..] } }
      -->  lane a in m { lane b in n // w { unroll j in w { t[a, b*w + j] = x[.., b*w + j, ..] } } }

    Wherever the shared buffer t is filled: a lane copies w neighbours along the innermost axis, which a
    device may move at once, and neighbouring lanes what lies nearest in x. n is a multiple of w.
    """
    what = f"copy_wide {name} {wide}"
    taken, facts = names_of(kernel), kernel_facts(kernel)
    done = 0

    def visit(s: Stmt) -> Stmt:
        nonlocal done
        if isinstance(s, Store):
            return s
        nodes, leaf = chain(s)
        fill = leaf[0] if len(leaf) == 1 else None
        if not nodes or not isinstance(fill, Store) or fill.buffer != name or nodes[-1].level != "lane":
            return replace(s, body=tuple(map(visit, s.body)))
        last, n = nodes[-1], nodes[-1].extent.const_or_none
        step = fill.index[-1].linear(var_of(last))
        plain = all(isinstance(x, Loop) and x.level == "lane" and not x.buffers for x in nodes)
        if not plain or not n or n % wide or step is None or step[0] != 1 or fill.accumulate or fill.guard:
            raise ScheduleError(what, f"'{var_of(last)}' is no multiple of {wide} neighbours")
        done += 1
        v, j = var_of(last), fresh_name(f"{var_of(last)}.w", taken)
        taken.add(j)
        inside = facts.with_range(v, 0, n // wide - 1).with_range(j, 0, wide - 1)
        body = tidy(substitute_body((fill,), {v: sym(v) * wide + sym(j)}), inside)
        loops = [*nodes[:-1], replace(last, extent=to_dim(n // wide))]
        loops.sort(key=lambda x: -_apart(kernel, body, var_of(x)))
        (made,) = rebuild(loops, (Loop("unroll", j, to_dim(wide), body),))
        return made

    body = tuple(map(visit, kernel.body))
    if not done or wide < 2:
        raise ScheduleError(what, "no lanes fill a buffer of that name")
    return kernel.with_(body=body)


def _apart(kernel: Kernel, fill: Body, var: str) -> int:
    """How far apart neighbours along var lie in what is copied."""
    (e,) = {x for v in expressions(fill) for x in walk_expr(v) if isinstance(x, Load)}
    shape = kernel.buffers()[e.buffer].shape
    step = flat_stride(shape, e.index, var)
    found = None if step is None else step.const_or_none
    return 1 << 62 if found is None else abs(found)


def inward(kernel: Kernel, var: str, last: str) -> Kernel:
    """for v { for a { .. for last { s } } }  -->  for a { .. for last { for v { s } } }

    For loops a .. last that are independent of each other over all v: each of their iterations then takes all
    v in turn, as a lane does between two barriers.
    """
    what = f"inward {var} {last}"

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        nodes, body = chain(node)
        names = [var_of(n) for n in nodes]
        if last not in names[1:]:
            raise ScheduleError(what, f"'{last}' is not perfectly nested in '{var}'")
        end = names.index(last) + 1
        if any(n.buffers or var in n.extent.symbols for n in nodes):
            raise ScheduleError(what, "a loop has buffers, or its extent follows the one that moves")
        (done,) = rebuild((*nodes[1:end], node, *nodes[end:]), body)
        known, x = facts, done
        for n in nodes[1:end]:
            assert isinstance(x, Loop | Tiles)
            if not is_parallel(x, known):
                raise ScheduleError(what, f"iterations of '{var_of(n)}' are not provably independent")
            known, x = enter(known, x), x.body[0]
        return done

    return edit(kernel, var, rewrite, what)


def _ahead(s: Stmt, taken: set[str]) -> dict[str, str]:
    """New names for the variables of a statement's loops, which are taken then."""
    found = {x.var: fresh_name(f"{x.var}.first", taken) for x in _loops((s,))}
    taken |= {*found.values()}
    return found


def _touches(s: Stmt, name: str) -> bool:
    return name in _loaded((s,)) or any(x.buffer == name for x in stores((s,)))


def _loaded(body: Body) -> set[str]:
    return {x.buffer for e in expressions(body) for x in walk_expr(e) if isinstance(x, Load)}


def _in_part(body: Body, name: str, part: Dim) -> Body:
    """Every access of a buffer with a first index of its own."""

    def load(e: Expr) -> Expr:
        mine = isinstance(e, Load) and e.buffer == name
        return replace(e, index=(part, *e.index)) if isinstance(e, Load) and mine else e

    def stored(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return replace(s, index=(part, *s.index)) if s.buffer == name else s
        return replace(s, body=tuple(map(stored, s.body)))

    return tuple(stored(map_stmt_exprs(s, lambda e: map_expr(e, load))) for s in body)


def _loops(body: Body) -> list[Loop]:
    return [s for s in walk(body) if isinstance(s, Loop)]


def _tile_axes(kernel: Kernel, node: LoopNode, load: Load, what: str) -> list[tuple[str, int]]:
    """(variable, extent) of the loops inside the node that a load follows, the contiguous one last."""
    inside: dict[str, int | None] = {}
    for x in _loops(node.body):  # siblings may share a name, but then the extent too
        same = inside.setdefault(x.var, x.extent.const_or_none) == x.extent.const_or_none
        inside[x.var] = x.extent.const_or_none if same else None
    outside = {d.name for d in kernel.dims} | {var_of(node)}
    place = find(kernel, var_of(node))
    assert place is not None
    for s in (*place[0], node):
        outside |= {s.var} if isinstance(s, Loop) else {s.start, s.rows} if isinstance(s, Tiles) else set()
    mine = free_symbols(load) - outside
    axes = [(v, n) for v, n in inside.items() if v in mine and n is not None]
    if len(axes) != len(mine) or not axes:
        raise ScheduleError(what, "its index follows what is no loop of constant extent")
    shape, step = kernel.buffers()[load.buffer].shape, to_dim(1)
    far = (len(shape), 1 << 62)
    near: dict[str, tuple[int, int]] = {}  # (axes further in whose extents nobody knows, elements apart)
    for i, (d, n) in enumerate(zip(reversed(load.index), reversed(shape), strict=True)):
        for v, _ in axes:
            apart = (d.substitute({v: 1}) - d.substitute({v: 0})).const_or_none
            if v not in near and v in d.symbols and apart is not None:
                apart = abs(apart)
                near[v] = (0, apart * step.const) if step.is_const else (i, apart)
        step = step * n
    order = {v: i for i, (v, _) in enumerate(axes)}
    return sorted(axes, key=lambda a: (*(-x for x in near.get(a[0], far)), order[a[0]]))


# ---------------------------------------------------------------- reductions


def lane_reduce(kernel: Kernel, name: str, lanes: int, wide: int) -> Kernel:
    """A reduction into a scalar of the group runs over its last axis in lanes, each of which takes `wide`
    neighbours at a time (W = lanes*wide; one is unrolled), and ends in a tree over shared memory:

    acc = sum k in n { e(k) }
      -->  shared p[lanes];
           lane l in lanes { register r[wide] = 0; for k.o in n // W { vector j in wide { r[j] += e(..) } };
                             for k.p in ceildiv(n % W, lanes) { r[0] += e(..) if inside };
                             p[l] = sum j in wide { r[j] } };
           lane l in lanes/2 { p[l] += p[l + lanes/2] }; ..; acc = p[0] + p[1]
    """
    what = f"lane_reduce {name} {lanes} {wide}"
    if lanes < 2 or lanes & (lanes - 1) or wide < 1:
        raise ScheduleError(what, "lanes are no power of two above 1")
    taken = names_of(kernel)
    part, own, lane, near = (
        fresh_name(f"{name}.{x}", taken) for x in ("lanes", "own", "l", "j")
    )  # fmt: skip
    own_level: Level = "vector" if wide > 1 else "unroll"

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        if nodes or not e.axes:
            raise ScheduleError(what, "it is no scalar of the group, or reduces nothing")
        fn, value = update_of(e, what)
        axis, n, step = e.axes[-1], e.axes[-1].extent, lanes * wide
        o, p = fresh_name(f"{axis.var}.o", taken), fresh_name(f"{axis.var}.p", taken)
        me, j = sym(lane), sym(near)
        inner = enter(facts, e.axes[:-1]).with_range(lane, 0, lanes - 1)

        def term(at: Dim, index: Dim, known: Facts) -> Body:
            done = Store(own, (index,), substitute_expr(value, {axis.var: at}), fn)
            return tidy((done,), known)

        known = inner.with_index(o, n // step).with_range(near, 0, wide - 1)
        main = Loop(own_level, near, to_dim(wide), term((sym(o) * lanes + me) * wide + j, j, known))
        pieces: Body = (Loop("serial", o, n // step, (main,)),)
        if inner.prove_divisible(n, step) is not YES:
            at = n // step * step + sym(p) * lanes + me
            known = inner.with_index(p, ceildiv(n % step, lanes)).with_le(at + 1, n)
            one = Block(term(at, to_dim(0), known), guard=(Bound(to_dim(0), at, n),))
            pieces = (*pieces, Loop("serial", p, ceildiv(n % step, lanes), (one,)))
        loops = [Loop("serial", a.var, a.extent, ()) for a in e.axes[:-1]]
        start = Loop(own_level, near, to_dim(wide), (Store(own, (j,), start_value(e.kind, e.dtype)),))
        ended = Reduce(e.kind, (Axis(near, to_dim(wide)),), Load(own, (j,), e.dtype), e.dtype)
        mine = Store(part, (me,), ended)
        registers = Buffer(own, e.dtype, (to_dim(wide),), "register")
        first = Loop("lane", lane, to_dim(lanes), (start, *rebuild(loops, pieces), mine), (registers,))
        tree: list[Stmt] = [first]
        half = lanes // 2
        while half > 1:
            other = Load(part, (me + half,), e.dtype)
            tree.append(Loop("lane", lane, to_dim(half), (Store(part, (me,), other, UPDATE[e.kind]),)))
            half //= 2
        pair = Reduce(e.kind, (Axis(near, to_dim(2)),), Load(part, (j,), e.dtype), e.dtype)
        tree.append(replace(store, value=pair))
        return (Block(tuple(tree), (Buffer(part, e.dtype, (to_dim(lanes),), "shared"),)),)

    return edit_stage(kernel, name, rewrite, what)


def lane_split(kernel: Kernel, name: str, axis: str, parts: int) -> Kernel:
    """Lanes share a reduction into registers of the lanes of a group:

    lane j { acc[j] = sum k in n { e(j, k) } }
      -->  shared p[S, j];
           lane s in S { lane j' { p[s, j'] = sum k in (n + s) // S { e(j', k*S + S-1 - s) } } };
           lane j { acc[j] = sum s in S { p[s, j] } },  j' = j.s

    Neighbouring parts take neighbouring k. The loops inside have static extents.
    """
    what = f"lane_split {name} {axis} {parts}"
    taken = names_of(kernel)
    shared, lane, again = (fresh_name(f"{name}.{x}", taken) for x in ("parts", "s", "t"))

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        at = next((i for i, a in enumerate(e.axes) if a.var == axis), None)
        if at is None or e.kind not in UPDATE or parts < 2:
            raise ScheduleError(what, f"'{axis}' is no axis of it, or it cannot be split")
        loops = [n for n in nodes if isinstance(n, Loop) and is_static(n.extent, kernel) and not n.buffers]
        if len(loops) != len(nodes) or all(n.level != "lane" for n in loops):
            raise ScheduleError(what, "not in loops of static extents, a lane's among them")
        new_names(kernel, what, *(f"{x.var}.s" for x in loops))
        n, index = e.axes[at].extent, tuple(sym(x.var) for x in loops)
        inner = enter_all(facts, loops).with_range(lane, 0, parts - 1)
        short = Axis(axis, (n + sym(lane)) // parts)
        if inner.prove_divisible(n, parts) is YES:
            short = Axis(axis, n // parts)
        axes = (*e.axes[:at], short, *e.axes[at + 1 :])
        step = sym(axis) * parts + (parts - 1 - sym(lane))  # so that the extent has no negative terms
        part = replace(e, axes=axes, body=substitute_expr(e.body, {axis: step}))
        (fill,) = rebuild(loops, (Store(shared, (sym(lane), *index), part),))
        fill = rename_vars(fill, {x.var: f"{x.var}.s" for x in loops})
        load = Load(shared, (sym(again), *index), e.dtype)
        total = replace(e, axes=(Axis(again, to_dim(parts)),), body=load)
        first = Loop("lane", lane, to_dim(parts), tidy((fill,), facts.with_range(lane, 0, parts - 1)))
        mine = Buffer(shared, e.dtype, (to_dim(parts), *(x.extent for x in loops)), "shared")
        return (Block((first, *rebuild(loops, (replace(store, value=total),))), (mine,)),)

    return edit_stage(kernel, name, rewrite, what)


def enter_all(facts: Facts, nodes: Sequence[LoopNode]) -> Facts:
    """facts inside nested loops."""
    for n in nodes:
        facts = enter(facts, n)
    return facts


__all__ = [
    "copy_wide", "fetch", "inward", "lane_reduce", "lane_split", "pipeline", "split_clamped", "spread",
]  # fmt: skip
