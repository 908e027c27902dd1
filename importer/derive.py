"""The known elements of an op's operands -> those of its result, by evaluating its formula per element.

So every op with a formula propagates known sizes, those of plug-ins too, with the values that its kernel
computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import DType, i32, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Call, Const, Expr, Index, Let, Load, Reduce
from smelt.core.ops.infer import Engine
from smelt.core.ops.table import Attrs, Op
from smelt.core.ops.trace import element
from smelt.importer.elements import ELEMENT_CALLS, ELEMENT_STEPS, cast_element
from smelt.importer.known import Element, Known, Ratio, fraction, full, unknown

MOST_TERMS = 4096
"""Most elements that one element may be reduced from."""

SymbolValues = Mapping[str, int]


def derived(
    c: Engine,
    op: Op,
    operands: Sequence[Known | None],
    inputs: Sequence[TensorType | None],
    attrs: Attrs,
    out: TensorType,
) -> Known | None:
    """The elements of the op's only output; None when it has too many, or no formula. operands: the known
    elements of each input, None for an absent one."""
    made = unknown(out)
    if made is None or not callable(op.compute):
        return None
    reading = _Reading(c, {f"x{k}": v for k, v in enumerate(operands)})
    found = []
    for at in itertools.product(*map(range, made.shape)):
        e = element(op.compute, inputs, tuple(map(to_dim, at)), attrs, out)
        found.append(_held(c, reading.element(e, {}), out.dtype))
    return full(made.shape, found)


def _held(c: Engine, e: Element, dtype: DType) -> Element:
    """e, or None where a tensor of this dtype cannot represent it."""
    if isinstance(e, Ratio):
        return e if dtype.bits > 16 else None
    if not isinstance(e, Dim):
        return e
    if e.is_const:
        low, high = dtype.limits
        return e if low <= e.const <= high else None
    # a size that does not fit 32 bits is refused by the run-time limits anyway
    return e if dtype in (i64, i32) else None


class _Reading:
    """Evaluates expressions over the known elements of operands, which are given by buffer name."""

    def __init__(self, c: Engine, operands: Mapping[str, Known | None]) -> None:
        self.c = c
        self.operands = operands

    def element(self, e: Expr, env: SymbolValues) -> Element:
        """The value of an expression for these values of its variables."""
        return _READ[type(e)](self, e, env)

    def const(self, e: Const, env: SymbolValues) -> Element:
        """A literal."""
        if isinstance(e.value, bool):
            return e.value
        return fraction(float(e.value), e.dtype.numpy) if e.dtype.is_float else to_dim(int(e.value))

    def index(self, e: Index, env: SymbolValues) -> Element:
        """A position, or a size that occurs in the formula."""
        d = self.c.simplify(e.dim.substitute(env))
        return Ratio(d) if e.dtype.is_float else d

    def load(self, e: Load, env: SymbolValues) -> Element:
        """An operand's element, or the load's default outside of its guard."""
        inside = [_holds(b, env) for b in e.guard]
        if False in inside:
            return self.element(Const(0, e.dtype) if e.otherwise is None else e.otherwise, env)
        source = self.operands[e.buffer]
        at = tuple(d.substitute(env).const_or_none for d in e.index)
        if source is None or None in inside:
            return None
        if any(i is None or not 0 <= i < n for i, n in zip(at, source.shape, strict=True)):
            return None
        found: Element = source.item(at)  # type: ignore[arg-type]
        return found

    def call(self, e: Call, env: SymbolValues) -> Element:
        """An intrinsic of elements."""
        if e.fn == "cast":
            return cast_element(self.c, self.element(e.args[0], env), e.dtype)
        known = ELEMENT_CALLS.get(e.fn)
        return None if known is None else known(self.c, *(self.element(a, env) for a in e.args))

    def let(self, e: Let, env: SymbolValues) -> Element:
        """The body with a variable that is a number."""
        value = self.element(e.value, env)
        low, high = (d.substitute(env).const_or_none for d in (e.low, e.high))
        if not isinstance(value, Dim) or not value.is_const or low is None or high is None:
            return None
        return self.element(e.body, {**env, e.var: max(low, min(value.const, high))})

    def reduce(self, e: Reduce, env: SymbolValues) -> Element:
        """All elements of a reduction, one after the other."""
        extents = [a.extent.substitute(env).const_or_none for a in e.axes]
        numbers = [n for n in extents if n is not None]
        step = ELEMENT_STEPS.get(e.kind)
        if step is None or len(numbers) < len(extents) or not 0 < math.prod(numbers) <= MOST_TERMS:
            return None
        places = itertools.product(*map(range, numbers))
        names = [a.var for a in e.axes]
        terms = (self.element(e.body, {**env, **dict(zip(names, at, strict=True))}) for at in places)
        return reduce(lambda x, y: step(self.c, x, y), terms)


_READ: Mapping[type, Callable[..., Element]] = {
    Const: _Reading.const,
    Index: _Reading.index,
    Load: _Reading.load,
    Call: _Reading.call,
    Let: _Reading.let,
    Reduce: _Reading.reduce,
}


def _holds(b: Bound, env: SymbolValues) -> bool | None:
    """Whether low <= index < high; None where that is not known."""
    low, index, high = (d.substitute(env).const_or_none for d in (b.low, b.index, b.high))
    return None if low is None or index is None or high is None else low <= index < high
