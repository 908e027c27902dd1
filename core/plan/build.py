"""A lowered, scheduled Module -> HostProgram: addresses for every buffer, checks, launches, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from smelt.core.dim import Dim, Facts, sym, to_dim
from smelt.core.ir.analysis.samples import sample_points
from smelt.core.ir.checked import FactScope
from smelt.core.ir.graph import Graph, Module, Ref, Symbol, TensorType
from smelt.core.ir.in_place import copying_parts
from smelt.core.ir.verify import most_of_binds
from smelt.core.ir.workspace import workspace
from smelt.core.machine import CPU
from smelt.core.plan.arena import Arena
from smelt.core.plan.bounds import most_bytes
from smelt.core.plan.emit import Emitter, Places, callee, evaluated_dims, scratch_name
from smelt.core.plan.inputs import InputBinder
from smelt.core.plan.items import Timeline, walk_items
from smelt.core.plan.lifetime import Storage, Storages, bytes_of, storages
from smelt.core.plan.program import (
    Address,
    Assign,
    CheckText,
    Draw,
    Entry,
    Evaluate,
    HostProgram,
    HostStep,
    Placement,
    ReadSymbol,
    Repeat,
    Reserve,
    StatePair,
    Tensor,
    WeightPlace,
    walk_steps,
    weights_span,
)
from smelt.core.plan.room import check_rooms, held_values, rooms
from smelt.core.plan.stages import ArenaStage, Home, assign, branches, loops
from smelt.core.plan.state import StateUse
from smelt.core.plan.weights import weight_places, weight_readers

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Common:
    """What the graphs of one library share: units by number (the CPU is the first), and where their weights
    are. spans: first byte and bytes of the part of each unit. bytes: of the file."""

    units: tuple[str, ...]
    weights: tuple[WeightPlace, ...]
    spans: Mapping[int, tuple[int, int]]
    bytes: int


def make_plan(
    module: Module,
    facts: Facts,
    states: Sequence[StateUse] = (),
    common: Common | None = None,
) -> HostProgram:
    """Plan the main graph and the regions of its control flow. Every node must be a view, call_kernel,
    call_library, transfer, check, bind, if or loop.

    What the input shapes size lies in arena 0, or in an arena for each unit that values name. Sizes that a
    run decides (bind, the shapes of what a branch or a loop leaves) have an arena for each position where
    they become known, reserved there: in a loop, once per round. Outside of loops positions share arenas
    (core/plan/stages.py). A carried value or a stack whose size changes has an arena of its own.
    states: those that are read are the last inputs, those that are written the last outputs.
    common: where the graph is one of several; None: it is alone.
    """
    return _Builder(module, facts, tuple(states), common).build()


@dataclass(frozen=True, slots=True)
class _Memory:
    """Where values lie. rows: what lies in arenas that values share. stages: what is put into those when.
    direct: number of the output that a storage is written into. alone: number of the arena that a value has
    for itself. homes: unit of each place. seen: places whose bytes the host sees as well. peak: bytes of each
    arena."""

    rows: Sequence[Storage]
    stages: Sequence[ArenaStage]
    direct: Mapping[Ref, int]
    alone: Mapping[Ref, int]
    homes: Mapping[tuple[str, int], int]
    seen: Set[tuple[str, int]]
    peak: tuple[Dim, ...]


@dataclass
class _Builder:
    """Collects the program of one module; used once."""

    module: Module
    facts: Facts
    states: tuple[StateUse, ...] = ()
    common: Common | None = None
    texts: list[CheckText] = field(default_factory=list)
    slots: dict[Dim, int] = field(default_factory=dict)
    symbol_slots: dict[str, int] = field(default_factory=dict)
    next_slot: int = 1

    def __post_init__(self) -> None:
        self.scope = FactScope(self.facts).enter(self.module.main)

    def build(self) -> HostProgram:
        """Memory first, then the launches, which name its addresses, then slots for what these mention."""
        graph = self.module.main
        check_rooms(graph, self.states)
        binder = InputBinder(self.module.symbols, self._check)
        binder.bind(graph.inputs, self._replacements() if self.states else ())
        for symbol in binder.bound:
            self._new_symbol(symbol)
        layout = storages(self.module, graph, self.scope)
        common = self.common or common_of([(self.module, layout.time)])[0]
        memory = self._memory(layout, common.units)
        places = self._places(memory, layout, common)
        emitter = Emitter(self.module, self.scope.facts, layout, places, self._check, binder.steps)
        emitter.emit()
        early, later = [*walk_steps(tuple(binder.steps))], [*walk_steps(tuple(emitter.run))]
        self._name(early)
        late = self._name(later)
        for step in later:
            self._slots_of(step, late)
        named = [pair for s in (*early, *later) if isinstance(s, Assign) for pair in s.symbols]
        return self._program(memory, places, common, binder.steps, emitter, named)

    def _program(
        self, memory: _Memory, places: Places, common: Common, bound: Sequence[HostStep], emitter: Emitter,
        named: Sequence[tuple[str, Dim]],
    ) -> HostProgram:
        """bound: the steps that read the inputs' shapes. named: the symbols that steps set, and to what."""
        graph = self.module.main
        made = [bytes_of(t.dtype, t.shape) for t in self._stored_types()]
        fed = [bytes_of(v.type.dtype, v.type.shape) for v in graph.inputs]
        most = most_bytes((*memory.peak, *fed, *made), self.scope.facts, self.module.symbols, named)
        inputs = tuple(Tensor(v.origin or v.name[1:], v.type.dtype, v.type.shape) for v in graph.inputs)
        outputs = tuple(
            Tensor(name, t.dtype, t.shape)
            for name, t in zip(graph.output_names, emitter.output_types, strict=True)
        )
        sizes = {s.root: s for s in memory.rows}
        return HostProgram(
            inputs=inputs,
            outputs=outputs,
            checks=tuple(self.texts),
            entries=tuple(Entry(k, n, unit) for k, n, unit in emitter.entries),
            libraries=tuple(emitter.libraries),
            plan=(*bound, *self._evaluations(memory.stages[0].plan)),
            run=tuple(emitter.run),
            slots=self.next_slot,
            symbol_slots=tuple(self.symbol_slots.items()),
            dim_slots=tuple(self.slots.items()),
            peak=memory.peak,
            most=most,
            weights=common.weights,
            weights_bytes=common.bytes,
            placements=tuple(
                Placement(r, a.number, a.offset, sizes[r].bytes, sizes[r].first, sizes[r].last)
                for r, a in places.roots.items()
            ),
            units=common.units[1:],
            homes=tuple(memory.homes.values()),
            seen=tuple(place in memory.seen for place in memory.homes),
            states=self._pairs(inputs, outputs, most, places.renewed),
            spans=dict(common.spans),
        )

    # ------------------------------------------------------------ state

    def _replacements(self) -> list[TensorType | None]:
        """For each state that is read, the type of the output that replaces it."""
        written = [s.name for s in self.states if s.output is not None]
        types = self.module.output_types()
        after = dict(zip(written, types[len(types) - len(written) :], strict=True))
        return [after.get(s.name) for s in self.states if s.input is not None]

    def _stored_types(self) -> list[TensorType]:
        """Of the outputs, as they lie in memory: a state with its room."""
        graph = self.module.main
        whole = held_values(graph)
        types = {v.name: v.type for n in graph.nodes for v in n.outputs}
        found = zip(graph.outputs, self.module.output_types(), strict=True)
        return [types[whole[ref].inputs[0]] if ref in whole else t for ref, t in found]

    def _renewed(
        self, layout: Storages, direct: Mapping[Ref, int], homes: Mapping[tuple[str, int], int]
    ) -> dict[int, int]:
        """Outputs by number that lie where the state lies that they replace, and the inputs that read it:
        what kernels write is behind all that is read, and one statement copies what is there."""
        graph = self.module.main
        read = [s.name for s in self.states if s.input is not None]
        written = [s.name for s in self.states if s.output is not None]
        reads = {name: n for n, name in enumerate(read, len(graph.inputs) - len(read))}
        made, whole = {v.name: n for n in graph.nodes for v in n.outputs}, held_values(graph)
        found = {}
        for o, name in enumerate(written, len(graph.outputs) - len(written)):
            put = made.get(layout.time.value(graph.outputs[o]))
            if graph.outputs[o] not in whole or put is None or put.op != "call_kernel" or name not in reads:
                continue
            i, copies = reads[name], copying_parts(self.module.kernels[str(put.attr("kernel"))]).values()
            source = [layout.root(put.inputs[x]) for x, y in copies if put.outputs[y] == put.output]
            there = homes["input", i] == homes["output", o]
            if source == [graph.inputs[i].name] and direct.get(layout.root(put.output.name)) == o and there:
                found[o] = i
        return found

    def _pairs(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], most: Sequence[int | None],
        renewed: Mapping[int, int],
    ) -> tuple[StatePair, ...]:
        given = rooms(self.module.main)
        types = self._stored_types()
        i, o = (
            len(side) - sum(getattr(s, name) is not None for s in self.states)
            for side, name in ((inputs, "input"), (outputs, "output"))
        )
        pairs = []
        for s in self.states:
            old = inputs[i] if s.input is not None else None
            new, bound = (outputs[o], most[o - len(outputs)]) if s.output is not None else (None, None)
            room = None if old is None else given.get(self.module.main.inputs[i].name)
            lies = old is not None and new is not None and renewed.get(o) == i
            size = to_dim(0) if new is None else bytes_of(types[o].dtype, types[o].shape)
            if old is not None and not lies:
                size += bytes_of(old.dtype, old.shape if room is None else room.output.type.shape)
            axis = None if room is None else (int(room.attr("axis")), to_dim(room.attr("rows")).const)
            pairs.append(StatePair(s.name, old, new, self.facts.simplify(size), bound, axis, lies))
            i, o = i + (old is not None), o + (new is not None)
        return tuple(pairs)

    def _check(self, text: str) -> int:
        self.texts.append(CheckText(text))
        return len(self.texts) - 1

    # ------------------------------------------------------------ memory

    def _memory(self, layout: Storages, units: Sequence[str]) -> _Memory:
        """Arenas for all that is not written straight into an output, and the unit of every place."""
        graph = self.module.main
        direct = self._direct_outputs(graph, layout)
        scratch, scratch_units = self._scratch(layout)
        rows = [*(s for s in layout.rows if s.root not in direct), *scratch]
        where = {**layout.units, **scratch_units}
        at = {r: Home(units.index(u or CPU), r in layout.seen) for r, u in where.items()}
        inputs = {v.name: units.index(v.unit or CPU) for v in graph.inputs}
        at_unit = {**{r: home.unit for r, home in at.items()}, **inputs}
        # units are those of all modules that are linked: one that this module does not name is not needed
        stages = self._place(rows, at, layout, min(set(at_unit.values()) - {0}, default=0))
        shared = {s.arena: s for s in stages}  # the last of each, by when all is in it
        alone = {root: len(shared) + k for k, root in enumerate(layout.alone)}
        outputs = _output_units(graph, layout, at_unit, direct, units)
        homes = {
            **{("arena", k): s.home.unit for k, s in shared.items()},
            **{("arena", k): at_unit[root] for root, k in alone.items()},
            **{("input", n): unit for n, unit in enumerate(inputs.values())},
            **{("output", n): unit for n, unit in enumerate(outputs)},
        }
        seen = {
            *(("arena", k) for k, s in shared.items() if s.home.seen),
            *(("arena", k) for root, k in alone.items() if root in layout.seen),
            *(("input", n) for n, name in enumerate(inputs) if name in layout.seen),
            *(("output", n) for root, n in direct.items() if root in layout.seen),
        }
        peak = (*(s.plan.bytes for s in shared.values()), *layout.alone.values())
        return _Memory(rows, stages, direct, alone, homes, seen, peak)

    def _places(self, memory: _Memory, layout: Storages, common: Common) -> Places:
        """The addresses that launches ask for."""
        stages = memory.stages
        return Places(
            {r: Address("arena", s.arena, s.plan.offsets[r]) for s in stages for r in s.plan.offsets},
            {(w.ref, w.layout): w for w in common.weights},
            memory.direct,
            {v.name: n for n, v in enumerate(self.module.main.inputs)},
            [(s.at, Reserve(s.arena, s.plan.own, s.keep)) for s in stages if s.arena],
            memory.alone,
            common.units,
            memory.homes,
            {u: common.spans[u][0] for u in range(1, len(common.units))},
            self._renewed(layout, memory.direct, memory.homes),
        )

    def _scratch(self, layout: Storages) -> tuple[list[Storage], dict[Ref, str]]:
        """Storages for what kernels keep while they run, and the units of these."""
        rows, units = [], {}
        for item in walk_items(layout.time.items):
            if item.node.op != "call_kernel":
                continue
            kernel, env = callee(self.module, item.node)
            for b in workspace(kernel):
                size = self.scope.facts.simplify(bytes_of(b.dtype, tuple(d.substitute(env) for d in b.shape)))
                name = scratch_name(item.start, b.name)
                rows.append(Storage(name, size, item.start, item.start))
                units[name] = item.node.unit
        return rows, units

    def _place(
        self, rows: Sequence[Storage], homes: Mapping[Ref, Home], layout: Storages, first: int
    ) -> list[ArenaStage]:
        """One for each home and each position where sizes become known, -1 before anything runs. One of those
        comes first, at the unit `first` where there is nothing to put into it."""
        known = [self._known(s) for s in self.module.symbols] if self.scope.learned else self.module.symbols
        samples = sample_points(known, most_of_binds(self.module))
        found: dict[tuple[int, Home], list[Storage]] = {}
        for s in rows:
            found.setdefault((layout.time.stage(s.bytes), homes[s.root]), []).append(s)
        if not any(at < 0 for at, _ in found):
            found[-1, Home(first)] = []
        parts = [(*key, own) for key, own in sorted(found.items())]
        items = layout.time.items
        return assign(parts, loops(items), self.scope.facts, samples, branches(items))

    def _known(self, s: Symbol) -> Symbol:
        """The symbol in the range that checks leave it."""
        low, high = self.scope.facts.bounds(sym(s.name))
        return s if low is None or (high is not None and high < low) else replace(s, low=low, high=high)

    def _direct_outputs(self, graph: Graph, layout: Storages) -> dict[Ref, int]:
        """Storages that are written straight into output memory: root -> output number. The output's shape
        must be known when the storage is first written."""
        owned = {s.root: s for s in layout.rows}
        types = {v.name: v.type for n in graph.nodes for v in n.outputs}
        found: dict[Ref, int] = {}
        for n, ref in enumerate(graph.outputs):
            root = layout.root(ref)
            if root not in owned or root in found:
                continue
            if root in layout.seen and layout.lies[layout.time.value(ref)] == CPU:
                continue  # its bytes are good as the host sees them
            known = layout.time.stage(*types[ref].shape, owned[root].bytes)
            if known < owned[root].first and known < self._made_at(root, layout):
                found[root] = n
        return found

    def _made_at(self, root: Ref, layout: Storages) -> int:
        """Where the node of the main graph starts that makes a storage (a branch's result whose size is
        known only after it is made in its arms)."""
        for item in layout.time.items:
            if any(v.name == root for v in item.node.outputs):
                return item.start
        return -1

    # ------------------------------------------------------------ slots

    def _new_symbol(self, symbol: str) -> None:
        if symbol not in self.symbol_slots:
            self.symbol_slots[symbol] = self.next_slot
            self.next_slot += 1

    def _name(self, steps: Iterable[HostStep]) -> set[str]:
        """A slot for each symbol that the steps set; those that had none."""
        before = set(self.symbol_slots)
        for s in steps:
            if isinstance(s, ReadSymbol | Draw):
                self._new_symbol(s.symbol)
            elif isinstance(s, Assign):
                for name, _ in s.symbols:
                    self._new_symbol(name)
            elif isinstance(s, Repeat):
                self._new_symbol(s.counter)
        return set(self.symbol_slots) - before

    def _slots_of(self, step: HostStep, late: set[str]) -> None:
        """Give every Dim that a step mentions, that is no constant and that input shapes decide, a slot."""
        for d in evaluated_dims(step):
            known = d.is_const or d in self.slots or str(d) in self.symbol_slots
            if not known and not d.symbols & late:
                self.slots[d] = self.next_slot
                self.next_slot += 1

    def _evaluations(self, arena: Arena) -> list[HostStep]:
        """Slot 0 is the arena's size; the others follow in the order they were asked for."""
        return [Evaluate(0, arena.bytes), *(Evaluate(slot, d) for d, slot in self.slots.items())]


def common_of(graphs: Sequence[tuple[Module, Timeline]]) -> list[Common]:
    """What graphs of one library share, as each of them sees it: units are in the order of the nodes."""
    used = (v.unit for m, _ in graphs for n in m.main.walk() for v in n.outputs)
    units = tuple(dict.fromkeys((CPU, *filter(None, used))))
    found = weight_places([(m, weight_readers(m, m.main, time, units)) for m, time in graphs])
    every = [w for places in found for w in places]
    spans = {u: weights_span(every, u) for u in range(1, len(units))}
    total = max((w.offset + w.bytes for w in every), default=0)
    return [Common(units, places, spans, -(-total // PAGE) * PAGE) for places in found]


def _output_units(
    graph: Graph, layout: Storages, at_unit: Mapping[Ref, int], direct: Mapping[Ref, int],
    units: Sequence[str],
) -> Iterator[int]:
    """Where each output lies: as what it is written to straight, else as the value that it is; at the CPU if
    that is a weight."""
    for n, ref in enumerate(graph.outputs):
        root, lies = layout.root(ref), layout.lies.get(layout.time.value(ref), CPU) or CPU
        yield at_unit[root] if direct.get(root) == n else units.index(lies)


__all__ = ["Common", "common_of", "make_plan"]
