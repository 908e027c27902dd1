"""Graph -> Graph: activations and softmax that exporters spell out become one op each."""

from __future__ import annotations

import math

import numpy as np

from smelt.core.ir.graph import Node, Ref
from smelt.core.passes.affine import AFFINE_RULES
from smelt.core.passes.constants import close, ints_of, splat, whole
from smelt.core.passes.editor import Editor
from smelt.core.passes.norms import NORM_RULES
from smelt.core.passes.products import factors, logistic_denominator, negated, plus
from smelt.core.passes.rules import Rule, rule, rule_pass

# ---------------------------------------------------------------- sigmoid and its kin


@rule("div", "reciprocal")
def _sigmoid(g: Editor, n: Node) -> Ref | None:
    # 1 / (1 + exp(-x))  -->  sigmoid(x);  x / (1 + exp(-x))  -->  silu(x)
    x = logistic_denominator(g, n.inputs[-1])
    if x is None:
        return None
    if n.op == "reciprocal" or (splat(g, n.inputs[0]) == 1 and whole(g, x, n)):
        return g.emit("sigmoid", (x,))
    return g.emit("silu", (x,)) if n.inputs[0] == x else None


def _other(n: Node, ref: Ref) -> Ref | None:
    """The operand of a binary node that is not ref."""
    a, b = n.inputs
    return b if a == ref else a if b == ref else None


@rule("mul")
def _silu(g: Editor, n: Node) -> Ref | None:
    # x * sigmoid(x)  -->  silu(x)
    for r in n.inputs:
        s = g.made_by(r, "sigmoid")
        if s is not None and _other(n, r) == s.inputs[0]:
            return g.emit("silu", s.inputs)
    return None


@rule("log")
def _softplus(g: Editor, n: Node) -> Ref | None:
    # log(1 + exp(x))  -->  softplus(x)
    inner = plus(g, n.inputs[0], 1.0)
    e = None if inner is None else g.made_by(inner, "exp")
    return None if e is None else g.emit("softplus", e.inputs)


@rule("mul")
def _mish(g: Editor, n: Node) -> Ref | None:
    # x * tanh(softplus(x))  -->  mish(x)
    for r in n.inputs:
        t = g.made_by(r, "tanh")
        s = None if t is None else g.made_by(t.inputs[0], "softplus")
        if s is not None and _other(n, r) == s.inputs[0]:
            return g.emit("mish", s.inputs)
    return None


# ---------------------------------------------------------------- clips and what hides in them


@rule("min")
def _clip(g: Editor, n: Node) -> Ref | None:
    # min(max(x, a), b)  -->  clip(x, a, b);  min(relu(x), b)  -->  clip(x, 0, b)
    high = splat(g, n.inputs[1])
    inner = g.made_by(n.inputs[0], "max", "relu")
    if high is None or inner is None or not whole(g, inner.inputs[0], n):
        return None
    low = 0 if inner.op == "relu" else splat(g, inner.inputs[1])
    if low is None:
        return None
    x = inner.inputs[0]
    return g.emit("clip", (x, g.like(low, x), g.like(high, x)))


def _limits(g: Editor, n: Node) -> tuple[float, float] | None:
    """The constant limits of a clip with both."""
    if len(n.inputs) < 3 or not (n.inputs[1] and n.inputs[2]):
        return None
    low, high = splat(g, n.inputs[1]), splat(g, n.inputs[2])
    return None if low is None or high is None else (float(low), float(high))


@rule("clip")
def _hard_sigmoid(g: Editor, n: Node) -> Ref | None:
    # clip(x * a + b, 0, 1)  -->  hard_sigmoid(x, a, b)
    if _limits(g, n) != (0.0, 1.0) or not n.output.type.dtype.is_float:
        return None
    total = g.made_by(n.inputs[0], "add")
    beta = None if total is None else splat(g, total.inputs[1])
    if total is None or beta is None:
        return None
    alpha, rest = factors(g, total.inputs[0])
    if len(rest) != 1 or not whole(g, rest[0], n):
        return None
    return g.emit("hard_sigmoid", rest, {"alpha": alpha, "beta": float(beta)})


@rule("mul", "div")
def _hard_sigmoid_scaled(g: Editor, n: Node) -> Ref | None:
    # clip(x + c, 0, h) / h  -->  hard_sigmoid(x, 1/h, c/h)
    scale, rest = factors(g, n.outputs[0].name)
    found = None if len(rest) != 1 else _ramp(g, rest[0])
    if found is None:
        return None
    x, c, h = found
    if not close(scale, 1 / h) or not whole(g, x, n):
        return None
    return g.emit("hard_sigmoid", (x,), {"alpha": 1 / h, "beta": c / h})


