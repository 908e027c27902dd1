"""Kernels in, LLVM IR for NVPTX out: one kernel function per top-level statement, one thread block per group.

Parameters, 8 bytes each: the address of each buffer, the kernel's dims, the number of the first group. Where
these take more than 4 KiB the kernel gets the address of a block with buffers and dims, and the first group.
Outside of lane nodes a statement is thread 0's; loops around lane nodes run on all threads, with a barrier
where an edge between siblings is all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from smelt.core.dim import product
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.barriers import has_lanes, lane_count
from smelt.core.ir.groups import instances, nest
from smelt.core.ir.instructions import Match, match, row_of
from smelt.core.ir.kernel import Block, Buffer, Kernel, Loop, LoopNode, Stmt, Tiles
from smelt.targets.cuda.copies import copies, in_line, moved, under_way, wait_for_copies
from smelt.targets.cuda.libm import LibmBuilder
from smelt.targets.cuda.machine import PRIVATE_LIMIT, STATIC_BYTES
from smelt.targets.cuda.matrix import WARP, WarpProduct
from smelt.targets.cuda.neighbours import stored_together
from smelt.targets.cuda.threads import meetings, privatised
from smelt.targets.cuda.wide import RESIDENT, WideLoads
from smelt.targets.grid.parts import each_part, too_large
from smelt.targets.grid.statements import Inside
from smelt.targets.llvm.builder import Value
from smelt.targets.llvm.exprs import BufferMemory
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.scalar import storage_elem

MOST_PARAMETERS = 512
"""Parameters of 8 bytes that a kernel can have: 4 KiB on every architecture."""
MOST_TURNS = 8
"""Turns of threads at copies that are written out, so that addresses differ by constants."""
THREAD = "llvm.nvvm.read.ptx.sreg.tid.x"
GROUP = "llvm.nvvm.read.ptx.sreg.ctaid.x"
ASKED_ARRAY = "smelt_asked"
"""The shared memory that is asked for at a launch."""
BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel function. text: LLVM IR, its definition and the shared memory that it has. threads: of a
    group. parameters: its words, the first group included. shared_bytes: of a group. asked_bytes: all of
    these where they are more than code may declare, else 0."""

    name: str
    text: str
    threads: int
    parameters: int
    shared_bytes: int
    asked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """The functions of some kernels, and what they need by symbol: declarations, and constants."""

    parts: dict[tuple[str, int], Part]
    declared: dict[str, str]


def emit_program(kernels: Sequence[Kernel], cpu: Cpu) -> Program:
    """All top-level statements of these kernels; raises as `each_part` does."""
    declared: dict[str, str] = {}
    parts = each_part(kernels, lambda k, i, name: KernelPart(k, i, name, cpu, declared).part())
    return Program(parts, declared)


