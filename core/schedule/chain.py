"""Scheduled statements of kernels that a run launches one after the other, in; a kernel out that does them in
one launch of one group, and which statements that is worth it for.

A launch takes a while, however little it does. In a chain the groups of a statement are a loop of one group,
and all lanes wait before the next statement begins. The plan is made for the statements as they are: what it
knows to be dead it gives away, so parameters of a chain may lie in one place of memory, whatever their types.
Hence its statements are ordered blocks, whatever they touch. A dim says of each whether it takes part.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter

from smelt.core.dim import ONE, Facts, sym, to_dim
from smelt.core.ir.analysis.scope import enter, kernel_facts
from smelt.core.ir.barriers import has_lanes, lane_count, own_indices
from smelt.core.ir.groups import group_count, nest
from smelt.core.ir.kernel import (
    Block,
    Bound,
    Buffer,
    Call,
    DimParam,
    Expr,
    Kernel,
    Level,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
    walk,
)
from smelt.core.ir.rewrite import (
    free_symbols,
    freshen,
    map_buffer_dims,
    map_stmt_exprs,
    map_stmts,
    rename_buffers_expr,
    substitute_stmt,
)
from smelt.core.machine import Machine

LARGE_SIZE = 1 << 20
"""A size at which a statement for small ones has nothing to do."""


@dataclass(frozen=True, slots=True)
class Link:
    """A statement that may be in a chain. most_groups: a launch of more is worth being one. kept_bytes: what
    a lane keeps for it."""

    kernel: Kernel
    statement: int
    most_groups: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Wired:
    """A link, and what a launch gives it: of each buffer the memory and the offset there, and each dim. What
    is equal within a chain is one parameter of it."""

    link: Link
    memories: tuple[Hashable, ...]
    offsets: tuple[Hashable, ...]
    dims: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class LinkPlace:
    """Where a chain's kernel has what is a statement's, as numbers: the dim that is 1 where it takes part; of
    each buffer the memory, and the dim that is its offset there; each of its dims."""

    taking_part: int
    buffers: tuple[tuple[int, int], ...]
    dims: tuple[int, ...]


def chain_link(kernel: Kernel, statement: int, machine: Machine) -> Link | None:
    """The statement as a part of chains; None where it is none: it has memory that lanes share, or more
    groups than are worth it at the smallest sizes already."""
    chaining, s = machine.chaining, kernel.body[statement]
    if chaining is None or not _apart(s, lane_count(s, machine.max_lanes)):
        return None
    facts = kernel_facts(kernel)
    work = _work(nest(s, "group")[1], _inside_groups(s, facts), machine)
    most = 1 if work is None else 1 + chaining.work // max(work, 1)
    if group_count(s).evaluate(_sizes(kernel, 1)) > most:
        return None
    kept = _kept(s, facts)
    return None if kept is None else Link(kernel, statement, most, kept)


def stands_by(kernel: Kernel, statement: int) -> bool:
    """Whether a statement has something to do at large sizes and nothing at the smallest, where another one
    is in its place, which has nothing to do at large ones: where that is a part of a chain, this one has no
    groups."""
    small, large = (
        [group_count(s).evaluate(_sizes(kernel, least)) for s in kernel.body] for least in (1, LARGE_SIZE)
    )
    instead = any(a > 0 and b == 0 for a, b in zip(small, large, strict=True))
    return instead and small[statement] == 0 and large[statement] > 0


def busy_together(links: Sequence[Link]) -> int:
    """How many of these have something to do at once, where all sizes are the smallest, about 2, or large: of
    nests for one row, for few and for many it is one."""

    def busy(least: int) -> int:
        counts = (group_count(a.kernel.body[a.statement]).evaluate(_sizes(a.kernel, least)) for a in links)
        return sum(n > 0 for n in counts)

    return max(map(busy, (1, 2, LARGE_SIZE)), default=0)


def _sizes(kernel: Kernel, least: int) -> dict[str, int]:
    """Sizes that the dims may have: the smallest from this one on where there are such."""
    found = {}
    for d in kernel.dims:
        n = max(d.low, -(-least // d.divisor) * d.divisor)
        found[d.name] = n if d.high is None else min(n, d.high // d.divisor * d.divisor)
    return found


def fit_together(parts: Sequence[Wired], machine: Machine) -> bool:
    """Whether one chain may have all of these: as many parameters as a launch has, and no more on a lane's
    stack than its cache. A memory takes two words, as every buffer of a launch does."""
    chaining = machine.chaining
    assert chaining is not None
    memories, offsets, dims = _parameters(parts)
    return (
        len(parts) + 2 * len(memories) + len(offsets) + len(dims) <= chaining.words
        and sum(p.link.kept_bytes for p in parts) <= machine.cache_bytes[0]
    )


def _parameters(parts: Sequence[Wired]) -> tuple[dict[Hashable, int], ...]:
    """The numbers of the memories, of the offsets and of the dims that the parts are given."""
    of = (attrgetter("memories"), attrgetter("offsets"), attrgetter("dims"))
    found = (dict.fromkeys(key for p in parts for key in get(p)) for get in of)
    return tuple({key: n for n, key in enumerate(keys)} for keys in found)


def chain_kernel(
    parts: Sequence[Wired], shared: Mapping[tuple[int, str], str] | None = None
) -> tuple[Kernel, list[LinkPlace]]:
    """The kernel that does these in order, and where each finds its parameters: its dims are a flag for each
    part, then the offsets, then the parts' dims. shared: names for buffers of links, by number and name, that
    are known to be one, where no launch gives them."""
    given = shared or {}
    places = _places(parts)
    flags = [DimParam(f"on.{n}", 0, 1) for n in range(len(parts))]
    dims = {d: DimParam(f"at.{d - len(flags)}") for p in places for _, d in p.buffers}
    for part, place in zip(parts, places, strict=True):
        for d, to in zip(part.link.kernel.dims, place.dims, strict=True):
            dims.setdefault(to, replace(d, name=f"{d.name}.{to}"))
    all_dims = (*flags, *(dims[n] for n in sorted(dims)))
    read: dict[str, tuple[Buffer, tuple[int, int]]] = {}
    written: dict[str, tuple[Buffer, tuple[int, int]]] = {}
    blocks = []
    for n, (part, place) in enumerate(zip(parts, places, strict=True)):
        k = part.link.kernel
        sizes = {d.name: dims[to].name for d, to in zip(k.dims, place.dims, strict=True)}
        names = {b: given.get((n, b), f"{b}.{n}") for b in k.buffers()}
        alone = {b.name for b in k.inputs}
        for b, lies in zip(k.buffers().values(), place.buffers, strict=True):
            side = read if b.name in alone else written
            side[names[b.name]] = _parameter(b, names[b.name], sizes), lies
        statement = freshen(k.body[part.link.statement], {d.name for d in all_dims})
        takes_part = Bound(ONE, sym(f"on.{n}"), to_dim(2))
        blocks.append(Block((_in_one_group(statement, names, sizes),), guard=(takes_part,), ordered=True))
    inputs = [found for name, found in read.items() if name not in written]
    said = " ".join(f"{p.link.kernel.name}.{p.link.statement}" for p in parts)
    return Kernel(
        "chain", all_dims, tuple(b for b, _ in inputs), tuple(b for b, _ in written.values()),
        (Loop("group", "chain", ONE, tuple(blocks)),), schedule=f"chain {said}",
        lies=tuple(at for _, at in (*inputs, *written.values())),
    ), places  # fmt: skip


def _places(parts: Sequence[Wired]) -> list[LinkPlace]:
    memories, offsets, dims = _parameters(parts)
    first = len(parts) + len(offsets)
    found = []
    for n, p in enumerate(parts):
        lies = ((memories[m], len(parts) + offsets[o]) for m, o in zip(p.memories, p.offsets, strict=True))
        found.append(LinkPlace(n, tuple(lies), tuple(first + dims[d] for d in p.dims)))
    return found


def _parameter(b: Buffer, name: str, sizes: Mapping[str, str]) -> Buffer:
    """A buffer as a parameter of the chain."""
    plain = replace(b, name=name, space="global", layout=None, ahead=0)
    return map_buffer_dims(plain, lambda d: d.substitute({a: sym(to) for a, to in sizes.items()}))


def _in_one_group(s: Stmt, names: Mapping[str, str], sizes: Mapping[str, str]) -> Stmt:
    """A statement with these names, whose groups are loops, or the work of a lane each if they have none."""
    level: Level = "serial" if has_lanes(s) else "lane"

    def visit(x: Stmt) -> Stmt:
        if isinstance(x, Store):
            return replace(x, buffer=names.get(x.buffer, x.buffer))
        if isinstance(x, Loop | Tiles) and x.level == "group":
            return replace(x, level=level)
        return x

    s = substitute_stmt(s, {a: sym(to) for a, to in sizes.items()})
    (made,) = map_stmts((map_stmt_exprs(s, lambda e: rename_buffers_expr(e, names)),), visit)
    return made


# ---------------------------------------------------------------- what a statement takes


def _apart(s: Stmt, lanes: int) -> bool:
    """Whether no memory is shared by lanes."""
    for x in walk((s,)):
        if isinstance(x, Store) or (isinstance(x, Loop | Tiles) and x.level == "lane") or not has_lanes(x):
            continue
        if any(b.space != "register" or own_indices(b, x.body, lanes) is None for b in x.buffers):
            return False
    return all(b.space == "register" for x in walk((s,)) if not isinstance(x, Store) for b in x.buffers)


def _inside_groups(s: Stmt, facts: Facts) -> Facts:
    for node in nest(s, "group")[0]:
        facts = enter(facts, node)
    return facts


def _kept(s: Stmt, facts: Facts) -> int | None:
    """Bytes of all local buffers, those of lanes apart where each has its part; None: unknown."""
    total = 0
    for x, inside in _nodes((s,), facts):
        for b in x.buffers:
            extents = [inside.bounds(d)[1] for d in b.shape]
            if None in extents:
                return None
            total += prod(n or 0 for n in extents) * b.dtype.bytes
    return total


def _nodes(body: Sequence[Stmt], facts: Facts) -> Iterator[tuple[Loop | Tiles | Block, Facts]]:
    for s in body:
        if not isinstance(s, Store):
            inside = enter(facts, s)
            yield s, inside
            yield from _nodes(s.body, inside)


def _work(body: Sequence[Stmt], facts: Facts, machine: Machine, innermost: str = "") -> int | None:
    """Multiply-adds of statements at most, as if all loops took all their rounds; None: nobody knows. Of a
    store that is its arithmetic or its loads, whichever are more, as processors do both at once."""
    total = 0
    for s in body:
        if isinstance(s, Store):
            counts = _counts(s.value, facts, machine, innermost)
            one = None if counts is None else max(counts)
        else:
            rounds = 1 if isinstance(s, Block) else _rounds(s, facts)
            var = s.var if isinstance(s, Loop) else innermost
            inside = _work(s.body, enter(facts, s), machine, var)
            one = None if rounds is None or inside is None else rounds * inside
        if one is None:
            return None
        total += one
    return total


def _rounds(s: Loop | Tiles, facts: Facts) -> int | None:
    most = facts.bounds(s.extent)[1]
    return most if most is None or isinstance(s, Loop) else -(-most // s.sizes[0])


def _counts(e: Expr, facts: Facts, machine: Machine, innermost: str) -> tuple[int, int] | None:
    """The calls of an expression, a sum of products as its products, and its loads, but those that stay the
    same in the innermost loop."""
    rounds, inside = 1, children(e)
    if isinstance(e, Reduce):
        most = [facts.bounds(a.extent)[1] for a in e.axes]
        if None in most:
            return None
        rounds, innermost = prod(n or 0 for n in most), e.axes[-1].var
        facts, inside = enter(facts, e.axes), (e.body,)
    calls = machine.cost({e.fn: 1}) if isinstance(e, Call) else 0
    loads = int(isinstance(e, Load) and (not innermost or innermost in free_symbols(e)))
    for c in inside:
        found = _counts(c, facts, machine, innermost)
        if found is None:
            return None
        calls, loads = calls + rounds * found[0], loads + rounds * found[1]
    return calls, loads


__all__ = [
    "Link", "LinkPlace", "Wired", "busy_together", "chain_kernel", "chain_link", "fit_together", "stands_by",
]  # fmt: skip
