"""Arcs with capacities between nodes, a source and a sink -> the nodes on the source's side of a least cut.

Nodes with two neighbours leave first, one after the other. Then flow is sent along shortest paths (Dinic,
"Algorithm for solution of a problem of maximum flow in a network with power estimation", 1970); what the
source still reaches in the end is its side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

SOURCE: Final = 0
SINK: Final = 1

Arc: TypeAlias = tuple[int, int, int | None]
"""From, to, capacity; None: no cut takes it."""


def least_cut(count: int, arcs: Sequence[Arc]) -> frozenset[int]:
    """The source's side, the smallest one where several cost the same. count: of the nodes, of which SOURCE
    and SINK are the first two. A cut that takes no arc without capacity must exist; capacities are 0 or
    more."""
    small = _Reduced(count, arcs)
    side = set(_Network(small.after).cut())
    for gone in reversed(small.gone):
        if gone.is_sources(side):
            side.add(gone.node)
    return frozenset(side)


@dataclass(frozen=True, slots=True)
class _Gone:
    """A node with at most two others beside source and sink. after, before: its arcs, by the other end."""

    node: int
    after: Mapping[int, int]
    before: Mapping[int, int]

    def costs(self, side: Collection[int]) -> tuple[int, int]:
        """What its arcs cost on the source's side and on the sink's, where `side` is the source's."""
        here = sum(c for n, c in self.after.items() if n not in side)
        return here, sum(c for n, c in self.before.items() if n in side)

    def is_sources(self, side: Collection[int]) -> bool:
        here, there = self.costs(side)
        return here < there

    def least(self, *others: int) -> int:
        """The lesser of both, where these others are on the source's side."""
        return min(self.costs((SOURCE, *others)))


class _Reduced:
    """Arcs without the nodes that have but two neighbours: what such a node costs at least is a cost of
    these. Most graphs are long and narrow, and little of them is left."""

    def __init__(self, count: int, arcs: Sequence[Arc]) -> None:
        endless = 1 + sum(c for _, _, c in arcs if c is not None)
        self.after: list[dict[int, int]] = [{} for _ in range(count)]
        self.before: list[dict[int, int]] = [{} for _ in range(count)]
        for source, target, capacity in arcs:
            self._add(source, target, endless if capacity is None else capacity)
        self.gone: list[_Gone] = []
        waiting = list(range(SINK + 1, count))
        there = set(waiting)
        while waiting:
            node = waiting.pop()
            near = self._near(node)
            if node in there and len(near) <= 2:
                there.discard(node)
                self._leave(node, near)
                waiting += near

    def _add(self, source: int, target: int, capacity: int) -> None:
        if source != target and capacity:
            self.after[source][target] = self.before[target][source] = (
                self.after[source].get(target, 0) + capacity
            )

    def _near(self, node: int) -> list[int]:
        return [n for n in self.after[node].keys() | self.before[node].keys() if n > SINK]

    def _leave(self, node: int, near: Sequence[int]) -> None:
        gone = _Gone(node, self.after[node], self.before[node])
        self.gone.append(gone)
        self.after[node], self.before[node] = {}, {}
        for n in gone.after:
            del self.before[n][node]
        for n in gone.before:
            del self.after[n][node]
        if len(near) == 2:
            a, b = near
            second = gone.least() - gone.least(b)
            self._alone(a, gone.least(b) - gone.least(a, b))
            self._alone(b, second)
            self._add(a, b, gone.least(a) - gone.least(a, b) - second)
        elif near:
            self._alone(near[0], gone.least() - gone.least(near[0]))

    def _alone(self, node: int, more: int) -> None:
        """A cost of the node on the sink's side, beside that on the source's."""
        self._add(SOURCE, node, max(more, 0))
        self._add(node, SINK, max(-more, 0))


class _Network:
    """What is left of the arcs while flow is sent: arc k and k ^ 1 are the two directions of one."""

    def __init__(self, after: Sequence[Mapping[int, int]]) -> None:
        self.out: list[list[int]] = [[] for _ in after]
        self.to: list[int] = []
        self.left: list[int] = []
        for source, arcs in enumerate(after):
            for target, capacity in arcs.items():
                self.out[source].append(len(self.to))
                self.out[target].append(len(self.to) + 1)
                self.to += (target, source)
                self.left += (capacity, 0)

    def cut(self) -> frozenset[int]:
        while True:
            steps = self._steps()
            if steps[SINK] < 0:
                return frozenset(n for n, step in enumerate(steps) if step >= 0)
            self._send(steps)

    def _steps(self) -> list[int]:
        """How many arcs each node is away from the source; -1: out of reach."""
        steps = [-1] * len(self.out)
        steps[SOURCE] = 0
        reached = [SOURCE]
        for node in reached:
            for arc in self.out[node]:
                target = self.to[arc]
                if self.left[arc] and steps[target] < 0:
                    steps[target] = steps[node] + 1
                    reached.append(target)
        return steps

    def _send(self, steps: list[int]) -> None:
        """Send all that goes along paths of that many steps."""
        tried = [0] * len(self.out)
        path: list[int] = []
        node = SOURCE
        while True:
            if node == SINK:
                sent = min(self.left[arc] for arc in path)
                for arc in path:
                    self.left[arc] -= sent
                    self.left[arc ^ 1] += sent
                full = next(n for n, arc in enumerate(path) if not self.left[arc])
                node = self.to[path[full] ^ 1]
                del path[full:]
                continue
            onward = self._onward(node, steps, tried)
            if onward is not None:
                path.append(onward)
                node = self.to[onward]
            elif path:
                node = self.to[path.pop() ^ 1]
                tried[node] += 1
            else:
                return

    def _onward(self, node: int, steps: list[int], tried: list[int]) -> int | None:
        """The next arc from a node that leads closer to the sink and has something left."""
        arcs = self.out[node]
        while tried[node] < len(arcs):
            arc = arcs[tried[node]]
            if self.left[arc] and steps[self.to[arc]] == steps[node] + 1:
                return arc
            tried[node] += 1
        return None
