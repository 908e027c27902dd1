"""A ref in, what its integer elements can be at least and at most: by the ops that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Protocol, TypeAlias

import numpy as np

from smelt.core.dim import Dim, dmax, dmin, to_dim
from smelt.core.dtype import DType, bool_, i32, i64
from smelt.core.ir.graph import Node, Ref, TensorType
from smelt.core.ops.infer import Engine
from smelt.importer.known import Known

Span: TypeAlias = "tuple[Dim | None, Dim | None]"
"""The least and the greatest element, both included; None where nothing is known."""

NOTHING: Span = (None, None)
ZERO = to_dim(0)
DEPTH = 12
"""How many ops a question goes back."""
FEW = 16
"""Elements that are looked at one by one."""


class Origins(Protocol):
    """Who made what: a graph builder."""

    engine: Engine

    def type_of(self, ref: Ref) -> TensorType: ...
    def known_of(self, ref: Ref) -> Known | None: ...
    def constant_of(self, ref: Ref) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None: ...
    def producer(self, ref: Ref) -> Node | None: ...


def span(b: Origins, ref: Ref, depth: int = DEPTH) -> Span:
    """The least and greatest element of an integer or bool tensor, whatever its size."""
    t = b.type_of(ref)
    if t.dtype == bool_:
        return ZERO, to_dim(1)
    if not t.dtype.is_int or t.dtype.coded:
        return NOTHING
    array = b.constant_of(ref)
    if array is not None:
        return (to_dim(int(array.min())), to_dim(int(array.max()))) if array.size else (ZERO, ZERO)
    found = b.known_of(ref)
    if found is not None and 0 < found.size <= FEW and all(isinstance(e, Dim) for e in found.reshape(-1)):
        dims = [e for e in found.reshape(-1) if isinstance(e, Dim)]
        return reduce(dmin, dims), reduce(dmax, dims)
    node = b.producer(ref)
    if node is None or not depth:
        return _of_type(t.dtype)
    rule = _RULES.get(node.op)
    own = NOTHING if rule is None else rule(b, node, _place(node, ref), depth - 1)
    wide = _of_type(t.dtype)
    return (wide[0] if own[0] is None else own[0], wide[1] if own[1] is None else own[1])


def _of_type(dtype: DType) -> Span:
    """What 8 or 16 bits can hold; more bits say too little to help."""
    if dtype.bits > 16:
        return (ZERO, None) if dtype.category == "uint" else NOTHING
    info = np.iinfo(dtype.numpy)
    return to_dim(int(info.min)), to_dim(int(info.max))


def _place(node: Node, ref: Ref) -> int:
    return next(k for k, v in enumerate(node.outputs) if v.name == ref)


def _entry(attr: object, k: int) -> Dim:
    assert isinstance(attr, tuple)
    d = attr[k]
    assert isinstance(d, Dim)
    return d


Rule: TypeAlias = Callable[[Origins, Node, int, int], Span]


def _joined(spans: Sequence[Span]) -> Span:
    """Elements of any of them."""
    lows, highs = [s[0] for s in spans], [s[1] for s in spans]
    low = None if None in lows else reduce(dmin, [d for d in lows if d is not None])
    high = None if None in highs else reduce(dmax, [d for d in highs if d is not None])
    return low, high


def _of_inputs(*which: int) -> Rule:
    """Elements of these inputs (of all, when none is named)."""

    def rule(b: Origins, node: Node, _: int, depth: int) -> Span:
        refs = [node.inputs[k] for k in which] if which else [r for r in node.inputs if r]
        return _joined([span(b, r, depth) for r in refs])

    return rule


def _pad(b: Origins, node: Node, _: int, depth: int) -> Span:
    inner = span(b, node.inputs[0], depth)
    if node.attrs.get("mode") != "constant":
        return inner
    return _joined([inner, span(b, node.inputs[1], depth) if len(node.inputs) > 1 else (ZERO, ZERO)])


def _position(b: Origins, node: Node, _: int, depth: int) -> Span:
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    return ZERO, b.type_of(node.inputs[0]).shape[axis] - 1


def _topk(b: Origins, node: Node, place: int, depth: int) -> Span:
    return _position(b, node, 0, depth) if place else span(b, node.inputs[0], depth)


def _non_zero(b: Origins, node: Node, _: int, depth: int) -> Span:
    shape = b.type_of(node.inputs[0]).shape
    return ZERO, reduce(dmax, [d - 1 for d in shape], ZERO)


def _slice(b: Origins, node: Node, _: int, depth: int) -> Span:
    """A row of NonZero's result, or a column once it is turned, holds positions on one axis."""
    source, axis = b.producer(node.inputs[0]), 0
    if source is not None and source.op == "transpose" and source.attrs["perm"] == (1, 0):
        source, axis = b.producer(source.inputs[0]), 1
    if source is not None and source.op == "non_zero":
        first, last = _entry(node.attrs["starts"], axis), _entry(node.attrs["ends"], axis)
        if first.is_const and last.is_const and last.const == first.const + 1:
            return ZERO, b.type_of(source.inputs[0]).shape[first.const] - 1
    return span(b, node.inputs[0], depth)


