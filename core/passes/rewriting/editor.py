"""A graph while a pass changes it: definitions, uses, new nodes and weights; a new Graph comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dim import NO, UNKNOWN, YES, Dim, Truth, to_dim
from smelt.core.dtype import Array, DType, from_numpy
from smelt.core.ir.analysis.traits import Trait
from smelt.core.ir.checked import FactScope
from smelt.core.ir.graph import Graph, Module, Node, Ref, TensorType, Value, Weight, attr_dims
from smelt.core.ops import OPS
from smelt.core.ops.infer import Engine
from smelt.core.ops.infer_node import infer_node
from smelt.core.ops.table import Arg, Attrs
from smelt.core.ops.traits import Tracer, nominal_bytes

STRUCTURAL = frozenset(
    {"call_kernel", "call_library", "transfer", "fused", "check", "bind", "if", "loop"}
)
EFFECTS = frozenset({"check", "bind"})


class Workshop:
    """What the editors of one module share: its weights, its names, its inference engine."""

    def __init__(self, module: Module) -> None:
        self.weights: dict[Ref, Weight] = dict(module.weights)
        self.engine = Engine.of(module)
        self.start = FactScope(self.engine.facts)
        main = module.graphs.get("main")
        self.scope = self.start if main is None else self.start.enter(main)
        self.engine.suppose(self.scope.facts)
        self.tracer = Tracer(self.engine.facts)
        self._bytes: dict[TensorType, int] = {}
        self._module = module
        self._taken: set[str] = set()  # filled when the first name is asked for: most passes change nothing
        self._counts: dict[str, int] = {}

    def name(self, base: str) -> str:
        """base, or base_1, base_2, ...: the first that no value or weight has."""
        if not self._taken:
            self._taken.update(self._module.weights, *map(_names, self._module.graphs.values()))
        if base not in self._taken:
            self._taken.add(base)
            return base
        while True:
            self._counts[base] = n = self._counts.get(base, 0) + 1
            if (found := f"{base}_{n}") not in self._taken:
                self._taken.add(found)
                return found

    def bytes(self, t: TensorType) -> int:
        """What a tensor takes at nominal sizes."""
        if t not in self._bytes:
            self._bytes[t] = nominal_bytes(self.engine.facts, t)
        return self._bytes[t]

    def constant(self, array: Array, name: str = "c", origin: str = "") -> Ref:
        """A new weight that holds the array."""
        data = np.ascontiguousarray(array).reshape(array.shape)
        data.flags.writeable = False
        return self.weight(Weight(name, from_numpy(data.dtype), data.shape, data, origin=origin))

    def weight(self, weight: Weight) -> Ref:
        """A weight more, under a new name like its own."""
        name = self.name(f"@{weight.name.lstrip('%@')}")
        self.weights[name] = replace(weight, name=name)
        return name


class Editor:
    """One graph under edit. New nodes go before the node at the cursor; `graph()` puts everything
    into an order that respects uses and drops what nothing needs."""

    def __init__(self, shop: Workshop, graph: Graph, outer: Mapping[Ref, TensorType]) -> None:
        self.shop = shop
        self.around: tuple[Editor, Node] | None = None  # of a region: the graph around, and the node there
        self.engine = shop.engine
        self._graph = graph
        self._types: dict[Ref, TensorType] = dict(outer)
        self._types.update((v.name, v.type) for v in graph.inputs)
        self.nodes: dict[int, Node] = {}
        self._place: dict[int, tuple[int, int]] = {}
        self._maker: dict[Ref, int] = {}
        self._users: dict[Ref, dict[int, None]] = {}
        self.outputs: list[Ref] = list(graph.outputs)
        self._count = 0
        self._cursor = (0, 0)
        self._fresh: list[int] = []
        self._origin = ""
        for position, node in enumerate(graph.nodes):  # as `_add`, which every pass would call for every node
            self.nodes[position], self._place[position] = node, (position, 1 << 60)
            for v in node.outputs:
                self._maker[v.name] = position
                self._types[v.name] = v.type
            for ref in used_refs(node):
                self._users.setdefault(ref, {})[position] = None
        self._changed = False
        self._outer = outer
        self._moved: dict[int, int] = {}  # a node that decided sizes -> the one that does from here on

    @cached_property
    def _binder(self) -> dict[str, int]:
        """Symbols that a node gives a value at run time: those that no input has. Of the graph as it came,
        whose nodes have their places as keys; made when it is asked for: most passes change nothing."""
        known = {s for t in self._outer.values() for s in t.symbols}
        known.update(s for v in self._graph.inputs for s in v.type.symbols)
        found: dict[str, int] = {}
        for key, node in enumerate(self._graph.nodes):
            if not node.settled <= known:
                for s in sorted(node.settled - known):
                    found.setdefault(s, key)
        return {s: self._moved.get(k, k) for s, k in found.items()}

    # ------------------------------------------------------------ asking

    def type_of(self, ref: Ref) -> TensorType:
        """The type of a value or weight."""
        found = self._types.get(ref)
        return self.shop.weights[ref].type if found is None else found

    def shape(self, ref: Ref) -> tuple[Dim, ...]:
        """The shape of a value or weight."""
        return self.type_of(ref).shape

    def carried(self, ref: Ref) -> tuple[Ref, Ref] | None:
        """(before the loop, after a round) of a value that the loop around carries; None for others."""
        names = [v.name for v in self._graph.inputs]
        if self.around is None or self.around[1].op != "loop" or ref not in names[2:]:
            return None
        k = names.index(ref) - 2
        return self.around[1].inputs[2 + k], self.outputs[1 + k]

    def is_outside(self, ref: Ref) -> bool:
        """Whether a region reads the value from around it."""
        return self.around is not None and self.maker(ref) is None and all(
            v.name != ref for v in self._graph.inputs
        )

    def maker(self, ref: Ref) -> Node | None:
        """The node of this graph that makes the value; None for inputs, weights, outer values, ''."""
        key = self._maker.get(ref)
        return None if key is None else self.nodes[key]

    def made_by(self, ref: Ref, *ops: str) -> Node | None:
        """The node that makes the value when it is one of these ops."""
        node = self.maker(ref)
        return node if node is not None and node.op in ops else None

    def key(self, ref: Ref) -> int:
        """The key of the node that makes the value."""
        return self._maker[ref]

    def place(self, key: int) -> tuple[int, int]:
        """Where a node stands: comparable, earlier is less."""
        return self._place[key]

    def refs_of(self, key: int) -> Sequence[Ref]:
        """The refs that a node uses, regions included."""
        return used_refs(self.nodes[key])

    def users(self, ref: Ref) -> list[Node]:
        """The nodes that use the value, regions included, each once."""
        return [self.nodes[k] for k in self._users.get(ref, ())]

    def user_keys(self, ref: Ref) -> list[int]:
        """The keys of the nodes that use the value."""
        return list(self._users.get(ref, ()))

    def uses(self, ref: Ref) -> int:
        """How many nodes and graph outputs use the value."""
        return len(self._users.get(ref, ())) + self.outputs.count(ref)

    def is_weight(self, ref: Ref) -> bool:
        """Whether the ref is a constant tensor."""
        return ref.startswith("@")

    def array(self, ref: Ref) -> Array | None:
        """The elements of a weight; None for values."""
        return self.shop.weights[ref].array() if ref.startswith("@") else None

    def scalar(self, ref: Ref) -> float | int | bool | None:
        """The element of a weight that has exactly one; None for everything else."""
        if not ref.startswith("@") or math.prod(self.shop.weights[ref].shape) != 1:
            return None
        value: float | int | bool = self.shop.weights[ref].array().reshape(()).item()
        return value

    def trait(self, node: Node) -> Trait:
        """How the node reads its operands, and what an element costs."""
        return self.shop.tracer.trait(node, [self.type_of(r) if r else None for r in node.inputs])

    # ------------------------------------------------------------ changing

    def emit(self, op: str, inputs: Sequence[Ref], attrs: Attrs | None = None, origin: str = "") -> Ref:
        """A node with one output, before the cursor; its type is inferred."""
        (ref,) = self.emit_all(op, inputs, attrs, origin)
        return ref

    def emit_all(
        self, op: str, inputs: Sequence[Ref], attrs: Attrs | None = None, origin: str = ""
    ) -> tuple[Ref, ...]:
        """As emit, for any number of outputs."""
        given = MappingProxyType(dict(attrs or {}))
        types = self.infer(op, inputs, given)
        values = tuple(Value(self.shop.name(f"%{op}"), t) for t in types)
        self.add(Node(op, tuple(inputs), values, given, origin=origin or self._origin))
        return tuple(v.name for v in values)

    def infer(self, op: str, inputs: Sequence[Ref], attrs: Attrs) -> tuple[TensorType, ...]:
        """The output types that an op would have on these inputs."""
        return self._inferred(op, [self.type_of(r) if r else None for r in inputs], attrs)

    def _inferred(self, op: str, types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
        self.engine.at(self._origin, op)
        return infer_node(OPS[op], [None if t is None else Arg(t) for t in types], attrs, self.engine)

    def moved_alike(self, node: Node, dtype: DType) -> bool:
        """Whether the node, which moves elements of its first input, is such a move for elements of another
        dtype too: a type rule or a formula may say otherwise. What the rule asked for is forgotten."""
        first, *others = (self.type_of(r) if r else None for r in node.inputs)
        assert first is not None
        inputs, before = [replace(first, dtype=dtype), *others], self.engine.state()
        try:
            types = self._inferred(node.op, inputs, node.attrs)
        except SmeltError:
            return False
        finally:
            if self.engine.asked_since(before):
                self.engine.back_to(before)
        made = node.with_(outputs=(replace(node.output, type=types[0]),))
        return types[0].dtype == dtype and self.shop.tracer.trait(made, inputs).moved == 0

    def constant(self, array: Array, name: str = "c", origin: str = "") -> Ref:
        """A new weight that holds the array."""
        return self.shop.constant(array, name, origin)

    def like(self, value: float | int, ref: Ref) -> Ref:
        """A scalar weight of ref's type."""
        return self.constant(np.asarray(value, self.type_of(ref).dtype.numpy))

    def add(self, node: Node) -> int:
        """A finished node before the cursor; its key."""
        self._count += 1
        key = self._add(node, (self._cursor[0], self._count))
        self._fresh.append(key)
        return key

    def at(self, key: int) -> None:
        """Move the cursor to a node: new nodes take its origin unless they bring one."""
        self._cursor = self._place[key]
        self._origin = self.nodes[key].origin

    def take_fresh(self) -> list[int]:
        """The nodes added since the last call."""
        found, self._fresh = self._fresh, []
        return [k for k in found if k in self.nodes]

    def set_node(self, key: int, node: Node) -> None:
        """Another node in its place, with the same outputs. Raises SmeltError(kind='internal') for others."""
        if tuple((v.name, v.type) for v in node.outputs) != tuple(
            (v.name, v.type) for v in self.nodes[key].outputs
        ):
            raise _broken(f"{self.nodes[key].op} became {node.op} with other outputs", node.origin)
        self._unlink(key)
        self.nodes[key], self._changed = node, True
        self._link(key)

    def fits(self, old: Ref, new: Ref) -> Truth:
        """Whether new may stand for old: YES for the same dtype and a shape that is proved to be the same,
        UNKNOWN for a shape that only a run tells, NO for anything else."""
        a, b = self.type_of(old), self.type_of(new)
        if a == b:
            return YES
        if a.dtype != b.dtype or a.rank != b.rank:
            return NO
        found = [self.engine.prove_eq(x, y) for x, y in zip(a.shape, b.shape, strict=True) if x != y]
        return NO if NO in found else UNKNOWN if UNKNOWN in found else YES

    def replace(self, old: Ref, new: Ref, by: str = "a pass") -> list[int]:
        """new wherever old was used; the keys of the users that changed. What made new takes old's
        ONNX name when it has none. by: who says so. This is the one door through which values change
        places: it raises SmeltError(kind='internal') unless `fits` says YES."""
        if old == new:
            return []
        self._changed = True
        if self.fits(old, new) is not YES:
            maker = self.maker(old)
            raise _broken(
                f"{by}: {old}: {self.type_of(old)} cannot become {new}: {self.type_of(new)}",
                maker.origin if maker is not None else "",
            )
        changed = self.user_keys(old)
        for key in changed:
            self._unlink(key)
            self.nodes[key] = renamed(self.nodes[key], {old: new})
            self._link(key)
        self.outputs = [new if r == old else r for r in self.outputs]
        self._inherit(old, new)
        return changed

    @property
    def origin(self) -> str:
        """The ONNX node at the cursor."""
        return self._origin

    def inside(self, name: str) -> Editor:
        """An editor of a new, empty region that sees this graph's values; add to its `outputs`."""
        made = Editor(self.shop, Graph(name, (), (), ()), self._types)
        made._origin = self._origin
        return made

    def binds_for(self, key: int, new: int) -> None:
        """Sizes that a node decided are decided by another one from here on."""
        self._moved = {k: new if to == key else to for k, to in self._moved.items()} | {key: new}
        self.__dict__.pop("_binder", None)

    def remove(self, key: int) -> None:
        """Drop a node that nothing uses."""
        self._changed = True
        self._unlink(key)
        for v in self.nodes.pop(key).outputs:
            del self._maker[v.name]

    def _inherit(self, old: Ref, new: Ref) -> None:
        source, target = self.maker(old), self._maker.get(new)
        if source is None or target is None:
            return
        known = next(v for v in source.outputs if v.name == old)
        if known.origin:
            self._call(new, known.origin, known.axes)

    def _call(self, ref: Ref, origin: str, axes: tuple[int, ...]) -> None:
        """Give a value without an ONNX name that one, and what it is a transpose or a reshape of: of the two
        the other one may be what is stored. axes: as Value's."""
        key = self._maker.get(ref)
        if key is None:
            return
        node = self.nodes[key]
        if not any(v.name == ref and not v.origin for v in node.outputs):
            return
        outputs = (replace(v, origin=origin, axes=axes) if v.name == ref else v for v in node.outputs)
        self.nodes[key] = node.with_(outputs=tuple(outputs))
        if node.op == "transpose":
            perm = tuple(to_dim(a).const for a in node.attr("perm"))
            self._call(node.inputs[0], origin, tuple(perm[a] for a in axes) if axes else perm)
        elif node.op == "reshape" and not axes:
            self._call(node.inputs[0], origin, ())

    def _add(self, node: Node, place: tuple[int, int]) -> int:
        key, self._changed = len(self._place), True
        self.nodes[key], self._place[key] = node, place
        for v in node.outputs:
            self._maker[v.name] = key
            self._types[v.name] = v.type
        self._link(key)
        return key

    def _link(self, key: int) -> None:
        for ref in used_refs(self.nodes[key]):
            self._users.setdefault(ref, {})[key] = None

    def _unlink(self, key: int) -> None:
        for ref in used_refs(self.nodes[key]):
            self._users.get(ref, {}).pop(key, None)

    # ------------------------------------------------------------ the result

    def in_order(self) -> list[int]:
        """All nodes, in their places."""
        return sorted(self.nodes, key=self._place.__getitem__)  # keys only grow, and the sort is stable

    def sweep(self) -> None:
        """Drop the nodes that nothing needs."""
        live = self._live()
        self._changed |= len(live) < len(self.nodes)

    def graph(self) -> Graph:
        """The new graph: used nodes and nodes with effects, uses after definitions; the old one as it was
        when nothing changed."""
        if not self._changed and self.outputs == list(self._graph.outputs):
            return self._graph
        order: list[int] = []
        seen: set[int] = set()
        needs = self._live()
        for root in self.in_order():
            if root in needs:
                _visit(root, needs, seen, order)
        nodes = tuple(self.nodes[k] for k in order)
        return self._graph.with_(nodes=nodes, outputs=tuple(self.outputs))

    def _live(self) -> dict[int, list[int]]:
        """The nodes that something needs, and the nodes that each of them needs."""
        todo = [self._maker[r] for r in self.outputs if r in self._maker]
        todo += [k for k, n in self.nodes.items() if n.op in EFFECTS or not _pure(n)]
        live: dict[int, list[int]] = {}
        while todo:
            key = todo.pop()
            if key not in live:
                live[key] = found = self._needs(key)
                todo += found
        return live

    def _needs(self, key: int) -> list[int]:
        """The nodes that must run before this one: makers of what it uses, binders of its symbols."""
        node = self.nodes[key]
        found = [self._maker[r] for r in used_refs(node) if r in self._maker]
        if self._binder:
            named = sorted(self._binder.keys() & _symbols(node))
            others = (self._binder[s] for s in named)
            found += [k for k in others if k != key and k in self.nodes]
        return found


