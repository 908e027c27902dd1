"""Items with their storages placed -> the steps of the run phase; branches and loops hold steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.dim import ONE, ZERO, Dim, Facts, dmin, sym, to_dim
from smelt.core.dtype import DType, bool_, i64
from smelt.core.ir.graph import Graph, Module, Node, Ref, TensorType
from smelt.core.ir.groups import group_count
from smelt.core.ir.hot import held_in, shares
from smelt.core.ir.idle import MOST_UNSTORED, busy, unstored
from smelt.core.ir.in_place import copying_parts
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.layout import Layout
from smelt.core.ir.workspace import workspace
from smelt.core.machine import CPU
from smelt.core.plan.items import Arm, Item, is_size_name, new_symbols
from smelt.core.plan.lifetime import Storages, bytes_of
from smelt.core.plan.program import (
    Address,
    Assign,
    Branch,
    CallLibrary,
    Check,
    Copy,
    Draw,
    HostStep,
    Launch,
    OpenOutput,
    OpenWeights,
    ReadSymbol,
    Repeat,
    Reserve,
    WeightPlace,
    Write,
)
from smelt.core.plan.weights import layouts


@dataclass(frozen=True)
class Places:
    """Where everything lies. roots: of storages in arenas. weights: by layout too. direct: storages that are
    output memory, by root. inputs: numbers. stages: (position, what is reserved there); position
    -1: before anything runs. alone: the arenas of storages that have one to themselves. units: names by
    number. homes: at which unit each arena, input and output lies. first_weights: where the part of the
    weights' file starts that a unit besides the CPU has. renewed: outputs, and the inputs that they lie
    where they are."""

    roots: Mapping[Ref, Address]
    weights: Mapping[tuple[Ref, Layout | None], WeightPlace]
    direct: Mapping[Ref, int]
    inputs: Mapping[Ref, int]
    stages: Sequence[tuple[int, Reserve]]
    alone: Mapping[Ref, int]
    units: Sequence[str]
    homes: Mapping[tuple[str, int], int]
    first_weights: Mapping[int, int]
    renewed: Mapping[int, int]


def scratch_name(position: int, name: str) -> str:
    """The storage of a kernel's scratch buffer at a call."""
    return f"scratch.{position}.{name}"


Launches: TypeAlias = "tuple[tuple[Dim, ...], Sequence[tuple[Dim, Sequence[Dim]]]]"
"""Dims of a call, and (groups, extents that are stored nowhere) of each statement."""


