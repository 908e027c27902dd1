"""Graph -> Graph: sums of products of bytes take four at a time, where the machine has such an instruction.

    matmul(x u8[.., K], w i8[K, N])     -->  matmul_dot4(x as i32[.., K/4], w packed i32[K/4, N])
    conv(x u8[.., C], w i8[*K, C, M])   -->  conv_dot4(x as i32[.., C/4], w packed i32[*K, C/4, M])

A K or C that is no multiple of four is padded first.
"""

from __future__ import annotations

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import i8, u8
from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.passes.context import Context
from smelt.core.passes.editor import Array, Editor
from smelt.core.passes.numerics import EXACT
from smelt.core.passes.rules import Rule, rewrite, rule

FEW = 8
"""Bytes along the packed axis below which padding costs more than it gains."""


def dots(module: Module, ctx: Context) -> Module:
    """The module with packed products, on machines that have them."""
    if not ctx.machine.dot4:
        return module
    return rewrite(module, RULES)


def packed(w: Array, axis: int) -> Array:
    """i8 as i32 that hold four neighbours along the axis, zeros behind the last ones."""
    rest = -w.shape[axis] % 4
    padded = np.pad(w, [(0, rest if a == axis else 0) for a in range(w.ndim)])
    last = np.ascontiguousarray(np.moveaxis(padded, axis, -1))
    return np.ascontiguousarray(np.moveaxis(last.view(np.int32), -1, axis))


def _bytes(g: Editor, n: Node) -> Array | None:
    """The constant i8 right operand of a product with u8, else None."""
    x, w = n.inputs[:2]
    if g.type_of(x).dtype != u8 or g.type_of(w).dtype != i8:
        return None
    return g.array(w)


def _by_fours(g: Editor, x: Ref) -> Ref:
    """u8 [.., K] as i32 [.., ceil(K / 4)]"""
    shape = g.shape(x)
    rest = -shape[-1].const % 4
    if rest:
        zeros: tuple[Dim, ...] = (to_dim(0),) * len(shape)
        after = (*zeros[1:], to_dim(rest))
        x = g.emit("pad", (x,), {"before": zeros, "after": after, "mode": "constant"})
    return g.emit("reinterpret", (x,))


@rule("matmul", kind=EXACT, forms=["x: u8[N, 10]; w: i8[10, 4] = draw; matmul(x, w)"])
def _packed_matmul(g: Editor, n: Node) -> Ref | None:
    # matmul(x, w)  -->  matmul_dot4(reinterpret(x), packed w)
    w = _bytes(g, n)
    if w is None or w.ndim < 2 or w.shape[-2] < FEW or not g.shape(n.inputs[0])[-1].is_const:
        return None
    right = g.constant(packed(w, w.ndim - 2), f"{n.inputs[1][1:]}.fours")
    return g.emit("matmul_dot4", (_by_fours(g, n.inputs[0]), right))


@rule("conv", kind=EXACT, forms=[
    "x: u8[N, H, 6]; w: i8[3, 6, 4] = draw; conv(x, w, channels_last=True, pads_begin=(1,))",
])
def _packed_conv(g: Editor, n: Node) -> Ref | None:
    # conv(x, w, b), channels last  -->  conv_dot4(reinterpret(x), packed w, b)
    w = _bytes(g, n)
    if w is None or not n.attr("channels_last", False) or int(n.attr("group")) != 1:
        return None
    if not g.shape(n.inputs[0])[-1].is_const or w.shape[-2] < 3:
        return None
    right = g.constant(packed(w, w.ndim - 2), f"{n.inputs[1][1:]}.fours")
    origin = int(n.attr("origin", 0))
    four = int(np.array([origin] * 4, np.uint8).view(np.int32)[0])
    parts = (_by_fours(g, n.inputs[0]), right, *n.inputs[2:])
    return g.emit("conv_dot4", parts, {**n.attrs, "origin": four})


RULES: tuple[Rule, ...] = (_packed_matmul, _packed_conv)
