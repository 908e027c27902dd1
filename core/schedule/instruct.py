"""Primitives for a machine's instructions: Kernel -> Kernel. A reduction's axis is cut to the depth of one,
and a nest that means what it does is computed by it. Each shows its rewrite and refuses what it cannot
prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, Facts, ceildiv, sym, to_dim
from smelt.core.ir.analysis.products import strip_casts
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.instructions import lanes_differ, match
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Loop,
    LoopNode,
    Reduce,
    Stmt,
    Tiles,
)
from smelt.core.ir.rewrite import map_expr, map_stmt_exprs, substitute_expr
from smelt.core.machine import Instruction
from smelt.core.schedule.tree import ScheduleError, edit, find, names_of, tidy


def deepen(kernel: Kernel, axis: str, depth: int, outer: str, inner: str) -> Kernel:
    """sum k in n { a(k) * b(k) }
      -->  sum o in ceildiv(n, d), q in d { a(o*d + q) * b(o*d + q) },  where n is no multiple of d: both
           factors guarded by o*d + q < n

    The terms of a sum of floats keep their order: there the axis must be the last. The factors must be loads
    (under casts), of which the right one has no guard yet; of floats, the left one must be 0 where its own
    guard fails.
    """
    what = f"deepen {axis} {depth}"
    if {outer, inner} & names_of(kernel) or outer == inner:
        raise ScheduleError(what, f"name '{outer}' or '{inner}' is taken")
    done = 0

    def visit(e: Expr) -> Expr:
        nonlocal done
        if not isinstance(e, Reduce) or all(a.var != axis for a in e.axes):
            return e
        done += 1
        return _deepened(e, axis, depth, outer, inner, what)

    body = tuple(map_stmt_exprs(s, lambda x: map_expr(x, visit)) for s in kernel.body)
    if not done:
        raise ScheduleError(what, f"no reduction has an axis '{axis}'")
    return kernel.with_(body=tidy(body, kernel_facts(kernel)))


def _deepened(e: Reduce, axis: str, depth: int, outer: str, inner: str, what: str) -> Reduce:
    if e.kind != "sum" or (e.dtype.is_float and e.axes[-1].var != axis):
        raise ScheduleError(what, "it is no sum whose terms may change places")
    at = sym(outer) * depth + sym(inner)
    n = next(a.extent for a in e.axes if a.var == axis)
    body = substitute_expr(e.body, {axis: at})
    if Facts({}).prove_divisible(n, depth) is not YES:
        body = _guarded(body, Bound(to_dim(0), at, n), what)
    axes = tuple(Axis(outer, ceildiv(n, depth)) if a.var == axis else a for a in e.axes)
    return replace(e, axes=(*axes, Axis(inner, to_dim(depth))), body=body)


def _guarded(e: Expr, bound: Bound, what: str) -> Expr:
    """A product that reads nothing beyond the bound and is 0 there. The right factor is 0 there; the left one
    is what its own guard gives (a zero point, say), which of integers may be anything. Of floats it must be 0
    as well: 0 times inf or NaN is NaN."""
    product = strip_casts(e)
    parts = product.args if isinstance(product, Call) and product.fn == "mul" else ()
    loads = [x for x in map(strip_casts, parts) if isinstance(x, Load)]
    if len(loads) != 2 or loads[1].guard or not _else_zero(loads[1]):
        raise ScheduleError(what, f"the last block of {bound.high} is no product of two loads")
    if any(x.dtype.is_float for x in loads) and not _else_zero(loads[0]):
        raise ScheduleError(what, f"'{loads[0].buffer}' is not 0 where its guard fails, as a factor must")

    def visit(x: Expr) -> Expr:
        return replace(x, guard=(*x.guard, bound)) if isinstance(x, Load) else x

    return map_expr(e, visit)


def _else_zero(e: Load) -> bool:
    """Whether a load is 0 where its guard fails."""
    return e.otherwise is None or (isinstance(e.otherwise, Const) and e.otherwise.value == 0)


def join_axes(kernel: Kernel, outer: str, inner: str, into: str) -> Kernel:
    """sum o in n, q in d { e(o, q) }  -->  sum k in n*d { e(k // d, k % d) }

    Neighbouring axes of a reduction, whose terms keep their order: the inverse of `deepen`.
    """
    what = f"join_axes {outer} {inner}"
    if into in names_of(kernel):
        raise ScheduleError(what, f"name '{into}' is taken")
    done = 0

    def visit(e: Expr) -> Expr:
        nonlocal done
        names = [a.var for a in e.axes] if isinstance(e, Reduce) else []
        if not isinstance(e, Reduce) or outer not in names[:-1] or names[names.index(outer) + 1] != inner:
            return e
        i = names.index(outer)
        n, m = (a.extent for a in e.axes[i : i + 2])
        if not m.is_const or not m.const:
            raise ScheduleError(what, f"extent {m} of '{inner}' is no number above 0")
        done += 1
        body = substitute_expr(e.body, {outer: sym(into) // m, inner: sym(into) % m})
        return replace(e, axes=(*e.axes[:i], Axis(into, n * m), *e.axes[i + 2 :]), body=body)

    body = tuple(map_stmt_exprs(s, lambda x: map_expr(x, visit)) for s in kernel.body)
    if not done:
        raise ScheduleError(what, "no reduction has these axes side by side")
    return kernel.with_(body=tidy(body, kernel_facts(kernel)))


def by_instruction(kernel: Kernel, var: str, row: Instruction) -> Kernel:
    """for v .. { s }  -->  block by row { for v .. { s } }, where the loops mean what the row says

    Other loops of that name stay: those that set the sums to 0, or store them.
    """
    what = f"replace {var} {row.name}"
    place = find(kernel, var)
    around = () if place is None else place[0]
    lanes = [x for x in around if isinstance(x, Loop | Tiles) and x.level == "lane"]
    whys: list[str] = []

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        found = match((node,), row, facts)
        why = found if isinstance(found, str) else lanes_differ(found, lanes)
        whys.append(why)
        return node if why else Block((node,), by=row.name)

    done = edit(kernel, var, rewrite, what)
    if all(whys):
        raise ScheduleError(what, "; ".join(dict.fromkeys(whys)))
    return done


__all__ = ["by_instruction", "deepen", "join_axes"]
