"""Storages that become known at one position each -> the arenas they lie in: late ones share what is free.

A stage may lie in an arena that others have, where nothing of these lives beside it: anywhere once all of
that is dead, else above what lives, or below it where sizes have a provable order. The arena takes the larger
of the two ends; it grows with what it holds where something of that is still read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from smelt.core.dim import Facts, TooLarge, value_at
from smelt.core.plan.arena import Arena, OrderedSizes, put
from smelt.core.plan.items import Item
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


def assign(
    rows: Sequence[tuple[int, Home, Sequence[Storage]]],
    rounds: Sequence[tuple[int, int]],
    facts: Facts,
    samples: Sequence[Mapping[str, int]],
) -> list[ArenaStage]:
    """rows: position, home and storages, by position. rounds: positions that loops repeat, where what is
    reserved in one round may not be what the next one still reads: no sharing there. The first arena has an
    address that stays, so others lie in it only where they provably fit. Of several, and of one of its own, a
    stage takes the arena that grows least at the last sample."""
    sizes = OrderedSizes(facts, samples)
    late = sorted({at for at, _, _ in rows if at >= 0 and _until(at, rounds) < 0})
    found: list[ArenaStage] = []
    taken: list[_Taken] = []
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
            both = _onto(arena.plan, storages, sizes, later)
            if both and (k or both.top == arena.plan.top):
                growth = max(0, value_at(both.bytes, samples[-1]) - arena.bytes)
                ways.append((growth, growth > 0, arena.bytes, k, both))
        growth, _, before, number, plan = min(ways, key=lambda way: way[:4])
        if number == len(taken):
            taken.append(_Taken(home, plan, growth, last, until))
            found.append(ArenaStage(at, home, number, plan))
            continue
        arena = taken[number]
        found.append(ArenaStage(at, home, number, plan, arena.last >= at))
        taken[number] = _Taken(home, plan, before + growth, max(last, arena.last), arena.until)
    return found


def _onto(
    arena: Arena, storages: Sequence[Storage], sizes: OrderedSizes, later: Sequence[int]
) -> Arena | None:
    """The storages in an arena that has others; None where its formula gets too long."""
    try:
        both = put(storages, sizes, arena, later)
    except TooLarge:
        return None
    return both if both.bytes.nodes <= FORMULA_NODES else None


def loops(items: Iterable[Item]) -> list[tuple[int, int]]:
    """Where each loop of the graph itself begins and ends."""
    found: list[tuple[int, int]] = []
    for item in items:
        if item.node.op == "loop":
            found.append((item.start, item.end))
        else:
            for arm in item.arms:
                found += loops(arm.items)
    return found


def _until(at: int, rounds: Sequence[tuple[int, int]]) -> int:
    """Where the last loop ends that repeats the position, -1 for none: what is reserved in a round is there
    until then, since the next round reserves it again."""
    return max((end for start, end in rounds if start < at < end), default=-1)
