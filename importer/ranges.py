"""A ref in; the least and greatest value of its integer elements, by the formulas that make it, out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Protocol, TypeAlias

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, TooLarge, dmax, dmin, sym, to_dim
from smelt.core.dtype import DType, bool_, i32, i64
from smelt.core.ir.graph import Node, Ref, TensorType
from smelt.core.ir.kernel import Bound, Call, Const, Expr, Index, Let, Load, Reduce
from smelt.core.ops import OPS
from smelt.core.ops.infer import Engine
from smelt.core.ops.trace import MARK, DimIndex, element
from smelt.importer.known import Known

Span: TypeAlias = "tuple[Dim | None, Dim | None]"
"""The least and the greatest element, both included; None where nothing is known."""

UNKNOWN_SPAN: Span = (None, None)
RANGE_DEPTH = 12
"""Through how many ops the analysis goes back."""
FEW_ELEMENTS = 16
"""Most elements that are examined one by one."""


class Origins(Protocol):
    """The part of a graph builder that the analysis reads."""

    engine: Engine

    def type_of(self, ref: Ref) -> TensorType: ...
    def known_of(self, ref: Ref) -> Known | None: ...
    def constant_of(self, ref: Ref) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None: ...
    def producer(self, ref: Ref) -> Node | None: ...


def span(b: Origins, ref: Ref) -> Span:
    """The least and greatest element of an integer or bool tensor, whatever its size."""
    try:
        return _Question(b).anywhere(ref, RANGE_DEPTH)
    except TooLarge:
        return UNKNOWN_SPAN


class _Question:
    """Bounds of a tensor's elements at a symbolic index, through the formulas of the ops that make them."""

    def __init__(self, b: Origins) -> None:
        self.b = b
        self.variables: dict[str, tuple[Dim, Dim]] = {}
        self.marks = 0
        self.answers: dict[tuple[Ref, DimIndex], Span] = {}

    def mark(self) -> str:
        """A fresh prefix for the names of a formula's variables."""
        self.marks += 1
        return f"{MARK}{self.marks}_"

    def anywhere(self, ref: Ref, depth: int) -> Span:
        """Bounds of all elements of a ref."""
        mark, index = self.mark(), []
        for a, d in enumerate(self.b.type_of(ref).shape):
            name = f"{mark}i{a}"
            self.variables[name] = ZERO, d - 1
            index.append(sym(name))
        return self.at(ref, tuple(index), depth)

    def at(self, ref: Ref, index: DimIndex, depth: int) -> Span:
        """Bounds of a ref's element at an index."""
        t = self.b.type_of(ref)
        index = tuple(ZERO if d == ONE else i for i, d in zip(index, t.shape, strict=True))
        if (ref, index) not in self.answers:
            self.answers[ref, index] = self._at(ref, t, index, depth)
        return self.answers[ref, index]

    def _at(self, ref: Ref, t: TensorType, index: DimIndex, depth: int) -> Span:
        if t.dtype == bool_:
            return ZERO, ONE
        if not t.dtype.is_int or t.dtype.coded:
            return UNKNOWN_SPAN
        array = self.b.constant_of(ref)
        if array is not None:
            return (to_dim(int(array.min())), to_dim(int(array.max()))) if array.size else (ZERO, ZERO)
        found = self.b.known_of(ref)
        if found is not None and 0 < found.size <= FEW_ELEMENTS:
            dims = [e for e in found.reshape(-1) if isinstance(e, Dim)]
            if len(dims) == found.size:
                return reduce(dmin, dims), reduce(dmax, dims)
        node, wide = self.b.producer(ref), _of_type(t.dtype)
        own = UNKNOWN_SPAN if node is None or not depth else self.made(node, ref, index, depth - 1)
        return (wide[0] if own[0] is None else own[0], wide[1] if own[1] is None else own[1])

    def made(self, node: Node, ref: Ref, index: DimIndex, depth: int) -> Span:
        """Bounds of a node's result at an index."""
        row = OPS.get(node.op)
        if row is None:
            return UNKNOWN_SPAN
        types = [self.b.type_of(r) if r else None for r in node.inputs]
        if row.span is not None:
            place = next(k for k, v in enumerate(node.outputs) if v.name == ref)
            found = row.span(types, node.attrs, place, index)
            return self.anywhere(node.inputs[found], depth) if isinstance(found, int) else found
        if not callable(row.compute) or len(node.outputs) != 1:
            return UNKNOWN_SPAN
        e = element(row.compute, types, index, node.attrs, node.output.type, self.mark())
        return self.element(e, node, depth)

    def element(self, e: Expr, node: Node, depth: int) -> Span:
        """Bounds of an expression over a node's operands."""
        return _READ[type(e)](self, e, node, depth)

    def const(self, e: Const, node: Node, depth: int) -> Span:
        """A literal."""
        return UNKNOWN_SPAN if e.dtype.is_float else (to_dim(int(e.value)),) * 2

    def position(self, e: Index, node: Node, depth: int) -> Span:
        """An index, or a size that occurs in the formula."""
        return UNKNOWN_SPAN if e.dtype.is_float else self.dim(e.dim)

    def load(self, e: Load, node: Node, depth: int) -> Span:
        """An operand's element, or the load's default outside of its guard."""
        inside = [self.inside(b) for b in e.guard]
        outside = Const(0, e.dtype) if e.otherwise is None else e.otherwise
        if False in inside:
            return self.element(outside, node, depth)
        inner = self.at(node.inputs[int(e.buffer.removeprefix("x"))], e.index, depth)
        return inner if all(inside) else _joined([inner, self.element(outside, node, depth)])

    def inside(self, b: Bound) -> bool | None:
        """Whether a bound holds, where the part of a concatenation that an index is in is plain to see."""
        low, high = self.dim(b.index)
        if low is None or high is None:
            return None
        above, below = (low - b.low).const_or_none, (b.high - high).const_or_none
        if above is not None and above >= 0 and below is not None and below > 0:
            return True
        under, over = (b.low - high).const_or_none, (low - b.high).const_or_none
        return False if (under is not None and under > 0) or (over is not None and over >= 0) else None

    def call(self, e: Call, node: Node, depth: int) -> Span:
        """An intrinsic of integers."""
        if e.dtype == bool_:
            return ZERO, ONE
        if e.fn not in _CALLS:
            return UNKNOWN_SPAN
        operands = e.args[1:] if e.fn == "select" else e.args
        spans = [self.element(a, node, depth) for a in operands]
        return _CALLS[e.fn](self.b.engine, operands[0].dtype, e.dtype, *spans)

    def let(self, e: Let, node: Node, depth: int) -> Span:
        """The body, with a variable that data decides."""
        low, high = self.dim(e.low)[0], self.dim(e.high)[1]
        if low is None or high is None:
            return UNKNOWN_SPAN
        self.variables[e.var] = low, high
        return self.element(e.body, node, depth)

    def reduce(self, e: Reduce, node: Node, depth: int) -> Span:
        """A minimum or maximum is one of the elements; an arg-reduction is a position."""
        if e.kind in ("argmax", "argmin"):
            return ZERO, e.axes[0].extent - 1
        if e.kind not in ("max", "min"):
            return UNKNOWN_SPAN
        self.variables.update((a.var, (ZERO, a.extent - 1)) for a in e.axes)
        return self.element(e.body, node, depth)

    def dim(self, d: Dim) -> Span:
        """Bounds of a linear combination of variables: each variable at one end of its range."""
        low = high = d
        for name in sorted(self.variables.keys() & d.symbols):
            start = d.substitute({name: 0})
            step = d.substitute({name: 1}) - start
            if not step.is_const or start + step * sym(name) != d:
                return UNKNOWN_SPAN
            ends = self.variables[name] if step.const >= 0 else self.variables[name][::-1]
            low, high = low.substitute({name: ends[0]}), high.substitute({name: ends[1]})
        return low, high


