"""Primitives for a machine's instructions: Kernel -> Kernel. A reduction's axis is cut to the depth of one,
and a nest that means what it does is computed by it. Each shows its rewrite and refuses what it cannot
prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, Facts, ceildiv, sym, to_dim
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.analysis.traits import strip_casts
from smelt.core.ir.instructions import match
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Call,
    Expr,
    Kernel,
    Load,
    LoopNode,
    Reduce,
    Stmt,
    walk_expr,
)
from smelt.core.ir.rewrite import map_expr, map_stmt_exprs, substitute_expr
from smelt.core.machine import Instruction
from smelt.core.schedule.tree import ScheduleError, edit, expressions, names_of, tidy


def deepen(kernel: Kernel, axis: str, depth: int, outer: str, inner: str) -> Kernel:
    """sum k in n { a(k) * b(k) }
      -->  sum o in ceildiv(n, d), q in d { a(o*d + q) * b(o*d + q) },  where n is no multiple of d: each
           factor guarded by o*d + q < n

    The terms of a sum of floats keep their order: there the axis must be the last. The factors must be loads
    (under casts), of which the right one has no guard yet.
    """
    what = f"deepen {axis} {depth}"
    if {outer, inner} & names_of(kernel) or outer == inner:
        raise ScheduleError(what, f"name '{outer}' or '{inner}' is taken")
    whole = [e for x in expressions(kernel.body) for e in walk_expr(x) if isinstance(e, Reduce)]
    mine = [e for e in whole if any(a.var == axis for a in e.axes)]
    if not mine:
        raise ScheduleError(what, f"no reduction has an axis '{axis}'")

    def visit(e: Expr) -> Expr:
        return _deepened(e, axis, depth, outer, inner, what) if e in mine and isinstance(e, Reduce) else e

    body = tuple(map_stmt_exprs(s, lambda x: map_expr(x, visit)) for s in kernel.body)
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
    """A product that is 0 beyond the bound: the right factor is, whatever the left one's guard gives."""
    product = strip_casts(e)
    parts = product.args if isinstance(product, Call) and product.fn == "mul" else ()
    loads = [strip_casts(x) for x in parts]
    last = loads[-1] if loads else None
    if not all(isinstance(x, Load) for x in loads) or not isinstance(last, Load) or last.guard:
        raise ScheduleError(what, f"the last block of {bound.high} is no product of two loads")

    def visit(x: Expr) -> Expr:
        return replace(x, guard=(*x.guard, bound)) if x in loads and isinstance(x, Load) else x

    return map_expr(e, visit)


def by_instruction(kernel: Kernel, var: str, row: Instruction) -> Kernel:
    """for v .. { s }  -->  block by row { for v .. { s } }, where the loops mean what the row says"""
    what = f"replace {var} {row.name}"

    def rewrite(node: LoopNode, _: Facts) -> Stmt:
        found = match((node,), row)
        if isinstance(found, str):
            raise ScheduleError(what, found)
        return Block((node,), by=row.name)

    return edit(kernel, var, rewrite, what)


__all__ = ["by_instruction", "deepen"]
