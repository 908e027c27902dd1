"""Graph -> Graph: products of bytes get operands that the machine's instructions take, by three passes.

    signs:     matmul(x u8, w i8)         -->  matmul(x - 128 as i8, w) + 128 * column sums of w
               conv(x u8, w i8, b)        -->  conv(x - 128 as i8, w, b + 128 * sums of w)
               where the machine has no row for u8 times i8, but one for i8 times i8
    channels:  conv(x[.., 3], w[.., 3, m])  -->  conv(pad(x)[.., 4], pad(w)[.., 4, m])
               where the machine has a row that sums four products of such bytes
    words:     matmul_nbits(dequantize_blocks(x i8), w)  -->  matmul_steps(x, steps, sums of x, w in words)
               where the machine has a row for i8 times what a byte of w holds
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import Array, DType, f32, i8, i32, u8
from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ir.instructions import depths
from smelt.core.ops.rows.nbits import in_words
from smelt.core.passes.context import Context
from smelt.core.passes.numerics import EXACT, INTEGERS
from smelt.core.passes.quantized.quantize import integer_sums, scaled_sums, turned
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rewrite, rule

Depths: TypeAlias = Mapping[tuple[DType, DType], int]
"""The types of two factors -> how many of their products an instruction sums at least."""


def signs(module: Module, ctx: Context) -> Module:
    """The module with signed bytes on the left, on machines whose instructions take only those."""
    found = depths(ctx.machine)
    if (u8, i8) in found or (i8, i8) not in found:
        return module
    return rewrite(module, (_signed_matmul, _signed_conv))


def channels(module: Module, ctx: Context) -> Module:
    """The module with padded channels, where that fills the words that the machine's instructions take."""
    found = depths(ctx.machine)
    return rewrite(module, (_padding(found),)) if found else module


def words(module: Module, ctx: Context) -> Module:
    """The module with products of bytes and packed weights, where the machine's instructions take both."""
    found = depths(ctx.machine)
    return rewrite(module, (_in_words(found),)) if found else module


def _weight(g: Editor, n: Node) -> Array | None:
    """The constant i8 right operand of a product with u8, else None."""
    x, w = n.inputs[:2]
    return g.array(w) if (g.type_of(x).dtype, g.type_of(w).dtype) == (u8, i8) else None


def _signed(g: Editor, x: Ref) -> Ref:
    """x - 128 as i8; of bytes that were signed before, these."""
    xor = g.made_by(x, "bit_xor")
    cast = g.made_by(xor.inputs[0], "cast") if xor is not None and g.scalar(xor.inputs[1]) == 128 else None
    if cast is not None and g.type_of(cast.inputs[0]).dtype == i8:
        return cast.inputs[0]
    return turned(g, x, "i8")


@rule("matmul", kind=EXACT, forms=[
    "x: u8[N, 10]; w: i8[10, 4] = draw; matmul(x, w)",
    "x: u8[2, N, 10]; w: i8[2, 10, 4]; matmul(x, w)",
])
def _signed_matmul(g: Editor, n: Node) -> Ref | None:
    # matmul(x, w)  -->  matmul(x - 128, w) + 128 * sums of w
    x, w = n.inputs
    if (g.type_of(x).dtype, g.type_of(w).dtype) != (u8, i8) or min(g.type_of(r).rank for r in n.inputs) < 2:
        return None
    if not all(d.is_const for d in g.shape(w)[-2:]):
        return None  # no instruction takes it (core/schedule/strategies/fitting.py)
    if g.array(w) is None and g.shape(x)[-2].const_or_none == 1:
        return None  # the sums would take as long as the product
    sums = scaled_sums(g, integer_sums(g, w, -2), 128)
    return g.emit("add", (g.emit("matmul", (_signed(g, x), w)), sums))


@rule("conv", kind=EXACT, forms=[
    "x: u8[N, 6, H]; w: i8[4, 6, 3] = draw; conv(x, w, pads_begin=(1,), origin=7)",
    "x: u8[N, H, 6]; w: i8[3, 6, 4] = draw; b: i32[4]; conv(x, w, b, channels_last=True, origin=200)",
])
def _signed_conv(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b)  -->  conv(x - 128, w, b + 128 * sums of w)
    w = _weight(g, n)
    if w is None or int(n.attr("group")) != 1:
        return None
    last = bool(n.attr("channels_last", False))
    axes = tuple(range(w.ndim - 1) if last else range(1, w.ndim))
    bias = g.constant(128 * w.astype(np.int32).sum(axis=axes, dtype=np.int32), "correction")
    if len(n.inputs) > 2 and n.inputs[2]:
        bias = g.emit("add", (n.inputs[2], bias))
    attrs = {**n.attrs, "origin": int(n.attr("origin", 0)) - 128}
    return g.emit("conv", (_signed(g, n.inputs[0]), n.inputs[1], bias), attrs)


