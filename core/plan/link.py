"""Scheduled Modules, each an entry of one library -> their host programs, and the tables that they share.

Every entry has been a module of its own up to here: passes and schedules know nothing of others. What is
equal is put in one place: kernels, weights by their bytes, working memory, states.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from smelt.core.dtype import DType
from smelt.core.ir.graph import Graph, Library, Module, Node
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.rewrite import fresh_name
from smelt.core.ir.verify import module_facts
from smelt.core.machine import CPU, Machine
from smelt.core.plan.build import Common, common_of, make_plan
from smelt.core.plan.chains import RowInChain, find_chains
from smelt.core.plan.items import timeline
from smelt.core.plan.program import Entry as Row
from smelt.core.plan.program import HostProgram, StatePair
from smelt.core.plan.stages import Home
from smelt.core.plan.state import StateUse


@dataclass(frozen=True, slots=True)
class SessionState:
    """A state of the session. homes: the number of the unit where it lies, of each variant. most: bytes;
    None: no bound. room: an axis, and how many rows memory has for it."""

    name: str
    dtype: DType
    rank: int
    homes: tuple[int, ...]
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
class Variant:
    """All entries with code of their own. processor: the one that its CPU's kernels are for. units: the
    numbers of those besides the CPU that it needs."""

    processor: str
    entries: tuple[EntryPoint, ...]
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Linked:
    """A library with one or more entries. variants: those that it chooses from when it is opened, the best
    first. rows: the kernel table. processors: of a kernel that the CPU runs, the one that it is for. homes,
    most: where each arena is, and the most bytes that it may take. chained: of rows that are parts of a
    chain, by number; chains are the last rows, which no program launches."""

    variants: tuple[Variant, ...]
    kernels: Mapping[str, Kernel]
    processors: Mapping[str, str]
    rows: tuple[Row, ...]
    libraries: tuple[Library, ...]
    homes: tuple[Home, ...]
    most: tuple[int | None, ...]
    states: tuple[SessionState, ...]
    chained: Mapping[int, Sequence[RowInChain]]

    @property
    def entries(self) -> tuple[EntryPoint, ...]:
        """Those of the first variant."""
        return self.variants[0].entries

    @property
    def all_entries(self) -> tuple[EntryPoint, ...]:
        """Those of all variants, one after the other."""
        return tuple(e for v in self.variants for e in v.entries)

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
    variants: Sequence[tuple[str, Sequence[Arranged]]],
    machines: Mapping[str, Machine] = MappingProxyType({}),
) -> Linked:
    """Plan each module and put together what they share. variants: the processor and the entries of each,
    which are the same ones in the same order. machines: of units besides the CPU, where launches may be
    chained."""
    modules = [m for _, own in variants for m in own]
    processors = [processor for processor, own in variants for _ in own]
    many = [[f"{name}_{n}" if n else name for name, _, _ in own] for n, (_, own) in enumerate(variants)]
    labels = [label for own in many for label in own]
    shared, on = _with_common_kernels(
        [(label, on, m) for label, on, (_, m, _) in zip(labels, processors, modules, strict=True)]
    )
    parts: Sequence[Common | None] = [None]
    if len(shared) > 1:
        parts = common_of([(m, timeline(m.main)) for m in shared])
    asked = [(m, uses, common) for m, (_, _, uses), common in zip(shared, modules, parts, strict=True)]
    # one after the other: variants ask the prover the same, and long formulas take longer from a fork to here
    programs = [make_plan(m, module_facts(m), states=uses, common=common) for m, uses, common in asked]
    rows = list(dict.fromkeys(row for p in programs for row in p.entries))
    named = [(m, name) for m, p in zip(shared, programs, strict=True) for name in p.libraries]
    libraries = {name: m.libraries[name] for m, name in named}
    homes: list[Home] = []
    arenas = [_arenas(p, homes) for p in programs]
    states = _states(programs, len(variants))
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
    units = (CPU, *entries[0].program.units)
    chains = find_chains(
        [(e.program.run, e.kernels) for e in entries], rows, kernels,
        [None, *(machines.get(u) for u in units[1:])],
    )  # fmt: skip
    most = [max(known, default=None) for known in _bounds(programs, arenas, len(homes))]
    count = len(modules) // len(variants)
    made = tuple(
        _variant(processor, entries[n * count : (n + 1) * count], rows, homes)
        for n, (processor, _) in enumerate(variants)
    )
    return Linked(
        made, {**kernels, **{k.name: k for k in chains.kernels}}, on, (*rows, *chains.rows),
        tuple(libraries.values()), tuple(homes), tuple(most), states, chains.parts,
    )  # fmt: skip


def _variant(
    processor: str, entries: tuple[EntryPoint, ...], rows: Sequence[Row], homes: Sequence[Home]
) -> Variant:
    launched = {rows[k].unit for e in entries for k in e.kernels}
    held = {homes[n].unit for e in entries for n in e.arenas} | {u for e in entries for u in e.program.homes}
    return Variant(processor, entries, tuple(sorted((launched | held) - {0})))


def _arenas(program: HostProgram, homes: list[Home]) -> tuple[int, ...]:
    """Which arena of the session each of a program's is: the first free one of its home, or a new one."""
    free: dict[Home, list[int]] = {}
    for n, home in enumerate(homes):
        free.setdefault(home, []).append(n)
    found = []
    for _, unit, seen in zip(program.peak, program.homes, program.seen, strict=False):
        home = Home(unit, seen)
        if not free.get(home):
            free[home] = [len(homes)]
            homes.append(home)
        found.append(free[home].pop(0))
    return tuple(found)


