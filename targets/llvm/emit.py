"""Kernels in, LLVM IR text out: one function `void name(i64* args, i64 lo, i64 hi)` per top-level statement.

args: addresses of inputs, outputs and scratch in order, then the kernel's dims. A function runs the flat
group indices lo .. hi-1 of its statement (outermost group loop slowest); without a group loop there is
one group. Function i of a kernel is called name, name.1, name.2 ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, Facts, ceildiv, to_dim
from smelt.core.dtype import DType
from smelt.core.ir.kernel import (
    Block,
    Bound,
    Buffer,
    Expr,
    Index,
    Kernel,
    Load,
    Loop,
    Stmt,
    Store,
    Tiles,
    walk,
    walk_expr,
)
from smelt.targets.llvm.builder import Builder, Value, type_text
from smelt.targets.llvm.exprs import Exprs, Memory, dtype_of
from smelt.targets.llvm.guards import inner_bounds
from smelt.targets.llvm.index import Env, Lanes, varies
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.registers import pieces, plan_registers
from smelt.targets.llvm.scalar import compute_elem, storage_elem

LOCAL_LIMIT = 1 << 18  # bytes of a thread's stack that a kernel may use for local buffers
GroupNode = Loop | Tiles


def function_name(kernel: Kernel, part: int) -> str:
    """The symbol of a kernel's part-th top-level statement."""
    return kernel.name if part == 0 else f"{kernel.name}.{part}"


def group_nest(s: Stmt) -> tuple[tuple[GroupNode, ...], tuple[Stmt, ...]]:
    """The directly nested group nodes at a statement, and what is inside them."""
    nodes: list[GroupNode] = []
    body: tuple[Stmt, ...] = (s,)
    while len(body) == 1:
        inner = body[0]
        if not isinstance(inner, Loop | Tiles) or inner.level != "group":
            break
        nodes.append(inner)
        body = inner.body
    return tuple(nodes), body


def group_extent(node: GroupNode) -> Dim:
    """How many groups a node contributes."""
    return node.extent if isinstance(node, Loop) else ceildiv(node.extent, node.sizes[0])


def group_count(s: Stmt) -> Dim:
    """Groups of a top-level statement as an expression in the kernel's dims: what `hi` may reach."""
    total = to_dim(1)
    for node in group_nest(s)[0]:
        total = total * group_extent(node)
    return total


@dataclass(frozen=True)
class Text:
    """LLVM IR of some functions: definitions in order, and the declarations they need by symbol."""

    functions: tuple[str, ...]
    declared: dict[str, str]


def emit_kernel(kernel: Kernel, cpu: Cpu) -> Text:
    """The functions of a kernel. Raises SmeltError (internal) naming the kernel for a tree that cannot
    be emitted."""
    declared: dict[str, str] = {}
    functions: list[str] = []
    try:
        for part, s in enumerate(kernel.body):
            functions.extend(_Function(kernel, part, s, cpu, declared).text())
    except AssertionError as e:
        raise SmeltError(f"kernel '{kernel.name}' cannot be emitted: {e}", kind="internal") from e
    return Text(tuple(functions), declared)


def emit_module(kernels: Iterable[Kernel], cpu: Cpu) -> str:
    """One LLVM module with all functions of these kernels."""
    functions: list[str] = []
    declared: dict[str, str] = {}
    for kernel in kernels:
        text = emit_kernel(kernel, cpu)
        functions.extend(text.functions)
        declared.update(text.declared)
    return module_text(functions, declared, cpu)


def module_text(functions: Iterable[str], declared: dict[str, str], cpu: Cpu) -> str:
    """Functions and declarations put together, in an order that depends only on their content."""
    head = f'target triple = "{cpu.triple}"\n'
    return "\n".join([head, *(declared[n] for n in sorted(declared)), "", *functions, "!0 = !{}", ""])