_READ: Mapping[type, Callable[..., Span]] = {
    Const: _Question.const,
    Index: _Question.position,
    Load: _Question.load,
    Call: _Question.call,
    Let: _Question.let,
    Reduce: _Question.reduce,
}


def _of_type(dtype: DType) -> Span:
    """The range of an 8- or 16-bit dtype; that of a wider one is useless here."""
    if dtype.bits > 16:
        return (ZERO, None) if dtype.category == "uint" else UNKNOWN_SPAN
    low, high = dtype.limits
    return to_dim(low), to_dim(high)


def _joined(spans: Sequence[Span]) -> Span:
    """The union of spans."""
    lows, highs = [s[0] for s in spans], [s[1] for s in spans]
    low = None if None in lows else reduce(dmin, [d for d in lows if d is not None])
    high = None if None in highs else reduce(dmax, [d for d in highs if d is not None])
    return low, high


# ---------------------------------------------------------------- intrinsics: engine, two types, spans


def _cast(c: Engine, own: DType, to: DType, x: Span) -> Span:
    """A conversion that changes no value of the span."""
    low, high = x
    if to in (i32, i64) and (own in (i32, i64, bool_) or own.bits <= 16):
        top = None if high is None else c.bounds(high)[1]
        narrow = to == i32 and own == i64 and (low is None or top is None or top >= 2**31)
        return UNKNOWN_SPAN if narrow else x
    return UNKNOWN_SPAN


def _least(c: Engine, own: DType, to: DType, a: Span, b: Span) -> Span:
    """min(a, b): the upper bound of either holds, the lower bound needs both."""
    (al, ah), (bl, bh) = a, b
    low = None if al is None or bl is None else dmin(al, bl)
    return low, (dmin(ah, bh) if ah is not None and bh is not None else ah if bh is None else bh)


def _greatest(c: Engine, own: DType, to: DType, a: Span, b: Span) -> Span:
    (al, ah), (bl, bh) = a, b
    high = None if ah is None or bh is None else dmax(ah, bh)
    return (dmax(al, bl) if al is not None and bl is not None else al if bl is None else bl), high


def _mod(c: Engine, own: DType, to: DType, a: Span, b: Span) -> Span:
    """The remainder has the divisor's sign."""
    low, high = b
    if low is None or high is None or (c.bounds(low)[0] or 0) < 1:
        return UNKNOWN_SPAN
    return ZERO, high - 1


def _sum(c: Engine, own: DType, to: DType, a: Span, b: Span) -> Span:
    (al, ah), (bl, bh) = a, b
    if own.bits < 64:
        return UNKNOWN_SPAN  # it may wrap
    low = None if al is None or bl is None else al + bl
    return low, None if ah is None or bh is None else ah + bh


def _difference(c: Engine, own: DType, to: DType, a: Span, b: Span) -> Span:
    (al, ah), (bl, bh) = a, b
    if own.bits < 64:
        return UNKNOWN_SPAN
    low = None if al is None or bh is None else al - bh
    return low, None if ah is None or bl is None else ah - bl


_CALLS: Mapping[str, Callable[..., Span]] = {
    "cast": _cast,
    "select": lambda c, own, to, a, b: _joined([a, b]),
    "min": _least,
    "max": _greatest,
    "mod": _mod,
    "add": _sum,
    "sub": _difference,
}

__all__ = ["Span", "span"]
