"""Bindings of reductions, arg reductions and the softmax family."""

from __future__ import annotations

from smelt.core.dim import product
from smelt.core.dtype import bool_, f64, u8
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.axes import reduced
from smelt.importer.call import Build, Call, OnnxOp

REDUCTIONS: tuple[tuple[str, str], ...] = (
    ("ReduceSum", "reduce_sum"),
    ("ReduceMean", "reduce_mean"),
    ("ReduceMax", "reduce_max"),
    ("ReduceMin", "reduce_min"),
    ("ReduceProd", "reduce_prod"),
    ("ReduceL1", "reduce_l1"),
    ("ReduceL2", "reduce_l2"),
    ("ReduceSumSquare", "reduce_sum_square"),
    ("ReduceLogSum", "reduce_log_sum"),
    ("ReduceLogSumExp", "reduce_log_sum_exp"),
)

# What a reduction over no axes (noop_with_empty_axes) still does to each element: the op's own name with
# axes () applies it, because the sum over one element is that element.


def _reduction(op: str) -> Build:
    """axes: an attribute first, input 1 later; none means all, unless noop_with_empty_axes."""

    def build(c: Call) -> Ref:
        dtype, rank, keep = c.type().dtype, c.type().rank, c.flag("keepdims", 1)
        nothing = c.flag("noop_with_empty_axes")
        x = c.cast(c.x(), u8) if dtype == bool_ else c.x()  # max of bools is any, min is all
        if dtype.is_int and op in ROOTS:
            x = c.cast(x, f64)
        if c.run_time(1):
            return c.cast(reduced(c, op, x, c.x(1), keep, not nothing), dtype)
        axes = c.given_axes()
        if not axes:
            axes = () if nothing else tuple(range(rank))
        return c.cast(c.emit(op, x, axes=c.axes(axes, rank), keepdims=keep), dtype)

    return build


def _arg(op: str) -> Build:
    def build(c: Call) -> Ref:
        return c.emit(
            op,
            c.x(),
            axis=c.axis(c.integer("axis", 0), c.type().rank),
            keepdims=c.flag("keepdims", 1),
            last=c.flag("select_last_index"),
        )

    return build


def _softmax13(op: str) -> Build:
    def build(c: Call) -> Ref:
        return c.emit(op, c.x(), axis=c.axis(c.integer("axis", -1), c.type().rank))

    return build


def _softmax1(op: str) -> Build:
    """Before opset 13 the tensor is taken as a matrix that is cut at `axis`."""

    def build(c: Call) -> Ref:
        shape = c.shape()
        axis = c.integer("axis", 1)
        axis = len(shape) if axis == len(shape) else c.axis(axis, len(shape))
        if axis == len(shape) - 1 or (
            axis < len(shape) and all(d.const_or_none == 1 for d in shape[axis + 1 :])
        ):
            return c.emit(op, c.x(), axis=axis)
        flat = c.builder.reshape(c.x(), (product(shape[:axis]), product(shape[axis:])))
        return c.builder.reshape(c.emit(op, flat, axis=1), shape)

    return build


ROOTS = ("reduce_l2", "reduce_log_sum", "reduce_log_sum_exp")
"""Reductions whose result is no integer: of integers they are computed in f64 and cut off."""

SOFTMAX = (("Softmax", "softmax"), ("LogSoftmax", "log_softmax"), ("Hardmax", "hardmax"))

ROWS: tuple[OnnxOp, ...] = (
    *(OnnxOp(name, 1, _reduction(op)) for name, op in REDUCTIONS),
    OnnxOp("ArgMax", 1, _arg("argmax")),
    OnnxOp("ArgMin", 1, _arg("argmin")),
    *(OnnxOp(name, 1, _softmax1(op)) for name, op in SOFTMAX),
    *(OnnxOp(name, 13, _softmax13(op)) for name, op in SOFTMAX),
)
