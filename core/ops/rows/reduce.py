"""Reductions over axes, arg reductions, softmax family: type rules, formulas, NumPy references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmin, product
from smelt.core.dtype import Array, from_numpy, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.interp_kernel import identity
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import Expr, ReduceKind
from smelt.core.ops.attrs import axis_of
from smelt.core.ops.rows.elementwise import held
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, const, index


def reduced_axes(attrs: Attrs) -> tuple[int, ...]:
    """The axes attribute as ints."""
    axes = attrs["axes"]
    assert isinstance(axes, tuple)
    return tuple(int(a) for a in axes)  # type: ignore[arg-type]


def infer_reduce(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """Reduced axes become 1 (keepdims) or go."""
    x = args[0]
    assert x is not None
    axes = set(reduced_axes(attrs))
    if any(not 0 <= a < x.rank for a in axes):
        raise c.fail(f"axes {sorted(axes)} do not fit rank {x.rank}")
    keep = bool(attrs["keepdims"])
    shape = tuple(ONE if a in axes else d for a, d in enumerate(x.shape) if keep or a not in axes)
    return (TensorType(x.dtype, shape),)


def full_index(i: DimIndex, ks: Sequence[Dim], axes: Sequence[int], rank: int, keep: bool) -> DimIndex:
    """The input index: reduction variables at `axes`, output variables elsewhere."""
    outer = iter(d for a, d in enumerate(i) if not (keep and a in axes))
    inner = dict(zip(axes, ks, strict=True))
    return tuple(inner[a] if a in inner else next(outer) for a in range(rank))


Wrap = Callable[[Expr], Expr]


def reduction(
    name: str,
    kind: ReduceKind,
    ref: Callable[..., Any],
    *,
    before: Wrap = lambda e: e,
    after: Callable[[Expr, Dim], Expr] = lambda e, n: e,
    cases: tuple[Case, ...] | None = None,
) -> Op:
    """after(kind over axes of before(x)): one row."""

    def compute(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
        axes, keep = reduced_axes(attrs), bool(attrs["keepdims"])
        extents = [x.shape[a] for a in axes]
        if not axes:
            return after(before(x[i]), ONE)
        total = t.reduce(kind, extents, lambda *ks: before(x[full_index(i, ks, axes, x.rank, keep)]))
        return after(total, product(extents))

    def reference(
        arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            y = ref(held(arrays[0]), axis=reduced_axes(attrs), keepdims=bool(attrs["keepdims"]))
        return (np.asarray(y).astype(types[0].dtype.numpy),)

    rows = cases or (
        Case(("f32[N, 3, M]",), attrs={"axes": (2,), "keepdims": True}, zero=kind in ("sum", "prod")),
        Case(
            ("f32[N, 3, M]",),
            attrs={"axes": (0, 1), "keepdims": False},
            zero=kind in ("sum", "prod"),
        ),
        Case(("f32[N, M]",), attrs={"axes": (0, 1), "keepdims": False}, zero=kind in ("sum", "prod")),
        Case(("f32[N]",), attrs={"axes": (), "keepdims": True}, zero=False),
    )
    return Op(name, "x", infer_reduce, reference, rows, compute=compute)


def _extreme(kind: str, ref: Callable[..., Any]) -> Callable[..., Any]:
    """Where there is nothing: the least (greatest) value of the dtype."""

    def found(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
        return ref(x, axis=axis, keepdims=keepdims, initial=identity(kind, from_numpy(x.dtype)))

    return found


def _square(e: Expr) -> Expr:
    return call("mul", e, e)


def _mean(e: Expr, n: Dim) -> Expr:
    return call("div", e, index(n, e.dtype))


def _log_sum_exp(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """m + log(sum(exp(x - m))), m = max(x), with 0 in the place of an infinite m."""
    axes, keep = reduced_axes(attrs), bool(attrs["keepdims"])
    extents = [x.shape[a] for a in axes]
    if not axes:
        return x[i]

    def at(ks: Sequence[Dim]) -> Expr:
        return x[full_index(i, ks, axes, x.rank, keep)]

    top = t.reduce("max", extents, lambda *ks: at(ks))
    finite = call("lt", call("abs", top), const(float("inf"), x.dtype))
    m = call_select(finite, top, const(0, x.dtype))
    total = t.sum(extents, lambda *ks: call("exp", call("sub", at(ks), m)))
    return call("add", m, call("log", total))


def call_select(c: Expr, a: Expr, b: Expr) -> Expr:
    """select with the type of its branches."""
    return call("select", c, a, b, dtype=a.dtype)


def _ref_log_sum_exp(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    axes, keep = reduced_axes(attrs), bool(attrs["keepdims"])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        top = wide.max(axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0)
        y = np.log(np.exp(wide - top).sum(axis=axes, keepdims=True)) + top
        y = y if keep else y.reshape([d.const for d in types[0].shape])
        return (y.astype(types[0].dtype.numpy) if axes else x,)


# ---------------------------------------------------------------- arg reductions


def _infer_arg(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    axis = axis_of(attrs)
    (t,) = infer_reduce(c, args, {"axes": (axis,), "keepdims": attrs["keepdims"]})
    assert args[0] is not None
    extent = args[0].shape[axis]
    if not extent.is_const or extent.const < 1:
        c.at_most(f"axis {axis} has no elements to choose from", dmin(*t.shape, 1), extent)
    return (TensorType(i64, t.shape),)


_HOLES = np.array([[1, np.nan, 3, np.nan], [np.inf, 2, np.inf, 0], [-np.inf] * 4], np.float32)
"""Rows with NaN, and with the extreme more than once."""


def _extreme_position(
    t: Trace, kind: ReduceKind, n: Dim, at: Callable[[Dim], Expr], last: bool = False
) -> Expr:
    """The first (or last) position of the max or min of at(0..n-1): the extreme, then who has it, since two
    passes of vectors are quicker than one in which each step waits for the one before. A NaN is the extreme
    where there is one, as in NumPy."""
    extreme = t.reduce(kind, [n], at)

    def place(k: Dim) -> Expr:
        found = call("eq", at(k), extreme)
        if extreme.dtype.is_float:
            found = call("or", found, call("isnan", at(k)))
        return call_select(found, index(k), index(ZERO if last else n - 1))

    return t.reduce("max" if last else "min", [n], place, dtype=i64)


def _arg(name: str, kind: ReduceKind, ref: Callable[..., Any]) -> Op:
    def compute(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
        axis, keep = axis_of(attrs), bool(attrs["keepdims"])

        def at(k: Dim) -> Expr:
            return x[full_index(i, (k,), (axis,), x.rank, keep)]

        return _extreme_position(t, kind, x.shape[axis], at, bool(attrs.get("last", False)))

    def reference(
        arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[Array]:
        x, axis = arrays[0], axis_of(attrs)
        assert x is not None
        if attrs.get("last", False):
            y = x.shape[axis] - 1 - ref(np.flip(x, axis), axis=axis)
        else:
            y = ref(x, axis=axis)
        y = np.expand_dims(y, axis) if attrs["keepdims"] else np.asarray(y)
        return (y.astype(np.int64),)

    cases = (
        Case(("f32[N, 5, M]",), attrs={"axis": 1, "keepdims": False, "last": False}),
        Case(("i32[N, 7]",), attrs={"axis": 1, "keepdims": True, "last": True}, low=-2, high=2),
        Case((_HOLES,), attrs={"axis": 1, "keepdims": False, "last": False}),
        Case((_HOLES,), attrs={"axis": 1, "keepdims": False, "last": True}),
        Case(("i32[7, N]",), attrs={"axis": 0, "keepdims": True, "last": False}, low=-2, high=2),
    )
    return Op(name, "x", _infer_arg, reference, cases, compute=compute)


# ---------------------------------------------------------------- softmax family


def _infer_same(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    axis = axis_of(attrs)
    if not 0 <= axis < max(x.rank, 1):
        raise c.fail(f"axis {axis} does not fit rank {x.rank}")
    return (x.type,)


def _softmax(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """exp(x - max) / sum(exp(x - max)) along axis."""
    numerator, total, _ = _softmax_parts(t, i, attrs, x)
    return call("div", numerator, total)


def _softmax_parts(t: Trace, i: DimIndex, attrs: Attrs, x: Operand) -> tuple[Expr, Expr, Expr]:
    axis = axis_of(attrs)
    n = x.shape[axis]

    def at(k: Dim) -> Expr:
        return x[(*i[:axis], k, *i[axis + 1 :])]

    top = t.reduce("max", [n], at)
    total = t.sum([n], lambda k: call("exp", call("sub", at(k), top)))
    shifted = call("sub", x[i], top)
    return call("exp", shifted), total, shifted


def _log_softmax(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    _, total, shifted = _softmax_parts(t, i, attrs, x)
    return call("sub", shifted, call("log", total))


def _hardmax(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    axis = axis_of(attrs)
    first = _extreme_position(t, "max", x.shape[axis], lambda k: x[(*i[:axis], k, *i[axis + 1 :])])
    return call_select(call("eq", first, index(i[axis])), const(1, x.dtype), const(0, x.dtype))


def _ref_softmax(kind: str) -> Callable[..., Sequence[Array]]:
    def reference(
        arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[Array]:
        x, axis = arrays[0], axis_of(attrs)
        assert x is not None
        if x.size == 0:
            return (x,)
        if kind == "hardmax":
            first = np.expand_dims(np.argmax(x, axis), axis)
            ks = np.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
            return ((ks == first).astype(x.dtype),)
        with np.errstate(all="ignore"):
            wide = held(x)
            shifted = wide - wide.max(axis=axis, keepdims=True)
            total = np.exp(shifted).sum(axis=axis, keepdims=True)
            y = np.exp(shifted) / total if kind == "softmax" else shifted - np.log(total)
            return (y.astype(x.dtype, copy=False),)

    return reference


_SOFTMAX_CASES = (
    Case(("f32[N, 3, M]",), attrs={"axis": 2}),
    Case(("f32[N, 5, M]",), attrs={"axis": 1}),
    Case(("f32[N]",), attrs={"axis": 0}),
)


def _mean_ref(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Integer means truncate, as C division does."""
    total = x.sum(axis=axis, keepdims=keepdims, dtype=x.dtype)
    n = int(np.prod([x.shape[a] for a in axis], dtype=np.int64))
    return INTRINSICS["div"].meaning(total, np.asarray(n).astype(x.dtype))


