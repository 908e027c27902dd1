"""Primitives that make further top-level statements of a nest: Kernel -> Kernel. A reduction becomes a
statement of its own, or two, which more groups share. Each shows its rewrite and refuses what it cannot
prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, ceildiv, dmin, sym, to_dim
from smelt.core.ir.analysis.products import split_factors
from smelt.core.ir.analysis.row_operand import row_operand, with_row_operand
from smelt.core.ir.analysis.scope import expressions, kernel_facts
from smelt.core.ir.kernel import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Load,
    Loop,
    LoopNode,
    Reduce,
    Stmt,
    Store,
    walk_expr,
)
from smelt.core.ir.rewrite import (
    Body,
    free_symbols,
    fresh_name,
    map_expr,
    map_stmt_exprs,
    rename_vars,
    substitute_expr,
)
from smelt.core.schedule.loops import new_names
from smelt.core.schedule.reductions import UPDATE
from smelt.core.schedule.tree import ScheduleError, chain, closed, names_of, rebuild, tidy, var_of


def lift(kernel: Kernel, var: str, axis: str, name: str) -> Kernel:
    """for i in m { for j in w { y[i, j] = f(sum k in n { e(i, k) }, j) } }
      -->  scratch p[m]; for i' in m { p[i'] = sum k in n { e(i', k) } };
           for i in m { for j in w { y[i, j] = f(p[i], j) } }

    The reduction is a statement of its own, which ends before the other begins. It holds no other one.
    """
    what = f"lift {var} {axis}"
    new_names(kernel, what, name)
    number, nodes, leaf, whole = _reduction(kernel, var, axis, what)
    taken = names_of(kernel) | {name}
    loops = _followed(nodes, whole, what)
    index = tuple(sym(x.var) for x in loops)
    around = loops or [Loop("serial", fresh_name(f"{name}.one", taken), to_dim(1), ())]
    (fill,) = rebuild(around, (Store(name, index, whole),))
    first = rename_vars(fill, {x.var: fresh_name(f"{x.var}.part", taken) for x in loops})
    rest = _with(nodes, leaf, whole, Load(name, index, whole.dtype))
    scratch = Buffer(name, whole.dtype, tuple(x.extent for x in loops), "scratch")
    return _replaced(kernel, number, (first, *rest), scratch, what)


def split_reduce(kernel: Kernel, var: str, axis: str, size: int, name: str) -> Kernel:
    """for i in m { y[i] = f(sum k in n { e(i, k) }) }
      -->  scratch p[ceildiv(n, c), m];
           for s in ceildiv(n, c) { for i' in m { p[s, i'] = sum k in min(c, n - s*c) { e(i', s*c + k) } } };
           for i in m { y[i] = f(sum s in ceildiv(n, c) { p[s, i] }) }

    As many groups as n wants do the reduction where rows and columns alone give too few; a statement of its
    own, which begins when all of them have ended, reduces what they have. For sum, prod, max and min.
    """
    what = f"split_reduce {var} {axis} {size}"
    new_names(kernel, what, name)
    number, nodes, leaf, whole = _reduction(kernel, var, axis, what)
    at = next(i for i, a in enumerate(whole.axes) if a.var == axis)
    if whole.kind not in UPDATE or size < 1:
        raise ScheduleError(what, f"'{whole.kind}' has no parts, or parts have no terms")
    taken = names_of(kernel) | {name}
    s, again = fresh_name(f"{axis}.s", taken), fresh_name(f"{axis}.t", taken)
    loops = _followed(nodes, whole, what)
    n, facts = whole.axes[at].extent, kernel_facts(kernel)
    parts = ceildiv(n, size)
    exact = facts.prove_divisible(n, size) is YES
    mine = Axis(axis, to_dim(size) if exact else dmin(size, n - sym(s) * size))
    axes = (*whole.axes[:at], mine, *whole.axes[at + 1 :])
    body = substitute_expr(whole.body, {axis: sym(s) * size + sym(axis)})
    index = tuple(sym(x.var) for x in loops)
    part = Store(name, (sym(s), *index), replace(whole, axes=axes, body=body))
    (fill,) = tidy(rebuild((Loop("serial", s, parts, ()), *loops), (part,)), facts)
    first = rename_vars(fill, {x.var: fresh_name(f"{x.var}.part", taken) for x in loops})
    load = Load(name, (sym(again), *index), whole.dtype)
    total = Reduce(whole.kind, (Axis(again, parts),), load, whole.dtype)
    scratch = Buffer(name, whole.dtype, (parts, *(x.extent for x in loops)), "scratch")
    return _replaced(kernel, number, (first, *_with(nodes, leaf, whole, total)), scratch, what)


def lift_factor(kernel: Kernel, var: str, axis: str, name: str) -> Kernel:
    """for i in m { for j in w { y[i, j] = f(sum k in n { e(i, k) * x[k, j] }) } }
      -->  scratch p[m, n]; for i' in m { for k' in n { p[i', k'] = e(i', k') } };
           for i in m { for j in w { y[i, j] = f(sum k in n { p[i, k] * x[k, j] }) } }

    The factor that has reductions of its own is a statement of its own, as `lift` makes one of a reduction.
    """
    what = f"lift_factor {var} {axis}"
    new_names(kernel, what, name)
    number, nodes, leaf = _plain_nest(kernel, var, what)
    sums = (x for e in expressions(leaf) for x in walk_expr(e) if isinstance(x, Reduce))
    found = {(x.axes, *parts) for x in sums if (parts := split_factors(x)) is not None}
    if len(found) != 1 or [a.var for a in next(iter(found))[0]] != [axis]:
        raise ScheduleError(what, f"no product over '{axis}' alone has one factor with reductions")
    (((last,), e, _),) = found
    loops = _followed(nodes, e, what)
    if axis not in free_symbols(e) or last.extent.symbols & {x.var for x in loops}:
        raise ScheduleError(what, "the factor is no row, or one whose length follows a loop")
    rows = [*loops, Loop("serial", last.var, last.extent, ())]
    return _stored_first(kernel, number, rows, e, name, _with(nodes, leaf, e, _at(name, rows, e)), what)


def lift_operand(kernel: Kernel, var: str, row: str, name: str) -> Kernel:
    """for i in m { for k in n { r[i, k] = e(x(i, k), max l in n { x(i, l) }) } }
      -->  scratch p[m, n]; for i' in m { for k' in n { p[i', k'] = x(i', k') } };
           for i in m { for k in n { r[i, k] = e(p[i, k], max l in n { p[i, l] }) } }

    x is the widest expression that holds the only product of e, equal at k, the innermost loop, and along e's
    reductions: a statement of its own.
    """
    what = f"lift_operand {var} {row}"
    new_names(kernel, what, name)
    number, nodes, leaf = _plain_nest(kernel, var, what)
    store = leaf[0] if len(leaf) == 1 else None
    if not isinstance(store, Store) or var_of(nodes[-1]) != row or store.guard or store.accumulate:
        raise ScheduleError(what, f"the nest is no row along '{row}'")
    axis = Axis(row, nodes[-1].extent)
    x = row_operand(store.value, axis)
    if x is None:
        raise ScheduleError(what, "no product that the row is made of")
    rows = _followed(nodes, x, what)
    value = with_row_operand(store.value, axis, x, _at(name, rows, x))
    return _stored_first(kernel, number, rows, x, name, rebuild(nodes, (replace(store, value=value),)), what)


def _at(name: str, loops: list[Loop], e: Expr) -> Load:
    return Load(name, tuple(sym(x.var) for x in loops), e.dtype)


def _stored_first(
    kernel: Kernel, number: int, loops: list[Loop], e: Expr, name: str, rest: Body, what: str
) -> Kernel:
    """A statement that stores e for these loops, ahead of the rest, which reads it."""
    taken = names_of(kernel) | {name}
    renaming = {}
    for x in loops:
        renaming[x.var] = fresh_name(f"{x.var}.first", taken)
        taken = taken | {renaming[x.var]}
    (fill,) = rebuild(loops, (Store(name, tuple(sym(x.var) for x in loops), e),))
    scratch = Buffer(name, e.dtype, tuple(x.extent for x in loops), "scratch")
    return _replaced(kernel, number, (rename_vars(fill, renaming), *rest), scratch, what)


def _plain_nest(kernel: Kernel, var: str, what: str) -> tuple[int, tuple[LoopNode, ...], Body]:
    """(number of the statement, its loops, what is in them)"""
    number = next((i for i, s in enumerate(kernel.body) if var in map(var_of, chain(s)[0])), None)
    if number is None:
        raise ScheduleError(what, f"no top-level nest has the loop '{var}'")
    nodes, leaf = chain(kernel.body[number])
    if not all(isinstance(n, Loop) and n.level == "serial" and not n.buffers for n in nodes):
        raise ScheduleError(what, "not a plain nest")
    return number, nodes, leaf


def _reduction(
    kernel: Kernel, var: str, axis: str, what: str
) -> tuple[int, tuple[LoopNode, ...], Body, Reduce]:
    """(number of the statement, its loops, what is in them, the reduction over the axis)"""
    number, nodes, leaf = _plain_nest(kernel, var, what)
    every = {x for e in expressions(leaf) for x in walk_expr(e) if isinstance(x, Reduce)}
    found = {x for x in every if any(a.var == axis for a in x.axes)}
    if len(found) != 1:
        raise ScheduleError(what, f"'{axis}' is no axis of one reduction")
    (whole,) = found
    if any(isinstance(x, Reduce) for x in walk_expr(whole.body)):
        raise ScheduleError(what, "the reduction holds another one")
    return number, nodes, leaf, whole


def _followed(nodes: tuple[LoopNode, ...], whole: Expr, what: str) -> list[Loop]:
    """The loops that an expression follows."""
    inner = {var_of(n) for n in nodes}
    loops = [x for x in nodes if isinstance(x, Loop) and x.var in free_symbols(whole)]
    if any(x.extent.symbols & inner for x in loops):
        raise ScheduleError(what, "an extent depends on another loop")
    return loops


def _with(nodes: tuple[LoopNode, ...], leaf: Body, old: Expr, new: Expr) -> Body:
    """The nest, with an expression in the place of another."""
    return rebuild(nodes, tuple(map_stmt_exprs(x, lambda e: map_expr(e, lambda y: new if y == old else y))
                                for x in leaf))  # fmt: skip


def _replaced(kernel: Kernel, number: int, body: tuple[Stmt, ...], scratch: Buffer, what: str) -> Kernel:
    closed(body, {d.name for d in kernel.dims}, what)
    return kernel.with_(
        body=(*kernel.body[:number], *body, *kernel.body[number + 1 :]), scratch=(*kernel.scratch, scratch)
    )


__all__ = ["lift", "lift_factor", "lift_operand", "split_reduce"]
