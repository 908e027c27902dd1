"""A kernel and what is known of its inputs in; what each output is made of, and what forbids it 16 bits, out.

A value that a kernel keeps to itself is computed in 32 bits whatever it is; these questions are about what is
stored. Marks follow the numbers through the formulas, so they know kernels, not names of ops:

    power       a number times itself: squares, variances outside a norm, pow
    exp         e to the something, not yet divided by its sum or cut by a condition
    sum         a sum of more terms than a window has, not yet divided by how many they are
    reciprocal  1 / x of an x that may be near 0
    running     an output that the kernel itself reads again: cumulative sums, sorted rows

A value is COUNTED when it is made of integers and constants alone: positions, lengths, angles, grids, and the
sums of quantised products. 16 bits hold integers up to 2048 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smelt.core.dtype import f16, f32
from smelt.core.ir.analysis.products import strip_casts
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Block,
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Reduce,
    Stmt,
    Store,
    walk,
    walk_expr,
)

CONSTANT, COUNTED, MEASURED = range(3)
"""Where numbers come from, the last one of several decides: constants, integers, inputs of the model."""
WINDOW_TERMS = 64
"""Terms up to which a sum is about as large as its terms: average pooling and the like."""
TRAVELS = frozenset({"power", "exp", "sum"})
"""Marks that a kernel which loads the value takes over; the others are about the one value."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a number is made of, and what it may need more than 16 bits for."""

    source: int = CONSTANT
    marks: frozenset[str] = frozenset()

    def __or__(self, other: Marks) -> Marks:
        return Marks(max(self.source, other.source), self.marks | other.marks)

    def without(self, *marks: str) -> Marks:
        """These marks are no worry any more."""
        return Marks(self.source, self.marks.difference(marks))

    def with_(self, mark: str) -> Marks:
        """With one mark more."""
        return Marks(self.source, self.marks | {mark})

    @property
    def plain(self) -> Marks:
        """No marks at all."""
        return Marks(self.source)


NOTHING = Marks()
MarkRule = Callable[[Call, Sequence[Marks]], Marks]
"""(the call, the marks of its operands) -> its own."""


def output_marks(kernel: Kernel, inputs: Sequence[Marks]) -> tuple[Marks, ...]:
    """The marks of every output. inputs: those of the kernel's inputs."""
    known = {b.name: m for b, m in zip(kernel.inputs, inputs, strict=True)}
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    bound = _bound(kernel.body)
    given = set(known)
    while True:
        reader = _Reader(known, bound)
        before = dict(known)
        for s in stores:
            made = reader.of(s.value)
            if s.accumulate or any(isinstance(x, Load) and x.buffer == s.buffer for x in walk_expr(s.value)):
                made = made.with_("running")
            if s.buffer not in given:
                known[s.buffer] = known.get(s.buffer, NOTHING) | made
        if known == before:
            break
    read = {x.buffer for s in stores for x in walk_expr(s.value) if isinstance(x, Load)}
    read |= {x.buffer for e in _let_values(kernel.body) for x in walk_expr(e) if isinstance(x, Load)}
    found = ((b.name, known.get(b.name, NOTHING)) for b in kernel.outputs)
    return tuple(m.with_("running") if name in read else m for name, m in found)


def _let_values(body: tuple[Stmt, ...]) -> list[Expr]:
    return [value for s in walk(body) if isinstance(s, Block) for _, value, _, _ in s.let]


def _bound(body: tuple[Stmt, ...]) -> frozenset[str]:
    """Index variables whose value is read from a tensor."""
    found = {name for s in walk(body) if isinstance(s, Block) for name, _, _, _ in s.let}
    for s in walk(body):
        if isinstance(s, Store):
            found.update(e.var for e in walk_expr(s.value) if isinstance(e, Let))
    return frozenset(found)


