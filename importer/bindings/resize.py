"""Bindings of Resize and Upsample: scales and sizes become output extents."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import f32, i64
from smelt.core.ir.graph import Ref
from smelt.importer import known as kn
from smelt.importer.call import Call, OnnxOp
from smelt.importer.known import Element, Ratio

ZERO = to_dim(0)
MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "cubic": "cubic",
}


def _emit(
    c: Call,
    shape: Sequence[Dim],
    scales: Sequence[float | None],
    coordinates: str,
    nearest: str,
    roi: Sequence[float] | None = None,
) -> Ref:
    mode = c.text("mode", "nearest")
    if mode not in MODES:
        raise c.fail(f"mode '{mode}' is none of nearest, linear, cubic")
    x_shape = c.shape(0)
    if (
        all(s in (None, 1.0) and a == b for s, a, b in zip(scales, x_shape, shape, strict=True))
        and roi is None
    ):
        return c.x(0)
    return c.builder.emit(
        "resize",
        [c.x(0)],
        {
            "shape": tuple(shape),
            "scales": tuple(scales),
            "mode": MODES[mode],
            "coordinate_mode": coordinates,
            "nearest_mode": nearest,
            "cubic_coeff": c.number("cubic_coeff_a", -0.75),
            "exclude_outside": bool(c.integer("exclude_outside", 0)),
            "extrapolation": c.number("extrapolation_value", 0.0),
            "antialias": bool(c.integer("antialias", 0)),
            "roi": None if roi is None else tuple(roi),
        },
    )


def _by_scales(
    c: Call, elements: Sequence[Element], axes: Sequence[int], ref: Ref
) -> tuple[list[Dim], list[float | None]]:
    """Output extents floor(extent * scale), and the scales as the coordinates use them."""
    shape = list(c.shape(0))
    scales: list[float | None] = [1.0] * len(shape)
    if len(elements) != len(axes):
        raise c.fail(f"{len(elements)} scales for {len(axes)} axes")
    for k, (axis, e) in enumerate(zip(axes, elements, strict=True)):
        ratio = Ratio(e) if isinstance(e, Dim) else e
        if not isinstance(ratio, Ratio):
            shape[axis], scales[axis] = _run_time(c, ref, k, shape[axis]), None
            continue
        if ratio.const is not None and ratio.const <= 0:
            raise c.fail(f"scale {float(ratio.const)} of axis {axis} is not positive")
        before, shape[axis] = shape[axis], c.engine.simplify(shape[axis] * ratio.num // ratio.den)
        scales[axis] = None if ratio.const is None else float(ratio.const)
        if ratio.const is None and c.engine.simplify(shape[axis] * ratio.den - before * ratio.num) != ZERO:
            raise c.unsupported(f"scale ({ratio.num})/({ratio.den}) does not make a whole number of elements")
    return shape, scales


def _run_time(c: Call, ref: Ref, k: int, extent: Dim) -> Dim:
    """extent * scale of a scale that is only known when the model runs; a product that is not whole is
    refused there, because coordinates then need the scale itself."""
    b = c.builder
    scale = b.reshape(b.slice_axis(ref, 0, k, k + 1), ())
    size = b.cast(b.from_dims([extent], []), f32)
    product = c.emit("mul", b.cast(scale, f32), size)
    whole = c.emit("floor", product)
    b.bind(b.cast(c.emit("ceil", c.emit("sub", product, whole)), i64), 0, "part_of_an_element", 0, ZERO)
    return b.bind(b.cast(whole, i64), 0, "resized")


def _scales_in(c: Call, i: int) -> tuple[list[Element], Ref]:
    ref = c.x(i)
    known = c.builder.known_of(ref)
    if known is None or known.ndim != 1:
        raise c.unsupported("scales of unknown length")
    return list(known.reshape(-1)), ref


def _upsample7(c: Call) -> Ref:
    found = kn.from_array(np.array(c.floats("scales"), np.float32))
    return _old(c, list(found.reshape(-1)), "")


def _upsample9(c: Call) -> Ref:
    return _old(c, *_scales_in(c, 1))


def _old(c: Call, elements: Sequence[Element], ref: Ref) -> Ref:
    """Before opset 11: positions are output / scale; nearest rounds down when growing, up when shrinking."""
    shape, scales = _by_scales(c, elements, range(len(c.shape(0))), ref)
    shrinks = any(s is not None and s < 1 for s in scales)
    return _emit(c, shape, scales, "asymmetric", "ceil" if shrinks else "floor")


def _resize11(c: Call) -> Ref:
    rank = c.type(0).rank
    axes = tuple(c.axis(a, rank, "axes") for a in c.ints("axes", tuple(range(rank))))
    coordinates = c.text("coordinate_transformation_mode", "half_pixel")
    nearest = c.text("nearest_mode", "round_prefer_floor")
    roi = _roi(c, axes) if coordinates == "tf_crop_and_resize" else None
    if c.has(3):
        shape, scales = _by_sizes(c, axes)
    else:
        shape, scales = _by_scales(c, *_split_scales(c, axes))
    return _emit(c, shape, scales, coordinates, nearest, roi)


def _split_scales(c: Call, axes: Sequence[int]) -> tuple[list[Element], Sequence[int], Ref]:
    elements, ref = _scales_in(c, 2)
    return elements, axes, ref


def _by_sizes(c: Call, axes: Sequence[int]) -> tuple[list[Dim], list[float | None]]:
    shape = list(c.shape(0))
    scales: list[float | None] = [None] * len(shape)
    sizes = c.builder.dims_of(c.x(3), "the sizes of a Resize")
    if len(sizes) != len(axes):
        raise c.fail(f"{len(sizes)} sizes for {len(axes)} axes")
    policy = c.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        for a, d in zip(axes, sizes, strict=True):
            shape[a] = d
        return shape, scales
    if policy not in ("not_larger", "not_smaller"):
        raise c.fail(f"keep_aspect_ratio_policy '{policy}' is none of stretch, not_larger, not_smaller")
    extents = [shape[a] for a in axes]
    if not all(d.is_const for d in (*sizes, *extents)):
        raise c.unsupported(f"keep_aspect_ratio_policy '{policy}' with dynamic sizes", try_="'stretch'")
    pick = min if policy == "not_larger" else max
    scale = pick(Fraction(s.const, d.const) for s, d in zip(sizes, extents, strict=True))
    for a in axes:
        # half rounds up, as the operator's text says
        shape[a], scales[a] = to_dim(int(scale * shape[a].const + Fraction(1, 2))), float(scale)
    return shape, scales


def _roi(c: Call, axes: Sequence[int]) -> list[float]:
    array = c.builder.constant_of(c.x(1)) if c.has(1) else None
    if array is None:
        raise c.unsupported("tf_crop_and_resize with a roi that is not constant")
    if array.size != 2 * len(axes):
        raise c.fail(f"roi has {array.size} elements for {len(axes)} axes, wanted twice as many")
    rank = c.type(0).rank
    roi = [0.0] * rank + [1.0] * rank
    for k, a in enumerate(axes):
        roi[a], roi[rank + a] = float(array[k]), float(array[k + len(axes)])
    return roi


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Upsample", 7, _upsample7),
    OnnxOp("Upsample", 9, _upsample9),
    OnnxOp("Resize", 10, _upsample9),
    OnnxOp("Resize", 11, _resize11),
)
