"""Plans of what becomes known at one position each -> the arenas they lie in: late ones share what is free.

An arena that is reserved anew loses what it held. So a stage may have another one's where nothing of that
lives any more when it is reserved; the arena then takes the larger of the two sizes, whatever these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from smelt.core.dim import value_at
from smelt.core.plan.arena import Arena
from smelt.core.plan.items import Item
from smelt.core.plan.lifetime import Storage


@dataclass(frozen=True, slots=True)
class ArenaStage:
    """What is reserved at a position (-1: before anything runs) at a unit. arena: its number."""

    at: int
    unit: int
    arena: int
    plan: Arena


@dataclass
class _Taken:
    """An arena so far: its unit, when the last of what it holds is read, and its bytes at the sample."""

    unit: int
    last: int
    bytes: int


def assign(
    rows: Sequence[tuple[int, int, Sequence[Storage], Arena]],
    rounds: Sequence[tuple[int, int]],
    sample: Mapping[str, int],
) -> list[ArenaStage]:
    """rows: position, unit, storages and their plan, by position. rounds: positions that loops repeat, where
    what is reserved in one round may not be what the next one still reads: no sharing there. Arena 0 is the
    first one's own. Of several that are free a stage takes the one that grows least at the sample."""
    found: list[ArenaStage] = []
    taken: list[_Taken] = []
    for at, unit, storages, plan in rows:
        last = max((s.last for s in storages), default=at)
        size = value_at(plan.bytes, sample)
        able = not any(start < at < end for start, end in rounds)
        free = [k for k, t in enumerate(taken) if able and k and t.unit == unit and t.last < at]
        if not free:
            taken.append(_Taken(unit, _until(at, last, rounds), size))
            found.append(ArenaStage(at, unit, len(taken) - 1, plan))
            continue
        number = min(free, key=lambda k: (max(0, size - taken[k].bytes), taken[k].bytes, k))
        taken[number] = _Taken(unit, last, max(size, taken[number].bytes))
        found.append(ArenaStage(at, unit, number, plan))
    return found


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


def _until(at: int, last: int, rounds: Sequence[tuple[int, int]]) -> int:
    """What is reserved in a round is there until the loop ends: the next round reserves it again."""
    return max([last, *(end for start, end in rounds if start < at < end)])
