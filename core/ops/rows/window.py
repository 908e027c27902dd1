"""Convolutions and poolings, channels first or last, any spatial rank: formulas over sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, ceildiv, dmax, dmin, product, to_dim
from smelt.core.dtype import BYTES, Array, DType, i16, i32
from smelt.core.ir.graph import Attr, TensorType
from smelt.core.ir.kernel import Bound, Expr
from smelt.core.ops.attrs import dims, integer, ints, number
from smelt.core.ops.rows.linear import product_of
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index


def last(attrs: Attrs) -> bool:
    """Whether channels are the last axis."""
    return bool(attrs.get("channels_last", False))


CONVOLUTIONS = ("conv", "conv_transpose")


def split_shape(shape: tuple[Dim, ...], channels_last: bool) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """(batch, channels, spatial) of an activation."""
    if channels_last:
        return shape[0], shape[-1], shape[1:-1]
    return shape[0], shape[1], shape[2:]


def join_shape(n: Dim, c: Dim, spatial: Sequence[Dim], channels_last: bool) -> tuple[Dim, ...]:
    """The inverse of split_shape; works for indices too."""
    return (n, *spatial, c) if channels_last else (n, c, *spatial)


def check_steps(c: Infer, attrs: Attrs) -> None:
    """Windows, and the taps in one, are one element apart at least."""
    for name in ("strides", "dilations"):
        if min(ints(attrs, name), default=1) < 1:
            raise c.fail(f"{name} are {list(ints(attrs, name))}, wanted 1 and more")


def window_extent(n: Dim, k: Dim, stride: int, dilation: int, pads: Dim) -> Dim:
    """How many windows fit: floor((n + pads - dilation * (k - 1) - 1) / stride) + 1, at least 0."""
    return dmax((n + pads - dilation * (k - 1) - 1) // stride + 1, 0)


def window_source(
    o: Dim,
    k: Dim,
    stride: int,
    dilation: int,
    begin: Dim,
    end: Dim,
    extent: Dim,
    ceil: bool = False,
) -> tuple[Dim, tuple[Bound, ...]]:
    """The input position under output o and tap k, and the bounds it needs (none without padding)."""
    at = o * stride + k * dilation - begin
    if begin.const_or_none == 0 and end.const_or_none == 0 and not ceil:
        return at, ()
    return at, (Bound(ZERO, at, extent),)


# ---------------------------------------------------------------- convolution


def _weight_parts(shape: tuple[Dim, ...], channels_last: bool) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """(outputs M, channels per group, kernel) of a convolution weight."""
    if channels_last:
        return shape[-1], shape[-2], shape[:-2]
    return shape[0], shape[1], shape[2:]


def infer_conv(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[N, C, *S] * [M, C/group, *K] -> [N, M, *O] (or the channels-last forms); of bytes, whose weight may be
    i16, sums in i32."""
    check_steps(c, attrs)
    x, w = args[:2]
    assert x and w
    if x.rank < 3 or w.rank != x.rank:
        raise c.fail(f"input of rank {x.rank} and weight of rank {w.rank}; both want the same, 3 or more")
    bytes_ = x.dtype in BYTES and w.dtype in (*BYTES, i16)
    if x.dtype != w.dtype and not bytes_:
        raise c.fail(f"input is {x.dtype}, weight is {w.dtype}")
    low, high = x.dtype.limits if bytes_ else (0, 0)
    zero = attrs.get("origin", 0)
    if type(zero) is not int or not low <= zero <= high:
        raise c.fail(f"origin is {zero}; for an input of {x.dtype} it is an integer from {low} to {high}")
    n, channels, spatial = split_shape(x.shape, last(attrs))
    m, per_group, kernel = _weight_parts(w.shape, last(attrs))
    group = integer(attrs, "group")
    if channels.is_const and per_group.is_const and channels.const != per_group.const * group:
        raise c.fail(
            f"input has {channels} channels, weight expects {per_group.const * group}",
            "check the export's group attribute",
        )
    c.same("channels", channels, per_group * group)
    if m.is_const and m.const % group:
        raise c.fail(f"{m} output channels do not divide into {group} groups")
    c.divides("groups and output channels", to_dim(group), m)
    made = i32 if bytes_ else x.dtype
    _check_bias(c, args[2] if len(args) > 2 else None, made, m)
    out = []
    for a, n_a in enumerate(spatial):
        pads = dims(attrs, "pads_begin")[a] + dims(attrs, "pads_end")[a]
        s, d = ints(attrs, "strides")[a], ints(attrs, "dilations")[a]
        out.append(c.simplify(window_extent(n_a, kernel[a], s, d, pads)))
    return (TensorType(made, join_shape(n, m, out, last(attrs))),)


