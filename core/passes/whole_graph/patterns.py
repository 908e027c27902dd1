"""Graph -> Graph: activations and softmax that exporters spell out become one op each; with the rules for
norms, factors, batches and pools."""

from __future__ import annotations

import math
from functools import partial

from smelt.core.dtype import f16, finfo
from smelt.core.ir.graph import Node, Ref
from smelt.core.passes.numerics import CONSTANTS, EXACT, OVERFLOW, REASSOCIATE, ROUNDING
from smelt.core.passes.rewriting.constants import ints_of, same_number, splat, whole, written_as
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule, rule_pass
from smelt.core.passes.whole_graph.affine import AFFINE_RULES
from smelt.core.passes.whole_graph.batched import BATCHED_RULES
from smelt.core.passes.whole_graph.norms import NORM_RULES
from smelt.core.passes.whole_graph.pools import POOL_RULES
from smelt.core.passes.whole_graph.products import logistic_denominator, negated, plus_one, product_factors

# ---------------------------------------------------------------- sigmoid and its kin
# An op of 16 bits rounds once, what it is spelt of rounds at each step.


@rule("div", "reciprocal", kind=ROUNDING, forms=[
    "x: f32[N, 4]; div(1.0, add(exp(neg(x)), 1.0))",
    "x: f32[N, 4]; reciprocal(add(exp(neg(x)), 1.0))",
])
def _sigmoid(g: Editor, n: Node) -> Ref | None:
    # 1 / (1 + exp(-x))  -->  sigmoid(x); not of halves, as below
    x = logistic_denominator(g, n.inputs[-1])
    if x is None:
        return None
    one = n.op == "reciprocal" or splat(g, n.inputs[0]) == 1
    return g.emit("sigmoid", (x,)) if one and whole(g, x, n) and g.type_of(x).dtype != f16 else None


@rule("div", kind=ROUNDING, forms=["x: f32[N, 4]; div(x, add(exp(neg(x)), 1.0))"])
def _silu_spelt(g: Editor, n: Node) -> Ref | None:
    # x / (1 + exp(-x))  -->  silu(x); not of halves, where 1 / (1 + exp(11)) has lost bits already
    x = logistic_denominator(g, n.inputs[1])
    return g.emit("silu", (x,)) if x == n.inputs[0] and g.type_of(x).dtype != f16 else None


def _other(n: Node, ref: Ref) -> Ref | None:
    """The operand of a binary node that is not ref."""
    a, b = n.inputs
    return b if a == ref else a if b == ref else None


@rule("mul", kind=ROUNDING, forms=["x: f32[N, 4]; mul(x, sigmoid(x))"])
def _silu(g: Editor, n: Node) -> Ref | None:
    # x * sigmoid(x)  -->  silu(x)
    for r in n.inputs:
        s = g.made_by(r, "sigmoid")
        if s is not None and _other(n, r) == s.inputs[0]:
            return g.emit("silu", s.inputs)
    return None


@rule("log", kind=OVERFLOW, forms=["x: f32[N, 4]; log(add(exp(x), 1.0))"])
def _softplus(g: Editor, n: Node) -> Ref | None:
    # log(1 + exp(x))  -->  softplus(x), which is no infinity from 89 on
    inner = plus_one(g, n.inputs[0])
    e = None if inner is None else g.made_by(inner, "exp")
    return None if e is None else g.emit("softplus", e.inputs)


@rule("mul", kind=ROUNDING, forms=["x: f32[N, 4]; mul(x, tanh(softplus(x)))"])
def _mish(g: Editor, n: Node) -> Ref | None:
    # x * tanh(softplus(x))  -->  mish(x)
    for r in n.inputs:
        t = g.made_by(r, "tanh")
        s = None if t is None else g.made_by(t.inputs[0], "softplus")
        if s is not None and _other(n, r) == s.inputs[0]:
            return g.emit("mish", s.inputs)
    return None


# ---------------------------------------------------------------- clips and what hides in them


@rule("min", kind=EXACT, forms=[
    "x: f32[N, 4]; min(max(x, -1.0), 0.5)",
    "x: f32[N, 4]; min(relu(x), 6.0)",
    "x: i32[N]; min(max(x, -2), 3)",
])
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


