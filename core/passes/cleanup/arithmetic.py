"""Rules of arithmetic: constants go right, identities vanish, powers become products and roots."""

from __future__ import annotations

import math

import numpy as np

from smelt.core.ir.graph import Node, Ref
from smelt.core.passes.numerics import EXACT, REASSOCIATE, ROUNDING
from smelt.core.passes.rewriting.constants import COMMUTATIVE, ints_of, is_one, same_number, splat, whole
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule


@rule(*sorted(COMMUTATIVE), kind=EXACT, forms=[
    "x: f32[N, 4]; c: f32[4] = draw; add(c, x)",
    "x: i32[N]; c: i32[] = 3; max(c, x)",
])
def _constants_right(g: Editor, n: Node) -> Ref | None:
    # c + x  -->  x + c
    a, b = n.inputs
    return g.emit(n.op, (b, a), n.attrs) if g.is_weight(a) and not g.is_weight(b) else None


@rule("less", "less_equal", "greater", "greater_equal", kind=EXACT, forms=[
    "x: f32[N, 4]; c: f32[4] = draw; less(c, x)",
    "x: i64[N]; greater_equal(2, x)",
])
def _comparisons_right(g: Editor, n: Node) -> Ref | None:
    # c < x  -->  x > c
    a, b = n.inputs
    if not g.is_weight(a) or g.is_weight(b):
        return None
    turned = n.op.replace("less", "#").replace("greater", "less").replace("#", "greater")
    return g.emit(turned, (b, a), n.attrs)


_NEUTRAL = {"add": -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0, "pow": 1.0}


@rule(*_NEUTRAL, kind=EXACT, forms=[
    "x: f32[N, 4]; add(x, -0.0)",
    "x: f32[N, 4]; mul(x, 1.0)",
    "x: i32[N, 4]; c: i32[4] = 0; add(x, c)",
    "x: f32[N, 4]; c: f32[4] = 0.0; add(reduce_sum(x, axes=(0,), keepdims=True), c)",
    "x: f32[N, 4]; add(transpose(add(exp(x), x), perm=(1, 0)), 0.0)",
])
def _neutral(g: Editor, n: Node) -> Ref | None:
    # x + -0, x - 0, x * 1, x / 1, x ** 1  -->  x;  x + 0, which makes 0 of -0, only where x is no -0
    x, c = n.inputs[0], splat(g, n.inputs[1])
    if c is None or not whole(g, x, n) or c != _NEUTRAL[n.op]:
        return None
    if len({g.type_of(r).dtype for r in n.inputs}) > 1 and not g.type_of(x).dtype.is_float:
        return None  # integers to a power of floats are floats between, which hold no 2^53 + 1
    same = same_number(c, _NEUTRAL[n.op]) or not g.type_of(x).dtype.is_float
    return x if same or _unlike_minus_zero(g, x) else None


def _unlike_minus_zero(g: Editor, ref: Ref, depth: int = 10, taken: frozenset[Ref] = frozenset()) -> bool:
    """Whether a float value is never -0: sums begin with 0, and only -0 + -0 and -0 - 0 are -0. No sums of
    products: they may be fused, and -1e-30 * 1e-30 + 0, rounded once, is -0.
    taken: values that a loop carries, which are not -0 before the loop: if no round makes one, none is."""
    n, array = g.maker(ref), g.array(ref)
    if ref in taken:
        return True
    if array is not None:
        return array.size <= 1 << 16 and not bool(np.any((array == 0) & np.signbit(array)))
    if n is None and g.around is not None and depth > 0:
        states = g.carried(ref)
        if states is None:
            return g.is_outside(ref) and _unlike_minus_zero(g.around[0], ref, depth - 1)
        before, after = states
        return _unlike_minus_zero(g.around[0], before, depth - 1) and _unlike_minus_zero(
            g, after, depth - 1, taken | {ref}
        )
    if n is None or depth == 0 or n.output.type.dtype.bits < 32:  # -1e-9 is -0 in 16 bits
        return False
    if positive(g, ref) or (n.op == "reduce_sum" and _sums_as_stored(g, n)):
        return True
    if n.op == "add":
        return any(_unlike_minus_zero(g, r, depth - 1, taken) for r in n.inputs)
    picked = n.inputs[:1] if n.op == "sub" else _picked(g, n)
    return bool(picked) and all(_unlike_minus_zero(g, r, depth - 1, taken) for r in picked)


ZERO_KEEPING = frozenset({"tanh"})
"""Intrinsics that make -0 of nothing but -0."""


def _picked(g: Editor, n: Node) -> tuple[Ref, ...]:
    """The operands of which each element of the value is one, as it is or under ZERO_KEEPING, or a 0; none
    where some is not."""
    trait = g.trait(n)
    if trait.moved is not None:
        return (n.inputs[trait.moved],)
    keeps = trait.known and not trait.heavy and trait.work.keys() <= ZERO_KEEPING
    if not keeps and (n.op != "scatter_elements" or n.attr("reduction", "none") != "none"):
        return ()
    dtype = n.output.type.dtype
    floats = tuple(r for r in n.inputs if r and g.type_of(r).dtype.is_float)
    return floats if all(g.type_of(r).dtype == dtype for r in floats) else ()  # -1e-50 is a -0 of 32 bits


