"""Graph -> Graph: weights quantised in blocks stay packed, and their products dequantise them on the way.

    transpose(dequantize_blocks(w))        -->  dequantize_blocks(w transposed now)
    gather(dequantize_blocks(x), i)        -->  dequantize_blocks(gather(x, i))
    matmul(x, dequantize_blocks(w))        -->  matmul_nbits(x, w packed in 2, 4 or 8 bits)
"""

from __future__ import annotations

import numpy as np

from smelt.core.dtype import Array, i8, u8
from smelt.core.ir.graph import Node, Ref
from smelt.core.passes.numerics import EXACT, INTEGERS
from smelt.core.passes.rewriting.constants import ints_of
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule

LEAST_BLOCK = 16
"""Elements of a block below which its scale costs more than it saves."""


def _source(g: Editor, ref: Ref) -> Node | None:
    """The dequantize_blocks that makes a value."""
    return g.made_by(ref, "dequantize_blocks")


@rule("transpose", kind=EXACT, forms=[
    "w: i8[32, 4] = draw; s: f32[2, 4] = draw; transpose(dequantize_blocks(w, s, axis=0, block=16), "
    "perm=(1, 0))",
])
def _turn(g: Editor, n: Node) -> Ref | None:
    # transpose(dequantize_blocks(w))  -->  dequantize_blocks(transposed constants)
    d = _source(g, n.inputs[0])
    if d is None:
        return None
    perm, arrays = ints_of(n.attrs["perm"]), [g.array(r) if r else None for r in d.inputs]
    if any(a is None for a, r in zip(arrays, d.inputs, strict=True) if r):
        return None
    parts = [
        "" if a is None else g.constant(np.ascontiguousarray(a.transpose(perm)), r[1:])
        for a, r in zip(arrays, d.inputs, strict=True)
    ]
    axis = perm.index(int(d.attr("axis")))
    return g.emit("dequantize_blocks", parts, {"axis": axis, "block": d.attr("block")})


@rule("gather", kind=EXACT, forms=[
    "w: i8[5, 32] = draw; s: f32[5, 2] = draw; i: i64[N]; gather(dequantize_blocks(w, s, axis=1, "
    "block=16), i, axis=0)",
    "w: i8[5, 32] = draw; s: f32[5, 2] = draw; i: i64[N]; gather(dequantize_blocks(w, s, axis=1, "
    "block=16), i, axis=1)",
])
def _pick(g: Editor, n: Node) -> Ref | None:
    # gather(dequantize_blocks(x, s, z), i)  -->  dequantize_blocks(gather(x, i), gather(s, i), gather(z, i))
    d = _source(g, n.inputs[0])
    if d is None:
        return None
    axis, own = int(n.attr("axis")), int(d.attr("axis"))
    if axis == own:
        return None
    parts = [g.emit("gather", (r, n.inputs[1]), n.attrs) if r else "" for r in d.inputs]
    moved = own if own < axis else own + g.type_of(n.inputs[1]).rank - 1
    return g.emit("dequantize_blocks", parts, {"axis": moved, "block": d.attr("block")})


@rule("matmul", kind=INTEGERS, forms=[
    "x: f32[N, 32]; w: u8[32, 4] = draw(0, 15); s: f32[2, 4] = draw; z: u8[2, 4] = 8; matmul(x, "
    "dequantize_blocks(w, s, z, axis=0, block=16))",
])
def _multiply_packed(g: Editor, n: Node) -> Ref | None:
    # matmul(x, dequantize_blocks(w))  -->  matmul_nbits(x, packed w)
    d = _source(g, n.inputs[1])
    if d is None or packing_blocker(g, n) is not None:
        return None
    block = int(d.attr("block"))
    w, scale, zero = (*(g.array(r) if r else None for r in d.inputs), None)[:3]
    assert w is not None and scale is not None
    bits, offset = _width(w, zero)
    own = None if zero is None else np.ascontiguousarray((zero.astype(np.int16) + offset).astype(np.uint8).T)
    if own is None and offset != 1 << (bits - 1):
        own = np.full(scale.T.shape, offset, np.uint8)
    name = d.inputs[0][1:]
    parts = [
        n.inputs[0],
        g.constant(packed(w, block, bits, offset), f"{name}.packed"),
        g.constant(np.ascontiguousarray(scale.T), f"{name}.scale"),
        "" if own is None else g.constant(own, f"{name}.zero"),
    ]
    return g.emit("matmul_nbits", parts if own is not None else parts[:3], {"bits": bits, "block": block})


def packing_blocker(g: Editor, n: Node) -> str | None:
    """Why a product with a weight in blocks takes the weight as floats; None when it does not."""
    d = _source(g, n.inputs[1])
    assert d is not None
    if any(g.array(r) is None for r in d.inputs if r):
        return "the weight in blocks is not constant"
    if g.type_of(d.inputs[0]).dtype not in (i8, u8):
        return f"the weight is {g.type_of(d.inputs[0]).dtype}"
    block = int(d.attr("block"))
    if g.type_of(d.inputs[0]).rank != 2 or int(d.attr("axis")) != 0:
        return "the blocks of the weight are not along what is summed"
    if block < LEAST_BLOCK or block & (block - 1):
        return f"blocks of {block}"
    return None


def _width(w: Array, zero: Array | None) -> tuple[int, int]:
    """The bits that weights and zero points fit into, and what is added to both to make them unsigned."""
    every = [w] if zero is None else [w, zero]
    low, high = min(int(a.min(initial=0)) for a in every), max(int(a.max(initial=0)) for a in every)
    for bits in (2, 4, 8):
        offset = 1 << (bits - 1) if w.dtype == np.int8 else 0
        if low + offset >= 0 and high + offset < 1 << bits:
            return bits, offset
    raise AssertionError(w.dtype)


def packed(w: Array, block: int, bits: int, offset: int) -> Array:
    """[K, N] as bytes [N, blocks, block * bits / 8], the first of their fields lowest; ends filled."""
    rest = -w.shape[0] % block
    codes = np.pad((w.astype(np.int16) + offset).astype(np.uint8), [(0, rest), (0, 0)]).T
    per = 8 // bits
    fields = codes.reshape(w.shape[1], (w.shape[0] + rest) // block, block // per, per)
    shifts = (np.arange(per) * bits).astype(np.uint8)
    return np.ascontiguousarray(np.bitwise_or.reduce(fields << shifts, axis=-1))


BLOCK_RULES: tuple[Rule, ...] = (_turn, _pick, _multiply_packed)
MOVE_RULES: tuple[Rule, ...] = (_turn, _pick)
