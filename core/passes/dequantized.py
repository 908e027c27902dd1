"""What passes on quantised tensors ask: which bytes, scale and zero point stand behind a value."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.core.dtype import i8, u8
from smelt.core.ir.graph import Ref
from smelt.core.passes.editor import Editor

BYTES = (i8, u8)


@dataclass(frozen=True, slots=True)
class Quantised:
    """What a dequantize reads. zero: '' is 0. axis: of vectors of scales, -1 for one scale."""

    x: Ref
    scale: Ref
    zero: Ref
    axis: int


def source(g: Editor, ref: Ref) -> Quantised | None:
    """The dequantize of bytes behind a value, or None."""
    n = g.made_by(ref, "dequantize")
    if n is None or g.type_of(n.inputs[0]).dtype not in BYTES:
        return None
    x, scale, zero = (*n.inputs, "")[:3]
    axis = int(n.attr("axis"))
    return Quantised(x, scale, zero, axis if g.type_of(scale).rank else -1)
