"""Resize: nearest, linear and cubic along any axes; each output position reads a few weighted taps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smelt.core.dim import ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, f32, f64, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.attrs import dims, number
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    shape = dims(attrs, "shape")
    if len(shape) != x.rank:
        raise c.fail(f"{len(shape)} output extents for rank {x.rank}")
    if attrs["mode"] not in TAPS:
        raise c.fail(f"mode '{attrs['mode']}' is none of {', '.join(TAPS)}")
    for axis, (n, m, s) in enumerate(zip(x.shape, shape, _scales(attrs, x.rank), strict=True)):
        empty = {name: to_dim(0) for name in n.symbols}
        grows = n != m and not (n.is_const and n.const > 0) and m.substitute(empty) != to_dim(0)
        if s is None and grows:
            c.at_most(f"axis {axis} has no elements to resize", dmin(m, 1), n)
    return (TensorType(x.dtype, shape),)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One resized axis: input and output extents, its scale as given (or None), its region; the scale and
    the region's ends as values where only a run knows them."""

    n: Dim
    out: Dim
    scale: float | None
    roi: tuple[float, float]
    late: Expr | None = None
    ends: tuple[Expr, Expr] | None = None
    jumps: bool = False  # nearest: a last bit of a position decides which element is read


def _scales(attrs: Attrs, rank: int) -> tuple[float | None, ...]:
    scales = attrs.get("scales") or (None,) * rank
    assert isinstance(scales, tuple)
    return tuple(None if s is None else float(s) for s in scales)  # type: ignore[arg-type]


def _places(attrs: Attrs, axis: int, rank: int) -> tuple[int | None, int | None, int | None]:
    """Where an axis has its scale in `scales`, its start and its end in `roi`; None: nowhere."""
    scale_at, roi_at = attrs.get("scale_at") or (None,) * rank, attrs.get("roi_at") or (None,) * (2 * rank)
    assert isinstance(scale_at, tuple) and isinstance(roi_at, tuple)
    found = (scale_at[axis], roi_at[axis], roi_at[rank + axis])
    return tuple(p if isinstance(p, int) else None for p in found)  # type: ignore[return-value]


def _axes(attrs: Attrs, shape: tuple[Dim, ...], out: tuple[Dim, ...]) -> list[_Axis | None]:
    """A row per axis that changes; None for one that stays as it is."""
    rank = len(shape)
    roi = attrs.get("roi") or (*(0.0,) * rank, *(1.0,) * rank)
    assert isinstance(roi, tuple)
    rows: list[_Axis | None] = []
    for a, s in enumerate(_scales(attrs, rank)):
        region = (float(roi[a]), float(roi[rank + a]))  # type: ignore[arg-type]
        cropped = attrs["coordinate_mode"] == "tf_crop_and_resize" and region != (0.0, 1.0)
        late = any(p is not None for p in _places(attrs, a, rank))
        same = shape[a] == out[a] and s in (None, 1.0) and not cropped and not late
        jumps = attrs["mode"] == "nearest"
        rows.append(None if same else _Axis(shape[a], out[a], s, region, jumps=jumps))
    return rows


# ---------------------------------------------------------------- coordinates


def _f(v: float) -> Expr:
    return const(v, f32)


def _inverse_scale(x: _Axis) -> Expr:
    """Input positions per output position."""
    if x.scale is not None:
        return _f(1.0 / x.scale)
    if x.late is not None:
        return call("div", _f(1.0), x.late)
    return call("div", index(x.n, f32), index(x.out, f32))


def _scale(x: _Axis) -> Expr:
    """Output positions per input position."""
    if x.scale is not None:
        return _f(x.scale)
    return x.late if x.late is not None else call("div", index(x.out, f32), index(x.n, f32))


