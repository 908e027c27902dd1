"""What rules ask about constants, shapes and attributes; small answers only."""

from __future__ import annotations

import math

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import Array, DType, finfo
from smelt.core.ir.graph import Attr, Node, Ref
from smelt.core.passes.rewriting.editor import Editor

# x op c and c op x are the same; constants stand on the right
COMMUTATIVE = frozenset(
    ["add", "mul", "min", "max", "and", "or", "xor", "equal", "not_equal", "bit_and", "bit_or", "bit_xor"]
)


def dims_of(value: Attr) -> tuple[Dim, ...]:
    """A tuple-of-Dim attribute."""
    assert isinstance(value, tuple)
    return tuple(v if isinstance(v, Dim) else to_dim(v) for v in value)  # type: ignore[arg-type]


def ints_of(value: Attr) -> tuple[int, ...]:
    """A tuple-of-int attribute (constant Dims allowed)."""
    assert isinstance(value, tuple)
    return tuple(v.const if isinstance(v, Dim) else int(v) for v in value)  # type: ignore[arg-type]


def is_one(d: Dim) -> bool:
    """Whether an extent is the constant 1."""
    return d.const_or_none == 1


def same_number(a: float | int | bool, b: float) -> bool:
    """Whether two numbers are equal and have the same sign, which 0 and -0 have not."""
    return a == b and math.copysign(1, a) == math.copysign(1, b)


def written_as(value: float | int | bool | None, wanted: float, dtype: DType, factors: int = 1) -> bool:
    """Whether a constant is `wanted` as files have it: rounded to the type, or to a product of `factors`
    numbers that each were."""
    if value is None:
        return False
    unit = float(finfo(dtype.numpy).eps)
    return math.isclose(float(value), wanted, rel_tol=factors * unit, abs_tol=0.0)


def whole(editor: Editor, ref: Ref, n: Node) -> bool:
    """Whether ref can stand for the node's output: same dtype and same shape."""
    return editor.type_of(ref) == n.output.type


def splat(editor: Editor, ref: Ref) -> float | int | bool | None:
    """The value of a weight whose elements are all the same, signs of zeros included; large weights are not
    looked at."""
    found = editor.scalar(ref)
    if found is not None or not ref.startswith("@"):
        return found
    w = editor.shop.weights[ref]
    if not 0 < math.prod(w.shape) <= 4096:
        return None
    flat = w.array().reshape(-1)
    value: float | int | bool = flat[0].item()
    alike = bool((flat == flat[0]).all()) and (value != 0 or not np.ptp(np.signbit(flat).astype(int)))
    return value if alike else None


def per_axis(editor: Editor, ref: Ref, rank: int, axis: int, extent: Dim) -> Array | None:
    """A constant that varies along one axis of a rank-`rank` tensor only, as [extent] (or as [1] when it
    is the same everywhere); None for anything else. It may not make the tensor larger."""
    if not editor.is_weight(ref) or len(editor.shape(ref)) > rank or not extent.is_const:
        return None
    shape = (1,) * (rank - len(editor.shape(ref))) + editor.shop.weights[ref].shape
    if any(n != 1 for a, n in enumerate(shape) if a != axis):
        return None
    if shape[axis] not in (1, extent.const):
        return None
    array = editor.array(ref)
    assert array is not None
    return np.asarray(array).reshape(shape[axis])