@rule("clip", kind=ROUNDING, forms=["x: f32[N, 4]; clip(add(mul(x, 0.2), 0.5), 0.0, 1.0)"])
def _hard_sigmoid(g: Editor, n: Node) -> Ref | None:
    # clip(x * a + b, 0, 1)  -->  hard_sigmoid(x, a, b)
    if _limits(g, n) != (0.0, 1.0) or not n.output.type.dtype.is_float:
        return None
    total = g.made_by(n.inputs[0], "add")
    beta = None if total is None else splat(g, total.inputs[1])
    if total is None or beta is None or not math.isfinite(beta):
        return None
    product = g.made_by(total.inputs[0], "mul")
    alpha = None if product is None else splat(g, product.inputs[1])
    if product is None or alpha is None or not math.isfinite(alpha) or not whole(g, product.inputs[0], n):
        return None
    return g.emit("hard_sigmoid", product.inputs[:1], {"alpha": float(alpha), "beta": float(beta)})


@rule("div", kind=ROUNDING, forms=[
    "x: f32[N, 4]; div(mul(x, clip(add(x, 3.0), 0.0, 6.0)), 6.0)",
    "x: f32[N, 4]; div(clip(x, 0.0, 6.0), 6.0)",
])
def _ramp_by_constant(g: Editor, n: Node) -> Ref | None:
    # clip(..) / c  -->  clip(..) * (1 / c);  x * clip(..) / c  -->  x * clip(..) * (1 / c)
    r, c = n.inputs[0], splat(g, n.inputs[1])
    product = g.made_by(r, "mul")
    ramps = (r,) if product is None else product.inputs
    if c is None or not any(g.made_by(x, "clip") for x in ramps):
        return None
    return _by_reciprocal(g, n, float(c))


SMOOTH = ("erf", "tanh", "sigmoid", "exp")


@rule(*SMOOTH, kind=ROUNDING, forms=[
    "x: f32[N, 4]; erf(div(x, 1.4142135381698608))",
    "x: f32[N, 4]; tanh(div(x, 3.0))",
])
def _smooth_of_quotient(g: Editor, n: Node) -> Ref | None:
    # f(x / c)  -->  f(x * (1 / c)): a quotient takes ten times as long, and f does not jump
    ratio = g.made_by(n.inputs[0], "div")
    c = None if ratio is None or g.uses(n.inputs[0]) != 1 else splat(g, ratio.inputs[1])
    if ratio is None or c is None:
        return None
    made = _by_reciprocal(g, ratio, float(c))
    return None if made is None else g.emit(n.op, (made,), n.attrs)


def _by_reciprocal(g: Editor, n: Node, c: float) -> Ref | None:
    """x / c as x * (1 / c), where both c and 1 / c have all their bits."""
    t = n.output.type.dtype
    if not t.is_float or not whole(g, n.inputs[0], n) or c == 0 or not math.isfinite(c):
        return None
    tiny = float(finfo(t.numpy).tiny)
    if min(abs(c), abs(1 / c)) < tiny:
        return None
    return g.emit("mul", (n.inputs[0], g.like(1 / c, n.inputs[0])))


@rule("mul", "div", kind=REASSOCIATE, forms=["x: f32[N, 4]; div(clip(add(x, 3.0), 0.0, 6.0), 6.0)"])
def _hard_sigmoid_scaled(g: Editor, n: Node) -> Ref | None:
    # clip(x + c, 0, h) / h  -->  hard_sigmoid(x, 1/h, c/h)
    scale, rest = product_factors(g, n.outputs[0].name)
    found = None if len(rest) != 1 else _ramp(g, rest[0])
    if found is None or not n.output.type.dtype.is_float:
        return None
    x, c, h = found
    if not written_as(scale, 1 / h, n.output.type.dtype, 2) or not whole(g, x, n):
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
    if c is None or not all(map(math.isfinite, (float(c), limits[1]))):
        return None
    return total.inputs[0], float(c), limits[1]


@rule("mul", "div", kind=REASSOCIATE, forms=["x: f32[N, 4]; div(mul(x, clip(add(x, 3.0), 0.0, 6.0)), 6.0)"])
def _hard_swish(g: Editor, n: Node) -> Ref | None:
    # x * clip(x + 3, 0, 6) / 6  -->  hard_swish(x), the constants anywhere
    if not n.output.type.dtype.is_float:
        return None
    scale, rest = product_factors(g, n.outputs[0].name)
    for r in rest:
        found = _ramp(g, r)
        if found is None or found[1:] != (3.0, 6.0) or not written_as(scale, 1 / 6, n.output.type.dtype, 2):
            continue
        x = found[0]
        if _is_product(g, n.outputs[0].name, (x, r)) and whole(g, x, n):
            return g.emit("hard_swish", (x,))
    return None