def _over(p: Expr, x: _Axis) -> Expr:
    """An output position in units of the input. Divided where positions jump, as in ONNX Runtime: in f32 a
    product with the inverse is at times less than a whole number; elsewhere a last bit moves a weight by a
    last bit, and a product is cheap."""
    return call("div", p, _scale(x)) if x.jumps else call("mul", p, _inverse_scale(x))


def _half_pixel(o: Dim, x: _Axis) -> Expr:
    return call("sub", _over(call("add", index(o, f32), _f(0.5)), x), _f(0.5))


def _asymmetric(o: Dim, x: _Axis) -> Expr:
    return _over(index(o, f32), x)


def _tf_half_pixel_for_nn(o: Dim, x: _Axis) -> Expr:
    """Half a position too far to the right, but where the scale is 1: there everything stays."""
    moved = _over(call("add", index(o, f32), _f(0.5)), x)
    if x.scale is not None:
        return moved
    stays = call("eq", x.late, _f(1.0)) if x.late is not None else call("eq", index(x.out), index(x.n))
    return select(stays, index(o, f32), moved)


def _align_corners(o: Dim, x: _Axis) -> Expr:
    if x.scale is None and x.late is None and x.jumps:
        return call("div", call("mul", index(o, f32), index(x.n - 1, f32)), index(dmax(x.out - 1, 1), f32))
    if x.scale is None and x.late is None:
        last: Expr = index(dmax(x.out - 1, 1), f32)
    else:  # a scale counts the output's elements before they are rounded down
        grown = call("sub", call("mul", _scale(x), index(x.n, f32)), _f(1.0))
        last = select(call("eq", grown, _f(0.0)), _f(1.0), grown)
    return call("mul", index(o, f32), call("div", index(x.n - 1, f32), last))


def _pytorch_half_pixel(o: Dim, x: _Axis) -> Expr:
    return select(call("gt", index(x.out, i64), const(1, i64)), _half_pixel(o, x), _f(0.0))


def _half_pixel_symmetric(o: Dim, x: _Axis) -> Expr:
    # centre the output grid when the scale does not divide evenly
    adjust = call("div", index(x.out, f32), call("mul", _scale(x), index(x.n, f32)))
    offset = call("mul", call("mul", index(x.n, f32), _f(0.5)), call("sub", _f(1.0), adjust))
    if not x.jumps:
        return call("sub", call("add", offset, _over(call("add", index(o, f32), _f(0.5)), x)), _f(0.5))
    half = const(0.5, f64)  # from here in f64, as in ONNX Runtime
    moved = call("div", call("add", index(o, f64), half), cast(_scale(x), f64))
    return cast(call("sub", call("add", cast(offset, f64), moved), half), f32)


def _tf_crop(o: Dim, x: _Axis) -> Expr:
    start, end = x.ends or (_f(x.roi[0]), _f(x.roi[1]))
    last = index(x.n - 1, f32)
    if x.jumps:  # in ONNX Runtime's order
        moved = call("mul", call("mul", index(o, f32), call("sub", end, start)), last)
        many = call("add", call("mul", start, last), call("div", moved, index(dmax(x.out - 1, 1), f32)))
        one = call("mul", call("mul", _f(0.5), call("add", start, end)), last)
        return select(call("gt", index(x.out, i64), const(1, i64)), many, one)
    step = call("div", call("mul", call("sub", end, start), last), index(dmax(x.out - 1, 1), f32))
    many = call("add", call("mul", start, last), call("mul", index(o, f32), step))
    one = call("mul", call("mul", _f(0.5), call("add", start, end)), last)
    return select(call("gt", index(x.out, i64), const(1, i64)), many, one)


COORDINATES: dict[str, Callable[[Dim, _Axis], Expr]] = {
    "half_pixel": _half_pixel,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "align_corners": _align_corners,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "tf_crop_and_resize": _tf_crop,
}

TIE = 1e-6
"""Distance from a half up to which a position is one: 1 / (2 / 7) is 3.4999998 in f32. ONNX Runtime's."""
TIE_BELOW = float(np.nextafter(np.float32(0.5 + TIE), np.float32(0)))
"""The largest f32 that is not beyond 0.5 + TIE, which f32 would round to the next one."""


