"""A kernel of naive loops -> its arithmetic and the memory traffic that no way to compute it can avoid.

Both are formulas of the kernel's dims. They are counted before the kernel is scheduled, so that what a
schedule adds (padding, packing, work done twice) is none of it. What does not depend on a loop around it is
counted once for all of its rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.core.dim import YES, ZERO, Dim, TooLarge, dmin, product
from smelt.core.dtype import DType
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.graph import Module
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
from smelt.core.machine import FREE

LONGEST_WORK = 400
"""Characters of a formula in the manifest; a kernel whose work takes more to say has none told."""
_NO_ARITHMETIC = FREE | {"select", "neg", "abs"}


@dataclass(frozen=True, slots=True)
class KernelWork:
    """flops: operations on floats, a function such as exp counted as one, a multiply-add as two. integers:
    the same on integers. bytes: of each buffer, which is read or written once; of one that is read here and
    there, not more than the elements that are read."""

    flops: Dim
    integers: Dim
    bytes: Dim

    def row(self) -> dict[str, str] | None:
        """For the manifest: formulas; None where one of them is too long."""
        found = {"flops": str(self.flops), "integers": str(self.integers), "bytes": str(self.bytes)}
        return found if max(map(len, found.values())) <= LONGEST_WORK else None


class _Unknown(Exception):
    """The loops are of a kind whose work no formula tells."""


def kernel_work(kernel: Kernel) -> KernelWork | None:
    """The work of one launch; None where it cannot be told."""
    count = _Count(frozenset(d.name for d in kernel.dims))
    try:
        count.statements(kernel.body, _Around())
        facts, moved = kernel_facts(kernel), ZERO
        for b in kernel.inputs:
            size, read = product(b.shape), count.read.get(b.name, ZERO)
            moved += (size if facts.prove_le(size, read) is YES else dmin(size, read)) * b.dtype.bytes
        for b in kernel.outputs:
            moved += product(b.shape) * b.dtype.bytes
        return KernelWork(count.flops, count.integers, moved)
    except (_Unknown, TooLarge, RecursionError):
        return None


def module_work(module: Module) -> dict[str, dict[str, str]]:
    """Kernel -> its row, of those whose work is known. The kernels are not yet scheduled."""
    found = {name: kernel_work(k) for name, k in module.kernels.items() if not k.schedule}
    rows = {name: w.row() for name, w in found.items() if w is not None}
    return {name: row for name, row in rows.items() if row is not None}


def linked_work(
    module: Module, own: Mapping[str, Kernel], known: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """The same by the names of linked kernels. module: linked; own: the entry's scheduled kernels before
    that, under the names of `known`."""
    if own.keys() >= module.kernels.keys():
        return {name: known[name] for name in module.kernels if name in known}
    alike = {k.with_(name="", origin=""): known[name] for name, k in own.items() if name in known}
    keys = {name: k.with_(name="", origin="") for name, k in module.kernels.items()}
    return {name: alike[key] for name, key in keys.items() if key in alike}


@dataclass
class _Count:
    """What has been counted of a kernel with these dims."""

    dims: frozenset[str]
    flops: Dim = ZERO
    integers: Dim = ZERO
    read: dict[str, Dim] = field(default_factory=dict)

    def statements(self, body: Sequence[Stmt], around: _Around) -> None:
        """Count statements inside of these variables."""
        for s in body:
            if isinstance(s, Tiles):
                raise _Unknown
            if isinstance(s, Loop):
                self.statements(s.body, around.inside(s.var, self._extent(s.extent)))
            elif isinstance(s, Store):
                seen = _Seen()
                if s.accumulate is not None:
                    self._operation(s.value.dtype, around.times(around.extents))
                self._expression(s.value, around, seen)
            else:
                for var, value, _, _ in s.let:
                    seen = _Seen()
                    self._expression(value, around, seen)
                    around = around.computed(var, seen.free(value))
                self.statements(s.body, around)

    def _extent(self, extent: Dim) -> Dim:
        if not self.dims.issuperset(extent.symbols):
            raise _Unknown  # it depends on a loop around it, or on data
        return extent

    def _operation(self, dtype: DType, times: Dim) -> None:
        if dtype.is_float:
            self.flops += times
        elif dtype.name != "bool":
            self.integers += times

    def _expression(self, e: Expr, around: _Around, seen: _Seen) -> None:
        """Count an expression once for each value of the variables that it depends on, equal ones once."""
        free = around.expanded(seen.free(e)) - self.dims
        if not seen.first(e, around.known(free)):
            return
        times = around.times(free)
        if isinstance(e, Call) and e.fn not in _NO_ARITHMETIC:
            self._operation(e.dtype, times)
        elif isinstance(e, Load):
            self.read[e.buffer] = self.read.get(e.buffer, ZERO) + times
        elif isinstance(e, Reduce):
            for axis in e.axes:
                around = around.inside(axis.var, self._extent(axis.extent))
            self._operation(e.body.dtype, times * product(tuple(a.extent for a in e.axes)))
        elif isinstance(e, Let):
            self._expression(e.value, around, seen)
            self._expression(e.body, around.computed(e.var, seen.free(e.value)), seen)
            return
        for child in children(e):
            self._expression(child, around, seen)


@dataclass(frozen=True)
class _Around:
    """The variables in scope. extents: of those of loops; sources: of one whose value is computed, the
    variables that it is computed from."""

    extents: Mapping[str, Dim] = field(default_factory=dict)
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def inside(self, var: str, extent: Dim) -> _Around:
        """Inside of one more loop."""
        return _Around({**self.extents, var: extent}, self.sources)

    def computed(self, var: str, free: frozenset[str]) -> _Around:
        """Where a variable has a computed value."""
        return _Around(self.extents, {**self.sources, var: self.expanded(free)})

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
            own, free = (e.kind, e.axes, e.dtype, e.last), free - {a.var for a in e.axes}
        elif isinstance(e, Let):
            own, free = (e.var, e.low, e.high), found[0][1] | (found[1][1] - {e.var})
        number = self._numbers.setdefault((type(e).__name__, own, *(n for n, _ in found)), len(self._numbers))
        self._known[id(e)] = number, free
        self._kept.append(e)  # an id is of a living object
        return self._known[id(e)]