def _bounds(programs: Sequence[HostProgram], arenas: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The bounds that are known of each arena of the session."""
    found: list[list[int]] = [[] for _ in range(count)]
    for program, own in zip(programs, arenas, strict=True):
        for n, most in zip(own, program.most, strict=False):
            found[n] += [] if most is None else [most]
    return found


# ---------------------------------------------------------------- state


def _states(programs: Sequence[HostProgram], variants: int) -> tuple[SessionState, ...]:
    """In the order of the entries and their inputs. programs: of all variants."""
    names = dict.fromkeys(s.name for p in programs for s in p.states if s.input is not None)
    count = len(programs) // variants
    parts = [programs[n * count : (n + 1) * count] for n in range(variants)]
    return tuple(
        _state(n, [[(p, s) for p in own for s in p.states if s.name == n] for own in parts]) for n in names
    )


def _state(name: str, variants: Sequence[Sequence[tuple[HostProgram, StatePair]]]) -> SessionState:
    """A state lies where its first reader in a variant wants it."""
    readers = [next((p, s.input) for p, s in own if s.input is not None) for own in variants]
    homes = tuple(p.homes[len(p.peak) + p.inputs.index(given)] for p, given in readers)
    uses = [use for own in variants for use in own]
    assert len({s.room for _, s in uses}) == 1, f"entries have different room in state '{name}'"
    written = [s.most for _, s in uses if s.output is not None]
    most = None if None in written else max(n for n in written if n is not None)
    first = readers[0][1]
    return SessionState(name, first.dtype, len(first.shape), homes, most, uses[0][1].room)


# ---------------------------------------------------------------- kernels


def _with_common_kernels(modules: Sequence[tuple[str, str, Module]]) -> tuple[list[Module], dict[str, str]]:
    """The modules with kernels of one name equal, and equal ones for one unit or processor of one name; and
    the processor of each kernel. modules: each with a label and the processor of its CPU's kernels."""
    if len(modules) == 1:
        _, processor, module = modules[0]
        return [module], dict.fromkeys(module.kernels, processor)
    named: dict[str, Kernel] = {}
    known: dict[tuple[Kernel, str, str], str] = {}
    processors: dict[str, str] = {}
    done = []
    for entry, processor, module in modules:
        units = {str(n.attr("kernel")): n.unit for n in module.calls()}
        units |= {c.kernel: units.get(k.name, CPU) for k in module.kernels.values() for c in k.hot}
        names: dict[str, str] = {}
        own_kernels = dict(module.kernels)
        for name in sorted(module.kernels, key=lambda n: bool(module.kernels[n].hot)):  # cases first
            kernel = _with_cases(module.kernels[name], names)
            unit = units.get(name, CPU)
            key = (kernel.with_(name="", origin=""), unit, processor if unit == CPU else "")
            new = fresh_name(f"{name}_{entry}", ChainMap(named, own_kernels)) if name in named else name
            names[name] = own = known.setdefault(key, new)  # which hashes all of the kernel
            if own not in named:
                named[own] = kernel.with_(name=own)
                processors[own] = processor
        done.append(_renamed(module, names, named))
    return done, processors


def _with_cases(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel with the new names of those that run in its place."""
    if not kernel.hot:
        return kernel
    return kernel.with_(hot=tuple(replace(c, kernel=names[c.kernel]) for c in kernel.hot))


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
