"""Graph -> Graph: operations between dequantize and quantize become operations on the integers.

    conv_transpose                        -->  conv, phase by phase (phases.py)
    conv(dequantize(x), dequantize(w))    -->  dequantize(conv(x, w) + what the zero points add)
    matmul(dequantize(a), dequantize(b))  -->  dequantize(matmul(a, b) + what the zero points add)
    move(dequantize(x))                   -->  dequantize(move(x))
    quantize(dequantize(x)), same scale   -->  x

Products of bytes are summed in i32, exactly. What stands between an integer sum and the next quantize
(bias, activations, sums of two branches) is fused into the same kernel later, which reads and writes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import NO, YES, Truth, to_dim
from smelt.core.dtype import Array, f16, f32, finfo, i8, i32, u8
from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ops import accumulate
from smelt.core.passes.cleanup.fold import evaluate, foldable
from smelt.core.passes.context import Context
from smelt.core.passes.numerics import EXACT, INTEGERS
from smelt.core.passes.quantized import blocks
from smelt.core.passes.rewriting import dequantized
from smelt.core.passes.rewriting.constants import ints_of
from smelt.core.passes.rewriting.dequantized import Quantised, source
from smelt.core.passes.rewriting.editor import Editor, edit_module
from smelt.core.passes.rewriting.either import either_by_size
from smelt.core.passes.rewriting.rules import Rule, rewrite, rule, run_rules
from smelt.core.passes.whole_graph import phases

ANY_SIZE = 1 << 62
"""Bytes that a moved weight may have: it takes the place of the one that was moved."""


def quantize(module: Module, ctx: Context) -> Module:
    """The module with integer convolutions and products where both operands are quantised."""
    return rewrite(module, (*RULES, *phases.RULES, *blocks.BLOCK_RULES))


# ---------------------------------------------------------------- what is in the way


def integer_blocker(g: Editor, n: Node) -> str | None:
    """Why a convolution or product with a quantised operand stays a float one; None when it does not."""
    a, b = (source(g, r) for r in n.inputs[:2])
    if a is None or b is None:
        return f"the {'left' if a is None else 'right'} operand is not quantised to 8 bits"
    if a.axis != -1:
        return "the left operand has a scale per channel"
    return _BLOCKERS[n.op](g, n, a, b)


def _conv_blocker(g: Editor, n: Node, x: Quantised, w: Quantised) -> str | None:
    why = dequantized.weight_blocker(g, x, w, 0)
    if why is not None:
        return why
    array, zero = g.array(w.x), g.array(w.zero) if w.zero else np.zeros((), np.int64)
    assert array is not None and zero is not None
    zero = zero.reshape(-1, *(1,) * (array.ndim - 1)) if zero.ndim else zero
    room = accumulate.fits_constant(_reach(g, x), array, zero, range(1, array.ndim), BIAS)
    return None if room is YES else _TOO_LONG.format(int(np.prod(array.shape[1:])))


BIAS = 2**29
"""The largest bias, in steps of the products' scale, that joins their sums."""
_TOO_LONG = "sums of {} products of bytes do not fit 32 bits"


def _reach(g: Editor, q: Quantised) -> int:
    """The largest |x - zero| of a quantised tensor."""
    zero = g.array(q.zero) if q.zero else np.zeros(())
    return accumulate.reach(g.type_of(q.x).dtype, zero)


def _room(g: Editor, a: Quantised, b: Quantised) -> Truth:
    """Whether 32 bits hold the sums of a product; UNKNOWN where the size of a run decides that."""
    array, zero = g.array(b.x), g.array(b.zero) if b.zero else np.zeros((), np.int64)
    if array is not None and zero is not None:
        return accumulate.fits_constant(_reach(g, a), array, zero, (array.ndim - 2,))
    return accumulate.fits(g.engine.facts, g.shape(b.x)[-2], _reach(g, a), _reach(g, b))


def _matmul_blocker(g: Editor, n: Node, a: Quantised, b: Quantised) -> str | None:
    rank = g.type_of(b.x).rank
    if min(g.type_of(r).rank for r in n.inputs) < 2:
        return "an operand of rank 1"
    if b.axis not in (-1, rank - 1):
        return f"the right operand has scales along axis {b.axis} of {rank}"
    if b.axis != -1 and rank != 2:
        return "the right operand has a batch and scales per column"
    return _TOO_LONG.format(g.shape(b.x)[-2]) if _room(g, a, b) is NO else None


