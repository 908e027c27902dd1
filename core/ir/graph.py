"""Module, graphs, nodes, values: the dataflow level of the IR. Immutable; passes build new ones."""

from __future__ import annotations

import errno
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from smelt.core.dim import Dim
from smelt.core.dtype import Array, DType
from smelt.core.ir.kernel import Kernel

Ref: TypeAlias = str
"""A use of a tensor: '%name' (a value of the graph or of one around it) or '@name' (a weight)."""

FILE_PIECE = 4 << 20
"""Bytes of a weight's file that are read at a time."""

EAGER = 64 << 10
"""Bytes up to which a weight is transposed or scaled at once."""

HEAD_BYTES = 4096
"""Bytes at the start of a weight that are compared before all of it is."""

MOST_PARTS = 16
"""How often a weight may be read for that."""

Attr: TypeAlias = "None | bool | int | float | str | Dim | DType | tuple[Attr, ...]"
"""Attribute values. Sizes and positions are Dims (also when constant); modes are str."""


def attrs_key(attrs: Mapping[str, Attr]) -> Hashable:
    """The attributes as a hashable value that is equal for equal ones alone."""
    return tuple(sorted((k, _frozen(v)) for k, v in attrs.items()))


def _frozen(value: Attr) -> Hashable:
    kind = value.__class__
    if kind is tuple:
        return tuple(map(_frozen, value))  # type: ignore[arg-type]
    # 0.0 == -0.0, True == 1, nan != nan
    return (repr(value),) if kind is float or kind is bool else value