def _iota(b: Origins, node: Node, _: int, depth: int) -> Span:
    start, step = node.attrs["start"], node.attrs["step"]
    assert isinstance(start, Dim) and isinstance(step, Dim)
    if not step.is_const:
        return NOTHING
    last = start + step * (_entry(node.attrs["shape"], 0) - 1)
    return (start, last) if step.const >= 0 else (last, start)


def _cast(b: Origins, node: Node, _: int, depth: int) -> Span:
    """A conversion that keeps every integer there is."""
    own, to = b.type_of(node.inputs[0]).dtype, node.attrs["to"]
    low, high = inner = span(b, node.inputs[0], depth)
    if to in (i32, i64) and (own in (i32, i64, bool_) or own.bits <= 16):
        top = None if high is None else b.engine.bounds(high)[1]
        narrow = to == i32 and own == i64 and (low is None or top is None or top >= 2**31)
        return NOTHING if narrow else inner
    return NOTHING


def _where(b: Origins, node: Node, _: int, depth: int) -> Span:
    return _joined([span(b, r, depth) for r in node.inputs[1:3]])


def _least(b: Origins, node: Node, _: int, depth: int) -> Span:
    """min(a, b): each bound of one holds above, both below."""
    (al, ah), (bl, bh) = (span(b, r, depth) for r in node.inputs)
    low = None if al is None or bl is None else dmin(al, bl)
    return low, (dmin(ah, bh) if ah is not None and bh is not None else ah if bh is None else bh)


def _greatest(b: Origins, node: Node, _: int, depth: int) -> Span:
    (al, ah), (bl, bh) = (span(b, r, depth) for r in node.inputs)
    high = None if ah is None or bh is None else dmax(ah, bh)
    return (dmax(al, bl) if al is not None and bl is not None else al if bl is None else bl), high


def _clip(b: Origins, node: Node, _: int, depth: int) -> Span:
    low, high = span(b, node.inputs[0], depth)
    floor = span(b, node.inputs[1], depth) if len(node.inputs) > 1 and node.inputs[1] else NOTHING
    top = span(b, node.inputs[2], depth) if len(node.inputs) > 2 and node.inputs[2] else NOTHING
    if floor[0] is not None and top[1] is not None:
        # max(x, floor) may lie above top, and top below floor
        return dmin(floor[0], top[0]) if top[0] is not None else None, top[1]
    return (low if floor[0] is None else floor[0] if top[1] is None else None), (
        high if top[1] is None else top[1]
    )


def _mod(b: Origins, node: Node, _: int, depth: int) -> Span:
    """The remainder has the divisor's sign."""
    low, high = span(b, node.inputs[1], depth)
    if low is None or high is None or (b.engine.bounds(low)[0] or 0) < 1:
        return NOTHING
    return ZERO, high - 1


def _sum(b: Origins, node: Node, _: int, depth: int) -> Span:
    (al, ah), (bl, bh) = (span(b, r, depth) for r in node.inputs)
    own = b.type_of(node.inputs[0]).dtype
    if own.bits < 64:
        return NOTHING  # it may wrap
    low = None if al is None or bl is None else al + bl
    return low, None if ah is None or bh is None else ah + bh


def _difference(b: Origins, node: Node, _: int, depth: int) -> Span:
    (al, ah), (bl, bh) = (span(b, r, depth) for r in node.inputs)
    if b.type_of(node.inputs[0]).dtype.bits < 64:
        return NOTHING
    low = None if al is None or bh is None else al - bh
    return low, None if ah is None or bl is None else ah - bl


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "reshape", "transpose", "broadcast_to", "tile", "gather", "gather_elements", "gather_nd",
            "reduce_max", "reduce_min",
        ),
        _of_inputs(0),
    ),
    "concat": _of_inputs(),
    "slice": _slice,
    "pad": _pad,
    "argmax": _position,
    "argmin": _position,
    "topk": _topk,
    "non_zero": _non_zero,
    "iota": _iota,
    "cast": _cast,
    "where": _where,
    "min": _least,
    "max": _greatest,
    "clip": _clip,
    "mod": _mod,
    "add": _sum,
    "sub": _difference,
}  # fmt: skip

__all__ = ["Span", "span"]
