"""Primitives on factors that are decoded on the way: Kernel -> Kernel. A block's sum is multiplied by its
scale, integers become floats by their bits. Each shows its rewrite and refuses what it cannot prove."""

from __future__ import annotations

from dataclasses import replace

from smelt.core.dim import Facts
from smelt.core.dtype import DType, f32, i32
from smelt.core.ir.kernel import Call, Const, Expr, Kernel, LoopNode, Reduce, Stmt, Store
from smelt.core.ir.rewrite import Body, free_symbols, map_expr, map_stmt_exprs
from smelt.core.schedule.reductions import edit_stage
from smelt.core.schedule.tree import ScheduleError, edit

MANTISSA = 23
"""Bits of a float of 32 after the point."""


def factor(kernel: Kernel, name: str, axis: str) -> Kernel:
    """acc = sum k, j { a(k, j) * (b(k, j) * s(k)) }
      -->  acc = sum k { (sum j { a(k, j) * b(k, j) }) * s(k) }

    For sums of floats into a register; s may follow the axis and those before it. Fewer roundings for a term,
    and one for each block.
    """
    what = f"factor {name} {axis}"

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        at = next((i for i, a in enumerate(e.axes) if a.var == axis), None)
        if at is None or at + 1 == len(e.axes) or e.kind != "sum" or not e.dtype.is_float:
            raise ScheduleError(what, "it is no sum of floats over the axis and others inside")
        inner = frozenset(a.var for a in e.axes[at + 1 :])
        parts = _product(e.body)
        decoded = None if parts is None else _product(parts[1])
        if parts is None or decoded is None or e.body.dtype != e.dtype:
            raise ScheduleError(what, "no product whose right factor is one")
        left, (b, s) = parts[0], decoded
        if free_symbols(s) & inner or not free_symbols(b) & inner:
            raise ScheduleError(what, "no second part of the right factor that is one for all inner axes")
        block = Reduce("sum", e.axes[at + 1 :], Call("mul", (left, b), e.dtype), e.dtype)
        whole = replace(e, axes=e.axes[: at + 1], body=Call("mul", (block, s), e.dtype))
        out: Body = (replace(store, value=whole),)
        for n in reversed(nodes):
            out = (replace(n, body=out),)
        return out

    return edit_stage(kernel, name, rewrite, what)


def _product(e: Expr) -> tuple[Expr, Expr] | None:
    return (e.args[0], e.args[1]) if isinstance(e, Call) and e.fn == "mul" else None


def by_bits(kernel: Kernel, var: str) -> Kernel:
    """<v> { .. cast:f32(q) - z .. }  -->  <v> { .. bitcast:f32(or(q, bits of 2^23)) - (z + 2^23) .. }

    For integers 0 <= q < 2^23 and z that stands for an integer of 16 bits: the same bits, without a
    conversion, which takes several operations' time on lanes; and z is one for many q.
    """
    what = f"by_bits {var}"
    done = 0

    def visit(e: Expr) -> Expr:
        nonlocal done
        if not (isinstance(e, Call) and e.fn == "sub" and e.dtype == f32):
            return e
        q, z = e.args
        if not (isinstance(q, Call) and q.fn == "cast" and _small(q.args[0], MANTISSA) and _integer(z)):
            return e
        done += 1
        integer = q.args[0] if q.args[0].dtype == i32 else Call("cast", (q.args[0],), i32)
        bits = Call("or", (integer, Const((127 + MANTISSA) << MANTISSA, i32)), i32)
        above: Expr = Const(float(1 << MANTISSA), f32)
        if isinstance(z, Const):
            above = Const(float(z.value) + (1 << MANTISSA), f32)
        else:
            above = Call("add", (z, above), f32)
        return Call("sub", (Call("bitcast", (bits,), f32), above), f32)

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        return replace(node, body=tuple(map_stmt_exprs(s, lambda e: map_expr(e, visit)) for s in node.body))

    made = edit(kernel, var, rewrite, what)
    if not done:
        raise ScheduleError(what, "no small integer becomes a float that an integer is taken from")
    return made


def _small(e: Expr, bits: int) -> bool:
    """Whether an expression is an integer that is at least 0 and has so many bits at most."""
    if isinstance(e, Call) and e.fn == "and" and e.dtype.category in ("int", "uint"):
        masks = [x.value for x in e.args if isinstance(x, Const)]
        if any(0 <= int(m) < 1 << bits for m in masks):
            return True
    return _unsigned(_type(e)) and _type(e).bits <= min(bits, 16)


def _integer(e: Expr) -> bool:
    """Whether a float stands for an integer of 16 bits at most."""
    if isinstance(e, Const):
        return float(e.value).is_integer() and abs(float(e.value)) < 1 << 16
    if not (isinstance(e, Call) and e.fn == "cast"):
        return False
    kind = _type(e.args[0])
    return (kind.category in ("int", "uint") and kind.bits <= 16) or _small(e.args[0], 16)


def _type(e: Expr) -> DType:
    return e.dtype if not hasattr(e, "body") or isinstance(e, Reduce) else _type(e.body)


def _unsigned(kind: DType) -> bool:
    return kind.category == "uint"


__all__ = ["by_bits", "factor"]
