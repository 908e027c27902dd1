"""Modules, and what they do with states -> the modules in which states that only grow have room to do so.

A state whose every replacement is the state with rows behind it would else be written anew by each run:

    %present = concat(%past, %new)              %r = room(%past)             the state as it lies: with room
                                        -->     %w = put_rows(%r, %new)      written where it lies
    ... %past ... %present ...                  ... slice(%r) ... slice(%w) ...       returns held(%w)

So is a cache whose fill differs by batch: append_rows(%past, %new, %fill), whose rows from the fill on
become put_rows_after(%r, %new, %fill). These may be rows of the old value, too, so nothing else reads it.

All extents of a state in memory are then those of its value but that of the axis along which it grows, which
is the most that any entry lets it have. So a reader's strides do not change from run to run, and the planner
leaves out what would copy the old rows to where they are (`renewed` in build.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.core.dim import ZERO, Dim, Facts, to_dim
from smelt.core.ir.graph import Attr, Graph, Module, Node, Ref, TensorType, Value
from smelt.core.passes.rewriting.editor import Workshop, renamed_graph
from smelt.core.plan.bounds import most_bytes
from smelt.core.plan.state import StateUse

Uses = Mapping[str, Sequence[StateUse]]
"""The states of each graph."""


@dataclass(frozen=True, slots=True)
class Room:
    """The axis along which a state grows, and how many rows it may have there."""

    axis: int
    rows: int


def with_room(modules: Mapping[str, Module], uses: Uses, facts: Mapping[str, Facts]) -> dict[str, Module]:
    """The modules of one session, by name. A state stays as it is where a graph replaces it by anything but
    itself with rows behind, where it has no bound, and where two graphs let it grow along different axes."""
    names = dict.fromkeys(s.name for found in uses.values() for s in found)
    found = {name: r for name in names if (r := _room(name, modules, uses, facts)) is not None}
    return {
        graph: _changed(module, [(s, found[s.name]) for s in uses[graph] if s.name in found])
        for graph, module in modules.items()
    }


def _room(name: str, modules: Mapping[str, Module], uses: Uses, facts: Mapping[str, Facts]) -> Room | None:
    mine = [(graph, s) for graph, found in uses.items() for s in found if s.name == name]
    written = [(graph, _appending(modules[graph].main, s)) for graph, s in mine if s.output is not None]
    axes = {None if n is None else _axis(n) for _, n in written}
    axis = axes.pop()
    if axes or axis is None:
        return None
    shapes = [(graph, n.output.type.shape) for graph, n in written if n is not None]
    shapes += [(g, _input(modules[g].main, s.input).type.shape) for g, s in mine if s.input is not None]
    bounds = [most_bytes([s[axis]], facts[g], modules[g].symbols, ())[0] for g, s in shapes]
    return None if None in bounds else Room(axis, max(n for n in bounds if n is not None))


def _input(graph: Graph, name: str) -> Value:
    return next(v for v in graph.inputs if (v.origin or v.name[1:]) == name)


def _appending(graph: Graph, s: StateUse) -> Node | None:
    """The node that makes the state's replacement, if that is the state with something behind it."""
    if s.input is None or s.output is None:
        return None
    made = graph.outputs[graph.output_names.index(s.output)]
    node = next((n for n in graph.nodes if made in (v.name for v in n.outputs)), None)
    old = _input(graph, s.input).name
    if node is None or node.op not in _GROWS or len(node.inputs) == 1 or node.inputs[0] != old:
        return None
    return node if node.op == "concat" or _times_read(graph)[old] == 1 else None


_GROWS = frozenset({"concat", "append_rows"})
"""Ops whose result is the first input with rows after it."""


def _axis(n: Node) -> int:
    """The axis along which one of these puts rows."""
    return int(n.attr("axis")) if n.op == "concat" else 2


def _times_read(graph: Graph) -> Counter[Ref]:
    """How often nodes, regions and the graph itself name each value."""
    uses = [r for n in graph.walk() for r in (*n.inputs, *(o for g in n.regions for o in g.outputs))]
    return Counter((*uses, *graph.outputs))


def _changed(module: Module, found: Sequence[tuple[StateUse, Room]]) -> Module:
    """The module whose states have room."""
    if not found:
        return module
    graph, shop = module.main, Workshop(module)
    begin: list[Node] = []
    instead: dict[Ref, tuple[Node, ...]] = {}  # of the node that made this value
    names: dict[Ref, Ref] = {}
    outputs = list(graph.outputs)
    for s, room in found:
        n = _appending(graph, s)
        if s.input is None:
            continue
        v = _input(graph, s.input)
        rows = to_dim(room.rows)
        lies = _node(shop, "room", (v.name,), _resized(v.type, room.axis, rows), axis=room.axis, rows=rows)
        begin.append(lies)
        if n is None or n.op == "concat":  # else what appends is the only reader
            old = _first(shop, lies.output, v.type)
            begin.append(old)
            names[v.name] = old.output.name
        if n is not None and s.output is not None:
            k = graph.output_names.index(s.output)
            instead[n.output.name], outputs[k] = _appended(shop, n, lies.output, v.type.shape[room.axis])
    nodes = [x for n in graph.nodes for x in instead.get(n.outputs[0].name if n.outputs else "", (n,))]
    changed = renamed_graph(graph.with_(nodes=tuple(nodes), outputs=tuple(outputs)), names)
    return module.with_main(changed.with_(nodes=(*begin, *changed.nodes)))


