"""Primitives for rows that are too short for a group of lanes: Kernel -> Kernel. A few lanes have a row, next
to those of other rows; rows of a length that only a run knows are two nests. Each shows its rewrite and
refuses what it cannot prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import YES, Dim, DimLike, Facts, ceildiv, dmax, dmin, sym, to_dim
from smelt.core.dtype import bool_, i64
from smelt.core.ir.analysis.scope import enter
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Buffer,
    Call,
    Index,
    Kernel,
    Load,
    Loop,
    LoopNode,
    Reduce,
    Stmt,
    Store,
)
from smelt.core.ir.rewrite import Body, fresh_name, rename_vars, substitute_expr
from smelt.core.schedule.lanes import enter_all
from smelt.core.schedule.loops import with_copy
from smelt.core.schedule.reductions import UPDATE, edit_stage, start_value, update_of
from smelt.core.schedule.tree import ScheduleError, edit, is_static, names_of, rebuild, tidy


def lane_share(kernel: Kernel, name: str, lanes: int, wide: int) -> Kernel:
    """Reductions of rows that are lanes run over their last axis in further lanes, each of which has `wide`
    elements on their way (W = lanes*wide):

    lane r { acc[r] = sum k in n { e(r, k) } }
      -->  shared p[r, lanes];
           lane r' { lane l in lanes { register own[wide] = 0;
             for k.o in n // W { unroll j in wide { own[j] += e(r', k.o*W + j*lanes + l) } };
             for k.p in ceildiv(n % W, W) { unroll j in wide { own[j] += inside ? e(r', ..) : 0 } };
             p[r', l] = sum j in wide { own[j] } } };
           lane r { acc[r] = sum l in lanes { p[r, l] } },  r' = r.s

    Neighbouring lanes have neighbouring elements of a row; beyond its end they read its last one. The loops
    around have static extents.
    """
    what = f"lane_share {name} {lanes} {wide}"
    taken = names_of(kernel)
    part, own, lane, near, again = (fresh_name(f"{name}.{x}", taken) for x in ("row", "own", "l", "j", "t"))

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        loops = [n for n in nodes if isinstance(n, Loop) and is_static(n.extent, kernel) and not n.buffers]
        if len(loops) != len(nodes) or not loops or any(n.level != "lane" for n in loops):
            raise ScheduleError(what, "not in lanes of static extents")
        if not e.axes or lanes < 2 or wide < 1:
            raise ScheduleError(what, "it reduces nothing, or is shared by one lane")
        others = {x.var: fresh_name(f"{x.var}.s", taken) for x in loops}
        fn, value = update_of(e, what)
        axis, n, step = e.axes[-1], e.axes[-1].extent, lanes * wide
        o, p = fresh_name(f"{axis.var}.o", taken), fresh_name(f"{axis.var}.p", taken)
        me, j, index = sym(lane), sym(near), tuple(sym(x.var) for x in loops)
        inner = enter(enter_all(facts, loops), e.axes[:-1]).with_range(lane, 0, lanes - 1)

        def term(at: Dim, place: Dim, known: Facts) -> Body:
            return tidy((Store(own, (place,), substitute_expr(value, {axis.var: at}), fn),), known)

        known = inner.with_index(o, n // step).with_range(near, 0, wide - 1)
        main = Loop("unroll", near, to_dim(wide), term(sym(o) * step + j * lanes + me, j, known))
        pieces: Body = (Loop("serial", o, n // step, (main,)),)
        if inner.prove_divisible(n, step) is not YES:
            at = n // step * step + j * lanes + me
            inside = Call("lt", (Index(at, i64), Index(n, i64)), bool_)
            other = start_value(e.kind, e.dtype)
            there = substitute_expr(value, {axis.var: dmin(at, n - 1)})
            last = Call("select", (inside, there, other), e.dtype)
            fn = UPDATE[e.kind]
            known = inner.with_index(p, ceildiv(n % step, step)).with_range(near, 0, wide - 1)
            one = Loop("unroll", near, to_dim(wide), tidy((Store(own, (j,), last, fn),), known))
            pieces = (*pieces, Loop("serial", p, ceildiv(n % step, step), (one,)))
        around = [Loop("serial", a.var, a.extent, ()) for a in e.axes[:-1]]
        start = Loop("unroll", near, to_dim(wide), (Store(own, (j,), start_value(e.kind, e.dtype)),))
        ended = Reduce(e.kind, (Axis(near, to_dim(wide)),), Load(own, (j,), e.dtype), e.dtype)
        registers = (Buffer(own, e.dtype, (to_dim(wide),), "register"),)
        work = (start, *rebuild(around, pieces), Store(part, (*index, me), ended))
        (fill,) = rebuild(loops, (Loop("lane", lane, to_dim(lanes), work, registers),))
        fill = rename_vars(fill, others)
        load = Load(part, (*index, sym(again)), e.dtype)
        total = replace(e, axes=(Axis(again, to_dim(lanes)),), body=load)
        mine = Buffer(part, e.dtype, (*(x.extent for x in loops), to_dim(lanes)), "shared")
        return (Block((fill, *rebuild(loops, (replace(store, value=total),))), (mine,)),)

    return edit_stage(kernel, name, rewrite, what)


def divide_by(kernel: Kernel, var: str, extent: DimLike, most: int, suffix: str) -> Kernel:
    """for v in n { s }
      -->  for v in n * [e <= most] { s }; for v' in n * [e > most] { s[v := v'] },  [true] = 1, [false] = 0

    As `divide`, by another extent e of the kernel: what is fast for short rows and what is fast for long
    ones, side by side. All variables of the second part get the suffix.
    """
    what = f"divide_by {var} {most}"
    e = to_dim(extent)
    if not e.symbols <= {d.name for d in kernel.dims}:
        raise ScheduleError(what, f"'{e}' is no size of the kernel")

    def rewrite(node: LoopNode, facts: Facts) -> Body:
        loop, copy = with_copy(kernel, node, suffix, what)
        few = loop.extent * dmin(dmax(most + 1 - e, 0), 1)
        many = loop.extent * dmin(dmax(e - most, 0), 1)
        first: Stmt = replace(loop, extent=few, body=tidy(loop.body, facts.with_index(var, few)))
        inside = facts.with_index(copy.var, many)
        return (first, replace(copy, extent=many, body=tidy(copy.body, inside)))

    return edit(kernel, var, rewrite, what)


__all__ = ["divide_by", "lane_share"]
