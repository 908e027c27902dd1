"""Normalisations: layer and RMS norm by formula, the others as expansions into simpler ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import Dim, product, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import Ref, TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.attrs import axis_of, number
from smelt.core.ops.rows.elementwise import held
from smelt.core.ops.table import Arg, Attrs, Builder, Case, Infer, Op, RefRule
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, const, index


def _infer_like_first(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    if not x.dtype.is_float:
        raise c.fail(f"wants a float tensor, found {x.dtype}")
    for a in args[1:]:
        if a is not None and a.dtype != x.dtype:
            raise c.fail(f"a parameter is {a.type}, wanted the input's type {x.dtype}")
    return (x.type,)


def _infer_layer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (t,) = _infer_like_first(c, args, attrs)
    axis = axis_of(attrs)
    if not 0 <= axis < t.rank:
        raise c.fail(f"axis {axis} does not fit rank {t.rank}")
    for a in args[1:]:
        if a is not None and a.rank > t.rank:
            raise c.fail(f"a parameter is {a.type}, wanted at most the {t.rank} axes of the input")
        if a is not None:
            c.broadcast(t.shape, a.shape)
    return (t,)


def _layer_norm(
    t: Trace,
    i: DimIndex,
    attrs: Attrs,
    out: TensorType,
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
) -> Expr:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias over axes axis .."""
    axis = axis_of(attrs)
    extents = x.shape[axis:]
    n = index(product(extents), x.dtype)

    def at(*ks: Dim) -> Expr:
        return x[(*i[:axis], *ks)]

    mean = call("div", t.sum(extents, at), n)

    def square(*ks: Dim) -> Expr:
        d = call("sub", at(*ks), mean)
        return call("mul", d, d)

    variance = call("div", t.sum(extents, square), n)
    deviation = call("sqrt", call("add", variance, const(number(attrs, "epsilon"), x.dtype)))
    y: Expr = call("mul", call("sub", x[i], mean), call("div", const(1, x.dtype), deviation))
    if scale is not None:
        y = call("mul", y, scale.broadcast(i))
    return y if bias is None else call("add", y, bias.broadcast(i))


def _rms_norm(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, scale: Operand | None = None
) -> Expr:
    """x / sqrt(mean(x^2) + epsilon) * scale over axes axis .."""
    axis = axis_of(attrs)
    extents = x.shape[axis:]

    def square(*ks: Dim) -> Expr:
        e = x[(*i[:axis], *ks)]
        return call("mul", e, e)

    mean = call("div", t.sum(extents, square), index(product(extents), x.dtype))
    root = call("sqrt", call("add", mean, const(number(attrs, "epsilon"), x.dtype)))
    y: Expr = call("mul", x[i], call("div", const(1, x.dtype), root))
    return y if scale is None else call("mul", y, scale.broadcast(i))


