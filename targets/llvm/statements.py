"""Statements in, instructions out: serial, unrolled and vector loops, blocks, the buffers they declare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from smelt.core.dim import Dim
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
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.epilogues import Epilogues
from smelt.targets.llvm.exprs import dtype_of
from smelt.targets.llvm.guards import checks, inner_bounds
from smelt.targets.llvm.index import Env, Lanes
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.registers import pieces, plan_registers
from smelt.targets.llvm.scalar import compute_elem


class Statements(Epilogues):
    """The statements of one kernel."""

    def __init__(self, b: FunctionBuilder, cpu: Cpu, kernel: Kernel) -> None:
        super().__init__(b, cpu, kernel)
        self.beside = False
        self._widths: dict[int, tuple[Loop, int]] = {}

    def _tiles(self, t: Tiles) -> None:
        raise NotImplementedError

    # -- buffers of a node

    def _with_buffers(
        self, buffers: Sequence[Buffer], body: Sequence[Stmt], inside: Callable[[], None]
    ) -> None:
        """Run inside with local buffers: registers where their indices are constant, else the stack. Scratch
        of groups is among the arguments."""
        if not buffers:
            inside()
            return
        elems = {b.name: compute_elem(b.dtype) for b in buffers}
        planned = plan_registers(
            [b for b in buffers if b.space == "register"], body, self.env, elems, self.vector_lanes,
            self.tile_of,
        )
        local = {
            b.name: self._local(b) for b in buffers
            if planned.get(b.name) is None and b.space != "scratch"
        }

        def held(code: Callable[[], None]) -> None:
            old_registers, old_memory = dict(self.registers), dict(self.memory)
            self.memory.update(local)
            # a fresh copy: nothing is written yet
            self.registers.update({n: replace(r, cells={}) for n, r in planned.items() if r is not None})
            code()
            self.registers, self.memory = old_registers, old_memory

        bounds = [] if self.proved else inner_bounds(body, self.env)
        if not bounds:
            held(inside)
            return
        # where every element that the guards are about is inside, a copy without them runs
        condition = self.condition([end for bound in bounds for end in bound.ends])
        checked = frozenset(bound.bound for bound in bounds)
        guarded = [n for n, s in enumerate(body) if checks(s, checked)]
        first, end = guarded[0], guarded[-1] + 1
        if not self.alone or end - first == len(body):
            self._branch(condition, lambda: self._proving(checked, lambda: held(inside)),
                         lambda: held(inside), body)  # fmt: skip
            return

        def some() -> None:
            self._stmts(body[first:end])

        def narrow() -> None:
            self._stmts(body[:first])
            self._branch(condition, lambda: self._proving(checked, some), lambda: self._rarely(some),
                         body[first:end])  # fmt: skip
            self._stmts(body[end:])

        held(narrow)

    def _proving(self, bounds: frozenset[Bound], code: Callable[[], None]) -> None:
        """Run code, in which these bounds hold."""
        self.proved = bounds
        code()
        self.proved = frozenset()

    def _rarely(self, code: Callable[[], None]) -> None:
        """Run code that is beside its copy without guards."""
        old, self.beside = self.beside, True
        code()
        self.beside = old

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

    def _pass(self, node: Loop | Tiles) -> None:
        """One pass of a loop over its body."""
        self._with_buffers(node.buffers, node.body, lambda: self._stmts(node.body))

    def _serial(self, s: Loop) -> None:
        """A serial loop; unrolled when its level says so. On one thread, lanes and groups are serial."""
        assert not self.differs(s.extent), f"extent {s.extent} of {s.var} differs between lanes"

        def inside() -> None:
            self._pass(s)

        count = self.index.value(s.extent, self.env)
        rows = self.rows_of(s) if s.level == "unroll" and (count.const or 0) > 1 else []
        if rows:
            with self.in_memory(rows):
                self._serial(Loop("serial", s.var, s.extent, s.body))
            return
        if s.level == "unroll" and count.const is not None and not self._rolls(s):
            fence = self._accumulates(s)
            with self.run_of(s.var, int(count.const) if self._straight(s.body) else 0):
                for i in range(int(count.const)):
                    if i and fence:
                        # LLVM would gather the loads of all steps at the top, and spill the accumulators
                        self.b.effect('call void asm sideeffect "", "~{memory}"()')
                    with self.bind({s.var: i}):
                        inside()
            return
        if count.low is None or count.low < 1:
            count = self._with_low(count, s.extent)
        count = self.unless_idle(count, s.extent, self.needed(s.body, s.buffers))

        def run(i: Value) -> None:
            with self.bind({s.var: int(i.const) if i.const is not None else i}):
                inside()

        self._loop(count, s.body, run)

    def _rolls(self, s: Loop) -> bool:
        """Whether an unrolled loop stays one, the outer of two over terms of a sum, whose passes are long:
        where guards are tested, each of which takes as much, and in tiles of sizes that few extents have."""
        if not self.alone or not (self.beside or self.rare) or not self._accumulates(s):
            return False
        inner = list(walk(s.body))
        plain = all(isinstance(x, Loop | Store) for x in inner)
        stores = [x for x in inner if isinstance(x, Store)]
        loads = [x for store in stores for x in walk_expr(store.value) if isinstance(x, Load)]
        picks = any(x.buffer in self.registers and any(s.var in d.symbols for d in x.index) for x in loads)
        sums = any(isinstance(x, Loop) and x.level == "unroll" and self._accumulates(x) for x in inner)
        return plain and sums and not picks

    def _accumulates(self, s: Loop) -> bool:
        """Whether an unrolled loop is a reduction into registers: its variable picks none of them."""
        stores = [x for x in walk(s.body) if isinstance(x, Store)]
        return any(x.accumulate and x.buffer in self.registers for x in stores) and not any(
            s.var in d.symbols for x in stores if x.buffer in self.registers for d in x.index
        )

    def _straight(self, body: Sequence[Stmt]) -> bool:
        """Whether these statements are code without branches."""
        return all(
            not x.guard if isinstance(x, Store)
            else not x.guard and not x.let and (bool(x.by) or self._straight(x.body)) if isinstance(x, Block)
            else isinstance(x, Loop) and x.level in ("unroll", "vector") and self._is_known(x.extent)
            and self._straight(x.body)
            for x in body
        )  # fmt: skip

    def _is_known(self, d: Dim) -> bool:
        return d.symbols <= self.env.keys() and isinstance(self.index.number(d, self.env), int)

    def _with_low(self, count: Value, extent: Dim) -> Value:
        """The same count with what the dims' ranges tell about it."""
        if count.const is not None or not extent.symbols <= {d.name for d in self.kernel.dims}:
            return count
        low, high = self.facts.bounds(extent)
        return Value(count.text, count.elem, 0, count.scope, None, low, high)

    def vector_lanes(self, s: Loop) -> int:
        """How many elements of a vector loop are computed together: a register of its widest type."""
        found = self._widths.get(id(s))
        if found is None:
            bits = [8]
            for inner in walk((s,)):
                if isinstance(inner, Store):
                    bits.extend(_bits(inner.value))
            lanes = min(self.cpu.machine.lanes(max(bits)), 64)
            # with the loop, whose identity belongs to another one once it is gone
            found = self._widths[id(s)] = s, lanes
        return found[1]

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
        if s.by:
            self._instruction(s, lambda: self._stmts(s.body))
            return
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
