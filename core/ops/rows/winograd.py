"""Minimal filtering (Winograd): tiles of an input to transformed tiles, sums of their products to outputs.

A convolution of r taps whose outputs come in tiles of m is, for each of the n = m + r - 1 elements of a
transformed tile, a product of matrices:

    y = A^T (sum over c of (G w G^T) * (B^T x B)) A          (of one axis: without what stands on the right)

(S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, arXiv:1509.09308). The
matrices follow from n - 1 points and infinity, by interpolation of polynomials.

Of bytes all of that is done with integers, exactly: rows of G and A are multiplied by what makes them whole,
transformed tiles are i16, and their products are summed modulo 2^32. Of the factor that the sums then have
too much, the odd part has an inverse modulo 2^32, and the rest is a shift: the end is right whenever 32 bits
hold it before that shift (of 2 bits for tiles of 4 on two axes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from itertools import product
from math import gcd, lcm, prod
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from smelt.core.dim import ONE, ZERO, ceildiv, to_dim
from smelt.core.dtype import BYTES, Array, DType, i16, i32
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Buffer, Expr, Load, Store
from smelt.core.ops.attrs import dims, ints
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

INTERPOLATION_POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2))
"""Where polynomials are interpolated, the first of them first. Of those with powers of 2 these lose least in
f32: a third of what 2 and -2 lose at tiles of 4 (benchmarks/results/winograd.md)."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of one axis. back: A^T, m x n. weight: G, n x r. data: B^T, n x n, of integers."""

    back: Matrix
    weight: Matrix
    data: Matrix


@cache
def transforms(tile: int, taps: int) -> Transforms:
    """The matrices for tiles of so many outputs. Raises KeyError where there are not enough points."""
    n = tile + taps - 1
    if n - 1 > len(INTERPOLATION_POINTS):
        raise KeyError(f"tiles of {tile} with {taps} taps want {n - 1} points")
    points = INTERPOLATION_POINTS[: n - 1]
    back = [(*(p**i for p in points), Fraction(i == tile - 1)) for i in range(tile)]
    weight, data = [], []
    for p in points:
        others = [q for q in points if q != p]
        row = (*_polynomial(others), Fraction(0))
        whole = lcm(*(c.denominator for c in row))
        scale = reduce(lambda a, q: a * (p - q), others, Fraction(1)) * whole
        weight.append(tuple(p**k / scale for k in range(taps)))
        data.append(tuple(c * whole for c in row))
    row = _polynomial(points)
    whole = lcm(*(c.denominator for c in row))
    weight.append(tuple(Fraction(k == taps - 1, whole) for k in range(taps)))
    data.append(tuple(c * whole for c in row))
    return Transforms(tuple(back), tuple(weight), tuple(data))


@cache
def whole_transforms(tile: int, taps: int) -> tuple[Transforms, int]:
    """The matrices of integers alone, and the factor that A^T (G w * B^T x) is too large by."""
    f = transforms(tile, taps)
    scales = [
        Fraction(lcm(*(c.denominator for c in row)), gcd(*(c.numerator for c in row))) for row in f.weight
    ]
    back = [[c / s for c, s in zip(row, scales, strict=True)] for row in f.back]
    factor = lcm(*(c.denominator for row in back for c in row))
    weight = [[c * s for c in row] for row, s in zip(f.weight, scales, strict=True)]
    whole = [[c * factor for c in row] for row in back]
    return Transforms(_matrix(whole), _matrix(weight), f.data), factor


