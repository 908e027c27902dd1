"""The argument of every binding: a node's inputs as refs, its attributes by type, the builder to emit
with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, Truth, to_dim
from smelt.core.dtype import DType, i64
from smelt.core.ir.graph import Ref, TensorType
from smelt.core.ops.infer import Engine
from smelt.core.ops.table import Attrs
from smelt.importer.builder import GraphBuilder

T = TypeVar("T")

Results: TypeAlias = "Ref | Sequence[Ref]"
Build: TypeAlias = "Callable[[Call], Results]"


@dataclass(frozen=True)
class OnnxOp:
    """One row: from opset `since` on (up to the row with the next one) `build` translates the op `name`."""

    name: str
    since: int
    build: Build
    domain: str = ""


def standard(rows: Sequence[OnnxOp], name: str) -> Build:
    """The `build` of the newest version of a standard op."""
    return max((r for r in rows if r.name == name and not r.domain), key=lambda r: r.since).build


class Undecided(SmeltError):
    """A result's rank depends on run-time data. The translator may then translate the node's readers for both
    cases (importer/undecided.py); otherwise it is a refusal.

    condition: the bool that decides; None where the equality of two sizes decides. equal: these sizes, where
    they are known. op, key: those of the node.
    """

    def __init__(
        self, refusal: SmeltError, condition: Ref | None, equal: tuple[Dim, Dim] | None, op: str, key: str
    ) -> None:
        super().__init__(refusal.message, kind=refusal.kind, node=refusal.node, hint=refusal.hint)
        self.condition, self.equal, self.op, self.key = condition, equal, op, key


class Extents(tuple[Dim, ...]):
    """The extents of an input, as a tuple whose indexing beyond the rank raises SmeltError: the model is
    invalid then."""

    fail: Callable[[str], SmeltError]
    which: int

    @staticmethod
    def of(shape: tuple[Dim, ...], which: int, fail: Callable[[str], SmeltError]) -> Extents:
        """The extents of input `which`."""
        made = Extents(shape)
        made.fail, made.which = fail, which
        return made

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, int) and not -len(self) <= at < len(self):
            least = at + 1 if at >= 0 else -at
            raise self.fail(f"input {self.which} has rank {len(self)}, wanted at least {least}")
        return super().__getitem__(at)

    def __reduce__(self) -> tuple[Any, ...]:
        return (tuple, (tuple(self),))


@dataclass(frozen=True)
class Call:
    """One node of the file, being translated.

    attributes: with references to a function's attributes resolved. translate: for subgraphs (If, Loop).
    """

    node: onnx.NodeProto
    opset: int
    builder: GraphBuilder
    inputs: tuple[Ref, ...]
    attributes: Mapping[str, AttributeProto]
    outputs: tuple[str, ...]
    translate: Any = field(repr=False)

    @property
    def engine(self) -> Engine:
        """The engine that knows facts about sizes."""
        return self.builder.engine

    # ------------------------------------------------------------ inputs

    def has(self, i: int) -> bool:
        """Whether input i is present."""
        return i < len(self.inputs) and bool(self.inputs[i])

    def x(self, i: int = 0) -> Ref:
        """Input i. Raises SmeltError when it is absent."""
        if not self.has(i):
            raise self.fail(f"input {i} is missing")
        return self.inputs[i]

    def optional(self, i: int) -> Ref:
        """Input i, '' when it is absent."""
        return self.inputs[i] if self.has(i) else ""

    def type(self, i: int = 0) -> TensorType:
        """The type of input i."""
        t = self.builder.type_of(self.x(i))
        return TensorType(t.dtype, Extents.of(t.shape, i, self.fail))

    def shape(self, i: int = 0) -> tuple[Dim, ...]:
        """The shape of input i."""
        return self.type(i).shape

    def extents(self, i: int, rank: int) -> tuple[Dim, ...]:
        """The extents of input i. Raises SmeltError for another rank."""
        shape = self.shape(i)
        if len(shape) != rank:
            raise self.fail(f"input {i} has rank {len(shape)}, wanted {rank}")
        return shape

    def size(self, i: int, what: str, low: int = 0, high: Dim | None = None) -> Dim:
        """Input i, an integer tensor of one element, as a size within the limits."""
        found = self.builder.dims_of(self.x(i), what, low, high)
        if len(found) != 1:
            raise self.fail(f"{what} has {len(found)} elements, wanted 1")
        return found[0]

    def positives(self, name: str, n: int, default: int | None = 1, least: int = 1) -> tuple[int, ...]:
        """An int-list attribute with an entry for each of n axes, none below `least`."""
        values = self.ints(name, None if default is None else (default,) * n)
        if len(values) != n:
            raise self.fail(f"{name} has {len(values)} entries for {n} axes")
        if any(v < least for v in values):
            raise self.fail(f"{name} {list(values)} has an entry below {least}")
        return values

    def run_time(self, i: int) -> bool:
        """Whether input i is present and its elements are not constant."""
        if not self.has(i) or any(d == to_dim(0) for d in self.shape(i)):
            return False
        return self.builder.constant_of(self.x(i)) is None

    def declared_rank(self) -> int | None:
        """The rank that the file gives the first output; None when it says nothing."""
        return self.builder.declared.get(self.outputs[0]) if self.outputs else None

    def sized_like(self, ref: Ref, length: int | None) -> Ref:
        """A rank-1 tensor whose symbolic extent is set to `length`, with a check; length None: to the only
        value that its bounds leave."""
        shape = self.builder.type_of(ref).shape
        if len(shape) != 1 or shape[0].is_const:
            return ref
        low, high = self.engine.bounds(shape[0])
        if length is None and low == high:
            length = low
        if length is None:
            return ref
        self.engine.same("elements", shape[0], to_dim(length))
        return self.builder.reshape(ref, (length,))

    def one_or_each(self, ref: Ref, extent: Dim, what: str) -> Ref:
        """A parameter [] for all, or [extent] with one element each; a run may decide which of them it is."""
        shape = self.builder.type_of(ref).shape
        if len(shape) > 1:
            return ref
        for d in shape if extent == to_dim(1) else ():
            self.engine.same(what, d, extent)
        if all(to_dim(1) in (d, extent) for d in shape):
            return self.builder.reshape(ref, ())
        self.engine.fits(what, shape[0], extent)
        if self.engine.prove_eq(shape[0], extent) is Truth.YES:
            return ref
        return self.builder.broadcast_to(ref, (extent,))

    def wants(self, k: int) -> bool:
        """Whether the node names output k."""
        return k < len(self.outputs) and bool(self.outputs[k])

    # ------------------------------------------------------------ attributes

    def integer(self, name: str, default: int | None = None) -> int:
        """An int attribute."""
        return int(self._get(name, AttributeProto.INT, lambda a: a.i, default))

    def flag(self, name: str, default: int = 0) -> bool:
        """An int attribute that is 0 or 1. Raises SmeltError(kind='invalid') for others, which runtimes read
        in different ways."""
        value = self.integer(name, default)
        if value not in (0, 1):
            raise self.fail(f"{name} is {value}, wanted 0 or 1")
        return bool(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A float attribute, which is an f32 in the file; so is its default."""
        return float(np.float32(self._get(name, AttributeProto.FLOAT, lambda a: a.f, default)))

    def text(self, name: str, default: str | None = None) -> str:
        """A string attribute."""
        return str(self._get(name, AttributeProto.STRING, lambda a: a.s.decode(), default))

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """An int-list attribute."""
        found = self._get(name, AttributeProto.INTS, lambda a: tuple(a.ints), default)
        return tuple(int(v) for v in found)

    def floats(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """A float-list attribute."""
        found = self._get(name, AttributeProto.FLOATS, lambda a: tuple(a.floats), default)
        return tuple(float(v) for v in found)

    def given(self, name: str) -> bool:
        """Whether the attribute is present."""
        return name in self.attributes

    def _get(self, name: str, kind: int, read: Callable[[AttributeProto], T], default: T | None) -> T:
        a = self.attributes.get(name)
        if a is None:
            if default is None:
                raise self.fail(f"attribute '{name}' is missing")
            return default
        if a.type != kind:
            names = {v: k for k, v in AttributeProto.AttributeType.items()}
            raise self.fail(f"attribute '{name}' is {names.get(a.type, a.type)}, wanted {names[kind]}")
        return read(a)

    def axis(self, value: int, rank: int, name: str = "axis") -> int:
        """An axis counted from the front. Raises SmeltError when it is out of range."""
        if not -rank <= value < rank:
            raise self.fail(f"{name} {value} does not fit rank {rank}")
        return value + rank if value < 0 else value

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes counted from the front, sorted. Raises SmeltError for duplicates."""
        found = sorted(self.axis(v, rank, "axes") for v in values)
        if len(set(found)) != len(found):
            raise self.fail(f"axes {list(values)} name an axis twice")
        return tuple(found)

    def given_axes(self) -> tuple[int, ...] | None:
        """`axes`, an attribute in old opsets and input 1 in later ones; None when it is absent."""
        if self.given("axes"):
            return self.ints("axes")
        return self.builder.ints_of(self.x(1), "axes") if self.has(1) else None

    # ------------------------------------------------------------ emission

    def emit(self, op: str, *inputs: Ref, **attrs: Any) -> Ref:
        """One core op."""
        return self.builder.emit(op, inputs, attrs)

    def emit_many(self, op: str, inputs: Sequence[Ref], attrs: Attrs) -> tuple[Ref, ...]:
        """One core op with several outputs."""
        return self.builder.emit_many(op, inputs, attrs)

    def scalar(self, value: Any, like: Ref) -> Ref:
        """A rank-0 constant of the type of `like`."""
        return self.builder.scalar(value, like)

    def iota(self, n: Dim | int, start: Dim | int = 0) -> Ref:
        """start, start + 1, ...: i64[n]."""
        return self.emit("iota", shape=(to_dim(n),), start=to_dim(start), step=to_dim(1), dtype=i64)

    def cast(self, x: Ref, dtype: DType) -> Ref:
        """x as another element type."""
        return self.builder.cast(x, dtype)

    # ------------------------------------------------------------ refusals

    def fail(self, message: str, hint: str | None = None) -> SmeltError:
        """The error for an invalid model, naming this node."""
        return self.engine.fail(message, hint)

    def unsupported(self, message: str, try_: str | None = None) -> SmeltError:
        """The error for what smelt does not support, naming this node."""
        return self.engine.unsupported(message, try_)

    @property
    def may_wait(self) -> bool:
        """Whether the node may raise Undecided: both cases of its rank have not been tried yet."""
        return bool(self.translate is not None and self.translate.may_wait(self.node))

    def undecided(
        self,
        message: str,
        condition: Ref | None,
        equal: tuple[Dim, Dim] | None,
        try_: str | None = None,
    ) -> SmeltError:
        """The error for a rank that a run decides: by a bool, or by the equality of two sizes. It is
        Undecided, or a plain refusal where both cases have been tried already."""
        refusal = self.engine.unsupported(message, try_)
        if not self.may_wait:
            return refusal
        return Undecided(refusal, condition, equal, self.engine.op, self.translate.key(self.node))