def _rounded(p: Expr, least: float, op: str) -> Expr:
    """floor(p), and 1 more where the rest is `op` (ge, gt) than `least`."""
    whole = call("floor", p)
    return call("add", whole, cast(call(op, call("sub", p, whole), _f(least)), f32))


NEAREST: dict[str, Callable[[Expr], Expr]] = {
    "floor": lambda p: call("floor", p),
    "ceil": lambda p: call("ceil", p),
    "round_prefer_floor": lambda p: _rounded(p, TIE_BELOW, "gt"),
    "round_prefer_ceil": lambda p: _rounded(p, 0.5 - TIE, "ge"),
}
BY_SCALE = "ceil_of_smaller"
"""The nearest_mode of Upsample, and of Resize before opset 11: an axis that becomes smaller rounds up, others
round down."""


def _nearest(mode: str, p: Expr, x: _Axis) -> Expr:
    """The position that is chosen for p."""
    if mode != BY_SCALE:
        return NEAREST[mode](p)
    if x.scale is not None:
        return call("ceil" if x.scale < 1 else "floor", p)
    return select(call("lt", _scale(x), _f(1.0)), call("ceil", p), call("floor", p))


def _exact_nearest(o: Dim, x: _Axis, attrs: Attrs) -> Dim | None:
    """o // s for an integer upscale s, where the float formula gives just that.

    # asymmetric + floor:              floor(o / s), and so by scale, which is no smaller than 1
    # tf_half_pixel_for_nn + floor:    floor((o + 0.5) / s) = floor(o / s)
    # half_pixel + round_prefer_floor: ceil((o + 0.5) / s - 1) = floor(o / s)
    """
    if x.scale is None or x.scale != int(x.scale) or x.scale < 1:
        return None
    if (attrs["coordinate_mode"], attrs["nearest_mode"]) in (
        ("asymmetric", "floor"),
        ("asymmetric", BY_SCALE),
        ("tf_half_pixel_for_nn", "floor"),
        ("half_pixel", "round_prefer_floor"),
    ):
        return o // int(x.scale)
    return None


def tap_weights(mode: str, frac: Expr, a: float) -> list[Expr]:
    """Weights of the taps around a position that is `frac` past one, in its type: of two elements where the
    mode is linear, of four where it is cubic with coefficient a."""
    k = functools.partial(const, dtype=frac.dtype)
    one = k(1)
    if mode == "linear":
        return [call("sub", one, frac), frac]

    def near(t: Expr) -> Expr:
        # ((a + 2) t - (a + 3)) t^2 + 1 for |t| <= 1
        inner = call("sub", call("mul", k(a + 2), t), k(a + 3))
        return call("add", call("mul", call("mul", inner, t), t), one)

    def far(t: Expr) -> Expr:
        # ((a t - 5a) t + 8a) t - 4a for 1 < |t| < 2
        y = call("sub", call("mul", k(a), t), k(5 * a))
        y = call("add", call("mul", y, t), k(8 * a))
        return call("sub", call("mul", y, t), k(4 * a))

    rest = call("sub", one, frac)
    return [far(call("add", one, frac)), near(frac), near(rest), far(call("add", one, rest))]


Rows = list[_Axis | None]


def _late(attrs: Attrs, rows: list[_Axis | None], scales: Operand | None, roi: Operand | None) -> Rows:
    """The rows with what the optional inputs say: `scale_at` is where in scales an axis has its own, `roi_at`
    where in roi the axes have their starts, then their ends."""
    found: list[_Axis | None] = []
    for a, row in enumerate(rows):
        at, start, end = _places(attrs, a, len(rows))
        if row is not None and scales is not None and at is not None:
            row = replace(row, late=cast(scales[at], f32))
        if row is not None and roi is not None and start is not None and end is not None:
            row = replace(row, ends=(cast(roi[start], f32), cast(roi[end], f32)))
        found.append(row)
    return found