def _padded_conv(g: Editor, n: Node, depths: Depths) -> Ref | None:
    # conv(x, w, b) on 3 channels  -->  conv(pad(x), pad(w), b) on 4, the depth: 3 bytes take two loads, 4 one
    x, w = n.inputs[:2]
    depth = depths.get((g.type_of(x).dtype, g.type_of(w).dtype))
    if depth is None or not n.attr("channels_last", False) or int(n.attr("group")) != 1:
        return None
    if (depth - 1).bit_count() == 1:
        return None  # one load takes a byte fewer, too
    array = g.array(w)
    if array is None or array.shape[-2] != depth - 1:
        return None
    rank = g.type_of(x).rank
    zeros: tuple[Dim, ...] = (to_dim(0),) * rank
    after = (*zeros[1:], to_dim(1))
    wide = g.emit("pad", (x,), {"before": zeros, "after": after, "mode": "constant"})
    more = np.pad(array, [(0, 1 if a == array.ndim - 2 else 0) for a in range(array.ndim)])
    return g.emit("conv", (wide, g.constant(more, w[1:]), *n.inputs[2:]), n.attrs)


def _padding(depths: Depths) -> Rule:
    """_padded_conv for a machine."""
    return Rule("padded_conv", ("conv",), partial(_padded_conv, depths=depths), EXACT, (
        "x: u8[N, H, 3]; w: i8[3, 3, 4] = draw; conv(x, w, channels_last=True, pads_begin=(1,), origin=7)",
    ))  # fmt: skip


def _words_product(g: Editor, n: Node, depths: Depths) -> Ref | None:
    # matmul_nbits(reshape(dequantize_blocks(x, step)), w)  -->  matmul_steps(x, step, sums of x, w in words)
    r = g.made_by(n.inputs[0], "reshape")
    d = g.made_by(r.inputs[0], "dequantize_blocks") if r is not None else None
    bits, block = int(n.attr("bits")), int(n.attr("block"))
    if d is None or len(d.inputs) > 2 or len(n.inputs) > 4:
        return None
    (x, step), (q, scale, zero) = d.inputs, (*n.inputs[1:], "")[:3]
    *rows, blocks, each = g.shape(x)
    packed, word = g.array(q), _word(bits, depths)
    if packed is None or not word or block % (8 // bits * word) or block > LONGEST_BLOCK:
        return None
    own = (*rows, blocks, to_dim(1)) == g.shape(step) and each == block and blocks == g.shape(q)[1]
    types = [g.type_of(v).dtype for v in (x, step, scale)]
    if not own or g.shape(n.inputs[0])[:-1] != tuple(rows) or types != [i8, f32, f32]:
        return None
    if zero and g.type_of(zero).dtype != u8:
        return None
    sums = g.emit(
        "reduce_sum", (g.emit("cast", (x,), {"to": i32}),), {"axes": (len(rows) + 1,), "keepdims": False}
    )
    if not zero:
        sums = g.emit("mul", (sums, g.like(1 << bits - 1, sums)))
    inputs = (
        g.emit("reshape", (x,), {"shape": (*rows, blocks * block)}),
        g.emit("reshape", (step,), {"shape": (*rows, blocks)}),
        sums, g.constant(in_words(packed, bits, word), q[1:]), scale,
    )  # fmt: skip
    more = (zero,) if zero else ()
    return g.emit("matmul_steps", (*inputs, *more), {"bits": bits, "block": block, "word": word})


LONGEST_BLOCK = 1 << 15
"""Elements of a block whose products of two bytes have a sum of 32 bits in any case."""


def _word(bits: int, depths: Depths) -> int:
    """How many bytes of weights the machine multiplies by as many i8 at once; 0: none. A field of fewer than
    8 bits is the same number with a sign as without."""
    found = [depths.get((i8, u8))] + ([depths.get((i8, i8))] if bits < 8 else [])
    return next((d for d in found if d), 0)


def _in_words(depths: Depths) -> Rule:
    """_words_product for a machine."""
    return Rule("words_product", ("matmul_nbits",), partial(_words_product, depths=depths), INTEGERS, (
        "x: i8[N, 2, 16]; t: f32[N, 2, 1]; q: u8[4, 2, 8] = draw(0, 255); s: f32[4, 2] = draw; "
        "matmul_nbits("
        "reshape(dequantize_blocks(x, t, axis=2, block=16), shape=(N, 32)), q, s, bits=4, block=16)",
        "x: i8[N, 2, 16]; t: f32[N, 2, 1]; q: u8[4, 2, 16] = draw(0, 255); s: f32[4, 2] = draw; "
        "z: u8[4, 2] = draw(0, 255); matmul_nbits("
        "reshape(dequantize_blocks(x, t, axis=2, block=16), shape=(N, 32)), q, s, z, bits=8, block=16)",
    ))  # fmt: skip


RULES: tuple[Rule, ...] = (_signed_matmul, _signed_conv, _padding({(u8, i8): 4}), _in_words({(i8, u8): 4}))
"""For machines whose instructions sum four products of u8 and i8, on either side."""
