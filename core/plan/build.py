"""A lowered, scheduled Module -> HostProgram: addresses for every buffer, checks, launches, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.core.dim import Dim, Facts
from smelt.core.ir.graph import Graph, Module, Ref
from smelt.core.plan.arena import ALIGNMENT, Arena, place, sample_points
from smelt.core.plan.emit import Emitter, Places, callee, dims_of, scratch_name
from smelt.core.plan.inputs import InputBinder
from smelt.core.plan.items import walk_items
from smelt.core.plan.lifetime import Storage, Storages, bytes_of, storages
from smelt.core.plan.program import (
    Address,
    Assign,
    CheckText,
    Draw,
    Entry,
    Evaluate,
    HostProgram,
    Placement,
    ReadSymbol,
    Repeat,
    Step,
    Tensor,
    WeightPlace,
    walk_steps,
)

PAGE = 4096


def make_plan(module: Module, facts: Facts, in_place: bool = True) -> HostProgram:
    """Plan the main graph and the regions of its control flow. Every node must be a view, call_kernel,
    call_library, check, bind, if or loop.

    What the input shapes size lies in arena 0. Sizes that a run decides (bind, the shapes of what a branch
    or a loop leaves) have an arena for each position where they become known, reserved there: in a loop,
    once per round. A carried value or a stack whose size changes has an arena of its own.
    """
    return _Builder(module, facts, in_place).build()


@dataclass
class _Builder:
    """Collects the program of one module; used once."""

    module: Module
    facts: Facts
    in_place: bool
    texts: list[CheckText] = field(default_factory=list)
    slots: dict[Dim, int] = field(default_factory=dict)
    symbol_slots: dict[str, int] = field(default_factory=dict)
    next_slot: int = 1

    def build(self) -> HostProgram:
        graph = self.module.main
        binder = InputBinder(self.module.symbols, self._check)
        binder.bind(graph.inputs)
        for symbol in binder.bound:
            self._new_symbol(symbol)
        layout = storages(self.module, graph, self.facts, self.in_place)
        direct = self._direct_outputs(graph, layout)
        rows = [*(s for s in layout.rows if s.root not in direct), *self._scratch(layout)]
        stages = sorted({-1, *(layout.time.stage(s.bytes) for s in rows)})
        arenas = self._place(rows, stages, layout)
        roots = {
            root: Address("arena", k, arena.offsets[root])
            for k, arena in enumerate(arenas)
            for root in arena.offsets
        }
        alone = {root: len(arenas) + k for k, root in enumerate(layout.alone)}
        weights = self._weights(graph)
        places = Places(
            roots,
            {w.ref: w.offset for w in weights},
            direct,
            {v.name: n for n, v in enumerate(graph.inputs)},
            {at: (k, arenas[k].bytes) for k, at in enumerate(stages) if at >= 0},
            alone,
        )
        emitter = Emitter(self.module, self.facts, layout, places, self._check, binder.steps)
        emitter.emit()
        run = tuple(emitter.run)
        for step in binder.steps:
            for name, _ in step.symbols if isinstance(step, Assign) else ():
                self._new_symbol(name)
        program_late = self._late_symbols(run)
        for step in walk_steps(run):
            self._slots_of(step, program_late)
        total = weights[-1].offset + weights[-1].bytes if weights else 0
        sizes = {s.root: s for s in rows}
        return HostProgram(
            inputs=tuple(Tensor(v.origin or v.name[1:], v.type.dtype, v.type.shape) for v in graph.inputs),
            outputs=tuple(
                Tensor(name, t.dtype, t.shape)
                for name, t in zip(graph.output_names, emitter.output_types, strict=True)
            ),
            checks=tuple(self.texts),
            entries=tuple(Entry(k, n) for k, n in emitter.entries),
            libraries=tuple(emitter.libraries),
            plan=(*binder.steps, *self._evaluations(arenas[0])),
            run=run,
            slots=self.next_slot,
            symbol_slots=tuple(self.symbol_slots.items()),
            dim_slots=tuple(self.slots.items()),
            peak=(*(a.bytes for a in arenas), *layout.alone.values()),
            weights=weights,
            weights_bytes=-(-total // PAGE) * PAGE,
            placements=tuple(
                Placement(r, a.number, a.offset, sizes[r].bytes, sizes[r].first, sizes[r].last)
                for r, a in roots.items()
            ),
        )

    def _check(self, text: str) -> int:
        self.texts.append(CheckText(text))
        return len(self.texts) - 1

    # ------------------------------------------------------------ memory

    def _scratch(self, layout: Storages) -> list[Storage]:
        rows = []
        for item in walk_items(layout.time.items):
            if item.node.op != "call_kernel":
                continue
            kernel, env = callee(self.module, item.node)
            for b in kernel.scratch:
                size = self.facts.simplify(bytes_of(b.dtype, tuple(d.substitute(env) for d in b.shape)))
                rows.append(Storage(scratch_name(item.start, b.name), size, item.start, item.start))
        return rows

    def _place(self, rows: Sequence[Storage], stages: Sequence[int], layout: Storages) -> list[Arena]:
        """One arena per position where sizes become known; the first one is known before anything runs."""
        samples = sample_points(self.module.symbols)
        time = layout.time
        return [place([s for s in rows if time.stage(s.bytes) == at], self.facts, samples) for at in stages]

    def _weights(self, graph: Graph) -> tuple[WeightPlace, ...]:
        used = dict.fromkeys(r for n in graph.walk() for r in n.inputs if r.startswith("@"))
        regions = (g for n in graph.walk() for g in n.regions)
        used.update(dict.fromkeys(r for g in (*regions, graph) for r in g.outputs if r.startswith("@")))
        offset, rows = 0, []
        for ref in used:
            size = self.module.weights[ref].bytes
            rows.append(WeightPlace(ref, offset, size))
            offset = -(-(offset + size) // ALIGNMENT) * ALIGNMENT
        return tuple(rows)

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
            known = layout.time.stage(*types[ref].shape, owned[root].bytes)
            if known < owned[root].first and known < self._made_at(root, layout):
                found[root] = n
        return found

    def _made_at(self, root: Ref, layout: Storages) -> int:
        """Where the node of the main graph starts that makes a storage (a branch's result whose size is
        known only behind it is made in its arms)."""
        for item in layout.time.items:
            if any(v.name == root for v in item.node.outputs):
                return item.start
        return -1

    # ------------------------------------------------------------ slots

    def _new_symbol(self, symbol: str) -> None:
        if symbol not in self.symbol_slots:
            self.symbol_slots[symbol] = self.next_slot
            self.next_slot += 1

    def _late_symbols(self, run: tuple[Step, ...]) -> set[str]:
        """Symbols that the run phase sets, each with a slot from here on."""
        before = set(self.symbol_slots)
        for s in walk_steps(run):
            if isinstance(s, ReadSymbol | Draw):
                self._new_symbol(s.symbol)
            elif isinstance(s, Assign):
                for name, _ in s.symbols:
                    self._new_symbol(name)
            elif isinstance(s, Repeat):
                self._new_symbol(s.counter)
        return set(self.symbol_slots) - before

    def _slots_of(self, step: Step, late: set[str]) -> None:
        """Give every Dim that a step mentions, that is no constant and that input shapes decide, a slot."""
        for d in dims_of(step):
            known = d.is_const or d in self.slots or str(d) in self.symbol_slots
            if not known and not d.symbols & late:
                self.slots[d] = self.next_slot
                self.next_slot += 1

    def _evaluations(self, arena: Arena) -> list[Step]:
        """Slot 0 is the arena's size; the others follow in the order they were asked for."""
        return [Evaluate(0, arena.bytes), *(Evaluate(slot, d) for d, slot in self.slots.items())]


__all__ = ["make_plan"]
