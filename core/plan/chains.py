"""Host programs that are linked in; which of their launches a driver may be given as one, out.

A row of the kernel table is a part of chains a few times at most, so that a device's code stays a small
multiple of what it would be: small kernels come in many places. Where layers repeat, what comes again is the
chain of the first ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.ir.kernel import Kernel
from smelt.core.ir.rewrite import fresh_name
from smelt.core.machine import Machine
from smelt.core.plan.program import Address, Branch, Entry, HostStep, Launch, Repeat
from smelt.core.schedule.chain import (
    Link,
    LinkPlace,
    Wired,
    busy_together,
    chain_kernel,
    chain_link,
    fit_together,
    stands_by,
)

ROW_PARTS = 4

RowLaunch: TypeAlias = "tuple[int, Launch]"
"""A launch, and its row of the kernel table."""

Chain: TypeAlias = "Sequence[tuple[int, Wired]]"
"""Its parts, each with its row."""


@dataclass(frozen=True, slots=True)
class RowInChain:
    """A row of the kernel table that is a part of a chain. chain: the row of that. most_groups: a launch of
    more is one of its own."""

    chain: int
    place: LinkPlace
    most_groups: int


@dataclass(frozen=True, slots=True)
class Chains:
    """kernels: of the chains, in order. rows: their rows of the kernel table, behind the others. parts: of
    the rows before them, by number, what they are in."""

    kernels: Sequence[Kernel]
    rows: Sequence[Entry]
    parts: Mapping[int, Sequence[RowInChain]]


def find_chains(
    programs: Sequence[tuple[Sequence[HostStep], Sequence[int]]], rows: Sequence[Entry],
    kernels: Mapping[str, Kernel], machines: Sequence[Machine | None],
) -> Chains:
    """programs: the steps of each, and the rows of what they launch. machines: of each unit by number."""
    known: dict[int, Link | None] = {}
    holding: dict[int, list[Chain]] = {}
    found: list[Chain] = []

    def link(row: int) -> Link | None:
        if row not in known:
            e = rows[row]
            machine = machines[e.unit]
            known[row] = None if machine is None else chain_link(kernels[e.kernel], e.statement, machine)
        return known[row]

    def longest(run: Sequence[RowLaunch]) -> Chain:
        unit = rows[run[0][0]].unit
        own = run[: next((n for n, (row, _) in enumerate(run) if rows[row].unit != unit), len(run))]
        machine = machines[unit]
        return () if machine is None else _longest(own, link, holding, machine)

    asleep = {n for n, e in enumerate(rows) if machines[e.unit] and stands_by(kernels[e.kernel], e.statement)}
    for steps, numbers in programs:
        for run in _launched(steps):
            awake = [(numbers[s.entry], s) for s in run if numbers[s.entry] not in asleep]
            for chain in _cut(awake, longest, holding):
                found.append(chain)
                for row, _ in chain:
                    holding.setdefault(row, []).append(chain)
    return _table(found, rows, kernels)


def _table(found: Sequence[Chain], rows: Sequence[Entry], kernels: Mapping[str, Kernel]) -> Chains:
    names, made, places = {*kernels}, [], []
    parts: dict[int, list[RowInChain]] = {}
    for n, chain in enumerate(found):
        kernel, where = chain_kernel([wired for _, wired in chain])
        name = fresh_name(kernel.name, names)
        names.add(name)
        made.append(kernel.with_(name=name))
        places.append(Entry(name, 0, rows[chain[0][0]].unit))
        for (row, own), place in zip(chain, where, strict=True):
            parts.setdefault(row, []).append(RowInChain(len(rows) + n, place, own.link.most_groups))
    return Chains(made, places, parts)


def _launched(steps: Sequence[HostStep]) -> Iterator[list[Launch]]:
    """The launches that follow each other; a launch of no groups is none."""
    run: list[Launch] = []
    for s in steps:
        if isinstance(s, Launch):
            run.append(s)
            continue
        yield run
        run = []
        if isinstance(s, Branch):
            yield from _launched(s.then)
            yield from _launched(s.otherwise)
        elif isinstance(s, Repeat):
            yield from _launched(s.body)
    yield run


def _cut(
    run: Sequence[RowLaunch], longest: Callable[[Sequence[RowLaunch]], Chain],
    holding: Mapping[int, Sequence[Chain]],
) -> Iterator[Chain]:
    """What of launches that follow each other becomes chains besides those that there are. holding: of each
    row the chains that it is in, which grows by what is found."""
    at = 0
    while at < len(run):
        rest = run[at:]
        known = max((_begins(rest, chain) for chain in holding.get(rest[0][0], ())), default=1)
        chain = longest(rest)
        if len(chain) > max(known, 1) and busy_together([w.link for _, w in chain]) > 1:
            yield chain
        at += max(known, len(chain), 1)


def _longest(
    run: Sequence[RowLaunch], link: Callable[[int], Link | None], holding: Mapping[int, Sequence[Chain]],
    machine: Machine,
) -> Chain:
    """What one chain may have of these launches at a unit, from the first one on."""
    chain: list[tuple[int, Wired]] = []
    written: Counter[Address] = Counter()
    for row, launch in run:
        own = link(row)
        times = len(holding.get(row, ())) + sum(r == row for r, _ in chain)
        if own is None or times >= ROW_PARTS:
            break
        wired = _wired(own, launch, written)
        if not fit_together([*(w for _, w in chain), wired], machine):
            break
        chain.append((row, wired))
    return chain


def _wired(link: Link, launch: Launch, written: Counter[Address]) -> Wired:
    """written: how often parts before this one write what lies there, which is counted on. So two values that
    the plan puts into one place are two parameters, as they may lie apart where this chain comes again."""
    alone, dims = len(link.kernel.inputs), link.kernel.dims
    read = [(a, written[a]) for a in launch.buffers[:alone]]
    written.update(launch.buffers[alone:])
    offsets = (*read, *((a, written[a]) for a in launch.buffers[alone:]))
    sizes = ((n, d.low, d.high, d.divisor) for n, d in zip(launch.dims, dims, strict=True))
    return Wired(link, tuple((a.base, a.number) for a, _ in offsets), offsets, tuple(sizes))


def _begins(run: Sequence[RowLaunch], chain: Chain) -> int:
    """How many of these launches, from the first one on, are parts of a chain in its order, with what it
    takes for equal."""
    last = -1
    given: dict[Hashable, Hashable] = {}
    for n, (row, launch) in enumerate(run):
        last = next((k for k in range(last + 1, len(chain)) if chain[k][0] == row), -1)
        if last < 0 or not _gives(launch, chain[last][1], given):
            return n
    return len(run)


def _gives(launch: Launch, wired: Wired, given: dict[Hashable, Hashable]) -> bool:
    """Whether a launch gives a part what it shares with those before, which `given` has by their keys."""
    keys = (*wired.memories, *wired.offsets, *wired.dims)
    memories = ((a.base, a.number) for a in launch.buffers)
    values = (*memories, *(a.offset for a in launch.buffers), *launch.dims)
    return all(given.setdefault(key, value) == value for key, value in zip(keys, values, strict=True))


__all__ = ["ROW_PARTS", "Chains", "RowInChain", "find_chains"]