class _Function(Exprs):
    """One top-level statement. Buffers are noalias pointer arguments of an inner function, so that the
    scheduler may move loads over stores; the exported one only unpacks the arguments."""

    def __init__(
        self, kernel: Kernel, part: int, s: Stmt, cpu: Cpu, declared: dict[str, str]
    ) -> None:
        super().__init__(Builder(declared), cpu)
        self.kernel = kernel
        self.name = function_name(kernel, part)
        self.statement = s
        self.facts = Facts({d.name: (d.low, d.high) for d in kernel.dims})
        self.masks: list[tuple[Bound, ...]] = []
        self.invariant_loads = not any(
            isinstance(x, Store) and x.accumulate == "fma" for x in walk((s,))
        )
        self._local_bytes = 0
        self._locals = 0
        self._bind_arguments()

    # -- the frame

    def _bind_arguments(self) -> None:
        root = self.b.root
        written = self.written((self.statement,))
        for i, buffer in enumerate(self.kernel.buffers().values()):
            pointer = Value(f"%b{i}", "ptr", 0, root)
            self.memory[buffer.name] = Memory(buffer, pointer, buffer.name not in written)
        for i, d in enumerate(self.kernel.dims):
            if d.low == d.high:
                self.env[d.name] = d.low
                continue
            v = Value(f"%d{i}", "i64", 0, root, None, d.low, d.high)
            self.env[d.name] = self._narrow(v)

    def _narrow(self, v: Value) -> Value:
        if self.index.elem == "i64":
            return v
        made = self.b.pure(f"trunc {v.typed} to {self.index.elem}", self.index.elem, 0, v)
        made.low, made.high = v.low, v.high
        return made

    def text(self) -> list[str]:
        """The inner function and its exported wrapper."""
        self._groups(self.statement)
        buffers = list(self.kernel.buffers())
        params = [f"ptr noalias {'readonly ' if self.memory[n].read_only else ''}%b{i}"
                  for i, n in enumerate(buffers)]  # fmt: skip
        params += [f"i64 %d{i}" for i in range(len(self.kernel.dims))] + ["i64 %lo", "i64 %hi"]
        inner = f'"{self.name}.body"'
        body = self.b.text()
        define = f"define internal void @{inner}({', '.join(params)}) nounwind noinline {{\n{body}\n}}\n"
        return [define, self._wrapper(inner, buffers)]

    def _wrapper(self, inner: str, buffers: list[str]) -> str:
        lines, args = [], []
        word = self.index.elem
        for i in range(len(buffers) + len(self.kernel.dims)):
            lines.append(f"  %p{i} = getelementptr i64, ptr %args, i64 {i}")
            lines.append(f"  %w{i} = load i64, ptr %p{i}, align 8")
            if i >= len(buffers):
                args.append(f"i64 %w{i}")
                continue
            source = f"%w{i}"
            if word == "i32":
                lines.append(f"  %t{i} = trunc i64 %w{i} to i32")
                source = f"%t{i}"
            lines.append(f"  %a{i} = inttoptr {word} {source} to ptr")
            args.append(f"ptr %a{i}")
        call = ", ".join([*args, "i64 %lo", "i64 %hi"])
        head = f'define void @"{self.name}"(ptr %args, i64 %lo, i64 %hi) nounwind {{'
        return "\n".join([head, *lines, f"  call void @{inner}({call})", "  ret void", "}", ""])

    # -- groups

    def _groups(self, s: Stmt) -> None:
        nodes, body = group_nest(s)
        if not nodes:
            self._stmts((s,))
            return
        lo = self._narrow(Value("%lo", "i64", 0, self.b.root, None, 0))
        hi = self._narrow(Value("%hi", "i64", 0, self.b.root, None, 0))
        extents = [self.index.number(group_extent(n), self.env) for n in nodes]
        high = 1
        for n in extents:
            high *= n if isinstance(n, int) else 1
        known = all(isinstance(n, int) for n in extents)
        if known and high == 1:
            self._enter(nodes, [0] * len(nodes), body)
            return
        count = self.index.as_value(self.index.sub(hi, lo))

        def run(i: Value, carried: list[Value]) -> list[Value]:
            flat = self.index.as_value(self.index.add(lo, i))
            flat.low, flat.high = 0, high - 1 if known else None
            self._enter(nodes, self._decode(flat, extents), body)
            return []

        self.b.loop(count, [], run, False)

    def _decode(self, flat: Value, extents: list[int | Value]) -> list[int | Value]:
        """A flat group index as one index for each node, the last fastest."""
        out: list[int | Value] = []
        rest: int | Value = flat
        for n in reversed(extents[1:]):
            out.append(self.index.mod(rest, n))
            rest = self.index.floordiv(rest, n)
        out.append(rest if extents[0] != 1 else 0)
        for v, n in zip(reversed(out), extents, strict=True):
            if isinstance(v, Value) and isinstance(n, int) and v.high is None:
                v.high = n - 1
        return out[::-1]

    def _enter(
        self, nodes: Sequence[GroupNode], at: Sequence[int | Value], body: tuple[Stmt, ...]
    ) -> None:
        """Bind the group nodes' variables from the outermost on, then run the body."""
        if not nodes:
            self._stmts(body)
            return
        node = nodes[0]

        def inside() -> None:
            self._with_buffers(node.buffers, node.body, lambda: self._enter(nodes[1:], at[1:], body))

        if isinstance(node, Loop):
            with self.bind({node.var: at[0]}):
                inside()
        elif node.mode == "balanced":
            self._balanced_tile(node, at[0], inside)
        else:
            self._greedy_group(node, at[0], inside)

    # -- tiles

    def _balanced_tile(self, t: Tiles, at: int | Value, inside: Callable[[], None]) -> None:
        """The at-th of n tiles: the first extent % n have one row more than the others."""
        ix = self.index
        extent = ix.number(t.extent, self.env)
        n = ix.pick("smax", ix.number(ceildiv(t.extent, t.sizes[0]), self.env), 1)
        rows = ix.floordiv(extent, n)
        longer = ix.sub(extent, ix.mul(n, rows))
        start = ix.add(ix.mul(rows, at), ix.pick("smin", longer, at))
        if isinstance(rows, int) and isinstance(longer, int) and longer == 0:
            self._sized(t, start, rows, inside)
            return
        a, b = ix.as_value(at), ix.as_value(longer)
        more = self.b.pure(f"icmp slt {a.typed}, {b.text}", "i1", 0, a, b)
        extra = self.b.pure(f"zext {more.typed} to {ix.elem}", ix.elem, 0, more)
        extra.low, extra.high = 0, 1
        if isinstance(start, Value):
            start.low = 0
        size = ix.as_value(ix.add(rows, extra))
        arms = [(r, self._arm(t, start, r, inside)) for r in self._reachable(t)]
        self._switch(size, arms, t.body)

    def _arm(
        self, t: Tiles, start: int | Value, rows: int, inside: Callable[[], None]
    ) -> Callable[[], None]:
        return lambda: self._sized(t, start, rows, inside)

    def _sized(
        self, t: Tiles, start: int | Value, rows: int, inside: Callable[[], None]
    ) -> None:
        with self.bind({t.start: start, t.rows: rows}):
            inside()

    def _reachable(self, t: Tiles) -> list[int]:
        """Tile sizes that some extent in range gives, largest first."""
        low, high = self.facts.bounds(t.extent)
        most = t.sizes[0]
        first = max(low or 0, 1)
        # above most^2 rows all tiles have most or most-1 rows
        last = min(first + most * most + most, high) if high is not None else first + most * (most + 1)
        found = set()
        for extent in range(first, last + 1):
            n = -(-extent // most)
            found.add(extent // n)
            if extent % n:
                found.add(extent // n + 1)
        if high is None or high > last:
            found |= {most, max(most - 1, 1)}
        return sorted(found or {1}, reverse=True)

    def _greedy_group(self, t: Tiles, at: int | Value, inside: Callable[[], None]) -> None:
        """Group `at` is a whole tile of sizes[0], or, the last one, the rest in smaller tiles."""
        ix = self.index
        start = ix.mul(at, t.sizes[0])
        left = ix.sub(ix.number(t.extent, self.env), start)
        if isinstance(left, int):
            self._greedy(t, start, left, t.sizes, inside)
            return
        if _divides(self.facts, t.extent, t.sizes[0]):
            self._sized(t, start, t.sizes[0], inside)
            return
        full = self.s.compare("icmp sge", left, self.b.integer(t.sizes[0], ix.elem))
        left.low, left.high = 0, None
        self._branch(
            full,
            lambda: self._sized(t, start, t.sizes[0], inside),
            lambda: self._greedy(t, start, left, t.sizes[1:], inside, t.sizes[0] - 1),
            t.body,
        )

    def _greedy(
        self,
        t: Tiles,
        start: int | Value,
        left: int | Value,
        sizes: Sequence[int],
        inside: Callable[[], None],
        most: int | None = None,
    ) -> None:
        """Tiles of each size in turn, as many as fit. most: an upper bound of what is left."""
        ix = self.index
        for size in sizes:
            count = ix.floordiv(left, size)
            if isinstance(count, Value) and most is not None and most // size <= 1:
                some = self.s.compare("icmp sge", ix.as_value(left), self.b.integer(size, ix.elem))
                if most // size == 1:
                    self._branch(some, self._arm(t, start, size, inside), lambda: None, t.body)
            elif most is None or most // size > 0:
                self._tile_loop(t, start, count, size, inside)
            start = ix.add(start, ix.mul(count, size))
            left = ix.mod(left, size)
            most = size - 1 if most is None else min(most, size - 1)

    def _tile_loop(
        self, t: Tiles, start: int | Value, count: int | Value, size: int, inside: Callable[[], None]
    ) -> None:
        ix = self.index
        n = ix.as_value(count)
        if t.level == "unroll" and isinstance(count, int):
            for i in range(count):
                self._sized(t, ix.add(start, i * size), size, inside)
            return

        def run(i: Value) -> None:
            at = int(i.const) if i.const is not None else i
            self._sized(t, ix.add(start, ix.mul(at, size)), size, inside)

        self._loop(n, t.body, run)

    def _tiles(self, t: Tiles) -> None:
        """Tiles below the group level, one after the other."""

        def inside() -> None:
            self._with_buffers(t.buffers, t.body, lambda: self._stmts(t.body))

        extent = self.index.number(t.extent, self.env)
        if t.mode == "greedy":
            self._greedy(t, 0, extent, t.sizes, inside, self.facts.bounds(t.extent)[1])
            return
        if isinstance(extent, int) and extent == 0:
            return
        count = self.index.number(ceildiv(t.extent, t.sizes[0]), self.env)
        if t.level == "unroll" and isinstance(count, int):
            for i in range(count):
                self._balanced_tile(t, i, inside)
            return

        def run(i: Value) -> None:
            self._balanced_tile(t, int(i.const) if i.const is not None else i, inside)

        self._loop(self.index.as_value(count), t.body, run)

    # -- control with registers carried

    def written(self, body: Sequence[Stmt]) -> frozenset[str]:
        """Buffers that these statements store to."""
        return frozenset(s.buffer for s in walk(tuple(body)) if isinstance(s, Store))

    def _carried(self, body: Sequence[Stmt]) -> list[tuple[str, tuple[tuple[int, ...], int]]]:
        names = self.written(body)
        return [(n, key) for n in sorted(names & self.registers.keys())
                for key in self.registers[n].every()]  # fmt: skip

    def _state(self, cells: Sequence[tuple[str, tuple[tuple[int, ...], int]]]) -> list[Value]:
        return [self.registers[n].get(self.b, key) for n, key in cells]

    def _restore(
        self, cells: Sequence[tuple[str, tuple[tuple[int, ...], int]]], values: Sequence[Value]
    ) -> None:
        for (n, key), v in zip(cells, values, strict=True):
            self.registers[n].cells[key] = v

    def _touch(self, body: Sequence[Stmt]) -> None:
        """What was loaded from buffers that body writes is out of date."""
        for name in self.written(body):
            self.epochs[name] = self.epochs.get(name, 0) + 1
        self.start_statement()

    def _loop(self, count: Value, body: Sequence[Stmt], run: Callable[[Value], None]) -> None:
        """run(i) for i in 0 .. count-1; registers that body writes are carried by phis."""
        cells = self._carried(body)
        nonzero = count.low is not None and count.low > 0

        def step(i: Value, values: list[Value]) -> list[Value]:
            self._restore(cells, values)
            self._touch(body)
            run(i)
            return self._state(cells)

        self._restore(cells, self.b.loop(count, self._state(cells), step, nonzero))
        self._touch(body)

    def _branch(
        self,
        condition: Value,
        then: Callable[[], None],
        other: Callable[[], None],
        body: Sequence[Stmt],
    ) -> None:
        self._arms(lambda a: self.b.branch(condition, a[0], a[1]), [then, other], body)

    def _switch(
        self, on: Value, arms: Sequence[tuple[int, Callable[[], None]]], body: Sequence[Stmt]
    ) -> None:
        numbers = [n for n, _ in arms]
        self._arms(
            lambda a: self.b.switch(on, list(zip(numbers, a, strict=True))),
            [run for _, run in arms],
            body,
        )

    def _arms(
        self,
        emit: Callable[[list[Callable[[], list[Value]]]], list[Value]],
        runs: Sequence[Callable[[], None]],
        body: Sequence[Stmt],
    ) -> None:
        """Each arm starts from the same registers; their values are merged after."""
        cells = self._carried(body)
        before = self._state(cells)

        def arm(run: Callable[[], None]) -> Callable[[], list[Value]]:
            def go() -> list[Value]:
                self._restore(cells, before)
                self._touch(body)
                run()
                return self._state(cells)

            return go

        self._restore(cells, emit([arm(run) for run in runs]))
        self._touch(body)

    # -- buffers of a node

    def _with_buffers(
        self, buffers: Sequence[Buffer], body: Sequence[Stmt], inside: Callable[[], None]
    ) -> None:
        """Run inside with local buffers: registers where their indices are constant, else the stack."""
        if not buffers:
            inside()
            return
        elems = {b.name: compute_elem(b.dtype) for b in buffers}
        planned = plan_registers(
            [b for b in buffers if b.space == "register"], body, self.env, elems, self.vector_lanes
        )
        local = {b.name: self._local(b) for b in buffers if planned.get(b.name) is None}

        def run() -> None:
            old_registers, old_memory = dict(self.registers), dict(self.memory)
            self.memory.update(local)
            # a fresh copy: both versions of the body start with nothing written
            self.registers.update({n: replace(r, cells={}) for n, r in planned.items() if r is not None})
            inside()
            self.registers, self.memory = old_registers, old_memory

        bounds = [] if self.proved else inner_bounds(body, self.env)
        if not bounds:
            run()
            return
        # where every element that the guards are about is inside, the guards are left out
        ends = [end for bound in bounds for end in bound.ends]

        def unguarded() -> None:
            self.proved = frozenset(bound.bound for bound in bounds)
            run()
            self.proved = frozenset()

        self._branch(self.condition(ends), unguarded, run, body)

    def _local(self, b: Buffer) -> Memory:
        """A buffer on the stack of the thread."""
        count = 1
        for d in b.shape:
            n = self.index.number(d, self.env)
            assert isinstance(n, int), f"local buffer {b.name} has the dynamic extent {d}"
            count *= n
        self._local_bytes += count * b.dtype.bytes
        assert self._local_bytes <= LOCAL_LIMIT, f"local buffers need {self._local_bytes} bytes"
        self._locals += 1
        pointer = Value(f"%local{self._locals}", "ptr", 0, self.b.root)
        kind = f"[{max(count, 1)} x {storage_elem(b.dtype)}]"
        self.b.allocas.append(f"{pointer.text} = alloca {kind}, align 64")
        return Memory(b, pointer, False)

    # -- statements

    def _stmts(self, body: Sequence[Stmt]) -> None:
        for s in body:
            self._stmt(s)

    def _stmt(self, s: Stmt) -> None:
        if isinstance(s, Store):
            self.start_statement()
            self._store(s)
        elif isinstance(s, Tiles):
            self._tiles(s)
        elif isinstance(s, Block):
            self._block(s)
        elif s.level == "vector":
            self._vector(s)
        else:
            self._serial(s)

    def _serial(self, s: Loop) -> None:
        """A serial loop; unrolled when its level says so. On one thread, lanes and groups are serial."""
        assert not varies(s.extent, self.env), f"extent {s.extent} of {s.var} differs between lanes"

        def inside() -> None:
            self._with_buffers(s.buffers, s.body, lambda: self._stmts(s.body))

        count = self.index.value(s.extent, self.env)
        if s.level == "unroll" and count.const is not None:
            fence = self._accumulates(s)
            for i in range(int(count.const)):
                if i and fence:
                    # LLVM would gather the loads of all steps at the top, and spill the accumulators
                    self.b.effect('call void asm sideeffect "", "~{memory}"()')
                with self.bind({s.var: i}):
                    inside()
            return
        if count.low is None or count.low < 1:
            count = self._with_low(count, s.extent)

        def run(i: Value) -> None:
            with self.bind({s.var: int(i.const) if i.const is not None else i}):
                inside()

        self._loop(count, s.body, run)

    def _accumulates(self, s: Loop) -> bool:
        """Whether an unrolled loop is a reduction into registers: its variable picks none of them."""
        stores = [x for x in walk(s.body) if isinstance(x, Store)]
        return any(x.accumulate and x.buffer in self.registers for x in stores) and not any(
            s.var in d.symbols for x in stores if x.buffer in self.registers for d in x.index
        )

    def _with_low(self, count: Value, extent: Dim) -> Value:
        """The same count with what the dims' ranges tell about it."""
        if count.const is not None or not extent.symbols <= {d.name for d in self.kernel.dims}:
            return count
        low, high = self.facts.bounds(extent)
        return Value(count.text, count.elem, 0, count.scope, None, low, high)

    def vector_lanes(self, s: Loop) -> int:
        """How many elements of a vector loop are computed together: a register of its widest type."""
        bits = [8]
        for inner in walk((s,)):
            if isinstance(inner, Store):
                bits.extend(_bits(inner.value))
        return min(self.cpu.machine.lanes(max(bits)), 64)

    def _vector(self, s: Loop) -> None:
        count = self.index.number(s.extent, self.env)
        if not isinstance(count, int) or self.lanes or self._serial_only(s):
            # not a constant width, or one vector loop in another: element by element
            level = "unroll" if isinstance(count, int) else "serial"
            self._serial(Loop(level, s.var, s.extent, s.body, s.buffers))  # type: ignore[arg-type]
            return
        for start, width in pieces(count, self.vector_lanes(s)):
            place: Env = {s.var: Lanes(start, width) if width else start}
            with self.bind(place, width):
                self._with_buffers(s.buffers, s.body, lambda: self._stmts(s.body))

    def _serial_only(self, s: Loop) -> bool:
        """Whether loops inside run differently often for each lane."""
        moving = {s.var}
        for inner in walk(s.body):
            if isinstance(inner, Block):
                moving |= {v for v, *_ in inner.let}
            if isinstance(inner, Loop | Tiles) and inner.extent.symbols & moving:
                return True
        return False

    def _block(self, s: Block) -> None:
        if not s.let:
            self._guarded(s)
            return
        var, value, low, high = s.let[0]
        rest = Block(s.body, s.buffers, s.let[1:], s.guard)
        self.start_statement()
        with self.bind({var: self.let_value(value, low, high)}):
            self._block(rest)

    def _guarded(self, s: Block) -> None:
        def inside() -> None:
            self._with_buffers(s.buffers, s.body, lambda: self._stmts(s.body))

        condition = self.condition(s.guard)
        if condition.lanes:
            # lanes that are out must not store: each store takes the guard
            self.masks.append(s.guard)
            inside()
            self.masks.pop()
        elif condition.const is None:
            self._branch(condition, inside, lambda: None, s.body)
        elif condition.const:
            inside()

    # -- stores

    def _store(self, s: Store) -> None:
        guard = (*s.guard, *(b for m in self.masks for b in m))
        if s.buffer in self.registers:
            self._store_register(s, guard)
            return
        condition = self.condition(guard)
        if condition.const is not None:
            if condition.const:
                self._store_memory(s, condition)
        elif condition.lanes:
            self._store_memory(s, condition)
        else:
            yes = self.b.integer(1, "i1")
            self._branch(condition, lambda: self._store_memory(s, yes), lambda: None, (s,))

    def _store_memory(self, s: Store, mask: Value) -> None:
        m = self.memory[s.buffer]
        moving = self.lanes and any(varies(d, self.env) for d in s.index)
        if not moving:
            value = self._uniform(s, mask)
            self._write(s, m, value, mask if not mask.lanes else self.b.integer(1, "i1"))
            return
        split = self.index.split(self.flat(m.buffer, s.index), self.env)
        if split is not None and split[0] == 1:
            self._write(s, m, None, mask)
            return
        # scattered lanes: in order, each as a store of its own
        whole = None if s.accumulate else self.b.splat(self.value(s.value), self.lanes)
        for i in range(self.lanes):
            lane_mask = self.b.lane(mask, i)
            part = None if whole is None else self.b.lane(whole, i)
            with self.bind(self.index.lane(self.env, i), 0):
                self._branch(
                    lane_mask,
                    lambda part=part: self._write(s, m, part, self.b.integer(1, "i1")),  # type: ignore[misc]
                    lambda: None,
                    (s,),
                )

    def _uniform(self, s: Store, mask: Value) -> Value | None:
        """The value for an element that all lanes store to: their combination, or the last lane's."""
        value = self.value(s.value)
        if not value.lanes and not mask.lanes:
            return value if s.accumulate is None or not self.lanes else self._repeat(s, value)
        value = self.b.splat(value, self.lanes)
        if s.accumulate is None:
            assert not mask.lanes, f"lanes store to one element of {s.buffer} under a guard"
            return self.b.lane(value, self.lanes - 1)
        fn = "add" if s.accumulate == "fma" else s.accumulate
        kind = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}[fn]
        if mask.lanes:
            value = self.s.select(mask, value, self.s.like(value, self.neutral(kind, dtype_of(s.value))))
        with self.bind({}, 0):
            return self.across(fn, dtype_of(s.value), value)

    def _repeat(self, s: Store, value: Value) -> Value:
        """Each lane accumulates the same value."""
        with_lanes = self.b.splat(value, self.lanes)
        fn = "add" if s.accumulate == "fma" else s.accumulate or ""
        with self.bind({}, 0):
            return self.across(fn, dtype_of(s.value), with_lanes)

    def _write(self, s: Store, m: Memory, value: Value | None, mask: Value) -> None:
        """Store the value (None: evaluate it here) to memory, accumulated when the statement says so."""
        dtype = m.buffer.dtype
        at = self.pointer(m, s.index)
        moving = self.lanes if self.lanes and any(varies(d, self.env) for d in s.index) else 0
        if s.accumulate is not None:
            old = self.from_storage(self._raw_load(m, at, moving, mask), dtype)
            value = self._accumulated(s, old, value)
        elif value is None:
            value = self.value(s.value)
        value = self.to_storage(self.b.splat(value, moving), dtype)
        if mask.lanes:
            self._masked_store(value, at, mask, dtype)
        else:
            self.b.effect(f"store {value.typed}, ptr {at.text}, align {dtype.bytes}")
        self.epochs[s.buffer] = self.epochs.get(s.buffer, 0) + 1

    def _raw_load(self, m: Memory, at: Value, lanes: int, mask: Value) -> Value:
        elem, width = storage_elem(m.buffer.dtype), m.buffer.dtype.bytes
        if mask.lanes:
            return self.masked_load(at, mask, self.b.const(0, elem, mask.lanes), width)
        return self.b.here(f"load {type_text(elem, lanes)}, ptr {at.text}, align {width}", elem, lanes)

    def _masked_store(self, value: Value, at: Value, mask: Value, dtype: DType) -> None:
        suffix = {"float": "f32", "double": "f64"}.get(value.elem, value.elem)
        name = f"llvm.masked.store.v{value.lanes}{suffix}.p0"
        kinds = [value.type, "ptr", mask.type]
        self.b.declare(name, "void", kinds, "nounwind memory(argmem: write)")
        self.b.effect(
            f"call void @{name}({value.typed}, ptr align {dtype.bytes} {at.text}, {mask.typed})"
        )

    def _accumulated(self, s: Store, old: Value, value: Value | None) -> Value:
        """fn(old, value); for 'fma' the value is a product that is added unrounded."""
        fn, e = s.accumulate, s.value
        if fn == "fma" and value is None and e.__class__.__name__ == "Call" and e.fn == "mul":  # type: ignore[union-attr]
            x, y = (self.value(a) for a in e.args)  # type: ignore[union-attr]
            return self.s.fma(x, y, old)
        v = self.value(e) if value is None else value
        return self.combine("add" if fn == "fma" else fn or "", dtype_of(e), old, v)

    def _store_register(self, s: Store, guard: tuple[Bound, ...]) -> None:
        condition = self.condition(guard)
        if condition.const == 0:
            return
        place = self._register_place(s)
        if place is None:
            for i in range(self.lanes):
                with self.bind(self.index.lane(self.env, i), 0):
                    self._store_register(s, guard)
            return
        index, lanes = place
        r = self.registers[s.buffer]
        uniform = self.lanes and not lanes
        value = self._uniform(s, condition) if uniform else None
        if uniform and condition.lanes:
            condition = self.b.integer(1, "i1")
        old = r.read(self.b, index, lanes) if s.accumulate or condition.const is None else None
        if s.accumulate:
            assert old is not None
            value = self._accumulated(s, old, value)
        elif value is None:
            value = self.value(s.value)
        value = self.b.splat(value, lanes)
        if condition.const is None:
            assert old is not None
            value = self.s.select(condition, value, old)
        r.write(self.b, index, value)

    def _register_place(self, s: Store) -> tuple[list[int], int] | None:
        """(constant index, lanes) of a store to registers; None when lanes go to separate rows."""
        index: list[int] = []
        lanes = 0
        for axis, d in enumerate(s.index):
            step, base = self.index.affine(d, self.env)
            last = axis == len(s.index) - 1
            if step is None or (step and not (last and step == 1)):
                return None
            assert isinstance(base, int), f"{s.buffer}: register index {d} is not constant"
            lanes = self.lanes if step else lanes
            index.append(base)
        return index, lanes


def _bits(e: Expr) -> list[int]:
    """Widths of the types that an expression computes in; index values and bools do not count."""
    found = []
    for x in walk_expr(e):
        dtype = dtype_of(x)
        if isinstance(x, Index) or dtype.category == "bool":
            continue
        if isinstance(x, Load) or not isinstance(x, Index):
            found.append(32 if dtype.is_float and dtype.bits == 16 else dtype.bits)
    return found


def _divides(facts: Facts, extent: Dim, size: int) -> bool:
    from smelt.core.dim import YES

    return facts.prove_divisible(extent, size) is YES
