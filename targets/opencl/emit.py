"""Kernels in, OpenCL C 1.2 text out: one __kernel per top-level statement, one work-group per group.

Parameters follow targets/runtime/smelt_abi.h: for each buffer its base and a byte offset, the kernel's dims,
the number of groups. Outside of lane nodes a statement is work-item 0's; loops around lane nodes run on
all work-items, with a barrier where an edge between siblings is all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, ceildiv, product
from smelt.core.dtype import DType, bool_, f64
from smelt.core.ir.analysis.scope import accesses, kernel_facts, written
from smelt.core.ir.idle import needed
from smelt.core.ir.kernel import (
    Block,
    Bound,
    Buffer,
    Expr,
    Kernel,
    Loop,
    LoopNode,
    Stmt,
    Store,
    Tiles,
    walk,
    walk_expr,
)
from smelt.core.machine import Machine
from smelt.targets.opencl.exprs import Exprs, Place
from smelt.targets.opencl.helpers import Helpers, storage_type, value_type
from smelt.targets.opencl.lanes import (
    barriers_before,
    has_lanes,
    instances,
    lane_count,
    needs_barrier_after,
    nest,
    own_indices,
    reads_what_it_writes,
)
from smelt.targets.opencl.machine import MACHINE, PRIVATE_LIMIT
from smelt.targets.opencl.writer import identifier

Inside = Callable[[], None]

_FP64 = """\
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
"""


# A fused product in an index computation (resize) would choose another element than the definition does.
_EXACT = "#pragma OPENCL FP_CONTRACT OFF\n\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One __kernel: its name in C, its text, and the work-items of a group that it must be run with."""

    name: str
    text: str
    lanes: int