def _check_bias(c: Infer, bias: Arg | None, dtype: DType, m: Dim) -> None:
    """A bias has the result's type and a number for each output channel."""
    if bias is None:
        return
    if bias.rank != 1 or bias.dtype != dtype:
        raise c.fail(f"the bias is {bias.dtype} of rank {bias.rank}, wanted {dtype} of rank 1")
    c.same("bias length", bias.shape[0], m)


def conv(
    t: Trace,
    i: DimIndex,
    attrs: Attrs,
    out: TensorType,
    x: Operand,
    w: Operand,
    b: Operand | None = None,
) -> Expr:
    """out[n, m, o..] = sum over k.., c of x[n, g(m) + c, o * stride + k * dilation - pad] * w[m, c, k..]"""
    cl = last(attrs)
    n, m, o = split_shape(i, cl)
    _, _, spatial = split_shape(x.shape, cl)
    outputs, per_group, kernel = _weight_parts(w.shape, cl)
    group = integer(attrs, "group")
    base = to_dim(0) if group == 1 else m // (outputs // group) * per_group
    zero = const(origin(attrs), x.dtype)

    def term(*ks: Dim) -> Expr:
        *taps, ch = ks
        where = [
            window_source(
                o[a],
                taps[a],
                ints(attrs, "strides")[a],
                ints(attrs, "dilations")[a],
                dims(attrs, "pads_begin")[a],
                dims(attrs, "pads_end")[a],
                spatial[a],
            )
            for a in range(len(spatial))
        ]
        bounds = tuple(b for _, bs in where for b in bs)
        at = join_shape(n, base + ch, [p for p, _ in where], cl)
        wi = (*taps, ch, m) if cl else (m, ch, *taps)
        return product_of(x.guarded(at, bounds, zero), w[wi])

    total = cast(t.sum([*kernel, per_group], term), out.dtype)
    return total if b is None else call("add", total, b[(m,)])


def origin(attrs: Attrs) -> int:
    """What padding holds: the zero point of an input of integers."""
    value = attrs.get("origin", 0)
    assert isinstance(value, int)
    return value


def _channels_first(
    arrays: Sequence[Array | None], attrs: Attrs, w_perm: Callable[[int], list[int]]
) -> list[Array | None]:
    x, w = arrays[:2]
    assert x is not None and w is not None
    if last(attrs):
        x = np.moveaxis(x, -1, 1)
        w = np.transpose(w, w_perm(w.ndim))
    return [x, w, *arrays[2:]]