def _ramp(g: Editor, ref: Ref) -> tuple[Ref, float, float] | None:
    """(x, c, h) where ref is clip(x + c, 0, h)."""
    n = g.made_by(ref, "clip")
    limits = None if n is None else _limits(g, n)
    total = None if n is None else g.made_by(n.inputs[0], "add")
    if limits is None or total is None or limits[0] != 0.0 or limits[1] <= 0.0:
        return None
    c = splat(g, total.inputs[1])
    return None if c is None else (total.inputs[0], float(c), limits[1])


@rule("mul", "div")
def _hard_swish(g: Editor, n: Node) -> Ref | None:
    # x * clip(x + 3, 0, 6) / 6  -->  hard_swish(x), the constants anywhere
    scale, rest = factors(g, n.outputs[0].name)
    for r in rest:
        found = _ramp(g, r)
        if found is None or found[1:] != (3.0, 6.0) or not close(scale, 1 / 6):
            continue
        x = found[0]
        if _is_product(g, n.outputs[0].name, (x, r)) and whole(g, x, n):
            return g.emit("hard_swish", (x,))
    return None


@rule("mul")
def _hard_swish_of_sigmoid(g: Editor, n: Node) -> Ref | None:
    # x * hard_sigmoid(x, 1/6, 1/2)  -->  hard_swish(x)
    for r in n.inputs:
        s = g.made_by(r, "hard_sigmoid")
        if s is None or _other(n, r) != s.inputs[0]:
            continue
        if close(s.attr("alpha"), 1 / 6, 1e-3) and close(s.attr("beta"), 0.5):
            return g.emit("hard_swish", s.inputs)
    return None


def _is_product(g: Editor, ref: Ref, wanted: tuple[Ref, ...]) -> bool:
    """Whether ref is a constant times exactly these factors."""
    _, rest = factors(g, ref, stop=wanted)
    return sorted(rest) == sorted(wanted)


# ---------------------------------------------------------------- gelu


@rule("mul", "div")
def _gelu_erf(g: Editor, n: Node) -> Ref | None:
    # 0.5 * x * (1 + erf(x / sqrt(2)))  -->  gelu(x), the constants anywhere
    y = n.outputs[0].name
    _, leaves = factors(g, y)
    for term in leaves:
        found = _one_plus(g, term, "erf")
        if found is None:
            continue
        half, u = found
        x = _scaled(g, u, math.sqrt(0.5), leaves, y, term)
        if x is None or not whole(g, x, n):
            continue
        scale, _ = factors(g, y, stop=(x, term))
        if close(scale, 0.5 / half) and _is_product(g, y, (x, term)):
            return g.emit("gelu", (x,), {"approximate": "none"})
    return None


def _one_plus(g: Editor, ref: Ref, fn: str) -> tuple[float, Ref] | None:
    """(c, u) where ref is c * (1 + fn(u)): 1 + erf(u), or 0.5 + 0.5 * erf(u)."""
    total = g.made_by(ref, "add")
    c = None if total is None else splat(g, total.inputs[1])
    if total is None or not c:
        return None
    scale, rest = factors(g, total.inputs[0])
    inner = g.made_by(rest[0], fn) if len(rest) == 1 else None
    return None if inner is None or not close(scale, float(c)) else (float(c), inner.inputs[0])


def _scaled(g: Editor, u: Ref, scale: float, leaves: list[Ref], y: Ref, term: Ref) -> Ref | None:
    """x where u is scale * x and x is a factor of y."""
    n = g.maker(u)
    for candidate in (n.inputs if n is not None and n.op in ("mul", "div") else ()):
        if splat(g, candidate) is None:
            c, rest = factors(g, u, stop=(candidate,))
            if rest == [candidate] and close(c, scale):
                return candidate
    c, rest = factors(g, u)
    return rest[0] if len(rest) == 1 and close(c, scale) else None


@rule("mul", "div")
def _gelu_tanh(g: Editor, n: Node) -> Ref | None:
    # 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))  -->  gelu(x, tanh)
    y = n.outputs[0].name
    _, leaves = factors(g, y)
    for term in leaves:
        found = _one_plus(g, term, "tanh")
        if found is None:
            continue
        half, u = found
        x = _tanh_argument(g, u)
        if x is None or not whole(g, x, n):
            continue
        scale, _ = factors(g, y, stop=(x, term))
        if close(scale, 0.5 / half) and _is_product(g, y, (x, term)):
            return g.emit("gelu", (x,), {"approximate": "tanh"})
    return None