_BLOCKERS = {"conv": _conv_blocker, "matmul": _matmul_blocker, "conv_transpose": phases.phases_blocker}


# ---------------------------------------------------------------- operands


def _signed(g: Editor, w: Quantised) -> tuple[Array, Array]:
    """A constant operand as i8, and its zero points to match, as i32."""
    array = g.array(w.x)
    assert array is not None
    zero = g.array(w.zero) if w.zero else np.zeros((), np.int32)
    assert zero is not None
    if array.dtype == np.int8:
        return np.asarray(array), zero.astype(np.int32)
    return (array.astype(np.int16) - 128).astype(np.int8), zero.astype(np.int32) - 128


def turned(g: Editor, ref: Ref, to: str) -> Ref:
    """i8 as u8 or u8 as i8, moved by 128, which turns the highest bit."""
    mask = g.constant(np.array(128, np.uint8), "sign")
    if to == "u8":
        return g.emit("bit_xor", (g.emit("cast", (ref,), {"to": u8}), mask))
    return g.emit("cast", (g.emit("bit_xor", (ref, mask)),), {"to": i8})


def _zero(g: Editor, q: Quantised, moved: int) -> Ref | int:
    """The zero point plus `moved`: a number when it is known, else an i32 value."""
    if not q.zero:
        return moved
    known = g.scalar(q.zero)
    if known is not None:
        return int(known) + moved
    wide = g.emit("cast", (q.zero,), {"to": i32})
    return wide if not moved else g.emit("add", (wide, g.like(moved, wide)))


def _unsigned(g: Editor, q: Quantised) -> tuple[Ref, Ref | int]:
    """A left operand as u8, and its zero point to match."""
    if g.type_of(q.x).dtype == u8:
        return q.x, _zero(g, q, 0)
    return turned(g, q.x, "u8"), _zero(g, q, 128)


def _product_scale(g: Editor, a: Quantised, b: Quantised) -> Ref:
    """a's scale times b's, as f32; a constant where both are."""
    left, right = g.array(a.scale), g.array(b.scale)
    if left is not None and right is not None:
        return g.constant(left.astype(np.float32) * right.astype(np.float32), "scale")
    parts = (a.scale, b.scale)
    same = [r if g.type_of(r).dtype == f32 else g.emit("cast", (r,), {"to": f32}) for r in parts]
    return g.emit("mul", same)


def _of_type(g: Editor, y: Ref, n: Node) -> Ref:
    wanted = n.output.type.dtype
    return y if g.type_of(y).dtype == wanted else g.emit("cast", (y,), {"to": wanted})


def _scales_multiply(g: Editor, a: Quantised, b: Quantised) -> bool:
    """Whether the product of two scales keeps all its bits; scales that only a run tells are taken to."""
    if any(g.type_of(q.scale).dtype == f16 for q in (a, b)):
        return False  # a dequantised half overflows from 65504 on
    left, right = g.array(a.scale), g.array(b.scale)
    if left is None or right is None:
        return True
    with np.errstate(all="ignore"):
        size = np.abs(left.astype(np.float32) * right.astype(np.float32))
    return bool(np.all(np.isfinite(size) & (size >= np.finfo(np.float32).tiny) & (size <= 2.0**64)))


# ---------------------------------------------------------------- convolution


