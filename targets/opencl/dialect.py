"""The operations of a kernel in, lines of OpenCL C out; a value is C text that is safe inside any other."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod

from smelt.core.dim import Dim, sym, to_dim
from smelt.core.dtype import DType, bf16, bool_, f16, i64
from smelt.core.ir.analysis.scope import expressions
from smelt.core.ir.kernel import Buffer, Expr, Index, Kernel, Stmt, Tiles, children
from smelt.core.machine import Machine
from smelt.targets.grid.exprs import GridPlace, flat_index
from smelt.targets.grid.parts import identifier
from smelt.targets.grid.statements import GridStatements, Inside
from smelt.targets.opencl import scalars
from smelt.targets.opencl.helpers import Helpers, storage_type, value_type
from smelt.targets.opencl.index import index_text, long_literal
from smelt.targets.opencl.machine import PRIVATE_LIMIT
from smelt.targets.opencl.small_groups import every_other, small_group
from smelt.targets.opencl.tile_parts import FIRST, WHOLE, tile_of
from smelt.targets.opencl.vector_arrays import whole_vectors
from smelt.targets.opencl.writer import Writer

LONG = 100  # characters from which an expression becomes a variable

_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "lt": "<", "eq": "==", "ge": ">=",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(GridPlace):
    """name: a C pointer, or an array of computed values (see helpers.value_type). vectors: an array of
    vectors that `name` points into, of so many elements each: compilers keep those in registers. first: the
    element of the buffer that the array begins with."""

    name: str
    vectors: tuple[str, int] = ("", 0)
    first: Dim = field(default_factory=lambda: to_dim(0))


@dataclass(frozen=True, slots=True)
class CVariable:
    """A variable of C."""

    w: Writer
    name: str

    def get(self) -> str:
        return self.name

    def set(self, value: str, /) -> None:
        self.w.line(f"{self.name} = {value};")


_WORD = re.compile(r"\w+")
_MINE = "const long lane = get_local_id(0);"


class Dialect(GridStatements[str, Place]):
    """OpenCL C. name: of the kernel in C. some: lanes of a group under SMALL_GROUPS. head: lines before those
    of the writer. given: what a function may be given, by name with its type. functions: those that the
    kernel calls."""

    device = "OpenCL"
    private_limit = PRIVATE_LIMIT

    def __init__(
        self, kernel: Kernel, s: Stmt, machine: Machine, helpers: Helpers, name: str = ""
    ) -> None:
        super().__init__(kernel, s, machine)
        self.name = name
        self.some = small_group(s, self.lanes)
        self.helpers, self.w = helpers, Writer()
        self.head: list[str] = []
        self.given: dict[str, str] = {}
        self.functions: list[str] = []
        self._waits = False  # a lane for another, in a function
        self._in_parts = WHOLE
        self._step = ""  # the variable of the innermost loop that is one, and not written out
        self.uses: dict[int, int] = {}
        for e in expressions((s,)):
            count_uses(e, self.uses)

    # -- blocks

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head {` ... `}` around what is written inside."""
        with self.w.braces(head), self.frame():
            yield

    def when(self, condition: str) -> AbstractContextManager[None]:
        return self.block(f"if ({condition})")

    def either(self, condition: str, yes: Inside, no: Inside) -> None:
        for head, inside in ((f"if ({condition})", yes), ("else", no)):
            with self.block(head):
                inside()

    @contextmanager
    def looped(self, var: str, extent: Dim, others: Collection[Dim], level: str = "") -> Iterator[str]:
        asked, name = self.unless_idle(extent, others), self.named(var)
        step = self._step
        if level == "unroll" and self.number(extent) is not None:
            self.w.line("#pragma unroll")
        else:
            self._step = var
        start, end = "0", self.index(extent)
        if var in self._in_parts.loops:
            start = self.index(sym(FIRST))
            end = f"{start} + {self._in_parts.rows}L / TILE_PARTS"
        head = f"for (long {name} = {start}; {name} < {end}; ++{name})"
        with self.block(f"if ({asked}) {head}" if asked else head):
            yield name
        self._step = step

    @contextmanager
    def _buffers(self, buffers: Sequence[Buffer], body: tuple[Stmt, ...], shared: bool) -> Iterator[None]:
        """As always; if it is a tile, around all of `body` for a part of its rows after the other as long as
        there are rows."""
        before, tile = self._in_parts, WHOLE if shared else tile_of(buffers, body)
        with ExitStack() as around:
            if tile.rows:
                name = self.w.fresh("first")
                facts = self.facts.with_range(FIRST, 0, tile.rows - 1)
                around.enter_context(self.scope({FIRST: name}, facts))
                there = self.condition(tile.used)
                test = f"{name} < {tile.rows}L" + (f" && {there}" if there else "")
                head = f"for (long {name} = 0; {test}; {name} += {tile.rows}L / TILE_PARTS)"
                around.enter_context(self.block(head))
                self._in_parts = tile
            with super()._buffers(buffers, body, shared):
                yield
        self._in_parts = before

    @contextmanager
    def turns(self, count: str) -> Iterator[str]:
        name = self.w.fresh("instance")
        with self.block(f"for (long {name} = {self.lane}; {name} < {count}; {name} += {self.lanes})"):
            yield name

    @contextmanager
    def stepping(self, t: Tiles, first: str, last: str) -> Iterator[tuple[str, str]]:
        start, rows = self.named(t.start), self.named(t.rows)
        self.w.line(f"long {rows};")
        with self.block(f"for (long {start} = {first}; {start} < {last}; {start} += {rows})"):
            left = self.w.temporary("long", f"{last} - {start}")
            choice = "".join(f"{left} >= {n}L ? {n}L : " for n in t.sizes[:-1])
            self.w.line(f"{rows} = {choice}{t.sizes[-1]}L;")
            yield start, rows

    def barrier(self) -> None:
        self.w.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")

    @contextmanager
    def group_number(self) -> Iterator[str]:
        small = f"get_group_id(0) / {self.lanes // self.some}"
        yield self.w.temporary("long", self.of_groups("get_group_id(0)", small))

    def apart(self, inside: Inside) -> None:
        """As a function, which gets what it names of what the kernel is given: PoCL compiles four of them in
        less than half the time that it takes for four statements in one."""
        first = len(self.w.lines)
        inside()
        body = self.w.lines[first:]
        del self.w.lines[first:]
        words = {*_WORD.findall("\n".join(body))}
        used = [name for name in self.given if name in words]
        name = f"s_{self.name}_{len(self.functions)}"
        parameters = ", ".join(self.given[n] for n in used)
        head = f"__attribute__((noinline))\nstatic void {name}({parameters}) {{"
        lanes = [f"  EACH_LANE({self.lanes}) {{", *body, "  }"] if "lane" in words else body
        self.functions.append("\n".join([head, *lanes, "}", ""]))
        self.w.line(f"{name}({', '.join(used)});")
        self._waits = self._waits or any("barrier(" in line for line in body)

    def one_item(self) -> bool:
        """Whether lanes do all they do in functions, none of which has one wait for another: then one
        work-item may do in each what all lanes do, one lane after the other."""
        outside = {*_WORD.findall("\n".join(self.w.lines))}
        return bool(self.functions) and not self._waits and "lane" not in outside

    def function_text(self, text: str) -> str:
        """A function as it stands before the kernel."""
        return text if self.one_item() else text.replace(f"EACH_LANE({self.lanes})", _MINE)

    def lane_number(self) -> str:
        small = f"({every_other('get_group_id(0)', self.lanes // self.some)}) * {self.some} + get_local_id(0)"
        self.head.append(f"  const long lane = {self.of_groups('get_local_id(0)', small)};")
        return "lane"

    def of_groups(self, whole: str, small: str) -> str:
        """What depends on whether groups are small."""
        return whole if self.some == self.lanes else f"LANES({whole}, {small})"

    # -- indices

    def named(self, symbol: str) -> str:
        """A fresh C name for an index symbol."""
        return self.w.fresh(f"i_{identifier(symbol)}")

    def index(self, d: Dim) -> str:
        return index_text(d, self.env, self.facts, self.helpers)

    def compare(self, a: Dim, operator: str, b: Dim) -> str:
        return f"{self.index(a)} {operator} {self.index(b)}"

    def both(self, a: str, b: str) -> str:
        return f"{a} && {b}"

    def compute(self, fn: str, a: str | int, b: str | int) -> str:
        a, b = (long_literal(x) if isinstance(x, int) else x for x in (a, b))
        if fn in ("min", "max"):
            return self.w.temporary("long", f"{self.helpers.use(f'index_{fn}')}({a}, {b})")
        return self.w.temporary("long", f"{a} {_OPERATORS[fn]} {b}")

    def clamped(self, var: str, value: Expr, low: Dim, high: Dim) -> str:
        raw = self.cast(self.value(value), value.dtype, i64)
        name = self.named(var)
        least, most = self.helpers.use("index_max"), self.helpers.use("index_min")
        self.w.line(f"const long {name} = {most}({least}({raw}, {self.index(low)}), {self.index(high)});")
        return name

    # -- values

    def literal(self, value: bool | int | float, dtype: DType) -> str:
        return scalars.literal(value, dtype)

    def index_value(self, e: Index) -> str:
        return self.cast(self.index(e.dim), i64, e.dtype)

    def cast(self, v: str, source: DType, target: DType) -> str:
        return scalars.cast(self.helpers, v, source, target)

    def bitcast(self, v: str, source: DType, target: DType) -> str:
        return scalars.bitcast(self.helpers, v, source, target)

    def select(self, condition: str, a: str, b: str) -> str:
        return f"({condition} ? {a} : {b})"

    def choose(self, condition: str, a: Callable[[], str], b: Callable[[], str]) -> str:
        other = b()
        return self.select(condition, a(), other)

    def intrinsic(self, fn: str, dtype: DType, *args: str) -> str:
        return scalars.intrinsic(self.helpers, fn, dtype, *args)

    def contracted(self, dtype: DType, a: str, b: str, total: str) -> str:
        return f"{self.helpers.use('muladd', dtype)}({a}, {b}, {total})"

    def once(self, dtype: DType, v: str) -> str:
        return v if v.isidentifier() else self.w.temporary(value_type(dtype), v)

    def kept(self, e: Expr, v: str) -> str:
        if self.uses.get(id(e), 2) == 1 and len(v) <= LONG:
            return v
        return super().kept(e, self.once(e.dtype, v))

    def cell(self, dtype: DType, first: str) -> CVariable:
        name = self.w.fresh("acc")
        self.w.line(f"{value_type(dtype)} {name} = {first};")
        return CVariable(self.w, name)

    # -- memory

    def flat(self, place: Place, index: Sequence[Dim]) -> Dim:
        """Where an element is in its array, in elements."""
        return flat_index(place, index) - place.first

    def element(self, name: str, index: Sequence[Dim]) -> tuple[Place, str]:
        place = self.places[name]
        return self.based(place, self.flat(place, index))

    def based(self, place: Place, at: Dim) -> tuple[Place, str]:
        """An element's place and number, counted from what stays as it is in the innermost loop: a compiler
        keeps that pointer, where it would make the sums of all rows anew by vectors, an element at a time."""
        parts = None if place.is_array else at.linear(self._step)
        if parts is None or parts[0] == 0 or parts[1].is_const:
            return place, self.index(at)
        # no pointer may lie outside of its buffer, not even on the way
        if not all(map(self.facts.seems_natural, parts)):
            return place, self.index(at)
        moving, fixed = parts
        name = f"({place.name} + {self.index(fixed)})"
        return replace(place, name=name), self.index(moving * sym(self._step))

    def read(self, place: Place, at: str) -> str:
        dtype = place.buffer.dtype
        if dtype == bool_:
            return f"({place.name}[{at}] != 0)"
        if not place.is_array:
            if dtype == f16:
                return f"vload_half({at}, {place.name})"
            if dtype == bf16:
                return scalars.from_bits(self.helpers, f"{place.name}[{at}]", dtype)
        return f"{place.name}[{at}]"

    def write(self, place: Place, at: str, value: str) -> None:
        dtype = place.buffer.dtype
        if not place.is_array and dtype == f16:
            self.w.line(f"vstore_half_rte({value}, {at}, {place.name});")
            return
        if not place.is_array and dtype == bf16:
            value = scalars.to_bits(self.helpers, value, dtype)
        elif dtype == bool_:
            value = f"({storage_type(dtype)}){value}"
        self.w.line(f"{place.name}[{at}] = {value};")

    def element_bytes(self, b: Buffer, shared: bool) -> int:
        return max(b.dtype.bytes, 4 if b.dtype.is_float else 1)

    def private_array(
        self, b: Buffer, extents: tuple[int, ...], leading: int, body: tuple[Stmt, ...]
    ) -> Place:
        name = self.w.fresh(f"r_{identifier(b.name)}")
        count, kind, width = _length(extents), _element(b.dtype), whole_vectors(b, body)
        if not width or count % width:
            self.w.line(f"{kind} {name}[{count}];")
            return Place(buffer=b, extents=extents, leading=leading, name=name)
        vectors, rows = self.w.fresh(f"v_{identifier(b.name)}"), self._in_parts.rows
        self.w.line(f"{kind}{width} {vectors}[{count // width}{' / TILE_PARTS' if rows else ''}];")
        self.w.line(f"__private {kind} *const {name} = (__private {kind} *){vectors};")
        first = sym(FIRST) * (count // rows) if rows else to_dim(0)
        made = Place(buffer=b, extents=extents, leading=leading, name=name, first=first)
        return replace(made, vectors=(vectors, width))

    def shared_array(self, b: Buffer, extents: tuple[int, ...]) -> Place:
        """OpenCL C wants arrays of the group at the head of a kernel."""
        name = self.w.fresh(f"s_{identifier(b.name)}")
        self.head.append(f"  __local {_element(b.dtype)} {name}[{_length(extents)}];")
        return Place(buffer=b, extents=extents, name=name)


def _length(extents: Sequence[int]) -> int:
    return max(prod(extents), 1)


def _element(d: DType) -> str:
    """The C type of an array's elements."""
    return storage_type(d) if d == bool_ else value_type(d)


def count_uses(e: Expr, uses: dict[int, int]) -> None:
    """How often each object occurs in others, by identity."""
    uses[id(e)] = uses.get(id(e), 0) + 1
    if uses[id(e)] == 1:
        for c in children(e):
            count_uses(c, uses)
