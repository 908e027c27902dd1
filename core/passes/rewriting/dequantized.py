"""What passes on quantised tensors ask: which bytes, scale and zero point a value is
made of, and what keeps a convolution from computing with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.core.dtype import BYTES, Array
from smelt.core.ir.graph import Ref
from smelt.core.passes.rewriting.editor import Editor


@dataclass(frozen=True, slots=True)
class Quantised:
    """What a dequantize reads. zero: '' is 0. axis: of vectors of scales, -1 for one scale."""

    x: Ref
    scale: Ref
    zero: Ref
    axis: int


def weight_blocker(g: Editor, x: Quantised, w: Quantised, axis: int) -> str | None:
    """Why a convolution of x by w, whose output channels are `axis`, stays one of floats; None when it does
    not."""
    if g.array(w.x) is None or (w.zero and g.array(w.zero) is None):
        return "the weight is not constant"
    if x.zero and g.array(x.zero) is None:
        return "the zero point of the input is computed at run time"
    if w.axis not in (-1, axis):
        return f"the weight has scales along axis {w.axis}"
    return None


def ordinary(scale: Array) -> bool:
    """Whether scales are so far from both ends of their type that products with sums of 32 bits, and their
    reciprocals, keep all bits."""
    size = np.abs(scale.astype(np.float64))
    return bool(np.all((size >= 2.0**-90) & (size <= 2.0**90)))


def source(g: Editor, ref: Ref) -> Quantised | None:
    """The dequantize of bytes that makes a value, or None."""
    n = g.made_by(ref, "dequantize")
    if n is None or g.type_of(n.inputs[0]).dtype not in BYTES:
        return None
    x, scale, zero = (*n.inputs, "")[:3]
    axis = int(n.attr("axis"))
    return Quantised(x, scale, zero, axis if g.type_of(scale).rank else -1)
