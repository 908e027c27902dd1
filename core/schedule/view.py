"""One loop nest of a kernel, as strategies see it: loops, stores, reductions, strides of accesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from smelt.core.dim import Dim, FloorDiv, Max, Min, Mod, to_dim
from smelt.core.dim.atoms import CACHE
from smelt.core.ir.analysis.products import factors, strip_casts
from smelt.core.ir.analysis.traits import heavy
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
    children,
    walk_expr,
)
from smelt.core.ir.rewrite import free_symbols
from smelt.core.machine import Machine
from smelt.core.schedule.tree import chain

LEAST_ROWS = 4
"""Steps of a loop from which it gives the rows of a tile, where one further out could."""


@dataclass(frozen=True)
class View:
    """A perfect nest of serial loops around stores. loops: (variable, extent), outermost first."""

    kernel: Kernel
    loops: tuple[Loop, ...]
    stores: tuple[Store, ...]

    @property
    def vars(self) -> tuple[str, ...]:
        return tuple(n.var for n in self.loops)

    def extent(self, var: str) -> Dim:
        """Extent of a loop of the nest."""
        return next(n.extent for n in self.loops if n.var == var)

    def reduces(self) -> tuple[Reduce, ...]:
        """The outermost reductions of the stored values, each once."""
        found: list[Reduce] = []

        def visit(e: Expr) -> None:
            if isinstance(e, Reduce):
                if e not in found:
                    found.append(e)
                return
            for c in children(e):
                visit(c)

        for s in self.stores:
            visit(s.value)
        return tuple(found)

    def all_reduces(self) -> tuple[Reduce, ...]:
        """Every reduction, nested ones too, each once (an epilogue may use a result several times)."""
        every = (x for s in self.stores for x in walk_expr(s.value) if isinstance(x, Reduce))
        return tuple(dict.fromkeys(every))

    def follows(self, e: Expr) -> frozenset[str]:
        """Which loops an expression depends on."""
        return free_symbols(e) & frozenset(self.vars)

    def stride(self, access: Load | Store, var: str) -> Dim | None:
        """Elements between neighbours in var, row-major; None when it is no constant step."""
        shape = self.kernel.buffers()[access.buffer].shape
        return flat_stride(shape, access.index, var)

    def contiguous_store(self) -> str | None:
        """The loop along which every store steps by one element; None when there is none."""
        for var in reversed(self.vars):
            if all(self.stride(s, var) == 1 for s in self.stores):
                return var
        return None

    def divisors(self, var: str) -> tuple[int, ...]:
        """The constants that indices and guards divide var (plus something) by."""
        found: set[int] = set()
        for s in self.stores:
            for x in walk_expr(s.value):
                if isinstance(x, Load):
                    dims = (*x.index, *(d for b in x.guard for d in (b.low, b.index, b.high)))
                    found |= {n for d in dims for n in _divisors(d, var)}
        return tuple(sorted(found))

    @property
    def bits(self) -> int:
        """Width of the widest type that vectors of this nest compute in."""
        found = [self.kernel.buffers()[s.buffer].dtype.bits for s in self.stores]
        found += [x.dtype.bits for s in self.stores for x in walk_expr(s.value) if isinstance(x, Reduce)]
        return max([b for b in found if b <= 32] or [64])

    def is_heavy(self, machine: Machine) -> bool:
        """Whether a function that is dear on the machine rules what an element takes."""
        return any(heavy(s.value, machine) for s in self.stores)

    @property
    def has_lets(self) -> bool:
        return any(isinstance(x, Let) for s in self.stores for x in walk_expr(s.value))


def _divisors(d: Dim, var: str) -> set[int]:
    found: set[int] = set()
    for _, mono in d.terms():
        for atom, _ in mono:
            if isinstance(atom, FloorDiv | Mod):
                linear, by = atom.a.linear(var), atom.b.const_or_none
                if linear is not None and linear[0] == 1 and by is not None:
                    found.add(by)
                found |= _divisors(atom.a, var)
            elif isinstance(atom, Min | Max):
                found |= {n for x in atom.args for n in _divisors(x, var)}
    return found


@lru_cache(CACHE)
def flat_stride(shape: tuple[Dim, ...], index: tuple[Dim, ...], var: str) -> Dim | None:
    """The coefficient of var in the row-major position, or None."""
    flat, scale = to_dim(0), to_dim(1)
    for n, i in zip(reversed(shape), reversed(index), strict=True):
        if var in i.symbols or var in scale.symbols:  # no other term has it
            flat = flat + i * scale
        scale = scale * n
    found = flat.linear(var)
    return None if found is None else found[0]


def view(kernel: Kernel, s: Stmt, recurrent: bool = False) -> View | None:
    """The statement as a View, or None when it is not a plain naive nest. recurrent: it may read what it
    writes."""
    nodes, leaf = chain(s)
    loops = tuple(n for n in nodes if isinstance(n, Loop) and n.level == "serial" and not n.buffers)
    plain = tuple(x for x in leaf if isinstance(x, Store) and x.accumulate is None and not x.guard)
    if not nodes or len(loops) != len(nodes) or len(plain) != len(leaf) or not leaf:
        return None
    written = {x.buffer for x in plain}
    reads = {x.buffer for t in plain for x in walk_expr(t.value) if isinstance(x, Load)}
    return None if written & reads and not recurrent else View(kernel, loops, plain)


@dataclass(frozen=True)
class Roles:
    """A sum of products seen as a matrix product: rows x reduction times reduction x column.

    row: the innermost loop that only the left factor follows (None: a vector times a matrix).
    outer: the other loops that only the left factor follows. batch: loops of both or of neither.
    column: the loop that only the right factor follows and stores step along. a, b: the factors' loads.
    beside: what the right factor reads besides b to decode it (scales and zero points of packed weights).
    block: of a sum over blocks, each of which has a sum of products of its own, the axis of the blocks;
    reduce is then one sum over both, and beside what the columns of a block are multiplied by.
    """

    column: str
    row: str | None
    outer: tuple[str, ...]
    batch: tuple[str, ...]
    a: tuple[Load, ...]
    b: Load
    reduce: Reduce
    beside: tuple[Load, ...] = ()
    block: str = ""


def roles(v: View) -> Roles | None:
    """The roles of a nest whose only reductions are sums of products that agree on them, or None."""
    found = [_roles(v, r) for r in v.reduces()]
    first = found[0] if found else None
    if first is None or any(f is None for f in found) or len(v.all_reduces()) != len(found):
        return None
    same = all(f is not None and (f.column, f.row) == (first.column, first.row) for f in found)
    return first if same else None


def block_roles(v: View) -> Roles | None:
    """The roles of a nest that sums over blocks what follows from the sum of products of each, or None:
    sum b { f(sum k { a[m, b, k] * w[n, b, k] }) * scale[n, b] }."""
    sums, every = v.reduces(), v.all_reduces()
    inner = next((r for r in every if r not in sums), None)
    if len(sums) != 1 or len(every) != 2 or inner is None or {sums[0].kind, inner.kind} != {"sum"}:
        return None
    (outer,) = sums
    whole = Reduce("sum", (*outer.axes, *inner.axes), inner.body, inner.dtype)
    found = _roles(v, whole) if len(outer.axes) == 1 else None
    if found is None or found.beside:
        return None
    inside = {x for x in walk_expr(inner) if isinstance(x, Load)}
    others = [x for x in walk_expr(outer) if isinstance(x, Load) and x not in inside]
    beside = tuple(dict.fromkeys(x for x in others if found.column in v.follows(x)))
    apart = all(not v.follows(x) & {found.row, *found.outer} and not x.guard for x in beside)
    return replace(found, beside=beside, block=outer.axes[0].var) if apart else None


def _roles(v: View, r: Reduce) -> Roles | None:
    parts, column = factors(r), v.contiguous_store()
    if parts is None or column is None:
        return None
    a, b = parts
    if column in v.follows(a):
        a, b = b, a
    found = _right(v, b, column)
    if column not in v.follows(b) or column in v.follows(a) or not found:
        return None
    only = [x for x in v.vars if x in v.follows(a) and x not in v.follows(b)]
    row = _row(v, only)
    outer = tuple(x for x in only if x != row)
    batch = tuple(x for x in v.vars if x not in only and x != column)
    loads = tuple(x for x in walk_expr(a) if isinstance(x, Load))
    return Roles(column, row, outer, batch, loads, found[0], r, found[1:])


def _right(v: View, e: Expr, column: str) -> tuple[Load, ...]:
    """The loads of the right factor, the one with most axes first: one alone under casts, or several that
    all follow the column. () when it is neither."""
    right = strip_casts(e)
    if isinstance(right, Load):
        return (right,)
    parts = tuple(walk_expr(right))
    loads = tuple(dict.fromkeys(x for x in parts if isinstance(x, Load)))
    plain = all(isinstance(x, Load | Call | Const | Index) for x in parts)
    if not plain or any(column not in v.follows(x) or x.guard for x in loads):
        return ()
    return tuple(sorted(loads, key=lambda x: -len(x.index)))


def _row(v: View, only: list[str]) -> str | None:
    """The innermost loop of the left factor, or one further out when that one is short."""
    for var in reversed(only):
        n = v.extent(var).const_or_none
        if n is None or n >= LEAST_ROWS:
            return var
    return only[-1] if only else None