@rule("conv", kind=INTEGERS, forms=[
    "x: u8[N, 4, H]; z: u8[] = 100; w: i8[6, 4, 3] = draw; conv(dequantize(x, 0.05, z, axis=-1), "
    "dequantize(w, 0.02, axis=-1), pads_begin=(1,))",
])
def _integer_conv(g: Editor, n: Node) -> Ref | None:
    # conv(dequantize(x), dequantize(w), b)  -->  dequantize(conv(x, w) - zero of x * sums of w) + b
    x, w = (source(g, r) for r in n.inputs[:2])
    if x is None or w is None or n.attr("channels_last", False) or integer_blocker(g, n) is not None:
        return None
    if not _scales_multiply(g, x, w):
        return None
    weight, own = _signed(g, w)
    if own.any() and weight.shape[1] == 1:  # no instruction sums bytes of one channel: wider ones do as well
        weight = (weight - own.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.int16)
        own = np.zeros_like(own)
    left, zero = _unsigned(g, x)
    assert isinstance(zero, int)
    total = -zero * weight.astype(np.int32).sum(axis=tuple(range(1, weight.ndim)), dtype=np.int32)
    scale = _product_scale(g, x, w)
    bias = n.inputs[2] if len(n.inputs) > 2 else ""
    whole = _integer_bias(g, bias, scale, total.size)
    total = total if whole is None else total + whole
    parts = [left, g.constant(weight, n.inputs[1][1:])]
    if total.any():
        parts.append(g.constant(total.astype(np.int32), "correction"))
    acc = g.emit("conv", parts, {**n.attrs, "origin": zero})
    if own.any():
        acc = g.emit("sub", (acc, _window_sums(g, n, left, zero, weight, own)))
    y = g.emit("dequantize", (acc, scale), {"axis": 1 if g.type_of(scale).rank else -1})
    y = _of_type(g, y, n)
    if not bias or whole is not None:
        return y
    rank = n.output.type.rank
    shape = (*g.shape(bias), *(to_dim(1) for _ in range(rank - 2)))
    return g.emit("add", (y, g.emit("reshape", (bias,), {"shape": shape})))


