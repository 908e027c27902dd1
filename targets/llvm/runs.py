"""Loads in, of neighbours that the steps of an unrolled loop read one by one; a load for several of them, and
its lanes, out.

A multiply-add may take one lane of a register for all lanes of another (Machine.lane_operands): four steps of
a product then load four neighbours of each row at once. Where the lanes of a vector read from rows apart, and
the steps neighbours within the rows, all is loaded row by row and turned round in registers: a transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from smelt.core.ir.kernel import Const, Load
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.exprs import BufferMemory, Exprs
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.scalar import storage_elem

MOST_STEPS = 16
"""Steps that are loaded together where lanes read from rows apart: 16 bytes, or a line of floats."""


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
        self._runs = (*old, _Run(var, count))
        yield
        self._runs = old

    def _load(self, e: Load) -> Value:
        turned = self._load_turned(e)
        return super()._load(e) if turned is None else turned

    def _load_turned(self, e: Load) -> Value | None:
        """What lanes read from rows apart, where the steps of a run read neighbours within the rows: each row
        is loaded once for all steps. None where it is anything else."""
        symbols = self._symbols_of(e)
        if not self.lanes or e.buffer in self.registers or e.guard or self._moving.isdisjoint(symbols):
            return None
        m = self.memory[e.buffer]
        for run in () if self.cpu.machine.has_lanes else self._runs:
            at, steps = self.env.get(run.var), run.count
            fits = 1 < steps <= MOST_STEPS and steps & (steps - 1) == 0 and self.lanes % steps == 0
            power = self.lanes & (self.lanes - 1) == 0
            if not (fits and power and run.var in symbols and isinstance(at, int)):
                continue
            split = self.split(m, e.index)
            if not self._is_near(m, e, run.var, 1) or (split is not None and split[0] in (0, 1)):
                continue
            where = tuple(self._told_apart(e, run))
            if (0, *where) not in run.whole:
                found = self._turned(self._rows_of(m, e, run))
                run.whole.update({(k, *where): v for k, v in enumerate(found)})
            return self.from_storage(run.whole[at, *where], m.buffer.dtype)
        return None

    def _rows_of(self, m: BufferMemory, e: Load, run: _Run) -> list[Value]:
        """For each lane, what all steps read, side by side."""
        rows = []
        for i in range(self.lanes):
            with self.bind({**self.index.lane(self.env, i), run.var: 0}, 0):
                rows.append(self.read_raw(m, self.pointer(m, e.index), storage_elem(e.dtype), run.count))
        return rows

    def _turned(self, rows: list[Value]) -> list[Value]:
        """Rows of W elements as W vectors, each an element of every row. Two halves interleaved move the
        highest bit of an element's place to its end: all bits of the row's number, one after the other."""
        width, count = rows[0].lanes, len(rows)
        pairs = [n for k in range(width) for n in (k, width + k)]
        for _ in range(count.bit_length() - 1):
            halves = zip(rows[: count // 2], rows[count // 2 :], strict=True)
            rows = [self.b.shuffle(a, b, p) for a, b in halves for p in (pairs[:width], pairs[width:])]
        each = count // width
        return [self._end_to_end(rows[k * each : (k + 1) * each]) for k in range(width)]

    def _end_to_end(self, parts: list[Value]) -> Value:
        """Vectors one behind the other; a power of 2 of them."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.b.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
        return parts[0]

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
        for run in self._runs if self.cpu.machine.lane_operands else ():
            at = self.env.get(run.var)
            if run.var not in symbols or not isinstance(at, int) or not self._is_near(m, e, run.var, unit):
                continue
            first = at - at % width
            if width < 2 or first + width > run.count:
                continue
            key = (first, *self._told_apart(e, run))
            if key not in run.whole:
                with self.bind({run.var: first}, 0):
                    run.whole[key] = load()
            return self.b.lane(run.whole[key], at - first)
        return None

    def _told_apart(self, e: Load, run: _Run) -> Iterator[object]:
        """What tells a load from others in the steps of a run."""
        yield e
        for n in sorted(self._symbols_of(e) - {run.var}):
            v = self.env[n]
            yield n, v.text if isinstance(v, Value) else v

    def _is_near(self, m: BufferMemory, e: Load, var: str, unit: int) -> bool:
        """Whether steps of the variable read neighbours in memory that nothing writes, of which the guard
        keeps out all or none."""
        step = self.flat(m.buffer, e.index).linear(var)
        moving = any(var in d.symbols for g in e.guard for d in (g.low, g.index, g.high))
        return m.read_only and step is not None and step[0] == unit and not moving
