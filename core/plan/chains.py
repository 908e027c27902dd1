"""Host programs that are linked in; which of their launches a driver may be given as one, out.

A row of the kernel table is in two chains at most, so that a device's code at most trebles: small kernels
come in many places. Where layers repeat, what comes again is the chain of the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from smelt.core.ir.kernel import Kernel
from smelt.core.ir.rewrite import fresh_name
from smelt.core.machine import Machine
from smelt.core.plan.program import Branch, Entry, HostStep, Launch, Repeat
from smelt.core.schedule.chain import Link, LinkPlace, chain_kernel, chain_link, fit_together, stands_by

ROW_CHAINS = 2


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
    holding: dict[int, list[dict[int, Link]]] = {}
    found: list[dict[int, Link]] = []

    def link(row: int) -> Link | None:
        if row not in known:
            e = rows[row]
            machine = machines[e.unit]
            known[row] = None if machine is None else chain_link(kernels[e.kernel], e.statement, machine)
        return known[row]

    asleep = {n for n, e in enumerate(rows) if machines[e.unit] and stands_by(kernels[e.kernel], e.statement)}
    for steps, numbers in programs:
        for run in _launched(steps):
            awake = [numbers[entry] for entry in run if numbers[entry] not in asleep]
            for chain in _cut(awake, link, holding, rows, machines):
                found.append(chain)
                for row in chain:
                    holding.setdefault(row, []).append(chain)
    return _table(found, rows, kernels)


def _table(
    found: Sequence[Mapping[int, Link]], rows: Sequence[Entry], kernels: Mapping[str, Kernel]
) -> Chains:
    names, made, places = {*kernels}, [], []
    parts: dict[int, list[RowInChain]] = {}
    for n, chain in enumerate(found):
        kernel, where = chain_kernel([*chain.values()])
        name = fresh_name(kernel.name, names)
        names.add(name)
        made.append(kernel.with_(name=name))
        places.append(Entry(name, 0, rows[next(iter(chain))].unit))
        for (row, own), place in zip(chain.items(), where, strict=True):
            parts.setdefault(row, []).append(RowInChain(len(rows) + n, place, own.most_groups))
    return Chains(made, places, parts)


def _launched(steps: Sequence[HostStep]) -> Iterator[list[int]]:
    """The launches that follow each other, by their numbers in the program; a launch of no groups is none."""
    run: list[int] = []
    for s in steps:
        if isinstance(s, Launch):
            run.append(s.entry)
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
    run: Sequence[int], link: Callable[[int], Link | None],
    holding: Mapping[int, Sequence[Mapping[int, Link]]], rows: Sequence[Entry],
    machines: Sequence[Machine | None],
) -> Iterator[dict[int, Link]]:
    """What of launches that follow each other, as rows, becomes chains besides those that there are.
    holding: of each row the chains that it is in, which grows by what is found."""
    chain: dict[int, Link] = {}
    at = 0
    while at < len(run) or chain:
        row = run[at] if at < len(run) else None
        mine = [] if row is None else holding.get(row, [])
        known = max((_begins(run[at : at + len(c)], [*c]) for c in mine), default=0)
        own = None if row is None or known > 1 or len(mine) == ROW_CHAINS or row in chain else link(row)
        if chain and (own is None or row is None or not _joins(row, own, chain, rows, machines)):
            if len(chain) > 1:
                yield chain
            chain = {}
            continue
        if own is not None and row is not None:
            chain[row] = own
        at += max(known, 1)


def _begins(run: Sequence[int], chain: Sequence[int]) -> int:
    """How many of these launches, from the first one on, are parts of a chain in its order."""
    last = -1
    for n, row in enumerate(run):
        at = chain.index(row) if row in chain else -1
        if at <= last:
            return n
        last = at
    return len(run)


def _joins(
    row: int, own: Link, chain: Mapping[int, Link], rows: Sequence[Entry], machines: Sequence[Machine | None]
) -> bool:
    unit = rows[row].unit
    machine = machines[unit]
    return (
        machine is not None
        and unit == rows[next(iter(chain))].unit
        and fit_together([*chain.values(), own], machine)
    )


__all__ = ["ROW_CHAINS", "Chains", "RowInChain", "find_chains"]
