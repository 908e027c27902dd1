"""Primitives that make further top-level statements of a nest: Kernel -> Kernel. A reduction becomes a
statement of its own, or two, which more groups share. Each shows its rewrite and refuses what it cannot
prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, ceildiv, dmin, sym, to_dim
from smelt.core.ir.analysis.scope import kernel_facts
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
from smelt.core.schedule.tree import ScheduleError, chain, expressions, names_of, rebuild, tidy, var_of


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
    return _replaced(kernel, number, (first, *rest), scratch)


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
    return _replaced(kernel, number, (first, *_with(nodes, leaf, whole, total)), scratch)


def _reduction(
    kernel: Kernel, var: str, axis: str, what: str
) -> tuple[int, tuple[LoopNode, ...], Body, Reduce]:
    """(number of the statement, its loops, what is in them, the reduction over the axis)"""
    number = next((i for i, s in enumerate(kernel.body) if var in map(var_of, chain(s)[0])), None)
    if number is None:
        raise ScheduleError(what, f"no top-level nest has the loop '{var}'")
    nodes, leaf = chain(kernel.body[number])
    if not all(isinstance(n, Loop) and n.level == "serial" and not n.buffers for n in nodes):
        raise ScheduleError(what, "not a plain nest")
    every = {x for e in expressions(leaf) for x in walk_expr(e) if isinstance(x, Reduce)}
    found = {x for x in every if any(a.var == axis for a in x.axes)}
    if len(found) != 1:
        raise ScheduleError(what, f"'{axis}' is no axis of one reduction")
    (whole,) = found
    if any(isinstance(x, Reduce) for x in walk_expr(whole.body)):
        raise ScheduleError(what, "the reduction holds another one")
    return number, nodes, leaf, whole


def _followed(nodes: tuple[LoopNode, ...], whole: Reduce, what: str) -> list[Loop]:
    """The loops that a reduction follows."""
    inner = {var_of(n) for n in nodes}
    loops = [x for x in nodes if isinstance(x, Loop) and x.var in free_symbols(whole)]
    if any(x.extent.symbols & inner for x in loops):
        raise ScheduleError(what, "an extent depends on another loop")
    return loops


def _with(nodes: tuple[LoopNode, ...], leaf: Body, old: Expr, new: Expr) -> Body:
    """The nest, with an expression in the place of another."""
    return rebuild(nodes, tuple(map_stmt_exprs(x, lambda e: map_expr(e, lambda y: new if y == old else y))
                                for x in leaf))  # fmt: skip


def _replaced(kernel: Kernel, number: int, body: tuple[Stmt, ...], scratch: Buffer) -> Kernel:
    return kernel.with_(
        body=(*kernel.body[:number], *body, *kernel.body[number + 1 :]), scratch=(*kernel.scratch, scratch)
    )


__all__ = ["lift", "split_reduce"]
