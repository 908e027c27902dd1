"""Scheduled Modules, each an entry of one library -> their host programs, and the tables that they share.

Every entry has been a module of its own up to here: passes and schedules know nothing of others. What is
equal is put in one place: kernels, weights by their bytes, working memory, states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.dtype import DType
from smelt.core.ir.graph import Graph, Library, Module, Node
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.rewrite import fresh_name
from smelt.core.ir.verify import module_facts
from smelt.core.machine import CPU
from smelt.core.plan.build import Common, common_of, make_plan
from smelt.core.plan.items import timeline
from smelt.core.plan.program import Entry as Row
from smelt.core.plan.program import HostProgram, StatePair
from smelt.core.plan.state import StateUse


@dataclass(frozen=True, slots=True)
class SessionState:
    """A state of the session. home: the number of the unit where it lies. most: bytes; None: no bound.
    room: an axis, and how many rows memory has for it."""

    name: str
    dtype: DType
    rank: int
    home: int
    most: int | None
    room: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """An entry. kernels, libraries, arenas: which rows of the shared tables those are that its program
    numbers from 0. reads, writes: the states of its last inputs and of its last outputs."""

    name: str
    module: Module
    program: HostProgram
    kernels: tuple[int, ...]
    libraries: tuple[int, ...]
    arenas: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Linked:
    """A library with one or more entries. rows: the kernel table. homes, most: the unit of each arena, and
    the most bytes that it may take. fallback: the same entries for the CPU alone, or none. others: the same
    for another device each. chosen: the devices of entries and others, where a session has one of them."""

    entries: tuple[EntryPoint, ...]
    kernels: Mapping[str, Kernel]
    rows: tuple[Row, ...]
    libraries: tuple[Library, ...]
    homes: tuple[int, ...]
    most: tuple[int | None, ...]
    states: tuple[SessionState, ...]
    fallback: tuple[EntryPoint, ...] = ()
    others: tuple[tuple[EntryPoint, ...], ...] = ()
    chosen: tuple[str, ...] = ()

    @property
    def all_entries(self) -> tuple[EntryPoint, ...]:
        """The entries, those for other devices, and then those for the CPU alone."""
        return (*self.entries, *(e for way in self.others for e in way), *self.fallback)

    @property
    def ways(self) -> tuple[int, ...]:
        """How often the entries are there, and for which unit each time; -1: for all."""
        devices = [self.units.index(d) + 1 if d in self.units else -1 for d in self.chosen]
        return (*(devices or [-1]), *([0] if self.fallback else []))

    @property
    def units(self) -> tuple[str, ...]:
        """Those besides the CPU, from number 1 on."""
        return self.entries[0].program.units

    @property
    def weights_bytes(self) -> int:
        """Of the file that all entries read."""
        return self.entries[0].program.weights_bytes

    def weights_at(self, unit: int) -> tuple[int, int]:
        """(first byte, bytes) of the part of the weights' file that a unit has; the CPU has all."""
        return self.entries[0].program.spans[unit] if unit else (0, self.weights_bytes)


Arranged: TypeAlias = "tuple[str, Module, Sequence[StateUse]]"
"""An entry's name, its module with the state last among inputs and outputs, and the states."""


def link(
    modules: Sequence[Arranged],
    fallback: Sequence[Arranged] = (),
    others: Mapping[str, Sequence[Arranged]] | None = None,
) -> Linked:
    """Plan each module and put together what they share. The order of the entries is that given. fallback:
    the same entries, whose kernels are all the CPU's; others: whose kernels are another device's."""
    given, others = modules, others or {}
    modules = [*given, *(e for way in others.values() for e in way), *fallback]
    labels = [name for name, _, _ in given]
    labels += [f"{name}_{device}" for device, way in others.items() for name, _, _ in way]
    labels += [f"{name}_{CPU}" for name, _, _ in fallback]
    shared = _with_common_kernels([(label, m) for label, (_, m, _) in zip(labels, modules, strict=True)])
    parts: Sequence[Common | None] = [None]
    if len(shared) > 1:
        parts = common_of([(m, timeline(m.main)) for m in shared])
    programs = [
        make_plan(m, module_facts(m), states=uses, common=common)
        for m, (_, _, uses), common in zip(shared, modules, parts, strict=True)
    ]
    rows = list(dict.fromkeys(row for p in programs for row in p.entries))
    named = [(m, name) for m, p in zip(shared, programs, strict=True) for name in p.libraries]
    libraries = {name: m.libraries[name] for m, name in named}
    homes: list[int] = []
    arenas = [_arenas(p, homes) for p in programs]
    states = _states(programs)
    numbers = {s.name: n for n, s in enumerate(states)}
    entries = tuple(
        EntryPoint(
            name, m, p, tuple(map(rows.index, p.entries)), tuple(map([*libraries].index, p.libraries)), own,
            tuple(numbers[s.name] for s in p.states if s.input is not None),
            tuple(numbers[s.name] for s in p.states if s.output is not None),
        )
        for (name, _, _), m, p, own in zip(modules, shared, programs, arenas, strict=True)
    )  # fmt: skip
    kernels = {name: k for m in reversed(shared) for name, k in m.kernels.items()}
    most = [max(known, default=None) for known in _bounds(programs, arenas, len(homes))]
    count = len(given)
    ways = [entries[at : at + count] for at in range(0, len(entries), count)]
    chosen = tuple(dict.fromkeys((*programs[0].units, *others))) if others else ()
    return Linked(
        ways[0], kernels, tuple(rows), tuple(libraries.values()), tuple(homes), tuple(most), states,
        ways[-1] if fallback else (), tuple(ways[1 : 1 + len(others)]), chosen,
    )  # fmt: skip


