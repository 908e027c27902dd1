"""A naive kernel in; the arithmetic operations of a launch and the bytes that it moves, as formulas, out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.dim import YES, ZERO, Dim, Facts, dmax, dmin, product, to_dim
from smelt.core.dtype import DType
from smelt.core.ir.analysis.scope import Access, Binder, accesses, kernel_facts
from smelt.core.ir.intrinsics import REDUCE_FN
from smelt.core.ir.kernel import Block, Buffer, Call, Expr, Kernel, Let, Loop, Reduce, Stmt, Store, children
from smelt.core.ir.rewrite import free_symbols

UNCOUNTED = frozenset({"cast", "bitcast", "select"})
"""What moves or converts; comparisons, whose results are bool, are not counted either."""


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel has to do, in its dims, of which none is 0.

    floating, integer: operations on elements of these types; a product and a sum are one each, a scalar
    function such as exp is one. What does not change in a loop is done once for all of it. Padding counts as
    data, and of what only some elements need, all have it.
    read, written: bytes of global memory, each element once, however often it is used: no cache can do with
    less. Where a run decides which elements of a buffer are read, the smaller of its size and the accesses.
    """

    floating: Dim = ZERO
    integer: Dim = ZERO
    read: Dim = ZERO
    written: Dim = ZERO

    def __add__(self, other: KernelWork) -> KernelWork:
        return KernelWork(
            self.floating + other.floating, self.integer + other.integer, self.read + other.read,
            self.written + other.written,
        )  # fmt: skip

    def at(self, kernel: Kernel, sizes: Iterable[Dim]) -> KernelWork:
        """The work of a launch of this kernel with these sizes of its dims."""
        env = {p.name: size for p, size in zip(kernel.dims, sizes, strict=True)}
        parts = (self.floating, self.integer, self.read, self.written)
        return KernelWork(*(d.substitute(env) for d in parts))

    @property
    def operations(self) -> Dim:
        """Of both types."""
        return self.floating + self.integer

    @property
    def bytes(self) -> Dim:
        """In both directions."""
        return self.read + self.written


def work(kernel: Kernel) -> KernelWork:
    """The work of one launch. The kernel has no schedule: tiles repeat loops for their last rows, and what
    they add is no work of the model's."""
    facts = kernel_facts(kernel)
    for p in kernel.dims:
        facts = facts.with_range(p.name, max(p.low, 1), p.high)
    floating = integer = ZERO
    for dtype, count, binders, names in _body(kernel.body, ()):
        times = _times(binders, names) * count
        floating += times if dtype.is_float else ZERO
        integer += times if dtype.is_int else ZERO
    moved = {True: ZERO, False: ZERO}
    asked = list(accesses(kernel.body))
    for b in kernel.buffers().values():
        for stores in moved:
            mine = [a for a in asked if a.buffer == b.name and (a.is_store is stores)]
            moved[stores] += _touched(b, mine, facts)
    return KernelWork(floating, integer, moved[False], moved[True])


def _touched(b: Buffer, asked: Iterable[Access], facts: Facts) -> Dim:
    """Bytes of a buffer that these accesses touch at least once."""
    count = sum((_times(a.binders) for a in asked), ZERO)
    size = product(b.shape)
    if facts.prove_le(size, count) is YES:
        least = size
    else:
        least = count if facts.prove_le(count, size) is YES else dmin(size, count)
    return least * b.dtype.bytes


def _times(binders: Iterable[Binder], names: frozenset[str] | None = None) -> Dim:
    """How often the inside of these is done, or (names) what depends on these variables alone. An extent that
    depends on a variable around it has the larger of its values at both ends."""
    total, ends = to_dim(1), dict[str, tuple[Dim, Dim]]()
    for binder in binders:
        if isinstance(binder, Let):
            ends[binder.var] = binder.low, binder.high
        elif isinstance(binder, Block):
            ends.update({var: (low, high) for var, _, low, high in binder.let})
        else:
            assert isinstance(binder, tuple | Loop), "a kernel with tiles is scheduled"
            loops = binder if isinstance(binder, tuple) else (binder,)
            for loop in loops:
                extent = _at_most(loop.extent, ends)
                total *= extent if names is None or loop.var in names else 1
                ends[loop.var] = ZERO, extent - 1
    return total


def _at_most(extent: Dim, ends: dict[str, tuple[Dim, Dim]]) -> Dim:
    for var in reversed(list(ends)):
        if var in extent.symbols:
            extent = dmax(*(extent.substitute({var: end}) for end in ends[var]))
    return extent


# ---------------------------------------------------------------- operations

_Found: TypeAlias = "tuple[DType, int, tuple[Binder, ...], frozenset[str] | None]"
"""Type and count of operations, what encloses them, and the variables that they depend on (None: on all)."""


def _body(body: Iterable[Stmt], binders: tuple[Binder, ...]) -> Iterator[_Found]:
    """The operations of statements."""
    for s in body:
        if isinstance(s, Store):
            yield from _expr(s.value, binders)
            if s.accumulate is not None:
                yield s.value.dtype, 1, binders, None
        else:
            yield from _body(s.body, (*binders, s))


def _expr(e: Expr, binders: tuple[Binder, ...]) -> Iterator[_Found]:
    """Those of an expression; how an index is found is no work on elements."""
    if isinstance(e, Let):
        yield from _expr(e.body, (*binders, e))
    elif isinstance(e, Reduce):
        inside = (*binders, e.axes)
        if e.kind in REDUCE_FN:
            yield e.dtype, 1, inside, _needed(e, binders) | {a.var for a in e.axes}
        yield from _expr(e.body, inside)
    else:
        if isinstance(e, Call) and e.fn not in UNCOUNTED:
            yield e.dtype, 2 if e.fn == "fma" else 1, binders, _needed(e, binders)
        for c in children(e):
            yield from _expr(c, binders)


def _needed(e: Expr, binders: Iterable[Binder]) -> frozenset[str]:
    """The variables that a value depends on, with those of what is bound on the way."""
    names = free_symbols(e)
    for binder in reversed(list(binders)):
        if isinstance(binder, Let) and binder.var in names:
            names |= free_symbols(binder.value)
        elif isinstance(binder, Block):
            for var, value, _, _ in binder.let:
                names |= free_symbols(value) if var in names else frozenset()
    return names
