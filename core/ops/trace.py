"""Compute rules written as Python become kernel expressions: operands that index, variables that reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.dim import Dim, DimLike, to_dim
from smelt.core.dtype import DType, bool_, i64
from smelt.core.ir.graph import Attr, TensorType
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Axis,
    Bound,
    Call,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Reduce,
    ReduceKind,
)

DimIndex: TypeAlias = tuple[Dim, ...]
MARK = "__"
"""Variables of loops and reductions start with it until a kernel is finished."""


def call(fn: str, *args: Expr, dtype: DType | None = None) -> Call:
    """A call of a scalar intrinsic; the result type follows its rule unless it is explicit."""
    rule = INTRINSICS[fn].result
    assert len(args) == INTRINSICS[fn].arity, (fn, len(args))
    if rule == "explicit":
        assert dtype is not None, fn
        return Call(fn, args, dtype)
    return Call(fn, args, bool_ if rule == "bool" else args[0].dtype)


def cast(e: Expr, dtype: DType) -> Expr:
    """Conversion by ONNX's Cast rules; nothing when the type is right already."""
    return e if e.dtype == dtype else Call("cast", (e,), dtype)


def select(condition: Expr, then: Expr, other: Expr) -> Call:
    """then where condition holds, else other."""
    return Call("select", (condition, then, other), then.dtype)


def const(value: bool | int | float, dtype: DType) -> Const:
    """A literal of that type."""
    return Const(float(value) if dtype.is_float else value, dtype)


def index(dim: DimLike, dtype: DType = i64) -> Index:
    """An index expression as a value."""
    return Index(to_dim(dim), dtype)


@dataclass(frozen=True)
class Operand:
    """An input of a compute rule: a tensor, or a producer's rule when ops are composed.

    `operand[i, j]` is the element there. `at(index)` must be a pure function of the index.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    at: Callable[[DimIndex], Expr]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, i: DimLike | tuple[DimLike, ...]) -> Expr:
        ix = i if isinstance(i, tuple) else (i,)
        assert len(ix) == self.rank, f"{len(ix)} indices for rank {self.rank}"
        return self.at(tuple(to_dim(d) for d in ix))

    def broadcast(self, i: Sequence[Dim]) -> Expr:
        """The element that NumPy broadcasting puts at output index i: aligned at the right, and an
        extent that is the constant 1 is read at 0. (Whether a symbolic extent is 1 is decided
        before: type rules make broadcasts of symbolic extents explicit.)"""
        tail = tuple(i[len(i) - self.rank :])
        return self.at(
            tuple(to_dim(0) if s.const_or_none == 1 else d for s, d in zip(self.shape, tail, strict=True))
        )

    def guarded(self, i: DimIndex, bounds: tuple[Bound, ...], otherwise: Expr) -> Expr:
        """The element at i where the bounds hold, else `otherwise`; never reads outside.

        A plain load carries the guard itself; a composed producer becomes a select over clamped reads
        is not needed: the guard is pushed into its loads."""
        return guard_expr(self.at(i), bounds, otherwise)


def guard_expr(e: Expr, bounds: tuple[Bound, ...], otherwise: Expr) -> Expr:
    """e where the bounds hold, else otherwise, with every load in e guarded.

    # load                    -->  load guard bounds else otherwise
    # f(load, ...)            -->  select(inside, f(load guard bounds, ...), otherwise)
    """
    if not bounds:
        return e
    if isinstance(e, Load) and not e.guard:
        return Load(e.buffer, e.index, e.dtype, bounds, otherwise)
    return select(in_bounds(bounds), guard_loads(e, bounds), otherwise)


def in_bounds(bounds: tuple[Bound, ...]) -> Expr:
    """The conjunction of the bounds as a bool value."""
    terms: list[Expr] = []
    for b in bounds:
        terms.append(call("le", index(b.low), index(b.index)))
        terms.append(call("lt", index(b.index), index(b.high)))
    result = terms[0]
    for t in terms[1:]:
        result = call("and", result, t)
    return result


def guard_loads(e: Expr, bounds: tuple[Bound, ...]) -> Expr:
    """e with the bounds added to each of its loads, so that no element outside is read."""
    if isinstance(e, Load):
        other = None if e.otherwise is None else guard_loads(e.otherwise, bounds)
        return Load(e.buffer, e.index, e.dtype, (*e.guard, *bounds), other)
    if isinstance(e, Call):
        return Call(e.fn, tuple(guard_loads(a, bounds) for a in e.args), e.dtype)
    if isinstance(e, Reduce):
        return Reduce(e.kind, e.axes, guard_loads(e.body, bounds), e.dtype, e.last)
    if isinstance(e, Let):
        return Let(e.var, guard_loads(e.value, bounds), e.low, e.high, guard_loads(e.body, bounds))
    return e


def element(
    rule: Callable[..., Expr],
    inputs: Sequence[TensorType | None],
    index: DimIndex,
    attrs: Mapping[str, Attr],
    out: TensorType,
    mark: str = MARK,
) -> Expr:
    """The element of a compute rule's result at `index`, its operands as loads of buffers x0, x1, ...; the
    names of its variables begin with the mark."""

    def operand(k: int, t: TensorType) -> Operand:
        return Operand(t.dtype, t.shape, lambda i: Load(f"x{k}", i, t.dtype))

    operands = [None if t is None else operand(k, t) for k, t in enumerate(inputs)]
    return rule(Trace(mark), index, attrs, out, *operands)


class Trace:
    """Hands out variables while rules are traced; one Trace per kernel keeps the names distinct."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._count = 0

    def fresh(self, base: str) -> Dim:
        """A new index variable named after `base`."""
        from smelt.core.dim import sym

        self._count += 1
        return sym(f"{self._prefix}{base}{self._count}")

    def reduce(
        self,
        kind: ReduceKind,
        extents: Sequence[DimLike],
        body: Callable[..., Expr],
        dtype: DType | None = None,
        last: bool = False,
    ) -> Reduce:
        """kind over variables of these extents of body(*variables)."""
        variables = [self.fresh("k") for _ in extents]
        e = body(*variables)
        axes = tuple(Axis(str(v), to_dim(n)) for v, n in zip(variables, extents, strict=True))
        return Reduce(kind, axes, e, dtype or e.dtype, last)

    def sum(
        self, extents: Sequence[DimLike], body: Callable[..., Expr], dtype: DType | None = None
    ) -> Reduce:
        """The sum over variables of these extents of body(*variables)."""
        return self.reduce("sum", extents, body, dtype)

    def let(self, value: Expr, low: DimLike, high: DimLike, body: Callable[[Dim], Expr]) -> Let:
        """Bind a data-dependent integer, clamped to low..high, as an index variable inside body."""
        v = self.fresh("g")
        return Let(str(v), value, to_dim(low), to_dim(high), body(v))