def _visit(root: int, needs: Mapping[int, Sequence[int]], seen: set[int], order: list[int]) -> None:
    """Depth first without recursion: graphs are thousands of nodes deep."""
    if root in seen:
        return
    seen.add(root)
    stack = [(root, iter(needs[root]))]
    while stack:
        key, rest = stack[-1]
        for other in rest:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(needs[other])))
                break
        else:
            stack.pop()
            order.append(key)


# ---------------------------------------------------------------- nodes


def _broken(message: str, node: str) -> SmeltError:
    return SmeltError(
        message, kind="internal", node=node or None,
        hint="this is a bug of smelt; -O0 leaves rewrites out, please report the model",
    )  # fmt: skip


def used_refs(node: Node) -> Sequence[Ref]:
    """The refs a node uses, each once: its inputs, and what its regions take from outside."""
    inputs = node.inputs
    if not node.regions and "" not in inputs and len({*inputs}) == len(inputs):
        return inputs  # nearly all, and every pass asks for every node's
    found = dict.fromkeys(inputs)
    found.pop("", None)
    for region in node.regions:
        found.update(dict.fromkeys(captured(region)))
    return list(found)


def captured(graph: Graph) -> list[Ref]:
    """The refs that a region uses but does not define, weights included."""
    inside = {v.name for v in graph.inputs}
    found: dict[Ref, None] = {}
    for node in graph.nodes:
        found.update(dict.fromkeys(r for r in used_refs(node) if r not in inside))
        inside.update(v.name for v in node.outputs)
    found.update(dict.fromkeys(r for r in graph.outputs if r not in inside))
    return list(found)


