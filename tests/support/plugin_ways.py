"""A plug-in with an op for each way to define one: formulas, statements, other ops, rules for sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.plugin import (
    Arg,
    Array,
    Attrs,
    Bound,
    Buffer,
    Builder,
    Call,
    Case,
    DimIndex,
    Expr,
    Infer,
    Load,
    Loop,
    Nest,
    OnnxOp,
    Op,
    Operand,
    Ref,
    ShapeValue,
    Stmt,
    Store,
    TensorType,
    Trace,
    call,
    const,
    dmax,
    to_dim,
)

DOMAIN = "my.domain"


def like_first(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """The type of the first input."""
    assert args[0] is not None
    return (args[0].type,)


# ---------------------------------------------------------------- a formula


def gate(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """x * sigmoid(beta * x)"""
    scaled = call("mul", x[i], const(float(str(attrs["beta"])), x.dtype))
    return call("div", x[i], call("add", const(1, x.dtype), call("exp", call("neg", scaled))))


def ref_gate(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return ((x / (1 + np.exp(-float(str(attrs["beta"])) * x))).astype(x.dtype),)


def flip(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """The last axis from its end."""
    return x[(*i[:-1], out.shape[-1] - 1 - i[-1])]


# ---------------------------------------------------------------- a formula of small integers: sizes


def twice(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """x + x, of integers as well: what it makes of sizes is known when the model is compiled."""
    return call("add", x[i], x[i])


# ---------------------------------------------------------------- a sum, with an optional input


def infer_distance(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    a, b = args[:2]
    assert a is not None and b is not None
    c.same("width", a.shape[1], b.shape[1])
    return (TensorType(a.dtype, (a.shape[0], b.shape[0])),)


def distance(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, a: Operand, b: Operand, w: Operand | None = None
) -> Expr:
    """sum over k of w[k] (a[i, k] - b[j, k])^2"""

    def square(k: Any) -> Expr:
        d = call("sub", a[i[0], k], b[i[1], k])
        return call("mul", call("mul", d, d), const(1, out.dtype) if w is None else w[k,])

    return t.sum([a.shape[1]], square)


def ref_distance(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    a, b, w = (*arrays, None)[:3]
    assert a is not None and b is not None
    return ((((a[:, None] - b[None]) ** 2) * (1 if w is None else w)).sum(-1).astype(a.dtype),)


# ---------------------------------------------------------------- several outputs


def infer_parts(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    return like_first(c, args, attrs) * 2


def whole(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    return call("floor", x[i])


def rest(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    return call("sub", x[i], call("floor", x[i]))


def ref_parts(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return (np.floor(x), x - np.floor(x))


# ---------------------------------------------------------------- statements, with a rule for sizes


def running(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """y[.., k] = max(y[.., k - 1], x[.., k])"""
    (x,), (y,) = inputs, outputs
    assert x is not None
    at = tuple(t.fresh("i") for _ in y.shape)
    before = (*at[:-1], at[-1] - 1)
    lowest = const(-np.inf if y.dtype.is_float else y.dtype.limits[0], y.dtype)
    last = Load(y.name, before, y.dtype, (Bound(to_dim(0), before[-1], y.shape[-1]),), lowest)
    body: tuple[Stmt, ...] = (Store(y.name, at, call("max", last, Load(x.name, at, x.dtype))),)
    for v, extent in reversed(list(zip(at, y.shape, strict=True))):
        body = (Loop("serial", str(v), extent, body),)
    return Nest(body)


def ref_running(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return (np.maximum.accumulate(x, axis=-1),)


def value_running(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[ShapeValue | None, ...]:
    """The largest size so far."""
    x = args[0]
    if x is None or x.value is None or x.rank != 1:
        return (None,)
    found = list(x.value[:1])
    for d in x.value[1:]:
        found.append(dmax(found[-1], d))
    return (tuple(found),)


# ---------------------------------------------------------------- other ops


def swish(b: Builder, inputs: Sequence[Ref], attrs: Attrs) -> tuple[Ref, ...]:
    # swish(x)  -->  x * tanh(x)
    return (b.emit("mul", [inputs[0], b.emit("tanh", [inputs[0]])]),)


def ref_swish(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return (x * np.tanh(x),)


# ---------------------------------------------------------------- the tables


def softened(c: Call) -> Ref:
    """A binding alone: max(x, 0) + my_gate(x) / 8."""
    x = c.x()
    eighth = c.emit("mul", c.emit("way_gate", x, beta=1.0), c.scalar(0.125, x))
    return c.emit("add", c.emit("relu", x), eighth)


ROW = (Case(("f32[N, 4]",)),)
OPS = (
    Op("way_gate", "x", like_first, ref_gate, (Case(("f32[N, 4]",), {"beta": 1.5}),), compute=gate),
    Op("way_flip", "x", like_first, lambda a, *_: (a[0][..., ::-1].copy(),), ROW, compute=flip),
    Op("way_twice", "x", like_first, lambda a, *_: (a[0] + a[0],), ROW, compute=twice),
    Op(
        "way_distance", "a b w?", infer_distance, ref_distance,
        (Case(("f32[N, 4]", "f32[M, 4]")), Case(("f32[N, K]", "f32[M, K]", "f32[K]"))), compute=distance,
    ),
    Op("way_parts", "x", infer_parts, ref_parts, ROW, compute=(whole, rest)),
    Op(
        "way_running", "x", like_first, ref_running, (Case(("f32[N, 4]",)), Case(("i64[N]",))), nest=running,
        value=value_running,
    ),
    Op("way_swish", "x", like_first, ref_swish, ROW, expand=swish),
)  # fmt: skip
BINDINGS = (
    OnnxOp("Gate", 1, lambda c: c.emit("way_gate", c.x(), beta=c.number("beta", 1.0)), DOMAIN),
    OnnxOp("Flip", 1, lambda c: c.emit("way_flip", c.x()), DOMAIN),
    OnnxOp("Twice", 1, lambda c: c.emit("way_twice", c.x()), DOMAIN),
    OnnxOp("Distance", 1, lambda c: c.emit("way_distance", c.x(0), c.x(1), c.optional(2)), DOMAIN),
    OnnxOp("Parts", 1, lambda c: c.emit_many("way_parts", [c.x()], {}), DOMAIN),
    OnnxOp("Running", 1, lambda c: c.emit("way_running", c.x()), DOMAIN),
    OnnxOp("Swish", 1, lambda c: c.emit("way_swish", c.x()), DOMAIN),
    OnnxOp("Softened", 1, softened, DOMAIN),
)
