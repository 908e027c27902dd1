"""Steps in, a random ONNX model with dynamic dims out, with feeds at several sizes: a fuzzer's stock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from oracle import plain_session

Array = np.ndarray[Any, Any]

SYMBOLS = ("N", "M", "K")
SIZES = (1, 2, 3, 5, 7, 13, 16, 17, 33)
MAX_ELEMENTS = 60_000
MAX_VALUE = 1e4
MAX_INT = {1: 255, 2: 30_000, 4: 30_000}
"""By bytes; 64 bits are kept small, since they may become sizes."""
OPSETS = (7, 8, 9, 10, 11, 12, *(13, 14, 15, 16, 17, 18, 19, 20, 21, 22) * 2, 23, 24, 25, 26)
OPTIONAL = {"com.microsoft": 1, "ai.onnx.ml": 3}
"""Domains that a model imports where it needs them."""


class TooLarge(Exception):
    """A step that would make too much."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: its contents at every size.

    exact: small multiples of a power of two, so that any order of arithmetic gives the same bits and
    discontinuous ops may be asked about it. constant: an initialiser.
    """

    name: str
    arrays: tuple[Array, ...]
    exact: bool
    constant: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.arrays[0].dtype
        return found

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def kind(self) -> str:
        """'f' float, 'i' integer of either sign, 'b' bool."""
        return {"u": "i"}.get(self.dtype.kind, self.dtype.kind)

    def extent(self, axis: int) -> tuple[int, ...]:
        """The extent of an axis at every size; all equal when it is static (as far as sizes tell)."""
        return tuple(a.shape[axis] for a in self.arrays)

    def shape(self) -> tuple[tuple[int, ...], ...]:
        """The extents of every axis."""
        return tuple(self.extent(a) for a in range(self.rank))

    def static(self, axis: int) -> int | None:
        """The extent when it is the same at every size."""
        e = set(self.extent(axis))
        return e.pop() if len(e) == 1 else None

    def size(self) -> int:
        """The largest number of elements."""
        return max(a.size for a in self.arrays)


def element(dtype: np.dtype[Any]) -> int:
    """ONNX's number for a NumPy dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, np.dtype[Any], Sequence[int | str | None] | None]],
    outputs: Sequence[tuple[str, np.dtype[Any]]],
    constants: Mapping[str, Array],
    opset: int,
) -> onnx.ModelProto:
    """A model; the outputs' shapes are left to inference."""
    g = helper.make_graph(
        list(nodes), "fuzz",
        [helper.make_tensor_value_info(n, element(d), s) for n, d, s in inputs],
        [helper.make_tensor_value_info(n, element(d), None) for n, d in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    domains = sorted({n.domain for n in walk(nodes)} & set(OPTIONAL))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, OPTIONAL[d]) for d in domains)]
    made = helper.make_model(g, opset_imports=imports)
    made.ir_version = 8 if opset <= 20 else 10
    return made