def attr_dims(value: Attr) -> Iterator[Dim]:
    """The Dims in an attribute value."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from attr_dims(v)


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype and shape; every extent is a Dim."""

    dtype: DType
    shape: tuple[Dim, ...]
    _symbols: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that the extents speak of."""
        found = self._symbols
        if found is None:
            found = frozenset()
            for d in self.shape:
                if d.const_or_none is None:
                    found = found | d.symbols if found else d.symbols
            object.__setattr__(self, "_symbols", found)
        return found

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of a graph. name: unique in the module's graph, with its '%'. origin: the ONNX name
    it came from; it survives every rewrite, so that errors and bisects speak the user's names. unit: in whose
    memory it lies; '' before units are assigned, and for a view of a weight, which every unit has. axes: the
    ONNX value is this one transposed by them; (): it has the same elements in the same order, if perhaps in
    another shape."""

    name: Ref
    type: TensorType
    origin: str = ""
    unit: str = ""
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a graph.

    op: a row of the op table, or one of the structural ops
        call_kernel  attrs kernel: str, dims: tuple of Dim (arguments of the kernel's dims, in order)
        call_library attrs library: str, dims: tuple of Dim
        transfer     one input, copied to the memory of the unit of the output
        fused        regions: one graph whose nodes become a single kernel
        check        attrs left: Dim, relation: '==' | '<=' | 'divides' | 'fits', right: Dim, text: str
        bind         one input (integer tensor), attrs symbol: str, index: int (flat), low, high: Dim
                     binds a fresh symbol to an element, at run time; or no input, attrs symbol: str,
                     value: Dim: a name for a formula; or no input, attrs symbol: str, draw: True:
                     a random number, another one each time that the node runs
        if, loop     control flow with regions
    inputs: refs; '' stands for an absent optional input.
    """

    op: str
    inputs: tuple[Ref, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    regions: tuple[Graph, ...] = ()
    origin: str = ""

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default`."""
        return self.attrs.get(name, default)

    @property
    def output(self) -> Value:
        """The only output."""
        assert len(self.outputs) == 1, self
        return self.outputs[0]

    @property
    def bound(self) -> frozenset[str]:
        """The symbol that a `bind` gives its value; none for other nodes."""
        return frozenset({str(self.attrs["symbol"])} if self.op == "bind" else ())

    @property
    def settled(self) -> frozenset[str]:
        """The symbols that have a value at the latest when the node has run: bound, or of its outputs."""
        if self.op != "bind" and len(self.outputs) == 1:  # nearly all: 40 times a node in a compile
            return self.outputs[0].type.symbols
        return self.bound.union(*(v.type.symbols for v in self.outputs))

    @property
    def unit(self) -> str:
        """The unit that runs it: the one in whose memory its results lie."""
        return self.outputs[0].unit if self.outputs else ""

    def with_(self, **changes: Any) -> Node:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order that respects uses. inputs: parameters. outputs: refs of what it returns.
    output_names: the ONNX names of the outputs (main graph)."""

    name: str
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    output_names: tuple[str, ...] = ()

    def values(self) -> dict[Ref, Value]:
        """Every value that this graph itself defines, by ref (regions excluded)."""
        found = {v.name: v for v in self.inputs}
        for node in self.nodes:
            for v in node.outputs:
                found[v.name] = v
        return found

    def walk(self) -> Iterator[Node]:
        """All nodes, regions included, outer before inner."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    def with_(self, **changes: Any) -> Graph:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named size with its inclusive range (high None: unbounded) and divisor; `origin` says who
    declared it ('input x axis 2', '--dim', 'nonzero'). hot: values at which it is to be fast."""

    name: str
    low: int = 0
    high: int | None = None
    divisor: int = 1
    origin: str = ""
    hot: tuple[int, ...] = ()


@dataclass(frozen=True)
class Weight:
    """A constant tensor by reference: an array in memory, a span of a file that is mapped on use, or a recipe
    that makes its elements, in order and some at a time, from another weight.

    shape: ints. stored: the type in the file where that is another one; elements are converted when read.
    Equality is by dtype, shape and content hash, so that text round-trips.
    """

    name: Ref
    dtype: DType
    shape: tuple[int, ...]
    data: Array | None = field(default=None, compare=False, repr=False)
    path: Path | None = field(default=None, compare=False)
    offset: int = field(default=0, compare=False)
    known_digest: str = field(default="", compare=False)
    origin: str = field(default="", compare=False)
    recipe: Callable[[], Iterator[Array]] | None = field(default=None, compare=False, repr=False)
    stored: DType | None = field(default=None, compare=False)

    @property
    def bytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * self.dtype.bytes

    @property
    def is_named_only(self) -> bool:
        """Whether nothing but the digest is known of its elements."""
        return self.data is None and self.path is None and self.recipe is None

    def array(self) -> Array:
        """The elements, read-only; mapped from the file when they are external. Raises MemoryError."""
        if self.data is not None:
            return self.data
        if self.recipe is not None:
            return np.concatenate([a.reshape(-1) for a in self.recipe()]).reshape(self.shape)
        assert self.path is not None, f"weight {self.name} has no data"
        if self.bytes == 0:
            return np.zeros(self.shape, self.dtype.numpy)
        if self.stored is not None:
            return self._read(0, math.prod(self.shape)).reshape(self.shape)
        try:
            mapped = np.memmap(
                self.path,
                dtype=self.dtype.numpy,
                mode="r",
                offset=self.offset,
                shape=self.shape or (1,),
            )
        except OSError as e:
            if e.errno == errno.ENOMEM:  # the process may have no more addresses
                raise MemoryError(f"no room to map the weight {self.name}") from None
            raise
        return mapped.reshape(self.shape)

    def pieces(self) -> Iterator[Array]:
        """The elements in order, flat, some at a time; what is in a file is read, not mapped, so that it
        does not count as memory of the process."""
        if self.recipe is not None:
            yield from (a.reshape(-1) for a in self.recipe())
        elif self.data is None and self.path is not None and self.bytes:
            count, most = math.prod(self.shape), max(1, FILE_PIECE // self.dtype.bytes)
            for start in range(0, count, most):
                yield self._read(start, min(most, count - start))
        else:
            yield self.array().reshape(-1)

    def reshaped(self, shape: tuple[int, ...], name: Ref) -> Weight:
        """The same elements as a weight of another shape."""
        data = None if self.data is None else self.data.reshape(shape)
        return replace(self, name=name, shape=shape, data=data)

    def transposed(self, perm: tuple[int, ...], name: Ref) -> Weight:
        """The weight with its axes in another order, which is made when it is read unless it is small or in
        memory already."""
        return self._derived(Transposed(self, perm), name)

    def scaled(self, factor: Array, name: Ref) -> Weight:
        """The weight times a factor, f64 of the same rank, made as `transposed` does."""
        return self._derived(Scaled(self, factor), name)

    def _derived(self, recipe: Derived, name: Ref) -> Weight:
        made = Weight(name, self.dtype, recipe.shape, recipe=recipe, origin=self.origin)
        if self.data is None and self.bytes > EAGER:
            return made
        data = np.array(recipe.whole(self.array()), order="C")
        data.flags.writeable = False
        return replace(made, data=data, recipe=None)

    def window(self, shape: tuple[int, ...], axis: int, start: int, stop: int) -> Array:
        """Positions start..stop of one axis of the weight as of this shape, read as `pieces` does."""
        if isinstance(self.recipe, Derived) and shape == self.recipe.shape:
            return self.recipe.window(axis, start, stop)
        if self.data is not None or self.path is None or not self.bytes:
            return self.array().reshape(shape)[(*(slice(None),) * axis, slice(start, stop))]
        before, extent, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        found = np.empty((before, stop - start, after), self.dtype.numpy)
        if before == 1:
            found[0] = self._read(start * after, (stop - start) * after).reshape(-1, after)
        else:
            most = max(1, FILE_PIECE // (extent * after * self.dtype.bytes))
            for row in range(0, before, most):
                rows = min(most, before - row)
                block = self._read(row * extent * after, rows * extent * after)
                found[row : row + rows] = block.reshape(rows, extent, after)[:, start:stop]
        return found.reshape(*shape[:axis], stop - start, *shape[axis + 1 :])

    def _read(self, start: int, count: int) -> Array:
        stored = self.stored or self.dtype
        assert self.path is not None
        at = self.offset + start * stored.bytes
        found = np.fromfile(self.path, np.uint8, count * stored.bytes, offset=at).view(stored.numpy)
        return found if stored == self.dtype else found.astype(self.dtype.numpy)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the elements' bytes (hex): the identity of the content."""
        if self.known_digest:
            return self.known_digest
        found = hashlib.sha256()
        for piece in self.pieces():
            found.update(np.ascontiguousarray(piece).view(np.uint8).data)
        return found.hexdigest()

    @cached_property
    def head(self) -> Hashable:
        """The first HEAD_BYTES of the elements: weights of one type whose heads differ are different, which
        takes no reading of them all."""
        if self.data is None and self.recipe is None and self.path is not None and self.bytes:
            count = min(math.prod(self.shape), HEAD_BYTES // self.dtype.bytes or 1)
            return self._read(0, count).tobytes()[:HEAD_BYTES]
        found = b""
        for piece in self.pieces():
            found += np.ascontiguousarray(piece[:HEAD_BYTES]).tobytes()
            if len(found) >= HEAD_BYTES:
                break
        return found[:HEAD_BYTES]

    @property
    def type(self) -> TensorType:
        from smelt.core.dim import to_dim

        return TensorType(self.dtype, tuple(to_dim(n) for n in self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weight):
            return NotImplemented
        mine = (self.name, self.dtype, self.shape)
        return mine == (other.name, other.dtype, other.shape) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.name, self.dtype, self.shape))


@dataclass(frozen=True, eq=False)
class Derived(ABC):
    """The recipe of a weight that is made from another one, any part of it by itself."""

    source: Weight

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that it makes."""
        return self.source.shape

    @abstractmethod
    def whole(self, array: Array) -> Array:
        """All elements, from those of the source."""

    @abstractmethod
    def window(self, axis: int, start: int, stop: int) -> Array:
        """Positions start..stop of one axis."""

    def __call__(self) -> Iterator[Array]:
        """All elements, in parts along the first axis; each may read the whole source, hence few of them."""
        extent = self.shape[0]
        step = max(1, math.ceil(extent / min(MOST_PARTS, math.ceil(self.source.bytes / FILE_PIECE) or 1)))
        for start in range(0, extent, step):
            yield np.ascontiguousarray(self.window(0, start, min(extent, start + step)))


@dataclass(frozen=True, eq=False)
class Transposed(Derived):
    """The axes of the source in the order perm."""

    perm: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.source.shape[a] for a in self.perm)

    def whole(self, array: Array) -> Array:
        return np.transpose(array, self.perm)

    def window(self, axis: int, start: int, stop: int) -> Array:
        return self.whole(self.source.window(self.source.shape, self.perm[axis], start, stop))


@dataclass(frozen=True, eq=False)
class Scaled(Derived):
    """The source times a factor of its rank, in f64, rounded to the source's type."""

    factor: Array

    def whole(self, array: Array) -> Array:
        return np.asarray(array.astype(np.float64) * self.factor).astype(array.dtype)

    def window(self, axis: int, start: int, stop: int) -> Array:
        many = self.factor.shape[axis] > 1
        k = np.take(self.factor, range(start, stop), axis) if many else self.factor
        return Scaled(self.source, k).whole(self.source.window(self.source.shape, axis, start, stop))


@dataclass(frozen=True, slots=True)
class Library:
    """An external function that `call_library` may name: symbol, the files to look for it in, and the
    adapter that knows its argument order."""

    name: str
    files: tuple[str, ...]
    adapter: str


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Module:
    """Graphs, kernels, library declarations and weights, side by side at every stage."""

    name: str
    symbols: tuple[Symbol, ...] = ()
    weights: Mapping[Ref, Weight] = field(default_factory=_empty)
    graphs: Mapping[str, Graph] = field(default_factory=_empty)
    kernels: Mapping[str, Kernel] = field(default_factory=_empty)
    libraries: Mapping[str, Library] = field(default_factory=_empty)

    @property
    def main(self) -> Graph:
        """The entry graph."""
        return self.graphs["main"]

    def with_(self, **changes: Any) -> Module:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def calls(self) -> Iterator[Node]:
        """The calls of kernels in all graphs and their regions."""
        return (n for g in self.graphs.values() for n in g.walk() if n.op == "call_kernel")

    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the entry graph's outputs, which may be weights."""
        values = self.main.values()
        return tuple((self.weights[r] if r in self.weights else values[r]).type for r in self.main.outputs)

    def with_main(self, graph: Graph) -> Module:
        """A copy with another entry graph."""
        return replace(self, graphs={**self.graphs, "main": graph})
