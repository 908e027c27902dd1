"""Kernel, dims and arrays in, outputs out: as interp_kernel.py, but each lane of a group runs on its own,
from barrier to barrier, in an order that a seed draws.

What a lane reads before the lane that writes it has run is poison, so a barrier that is missing shows without
a device. Where the barriers stand is what emitters ask core/ir/barriers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, product
from typing import TypeAlias, TypeVar

import numpy as np

from smelt.core.dim import Facts
from smelt.core.dtype import Array
from smelt.core.ir.analysis.scope import enter, kernel_buffers, kernel_facts
from smelt.core.ir.barriers import (
    barriers_before,
    has_lanes,
    lane_count,
    needs_barrier_after,
    own_indices,
    reads_what_it_writes,
)
from smelt.core.ir.groups import nest
from smelt.core.ir.interp_kernel import LoopEnv, Runner, dim_function, run_kernel, tile_sizes
from smelt.core.ir.kernel import Block, Buffer, Kernel, Loop, LoopNode, Stmt, Store, Tiles, walk

T = TypeVar("T")
Steps: TypeAlias = Iterator[object]
"""A lane at work; it stops at every barrier and says which."""
Barriers: TypeAlias = Callable[..., frozenset[int]]


def run_lanes(
    kernel: Kernel,
    dims: Mapping[str, int] | Sequence[int],
    inputs: Sequence[Array],
    most: int,
    seed: int = 0,
    before: Barriers | None = None,
) -> tuple[Array, ...]:
    """As `run_kernel`, with groups of at most `most` lanes. before: positions of barriers in a body, asked by
    each lane; tests leave some out. Raises SmeltError(kind='internal') also where lanes come to different
    barriers."""
    rng = np.random.default_rng(seed)
    asked = before or _once(barriers_before)
    return run_kernel(kernel, dims, inputs, lambda k, env: _Lanes(k, env, most, rng, asked))


def _once(fn: Callable[..., T]) -> Callable[..., T]:
    """fn, whose result for the same objects is kept with them: each lane asks in each round of a loop."""
    kept: dict[tuple[int, ...], tuple[tuple[object, ...], T]] = {}

    def found(*about: object) -> T:
        key = tuple(map(id, about))
        if key not in kept:
            kept[key] = about, fn(*about)
        return kept[key][1]

    return found


class _Lanes(Runner):
    """Top-level statements one after the other, groups in a drawn order, lanes in another between
    barriers."""

    def __init__(
        self, kernel: Kernel, env: dict[str, int], most: int, rng: np.random.Generator, before: Barriers
    ) -> None:
        super().__init__(kernel, env)
        self.most, self.rng, self.before = most, rng, before
        self.known = kernel_buffers(kernel)
        self.own: frozenset[str] = frozenset()
        self.entered = _once(enter)  # all lanes have the facts that the first has made
        self.has_lanes = _once(has_lanes)
        self.reads_what_it_writes = _once(reads_what_it_writes)

    def whole(self) -> None:
        """All of the kernel."""
        for s in self.kernel.body:
            lanes = lane_count(s, self.most)
            if lanes == 1:
                self.run((s,), self.env)
                continue
            nodes, body = nest(s, "group")
            facts = kernel_facts(self.kernel)
            for n in nodes:
                facts = enter(facts, n)
            buffers = [b for n in nodes for b in n.buffers]
            self.own = frozenset(_own(s, lanes))
            envs = list(_points(nodes, self.env))
            for i in self.rng.permutation(len(envs)):
                self.group(body, envs[i], facts, buffers, lanes)

    def group(
        self, body: tuple[Stmt, ...], env: LoopEnv, facts: Facts, buffers: list[Buffer], lanes: int
    ) -> None:
        there = set(self.buffers)
        for b in buffers:
            self.buffers[b.name] = self.fresh(b, env)
        todo = {n: self.lane(body, env, facts, n, lanes) for n in range(lanes)}
        while todo:
            reached = {n: next(todo[n], None) for n in self.rng.permutation(list(todo))}
            if len(set(reached.values())) > 1:
                raise self.broken(f"lanes of a group come to different barriers: {set(reached.values())}")
            todo = {n: t for n, t in todo.items() if reached[n] is not None}
        for name in self.buffers.keys() - there:
            del self.buffers[name]

    # -- one lane

    def lane(self, body: tuple[Stmt, ...], env: LoopEnv, facts: Facts, me: int, lanes: int) -> Steps:
        stops = self.before(body, facts, self.known, self.own)
        for i, s in enumerate(body):
            if i in stops:
                yield "before", id(body), i
            if self.has_lanes(s):
                yield from self.shared(s, env, facts, me, lanes)
            elif me == 0:
                self.run((s,), env)

    def shared(self, s: Stmt, env: LoopEnv, facts: Facts, me: int, lanes: int) -> Steps:
        """A statement whose work lanes share."""
        assert not isinstance(s, Store)
        if isinstance(s, Loop | Tiles) and s.level == "lane":
            nodes, body = nest(s, "lane")
            for at in _points(nodes, env, me, lanes):
                self.instance(nodes, body, at)
            return
        inner = self.entered(facts, s)
        if isinstance(s, Block):
            found = self.bound(s, env)
            if self.reads_what_it_writes(s):
                yield "let", id(s)
            if found is not None:
                self.declared(s.buffers, found)
                yield from self.lane(s.body, found, inner, me, lanes)
            return
        again = needs_barrier_after(s.body, self.own, self.locals(s))
        for n, at in enumerate(_points((s,), env)):
            self.declared(s.buffers, at)
            yield from self.lane(s.body, at, inner, me, lanes)
            if again:
                yield "after", id(s), n

    def instance(self, nodes: Sequence[LoopNode], body: tuple[Stmt, ...], env: LoopEnv) -> None:
        if not nodes:
            self.run(body, env)
            return
        self.scoped(Block((), nodes[0].buffers), env, lambda: self.instance(nodes[1:], body, env))

    def declared(self, buffers: Sequence[Buffer], env: LoopEnv) -> None:
        """Buffers of the group live as long as it does, as in a device's shared memory."""
        for b in buffers:
            if b.name not in self.buffers:
                self.buffers[b.name] = self.fresh(b, env)

    def locals(self, s: LoopNode) -> frozenset[str]:
        """Buffers that lanes share and that are not the kernel's: in scope, or declared inside."""
        inside = {b.name for x in walk(s.body) if not isinstance(x, Store) for b in x.buffers}
        return frozenset(({*self.buffers} | inside) - self.kernel.buffers().keys()) - self.own


def _own(s: Stmt, lanes: int) -> Iterator[str]:
    """Buffers declared around lanes of which each lane has a part to itself."""
    for x in walk((s,)):
        if not isinstance(x, Store) and has_lanes(x):
            for b in x.buffers:
                if b.space == "register" and own_indices(b, x.body, lanes) is not None:
                    yield b.name


def _points(nodes: Sequence[LoopNode], env: LoopEnv, first: int = 0, step: int = 1) -> Iterator[LoopEnv]:
    """The environment of every step-th instance of nested nodes from the first on, the last fastest. Their
    extents do not depend on each other."""
    for at in islice(product(*(_instances(n, env) for n in nodes)), first, None, step):
        inner = dict(env)
        for values in at:
            inner.update(values)
        yield inner


def _instances(node: LoopNode, env: LoopEnv) -> list[dict[str, int]]:
    """What each instance of one node adds to the environment."""
    extent = int(dim_function(node.extent)(env))
    if isinstance(node, Loop):
        return [{node.var: n} for n in range(extent)]
    sizes = tile_sizes(extent, node.sizes, node.mode)
    return [{node.start: a, node.rows: n} for a, n in zip(accumulate(sizes, initial=0), sizes, strict=False)]


__all__ = ["run_lanes"]