def _hard_swish_of_sigmoid(g: Editor, n: Node, near: float) -> Ref | None:
    """x * hard_sigmoid(x, 1/6, 1/2) as hard_swish(x), which computes just that. near: how far from 1/6 and
    1/2 the constants may be, relatively."""
    for r in n.inputs:
        s = g.made_by(r, "hard_sigmoid")
        if s is None or _other(n, r) != s.inputs[0]:
            continue
        t = n.output.type.dtype
        alpha, beta = float(s.attr("alpha")), float(s.attr("beta"))
        same = near == 0 and t.numpy.type(alpha) == t.numpy.type(1 / 6) and beta == 0.5
        close = math.isclose(alpha, 1 / 6, rel_tol=near) and math.isclose(beta, 0.5, rel_tol=near)
        if same or (near > 0 and close):
            return g.emit("hard_swish", s.inputs)
    return None


NEAR = 1e-3
"""How far constants may be from those of a function where --fast-math constants says so."""
_SWISH_FORM = "x: f32[N, 4]; mul(x, hard_sigmoid(x, alpha={}, beta=0.5))"
_hard_swish_exact = Rule(
    "hard_swish_of_sigmoid", ("mul",), partial(_hard_swish_of_sigmoid, near=0), ROUNDING,
    (_SWISH_FORM.format("1 / 6"),),
)  # fmt: skip
_hard_swish_near = Rule(
    "hard_swish_near", ("mul",), partial(_hard_swish_of_sigmoid, near=NEAR), CONSTANTS,
    (_SWISH_FORM.format("0.1666"),),
)  # fmt: skip


def _is_product(g: Editor, ref: Ref, wanted: tuple[Ref, ...]) -> bool:
    """Whether ref is a constant times exactly these factors."""
    _, rest = product_factors(g, ref, stop=wanted)
    return sorted(rest) == sorted(wanted)


# ---------------------------------------------------------------- gelu


@rule("mul", "div", kind=REASSOCIATE, forms=[
    "x: f32[N, 4]; mul(mul(x, add(erf(div(x, 1.4142135381698608)), 1.0)), 0.5)",
])
def _gelu_erf(g: Editor, n: Node) -> Ref | None:
    # 0.5 * x * (1 + erf(x / sqrt(2)))  -->  gelu(x), the constants anywhere
    y = n.outputs[0].name
    _, leaves = product_factors(g, y)
    for term in leaves:
        found = _one_plus(g, term, "erf")
        if found is None:
            continue
        half, u = found
        x = _scaled(g, u, math.sqrt(0.5))
        if x is None or not whole(g, x, n):
            continue
        scale, _ = product_factors(g, y, stop=(x, term))
        if written_as(scale, 0.5 / half, n.output.type.dtype, 2) and _is_product(g, y, (x, term)):
            return g.emit("gelu", (x,), {"approximate": "none"})
    return None


def _one_plus(g: Editor, ref: Ref, fn: str) -> tuple[float, Ref] | None:
    """(c, u) where ref is c * (1 + fn(u)): 1 + erf(u), or 0.5 + 0.5 * erf(u)."""
    total = g.made_by(ref, "add")
    c = None if total is None else splat(g, total.inputs[1])
    if total is None or not c:
        return None
    scale, rest = product_factors(g, total.inputs[0])
    inner = g.made_by(rest[0], fn) if len(rest) == 1 else None
    return None if inner is None or scale != float(c) else (float(c), inner.inputs[0])


def _scaled(g: Editor, u: Ref, scale: float) -> Ref | None:
    """x where u is scale * x."""
    n = g.maker(u)
    for candidate in (n.inputs if n is not None and n.op in ("mul", "div") else ()):
        if splat(g, candidate) is None:
            c, rest = product_factors(g, u, stop=(candidate,))
            if rest == [candidate] and written_as(c, scale, g.type_of(u).dtype, 2):
                return candidate
    c, rest = product_factors(g, u)
    return rest[0] if len(rest) == 1 and written_as(c, scale, g.type_of(u).dtype, 2) else None