class KernelPart(WideLoads):
    """One top-level statement. together: whether all threads of the group run the code that is being written,
    with equal values of everything but what is the thread's own; else it is that of single threads."""

    builder = LibmBuilder
    alone = False

    def __init__(self, kernel: Kernel, part: int, name: str, cpu: Cpu, declared: dict[str, str]) -> None:
        threads = lane_count(kernel.body[part], cpu.machine.max_lanes)
        s, self.own = privatised(kernel.body[part], threads)
        super().__init__(kernel, part, s, cpu, declared)
        self.name, self.threads = name, threads
        # an output may lie where an input does, and threads see each other's stores: no noalias either
        self.invariant_loads = False
        self.together = threads > 1
        self.asynchronous = copies(s) and int(cpu.cpu.removeprefix("sm_")) >= 80
        self.in_line = False  # copies begin at multiples of what is moved at once
        self.lane_nodes: tuple[LoopNode, ...] = ()
        self.meet = meetings(s, kernel_facts(kernel), kernel.buffers(), self.own)
        self.shared: dict[str, int] = {}

    # -- the frame

    def part(self) -> Part:
        """The whole function."""
        self._groups(self.statement)
        buffers = len(self.kernel.buffers())
        words = [*(f"%b{i}" for i in range(buffers)), *(f"%d{i}" for i in range(len(self.kernel.dims)))]
        direct = len(words) < MOST_PARAMETERS
        if direct:
            parameters = [
                *(f"ptr addrspace(1) %g{i}" for i in range(buffers)),
                *(f"i64 {w}" for w in words[buffers:]),
            ]
            head = [f"%b{i} = addrspacecast ptr addrspace(1) %g{i} to ptr" for i in range(buffers)]
        else:
            parameters, head = ["ptr addrspace(1) %block"], self._from_block(words, buffers)
        self.b.allocas[:0] = head
        lines = ["  " + ", ".join([*parameters, "i64 %first"])]
        attributes = f'nounwind "nvvm.reqntid"="{self.threads}"'
        if self.issued:
            attributes += f' "nvvm.minctasm"="{RESIDENT}"'
        total = _aligned_sum(self.shared.values())
        asked = total if total > STATIC_BYTES else 0
        if asked:
            self.b.declared[ASKED_ARRAY] = f"@{ASKED_ARRAY} = external addrspace(3) global [0 x i8], align 16"
        body, arrays, at = self.b.text(), [], 0
        for n, size in self.shared.items():
            if asked:
                place = f"getelementptr (i8, ptr addrspace(3) @{ASKED_ARRAY}, i64 {at})"
                body = body.replace(f"@{self._array(n)}", place)
            else:
                kind = f"internal addrspace(3) global [{size} x i8] undef, align 16"
                arrays.append(f"@{self._array(n)} = {kind}")
            at += _aligned_sum([size])
        define = f'define ptx_kernel void @"{self.name}"(\n{lines[0]}) {attributes} {{'
        text = "\n".join([*arrays, define, body, "}", ""])
        words_given = len(words) + 1 if direct else 2
        return Part(self.name, text, self.threads, words_given, total, asked)

    def _from_block(self, words: Sequence[str], buffers: int) -> list[str]:
        head = []
        for i, word in enumerate(words):
            kind, name = ("ptr addrspace(1)", f"%g{i}") if i < buffers else ("i64", word)
            head.append(f"%w{i} = getelementptr i64, ptr addrspace(1) %block, i64 {i}")
            head.append(f"{name} = load {kind}, ptr addrspace(1) %w{i}, align 8")
            if i < buffers:
                head.append(f"{word} = addrspacecast ptr addrspace(1) {name} to ptr")
        return head

    def _register(self, name: str, most: int | None) -> Value:
        """A special register, as an index below `most`."""
        self.b.declare(name, "i32", [], "nounwind memory(none)")
        raw = self.b.pure(f"call i32 @{name}()", "i32", 0)
        made = self.b.pure(f"zext {raw.typed} to i64", "i64", 0, raw)
        made.low, made.high = 0, None if most is None else most - 1
        return made

    def _barrier(self, under_way: int = 0) -> None:
        """under_way: passes of the loop whose copies may still be coming, the one that ends here included."""
        if self.asynchronous:
            wait_for_copies(self.b, under_way)
        self.b.declare(BARRIER, "void", ["i32"], "convergent nounwind")
        self.b.effect(f"call void @{BARRIER}(i32 0)")
        self.start_statement()

    # -- groups and lanes

    def _groups(self, s: Stmt) -> None:
        nodes, body = nest(s, "group")
        extents = [self.index.number(instances(n), self.env) for n in nodes]
        if all(n == 1 for n in extents):
            self._enter(nodes, [0] * len(nodes), body)
            return
        first = Value("%first", "i64", 0, self.b.root, None, 0)
        flat = self.index.as_value(self.index.add(first, self._register(GROUP, None)))
        self._enter(nodes, self._decode(flat, extents), body)

    def _lanes(self, s: Loop | Tiles) -> None:
        """A nest of lane nodes: its instances spread over the threads, which take turns if need be."""
        nodes, body = nest(s, "lane")
        extents = [self.index.number(instances(n), self.env) for n in nodes]
        count = self.index.number(product(instances(n) for n in nodes), self.env)
        if count == 0:
            return
        thread = self._register(THREAD, self.threads)
        self.together, self.lane_nodes = False, nodes

        def run(flat: Value) -> None:
            self._enter(nodes, self._decode(flat, extents), body)

        if isinstance(count, int) and count < self.threads:
            low = self.s.compare("icmp slt", thread, self.b.integer(count, "i64"))
            inside = Value(thread.text, "i64", 0, thread.scope, None, 0, max(count - 1, 0))
            self._branch(low, lambda: run(inside), lambda: None, (s,))
        else:
            self._turns(s, nodes, body, count, thread, run)
        self.together = True

    def _turns(
        self, s: Loop | Tiles, nodes: Sequence[LoopNode], body: tuple[Stmt, ...], count: int | Value,
        thread: Value, run: Callable[[Value], None],
    ) -> None:
        """As many instances as threads, more, or nobody knows how many."""
        whole = isinstance(count, int) and count % self.threads == 0  # threads stay together

        def loop() -> None:
            if count == self.threads:
                run(thread)
                return
            if isinstance(count, int) and whole:
                turns = self.b.integer(count // self.threads, "i64")
            else:
                left = self.index.sub(self.index.add(count, self.threads - 1), thread)
                turns = self.index.as_value(self.index.floordiv(left, self.threads))
            most = self.index.as_value(count).high

            def turn(i: Value) -> None:
                flat = self.index.as_value(self.index.add(self.index.mul(i, self.threads), thread))
                flat.low, flat.high = 0, None if most is None else most - 1
                run(flat)

            self._loop(turns, (s,), turn)

        def written_out(count: int) -> None:
            self.in_line = True
            for first in range(0, count, self.threads):
                flat = self.index.as_value(self.index.add(thread, first))
                flat.low, flat.high = first, first + self.threads - 1
                run(flat)
            self.in_line = False

        if whole and isinstance(count, int) and count <= MOST_TURNS * self.threads and in_line(self, body):
            written_out(count)
        else:
            loop()

    # -- statements

    def _stmts(self, body: Sequence[Stmt]) -> None:
        if not self.together:
            super()._stmts(body)
            return
        before = self.meet.before.get(id(body), frozenset())
        for i, s in enumerate(body):
            if i in before:
                self._barrier()
            if has_lanes(s):
                self._stmt(s)
            else:
                self._alone(s)

    def _alone(self, s: Stmt) -> None:
        """A statement that is thread 0's."""
        thread = self._register(THREAD, self.threads)
        first = self.s.compare("icmp eq", thread, self.b.integer(0, "i64"))

        def run() -> None:
            self.together = False
            self._stmt(s)
            self.together = True

        self._branch(first, run, lambda: None, (s,))

    def _stmt(self, s: Stmt) -> None:
        if self.together and isinstance(s, Loop | Tiles) and s.level == "lane":
            self._lanes(s)
            return
        plain = super()._stmt
        own = isinstance(s, Loop) and s.level == "unroll" and not self.together
        if not (own and self._neighbours(s, lambda: plain(s))):
            plain(s)

    def _neighbours(self, s: Stmt, plain: Inside) -> bool:
        """Emit an unrolled loop as one access of neighbours, where it is one; else False."""
        return isinstance(s, Loop) and (moved(self, s, plain) or stored_together(self, s))

    def _pass(self, node: Loop | Tiles) -> None:
        super()._pass(node)
        self._end_pass(node)

    def _end_pass(self, node: Loop | Tiles) -> None:
        """The end of one pass of a loop: over before the next one where threads share what it writes."""
        if self.together and id(node.body) in self.meet.after:
            self._barrier(under_way(node) if self.asynchronous else 0)

    def _greedy_group(self, t: Tiles, at: int | Value, inside: Inside) -> None:
        def one() -> None:
            inside()
            self._end_pass(t)

        super()._greedy_group(t, at, one)

    def _guarded(self, s: Block) -> None:
        if self.together and id(s.body) in self.meet.inside:
            self._barrier()
        super()._guarded(s)

    def _instruction(self, s: Block, plain: Inside) -> None:
        row = row_of(self.cpu.machine, s.by)
        assert row is not None, f"{self.cpu.machine.name} has no instruction '{s.by}'"
        found = match(s.body, row, self.facts)
        assert isinstance(found, Match), f"this is not '{s.by}': {found}"
        if found.store.buffer not in self.registers:
            plain()
            return
        self.start_statement()
        y, x = (n.var for n in self.lane_nodes[-2:] if isinstance(n, Loop))
        lane = self.index.as_value(self.index.mod(self._register(THREAD, self.threads), WARP))
        WarpProduct(self, found, y, x, lane).emit()

    def branch(self, condition: Value, then: Inside, other: Inside, body: Sequence[Stmt]) -> None:
        """One of two arms, which are code of these statements."""
        self._branch(condition, then, other, body)

    # -- local buffers

    def _with_buffers(self, buffers: Sequence[Buffer], body: Sequence[Stmt], inside: Inside) -> None:
        if self.together:
            buffers = [b if b.name in self.own else replace(b, space="shared") for b in buffers]
        super()._with_buffers(buffers, body, inside)

    def _local(self, b: Buffer) -> BufferMemory:
        count = self._elements(b)
        size = max(count, 1) * b.dtype.bytes
        if self.together and b.name not in self.own:
            return self._shared(b, size)
        self._local_bytes += size
        if self._local_bytes > PRIVATE_LIMIT:
            raise too_large(self.kernel, "CUDA", "a lane", self._local_bytes, PRIVATE_LIMIT)
        self._locals += 1
        pointer = Value(f"%local{self._locals}", "ptr", 0, self.b.root)
        kind = f"[{max(count, 1)} x {storage_elem(b.dtype)}]"
        self.b.allocas.append(f"{pointer.text} = alloca {kind}, align 16")
        return BufferMemory(b, pointer, False)

    def _shared(self, b: Buffer, size: int) -> BufferMemory:
        """An array of the group. Versions of the code that exclude each other have it in one place."""
        self.shared[b.name] = max(size, self.shared.get(b.name, 0))
        total = _aligned_sum(self.shared.values())
        if total > self.cpu.machine.shared_bytes:
            raise too_large(self.kernel, "CUDA", "a group", total, self.cpu.machine.shared_bytes)
        text = f"addrspacecast (ptr addrspace(3) @{self._array(b.name)} to ptr)"
        return BufferMemory(b, Value(text, "ptr", 0, self.b.root), False)

    def _array(self, name: str) -> str:
        return f'"{self.name}.{list(self.shared).index(name)}"'


def _aligned_sum(sizes: Iterable[int]) -> int:
    """Bytes of arrays that each begin on 16 bytes."""
    return sum((n + 15) // 16 * 16 for n in sizes)