def _sums_as_stored(g: Editor, n: Node) -> bool:
    """Whether a sum has several terms (one alone is added to no 0), which no formula makes: it could be a
    product."""
    ref = n.inputs[0]
    if all(is_one(g.shape(ref)[a]) for a in ints_of(n.attrs["axes"])):
        return False
    while (maker := g.maker(ref)) is not None:
        moved = g.trait(maker).moved
        if moved is None:
            return False
        ref = maker.inputs[moved]
    return True


@rule("sub", kind=EXACT, forms=[
    "x: f32[N, 4]; c: f32[4] = draw; sub(x, c)",
    "x: u8[N]; sub(x, 3)",
])
def _sub_constant(g: Editor, n: Node) -> Ref | None:
    # x - c  -->  x + (-c)
    x, c = n.inputs
    array = g.array(c)
    if array is None or g.is_weight(x) or array.nbytes > 1 << 20:
        return None
    with np.errstate(all="ignore"):
        return g.emit("add", (x, g.constant(np.negative(array))))


@rule("div", kind=EXACT, forms=["x: f32[N, 4]; div(x, 4.0)"])
def _div_power_of_two(g: Editor, n: Node) -> Ref | None:
    # x / c  -->  x * (1 / c)  where 1 / c is exact: c a power of two
    x, c = n.inputs
    array = g.array(c)
    if array is None or g.is_weight(x) or not g.type_of(x).dtype.is_float or array.size > 4096:
        return None
    mantissa, exponent = np.frexp(np.abs(array.astype(np.float64)))
    if not bool(np.all((mantissa == 0.5) & (np.abs(exponent) < 14))):
        return None
    return g.emit("mul", (x, g.constant(np.reciprocal(array))))


def _chained(g: Editor, n: Node, floats: bool) -> Ref | None:
    """(x + c) + d as x + (c + d), (x * c) * d as x * (c * d), for floats or for all other numbers."""
    inner = g.made_by(n.inputs[0], n.op)
    if inner is None or g.uses(n.inputs[0]) > 1 or n.output.type.dtype.is_float is not floats:
        return None
    c, d = g.array(inner.inputs[1]), g.array(n.inputs[1])
    if c is None or d is None or g.is_weight(inner.inputs[0]):
        return None
    if max(c.size, d.size) > 1 << 16:
        return None
    with np.errstate(all="ignore"):
        both = np.asarray((np.add if n.op == "add" else np.multiply)(c, d), c.dtype)
    if both.size > max(c.size, d.size):
        return None
    if floats and not bool(np.all(np.isfinite(both) & ((both != 0) | (c == 0) | (d == 0) | (n.op == "add")))):
        return None  # 0 times the inf that 1e20 * 1e20 is would be NaN
    return g.emit(n.op, (inner.inputs[0], g.constant(both)))


@rule("add", "mul", kind=EXACT, forms=[
    "x: i32[N, 4]; c: i32[4] = draw; add(add(x, 3), c)",
    "x: i64[N]; mul(mul(x, 3), 5)",
])
def _constant_chain(g: Editor, n: Node) -> Ref | None:
    # (x + c) + d  -->  x + (c + d);  (x * c) * d  -->  x * (c * d), of integers, which wrap
    return _chained(g, n, floats=False)


@rule("add", "mul", kind=REASSOCIATE, forms=[
    "x: f32[N, 4]; c: f32[4] = draw; add(add(x, 0.3), c)",
    "x: f32[N]; mul(mul(x, 0.3), 0.7)",
])
def _constant_chain_float(g: Editor, n: Node) -> Ref | None:
    # the same of floats: (x + 1e8) - 1e8 rounds x, (x * 1e30) * 1e30 may be infinite
    return _chained(g, n, floats=True)


@rule("pow", kind=ROUNDING, forms=[
    "x: f32[N, 4]; pow(x, 2.0)",
    "x: f32[N, 4]; pow(x, 3.0)",
    "x: f32[N, 4]; pow(x, -1.0)",
    "x: i32[N]; pow(x, 2)",
])
def _pow_small(g: Editor, n: Node) -> Ref | None:
    # x ** 2  -->  x * x;  x ** 3  -->  x * x * x;  x ** -1  -->  reciprocal(x)
    x, c = n.inputs[0], splat(g, n.inputs[1])
    if c is None or not whole(g, x, n) or g.type_of(x).dtype.category == "bool":
        return None
    if c == 2:  # of integers whatever the type of the 2: ONNX Runtime multiplies too
        return g.emit("mul", (x, x))
    if not g.type_of(x).dtype.is_float:
        return None
    if c == 3:
        return g.emit("mul", (g.emit("mul", (x, x)), x))
    return g.emit("reciprocal", (x,)) if c == -1 else None