def _appended(shop: Workshop, n: Node, lies: Value, at: Dim) -> tuple[tuple[Node, ...], Ref]:
    """The nodes in place of what appends, and what the graph returns. lies: the state with its room. at: how
    many rows it has before."""
    axis, made = _axis(n), n.output
    before: tuple[Node, ...] = ()
    if n.op == "concat":
        rows = _resized(made.type, axis, made.type.shape[axis] - at)
        new = Node("concat", n.inputs[1:], (Value(shop.name(f"{made.name}.new"), rows),), n.attrs)
        put = _node(shop, "put_rows", (lies.name, new.output.name), lies.type, axis=axis, at=at)
        before = (new,)
    else:
        length = made.type.shape[axis]
        inputs = (lies.name, *n.inputs[1:])
        put = _node(shop, "put_rows_after", inputs, lies.type, held=at, length=length)
    part = _first(shop, put.output, made.type)
    over = {} if n.op == "concat" else {"over": True}
    whole = _node(shop, "held", (put.output.name,), made.type, axis=axis, rows=made.type.shape[axis], **over)
    part = part.with_(outputs=(made,))
    return tuple(x.with_(origin=n.origin) for x in (*before, put, part, whole)), whole.output.name


def _first(shop: Workshop, x: Value, t: TensorType) -> Node:
    """The part of x that has type t, from its beginning."""
    starts = tuple(ZERO for _ in t.shape)
    return _node(shop, "slice", (x.name,), t, starts=starts, ends=t.shape, steps=tuple(1 for _ in t.shape))


def _node(shop: Workshop, op: str, inputs: tuple[Ref, ...], t: TensorType, **attrs: Attr) -> Node:
    return Node(op, inputs, (Value(shop.name(f"{inputs[0]}.{op}"), t),), MappingProxyType(attrs))


def _resized(t: TensorType, axis: int, rows: Dim) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:axis], rows, *t.shape[axis + 1 :]))


# ---------------------------------------------------------------- what must hold when a module is planned


def rooms(graph: Graph) -> dict[Ref, Node]:
    """Inputs with room -> the nodes that give it."""
    return {n.inputs[0]: n for n in graph.walk() if n.op == "room"}


def held_values(graph: Graph) -> dict[Ref, Node]:
    """Values that lie in a larger one, with room behind them -> the nodes that say so."""
    return {n.output.name: n for n in graph.walk() if n.op == "held"}


def check_rooms(graph: Graph, states: Sequence[StateUse]) -> None:
    """Raises SmeltError(kind='invalid') unless rooms are those of states, whose last inputs and outputs the
    graph has, and each replacement has the room of what it replaces: a text or another choice of states could
    else read and write outside of a caller's tensors. Where rows of the old value are written over, nothing
    but what writes them reads it."""
    read = [s.name for s in states if s.input is not None]
    written = [s.name for s in states if s.output is not None]
    inputs = dict(zip([v.name for v in graph.inputs[len(graph.inputs) - len(read) :]], read, strict=True))
    outputs = graph.outputs[len(graph.outputs) - len(written) :]
    types = {v.name: v.type for v in (*graph.inputs, *(v for n in graph.walk() for v in n.outputs))}
    wanted: dict[str | None, set[tuple[int, Dim]]] = {}
    times, read_by = _times_read(graph), Counter[str | None]()
    for n in (n for n in graph.walk() if n.op == "room"):
        name = inputs.get(n.inputs[0])  # None: of no state
        wanted.setdefault(name, set()).add((int(n.attr("axis")), to_dim(n.attr("rows"))))
        read_by[name] += times[n.output.name]
    made = held_values(graph)
    right = None not in wanted and all(len(found) == 1 for found in wanted.values())
    right = right and all(ref in outputs and times[ref] == 1 for ref in made)
    for ref, name in zip(outputs, written, strict=True):
        axis = int(made[ref].attr("axis")) if ref in made else 0
        own = {(axis, types[made[ref].inputs[0]].shape[axis])} if ref in made else set()
        right = right and own == wanted.get(name, set())
        right = right and not (ref in made and made[ref].attr("over", False) and read_by[name] > 1)
    if not right:
        raise SmeltError(
            "the module has room for states that the compile does not have, or has otherwise",
            hint="compile with the states that the dump was made with, or compile the model again",
        )


__all__ = ["Room", "check_rooms", "held_values", "rooms", "with_room"]