@rule("mul", "div", kind=REASSOCIATE, forms=[
    "x: f32[N, 4]; mul(mul(x, 0.5), add(tanh(mul(add(x, mul(pow(x, 3.0), 0.044715)), "
    "0.7978845834732056)), 1.0))",
])
def _gelu_tanh(g: Editor, n: Node) -> Ref | None:
    # 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))  -->  gelu(x, tanh)
    y = n.outputs[0].name
    _, leaves = product_factors(g, y)
    for term in leaves:
        found = _one_plus(g, term, "tanh")
        if found is None:
            continue
        half, u = found
        x = _tanh_argument(g, u)
        if x is None or not whole(g, x, n):
            continue
        scale, _ = product_factors(g, y, stop=(x, term))
        if written_as(scale, 0.5 / half, n.output.type.dtype, 2) and _is_product(g, y, (x, term)):
            return g.emit("gelu", (x,), {"approximate": "tanh"})
    return None


def _tanh_argument(g: Editor, u: Ref) -> Ref | None:
    """x where u is sqrt(2/pi) * (x + 0.044715 x^3), or sqrt(2/pi) * x * (1 + 0.044715 x^2)."""
    scale, rest = product_factors(g, u)
    if not written_as(scale, math.sqrt(2 / math.pi), g.type_of(u).dtype, 2):
        return None
    if len(rest) == 1:
        total = g.made_by(rest[0], "add")
        for x, cubic in (total.inputs, total.inputs[::-1]) if total is not None else ():
            if _power(g, cubic, x, 3):
                return x
        return None
    for term in rest:
        inner = plus_one(g, term)
        for x in rest:
            if inner is not None and x != term and _power(g, inner, x, 2):
                _, exact = product_factors(g, u, stop=(x, term))
                return x if sorted(exact) == sorted((x, term)) else None
    return None


def _power(g: Editor, ref: Ref, x: Ref, exponent: int) -> bool:
    """Whether ref is 0.044715 * x ** exponent."""
    scale, rest = product_factors(g, ref, stop=(x,))
    count = 0
    for r in rest:
        p = g.made_by(r, "pow")
        e = None if p is None else splat(g, p.inputs[1])
        if r == x:
            count += 1
        elif p is not None and p.inputs[0] == x and e is not None and float(e).is_integer():
            count += int(e)
        else:
            return False
    return count == exponent and written_as(scale, 0.044715, g.type_of(ref).dtype, 2)


# ---------------------------------------------------------------- softmax


def _softmax_of(g: Editor, n: Node, shifted: bool) -> Ref | None:
    """exp(d) / sum(exp(d)) as a softmax: of x where d is x - max(x), or of d itself where it is not."""
    e, s = g.made_by(n.inputs[0], "exp"), g.made_by(n.inputs[1], "reduce_sum")
    if e is None or s is None or s.inputs[0] != n.inputs[0] or not s.attrs["keepdims"]:
        return None
    axes = ints_of(s.attrs["axes"])
    if len(axes) != 1 or n.output.type.dtype == f16:
        return None  # sums of more than 65504 are infinite in halves, and these ops sum in more bits
    x = _unshifted(g, e.inputs[0], axes[0])
    if shifted is not (x != e.inputs[0]):
        return None
    return g.emit("softmax", (x,), {"axis": axes[0]})


@rule("div", kind=ROUNDING, forms=[
    "x: f32[N, 4]; e = exp(sub(x, reduce_max(x, axes=(1,), keepdims=True))); "
    "div(e, reduce_sum(e, axes=(1,), keepdims=True))",
])
def _softmax(g: Editor, n: Node) -> Ref | None:
    # exp(x - max(x)) / sum(exp(x - max(x)))  -->  softmax(x)
    return _softmax_of(g, n, shifted=True)


@rule("div", kind=OVERFLOW, forms=[
    "x: f32[N, 4]; e = exp(x); div(e, reduce_sum(e, axes=(1,), keepdims=True))",
])
def _softmax_open(g: Editor, n: Node) -> Ref | None:
    # exp(x) / sum(exp(x))  -->  softmax(x), which is no NaN from 89 on
    return _softmax_of(g, n, shifted=False)


def _unshifted(g: Editor, ref: Ref, axis: int) -> Ref:
    """x where ref is x - max(x) along the axis, else ref itself."""
    d = g.made_by(ref, "sub")
    top = None if d is None else g.made_by(d.inputs[1], "reduce_max")
    if d is None or top is None or top.inputs[0] != d.inputs[0]:
        return ref
    plain = bool(top.attrs["keepdims"]) and ints_of(top.attrs["axes"]) == (axis,)
    return d.inputs[0] if plain else ref


