"""A lowered, scheduled Module -> HostProgram: addresses for every buffer, checks, launches, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, Facts, ceildiv, to_dim
from smelt.core.ir.graph import Graph, Module, Node, Ref, TensorType
from smelt.core.ir.kernel import Kernel, Loop, Stmt, Tiles
from smelt.core.plan.arena import ALIGNMENT, Arena, place, sample_points
from smelt.core.plan.lifetime import Storage, Storages, bytes_of, is_view, storages
from smelt.core.plan.program import (
    Address,
    BindInput,
    CallLibrary,
    Check,
    CheckInput,
    CheckText,
    Copy,
    Entry,
    Evaluate,
    HostProgram,
    Launch,
    OpenOutput,
    Placement,
    ReadSymbol,
    Reserve,
    Step,
    Tensor,
    WeightPlace,
)

ZERO = to_dim(0)
PAGE = 4096


def make_plan(module: Module, facts: Facts, in_place: bool = True) -> HostProgram:
    """Plan the main graph. Every node must be a view, call_kernel, call_library, check or bind.

    Raises SmeltError(kind='unsupported') for control flow, which has no host code yet.
    """
    return _Builder(module, facts, in_place).build()


def group_count(statement: Stmt) -> Dim:
    """How many groups a top-level statement has: the product over directly nested group nodes."""
    total = to_dim(1)
    while isinstance(statement, Loop | Tiles) and statement.level == "group":
        if isinstance(statement, Loop):
            total = total * statement.extent
        else:
            total = total * ceildiv(statement.extent, statement.sizes[0])
        if len(statement.body) != 1 or statement.buffers:
            break
        statement = statement.body[0]
    return total


@dataclass
class _Builder:
    """Collects the program of one graph; used once."""

    module: Module
    facts: Facts
    in_place: bool
    texts: list[CheckText] = field(default_factory=list)
    plan: list[Step] = field(default_factory=list)
    run: list[Step] = field(default_factory=list)
    entries: dict[tuple[str, int], int] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    slots: dict[Dim, int] = field(default_factory=dict)
    symbol_slots: dict[str, int] = field(default_factory=dict)
    stage_of: dict[str, int] = field(default_factory=dict)
    next_slot: int = 1
    stage: int = 0

    # ------------------------------------------------------------ the whole

    def build(self) -> HostProgram:
        graph = self.module.main
        self._bind_inputs(graph)
        self._stages(graph)
        shared = storages(self.module, graph, self.facts, self.in_place)
        scratch = self._scratch(graph)
        rows = [s for s in shared.rows if s.root not in self._direct_outputs(graph, shared)]
        arenas = self._place([*rows, *scratch])
        places = {
            root: Address("arena", k, arena.offsets[root])
            for k, arena in enumerate(arenas)
            for root in arena.offsets
        }
        weights = self._weights(graph)
        self._emit_nodes(graph, shared, places, {w.ref: w.offset for w in weights}, arenas)
        total = weights[-1].offset + weights[-1].bytes if weights else 0
        sizes = {s.root: s for s in (*rows, *scratch)}
        return HostProgram(
            inputs=tuple(Tensor(v.origin or v.name[1:], v.type.dtype, v.type.shape) for v in graph.inputs),
            outputs=tuple(
                Tensor(name, t.dtype, t.shape)
                for name, t in zip(graph.output_names, self._output_types(graph), strict=True)
            ),
            checks=tuple(self.texts),
            entries=tuple(Entry(k, n) for k, n in self.entries),
            libraries=tuple(self.libraries),
            plan=(*self.plan, *self._evaluations(0, arenas[0])),
            run=tuple(self.run),
            slots=self.next_slot,
            symbol_slots=tuple(self.symbol_slots.items()),
            dim_slots=tuple(self.slots.items()),
            peak=tuple(a.bytes for a in arenas),
            weights=weights,
            weights_bytes=-(-total // PAGE) * PAGE,
            placements=tuple(
                Placement(r, a.number, a.offset, sizes[r].bytes, sizes[r].first, sizes[r].last)
                for r, a in places.items()
            ),
        )

    # ------------------------------------------------------------ symbols and checks

    def _check(self, text: str, kind: str = "shape") -> int:
        self.texts.append(CheckText(text, kind))
        return len(self.texts) - 1

    def _bind_inputs(self, graph: Graph) -> None:
        """Bind each symbol at the first axis that gives it away; check every other axis against it."""
        axes = [(n, a, d) for n, v in enumerate(graph.inputs) for a, d in enumerate(v.type.shape)]
        names = [v.origin or v.name[1:] for v in graph.inputs]
        waiting, bound = list(axes), self.symbol_slots
        progress = True
        while progress:
            progress = False
            for row in list(waiting):
                n, a, d = row
                free = sorted(d.symbols - bound.keys())
                if len(free) > 1:
                    continue
                where = f"input '{names[n]}' axis {a}"
                if not free:
                    text = f"{where}: expected {{want}}{_formula(d)}, got {{got}}"
                    self.plan.append(CheckInput(n, a, d, self._check(text)))
                elif not self._bind_axis(n, a, d, free[0], where):
                    continue
                waiting.remove(row)
                progress = True
        if waiting:
            n, a, d = waiting[0]
            raise SmeltError(
                f"input '{names[n]}' axis {a}: its extent {d} does not determine its symbols",
                kind="unsupported",
                hint="fix or name one of them with --dim",
            )

    def _bind_axis(self, n: int, a: int, d: Dim, symbol: str, where: str) -> bool:
        parts = d.linear(symbol)
        if parts is None or parts[0].const_or_none is None or parts[0].const <= 0:
            return False
        factor, rest = parts[0].const, parts[1]
        text = f"{where}: expected {d} for some whole {symbol}, got {{got}}"
        self.plan.append(BindInput(symbol, n, a, factor, rest, self._check(text)))
        self._new_symbol(symbol, 0)
        for s in self.module.symbols:
            if s.name == symbol:
                self._check_range(symbol, s.low, s.high, s.divisor, where)
        return True

    def _check_range(self, symbol: str, low: int, high: int | None, divisor: int, where: str) -> None:
        from smelt.core.dim import sym

        v = sym(symbol)
        span = f"{low}..{'*' if high is None else high}"
        hint = "compile with another --dim range to allow it"
        if low > 0:
            text = f"{where}: {symbol} is {{want}}, below its declared range {span}; {hint}"
            self.plan.append(Check(to_dim(low), "<=", v, self._check(text)))
        if high is not None:
            text = f"{where}: {symbol} is {{got}}, above its declared range {span}; {hint}"
            self.plan.append(Check(v, "<=", to_dim(high), self._check(text)))
        if divisor > 1:
            text = f"{where}: {symbol} is {{want}}, not a multiple of {divisor}"
            self.plan.append(Check(to_dim(divisor), "divides", v, self._check(text)))

    def _new_symbol(self, symbol: str, stage: int) -> None:
        self.symbol_slots[symbol] = self.next_slot
        self.stage_of[symbol] = stage
        self.next_slot += 1

    def _stages(self, graph: Graph) -> None:
        """Each bind node that follows a launch starts a stage; symbols know theirs."""
        for node in graph.nodes:
            if node.op in ("if", "loop"):
                raise SmeltError(
                    f"control flow ({node.op}) has no host code yet", kind="unsupported", node=node.origin
                )
            if node.op == "bind":
                self.stage += 1
                self.stage_of[str(node.attr("symbol"))] = self.stage
        self.stage = 0

    def _stage(self, *dims: Dim) -> int:
        """The first stage at which all symbols of these Dims are known."""
        return max((self.stage_of.get(s, 0) for d in dims for s in d.symbols), default=0)

    # ------------------------------------------------------------ memory

    def _scratch(self, graph: Graph) -> list[Storage]:
        rows = []
        for position, node in enumerate(graph.nodes):
            if node.op != "call_kernel":
                continue
            kernel, env = self._callee(node)
            for b in kernel.scratch:
                size = bytes_of(b.dtype, tuple(d.substitute(env) for d in b.shape))
                rows.append(
                    Storage(_scratch_name(position, b.name), self.facts.simplify(size), position, position)
                )
        return rows

    def _callee(self, node: Node) -> tuple[Kernel, Mapping[str, Dim]]:
        kernel = self.module.kernels[str(node.attr("kernel"))]
        values = node.attr("dims", ())
        assert len(values) == len(kernel.dims), node
        return kernel, {p.name: v for p, v in zip(kernel.dims, values, strict=True)}

    def _place(self, rows: Sequence[Storage]) -> list[Arena]:
        """One arena per stage: what a stage's symbols size lives in that stage's arena."""
        stages = max([self._stage(s.bytes) for s in rows], default=0)
        samples = sample_points(self.module.symbols)
        return [
            place([s for s in rows if self._stage(s.bytes) == k], self.facts, samples)
            for k in range(stages + 1)
        ]

    def _weights(self, graph: Graph) -> tuple[WeightPlace, ...]:
        used = dict.fromkeys(r for n in graph.nodes for r in n.inputs if r.startswith("@"))
        used.update(dict.fromkeys(r for r in graph.outputs if r.startswith("@")))
        offset, rows = 0, []
        for ref in used:
            size = self.module.weights[ref].bytes
            rows.append(WeightPlace(ref, offset, size))
            offset = -(-(offset + size) // ALIGNMENT) * ALIGNMENT
        return tuple(rows)

    def _direct_outputs(self, graph: Graph, shared: Storages) -> dict[Ref, int]:
        """Storages that are written straight into output memory: root -> output number."""
        owned = {s.root for s in shared.rows}
        found: dict[Ref, int] = {}
        for n, ref in enumerate(graph.outputs):
            root = shared.of.get(ref, ref)
            if root in owned and root not in found:
                found[root] = n
        return found

    # ------------------------------------------------------------ steps

    def _emit_nodes(
        self,
        graph: Graph,
        shared: Storages,
        places: Mapping[str, Address],
        weights: Mapping[Ref, int],
        arenas: Sequence[Arena],
    ) -> None:
        direct = self._direct_outputs(graph, shared)
        numbers = {v.name: n for n, v in enumerate(graph.inputs)}
        types = self._output_types(graph)
        opened: set[int] = set()

        def address(ref: Ref) -> Address:
            root = shared.of.get(ref, ref)
            if root in weights:
                return Address("weights", 0, to_dim(weights[root]))
            if root in numbers:
                return Address("input", numbers[root], ZERO)
            if root in direct:
                return Address("output", direct[root], ZERO)
            return places[root]

        def open_output(n: int) -> None:
            if n not in opened:
                opened.add(n)
                self.run.append(OpenOutput(n, types[n].shape))

        for position, node in enumerate(graph.nodes):
            if is_view(node):
                continue
            for v in node.outputs:
                root = shared.of.get(v.name, v.name)
                if root in direct:
                    open_output(direct[root])
            self._emit_node(node, position, address, places, arenas)
        for n, ref in enumerate(graph.outputs):
            open_output(n)
            source = address(ref)
            if source != Address("output", n, ZERO):
                size = bytes_of(types[n].dtype, types[n].shape)
                self.run.append(Copy(Address("output", n, ZERO), source, size))
        for step in self.run:
            self._slots_of(step)

    def _emit_node(
        self,
        node: Node,
        position: int,
        address: object,
        places: Mapping[str, Address],
        arenas: Sequence[Arena],
    ) -> None:
        where = address
        assert callable(where)
        if node.op == "call_kernel":
            kernel, env = self._callee(node)
            buffers = [where(r) for r in node.inputs if r] + [where(v.name) for v in node.outputs]
            buffers += [places[_scratch_name(position, b.name)] for b in kernel.scratch]
            assert len(buffers) == len(kernel.inputs) + len(kernel.outputs) + len(kernel.scratch), node
            for n, statement in enumerate(kernel.body):
                entry = self.entries.setdefault((kernel.name, n), len(self.entries))
                groups = self.facts.simplify(group_count(statement).substitute(env))
                dims = tuple(self.facts.simplify(to_dim(d)) for d in node.attr("dims", ()))
                self.run.append(Launch(entry, tuple(buffers), dims, groups))
        elif node.op == "call_library":
            name = str(node.attr("library"))
            if name not in self.libraries:
                self.libraries.append(name)
            buffers = [where(r) for r in node.inputs if r] + [where(v.name) for v in node.outputs]
            self.run.append(
                CallLibrary(self.libraries.index(name), tuple(buffers), tuple(node.attr("dims", ())))
            )
        elif node.op == "check":
            self._emit_check(node)
        elif node.op == "bind":
            self._emit_bind(node, where, arenas)
        else:
            raise SmeltError(f"op '{node.op}' was not lowered", kind="internal", node=node.origin)

    def _emit_check(self, node: Node) -> None:
        left, right = to_dim(node.attr("left")), to_dim(node.attr("right"))
        relation = node.attr("relation")
        assert relation in ("==", "<=", "divides"), node
        step = Check(left, relation, right, self._check(str(node.attr("text"))))
        (self.plan if self._stage(left, right) == 0 else self.run).append(step)

    def _emit_bind(self, node: Node, where: object, arenas: Sequence[Arena]) -> None:
        assert callable(where)
        symbol, flat = str(node.attr("symbol")), int(node.attr("index", 0))
        dtype = self._type_of(node.inputs[0]).dtype
        at: Address = where(node.inputs[0])
        at = Address(at.base, at.number, at.offset + flat * dtype.bytes)
        high = node.attr("high")
        self.run.append(
            ReadSymbol(symbol, at, dtype, to_dim(node.attr("low", 0)), None if high is None else to_dim(high))
        )
        self._new_symbol(symbol, self.stage_of[symbol])
        stage = self.stage_of[symbol]
        if stage < len(arenas) and arenas[stage].bytes.const_or_none != 0:
            slot = self._slot(arenas[stage].bytes)
            self.run.append(Evaluate(slot, arenas[stage].bytes))
            self.run.append(Reserve(stage, slot))

    # ------------------------------------------------------------ slots

    def _slot(self, d: Dim) -> int:
        if d not in self.slots:
            self.slots[d] = self.next_slot
            self.next_slot += 1
        return self.slots[d]

    def _slots_of(self, step: Step) -> None:
        """Give every Dim that a launch-phase step mentions and that is no constant a slot."""
        for d in _dims_of(step):
            if not d.is_const and self._stage(d) == 0 and str(d) not in self.symbol_slots:
                self._slot(d)

    def _evaluations(self, stage: int, arena: Arena) -> list[Step]:
        """Slot 0 is the arena's size; the others follow in the order they were asked for."""
        late = [d for d in self.slots if self._stage(d) > stage]
        return [
            Evaluate(0, arena.bytes),
            *(Evaluate(slot, d) for d, slot in self.slots.items() if d not in late),
        ]

    def _type_of(self, ref: Ref) -> TensorType:
        if ref.startswith("@"):
            return self.module.weights[ref].type
        return self.module.main.values()[ref].type

    def _output_types(self, graph: Graph) -> list[TensorType]:
        values = graph.values()
        return [self.module.weights[r].type if r.startswith("@") else values[r].type for r in graph.outputs]


def _scratch_name(position: int, name: str) -> str:
    return f"scratch.{position}.{name}"


def _formula(d: Dim) -> str:
    return "" if d.is_const else f" ({d})"


def _dims_of(step: Step) -> list[Dim]:
    """The Dims that a launch-phase step evaluates."""
    if isinstance(step, Launch | CallLibrary):
        groups = [step.groups] if isinstance(step, Launch) else []
        return [*(b.offset for b in step.buffers), *step.dims, *groups]
    if isinstance(step, OpenOutput):
        return list(step.shape)
    if isinstance(step, Copy):
        return [step.to.offset, step.source.offset, step.bytes]
    if isinstance(step, ReadSymbol):
        return [step.at.offset, step.low, *([] if step.high is None else [step.high])]
    return []


__all__ = ["group_count", "make_plan"]
