"""Stores in, instructions out: to registers and memory, guarded, accumulated, contiguous or lane by lane."""

from __future__ import annotations

from smelt.core.dtype import DType
from smelt.core.ir.kernel import Bound, Call, Kernel, Store
from smelt.targets.llvm.builder import FunctionBuilder, Value, type_text
from smelt.targets.llvm.control import Control
from smelt.targets.llvm.exprs import BufferMemory, dtype_of
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.scalar import storage_elem


class Stores(Control):
    """The stores of one kernel. masks: guards of the blocks around that differ between lanes."""

    def __init__(self, b: FunctionBuilder, cpu: Cpu, kernel: Kernel) -> None:
        super().__init__(b, cpu, kernel)
        self.masks: list[tuple[Bound, ...]] = []

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
        moving = self.lanes and self.differs(*s.index)
        if not moving:
            value = self._uniform(s, mask)
            self._write(s, m, value, mask if not mask.lanes else self.b.integer(1, "i1"))
            return
        split = self.split(m, s.index)
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

    def _write(self, s: Store, m: BufferMemory, value: Value | None, mask: Value) -> None:
        """Store the value (None: evaluate it here) to memory, accumulated when the statement says so."""
        dtype = m.buffer.dtype
        at = self.pointer(m, s.index)
        moving = self.lanes if self.lanes and self.differs(*s.index) else 0
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
        if m.buffer.ahead and moving:
            self.lines_ahead.after_write(m.buffer, at, self.b.scope, value.elem, moving)
        self.epochs[s.buffer] = self.epochs.get(s.buffer, 0) + 1

    def _raw_load(self, m: BufferMemory, at: Value, lanes: int, mask: Value) -> Value:
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
        if fn == "fma" and value is None and isinstance(e, Call) and e.fn == "mul":
            x, y = (self.value(a) for a in e.args)
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
