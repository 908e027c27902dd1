"""A sum in, the two factors of the products that it adds out, where it is a contraction."""

from __future__ import annotations

from smelt.core.ir.kernel import Call, Expr, Load, Reduce, walk_expr


def strip_casts(e: Expr) -> Expr:
    """e without the casts around it."""
    while isinstance(e, Call) and e.fn == "cast":
        e = e.args[0]
    return e


def factors(r: Reduce) -> tuple[Expr, Expr] | None:
    """The two factors of a contraction: a sum of products of what is read at two places (through casts and
    guards), so x @ transpose(x) is one and a sum of squares is none; None for other reductions."""
    body = strip_casts(r.body)
    if r.kind != "sum" or not isinstance(body, Call) or body.fn != "mul" or body.args[0] == body.args[1]:
        return None
    loads = [{(x.buffer, x.index) for x in walk_expr(a) if isinstance(x, Load)} for a in body.args]
    return (body.args[0], body.args[1]) if all(loads) and len(loads[0] | loads[1]) > 1 else None


def split_factors(r: Reduce) -> tuple[Expr, Expr] | None:
    """The factors of a contraction of which one alone has reductions of its own: that one, without the casts
    around it, and the other; None for other reductions."""
    found = factors(r) or ()
    heavy = [f for f in found if any(isinstance(x, Reduce) for x in walk_expr(f))]
    rest = [f for f in found if f not in heavy]
    return (strip_casts(heavy[0]), rest[0]) if len(heavy) == len(rest) == 1 else None


__all__ = ["factors", "split_factors", "strip_casts"]