def _window_view(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    fill: float,
) -> Array:
    """[N, C, *O, *K] view of the padded input [N, C, *S]."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)], constant_values=fill)
    spatial = padded.shape[2:]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    outs = [max((n - r) // s + 1, 0) for n, r, s in zip(spatial, reach, strides, strict=True)]
    if 0 in outs or 0 in padded.shape:
        return np.zeros((*padded.shape[:2], *outs, *kernel), x.dtype)
    v = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, x.ndim)))
    take = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    return v[(slice(None), slice(None), *take, *taps)]


def _ref_conv(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, w, *rest = _channels_first(arrays, attrs, lambda r: [r - 1, r - 2, *range(r - 2)])
    assert x is not None and w is not None
    group, spatial = integer(attrs, "group"), x.ndim - 2
    begin = [d.const for d in dims(attrs, "pads_begin")]
    end = [d.const for d in dims(attrs, "pads_end")]
    v = _window_view(
        x.astype(np.float64),
        w.shape[2:],
        ints(attrs, "strides"),
        ints(attrs, "dilations"),
        begin,
        end,
        origin(attrs),
    )
    n, outs = x.shape[0], v.shape[2 : 2 + spatial]
    v = v.reshape(n, group, x.shape[1] // group if group else 0, *outs, *w.shape[2:])
    wg = w.reshape(group, w.shape[0] // group, *w.shape[1:]).astype(np.float64)
    o, k = "abcd"[:spatial], "wxyz"[:spatial]
    y = np.einsum(f"ngi{o}{k},gmi{k}->ngm{o}", v, wg).reshape(n, w.shape[0], *outs)
    if rest and rest[0] is not None:
        y = y + rest[0].reshape(-1, *(1,) * spatial)
    y = np.moveaxis(y, 1, -1) if last(attrs) else y
    return (np.ascontiguousarray(y).astype(types[0].dtype.numpy),)


# ---------------------------------------------------------------- transposed convolution


def _transposed_parts(shape: tuple[Dim, ...], channels_last: bool) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """(channels C, outputs per group, kernel)."""
    if channels_last:
        return shape[-2], shape[-1], shape[:-2]
    return shape[0], shape[1], shape[2:]


def infer_conv_transpose(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[N, C, *S] * [C, M/group, *K] -> [N, M, *O], O = (S-1)*stride + dilation*(K-1) + 1 + extra - pads."""
    check_steps(c, attrs)
    x, w = args[:2]
    assert x and w
    if x.rank < 3 or w.rank != x.rank:
        raise c.fail(f"input of rank {x.rank} and weight of rank {w.rank}; both want the same, 3 or more")
    if x.dtype != w.dtype:
        raise c.fail(f"input is {x.dtype}, weight is {w.dtype}")
    n, channels, spatial = split_shape(x.shape, last(attrs))
    wc, per_group, kernel = _transposed_parts(w.shape, last(attrs))
    c.same("channels", channels, wc)
    group = integer(attrs, "group")
    c.divides("groups and channels", to_dim(group), channels)
    _check_bias(c, args[2] if len(args) > 2 else None, x.dtype, c.simplify(per_group * group))
    out = []
    for a, n_a in enumerate(spatial):
        s, d = ints(attrs, "strides")[a], ints(attrs, "dilations")[a]
        pads = dims(attrs, "pads_begin")[a] + dims(attrs, "pads_end")[a]
        extra = dims(attrs, "output_padding")[a]
        made = c.simplify((n_a - 1) * s + d * (kernel[a] - 1) + 1 + extra - pads)
        c.at_most(f"the output's extent on spatial axis {a}", ZERO, made)
        out.append(made)
    return (TensorType(x.dtype, join_shape(n, per_group * group, out, last(attrs))),)


def conv_transpose(
    t: Trace,
    i: DimIndex,
    attrs: Attrs,
    out: TensorType,
    x: Operand,
    w: Operand,
    b: Operand | None = None,
) -> Expr:
    """out[n, m, o] = sum over c, j of x[n, c, q - j'] * w[c, m, k], over the taps k that hit o.

    With dilation 1 the taps that reach o are k = phase + j * stride, phase = (o + pad) mod stride, so
    only ceil(K / stride) of them are visited; otherwise all K are, and those that miss are guarded."""
    cl = last(attrs)
    n, m, o = split_shape(i, cl)
    _, _, spatial = split_shape(x.shape, cl)
    channels, per_group, kernel = _transposed_parts(w.shape, cl)
    group = integer(attrs, "group")
    each = channels // group
    base = ZERO if group == 1 else m // per_group * each
    mine = m if group == 1 else m % per_group
    zero = const(0, x.dtype)
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    begin = dims(attrs, "pads_begin")
    extents = [ceildiv(k, s) if d == 1 else k for k, s, d in zip(kernel, strides, dilations, strict=True)]

    def tap(a: int, j: Dim) -> tuple[Dim, Dim, tuple[Bound, ...]]:
        p = o[a] + begin[a]
        if dilations[a] == 1:
            k, at = p % strides[a] + j * strides[a], p // strides[a] - j
            return k, at, (Bound(ZERO, k, kernel[a]), Bound(ZERO, at, spatial[a]))
        p = p - j * dilations[a]
        at = p // strides[a]
        hit = Bound(ZERO, p % strides[a], to_dim(1))
        return j, at, (hit, Bound(ZERO, at, spatial[a]))

    def term(*ks: Dim) -> Expr:
        *js, ch = ks
        where = [tap(a, j) for a, j in enumerate(js)]
        bounds = tuple(b for _, _, bs in where for b in bs)
        at = join_shape(n, base + ch, [p for _, p, _ in where], cl)
        taps = [dmin(k, kernel[a] - 1) for a, (k, _, _) in enumerate(where)]
        wi = (*taps, base + ch, mine) if cl else (base + ch, mine, *taps)
        return product_of(x.guarded(at, bounds, zero), w[tuple(wi)])

    total = cast(t.sum([*extents, each], term), out.dtype)
    return total if b is None else call("add", total, b[(m,)])


