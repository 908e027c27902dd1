"""The factor of a product that is a softmax of a row, in; out, the scores that the row is made of, and the
conditions under which the row is 0 instead.

exp(s(k) - max s) / sum exp(s - max s): its sums can be taken block by block of k, each below the maximum so
far. Where that grows, from a to b, all of them are multiplied by exp(a - b).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.core.ir.analysis.products import strip_casts
from smelt.core.ir.kernel import Axis, Call, Const, Expr, Reduce
from smelt.core.ir.rewrite import alpha, free_symbols, rename_vars_expr


@dataclass(frozen=True, slots=True)
class SoftmaxRow:
    """scores: s, at the axis' own element. unless: conditions, the same for all of a row, with the value
    that each has where the row is 0."""

    scores: Expr
    unless: tuple[tuple[Expr, bool], ...] = ()


def softmax_row(e: Expr, axis: Axis) -> SoftmaxRow | None:
    """What a softmax along the axis is of, where e is one, or one or 0; None for other expressions."""
    e = strip_casts(e)
    if isinstance(e, Call) and e.fn == "select":
        condition, *values = e.args
        for zero, other, where in ((values[0], values[1], True), (values[1], values[0], False)):
            inner = softmax_row(other, axis)
            if _is_zero(zero) and inner is not None and axis.var not in free_symbols(condition):
                return replace(inner, unless=((condition, where), *inner.unless))
        return None
    scores = _quotient(e, axis)
    return None if scores is None else SoftmaxRow(scores)


def _is_zero(e: Expr) -> bool:
    e = strip_casts(e)
    return isinstance(e, Const) and e.value == 0


def _quotient(quotient: Expr, axis: Axis) -> Expr | None:
    """s of a softmax along the axis."""
    if not (isinstance(quotient, Call) and quotient.fn == "div"):
        return None
    power, total = map(strip_casts, quotient.args)
    scores = _below_the_maximum(power, axis)
    if scores is None or not _along(total, "sum", axis):
        return None
    assert isinstance(total, Reduce)
    own = Axis(total.axes[0].var, axis.extent)
    again = _below_the_maximum(strip_casts(total.body), own)
    return scores if again is not None and _same(again, own, scores, axis) else None


def _below_the_maximum(e: Expr, axis: Axis) -> Expr | None:
    """s of exp(s - max s)."""
    if not (isinstance(e, Call) and e.fn == "exp" and e.dtype.is_float):
        return None
    difference = strip_casts(e.args[0])
    if not (isinstance(difference, Call) and difference.fn == "sub"):
        return None
    s, most = map(strip_casts, difference.args)
    if not _along(most, "max", axis):
        return None
    assert isinstance(most, Reduce)
    return s if _same(strip_casts(most.body), most.axes[0], s, axis) else None


def _along(e: Expr, kind: str, axis: Axis) -> bool:
    return isinstance(e, Reduce) and e.kind == kind and [a.extent for a in e.axes] == [axis.extent]


def _same(a: Expr, mine: Axis, b: Expr, axis: Axis) -> bool:
    """Whether two expressions are equal, each at its own axis' element."""
    return alpha(rename_vars_expr(a, {mine.var: axis.var})) == alpha(b)


__all__ = ["SoftmaxRow", "softmax_row"]