_INT_ROWS = (
    Case(("i32[N, 3, M]",), attrs={"axes": (1,), "keepdims": False}, low=-9, high=9, zero=False),
    Case(("f32[N, 3, M]",), attrs={"axes": (0, 2), "keepdims": True}, zero=False),
    Case(("f32[N, M]",), attrs={"axes": (0, 1), "keepdims": False}, zero=False),
)

ROWS: tuple[Op, ...] = (
    reduction("reduce_sum", "sum", np.sum),
    reduction("reduce_prod", "prod", np.prod),
    reduction("reduce_max", "max", _extreme("max", np.max), cases=_INT_ROWS),
    reduction("reduce_min", "min", _extreme("min", np.min), cases=_INT_ROWS),
    reduction("reduce_mean", "sum", _mean_ref, after=_mean, cases=_INT_ROWS),
    reduction("reduce_l1", "sum", lambda x, **k: np.sum(np.abs(x), **k), before=lambda e: call("abs", e)),
    reduction(
        "reduce_l2",
        "sum",
        lambda x, **k: np.sqrt(np.sum(x * x, **k)),
        before=_square,
        after=lambda e, n: call("sqrt", e),
    ),
    reduction("reduce_sum_square", "sum", lambda x, **k: np.sum(x * x, **k), before=_square),
    reduction(
        "reduce_log_sum",
        "sum",
        lambda x, **k: np.log(np.sum(x, **k)),
        after=lambda e, n: call("log", e),
        cases=(Case(("f32[N, 3]",), attrs={"axes": (1,), "keepdims": True}, low=0.1, high=2.0),),
    ),
    Op(
        "reduce_log_sum_exp",
        "x",
        infer_reduce,
        _ref_log_sum_exp,
        (Case(("f32[N, 3, M]",), attrs={"axes": (1, 2), "keepdims": False}, zero=False),),
        compute=_log_sum_exp,
    ),
    _arg("argmax", "max", np.argmax),
    _arg("argmin", "min", np.argmin),
    Op("softmax", "x", _infer_same, _ref_softmax("softmax"), _SOFTMAX_CASES, compute=_softmax),
    Op(
        "log_softmax",
        "x",
        _infer_same,
        _ref_softmax("log_softmax"),
        _SOFTMAX_CASES,
        compute=_log_softmax,
    ),
    Op("hardmax", "x", _infer_same, _ref_softmax("hardmax"), _SOFTMAX_CASES, compute=_hardmax),
)
