"""The core op that multiplies each row by the matrix of the expert that data picks for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, ceildiv, to_dim
from smelt.core.dtype import Array, i64, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Expr
from smelt.core.ops.attrs import integer
from smelt.core.ops.rows.linear import accumulator
from smelt.core.ops.rows.nbits import bit_fields, field
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op, wants_elements
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const


def _packing(attrs: Attrs) -> tuple[int, int]:
    """(bits of a packed weight, 0 for floats; how many weights share a scale)."""
    return integer(attrs, "bits"), integer(attrs, "block")


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """x [R, K], which [R], w [E, N, K] -> [R, N]; or w u8 [E, N, bytes] with scale, zero [E, N, blocks]."""
    x, which, w, scale, zero = (*args, None, None)[:5]
    assert x and which and w
    bits, block = _packing(attrs)
    if x.rank != 2 or which.rank != 1 or w.rank != 3 or not x.dtype.is_float or not which.dtype.is_int:
        raise c.fail(f"found {x.type}, {which.type} and {w.type}; wanted rows, integers and matrices")
    c.same("rows", x.shape[0], which.shape[0])
    wants_elements(c, "the axis of experts", (x.shape[0], w.shape[1]), w.shape[0])
    if not bits:
        if w.dtype != x.dtype:
            raise c.fail(f"rows are {x.dtype}, matrices {w.dtype}")
        c.same("columns of rows and matrices", x.shape[1], w.shape[2])
        return (TensorType(x.dtype, (x.shape[0], w.shape[1])),)
    if w.dtype != u8 or scale is None:
        raise c.fail(f"packed matrices are {w.type}, wanted u8 with scales")
    blocks = ceildiv(x.shape[1], to_dim(block))
    c.same("bytes of a row", w.shape[2], ceildiv(x.shape[1] * bits, to_dim(8)))
    for what, a in (("scales", scale), ("zero points", zero)):
        if a is not None:
            for k, extent in enumerate((*w.shape[:2], blocks)):
                c.same(f"axis {k} of {what}", a.shape[k], extent)
    return (TensorType(x.dtype, (x.shape[0], w.shape[1])),)


def _multiply(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, which: Operand, w: Operand, scale: Operand | None = None, zero: Operand | None = None,
) -> Expr:  # fmt: skip
    """sum over k of x[r, k] * w[which[r], n, k]"""
    (r, n), acc = i, accumulator(x.dtype)
    bits, block = _packing(attrs)
    depth = x.shape[1]

    def plain(e: Dim) -> Expr:
        return t.sum([depth], lambda k: call("mul", cast(x[r, k], acc), cast(w[e, n, k], acc)))

    def packed(e: Dim) -> Expr:
        assert scale is not None
        per = 8 // bits
        whole = depth.is_const and depth.const % block == 0

        def term(b: Dim, j: Dim, h: Dim) -> Expr:
            k = b * block + j * per + h
            bounds = () if whole else (Bound(ZERO, k, depth),)
            byte = w.guarded((e, n, b * (block // per) + j), bounds, const(0, w.dtype))
            origin = const(1 << (bits - 1), acc) if zero is None else cast(zero[e, n, b], acc)
            own = call("sub", cast(field(byte, h, bits), acc), origin)
            a = cast(x.guarded((r, k), bounds, const(0, x.dtype)), acc)
            return call("mul", a, call("mul", own, cast(scale[e, n, b], acc)))

        extents: list[Dim | int] = [scale.shape[2], block // per, *([per] if per > 1 else [])]
        return t.sum(extents, lambda b, j, h=ZERO: term(b, j, h))

    y = t.let(cast(which[(r,)], i64), ZERO, w.shape[0] - 1, packed if bits else plain)
    return cast(y, out.dtype)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, which, w, scale, zero = (*arrays, None, None)[:5]
    assert x is not None and which is not None and w is not None
    bits, block = _packing(attrs)
    weight = w.astype(np.float64)
    if bits:
        assert scale is not None
        at = np.arange(x.shape[1]) // block
        origin = np.float64(1 << (bits - 1)) if zero is None else zero.astype(np.float64)[..., at]
        weight = bit_fields(w, bits)[..., : x.shape[1]].astype(np.float64)
        weight = (weight - origin) * scale.astype(np.float64)[..., at]
    own = weight[np.clip(which, 0, w.shape[0] - 1)]
    return (np.einsum("rk,rnk->rn", x.astype(np.float64), own).astype(x.dtype),)


_RNG = np.random.default_rng(4)
_WHICH = _RNG.integers(0, 3, 5).astype(np.int64)
_BYTES = _RNG.integers(0, 256, (3, 6, 16)).astype(np.uint8)
_SCALES = _RNG.uniform(0.05, 0.2, (3, 6, 2)).astype(np.float32)
_ZEROS = _RNG.integers(0, 16, (3, 6, 2)).astype(np.uint8)

ROWS: tuple[Op, ...] = (
    Op(
        "matmul_experts",
        "x which w scale? zero?",
        _infer,
        _ref,
        (
            Case(("f32[5, M]", _WHICH, "f32[3, 4, M]"), attrs={"bits": 0, "block": 0}),
            Case(("f32[5, 32]", _WHICH, _BYTES, _SCALES, _ZEROS), attrs={"bits": 4, "block": 16}),
            Case(("f32[5, 16]", _WHICH, _BYTES, _SCALES[..., :1]), attrs={"bits": 8, "block": 16}),
            Case(("f32[N, 4]", "i64[N]", "f32[2, 3, 4]"), attrs={"bits": 0, "block": 0}, low=0, high=1),
        ),
        compute=_multiply,
        tolerance=4,  # sums in another order
    ),
)