@rule("pow", kind=ROUNDING, forms=[
    "x: f32[N, 4]; pow(x, 0.5)",
    "x: f32[N, 4]; pow(mul(x, x), 0.5)",
    "x: f32[N, 4]; pow(add(exp(x), 1.0), -0.5)",
])
def _pow_half(g: Editor, n: Node) -> Ref | None:
    # x ** 0.5  -->  sqrt(x), x ** -0.5  -->  reciprocal(sqrt(x)) where x is no -0 and no -inf, whose power
    # is 0 or inf; else  where(x == -inf, inf, sqrt(x + 0)):  a power takes ten times as long
    x, c = n.inputs[0], splat(g, n.inputs[1])
    if c not in (0.5, -0.5) or not g.type_of(x).dtype.is_float or not whole(g, x, n):
        return None
    if not positive(g, x):
        if c < 0:
            return None
        root = g.emit("sqrt", (g.emit("add", (x, g.like(0.0, x))),))
        lowest = g.emit("equal", (x, g.like(-math.inf, x)))
        return g.emit("where", (lowest, g.like(math.inf, x), root))
    root = g.emit("sqrt", (x,))
    return root if c > 0 else g.emit("reciprocal", (root,))


def positive(g: Editor, ref: Ref, depth: int = 6) -> bool:
    """Whether a float value is NaN or at least +0."""
    n = g.maker(ref)
    array = g.array(ref)
    if array is not None:
        return array.size <= 4096 and not bool(np.any((array < 0) | np.signbit(array)))
    if n is None or depth == 0:
        return False
    if n.op == "mul" and n.inputs[0] == n.inputs[1]:
        return True
    if n.op in ("exp", "sigmoid", "softmax", "abs", "reduce_l1", "reduce_l2", "reduce_sum_square"):
        return True
    moved = g.trait(n).moved
    if moved is not None:
        return positive(g, n.inputs[moved], depth - 1)
    through = ("add", "mul", "div", "sqrt", "reduce_mean", "reduce_sum")
    return n.op in through and all(positive(g, r, depth - 1) for r in n.inputs)


@rule("neg", "not", "bit_not", kind=EXACT, forms=[
    "x: f32[N]; neg(neg(x))",
    "x: bool[N]; not_(not_(x))",
    "x: i32[N]; bit_not(bit_not(x))",
])
def _twice(g: Editor, n: Node) -> Ref | None:
    # -(-x)  -->  x;  not not x  -->  x
    inner = g.made_by(n.inputs[0], n.op)
    return None if inner is None else inner.inputs[0]


@rule("relu", "abs", "floor", "ceil", "round", "sign", kind=EXACT, forms=[
    "x: f32[N]; relu(relu(x))",
    "x: f32[N]; round(round(x))",
])
def _idempotent(g: Editor, n: Node) -> Ref | None:
    # relu(relu(x))  -->  relu(x)
    return n.inputs[0] if g.made_by(n.inputs[0], n.op) is not None else None


@rule("max", kind=EXACT, forms=["x: f32[N, 4]; max(x, 0.0)"])
def _max_zero(g: Editor, n: Node) -> Ref | None:
    # max(x, 0)  -->  relu(x)
    zero = splat(g, n.inputs[1])
    return g.emit("relu", n.inputs[:1]) if _is_zero(zero) and whole(g, n.inputs[0], n) else None


def _is_zero(c: float | int | bool | None) -> bool:
    """0, but not -0: the greater one of -0 and -0 is -0."""
    return c is not None and same_number(c, 0.0)


@rule("clip", kind=EXACT, forms=["x: f32[N]; clip(x, 0.0, inf)", "x: f32[N]; clip(x, -inf)"])
def _clip_open(g: Editor, n: Node) -> Ref | None:
    # clip(x, -inf, inf)  -->  x;  clip(x, 0, inf)  -->  relu(x)
    low = splat(g, n.inputs[1]) if len(n.inputs) > 1 and n.inputs[1] else -math.inf
    high = splat(g, n.inputs[2]) if len(n.inputs) > 2 and n.inputs[2] else math.inf
    if high != math.inf or low is None or not whole(g, n.inputs[0], n):
        return None
    if low == -math.inf:
        return n.inputs[0]
    return g.emit("relu", n.inputs[:1]) if _is_zero(low) else None


@rule("where", kind=EXACT, forms=["c: bool[4] = True; x: f32[N, 4]; y: f32[N, 4]; where(c, x, y)"])
def _where_constant(g: Editor, n: Node) -> Ref | None:
    # where(true, a, b)  -->  a;  where(false, a, b)  -->  b
    c = splat(g, n.inputs[0])
    if c is None:
        return None
    chosen = n.inputs[1] if c else n.inputs[2]
    return chosen if whole(g, chosen, n) else None


ARITHMETIC_RULES: tuple[Rule, ...] = (
    _constants_right, _comparisons_right, _neutral, _sub_constant, _div_power_of_two, _constant_chain,
    _constant_chain_float, _pow_small, _pow_half, _twice, _idempotent, _max_zero, _clip_open, _where_constant,
)