def part_names(kernels: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """C names for (kernel, top-level statement), each different: 'add' and 0 is k_add, 1 is k_add__1."""
    names: dict[tuple[str, int], str] = {}
    taken: set[str] = set()
    for kernel, part in kernels:
        base = name = f"k_{identifier(kernel)}" + (f"__{part}" if part else "")
        n = 1
        while name in taken:
            n += 1
            name = f"{base}_v{n}"
        taken.add(name)
        names[kernel, part] = name
    return names


def emit_part(
    kernel: Kernel, part: int, name: str, helpers: Helpers, machine: Machine = MACHINE
) -> Part:
    """A top-level statement as a __kernel. Raises SmeltError naming the kernel: internal for a tree that
    cannot be emitted, unsupported for one that needs more memory than a group has."""
    try:
        return _Function(kernel, kernel.body[part], name, helpers, machine).part()
    except AssertionError as e:
        raise SmeltError(f"kernel '{kernel.name}' cannot be emitted: {e}", kind="internal") from e


def program_text(parts: Iterable[Part], helpers: Helpers, dtypes: Iterable[DType]) -> str:
    """The source of a program: what the parts need, then the parts."""
    head = _FP64 if f64 in set(dtypes) else ""
    return "\n".join([head + _EXACT + helpers.text(), *(p.text for p in parts)])


def kernel_dtypes(kernel: Kernel) -> frozenset[DType]:
    """Every dtype that a kernel computes with."""
    found = {b.dtype for b in kernel.buffers().values()}
    for s in walk(kernel.body):
        if not isinstance(s, Store):
            found |= {b.dtype for b in s.buffers}
        for e in _expressions(s):
            found |= {x.dtype for x in walk_expr(e)}
    return frozenset(found)


def emit_program(
    kernels: Sequence[Kernel], machine: Machine = MACHINE
) -> tuple[str, dict[tuple[str, int], Part]]:
    """(source, parts) of all top-level statements of these kernels."""
    helpers = Helpers()
    names = part_names((k.name, i) for k in kernels for i in range(len(k.body)))
    parts = {
        (k.name, i): emit_part(k, i, names[k.name, i], helpers, machine)
        for k in kernels
        for i in range(len(k.body))
    }
    dtypes = frozenset[DType]().union(*map(kernel_dtypes, kernels))
    return program_text(parts.values(), helpers, dtypes), parts


def _expressions(s: Stmt) -> Iterator[Expr]:
    if isinstance(s, Store):
        yield s.value
    elif isinstance(s, Block):
        yield from (value for _, value, _, _ in s.let)


class _Function(Exprs):
    """One top-level statement. lanes: work-items of a group. In `shared` code all of them take part."""

    def __init__(self, kernel: Kernel, s: Stmt, name: str, helpers: Helpers, machine: Machine) -> None:
        super().__init__(helpers, kernel_facts(kernel))
        self.kernel, self.statement, self.name, self.machine = kernel, s, name, machine
        self.asked = needed((s,), kernel.buffers())
        self.lanes = lane_count(s, machine.max_lanes)
        self.own: frozenset[str] = frozenset()
        self.head: list[str] = []
        self.parameters: list[str] = []
        self._private_bytes = 0
        self._shared_bytes = 0

    # -- the frame

    def part(self) -> Part:
        """The whole __kernel."""
        self._bind_arguments()
        self._groups()
        parameters = ",\n    ".join([*self.parameters, "long groups"])
        size = f"__attribute__((reqd_work_group_size({self.lanes}, 1, 1)))"
        about = " ".join(f"{self.kernel.name}: {self.kernel.origin}".split()).replace("*/", "")
        lines = [
            f"/* {about.removesuffix(':')} */",
            f"__kernel {size}\nvoid {self.name}(\n    {parameters}) {{",
            *self.head,
            *self.w.lines,
            "}",
        ]
        return Part(self.name, "\n".join(lines) + "\n", self.lanes)

    def _bind_arguments(self) -> None:
        stores = written((self.statement,))
        used = _mentioned(self.statement)
        for i, b in enumerate(self.kernel.buffers().values()):
            base, at = f"b{i}", f"b{i}_at"
            self.parameters.append(f"__global uchar *{base}, ulong {at}")
            name = self.w.fresh(f"p_{identifier(b.name)}")
            self.places[b.name] = Place(b, name)
            if b.name in used:
                kind = f"__global {'' if b.name in stores else 'const '}{storage_type(b.dtype)} *"
                self.head.append(f"  {kind}{name} = ({kind})({base} + {at});")
        for d in self.kernel.dims:
            name = self.w.fresh(f"n_{identifier(d.name)}")
            self.parameters.append(f"long {name}")
            self.env[d.name] = d.low if d.low == d.high else name

    # -- groups and lanes

    def _groups(self) -> None:
        nodes, body = nest(self.statement, "group")
        shared = self.lanes > 1
        if shared:
            self.head.append("  const long lane = get_local_id(0);")
        at: list[str | int] = [0] * len(nodes)
        if any(self.number(instances(n)) != 1 for n in nodes):
            flat = self.w.temporary("long", "get_group_id(0)")
            at = self._decode(flat, nodes)
        self._enter(nodes, at, lambda: self._stmts(body, shared), shared)

    def _decode(self, flat: str, nodes: Sequence[LoopNode]) -> list[str | int]:
        """A flat instance number as one number for each node, the last fastest."""
        found: list[str | int] = []
        for n in reversed(nodes[1:]):
            count = instances(n)
            if self.number(count) == 1:
                found.append(0)
                continue
            extent = self.index(count)
            found.append(self.w.temporary("long", f"{flat} % {extent}"))
            flat = self.w.temporary("long", f"{flat} / {extent}")
        found.append(0 if self.number(instances(nodes[0])) == 1 else flat)
        return found[::-1]

    def _enter(
        self, nodes: Sequence[LoopNode], at: Sequence[str | int], inside: Inside, shared: bool
    ) -> None:
        """Bind the variables of parallel nodes from the outermost on, then go inside."""
        if not nodes:
            inside()
            return
        node = nodes[0]

        def deeper() -> None:
            with self._buffers(node.buffers, node.body, shared):
                self._enter(nodes[1:], at[1:], inside, shared)

        if isinstance(node, Tiles):
            self._tile(node, at[0], deeper, shared)
            return
        with self.bind({node.var: at[0]}, self.inside(node)):
            deeper()

    def _lanes(self, s: Stmt) -> None:
        """A nest of lane nodes: its instances spread over the work-items, which take turns if need be."""
        nodes, body = nest(s, "lane")
        count = product(instances(n) for n in nodes)
        number = self.number(count)

        def run(flat: str) -> None:
            self._enter(nodes, self._decode(flat, nodes), lambda: self._stmts(body, False), False)

        if number == self.lanes:
            with self.w.frame():
                run("lane")
        elif number is not None and number < self.lanes:
            with self.w.braces(f"if (lane < {number})"):
                run("lane")
        else:
            flat = self.w.fresh("instance")
            head = f"for (long {flat} = lane; {flat} < {self.index(count)}; {flat} += {self.lanes})"
            with self.w.braces(head):
                run(flat)

    # -- tiles

    def _tile(self, t: Tiles, at: str | int, inside: Inside, shared: bool) -> None:
        """The at-th instance of a node of tiles."""
        extent, most = self.index(t.extent), t.sizes[0]
        if t.mode == "greedy":
            first = self.w.temporary("long", f"{at} * {most}L")
            last = self.w.temporary("long", self._least(f"{first} + {most}L", extent))
            self._greedy(t, first, last, inside, shared)
            return
        known = self.number(t.extent)
        if known:
            self._known_tile(t, at, known, inside)
            return
        n = self.w.temporary("long", self._most(self.index(ceildiv(t.extent, most)), "1L"))
        size = self.w.temporary("long", f"{extent} / {n}")
        longer = self.w.temporary("long", f"{extent} % {n}")
        start = self.w.temporary("long", f"{size} * {at} + {self._least(longer, str(at))}")
        self._sized(t, start, self.w.temporary("long", f"{size} + ({at} < {longer})"), inside)

    def _known_tile(self, t: Tiles, at: str | int, extent: int, inside: Inside) -> None:
        """The at-th of balanced tiles of a constant extent, which have one or two sizes."""
        size, longer = divmod(extent, -(-extent // t.sizes[0]))
        facts = self.inside(t)
        if longer == 0:
            start = self.w.temporary("long", f"{size}L * {at}")
            with self.bind({t.start: start, t.rows: size}, facts.with_range(t.rows, size, size)):
                inside()
            return
        start = self.w.temporary("long", f"{size}L * {at} + {self._least(f'{longer}L', str(at))}")
        for head, rows in ((f"if ({at} < {longer}L)", size + 1), ("else", size)):
            bound: dict[str, str | int] = {t.start: start, t.rows: rows}
            with self.w.braces(head), self.bind(bound, facts.with_range(t.rows, rows, rows)):
                inside()

    def _least(self, a: str, b: str) -> str:
        return f"{self.helpers.use('index_min')}({a}, {b})"

    def _most(self, a: str, b: str) -> str:
        return f"{self.helpers.use('index_max')}({a}, {b})"

    def _greedy(self, t: Tiles, first: str, last: str, inside: Inside, shared: bool) -> None:
        """From first to last, each tile of the largest size that fits."""
        start, rows = self.variable(t.start), self.w.fresh(f"i_{identifier(t.rows)}")
        self.w.line(f"long {rows};")
        with self.w.braces(f"for (long {start} = {first}; {start} < {last}; {start} += {rows})"):
            left = self.w.temporary("long", f"{last} - {start}")
            choice = "".join(f"{left} >= {n}L ? {n}L : " for n in t.sizes[:-1])
            self.w.line(f"{rows} = {choice}{t.sizes[-1]}L;")
            self._sized(t, start, rows, lambda: self._iteration(t.body, inside, shared))

    def _sized(self, t: Tiles, start: str, rows: str, inside: Inside) -> None:
        """A tile; where loops are unrolled over its rows, with a version for whole tiles."""
        most, facts = t.sizes[0], self.inside(t)
        whole: dict[str, str | int] = {t.start: start, t.rows: most}
        if most == 1:
            with self.bind(whole, facts):
                inside()
            return
        if _unrolls(t):
            with (
                self.w.braces(f"if ({rows} == {most}L)"),
                self.bind(whole, facts.with_range(t.rows, most, most)),
            ):
                inside()
            with self.w.braces("else"), self.bind({t.start: start, t.rows: rows}, facts):
                inside()
            return
        with self.bind({t.start: start, t.rows: rows}, facts):
            inside()

    # -- local buffers

    @contextmanager
    def _buffers(
        self, buffers: Sequence[Buffer], body: tuple[Stmt, ...], shared: bool
    ) -> Iterator[None]:
        """Declare the buffers of a node around what is written inside."""
        old, old_own = dict(self.places), self.own
        for b in buffers:
            leading = own_indices(b, body, self.lanes) if shared and b.space == "register" else None
            if shared and leading is None:
                self.places[b.name] = self._local(b)
                self.own -= {b.name}
            else:
                self.places[b.name] = self._private(b, leading or 0)
                self.own |= {b.name}
        yield
        self.places, self.own = old, old_own

    def _private(self, b: Buffer, leading: int) -> Place:
        place = Place(b, self.w.fresh(f"r_{identifier(b.name)}"), True, self._extents(b)[leading:], leading)
        count, kind = _count(place.extents), _element(b.dtype)
        self._private_bytes += count * b.dtype.bytes
        if self._private_bytes > PRIVATE_LIMIT:
            raise self._too_large("private", self._private_bytes, PRIVATE_LIMIT)
        self.w.line(f"{kind} {place.name}[{count}];")
        return place

    def _local(self, b: Buffer) -> Place:
        """An array of the group. OpenCL C wants those at the head of a kernel."""
        place = Place(b, self.w.fresh(f"s_{identifier(b.name)}"), True, self._extents(b))
        count, kind = _count(place.extents), _element(b.dtype)
        self._shared_bytes += count * max(b.dtype.bytes, 4 if b.dtype.is_float else 1)
        if self._shared_bytes > self.machine.shared_bytes:
            raise self._too_large("local", self._shared_bytes, self.machine.shared_bytes)
        self.head.append(f"  __local {kind} {place.name}[{count}];")
        return place

    def _too_large(self, what: str, wanted: int, there: int) -> SmeltError:
        return SmeltError(
            f"kernel '{self.kernel.name}' needs {wanted} bytes of {what} memory, OpenCL devices are taken "
            f"to have {there}",
            kind="unsupported",
        )

    def _extents(self, b: Buffer) -> tuple[int, ...]:
        """Constant extents, the largest where tiles differ."""
        found = []
        for d in b.shape:
            n = self.number(d)
            if n is None:
                n = self.facts.bounds(d)[1]
            assert n is not None, f"local buffer {b.name} has the dynamic extent {d}"
            found.append(n)
        return tuple(found)

    # -- statements

    def _stmts(self, body: tuple[Stmt, ...], shared: bool) -> None:
        if not shared:
            for s in body:
                self._stmt(s, False)
            return
        shapes = {name: p.buffer for name, p in self.places.items()}
        before = barriers_before(body, self.facts, shapes, self.own)
        for i, s in enumerate(body):
            if i in before:
                self._barrier()
            if has_lanes(s):
                self._stmt(s, True)
            else:
                with self.w.braces("if (lane == 0)"):
                    self._stmt(s, False)

    def _barrier(self) -> None:
        self.w.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")

    def _iteration(self, body: tuple[Stmt, ...], inside: Inside, shared: bool) -> None:
        """One pass of a loop, over before the next one where work-items share what it writes."""
        inside()
        if shared:
            local = frozenset(n for n, p in self.places.items() if p.is_array) - self.own
            inner = frozenset(b.name for s in walk(body) if not isinstance(s, Store) for b in s.buffers)
            if needs_barrier_after(body, self.own, local | inner):
                self._barrier()

    def _stmt(self, s: Stmt, shared: bool) -> None:
        match s:
            case Store():
                self._store(s)
            case Block():
                self._block(s, shared)
            case Loop() | Tiles() if shared and s.level == "lane":
                self._lanes(s)
            case Loop():
                self._loop(s, shared)
            case Tiles():
                self._tiles(s, shared)

    def _needed(self, body: Sequence[Stmt], local: Sequence[Buffer]) -> frozenset[Dim]:
        """Extents without which a loop's body does nothing, less those that the launch has asked about."""
        return needed(body, self.kernel.buffers(), local) - self.asked

    def _loop(self, s: Loop, shared: bool) -> None:
        def inside() -> None:
            with self._buffers(s.buffers, s.body, shared):
                self._stmts(s.body, shared)

        count = self.number(s.extent)
        if count is not None and count <= 1:
            if count == 1:
                with self.w.frame(), self.bind({s.var: 0}, self.inside(s)):
                    inside()
            return
        name = self.variable(s.var)
        if s.level == "unroll" and count is not None:
            self.w.line("#pragma unroll")
        head = f"for (long {name} = 0; {name} < {self.index(s.extent)}; ++{name})"
        head = self.unless_idle(s.extent, self._needed(s.body, s.buffers)) + head
        with self.w.braces(head), self.bind({s.var: name}, self.inside(s)):
            self._iteration(s.body, inside, shared)

    def _tiles(self, t: Tiles, shared: bool) -> None:
        """Tiles that are not spread: one after the other."""

        def inside() -> None:
            with self._buffers(t.buffers, t.body, shared):
                self._stmts(t.body, shared)

        asked = self.unless_idle(t.extent, self._needed(t.body, t.buffers))
        if t.mode == "greedy":
            with self.w.braces(asked) if asked else nullcontext():
                self._greedy(t, "0", self.index(t.extent), inside, shared)
            return
        at = self.w.fresh("tile")
        count = self.index(ceildiv(t.extent, t.sizes[0]))
        with self.w.braces(f"{asked}for (long {at} = 0; {at} < {count}; ++{at})"):
            self._tile(t, at, lambda: self._iteration(t.body, inside, shared), shared)

    def _block(self, s: Block, shared: bool) -> None:
        with self.w.frame(), ExitStack() as bound:
            for n, (var, value, low, high) in enumerate(s.let):
                self.count_uses(value)
                with self.w.frame():
                    name = self.clamped(var, value, low, high)
                part = Block((), let=s.let[n : n + 1])
                bound.enter_context(self.bind({var: name}, self.inside(part)))
            if shared and reads_what_it_writes(s):
                self._barrier()
            with self._guarded(s.guard), self._buffers(s.buffers, s.body, shared):
                self._stmts(s.body, shared)

    @contextmanager
    def _guarded(self, guard: Sequence[Bound]) -> Iterator[None]:
        condition = self.condition(guard)
        if not condition:
            yield
            return
        with self.w.braces(f"if ({condition})"), self.bind({}, self.where(guard)):
            yield

    def _store(self, s: Store) -> None:
        with self._guarded(s.guard), self.w.frame():
            self.count_uses(s.value)
            if s.accumulate is None:
                value = self.value(s.value)
                self.write(*self.element(s.buffer, s.index), value)
                return
            place, at = self.element(s.buffer, s.index)
            value = self.accumulated(s.accumulate, place.buffer.dtype, self.read(place, at), s.value)
            self.write(place, at, value)


def _mentioned(s: Stmt) -> frozenset[str]:
    """Buffers that a statement loads or stores."""
    return frozenset(a.buffer for a in accesses(s))


def _unrolls(t: Tiles) -> bool:
    """Whether loops are unrolled over a tile's rows."""
    loops = (s for s in walk(t.body) if isinstance(s, Loop) and s.level == "unroll")
    return any(t.rows in s.extent.symbols for s in loops)


def _count(extents: Sequence[int]) -> int:
    return max(prod(extents), 1)


def _element(d: DType) -> str:
    """The C type of an array's elements."""
    return storage_type(d) if d == bool_ else value_type(d)