def _ref_conv_transpose(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, w, *rest = _channels_first(arrays, attrs, lambda r: [r - 2, r - 1, *range(r - 2)])
    assert x is not None and w is not None
    group, spatial = integer(attrs, "group"), x.ndim - 2
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    begin = [d.const for d in dims(attrs, "pads_begin")]
    n, channels, m = x.shape[0], x.shape[1], w.shape[1] * group
    shape = [d.const for d in split_shape(types[0].shape, last(attrs))[2]]
    full = [
        (s - 1) * st + d * (k - 1) + 1
        for s, st, d, k in zip(x.shape[2:], strides, dilations, w.shape[2:], strict=True)
    ]
    room = [max(f, b + o) for f, b, o in zip(full, begin, shape, strict=True)]
    y = np.zeros((n, m, *room))
    xg = x.reshape(n, group, channels // group, *x.shape[2:]).astype(np.float64)
    wg = w.reshape(group, channels // group, *w.shape[1:]).astype(np.float64)
    o = "abcd"[:spatial]
    for taps in np.ndindex(*w.shape[2:]):
        part = np.einsum(f"ngi{o},gim->ngm{o}", xg, wg[(slice(None), slice(None), slice(None), *taps)])
        place = tuple(
            slice(k * d, k * d + (s - 1) * st + 1, st)
            for k, d, s, st in zip(taps, dilations, x.shape[2:], strides, strict=True)
        )
        if x.size:
            y[(slice(None), slice(None), *place)] += part.reshape(n, m, *x.shape[2:])
    y = y[(slice(None), slice(None), *(slice(b, b + s) for b, s in zip(begin, shape, strict=True)))]
    if rest and rest[0] is not None:
        y = y + rest[0].reshape(-1, *(1,) * spatial)
    y = np.moveaxis(y, 1, -1) if last(attrs) else y
    return (np.ascontiguousarray(y).astype(types[0].dtype.numpy),)


# ---------------------------------------------------------------- pooling


def infer_pool(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """Windows per spatial axis; ceil_mode keeps a partial last window that starts inside."""
    check_steps(c, attrs)
    x = args[0]
    assert x is not None
    n, channels, spatial = split_shape(x.shape, last(attrs))
    if len(spatial) != len(ints(attrs, "kernel")):
        raise c.fail(f"kernel has {len(ints(attrs, 'kernel'))} axes, input has {len(spatial)} spatial ones")
    out = [c.simplify(pool_extent(n_a, a, attrs)) for a, n_a in enumerate(spatial)]
    return (TensorType(x.dtype, join_shape(n, channels, out, last(attrs))),)


def pool_extent(n: Dim, a: int, attrs: Attrs) -> Dim:
    """Output extent of spatial axis a."""
    k, s, d = (ints(attrs, name)[a] for name in ("kernel", "strides", "dilations"))
    begin, end = dims(attrs, "pads_begin")[a], dims(attrs, "pads_end")[a]
    span = n + begin + end - d * (k - 1) - 1
    if not attrs.get("ceil_mode", False):
        return dmax(span // s + 1, 0)
    # a window that would start in the right padding is dropped: (o - 1) * s < n + begin
    return dmax(dmin(ceildiv(span, s) + 1, ceildiv(n + begin, s)), 0)


Taps = Callable[..., tuple[DimIndex, tuple[Bound, ...]]]


def pool_taps(i: DimIndex, attrs: Attrs, x: Operand) -> Taps:
    """taps(*ks) -> (input index, guards) of window element ks at output index i."""
    cl = last(attrs)
    n, ch, o = split_shape(i, cl)
    _, _, spatial = split_shape(x.shape, cl)

    def taps(*ks: Dim) -> tuple[DimIndex, tuple[Bound, ...]]:
        where = [
            window_source(
                o[a],
                k,
                ints(attrs, "strides")[a],
                ints(attrs, "dilations")[a],
                dims(attrs, "pads_begin")[a],
                dims(attrs, "pads_end")[a],
                spatial[a],
                bool(attrs.get("ceil_mode", False)),
            )
            for a, k in enumerate(ks)
        ]
        return join_shape(n, ch, [p for p, _ in where], cl), tuple(b for _, bs in where for b in bs)

    return taps


def lowest(x: Operand) -> Expr:
    """What no element of x is less than."""
    if x.dtype.is_float:
        return const(float("-inf"), x.dtype)
    return const(x.dtype.limits[0], x.dtype)


def _max_pool(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """The greatest element of each window; padding never wins."""
    taps = pool_taps(i, attrs, x)
    return t.reduce("max", ints(attrs, "kernel"), lambda *ks: x.guarded(*taps(*ks), lowest(x)))


def _window_count(i: DimIndex, attrs: Attrs, x: Operand) -> Dim:
    """How many elements of the window count: those inside the input, or inside input and padding."""
    _, _, o = split_shape(i, last(attrs))
    _, _, spatial = split_shape(x.shape, last(attrs))
    counts = []
    for a, n in enumerate(spatial):
        k, s, d = (ints(attrs, name)[a] for name in ("kernel", "strides", "dilations"))
        begin, end = dims(attrs, "pads_begin")[a], dims(attrs, "pads_end")[a]
        start = o[a] * s - begin
        if attrs.get("count_include_pad", False):
            if not attrs.get("ceil_mode", False):
                counts.append(to_dim(k))
                continue
            low, high = -begin, n + end
        else:
            low, high = ZERO, n
        if begin.const_or_none == 0 and end.const_or_none == 0 and not attrs.get("ceil_mode", False):
            counts.append(to_dim(k))
            continue
        first = ceildiv(dmax(low - start, 0), d)
        after = dmin(ceildiv(high - start, d), k)
        counts.append(after - first)
    return product(counts)


def _average_pool(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """The mean of each window over the elements that count."""
    taps = pool_taps(i, attrs, x)
    total = t.sum(ints(attrs, "kernel"), lambda *ks: x.guarded(*taps(*ks), const(0, x.dtype)))
    return call("div", total, index(_window_count(i, attrs, x), x.dtype))


def _lp_pool(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """(sum of |x|^p)^(1/p) of each window."""
    taps = pool_taps(i, attrs, x)
    p = number(attrs, "p")

    def power(*ks: Dim) -> Expr:
        e = call("abs", x.guarded(*taps(*ks), const(0, x.dtype)))
        return call("mul", e, e) if p == 2 else call("pow", e, const(p, x.dtype))

    total = t.sum(ints(attrs, "kernel"), power)
    return call("sqrt", total) if p == 2 else call("pow", total, const(1 / p, x.dtype))


def _ref_pool(kind: str) -> Callable[..., Sequence[Array]]:
    def reference(
        arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[Array]:
        x = arrays[0]
        assert x is not None
        x = np.moveaxis(x, -1, 1) if last(attrs) else x
        outs = [d.const for d in split_shape(types[0].shape, last(attrs))[2]]
        k, s, d = (ints(attrs, name) for name in ("kernel", "strides", "dilations"))
        begin = [v.const for v in dims(attrs, "pads_begin")]
        end = [v.const for v in dims(attrs, "pads_end")]
        reach = [(o - 1) * st + dl * (kk - 1) + 1 for o, st, dl, kk in zip(outs, s, d, k, strict=True)]
        extra = [max(r - n - b, 0) for r, n, b in zip(reach, x.shape[2:], begin, strict=True)]
        axes = tuple(range(-len(k), 0))
        fill = {"max": -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min}.get(kind, 0)
        v = _window_view(x, k, s, d, begin, extra, fill)[
            (slice(None), slice(None), *(slice(0, o) for o in outs))
        ]
        if kind == "max":
            y = v.max(axis=axes)
        elif kind == "lp":
            p = number(attrs, "p")
            y = (np.abs(v.astype(np.float64)) ** p).sum(axis=axes) ** (1 / p)
        else:
            ones = np.ones((1, 1, *x.shape[2:]))
            if attrs.get("count_include_pad", False):
                ones = np.pad(ones, [(0, 0), (0, 0), *zip(begin, end, strict=True)], constant_values=1)
                left, right = [0] * len(k), [max(e - b, 0) for e, b in zip(extra, end, strict=True)]
            else:
                left, right = begin, extra
            count = _window_view(ones, k, s, d, left, right, 0)[
                (slice(None), slice(None), *(slice(0, o) for o in outs))
            ]
            y = v.astype(np.float64).sum(axis=axes) / count.sum(axis=axes)
        y = np.moveaxis(y, 1, -1) if last(attrs) else y
        return (np.ascontiguousarray(y).astype(types[0].dtype.numpy),)

    return reference


def _conv_attrs(
    rank: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    group: int = 1,
    cl: bool = False,
    **extra: Attr,
) -> Attrs:
    p = tuple(to_dim(pad) for _ in range(rank))
    return {
        "strides": (stride,) * rank,
        "dilations": (dilation,) * rank,
        "pads_begin": p,
        "pads_end": p,
        "group": group,
        "channels_last": cl,
        **extra,
    }


def _pool_attrs(
    rank: int, k: int, *, stride: int = 1, pad: int = 0, cl: bool = False, **extra: Attr
) -> Attrs:
    p = tuple(to_dim(pad) for _ in range(rank))
    return {
        "kernel": (k,) * rank,
        "strides": (stride,) * rank,
        "dilations": (1,) * rank,
        "pads_begin": p,
        "pads_end": p,
        "ceil_mode": False,
        "count_include_pad": False,
        "channels_last": cl,
        **extra,
    }


_NO_EXTRA = (to_dim(0), to_dim(0))
_POOL_CASES = (
    Case(("f32[N, 3, M, 9]",), attrs=_pool_attrs(2, 3, stride=2, pad=1), zero=False),
    Case(("f32[N, 9, M, 20]",), attrs=_pool_attrs(2, 2, stride=2, cl=True), zero=False),
    Case(("f32[N, 2, 11]",), attrs=_pool_attrs(1, 3, stride=2, ceil_mode=True), zero=False),
    Case(("f32[1, 2, 5, 6, 7]",), attrs=_pool_attrs(3, 2, pad=1, count_include_pad=True), zero=False),
)

ROWS: tuple[Op, ...] = (
    Op(
        "conv",
        "x w b?",
        infer_conv,
        _ref_conv,
        (
            Case(
                ("f32[N, 3, M, 9]", "f32[5, 3, 3, 3]", "f32[5]"),
                attrs=_conv_attrs(2, stride=2, pad=1),
            ),
            Case(
                ("f32[N, M, 8, 16]", "f32[3, 3, 16, 40]", "f32[40]"),
                attrs=_conv_attrs(2, pad=1, cl=True),
            ),
            Case(("f32[N, M, 8, 20]", "f32[1, 1, 20, 7]", "-"), attrs=_conv_attrs(2, cl=True)),
            Case(
                ("f32[N, 9, M, 12]", "f32[3, 3, 1, 12]", "f32[12]"),
                attrs=_conv_attrs(2, pad=1, group=12, cl=True),
            ),
            Case(
                ("f32[N, 4, M]", "f32[6, 2, 5]", "-"),
                attrs=_conv_attrs(1, pad=4, dilation=2, group=2),
            ),
            Case(("f32[1, 2, 4, M, 3]", "f32[2, 2, 2, 2, 2]", "-"), attrs=_conv_attrs(3, pad=1)),
            Case(
                ("u8[N, 3, M, 9]", "i8[5, 3, 3, 3]", "i32[5]"),
                attrs=_conv_attrs(2, pad=1, origin=7),
                low=-100,
                high=100,
            ),
            Case(
                ("u8[N, 6, M]", "i16[6, 1, 3]", "-"),
                attrs=_conv_attrs(1, pad=1, group=6, origin=7),
                low=-255,
                high=255,
            ),
        ),
        compute=conv,
    ),
    Op(
        "conv_transpose",
        "x w b?",
        infer_conv_transpose,
        _ref_conv_transpose,
        (
            Case(
                ("f32[N, 4, M, 5]", "f32[4, 3, 2, 2]", "f32[3]"),
                attrs=_conv_attrs(2, stride=2, output_padding=_NO_EXTRA),
                zero=False,
            ),
            Case(
                ("f32[N, M, 5, 4]", "f32[3, 3, 4, 6]", "-"),
                attrs=_conv_attrs(2, stride=2, pad=1, cl=True, output_padding=_NO_EXTRA),
                zero=False,
            ),
            Case(
                ("f32[N, 4, 6]", "f32[4, 3, 3]", "-"),
                attrs=_conv_attrs(1, dilation=2, stride=3, pad=1, group=2, output_padding=(to_dim(1),)),
                zero=False,
            ),
        ),
        compute=conv_transpose,
    ),
    Op("max_pool", "x", infer_pool, _ref_pool("max"), _POOL_CASES, compute=_max_pool),
    Op("average_pool", "x", infer_pool, _ref_pool("average"), _POOL_CASES, compute=_average_pool),
    Op(
        "lp_pool",
        "x",
        infer_pool,
        _ref_pool("lp"),
        (Case(("f32[N, 3, M, 9]",), attrs=_pool_attrs(2, 3, stride=2, pad=1, p=2), zero=False),),
        compute=_lp_pool,
    ),
)
