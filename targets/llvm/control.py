"""Loops and branches whose bodies change registers: the values go in and come out as phis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from smelt.core.dim import Dim, Facts
from smelt.core.ir.idle import guards, needed
from smelt.core.ir.kernel import Buffer, Kernel, Stmt, Store, walk
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.runs import LaneLoads

BufferCell: TypeAlias = tuple[str, tuple[tuple[int, ...], int]]
"""A register buffer and the key of one of its cells."""


class Control(LaneLoads):
    """Control flow of one kernel. facts: the ranges of its dims."""

    def __init__(self, b: FunctionBuilder, cpu: Cpu, kernel: Kernel) -> None:
        super().__init__(b, cpu)
        self.kernel = kernel
        self.all_buffers = kernel.buffers()
        self.asked: frozenset[Dim] = frozenset()
        self.facts = Facts({d.name: (d.low, d.high) for d in kernel.dims})

    def written(self, body: Sequence[Stmt]) -> frozenset[str]:
        """Buffers that these statements store to."""
        return frozenset(s.buffer for s in walk(tuple(body)) if isinstance(s, Store))

    def _carried(self, body: Sequence[Stmt]) -> list[BufferCell]:
        names = self.written(body)
        return [(n, key) for n in sorted(names & self.registers.keys())
                for key in self.registers[n].every()]  # fmt: skip

    def _state(self, cells: Sequence[BufferCell]) -> list[Value]:
        return [self.registers[n].get(self.b, key) for n, key in cells]

    def _restore(
        self, cells: Sequence[BufferCell], values: Sequence[Value]
    ) -> None:
        for (n, key), v in zip(cells, values, strict=True):
            self.registers[n].cells[key] = v

    def _touch(self, body: Sequence[Stmt]) -> None:
        """Forget loaded values of buffers that body writes."""
        for name in self.written(body):
            self.epochs[name] = self.epochs.get(name, 0) + 1
        self.start_statement()

    def needed(self, body: Sequence[Stmt], local: Sequence[Buffer]) -> frozenset[Dim]:
        """The extents whose being 0 leaves a loop's body without effect, except those that the launch tests.
        local: buffers of one iteration."""
        return needed(body, self.all_buffers, local) - self.asked

    def unless_idle(self, count: Value, extent: Dim, others: Collection[Dim]) -> Value:
        """The trip count of a loop of that extent: 0 where one of the others, on which all its effects
        depend, is 0."""
        if count.const is not None or not others:
            return count
        params = [d.name for d in self.kernel.dims]
        asked = guards(extent, others, self.facts, params)
        if not asked:
            return count
        zero = self.b.integer(0, count.elem)
        for d in asked:
            n = self.index.value(d, self.env)
            some = self.b.pure(f"icmp sgt {n.typed}, 0", "i1", 0, n)
            made = self.b.pure(
                f"select i1 {some.text}, {count.typed}, {zero.typed}", count.elem, 0, some, count
            )
            made.low, made.high = 0, count.high
            count = made
        return count

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
                with self.bind({}):
                    run()
                return self._state(cells)

            return go

        self._restore(cells, emit([arm(run) for run in runs]))
        self._touch(body)
