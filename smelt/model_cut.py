"""An ONNX file -> the nodes between values known to be right and a wrong one; a model of these alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.lazily import Lazily

onnx: Any = Lazily("onnx")

MOST_EMBEDDED = 1 << 30
"""Bytes of initialisers up to which a cut is one file; protobuf's own limit is 2 GiB."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node of the main graph. name: its own, or '' where the file gives none. output: the first of its
    outputs that has a name."""

    name: str
    op: str
    output: str

    def __str__(self) -> str:
        return f"'{self.name}' ({self.op})" if self.name else f"the {self.op} that makes '{self.output}'"


@dataclass(frozen=True, slots=True)
class Between:
    """Nodes by their number in the file, and the values that they read from outside, in the order of first
    use. Initialisers are not among these."""

    nodes: tuple[int, ...]
    reads: tuple[str, ...]


class ModelGraph:
    """The main graph of a file. Raises SmeltError(kind='invalid') where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._proto = onnx.load(str(path), load_external_data=False)
        except Exception as e:  # the file's bytes decide what protobuf raises
            raise SmeltError(f"'{path}' cannot be read as ONNX: {str(e)[:300]}") from None
        graph = self._proto.graph
        self._nodes = list(graph.node)
        self._maker = {name: n for n, node in enumerate(self._nodes) for name in node.output if name}
        self._constants = {t.name for t in graph.initializer}
        self._constants |= {t.values.name for t in graph.sparse_initializer}
        self.inputs = [v.name for v in graph.input if v.name not in self._constants]
        self.outputs = [v.name for v in graph.output]

    def __contains__(self, value: str) -> bool:
        return value in self._maker

    def suspect(self, n: int) -> Suspect:
        """A node by its number."""
        node = self._nodes[n]
        return Suspect(node.name, node.op_type, next((o for o in node.output if o), ""))

    def random_nodes(self) -> list[Suspect]:
        """The nodes that draw random numbers, those of inner graphs as the node around them."""
        return [self.suspect(n) for n, node in enumerate(self._nodes) if _draws(node)]

    def maker(self, value: str) -> int | None:
        """The number of the node that makes a value."""
        return self._maker.get(value)

    def outputs_of(self, n: int) -> tuple[str, ...]:
        """The names that a node gives its results."""
        return tuple(o for o in self._nodes[n].output if o)

    def holds_graphs(self, n: int) -> bool:
        """Whether a node is a branch or a loop."""
        return any(_graphs(a) for a in self._nodes[n].attribute)

    @cached_property
    def inner(self) -> frozenset[str]:
        """The values that are made inside branches and loops."""
        return frozenset(_made_inside(self._nodes)) - self._maker.keys()

    @cached_property
    def tensors(self) -> frozenset[str]:
        """The values that nodes make and that another output can return: sequences and optionals are none."""
        kinds = {name: v.type.WhichOneof("value") for name, v in self._inferred.items()}
        return frozenset(n for n in self._maker if kinds.get(n, "tensor_type") == "tensor_type")

    @cached_property
    def _inferred(self) -> dict[str, Any]:
        try:
            graph = onnx.shape_inference.infer_shapes(self._proto).graph
        except Exception:  # a file that its own checker refuses; the nodes are still there
            graph = self._proto.graph
        return {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}

    def named_axes(self) -> dict[str, dict[int, str]]:
        """Input -> its axes whose sizes have names -> the names."""
        return {
            v.name: {n: d.dim_param for n, d in enumerate(v.type.tensor_type.shape.dim) if d.dim_param}
            for v in self._proto.graph.input
            if v.name not in self._constants
        }

    def between(self, wrong: Sequence[str], right: Collection[str] = ()) -> Between:
        """The nodes that wrong values depend on, without those that only right ones need; values in `right`
        and the model's inputs end the search."""
        found: set[int] = set()
        reads: dict[str, None] = {}
        todo = [name for name in wrong if name in self._maker]
        while todo:
            n = self._maker[todo.pop()]
            if n in found:
                continue
            found.add(n)
            for name in _reads(self._nodes[n]):
                if name in self._maker and (name not in right or name in wrong):
                    todo.append(name)
        inside = {o for n in found for o in self._nodes[n].output}
        for n in sorted(found):
            reads |= {r: None for r in _reads(self._nodes[n]) if r not in inside and r not in self._constants}
        known = {*self._maker, *self.inputs}
        return Between(tuple(sorted(found)), tuple(r for r in reads if r in known))

    def cut(self, part: Between, outputs: Sequence[str], feed: Mapping[str, Array], to: Path) -> None:
        """Write a model of these nodes alone, with their initialisers. feed: a value for each of part.reads;
        its type and rank are those of the input, and an extent that the file names keeps the name.

        Raises SmeltError(kind='infra') when the file cannot be written.
        """
        whole = onnx.load(str(self.path))  # with the data
        helper, graph = onnx.helper, whole.graph
        nodes = [self._nodes[n] for n in part.nodes]
        used = {name for node in nodes for name in _reads(node)} - {o for n in nodes for o in n.output}
        made = helper.make_graph(
            nodes, graph.name or "cut", [self._port(name, feed[name]) for name in part.reads],
            [onnx.ValueInfoProto(name=n) if n not in self._inferred else self._inferred[n] for n in outputs],
            [t for t in graph.initializer if t.name in used],
        )  # fmt: skip
        made.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in used)
        model = helper.make_model(made, opset_imports=list(whole.opset_import), ir_version=whole.ir_version)
        model.functions.extend(whole.functions)
        size = sum(len(t.raw_data) for t in made.initializer)
        try:
            onnx.save(model, str(to), save_as_external_data=size > MOST_EMBEDDED, location=f"{to.name}.data")
        except (OSError, ValueError) as e:
            raise SmeltError(f"the reproducer's model '{to}' cannot be written: {e}", kind="infra") from None

    def _port(self, name: str, value: Array) -> Any:
        known = self._inferred.get(name)
        dims: list[int | str] = list(value.shape)
        if known is not None and known.type.HasField("tensor_type"):
            declared = known.type.tensor_type.shape.dim
            if known.type.tensor_type.HasField("shape") and len(declared) == value.ndim:
                dims = [d.dim_param or n for d, n in zip(declared, value.shape, strict=True)]
        code = (
            known.type.tensor_type.elem_type
            if known is not None and known.type.HasField("tensor_type")
            else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        )
        return onnx.helper.make_tensor_value_info(name, code, dims)


def _reads(node: Any) -> Iterator[str]:
    """What a node reads: its inputs, and what graphs inside it take from around them."""
    yield from (name for name in node.input if name)
    for a in node.attribute:
        for g in _graphs(a):
            own = {v.name for v in g.input} | {t.name for t in g.initializer}
            own |= {o for n in g.node for o in n.output}
            yield from (r for n in g.node for r in _reads(n) if r not in own)
            yield from (v.name for v in g.output if v.name not in own)


RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


def _draws(node: Any) -> bool:
    inner = (n for a in node.attribute for g in _graphs(a) for n in g.node)
    return node.op_type in RANDOM_OPS or any(map(_draws, inner))


def _graphs(attribute: Any) -> list[Any]:
    """The graphs that an attribute holds."""
    return [*([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else ()), *attribute.graphs]


def _made_inside(nodes: Iterable[Any]) -> Iterator[str]:
    for n in nodes:
        for g in (g for a in n.attribute for g in _graphs(a)):
            yield from (o for m in g.node for o in m.output if o)
            yield from _made_inside(g.node)