def _ref_layer(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    axes = tuple(range(axis_of(attrs), x.ndim))
    wide = held(x)
    d = wide - wide.mean(axis=axes, keepdims=True)
    y = d / np.sqrt((d * d).mean(axis=axes, keepdims=True) + number(attrs, "epsilon"))
    return (_affine(y, arrays[1:]).astype(x.dtype),)


def _ref_rms(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    axes = tuple(range(axis_of(attrs), x.ndim))
    wide = held(x)
    y = wide / np.sqrt((wide * wide).mean(axis=axes, keepdims=True) + number(attrs, "epsilon"))
    return (_affine(y, arrays[1:]).astype(x.dtype),)


def _affine(y: Array, rest: Sequence[Array | None]) -> Array:
    scale, bias = (*rest, None, None)[:2]
    if scale is not None:
        y = y * scale
    return y if bias is None else y + bias


# ---------------------------------------------------------------- expansions


def _per_channel(b: Builder, ref: Ref, rank: int) -> Ref:
    """A [C] vector as [C, 1, ..] so that it broadcasts along axis 1 of a rank-`rank` tensor."""
    (channels,) = b.type_of(ref).shape
    return b.emit("reshape", [ref], {"shape": (channels, *[to_dim(1)] * (rank - 2))})


def _scalar(b: Builder, value: float, like: Ref) -> Ref:
    return b.constant(np.array(value, b.type_of(like).dtype.numpy))


def _batch_norm(b: Builder, inputs: Sequence[Ref], attrs: Attrs) -> tuple[Ref, ...]:
    # batch_norm(x)  -->  x * (scale / sqrt(var + eps)) + (bias - mean * scale / sqrt(var + eps))
    x, scale, bias, mean, variance = inputs
    rank = b.type_of(x).rank
    moved = b.emit("add", [variance, _scalar(b, number(attrs, "epsilon"), variance)])
    factor = b.emit("div", [scale, b.emit("sqrt", [moved])])
    shift = b.emit("sub", [bias, b.emit("mul", [mean, factor])])
    y = b.emit("mul", [x, _per_channel(b, factor, rank)])
    return (b.emit("add", [y, _per_channel(b, shift, rank)]),)


def _instance_norm(b: Builder, inputs: Sequence[Ref], attrs: Attrs) -> tuple[Ref, ...]:
    # instance_norm(x)  -->  layer_norm over the spatial axes * scale + bias
    x, scale, bias = inputs
    rank = b.type_of(x).rank
    y = b.emit("layer_norm", [x], {"axis": 2, "epsilon": attrs["epsilon"]})
    y = b.emit("mul", [y, _per_channel(b, scale, rank)])
    return (b.emit("add", [y, _per_channel(b, bias, rank)]),)


def _group_norm(b: Builder, inputs: Sequence[Ref], attrs: Attrs) -> tuple[Ref, ...]:
    # group_norm(x)  -->  reshape to [N, G, C/G, *S], layer_norm over the last, back, * scale + bias
    x, scale, bias = inputs
    shape = b.type_of(x).shape
    groups = attrs["groups"]
    assert isinstance(groups, int)
    split = (shape[0], to_dim(groups), shape[1] // groups, *shape[2:])
    y = b.emit("reshape", [x], {"shape": split})
    y = b.emit("layer_norm", [y], {"axis": 2, "epsilon": attrs["epsilon"]})
    y = b.emit("reshape", [y], {"shape": shape})
    y = b.emit("mul", [y, _per_channel(b, scale, len(shape))])
    return (b.emit("add", [y, _per_channel(b, bias, len(shape))]),)


def _lp_norm(b: Builder, inputs: Sequence[Ref], attrs: Attrs) -> tuple[Ref, ...]:
    # lp_norm(x)  -->  x / (|x|_p, or 1 where that is 0) along axis: the zero vector stays as it is
    (x,) = inputs
    op = {1: "reduce_l1", 2: "reduce_l2"}[int(number(attrs, "p"))]
    size = b.emit(op, [x], {"axes": (axis_of(attrs),), "keepdims": True})
    zero = b.emit("equal", [size, _scalar(b, 0.0, x)])
    return (b.emit("div", [x, b.emit("where", [zero, _scalar(b, 1.0, x), size])]),)


def _infer_channels(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (t,) = _infer_like_first(c, args, attrs)
    if t.rank < 2:
        raise c.fail(f"wants an input of rank 2 or more, found rank {t.rank}")
    for a in args[1:]:
        assert a is not None
        if a.rank != 1:
            raise c.fail(f"per-channel parameters want rank 1, found {a.type}")
        c.same("channels", t.shape[1], a.shape[0])
    return (t,)


def _ref_batch(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, scale, bias, mean, variance = (np.asarray(a) for a in arrays)
    shape = (-1, *(1,) * (x.ndim - 2))
    factor = scale / np.sqrt(variance + number(attrs, "epsilon"))
    return ((x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)).astype(x.dtype),)


def _ref_group() -> RefRule:
    def reference(
        arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[Array]:
        x, scale, bias = (np.asarray(a) for a in arrays)
        g = int(attrs.get("groups", x.shape[1]))  # type: ignore[arg-type]
        split = held(x.reshape(x.shape[0], g, -1))
        d = split - split.mean(axis=2, keepdims=True)
        y = d / np.sqrt((d * d).mean(axis=2, keepdims=True) + number(attrs, "epsilon"))
        shape = (-1, *(1,) * (x.ndim - 2))
        return ((y.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype),)

    return reference


def _ref_lp(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    size = np.linalg.norm(x, ord=number(attrs, "p"), axis=axis_of(attrs), keepdims=True)
    return (np.asarray(x / np.where(size == 0, 1, size), dtype=x.dtype),)


def _lrn(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """x / (bias + alpha / size * sum of squares over `size` channels around)^beta"""
    from smelt.core.ir.kernel import Bound

    size = attrs["size"]
    assert isinstance(size, int)
    before = (size - 1) // 2
    zero = const(0, x.dtype)

    def square(k: Dim) -> Expr:
        c = i[1] + k - before
        e = x.guarded((i[0], c, *i[2:]), (Bound(to_dim(0), c, x.shape[1]),), zero)
        return call("mul", e, e)

    total = t.sum([size], square)
    scaled = call("mul", total, const(number(attrs, "alpha") / size, x.dtype))
    base = call("add", scaled, const(number(attrs, "bias"), x.dtype))
    return call("div", x[i], call("pow", base, const(number(attrs, "beta"), x.dtype)))


def _ref_lrn(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    size = int(number(attrs, "size"))
    total = np.zeros_like(x)
    for c in range(x.shape[1]):
        lo, hi = max(0, c - (size - 1) // 2), min(x.shape[1], c + size // 2 + 1)
        total[:, c] = (x[:, lo:hi] ** 2).sum(axis=1)
    base = number(attrs, "bias") + number(attrs, "alpha") / size * total
    return ((x / base ** number(attrs, "beta")).astype(x.dtype),)


_EPS = {"epsilon": 1e-5}
_CHANNEL_CASES = (Case(("f32[N, 6, M]", "f32[6]", "f32[6]"), attrs=_EPS, zero=False),)

ROWS: tuple[Op, ...] = (
    Op(
        "layer_norm",
        "x scale? bias?",
        _infer_layer,
        _ref_layer,
        (
            Case(("f32[N, 3, 16]", "f32[16]", "f32[16]"), attrs={"axis": 2, **_EPS}),
            Case(("f32[N, M, 5]", "-", "-"), attrs={"axis": 1, **_EPS}, zero=False),
            Case(("f32[N, 8]", "f32[8]", "-"), attrs={"axis": 1, **_EPS}),
        ),
        compute=_layer_norm,
    ),
    Op(
        "rms_norm",
        "x scale?",
        _infer_layer,
        _ref_rms,
        (Case(("f32[N, 3, 16]", "f32[16]"), attrs={"axis": 2, **_EPS}),),
        compute=_rms_norm,
    ),
    Op(
        "batch_norm",
        "x scale bias mean variance",
        _infer_channels,
        _ref_batch,
        (
            Case(
                ("f32[N, 3, M]", "f32[3]", "f32[3]", "f32[3]", "f32[3]"),
                attrs=_EPS,
                low=0.1,
                high=2.0,
            ),
        ),
        expand=_batch_norm,
    ),
    Op(
        "instance_norm",
        "x scale bias",
        _infer_channels,
        _ref_group(),
        _CHANNEL_CASES,
        expand=_instance_norm,
    ),
    Op(
        "group_norm",
        "x scale bias",
        _infer_channels,
        _ref_group(),
        (Case(("f32[N, 6, M]", "f32[6]", "f32[6]"), attrs={"groups": 3, **_EPS}, zero=False),),
        expand=_group_norm,
    ),
    Op(
        "lp_norm",
        "x",
        _infer_like_first,
        _ref_lp,
        (
            Case(("f32[N, 3, M]",), attrs={"axis": 1, "p": 2}),
            Case(("f32[N, 3]",), attrs={"axis": 1, "p": 1}),
        ),
        expand=_lp_norm,
    ),
    Op(
        "lrn",
        "x",
        _infer_like_first,
        _ref_lrn,
        (Case(("f32[N, 5, M]",), attrs={"size": 3, "alpha": 0.1, "beta": 0.75, "bias": 1.0}),),
        compute=_lrn,
    ),
)
