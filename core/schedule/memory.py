"""Primitives on operands: Kernel -> Kernel. Packing of constant operands, staging of others into scratch,
data-dependent indices bound once per row, indices held below an extent set free. Each shows its rewrite and
refuses what it cannot prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, Dim, Facts, Min, SymbolAtom, align_up, sole_atom, sym, to_dim
from smelt.core.ir.analysis.products import factors, split_factors
from smelt.core.ir.analysis.row_operand import row_operand, with_row_operand
from smelt.core.ir.analysis.scope import accesses, enter, expressions, kernel_facts
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
    LoopNode,
    Reduce,
    Stmt,
    Store,
    Tiles,
    walk_expr,
)
from smelt.core.ir.layout import Layout, PackSpec, parse_spec
from smelt.core.ir.rewrite import (
    Body,
    bound_symbols,
    free_symbols,
    fresh_name,
    map_expr,
    map_stmt_exprs,
    rename_vars,
)
from smelt.core.schedule.tree import (
    ScheduleError,
    chain,
    closed,
    declare,
    edit,
    find,
    map_accesses,
    names_of,
    rebuild,
    stores,
    tidy,
    var_of,
)


def pack(kernel: Kernel, buffer: str, layout: str) -> Kernel:
    """x: f32[k, n]; .. x[k, j]  -->  x: f32[n/32, k, 32]; .. x[j // 32, k, j % 32]     for (1/32, 0, 1%32)

    Only for inputs that are constants: the buffer records the layout, in which the weight lies before the
    kernel runs, with zeros after the end of a split axis. A guard that keeps an index
    inside such an axis goes: (x[k] if 0 <= k < n)  -->  x[k//4, k % 4] for (0/4, 0%4).
    """
    what = f"pack {buffer}"
    spec = _spec(what, layout)
    number = next((i for i, b in enumerate(kernel.inputs) if b.name == buffer), None)
    if number is None or len(kernel.inputs[number].shape) != spec.rank:
        raise ScheduleError(what, f"no input of rank {spec.rank} has that name")
    old = kernel.inputs[number]
    if old.layout is not None:
        raise ScheduleError(what, "it is packed already")
    layout_of = Layout(spec, old.shape)
    packed = replace(old, shape=layout_of.shape, layout=layout_of)
    inputs = (*kernel.inputs[:number], packed, *kernel.inputs[number + 1 :])
    body = _redirect(kernel, old, buffer, spec)
    facts = kernel_facts(kernel)
    return kernel.with_(inputs=inputs, body=tidy(body, facts))


def ask_ahead(kernel: Kernel, buffer: str, distance: int) -> Kernel:
    """x: f32[n/64, k, 64] laid ..  -->  x: f32[n/64, k, 64] laid .. ahead 4096

    Whoever reads a vector of x, or writes one of an output, has the cache asked for what lies `distance`
    bytes after it, which changes no value. Of inputs only those that lie in panels, which are read from front
    to back.
    """
    what = f"ask_ahead {buffer} {distance}"
    packed = any(b.name == buffer and b.layout is not None for b in kernel.inputs)
    if not (packed or any(b.name == buffer for b in kernel.outputs)) or distance < 1:
        raise ScheduleError(what, "no packed input or output has that name, or the distance is not positive")
    inputs, outputs = (
        tuple(replace(b, ahead=distance) if b.name == buffer else b for b in side)
        for side in (kernel.inputs, kernel.outputs)
    )
    return kernel.with_(inputs=inputs, outputs=outputs)


def stage(kernel: Kernel, buffer: str, layout: str, name: str) -> Kernel:
    """s(x[k, j])
      -->  scratch p: f32[n/32, k, 32]; for a, b, c { p[a, b, c] = x[b, a*32+c] else 0 };
           s(p[j // 32, k, j % 32])

    A copy in the packed layout, made at run time before everything else; zeros after the end. Of an axis that
    loops of one extent index alone it has as much as these read, which of a state's memory is what it holds.
    """
    what = f"stage {buffer}"
    spec = _spec(what, layout)
    source = kernel.buffers().get(buffer)
    if source is None or source in kernel.outputs or len(source.shape) != spec.rank:
        raise ScheduleError(what, f"no readable buffer of rank {spec.rank} has that name")
    if any(s.buffer == buffer for s in stores(kernel.body)):
        raise ScheduleError(what, "it is written by the kernel")
    taken = names_of(kernel)
    if name in taken:
        raise ScheduleError(what, f"name '{name}' is taken")
    read = tuple(_read(kernel, source, a) for a in range(spec.rank))
    copy = Buffer(name, source.dtype, spec.shape(read), "scratch")
    names = [fresh_name(f"{name}.{i}", taken) for i in range(len(spec.dims))]
    position = tuple(sym(v) for v in names)
    at = spec.source_index(position)
    guard = tuple(
        Bound(to_dim(0), at[a], n)
        for a, n in enumerate(read)
        if spec.factor(a) > 1
    )
    value = Load(buffer, at, source.dtype, guard)
    loops = [Loop("serial", v, n, ()) for v, n in zip(names, copy.shape, strict=True)]
    fill = rebuild(loops, (Store(name, position, value),))
    facts = kernel_facts(kernel)
    body = _redirect(kernel, source, name, spec)
    return kernel.with_(
        body=(*tidy(fill, facts), *tidy(body, facts)), scratch=(*kernel.scratch, copy)
    )


def _read(kernel: Kernel, source: Buffer, axis: int) -> Dim:
    """How much of an axis, from 0 on, the loads of a buffer read at most; all of it where that is not told by
    a loop of its own."""
    found: set[Dim] = set()
    for a in accesses(kernel.body):
        if a.buffer == source.name:
            around = {x.var: x.extent for b in a.binders for x in (b if isinstance(b, tuple) else (b,))
                      if isinstance(x, Axis | Loop)}  # fmt: skip
            at = sole_atom(a.index[axis])
            extent = around.get(at.name) if isinstance(at, SymbolAtom) else None
            found.add(source.shape[axis] if extent is None or a.guard else extent)
    known = {d.name for d in kernel.dims}
    (n,) = found if len(found) == 1 else (source.shape[axis],)
    return n if n.symbols <= known else source.shape[axis]


def stage_factor(kernel: Kernel, var: str, axis: str, name: str, own: bool) -> Kernel:
    """<v> { for i { for j { y[i, j] = f(sum k in n { e(i, k) * x[k, j] }) } } }
      -->  scratch p: f32[v, i, n];
           <v> { for i { for k' in n { p[v, i, k'] = e(i, k') } };
                 for i { for j { y[i, j] = f(sum k in n { p[v, i, k] * x[k, j] }) } } }

    The factor that has reductions of its own is computed once for every i and k, ahead of the sums over k. p
    has the group loops from v outward, the loops inside v that e follows (those without an extent in sizes of
    the kernel: their most), and k. own: v is a group, which has p of its own, without these loops, and in the
    type that the product casts e to.
    """
    what = f"stage_factor {var} {axis} {name} {'yes' if own else 'no'}"
    groups = _groups_around(kernel, var, name, own, what)
    taken = names_of(kernel)
    made: list[Buffer] = []

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        nodes, leaf = chain(node)
        sums = (x for e in expressions(leaf) for x in walk_expr(e) if isinstance(x, Reduce))
        found = {(x.axes, *parts) for x in sums if (parts := split_factors(x)) is not None}
        if len(found) != 1 or [a.var for a in next(iter(found))[0]] != [axis]:
            raise ScheduleError(what, f"no product over '{axis}' alone has one factor with reductions")
        (((last,), e, _),) = found
        if axis not in free_symbols(e):
            raise ScheduleError(what, f"the factor is the same for all '{axis}': no row, but one element")
        e = _as_cast(e, leaf) if own else e
        loops = [Loop("serial", var_of(n), n.extent, ()) for n in nodes[1:] if var_of(n) in free_symbols(e)]
        loops.append(Loop("serial", last.var, last.extent, ()))
        inner = enter(facts, node)
        shape = (*(g.extent for g in groups), *(_most(n.extent, inner, kernel, what) for n in loops))
        made.append(Buffer(name, e.dtype, shape, "scratch"))
        index = tuple(sym(n.var) for n in (*groups, *loops))
        renaming = {n.var: fresh_name(f"{n.var}.f", {*taken, name}) for n in loops}
        (fill,) = rebuild(loops, (Store(name, index, e),))
        load = Load(name, index, e.dtype)

        def read(whole: Expr) -> Expr:
            return map_expr(whole, lambda x: load if x == e else x)

        rest = rebuild(nodes[1:], tuple(map_stmt_exprs(s, read) for s in leaf))
        done = replace(node, body=(rename_vars(fill, renaming), *rest))
        closed(done, free_symbols(node) | {g.var for g in groups}, what)
        return declare(done, tuple(made)) if own else done

    done = edit(kernel, var, rewrite, what)
    return done if own else done.with_(scratch=(*kernel.scratch, *made))


def stage_right(kernel: Kernel, var: str, row: str, name: str) -> Kernel:
    """<v> { for i { for j { y[i, j] = f(sum k in n { a(i, k) * w(k, j) }) } } }
      -->  <v> { scratch p: f32[n, j]; for k' in n { for j' { p[k', j'] = w(k', j') } };
                 for i { for j { y[i, j] = f(sum k in n { a(i, k) * p[k, j] }) } } }

    The factor that does not follow the loop `row` is computed once for all its iterations. v is a group that
    has p of its own: the axes of the sum, then the loops inside v that the factor follows.
    """
    what = f"stage_right {var} {row} {name}"
    _groups_around(kernel, var, name, True, what)
    taken = names_of(kernel)

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        nodes, leaf = chain(node)
        inside = {var_of(n) for n in nodes[1:]}
        sums = (x for e in expressions(leaf) for x in walk_expr(e) if isinstance(x, Reduce))
        found = {(x.axes, w) for x in sums for w in factors(x) or () if row not in free_symbols(w)}
        if len(found) != 1 or row not in inside:
            raise ScheduleError(what, f"no product of which one factor alone does not follow '{row}'")
        ((axes, w),) = found
        if bound_symbols((Store(name, (), w),)):
            raise ScheduleError(what, "the factor has reductions or indices of its own")
        loops = [Loop("serial", a.var, a.extent, ()) for a in axes]
        loops += [Loop("serial", var_of(n), n.extent, ()) for n in nodes[1:] if var_of(n) in free_symbols(w)]
        index = tuple(sym(n.var) for n in loops)
        renaming = {n.var: fresh_name(f"{n.var}.w", {*taken, name}) for n in loops}
        (fill,) = rebuild(loops, (Store(name, index, w),))
        load = Load(name, index, w.dtype)
        rest = rebuild(nodes[1:], tuple(
            map_stmt_exprs(s, lambda whole: map_expr(whole, lambda x: load if x == w else x)) for s in leaf
        ))
        shape = tuple(_most(n.extent, enter(facts, node), kernel, what) for n in loops)
        done = replace(node, body=(rename_vars(fill, renaming), *rest))
        closed(done, free_symbols(node), what)
        return declare(done, (Buffer(name, w.dtype, shape, "scratch"),))

    return edit(kernel, var, rewrite, what)


def _as_cast(e: Expr, leaf: Body) -> Expr:
    """The cast around an expression wherever it is read, where that is one; else itself."""
    every = [x for whole in expressions(leaf) for x in walk_expr(whole)]
    casts = [x for x in every if isinstance(x, Call) and x.fn == "cast" and x.args[0] == e]
    return casts[0] if len(casts) == every.count(e) and len({x.dtype for x in casts}) == 1 else e


def stage_operand(kernel: Kernel, var: str, row: str, name: str, own: bool) -> Kernel:
    """<v> { for i { for k in n { r[i, k] = e(x(i, k), max l in n { x(i, l) }) } }; s }
      -->  scratch p: f32[v, i, n];
           <v> { for i { for k' in n { p[v, i, k'] = x(i, k') } };
                 for i { for k in n { r[i, k] = e(p[v, i, k], max l in n { p[v, i, l] }) } }; s }

    x is the widest expression that holds the only product of e, equal at k, the innermost loop, and along e's
    reductions: it is computed once for every i and k. p is as in `stage_factor`.
    """
    what = f"stage_operand {var} {row} {name} {'yes' if own else 'no'}"
    groups = _groups_around(kernel, var, name, own, what)
    taken = names_of(kernel)
    made: list[Buffer] = []

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        first, rest = node.body[0], node.body[1:]
        nodes, leaf = chain(first)
        store = leaf[0] if len(leaf) == 1 else None
        if not isinstance(store, Store) or not nodes or var_of(nodes[-1]) != row or store.guard:
            raise ScheduleError(what, f"the first statement is no row along '{row}'")
        axis = Axis(row, nodes[-1].extent)
        x = row_operand(store.value, axis)
        if x is None:
            raise ScheduleError(what, "no product that the row is made of")
        loops = [Loop("serial", var_of(n), n.extent, ()) for n in nodes if var_of(n) in free_symbols(x)]
        inner = enter(facts, node)
        shape = (*(g.extent for g in groups), *(_most(n.extent, inner, kernel, what) for n in loops))
        made.append(Buffer(name, x.dtype, shape, "scratch"))
        index = tuple(sym(n.var) for n in (*groups, *loops))
        renaming = {n.var: fresh_name(f"{n.var}.x", {*taken, name}) for n in loops}
        (fill,) = rebuild(loops, (Store(name, index, x),))
        value = with_row_operand(store.value, axis, x, Load(name, index, x.dtype))
        (using,) = rebuild(nodes, (replace(store, value=value),))
        done = replace(node, body=(rename_vars(fill, renaming), using, *rest))
        closed(done, free_symbols(node) | {g.var for g in groups}, what)
        return declare(done, tuple(made)) if own else done

    done = edit(kernel, var, rewrite, what)
    return done if own else done.with_(scratch=(*kernel.scratch, *made))


def _groups_around(kernel: Kernel, var: str, name: str, own: bool, what: str) -> list[Loop]:
    """The group loops from var outward that a buffer of that name, made there, needs places for."""
    place = find(kernel, var)
    if name in names_of(kernel) or place is None:
        raise ScheduleError(what, f"name '{name}' is taken, or there is no loop '{var}'")
    around = [x for x in (*place[0], place[1]) if isinstance(x, Loop | Tiles)]
    groups = [x for x in around if isinstance(x, Loop) and x.level == "group"]
    if any(x.level != "serial" for x in around if x not in groups):
        raise ScheduleError(what, "a loop around it is parallel, and no plain group")
    if own and place[1].level != "group":
        raise ScheduleError(what, f"'{var}' is no group, which could have memory of its own")
    return [] if own else groups


def _most(extent: Dim, facts: Facts, kernel: Kernel, what: str) -> Dim:
    """The extent, or what it is at most in sizes of the kernel: where the loops around are at 0."""
    inner = extent.symbols - {d.name for d in kernel.dims}
    most = extent.substitute(dict.fromkeys(inner, 0))
    if facts.prove_le(extent, most) is not YES:
        raise ScheduleError(what, f"extent {extent} is not provably at most {most}")
    return most


def _spec(what: str, layout: str) -> PackSpec:
    try:
        return parse_spec(layout)
    except ValueError as e:
        raise ScheduleError(what, str(e)) from e


def _redirect(kernel: Kernel, old: Buffer, new: str, spec: PackSpec) -> Body:
    """Loads of old[i] become loads of new[spec.index(i)], without the guards that the padding makes idle."""

    def load(e: Load, facts: Facts) -> Expr:
        if e.buffer != old.name:
            return e
        guard = e.guard if e.otherwise is not None else tuple(b for b in e.guard if not idle(e, b, facts))
        return replace(e, buffer=new, index=spec.index(e.index), guard=guard)

    def idle(e: Load, b: Bound, facts: Facts) -> bool:
        """Whether the load reads zeros where the bound fails."""
        return any(
            b == Bound(to_dim(0), i, n)
            and facts.prove_le(0, i) is YES
            and facts.prove_lt(i, align_up(n, spec.factor(a))) is YES
            for a, (i, n) in enumerate(zip(e.index, old.shape, strict=True))
        )

    return map_accesses(kernel.body, kernel_facts(kernel), load, lambda s, _: s)


def bind_let(kernel: Kernel, var: str) -> Kernel:
    """<v> { for j { y[j] = let g = ix[v] in x[g, j] } }
      -->  <v> { let g = ix[v] { for j { y[j] = x[g, j] } } }

    Data-dependent indices that the loops inside v only repeat are read once.
    """
    what = f"bind_let {var}"

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        found: list[tuple[str, Expr]] = []
        body = tuple(_lift(s, found) for s in node.body)
        if not found:
            raise ScheduleError(what, "no data-dependent index is invariant")
        let = tuple((v, e.value, e.low, e.high) for v, e in found if isinstance(e, Let))
        return replace(node, body=(Block(body, (), let),))

    return edit(kernel, var, rewrite, what)


def _lift(s: Stmt, found: list[tuple[str, Expr]]) -> Stmt:
    """s without the lets that depend on none of its loops; they are added to found."""
    nodes, leaf = chain(s)
    if not all(isinstance(x, Store) for x in leaf) or not nodes:
        return s
    inner = frozenset(var_of(n) for n in nodes)

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Let):
            return e
        used = free_symbols(e.value) | e.low.symbols | e.high.symbols
        bound = _bound_around(leaf, e)
        if used & (inner | bound):
            return e
        if all(v != e.var for v, _ in found):
            found.append((e.var, e))
        return e.body

    done = tuple(
        replace(x, value=map_expr(x.value, visit)) for x in leaf if isinstance(x, Store)
    )
    return rebuild(nodes, done)[0]


def _bound_around(leaf: Body, e: Let) -> frozenset[str]:
    """Variables that the values of these stores bind themselves (other than e's own)."""
    return frozenset(bound_symbols(leaf)) - {e.var}


def unclamp(kernel: Kernel, names: tuple[str, ...]) -> Kernel:
    """x[min(c, v + k)]  -->  x[v + k] where 0 <= v + k < c + 1, else x[c]; v one of the names, c without it

    An operand of an extent that may be 1 is read this way. After it neighbours are neighbours: vectors load
    them at once, and the other case is decided for a whole vector.
    """
    inside = frozenset(names)
    found = False
    shapes = {name: b.shape for name, b in kernel.buffers().items()}
    known = kernel_facts(kernel)

    def load(e: Load, _: Facts) -> Expr:
        nonlocal found
        if e.guard or e.otherwise is not None or e.buffer not in shapes:
            return e
        for axis, d in enumerate(e.index):
            parts = _clamped(d, inside)
            if parts is not None:
                found = True
                moving, fixed = parts
                ahead, behind = (*e.index[:axis], moving, *e.index[axis + 1 :]), list(e.index)
                behind[axis] = fixed
                bound = Bound(to_dim(0), moving, fixed + 1)
                other, extent = replace(e, index=tuple(behind)), shapes[e.buffer][axis]
                if known.prove_le(fixed + 1, extent) is not YES:
                    # the other case is read ahead of the choice, where the axis may end before c
                    other = replace(other, guard=(Bound(to_dim(0), fixed, extent),))
                return replace(e, index=ahead, guard=(bound,), otherwise=other)
        return e

    body = map_accesses(kernel.body, Facts(), load, lambda s, _: s)
    if not found:
        raise ScheduleError(f"unclamp {' '.join(names)}", "no index is held below an extent there")
    return kernel.with_(body=body)


def _clamped(d: Dim, names: frozenset[str]) -> tuple[Dim, Dim] | None:
    """(v + k, c) when d is min(c, v + k), v one of the names and c without any of them."""
    atom = sole_atom(d)
    if not isinstance(atom, Min) or len(atom.args) != 2:
        return None
    for moving, fixed in (atom.args, atom.args[::-1]):
        steps = [moving.linear(v) for v in moving.symbols & names]
        if len(steps) == 1 and steps[0] is not None and steps[0][0] == 1 and not fixed.symbols & names:
            return moving, fixed
    return None


__all__ = [
    "ask_ahead", "bind_let", "pack", "stage", "stage_factor", "stage_operand", "stage_right",
    "unclamp",
]  # fmt: skip
