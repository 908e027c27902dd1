"""Signals in f64 -> core ops that make their Fourier transforms: O(n log n) where the length is known, else
O(n^1.5).

A length of small factors is transformed factor by factor (Cooley and Tukey; in the order of Stockham, which
leaves the bins in order): a step is a product with the waves of its factor, and a turn of each element. What
has a large prime factor becomes a circular convolution of a longer, smooth length (Bluestein), and so does a
length that only a run knows: the longer one is then the square of a number, which are two factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from smelt.core.dim import ZERO, Dim, product, to_dim
from smelt.core.dtype import f64, i64
from smelt.core.ir.graph import Ref
from smelt.importer.call import Call

Waves: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

STEP_COST = 16
"""A step moves each element about as long as so many multiply-adds take (benchmarks/results/ops.md)."""
KNOWN_LENGTH = 1 << 21
"""The longest signal whose transform is made of constants, of which there are a few for each element."""
SMALL_PRIMES = (13, 11, 7, 5, 3, 2)
"""Lengths of convolutions have no other prime factors."""


def waves_of(count: int, rows: int, columns: int, sign: float) -> tuple[Waves, Waves]:
    """cos and sin of sign * 2 pi i j / count, [rows, columns]; i * j is reduced modulo count first, so that
    the angle keeps its digits."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % max(count, 1)
    angle = sign * 2 * np.pi * turns / max(count, 1)
    return np.cos(angle), np.sin(angle)


