"""A lowered graph -> its nodes at positions: one line of time, through regions and all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from smelt.core.dim import Dim, sym, to_dim
from smelt.core.ir.graph import Graph, Node, Ref, Value
from smelt.core.ops import OPS


@dataclass(frozen=True, slots=True)
class Arm:
    """A region. start: where its inputs come to life. end: where its results are handed on."""

    graph: Graph
    start: int
    end: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A node that is no view. start: where it reads its inputs. end: where its results are there (start,
    unless it has regions)."""

    node: Node
    start: int
    end: int
    arms: tuple[Arm, ...] = ()

    @property
    def counter(self) -> str:
        """The symbol that counts the rounds of a loop."""
        return f"round.{self.start}"

    @property
    def going(self) -> str:
        """The symbol that says whether another round follows, or which branch is taken."""
        return f"going.{self.start}"


@dataclass(frozen=True)
class Timeline:
    """items: the main graph's. end: the position where the outputs are read. bound: where each symbol that
    is not known from the inputs' shapes gets its value. under: the value below each chain of views."""

    items: tuple[Item, ...]
    end: int
    bound: Mapping[str, int]
    under: Mapping[Ref, Ref]

    def stage(self, *dims: Dim) -> int:
        """The position from which on all symbols of these Dims are known; -1: before anything runs."""
        return max((self.bound.get(s, -1) for d in dims for s in d.symbols), default=-1)

    def value(self, ref: Ref) -> Ref:
        """The value that a ref is a view of."""
        return self.under.get(ref, ref)


def is_view(node: Node) -> bool:
    """The output has the bytes of the first input."""
    return node.op in OPS and OPS[node.op].view


def is_size_name(node: Node) -> bool:
    """A symbol that stands for a formula."""
    return node.op == "bind" and not node.inputs and not node.attr("draw", False)


def timeline(graph: Graph) -> Timeline:
    """Positions for all nodes of the graph and its regions."""
    walk = _Walk()
    for v in graph.inputs:
        walk.known.update(s for d in v.type.shape for s in d.symbols)
    items = walk.items(graph)
    return Timeline(items, walk.now, walk.bound, walk.under)


def walk_items(items: tuple[Item, ...]) -> Iterator[Item]:
    """All items, outer before inner."""
    for item in items:
        yield item
        for arm in item.arms:
            yield from walk_items(arm.items)


def new_symbols(values: tuple[Value, ...], known: Timeline, at: int) -> dict[str, tuple[int, int]]:
    """Symbols that get their values at a position from the shapes of these values: (value, axis) of each."""
    found: dict[str, tuple[int, int]] = {}
    for n, v in enumerate(values):
        for axis, d in enumerate(v.type.shape):
            for s in d.symbols:
                if known.bound.get(s) == at and d == sym(s):
                    found.setdefault(s, (n, axis))
    return found


class _Walk:
    """The walk through the regions, in the order of the text."""

    def __init__(self) -> None:
        self.now = 0
        self.known: set[str] = set()
        self.bound: dict[str, int] = {}
        self.under: dict[Ref, Ref] = {}

    def items(self, graph: Graph) -> tuple[Item, ...]:
        made: list[Item] = []
        for node in graph.nodes:
            if is_view(node):
                source = node.inputs[0]
                self.under[node.output.name] = self.under.get(source, source)
                continue
            start = self._tick()
            arms = tuple(self._arm(region) for region in node.regions)
            end = self._tick() if arms else start
            if node.op == "bind" and not (is_size_name(node) and self._early(to_dim(node.attr("value")))):
                self._bind(str(node.attr("symbol")), start)
            elif node.op == "bind":
                self.known.add(str(node.attr("symbol")))
            for v in node.outputs:
                self._bind_type(v, end)
            made.append(Item(node, start, end, arms))
        return tuple(made)

    def _arm(self, region: Graph) -> Arm:
        start = self._tick()
        for v in region.inputs:
            self._bind_type(v, start)
        items = self.items(region)
        return Arm(region, start, self._tick(), items)

    def _tick(self) -> int:
        self.now += 1
        return self.now - 1

    def _early(self, d: Dim) -> bool:
        return d.symbols.isdisjoint(self.bound)

    def _bind(self, symbol: str, at: int) -> None:
        if symbol not in self.known:
            self.known.add(symbol)
            self.bound[symbol] = at

    def _bind_type(self, v: Value, at: int) -> None:
        for d in v.type.shape:
            for s in sorted(d.symbols):
                self._bind(s, at)