def _tanh_argument(g: Editor, u: Ref) -> Ref | None:
    """x where u is sqrt(2/pi) * (x + 0.044715 x^3), or sqrt(2/pi) * x * (1 + 0.044715 x^2)."""
    scale, rest = factors(g, u)
    if not close(scale, math.sqrt(2 / math.pi)):
        return None
    if len(rest) == 1:
        total = g.made_by(rest[0], "add")
        for x, cubic in (total.inputs, total.inputs[::-1]) if total is not None else ():
            if _power(g, cubic, x, 3):
                return x
        return None
    for term in rest:
        inner = plus(g, term, 1.0)
        for x in rest:
            if inner is not None and x != term and _power(g, inner, x, 2):
                _, exact = factors(g, u, stop=(x, term))
                return x if sorted(exact) == sorted((x, term)) else None
    return None


def _power(g: Editor, ref: Ref, x: Ref, exponent: int) -> bool:
    """Whether ref is 0.044715 * x ** exponent."""
    scale, rest = factors(g, ref, stop=(x,))
    count = 0
    for r in rest:
        p = g.made_by(r, "pow")
        e = None if p is None else splat(g, p.inputs[1])
        if r == x:
            count += 1
        elif p is not None and p.inputs[0] == x and e is not None and float(e) == int(e):
            count += int(e)
        else:
            return False
    return count == exponent and close(scale, 0.044715)


# ---------------------------------------------------------------- softmax


@rule("div")
def _softmax(g: Editor, n: Node) -> Ref | None:
    # exp(x - max(x)) / sum(exp(x - max(x)))  -->  softmax(x), with or without the maximum
    e, s = g.made_by(n.inputs[0], "exp"), g.made_by(n.inputs[1], "reduce_sum")
    if e is None or s is None or s.inputs[0] != n.inputs[0] or not s.attrs["keepdims"]:
        return None
    axes = ints_of(s.attrs["axes"])
    if len(axes) != 1:
        return None
    return g.emit("softmax", (_unshifted(g, e.inputs[0], axes[0]),), {"axis": axes[0]})


def _unshifted(g: Editor, ref: Ref, axis: int) -> Ref:
    """x where ref is x - max(x) along the axis, else ref itself."""
    d = g.made_by(ref, "sub")
    top = None if d is None else g.made_by(d.inputs[1], "reduce_max")
    if d is None or top is None or top.inputs[0] != d.inputs[0]:
        return ref
    plain = bool(top.attrs["keepdims"]) and ints_of(top.attrs["axes"]) == (axis,)
    return d.inputs[0] if plain else ref


@rule("log")
def _log_softmax(g: Editor, n: Node) -> Ref | None:
    # log(softmax(x))  -->  log_softmax(x)
    inner = g.made_by(n.inputs[0], "softmax")
    return None if inner is None else g.emit("log_softmax", inner.inputs, inner.attrs)


@rule("sub")
def _log_softmax_spelt(g: Editor, n: Node) -> Ref | None:
    # (x - max(x)) - log(sum(exp(x - max(x))))  -->  log_softmax(x)
    total = g.made_by(n.inputs[1], "log")
    s = None if total is None else g.made_by(total.inputs[0], "reduce_sum")
    e = None if s is None else g.made_by(s.inputs[0], "exp")
    if s is None or e is None or e.inputs[0] != n.inputs[0] or not s.attrs["keepdims"]:
        return None
    axes = ints_of(s.attrs["axes"])
    if len(axes) != 1:
        return None
    return g.emit("log_softmax", (_unshifted(g, e.inputs[0], axes[0]),), {"axis": axes[0]})


@rule("sigmoid")
def _negated_logistic(g: Editor, n: Node) -> Ref | None:
    # sigmoid(-(-x))  -->  sigmoid(x)
    x = negated(g, n.inputs[0])
    inner = None if x is None else negated(g, x)
    return None if inner is None else g.emit("sigmoid", (inner,))


@rule("where")
def _where_infinite(g: Editor, n: Node) -> Ref | None:
    # where(c, a, b) with equal constants  -->  the constant
    a, b = splat(g, n.inputs[1]), splat(g, n.inputs[2])
    if a is None or b is None or not n.output.type.dtype.is_float:
        return None
    same = bool(np.array_equal(np.asarray(a), np.asarray(b)))
    return n.inputs[1] if same and whole(g, n.inputs[1], n) else None


RULES: tuple[Rule, ...] = (
    _sigmoid, _silu, _softplus, _mish, _clip, _hard_sigmoid, _hard_swish, _hard_swish_of_sigmoid,
    _hard_sigmoid_scaled, _gelu_erf, _gelu_tanh, _softmax, _log_softmax, _log_softmax_spelt,
    _negated_logistic, _where_infinite, *NORM_RULES, *AFFINE_RULES,
)

patterns = rule_pass(RULES)
