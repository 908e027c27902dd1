"""Random numbers as a function of position, seed, a number that a run draws, and the rounds around.

Without a draw and rounds they are the same in every run, on every target. attributes: shape, dtype, seed:
int, draw: a Dim, the symbol of a `bind` that draws (0: none). Inputs: the rounds around, i64[] each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import Dim, sym, to_dim
from smelt.core.dtype import Array, DType, f32, i64, u32, u64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.attrs import dims
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index

# Each round xors the high bits down and multiplies: 32 bits in, 32 well mixed bits out.
HASH_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))
GOLDEN = 0x9E3779B9
# Draw and rounds become one key of 64 bits: key * KEY_FACTOR + (round + 1) * KEY_STEP, modulo 2^64.
KEY_FACTOR, KEY_STEP = 0x5851F42D4C957F2D, 0x9E3779B97F4A7C15


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    for a in args:
        if a is None or a.dtype != i64 or a.rank:
            raise c.fail(f"a round is {a and a.type}, wanted i64[]")
    return (TensorType(dtype, dims(attrs, "shape")),)


def _start(attrs: Attrs) -> int:
    seed = attrs["seed"]
    assert isinstance(seed, int)
    return (seed + 1) * GOLDEN & 0xFFFFFFFF


def _draw(attrs: Attrs) -> Dim:
    (draw,) = dims({"draw": (attrs.get("draw", to_dim(0)),)}, "draw")
    return draw


def _key(attrs: Attrs, rounds: Sequence[Operand]) -> Expr | None:
    """What a run and its rounds add to the seed; None where that is nothing."""
    draw = _draw(attrs)
    if draw == to_dim(0) and not rounds:
        return None
    key: Expr = index(draw, u64)
    for r in rounds:
        step = call("mul", call("add", cast(r[()], u64), const(1, u64)), const(KEY_STEP, u64))
        key = call("add", call("mul", key, const(KEY_FACTOR, u64)), step)
    return key


def _uniform(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, *rounds: Operand) -> Expr:
    """24 bits of the mixed flat index, as a number in [0, 1)."""
    flat = to_dim(0)
    for d, n in zip(i, out.shape, strict=True):
        flat = flat * n + d
    h: Expr = call("add", index(flat, u32), const(_start(attrs), u32))
    key = _key(attrs, rounds)
    h = h if key is None else call("add", h, cast(key, u32))
    for late in (False, True):
        if late and key is not None:
            h = call("xor", h, cast(call("shr", key, const(32, u64)), u32))
        for shift, factor in HASH_ROUNDS:
            h = call("mul", call("xor", h, call("shr", h, const(shift, u32))), const(factor, u32))
        h = call("xor", h, call("shr", h, const(16, u32)))
    unit = call("mul", cast(call("shr", h, const(8, u32)), f32), const(2.0**-24, f32))
    return cast(unit, out.dtype)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    shape, mask = [d.const for d in types[0].shape], np.uint64(0xFFFFFFFF)
    key = _draw(attrs).const
    for r in arrays:
        assert r is not None
        key = (key * KEY_FACTOR + (int(r) + 1) * KEY_STEP) % 2**64
    h = (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(_start(attrs) + key % 2**32)) & mask
    for late in (False, True):
        h ^= np.uint64(key >> 32 if late else 0)
        for shift, factor in HASH_ROUNDS:
            h = ((h ^ (h >> np.uint64(shift))) * np.uint64(factor)) & mask
        h ^= h >> np.uint64(16)
    unit = (h >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    return (unit.reshape(shape).astype(types[0].dtype.numpy),)


ROWS: tuple[Op, ...] = (
    Op(
        "random_uniform",
        "*rounds",
        _infer,
        _ref,
        (
            Case((), attrs={"shape": (sym("N"), to_dim(5)), "dtype": f32, "seed": 7}),
            Case((), attrs={"shape": (to_dim(5),), "dtype": f32, "seed": 7, "draw": to_dim(2**61 + 2**33)}),
            Case((np.array(-3), np.array(2**40)), attrs={"shape": (sym("N"),), "dtype": f32, "seed": 7}),
        ),
        compute=_uniform,
    ),
)
