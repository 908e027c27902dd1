"""A kernel of naive loops -> its arithmetic and the memory traffic that no way to compute it can avoid.

All are formulas of the kernel's dims. They are counted before the kernel is scheduled, so that what a
schedule adds (padding, packing, work done twice) is none of it. What does not depend on a loop around it is
counted once for all of its rounds, and of what only some elements need, all have it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.core.dim import YES, ZERO, Dim, TooLarge, dmax, dmin, product, value_at
from smelt.core.dtype import DType
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.kernel import (
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
)
from smelt.core.machine import COSTS, FREE

_NO_ARITHMETIC = FREE | {"select", "neg", "abs"}


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel has to do, in its dims.

    floating, integer: operations on elements of these types; a function such as exp is one, a multiply-add
    two; comparisons, whose results are bool, are none. read, written: bytes of each buffer, each element
    once; of a buffer that is read here and there, not more than the elements that are read. functions: how
    often which of COSTS is called on floats, among these operations.
    """

    floating: Dim = ZERO
    integer: Dim = ZERO
    read: Dim = ZERO
    written: Dim = ZERO
    functions: Mapping[str, Dim] = field(default_factory=dict, hash=False)

    def __add__(self, other: KernelWork) -> KernelWork:
        calls = dict(self.functions)
        for fn, n in other.functions.items():
            calls[fn] = calls.get(fn, ZERO) + n
        return KernelWork(
            self.floating + other.floating, self.integer + other.integer, self.read + other.read,
            self.written + other.written, calls,
        )  # fmt: skip

    def at(self, kernel: Kernel, sizes: Iterable[Dim]) -> KernelWork:
        """The work of a launch of this kernel with these sizes of its dims."""
        env = {p.name: size for p, size in zip(kernel.dims, sizes, strict=True)}
        return KernelWork(
            self.floating.substitute(env), self.integer.substitute(env), self.read.substitute(env),
            self.written.substitute(env), {fn: n.substitute(env) for fn, n in self.functions.items()},
        )  # fmt: skip

    @property
    def operations(self) -> Dim:
        """Of both types."""
        return self.floating + self.integer

    @property
    def bytes(self) -> Dim:
        """In both directions."""
        return self.read + self.written


def amounts(
    kernel: Kernel, found: KernelWork | None, at: Mapping[str, int]
) -> tuple[int, int, dict[str, int]]:
    """The operations, bytes and calls of functions of a launch with these values of its dims. found: the
    kernel's work; where no formula tells it, a launch moves its tensors once."""
    if found is None:
        buffers = (*kernel.inputs, *kernel.outputs)
        sizes = [math.prod(max(value_at(d, at), 0) for d in b.shape) * b.dtype.bytes for b in buffers]
        return 0, sum(sizes), {}
    operations, moved = (max(value_at(d, at), 0) for d in (found.operations, found.bytes))
    return operations, moved, {fn: max(value_at(d, at), 0) for fn, d in found.functions.items()}


class _Unknown(Exception):
    """The loops are of a kind whose work no formula tells."""


def work(kernel: Kernel) -> KernelWork | None:
    """The work of one launch; None where it cannot be told, as of a kernel with tiles."""
    count = _Count(frozenset(d.name for d in kernel.dims))
    try:
        count.statements(kernel.body, _Around())
        facts, read, written = kernel_facts(kernel), ZERO, ZERO
        for b in kernel.inputs:
            size, found = product(b.shape), count.read.get(b.name, ZERO)
            read += (size if facts.prove_le(size, found) is YES else dmin(size, found)) * b.dtype.bytes
        for b in kernel.outputs:
            written += product(b.shape) * b.dtype.bytes
        functions = {fn: count.total(found) for fn, found in count.functions.items()}
        return KernelWork(
            count.total(count.floating), count.total(count.integer), read, written, functions
        )
    except (_Unknown, TooLarge, RecursionError):
        return None


@dataclass
class _Count:
    """What has been counted of a kernel with these dims. floating, integer, and functions by name: how many
    expressions are computed so many times."""

    dims: frozenset[str]
    floating: dict[Dim, int] = field(default_factory=dict)
    integer: dict[Dim, int] = field(default_factory=dict)
    read: dict[str, Dim] = field(default_factory=dict)
    functions: dict[str, dict[Dim, int]] = field(default_factory=dict)

    @staticmethod
    def total(found: Mapping[Dim, int]) -> Dim:
        """All of them together."""
        return sum((times * n for times, n in found.items()), ZERO)

    def statements(self, body: Sequence[Stmt], around: _Around) -> None:
        """Count statements inside of these variables."""
        for s in body:
            if isinstance(s, Tiles):
                raise _Unknown
            if isinstance(s, Loop):
                self.statements(s.body, around.inside(s.var, self._extent(s.extent, around)))
            elif isinstance(s, Store):
                seen = _Seen()
                if s.accumulate is not None:
                    self._operation(s.value.dtype, around.times(around.extents))
                self._expression(s.value, around, seen)
            else:
                for var, value, low, high in s.let:
                    seen = _Seen()
                    self._expression(value, around, seen)
                    around = around.computed(var, seen.free(value), (low, high))
                self.statements(s.body, around)

    def _extent(self, extent: Dim, around: _Around) -> Dim:
        """The extent of a loop; of one that depends on variables, the larger of those at their ends."""
        extent = around.at_most(extent)
        if not self.dims.issuperset(extent.symbols):
            raise _Unknown
        return extent

    def _operation(self, dtype: DType, times: Dim) -> None:
        if dtype.is_float:
            self.floating[times] = self.floating.get(times, 0) + 1
        elif dtype.name != "bool":
            self.integer[times] = self.integer.get(times, 0) + 1

    def _expression(self, e: Expr, around: _Around, seen: _Seen) -> None:
        """Count an expression once for each value of the variables that it depends on, equal ones once."""
        known, times = around.rounds(seen.free(e), self.dims)
        if not seen.first(e, known):
            return
        if isinstance(e, Call) and e.fn not in _NO_ARITHMETIC:
            self._operation(e.dtype, 2 * times if e.fn == "fma" else times)
            if e.fn in COSTS and e.dtype.is_float:
                calls = self.functions.setdefault(e.fn, {})
                calls[times] = calls.get(times, 0) + 1
        elif isinstance(e, Load):
            self.read[e.buffer] = self.read.get(e.buffer, ZERO) + times
        elif isinstance(e, Reduce):
            for axis in e.axes:
                around = around.inside(axis.var, self._extent(axis.extent, around))
            self._operation(e.body.dtype, times * around.times(frozenset(a.var for a in e.axes)))
        elif isinstance(e, Let):
            self._expression(e.value, around, seen)
            inside = around.computed(e.var, seen.free(e.value), (e.low, e.high))
            self._expression(e.body, inside, seen)
            return
        for child in children(e):
            self._expression(child, around, seen)


