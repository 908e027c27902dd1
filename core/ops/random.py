"""Random numbers as a function of position and seed: the same in every run, on every target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import DType, f32, u32
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.attrs import dims
from smelt.core.ops.table import Arg, Array, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index

# Each round xors the high bits down and multiplies: 32 bits in, 32 well mixed bits out.
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))
GOLDEN = 0x9E3779B9


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    return (TensorType(dtype, dims(attrs, "shape")),)


def _start(attrs: Attrs) -> int:
    seed = attrs["seed"]
    assert isinstance(seed, int)
    return (seed + 1) * GOLDEN & 0xFFFFFFFF


def _uniform(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType) -> Expr:
    """24 bits of the mixed flat index, as a number in [0, 1)."""
    flat = to_dim(0)
    for d, n in zip(i, out.shape, strict=True):
        flat = flat * n + d
    h: Expr = call("add", index(flat, u32), const(_start(attrs), u32))
    for _ in range(2):
        for shift, factor in ROUNDS:
            h = call("mul", call("xor", h, call("shr", h, const(shift, u32))), const(factor, u32))
        h = call("xor", h, call("shr", h, const(16, u32)))
    unit = call("mul", cast(call("shr", h, const(8, u32)), f32), const(2.0**-24, f32))
    return cast(unit, out.dtype)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    shape = [d.const for d in types[0].shape]
    mask = np.uint64(0xFFFFFFFF)
    h = (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(_start(attrs))) & mask
    for _ in range(2):
        for shift, factor in ROUNDS:
            h = ((h ^ (h >> np.uint64(shift))) * np.uint64(factor)) & mask
        h ^= h >> np.uint64(16)
    unit = (h >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    return (unit.reshape(shape).astype(types[0].dtype.numpy),)


ROWS: tuple[Op, ...] = (
    Op(
        "random_uniform",
        "",
        _infer,
        _ref,
        (Case((), attrs={"shape": (sym("N"), to_dim(5)), "dtype": f32, "seed": 7}),),
        compute=_uniform,
    ),
)
