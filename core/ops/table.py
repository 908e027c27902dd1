"""The op table's row: type rule, compute rule or expansion, reference, and conformance cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from smelt.core.dim import Dim, dmin
from smelt.core.dtype import Array, DType
from smelt.core.ir.graph import Attr, Ref, TensorType
from smelt.core.ir.kernel import Buffer, Expr, Stmt
from smelt.core.ops.trace import DimIndex, Operand, Trace

Attrs: TypeAlias = Mapping[str, Attr]
ShapeValue: TypeAlias = tuple[Dim, ...]
"""The elements of a small integer tensor (rank 0 or 1, row-major) as Dims."""


@dataclass(frozen=True, slots=True)
class Arg:
    """What a type rule sees of an input: its type, and its elements when they are known as Dims."""

    type: TensorType
    value: ShapeValue | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)


class Infer(Protocol):
    """What a type rule may ask and say. It never guesses: it proves, refutes, or records a check."""

    def divides(self, what: str, divisor: Dim, d: Dim) -> None:
        """divisor must divide d: proved, refuted with an error, or checked at run time."""
        ...

    def same(self, what: str, a: Dim, b: Dim) -> Dim:
        """a and b must be equal: proves, unifies or records a run-time check, and returns the one to
        use; raises SmeltError when they cannot be."""
        ...

    def at_most(self, what: str, a: Dim, b: Dim) -> None:
        """a <= b must hold: proved, refuted with an error, or checked at run time."""
        ...

    def broadcast(self, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """NumPy's broadcast of shapes with symbolic extents."""
        ...

    def fresh(self, base: str, low: int = 0, high: Dim | None = None) -> Dim:
        """A new symbol, bound at run time by the node itself."""
        ...

    def simplify(self, d: Dim) -> Dim:
        """d under everything known so far."""
        ...

    def fail(self, message: str, hint: str | None = None) -> Exception:
        """A SmeltError(kind='invalid') that carries the node's name, to be raised by the rule."""
        ...

    def unsupported(self, message: str, try_: str | None = None) -> Exception:
        """A SmeltError(kind='unsupported') that carries the node's name, to be raised by the rule."""
        ...


def wants_elements(c: Infer, what: str, made: Sequence[Dim], extent: Dim) -> None:
    """Where elements of extents `made` are chosen by data from an axis, it must have some: a position that is
    clamped into an axis of no elements is outside of it."""
    if not extent.is_const or extent.const < 1:
        c.at_most(f"{what} has no elements to index", dmin(*made, 1), extent)


InferRule: TypeAlias = Callable[[Infer, Sequence[Arg | None], Attrs], tuple[TensorType, ...]]
ComputeRule: TypeAlias = Callable[..., Expr]
"""(trace, out_index, attrs, out_type, *operands) -> Expr: the element of output 0 at out_index. Absent
optional inputs are None. Multi-output ops give a tuple of rules."""
NestRule: TypeAlias = Callable[[Trace, Attrs, Sequence[Buffer | None], Sequence[Buffer]], "Nest"]
"""(trace, attrs, input buffers, output buffers) -> Nest: ops that are no function of the index alone
(cumsum, sort, nonzero); index variables come from trace.fresh."""
ValueRule: TypeAlias = Callable[[Infer, Sequence[Arg | None], Attrs], "tuple[ShapeValue | None, ...]"]
SpanRule: TypeAlias = Callable[[Sequence[TensorType | None], Attrs, int, DimIndex], "tuple[Dim, Dim] | int"]
"""(input types, attrs, which output, index) -> the least and the greatest that its integer there can be, or
the number of the input that it is an element of."""
RefRule: TypeAlias = Callable[[Sequence[Array | None], Attrs, Sequence[TensorType]], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Nest:
    """Statements of a naive kernel and the scratch they need."""

    body: tuple[Stmt, ...]
    scratch: tuple[Buffer, ...] = ()


class Builder(Protocol):
    """Emits ops while an expansion runs; results are refs."""

    def emit(self, op: str, inputs: Sequence[Ref], attrs: Attrs | None = None) -> Ref:
        """One node with one output; its type is inferred."""
        ...

    def constant(self, array: Array) -> Ref:
        """A weight holding the array."""
        ...

    def type_of(self, ref: Ref) -> TensorType:
        """The type of a ref."""
        ...


ExpandRule: TypeAlias = Callable[[Builder, Sequence[Ref], Attrs], tuple[Ref, ...]]


@dataclass(frozen=True)
class Case:
    """A conformance row. inputs: each 'dtype[shape]' text ('f32[N, 3, 1]', symbols become 1, 2, 3, 5 and
    7 in turn and also 0 where `zero` is allowed), or '-' for an absent one, or an array for a value that
    matters. attrs: as on the node. low/high: range of random values."""

    inputs: tuple[str | Array, ...]
    attrs: Attrs = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    zero: bool = True


@dataclass(frozen=True)
class Op:
    """One row. Exactly one of compute, nest, expand is given. inputs: names, 'a b? *rest'.

    value: how small integer tensors propagate as Dims where no formula (compute) tells.
    span: what integers its outputs hold, where no formula tells.
    view: output 0 has the bytes of input 0 (reshape): no kernel is needed.
    pure: no side effects; two equal nodes are one.
    tolerance: factor on the default tolerance against the reference, with its reason in a comment.
    broadcasts: how many axes at the end of each input take no part in NumPy's broadcast of the inputs; None
        where there is no such broadcast.
    """

    name: str
    inputs: str
    infer: InferRule
    ref: RefRule
    cases: tuple[Case, ...]
    compute: ComputeRule | tuple[ComputeRule, ...] | None = None
    nest: NestRule | None = None
    expand: ExpandRule | None = None
    value: ValueRule | None = None
    span: SpanRule | None = None
    view: bool = False
    pure: bool = True
    tolerance: float = 1.0
    broadcasts: int | None = None


__all__ = [
    "Arg",
    "Array",
    "Attrs",
    "Builder",
    "Case",
    "ComputeRule",
    "DimIndex",
    "ExpandRule",
    "Infer",
    "InferRule",
    "Nest",
    "NestRule",
    "Op",
    "Operand",
    "RefRule",
    "ShapeValue",
    "Trace",
    "ValueRule",
]