@dataclass
class Emitter:
    """Collects the steps of one graph; used once. check: text -> number of a new check.
    plan: checks that need nothing but input shapes go there."""

    module: Module
    facts: Facts
    layout: Storages
    places: Places
    check: Callable[[str], int]
    plan: list[HostStep]
    run: list[HostStep] = field(default_factory=list)
    entries: dict[tuple[str, int, int], int] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)
    depth: int = 0
    sites: int = 0
    _sizes: dict[tuple[str, tuple[Dim, ...], Dim | None], Launches] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.time = self.layout.time
        self.types = _types(self.module.main)
        self.output_types = [self.type_of(r) for r in self._outputs()]

    def _outputs(self) -> Sequence[Ref]:
        return self.module.main.outputs

    # ------------------------------------------------------------ the whole

    def emit(self) -> None:
        """All steps of the main graph."""
        self.reserve_stage(-1)
        read = {unit for w in self.places.weights.values() for unit in w.units}
        self.run += [OpenWeights(unit) for unit in sorted(read - {self.places.homes["arena", 0]})]
        self.items(self.time.items)
        for n, ref in enumerate(self._outputs()):
            self.open_output(n)
            self.copy(Address("output", n, ZERO), ref)

    def items(self, items: tuple[Item, ...]) -> None:
        waiting: list[int] = []  # positions of binds: a size is checked before memory of it is reserved
        for item in items:
            node = item.node
            if node.op != "check":
                self._reserve(waiting)
            if node.op == "bind" and not node.attr("draw", False):
                waiting.append(item.start)
            for v in node.outputs:
                root = self.layout.root(v.name)
                if root in self.places.direct:
                    self.open_output(self.places.direct[root])
            rule = _RULES.get(node.op)
            if rule is None:
                raise SmeltError(f"op '{node.op}' was not lowered", kind="internal", node=node.origin)
            rule(self, item)
        self._reserve(waiting)

    def _reserve(self, waiting: list[int]) -> None:
        while waiting:
            self.reserve_stage(waiting.pop(0))

    def inside(self, emit: Callable[[], None]) -> tuple[HostStep, ...]:
        """The steps that `emit` makes, as those of a region."""
        outside, self.run = self.run, []
        self.depth += 1
        try:
            emit()
            return tuple(self.run)
        finally:
            self.run = outside
            self.depth -= 1

    # ------------------------------------------------------------ places

    def type_of(self, ref: Ref) -> TensorType:
        return self.module.weights[ref].type if ref.startswith("@") else self.types[ref]

    def address(self, ref: Ref, layout: Layout | None = None, unit: int = 0) -> Address:
        """Where a value lies, or a weight in one of its layouts at a unit; as the host sees it where the host
        reads and writes it, and a unit has it."""
        root = self.layout.root(ref)
        lies = self.layout.lies.get(self.time.value(ref)) or CPU
        at = self._place(ref, layout, unit)
        return replace(at, seen=True) if root in self.layout.seen and lies == CPU else at

    def _place(self, ref: Ref, layout: Layout | None = None, unit: int = 0) -> Address:
        root, places = self.layout.root(ref), self.places
        if root.startswith("@"):
            offset = places.weights[root, layout].offset - places.first_weights.get(unit, 0)
            return Address("weights", unit, to_dim(offset))
        if root in self.layout.slices:
            part = self.layout.slices[root]
            at = self._place(part.stack)
            return Address(at.base, at.number, at.offset + sym(part.counter) * part.bytes)
        if root in places.inputs:
            return Address("input", places.inputs[root], ZERO)
        if root in places.direct:
            return Address("output", places.direct[root], ZERO)
        if root in places.alone:
            return Address("arena", places.alone[root], ZERO)
        return places.roots[root]

    def open_output(self, n: int) -> None:
        if n not in self.opened:
            assert not self.depth, f"output {n} is opened in a region"
            self.opened.add(n)
            self.run.append(OpenOutput(n, self.output_types[n].shape))

    def copy(self, to: Address, ref: Ref, size: Dim | None = None) -> None:
        """Copy a value's bytes to where they are not yet."""
        source = self.address(ref, unit=self.places.homes[to.base, to.number])
        if source != to:
            t = self.type_of(self.time.value(ref))
            self.run.append(Copy(to, source, bytes_of(t.dtype, t.shape) if size is None else size))

    def reserve_stage(self, position: int) -> None:
        """Memory for what only the sizes bound at this position size."""
        self.run += [step for at, step in self.places.stages if at == position]

    # ------------------------------------------------------------ plain nodes

    def callee(self, node: Node) -> tuple[Kernel, Mapping[str, Dim]]:
        return callee(self.module, node)

    def call_kernel(self, item: Item) -> None:
        node = item.node
        kernel, env = self.callee(node)
        tensors, unit = self._buffers(node), self.unit(node)
        work = [self.places.roots[scratch_name(item.start, b.name)] for b in workspace(kernel)]
        assert len(tensors) == len(kernel.inputs) + len(kernel.outputs), node
        steps: list[Launch] = []
        for chosen, held, share in self._cases(kernel):
            buffers = (*tensors, *(work[n] for n in held))
            key = (chosen.name, tuple(node.attr("dims", ())), share)
            if key not in self._sizes:  # networks repeat their layers
                self._sizes[key] = self._launches(chosen, env, key[1], share)
            dims, launches = self._sizes[key]
            idle = self._idle(chosen, buffers)
            for n, (groups, unheld) in enumerate(launches):
                if n in idle or (chosen is not kernel and groups == ZERO):
                    continue
                for extent in unheld:
                    self._bound_work(node, extent)
                entry = self.entries.setdefault((chosen.name, n, unit), len(self.entries))
                steps.append(Launch(entry, buffers, dims, groups, self.site()))
        made = tuple((len(kernel.inputs) + k, v.name) for k, v in enumerate(node.outputs))
        self.run += [*steps[:-1], *(replace(s, made=made) for s in steps[-1:])]

    def _cases(self, kernel: Kernel) -> Iterator[tuple[Kernel, Sequence[int], Dim | None]]:
        """The kernels that may run for a call of one, with the numbers of the buffers of its workspace that
        they have, and a factor for their groups: 1 for the one that runs, 0 for the others."""
        own = range(len(workspace(kernel)))
        if not kernel.hot:
            yield kernel, own, None
            return
        factors, rest = shares(kernel)
        for case, share in zip(kernel.hot, factors, strict=True):
            chosen = self.module.kernels[case.kernel]
            held = held_in(kernel, chosen, dict(case.dims))
            assert held is not None, case.kernel
            yield chosen, held, share
        yield kernel, own, rest

    def _idle(self, kernel: Kernel, buffers: Sequence[Address]) -> list[int]:
        """The statements that would copy an input to where it lies."""
        if not self.places.renewed:
            return []
        first = len(kernel.inputs)
        pairs = {n: (buffers[x], buffers[first + y]) for n, (x, y) in copying_parts(kernel).items()}
        return [
            n
            for n, (x, y) in pairs.items()
            if (x.base, y.base) == ("input", "output") and self.places.renewed.get(y.number) == x.number
        ]

    def _launches(
        self, kernel: Kernel, env: Mapping[str, Dim], dims: Sequence[Dim], share: Dim | None
    ) -> Launches:
        """The kernel's dims, and for each statement its groups and the extents that could be too many. share:
        a factor for the groups."""
        found = []
        for statement in kernel.body:
            count = group_count(statement) * busy(statement, kernel)
            count = count if share is None else count * share
            groups = self.facts.simplify(count.substitute(env))
            axes = [d.substitute(env) * dmin(groups, ONE) for d in unstored(statement, kernel)]
            found.append((groups, [d for d in map(self.facts.simplify, axes) if not self._bounded(d)]))
        return tuple(self.facts.simplify(to_dim(d)) for d in dims), found

    def _bounded(self, extent: Dim) -> bool:
        high = self.facts.bounds(extent)[1]
        return high is not None and high <= MOST_UNSTORED

    def _bound_work(self, node: Node, extent: Dim) -> None:
        """Refuse what is computed over an axis that no memory could hold."""
        where = f"node '{node.origin}': " if node.origin else ""
        text = f"{where}{{got}} elements on an axis that is stored nowhere, at most {{want}} are computed"
        self._demand(Check(extent, "<=", to_dim(MOST_UNSTORED), self.check(text)))

    def unit(self, node: Node) -> int:
        """The number of the unit that runs a kernel; 0 for what the host does."""
        return self.places.units.index(node.unit or CPU) if node.op == "call_kernel" else 0

    def site(self) -> int:
        """The number of the next launch or library call."""
        self.sites += 1
        return self.sites - 1

    def transfer(self, item: Item) -> None:
        self.copy(self.address(item.node.output.name), item.node.inputs[0])

    def call_library(self, item: Item) -> None:
        node, name = item.node, str(item.node.attr("library"))
        if name not in self.libraries:
            self.libraries.append(name)
        number, dims = self.libraries.index(name), tuple(node.attr("dims", ()))
        first = sum(1 for r in node.inputs if r)
        made = tuple((first + k, v.name) for k, v in enumerate(node.outputs))
        self.run.append(CallLibrary(number, tuple(self._buffers(node)), dims, self.site(), made))

    def _buffers(self, node: Node) -> list[Address]:
        inputs = zip(node.inputs, layouts(self.module, node), strict=True)
        read = (self.address(r, layout, self.unit(node)) for r, layout in inputs if r)
        return [*read, *(self.address(v.name) for v in node.outputs)]

    def check_node(self, item: Item) -> None:
        node = item.node
        left, right, relation = to_dim(node.attr("left")), to_dim(node.attr("right")), node.attr("relation")
        assert relation in ("==", "<=", "divides", "fits"), node
        self._demand(Check(left, relation, right, self.check(str(node.attr("text")))))

    def _demand(self, step: Check) -> None:
        # what a region demands is demanded only where it runs
        early = not self.depth and self.time.stage(step.left, step.right) < 0
        (self.plan if early else self.run).append(step)

    def bind(self, item: Item) -> None:
        node = item.node
        if is_size_name(node):
            value = to_dim(node.attr("value"))
            steps = self.plan if self.time.stage(value) < 0 else self.run
            steps.append(Assign(((str(node.attr("symbol")), value),)))
            return
        if node.attr("draw", False):
            self.run.append(Draw(str(node.attr("symbol"))))
            return
        symbol, where = str(node.attr("symbol")), f"node '{node.origin}': " if node.origin else ""
        self.read(symbol, node.inputs[0], self.type_of(node.inputs[0]).dtype, int(node.attr("index", 0)))
        for side, text in (
            ("low", f"{where}{symbol} is {{want}}, expected at least {{got}}"),
            ("high", f"{where}{symbol} is {{got}}, expected at most {{want}}"),
        ):
            limit = node.attr(side)
            if limit is None:
                continue
            pair = (to_dim(limit), sym(symbol)) if side == "low" else (sym(symbol), to_dim(limit))
            self.run.append(Check(pair[0], "<=", pair[1], self.check(text)))

    def read(self, symbol: str, ref: Ref, dtype: DType, flat: int = 0) -> None:
        """The symbol becomes an element of a tensor."""
        at = self.address(ref)
        at = replace(at, offset=at.offset + flat * dtype.bytes)
        self.run.append(ReadSymbol(symbol, at, dtype))

    # ------------------------------------------------------------ branches

    def branch(self, item: Item) -> None:
        """Both arms leave the results, and the sizes that they decide, at the same places."""
        self.read(item.going, item.node.inputs[0], bool_)
        late = new_symbols(item.node.outputs, self.time, item.end)

        def arm(arm: Arm) -> None:
            self.items(arm.items)
            shapes = [self.type_of(r).shape for r in arm.graph.outputs]
            if late:
                self.run.append(Assign(tuple((s, shapes[n][axis]) for s, (n, axis) in late.items())))
            self.reserve_stage(item.end)
            for v, ref in zip(item.node.outputs, arm.graph.outputs, strict=True):
                self.copy(self.address(v.name), ref)

        then, other = (self.inside(lambda a=a: arm(a)) for a in item.arms)  # type: ignore[misc]
        self.run.append(Branch(item.going, then, other))

    # ------------------------------------------------------------ loops

    def loop(self, item: Item) -> None:
        """Before: the first states. Then rounds. After: the sizes that the rounds have decided."""
        (arm,), node = item.arms, item.node
        states = arm.graph.inputs[2:]
        shaping = new_symbols(arm.graph.inputs[2:], self.time, arm.start)
        limit = self._trips(item)
        again = self._again(item)
        self._first_states(item, arm, shaping)
        for v in node.outputs[len(states) :]:
            if v.name in self.places.alone:
                self.run.append(Reserve(self.places.alone[v.name], ZERO))
        heights = self._stack_sizes(item)
        if heights:
            self.run.append(Assign(tuple((s, ZERO) for s, _ in heights)))
        if again:
            if node.inputs[1]:
                self.read(item.going, node.inputs[1], bool_)
            else:
                self.run.append(Assign(((item.going, ONE),)))
        body = self.inside(lambda: self._round(item, arm, shaping, again))
        self.run.append(Repeat(item.counter, limit, item.going if again else None, body))
        self._behind(item, arm)
        self.reserve_stage(item.end)

    def _trips(self, item: Item) -> Dim | None:
        """How many rounds at most: a size, a number in memory, or None."""
        node = item.node
        if isinstance(node.attr("trips"), Dim):
            return to_dim(node.attr("trips"))
        if not node.inputs[0]:
            return None
        name = f"trips.{item.start}"
        self.read(name, node.inputs[0], i64)
        return sym(name)

    def _again(self, item: Item) -> bool:
        """Whether a condition can end the loop: not when it is the one that came in, or true for good."""
        (arm,), entry = item.arms, item.node.inputs[1]
        last = self.time.value(arm.graph.outputs[0])
        stays = last == arm.graph.inputs[1].name or self._true(last)
        return not stays or not (not entry or self._true(entry))

    def _true(self, ref: Ref) -> bool:
        w = self.module.weights.get(ref)
        return w is not None and bool(w.array().all())

    def _first_states(self, item: Item, arm: Arm, shaping: Mapping[str, tuple[int, int]]) -> None:
        refs = item.node.inputs[2:]
        if shaping:
            sizes = tuple((s, self.type_of(refs[k]).shape[axis]) for s, (k, axis) in shaping.items())
            self.run.append(Assign(sizes))
        for k in sorted(self.layout.loops[item.start].copied):
            root = self.layout.root(arm.graph.inputs[2 + k].name)
            t = self.type_of(refs[k])
            if root in self.places.alone:
                self.run.append(Reserve(self.places.alone[root], bytes_of(t.dtype, t.shape)))
            self.copy(self.address(arm.graph.inputs[2 + k].name), refs[k])

    def _round(self, item: Item, arm: Arm, shaping: Mapping[str, tuple[int, int]], again: bool) -> None:
        plan, results = self.layout.loops[item.start], arm.graph.outputs
        count = len(arm.graph.inputs) - 2
        self.reserve_stage(arm.start)
        if plan.counter:
            self.run.append(Write(self.address(plan.counter), sym(item.counter), i64))
        if plan.flag:
            self.run.append(Write(self.address(plan.flag), ONE, bool_))
        self.items(arm.items)
        self._same_slices(item)
        for v, ref in zip(item.node.outputs[count:], results[1 + count :], strict=True):
            self._push(item, v.name, ref)
        if again:
            self.read(item.going, results[0], bool_)
        for m in plan.moves:
            if m.reserve:
                self.run.append(Reserve(self.places.alone[m.to], m.bytes))
            self.run.append(Copy(self.address(m.value), self.address(m.made), m.bytes))
        if shaping:
            shapes = [self.type_of(r).shape for r in results[1 : 1 + count]]
            self.run.append(Assign(tuple((s, shapes[k][axis]) for s, (k, axis) in shaping.items())))

    def _stack_sizes(self, item: Item) -> list[tuple[str, Dim]]:
        """Sizes of stacked slices that only the rounds know: symbol after the loop, size in a round."""
        (arm,) = item.arms
        count = len(arm.graph.inputs) - 2
        late = new_symbols(item.node.outputs, self.time, item.end)
        return [
            (s, self.type_of(arm.graph.outputs[1 + n]).shape[axis - 1])
            for s, (n, axis) in late.items()
            if n >= count and axis > 0
        ]

    def _same_slices(self, item: Item) -> None:
        """The first round's sizes hold for all."""
        sizes, later = self._stack_sizes(item), dmin(sym(item.counter), 1)
        if not sizes:
            return
        self.run.append(Assign(tuple((s, d * (1 - later) + sym(s) * later) for s, d in sizes)))
        where = f"node '{item.node.origin}': " if item.node.origin else ""
        for s, d in sizes:
            text = f"{where}a round adds {{got}} elements on an axis of a stack, earlier ones {{want}}"
            self.run.append(Check(d, "==", sym(s), self.check(text)))

    def _push(self, item: Item, stack: Ref, ref: Ref) -> None:
        """A round's contribution to a stack, where it does not lie there already."""
        t, counter = self.type_of(ref), sym(item.counter)
        size = bytes_of(t.dtype, t.shape)
        if stack in self.places.alone:
            self.run.append(Reserve(self.places.alone[stack], (counter + 1) * size, keep=True))
        at = self.address(stack)
        self.copy(replace(at, offset=at.offset + counter * size), ref)

    def _behind(self, item: Item, arm: Arm) -> None:
        states = arm.graph.inputs[2:]
        late = new_symbols(item.node.outputs, self.time, item.end)
        sizes = []
        for s, (n, axis) in late.items():
            if n < len(states):
                sizes.append((s, states[n].type.shape[axis]))
            elif axis == 0:
                sizes.append((s, sym(item.counter)))
        if sizes:
            self.run.append(Assign(tuple(sizes)))


