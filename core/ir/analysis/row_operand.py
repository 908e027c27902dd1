"""The factor of a product that reductions of rows make, in; out, the expression with a product of its own
that it is a function of: the scores s of softmax(s) * v, where s = q * k.

Such a factor holds that product several times, at its own element and along each reduction of the row. It is
computed in steps, the product first, once for each element of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smelt.core.ir.analysis.products import factors
from smelt.core.ir.kernel import Axis, Expr, Reduce, children, walk_expr
from smelt.core.ir.rewrite import alpha, free_symbols, rename_vars_expr, with_children


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a factor has a product: what is around it, innermost first, and the variable of the row there."""

    around: tuple[Expr, ...]
    var: str

    def at(self, axis: Axis) -> list[Expr]:
        """What is around it, as it were at the axis' own element, as far as that is a matter of the row."""
        found = []
        for x in self.around:
            free = free_symbols(x)
            if self.var not in free or (self.var != axis.var and axis.var in free):
                break
            found.append(rename_vars_expr(x, {self.var: axis.var}))
        return found


def row_operand(e: Expr, axis: Axis) -> Expr | None:
    """The widest expression at `axis` that holds the products of e, if they are one: it stands at e's own
    element and, with their variables in the axis' place, inside of reductions along as many elements. None
    where e holds no product or several, or one that does not follow the row."""
    places = list(_places(e, axis, axis.var, ()))
    chains = [[] if p is None else p.at(axis) for p in places]
    common = 0
    while chains and all(len(c) > common for c in chains):
        if len({alpha(c[common]) for c in chains}) > 1:
            break
        common += 1
    found = chains[0][common - 1] if common else None
    inner = {a.var for x in walk_expr(e) if isinstance(x, Reduce) for a in x.axes}
    return None if found is None or free_symbols(found) & inner else found


def with_row_operand(e: Expr, axis: Axis, operand: Expr, read: Expr) -> Expr:
    """e with `read`, an expression at the axis, in the place of its row operand."""
    wanted = alpha(operand)

    def visit(x: Expr, var: str) -> Expr:
        mine = type(x) is type(operand) and (var == axis.var or axis.var not in free_symbols(x))
        if mine and alpha(rename_vars_expr(x, {var: axis.var})) == wanted:
            return rename_vars_expr(read, {axis.var: var})
        if not children(x):
            return x
        inner = x.axes[0].var if isinstance(x, Reduce) and _along(x, axis) else var
        return with_children(x, tuple(visit(c, inner) for c in children(x)))

    return visit(e, axis.var)


def _places(e: Expr, axis: Axis, var: str, around: tuple[Expr, ...]) -> Iterator[_Place | None]:
    """Every product in e; None for one that is no part of a row. around: what is around e and is not more
    than one element of the row."""
    if isinstance(e, Reduce) and _is_product(e):
        yield _Place((e, *around), var)
        return
    if isinstance(e, Reduce):
        if not _along(e, axis):
            yield from (None for x in walk_expr(e) if _is_product(x))
            return
        yield from _places(e.body, axis, e.axes[0].var, ())
        return
    plain = not any(isinstance(x, Reduce) and not _is_product(x) for x in walk_expr(e))
    for c in children(e):
        yield from _places(c, axis, var, (e, *around) if plain else ())


def _is_product(e: Expr) -> bool:
    """Whether it sums products, and holds no other reduction."""
    return isinstance(e, Reduce) and factors(e) is not None and not any(
        isinstance(x, Reduce) for x in walk_expr(e.body)
    )


def _along(e: Reduce, axis: Axis) -> bool:
    return len(e.axes) == 1 and e.axes[0].extent == axis.extent


__all__ = ["row_operand", "with_row_operand"]
