"""Loads in, of neighbours that the steps of an unrolled loop read one by one; a load for several of them, and
its lanes, out.

A multiply-add may take one lane of a register for all lanes of another (Machine.lane_operands): four steps of
a product then load four neighbours of each row at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from smelt.core.ir.kernel import Const, Load
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.exprs import BufferMemory, Exprs
from smelt.targets.llvm.machines import Cpu


@dataclass(frozen=True)
class _Run:
    """The steps 0 .. count-1 of a variable, written out without branches. whole: what is loaded by now."""

    var: str
    count: int
    whole: dict[tuple[object, ...], Value] = field(default_factory=dict)


class LaneLoads(Exprs):
    """The expressions of one kernel, some of whose loads are lanes of a longer one."""

    def __init__(self, b: FunctionBuilder, cpu: Cpu) -> None:
        super().__init__(b, cpu)
        self._runs: tuple[_Run, ...] = ()

    @contextmanager
    def run_of(self, var: str, count: int) -> Iterator[None]:
        """While the steps of an unrolled loop are written out, one after the other without branches
        between."""
        old = self._runs
        if self.cpu.machine.lane_operands:
            self._runs = (*old, _Run(var, count))
        yield
        self._runs = old

    def _load_alone(self, m: BufferMemory, e: Load) -> Value:
        zero = e.otherwise is None or (isinstance(e.otherwise, Const) and str(e.otherwise.value) == "0.0")
        if not self.lanes or not m.buffer.dtype.is_float or not zero:  # what else stands there is no vector
            return super()._load_alone(m, e)
        width = self.cpu.machine.lanes(m.buffer.dtype.bits)
        found = self.lane_of(m, e, 1, width, lambda: self._load_one(m, e, width))
        return super()._load_alone(m, e) if found is None else found

    def lane_of(
        self, m: BufferMemory, e: Load, unit: int, width: int, load: Callable[[], Value]
    ) -> Value | None:
        """What a load reads, `unit` neighbouring elements, as one of the `width` lanes that `load` makes
        where the first of them is read; None where steps of no run read the others."""
        symbols = self._symbols_of(e)
        for run in self._runs:
            at = self.env.get(run.var)
            if run.var not in symbols or not isinstance(at, int) or not self._is_near(m, e, run.var, unit):
                continue
            first = at - at % width
            if width < 2 or first + width > run.count:
                continue
            others = ((n, self.env[n]) for n in sorted(symbols - {run.var}))
            key = (first, e, *((n, v.text if isinstance(v, Value) else v) for n, v in others))
            if key not in run.whole:
                with self.bind({run.var: first}, 0):
                    run.whole[key] = load()
            return self.b.lane(run.whole[key], at - first)
        return None

    def _is_near(self, m: BufferMemory, e: Load, var: str, unit: int) -> bool:
        """Whether steps of the variable read neighbours in memory that nothing writes, of which the guard
        keeps out all or none."""
        step = self.flat(m.buffer, e.index).linear(var)
        moving = any(var in d.symbols for g in e.guard for d in (g.low, g.index, g.high))
        return m.read_only and step is not None and step[0] == unit and not moving
