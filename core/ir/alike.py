"""Expressions in; the same ones, in which equal parts are one object, out.

Emitters compute an object once. What they make then follows from a kernel's text alone, however its
expressions came about.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from smelt.core.ir.kernel import Call, Const, Expr, Index, Let, Load, Reduce, children
from smelt.core.ir.rewrite import with_args, with_children


def alike() -> Callable[[Expr], Expr]:
    """A function that returns the same object for equal expressions, in all of its calls."""
    seen: dict[int, tuple[Expr, Expr]] = {}
    table: dict[Hashable, Expr] = {}

    def one(e: Expr) -> Expr:
        if id(e) not in seen:
            parts = tuple(map(one, children(e)))
            made = with_args(e, parts) if isinstance(e, Call) else with_children(e, parts)
            seen[id(e)] = e, table.setdefault(_key(made), made)
        return seen[id(e)][1]

    return one


def _key(e: Expr) -> Hashable:
    """The same for equal values whose parts are the same objects."""
    match e:
        case Call():
            return e.fn, e.dtype, tuple(map(id, e.args))
        case Load():
            return e.buffer, e.index, e.guard, id(e.otherwise)
        case Const():
            return repr(e)  # -0.0 equals 0.0, and NaN nothing
        case Reduce():
            return e.kind, e.axes, e.dtype, e.last, id(e.body)
        case Let():
            return e.var, e.low, e.high, id(e.value), id(e.body)
        case Index():
            return e