@rule("log", kind=OVERFLOW, forms=["x: f32[N, 4]; log(softmax(x, axis=1))"])
def _log_softmax(g: Editor, n: Node) -> Ref | None:
    # log(softmax(x))  -->  log_softmax(x), which is no infinity where softmax is 0
    inner = g.made_by(n.inputs[0], "softmax")
    if inner is None or n.output.type.dtype.bytes < 4:
        return None  # a softmax next to 1 that is rounded has the log 0
    return g.emit("log_softmax", inner.inputs, inner.attrs)


def _log_softmax_of(g: Editor, n: Node, shifted: bool) -> Ref | None:
    """d - log(sum(exp(d))) as a log_softmax: of x where d is x - max(x), or of d itself where it is not."""
    total = g.made_by(n.inputs[1], "log")
    s = None if total is None else g.made_by(total.inputs[0], "reduce_sum")
    e = None if s is None else g.made_by(s.inputs[0], "exp")
    if s is None or e is None or e.inputs[0] != n.inputs[0] or not s.attrs["keepdims"]:
        return None
    axes = ints_of(s.attrs["axes"])
    if len(axes) != 1 or n.output.type.dtype.bytes < 4:
        return None  # halves sum to infinity from 65504 on, and a sum next to 1 that is rounded has the log 0
    x = _unshifted(g, e.inputs[0], axes[0])
    if shifted is not (x != e.inputs[0]):
        return None
    return g.emit("log_softmax", (x,), {"axis": axes[0]})


@rule("sub", kind=ROUNDING, forms=[
    "x: f32[N, 4]; d = sub(x, reduce_max(x, axes=(1,), keepdims=True)); "
    "sub(d, log(reduce_sum(exp(d), axes=(1,), keepdims=True)))",
])
def _log_softmax_spelt(g: Editor, n: Node) -> Ref | None:
    # (x - max(x)) - log(sum(exp(x - max(x))))  -->  log_softmax(x)
    return _log_softmax_of(g, n, shifted=True)


@rule("sub", kind=OVERFLOW, forms=[
    "x: f32[N, 4]; sub(x, log(reduce_sum(exp(x), axes=(1,), keepdims=True)))",
])
def _log_softmax_open(g: Editor, n: Node) -> Ref | None:
    # x - log(sum(exp(x)))  -->  log_softmax(x), which is no infinity from 89 on
    return _log_softmax_of(g, n, shifted=False)


@rule("sigmoid", kind=EXACT, forms=["x: f32[N, 4]; sigmoid(neg(neg(x)))"])
def _negated_logistic(g: Editor, n: Node) -> Ref | None:
    # sigmoid(-(-x))  -->  sigmoid(x)
    x = negated(g, n.inputs[0])
    inner = None if x is None else negated(g, x)
    return None if inner is None else g.emit("sigmoid", (inner,))


@rule("where", kind=EXACT, forms=[
    "c: bool[4]; a: f32[4] = 2.5; b: f32[4] = 2.5; where(c, a, b)",
    "c: bool[1, 4]; a: f32[1, 4] = 2.5; where(c, a, 2.5)",
])
def _where_infinite(g: Editor, n: Node) -> Ref | None:
    # where(c, a, b) with equal constants  -->  the constant
    a, b = splat(g, n.inputs[1]), splat(g, n.inputs[2])
    if a is None or b is None or not n.output.type.dtype.is_float:
        return None
    return n.inputs[1] if same_number(a, b) and whole(g, n.inputs[1], n) else None


RULES: tuple[Rule, ...] = (
    _sigmoid, _silu_spelt, _silu, _softplus, _mish, _clip, _hard_sigmoid, _hard_swish, _hard_swish_exact,
    _hard_swish_near, _hard_sigmoid_scaled, _gelu_erf, _gelu_tanh, _ramp_by_constant, _smooth_of_quotient,
    _softmax, _softmax_open, _log_softmax, _log_softmax_spelt, _log_softmax_open, _negated_logistic,
    _where_infinite, *NORM_RULES, *AFFINE_RULES, *BATCHED_RULES, *POOL_RULES,
)

patterns = rule_pass(RULES)