def _window_sums(g: Editor, n: Node, x: Ref, zero: int, weight: Array, own: Array) -> Ref:
    """The weight's zero points times the sums of x - zero over each window and group of channels."""
    group = int(n.attr("group"))
    ones = np.ones((group, *weight.shape[1:]), np.int8)
    parts = [x, g.constant(ones, "ones")]
    if zero:
        count = int(np.prod(weight.shape[1:]))
        parts.append(g.constant(np.full(group, -zero * count, np.int32), "correction"))
    sums = g.emit("conv", parts, {**n.attrs, "origin": zero})
    batch, _, *spatial = g.shape(sums)
    channels = weight.shape[0]
    if group > 1:
        each = to_dim(channels // group)
        sums = g.emit("reshape", (sums,), {"shape": (batch, to_dim(group), to_dim(1), *spatial)})
        sums = g.emit("broadcast_to", (sums,), {"shape": (batch, to_dim(group), each, *spatial)})
        sums = g.emit("reshape", (sums,), {"shape": (batch, to_dim(channels), *spatial)})
    zeros = np.broadcast_to(own.astype(np.int32), (channels,))
    return g.emit("mul", (sums, g.constant(zeros.reshape(channels, *(1 for _ in spatial)).copy(), "zeros")))


def _integer_bias(g: Editor, bias: Ref, scale: Ref, channels: int) -> Array | None:
    """A bias that is quantised with the scale of the products, as i32."""
    q = g.made_by(bias, "dequantize") if bias else None
    if q is None or g.type_of(q.inputs[0]).dtype != i32:
        return None
    zero = g.array(q.inputs[2]) if len(q.inputs) > 2 and q.inputs[2] else np.zeros(())
    if zero is None or zero.any():
        return None
    whole, own, wanted = g.array(q.inputs[0]), g.array(q.inputs[1]), g.array(scale)
    if whole is None or own is None or wanted is None or whole.shape != (channels,):
        return None
    # the product of two scales, rounded once or twice
    fits = np.allclose(own.astype(np.float64), wanted.astype(np.float64), rtol=2.0**-22, atol=0)
    return whole if fits and np.abs(whole.astype(np.int64)).max(initial=0) < BIAS else None


# ---------------------------------------------------------------- product


@rule("matmul", kind=INTEGERS, forms=[
    "x: u8[N, 6]; z: u8[] = 100; w: i8[6, 4] = draw; matmul(dequantize(x, 0.05, z, axis=-1), "
    "dequantize(w, 0.02, axis=-1))",
    "x: u8[N, 6]; y: i8[6, M]; matmul(dequantize(x, 0.05, axis=-1), dequantize(y, 0.02, axis=-1))",
])
def _integer_matmul(g: Editor, n: Node) -> Ref | None:
    # matmul(dequantize(a), dequantize(b))  -->  dequantize(matmul_integer(a, b))
    a, b = (source(g, r) for r in n.inputs)
    if a is None or b is None or integer_blocker(g, n) is not None or not _scales_multiply(g, a, b):
        return None
    if _room(g, a, b) is YES:
        return _summed(g, n, a, b)
    most = accumulate.most_terms(_reach(g, a), _reach(g, b))
    return either_by_size(
        g, g.shape(b.x)[-2], most, n.output.type,
        lambda inner: _summed(inner, n, a, b), lambda inner: inner.emit("matmul", n.inputs),
    )  # fmt: skip


def _summed(g: Editor, n: Node, a: Quantised, b: Quantised) -> Ref:
    acc, scale = integer_matmul(g, a, b), _product_scale(g, a, b)
    axis = n.output.type.rank - 1 if g.type_of(scale).rank else -1
    return _of_type(g, g.emit("dequantize", (acc, scale), {"axis": axis}), n)


@rule("matmul_integer", kind=EXACT, forms=[
    "x: u8[N, 6]; z: u8[] = 100; w: i8[6, 4] = draw; matmul_integer(x, w, z)",
    "x: i8[N, 6]; y: u8[6, M]; z: u8[] = 100; matmul_integer(x, y, '', z)",
    "x: u8[N, 6]; w: i8[6, 4] = draw; z: u8[N]; matmul_integer(x, w, z)",
])
def _spelt_matmul(g: Editor, n: Node) -> Ref | None:
    # matmul_integer(a, b, zeros)  -->  matmul(a, b) + what the zero points add
    a, b, zero_a, zero_b = (*n.inputs, "", "")[:4]
    if min(g.type_of(r).rank for r in (a, b)) < 2 or (zero_a and g.type_of(zero_a).rank):
        return None
    if zero_b and g.type_of(zero_b).rank and g.type_of(b).rank != 2:
        return None
    per_column = bool(zero_b) and g.type_of(zero_b).rank == 1
    right = Quantised(b, "", zero_b, g.type_of(b).rank - 1 if per_column else -1)
    return integer_matmul(g, Quantised(a, "", zero_a, -1), right)


def integer_matmul(g: Editor, a: Quantised, b: Quantised) -> Ref:
    """sum (a - za) (b - zb) in i32  =  sum a b - za sum b - zb sum a + K za zb"""
    left, za = _unsigned(g, a)
    known = g.array(b.x)
    zb: Ref | int
    if known is not None and (not b.zero or g.array(b.zero) is not None):
        array, zeros = _signed(g, b)
        right = b.x if known.dtype == np.int8 else g.constant(array, b.x[1:])
        zb = int(zeros) if zeros.ndim == 0 else (g.constant(zeros, "zeros") if zeros.any() else 0)
    elif g.type_of(b.x).dtype == i8:
        right, zb = b.x, _zero_of(g, b, 0)
    else:
        right, zb = turned(g, b.x, "i8"), _zero_of(g, b, -128)
    acc = g.emit("matmul", (left, right))
    if za != 0:
        acc = g.emit("sub", (acc, scaled_sums(g, integer_sums(g, right, -2), za)))
    if zb == 0:
        return acc
    rows = integer_sums(g, left, -1)
    if za != 0:
        depth = g.emit("from_dims", (), {"values": (g.shape(right)[-2],), "shape": (), "dtype": i32})
        rows = g.emit("sub", (rows, scaled_sums(g, depth, za)))
    return g.emit("sub", (acc, scaled_sums(g, rows, zb)))


def _zero_of(g: Editor, b: Quantised, moved: int) -> Ref | int:
    """As _zero, for a zero point per column as well."""
    if b.axis == -1:
        return _zero(g, b, moved)
    wide = g.emit("cast", (b.zero,), {"to": i32})
    return wide if not moved else g.emit("add", (wide, g.like(moved, wide)))


def integer_sums(g: Editor, ref: Ref, axis: int) -> Ref:
    """i32 sums along an axis that is kept with extent 1; a constant's now."""
    array = g.array(ref)
    if array is not None:
        return g.constant(array.astype(np.int32).sum(axis=axis, keepdims=True, dtype=np.int32), "sums")
    wide = g.emit("cast", (ref,), {"to": i32})
    return g.emit("reduce_sum", (wide,), {"axes": (g.type_of(ref).rank + axis,), "keepdims": True})


def scaled_sums(g: Editor, ref: Ref, by: Ref | int) -> Ref:
    if not isinstance(by, int):
        return g.emit("mul", (ref, by))
    array = g.array(ref)
    if array is not None:
        return g.constant(array * np.int32(by), "sums")
    return g.emit("mul", (ref, g.like(by, ref)))


# ---------------------------------------------------------------- moves

@rule(where=lambda op: op.compute is not None and op.broadcasts is None, kind=EXACT, forms=[
    "x: u8[N, 4]; transpose(dequantize(x, 0.05, axis=-1), perm=(1, 0))",
    "x: u8[N, 4]; i: i64[2]; gather(dequantize(x, 0.05, axis=-1), i, axis=1)",
    "x: i8[N, 4]; i: i64[N, 2]; gather_elements(dequantize(x, 0.05, axis=-1), i, axis=1)",
    "x: u8[N, 4]; reduce_sum(dequantize(x, 0.05, axis=-1), axes=(), keepdims=False)",
    "x: u8[N, 2, 4, 5]; p: f32[N, 3, 3, 2]; z: u8[] = 9; grid_sample(dequantize(x, 0.05, z, axis=-1), p, "
    "mode='nearest', padding='border', align_corners=True)",
])
def _move_bytes(g: Editor, n: Node) -> Ref | None:
    # move(dequantize(x))  -->  dequantize(move(x))
    d = g.made_by(n.inputs[0], "dequantize") if n.inputs else None
    q = source(g, n.inputs[0]) if d is not None else None
    if d is None or q is None or g.trait(n).moved != 0 or (q.axis != -1 and n.op != "transpose"):
        return None
    if not g.moved_alike(n, g.type_of(q.x).dtype):
        return None
    axis = q.axis if q.axis == -1 else ints_of(n.attrs["perm"]).index(q.axis)
    return _moved_bytes(g, n, q, d, axis)


@rule("max_pool", kind=EXACT, forms=[
    "x: i8[N, 2, H]; max_pool(dequantize(x, 0.05, axis=-1), kernel=(2,))",
    "x: i8[N, 2, H]; max_pool(dequantize(x, -0.05, axis=-1), kernel=(2,))",
])
def _largest_bytes(g: Editor, n: Node) -> Ref | None:
    # max_pool(dequantize(x))  -->  dequantize(max_pool(x)), the scale above 0
    d, q = g.made_by(n.inputs[0], "dequantize"), source(g, n.inputs[0])
    if d is None or q is None or q.axis != -1 or not _positive_scale(g, q.scale):
        return None
    return _moved_bytes(g, n, q, d, -1)


def _moved_bytes(g: Editor, n: Node, q: Quantised, d: Node, axis: int) -> Ref:
    """dequantize(n of the bytes); those of constants are moved now."""
    moved = g.emit(n.op, (q.x, *n.inputs[1:]), n.attrs)
    made = g.maker(moved)
    if made is not None and foldable(g, made, ANY_SIZE):
        moved = g.constant(evaluate(made, [g.array(r) for r in made.inputs])[0], q.x[1:])
    return g.emit("dequantize", (moved, *d.inputs[1:]), {"axis": axis})


def _positive_scale(g: Editor, scale: Ref) -> bool:
    """Whether a scale is known to be positive and finite."""
    array = g.array(scale)
    return array is not None and bool(np.all((array > 0) & np.isfinite(array)))


@rule("concat", kind=EXACT, forms=[
    "x: u8[N, 4]; y: u8[N, 2]; z: u8[] = 3; s: f32[] = 0.05; concat(dequantize(x, s, z, axis=-1), "
    "dequantize(y, s, z, axis=-1), axis=1)",
])
def _concat_bytes(g: Editor, n: Node) -> Ref | None:
    # concat(dequantize(a), dequantize(b)), same scale  -->  dequantize(concat(a, b))
    parts = [source(g, r) for r in n.inputs]
    found = [q for q in parts if q is not None]
    if len(found) != len(n.inputs) or any(q.axis != -1 for q in found):
        return None
    first = found[0]
    if not all(_same(g, first, q.scale, q.zero) for q in found[1:]):
        return None
    if len({g.type_of(q.x).dtype for q in found}) != 1:
        return None
    y = g.emit("concat", [q.x for q in found], n.attrs)
    params = (first.scale, first.zero) if first.zero else (first.scale,)
    return g.emit("dequantize", (y, *params), {"axis": -1})


@rule("quantize", kind=EXACT, forms=[
    "x: u8[N, 4]; z: u8[] = 3; s: f32[] = 0.05; quantize(dequantize(x, s, z, axis=-1), s, z, "
    "axis=-1, to=u8)",
])
def _quantize_again(g: Editor, n: Node) -> Ref | None:
    # quantize(dequantize(x)) with one scale and zero point  -->  x
    q = source(g, n.inputs[0])
    _, scale, zero = (*n.inputs, "")[:3]
    if q is None or q.axis != -1 or n.attrs.get("reciprocal", False) or not _same(g, q, scale, zero):
        return None
    if g.type_of(q.x) != n.output.type or not _comes_back(g, scale):
        return None
    if zero and g.type_of(zero).dtype != n.output.type.dtype:
        return None  # one beyond the type moves every value to an end of it
    return q.x


def _comes_back(g: Editor, scale: Ref) -> bool:
    """Whether (x * s) / s rounds to x for all x of 9 bits: s is known, no 0, and neither end overflows,
    neither in its type nor in f32, in which `quantize` divides."""
    array = g.array(scale)
    if array is None:
        return False
    size, own, f32 = np.abs(array.astype(np.float64)), finfo(array.dtype), np.finfo(np.float32)
    low, high = max(float(own.tiny), float(f32.tiny)), min(float(own.max), float(f32.max))
    return bool(np.all((size >= low) & (size * 512 < high))) and own.nmant >= 10


def _same(g: Editor, q: Quantised, scale: Ref, zero: Ref) -> bool:
    return _equal(g, q.scale, scale) and (q.zero == zero or _equal(g, q.zero, zero))


def _equal(g: Editor, a: Ref, b: Ref) -> bool:
    """Whether two scalars are the same value, or constants of the same value; an absent one is 0."""
    if a == b:
        return True
    left, right = (0 if not r else g.scalar(r) for r in (a, b))
    return left is not None and left == right


STEPS = frozenset({"floor", "ceil", "round", "trunc", "mod", "fmod", "sign"})
"""Functions that jump: after them the last bit of a quotient does mean something."""


@rule("quantize", kind=EXACT, forms=[
    "x: i32[N, 4]; z: u8[] = 3; quantize(transpose(dequantize(x, 0.0005, axis=-1), perm=(1, 0)), "
    "0.05, z, axis=-1, to=u8)",
])
def _quantize_first(g: Editor, n: Node) -> Ref | None:
    # quantize(move(integer sum))  -->  move(quantize(integer sum)): bytes are moved
    m = g.maker(n.inputs[0])
    if m is None or g.uses(n.inputs[0]) != 1 or any(g.type_of(r).rank for r in n.inputs[1:] if r):
        return None
    if g.trait(m).moved != 0 or not _from_sums(g, m.inputs[0], 6):
        return None
    if not g.moved_alike(m, n.output.type.dtype):
        return None
    return g.emit(m.op, (g.emit("quantize", (m.inputs[0], *n.inputs[1:]), n.attrs), *m.inputs[1:]), m.attrs)


@rule("quantize", kind=INTEGERS, forms=[
    "x: i32[N, 4]; z: u8[] = 3; quantize(relu(dequantize(x, 0.0005, axis=-1)), 0.05, z, axis=-1, "
    "to=u8)",
])
def _requantize(g: Editor, n: Node) -> Ref | None:
    # quantize(f(dequantize(integer sum)), s)  -->  quantize(f(..), 1 / s): no division per element
    scale = g.array(n.inputs[1])
    if scale is None or n.attrs.get("reciprocal", False) or not _from_sums(g, n.inputs[0], 4):
        return None
    if not dequantized.ordinary(scale):
        return None
    inverse = g.constant((1 / scale.astype(np.float64)).astype(np.float32), "step")
    return g.emit("quantize", (n.inputs[0], inverse, *n.inputs[2:]), {**n.attrs, "reciprocal": True})


@rule("quantize", kind=INTEGERS, forms=[
    "x: i32[N, 4]; z: u8[] = 3; quantize(dequantize(x, 0.0005, axis=-1), 0.05, z, axis=-1, to=u8)",
])
def _rescale(g: Editor, n: Node) -> Ref | None:
    # quantize(dequantize(integer sum, s), t)  -->  quantize(sum, s / t): the one factor of ONNX Runtime's
    # integer kernels, rounded as often, so that sums next to the middle of two steps go the same way
    d = g.made_by(n.inputs[0], "dequantize")
    if d is None or n.attrs.get("reciprocal", False) or any(d.inputs[2:]):
        return None
    own, step = g.array(d.inputs[1]), g.array(n.inputs[1])
    vectors = {m.attr("axis") for m, a in ((d, own), (n, step)) if a is None or a.ndim}
    vectors |= {n.attr("axis") for r in n.inputs[2:] if r and g.type_of(r).rank}
    if own is None or step is None or len(vectors) > 1 or g.type_of(d.inputs[0]).dtype != i32:
        return None
    if own.dtype != np.float32:
        return None  # a half overflows from 65504 on
    with np.errstate(all="ignore"):
        factor = own.astype(np.float32) / step.astype(np.float32)
    if not dequantized.ordinary(factor) or not dequantized.ordinary(own) or not dequantized.ordinary(step):
        return None
    acc = g.emit("cast", (d.inputs[0],), {"to": f32})
    attrs = {**n.attrs, "axis": next(iter(vectors), -1), "reciprocal": True}
    return g.emit("quantize", (acc, g.constant(factor, "step"), *n.inputs[2:]), attrs)


@rule("quantize", kind=EXACT, forms=["x: f32[N, 4]; z: u8[] = 0; quantize(relu(x), 0.05, z, axis=-1, to=u8)"])
def _saturated(g: Editor, n: Node) -> Ref | None:
    # quantize(relu(x), s, lowest zero point)  -->  quantize(x, s, lowest zero point): it saturates there
    r, to = g.made_by(n.inputs[0], "relu"), n.output.type.dtype
    if r is None or len(n.inputs) < 3 or g.scalar(n.inputs[2]) != to.limits[0]:
        return None
    step = g.array(n.inputs[1])
    return (
        g.emit("quantize", (r.inputs[0], *n.inputs[1:]), n.attrs)
        if step is not None and (step > 0).all()
        else None
    )


def _from_sums(g: Editor, ref: Ref, depth: int) -> bool:
    """Whether a value is a continuous function, element by element, of an integer sum, whose last bit means
    nothing."""
    n = g.maker(ref)
    if n is None or depth == 0:
        return False
    if n.op == "dequantize":
        return g.type_of(n.inputs[0]).dtype == i32
    trait = g.trait(n)
    if not (trait.elementwise or trait.moved is not None) or trait.work.keys() & STEPS:
        return False
    if not g.type_of(ref).dtype.is_float:
        return False
    return any(_from_sums(g, r, depth - 1) for r in n.inputs if r)


RULES: tuple[Rule, ...] = (
    _saturated, _rescale, _quantize_first, _requantize, _quantize_again, _move_bytes, _largest_bytes,
    _concat_bytes, _integer_conv, _integer_matmul, _spelt_matmul,
)  # fmt: skip


# ---------------------------------------------------------------- what became of a model


@dataclass(frozen=True, slots=True)
class QuantizedProduct:
    """A convolution or product with a quantised operand: its ONNX name, its op, and why it stays a float
    one ('' when it becomes an integer kernel)."""

    node: str
    op: str
    reason: str = ""


def quantized_products(module: Module) -> tuple[QuantizedProduct, ...]:
    """What `quantize` will make of an imported module."""
    found: list[QuantizedProduct] = []

    def look(g: Editor) -> None:
        run_rules(g, [_quantize_again, _move_bytes, _largest_bytes, _concat_bytes, *blocks.MOVE_RULES])
        for key in g.in_order():
            n = g.nodes[key]
            if n.op == "matmul_integer":
                found.append(QuantizedProduct(n.origin, n.op))
            elif n.op == "matmul" and g.made_by(n.inputs[1], "dequantize_blocks"):
                found.append(QuantizedProduct(n.origin, "matmul_nbits", blocks.packing_blocker(g, n) or ""))
            elif n.op in _BLOCKERS and any(source(g, r) for r in n.inputs[:2]):
                found.append(QuantizedProduct(n.origin, n.op, integer_blocker(g, n) or ""))

    edit_module(module, look)
    return tuple(found)


def quantized_summary(found: Sequence[QuantizedProduct]) -> Mapping[str, object]:
    """How many regions became integer kernels, and the others by name and reason."""
    left = {r.node: r.reason for r in found if r.reason}
    packed = sum(r.op == "matmul_nbits" and not r.reason for r in found)
    whole = len(found) - sum(bool(r.reason) for r in found) - packed
    return {"integer": whole, "float": left} | ({"packed": packed} if packed else {})