class _Reader:
    """Marks of expressions over buffers whose marks are known."""

    def __init__(self, buffers: Mapping[str, Marks], data: frozenset[str]) -> None:
        self._buffers = dict(buffers)
        self._data = data
        self._memo: dict[int, Marks] = {}

    def of(self, e: Expr) -> Marks:
        """The marks of a float expression; integers and conditions have none."""
        found = self._memo.get(id(e))
        if found is None:
            found = self._memo[id(e)] = self._of(e)
        return found

    def _of(self, e: Expr) -> Marks:
        if isinstance(e, Const) or not e.dtype.is_float:
            return NOTHING
        if isinstance(e, Index):
            return Marks(COUNTED)
        if isinstance(e, Load):
            return self._load(e)
        if isinstance(e, Let):
            return self.of(e.body)
        if isinstance(e, Reduce):
            return self._reduce(e)
        if e.fn in ("cast", "bitcast"):
            return self._cast(e)
        return MARK_RULES.get(e.fn, _join)(e, [self.of(a) for a in e.args])

    def _load(self, e: Load) -> Marks:
        found = self._buffers.get(e.buffer, NOTHING)
        if any(not self._data.isdisjoint(d.symbols) for d in e.index):
            found = Marks(max(found.source, MEASURED), found.marks)  # chosen by data: a table of features
        return found if e.otherwise is None else found | self.of(e.otherwise)

    def _cast(self, e: Call) -> Marks:
        source = e.args[0].dtype
        if source.is_float:
            return self.of(e.args[0])
        return Marks(COUNTED if source.is_int and source.bits > 8 else MEASURED)

    def _reduce(self, e: Reduce) -> Marks:
        body = self.of(e.body)
        if e.kind == "prod":
            return body.with_("power")
        if e.kind != "sum":
            return body
        inner = strip_casts(e.body)
        if isinstance(inner, Call) and inner.fn == "mul" and inner.args[0] != inner.args[1]:
            return body.plain  # a product: weights are such that features stay features
        terms = math.prod(a.extent.const_or_none or WINDOW_TERMS + 1 for a in e.axes)
        return body.with_("sum") if terms > WINDOW_TERMS else body


# ---------------------------------------------------------------- rules


def _join(e: Call, args: Sequence[Marks]) -> Marks:
    found = NOTHING
    for a in args:
        found = found | a
    return found


def _bounded(e: Call, args: Sequence[Marks]) -> Marks:
    """Results near 1, whatever goes in."""
    return Marks(MEASURED if _join(e, args).source else CONSTANT)


def _flattened(e: Call, args: Sequence[Marks]) -> Marks:
    """Logarithms and roots: far from any limit."""
    return _join(e, args).plain


def _exp(e: Call, args: Sequence[Marks]) -> Marks:
    return args[0].plain.with_("exp")


def _mul(e: Call, args: Sequence[Marks]) -> Marks:
    a, b = e.args[:2]
    found = _join(e, args).without("reciprocal")
    if any(isinstance(x, Const) and abs(x.value) < 1 for x in (a, b)):
        return found.without("sum")
    return found.with_("power") if a == b else found


def _div(e: Call, args: Sequence[Marks]) -> Marks:
    above, below = args
    source = max(above.source, below.source)
    if isinstance(e.args[0], Const) and "exp" not in below.marks and below.source:
        return Marks(source).with_("reciprocal")
    return Marks(source, above.marks - {"sum", "exp", "reciprocal"})


def _pow(e: Call, args: Sequence[Marks]) -> Marks:
    exponent = e.args[1]
    small = isinstance(exponent, Const) and 0 <= exponent.value <= 1
    return _join(e, args).plain if small else _join(e, args).with_("power")


def _select(e: Call, args: Sequence[Marks]) -> Marks:
    return (args[1] | args[2]).without("exp")


def _least(e: Call, args: Sequence[Marks]) -> Marks:
    return _join(e, args).without("exp")


def _nothing(e: Call, args: Sequence[Marks]) -> Marks:
    return NOTHING


MARK_RULES: Mapping[str, MarkRule] = {
    **dict.fromkeys(("sin", "cos", "tanh", "erf", "atan", "asin", "acos", "sign"), _bounded),
    **dict.fromkeys(("log", "log1p", "sqrt", "asinh", "acosh"), _flattened),
    **dict.fromkeys(("exp", "sinh", "cosh"), _exp),
    **dict.fromkeys((n for n, i in INTRINSICS.items() if i.result == "bool"), _nothing),
    "mul": _mul,
    "fma": _mul,
    "div": _div,
    "pow": _pow,
    "select": _select,
    "min": _least,
}
"""What calls do to marks; those that are not here have the marks of all their operands."""


# ---------------------------------------------------------------- ranges

F16_LARGEST = 65504.0
"""The largest finite f16."""


def fits_f16(e: Expr) -> bool:
    """Whether an f32 expression is never a finite number beyond f16's largest."""
    if isinstance(e, Const):
        return not F16_LARGEST < abs(e.value) < math.inf
    if isinstance(e, Reduce):
        return e.kind in ("max", "min") and fits_f16(e.body)
    if not isinstance(e, Call):
        return False
    if e.fn == "cast":
        source = e.args[0].dtype
        return source.bits < 16 or source == f16 or (source == f32 and fits_f16(e.args[0]))
    if MARK_RULES.get(e.fn) is _bounded:
        return True
    moved = {"select": e.args[1:], "min": e.args, "max": e.args, "abs": e.args, "neg": e.args}
    return e.fn in moved and all(fits_f16(a) for a in moved[e.fn])
