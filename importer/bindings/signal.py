"""Bindings of Fourier transforms: products with cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.core.dim import Dim, dmin, to_dim
from smelt.core.dtype import DType, f32, i64
from smelt.core.ir.graph import Ref
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.weights import dtype_of

ZERO, ONE = to_dim(0), to_dim(1)


def _waves(
    count: int, bins: int, sign: float, dtype: DType
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """cos and sin of sign * 2 pi n k / count, [count, bins]; n*k is reduced modulo count first, so that the
    angle keeps its digits."""
    turns = np.outer(np.arange(count), np.arange(bins)) % max(count, 1)
    angle = sign * 2 * np.pi * turns / max(count, 1)
    return np.cos(angle).astype(dtype.numpy), np.sin(angle).astype(dtype.numpy)


def _symbolic_waves(c: Call, count: Dim, bins: Dim, sign: float, dtype: DType) -> tuple[Ref, Ref]:
    """The same for a length that is only known at run time."""
    rows = c.builder.reshape(c.emit("iota", shape=(count,), start=ZERO, step=ONE, dtype=i64), (count, 1))
    columns = c.builder.reshape(c.emit("iota", shape=(bins,), start=ZERO, step=ONE, dtype=i64), (1, bins))
    n = c.builder.from_dims([count], [])
    turns = c.cast(c.emit("mod", c.emit("mul", rows, columns), n), dtype)
    part = c.emit("div", turns, c.cast(n, dtype))
    angle = c.emit("mul", part, c.scalar(sign * 2 * np.pi, part))
    return c.emit("cos", angle), c.emit("sin", angle)


def _stft(c: Call) -> Ref:
    """Frames are a strided convolution whose filters are the windowed waves: [batch, frames, bins, 2]."""
    b, shape = c.builder, c.shape(0)
    if len(shape) == 3 and shape[2] != ONE:
        raise c.unsupported("a complex signal")
    if len(shape) not in (2, 3):
        raise c.fail(f"the signal has rank {len(shape)}, wanted [batch, samples] or [batch, samples, 1]")
    (step,) = b.ints_of(c.x(1), "frame_step")
    length = _frame_length(c)
    if step < 1 or length < 1:
        raise c.fail(f"frame_step {step} and the frame length {length} must be at least 1")
    bins = length // 2 + 1 if c.integer("onesided", 1) else length
    dtype = c.type(0).dtype
    waves = np.concatenate([w.T for w in _waves(length, bins, -1.0, dtype)])  # e^(-i w) = cos, and sin of -w
    filters = b.constant(waves.reshape(2 * bins, 1, length))
    if c.has(2):
        window = b.reshape(b.cast(c.x(2), dtype), (1, 1, length))
        array = b.constant_of(window)
        filters = b.constant(waves[:, None] * array) if array is not None else c.emit("mul", filters, window)
    c.engine.at_most("the signal is shorter than a frame", to_dim(length), shape[1])
    y = c.emit(
        "conv", b.reshape(c.x(0), (shape[0], 1, shape[1])), filters,
        strides=(step,), dilations=(1,), pads_begin=(ZERO,), pads_end=(ZERO,), group=1, channels_last=False,
    )  # fmt: skip
    frames = b.type_of(y).shape[2]
    return b.transpose(b.reshape(y, (shape[0], 2, bins, frames)), (0, 3, 2, 1))


def _frame_length(c: Call) -> int:
    if c.has(3):
        (length,) = c.builder.ints_of(c.x(3), "frame_length")
        return length
    if not c.has(2):
        raise c.fail("it has neither a window nor a frame_length")
    d = c.shape(2)[0]
    if not d.is_const:
        raise c.unsupported(f"a window of {d} elements")
    return d.const


def _dft(axis: int) -> Build:
    """DFT with its axis in an attribute (17) or in input 2 (20); the default counts before the last axis."""

    def build(c: Call) -> Ref:
        rank = c.type(0).rank
        at = axis
        if axis == 1:
            at = c.integer("axis", 1)
        elif c.has(2):
            (at,) = c.builder.ints_of(c.x(2), "axis")
        return _transformed(c, c.axis(at, rank))

    return build


def _transformed(c: Call, axis: int) -> Ref:
    b, shape = c.builder, c.shape(0)
    rank, dtype = len(shape), c.type(0).dtype
    inverse, onesided = bool(c.integer("inverse", 0)), bool(c.integer("onesided", 0))
    if axis == rank - 1 or rank < 2 or shape[-1].const_or_none not in (1, 2):
        raise c.fail(f"axis {axis} of {c.type(0)}: the last axis holds real and imaginary parts")
    if inverse and onesided:
        raise c.unsupported("an inverse of a onesided transform")
    x, n = c.x(0), shape[axis]
    if c.has(1):
        (wanted,) = b.dims_of(b.reshape(c.x(1), ()), "dft_length")
        x, n = _fitted(c, x, axis, n, wanted), wanted
    bins = n // 2 + 1 if onesided else n
    sign = 1.0 if inverse else -1.0
    if n.is_const:
        cos, sin = (b.constant(w) for w in _waves(n.const, bins.const, sign, dtype))
    else:
        cos, sin = _symbolic_waves(c, n, bins, sign, dtype)
    # the transformed axis last: [..., n] @ [n, bins]
    order = [a for a in range(rank - 1) if a != axis] + [axis]
    parts = []
    for k in range(shape[-1].const):
        part = b.slice_axis(x, rank - 1, k, k + 1)
        part = b.reshape(part, b.type_of(part).shape[:-1])
        parts.append(b.transpose(part, order))
    real, imaginary = (c.emit("matmul", parts[0], w) for w in (cos, sin))
    if len(parts) == 2:  # (a + ib)(cos + i sin)
        real = c.emit("sub", real, c.emit("matmul", parts[1], sin))
        imaginary = c.emit("add", imaginary, c.emit("matmul", parts[1], cos))
    back = [order.index(a) for a in range(rank - 1)]
    pair = []
    for p in (real, imaginary):
        p = b.transpose(p, back)
        pair.append(b.reshape(p, (*b.type_of(p).shape, 1)))
    y = c.emit("concat", *pair, axis=rank - 1)
    if inverse:
        y = c.emit("div", y, c.cast(b.from_dims([n], []), dtype))
    return y


def _fitted(c: Call, x: Ref, axis: int, n: Dim, wanted: Dim) -> Ref:
    """x cut or padded with zeros to `wanted` along the axis."""
    keep = c.engine.simplify(dmin(n, wanted))
    x = c.builder.slice_axis(x, axis, ZERO, keep)
    if keep == wanted:
        return x
    rank = c.builder.type_of(x).rank
    after = [wanted - keep if a == axis else ZERO for a in range(rank)]
    return c.emit("pad", x, before=(ZERO,) * rank, after=tuple(after), mode="constant")


def _window(alpha: tuple[float, ...]) -> Build:
    """a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N); N is the size, or size - 1 when not periodic."""

    def build(c: Call) -> Ref:
        dtype = dtype_of(c.integer("output_datatype", 1), "attribute 'output_datatype'", c.engine.node)
        (size,) = c.builder.dims_of(c.builder.reshape(c.x(), ()), "size")
        n = size if c.integer("periodic", 1) else size - 1
        steps = c.emit("iota", shape=(size,), start=ZERO, step=ONE, dtype=f32)
        turn = c.emit("div", steps, c.cast(c.builder.from_dims([n], []), f32))
        y = ""
        for k, a in enumerate(alpha):
            wave = c.emit("cos", c.emit("mul", turn, c.scalar(2 * np.pi * k, turn)))
            term = c.emit("mul", wave, c.scalar(a * (-1) ** k, turn))
            y = c.emit("add", y, term) if y else term
        return c.cast(y, dtype)

    return build


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("STFT", 17, _stft),
    OnnxOp("DFT", 17, _dft(1)),
    OnnxOp("DFT", 20, _dft(-2)),
    OnnxOp("HannWindow", 17, _window((0.5, 0.5))),
    OnnxOp("HammingWindow", 17, _window((25 / 46, 21 / 46))),
    OnnxOp("BlackmanWindow", 17, _window((0.42, 0.5, 0.08))),
)