def _matrix(rows: Iterable[Iterable[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of (x - root), the lowest first."""
    found = [Fraction(1)]
    for r in roots:
        found = [a - r * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return tuple(found)


def transformed_weight(w: Array, tile: Sequence[int]) -> Array:
    """[*K, C, M] as [product of n, C, M], in f64; whole numbers of a weight of integers."""
    y, kernel = w.astype(np.float64), w.shape[: len(tile)]
    for a, f in enumerate(_of_axes(tile, kernel, w.dtype.kind == "i")):
        g = np.array(f.weight, np.float64)
        y = np.moveaxis(np.tensordot(g, y, (1, a)), 0, a)
    return y.reshape(-1, *w.shape[len(tile) :])


def excess(tile: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
    """The inverse, modulo 2^32, of the odd part of what sums of integers are too large by, and how many bits
    the rest of it has."""
    factor = prod(whole_transforms(m, r)[1] for m, r in zip(tile, kernel, strict=True))
    bits = (factor & -factor).bit_length() - 1
    inverse = pow(factor >> bits, -1, 1 << 32)
    return inverse - (1 << 32) if inverse >> 31 else inverse, bits


def _of_axes(tile: Sequence[int], kernel: Sequence[int], whole: bool = False) -> list[Transforms]:
    pairs = zip(tile, kernel, strict=True)
    return [whole_transforms(m, r)[0] if whole else transforms(m, r) for m, r in pairs]


def _checked(c: Infer, x: Arg, attrs: Attrs, rank: int, integers: Sequence[DType]) -> list[int]:
    """The extents of a transformed tile."""
    tile, kernel = ints(attrs, "tile"), ints(attrs, "kernel")
    known = x.dtype.is_float or x.dtype in integers
    if len(tile) != len(kernel) or x.rank != len(tile) + rank or not known:
        raise c.fail(f"{x.type} for tiles of {list(tile)} and {list(kernel)} taps")
    sizes = [m + r - 1 for m, r in zip(tile, kernel, strict=True)]
    if min(*tile, *kernel) < 1 or max(sizes) - 1 > len(INTERPOLATION_POINTS):
        raise c.fail(
            f"tiles of {list(tile)} with {list(kernel)} taps; there are {len(INTERPOLATION_POINTS)} points"
        )
    return sizes


# ---------------------------------------------------------------- input


def _infer_input(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[N, *S, C] -> [product of n, N, *T, C], where S = T * m + r - 1; of bytes i16."""
    (x,) = args
    assert x
    sizes, tiles = _checked(c, x, attrs, 2, BYTES), dims(attrs, "tiles")
    for a, (s, t) in enumerate(zip(x.shape[1:-1], tiles, strict=True)):
        m = ints(attrs, "tile")[a]
        c.same(f"spatial axis {a} and its tiles", s, t * m + (sizes[a] - m))
    elements = to_dim(int(np.prod(sizes)))
    made = i16 if x.dtype in BYTES else x.dtype
    return (TensorType(made, (elements, x.shape[0], *tiles, x.shape[-1])),)


def _input(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """All elements of a transformed tile beside each other, since they have sums in common."""
    (x,), (y,) = inputs, outputs
    assert x is not None
    tile = ints(attrs, "tile")
    axes = _of_axes(tile, ints(attrs, "kernel"))

    def element(i: DimIndex, at: tuple[int, ...], rest: Sequence[Transforms], which: Sequence[int]) -> Expr:
        if not rest:
            assert x is not None
            where = [i[1 + a] * m + k for a, (m, k) in enumerate(zip(tile, at, strict=True))]
            return cast(Load(x.name, (i[0], *where, i[-1]), x.dtype), y.dtype)
        row = rest[0].data[which[0]]
        return _sum((c, element(i, (*at, k), rest[1:], which[1:])) for k, c in enumerate(row) if c)

    def body(i: DimIndex) -> tuple[Store, ...]:
        every = product(*(range(len(f.data)) for f in axes))
        return tuple(
            Store(y.name, (to_dim(k), *i), element(i, (), axes, which)) for k, which in enumerate(every)
        )

    return Nest(nest_over(t, y.shape[1:], body))


def _sum(terms: Iterator[tuple[Fraction, Expr]]) -> Expr:
    """The sum of factor * term; what is not multiplied by 1 comes later."""
    found: Expr | None = None
    for c, e in sorted(terms, key=lambda pair: pair[0] != 1):
        minus = c < 0 and found is not None
        size = -c if minus else c
        factor = float(size) if e.dtype.is_float else int(size)
        scaled = e if size == 1 else call("mul", e, const(factor, e.dtype))
        found = scaled if found is None else call("sub" if minus else "add", found, scaled)
    assert found is not None
    return found


def _ref_input(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    y = x.astype(np.float64)
    tile = ints(attrs, "tile")
    axes = _of_axes(tile, ints(attrs, "kernel"))
    tiles = [d.const for d in dims(attrs, "tiles")]
    for a, (f, m, count) in enumerate(zip(axes, tile, tiles, strict=True)):
        n = len(f.data)
        at = np.arange(count)[:, None] * m + np.arange(n)
        cut = np.take(y, at, axis=1 + a)  # [.., T, n, ..]
        cut = np.tensordot(np.array(f.data, np.float64), cut, (1, 2 + a))
        y = np.moveaxis(cut, 0, -1)  # elements of the tile gather at the end
    rank = len(tile)
    y = np.moveaxis(y, tuple(range(-rank, 0)), tuple(range(rank)))
    return (y.reshape([d.const for d in types[0].shape]).astype(types[0].dtype.numpy),)


# ---------------------------------------------------------------- output


def _infer_output(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[product of n, N, *T, M], bias [M] -> [N, *O, M], where T = ceil(O / m)."""
    x, bias = (*args, None)[:2]
    assert x
    sizes, shape = _checked(c, x, attrs, 3, (i32,)), dims(attrs, "shape")
    c.same("the elements of a tile", x.shape[0], to_dim(int(np.prod(sizes))))
    for a, (t, o) in enumerate(zip(x.shape[2:-1], shape, strict=True)):
        c.same(f"tiles of spatial axis {a}", t, ceildiv(o, ints(attrs, "tile")[a]))
    if bias is not None:
        if bias.rank != 1 or bias.dtype != x.dtype:
            raise c.fail(f"the bias is {bias.dtype} of rank {bias.rank}, wanted {x.dtype} of rank 1")
        c.same("bias length", bias.shape[0], x.shape[-1])
    return (TensorType(x.dtype, (x.shape[1], *shape, x.shape[-1])),)


def _output(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """All outputs of a tile beside each other; those beyond the last stay away."""
    (x, bias), (y,) = (*inputs, None)[:2], outputs
    assert x is not None
    tile, kernel, whole = ints(attrs, "tile"), ints(attrs, "kernel"), x.dtype == i32
    axes = _of_axes(tile, kernel, whole)
    sizes = [len(f.data) for f in axes]

    def element(i: DimIndex, at: tuple[int, ...], which: Sequence[int]) -> Expr:
        if len(at) == len(axes):
            assert x is not None
            return Load(x.name, (to_dim(int(np.ravel_multi_index(at, sizes))), *i), x.dtype)
        row = axes[len(at)].back[which[len(at)]]
        return _sum((c, element(i, (*at, k), which)) for k, c in enumerate(row) if c)

    def body(i: DimIndex) -> tuple[Store, ...]:
        found = []
        for which in product(*map(range, tile)):
            where = [t * m + k for t, m, k in zip(i[1:-1], tile, which, strict=True)]
            value = element(i, (), which)
            if whole:
                inverse, bits = excess(tile, kernel)
                value = call("shr", call("mul", value, const(inverse, i32)), const(bits, i32))
            if bias is not None:
                value = call("add", value, Load(bias.name, (i[-1],), bias.dtype))
            limits = zip(where, y.shape[1:-1], which, strict=True)
            guard = tuple(Bound(ZERO, o, n) for o, n, k in limits if k)
            found.append(Store(y.name, (i[0], *where, i[-1]), value, guard=guard))
        return tuple(found)

    return Nest(nest_over(t, x.shape[1:], body))


def _ref_output(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, bias = (*arrays, None)[:2]
    assert x is not None
    tile, kernel, whole = ints(attrs, "tile"), ints(attrs, "kernel"), x.dtype == np.int32
    axes, wide = _of_axes(tile, kernel, whole), np.dtype(np.int64 if whole else np.float64)
    rank = len(tile)
    y: Array = x.astype(wide).reshape(*(len(f.data) for f in axes), *x.shape[1:])  # [n.., N, T.., M]
    for a, f in enumerate(axes):
        back: Array = np.array(f.back, wide)
        y = np.moveaxis(np.tensordot(back, y, (1, a)), 0, a)
    if whole:
        inverse, bits = excess(tile, kernel)
        y = (y.astype(np.int32) * np.int32(inverse)) >> bits
    order = [rank, *(axis for a in range(rank) for axis in (rank + 1 + a, a)), 2 * rank + 1]
    y = y.transpose(order)
    y = y.reshape(y.shape[0], *(t * m for t, m in zip(x.shape[2:-1], tile, strict=True)), x.shape[-1])
    y = y[tuple(slice(d.const) for d in types[0].shape)]
    return ((y if bias is None else y + bias).astype(x.dtype),)


_ONE: Mapping[str, tuple[int, ...]] = MappingProxyType({"tile": (2,), "kernel": (3,)})
_TWO: Mapping[str, tuple[int, ...]] = MappingProxyType({"tile": (4, 2), "kernel": (3, 3)})

ROWS: tuple[Op, ...] = (
    Op(
        "winograd_input",
        "x",
        _infer_input,
        _ref_input,
        (
            Case(("f32[N, 6, 3]",), attrs={**_ONE, "tiles": (to_dim(2),)}),
            Case(("f32[2, 10, 6, N]",), attrs={**_TWO, "tiles": (to_dim(2),) * 2}),
            Case(("f32[2, 3, 6, 5]",), attrs={"tile": (1, 4), "kernel": (1, 3), "tiles": (to_dim(3), ONE)}),
            Case(("u8[2, 10, 6, N]",), attrs={**_TWO, "tiles": (to_dim(2),) * 2}, low=0, high=255),
        ),
        nest=_input,
    ),
    Op(
        "winograd_output",
        "x bias?",
        _infer_output,
        _ref_output,
        (
            Case(("f32[4, N, 2, 3]", "f32[3]"), attrs={**_ONE, "shape": (to_dim(3),)}),
            Case(("f32[24, 2, 2, 3, N]",), attrs={**_TWO, "shape": (to_dim(7), to_dim(6))}),
            Case(
                ("i32[24, 2, 2, 3, N]", "i32[N]"), attrs={**_TWO, "shape": (to_dim(7), to_dim(6))},
                low=-(1 << 30), high=1 << 30,
            ),
        ),
        nest=_output,
    ),
)

__all__ = ["ROWS", "excess", "transformed_weight", "transforms", "whole_transforms"]
