"""Storages that become known at one position each -> the arenas they lie in: late ones share what is free.

A stage may lie in an arena that others have, where nothing of these lives beside it: anywhere once all of
that is dead, else above what lives, or below it where sizes have a provable order. The arena takes the larger
of the two ends; it grows with what it holds where something of that is still read. What lies in one branch of
an if has no place, since its sizes have no values, in the other, nor after both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import nsmallest
from typing import NamedTuple, TypeAlias

from smelt.core.dim import Facts, TooLarge, value_at
from smelt.core.plan.arena import Arena, OrderedSizes, put
from smelt.core.plan.items import Item, walk_items
from smelt.core.plan.lifetime import Storage

WAYS = 8
"""Arenas that a stage tries, the first and those that are free soonest: each costs a plan, and a graph may
have thousands of late sizes that all live to its end."""
MOST_HELD = 24
"""Storages still read in an arena that a stage tries, but for the first: it is compared with each."""
FORMULA_NODES = 8192
"""Of the formula of an arena that stages share. A detection head that keeps the best of each of 20 classes
made 12,000 of maxima inside each other, and then more than a Dim may have; other models have up to 6,500."""


class Home(NamedTuple):
    """The number of the unit where memory is. seen: the host looks at it, too."""

    unit: int
    seen: bool = False


@dataclass(frozen=True, slots=True)
class ArenaStage:
    """What comes into an arena at a position (-1: before anything runs). arena: its number. keep: something
    that it holds is still read."""

    at: int
    home: Home
    arena: int
    plan: Arena
    keep: bool = False


@dataclass
class _Taken:
    """An arena so far, with its bytes at the sample. last: when the last of what it holds is read. until: no
    other stage may have it before."""

    home: Home
    plan: Arena
    bytes: int
    last: int
    until: int


Positions: TypeAlias = tuple[int, int]
"""A first and a last position."""


def assign(
    rows: Sequence[tuple[int, Home, Sequence[Storage]]],
    rounds: Sequence[Positions],
    facts: Facts,
    samples: Sequence[Mapping[str, int]],
    branches: Sequence[Sequence[Positions]] = (),
) -> list[ArenaStage]:
    """rows: position, home and storages, by position. rounds: positions that loops repeat, where what is
    reserved in one round may not be what the next one still reads: no sharing there. branches: those of each
    if. The first arena has an address that stays, so others lie in it only where they provably fit. Of
    several, and of one of its own, a stage takes the arena that grows least at the last sample."""
    sizes = OrderedSizes(facts, samples)
    late = sorted({at for at, _, _ in rows if at >= 0 and _until(at, rounds) < 0})
    found: list[ArenaStage] = []
    taken: list[_Taken] = []
    known: dict[str, int] = {}  # when the size of what was placed is
    for at, home, storages in rows:
        last = max((s.last for s in storages), default=at)
        until = _until(at, rounds)
        able = until < 0
        later = late if able and at >= 0 else ()
        plan = put(storages, sizes, later=later)
        # growth, rank, bytes, number, plan; an arena of its own where another would grow as much: what comes
        # later may lie lower in two than in one
        size = value_at(plan.bytes, samples[-1])
        ways = [(size, size == 0, 0, len(taken), plan)]
        free = [k for k, t in enumerate(taken) if able and t.home == home and t.until < at]
        for k in nsmallest(WAYS, free, key=lambda k: (k > 0, taken[k].last)):
            arena = taken[k]
            arena.plan = arena.plan.since(at)
            if k and len(arena.plan.placed) > MOST_HELD:
                continue
            apart = [(p, _apart(known[p.storage.root], at, branches)) for p in arena.plan.placed]
            if any(how is Apart.AFTER for _, how in apart):
                continue
            other = tuple(p for p, how in apart if how is Apart.BESIDE)
            here = tuple(p for p, how in apart if how is not Apart.BESIDE)
            both = _onto(replace(arena.plan, placed=here), storages, sizes, later)
            both = both and replace(both, placed=both.placed + other)
            if both and (k or both.top == arena.plan.top):
                growth = max(0, value_at(both.bytes, samples[-1]) - arena.bytes)
                ways.append((growth, growth > 0, arena.bytes, k, both))
        known.update((s.root, at) for s in storages)
        growth, _, before, number, plan = min(ways, key=lambda way: way[:4])
        if number == len(taken):
            taken.append(_Taken(home, plan, growth, last, until))
            found.append(ArenaStage(at, home, number, plan))
            continue
        arena = taken[number]
        found.append(ArenaStage(at, home, number, plan, arena.last >= at))
        taken[number] = _Taken(home, plan, before + growth, max(last, arena.last), arena.until)
    return found


class Apart(Enum):
    """Where a position is that another one does not come before on every way: in another branch of an if, or
    after the branch."""

    BESIDE = "beside"
    AFTER = "after"


def _apart(first: int, at: int, branches: Sequence[Sequence[Positions]]) -> Apart | None:
    """None: whoever comes to `at` has come by `first`, which has the smaller number."""
    ways = {
        Apart.BESIDE if any(_within(at, arm) for arm in arms) else Apart.AFTER
        for arms in branches
        if any(_within(first, arm) and not _within(at, arm) for arm in arms)
    }
    return Apart.BESIDE if Apart.BESIDE in ways else Apart.AFTER if ways else None


def _within(at: int, span: Positions) -> bool:
    return span[0] <= at <= span[1]


def _onto(
    arena: Arena, storages: Sequence[Storage], sizes: OrderedSizes, later: Sequence[int]
) -> Arena | None:
    """The storages in an arena that has others; None where its formula gets too long."""
    try:
        both = put(storages, sizes, arena, later)
    except TooLarge:
        return None
    return both if both.bytes.nodes <= FORMULA_NODES else None


def branches(items: Sequence[Item]) -> list[list[Positions]]:
    """Where the branches of each if begin and end."""
    return [
        [(arm.start, arm.end) for arm in item.arms]
        for item in walk_items(tuple(items))
        if len(item.arms) > 1  # a loop has one region
    ]


def loops(items: Iterable[Item]) -> list[Positions]:
    """Where each loop of the graph itself begins and ends."""
    found: list[tuple[int, int]] = []
    for item in items:
        if item.node.op == "loop":
            found.append((item.start, item.end))
        else:
            for arm in item.arms:
                found += loops(arm.items)
    return found


def _until(at: int, rounds: Sequence[Positions]) -> int:
    """Where the last loop ends that repeats the position, -1 for none: what is reserved in a round is there
    until then, since the next round reserves it again."""
    return max((end for start, end in rounds if start < at < end), default=-1)
