"""Loops over rows of registers in, one copy of their body out where that is long: rows lie on the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from smelt.core.ir.kernel import Buffer, Call, Kernel, Load, Loop, Reduce, Store, walk, walk_expr
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.exprs import BufferMemory
from smelt.targets.llvm.instructed import Instructed
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.registers import Registers
from smelt.targets.llvm.scalar import storage_elem

LOCAL_LIMIT = 1 << 18  # bytes of a thread's stack that a kernel may use for local buffers

SOME_CALLS = 2
"""Functions of an element from which on code for it is longer than what moves it to the stack and back."""


class Epilogues(Instructed):
    """What tiles do with their sums."""

    def __init__(self, b: FunctionBuilder, cpu: Cpu, kernel: Kernel) -> None:
        super().__init__(b, cpu, kernel)
        self.rare = False  # in a tile of a size that only small extents have
        self._local_bytes = 0
        self._locals = 0
        self._stacks: dict[str, tuple[int, Value]] = {}

    # -- arrays on the stack

    def _elements(self, b: Buffer) -> int:
        """How many a local buffer has."""
        count = 1
        for d in b.shape:
            n = self.index.number(d, self.env)
            assert isinstance(n, int), f"local buffer {b.name} has the dynamic extent {d}"
            count *= n
        return count

    def _local(self, b: Buffer) -> BufferMemory:
        """A buffer on the stack of the thread."""
        count = self._elements(b)
        self._local_bytes += count * b.dtype.bytes
        assert self._local_bytes <= LOCAL_LIMIT, f"local buffers need {self._local_bytes} bytes"
        return self._on_stack(b, count)

    def _on_stack(self, b: Buffer, count: int) -> BufferMemory:
        self._locals += 1
        pointer = Value(f"%local{self._locals}", "ptr", 0, self.b.root)
        kind = f"[{max(count, 1)} x {storage_elem(b.dtype)}]"
        self.b.allocas.append(f"{pointer.text} = alloca {kind}, align 64")
        return BufferMemory(b, pointer, False)

    def _stack_of(self, b: Buffer) -> BufferMemory:
        """Memory for what registers hold. Tiles of several sizes, of which one runs at a time, share it."""
        count = self._elements(b)
        known = self._stacks.get(b.name)
        if known is not None and known[0] >= count:
            return BufferMemory(b, known[1], False)
        made = self._on_stack(b, count)  # no more than registers hold, which needs no limit
        self._stacks[b.name] = count, made.pointer
        return made

    # -- rows

    def rows_of(self, s: Loop) -> list[str]:
        """The registers whose rows an unrolled loop takes one by one, where it is better a loop than code for
        each row: all it does is to store what functions give that take many instructions, or, in a tile of a
        size that few extents have, some. Empty for another loop."""
        inner = list(walk(s.body))
        plain = all(isinstance(x, Store) or (isinstance(x, Loop) and not x.buffers) for x in inner)
        if not plain or not self.alone:
            return []
        stores = [x for x in inner if isinstance(x, Store)]
        parts = [x for store in stores for x in walk_expr(store.value)]
        calls = [x for x in parts if isinstance(x, Call)]
        long = any(self.cpu.machine.heavy(x.fn) for x in calls) or (self.rare and len(calls) >= SOME_CALLS)
        reduces = any(isinstance(x, Reduce) for x in parts)
        if not long or reduces or any(x.buffer in self.registers for x in stores):
            return []
        loads = [x for x in parts if isinstance(x, Load) and x.buffer in self.registers]
        names = sorted({x.buffer for x in loads if any(s.var in d.symbols for d in x.index)})
        return names if all(map(self._is_array, names)) else []

    def _is_array(self, name: str) -> bool:
        """Whether registers hold what an array of the buffer would."""
        r = self.registers[name]
        return type(r) is Registers and r.elem == storage_elem(r.buffer.dtype)

    @contextmanager
    def in_memory(self, names: Sequence[str]) -> Iterator[None]:
        """These registers as arrays, while nothing writes them."""
        registers, memory = self.registers, self.memory
        arrays = {name: self._spilled(self.registers[name]) for name in names}
        with self.bind({}):
            self.memory = {**memory, **arrays}
            self.registers = {name: r for name, r in registers.items() if name not in arrays}
            yield
        self.registers, self.memory = registers, memory

    def _spilled(self, r: Registers) -> BufferMemory:
        """An array with what is in the registers."""
        m, width = self._stack_of(r.buffer), r.buffer.dtype.bytes
        for lead, start in r.every():
            if (lead, start) in r.cells:
                flat = 0
                for i, n in zip((*lead, start), r.shape, strict=True):
                    flat = flat * n + i
                at = self.at(m.pointer, flat * width)
                self.b.effect(f"store {r.cells[lead, start].typed}, ptr {at.text}, align {width}")
        self.epochs[r.buffer.name] = self.epochs.get(r.buffer.name, 0) + 1
        return m