def _resize(
    t: Trace,
    i: DimIndex,
    attrs: Attrs,
    out: TensorType,
    x: Operand,
    scales: Operand | None = None,
    roi: Operand | None = None,
) -> Expr:
    """Per changed axis: position -> base tap and weights; the product of weights over all taps."""
    rows = _late(attrs, _axes(attrs, x.shape, out.shape), scales, roi)
    mode = str(attrs["mode"])
    outside: list[Expr] = []

    def axis(a: int, at: tuple[Dim, ...], weight: Expr | None) -> Expr:
        if a == x.rank:
            e = x[at]
            return e if weight is None else call("mul", cast(e, weight.dtype), weight)
        row = rows[a]
        if row is None:
            return axis(a + 1, (*at, i[a]), weight)
        if mode == "nearest" and (exact := _exact_nearest(i[a], row, attrs)) is not None:
            return axis(a + 1, (*at, dmin(exact, row.n - 1)), weight)
        p = COORDINATES[str(attrs["coordinate_mode"])](i[a], row)
        if attrs["coordinate_mode"] == "tf_crop_and_resize":
            outside.append(call("or", call("lt", p, _f(0.0)), call("gt", p, index(row.n - 1, f32))))
        if mode == "nearest":
            chosen = cast(_nearest(str(attrs["nearest_mode"]), p, row), i64)
            return t.let(chosen, 0, row.n - 1, lambda g: axis(a + 1, (*at, g), weight))
        return t.let(cast(call("floor", p), i64), -2, row.n + 1, lambda g: taps(a, at, weight, row, p, g))

    def taps(a: int, at: tuple[Dim, ...], weight: Expr | None, row: _Axis, p: Expr, g: Dim) -> Expr:
        # doubles are weighed in doubles: they would be infinite beyond f32
        frac = cast(call("sub", p, call("floor", p)), f64 if x.dtype == f64 else f32)
        ws = tap_weights(mode, frac, float(attrs.get("cubic_coeff") or -0.75))  # type: ignore[arg-type]
        first = 0 if mode == "linear" else -1
        if attrs["exclude_outside"]:
            ws = _renormalised(ws, [g + first + n for n in range(len(ws))], row.n)
        total: Expr | None = None
        for n, w in enumerate(ws):
            position = dmax(dmin(g + first + n, row.n - 1), 0)
            e = axis(a + 1, (*at, position), w if weight is None else call("mul", weight, w))
            total = e if total is None else call("add", total, e)
        assert total is not None
        return total

    y = cast(axis(0, (), None), out.dtype)
    for condition in outside:
        y = select(condition, const(number(attrs, "extrapolation"), out.dtype), y)
    return y


def _renormalised(ws: list[Expr], at: list[Dim], n: Dim) -> list[Expr]:
    """Weights of taps outside become 0, the rest sum to 1."""
    kept = []
    for w, p in zip(ws, at, strict=True):
        ok = call("and", call("ge", index(p), const(0, i64)), call("lt", index(p), index(n)))
        kept.append(select(ok, w, const(0, w.dtype)))
    total: Expr = kept[0]
    for w in kept[1:]:
        total = call("add", total, w)
    return [call("div", w, total) for w in kept]


# ---------------------------------------------------------------- reference


