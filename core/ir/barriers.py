"""Kernel trees with lane nodes in: how many lanes a group has, whose the local buffers are, where barriers
stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from smelt.core.dim import Dim, Facts, sym
from smelt.core.ir.analysis.scope import accesses, expr_accesses
from smelt.core.ir.edges import parallel_chain, sibling_edges
from smelt.core.ir.groups import instances, nest
from smelt.core.ir.kernel import Block, Buffer, Loop, LoopNode, Stmt, Store, Tiles, walk


def has_lanes(s: Stmt) -> bool:
    """Whether lanes share the work of a statement."""
    return any(isinstance(x, Loop | Tiles) and x.level == "lane" for x in walk((s,)))


def lane_nests(body: Sequence[Stmt]) -> Iterator[tuple[tuple[LoopNode, ...], tuple[Stmt, ...]]]:
    """Every outermost nest of lane nodes."""
    for s in body:
        nodes, inner = nest(s, "lane")
        if nodes:
            yield nodes, inner
        elif not isinstance(s, Store):
            yield from lane_nests(s.body)


def lane_count(s: Stmt, most: int) -> int:
    """Work-items of a group that runs a top-level statement: 1 without lane nodes, else as many as its
    largest nest has, at most `most`. Work-items take turns where a nest has more."""
    wanted = 1
    for nodes, _ in lane_nests((s,)):
        total = 1
        for n in nodes:
            count = instances(n).const_or_none
            total = most if count is None else min(total * max(count, 1), most)
        wanted = max(wanted, total)
    return wanted


def own_indices(b: Buffer, body: Sequence[Stmt], lanes: int) -> int | None:
    """How many leading indices of a buffer declared around lane nodes are always the lane's own, so
    that each lane may keep its part to itself; None when lanes share the buffer."""
    found: set[tuple[Dim, ...]] = set()
    inside = 0
    for nodes, inner in lane_nests(body):
        mine = [a for a in accesses(inner) if a.buffer == b.name]
        if not mine:
            continue
        inside += len(mine)
        extents = tuple(instances(n) for n in nodes)
        if any(isinstance(n, Tiles) for n in nodes) or _product(extents) > lanes:
            return None
        variables = tuple(sym(n.var) for n in nodes if isinstance(n, Loop))
        if any(a.index[: len(variables)] != variables for a in mine):
            return None
        found.add(extents)
    everything = sum(1 for a in accesses(tuple(body)) if a.buffer == b.name)
    if len(found) != 1 or everything != inside:
        return None
    return len(found.pop())


def _product(extents: Iterable[Dim]) -> float:
    total = 1.0
    for d in extents:
        n = d.const_or_none
        total *= float("inf") if n is None else n
    return total


def barriers_before(
    body: tuple[Stmt, ...], facts: Facts, shapes: Mapping[str, Buffer], own: frozenset[str]
) -> frozenset[int]:
    """Positions in a body before which all lanes must have come. own: buffers whose parts belong to
    one lane each. Between ordered blocks they stand whatever these touch."""
    if len(body) < 2 or not any(map(has_lanes, body)):
        return frozenset()
    if all(isinstance(s, Block) and s.ordered for s in body):
        return frozenset(range(1, len(body)))
    found: set[int] = set()
    last = 0
    for edge in sorted(sibling_edges(body, facts, shapes), key=lambda e: e.later):
        if edge.earlier < last or set(edge.buffers) <= own:
            continue
        a, b = body[edge.earlier], body[edge.later]
        if not has_lanes(a) and not has_lanes(b):
            continue  # both are lane 0's
        direct = all(parallel_chain(s) and parallel_chain(s)[0].level == "lane" for s in (a, b))
        if edge.kind == "one_to_one" and direct:
            continue
        found.add(edge.later)
        last = edge.later
    return frozenset(found)


def needs_barrier_after(body: tuple[Stmt, ...], own: frozenset[str], shared: frozenset[str]) -> bool:
    """Whether one pass over a body that lanes share must end before the next begins: something is
    written there that is read there, or written again. own: buffers whose parts belong to one lane each, as
    those do that are declared in a lane. shared: buffers of the group."""
    if not any(map(has_lanes, body)):
        return False
    own |= {b.name for nodes, inner in lane_nests(body) for b in _declared((*nodes, *inner))}
    stores, loads = set[str](), set[str]()
    for a in accesses(body):
        (stores if a.is_store else loads).add(a.buffer)
        if a.is_store and a.accumulate:
            loads.add(a.buffer)
    return bool((stores - own) & (loads | shared))


def _declared(body: Iterable[Stmt]) -> Iterator[Buffer]:
    for s in body:
        yield from () if isinstance(s, Store) else (*s.buffers, *_declared(s.body))


def reads_what_it_writes(s: Block) -> bool:
    """Whether a block's body writes a buffer that its let-bound indices were read from."""
    stored = {a.buffer for a in accesses(s.body) if a.is_store}
    return any(a.buffer in stored for _, value, _, _ in s.let for a in expr_accesses(value))
