"""Bindings of Fourier transforms, of whole signals and of frames, and of windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmin, to_dim
from smelt.core.dtype import DType, f32, f64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.axes import mask, paired
from smelt.importer.bindings.standard.fourier import along, in_parts, waves_of
from smelt.importer.bindings.wide import widened
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.weights import dtype_of

MOST_CONSTANT = 1 << 24
"""Elements of a window, or of waves, that are computed here (128 MB of f64); a run computes what has more."""


def _waves(
    count: int, bins: int, sign: float, dtype: DType
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """cos and sin of sign * 2 pi n k / count, [count, bins]."""
    cos, sin = waves_of(count, count, bins, sign)
    return cos.astype(dtype.numpy), sin.astype(dtype.numpy)


def _stft(c: Call) -> Ref:
    """Frames are a strided convolution whose filters are the windowed waves: [batch, frames, bins, 2]."""
    b, shape = c.builder, c.shape(0)
    if len(shape) not in (2, 3):
        raise c.fail(f"the signal has rank {len(shape)}, wanted [batch, samples] or [batch, samples, 1]")
    if len(shape) == 3 and _is_complex(c, shape[2]):
        return _stft_late(c, 2)
    if c.run_time(1) or c.run_time(3) or not (c.has(3) or c.shape(2)[0].is_const):
        return _stft_late(c, 1)
    step = b.int_of(c.x(1), "frame_step")
    length = _frame_length(c)
    if step < 1 or length < 1:
        raise c.fail(f"frame_step {step} and the frame length {length} must be at least 1")
    bins = length // 2 + 1 if c.flag("onesided", 1) else length
    if 2 * bins * length > MOST_CONSTANT:
        return _stft_late(c, 1)
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


def _is_complex(c: Call, parts: Dim) -> bool:
    """Whether the signal has real and imaginary parts. ONNX has no onesided result for it; ONNX Runtime gives
    the first half of the whole one, and so it is done here."""
    real = c.builder.compare_dims(parts, ONE)
    if real is None:
        raise c.undecided(f"a signal that is real where {parts} is 1, and complex else", None, (parts, ONE))
    if real:
        return False
    c.engine.same("parts of the signal, which is not real", parts, to_dim(2))
    return True


def _stft_late(c: Call, parts: int) -> Ref:
    """As _stft, for a complex signal, or a step or length known only at run time: frames are gathered."""
    b, shape = c.builder, c.shape(0)
    (step,) = b.dims_of(b.reshape(c.x(1), ()), "frame_step", 1)
    length = b.dims_of(b.reshape(c.x(3), ()), "frame_length", 1)[0] if c.has(3) else c.shape(2)[0]
    c.engine.at_most("the signal is shorter than a frame", length, shape[1])
    frames = c.engine.simplify((shape[1] - length) // step + 1)
    first = c.iota(frames)
    first = b.reshape(c.emit("mul", first, b.from_dims([step], [])), (frames, 1))
    inner = b.reshape(c.iota(length), (1, length))
    x = c.cast(b.reshape(c.x(0), (*shape[:2], parts)), f64)
    x = c.emit("gather", x, c.emit("add", first, inner), axis=1)
    if c.has(2):
        c.engine.same("the window and the frame", c.shape(2)[0], length)
        x = c.emit("mul", x, b.reshape(c.cast(c.x(2), f64), (length, 1)))
    bins = c.engine.simplify(length // 2 + 1) if c.flag("onesided", 1) else length
    return c.cast(along(c, x, 2, bins, -1.0), c.type(0).dtype)


def _frame_length(c: Call) -> int:
    if c.has(3):
        length = c.builder.int_of(c.x(3), "frame_length")
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
        elif c.run_time(2):
            return _transformed_late(c)
        elif c.has(2):
            at = c.builder.int_of(c.x(2), "axis")
        return _transformed(c, c.axis(at, rank))

    return build


def _transformed(c: Call, axis: int) -> Ref:
    rank, shape = c.type(0).rank, c.shape(0)
    if axis == rank - 1 or rank < 2:
        raise c.fail(f"axis {axis} of {c.type(0)}: the last axis holds real and imaginary parts")
    length = c.builder.dims_of(c.builder.reshape(c.x(1), ()), "dft_length", 1)[0] if c.has(1) else None
    if length is None and _half_to_real(c):
        length = c.engine.simplify((shape[axis] - 1) * 2)
    return _finished(c, _along(c, _pairs(c), axis, shape[axis], length))


def _half_to_real(c: Call) -> bool:
    """Half a spectrum in, a real signal out."""
    return c.flag("onesided") and c.flag("inverse")


def _finished(c: Call, y: Ref) -> Ref:
    """The result in the input's type; only its real parts where it is real."""
    y = c.builder.slice_axis(y, c.builder.type_of(y).rank - 1, 0, 1) if _half_to_real(c) else y
    return c.cast(y, c.type(0).dtype)