_RULES: Mapping[str, Callable[[Emitter, Item], None]] = {
    "call_kernel": Emitter.call_kernel,
    "call_library": Emitter.call_library,
    "transfer": Emitter.transfer,
    "check": Emitter.check_node,
    "bind": Emitter.bind,
    "if": Emitter.branch,
    "loop": Emitter.loop,
}


def callee(module: Module, node: Node) -> tuple[Kernel, Mapping[str, Dim]]:
    """The kernel that a node calls, and what the kernel's dims are there."""
    kernel = module.kernels[str(node.attr("kernel"))]
    values = node.attr("dims", ())
    assert len(values) == len(kernel.dims), node
    return kernel, {p.name: v for p, v in zip(kernel.dims, values, strict=True)}


def _types(graph: Graph) -> dict[Ref, TensorType]:
    """The types of all values, in regions too."""
    found = {v.name: v.type for v in graph.inputs}
    for node in graph.walk():
        found.update((v.name, v.type) for v in node.outputs)
        found.update((v.name, v.type) for g in node.regions for v in g.inputs)
    return found


def evaluated_dims(step: HostStep) -> list[Dim]:
    """The Dims that a step of the run phase evaluates itself."""
    match step:
        case Launch(_, buffers, dims, groups):
            return [*(b.offset for b in buffers), *dims, groups]
        case CallLibrary(_, buffers, dims):
            return [*(b.offset for b in buffers), *dims]
        case OpenOutput(_, shape):
            return list(shape)
        case Copy(to, source, size):
            return [to.offset, source.offset, size]
        case ReadSymbol(_, at, _):
            return [at.offset]
        case Check(left, _, right):
            return [left, right]
        case Reserve(_, size):
            return [size]
        case Write(at, value, _):
            return [at.offset, value]
        case Assign(symbols):
            return [d for _, d in symbols]
        case Repeat(_, limit, _, _):
            return [] if limit is None else [limit]
        case _:
            return []
