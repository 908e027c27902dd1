"""Weights of 2, 4 or 8 bits, packed into bytes: their products with floats or bytes, and their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, ceildiv, to_dim
from smelt.core.dtype import Array, f32, i8, i32, i64, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Expr
from smelt.core.ops.attrs import integer
from smelt.core.ops.rows.linear import accumulator
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op, wants_elements
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index


def field(byte: Expr, part: Dim, bits: int) -> Expr:
    """Field `part` of a byte (0: the lowest bits), as i32."""
    wide = cast(byte, i32)
    if bits == 8:
        return wide
    moved = call("shr", wide, index(part * bits, i32))
    return call("and", moved, const((1 << bits) - 1, i32))


def bit_fields(a: Array, bits: int) -> Array:
    """All fields of an array of bytes, along its last axis."""
    per = 8 // bits
    parts = [(a >> np.uint8(bits * h)) & np.uint8((1 << bits) - 1) for h in range(per)]
    return np.stack(parts, -1).reshape(*a.shape[:-1], a.shape[-1] * per)


# ---------------------------------------------------------------- elements


def _infer_unpack(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    if x.dtype != u8 or x.rank == 0:
        raise c.fail(f"packed data is {x.type}, wanted u8 of rank 1 or more")
    return (TensorType(u8, (*x.shape[:-1], x.shape[-1] * (8 // integer(attrs, "bits")))),)


def _unpack(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """(x[.., i // per] >> bits * (i % per)) & mask"""
    bits = integer(attrs, "bits")
    per = 8 // bits
    return cast(field(x[(*i[:-1], i[-1] // per)], i[-1] % per, bits), u8)


def _ref_unpack(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return (bit_fields(x, integer(attrs, "bits")),)


# ---------------------------------------------------------------- product


def _infer_matmul(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """x [.., K], q u8 [N, blocks, bytes], scale [N, blocks], zero [N, blocks] -> [.., N]"""
    x, q, scale, zero, group = (*args, None, None)[:5]
    assert x and q and scale
    block, per = integer(attrs, "block"), 8 // integer(attrs, "bits")
    if x.rank == 0 or not x.dtype.is_float:
        raise c.fail(f"the left operand is {x.type}, wanted floats of rank 1 or more")
    if q.dtype != u8 or q.rank != 3:
        raise c.fail(f"packed weights are {q.type}, wanted u8 of rank 3")
    c.same("bytes per block", q.shape[2], to_dim(block // per))
    c.same("blocks of weights", q.shape[1], ceildiv(x.shape[-1], to_dim(block)))
    for what, a in (("scales", scale), ("zero points", zero)):
        if a is not None:
            if a.rank != 2:
                raise c.fail(f"{what} have rank {a.rank}, wanted 2")
            c.same(f"columns of {what}", q.shape[0], a.shape[0])
            c.same(f"blocks of {what}", q.shape[1], a.shape[1])
    if group is not None:
        c.same("group indices", group.shape[0], x.shape[-1])
        wants_elements(c, "the axis of blocks", group.shape, scale.shape[1])
    return (TensorType(x.dtype, (*x.shape[:-1], q.shape[0])),)


def _matmul(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, q: Operand, scale: Operand, zero: Operand | None = None, group: Operand | None = None,
) -> Expr:  # fmt: skip
    """sum over blocks b, bytes j, fields h of x[.., k] * (field(q[n, b, j], h) - zero[n, b]) * scale[n, b]"""
    bits, block = integer(attrs, "bits"), integer(attrs, "block")
    per, n = 8 // bits, i[-1]
    acc = accumulator(x.dtype)
    depth = x.shape[-1]
    whole = depth.is_const and depth.const % block == 0

    def weight(b: Dim, j: Dim, h: Dim, g: Dim) -> Expr:
        w = cast(field(q[n, b, j], h, bits), acc)
        origin = const(1 << (bits - 1), acc) if zero is None else cast(zero[n, g], acc)
        return call("mul", call("sub", w, origin), cast(scale[n, g], acc))

    def term(b: Dim, j: Dim, h: Dim) -> Expr:
        k = b * block + j * per + h
        bounds = () if whole else (Bound(ZERO, k, depth),)
        a = cast(x.guarded((*i[:-1], k), bounds, const(0, x.dtype)), acc)
        if group is None:
            return call("mul", a, weight(b, j, h, b))
        own = cast(group.guarded((k,), bounds, const(0, group.dtype)), i64)
        return call("mul", a, t.let(own, 0, scale.shape[1] - 1, lambda g: weight(b, j, h, g)))

    if per == 1:
        total = t.sum([q.shape[1], block], lambda b, j: term(b, j, ZERO))
    else:
        total = t.sum([q.shape[1], block // per, per], term)
    return cast(total, out.dtype)


def _ref_matmul(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, q, scale, zero, group = (*arrays, None, None)[:5]
    assert x is not None and q is not None and scale is not None
    bits, block = integer(attrs, "bits"), integer(attrs, "block")
    depth = x.shape[-1]
    w = bit_fields(q, bits).reshape(q.shape[0], q.shape[1] * block)[:, :depth].astype(np.float64)
    own = np.arange(depth) // block if group is None else np.clip(group, 0, scale.shape[1] - 1)
    origin = np.float64(1 << (bits - 1)) if zero is None else zero.astype(np.float64)[:, own]
    w = (w - origin) * scale.astype(np.float64)[:, own]
    return ((x.astype(np.float64) @ w.T).astype(x.dtype),)


# ---------------------------------------------------------------- product of steps


def _infer_steps(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """x i8 [.., K], step [.., blocks], sums i32 [.., blocks], q u8 [N, blocks, bytes], scale [N, blocks],
    zero u8 [N, blocks] -> f32 [.., N]"""
    x, step, sums, q, scale, zero = (*args, None)[:6]
    assert x and step and sums and q and scale
    block, bits = integer(attrs, "block"), integer(attrs, "bits")
    for what, a, dtype in (
        ("the left operand", x, i8), ("its steps", step, f32), ("its sums", sums, i32), ("codes", q, u8),
        ("scales", scale, f32), ("zero points", zero, u8),
    ):  # fmt: skip
        if a is not None and a.dtype != dtype:
            raise c.fail(f"{what}: {a.type}, wanted {dtype}")
    if x.rank == 0 or q.rank != 3:
        raise c.fail(f"operands of rank {x.rank} and {q.rank}, wanted 1 or more, and 3")
    if block % (8 // bits * integer(attrs, "word")):
        raise c.fail(f"blocks of {block} are no whole words of {integer(attrs, 'word')} bytes")
    c.same("bytes per block", q.shape[2], to_dim(block * bits // 8))
    c.same("the axis of blocks", q.shape[1] * block, x.shape[-1])
    rows = (*x.shape[:-1], q.shape[1])
    for what, a, shape in (
        ("steps", step, rows), ("sums", sums, rows), ("scales", scale, q.shape[:2]),
        ("zero points", zero, q.shape[:2]),
    ):  # fmt: skip
        if a is not None and a.rank != len(shape):
            raise c.fail(f"{what} have rank {a.rank}, wanted {len(shape)}")
        for axis, (own, wanted) in enumerate(zip(a.shape if a else (), shape, strict=False)):
            c.same(f"axis {axis} of {what}", own, wanted)
    return (TensorType(f32, (*x.shape[:-1], q.shape[0])),)


def _steps(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType,
    x: Operand, step: Operand, sums: Operand, q: Operand, scale: Operand, zero: Operand | None = None,
) -> Expr:  # fmt: skip
    """sum over blocks b of (sum over k of x[.., k] * code[n, k] - zero[n, b] * sums[.., b]) * scale * step"""
    bits, block, word = integer(attrs, "bits"), integer(attrs, "block"), integer(attrs, "word")
    per, n = 8 // bits, i[-1]

    def term(b: Dim, w: Dim, h: Dim, j: Dim) -> Expr:
        k = b * block + (w * per + h) * word + j
        return call("mul", cast(x[(*i[:-1], k)], i32), field(q[n, b, w * word + j], h, bits))

    def total(b: Dim) -> Expr:
        words = block // per // word
        if per == 1:
            found: Expr = t.sum([words, word], lambda w, j: term(b, w, ZERO, j))
        else:
            found = t.sum([words, per, word], lambda w, h, j: term(b, w, h, j))
        taken = sums[(*i[:-1], b)]
        taken = taken if zero is None else call("mul", taken, cast(zero[n, b], i32))
        whole = cast(call("sub", found, taken), f32)
        return call("mul", whole, call("mul", scale[n, b], step[(*i[:-1], b)]))

    return t.sum([q.shape[1]], total)


def _ref_steps(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, step, sums, q, scale, zero = (*arrays, None)[:6]
    assert x is not None and step is not None and sums is not None and q is not None and scale is not None
    bits, block, word = integer(attrs, "bits"), integer(attrs, "block"), integer(attrs, "word")
    columns, blocks, size = q.shape
    words = q.reshape(columns, blocks, size // word, word)
    parts = [(words >> np.uint8(bits * h)) & np.uint8((1 << bits) - 1) for h in range(8 // bits)]
    w = np.stack(parts, -2).reshape(columns, blocks, block).astype(np.int64)
    rows = x.reshape(*x.shape[:-1], blocks, block).astype(np.int64)
    found = np.einsum("...bk,nbk->...nb", rows, w)
    taken = sums.astype(np.int64)[..., None, :]
    found = found - (taken if zero is None else taken * zero.astype(np.int64))
    scales = scale.astype(np.float64) * step.astype(np.float64)[..., None, :]
    return ((found * scales).sum(-1).astype(np.float32),)


def in_words(q: Array, bits: int, word: int) -> Array:
    """Packed weights [.., bytes], neighbours side by side in a byte -> the same with neighbours in words: the
    lowest fields of `word` bytes are neighbours, then come the next fields of these bytes."""
    per, mask = 8 // bits, np.uint8((1 << bits) - 1)
    took = np.ascontiguousarray(q.reshape(-1, word).T)  # NumPy is slow along an axis as short as a word
    packed = np.zeros_like(took)
    for place in range(per * word):
        (byte, field_), (part, n) = divmod(place, per), divmod(place, word)
        packed[n] |= (took[byte] >> np.uint8(bits * field_) & mask) << np.uint8(bits * part)
    return np.ascontiguousarray(packed.T).reshape(q.shape)


def _nbits(bits: int, block: int, depth: int, *more: str | Array, columns: int = 40) -> Case:
    blocks = -(-depth // block)
    q = _mixed(256, columns, blocks, block * bits // 8).astype(np.uint8)
    scales = (0.05 + 0.15 / 256 * _mixed(256, columns, blocks)).astype(np.float32)
    return Case((f"f32[N, 2, {depth}]", q, scales, *more), attrs={"bits": bits, "block": block})


def _mixed(limit: int, *shape: int) -> Array:
    """Integers below a limit, in no order that a kernel could mistake: Fibonacci hashes of their places.
    NumPy's generators take as long to import as all rows of the op table."""
    places = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
    hashes = places * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return (hashes % np.uint64(limit)).reshape(shape).astype(np.int64)


def _in_steps(bits: int, block: int, depth: int, *zero: Array, columns: int = 40, word: int = 4) -> Case:
    blocks = depth // block
    q = _mixed(256, columns, blocks, block * bits // 8).astype(np.uint8)
    scales = (0.05 + 0.15 / 256 * _mixed(256, columns, blocks)).astype(np.float32)
    rows = (f"i8[N, 2, {depth}]", f"f32[N, 2, {blocks}]", f"i32[N, 2, {blocks}]")
    attrs = {"bits": bits, "block": block, "word": word}
    return Case((*rows, q, scales, *zero), attrs=attrs, low=-127, high=127)


_ZEROS = _mixed(16, 40, 3).astype(np.uint8)
_GROUPS = _mixed(3, 70).astype(np.int32)

ROWS: tuple[Op, ...] = (
    Op(
        "unpack_bits",
        "x",
        _infer_unpack,
        _ref_unpack,
        tuple(Case(("u8[N, 6]",), attrs={"bits": b}, low=0, high=255) for b in (2, 4)),
        compute=_unpack,
    ),
    Op(
        "matmul_nbits",
        "x q scale zero? group?",
        _infer_matmul,
        _ref_matmul,
        (
            _nbits(4, 32, 64),
            _nbits(4, 32, 70, _ZEROS),
            _nbits(2, 16, 48),
            _nbits(8, 16, 33),
            _nbits(4, 32, 70, _ZEROS, _GROUPS),
            _nbits(4, 16, 32, columns=3),
        ),
        compute=_matmul,
        tolerance=4,  # sums of a hundred products in another order
    ),
    Op(
        "matmul_steps",
        "x step sums q scale zero?",
        _infer_steps,
        _ref_steps,
        (
            _in_steps(4, 32, 64),
            _in_steps(4, 16, 48, _ZEROS),
            _in_steps(2, 16, 32, columns=3),
            _in_steps(8, 16, 32),
            _in_steps(4, 32, 32, word=8),
        ),
        compute=_steps,
        tolerance=4,  # sums of blocks in another order
    ),
)