@lru_cache(4096)
def factors(n: int) -> tuple[int, ...]:
    """The factors of n, of which each is a step, that take the least time; those of 1 are none."""
    if n == 1:
        return ()
    found = [(p, *factors(n // p)) for p in _divisors(n)]
    return min(found, key=_step_costs)


def _divisors(n: int) -> list[int]:
    """n, and those of its divisors that a step may have as its factor."""
    return [p for p in range(2, min(n, 65)) if n % p == 0] + [n]


def _step_costs(steps: tuple[int, ...]) -> int:
    """Multiply-adds of an element, and what moving it costs."""
    return sum(steps) + STEP_COST * len(steps)


def smooth_length(least: int) -> int:
    """The length from `least` on that is transformed in the least time, of those of small prime factors."""
    lengths = _smooth(1, least, least + least // 8 + 16, SMALL_PRIMES)
    power = 1 << (least - 1).bit_length()
    return min([*lengths, power], key=lambda n: n * _step_costs(factors(n)))


def _smooth(start: int, least: int, most: int, primes: tuple[int, ...]) -> Iterator[int]:
    """The numbers from least to most that are start times a product of these primes."""
    if not primes:
        if least <= start:
            yield start
        return
    while start <= most:
        yield from _smooth(start, least, most, primes[1:])
        start *= primes[0]


def _transformed(c: Call, x: Ref, n: int, bins: int, sign: float) -> Ref:
    """The first `bins` of n bins: f64[batch, n, parts] -> f64[batch, bins, 2]. parts: 1 where the signal is
    real, else 2. The waves turn by sign * 2 pi / n."""
    longer = smooth_length(2 * n - 1)
    by_steps = n * _step_costs(factors(n))
    by_chirps = 2 * longer * _step_costs(factors(longer)) + 3 * STEP_COST * n
    if n > 1 and by_chirps < by_steps:
        return _by_chirps(c, x, n, bins, sign, longer)
    return _by_steps(c, x, n, bins, sign)


def _by_steps(c: Call, x: Ref, n: int, bins: int, sign: float) -> Ref:
    """x is [batch, left, parts, done]: of each residue class of bins that is done, a signal that is left. A
    step of p takes left = p * q to q, and done to p * done."""
    b = c.builder
    batch, _, parts = b.type_of(x).shape
    left, done = n, 1
    for p in factors(n) or (1,):
        q = left // p
        rows = p if q > 1 else -(-bins // done)
        x = b.transpose(b.reshape(x, (batch, p, q, parts, done)), (0, 2, 3, 1, 4))
        x = b.reshape(x, (batch, q, parts * p, done))
        x = _multiplied(c, x, _wave_matrix(p, rows, sign, parts.const), done)
        parts, done, left = to_dim(2), done * rows, q
        if q > 1:
            x = b.reshape(x, (batch, q, 2, rows, done // rows))
            x = _turned(c, x, *waves_of(p * q, q, rows, sign), axis=2)
        x = b.reshape(x, (batch, q, 2, done))
    x = b.transpose(b.reshape(x, (batch, 2, done)), (0, 2, 1))
    return b.slice_axis(x, 1, 0, bins)


def _wave_matrix(p: int, rows: int, sign: float, parts: int) -> Waves:
    """[2 * rows, parts * p]: (real, imaginary) of each of the first `rows` bins from those of p elements."""
    cos, sin = waves_of(p, rows, p, sign)
    return np.block([[cos, -sin], [sin, cos]])[:, : parts * p]


def _multiplied(c: Call, x: Ref, matrix: Waves, done: int) -> Ref:
    """The matrix times each [columns, done] of x: [batch, q, columns, done]; where there is one column of
    each, all of them are one product."""
    b = c.builder
    batch, q, columns, _ = b.type_of(x).shape
    if done > 1:
        return c.emit("matmul", b.constant(matrix), x)
    y = c.emit("matmul", b.reshape(x, (batch * q, columns)), b.constant(np.ascontiguousarray(matrix.T)))
    return b.reshape(y, (batch, q, matrix.shape[0], 1))


def _turned(c: Call, x: Ref, cos: Waves, sin: Waves, axis: int) -> Ref:
    """x times cos + i sin, whose shape is that of the axes around x's axis of parts that come before the last
    one: cos is [q, rows] for [batch, q, 2, rows, done]."""
    b = c.builder
    rank = b.type_of(x).rank
    shape = [*cos.shape[: axis - 1], 2, *cos.shape[axis - 1 :]]
    shape = [1, *shape, *(1,) * (rank - 1 - len(shape))]
    own = b.constant(np.stack([cos, cos], axis - 1).reshape(shape))
    other = b.constant(np.stack([-sin, sin], axis - 1).reshape(shape))
    swapped = b.slice_axis(x, axis, 1, -1, -1)
    return c.emit("add", c.emit("mul", x, own), c.emit("mul", swapped, other))


def _by_chirps(c: Call, x: Ref, n: int, bins: int, sign: float, longer: int) -> Ref:
    """With jk = (j^2 + k^2 - (k - j)^2) / 2 a transform is a convolution with a chirp, which is a product of
    transforms of any length from 2n - 1 on. The chirp's own is computed here."""
    b = c.builder
    parts = b.type_of(x).shape[2]
    turns = np.arange(n) ** 2 % (2 * n)
    cos, sin = np.cos(sign * np.pi * turns / n), np.sin(sign * np.pi * turns / n)
    if parts.const == 1:
        pair = b.constant(np.stack([cos, sin], -1)[None])
        x = c.emit("mul", x, pair)
    else:
        x = _turned(c, x, cos, sin, 2)
    x = _padded(c, x, 1, to_dim(longer - n))
    chirp = np.zeros(longer, np.complex128)
    chirp[:n] = cos - 1j * sin
    chirp[longer - n + 1 :] = chirp[1:n][::-1]
    filter_ = np.fft.fft(chirp) / longer
    y = _by_steps(c, x, longer, longer, -1.0)
    y = _turned(c, y, filter_.real, filter_.imag, 2)
    y = _by_steps(c, y, longer, bins, 1.0)
    return _turned(c, y, cos[:bins], sin[:bins], 2)


def along(c: Call, x: Ref, axis: int, bins: Dim, sign: float) -> Ref:
    """The first `bins` bins of the transform along an axis: f64[..., n, ..., parts] -> f64[..., bins, ...,
    2]. parts: 1 where the signal is real, else 2. The waves turn by sign * 2 pi / n."""
    b = c.builder
    shape = b.type_of(x).shape
    rank, n = len(shape), shape[axis]
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    others: list[Dim] = [shape[a] for a in order[:-2]]
    flat = b.reshape(b.transpose(x, order), (product(others), n, shape[-1]))
    if n.is_const and bins.is_const and 1 <= n.const <= KNOWN_LENGTH:
        y = _transformed(c, flat, n.const, bins.const, sign)
    else:
        y = _late(c, flat, n, bins, sign)
    return b.transpose(b.reshape(y, (*others, bins, 2)), [order.index(a) for a in range(rank)])


# ---------------------------------------------------------------- lengths that a run knows


@dataclass(frozen=True)
class _Square:
    """What transforms of side * side elements need: cos and sin of 2 pi i / side^2 [side, side], where i is
    the product of row and column, and of 2 pi i / side."""

    side: Dim
    turn: tuple[Ref, Ref]
    wave: tuple[Ref, Ref]


def _late(c: Call, x: Ref, n: Dim, bins: Dim, sign: float) -> Ref:
    """As `_by_chirps`, all of it computed by the run."""
    b = c.builder
    square = _square(c, n)
    longer = square.side * square.side
    c.engine.at_most("elements of the longer signal", 2 * n, longer)
    own = _chirp(c, c.iota(n), n, sign)
    x = _late_turned(c, in_parts(c, x), own, (n, 1), 2)
    x = _padded(c, x, 1, longer - n)
    k = c.iota(longer)
    near = c.emit("min", k, c.emit("sub", b.from_dims([longer], []), k))
    inside = c.emit("less", near, b.from_dims([n], []))
    pair = [
        b.reshape(c.emit("where", inside, part, c.scalar(0.0, part)), (1, longer, 1))
        for part in _chirp(c, near, n, -sign)
    ]
    filter_ = _squared(c, c.emit("concat", *pair, axis=2), square, -1.0)
    filter_ = c.emit("div", filter_, c.cast(b.from_dims([longer], []), f64))
    parts = [b.reshape(b.slice_axis(filter_, 2, k, k + 1), (longer,)) for k in range(2)]
    y = _late_turned(c, _squared(c, x, square, -1.0), (parts[0], parts[1]), (longer, 1), 2)
    y = b.slice_axis(_squared(c, y, square, 1.0), 1, to_dim(0), bins)
    first = [b.slice_axis(part, 0, to_dim(0), bins) for part in own]
    return _late_turned(c, y, (first[0], first[1]), (bins, 1), 2)


def _square(c: Call, n: Dim) -> _Square:
    """The least whose elements hold a convolution of n with n."""
    b = c.builder
    root = c.emit("floor", c.emit("sqrt", c.cast(b.from_dims([2 * n], []), f64)))
    one_more = c.emit("add", b.cast(root, i64), b.constant(np.ones((), np.int64)))
    side = b.bind(one_more, 0, "side", 1, n + 1)
    rows, columns = b.reshape(c.iota(side), (side, 1)), b.reshape(c.iota(side), (1, side))
    turns = c.emit("mul", rows, columns)
    count = b.from_dims([side], [])
    return _Square(
        side,
        _angles(c, turns, b.from_dims([side * side], [])),
        _angles(c, c.emit("mod", turns, count), count),
    )


def _angles(c: Call, turns: Ref, whole: Ref, sign: float = 1.0) -> tuple[Ref, Ref]:
    """cos and sin of sign * 2 pi turns / whole."""
    part = c.emit("div", c.cast(turns, f64), c.cast(whole, f64))
    angle = c.emit("mul", part, c.scalar(sign * 2 * np.pi, part))
    return c.emit("cos", angle), c.emit("sin", angle)


def _chirp(c: Call, j: Ref, n: Dim, sign: float) -> tuple[Ref, Ref]:
    """cos and sin of sign * pi j^2 / n."""
    twice = c.builder.from_dims([2 * n], [])
    return _angles(c, c.emit("mod", c.emit("mul", j, j), twice), twice, sign)


def _late_turned(c: Call, x: Ref, by: tuple[Ref, Ref], shape: tuple[Dim | int, ...], axis: int) -> Ref:
    """x times by[0] + i by[1], which are reshaped to broadcast against x, whose parts are at the axis."""
    b = c.builder
    cos, sin = (b.reshape(part, shape) for part in by)
    rank = b.type_of(x).rank
    signs = b.constant(np.array([-1.0, 1.0]).reshape([2 if a == axis else 1 for a in range(rank)]))
    swapped = c.emit("mul", b.slice_axis(x, axis, 1, -1, -1), signs)
    return c.emit("add", c.emit("mul", x, cos), c.emit("mul", swapped, sin))


def _squared(c: Call, x: Ref, square: _Square, sign: float) -> Ref:
    """The transform of f64[batch, side * side, 2], by two steps of `_by_steps`."""
    b, side = c.builder, square.side
    batch = b.type_of(x).shape[0]
    wave, turn = ((cos, sin if sign > 0 else c.emit("neg", sin)) for cos, sin in (square.wave, square.turn))
    rows = ((wave[0], c.emit("neg", wave[1])), (wave[1], wave[0]))
    matrix = c.emit("concat", *(c.emit("concat", *row, axis=1) for row in rows), axis=0)
    x = b.transpose(b.reshape(x, (batch, side, side, 2)), (0, 2, 3, 1))
    x = c.emit("matmul", b.reshape(x, (batch * side, 2 * side)), b.transpose(matrix, (1, 0)))
    x = _late_turned(c, b.reshape(x, (batch, side, 2, side)), turn, (side, 1, side), 2)
    x = b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, 2 * side, side))
    x = b.reshape(c.emit("matmul", matrix, x), (batch, 2, side * side))
    return b.transpose(x, (0, 2, 1))


def _padded(c: Call, x: Ref, axis: int, more: Dim) -> Ref:
    """x with zeros behind it."""
    rank = c.builder.type_of(x).rank
    after = tuple(more if a == axis else ZERO for a in range(rank))
    return c.emit("pad", x, before=(ZERO,) * rank, after=after, mode="constant")


def in_parts(c: Call, x: Ref) -> Ref:
    """x with real and imaginary parts last; real numbers get zeros."""
    parts = c.builder.type_of(x).shape[-1]
    whole = parts == to_dim(2)
    return x if whole else _padded(c, x, c.builder.type_of(x).rank - 1, c.engine.simplify(2 - parts))