@dataclass(frozen=True)
class _Around:
    """The variables in scope. extents: of those of loops; sources: of one whose value is computed, the
    variables that it is computed from; ends: the least and the largest value of each."""

    extents: Mapping[str, Dim] = field(default_factory=dict)
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ends: Mapping[str, tuple[Dim, Dim]] = field(default_factory=dict)
    told: dict[frozenset[str], tuple[tuple[tuple[str, Dim], ...], Dim]] = field(default_factory=dict)

    def rounds(
        self, free: frozenset[str], dims: frozenset[str]
    ) -> tuple[tuple[tuple[str, Dim], ...], Dim]:
        """The extents of the variables that something with these free symbols depends on, and how many values
        they have together. dims: symbols that are none."""
        found = self.told.get(free)
        if found is None:
            own = self.expanded(free) - dims
            found = self.told[free] = self.known(own), self.times(own)
        return found

    def inside(self, var: str, extent: Dim) -> _Around:
        """Inside of one more loop."""
        return _Around({**self.extents, var: extent}, self.sources, {**self.ends, var: (ZERO, extent - 1)})

    def computed(self, var: str, free: frozenset[str], ends: tuple[Dim, Dim]) -> _Around:
        """Where a variable has a computed value between these ends."""
        return _Around(self.extents, {**self.sources, var: self.expanded(free)}, {**self.ends, var: ends})

    def at_most(self, extent: Dim) -> Dim:
        """The larger of what an extent is at both ends of each variable, the inner ones first."""
        for var in reversed(tuple(self.ends)):
            if var in extent.symbols:
                extent = dmax(*(extent.substitute({var: end}) for end in self.ends[var]))
        return extent

    def expanded(self, free: frozenset[str]) -> frozenset[str]:
        """The variables with the sources of computed ones in their places."""
        return frozenset().union(*(self.sources.get(v, {v}) for v in free))

    def known(self, free: Collection[str]) -> tuple[tuple[str, Dim], ...]:
        """The extents of these variables."""
        if not self.extents.keys() >= set(free):
            raise _Unknown
        return tuple((v, self.extents[v]) for v in sorted(free))

    def times(self, free: Collection[str]) -> Dim:
        """How many values these variables have together."""
        return product(tuple(extent for _, extent in self.known(free)))


class _Seen:
    """The expressions that were met in a statement. Equal ones get one number, so that what stands there
    often is compared by numbers and not from its root each time."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[int, frozenset[str]]] = {}
        self._kept: list[Expr] = []
        self._met: set[Hashable] = set()

    def first(self, e: Expr, extents: Hashable) -> bool:
        """Whether no equal one was met before with these extents; this one is met now."""
        key = self._number(e)[0], extents
        fresh = key not in self._met
        self._met.add(key)
        return fresh

    def free(self, e: Expr) -> frozenset[str]:
        """The symbols that it uses and does not bind."""
        return self._number(e)[1]

    def _number(self, e: Expr) -> tuple[int, frozenset[str]]:
        if id(e) in self._known:
            return self._known[id(e)]
        found = tuple(map(self._number, children(e)))
        free = frozenset().union(*(f for _, f in found))
        own: Hashable = repr(e) if isinstance(e, Const) else None
        if isinstance(e, Index):
            own, free = (e.dim, e.dtype), frozenset(e.dim.symbols)
        elif isinstance(e, Call):
            own = (e.fn, e.dtype)
        elif isinstance(e, Load):
            own = (e.buffer, e.index, e.guard)
            at = [*e.index, *(d for b in e.guard for d in (b.low, b.index, b.high))]
            free = free.union(*(d.symbols for d in at))
        elif isinstance(e, Reduce):
            own = (e.kind, e.axes, e.dtype, e.last)
            free = free.union(*(a.extent.symbols for a in e.axes)) - {a.var for a in e.axes}
        elif isinstance(e, Let):
            own, free = (e.var, e.low, e.high), found[0][1] | (found[1][1] - {e.var})
        number = self._numbers.setdefault((type(e).__name__, own, *(n for n, _ in found)), len(self._numbers))
        self._known[id(e)] = number, free
        self._kept.append(e)  # an id is of a living object
        return self._known[id(e)]