def regions(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs of a node."""
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs too."""
    for n in nodes:
        yield n
        for g in regions(n):
            yield from walk(g.node)


def reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node needs from around it: its inputs, and what its subgraphs capture."""
    found = [i for i in node.input if i]
    for g in regions(node):
        own = {v.name for v in g.input} | {t.name for t in g.initializer}
        own |= {o for n in g.node for o in n.output}
        found += [i for n in g.node for i in reads(n) if i not in own]
        found += [o.name for o in g.output if o.name not in own]
    return found


@dataclass(frozen=True)
class Found:
    """A drawn model with feeds, one per size; `loose` names the float inputs that may be perturbed."""

    model: onnx.ModelProto
    feeds: tuple[dict[str, Array], ...]
    loose: frozenset[str] = frozenset()


@dataclass
class Graph:
    """A graph that grows: a step is kept when ONNX Runtime runs it at every size."""

    seed: int
    without: frozenset[str] = frozenset()
    rng: np.random.Generator = field(init=False)
    opset: int = field(init=False)
    environments: list[dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.opset = int(self.pick(OPSETS))
        self.environments = self._sizes()
        self.values: list[Value] = []
        self.inputs: list[tuple[Value, list[int | str | None]]] = []
        self.constants: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.counter = 0
        self.depth = 0  # how many bodies around the steps
        self.step: Any = None  # draws and takes one step from a value: what bodies grow by

    def _sizes(self) -> list[dict[str, int]]:
        """Different numbers for each symbol at each size; sometimes a zero."""
        columns = {s: [int(n) for n in self.rng.choice(SIZES, 3, replace=False)] for s in SYMBOLS}
        if self.rng.random() < 0.25:
            columns[str(self.pick(SYMBOLS))][int(self.rng.integers(3))] = 0
        return [{s: columns[s][i] for s in SYMBOLS} for i in range(3)]

    # ------------------------------------------------------------ dice

    def pick(self, items: Sequence[Any]) -> Any:
        """One of the items."""
        return items[int(self.rng.integers(len(items)))]

    def chance(self, p: float) -> bool:
        """True with that probability."""
        return bool(self.rng.random() < p)

    def axis(self, x: Value) -> int:
        """An axis of x, sometimes counted from the end (where ONNX Runtime gets that right)."""
        a = self.number(0, x.rank - 1)
        empty = any(0 in e for e in x.shape())
        return a - x.rank if self.chance(0.4) and not empty else a

    def number(self, low: int, high: int) -> int:
        """low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def name(self, stem: str = "v") -> str:
        """A new name."""
        self.counter += 1
        return f"{stem}{self.counter}"

    # ------------------------------------------------------------ values

    def contents(self, dtype: np.dtype[Any], shape: Sequence[int], exact: bool) -> Array:
        """Random elements: small whole numbers, quarters, or any float in -2..2."""
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        if dtype.kind in "iu":
            return self.rng.integers(0 if dtype.kind == "u" else -6, 7, shape).astype(dtype)
        raw = self.rng.integers(-8, 9, shape) / 4 if exact else self.rng.uniform(-2, 2, shape)
        return raw.astype(dtype)

    def feed(self, dtype: str, dims: Sequence[int | str | None], exact: bool) -> Value:
        """A graph input; a dim is a number, a symbol, '2*N', 'N+1', or None (unnamed, any size)."""
        where = [self.extents(d) for d in dims]
        arrays = tuple(
            self.contents(np.dtype(dtype), [w[i] for w in where], exact)
            for i in range(len(self.environments))
        )
        v = Value(self.name("x"), arrays, exact)
        self.inputs.append((v, list(dims)))
        self.values.append(v)
        return v

    def given(self, arrays: Sequence[Any], dims: Sequence[int | str | None]) -> Value:
        """A graph input with these contents, one array per size: an operand that only a run knows."""
        v = Value(self.name("x"), tuple(np.asarray(a) for a in arrays), True)
        self.inputs.append((v, list(dims)))
        self.values.append(v)
        return v

    def operand(self, arrays: Sequence[Any]) -> Value:
        """Small operands of a shape that is alike at every size: a constant where that is possible and the
        dice say so, else an input."""
        whole = [np.asarray(a) for a in arrays]
        if all(np.array_equal(a, whole[0]) for a in whole) and self.chance(0.4):
            return self.constant(whole[0])
        return self.given(whole, whole[0].shape)

    def extents(self, dim: int | str | None) -> list[int]:
        """A dim at every size."""
        if dim is None:
            return [e["N"] for e in self.environments]
        if isinstance(dim, int):
            return [dim] * len(self.environments)
        return [int(eval(dim, {"__builtins__": {}}, e)) for e in self.environments]

    def constant(self, array: Any, exact: bool = True) -> Value:
        """An initialiser."""
        a = np.asarray(array)
        v = Value(self.name("c"), (a,) * len(self.environments), exact, True)
        self.constants.append(v)
        return v

    def ints(self, *numbers: int) -> Value:
        """A vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def weight(self, like: Value, *shape: int) -> Value:
        """Random parameters of the same dtype. Raises TooLarge."""
        if np.prod(shape, dtype=float) > MAX_ELEMENTS:
            raise TooLarge
        return self.constant(self.contents(like.dtype, shape, like.exact), like.exact)

    # ------------------------------------------------------------ growth

    def node(self, op: str, *inputs: Value | None, outputs: int = 1, **attributes: Any) -> onnx.NodeProto:
        """A node with new names for its outputs."""
        names = [self.name() for _ in range(outputs)]
        return helper.make_node(op, [v.name if v else "" for v in inputs], names, **attributes)

    def add(
        self, *nodes: onnx.NodeProto, exact: bool = False, keep: Sequence[str] | None = None
    ) -> list[Value]:
        """Append a step; its last node's outputs (or `keep`) join the stock. [] when it was refused."""
        results = None if any(n.op_type in self.without for n in walk(nodes)) else self.evaluate(nodes)
        if results is None:
            return []
        wanted = [o for o in nodes[-1].output if o] if keep is None else list(keep)
        if not all(isinstance(r[n], np.ndarray) for r in results for n in wanted):
            return []  # nothing at all: what some kernels make of empty tensors
        made = [Value(n, tuple(r[n] for r in results), exact) for n in wanted]
        if not all(self.sane(v) for v in made):
            return []
        self.nodes += nodes
        self.values += made
        return made

    def sane(self, v: Value) -> bool:
        """Not too large, finite, in a range where floats still mean something."""
        if v.size() > MAX_ELEMENTS or v.rank > 6:
            return False
        limit = {"i": MAX_INT.get(v.dtype.itemsize, 200)}.get(v.kind, MAX_VALUE)
        return all(not a.size or a.dtype.kind == "b" or bool(np.max(np.abs(a)) <= limit) for a in v.arrays)

    def evaluate(self, nodes: Sequence[onnx.NodeProto]) -> list[dict[str, Array]] | None:
        """What ONNX Runtime computes for the nodes alone at every size; None when it refuses."""
        made = {o for n in nodes for o in n.output if o}
        known = {v.name: v for v in [*(v for v, _ in self.inputs), *self.constants, *self.values]}
        needed = sorted({i for n in nodes for i in reads(n) if i not in made})
        outputs = [o for n in nodes for o in n.output if o]
        types = [(n, known[n].dtype, None) for n in needed]
        proto = build(nodes, types, [], {}, self.opset)
        proto.graph.output.extend(onnx.ValueInfoProto(name=o) for o in outputs)
        try:
            run = plain_session(proto)
            return [
                dict(zip(outputs, run.run(outputs, {n: known[n].arrays[i] for n in needed}), strict=True))
                for i in range(len(self.environments))
            ]
        except Exception:  # whatever it does not take is not drawn
            return None

    def done(self) -> Found:
        """The model: every value that nobody reads is an output, and now and then one that is read."""
        read = {i for n in self.nodes for i in reads(n)}
        own = [v for v in self.values if any(v.name in n.output for n in self.nodes)]
        outputs = [v for v in own if v.name not in read or self.chance(0.1)]
        used = {v.name: v for v in self.constants if v.name in read}
        model = build(
            self.nodes,
            [(v.name, v.dtype, dims) for v, dims in self.inputs if v.name in read],
            [(v.name, v.dtype) for v in outputs],
            {n: v.arrays[0] for n, v in used.items()},
            self.opset,
        )
        feeds = tuple(
            {v.name: v.arrays[i] for v, _ in self.inputs if v.name in read}
            for i in range(len(self.environments))
        )
        loose = frozenset(v.name for v, _ in self.inputs if v.kind == "f" and not v.exact)
        return Found(model, feeds, loose)
