"""Products and sums as exporters scatter them: taken apart, so that patterns need not care for the order."""

from __future__ import annotations

from collections.abc import Collection

from smelt.core.ir.graph import Ref
from smelt.core.passes.rewriting.constants import ints_of, splat
from smelt.core.passes.rewriting.editor import Editor


def product_factors(
    g: Editor, ref: Ref, stop: Collection[Ref] = (), depth: int = 8
) -> tuple[float, list[Ref]]:
    """ref as (constant, other factors), through products and divisions by constants; a ref in `stop` is
    not taken apart.

    # 0.5 * x * (1 + erf(u))  -->  0.5, [x, 1 + erf(u)]
    """
    c = splat(g, ref)
    if c is not None and not isinstance(c, bool):
        return float(c), []
    if ref not in stop and depth > 0:
        product = g.made_by(ref, "mul")
        if product is not None:
            a, xs = product_factors(g, product.inputs[0], stop, depth - 1)
            b, ys = product_factors(g, product.inputs[1], stop, depth - 1)
            return a * b, xs + ys
        ratio = g.made_by(ref, "div")
        if ratio is not None:
            d = splat(g, ratio.inputs[1])
            if d:
                a, xs = product_factors(g, ratio.inputs[0], stop, depth - 1)
                return a / float(d), xs
    return 1.0, [ref]


def plus_one(g: Editor, ref: Ref) -> Ref | None:
    """x where ref is x + 1, of x's shape."""
    total = g.made_by(ref, "add")
    if total is None or splat(g, total.inputs[1]) != 1 or g.type_of(total.inputs[0]) != g.type_of(ref):
        return None
    return total.inputs[0]


def negated(g: Editor, ref: Ref) -> Ref | None:
    """x where ref is -x, of x's shape."""
    n = g.made_by(ref, "neg")
    if n is not None:
        return n.inputs[0]
    n = g.made_by(ref, "mul")
    if n is None or splat(g, n.inputs[1]) != -1 or g.type_of(n.inputs[0]) != g.type_of(ref):
        return None
    return n.inputs[0]


def logistic_denominator(g: Editor, ref: Ref) -> Ref | None:
    """x where ref is 1 + exp(-x)."""
    inner = plus_one(g, ref)
    e = None if inner is None else g.made_by(inner, "exp")
    return None if e is None else negated(g, e.inputs[0])


def inverse_root(g: Editor, ref: Ref) -> Ref | None:
    """x where ref is 1 / sqrt(x): reciprocal(sqrt(x)), 1 / sqrt(x), sqrt(reciprocal(x)), x ** -0.5."""
    n = g.maker(ref)
    if n is None:
        return None
    root: Ref | None = None
    if n.op == "reciprocal" or (n.op == "div" and splat(g, n.inputs[0]) == 1):
        root = n.inputs[-1]
    if root is not None:
        inner = g.made_by(root, "sqrt")
        return None if inner is None else inner.inputs[0]
    if n.op == "pow" and splat(g, n.inputs[1]) == -0.5:
        return n.inputs[0]
    return None


def square_root(g: Editor, ref: Ref) -> Ref | None:
    """x where ref is sqrt(x)."""
    n = g.made_by(ref, "sqrt")
    return None if n is None else n.inputs[0]


def squared(g: Editor, ref: Ref) -> Ref | None:
    """x where ref is x * x (x ** 2 is spelt so before)."""
    n = g.made_by(ref, "mul")
    if n is not None and n.inputs[0] == n.inputs[1]:
        return n.inputs[0]
    n = g.made_by(ref, "pow")
    return n.inputs[0] if n is not None and splat(g, n.inputs[1]) == 2 else None


def mean_over(g: Editor, ref: Ref) -> tuple[Ref, tuple[int, ...]] | None:
    """(x, axes) where ref is the mean of x over these axes, kept as 1."""
    n = g.made_by(ref, "reduce_mean")
    if n is None or not n.attrs["keepdims"]:
        return None
    return n.inputs[0], ints_of(n.attrs["axes"])


def trailing(axes: tuple[int, ...], rank: int) -> int | None:
    """The first of the axes when they are the last ones without a gap."""
    found = sorted(axes)
    return found[0] if found and found == list(range(found[0], rank)) else None