def _np_position(
    o: Array, n: int, out: int, scale: float | None, roi: tuple[float, float], mode: str, jumps: bool
) -> Array:
    """Positions in f32, step by step as the formula's."""
    f = np.float32
    s = f(scale) if scale is not None else f(out) / f(n)
    inverse = f(1.0 / scale) if scale is not None else f(n) / f(out)
    o = o.astype(f)

    def over(p: Array) -> Array:
        return p / s if jumps else p * inverse

    half = f(0.5)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        return over(o + half) - half
    if mode == "pytorch_half_pixel":
        return np.zeros_like(o)
    if mode == "asymmetric":
        return over(o)
    if mode == "tf_half_pixel_for_nn":
        return o if s == 1 else over(o + half)
    if mode == "align_corners":
        if scale is None and jumps:
            return o * f(n - 1) / f(max(out - 1, 1))
        last = f(max(out - 1, 1)) if scale is None else s * f(n) - f(1)
        return o * (f(n - 1) / (last or f(1)))
    if mode == "half_pixel_symmetric":
        offset = f(n) * half * (f(1) - f(out) / (s * f(n)))
        if jumps:
            return np.asarray(np.float64(offset) + (o + 0.5).astype(np.float64) / np.float64(s) - 0.5).astype(
                f
            )
        return offset + over(o + half) - half
    start, end = f(roi[0]), f(roi[1])
    if out == 1:
        return np.full_like(o, half * (start + end) * f(n - 1))
    if jumps:
        return start * f(n - 1) + o * (end - start) * f(n - 1) / f(out - 1)
    return start * f(n - 1) + o * ((end - start) * f(n - 1) / f(out - 1))


_NP_NEAREST: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.floor(v) + (v - np.floor(v) > np.float32(TIE_BELOW)),
    "round_prefer_ceil": lambda v: np.floor(v) + (v - np.floor(v) >= np.float32(0.5 - TIE)),
}


def _np_matrix(n: int, row: tuple[int, float | None, tuple[float, float]], attrs: Attrs) -> tuple[Any, Any]:
    """[out, n] interpolation matrix of one axis, and which outputs lie outside the input."""
    out, scale, roi = row
    p = _np_position(
        np.arange(out), n, out, scale, roi, str(attrs["coordinate_mode"]), attrs["mode"] == "nearest"
    )
    matrix = np.zeros((out, n))
    mode, a = str(attrs["mode"]), float(attrs.get("cubic_coeff") or -0.75)  # type: ignore[arg-type]
    if mode == "nearest":
        named = str(attrs["nearest_mode"])
        if named == BY_SCALE:
            named = "ceil" if (out / n if scale is None else scale) < 1 else "floor"
        round_ = _NP_NEAREST[named]
        matrix[np.arange(out), np.clip(round_(p).astype(int), 0, n - 1)] = 1
        return matrix, (p < 0) | (p > n - 1)
    for o in range(out):
        base = math.floor(p[o])
        f = float(p[o] - base)
        near = [((a + 2) * v - (a + 3)) * v * v + 1 for v in (f, 1 - f)]
        far = [((a * v - 5 * a) * v + 8 * a) * v - 4 * a for v in (1 + f, 2 - f)]
        ws = [1 - f, f] if mode == "linear" else [far[0], near[0], near[1], far[1]]
        at = [base + k - (mode == "cubic") for k in range(len(ws))]
        if attrs["exclude_outside"]:
            ws = [w if 0 <= q < n else 0.0 for w, q in zip(ws, at, strict=True)]
            ws = [w / sum(ws) for w in ws]
        for w, q in zip(ws, at, strict=True):
            matrix[o, min(max(q, 0), n - 1)] += w
    return matrix, (p < 0) | (p > n - 1)