def renamed(node: Node, names: Mapping[Ref, Ref]) -> Node:
    """The node with refs replaced in its inputs and inside its regions."""
    inputs = tuple(names.get(r, r) for r in node.inputs)
    regions = tuple(renamed_graph(g, names) for g in node.regions)
    return node.with_(inputs=inputs, regions=regions)


def renamed_graph(graph: Graph, names: Mapping[Ref, Ref]) -> Graph:
    """The region with refs from outside replaced."""
    nodes = tuple(renamed(n, names) for n in graph.nodes)
    return graph.with_(nodes=nodes, outputs=tuple(names.get(r, r) for r in graph.outputs))


def _pure(node: Node) -> bool:
    return node.op in STRUCTURAL or node.op not in OPS or OPS[node.op].pure


def _symbols(node: Node) -> set[str]:
    """Symbols that the node's types and attributes speak of."""
    found = set().union(*[v.type.symbols for v in node.outputs])
    for value in node.attrs.values():
        found.update(s for d in attr_dims(value) for s in d.symbols)
    for region in node.regions:
        for inner in region.nodes:
            found |= _symbols(inner)
    return found


def _names(graph: Graph) -> Iterable[str]:
    yield from (v.name for v in graph.inputs)
    for node in graph.nodes:
        yield from (v.name for v in node.outputs)
        for region in node.regions:
            yield from _names(region)


