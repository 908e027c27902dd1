"""Bindings of Resize and Upsample: scales and sizes become output extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from smelt.core.dim import ZERO, Dim, to_dim
from smelt.core.dtype import f32, f64, i64
from smelt.core.ir.graph import Ref
from smelt.core.ops.rows.resize import BY_SCALE, COORDINATES, NEAREST
from smelt.importer import known as kn
from smelt.importer.bindings.standard.resize_matrix import Late, by_matrices
from smelt.importer.call import Call, OnnxOp
from smelt.importer.known import Element, Ratio

MANY_READS = 64
"""Elements of the input that one formula of an output element may read; beyond, axes go one by one."""
MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "cubic": "cubic",
}


@dataclass(frozen=True)
class Roi:
    """The region of tf_crop_and_resize: starts and ends of all axes, or a tensor and where they are in it."""

    values: tuple[float, ...] | None = None
    ref: Ref = ""
    at: tuple[int | None, ...] = ()


def _emit(
    c: Call,
    shape: Sequence[Dim],
    scales: Sequence[float | None],
    coordinates: str,
    nearest: str,
    roi: Roi | None = None,
    late: Late | None = None,
) -> Ref:
    mode = c.text("mode", "nearest")
    if mode not in MODES:
        raise c.fail(f"mode '{mode}' is none of nearest, linear, cubic")
    if coordinates not in COORDINATES:
        raise c.fail(f"coordinate_transformation_mode '{coordinates}' is none of {', '.join(COORDINATES)}")
    x_shape = c.shape(0)
    if (
        all(s in (None, 1.0) and a == b for s, a, b in zip(scales, x_shape, shape, strict=True))
        and roi is None
        and late is None
    ):
        return c.x(0)
    roi, late = roi or Roi(), late or Late("", (None,) * len(shape))
    stretch, many = c.flag("antialias"), False
    if coordinates != "tf_crop_and_resize":
        rows = zip(x_shape, shape, scales, late.at, strict=True)
        changed = sum(not (n == out and s in (None, 1.0) and k is None) for n, out, s, k in rows)
        many = {"nearest": 1, "linear": 2, "cubic": 4}[MODES[mode]] ** changed > MANY_READS
    if MODES[mode] != "nearest" and (stretch or many):
        return by_matrices(c, c.x(0), shape, scales, coordinates, late, MODES[mode], stretch)
    return c.builder.emit(
        "resize",
        [c.x(0), late.ref, roi.ref],
        {
            "shape": tuple(shape),
            "scales": tuple(scales),
            "mode": MODES[mode],
            "coordinate_mode": coordinates,
            "nearest_mode": nearest,
            "cubic_coeff": c.number("cubic_coeff_a", -0.75),
            "exclude_outside": c.flag("exclude_outside"),
            "extrapolation": c.number("extrapolation_value", 0.0),
            "roi": roi.values,
            "scale_at": late.at if late.ref else None,
            "roi_at": roi.at if roi.ref else None,
        },
    )


def _by_scales(
    c: Call, elements: Sequence[Element], axes: Sequence[int], ref: Ref
) -> tuple[list[Dim], list[float | None], Late | None]:
    """Output extents floor(extent * scale), and the scales as the coordinates use them."""
    late: list[int | None] = [None] * len(c.shape(0))
    shape = list(c.shape(0))
    scales: list[float | None] = [1.0] * len(shape)
    if len(elements) != len(axes):
        raise c.fail(f"{len(elements)} scales for {len(axes)} axes")
    for k, (axis, e) in enumerate(zip(axes, elements, strict=True)):
        ratio = Ratio(e) if isinstance(e, Dim) else e
        if not isinstance(ratio, Ratio):
            held = c.builder.constant_of(ref) if ref else None
            if held is not None and not np.isfinite(held.reshape(-1)[k]):
                raise c.fail(f"scale {held.reshape(-1)[k]} of axis {axis} is not finite")
            shape[axis], scales[axis], late[axis] = _run_time(c, ref, k, shape[axis]), None, k
            continue
        if ratio.const is not None and ratio.const <= 0:
            raise c.fail(f"scale {float(ratio.const)} of axis {axis} is not positive")
        before, shape[axis] = shape[axis], c.engine.simplify(shape[axis] * ratio.num // ratio.den)
        scales[axis] = None if ratio.const is None else float(ratio.const)
        if ratio.const is None and c.engine.simplify(shape[axis] * ratio.den - before * ratio.num) != ZERO:
            raise c.unsupported(f"scale ({ratio.num})/({ratio.den}) does not make a whole number of elements")
    return shape, scales, Late(ref, tuple(late)) if any(k is not None for k in late) else None


def _run_time(c: Call, ref: Ref, k: int, extent: Dim) -> Dim:
    """floor(extent * scale) of a scale that is only known when the model runs."""
    b = c.builder
    scale = b.reshape(b.slice_axis(ref, 0, k, k + 1), ())
    size = b.cast(b.from_dims([extent], []), f32)
    product = c.emit("mul", b.cast(scale, f32), size)
    return b.bind(b.cast(c.emit("floor", product), i64), 0, "resized")


def _scales_in(c: Call, i: int, length: int) -> tuple[list[Element], Ref]:
    ref = c.sized_like(c.x(i), length)
    known = c.builder.known_of(ref)
    if known is None or known.ndim != 1:
        raise c.unsupported("scales of unknown length")
    return list(known.reshape(-1)), ref


def _upsample7(c: Call) -> Ref:
    return upsampled(c, c.floats("scales"))


def upsampled(c: Call, scales: Sequence[float]) -> Ref:
    """An Upsample whose scales are in attributes."""
    found = kn.from_array(np.array(scales, np.float32))
    return _old(c, list(found.reshape(-1)), "")


def _upsample9(c: Call) -> Ref:
    return _old(c, *_scales_in(c, 1, c.type(0).rank))


def _old(c: Call, elements: Sequence[Element], ref: Ref) -> Ref:
    """Before opset 11: positions are output / scale; nearest rounds up on an axis that shrinks, else down."""
    shape, scales, late = _by_scales(c, elements, range(len(c.shape(0))), ref)
    return _emit(c, shape, scales, "asymmetric", BY_SCALE, late=late)


def _resize11(c: Call) -> Ref:
    rank = c.type(0).rank
    axes = tuple(c.axis(a, rank, "axes") for a in c.ints("axes", tuple(range(rank))))
    coordinates = c.text("coordinate_transformation_mode", "half_pixel")
    nearest = c.text("nearest_mode", "round_prefer_floor")
    if nearest not in NEAREST:
        raise c.fail(f"nearest_mode '{nearest}' is none of {', '.join(NEAREST)}")
    roi = _roi(c, axes) if coordinates == "tf_crop_and_resize" else None
    late = None
    if c.has(3):
        shape, scales, late = _by_sizes(c, axes)
    else:
        elements, ref = _scales_in(c, 2, len(axes))
        shape, scales, late = _by_scales(c, elements, axes, ref)
    return _emit(c, shape, scales, coordinates, nearest, roi, late)


def _by_sizes(c: Call, axes: Sequence[int]) -> tuple[list[Dim], list[float | None], Late | None]:
    shape = list(c.shape(0))
    scales: list[float | None] = [None] * len(shape)
    ref = c.sized_like(c.x(3), len(axes))
    sizes = c.builder.dims_of(ref, "the sizes of a Resize")
    if len(sizes) != len(axes):
        raise c.fail(f"{len(sizes)} sizes for {len(axes)} axes")
    policy = c.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        for a, d in zip(axes, sizes, strict=True):
            shape[a] = d
        return shape, scales, None
    if policy not in ("not_larger", "not_smaller"):
        raise c.fail(f"keep_aspect_ratio_policy '{policy}' is none of stretch, not_larger, not_smaller")
    extents = [shape[a] for a in axes]
    if not all(d.is_const for d in (*sizes, *extents)):
        return _kept_aspect(c, axes, sizes, policy == "not_larger")
    pick = min if policy == "not_larger" else max
    scale = pick(Fraction(s.const, d.const) for s, d in zip(sizes, extents, strict=True))
    for a in axes:
        # half rounds up, as the operator's text says
        shape[a], scales[a] = to_dim(int(scale * shape[a].const + Fraction(1, 2))), float(scale)
    return shape, scales, None


def _kept_aspect(
    c: Call, axes: Sequence[int], sizes: Sequence[Dim], smallest: bool
) -> tuple[list[Dim], list[float | None], Late]:
    """The one scale that keeps the aspect ratio, computed when the model runs."""
    b, n = c.builder, len(axes)
    extents = b.cast(b.from_dims([c.shape(0)[a] for a in axes], [n]), f64)
    ratios = c.emit("div", b.cast(b.from_dims(sizes, [n]), f64), extents)
    scale = c.emit("reduce_min" if smallest else "reduce_max", ratios, axes=(0,), keepdims=True)
    grown = c.emit("floor", c.emit("add", c.emit("mul", extents, scale), c.scalar(0.5, scale)))
    shape = list(c.shape(0))
    late: list[int | None] = [None] * len(shape)
    for a, d in zip(axes, b.dims_of(b.cast(grown, i64), "resized"), strict=True):
        shape[a], late[a] = d, 0
    return shape, [None if k == 0 else 1.0 for k in late], Late(b.cast(scale, f32), tuple(late))


def _roi(c: Call, axes: Sequence[int]) -> Roi:
    if not c.has(1):
        raise c.fail("tf_crop_and_resize has no roi")
    rank, n = c.type(0).rank, len(axes)
    if c.type(1).rank != 1:
        raise c.fail(f"roi is {c.type(1)}, wanted rank 1")
    ref = c.sized_like(c.x(1), 2 * n)
    array = c.builder.constant_of(ref)
    if array is None:
        at: list[int | None] = [None] * (2 * rank)
        for k, a in enumerate(axes):
            at[a], at[rank + a] = k, k + n
        return Roi(None, ref, tuple(at))
    if array.size != 2 * n:
        raise c.fail(f"roi has {array.size} elements for {n} axes, wanted twice as many")
    roi = [0.0] * rank + [1.0] * rank
    for k, a in enumerate(axes):
        roi[a], roi[rank + a] = float(array[k]), float(array[k + n])
    return Roi(tuple(roi))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Upsample", 7, _upsample7),
    OnnxOp("Upsample", 9, _upsample9),
    OnnxOp("Resize", 10, _upsample9),
    OnnxOp("Resize", 11, _resize11),
)