def _arenas(program: HostProgram, homes: list[int]) -> tuple[int, ...]:
    """Which arena of the session each of a program's is: the first free one at its unit, or a new one."""
    free: dict[int, list[int]] = {}
    for n, unit in enumerate(homes):
        free.setdefault(unit, []).append(n)
    found = []
    for unit in program.homes[: len(program.peak)]:
        if not free.get(unit):
            free[unit] = [len(homes)]
            homes.append(unit)
        found.append(free[unit].pop(0))
    return tuple(found)


def _bounds(programs: Sequence[HostProgram], arenas: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The bounds that are known of each arena of the session."""
    found: list[list[int]] = [[] for _ in range(count)]
    for program, own in zip(programs, arenas, strict=True):
        for n, most in zip(own, program.most, strict=False):
            found[n] += [] if most is None else [most]
    return found


# ---------------------------------------------------------------- state


def _states(programs: Sequence[HostProgram]) -> tuple[SessionState, ...]:
    """In the order of the entries and their inputs. A state lies where its first reader wants it."""
    names = dict.fromkeys(s.name for p in programs for s in p.states if s.input is not None)
    return tuple(_state(n, [(p, s) for p in programs for s in p.states if s.name == n]) for n in names)


def _state(name: str, uses: Sequence[tuple[HostProgram, StatePair]]) -> SessionState:
    program, first = next((p, s) for p, s in uses if s.input is not None)
    assert first.input is not None
    at = len(program.peak) + program.inputs.index(first.input)
    assert len({s.room for _, s in uses}) == 1, f"entries have different room in state '{name}'"
    written = [s.most for _, s in uses if s.output is not None]
    most = None if None in written else max(n for n in written if n is not None)
    return SessionState(name, first.input.dtype, len(first.input.shape), program.homes[at], most, first.room)


# ---------------------------------------------------------------- kernels


def _with_common_kernels(modules: Sequence[tuple[str, Module]]) -> list[Module]:
    """The modules with kernels of one name equal, and equal ones of one name."""
    if len(modules) == 1:
        return [modules[0][1]]
    named: dict[str, Kernel] = {}
    known: dict[tuple[Kernel, str], str] = {}
    done = []
    for entry, module in modules:
        units = {str(n.attr("kernel")): n.unit for n in _calls(module)}
        names: dict[str, str] = {}
        for name, kernel in module.kernels.items():
            key = (kernel.with_(name="", origin=""), units.get(name, CPU))
            if key not in known:
                taken = {*named, *module.kernels}
                known[key] = fresh_name(f"{name}_{entry}", taken) if name in named else name
                named[known[key]] = kernel.with_(name=known[key])
            names[name] = known[key]
        done.append(_renamed(module, names, named))
    return done


def _calls(module: Module) -> Iterable[Node]:
    return (n for g in module.graphs.values() for n in g.walk() if n.op == "call_kernel")


def _renamed(module: Module, names: Mapping[str, str], kernels: Mapping[str, Kernel]) -> Module:
    """The module with its kernels under these names."""
    if all(old == new for old, new in names.items()):
        return module

    def inside(g: Graph) -> Graph:
        return g.with_(nodes=tuple(map(call, g.nodes)))

    def call(n: Node) -> Node:
        if n.op == "call_kernel":
            return n.with_(attrs={**n.attrs, "kernel": names[str(n.attr("kernel"))]})
        return n.with_(regions=tuple(map(inside, n.regions))) if n.regions else n

    own = {new: kernels[new].with_(origin=module.kernels[old].origin) for old, new in names.items()}
    return module.with_(kernels=own, graphs={name: inside(g) for name, g in module.graphs.items()})
