"""8-, 4- and 2-bit codes <-> numbers, by lookup tables filled from the ONNX package's own definitions.

A tensor of codes holds a byte per element. Decoding looks the byte up. Encoding a float looks up its upper 16
bits, the lowest of which is a sticky bit for the cut-off half: no code's rounding needs more.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx

from smelt.core.dtype import Array, DType, f32, i32, i64, u8, u32
from smelt.core.ir.graph import Ref

if TYPE_CHECKING:
    from smelt.importer.builder import GraphBuilder

CODE_MOVES = frozenset(
    {
        "bitcast", "broadcast_to", "concat", "extend", "gather", "gather_elements", "gather_nd", "pad",
        "reshape", "slice", "tile", "transpose", "where",
    }
)  # fmt: skip
"""Ops that may be applied to codes, because they only move elements."""

CODE_MASKS = {"i4": 15, "u4": 15, "i2": 3, "u2": 3}
"""Integer formats narrower than a byte -> the mask of their bits."""


@cache
def decoding(dtype: DType) -> Array:
    """f32[256]: the number that each byte encodes."""
    mask = CODE_MASKS.get(dtype.name, 15 if dtype.name == "f4e2m1" else 255)
    codes = (np.arange(256) & mask).astype(np.uint8)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(codes.view(dtype.numpy).astype(np.float32))


@cache
def encoding(dtype: DType, saturate: bool, rounding: str) -> Array:
    """u8[65536]: the code of each upper half of an f32."""
    from onnx.reference.ops.op_cast import cast_to

    x = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    with np.errstate(all="ignore"):
        codes: Array = np.ascontiguousarray(cast_to(x, to, saturate, rounding)).view(np.uint8)
    return codes


def decoded(b: GraphBuilder, x: Ref) -> Ref:
    """Codes as f32."""
    dtype = b.type_of(x).dtype
    at = b.cast(b.emit("bitcast", [x], {"to": u8}), i64)
    return b.emit("gather", [b.constant(decoding(dtype)), at], {"axis": 0})


def encoded(b: GraphBuilder, x: Ref, to: DType, saturate: bool = True, rounding: str = "up") -> Ref:
    """Numbers as codes; saturate: what is too large becomes the largest code."""
    source = b.type_of(x).dtype
    if source.coded:
        x = decoded(b, x)
    elif not source.is_float and to.name in CODE_MASKS:
        low = b.emit("bit_and", [b.cast(x, i32), b.constant(np.array(CODE_MASKS[to.name], np.int32))])
        return b.emit("bitcast", [b.cast(low, u8)], {"to": to})
    bits = b.emit("bitcast", [b.cast(x, f32)], {"to": u32})
    high = b.emit("shift_right", [bits, b.constant(np.array(16, np.uint32))])
    cut = b.emit("bit_and", [bits, b.constant(np.array(0xFFFF, np.uint32))])
    some = b.cast(b.emit("greater", [cut, b.constant(np.array(0, np.uint32))]), u32)
    at = b.cast(b.emit("bit_or", [high, some]), i64)
    codes = b.emit("gather", [b.constant(encoding(to, saturate, rounding)), at], {"axis": 0})
    return b.emit("bitcast", [codes], {"to": to})