# ---------------------------------------------------------------- whole modules

EditFn: TypeAlias = Callable[[Editor], None]


def edit_module(module: Module, change: EditFn, *, ops: Container[str] | None = None) -> Module:
    """The module after `change` ran on every graph and on the regions of its control flow (inner ones
    first; not on those of fused nodes), without the weights that nothing uses any more; the module itself
    when nothing changed. ops: what `change` looks for; a module without such a node is not opened."""
    if ops is not None and not any(n.op in ops for graph in module.graphs.values() for n in graph.walk()):
        return module
    shop = Workshop(module)
    graphs = {name: _edit(shop, graph, {}, change, shop.start) for name, graph in module.graphs.items()}
    if all(g is module.graphs[name] for name, g in graphs.items()):
        return module
    return without_unused(module.with_(graphs=graphs, weights=MappingProxyType(shop.weights)))


def without_unused(module: Module) -> Module:
    """The module without the weights that nothing uses."""
    used = {r for g in module.graphs.values() for r in captured(g)}
    weights = {name: w for name, w in module.weights.items() if name in used}
    return module if len(weights) == len(module.weights) else module.with_(weights=MappingProxyType(weights))


def _edit(
    shop: Workshop, graph: Graph, outer: Mapping[Ref, TensorType], change: EditFn, scope: FactScope,
    around: tuple[Editor, Node] | None = None,
) -> Graph:  # fmt: skip
    scope = scope.enter(graph)
    shop.engine.suppose(scope.facts)
    editor = Editor(shop, graph, outer)
    editor.around = around
    for key in list(editor.nodes):
        node = editor.nodes[key]
        if node.regions and node.op != "fused":
            regions = []
            for region in node.regions:
                with shop.engine.conditional():  # what one way demands says nothing of the other one
                    regions.append(_edit(shop, region, editor._types, change, scope, (editor, node)))
            if any(new is not old for new, old in zip(regions, node.regions, strict=True)):
                editor.set_node(key, node.with_(regions=tuple(regions)))
    change(editor)
    return editor.graph()
