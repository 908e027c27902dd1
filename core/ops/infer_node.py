"""A node's op, attributes and types of inputs in; the types of its outputs, which fit some memory, out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from smelt.core.dim import Dim
from smelt.core.ir.graph import TensorType, attrs_key
from smelt.core.ops.infer import Engine
from smelt.core.ops.table import Arg, Attrs, Op

MOST_ELEMENTS = 2**40
"""More constant extents than that multiply to no tensor of any device."""

MAX_RANK = 32
"""Axes of a tensor, those between the steps of an operator included; NumPy 1.26 has no more."""


def infer_node(op: Op, args: Sequence[Arg | None], attrs: Attrs, engine: Engine) -> tuple[TensorType, ...]:
    """The output types of one node. Checks that it needs stay in the engine (`take_checks`).

    Raises SmeltError when the inputs cannot fit.
    """
    if any(a is not None and a.value is not None for a in args):
        return _inferred(op, args, attrs, engine)
    node = (op.name, tuple(None if a is None else a.type for a in args), attrs_key(attrs))
    return engine.once(node, lambda: _inferred(op, args, attrs, engine))


def _inferred(op: Op, args: Sequence[Arg | None], attrs: Attrs, engine: Engine) -> tuple[TensorType, ...]:
    found = tuple(engine.simplify_type(t) for t in op.infer(engine, args, attrs))
    for t in found:
        if t.rank > MAX_RANK:
            raise engine.unsupported(f"a result of rank {t.rank}; tensors have at most {MAX_RANK} axes")
        if any(d.is_const and d.const < 0 for d in t.shape):
            raise engine.fail(f"a result of extents {', '.join(map(str, t.shape))}: one of them is negative")
        if not addressable(t.shape):
            raise engine.unsupported(f"a result of extents {', '.join(map(str, t.shape))} fits no memory")
    return found


def addressable(shape: Sequence[Dim]) -> bool:
    """Whether the constant extents alone leave room in 64 bits for elements, offsets and the others."""
    known = [d.const for d in shape if d.is_const and d.const > 0]
    numbers = (abs(k) for d in shape for _, k in d.sorted_items())
    return prod(known) <= MOST_ELEMENTS and all(k <= MOST_ELEMENTS for k in numbers)