def _np_late(
    attrs: Attrs, axis: int, row: _Axis, scales: Array | None = None, roi: Array | None = None
) -> _Axis:
    at, start, end = _places(attrs, axis, len(dims(attrs, "shape")))
    if scales is not None and at is not None:
        row = replace(row, scale=float(scales[at]))
    if roi is not None and start is not None and end is not None:
        row = replace(row, roi=(float(roi[start]), float(roi[end])))
    return row


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    y = x if x.dtype.kind in "iu" and attrs["mode"] == "nearest" else x.astype(np.float64)
    rows = [
        row if row is None else _np_late(attrs, a, row, *arrays[1:])
        for a, row in enumerate(_axes(attrs, tuple(to_dim(n) for n in x.shape), types[0].shape))
    ]
    outside: list[tuple[int, Any]] = []
    for a, row in enumerate(rows):
        if row is None:
            continue
        matrix, out = _np_matrix(x.shape[a], (row.out.const, row.scale, row.roi), attrs)
        if attrs["mode"] == "nearest":  # taken, not multiplied: 0 times infinity is no 0
            moved = np.take(np.moveaxis(y, a, 0), matrix.argmax(1), axis=0)
        else:
            moved = np.tensordot(matrix, np.moveaxis(y, a, 0), axes=(1, 0))
        y = np.moveaxis(moved, 0, a)
        outside.append((a, out))
    if attrs["coordinate_mode"] == "tf_crop_and_resize":
        for a, out in outside:
            np.moveaxis(y, a, 0)[out] = number(attrs, "extrapolation")
    return (np.ascontiguousarray(y).astype(types[0].dtype.numpy),)


def _attrs(shape: tuple[int, ...], scales: tuple[float | None, ...] | None, **changes: object) -> Attrs:
    base: dict[str, Any] = {
        "shape": tuple(to_dim(n) for n in shape),
        "scales": scales,
        "mode": "nearest",
        "coordinate_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
        "cubic_coeff": -0.75,
        "exclude_outside": False,
        "extrapolation": 0.0,
        "roi": None,
    }
    return {**base, **changes}


ROWS: tuple[Op, ...] = (
    Op(
        "resize",
        "x scales? roi?",
        _infer,
        _ref,
        (
            Case(
                ("f32[2, 3, 4, 5]",),
                attrs=_attrs(
                    (2, 3, 8, 10),
                    (1.0, 1.0, 2.0, 2.0),
                    coordinate_mode="asymmetric",
                    nearest_mode="floor",
                ),
            ),
            Case(("f32[2, 3, 4, 5]",), attrs=_attrs((2, 3, 7, 3), None)),
            *(
                Case(
                    ("f32[1, 2, 4, 5]", np.array([1.0, 0.7], np.float32)),
                    attrs=_attrs(
                        (1, 2, 7, 3), scales, coordinate_mode="asymmetric", nearest_mode=BY_SCALE, scale_at=at
                    ),
                )
                for scales, at in (
                    ((1.0, 1.0, 1.8, 0.6), None),
                    ((1.0, 1.0, None, None), (None, None, None, 1)),
                )
            ),
            *(
                Case(
                    ("f32[1, 2, 4, 5]",),
                    attrs=_attrs((1, 2, 8, 9), None, mode="linear", coordinate_mode=m),
                )
                for m in COORDINATES
                if m != "tf_crop_and_resize"
            ),
            Case(
                ("f32[1, 2, 6, 5]",),
                attrs=_attrs((1, 2, 4, 9), None, mode="cubic", exclude_outside=True),
            ),
            Case(
                ("f32[1, 2, 5, 4]", np.array([1.0, 1.3], np.float32)),
                attrs=_attrs((1, 2, 5, 5), None, mode="linear", scale_at=(None, None, None, 1)),
            ),
            Case(
                ("f32[1, 1, 5, 5]", "-", np.array([0.2, 0.4, 0.9, 1.3], np.float32)),
                attrs=_attrs(
                    (1, 1, 3, 4),
                    None,
                    mode="linear",
                    coordinate_mode="tf_crop_and_resize",
                    roi_at=(None, None, 0, 1, None, None, 2, 3),
                    extrapolation=7.0,
                ),
            ),
            Case(
                ("f32[1, 1, 5, 5]",),
                attrs=_attrs(
                    (1, 1, 3, 3),
                    None,
                    mode="linear",
                    coordinate_mode="tf_crop_and_resize",
                    roi=(0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7),
                    extrapolation=10.0,
                ),
            ),
        ),
        compute=_resize,
    ),
)

__all__ = ["ROWS", "ZERO"]