def _transformed_late(c: Call) -> Ref:
    """An axis that only a run knows: each axis of n is a pair (1, n) or (n, 1), and all second ones are
    transformed; those of one element stay as they are."""
    b, shape = c.builder, c.shape(0)
    rank = len(shape)
    chosen = mask(c, b.reshape(c.x(2), (1,)), rank)
    pairs = paired(c, chosen, (*shape[:-1], ONE))[:-1]
    wanted = b.dims_of(b.reshape(c.x(1), ()), "dft_length", 1)[0] if c.has(1) else None
    x = in_parts(c, _pairs(c))
    x = b.reshape(x, [*(d for p in pairs for d in p), to_dim(2)])
    sizes = []
    for a, (outer, inner) in enumerate(pairs):
        length = wanted
        if length is None and _half_to_real(c):
            length = c.engine.simplify((inner - 1) * 2)
        if length is not None:  # one element where the axis is another
            place = b.reshape(b.slice_axis(chosen, 0, a, a + 1), ())
            some, one = c.emit("greater", place, c.scalar(0, place)), c.scalar(1, place)
            picked = c.emit("where", some, b.from_dims([length], []), one)
            (length,) = b.dims_of(picked, "dft_length", 1)
        x = _along(c, x, 2 * a + 1, inner, length)
        sizes.append(c.engine.simplify(outer * b.type_of(x).shape[2 * a + 1]))
    return _finished(c, b.reshape(x, (*sizes, 2)))


def _pairs(c: Call) -> Ref:
    """The signal in f64, whose last axis is known to hold one real part, or real and imaginary parts. Half a
    spectrum always has both."""
    x, parts = c.cast(c.x(0), f64), c.shape(0)[-1]
    if not parts.is_const:
        c.engine.at_most("parts of the signal", parts, to_dim(2))
        return in_parts(c, x)
    if parts not in (ONE, to_dim(2)):
        raise c.fail(f"the signal is {c.type(0)}: its last axis holds real and imaginary parts")
    return in_parts(c, x) if _half_to_real(c) else x


def _along(c: Call, x: Ref, axis: int, n: Dim, wanted: Dim | None) -> Ref:
    """The transform of complex pairs, or of real numbers, along one axis of n elements, cut or padded to
    `wanted`."""
    b = c.builder
    inverse, onesided = c.flag("inverse"), c.flag("onesided")
    if wanted is not None:
        x = (_mirrored if inverse and onesided else _fitted)(c, x, axis, n, wanted)
        n = wanted
    bins = n // 2 + 1 if onesided and not inverse else n
    y = along(c, x, axis, bins, 1.0 if inverse else -1.0)
    return c.emit("div", y, c.cast(b.from_dims([n], []), f64)) if inverse else y


def _mirrored(c: Call, x: Ref, axis: int, bins: Dim, n: Dim) -> Ref:
    """All n bins of a real signal's spectrum from the first half: bin n - k is the conjugate of bin k."""
    b = c.builder
    half = c.engine.simplify(n // 2 + 1)
    x = _fitted(c, x, axis, bins, half)
    k = c.iota(n)
    upper = c.emit("greater_equal", k, b.from_dims([half], []))
    y = c.emit("gather", x, c.emit("where", upper, c.emit("sub", b.from_dims([n], []), k), k), axis=axis)
    rank = b.type_of(x).rank
    rows = b.reshape(upper, [n if a == axis else ONE for a in range(rank)])
    imaginary = b.reshape(b.constant(np.array([False, True])), [*(ONE,) * (rank - 1), to_dim(2)])
    return c.emit("where", c.emit("and", rows, imaginary), c.emit("neg", y), y)


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
        n = size if c.flag("periodic", 1) else size - 1
        order = sorted(enumerate(alpha), key=lambda term: term[0] % 2)  # so the middle is 1 exactly
        if size.is_const and 1 <= n.const <= MOST_CONSTANT:
            turns = np.arange(size.const) / n.const
            waves = [a * (-1) ** k * np.cos(2 * np.pi * k * turns) for k, a in order]
            return c.cast(c.builder.constant(np.sum(waves, axis=0)), dtype)
        wide = f32 if dtype.is_float and dtype.bits <= 32 else f64  # an integer cuts off what is short of it
        steps = c.emit("iota", shape=(size,), start=ZERO, step=ONE, dtype=wide)
        turn = c.emit("div", steps, c.cast(c.builder.from_dims([n], []), wide))
        y = ""
        for k, a in order:
            wave = c.emit("cos", c.emit("mul", turn, c.scalar(2 * np.pi * k, turn)))
            term = c.emit("mul", wave, c.scalar(a * (-1) ** k, turn))
            y = c.emit("add", y, term) if y else term
        return c.cast(y, dtype)

    return build


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("STFT", 17, widened(_stft)),
    OnnxOp("DFT", 17, _dft(1)),
    OnnxOp("DFT", 20, _dft(-2)),
    OnnxOp("HannWindow", 17, _window((0.5, 0.5))),
    OnnxOp("HammingWindow", 17, _window((25 / 46, 21 / 46))),
    OnnxOp("BlackmanWindow", 17, _window((0.42, 0.5, 0.08))),
)
