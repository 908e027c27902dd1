"""Minimal filtering (Winograd): tiles of an input to transformed tiles, sums of their products to outputs.

A convolution of r taps whose outputs come in tiles of m is, for each of the n = m + r - 1 elements of a
transformed tile, a product of matrices:

    y = A^T (sum over c of (G w G^T) * (B^T x B)) A          (of one axis: without what stands on the right)

(S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, arXiv:1509.09308). The
matrices follow from n - 1 points and infinity, by interpolation of polynomials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from itertools import product
from math import lcm
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from smelt.core.dim import ONE, ZERO, ceildiv, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Buffer, Expr, Load, Store
from smelt.core.ops.attrs import dims, ints
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, const

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


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of (x - root), the lowest first."""
    found = [Fraction(1)]
    for r in roots:
        found = [a - r * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return tuple(found)


def transformed_weight(w: Array, tile: Sequence[int]) -> Array:
    """[*K, C, M] as [product of n, C, M], in f64."""
    y, kernel = w.astype(np.float64), w.shape[: len(tile)]
    for a, (m, r) in enumerate(zip(tile, kernel, strict=True)):
        g = np.array(transforms(m, r).weight, np.float64)
        y = np.moveaxis(np.tensordot(g, y, (1, a)), 0, a)
    return y.reshape(-1, *w.shape[len(tile) :])


def _of_axes(attrs: Attrs) -> list[Transforms]:
    return [transforms(m, r) for m, r in zip(ints(attrs, "tile"), ints(attrs, "kernel"), strict=True)]


def _checked(c: Infer, x: Arg, attrs: Attrs, rank: int) -> list[int]:
    """The extents of a transformed tile."""
    tile, kernel = ints(attrs, "tile"), ints(attrs, "kernel")
    if len(tile) != len(kernel) or x.rank != len(tile) + rank or not x.dtype.is_float:
        raise c.fail(f"{x.type} for tiles of {list(tile)} and {list(kernel)} taps")
    sizes = [m + r - 1 for m, r in zip(tile, kernel, strict=True)]
    if min(*tile, *kernel) < 1 or max(sizes) - 1 > len(INTERPOLATION_POINTS):
        raise c.fail(
            f"tiles of {list(tile)} with {list(kernel)} taps; there are {len(INTERPOLATION_POINTS)} points"
        )
    return sizes


# ---------------------------------------------------------------- input


def _infer_input(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[N, *S, C] -> [product of n, N, *T, C], where S = T * m + r - 1."""
    (x,) = args
    assert x
    sizes, tiles = _checked(c, x, attrs, 2), dims(attrs, "tiles")
    for a, (s, t) in enumerate(zip(x.shape[1:-1], tiles, strict=True)):
        m = ints(attrs, "tile")[a]
        c.same(f"spatial axis {a} and its tiles", s, t * m + (sizes[a] - m))
    elements = to_dim(int(np.prod(sizes)))
    return (TensorType(x.dtype, (elements, x.shape[0], *tiles, x.shape[-1])),)


def _input(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """All elements of a transformed tile beside each other, since they have sums in common."""
    (x,), (y,) = inputs, outputs
    assert x is not None
    axes, tile = _of_axes(attrs), ints(attrs, "tile")

    def element(i: DimIndex, at: tuple[int, ...], rest: Sequence[Transforms], which: Sequence[int]) -> Expr:
        if not rest:
            assert x is not None
            where = [i[1 + a] * m + k for a, (m, k) in enumerate(zip(tile, at, strict=True))]
            return Load(x.name, (i[0], *where, i[-1]), x.dtype)
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
        scaled = e if size == 1 else call("mul", e, const(float(size), e.dtype))
        found = scaled if found is None else call("sub" if minus else "add", found, scaled)
    assert found is not None
    return found


def _ref_input(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    y = x.astype(np.float64)
    axes, tile = _of_axes(attrs), ints(attrs, "tile")
    tiles = [d.const for d in dims(attrs, "tiles")]
    for a, (f, m, count) in enumerate(zip(axes, tile, tiles, strict=True)):
        n = len(f.data)
        at = np.arange(count)[:, None] * m + np.arange(n)
        cut = np.take(y, at, axis=1 + a)  # [.., T, n, ..]
        cut = np.tensordot(np.array(f.data, np.float64), cut, (1, 2 + a))
        y = np.moveaxis(cut, 0, -1)  # elements of the tile gather at the end
    rank = len(tile)
    y = np.moveaxis(y, tuple(range(-rank, 0)), tuple(range(rank)))
    return (y.reshape([d.const for d in types[0].shape]).astype(x.dtype),)


# ---------------------------------------------------------------- output


def _infer_output(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[product of n, N, *T, M], bias [M] -> [N, *O, M], where T = ceil(O / m)."""
    x, bias = (*args, None)[:2]
    assert x
    sizes, shape = _checked(c, x, attrs, 3), dims(attrs, "shape")
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
    axes, tile = _of_axes(attrs), ints(attrs, "tile")
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
    axes, tile = _of_axes(attrs), ints(attrs, "tile")
    rank = len(tile)
    y = x.astype(np.float64).reshape(*(len(f.data) for f in axes), *x.shape[1:])  # [n.., N, T.., M]
    for a, f in enumerate(axes):
        y = np.moveaxis(np.tensordot(np.array(f.back, np.float64), y, (1, a)), 0, a)
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
        ),
        nest=_output,
    ),
)

__all__ = ["ROWS", "transformed_weight", "transforms"]
