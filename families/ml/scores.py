"""Bindings' helpers for raw scores of classical models: post transforms, and labels of class indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from smelt.core.dim import Dim
from smelt.core.dtype import DType, f32, f64
from smelt.core.ir.graph import Ref
from smelt.importer import strings as st
from smelt.importer.attributes import integers, texts
from smelt.importer.call import Call


def rows(c: Call, dtype: DType | None = None, i: int = 0) -> Ref:
    """Input i as [rows, features]; one row when its rank is 1. Of the given type, else f32 or f64."""
    x, shape, own = c.x(i), c.shape(i), c.type(i).dtype
    if len(shape) not in (1, 2):
        raise c.fail(f"input has rank {len(shape)}, wanted 1 or 2")
    x = c.cast(x, dtype or (f64 if own == f64 else f32))
    return c.builder.reshape(x, (1, shape[0])) if len(shape) == 1 else x


def column(c: Call, x: Ref, k: int) -> Ref:
    """x[:, k:k+1]."""
    return c.builder.slice_axis(x, 1, k, k + 1)


def constant(c: Call, values: object, like: Ref) -> Ref:
    """An array of the element type of `like`."""
    return c.builder.constant(np.asarray(values, c.builder.type_of(like).dtype.numpy))


def _softmax_zero(c: Call, y: Ref) -> Ref:
    """As softmax; zeros stay zeros."""
    top = c.emit("reduce_max", y, axes=(1,), keepdims=True)
    nothing = c.emit("less_equal", c.emit("abs", y), c.scalar(1e-7, y))
    e = c.emit("exp", c.emit("sub", y, top))
    total = c.emit("reduce_sum", c.emit("where", nothing, c.scalar(0, y), e), axes=(1,), keepdims=True)
    scaled = c.emit("mul", y, c.emit("exp", c.emit("neg", top)))
    return c.emit("div", c.emit("where", nothing, scaled, e), total)


def probit(c: Call, y: Ref) -> Ref:
    """Quantiles of the normal distribution by the approximation of ONNX Runtime (Winitzki's)."""
    x = c.emit("sub", c.emit("mul", y, c.scalar(2, y)), c.scalar(1, y))
    one = c.scalar(1, y)
    log = c.emit("log", c.emit("mul", c.emit("sub", one, x), c.emit("add", one, x)))
    v = c.emit("add", c.emit("mul", log, c.scalar(0.5, y)), c.scalar(2 / (3.14159 * 0.147), y))
    square = c.emit("sub", c.emit("mul", v, v), c.emit("mul", log, c.scalar(1 / 0.147, y)))
    size = c.emit("sqrt", c.emit("sub", c.emit("sqrt", square), v))
    signed = c.emit("where", c.emit("less", x, c.scalar(0, x)), c.emit("neg", size), size)
    return c.emit("mul", signed, c.scalar(1.41421356, y))


_AFTER: Mapping[str, Callable[[Call, Ref], Ref]] = MappingProxyType(
    {
        "NONE": lambda c, y: y,
        "SOFTMAX": lambda c, y: c.emit("softmax", y, axis=1),
        "LOGISTIC": lambda c, y: c.emit("sigmoid", y),
        "SOFTMAX_ZERO": _softmax_zero,
        "PROBIT": probit,
    }
)
TRANSFORMS = tuple(_AFTER)
"""The transforms; TreeEnsemble counts them in this order."""


def transform_name(c: Call) -> str:
    """The attribute post_transform."""
    name = c.text("post_transform", "NONE")
    if name not in TRANSFORMS:
        raise c.fail(f"post_transform '{name}' is none of {', '.join(TRANSFORMS)}")
    return name


def transformed(c: Call, y: Ref, name: str) -> Ref:
    """Scores [rows, several] after the transform."""
    return _AFTER[name](c, y)


def two_columns(c: Call, score: Ref, name: str, share: bool) -> Ref:
    """One score [rows, 1] as those of two classes: its share of one, or opposite numbers; logistic of both
    for LOGISTIC. ONNX Runtime leaves PROBIT's second one open."""
    if name == "PROBIT":
        raise c.unsupported("post_transform 'PROBIT' of a single score for two classes")
    if share and name != "LOGISTIC":
        return c.emit("concat", c.emit("sub", c.scalar(1, score), score), score, axis=1)
    y = c.emit("concat", c.emit("neg", score), score, axis=1)
    return c.emit("sigmoid", y) if name == "LOGISTIC" else y


def class_count(c: Call, ints: str) -> int:
    """How many class labels there are. An error when there are none, or both kinds."""
    strings, numbers = texts(c, "classlabels_strings"), integers(c, ints)
    if bool(len(strings)) == bool(len(numbers)):
        raise c.fail(f"wanted one of classlabels_strings and {ints}")
    return len(strings) or len(numbers)


def labels(c: Call, at: Ref, ints: str) -> Ref:
    """The class labels at positions i64[rows]."""
    strings = texts(c, "classlabels_strings")
    if strings:
        return st.chosen(c.builder, strings, at)
    values = integers(c, ints)
    if np.array_equal(values, np.arange(len(values))):
        return at
    return c.emit("gather", c.builder.constant(values), at, axis=0)


def chosen(c: Call, yes: Ref, pair: tuple[int, int] = (1, 0)) -> Ref:
    """bool[rows, 1] as positions i64[rows]: pair[0] where it holds, else pair[1]."""
    b = c.builder
    flat: tuple[Dim, ...] = (b.type_of(yes).shape[0],)
    first, second = (b.constant(np.array(k, np.int64)) for k in pair)
    return c.emit("where", b.reshape(yes, flat), first, second)
